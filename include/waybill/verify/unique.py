"""What dedup made against the table that it was made of: every row that was swept is a unique row or a duplicate, once.

Counted by offset in windows over all topic-partitions, as `waybill.verify.rows` does it, so that memory is bounded: the
table's rows as of the snapshot that was swept last, and those of the two tables together.

Rows of the duplicates may be beyond that (docs/protocol.md): a sweep commits them before the unique rows. And rows
that the first sweep has left out, as it was asked to, may be missing: below the progress that the table had then, and
no more of them than there were. Their snapshot may have expired, and their files been compacted with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill.dedup.first_sweep import instant_text
from waybill.errors import ProgressLost, SweepHistoryLost
from waybill.names import TopicPartition
from waybill.tables import Beginning, DedupTables, Swept, read_sweep_state, read_swept
from waybill.tables.state import ancestry
from waybill.verify.files import UNREADABLE
from waybill.verify.offsets import (
    MAX_STRAYS,
    by_topic_partition,
    list_faults,
    offset_windows,
    read_offsets,
    total_records,
)
from waybill.verify.report import Fault, FaultKind, Listener, Report, first_line

if TYPE_CHECKING:
    Counts = np.ndarray[Any, np.dtype[np.uint8]]
    Int64s = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["check_unique"]

_MAX_COUNT = 255


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows of one table that are counted."""

    table: Table
    snapshot: Snapshot
    without: frozenset[str] = frozenset()
    """Data files of the snapshot whose rows do not count."""

    @property
    def name(self) -> str:
        return ".".join(self.table.name())

    def batches(self, first: int, following: int) -> Iterator[pa.RecordBatch]:
        return read_offsets(self.table, first, following, snapshot_id=self.snapshot.snapshot_id, without=self.without)


@dataclass(slots=True)
class _Window:
    """Offsets of one topic-partition from `first_offset` on: how many rows each has, capped at `_MAX_COUNT`."""

    first_offset: int
    swept: Counts
    """In the table that was swept."""
    made: Counts
    """In the tables that were made of it."""
    complete_from: int = 0
    """How many of these, the first ones, the first sweep may have left out."""


def check_unique(
    main: Table,
    tables: DedupTables,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    report: Report,
    listener: Listener,
    *,
    window_offsets: int,
) -> None:
    """Hold the tables that sweeps fill against the main table, which was loaded after them.

    `ranges`: the offsets of each topic-partition that the main table's progress has come beyond. What is in the main
    table beside them is not looked at: it is a fault of its own (`waybill.verify.rows`).
    """
    try:
        state = read_sweep_state(tables.unique.metadata, ".".join(tables.unique.name()))
        swept = state.swept
        ahead = read_swept(tables.duplicates.metadata, ".".join(tables.duplicates.name()))
        if swept is None:
            report.notes.append("there was no dedup sweep yet")
            return
        source = _swept_rows(main, swept)
    except (ProgressLost, SweepHistoryLost) as error:
        where = ".".join(tables.unique.name())
        report.faults.append(Fault(FaultKind.PROGRESS, where, None, None, None, str(error)))
        return
    is_ahead = ahead is not None and ahead.sequence > swept.sequence
    checker = _Checker(source, tables, state.beginning, report, listener, duplicates_are_ahead=is_ahead)
    listener.begin("reading what dedup made", checker.rows)
    for first, following in offset_windows(ranges.values(), window_offsets):
        checker.check(first, following, ranges)
    checker.finish()
    report.figures.unswept = max(total_records(main.current_snapshot()) - checker.swept_rows, 0)
    report.unique_checked = True


def _swept_rows(main: Table, swept: Swept) -> _Source:
    """The main table's rows as of the snapshot that was swept last, which may have expired since.

    Raises `SweepHistoryLost`.
    """
    name = ".".join(main.name())
    if swept.main != str(main.metadata.table_uuid):
        raise SweepHistoryLost(f"the table that was swept had the uuid {swept.main}, and {name} is another one by now")
    oldest = None
    for snapshot in ancestry(main.metadata):
        if snapshot.snapshot_id == swept.snapshot:
            return _Source(main, snapshot)
        oldest = snapshot
    if oldest is None or not _follows(oldest, swept):
        raise SweepHistoryLost(
            f"snapshot {swept.snapshot} of {name}, through which it was swept, is not in its history: it was rolled "
            f"back, or snapshots were expired that no sweep had taken in"
        )
    # The one after it still is: it has the same rows, but for those that it added.
    return _Source(main, oldest, frozenset(_appended(main, oldest)))


def _follows(snapshot: Snapshot, swept: Swept) -> bool:
    """Whether nothing came between. PyIceberg, other than Java, makes a snapshot forget a parent that expires."""
    return snapshot.parent_snapshot_id == swept.snapshot or snapshot.sequence_number == swept.sequence + 1


def _appended(table: Table, snapshot: Snapshot) -> Iterator[str]:
    if snapshot.summary is not None and snapshot.summary.operation is not Operation.APPEND:
        return
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                    yield entry.data_file.file_path


