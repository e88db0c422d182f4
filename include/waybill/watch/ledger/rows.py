"""The tables' side of the ledger: the rows of each topic-partition in the tables of a stream.

No value of a message is read. A data file holds rows of many topic-partitions, and its manifest entry shows only how
many rows it has. So the columns topic, partition and generation are read, which take a few bytes for a thousand rows;
for the quarantine, the offset is read too, which decides whether a row is final.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from waybill.config.models import Stream
from waybill.config.names import TopicPartition
from waybill.tables.backfill.between import HalfMoved
from waybill.tables.dedup.rebuild import find_change
from waybill.tables.iceberg import DedupTables, FirstSweepStart, is_live, read_sweep_position, read_sweep_state
from waybill.tables.iceberg.file_inventory import read_inventory, read_inventory_file
from waybill.tables.iceberg.state import live_files
from waybill.tables.partition.holds import Hold
from waybill.tables.quarantine.view import View
from waybill.watch.verify.offsets import by_topic_partition, read_columns, read_offsets
from waybill.watch.verify.unique import find_swept_rows

if TYPE_CHECKING:
    Int64s = np.ndarray[Any, np.dtype[np.int64]]

_ORIGIN = ("topic", "partition", "generation")
_NO_CUTS: Int64s = np.empty(0, np.int64)

Cuts = Mapping[TopicPartition, "Int64s"]
"""For each topic-partition, the ascending offsets at which the periods after the first one begin."""


@dataclass(slots=True)
class RowCounts:
    """Rows by topic-partition, and by period if there are cuts. Rows of another generation are counted separately."""

    generation: int
    cuts: Cuts | None = None
    rows: Counter[TopicPartition] = field(default_factory=Counter)
    periods: Counter[tuple[int, TopicPartition]] = field(default_factory=Counter)
    """The same rows by the number of their period; empty without cuts."""
    foreign: Counter[tuple[TopicPartition, int]] = field(default_factory=Counter)
    """Rows of another generation, with the generation."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that counting needs. Without cuts, offsets are not read."""
        return _ORIGIN if self.cuts is None else (*_ORIGIN, "offset")

    def add(self, tp: TopicPartition, generation: int, rows: int) -> None:
        """Count rows whose offsets are not known, so that they are in no period."""
        if generation == self.generation:
            self.rows[tp] += rows
        else:
            self.foreign[tp, generation] += rows

    def add_offsets(self, tp: TopicPartition, generation: int, offsets: Int64s) -> None:
        self.add(tp, generation, len(offsets))
        if self.cuts is not None and generation == self.generation:
            numbers = np.searchsorted(self.cuts.get(tp, _NO_CUTS), offsets, side="right")
            for period, rows in enumerate(np.bincount(numbers).tolist()):
                self.periods[period, tp] += rows

    def add_batches(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Count the rows of batches that have at least `columns`."""
        for batch in batches:
            if self.cuts is not None:
                for tp, generation, offsets in by_topic_partition(batch):
                    self.add_offsets(tp, generation, offsets)
                continue
            groups = pa.Table.from_batches([batch]).group_by(list(_ORIGIN)).aggregate([([], "count_all")])
            for group in groups.to_pylist():
                tp = TopicPartition(group["topic"], group["partition"])
                self.add(tp, group["generation"], group["count_all"])

    def subtract(self, removed: RowCounts) -> None:
        """Subtract the rows of the same generation."""
        self.rows.subtract(removed.rows)
        self.periods.subtract(removed.periods)

    def of_period(self, period: int) -> RowCounts:
        """Return the rows of one period."""
        found = {tp: rows for (number, tp), rows in self.periods.items() if number == period}
        return RowCounts(self.generation, rows=Counter(found))


# --- the main table and the quarantine --------------------------------------------------------------------------------


def count_main(main: Table, stream: Stream, cuts: Cuts | None = None) -> RowCounts:
    """Count the rows of the loaded main table; with `sink: files`, the rows of the files that it lists."""
    counts = RowCounts(stream.generation, cuts)
    if main.current_snapshot() is None:
        return counts
    if stream.sink.is_files:
        for entry in read_inventory(main):
            counts.add(entry.tp, stream.generation, entry.rows)
    else:
        counts.add_batches(read_columns(main, counts.columns))
    return counts


def count_quarantine(view: View, stream: Stream, half_moved: HalfMoved | None, cuts: Cuts | None = None) -> RowCounts:
    """Count the final rows of the loaded quarantine.

    `half_moved`: a change of a backfill that only the quarantine has so far. Its range is counted as it was before the
    change.
    """
    counts, table = RowCounts(stream.generation, cuts), view.tables.quarantine
    if table.current_snapshot() is None:
        return counts

    def add(batches: Iterable[pa.RecordBatch], in_range: bool | None) -> None:
        for batch in batches:
            rows = batch
            if half_moved is not None:
                mask = half_moved.ranges.mask(batch)
                rows = batch.filter(pa.array(mask if in_range else ~mask))
            for tp, generation, offsets in by_topic_partition(rows):
                final = (offsets < view.progress.get(tp, 0)) & ~view.moved.contains(tp, offsets)
                counts.add_offsets(tp, generation, offsets[final])

    add(read_offsets(table, 0, (1 << 63) - 1), in_range=False)
    if half_moved is not None:
        add(read_offsets(table, 0, (1 << 63) - 1, snapshot_id=half_moved.snapshot_id), in_range=True)
    return counts


def count_lost(view: View, lost: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> Counter[TopicPartition]:
    """Count the rows of both tables within ranges of offsets whose backup objects were lost."""
    counts: Counter[TopicPartition] = Counter()
    for first, following in {found for ranges in lost.values() for found in ranges}:
        for table in (view.tables.main, view.tables.quarantine):
            if table.current_snapshot() is None:
                continue
            for batch in read_offsets(table, first, following):
                for tp, _, offsets in by_topic_partition(batch):
                    if (first, following) in lost.get(tp, ()):
                        final = offsets < view.progress.get(tp, 0)
                        counts[tp] += int((final & ~view.moved.contains(tp, offsets)).sum())
    return counts


def count_held(hold: Hold, stream: Stream, cuts: Cuts | None = None) -> RowCounts:
    """Count the staged rows and quarantined messages of a held plan."""
    counts, main = RowCounts(stream.generation, cuts), hold.tables.main
    if stream.sink.is_files:
        for file in hold.staged.table_files:
            for entry in read_inventory_file(main.io, file.file_path):
                counts.add(entry.tp, stream.generation, entry.rows)
    else:
        counts.add_batches(_read_files(main, hold.staged.table_files, counts.columns))
    counts.add_batches(_read_files(hold.tables.quarantine, hold.staged.quarantine_files, counts.columns))
    return counts


def _read_files(table: Table, files: Iterable[DataFile], columns: Sequence[str]) -> Iterable[pa.RecordBatch]:
    for file in files:
        with table.io.new_input(file.file_path).open() as source:
            yield from pq.ParquetFile(source).iter_batches(columns=list(columns))


# --- the tables of dedup ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SweptCounts:
    """Rows of the tables that sweeps fill, and the rows of the main table that were not swept yet."""

    unique: RowCounts
    duplicates: RowCounts
    unswept: RowCounts
    beginning: FirstSweepStart | None
    """The rows that the first sweep left out; None: no rows."""

    def of_period(self, period: int) -> SweptCounts:
        """Return the rows of one period."""
        unique, duplicates, unswept = (each.of_period(period) for each in (self.unique, self.duplicates, self.unswept))
        return SweptCounts(unique, duplicates, unswept, self.beginning)


def count_swept(main: Table, tables: DedupTables, stream: Stream, cuts: Cuts | None = None) -> SweptCounts | str:
    """Count the rows of the tables of dedup, which were loaded before `main`. Return a text if they cannot be compared.

    Raises `ProgressLost` or `SweepHistoryLost` when it is unknown which rows were swept.
    """
    if not is_live(main.metadata, stream.generation):
        return "they follow the live generation"
    change = find_change(main, tables)
    if change is not None:
        return f"{change} since the last sweep, and they show the rows from before until sweeps have rebuilt them"
    state = read_sweep_state(tables.unique.metadata, ".".join(tables.unique.name()))
    ahead = read_sweep_position(tables.duplicates.metadata, ".".join(tables.duplicates.name()))
    if state.swept is None:
        return "there was no dedup sweep yet"
    if ahead is not None and ahead.sequence > state.swept.sequence:
        return "a sweep is being committed, or was interrupted: the next one ends it"
    unique, duplicates = RowCounts(stream.generation, cuts), RowCounts(stream.generation, cuts)
    for counts, table in ((unique, tables.unique), (duplicates, tables.duplicates)):
        snapshot = table.current_snapshot()
        if snapshot is not None:
            counts.add_batches(read_columns(table, counts.columns, snapshot_id=snapshot.snapshot_id))
    source = find_swept_rows(main, state.swept)
    unswept = rows_since(main, source.snapshot, source.without, RowCounts(stream.generation, cuts))
    return SweptCounts(unique, duplicates, unswept, state.beginning)


def rows_since(main: Table, swept: Snapshot, without: Collection[str], counted: RowCounts) -> RowCounts:
    """Add to `counted` the rows that `main` has and the swept snapshot did not have, and return `counted`.

    Files that are in both snapshots are not read.

    A compaction moves swept rows to new files, and appends no row: it adds and removes the same number.
    """
    current = main.current_snapshot()
    before = {file.file_path for file in live_files(main, swept)} - set(without)
    after = {file.file_path for file in live_files(main, current)}
    removed = RowCounts(counted.generation, counted.cuts)
    if current is not None and after - before:
        snapshot = current.snapshot_id
        counted.add_batches(read_columns(main, counted.columns, snapshot_id=snapshot, without=before))
    if before - after:
        left = {*after, *without}
        removed.add_batches(read_columns(main, removed.columns, snapshot_id=swept.snapshot_id, without=left))
    counted.subtract(removed)
    return counted
