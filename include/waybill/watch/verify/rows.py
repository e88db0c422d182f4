"""Check that each message of the chains below the table's progress is one row of the main table or the quarantine.

Rows are counted by offset, in windows of offsets over all topic-partitions at once. The data files that Waybill writes
hold rows of many topic-partitions, so each window needs one pass over the table; a window is as large as memory
permits. Only the columns topic, partition, offset and generation are read.

Rows of the quarantine at or beyond the table's progress are not final (docs/protocol.md) and are not counted. Neither
are those that a retry has moved to the main table and not dropped from the quarantine yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from waybill.config.names import TopicPartition
from waybill.services.store import Store
from waybill.tables.backfill.between import HalfMoved
from waybill.tables.iceberg import Progress, StreamTables
from waybill.tables.quarantine.offset_sets import OffsetSet
from waybill.watch.verify.archive import CheckedArchive, CheckedChain, CheckedObject, read_offset_ranges
from waybill.watch.verify.effects import AffectedRows, check_progress
from waybill.watch.verify.files import UNREADABLE, SinkFiles
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

WINDOW_OFFSETS = 32 << 20
"""Offsets that are counted at the same time: two bytes each."""

_ABSENT, _PRESENT, _UNKNOWN = 0, 1, 2
_MAX_COUNT = 255


@dataclass(slots=True)
class _Window:
    """The part of one chain that lies in a window of offsets. Both arrays have one item for each offset."""

    tp: TopicPartition
    chain: CheckedChain
    first_offset: int
    expected: Counts
    """`_PRESENT` for an offset with a message, `_ABSENT` for one without, `_UNKNOWN` where an object is missing."""
    counted: Counts
    """The number of rows, at most `_MAX_COUNT`."""

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.expected)


def check_rows(
    store: Store,
    archive: CheckedArchive,
    tables: StreamTables,
    progress: Progress,
    moved: OffsetSet,
    report: VerifyReport,
    listener: Listener,
    *,
    files: SinkFiles | None = None,
    half_moved: HalfMoved | None = None,
    window_offsets: int = WINDOW_OFFSETS,
) -> None:
    """Compare both tables, as loaded, with the archive, which was read after they were loaded.

    `moved` are rows of the quarantine that are no longer counted, because a retry has moved them. `files` are the files
    of the rows, if the main table is a file inventory. `half_moved`: a change of a backfill that only the quarantine
    has so far.
    """
    chain_ends = {tp: chain.next_offset for tp, chain in archive.items()}
    check_progress(report, progress, chain_ends, ".".join(tables.main.name()))
    ranges = row_ranges(archive, progress)
    windows = list(offset_windows(ranges.values(), window_offsets))
    listener.begin("reading the tables", _row_count(tables) + (files.rows if files else 0) or 1)
    affected = AffectedRows(report, progress)
    checker = _RowChecker(store, archive, tables, progress, moved, report, listener, files, affected, half_moved)
    for first, following in windows:
        checker.check(first, following, ranges)
    checker.finish()
    affected.finish()
    report.figures.waiting = sum(_waiting(store, chain, progress) for chain in archive.values())
    report.table_checked = True


def row_ranges(archive: CheckedArchive, progress: Progress) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offsets `[first, next)` of each chain that the table's progress has passed."""
    return {
        tp: (chain.first_offset, min(progress.get(tp, chain.first_offset), chain.next_offset))
        for tp, chain in archive.items()
    }


def _waiting(store: Store, chain: CheckedChain, progress: Progress) -> int:
    """Return the number of messages in the chain beyond the table's progress."""
    start = progress.get(chain.tp, chain.first_offset)
    later = (found for found in chain.objects if found.next_offset > start and not found.damaged)
    return sum(
        int((ranges[:, 1] - ranges[:, 0]).sum())
        for found in later
        for ranges in read_offset_ranges(store, found, start, found.next_offset)
    )


def _row_count(tables: StreamTables) -> int:
    return sum(total_records(table.current_snapshot()) for table in (tables.main, tables.quarantine))


