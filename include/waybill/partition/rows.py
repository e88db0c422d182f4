"""From decoded messages to rows of the table and of the quarantine."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import Columns, EventTimeBounds
from waybill.config.enums import BackupFormat
from waybill.formats.reading import SET_ASIDE
from waybill.log.decode import HEADERS_TYPE, NO_TIMESTAMP_US
from waybill.names import TopicPartition
from waybill.parsers import Parsed, Parser
from waybill.parsers.columns import arrow_type
from waybill.parsers.protocol import EVENT_TIME_TYPE, Reason, reason
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS
from waybill.partition.bounds import EventTimeCheck

__all__ = ["ARCHIVE_SCHEMA", "QUARANTINE_ROWS", "TABLE_ROWS", "RowBuilder", "Rows", "archive_rows", "table_rows"]

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
"""Messages as they are in the archive."""

TABLE_ROWS = pa.schema(
    [
        *_ORIGIN,
        pa.field("event_time", EVENT_TIME_TYPE, nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
    ]
)
"""Columns of `waybill.tables.schemas.TABLE_SCHEMA`, in Arrow: what each table has."""

QUARANTINE_ROWS = pa.schema(
    [
        *_ORIGIN,
        pa.field("reason", pa.string(), nullable=False),
        pa.field("parser", pa.string(), nullable=False),
        pa.field("quarantined_at", EVENT_TIME_TYPE, nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
    ]
)
"""Columns of `waybill.tables.schemas.QUARANTINE_SCHEMA`, in Arrow."""


def table_rows(columns: Columns) -> pa.Schema:
    """The rows of a table with these typed columns, which come last."""
    return pa.schema([*TABLE_ROWS, *(pa.field(name, arrow_type(column.type)) for name, column in columns.items())])


class Rows(NamedTuple):
    """What a batch of messages became. Each message is in one of the two."""

    table: pa.RecordBatch
    quarantine: pa.RecordBatch


class RowBuilder:
    """Makes rows of one run: the same messages always give the same rows."""

    def __init__(
        self,
        parser: Parser,
        generation: int,
        planned_at: datetime,
        bounds: EventTimeBounds,
        rows: pa.Schema = TABLE_ROWS,
    ) -> None:
        """`rows`: what a table's row is: `table_rows` of the columns that the parser gives, or wider types."""
        self._parser = parser
        self._check = EventTimeCheck(bounds, planned_at)
        self._generation = generation
        self._planned_at = pa.scalar(planned_at, EVENT_TIME_TYPE)
        self._rows = rows
        self._typed = list(rows)[len(TABLE_ROWS) :]

    def build(self, tp: TopicPartition, messages: pa.RecordBatch) -> Rows:
        """Parse messages of `MESSAGE_SCHEMA`."""
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
            return Rows(good, _NONE)
        refused = pc.is_valid(parsed.error)
        n = messages.num_rows
        bad = pa.RecordBatch.from_arrays(
            [
                *columns,
                parsed.error,
                self._refusers(messages),
                pa.repeat(self._planned_at, n),
                self._generations(messages),
            ],
            schema=QUARANTINE_ROWS,
        )
        return Rows(good.filter(pc.invert(refused)), bad.filter(refused))

    def _generations(self, messages: pa.RecordBatch) -> pa.Array:
        return pa.repeat(pa.scalar(self._generation, pa.int32()), messages.num_rows)

    def _refusers(self, messages: pa.RecordBatch) -> pa.Array:
        """The parser, or for what did not come to it the format."""
        parsers = pa.repeat(self._parser.name, messages.num_rows)
        if SET_ASIDE not in messages.schema.names:
            return parsers
        return pc.if_else(messages.column(SET_ASIDE).is_valid(), BackupFormat.TEXT.value, parsers)

    def _parse(self, messages: pa.RecordBatch) -> Parsed:
        """The parser's word on messages with a value, our own on tombstones."""
        values = messages.column("value")
        if not values.null_count:
            return self._parser.parse(messages)
        present = values.is_valid()
        parsed = self._parser.parse(messages.filter(present))
        stones = _tombstones(messages)
        # A message's place among those that were parsed; null for a tombstone, and then so is what is taken.
        place = pc.if_else(
            present, pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1), pa.scalar(None, pa.int64())
        )
        return Parsed(
            pc.if_else(present, parsed.event_time.take(place), stones.event_time),
            parsed.message_id.take(place),
            pc.if_else(present, parsed.error.take(place), stones.error),
            {name: column.take(place) for name, column in parsed.columns.items()},
        )


def _with_set_aside(messages: pa.RecordBatch, parsed: Parsed) -> Parsed:
    """What the archive's format could not hold goes to quarantine with its own reason, whatever the parser says."""
    if SET_ASIDE not in messages.schema.names:
        return parsed
    return parsed._replace(error=pc.coalesce(messages.column(SET_ASIDE), parsed.error))


def _widened(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A plan made before the table's type was widened gives the narrower one."""
    return column if column.type == wanted else column.cast(wanted)


def archive_rows(tp: TopicPartition, messages: pa.RecordBatch) -> pa.RecordBatch:
    """Messages of `MESSAGE_SCHEMA` as rows of `ARCHIVE_SCHEMA`."""
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


def _kafka_timestamp(timestamps: pa.Array) -> pa.Array:
    """Null where there is none, or where most engines could not show it."""
    microseconds = timestamps.cast(pa.int64())
    bounds = pc.min_max(microseconds)
    if bounds["min"].as_py() >= 0 and bounds["max"].as_py() <= MAX_MICROSECONDS:
        return timestamps
    return pc.if_else(_is_time(microseconds), timestamps, pa.scalar(None, EVENT_TIME_TYPE))


def _is_time(microseconds: pa.Array) -> pa.Array:
    in_range = pc.and_(pc.greater_equal(microseconds, MIN_MICROSECONDS), pc.less_equal(microseconds, MAX_MICROSECONDS))
    return pc.and_(in_range, pc.not_equal(microseconds, NO_TIMESTAMP_US))


def _tombstones(messages: pa.RecordBatch) -> Parsed:
    """A tombstone has nothing but Kafka's timestamp to be put by. Wrong for messages that are none."""
    timestamps = messages.column("timestamp")
    usable = _is_time(timestamps.cast(pa.int64()))
    why = reason(Reason.EVENT_TIME_OUT_OF_RANGE, "a tombstone without a Kafka timestamp between the years 1 and 9999")
    return Parsed(
        pc.if_else(usable, timestamps, pa.scalar(None, EVENT_TIME_TYPE)),
        pa.nulls(messages.num_rows, pa.string()),
        pc.if_else(usable, pa.scalar(None, pa.string()), pa.scalar(why)),
    )


def _assign_ids(ids: pa.Array, tp: TopicPartition, messages: pa.RecordBatch) -> pa.Array:
    """An id that a message lacks follows from its place in the log alone: `<topic>/<partition>@<offset>`."""
    if not ids.null_count:
        return ids
    offsets = messages.column("offset").cast(pa.string())
    return pc.coalesce(ids, pc.binary_join_element_wise(f"{tp}@", offsets, ""))


_NONE = pa.RecordBatch.from_pylist([], schema=QUARANTINE_ROWS)
