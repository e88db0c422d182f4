"""Partitioning by time and further columns: each row once, in a file of its partition, for any memory limit."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from waybill.config.models import Column, ColumnTransform, PartitionBy, TimeUnit, TransformKind
from waybill.tables.iceberg.schemas import partition_spec, table_schema
from waybill.tables.partition.rows import table_rows
from waybill.tables.staging.file_writer import PartitionedWriter
from waybill.tables.staging.grouping import PartitionGrouping
from waybill.tables.staging.table_layout import TableLayout, file_entries, load_data_files
from waybill.tables.staging.uploads import Uploads

IDENTITY, BUCKET, TRUNCATE = TransformKind.IDENTITY, TransformKind.BUCKET, TransformKind.TRUNCATE
COLUMNS = {
    name: Column.model_validate(kind)
    for name, kind in {
        "carrier": "string",
        "seats": "int",
        "distance": "long",
        "price": "decimal(9,2)",
        "cancelled": "boolean",
        "day": "date",
        "landed": "timestamp",
        "tail": "binary",
    }.items()
}
SCHEMA, ROWS = table_schema(COLUMNS), table_rows(COLUMNS)
HOUR_US = 3_600_000_000

TERMS = [
    *(ColumnTransform(name) for name in ("carrier", "seats", "distance", "price", "cancelled", "day", "tail")),
    *(
        ColumnTransform(name, BUCKET, 3)
        for name in ("carrier", "seats", "distance", "price", "day", "landed", "tail", "message_id", "key", "offset")
    ),
    *(ColumnTransform(name, TRUNCATE, 2) for name in ("carrier", "tail", "message_id")),
    *(ColumnTransform(name, TRUNCATE, 10) for name in ("seats", "distance", "offset")),
]


def row(offset: int, event_time_us: int, **columns: Any) -> dict[str, Any]:
    return (
        {
            "topic": "flights",
            "partition": 0,
            "offset": offset,
            "kafka_timestamp": None,
            "key": None,
            "headers": [],
            "value": b"{}",
            "event_time": event_time_us,
            "message_id": f"id-{offset}",
            "generation": 1,
        }
        | dict.fromkeys(COLUMNS)
        | columns
    )


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=ROWS)


def write(
    directory: Path,
    batches: list[pa.RecordBatch],
    spec: PartitionSpec,
    memory_bytes: int,
    schema: Schema = SCHEMA,
) -> list[DataFile]:
    scratch = directory / "scratch"
    scratch.mkdir()
    layout = TableLayout("t", f"{directory}/data", schema, spec, 1, {})
    uploads = Uploads(load_file_io({}, str(directory)))
    writer = PartitionedWriter(layout, ROWS, memory_bytes=memory_bytes, scratch=scratch, uploads=uploads, name="plan")
    for rows in batches:
        writer.add(rows)
    written = writer.finish()
    uploads.wait()
    uploads.close()
    return written


def scalar_partition(spec: PartitionSpec, rows: dict[str, Any]) -> tuple[Any, ...]:
    """Return the partition by PyIceberg's transforms of single values, which do not use its Rust library."""
    values = []
    for field in spec.fields:
        source = SCHEMA.find_field(field.source_id)
        value = field.transform.transform(source.field_type)(rows[source.name])
        if isinstance(value, date):
            value = (value - date(1970, 1, 1)).days
        values.append(value)
    return tuple(values)


def partition_of(file: DataFile) -> tuple[Any, ...]:
    return tuple(file.partition[at] for at in range(len(file.partition)))


