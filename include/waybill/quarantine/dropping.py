"""The last step of a retry: the rows that it moved leave the quarantine.

Files that hold such rows are rewritten without them, and everything else in them as it is. The new files take the old
ones' place in one snapshot, which also says that the quarantine has taken part in the retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from waybill import failpoints
from waybill.errors import CommitConflict
from waybill.quarantine.choice import Choice
from waybill.quarantine.files import plan_files, read_file, row_schema
from waybill.quarantine.offset_sets import Offsets
from waybill.staging.file_writer import PartitionedWriter
from waybill.staging.table_layout import TableLayout
from waybill.staging.uploads import Uploads, scratch_directory
from waybill.tables import RETRIES_PROPERTY, commit_snapshot, read_retries, until_committed

__all__ = ["drop_rows"]

_ORIGIN = ("topic", "partition", "offset")


def drop_rows(
    quarantine: Table, moved: Offsets, number: int, properties: Mapping[str, str], *, memory_bytes: int
) -> bool:
    """Drop the rows of retry `number`. False: somebody else has.

    A run that commits at the same time is no conflict. After a compaction the rows lie in other files: then these are
    rewritten.

    Raises `CommitConflict` when the quarantine is not at this retry, or others commit faster than this can.
    """
    name = ".".join(quarantine.name())
    rewritten: _Rewritten | None = None

    def attempt() -> bool | None:
        nonlocal rewritten
        if _is_done(quarantine, number, name):
            return False
        if rewritten is None or not rewritten.replaces_files_of(quarantine):
            # Files that a refused commit would have added are left to maintenance: if its answer was lost, they count.
            rewritten = _rewrite(quarantine, moved, f"retry-{number}", memory_bytes)
        failpoints.reach("retry.rewritten")
        state = {RETRIES_PROPERTY: str(number + 1), **properties}
        committed = commit_snapshot(quarantine, state, added=rewritten.added, removed=rewritten.removed)
        return True if committed else None

    return until_committed(quarantine, attempt)


@dataclass(frozen=True, slots=True)
class _Rewritten:
    removed: list[DataFile]
    added: list[DataFile]

    def replaces_files_of(self, table: Table) -> bool:
        """Whether all that it removes is in the table as it is loaded. Then no other file holds the rows."""
        there = {file.file.file_path for file in plan_files(table, AlwaysTrue())}
        return there.issuperset(file.file_path for file in self.removed)


def _is_done(quarantine: Table, number: int, name: str) -> bool:
    found = read_retries(quarantine.metadata, name)
    if found < number:
        raise CommitConflict(
            f"table {name} has taken part in {found} retries, and retry {number} was to be next: it was rolled back "
            f"meanwhile. Run again"
        )
    return found > number


def _rewrite(quarantine: Table, moved: Offsets, name: str, memory_bytes: int) -> _Rewritten:
    """New files for all rows of those that hold any of `moved`, but these. Uploaded, and referenced by nothing yet."""
    ranges = moved.ranges.values()
    within = Choice(first_offset=min(a for a, _ in ranges), last_offset=max(b for _, b in ranges) - 1)
    holders = [f for f in plan_files(quarantine, within.condition) if _holds(quarantine, f, moved)]
    with (
        scratch_directory() as scratch,
        closing(Uploads(quarantine.io)) as uploads,
    ):
        writer = PartitionedWriter(
            TableLayout.of(quarantine),
            row_schema(quarantine),
            memory_bytes=memory_bytes,
            scratch=scratch,
            uploads=uploads,
            name=name,
        )
        try:
            for file in holders:
                _copy(read_file(quarantine, file), moved, writer)
            added = writer.finish()
            uploads.wait()
        except BaseException:
            writer.abandon()
            uploads.discard()
            raise
    return _Rewritten([file.file for file in holders], added)


def _holds(quarantine: Table, file: FileScanTask, moved: Offsets) -> bool:
    return any(moved.mask(batch).any() for batch in read_file(quarantine, file, _ORIGIN))


def _copy(batches: Iterable[pa.RecordBatch], moved: Offsets, writer: PartitionedWriter) -> None:
    for batch in batches:
        gone = moved.mask(batch)
        writer.add(batch.filter(pa.array(~gone)) if gone.any() else batch)
