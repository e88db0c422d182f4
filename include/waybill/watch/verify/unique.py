"""Check that each row that was swept is exactly one row of the unique table or the duplicates table.

Rows are counted by offset in windows over all topic-partitions, as in `waybill.watch.verify.rows`, so memory is
bounded. The main table's rows as of the last swept snapshot are compared with the rows of the two other tables
together.

While a rebuild is under way, the tables show rows that the main table had before (`waybill.tables.dedup.rebuild`): then
they are not compared.

Two differences are no faults. The duplicates table may have additional rows (docs/protocol.md), because a sweep commits
it before the unique table. And rows that the first sweep left out, as the config requires, may be missing. The check
only knows that they lie below the progress that the main table had then, and how many rows the table had: their
snapshot may have expired, and their files may have been compacted with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill.base.errors import ProgressLost, SweepHistoryLost
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.tables.dedup.first_sweep import format_instant
from waybill.tables.dedup.rebuild import find_change
from waybill.tables.iceberg import (
    DedupTables,
    FirstSweepStart,
    Progress,
    SweepPosition,
    read_sweep_position,
    read_sweep_state,
)
from waybill.tables.iceberg.state import ancestry
from waybill.watch.verify.effects import AffectedRows
from waybill.watch.verify.files import UNREADABLE
from waybill.watch.verify.offsets import (
    MAX_FOREIGN_OFFSETS,
    by_topic_partition,
    list_faults,
    offset_windows,
    read_offsets,
    total_records,
)
from waybill.watch.verify.verify_report import FaultKind, Listener, VerifyFault, VerifyReport, first_line

if TYPE_CHECKING:
    Counts = np.ndarray[Any, np.dtype[np.uint8]]
    Int64s = np.ndarray[Any, np.dtype[np.int64]]

_MAX_COUNT = 255


@dataclass(frozen=True, slots=True)
class SweptRows:
    """The rows of one table that are counted: those of a snapshot."""

    table: Table
    snapshot: Snapshot
    without: frozenset[str] = frozenset()
    """Data files of the snapshot whose rows are not counted."""

    @property
    def name(self) -> str:
        return ".".join(self.table.name())

    def batches(self, first: int, following: int) -> Iterator[pa.RecordBatch]:
        return read_offsets(self.table, first, following, snapshot_id=self.snapshot.snapshot_id, without=self.without)


@dataclass(slots=True)
class _OffsetWindow:
    """Offsets of one topic-partition from `first_offset` on, with the number of rows of each, at most `_MAX_COUNT`."""

    first_offset: int
    swept: Counts
    """Rows of the main table that were swept."""
    kept: Counts
    """Rows of the unique table and the duplicates table together."""
    complete_from: int = 0
    """The position from which on every row must have been swept. The first sweep may have left out rows before it."""


def check_unique(
    main: Table,
    tables: DedupTables,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    report: VerifyReport,
    listener: Listener,
    *,
    window_offsets: int,
    progress: Progress = MappingProxyType({}),
) -> None:
    """Compare the tables that sweeps fill with the main table, which was loaded after them.

    `ranges` are the offsets of each chain that the main table's progress has passed. Rows of the main table at other
    offsets are not compared: `waybill.watch.verify.rows` has reported them. `progress` is the main table's: rows below
    it whose backup objects are missing are an effect of that fault.
    """
    try:
        change = find_change(main, tables)
        if change is not None:
            report.notes.append(
                f"the tables of dedup were not compared: {change} since the last sweep, and they show the rows from "
                f"before until sweeps have rebuilt them"
            )
            return
        state = read_sweep_state(tables.unique.metadata, ".".join(tables.unique.name()))
        swept = state.swept
        ahead = read_sweep_position(tables.duplicates.metadata, ".".join(tables.duplicates.name()))
        if swept is None:
            report.notes.append("there was no dedup sweep yet")
            return
        source = find_swept_rows(main, swept)
    except (ProgressLost, SweepHistoryLost) as error:
        where = ".".join(tables.unique.name())
        report.add_fault(VerifyFault(FaultKind.PROGRESS, where, None, None, None, str(error)))
        return
    is_ahead = ahead is not None and ahead.sequence > swept.sequence
    affected = AffectedRows(report, progress)
    checker = _Checker(source, tables, state.beginning, report, listener, affected, duplicates_are_ahead=is_ahead)
    listener.begin("reading the tables of dedup", checker.rows)
    for first, following in offset_windows(ranges.values(), window_offsets):
        checker.check(first, following, ranges)
    checker.finish()
    affected.finish()
    report.figures.unswept = max(total_records(main.current_snapshot()) - checker.swept_rows, 0)
    report.unique_checked = True


def find_swept_rows(main: Table, swept: SweepPosition) -> SweptRows:
    """Return the main table's rows as of the last swept snapshot, even if that snapshot has expired.

    Raises `SweepHistoryLost` when the table was replaced or rolled back, or snapshots that were not swept have expired.
    """
    name = ".".join(main.name())
    if swept.main != str(main.metadata.table_uuid):
        raise SweepHistoryLost(
            f"the swept table had the uuid {swept.main}, and {name} has another one: it is a new table"
        )
    oldest = None
    for snapshot in ancestry(main.metadata):
        if snapshot.snapshot_id == swept.snapshot:
            return SweptRows(main, snapshot)
        oldest = snapshot
    if oldest is None or not _follows(oldest, swept):
        raise SweepHistoryLost(
            f"snapshot {swept.snapshot} of {name}, through which it was swept, is not in its history: the table was "
            f"rolled back, or snapshots expired before a sweep had processed them"
        )
    # The next snapshot still exists. It has the same rows, and those of the files that it added.
    return SweptRows(main, oldest, frozenset(_appended(main, oldest)))


def _follows(snapshot: Snapshot, swept: SweepPosition) -> bool:
    """Return whether `snapshot` is the next one after the swept one.

    When PyIceberg expires a snapshot, it removes it as the parent of the next one. Iceberg's Java library does not.
    """
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
    """Counts the rows of the three tables window by window, and compares the counts."""

    def __init__(
        self,
        source: SweptRows,
        tables: DedupTables,
        beginning: FirstSweepStart | None,
        report: VerifyReport,
        listener: Listener,
        affected: AffectedRows,
        *,
        duplicates_are_ahead: bool,
    ) -> None:
        self._source = source
        self._beginning = beginning
        self._unique, self._duplicates = _current(tables.unique), _current(tables.duplicates)
        self._report = report
        self._listener = listener
        self._affected = affected
        self._ahead = duplicates_are_ahead
        self._both = f"{'.'.join(tables.unique.name())} and {'.'.join(tables.duplicates.name())}"
        self._foreign: dict[tuple[str, TopicPartition], list[Int64s]] = {}
        self._foreign_kept = 0
        self.swept_rows = 0

    @property
    def rows(self) -> int:
        """The number of rows to read."""
        sources = (self._source, self._unique, self._duplicates)
        return sum(total_records(source.snapshot) for source in sources if source is not None)

    def check(self, first: int, following: int, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Check one window of offsets, for every topic-partition."""
        windows = {}
        for tp, (low, high) in ranges.items():
            start, size = max(low, first), min(high, following) - max(low, first)
            if size > 0:
                complete_from = min(max(self._left_out_before(tp) - start, 0), size)
                windows[tp] = _OffsetWindow(start, np.zeros(size, np.uint8), np.zeros(size, np.uint8), complete_from)
        swept = self._count(self._source, first, following, windows)
        kept = [self._count(table, first, following, windows) for table in (self._unique, self._duplicates)]
        for tp, window in windows.items():
            self._compare(tp, window, swept_is_known=swept, kept_is_known=all(kept))

    def finish(self) -> None:
        """Add the faults that are only known after the last window: rows outside of all windows, rows left out."""
        if self._beginning is not None:
            self._check_left_out(self._beginning)
        what = "a row of an offset that the main table's progress has not passed, or that its chain does not have"
        for (name, tp), offsets in self._foreign.items():
            list_faults(self._report, FaultKind.FOREIGN, name, tp, np.unique(np.concatenate(offsets)), what)

    def _left_out_before(self, tp: TopicPartition) -> int:
        """Return the offset below which the first sweep may have left out rows of the topic-partition."""
        return 0 if self._beginning is None else self._beginning.progress.get(tp, 0)

    def _count(
        self, source: SweptRows | None, first: int, following: int, windows: Mapping[TopicPartition, _OffsetWindow]
    ) -> bool:
        """Count a table's rows in a window, and return whether all its files could be read."""
        if source is None:
            return True
        try:
            for batch in source.batches(first, following):
                for tp, _, offsets in by_topic_partition(batch):
                    self._add(source, tp, offsets, windows.get(tp))
                self._listener.advance(batch.num_rows)
        except UNREADABLE as error:
            # Other errors, such as an unreachable S3, are no fault of the table and end the verification.
            self._report.add_fault(VerifyFault(FaultKind.UNREADABLE, source.name, None, None, None, first_line(error)))
            return False
        return True

    def _add(self, source: SweptRows, tp: TopicPartition, offsets: Int64s, window: _OffsetWindow | None) -> None:
        inside = np.zeros(len(offsets), bool)
        if window is not None:
            inside = (offsets >= window.first_offset) & (offsets < window.first_offset + len(window.swept))
        # A sweep that is half committed: the duplicates table has rows that are not final.
        not_final = window is not None and source is self._duplicates and self._ahead
        if source is self._source or not_final:
            affected = np.zeros(len(offsets), bool)  # `waybill.watch.verify.rows` has counted the main table's rows
        else:
            affected = self._affected.count(source.name, tp, offsets)
        places = offsets[inside] - (window.first_offset if window is not None else 0)
        outside = offsets[~inside & ~affected]
        affected_outside = int(np.count_nonzero(affected & ~inside))
        if window is not None and not_final:
            final = window.swept[places] > 0
            places, outside = places[final], outside[:0]
        if window is not None:
            _count_in(window.swept if source is self._source else window.kept, places)
        self._add_to_figures(source, tp, len(places) + affected_outside, outside)

    def _add_to_figures(self, source: SweptRows, tp: TopicPartition, rows: int, outside: Int64s) -> None:
        """Count rows, and keep the offsets of those outside of all windows until all files are read."""
        figures = self._report.figures
        if source is self._source:
            self.swept_rows += rows + len(outside)
            return
        if source is self._unique:
            figures.unique += rows + len(outside)
        else:
            figures.duplicates += rows + len(outside)
        figures.foreign += len(outside)
        kept = outside[: max(0, MAX_FOREIGN_OFFSETS - self._foreign_kept)]
        if len(kept):
            self._foreign_kept += len(kept)
            self._foreign.setdefault((source.name, tp), []).append(kept)

    def _check_left_out(self, beginning: FirstSweepStart) -> None:
        report, missing = self._report, self._report.figures.left_out
        since = format_instant(beginning.since_ms)
        report.notes.append(
            f"dedup is complete since {since}: the first sweep left out {counted(beginning.rows, 'row')}"
        )
        if missing > beginning.rows:
            lost = missing - beginning.rows
            report.figures.lost += lost
            what = (
                f"{counted(missing, 'row')} from before the first sweep's start are in neither table, but it left out "
                f"only {beginning.rows:,}: {lost:,} too many"
            )
            report.add_fault(VerifyFault(FaultKind.LOST, self._both, None, None, None, what))

    def _compare(self, tp: TopicPartition, window: _OffsetWindow, *, swept_is_known: bool, kept_is_known: bool) -> None:
        """Compare the counts of a window. A row that was not counted may be in a file that could not be read."""
        swept, kept = window.swept, window.kept
        if kept_is_known:
            lost = np.flatnonzero(kept < swept)
            lacking = (swept[lost] - kept[lost]).astype(np.int64)
            is_left_out = lost < window.complete_from
            self._report.figures.left_out += int(lacking[is_left_out].sum())
            self._report.figures.lost += int(lacking[~is_left_out].sum())
            lost = lost[~is_left_out]
            what = f"in neither table, though a sweep has processed the row of {self._source.name}"
            list_faults(self._report, FaultKind.LOST, self._both, tp, lost + window.first_offset, what)
        if swept_is_known:
            repeated = np.flatnonzero((kept > swept) & (swept > 0))
            self._report.figures.repeated += int((kept[repeated] - swept[repeated]).sum(dtype=np.int64))
            what = "more rows than expected, in one of the tables or in both together"
            list_faults(self._report, FaultKind.REPEATED, self._both, tp, repeated + window.first_offset, what)
            foreign = np.flatnonzero((kept > 0) & (swept == 0))
            self._report.figures.foreign += int(kept[foreign].sum(dtype=np.int64))
            what = f"a row that {self._source.name} did not have when it was swept last"
            list_faults(self._report, FaultKind.FOREIGN, self._both, tp, foreign + window.first_offset, what)


def _current(table: Table) -> SweptRows | None:
    snapshot = table.current_snapshot()
    return None if snapshot is None else SweptRows(table, snapshot)


def _count_in(counts: Counts, places: Int64s) -> None:
    """Add 1 to `counts` at each of the sorted places."""
    at, times = np.unique(places, return_counts=True)
    counts[at] = np.minimum(counts[at].astype(np.int64) + times, _MAX_COUNT)