OWN = ("message_id", "offset")
VALUES: dict[str, list[Any]] = {
    "carrier": [None, "", "AA", "AAL", "a/b=c&%?#", "x" * 300],
    "seats": [None, 0, -7, 180],
    "distance": [None, 0, -(2**62), 2**62],
    "price": [None, Decimal("0.00"), Decimal("-9999999.99"), Decimal("9999999.99")],
    "cancelled": [None, True, False],
    "day": [None, date(1970, 1, 1), date(1901, 5, 4), date(2099, 12, 31)],
    "landed": [None, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)],
    "tail": [None, b"", b"\xff\x00", b"\xff" * 300],
}
# Not the ten smallest numbers: truncated, they are no 32-bit numbers. Iceberg's Rust library, which Waybill uses, then
# returns a large positive number, and PyIceberg, which the test compares with, a number below the smallest.
INT32, INT64 = st.integers(10 - (1 << 31), (1 << 31) - 1), st.integers(-(1 << 62), (1 << 62) - 1)
TIMES = st.datetimes(datetime(1600, 1, 1), datetime(2300, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
TEXTS = st.sampled_from(["", "AA", "AAL", "null", "a/b=c&%?#", "..", "ü€𝄞-long", "x" * 300, "UA"]) | st.text(max_size=5)
ROW = st.fixed_dictionaries(
    {
        "event_time": st.integers(-3 * HOUR_US, 3 * HOUR_US),
        "key": st.none() | st.binary(max_size=3),
        "carrier": st.none() | TEXTS,
        "seats": st.none() | st.integers(-25, 25) | INT32,
        "distance": st.none() | st.integers(-25, 25) | INT64,
        "price": st.none() | st.decimals("-9999999.99", "9999999.99", places=2),
        "cancelled": st.none() | st.booleans(),
        "day": st.none() | st.dates(date(1900, 1, 1), date(2100, 1, 1)),
        "landed": st.none() | TIMES,
        "tail": st.none() | st.binary(max_size=4) | st.just(b"\xff" * 300),
    }
)


@settings(max_examples=25, deadline=None)
@given(
    unit=st.sampled_from(TimeUnit),
    terms=st.lists(st.sampled_from(TERMS), max_size=3, unique_by=lambda term: term.field_name),
    batches=st.lists(st.lists(ROW, min_size=1, max_size=8), min_size=1, max_size=4),
    memory_bytes=st.sampled_from([1, 500, 2000, 1 << 28]),
)
def test_each_row_is_written_once_to_the_file_of_its_partition(
    unit: TimeUnit, terms: list[ColumnTransform], batches: list[list[dict[str, Any]]], memory_bytes: int
) -> None:
    spec = partition_spec(PartitionBy(unit, tuple(terms)), SCHEMA)
    expected: dict[tuple[Any, ...], set[int]] = {}
    written_batches, offset = [], 0
    for rows in batches:
        whole = []
        for drawn in rows:
            whole.append(row(offset, **({"event_time_us": drawn["event_time"]} | drawn)))
            expected.setdefault(scalar_partition(spec, whole[-1]), set()).add(offset)
            offset += 1
        written_batches.append(batch(whole))
    sent = pa.Table.from_batches(written_batches)
    with tempfile.TemporaryDirectory() as directory:
        files = write(Path(directory), written_batches, spec, memory_bytes)
        assert len({partition_of(file) for file in files}) == len(files), "one file for each partition"
        found = {}
        for file in files:
            table = pq.read_table(file.file_path, partitioning=None)
            offsets = table.column("offset").to_pylist()
            found[partition_of(file)] = set(offsets)
            assert len(found[partition_of(file)]) == len(offsets) == file.record_count
            assert table.cast(ROWS).equals(sent.take(offsets).combine_chunks())
            if file.sort_order_id == 1:
                times = np.asarray(table.column("event_time").cast(pa.int64()))
                assert np.all(times[1:] >= times[:-1])
        assert found == expected
        round_trip = json.loads(json.dumps(file_entries(files)))
        assert [entry[0] for entry in round_trip] == [file.file_path for file in files]


@pytest.mark.parametrize("term", [t for t in TERMS if t.kind is not BUCKET or t.column == "price"], ids=str)
def test_scans_of_a_table_find_the_rows_by_their_partition_values(tmp_path: Path, term: ColumnTransform) -> None:
    """PyIceberg writes values of every type to a manifest, reads them, and prunes files by them."""
    values = VALUES.get(term.column, [None])
    spec = partition_spec(PartitionBy(TimeUnit.DAY, (term,)), SCHEMA)
    rows = [row(n, 0, **({} if term.column in OWN else {term.column: value})) for n, value in enumerate(values)]
    catalog = SqlCatalog("t", uri="sqlite://", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("a")
    table = catalog.create_table("a.b", SCHEMA, partition_spec=spec)
    files = write(tmp_path, [batch(rows)], table.spec(), 1 << 28, table.schema())
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in load_data_files(table, json.loads(json.dumps(file_entries(files)))):
            append.append_data_file(file)
    assert {partition_of(task.file) for task in table.scan().plan_files()} == {partition_of(file) for file in files}
    for n, wanted in enumerate(rows):
        value = wanted[term.column]
        condition = IsNull(term.column) if value is None else EqualTo(term.column, value)
        found = table.scan(condition).to_arrow().column("offset").to_pylist()
        assert n in found
        assert all(rows[offset][term.column] == value for offset in found)
    catalog.close()


def test_folder_names_escape_partition_values_and_have_a_maximum_length(tmp_path: Path) -> None:
    """Iceberg's own writers escape the same way; a long value must still give a valid S3 key."""
    spec = partition_spec(PartitionBy(TimeUnit.DAY, (ColumnTransform("carrier"), ColumnTransform("tail"))), SCHEMA)
    carriers = [None, "", "a/b c", "ü", "€" * 400, "x" * 5000]
    files = write(tmp_path, [batch([row(n, 0, carrier=c, tail=b"\xff\x00") for n, c in enumerate(carriers)])], spec, 99)
    folders = {partition_of(f)[1]: f.file_path.removeprefix(f"{tmp_path}/data/").split("/")[:-1] for f in files}
    assert folders[None] == ["event_time_day=1970-01-01", "carrier=null", "tail=%2FwA%3D"]
    assert folders[""][1] == "carrier="
    assert folders["a/b c"][1] == "carrier=a%2Fb+c"
    assert folders["ü"][1] == "carrier=%C3%BC"
    assert folders["x" * 5000][1] == "carrier=" + "x" * 92
    assert folders["€" * 400][1] == "carrier=" + "%E2%82%AC" * 10  # never cut within an escape sequence
    assert all(Path(f.file_path).is_file() for f in files)


def test_hundreds_of_partitions_need_little_memory_and_few_open_files(tmp_path: Path) -> None:
    spec = partition_spec(PartitionBy(TimeUnit.HOUR, (ColumnTransform("message_id", BUCKET, 100),)), SCHEMA)
    batches = [batch([row(b * 200 + n, n * HOUR_US // 40) for n in range(200)]) for b in range(5)]
    layout = TableLayout("t", f"{tmp_path}/data", SCHEMA, spec, 1, {})
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    uploads = Uploads(load_file_io({}, str(tmp_path)))
    writer = PartitionedWriter(layout, ROWS, memory_bytes=50_000, scratch=scratch, uploads=uploads, name="plan")
    for rows in batches:
        writer.add(rows)
        assert not list(scratch.glob("*.parquet")), "no partition has enough rows for a row group"
    files = writer.finish()
    uploads.wait()
    uploads.close()
    assert len(files) > 350
    assert sum(file.record_count for file in files) == 1000


@pytest.mark.parametrize("count", [3, 40_000])
def test_rows_of_a_partition_stay_in_order_for_any_number_of_partitions(count: int) -> None:
    """More partitions than 16-bit codes, and combinations of codes that are encoded again on the way."""
    rng = np.random.default_rng(1)
    n = 2 * count
    columns = {name: [value] * n for name, value in row(0, 0).items()} | {
        "offset": np.arange(n),
        "event_time": rng.integers(0, 3 * HOUR_US, n),
        "distance": rng.permutation(np.arange(n) % count),
        "seats": rng.integers(0, 40_000, n).astype(np.int32),
    }
    table = pa.Table.from_arrays([pa.array(columns[f.name], f.type) for f in ROWS], schema=ROWS)
    terms = (ColumnTransform("distance"), ColumnTransform("seats"), ColumnTransform("cancelled"))
    order, slices = PartitionGrouping(partition_spec(PartitionBy(TimeUnit.HOUR, terms), SCHEMA), SCHEMA).group(table)
    assert order is not None
    times, distance, seats = columns["event_time"][order], columns["distance"][order], columns["seats"][order]
    found = list(slices)
    starts, ends = (np.array([getattr(cut, end) for cut in found]) for end in ("start", "end"))
    assert starts[0] == 0
    assert ends[-1] == n
    assert np.array_equal(starts[1:], ends[:-1])
    values = [np.repeat([cut.value[at] for cut in found], ends - starts) for at in range(3)]
    assert all(np.array_equal(a, b) for a, b in zip(values, (times // HOUR_US, distance, seats), strict=True))
    assert {cut.value[3] for cut in found} == {None}
    assert set(np.flatnonzero(np.diff(times) < 0) + 1) <= set(starts)
    assert len({cut.value for cut in found}) == len(found)


@pytest.mark.parametrize(
    ("term", "values", "expected"),
    [
        # The specification's examples of 32-bit hashes, modulo a number of buckets that tells them apart.
        (ColumnTransform("seats", BUCKET, 100_000), [34], [2017239379 % 100_000]),
        (ColumnTransform("distance", BUCKET, 100_000), [34], [2017239379 % 100_000]),
        (ColumnTransform("price", BUCKET, 100_000), [Decimal("14.20")], [(-500754589 & 0x7FFFFFFF) % 100_000]),
        (ColumnTransform("day", BUCKET, 100_000), [date(2017, 11, 16)], [(-653330422 & 0x7FFFFFFF) % 100_000]),
        (
            ColumnTransform("landed", BUCKET, 100_000),
            [datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC)],
            [(-2047944441 & 0x7FFFFFFF) % 100_000],
        ),
        (ColumnTransform("carrier", BUCKET, 100_000), ["iceberg"], [1210000089 % 100_000]),
        (ColumnTransform("tail", BUCKET, 100_000), [bytes(range(4))], [(-188683207 & 0x7FFFFFFF) % 100_000]),
        (ColumnTransform("seats", TRUNCATE, 10), [1, -1, 0, 10, -10], [0, -10, 0, 10, -10]),
        (ColumnTransform("price", TRUNCATE, 50), [Decimal("10.65")], [Decimal("10.50")]),
        (ColumnTransform("price", TRUNCATE, 50), [Decimal("-0.01")], [Decimal("-0.50")]),
        (ColumnTransform("carrier", TRUNCATE, 3), ["iceberg", "ü€𝄞x", "ab"], ["ice", "ü€𝄞", "ab"]),
        (ColumnTransform("tail", TRUNCATE, 3), [b"\x01\x02\x03\x04\x05"], [b"\x01\x02\x03"]),
    ],
)  # fmt: skip
def test_transforms_match_the_iceberg_specification(
    term: ColumnTransform, values: list[Any], expected: list[Any]
) -> None:
    """https://iceberg.apache.org/spec/#appendix-b-32-bit-hash-requirements and its section on truncation."""
    table = pa.Table.from_batches([batch([row(n, 0, **{term.column: v}) for n, v in enumerate(values)])])
    order, slices = PartitionGrouping(partition_spec(PartitionBy(TimeUnit.DAY, (term,)), SCHEMA), SCHEMA).group(table)
    found = {}
    for cut in slices:
        for place in range(cut.start, cut.end):
            found[place if order is None else int(order[place])] = cut.value[1]
    assert [found[n] for n in range(len(values))] == expected
