"""Offsets in windows: how all topic-partitions are gone through together in bounded memory.

The offsets of a table's rows, read some files at a time, and how faults about offsets are listed.
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

from waybill.names import TopicPartition
from waybill.tables import damage_named
from waybill.verify.report import Fault, FaultKind, Report

if TYPE_CHECKING:
    Int64s = np.ndarray[Any, np.dtype[np.int64]]

__all__ = [
    "ALL_ROWS",
    "LAST_OFFSET",
    "MAX_STRAYS",
    "by_topic_partition",
    "list_faults",
    "offset_windows",
    "ranges_of",
    "read_columns",
    "read_offsets",
    "total_records",
    "within",
]

LAST_OFFSET = (1 << 63) - 1


def offset_windows(ranges: Iterable[tuple[int, int]], budget: int) -> Iterator[tuple[int, int]]:
    """Cut the axis of offsets into windows that hold at most about `budget` offsets of all `ranges` together.

    The windows are in order, do not overlap and leave nothing out: the first starts at 0 and the last has no end but
    that of int64. A window holds a single offset of each range at least.
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
    """Ascending offsets as ranges `[first, next)`."""
    first = following = None
    for offset in offsets:
        if first is None or offset != following:
            if first is not None and following is not None:
                yield first, following
            first = offset
        following = offset + 1
    if first is not None and following is not None:
        yield first, following


ROWS_AT_A_TIME = 1 << 20
"""Rows that are read from files at the same time: some 50 bytes each. A file with more is read by itself."""

MAX_FAULTS = 20
"""Faults that are listed by kind and topic-partition in a window; figures count all."""

MAX_STRAYS = 1 << 20
"""Offsets of foreign rows that are kept to be listed as ranges."""

ALL_ROWS = AlwaysTrue()
_COLUMNS = ("topic", "partition", "offset", "generation")


def total_records(snapshot: Snapshot | None) -> int:
    """How many rows a snapshot has, as it says itself."""
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary.additional_properties.get("total-records", "0"))


def read_offsets(
    table: Table, first: int, following: int, *, snapshot_id: int | None = None, without: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Topic, partition, offset and generation of the rows with offsets in `[first, following)`, some files at a time.

    Of the current snapshot, or of another one; `without` these data files.
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
    """Columns of a table, some files at a time.

    Raises `DamagedFile` when a file is not what was written.

    PyIceberg's own reader of batches hands all files of a scan to its threads, and keeps whatever they are ahead.
    """
    scan = table.scan(row_filter=row_filter, selected_fields=columns, snapshot_id=snapshot_id)
    reader = ArrowScan(scan.table_metadata, scan.io, scan.projection(), scan.row_filter)
    for group in _file_groups(task for task in scan.plan_files() if task.file.file_path not in without):
        with damage_named(".".join(table.name()), _paths(group)):
            yield from reader.to_record_batches(group)


def within(column: str, first: int, following: int) -> str | BooleanExpression:
    """The rows of a window. Without limits there is no condition: then no file's rows are compared with it."""
    if first == 0 and following == LAST_OFFSET:
        return ALL_ROWS
    return f"{column} >= {first} and {column} < {following}"


def _paths(group: Sequence[FileScanTask]) -> str:
    """Which files these are: it is not known which of them is being read."""
    first, last = group[0].file.file_path, group[-1].file.file_path
    return first if len(group) == 1 else f"(one of the {len(group):,} from {first} to {last})"


def _file_groups(files: Iterable[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """Files of together `ROWS_AT_A_TIME` rows; a larger one by itself."""
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
    """The rows of a batch by topic-partition and generation, their offsets sorted."""
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
    report: Report,
    kind: FaultKind,
    where: str,
    tp: TopicPartition,
    offsets: Iterable[Any],
    what: str,
    origin: Callable[[int], str] = lambda _: "",
) -> None:
    """Put ascending offsets into the report, as ranges; `origin`: what to add to `where` for one that starts there."""
    ranges = list(ranges_of(int(offset) for offset in offsets))
    for first, following in ranges[:MAX_FAULTS]:
        report.faults.append(Fault(kind, f"{where}{origin(first)}", tp, first, following, what))
    if len(ranges) > MAX_FAULTS:
        more = ranges[MAX_FAULTS:]
        rest = f"{what}; {len(more):,} such ranges, {sum(b - a for a, b in more):,} offsets, between these"
        report.faults.append(Fault(kind, where, tp, more[0][0], more[-1][1], rest))
