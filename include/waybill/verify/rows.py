"""The tables against the chains: every message below the table's progress is a row of table or quarantine, once.

Rows are counted by offset, in windows of offsets over all topic-partitions at once, so that a table whose files hold
many topic-partitions side by side, as Waybill writes them, is read once for as many offsets as fit into memory. Only
the columns topic, partition, offset and generation are read.

Rows of the quarantine at or beyond the table's progress are not final (docs/protocol.md), and left out, as are those
that a retry has moved to the table and not dropped yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from waybill.names import TopicPartition
from waybill.quarantine import Offsets
from waybill.store import Store
from waybill.tables import Progress, StreamTables
from waybill.verify.archive import Archive, Chain, CheckedObject, object_runs
from waybill.verify.files import UNREADABLE, LedgerFiles
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
    Runs = Int64s

__all__ = ["WINDOW_OFFSETS", "check_rows", "row_ranges"]

WINDOW_OFFSETS = 32 << 20
"""Offsets that are counted at a time: two bytes each."""

_ABSENT, _PRESENT, _UNKNOWN = 0, 1, 2
_MAX_COUNT = 255


@dataclass(slots=True)
class _Window:
    """The part of one chain that lies in a window: what should be there, and what was counted."""

    tp: TopicPartition
    chain: Chain
    first_offset: int
    expected: Counts
    counted: Counts

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.expected)


def check_rows(
    store: Store,
    archive: Archive,
    tables: StreamTables,
    progress: Progress,
    moved: Offsets,
    report: Report,
    listener: Listener,
    *,
    files: LedgerFiles | None = None,
    window_offsets: int = WINDOW_OFFSETS,
) -> None:
    """Hold both tables, as loaded, against the archive, which was read after they were loaded.

    `moved`: rows of the quarantine that do not count any more. `files`: where the table's rows are, if it is a ledger.
    """
    _check_progress(archive, progress, ".".join(tables.main.name()), report)
    ranges = row_ranges(archive, progress)
    windows = list(offset_windows(ranges.values(), window_offsets))
    listener.begin("reading the tables", _row_count(tables) + (files.rows if files else 0) or 1)
    checker = _RowChecker(store, archive, tables, progress, moved, report, listener, files)
    for first, following in windows:
        checker.check(first, following, ranges)
    checker.finish()
    report.figures.waiting = sum(_waiting(store, chain, progress) for chain in archive.values())
    report.table_checked = True


def row_ranges(archive: Archive, progress: Progress) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets of each chain that the tables' progress has come beyond: `[first, next)`."""
    return {
        tp: (chain.first_offset, min(progress.get(tp, chain.first_offset), chain.next_offset))
        for tp, chain in archive.items()
    }


def _check_progress(archive: Archive, progress: Progress, name: str, report: Report) -> None:
    for tp, offset in sorted(progress.items()):
        chain = archive.get(tp)
        if chain is None:
            what = f"the table's progress is {offset}, and there is no chain"
            report.faults.append(Fault(FaultKind.PROGRESS, name, tp, None, None, what))
        elif offset > chain.next_offset:
            what = f"the table's progress is {offset}, beyond the chain's end at {chain.next_offset}"
            report.faults.append(Fault(FaultKind.PROGRESS, name, tp, chain.next_offset, offset, what))


def _waiting(store: Store, chain: Chain, progress: Progress) -> int:
    start = progress.get(chain.tp, chain.first_offset)
    later = (found for found in chain.objects if found.next_offset > start and not found.damaged)
    return sum(
        int((runs[:, 1] - runs[:, 0]).sum())
        for found in later
        for runs in object_runs(store, found, start, found.next_offset)
    )


def _row_count(tables: StreamTables) -> int:
    return sum(total_records(table.current_snapshot()) for table in (tables.main, tables.quarantine))


