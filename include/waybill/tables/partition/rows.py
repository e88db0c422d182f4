"""Turn decoded messages into rows of the table and of the quarantine.

An event time far in the past or the future comes from a wrong clock or unit. It would create a separate table
partition, and ten thousand such messages would create ten thousand partitions, so these messages go to quarantine
(`EventTimeCheck`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config.models import Columns, EventTimeBounds, ParseSettings
from waybill.config.models.enums import BackupFormat
from waybill.config.models.quantities import format_duration
from waybill.config.names import TopicPartition
from waybill.parsers import build_parser
from waybill.parsers.protocol import EVENT_TIME_TYPE, Parsed, Parser, Reason, arrow_type, bounded_reasons, reason
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS
from waybill.records.batches.limits import MESSAGE_TOO_LARGE, SET_ASIDE
from waybill.records.batches.message_rows import HEADERS_TYPE, NO_TIMESTAMP_US
from waybill.tables.staging.table_layout import TableLayout

MESSAGE_LIMITS = "message_limits"
"""The value of the quarantine's column `parser` for a message that is too large."""

_MICROSECOND = timedelta(microseconds=1)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

_ORIGIN = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("kafka_timestamp", EVENT_TIME_TYPE),
    pa.field("key", pa.binary()),
    pa.field("headers", HEADERS_TYPE, nullable=False),
    pa.field("value", pa.binary()),
]

ARCHIVE_SCHEMA = pa.schema(_ORIGIN)
"""Arrow schema of archived messages."""

