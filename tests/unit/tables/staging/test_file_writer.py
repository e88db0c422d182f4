"""Rows become one sorted data file for each partition, in bounded memory."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec

from waybill.config.models import PartitionBy, TimeUnit
from waybill.tables.iceberg.schemas import QUARANTINE_SCHEMA, TABLE_SCHEMA, partition_spec
from waybill.tables.partition.rows import QUARANTINE_ROWS, TABLE_ROWS
from waybill.tables.staging import file_writer
from waybill.tables.staging.file_writer import PartitionedWriter
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.uploads import Uploads

HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
DAY, HOUR = (partition_spec(PartitionBy(unit)) for unit in (TimeUnit.DAY, TimeUnit.HOUR))


def row(offset: int, event_time_us: int, value: bytes = b"{}") -> dict[str, Any]:
    return {
        "topic": "flights",
        "partition": 0,
        "offset": offset,
        "kafka_timestamp": None,
        "key": b"key",
        "headers": [{"key": "source", "value": b"test"}],
        "value": value,
        "event_time": event_time_us,
        "message_id": f"id-{offset}",
        "generation": 1,
    }


def write(
    tmp_path: Path, batches: list[list[dict[str, Any]]], spec: PartitionSpec = DAY, memory_bytes: int = 1 << 28
) -> list[DataFile]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    layout = TableLayout("t", f"{tmp_path}/data", TABLE_SCHEMA, spec, 1, {})
    uploads = Uploads(load_file_io({}, str(tmp_path)))
    writer = PartitionedWriter(
        layout, TABLE_ROWS, memory_bytes=memory_bytes, scratch=scratch, uploads=uploads, name="plan"
    )
    for rows in batches:
        writer.add(pa.RecordBatch.from_pylist(rows, schema=TABLE_ROWS))
    written = writer.finish()
    uploads.wait()
    uploads.close()
    assert writer.rows == sum(map(len, batches)) == sum(file.record_count for file in written)
    assert not list(scratch.glob("*.parquet"))
    return written


def read(written: list[DataFile]) -> dict[int, list[tuple[int, int]]]:
    """Return (event time, offset) of the rows of each partition value."""
    found = {}
    for file in written:
        table = pq.read_table(file.file_path, partitioning=None)
        assert file.file_size_in_bytes == Path(file.file_path).stat().st_size
        times = table.column("event_time").cast(pa.int64()).to_pylist()
        found[file.partition[0]] = list(zip(times, table.column("offset").to_pylist(), strict=True))
    assert len(found) == len(written), "one file for each value"
    return found


def test_each_row_is_written_to_the_file_of_its_day(tmp_path: Path) -> None:
    times = [0, DAY_US, DAY_US - 1, -1, 5, -DAY_US, -DAY_US - 1]
    written = write(tmp_path, [[row(n, time) for n, time in enumerate(times)]])
    assert read(written) == {
        -2: [(-DAY_US - 1, 6)],
        -1: [(-DAY_US, 5), (-1, 3)],
        0: [(0, 0), (5, 4), (DAY_US - 1, 2)],
        1: [(DAY_US, 1)],
    }
    assert {Path(file.file_path).parent.name for file in written} == {
        "event_time_day=1969-12-30",
        "event_time_day=1969-12-31",
        "event_time_day=1970-01-01",
        "event_time_day=1970-01-02",
    }


def test_each_row_is_written_to_the_file_of_its_hour(tmp_path: Path) -> None:
    written = write(tmp_path, [[row(0, HOUR_US - 1), row(1, HOUR_US), row(2, -1)]], HOUR)
    assert {value: [offset for _, offset in rows] for value, rows in read(written).items()} == {0: [0], 1: [1], -1: [2]}


def test_rows_with_the_same_time_stay_in_order_of_offset(tmp_path: Path) -> None:
    written = write(tmp_path, [[row(n, (n % 3) * 10) for n in range(99)]])
    assert read(written)[0] == sorted(((n % 3) * 10, n) for n in range(99))


@pytest.mark.parametrize("memory_bytes", [1, 20_000, 60_000, 1 << 28])
@pytest.mark.parametrize("days", [1, 3, 40])
def test_each_day_has_one_file_with_all_its_rows_for_any_memory_limit(
    tmp_path: Path, memory_bytes: int, days: int
) -> None:
    """Combines spills, full row groups and rows that remain at the end."""
    rng = random.Random(days)
    batches = [[row(b * 50 + n, rng.randrange(days * DAY_US), b"x" * 100) for n in range(50)] for b in range(10)]
    found = read(write(tmp_path, batches, memory_bytes=memory_bytes))
    expected: dict[int, list[tuple[int, int]]] = {}
    for rows in batches:
        for r in rows:
            expected.setdefault(r["event_time"] // DAY_US, []).append((r["event_time"], r["offset"]))
    assert {day: sorted(rows) for day, rows in found.items()} == {day: sorted(rows) for day, rows in expected.items()}


def test_spilled_rows_are_merged_in_order_of_event_time(tmp_path: Path) -> None:
    rng = random.Random(1)
    batches = [[row(b * 10 + n, rng.randrange(50 * DAY_US)) for n in range(10)] for b in range(100)]
    written = write(tmp_path, batches, memory_bytes=10_000)
    assert all(rows == sorted(rows) for rows in read(written).values())
    assert all(file.sort_order_id == 1 for file in written)
    assert all(pq.ParquetFile(file.file_path).num_row_groups == 1 for file in written)


def test_a_file_whose_row_groups_overlap_has_no_sort_order_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 10_000)
    in_order = [[row(b * 100 + n, b * 1000 + n) for n in range(100)] for b in range(10)]
    (file,) = write(tmp_path, in_order, memory_bytes=20_000)
    assert pq.ParquetFile(file.file_path).num_row_groups > 3
    assert file.sort_order_id == 1
    (tmp_path / "late").mkdir()
    (file,) = write(tmp_path / "late", [*in_order, [row(5000, 5)]], memory_bytes=20_000)
    assert file.sort_order_id is None


def test_sorted_row_groups_of_another_file_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group is sorted, the next one begins before its end, and a few rows belong to the hour before."""
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 20_000)

    earlier_hour = [row(n, n) for n in range(2)]
    groups = [[row(g * 1000 + n, HOUR_US + g * 100 + n) for n in range(200)] for g in range(1, 6)]
    batches = [group[start : start + 50] for group in groups for start in range(0, 200, 50)]
    monkeypatch.setattr(file_writer.PartitionedWriter, "_as_contiguous_table", None)  # fails if rows are sorted
    earlier, later = write(tmp_path, [earlier_hour, *batches], HOUR)
    assert [earlier.record_count, later.record_count] == [2, 1000]
    metadata = pq.ParquetFile(later.file_path).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [200] * 5
    assert later.sort_order_id is None


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_written_and_row_groups_are_sorted_for_any_order_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 20_000)
    rng = random.Random(seed)
    batches, offset = [], 0
    for _ in range(rng.randrange(1, 30)):
        first, count = rng.randrange(6) * HOUR_US // 2, rng.randrange(1, 300)
        times = [first + rng.randrange(rng.choice([100, HOUR_US, 3 * HOUR_US])) for _ in range(count)]
        rows = [row(offset + n, t) for n, t in enumerate(sorted(times) if rng.random() < 0.8 else times)]
        offset += count
        size = rng.choice([10, 50, 300])
        batches += [rows[start : start + size] for start in range(0, count, size)]
    written = write(tmp_path, batches, HOUR, memory_bytes=rng.choice([5_000, 30_000, 100_000, 1 << 28]))
    expected = sorted((r["event_time"], r["offset"]) for rows in batches for r in rows)
    assert sorted(pair for rows in read(written).values() for pair in rows) == expected
    for file in written:
        parquet = pq.ParquetFile(file.file_path)
        for number in range(parquet.num_row_groups):
            times = parquet.read_row_group(number).column("event_time").cast(pa.int64()).to_pylist()
            assert times == sorted(times)
            assert {time // HOUR_US for time in times} == {file.partition[0]}


def test_rows_kept_in_the_buffer_do_not_hold_the_memory_of_written_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 1 << 20)
    layout = TableLayout("t", f"{tmp_path}/data", TABLE_SCHEMA, HOUR, 1, {})
    uploads = Uploads(load_file_io({}, str(tmp_path)))
    writer = PartitionedWriter(layout, TABLE_ROWS, memory_bytes=1 << 26, scratch=tmp_path, uploads=uploads, name="plan")
    before = pa.total_allocated_bytes()
    for hour in range(5):  # 1.5 MB of an hour, and a row of the next
        rows = [row(n, hour * HOUR_US + n, bytes(1000)) for n in range(1500)] + [row(1500, (hour + 1) * HOUR_US)]
        writer.add(pa.RecordBatch.from_pylist(rows, schema=TABLE_ROWS))
    held = pa.total_allocated_bytes() - before
    writer.abandon()
    uploads.close()
    assert held < 1 << 20


