"""Parse rows of the quarantine again, and stage the rows that can be parsed now as data files of the table.

The rows are turned back into messages, which then pass through the row builder of a partition run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile

from waybill.base import failpoints
from waybill.config.models import ParseSettings, Stream
from waybill.config.models.enums import BackupFormat
from waybill.config.names import TopicPartition
from waybill.records.batches.limits import SET_ASIDE
from waybill.records.batches.message_rows import MESSAGE_SCHEMA, NO_TIMESTAMP_US
from waybill.tables.audit.counts import CLOCK_TOLERANCE_SECONDS, AuditCounts
from waybill.tables.partition.rows import MESSAGE_LIMITS, Rows, build_row_builder, rows_in_table
from waybill.tables.partition.statistics import OTHER, reason_kinds
from waybill.tables.quarantine.offset_sets import OffsetsBuilder, OffsetSet, by_topic_partition
from waybill.tables.quarantine.row_filter import RowFilter
from waybill.tables.quarantine.view import View
from waybill.tables.staging.file_writer import write_data_files
from waybill.tables.staging.table_layout import TableLayout

_EXAMPLE_LENGTH = 200
_MAX_KINDS = 1000
_NO_TIMESTAMP = pa.scalar(NO_TIMESTAMP_US, pa.int64()).cast(MESSAGE_SCHEMA.field("timestamp").type)

MAX_MESSAGES = 4 << 20
"""Messages that one retry moves at most, since it holds 8 bytes for each. The next retry moves the rest."""


class Reparser:
    """Makes rows of quarantined messages as a partition run with the present config would."""

    def __init__(self, parse_settings: ParseSettings, generation: int, now: datetime, table: TableLayout) -> None:
        """`now`: the bounds of event times are relative to this time."""
        self.rows = rows_in_table(parse_settings, table)
        self._builder = build_row_builder(parse_settings, generation, now, self.rows)

    def parse(self, rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Rows]]:
        """Yield the rows of each topic-partition: those for the table, and those that stay in quarantine."""
        for tp, places in by_topic_partition(rows):
            chosen = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
            yield tp, self._builder.build(tp, _messages(chosen))


def _messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the messages that the rows were made of, in order of offset, as the archive's readers return them.

    A row without a timestamp becomes a message without one: its timestamp was not usable as an event time.
    """
    offsets = rows.column("offset").to_numpy()
    if np.any(offsets[1:] < offsets[:-1]):
        rows = rows.take(pa.array(np.argsort(offsets, kind="stable")))
    columns = {
        "offset": rows.column("offset"),
        "timestamp": pc.fill_null(rows.column("kafka_timestamp"), _NO_TIMESTAMP),
        "key": rows.column("key"),
        "value": rows.column("value"),
        "headers": rows.column("headers"),
    }
    messages = pa.RecordBatch.from_arrays([columns[field.name] for field in MESSAGE_SCHEMA], schema=MESSAGE_SCHEMA)
    # A message that the archive's format could not hold never goes to the parser: it stays, with that reason. So does
    # one beyond the limits, whose value is only in the archive: a backfill reads it after the limit was raised.
    aside = pc.is_in(rows.column("parser"), value_set=pa.array([BackupFormat.TEXT.value, MESSAGE_LIMITS]))
    if not pc.any(aside).as_py():
        return messages
    why = pc.if_else(aside, rows.column("reason"), pa.scalar(None, pa.string()))
    return messages.append_column(pa.field(SET_ASIDE, pa.string()), why)


@dataclass(slots=True)
class StayedMessages:
    """Messages that still cannot be read, for one kind of reason."""

    reason: str
    """The kind."""
    messages: int
    example: str
    """One of the messages, `topic/partition@offset`, and the details of its reason."""


class StayedCounter:
    """Counts the messages that still cannot be read."""

    def __init__(self) -> None:
        self._found: dict[str, StayedMessages] = {}

    def add(self, tp: TopicPartition, quarantine: pa.RecordBatch) -> None:
        """Add rows of one topic-partition that the parser refused."""
        if not quarantine.num_rows:
            return
        found = reason_kinds(quarantine.column("reason"))
        for counted in pc.value_counts(found).to_pylist():
            kind = counted["values"]
            label = kind if kind in self._found or len(self._found) < _MAX_KINDS else OTHER
            if label not in self._found:
                row = quarantine.slice(found.index(kind).as_py(), 1)
                text = row.column("reason")[0].as_py().removeprefix(f"{kind}: ")[:_EXAMPLE_LENGTH]
                self._found[label] = StayedMessages(label, 0, f"{tp}@{row.column('offset')[0]}: {text}")
            self._found[label].messages += counted["counts"]

    def result(self) -> list[StayedMessages]:
        """Return the counts by kind of reason, most frequent first."""
        return sorted(self._found.values(), key=lambda each: (-each.messages, each.reason))


