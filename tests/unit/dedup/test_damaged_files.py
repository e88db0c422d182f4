"""What dedup says of a table's file that is damaged: Arrow may say `OSError`, as where S3 does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from index_files import MemoryFiles
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.table import Table

from waybill.config import Dedup, Storage
from waybill.dedup.appends import GainedFile, Point
from waybill.dedup.candidates import UNBOUNDED_MS
from waybill.dedup.index.manifest import IndexOf
from waybill.dedup.index_build import BuildJob, BuildTask, index_rows
from waybill.dedup.plan import SweepPlan
from waybill.dedup.rows import read_rows
from waybill.dedup.tasks import Piece, SweepJob
from waybill.errors import DamagedFile, ObjectMissing, PlanUnusable, StoreUnavailable, WaybillError
from waybill.staging.table_layout import TableLayout

COLUMNS = ("topic", "partition", "offset", "message_id", "arrived_at")
ROWS = 3000

Reader = Callable[[Table, str], object]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """A table with one file, on this machine's disk."""
    folder = tmp_path_factory.mktemp("warehouse")
    catalog = load_catalog("test", type="sql", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
    catalog.create_namespace("analytics")
    rows = pa.table(
        {
            "topic": ["flights"] * ROWS,
            "partition": pa.array([0] * ROWS, pa.int32()),
            "offset": range(ROWS),
            "message_id": [f"{n * 7919 % 10007}" for n in range(ROWS)],
            "arrived_at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * ROWS, pa.timestamp("us", "UTC")),
        }
    )
    made = catalog.create_table("analytics.flights", rows.schema)
    made.append(rows)
    yield made
    catalog.close()


@pytest.fixture
def file(table: Table) -> Iterator[Path]:
    """Its file, which is as it was afterwards."""
    (task,) = table.scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    good = path.read_bytes()
    yield path
    path.write_bytes(good)


def swept(table: Table, path: str) -> object:
    """As a sweep reads what its table gained."""
    uuid = table.metadata.table_uuid
    plan = SweepPlan(
        key="sweeps/flights/1/0.json",
        stream="flights",
        generation=1,
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        main=str(uuid),
        start=Point(None, 0),
        end=Point(1, 1),
        files=(GainedFile(path, 1, ROWS),),
        topic_partitions=(),
        watermarks={},
        window_ms=1,
        horizon_ms=UNBOUNDED_MS,
        key_columns=("message_id",),
        source=None,
        buckets=1,
    )
    layout = TableLayout.of(table)
    job = SweepJob(
        plan=plan,
        topic_partitions=(),
        storage=Storage(bucket="bucket"),
        catalog_connection="iceberg_default",
        main=layout,
        unique=layout,
        duplicates=layout,
        secret=uuid.bytes,
        judges=1,
        index="dedup/flights/",
        runs=(),
        covers=0,
        budget_bytes=1 << 30,
        memory_bytes=1 << 20,
    )
    return list(read_rows(table.io, job, Piece(0, 0, 1), COLUMNS))


def indexed(table: Table, path: str) -> object:
    """As the index is built from the unique table."""
    of = IndexOf(str(table.metadata.table_uuid), ("message_id",), 1)
    job = BuildJob.of_table("dedup/flights/", of, table, UNBOUNDED_MS, Dedup())
    return index_rows(MemoryFiles(), table.io, job, BuildTask((path,), 1, 1))


READERS = pytest.mark.parametrize("read", [swept, indexed])


@READERS
@pytest.mark.parametrize("column", COLUMNS)
def test_a_damaged_page_is_named(table: Table, file: Path, read: Reader, column: str) -> None:
    chunks = pq.read_metadata(file).row_group(0)
    (chunk,) = (c for c in map(chunks.column, range(chunks.num_columns)) if c.path_in_schema == column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(file.read_bytes())
    for place in range(start, start + chunk.total_compressed_size):
        data[place] ^= 0x55
    file.write_bytes(data)
    with pytest.raises(DamagedFile, match=rf"table analytics\.flights: its file .*{file.name} is damaged: "):
        read(table, f"file://{file}")


@READERS
@pytest.mark.parametrize("share", [0, 0.5, 0.999])
def test_a_file_that_was_cut_off_is_named(table: Table, file: Path, read: Reader, share: float) -> None:
    good = file.read_bytes()
    file.write_bytes(good[: int(share * len(good))])
    with pytest.raises(DamagedFile, match=rf"table analytics\.flights: its file .*{file.name} is damaged: "):
        read(table, f"file://{file}")


@pytest.mark.parametrize(("read", "becomes"), [(swept, PlanUnusable), (indexed, ObjectMissing)])
def test_a_file_that_is_gone_is_not_damaged(
    table: Table, file: Path, read: Reader, becomes: type[WaybillError]
) -> None:
    file.unlink()
    with pytest.raises(becomes, match=file.name):
        read(table, f"file://{file}")


@READERS
@pytest.mark.parametrize("said", ["AWS Error NETWORK_CONNECTION", "Expected to be able to read 9 bytes"])
def test_an_s3_that_does_not_answer_is_no_damage(
    table: Table, file: Path, monkeypatch: pytest.MonkeyPatch, read: Reader, said: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(said)

    monkeypatch.setattr(PyArrowFile, "open", fail)
    with pytest.raises(StoreUnavailable, match=said):
        read(table, f"file://{file}")