def test_manifest_entries_have_column_bounds_for_pruning(tmp_path: Path) -> None:
    (file,) = write(tmp_path, [[row(n, 1000 + n) for n in range(10, 20)]])
    ids = {field.name: field.field_id for field in TABLE_SCHEMA.fields}
    assert int.from_bytes(file.lower_bounds[ids["offset"]], "little") == 10
    assert int.from_bytes(file.upper_bounds[ids["offset"]], "little") == 19
    assert int.from_bytes(file.lower_bounds[ids["event_time"]], "little") == 1010
    assert file.lower_bounds[ids["topic"]] == file.upper_bounds[ids["topic"]] == b"flights"
    assert file.null_value_counts[ids["kafka_timestamp"]] == 10
    assert file.spec_id == 0


def test_columns_of_a_file_have_the_field_ids_of_the_table(tmp_path: Path) -> None:
    (file,) = write(tmp_path, [[row(0, 0)]])
    found = {
        column.path: column.logical_type and pq.read_schema(file.file_path).field(column.path.split(".")[0]).metadata
        for column in map(pq.ParquetFile(file.file_path).schema.column, range(11))
    }
    schema = pq.read_schema(file.file_path)
    assert {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in schema} == {
        f.name: f.field_id for f in TABLE_SCHEMA.fields
    }
    element = schema.field("headers").type.value_field
    assert element.metadata[b"PARQUET:field_id"] == b"11"
    assert [f.metadata[b"PARQUET:field_id"] for f in element.type] == [b"12", b"13"]
    assert "headers.list.element.key" in found


