"""The data files that were appended to a stream's table between two of its snapshots, as they were appended.

Only snapshots that append rows are used. A compaction replaces files by others with the same rows. A deletion or an
overwrite by another program removes rows, which dedup does not follow: a message that was in the table once has
arrived. A backfill replaces rows: then `waybill.tables.dedup.rebuild` begins again, with all rows of the newest
snapshot of a backfill.

PyIceberg's `incremental_append_scan` lists the files of one snapshot. It cannot list a range at once here: its result
does not show to which snapshot a file belongs, and it refuses a start that has expired and that PyIceberg has removed
from its successor (`_follows`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill.base.errors import PlanUnusable, SweepHistoryLost
from waybill.tables.dedup.first_sweep import find_first_sweep_start, snapshots_before
from waybill.tables.iceberg.dedup import FirstSweepStart
from waybill.tables.iceberg.state import BACKFILL_PROPERTY, ancestry, live_files

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TablePosition:
    """A point in a table's history: after one of its snapshots."""

    snapshot_id: int | None
    """None: before the first snapshot."""
    sequence: int
    """The snapshot's sequence number, which grows from snapshot to snapshot."""


TABLE_START = TablePosition(None, 0)


@dataclass(frozen=True, slots=True)
class AppendedFile:
    """A data file that a snapshot added."""

    path: str
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class AppendedFiles:
    """The files appended since a position."""

    end: TablePosition
    files: tuple[AppendedFile, ...]
    """In the order of their snapshots."""
    more: bool
    """Whether the size limit leaves later snapshots to the next sweep."""
    beginning: FirstSweepStart | None = None
    """The rows that the first sweep leaves out."""


def scan_appends(
    table: Table, start: TablePosition, *, run_bytes: int, since_ms: int | None = None, until_ms: int | None = None
) -> AppendedFiles | None:
    """Return the files appended to the loaded `table` since `start`; None if there is no later snapshot.

    Takes whole snapshots, the oldest first: at least one that adds files, and more while all files together have at
    most `run_bytes`. With `until_ms` it stops before the first snapshot that was committed after that time, epoch ms.

    From `TABLE_START` it takes all files of the oldest snapshot that has not expired, or of the newest one in which a
    backfill replaced rows, and those appended later. With
    `since_ms` it takes only those after the snapshots that were committed before that time; if there are none, the
    result is still not None, because the first sweep must record which rows it leaves out.

    Raises `SweepHistoryLost` when the table's snapshots do not lead back to `start`, `PlanUnusable` for a file that is
    not Parquet, `ConfigError` as `waybill.tables.dedup.first_sweep.find_first_sweep_start` does.
    """
    later = snapshots_since(table, start)
    if start.snapshot_id is None:
        later = _from_last_backfill(later)
    beginning, end = None, None
    if since_ms is not None and start.snapshot_id is None:
        beginning = find_first_sweep_start(table, later, since_ms)
    if beginning is not None and since_ms is not None:
        left_out = snapshots_before(later, since_ms)
        later, end = later[len(left_out) :], left_out[-1]
    if until_ms is not None:
        later = snapshots_before(later, until_ms + 1)
    files: list[AppendedFile] = []
    for number, snapshot in enumerate(later):
        is_first = start.snapshot_id is None and beginning is None and number == 0
        found = live_files(table, snapshot) if is_first else _appended_by(table, snapshot)
        added = [_checked(table, file) for file in found]
        if files and added and _total_bytes(files) + _total_bytes(added) > run_bytes:
            return AppendedFiles(_position_of(end), tuple(files), more=True, beginning=beginning)
        files += added
        end = snapshot
    return None if end is None else AppendedFiles(_position_of(end), tuple(files), more=False, beginning=beginning)


def has_no_appends(table: Table, start: TablePosition, end: TablePosition) -> bool:
    """Return whether the table's history leads from `start` to `end` and no snapshot between them adds a row.

    Returns False too if snapshots between them have expired.
    """
    before_end = False
    for snapshot in ancestry(table.metadata):
        if before_end and snapshot.snapshot_id == start.snapshot_id:
            return True
        if before_end and appends_rows(table, snapshot):
            return False
        before_end = before_end or snapshot.snapshot_id == end.snapshot_id
    return before_end and start == TABLE_START