class _RowChecker:
    """Goes through both tables window by window."""

    def __init__(
        self,
        store: Store,
        archive: Archive,
        tables: StreamTables,
        progress: Progress,
        moved: Offsets,
        report: Report,
        listener: Listener,
        files: LedgerFiles | None,
    ) -> None:
        self._store = store
        self._files = files
        self._archive = archive
        self._tables = tables
        self._progress = progress
        self._moved = moved
        self._report = report
        self._listener = listener
        self._strays: dict[tuple[str, TopicPartition, str], list[Int64s]] = {}
        self._strays_kept = 0
        self._names = {id(t): ".".join(t.name()) for t in (tables.main, tables.quarantine)}

    def check(self, first: int, following: int, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """One window of offsets, of every topic-partition."""
        windows = {
            tp: self._window(tp, max(low, first), min(high, following))
            for tp, (low, high) in ranges.items()
            if max(low, first) < min(high, following)
        }
        readable = [self._count(table, first, following, windows) for table in self._both()]
        for window in windows.values():
            self._judge(window, complete=all(readable))

    def _both(self) -> tuple[Table, Table]:
        return self._tables.main, self._tables.quarantine

    def _window(self, tp: TopicPartition, low: int, high: int) -> _Window:
        chain = self._archive[tp]
        expected = np.zeros(high - low, np.uint8)
        for found in chain.objects:
            if found.first_offset < high and found.next_offset > low and not found.damaged:
                _mark(expected, low, found, object_runs(self._store, found, low, min(high, found.next_offset)))
        for hole_first, hole_next in chain.holes:
            # What was there is not known, so rows there are neither right nor wrong. The hole is a fault already.
            expected[max(hole_first - low, 0) : max(hole_next - low, 0)] = _UNKNOWN
        return _Window(tp, chain, low, expected, np.zeros(high - low, np.uint8))

    # --- counting ---

    def _count(self, table: Table, first: int, following: int, windows: Mapping[TopicPartition, _Window]) -> bool:
        """Count a table's rows in a window. False: it could not be read to the end."""
        if table.current_snapshot() is None:
            return True
        name = self._names[id(table)]
        try:
            for batch in self._batches(table, first, following):
                self._count_batch(table is self._tables.main, name, batch, windows)
                self._listener.advance(batch.num_rows)
        except UNREADABLE as error:
            # Anything else, such as S3 being away, is no fault of the table and ends the check.
            self._report.faults.append(Fault(FaultKind.UNREADABLE, name, None, None, None, first_line(error)))
            return False
        return True

    def _batches(self, table: Table, first: int, following: int) -> Iterator[pa.RecordBatch]:
        if self._files is not None and table is self._tables.main:
            return self._files.batches(first, following)
        return read_offsets(table, first, following)

    def _count_batch(
        self, is_main: bool, name: str, batch: pa.RecordBatch, windows: Mapping[TopicPartition, _Window]
    ) -> None:
        for tp, generation, found in by_topic_partition(batch):
            offsets = found if is_main else found[~self._moved.contains(tp, found)]
            if generation != self._report.generation:
                self._foreign(name, tp, offsets, f"a row of generation {generation}")
                continue
            window = windows.get(tp)
            inside = np.zeros(len(offsets), bool)
            if window is not None:
                inside = (offsets >= window.first_offset) & (offsets < window.next_offset)
                self._add(window, offsets[inside])
            self._tally(is_main, int(inside.sum()))
            self._outside(is_main, name, tp, offsets[~inside])

    @staticmethod
    def _add(window: _Window, offsets: Int64s) -> None:
        """`offsets` are sorted."""
        places, counts = np.unique(offsets - window.first_offset, return_counts=True)
        total = window.counted[places].astype(np.int64) + counts
        window.counted[places] = np.minimum(total, _MAX_COUNT)

    def _tally(self, is_main: bool, rows: int) -> None:
        if is_main:
            self._report.figures.rows += rows
        else:
            self._report.figures.quarantine += rows

    def _outside(self, is_main: bool, name: str, tp: TopicPartition, offsets: Int64s) -> None:
        """Rows of no chain's window: of a topic-partition without one, before it, or beyond the progress."""
        limit = self._progress.get(tp)
        if not is_main:
            offsets = offsets[offsets < (limit or 0)]  # those beyond are not final
        if not len(offsets):
            return
        self._tally(is_main, len(offsets))
        if tp not in self._archive:
            self._foreign(name, tp, offsets, "a row of a topic-partition that has no chain")
            return
        beyond = offsets >= (limit or 0)
        self._foreign(name, tp, offsets[beyond], f"a row beyond the table's progress ({limit or 'none'})")
        self._foreign(name, tp, offsets[~beyond], "a row of an offset outside of the chain")

    def _foreign(self, name: str, tp: TopicPartition, offsets: Int64s, what: str) -> None:
        """Keep them until all is read: neighbours in a chain lie in different files."""
        self._report.figures.foreign += len(offsets)
        kept = offsets[: max(0, MAX_STRAYS - self._strays_kept)]
        if len(kept):
            self._strays_kept += len(kept)
            self._strays.setdefault((name, tp, what), []).append(kept)

    def finish(self) -> None:
        """List the rows that no message accounts for."""
        if self._files is not None:
            self._files.check_untold(self._report)
        for (name, tp, what), offsets in self._strays.items():
            list_faults(self._report, FaultKind.FOREIGN, name, tp, np.unique(np.concatenate(offsets)), what)

    # --- judging ---

    def _judge(self, window: _Window, *, complete: bool) -> None:
        figures, both = self._report.figures, " and ".join(self._names.values())
        first, tp = window.first_offset, window.tp
        # Where a file could not be read, nothing can be said about what is not there.
        absent = (window.expected == _PRESENT) & (window.counted == 0)
        if self._files is not None:
            self._files.take_untold(tp, first, absent, window.expected == _UNKNOWN)
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
            lambda first: f"; in the archive: {_object_of(window.chain, first)}",
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
        self._foreign(both, tp, foreign, "a row of an offset that is no message in the chain")


def _mark(expected: Counts, low: int, found: CheckedObject, all_runs: Iterator[Runs]) -> None:
    """Mark the offsets of an object's messages in a window that starts at `low`."""
    start = max(found.first_offset, low)
    end = min(found.next_offset, low + len(expected))
    # +1 where a run starts, -1 where it ends: their running sum is 1 within runs, whatever the number of runs.
    steps = np.zeros(end - start + 1, np.int8)
    for runs in all_runs:
        steps[runs[:, 0] - start] += 1
        steps[runs[:, 1] - start] -= 1
    np.copyto(expected[start - low : end - low], _PRESENT, where=np.cumsum(steps[:-1], dtype=np.int8) > 0)


def _object_of(chain: Chain, offset: int) -> str:
    return next((o.key for o in chain.objects if o.first_offset <= offset < o.next_offset), "no object")
