from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from waybill.config.models import Column, EventTimeBounds, JsonParser
from waybill.config.names import TopicPartition
from waybill.parsers import build_parser
from waybill.records.batches.message_rows import MESSAGE_SCHEMA, NO_TIMESTAMP_US
from waybill.tables.partition.rows import QUARANTINE_ROWS, TABLE_ROWS, RowBuilder, Rows, table_rows

TP = TopicPartition("flights", 3)
PARSER = JsonParser.model_validate({"event_time": {"field": "at", "format": "epoch_ms"}, "message_id": "id"})
PLANNED = datetime(2026, 1, 31, tzinfo=UTC)
MAX_US = 2**63 - 1
UNBOUNDED = EventTimeBounds(past=timedelta(days=3_650_000), future=timedelta(days=3_650_000))


def message(offset: int, value: bytes | None, timestamp_us: int = 5_000_000, **fields: Any) -> dict[str, Any]:
    return {"offset": offset, "timestamp": timestamp_us, "key": b"k", "value": value, "headers": []} | fields


def build(*messages: dict[str, Any], bounds: EventTimeBounds = UNBOUNDED) -> Rows:
    batch = pa.RecordBatch.from_pylist(list(messages), schema=MESSAGE_SCHEMA)
    rows = RowBuilder(build_parser(PARSER), 7, PLANNED, bounds).build(TP, batch)
    assert rows.table.schema.equals(TABLE_ROWS)
    assert rows.quarantine.schema.equals(QUARANTINE_ROWS)
    assert rows.table.num_rows + rows.quarantine.num_rows == len(messages)
    rows.table.validate(full=True)
    rows.quarantine.validate(full=True)
    return rows


def column(batch: pa.RecordBatch, name: str) -> list[Any]:
    values = batch.column(name)
    return (values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values).to_pylist()


def test_a_message_becomes_a_row_with_topic_partition_offset_key_and_headers() -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    (row,) = build(message(12, b'{"at": 1, "id": "x"}', key=None, headers=headers)).table.to_pylist()
    assert row == {
        "topic": "flights",
        "partition": 3,
        "offset": 12,
        "kafka_timestamp": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
        "key": None,
        "headers": headers,
        "value": b'{"at": 1, "id": "x"}',
        "event_time": datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
        "message_id": "x",
        "generation": 7,
    }


def test_a_tombstone_is_a_row_with_kafkas_timestamp_as_event_time() -> None:
    rows = build(message(1, b'{"at": 1, "id": "x"}'), message(2, None), message(3, b'{"at": 3}'), message(4, None, 0))
    assert column(rows.table, "value") == [b'{"at": 1, "id": "x"}', None, b'{"at": 3}', None]
    assert column(rows.table, "event_time") == [1000, 5_000_000, 3000, 0]
    assert column(rows.table, "message_id") == ["x", "flights/3@2", "flights/3@3", "flights/3@4"]


def test_a_batch_may_consist_of_tombstones_only() -> None:
    assert column(build(message(1, None), message(2, None)).table, "offset") == [1, 2]


def test_an_empty_value_is_no_tombstone() -> None:
    rows = build(message(1, b""), message(2, None))
    assert column(rows.table, "offset") == [2]
    assert column(rows.quarantine, "value") == [b""]


def test_the_quarantine_has_the_reason_and_the_bytes() -> None:
    rows = build(message(1, b"\xff"), message(2, b'{"at": 1}'), message(3, b"[]"))
    assert column(rows.table, "offset") == [2]
    assert column(rows.quarantine, "offset") == [1, 3]
    assert column(rows.quarantine, "value") == [b"\xff", b"[]"]
    assert [reason.partition(":")[0] for reason in column(rows.quarantine, "reason")] == ["not_json", "not_an_object"]
    assert rows.quarantine.column("parser").to_pylist() == ["json", "json"]
    assert rows.quarantine.column("quarantined_at").to_pylist() == [PLANNED, PLANNED]
    assert column(rows.quarantine, "generation") == [7, 7]


def test_the_kafka_timestamp_is_null_when_missing_or_out_of_range() -> None:
    times = [NO_TIMESTAMP_US, MAX_US, -MAX_US, 0, -1]
    rows = build(*[message(n, b'{"at": 1}', time) for n, time in enumerate(times)])
    assert column(rows.table, "kafka_timestamp") == [None, None, None, 0, -1]


def test_a_tombstone_without_a_usable_timestamp_goes_to_quarantine() -> None:
    rows = build(message(1, None, NO_TIMESTAMP_US), message(2, None, MAX_US), message(3, None))
    assert column(rows.table, "offset") == [3]
    assert column(rows.quarantine, "offset") == [1, 2]
    assert column(rows.quarantine, "kafka_timestamp") == [None, None]
    assert all(reason.startswith("event_time_out_of_range: ") for reason in column(rows.quarantine, "reason"))


