"""Read the offsets of a table's rows with bounded memory, and report faults as ranges of offsets.

All topic-partitions are checked together, window by window of offsets, because the data files of a table hold rows of
many topic-partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.tables.iceberg import translate_damage_errors
from waybill.watch.verify.verify_report import FaultKind, VerifyFault, VerifyReport

if TYPE_CHECKING:
    Int64s = np.ndarray[Any, np.dtype[np.int64]]

LAST_OFFSET = (1 << 63) - 1

ROWS_AT_A_TIME = 1 << 20
"""Rows that are read from files at the same time: some 50 bytes each. A file with more rows is read by itself."""

MAX_FAULTS = 20
"""The number of ranges that are listed one by one for a kind and topic-partition in a window. Figures count all."""

MAX_FOREIGN_OFFSETS = 1 << 20
"""The number of offsets of foreign rows that are kept in memory, to be listed as ranges at the end."""

ALL_ROWS = AlwaysTrue()
_COLUMNS = ("topic", "partition", "offset", "generation")


def offset_windows(ranges: Iterable[tuple[int, int]], budget: int) -> Iterator[tuple[int, int]]:
    """Divide all offsets into windows that each contain at most about `budget` offsets of all `ranges` together.

    The windows are in order, do not overlap and cover every offset: the first starts at 0, and the last ends at the
    largest int64. A window contains at least one offset of each range that it meets.
    """
    events: dict[int, int] = {}
    for first, following in ranges:
        if first < following:
            events[first] = events.get(first, 0) + 1
            events[following] = events.get(following, 0) - 1
    start, room, active = 0, budget, 0
    positions = sorted(events)
    for position, until in pairwise(positions):
        active += events[position]
        while active and (until - position) * active > room:
            position += max(room // active, 0 if room < budget else 1)
            yield start, position
            start, room = position, budget
        room -= (until - position) * active
    yield start, LAST_OFFSET


def ranges_of(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Merge ascending offsets into ranges `[first, next)`."""
    first = following = None
    for offset in offsets:
        if first is None or offset != following:
            if first is not None and following is not None:
                yield first, following
            first = offset
        following = offset + 1
    if first is not None and following is not None:
        yield first, following


def total_records(snapshot: Snapshot | None) -> int:
    """Return the number of rows in a snapshot's summary."""
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary.additional_properties.get("total-records", "0"))


def read_offsets(
    table: Table, first: int, following: int, *, snapshot_id: int | None = None, without: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield topic, partition, offset and generation of the rows with offsets in `[first, following)`.

    Reads the current snapshot or the given one, except the data files in `without`.
    """
    return read_columns(table, _COLUMNS, within("offset", first, following), snapshot_id=snapshot_id, without=without)


def read_columns(
    table: Table,
    columns: tuple[str, ...],
    row_filter: str | BooleanExpression = ALL_ROWS,
    *,
    snapshot_id: int | None = None,
    without: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield columns of a table, reading a limited number of files at a time.

    PyIceberg's own batch reader gives all files of a scan to its threads at once, and buffers without limit.

    Raises `DamagedFile` when a file is not valid Parquet.
    """
    scan = table.scan(row_filter=row_filter, selected_fields=columns, snapshot_id=snapshot_id)
    reader = ArrowScan(scan.table_metadata, scan.io, scan.projection(), scan.row_filter)
    for group in _file_groups(task for task in scan.plan_files() if task.file.file_path not in without):
        with translate_damage_errors(".".join(table.name()), _paths(group)):
            yield from reader.to_record_batches(group)


def within(column: str, first: int, following: int) -> str | BooleanExpression:
    """Return the row filter of a window. A window without limits has no filter, so that no row is compared with it."""
    if first == 0 and following == LAST_OFFSET:
        return ALL_ROWS
    return f"{column} >= {first} and {column} < {following}"


def _paths(group: Sequence[FileScanTask]) -> str:
    """Describe the files of a group for errors. Which one is being read is unknown."""
    first, last = group[0].file.file_path, group[-1].file.file_path
    return first if len(group) == 1 else f"(one of the {len(group):,} files from {first} to {last})"


def _file_groups(files: Iterable[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """Group files so that each group has at most `ROWS_AT_A_TIME` rows. A larger file is a group by itself."""
    group: list[FileScanTask] = []
    rows = 0
    for file in files:
        if group and rows + file.file.record_count > ROWS_AT_A_TIME:
            yield group
            group, rows = [], 0
        group.append(file)
        rows += file.file.record_count
    if group:
        yield group


def by_topic_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, int, Int64s]]:
    """Yield topic-partition, generation and sorted offsets of the rows of a batch."""
    topics = batch.column("topic").dictionary_encode()
    topic, partition, generation, offset = (
        column.to_numpy(zero_copy_only=False).astype(np.int64)
        for column in (topics.indices, batch.column("partition"), batch.column("generation"), batch.column("offset"))
    )
    order = np.lexsort((offset, generation, partition, topic))
    topic, partition, generation, offset = topic[order], partition[order], generation[order], offset[order]
    changes = (np.diff(topic) != 0) | (np.diff(partition) != 0) | (np.diff(generation) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(offset)]
    for start, end in pairwise(bounds):
        if start < end:
            tp = TopicPartition(topics.dictionary[int(topic[start])].as_py(), int(partition[start]))
            yield tp, int(generation[start]), offset[start:end]


def list_faults(
    report: VerifyReport,
    kind: FaultKind,
    where: str,
    tp: TopicPartition,
    offsets: Iterable[Any],
    what: str,
    origin: Callable[[int], str] = lambda _: "",
) -> None:
    """Add faults for ascending offsets to the report, one for each range of consecutive offsets.

    `origin` returns text to append to `where` for a range that starts at the given offset. Beyond `MAX_FAULTS` ranges,
    one fault sums up the others.
    """
    ranges = list(ranges_of(int(offset) for offset in offsets))
    for first, following in ranges[:MAX_FAULTS]:
        report.add_fault(VerifyFault(kind, f"{where}{origin(first)}", tp, first, following, what))
    if len(ranges) > MAX_FAULTS:
        more = ranges[MAX_FAULTS:]
        offset_count = sum(following - first for first, following in more)
        rest = f"{what}; {counted(len(more), 'more such range')} with {counted(offset_count, 'offset')} in between"
        report.add_fault(VerifyFault(kind, where, tp, more[0][0], more[-1][1], rest))