TABLE_ROWS = pa.schema(
    [
        *_ORIGIN,
        pa.field("event_time", EVENT_TIME_TYPE, nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
    ]
)
"""Arrow schema of `waybill.tables.iceberg.schemas.TABLE_SCHEMA`: the columns that every stream's table has."""

QUARANTINE_ROWS = pa.schema(
    [
        *_ORIGIN,
        pa.field("reason", pa.string(), nullable=False),
        pa.field("parser", pa.string(), nullable=False),
        pa.field("quarantined_at", EVENT_TIME_TYPE, nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
    ]
)
"""Arrow schema of `waybill.tables.iceberg.schemas.QUARANTINE_SCHEMA`."""

_NO_QUARANTINE_ROWS = pa.RecordBatch.from_pylist([], schema=QUARANTINE_ROWS)


def table_rows(columns: Columns) -> pa.Schema:
    """Return the schema of a table's rows: `TABLE_ROWS` followed by these typed columns."""
    return pa.schema([*TABLE_ROWS, *(pa.field(name, arrow_type(column.type)) for name, column in columns.items())])


def rows_in_table(parse_settings: ParseSettings, table: TableLayout) -> pa.Schema:
    """Return the schema of the rows, with the present types of the table, which may be wider than configured."""
    in_table = table.arrow_schema(table_rows(parse_settings.columns))
    return pa.schema([*TABLE_ROWS, *list(in_table)[len(TABLE_ROWS) :]])


def build_row_builder(
    parse_settings: ParseSettings, generation: int, planned_at: datetime, rows: pa.Schema
) -> RowBuilder:
    """Return the builder that makes `rows` of messages by these settings."""
    parser = build_parser(parse_settings.parser, parse_settings.columns)
    return RowBuilder(parser, generation, planned_at, parse_settings.event_time_bounds, rows)


class Rows(NamedTuple):
    """The rows made of a batch of messages. Each message is in one of the two tables."""

    table: pa.RecordBatch
    quarantine: pa.RecordBatch
    assigned_ids: int = 0
    """How many rows of the table got an id assigned, because the message had none; tombstones do not count."""


class RowBuilder:
    """Makes the rows of one run. The same messages always give the same rows."""

    def __init__(
        self,
        parser: Parser,
        generation: int,
        planned_at: datetime,
        bounds: EventTimeBounds,
        rows: pa.Schema = TABLE_ROWS,
    ) -> None:
        """`rows`: the schema of a table's row, `table_rows` of the parser's columns or with wider types."""
        self._parser = parser
        self._check = EventTimeCheck(bounds, planned_at)
        self._generation = generation
        self._planned_at = pa.scalar(planned_at, EVENT_TIME_TYPE)
        self._rows = rows
        self._typed = list(rows)[len(TABLE_ROWS) :]

    def build(self, tp: TopicPartition, messages: pa.RecordBatch) -> Rows:
        """Return the rows of messages of `MESSAGE_SCHEMA` from one topic-partition."""
        parsed = self._check.check(_with_set_aside(messages, self._parse(messages)))
        columns = archive_rows(tp, messages).columns
        good = pa.RecordBatch.from_arrays(
            [
                *columns,
                parsed.event_time,
                _assign_ids(parsed.message_id, tp, messages),
                self._generations(messages),
                *(_widened(parsed.columns[field.name], field.type) for field in self._typed),
            ],
            schema=self._rows,
        )
        if parsed.error.null_count == len(parsed.error):
            return Rows(good, _NO_QUARANTINE_ROWS, parsed.message_id.null_count - messages.column("value").null_count)
        refused = pc.is_valid(parsed.error)
        n = messages.num_rows
        bad = pa.RecordBatch.from_arrays(
            [
                *columns,
                bounded_reasons(parsed.error),  # also the ids from a user's parser class
                self._refusers(messages),
                pa.repeat(self._planned_at, n),
                self._generations(messages),
            ],
            schema=QUARANTINE_ROWS,
        )
        has_no_id = pc.and_not(parsed.message_id.is_null(), pc.or_(refused, messages.column("value").is_null()))
        return Rows(good.filter(pc.invert(refused)), bad.filter(refused), has_no_id.true_count)

    def _generations(self, messages: pa.RecordBatch) -> pa.Array:
        return pa.repeat(pa.scalar(self._generation, pa.int32()), messages.num_rows)

    def _refusers(self, messages: pa.RecordBatch) -> pa.Array:
        """Return which part refused each message: the parser, the limits of a message, or the archive's format."""
        parsers = pa.repeat(self._parser.name, messages.num_rows)
        if SET_ASIDE not in messages.schema.names:
            return parsers
        aside = messages.column(SET_ASIDE)
        by_limits = pc.starts_with(aside, f"{MESSAGE_TOO_LARGE}:")
        refusers = pc.if_else(by_limits, MESSAGE_LIMITS, BackupFormat.TEXT.value)
        return pc.if_else(aside.is_valid(), refusers, parsers)

    def _parse(self, messages: pa.RecordBatch) -> Parsed:
        """Return the parser's result for messages with a value, and Waybill's own result for tombstones."""
        values = messages.column("value")
        if not values.null_count:
            return self._parser.parse(messages)
        present = values.is_valid()
        parsed = self._parser.parse(messages.filter(present))
        stones = _tombstones(messages)
        # Index of a message among the parsed ones; null for a tombstone, and `take` returns null for a null index.
        place = pc.if_else(
            present, pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1), pa.scalar(None, pa.int64())
        )
        return Parsed(
            pc.if_else(present, parsed.event_time.take(place), stones.event_time),
            parsed.message_id.take(place),
            pc.if_else(present, parsed.error.take(place), stones.error),
            {name: column.take(place) for name, column in parsed.columns.items()},
        )


def archive_rows(tp: TopicPartition, messages: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages of `MESSAGE_SCHEMA` as rows of `ARCHIVE_SCHEMA`."""
    n = messages.num_rows
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(tp.topic, n),
            pa.repeat(pa.scalar(tp.partition, pa.int32()), n),
            messages.column("offset"),
            _kafka_timestamp(messages.column("timestamp")),
            messages.column("key"),
            messages.column("headers"),
            messages.column("value"),
        ],
        schema=ARCHIVE_SCHEMA,
    )


class EventTimeCheck:
    """Compares event times with bounds relative to when the plan was made: a retry of the plan decides the same."""

    def __init__(self, bounds: EventTimeBounds, planned_at: datetime) -> None:
        at_us = pa.scalar(planned_at, EVENT_TIME_TYPE).value
        # Keep the bounds within the years that the type can hold.
        self._first_us = max(at_us - bounds.past // _MICROSECOND, MIN_MICROSECONDS)
        self._last_us = min(at_us + bounds.future // _MICROSECOND, MAX_MICROSECONDS)
        self._before = f" is before {_text(self._first_us)}, {format_duration(bounds.past)} before the run was planned"
        self._after = f" is after {_text(self._last_us)}, {format_duration(bounds.future)} after the run was planned"

    def check(self, parsed: Parsed) -> Parsed:
        """Return `parsed` with an error for each event time out of bounds that had no error."""
        times_us = parsed.event_time.cast(pa.int64())
        found = pc.min_max(times_us)
        if not found["min"].is_valid or (
            found["min"].as_py() >= self._first_us and found["max"].as_py() <= self._last_us
        ):
            return parsed
        is_outside = pc.or_(pc.less(times_us, self._first_us), pc.greater(times_us, self._last_us))
        is_outside = pc.and_(is_outside.fill_null(False), parsed.error.is_null())
        why = self._why(parsed.event_time.filter(is_outside))
        return parsed._replace(error=pc.replace_with_mask(parsed.error, is_outside, why))

    def _why(self, times: pa.Array) -> pa.Array:
        bound = pc.if_else(pc.less(times.cast(pa.int64()), self._first_us), self._before, self._after)
        written = pc.strftime(times, format=_TIME_FORMAT)
        return pc.binary_join_element_wise(reason(Reason.EVENT_TIME_OUT_OF_BOUNDS, ""), written, bound, "")


def _text(at_us: int) -> str:
    return str(pc.strftime(pa.scalar(at_us, pa.int64()).cast(EVENT_TIME_TYPE), format=_TIME_FORMAT).as_py())


def _with_set_aside(messages: pa.RecordBatch, parsed: Parsed) -> Parsed:
    """Send messages that are not complete, or that the archive's format could not hold, to quarantine."""
    if SET_ASIDE not in messages.schema.names:
        return parsed
    return parsed._replace(error=pc.coalesce(messages.column(SET_ASIDE), parsed.error))


def _widened(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast a column to a wider type: a plan made before the table's column was widened gives the narrower type."""
    return column if column.type == wanted else column.cast(wanted)


def _kafka_timestamp(timestamps: pa.Array) -> pa.Array:
    """Return the timestamps, null where a message has none or where most engines could not display it."""
    microseconds = timestamps.cast(pa.int64())
    bounds = pc.min_max(microseconds)
    if bounds["min"].as_py() >= 0 and bounds["max"].as_py() <= MAX_MICROSECONDS:
        return timestamps
    return pc.if_else(_is_time(microseconds), timestamps, pa.scalar(None, EVENT_TIME_TYPE))


def _is_time(microseconds: pa.Array) -> pa.Array:
    in_range = pc.and_(pc.greater_equal(microseconds, MIN_MICROSECONDS), pc.less_equal(microseconds, MAX_MICROSECONDS))
    return pc.and_(in_range, pc.not_equal(microseconds, NO_TIMESTAMP_US))


def _tombstones(messages: pa.RecordBatch) -> Parsed:
    """Return the event times of tombstones: Kafka's timestamps. The result is wrong for messages with a value."""
    timestamps = messages.column("timestamp")
    usable = _is_time(timestamps.cast(pa.int64()))
    why = reason(Reason.EVENT_TIME_OUT_OF_RANGE, "a tombstone without a Kafka timestamp between the years 1 and 9999")
    return Parsed(
        pc.if_else(usable, timestamps, pa.scalar(None, EVENT_TIME_TYPE)),
        pa.nulls(messages.num_rows, pa.string()),
        pc.if_else(usable, pa.scalar(None, pa.string()), pa.scalar(why)),
    )


def _assign_ids(ids: pa.Array, tp: TopicPartition, messages: pa.RecordBatch) -> pa.Array:
    """Give messages without an id the id `<topic>/<partition>@<offset>`, which every run gives them again."""
    if not ids.null_count:
        return ids
    offsets = messages.column("offset").cast(pa.string())
    return pc.coalesce(ids, pc.binary_join_element_wise(f"{tp}@", offsets, ""))