class MovedCounter:
    """Counts the messages that a retry moves, for the built-in checks."""

    def __init__(self, now: datetime) -> None:
        self._latest_us = int(now.timestamp() * 1_000_000) + CLOCK_TOLERANCE_SECONDS * 1_000_000
        self._messages = self._assigned_ids = self._event_times_ahead = self._kafka_timestamps_ahead = 0
        self._newest_us = 0
        self.offsets = OffsetsBuilder()

    def add(self, tp: TopicPartition, rows: Rows) -> None:
        """Add rows of one topic-partition."""
        if not rows.table.num_rows:
            return
        self._messages += rows.table.num_rows
        self._assigned_ids += rows.assigned_ids
        self._event_times_ahead += self._count_ahead(rows.table.column("event_time"))
        self._kafka_timestamps_ahead += self._count_ahead(rows.table.column("kafka_timestamp"))
        self.offsets.add(tp, rows.table.column("offset").to_numpy())

    def _count_ahead(self, times: pa.Array) -> int:
        times_us = times.cast(pa.int64())
        newest = pc.max(times_us).as_py()
        if newest is None or newest <= self._latest_us:
            return 0
        self._newest_us = max(self._newest_us, newest)
        return int(pc.sum(pc.greater(times_us, self._latest_us)).as_py())

    def result(self) -> AuditCounts:
        """Return the counts of all messages so far."""
        repeated = self.offsets.repeated()
        ahead_us = self._newest_us - self._latest_us + CLOCK_TOLERANCE_SECONDS * 1_000_000 if self._newest_us else 0
        return AuditCounts(
            messages=self._messages,
            assigned_ids=self._assigned_ids,
            event_times_ahead=self._event_times_ahead,
            kafka_timestamps_ahead=self._kafka_timestamps_ahead,
            ahead_seconds=-(-ahead_us // 1_000_000),
            repeated_offsets=len(repeated),
            repeated_example=repeated[0] if repeated else "",
        )


@dataclass(frozen=True, slots=True)
class RetriedRows:
    """Rows of a retry, written to data files."""

    files: list[DataFile]
    """Uploaded data files that no snapshot references yet."""
    offsets: OffsetSet
    """The messages in these files."""
    counts: AuditCounts
    """The counts of the messages in these files."""
    stayed: list[StayedMessages]
    has_more: bool
    """The selection may hold more rows that can be read now."""


def count_rows(view: View, stream: Stream, row_filter: RowFilter, now: datetime) -> tuple[int, list[StayedMessages]]:
    """Return how many of the selected rows could be moved, and which would stay. Writes nothing."""
    reparser, stayed, good = _reparser(view, stream, now), StayedCounter(), 0
    for batch in view.rows(row_filter):
        for tp, rows in reparser.parse(batch):
            good += rows.table.num_rows
            stayed.add(tp, rows.quarantine)
    return good, stayed.result()


def stage_rows(
    view: View, stream: Stream, row_filter: RowFilter, now: datetime, name: str, max_messages: int = MAX_MESSAGES
) -> RetriedRows:
    """Write the rows that can be read now to data files of the table, whose names begin with `name`.

    If it fails, the files are deleted. Raises what `View.rows` raises, and `ParserBroken`.
    """
    reparser, stayed, moved, has_more = _reparser(view, stream, now), StayedCounter(), MovedCounter(now), False

    def readable_rows() -> Iterator[pa.RecordBatch]:
        nonlocal has_more
        for tp, rows in (parsed for batch in view.rows(row_filter) for parsed in reparser.parse(batch)):
            stayed.add(tp, rows.quarantine)
            moved.add(tp, rows)
            if rows.table.num_rows:
                yield rows.table
            if len(moved.offsets) >= max_messages:
                has_more = True
                break
        failpoints.reach("retry.rows_read")

    memory_bytes = stream.partition.memory
    files = write_data_files(view.tables.main, reparser.rows, readable_rows(), memory_bytes=memory_bytes, name=name)
    return RetriedRows(files, moved.offsets.result(), moved.result(), stayed.result(), has_more)


def _reparser(view: View, stream: Stream, now: datetime) -> Reparser:
    return Reparser(stream.parse_settings, stream.generation, now, TableLayout.of(view.tables.main))
