"""Errors of dedup for a damaged data file. Arrow may raise `OSError` for it, as it does when S3 does not answer."""

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

from waybill.base.errors import DamagedFile, ObjectMissing, PlanUnusable, StoreUnavailable, WaybillError
from waybill.config.models import Dedup, Storage
from waybill.tables.dedup.appends import AppendedFile, TablePosition
from waybill.tables.dedup.index.manifest import IndexIdentity
from waybill.tables.dedup.index_build import BuildJob, BuildTask, index_rows
from waybill.tables.dedup.rows import read_rows
from waybill.tables.dedup.sweep_plan import SweepPlan
from waybill.tables.dedup.tasks import FilePart, SweepJob
from waybill.tables.iceberg.dedup import NO_HORIZON_MS
from waybill.tables.staging.table_layout import TableLayout

COLUMNS = ("topic", "partition", "offset", "message_id", "arrived_at")
ROWS = 3000

Reader = Callable[[Table, str], object]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """A table with one data file, on the local disk."""
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
    """The table's data file, whose content is restored after the test."""
    (task,) = table.scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    good = path.read_bytes()
    yield path
    path.write_bytes(good)


def read_for_sweep(table: Table, path: str) -> object:
    """Read a file as a sweep reads appended files."""
    uuid = table.metadata.table_uuid
    plan = SweepPlan(
        key="sweeps/flights/1/0.json",
        stream="flights",
        generation=1,
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        main=str(uuid),
        start=TablePosition(None, 0),
        end=TablePosition(1, 1),
        files=(AppendedFile(path, 1, ROWS),),
        topic_partitions=(),
        watermarks={},
        window_ms=1,
        horizon_ms=NO_HORIZON_MS,
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
        hash_ranges=1,
        index="dedup/flights/",
        runs=(),
        covers=0,
        budget_bytes=1 << 30,
        memory_bytes=1 << 20,
    )
    return list(read_rows(table.io, job, FilePart(0, 0, 1), COLUMNS))


def read_for_index(table: Table, path: str) -> object:
    """Read a file as a build of the index reads the unique table."""
    identity = IndexIdentity(str(table.metadata.table_uuid), ("message_id",), 1)
    job = BuildJob.of_table("dedup/flights/", identity, table, NO_HORIZON_MS, Dedup())
    return index_rows(MemoryFiles(), table.io, job, BuildTask((path,), 1, 1))


READERS = pytest.mark.parametrize("read", [read_for_sweep, read_for_index])


@READERS
@pytest.mark.parametrize("column", COLUMNS)
def test_damaged_page_raises_an_error_with_table_and_file(table: Table, file: Path, read: Reader, column: str) -> None:
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
def test_truncated_file_raises_an_error_with_table_and_file(
    table: Table, file: Path, read: Reader, share: float
) -> None:
    good = file.read_bytes()
    file.write_bytes(good[: int(share * len(good))])
    with pytest.raises(DamagedFile, match=rf"table analytics\.flights: its file .*{file.name} is damaged: "):
        read(table, f"file://{file}")


@pytest.mark.parametrize(("read", "error"), [(read_for_sweep, PlanUnusable), (read_for_index, ObjectMissing)])
def test_missing_file_is_not_reported_as_damaged(
    table: Table, file: Path, read: Reader, error: type[WaybillError]
) -> None:
    file.unlink()
    with pytest.raises(error, match=file.name):
        read(table, f"file://{file}")


@READERS
@pytest.mark.parametrize("message", ["AWS Error NETWORK_CONNECTION", "Expected to be able to read 9 bytes"])
def test_unreachable_s3_is_not_reported_as_damage(
    table: Table, file: Path, monkeypatch: pytest.MonkeyPatch, read: Reader, message: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(message)

    monkeypatch.setattr(PyArrowFile, "open", fail)
    with pytest.raises(StoreUnavailable, match=message):
        read(table, f"file://{file}")
