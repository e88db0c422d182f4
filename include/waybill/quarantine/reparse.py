"""Rows of the quarantine, parsed again: back into messages, and through the row builder of a partition run.

The work of a retry: the chosen rows are parsed again, and what is good now is written to files for the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile

from waybill import failpoints
from waybill.archive.indexed_reader import SET_ASIDE
from waybill.config import Reading, Stream
from waybill.config.enums import BackupFormat
from waybill.names import TopicPartition
from waybill.partition.observed import OTHER, kinds
from waybill.partition.rows import Rows
from waybill.partition.tasks import row_builder, rows_in_table
from waybill.quarantine.choice import Choice
from waybill.quarantine.offset_sets import Offsets, OffsetsBuilder, by_topic_partition
from waybill.quarantine.report import StayedMessages
from waybill.quarantine.view import View
from waybill.records.decode import MESSAGE_SCHEMA, NO_TIMESTAMP_US
from waybill.staging.file_writer import PartitionedWriter
from waybill.staging.table_layout import TableLayout
from waybill.staging.uploads import Uploads, scratch_directory

__all__ = ["MAX_MESSAGES", "Reparser", "Stayed", "Work", "count_rows", "stage_rows"]

_EXAMPLE_LENGTH = 200
_MOST_KINDS = 1000


class Reparser:
    """Makes of the quarantine's rows what a partition run by today's config would make of their messages."""

    def __init__(self, reading: Reading, generation: int, now: datetime, table: TableLayout) -> None:
        """`now`: what the bounds of event times are relative to."""
        self.rows = rows_in_table(reading, table)
        self._builder = row_builder(reading, generation, now, self.rows)

    def parse(self, rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Rows]]:
        """The rows of each topic-partition: what goes to the table, and what stays."""
        for tp, places in by_topic_partition(rows):
            chosen = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
            yield tp, self._builder.build(tp, _messages(chosen))


def _messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The messages that rows came from, in order of offset, as the archive's readers give them.

    A timestamp that the quarantine could not show is none: nothing could be put by it.
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
    # What the archive's format could not hold is no parser's to judge: it stays, with that reason.
    aside = pc.equal(rows.column("parser"), BackupFormat.TEXT.value)
    if not pc.any(aside).as_py():
        return messages
    why = pc.if_else(aside, rows.column("reason"), pa.scalar(None, pa.string()))
    return messages.append_column(pa.field(SET_ASIDE, pa.string()), why)


_NO_TIMESTAMP = pa.scalar(NO_TIMESTAMP_US, pa.int64()).cast(MESSAGE_SCHEMA.field("timestamp").type)


class Stayed:
    """Counts what cannot be read now either."""

    def __init__(self) -> None:
        self._found: dict[str, StayedMessages] = {}

    def add(self, tp: TopicPartition, quarantine: pa.RecordBatch) -> None:
        """Rows of one topic-partition that the parser refused."""
        if not quarantine.num_rows:
            return
        found = kinds(quarantine.column("reason"))
        for counted in pc.value_counts(found).to_pylist():
            kind = counted["values"]
            label = kind if kind in self._found or len(self._found) < _MOST_KINDS else OTHER
            if label not in self._found:
                row = quarantine.slice(found.index(kind).as_py(), 1)
                text = row.column("reason")[0].as_py().removeprefix(f"{kind}: ")[:_EXAMPLE_LENGTH]
                self._found[label] = StayedMessages(label, 0, f"{tp}@{row.column('offset')[0]}: {text}")
            self._found[label].messages += counted["counts"]

    def result(self) -> list[StayedMessages]:
        """By kind, most first."""
        return sorted(self._found.values(), key=lambda each: (-each.messages, each.reason))


MAX_MESSAGES = 4 << 20
"""How many messages one retry moves at most: 8 bytes of each are held. What is beyond is the next retry's."""


@dataclass(frozen=True, slots=True)
class Work:
    """What came of it."""

    files: list[DataFile]
    """There, and referenced by nothing yet."""
    offsets: Offsets
    """The messages that they hold."""
    stayed: list[StayedMessages]
    has_more: bool
    """There may be more rows that can be read now."""


def count_rows(view: View, stream: Stream, choice: Choice, now: datetime) -> tuple[int, list[StayedMessages]]:
    """How many of the chosen rows could be moved, and what would stay. Nothing is written."""
    reparser, stayed, good = _reparser(view, stream, now), Stayed(), 0
    for batch in view.rows(choice):
        for tp, rows in reparser.parse(batch):
            good += rows.table.num_rows
            stayed.add(tp, rows.quarantine)
    return good, stayed.result()


def stage_rows(
    view: View, stream: Stream, choice: Choice, now: datetime, name: str, max_messages: int = MAX_MESSAGES
) -> Work:
    """Write what can be read now to data files of the table, whose names begin with `name`.

    If it fails, the files are taken back. Raises what `View.rows` raises, and `ParserBroken`.
    """
    with (
        scratch_directory() as scratch,
        closing(Uploads(view.tables.main.io)) as uploads,
    ):
        reparser = _reparser(view, stream, now)
        writer = PartitionedWriter(
            TableLayout.of(view.tables.main),
            reparser.rows,
            memory_bytes=stream.partition.memory,
            scratch=scratch,
            uploads=uploads,
            name=name,
        )
        try:
            return _stage(view, reparser, choice, writer, uploads, max_messages)
        except BaseException:
            writer.abandon()
            uploads.discard()
            raise


def _reparser(view: View, stream: Stream, now: datetime) -> Reparser:
    return Reparser(stream.reading, stream.generation, now, TableLayout.of(view.tables.main))


def _stage(
    view: View, reparser: Reparser, choice: Choice, writer: PartitionedWriter, uploads: Uploads, max_messages: int
) -> Work:
    stayed, moved, has_more = Stayed(), OffsetsBuilder(), False
    for tp, rows in (parsed for batch in view.rows(choice) for parsed in reparser.parse(batch)):
        stayed.add(tp, rows.quarantine)
        if rows.table.num_rows:
            writer.add(rows.table)
            moved.add(tp, rows.table.column("offset").to_numpy())
        if len(moved) >= max_messages:
            has_more = True
            break
    failpoints.reach("retry.rows_read")
    files = writer.finish()
    uploads.wait()
    return Work(files, moved.result(), stayed.result(), has_more)
