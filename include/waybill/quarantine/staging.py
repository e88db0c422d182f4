"""The work of a retry: the chosen rows are parsed again, and what is good now is written to files for the table."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.manifest import DataFile

from waybill import failpoints
from waybill.config import Stream
from waybill.partition.files import PartitionedWriter
from waybill.partition.scratch import scratch_directory
from waybill.partition.table_layout import TableLayout
from waybill.partition.uploads import Uploads
from waybill.quarantine.choice import Choice
from waybill.quarantine.offsets import Offsets, OffsetsBuilder
from waybill.quarantine.parsing import Reparser, Stayed
from waybill.quarantine.report import StayedMessages
from waybill.quarantine.view import View

__all__ = ["MAX_MESSAGES", "Work", "count_rows", "stage_rows"]

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
