"""What a stream's table gained between two of its snapshots: the data files that were added, as they were added.

Only snapshots that append count. A compaction replaces files by others with the same rows, and a deletion or an
overwrite takes rows back, which dedup does not follow: what was in the table once has arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill.dedup.first_sweep import begin_since, committed_before
from waybill.errors import PlanUnusable, SweepHistoryLost
from waybill.tables.dedup import Beginning
from waybill.tables.state import ancestry

__all__ = ["NOTHING_SWEPT", "Gained", "GainedFile", "Point", "find_gained", "gains_nothing", "snapshots_since"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Point:
    """How far a table was swept: through a snapshot of it."""

    snapshot_id: int | None
    """None: nothing of it."""
    sequence: int
    """The snapshot's sequence number: it grows from snapshot to snapshot."""


NOTHING_SWEPT = Point(None, 0)


@dataclass(frozen=True, slots=True)
class GainedFile:
    """A data file that was added."""

    path: str
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class Gained:
    """What a table gained up to one of its snapshots."""

    end: Point
    files: tuple[GainedFile, ...]
    """In the order in which they were committed."""
    more: bool
    """There is more behind `end`, left to the next sweep because of its size."""
    beginning: Beginning | None = None
    """What was left out of it for good."""


def find_gained(
    table: Table, start: Point, *, run_bytes: int, since_ms: int | None = None, until_ms: int | None = None
) -> Gained | None:
    """What `table`, as it is loaded, gained since `start`; None: there is no later snapshot.

    Takes whole snapshots, the oldest first: one that adds files, and more of them as long as all files together are no
    more than `run_bytes`. `until_ms`: only snapshots that were committed by then, epoch ms, and none behind one that
    was not.

    From `NOTHING_SWEPT` it is all files of the oldest snapshot that there is still, and what came after; with
    `since_ms` what came after those that were committed before that time. That there are such is something gained, if
    nothing else: it has to be written down.

    Raises `SweepHistoryLost` when the table's snapshots do not lead back to `start`, `ConfigError` as
    `waybill.dedup.first_sweep.begin_since` does.
    """
    later = snapshots_since(table, start)
    beginning, end = None, None
    if since_ms is not None and start.snapshot_id is None:
        beginning = begin_since(table, later, since_ms)
    if beginning is not None and since_ms is not None:
        out = committed_before(later, since_ms)
        later, end = later[len(out) :], out[-1]
    if until_ms is not None:
        later = committed_before(later, until_ms + 1)
    files: list[GainedFile] = []
    for number, snapshot in enumerate(later):
        is_first = start.snapshot_id is None and beginning is None and number == 0
        added = list(_live(table, snapshot) if is_first else _added(table, snapshot))
        if files and added and _size(files) + _size(added) > run_bytes:
            return Gained(_point(end), tuple(files), more=True, beginning=beginning)
        files += added
        end = snapshot
    return None if end is None else Gained(_point(end), tuple(files), more=False, beginning=beginning)


def gains_nothing(table: Table, start: Point, end: Point) -> bool:
    """Whether the table's history leads from `start` to `end`, and the snapshots between the two add no row.

    False as well when that cannot be told any more, since some have expired.
    """
    before_end = False
    for snapshot in ancestry(table.metadata):
        if before_end and snapshot.snapshot_id == start.snapshot_id:
            return True
        if before_end and any(_added(table, snapshot)):
            return False
        before_end = before_end or snapshot.snapshot_id == end.snapshot_id
    return before_end and start == NOTHING_SWEPT


def snapshots_since(table: Table, start: Point) -> list[Snapshot]:
    """The snapshots of `table` behind `start`, oldest first. Raises `SweepHistoryLost` as `find_gained` does."""
    later: list[Snapshot] = []
    for snapshot in ancestry(table.metadata):
        if snapshot.snapshot_id == start.snapshot_id:
            return later[::-1]
        later.append(snapshot)
    # The snapshot that was swept may have expired, as long as its successor is there.
    if start.snapshot_id is None or (later and _follows(later[-1], start)):
        return later[::-1]
    raise SweepHistoryLost(_lost(table, start))


def _follows(snapshot: Snapshot, start: Point) -> bool:
    """Whether nothing came between. PyIceberg, other than Java, makes a snapshot forget a parent that expires."""
    if snapshot.parent_snapshot_id is not None:  # of another branch, it has the next number as well
        return snapshot.parent_snapshot_id == start.snapshot_id
    return snapshot.sequence_number == start.sequence + 1


def _lost(table: Table, start: Point) -> str:
    name = ".".join(table.name())
    known = _still_there(table.metadata, start)
    why = "it was rolled back to before it" if known else "it has expired, with snapshots that came after it"
    return (
        f"table {name}: snapshot {start.snapshot_id} (sequence number {start.sequence}), through which dedup has swept "
        f"it, is not in the history of its current snapshot: {why}. Roll the unique table and the duplicates table "
        f"back to snapshots of that time, or drop both, and the next sweep starts from what the table holds now"
    )


def _still_there(metadata: TableMetadata, start: Point) -> bool:
    return start.snapshot_id is not None and metadata.snapshot_by_id(start.snapshot_id) is not None


def _point(snapshot: Snapshot | None) -> Point:
    assert snapshot is not None
    return Point(snapshot.snapshot_id, snapshot.sequence_number or 0)


def _added(table: Table, snapshot: Snapshot) -> Iterator[GainedFile]:
    """The files that a snapshot appended, whatever has become of them since."""
    operation = snapshot.summary.operation if snapshot.summary else Operation.APPEND
    if operation is not Operation.APPEND:
        if operation is not Operation.REPLACE:
            logger.info(
                "table %s: dedup passes over snapshot %d, an %s: it follows what is appended, and nothing else",
                ".".join(table.name()),
                snapshot.snapshot_id,
                operation.value,
            )
        return
    for manifest in snapshot.manifests(table.io):
        if manifest.content is not ManifestContent.DATA or manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io):
            # A manifest that was merged holds older files as well.
            if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                yield _gained(table, entry.data_file)


def _live(table: Table, snapshot: Snapshot) -> Iterator[GainedFile]:
    """All files of a snapshot: what was added before it, as far as it was not taken back."""
    for manifest in snapshot.manifests(table.io):
        if manifest.content is ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io):
                yield _gained(table, entry.data_file)


def _gained(table: Table, file: DataFile) -> GainedFile:
    if file.file_format is not FileFormat.PARQUET:
        raise PlanUnusable(
            f"table {'.'.join(table.name())} has the file {file.file_path}, which is not Parquet: somebody else wrote "
            f"it, and dedup cannot read it"
        )
    return GainedFile(file.file_path, file.file_size_in_bytes, file.record_count)


def _size(files: list[GainedFile]) -> int:
    return sum(file.size_bytes for file in files)