class _Checker:
    """Goes through the three tables window by window."""

    def __init__(
        self,
        source: _Source,
        tables: DedupTables,
        beginning: Beginning | None,
        report: Report,
        listener: Listener,
        *,
        duplicates_are_ahead: bool,
    ) -> None:
        self._source = source
        self._beginning = beginning
        self._unique, self._duplicates = _current(tables.unique), _current(tables.duplicates)
        self._report = report
        self._listener = listener
        self._ahead = duplicates_are_ahead
        self._both = f"{'.'.join(tables.unique.name())} and {'.'.join(tables.duplicates.name())}"
        self._strays: dict[tuple[str, TopicPartition], list[Int64s]] = {}
        self._strays_kept = 0
        self.swept_rows = 0

    @property
    def rows(self) -> int:
        """How many rows there are to read."""
        sources = (self._source, self._unique, self._duplicates)
        return sum(total_records(source.snapshot) for source in sources if source is not None)

    def check(self, first: int, following: int, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """One window of offsets, of every topic-partition."""
        windows = {}
        for tp, (low, high) in ranges.items():
            start, size = max(low, first), min(high, following) - max(low, first)
            if size > 0:
                complete_from = min(max(self._left_out_before(tp) - start, 0), size)
                windows[tp] = _Window(start, np.zeros(size, np.uint8), np.zeros(size, np.uint8), complete_from)
        swept = self._count(self._source, first, following, windows)
        made = [self._count(made, first, following, windows) for made in (self._unique, self._duplicates)]
        for tp, window in windows.items():
            self._judge(tp, window, swept_is_known=swept, made_is_known=all(made))

    def _left_out_before(self, tp: TopicPartition) -> int:
        """The offset from which on no row of a topic-partition was left out."""
        return 0 if self._beginning is None else self._beginning.progress.get(tp, 0)

    def _count(
        self, source: _Source | None, first: int, following: int, windows: Mapping[TopicPartition, _Window]
    ) -> bool:
        """Count a table's rows in a window. False: it could not be read to the end."""
        if source is None:
            return True
        try:
            for batch in source.batches(first, following):
                for tp, _, offsets in by_topic_partition(batch):
                    self._add(source, tp, offsets, windows.get(tp))
                self._listener.advance(batch.num_rows)
        except UNREADABLE as error:
            # Anything else, such as S3 being away, is no fault of the table and ends the check.
            self._report.faults.append(Fault(FaultKind.UNREADABLE, source.name, None, None, None, first_line(error)))
            return False
        return True

    def _add(self, source: _Source, tp: TopicPartition, offsets: Int64s, window: _Window | None) -> None:
        inside = np.zeros(len(offsets), bool)
        if window is not None:
            inside = (offsets >= window.first_offset) & (offsets < window.first_offset + len(window.swept))
        places = offsets[inside] - (window.first_offset if window is not None else 0)
        outside = offsets[~inside]
        if window is not None and source is self._duplicates and self._ahead:
            final = window.swept[places] > 0
            places, outside = places[final], outside[:0]
        if window is not None:
            _count_in(window.swept if source is self._source else window.made, places)
        self._tally(source, tp, len(places), outside)

    def _tally(self, source: _Source, tp: TopicPartition, rows: int, outside: Int64s) -> None:
        figures = self._report.figures
        if source is self._source:
            self.swept_rows += rows + len(outside)
            return
        if source is self._unique:
            figures.unique += rows + len(outside)
        else:
            figures.duplicates += rows + len(outside)
        figures.foreign += len(outside)
        kept = outside[: max(0, MAX_STRAYS - self._strays_kept)]
        if len(kept):
            self._strays_kept += len(kept)
            self._strays.setdefault((source.name, tp), []).append(kept)

    def finish(self) -> None:
        """List the rows that are in none of the windows, and count those that were left out."""
        if self._beginning is not None:
            self._judge_left_out(self._beginning)
        what = "a row of an offset outside of what the table's progress has come beyond"
        for (name, tp), offsets in self._strays.items():
            list_faults(self._report, FaultKind.FOREIGN, name, tp, np.unique(np.concatenate(offsets)), what)

    def _judge_left_out(self, beginning: Beginning) -> None:
        report, missing = self._report, self._report.figures.left_out
        since = instant_text(beginning.since_ms)
        report.notes.append(f"dedup is complete since {since}: the first sweep left out {beginning.rows:,} rows")
        if missing > beginning.rows:
            lost = missing - beginning.rows
            report.figures.lost += lost
            what = f"{missing:,} rows from before the first sweep's begin are in neither table: {lost:,} too many"
            report.faults.append(Fault(FaultKind.LOST, self._both, None, None, None, what))

    def _judge(self, tp: TopicPartition, window: _Window, *, swept_is_known: bool, made_is_known: bool) -> None:
        swept, made = window.swept, window.made
        # Where a file could not be read, nothing can be said about what is not there.
        if made_is_known:
            lost = np.flatnonzero(made < swept)
            lacking = (swept[lost] - made[lost]).astype(np.int64)
            is_left_out = lost < window.complete_from
            self._report.figures.left_out += int(lacking[is_left_out].sum())
            self._report.figures.lost += int(lacking[~is_left_out].sum())
            lost = lost[~is_left_out]
            what = f"in neither table, though {self._source.name} was swept beyond it"
            list_faults(self._report, FaultKind.LOST, self._both, tp, lost + window.first_offset, what)
        if swept_is_known:
            repeated = np.flatnonzero((made > swept) & (swept > 0))
            self._report.figures.repeated += int((made[repeated] - swept[repeated]).sum(dtype=np.int64))
            what = "more rows than there should be, in one of the tables or in both together"
            list_faults(self._report, FaultKind.REPEATED, self._both, tp, repeated + window.first_offset, what)
            foreign = np.flatnonzero((made > 0) & (swept == 0))
            self._report.figures.foreign += int(made[foreign].sum(dtype=np.int64))
            what = f"a row that {self._source.name} did not have when it was swept last"
            list_faults(self._report, FaultKind.FOREIGN, self._both, tp, foreign + window.first_offset, what)


def _current(table: Table) -> _Source | None:
    snapshot = table.current_snapshot()
    return None if snapshot is None else _Source(table, snapshot)


def _count_in(counts: Counts, places: Int64s) -> None:
    """`places` are sorted."""
    at, times = np.unique(places, return_counts=True)
    counts[at] = np.minimum(counts[at].astype(np.int64) + times, _MAX_COUNT)