def test_an_event_time_out_of_bounds_goes_to_quarantine_with_the_bound_in_the_reason() -> None:
    """The run was planned on 2026-01-31; the bounds are one day before and one hour after."""
    bounds = EventTimeBounds(past=timedelta(days=1), future=timedelta(hours=1))
    planned_ms = int(PLANNED.timestamp() * 1000)
    first, last = planned_ms - 86_400_000, planned_ms + 3_600_000
    times = [first, first - 1, last, last + 1, planned_ms, 0, -62_135_596_800_000, 253_402_300_799_999]
    rows = build(*(message(n, b'{"at": %d}' % at) for n, at in enumerate(times)), bounds=bounds)
    assert column(rows.table, "offset") == [0, 2, 4]
    before, after = "2026-01-30T00:00:00.000000Z, 1d before", "2026-01-31T01:00:00.000000Z, 1h after"
    assert column(rows.quarantine, "reason") == [
        f"event_time_out_of_bounds: 2026-01-29T23:59:59.999000Z is before {before} the run was planned",
        f"event_time_out_of_bounds: 2026-01-31T01:00:00.001000Z is after {after} the run was planned",
        f"event_time_out_of_bounds: 1970-01-01T00:00:00.000000Z is before {before} the run was planned",
        f"event_time_out_of_bounds: 0001-01-01T00:00:00.000000Z is before {before} the run was planned",
        f"event_time_out_of_bounds: 9999-12-31T23:59:59.999000Z is after {after} the run was planned",
    ]
    assert column(rows.quarantine, "offset") == [1, 3, 5, 6, 7]


def test_bounds_apply_to_tombstones_and_keep_other_reasons() -> None:
    bounds = EventTimeBounds()
    rows = build(message(1, None), message(2, b"junk"), message(3, None, NO_TIMESTAMP_US), bounds=bounds)
    assert rows.table.num_rows == 0
    assert [reason.partition(":")[0] for reason in column(rows.quarantine, "reason")] == [
        "event_time_out_of_bounds",
        "not_json",
        "event_time_out_of_range",
    ]


def test_the_widest_bounds_accept_every_year() -> None:
    rows = build(message(1, b'{"at": -62135596800000}'), message(2, b'{"at": 253402300799999}'))
    assert column(rows.table, "offset") == [1, 2]


def build_typed(columns: dict[str, str], rows: dict[str, str], *messages: dict[str, Any]) -> Rows:
    """Build rows with parsed `columns`, for a table whose columns have the types of `rows`."""
    batch = pa.RecordBatch.from_pylist(list(messages), schema=MESSAGE_SCHEMA)
    typed, wider = ({n: Column.model_validate(t) for n, t in found.items()} for found in (columns, rows))
    return RowBuilder(build_parser(PARSER, typed), 7, PLANNED, UNBOUNDED, table_rows(wider)).build(TP, batch)


def test_typed_columns_come_last_and_are_null_for_a_tombstone() -> None:
    columns = {"x": "int", "y": "list<string>"}
    rows = build_typed(
        columns,
        columns,
        message(1, b'{"at": 1, "x": 5, "y": ["a"]}'),
        message(2, None),
        message(3, b'{"at": 1, "x": "?"}'),
        message(4, b'{"at": 1}'),
    )
    assert rows.table.schema.names[len(TABLE_ROWS) :] == ["x", "y"]
    assert [column(rows.table, name) for name in ("offset", "x", "y")] == [
        [1, 2, 4],
        [5, None, None],
        [["a"], None, None],
    ]
    assert [column(rows.quarantine, name) for name in ("offset", "reason")] == [
        [3],
        ["column_wrong_type: field x is '?', a string, where int is expected"],
    ]
    assert rows.quarantine.schema.equals(QUARANTINE_ROWS)


def test_values_are_cast_to_columns_that_were_widened_after_the_plan() -> None:
    narrow = {"a": "int", "b": "float", "c": "decimal(5,2)", "d": "list<int>"}
    wide = {"a": "long", "b": "double", "c": "decimal(9,2)", "d": "list<long>"}
    rows = build_typed(
        narrow, wide, message(1, b'{"at": 1, "a": 5, "b": 0.5, "c": 1.25, "d": [1, null]}'), message(2, None)
    )
    assert rows.table.schema.equals(table_rows({n: Column.model_validate(t) for n, t in wide.items()}))
    assert [column(rows.table, name)[0] for name in wide] == [5, 0.5, Decimal("1.25"), [1, None]]