class _RowChecker:
    """Counts the rows of both tables window by window, and compares the counts with the chains."""

    def __init__(
        self,
        store: Store,
        archive: CheckedArchive,
        tables: StreamTables,
        progress: Progress,
        moved: OffsetSet,
        report: VerifyReport,
        listener: Listener,
        files: SinkFiles | None,
        affected: AffectedRows,
        half_moved: HalfMoved | None,
    ) -> None:
        self._store = store
        self._files = files
        self._archive = archive
        self._tables = tables
        self._progress = progress
        self._moved = moved
        self._report = report
        self._listener = listener
        self._affected = affected
        self._half_moved = half_moved
        self._foreign: dict[tuple[str, TopicPartition, str], list[Int64s]] = {}
        self._foreign_kept = 0
        self._names = {id(t): ".".join(t.name()) for t in (tables.main, tables.quarantine)}

    def check(self, first: int, following: int, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Check one window of offsets, for every topic-partition."""
        windows = {
            tp: self._window(tp, max(low, first), min(high, following))
            for tp, (low, high) in ranges.items()
            if max(low, first) < min(high, following)
        }
        readable = [self._count(table, first, following, windows) for table in self._both()]
        for window in windows.values():
            self._compare(window, complete=all(readable))

    def finish(self) -> None:
        """Add the faults that are only known after the last window: foreign rows, which lie in many files."""
        if self._files is not None:
            self._files.check_counts(self._report, self._affected)
        for (name, tp, what), offsets in self._foreign.items():
            list_faults(self._report, FaultKind.FOREIGN, name, tp, np.unique(np.concatenate(offsets)), what)

    def _both(self) -> tuple[Table, Table]:
        return self._tables.main, self._tables.quarantine

    def _window(self, tp: TopicPartition, low: int, high: int) -> _Window:
        chain = self._archive[tp]
        expected = np.zeros(high - low, np.uint8)
        for found in chain.objects:
            if found.first_offset < high and found.next_offset > low and not found.damaged:
                ranges = read_offset_ranges(self._store, found, low, min(high, found.next_offset))
                _mark_present(expected, low, found, ranges)
        for first, following in chain.unknown_ranges:
            # No object shows which messages there were, so rows here are neither right nor wrong. The missing object is
            # a fault already.
            expected[max(first - low, 0) : max(following - low, 0)] = _UNKNOWN
        return _Window(tp, chain, low, expected, np.zeros(high - low, np.uint8))

    # --- counting ---

    def _count(self, table: Table, first: int, following: int, windows: Mapping[TopicPartition, _Window]) -> bool:
        """Count a table's rows in a window, and return whether all its files could be read."""
        if table.current_snapshot() is None:
            return True
        name = self._names[id(table)]
        try:
            for batch in self._batches(table, first, following):
                self._count_batch(table is self._tables.main, name, batch, windows)
                self._listener.advance(batch.num_rows)
        except UNREADABLE as error:
            # Other errors, such as an unreachable S3, are no fault of the table and end the verification.
            self._report.add_fault(VerifyFault(FaultKind.UNREADABLE, name, None, None, None, first_line(error)))
            return False
        return True

    def _batches(self, table: Table, first: int, following: int) -> Iterator[pa.RecordBatch]:
        if self._files is not None and table is self._tables.main:
            return self._files.batches(first, following)
        moved = self._half_moved
        if moved is None or table is self._tables.main:
            return read_offsets(table, first, following)
        before = read_offsets(table, first, following, snapshot_id=moved.snapshot_id)
        return chain(
            (batch.filter(pa.array(~moved.ranges.mask(batch))) for batch in read_offsets(table, first, following)),
            (batch.filter(pa.array(moved.ranges.mask(batch))) for batch in before),
        )

    def _count_batch(
        self, is_main: bool, name: str, batch: pa.RecordBatch, windows: Mapping[TopicPartition, _Window]
    ) -> None:
        for tp, generation, all_offsets in by_topic_partition(batch):
            offsets = all_offsets if is_main else all_offsets[~self._moved.contains(tp, all_offsets)]
            if generation != self._report.generation:
                self._add_foreign(name, tp, offsets, f"a row of generation {generation}")
                continue
            affected = self._affected.count(name, tp, offsets)
            window = windows.get(tp)
            inside = np.zeros(len(offsets), bool)
            if window is not None:
                inside = (offsets >= window.first_offset) & (offsets < window.next_offset)
                self._add(window, offsets[inside])
            self._add_to_figures(is_main, int(np.count_nonzero(inside | affected)))
            self._check_outside(is_main, name, tp, offsets[~inside & ~affected])

    @staticmethod
    def _add(window: _Window, offsets: Int64s) -> None:
        """`offsets` are sorted."""
        places, counts = np.unique(offsets - window.first_offset, return_counts=True)
        total = window.counted[places].astype(np.int64) + counts
        window.counted[places] = np.minimum(total, _MAX_COUNT)

    def _add_to_figures(self, is_main: bool, rows: int) -> None:
        if is_main:
            self._report.figures.rows += rows
        else:
            self._report.figures.quarantine += rows

    def _check_outside(self, is_main: bool, name: str, tp: TopicPartition, offsets: Int64s) -> None:
        """Add rows as foreign that lie in no chain's window: the chain does not exist, starts later, or ended before.

        Rows beyond the progress are in no window either.
        """
        limit = self._progress.get(tp)
        if not is_main:
            offsets = offsets[offsets < (limit or 0)]  # quarantine rows beyond the progress are not final
        if not len(offsets):
            return
        self._add_to_figures(is_main, len(offsets))
        if tp not in self._archive:
            self._add_foreign(name, tp, offsets, "a row of a topic-partition that has no chain")
            return
        beyond = offsets >= (limit or 0)
        self._add_foreign(name, tp, offsets[beyond], f"a row beyond the table's progress ({limit or 'none'})")
        self._add_foreign(name, tp, offsets[~beyond], "a row of an offset outside of the chain")

    def _add_foreign(self, name: str, tp: TopicPartition, offsets: Int64s, what: str) -> None:
        """Keep the offsets until all files are read: rows with neighbouring offsets can lie in different files."""
        self._report.figures.foreign += len(offsets)
        kept = offsets[: max(0, MAX_FOREIGN_OFFSETS - self._foreign_kept)]
        if len(kept):
            self._foreign_kept += len(kept)
            self._foreign.setdefault((name, tp, what), []).append(kept)

    # --- comparing ---

    def _compare(self, window: _Window, *, complete: bool) -> None:
        """Compare the expected with the counted rows. `complete`: all files of both tables could be read."""
        figures, both = self._report.figures, " and ".join(self._names.values())
        first, tp = window.first_offset, window.tp
        absent = (window.expected == _PRESENT) & (window.counted == 0)
        if self._files is not None:
            self._files.count_without_offsets(tp, first, absent, window.expected == _UNKNOWN)
        # A row that was not counted may be in the file that could not be read.
        lost = np.flatnonzero(absent if complete else np.zeros_like(absent)) + first
        figures.lost += len(lost)
        what = f"in neither table, though progress is {self._progress[tp]}"
        list_faults(
            self._report,
            FaultKind.LOST,
            both,
            tp,
            lost,
            what,
            lambda first: f"; in the archive: {_object_with(window.chain, first)}",
        )
        repeated = np.flatnonzero(window.counted > 1)
        figures.repeated += int(window.counted[repeated].sum(dtype=np.int64)) - len(repeated)
        for times in np.unique(window.counted[repeated]):
            places = repeated[window.counted[repeated] == times] + first
            at_least = "at least " if times == _MAX_COUNT else ""
            list_faults(
                self._report, FaultKind.REPEATED, both, tp, places, f"{at_least}{times} rows where there should be one"
            )
        foreign = np.flatnonzero((window.expected == _ABSENT) & (window.counted > 0)) + first
        self._add_foreign(both, tp, foreign, "a row of an offset that is no message in the chain")


def _mark_present(expected: Counts, low: int, found: CheckedObject, all_ranges: Iterator[Int64s]) -> None:
    """Mark the offsets of an object's messages in a window that starts at `low`."""
    start = max(found.first_offset, low)
    end = min(found.next_offset, low + len(expected))
    # +1 where a range starts, -1 where it ends: the running sum is 1 within ranges.
    steps = np.zeros(end - start + 1, np.int8)
    for ranges in all_ranges:
        steps[ranges[:, 0] - start] += 1
        steps[ranges[:, 1] - start] -= 1
    np.copyto(expected[start - low : end - low], _PRESENT, where=np.cumsum(steps[:-1], dtype=np.int8) > 0)


def _object_with(chain: CheckedChain, offset: int) -> str:
    return next((o.key for o in chain.objects if o.first_offset <= offset < o.next_offset), "no object")