def snapshots_since(table: Table, start: TablePosition) -> list[Snapshot]:
    """Return the snapshots of `table` after `start`, oldest first.

    Raises `SweepHistoryLost` when they do not lead back to `start`.
    """
    later: list[Snapshot] = []
    for snapshot in ancestry(table.metadata):
        if snapshot.snapshot_id == start.snapshot_id:
            return later[::-1]
        later.append(snapshot)
    # The start itself may have expired as long as its successor has not.
    has_expired = start.snapshot_id is not None and table.metadata.snapshot_by_id(start.snapshot_id) is None
    if start.snapshot_id is None or (has_expired and later and _follows(later[-1], start)):
        return later[::-1]
    raise SweepHistoryLost(_history_lost_text(table, start))


def backfill_of(snapshot: Snapshot) -> str | None:
    """Return the id of the backfill that replaced rows in this snapshot of the stream's table.

    None if there was none.
    """
    return snapshot.summary.additional_properties.get(BACKFILL_PROPERTY) if snapshot.summary else None


def appends_rows(table: Table, snapshot: Snapshot) -> bool:
    """Return whether a snapshot appended data files."""
    return any(True for _ in _appended_by(table, snapshot))


def current_position(table: Table) -> TablePosition:
    """Return the position of the table's current snapshot."""
    return _position_of(table.metadata.current_snapshot())


def _from_last_backfill(snapshots: list[Snapshot]) -> list[Snapshot]:
    """Leave out the snapshots before the last backfill: their rows may not be in the table any more."""
    replacing = [number for number, snapshot in enumerate(snapshots) if backfill_of(snapshot) is not None]
    return snapshots[replacing[-1] :] if replacing else snapshots


def _appended_by(table: Table, snapshot: Snapshot) -> Iterator[DataFile]:
    """Yield the files that a snapshot appended, even if they have been compacted or deleted since."""
    operation = snapshot.summary.operation if snapshot.summary else Operation.APPEND
    if operation is not Operation.APPEND:
        if operation is not Operation.REPLACE:
            logger.info(
                "table %s: dedup skips snapshot %d, an %s: only appended rows are swept",
                ".".join(table.name()),
                snapshot.snapshot_id,
                operation.value,
            )
        return
    scan = table.incremental_append_scan(
        from_snapshot_id_exclusive=snapshot.parent_snapshot_id, to_snapshot_id_inclusive=snapshot.snapshot_id
    )
    for task in scan.plan_files():
        yield task.file


def _checked(table: Table, file: DataFile) -> AppendedFile:
    if file.file_format is not FileFormat.PARQUET:
        raise PlanUnusable(
            f"table {'.'.join(table.name())} has the file {file.file_path}, which is not Parquet: another program "
            f"wrote it, and dedup cannot read it"
        )
    return AppendedFile(file.file_path, file.file_size_in_bytes, file.record_count)


def _follows(snapshot: Snapshot, start: TablePosition) -> bool:
    """Return whether the snapshot is the successor of `start`, which has expired.

    Unlike Iceberg's Java library, PyIceberg removes an expired parent from its child. Then the sequence number decides;
    it is not used if the parent is known, since a snapshot of another branch can have the next number too.
    """
    if snapshot.parent_snapshot_id is not None:
        return snapshot.parent_snapshot_id == start.snapshot_id
    return snapshot.sequence_number == start.sequence + 1


def _history_lost_text(table: Table, start: TablePosition) -> str:
    exists = start.snapshot_id is not None and table.metadata.snapshot_by_id(start.snapshot_id) is not None
    reason = "it was rolled back to before it" if exists else "it has expired, with snapshots that came after it"
    return (
        f"table {'.'.join(table.name())}: snapshot {start.snapshot_id} (sequence number {start.sequence}), through "
        f"which dedup has swept it, is not in the history of its current snapshot: {reason}. Roll the unique table and "
        f"the duplicates table back to snapshots of that time, or drop both, and the next sweep starts from what the "
        f"table holds now"
    )


def _position_of(snapshot: Snapshot | None) -> TablePosition:
    return TABLE_START if snapshot is None else TablePosition(snapshot.snapshot_id, snapshot.sequence_number or 0)


def _total_bytes(files: list[AppendedFile]) -> int:
    return sum(file.size_bytes for file in files)