def test_an_unpartitioned_table_gets_one_file_in_order_of_arrival(tmp_path: Path) -> None:
    layout = TableLayout("q", f"{tmp_path}/data", QUARANTINE_SCHEMA, UNPARTITIONED_PARTITION_SPEC, None, {})
    uploads = Uploads(load_file_io({}, str(tmp_path)))
    writer = PartitionedWriter(
        layout, QUARANTINE_ROWS, memory_bytes=1000, scratch=tmp_path, uploads=uploads, name="plan"
    )
    assert writer.finish() == []
    now = datetime(2026, 1, 31, tzinfo=UTC)
    for offset in range(30):
        refused = {k: v for k, v in row(offset, 0).items() if k not in {"event_time", "message_id"}}
        refused |= {"reason": "not_json: x", "parser": "json", "quarantined_at": now}
        writer.add(pa.RecordBatch.from_pylist([refused], schema=QUARANTINE_ROWS))
    (file,) = writer.finish()
    uploads.wait()
    uploads.close()
    assert Path(file.file_path).parent == tmp_path / "data"
    assert pq.read_table(file.file_path).column("offset").to_pylist() == list(range(30))
    assert file.partition == type(file.partition)()


def test_uploaded_files_can_be_discarded(tmp_path: Path) -> None:
    uploads = Uploads(load_file_io({}, str(tmp_path)))
    local = tmp_path / "local"
    local.write_bytes(b"data")
    uploads.send(local, f"{tmp_path}/data/file")
    uploads.wait()
    assert (tmp_path / "data/file").read_bytes() == b"data"
    uploads.discard()
    uploads.close()
    assert not (tmp_path / "data/file").exists()
