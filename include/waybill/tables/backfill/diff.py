"""The diff of a backfill: a comparison of its files with the rows that the table had when the branch was built.

A task for each part of the range, in windows of offsets, so that memory is bounded. Each task writes its differences
as a Parquet file `diff/<task>.parquet` below the backfill's prefix, and its figures beside it. All of them together are
the table of differences; `diff/summary.json` has the sums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.base import failpoints
from waybill.base.documents import Document, spaced
from waybill.config.models import Config, Storage
from waybill.config.names import backfill_diff_key
from waybill.services.store import Store
from waybill.tables.backfill.compare import DIFF_SCHEMA, ChangeKind, Comparison, WindowRows, compare
from waybill.tables.backfill.cuts import read_file
from waybill.tables.backfill.ranges import OffsetRanges, Placement
from waybill.tables.backfill.request import AnyRequest
from waybill.tables.backfill.work import TaskRunner
from waybill.tables.iceberg import StreamTables, task_io
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.uploads import scratch_directory

logger = logging.getLogger(__name__)

_DOCUMENT = Document(dump=spaced)
WINDOW_OFFSETS = 1 << 19
"""Offsets that are compared at a time."""
WINDOWS_OF_PART = 4
"""The number of windows that a task compares, if the backfill itself has no tasks."""
_SUMMARY = "summary.json"
_ARCHIVED = ("topic", "partition", "offset", "kafka_timestamp", "key", "headers", "value", "generation")
_PLACE = ("topic", "partition", "offset", "kafka_timestamp")
_SHOWN_HOURS = 24


@dataclass(frozen=True, slots=True)
class Diff:
    """The sums of a backfill's diff."""

    comparison: Comparison
    table: str
    """Location of the Parquet files with all differences."""

    def document(self) -> dict[str, Any]:
        """Return the diff for a JSON document."""
        return {**self.comparison.document(), "table": self.table}

    def lines(self) -> list[str]:
        """Return the diff as lines for people."""
        found = self.comparison
        lines = [f"diff: {found.unchanged:,} rows unchanged"]
        for kind in ChangeKind:
            if found.messages[str(kind)]:
                lines.append(f"  {kind.replace('_', ' ')}: {found.messages[str(kind)]:,} messages")
                lines += [f"    {example}" for example in found.examples.get(str(kind), ())]
        for column, count in found.columns.most_common():
            lines.append(f"  column {column}: {count:,} changed")
            lines += [f"    {example}" for example in found.examples.get(column, ())]
        for hour, counts in sorted(found.hours.items())[:_SHOWN_HOURS]:
            lines.append(f"  {hour}: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())))
        if len(found.hours) > _SHOWN_HOURS:
            lines.append(f"  and {len(found.hours) - _SHOWN_HOURS} more hours")
        return [*lines, f"  all differences: {self.table}"]


def find_diff(store: Store, request: AnyRequest) -> Diff | None:
    """Return the diff of a backfill, or None if it was not made yet."""
    key = _key(store, request, _SUMMARY)
    found = store.read_if_exists(key)
    return None if found is None else Diff(_DOCUMENT.parse(key, found, Comparison.parse), _location(store, request))


def make_diff(
    config: Config,
    store: Store,
    request: AnyRequest,
    tables: StreamTables,
    old: tuple[Files, Files],
    parts: Sequence[DiffPart],
    for_each: TaskRunner,
) -> Diff:
    """Compare the files `old` of table and quarantine with those of the parts, and store the diff.

    A retry must be called with the same parts. Raises `FileNotFoundError` when a file no longer exists because its
    snapshot has expired, `DamagedFile`, `ScratchUnusable`.
    """
    layouts = (TableLayout.of(tables.main), TableLayout.of(tables.quarantine))
    tasks = [
        _DiffTask(
            config.storage,
            config.catalog.connection,
            layouts,
            number,
            tuple(
                (window, tuple(each.meeting(window) for each in (*old, *part.new()))) for window in windows(part.ranges)
            ),
            _key(store, request, f"{number:06d}"),
        )
        for number, part in enumerate(parts)
        if not store.exists(_key(store, request, f"{number:06d}.json"))
    ]
    for_each(_compare_task, tasks)
    total = Comparison()
    for number in range(len(parts)):
        key = _key(store, request, f"{number:06d}.json")
        total.add(_DOCUMENT.parse(key, store.read(key), Comparison.parse))
    store.replace(_key(store, request, _SUMMARY), _DOCUMENT.write(total.document()), "application/json")
    return Diff(total, _location(store, request))


def _key(store: Store, request: AnyRequest, name: str) -> str:
    return backfill_diff_key(store.prefix, request.stream, request.id, name)


def _location(store: Store, request: AnyRequest) -> str:
    return f"s3://{store.bucket}/{_key(store, request, '*.parquet')}"


# --- which files a window reads ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Files:
    """Data files of one table with their offsets, to find those that a window needs."""

    table: Table
    files: Sequence[DataFile]
    low: np.ndarray[Any, np.dtype[np.int64]]
    high: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, table: Table, files: Sequence[DataFile]) -> Files:
        """Return these files of a table."""
        field = table.schema().find_field("offset").field_id
        bounds = [
            [int.from_bytes(each[field], "little") if each and field in each else default for each, default in sides]
            for file in files
            for sides in [((file.lower_bounds, 0), (file.upper_bounds, (1 << 63) - 1))]
        ]
        array = np.array(bounds, np.int64).reshape(-1, 2)
        return cls(table, files, array[:, 0], array[:, 1])

    def meeting(self, window: OffsetRanges) -> tuple[str, ...]:
        """Return the paths of the files that may have rows of the window."""
        first = min(first for first, _ in window.by_tp.values())
        end = max(end for _, end in window.by_tp.values())
        near = np.flatnonzero((self.low < end) & (self.high >= first))
        schema = self.table.schema()
        met = (self.files[at] for at in near.tolist())
        return tuple(file.file_path for file in met if window.place(file, schema) is not Placement.OUTSIDE)


@dataclass(frozen=True, slots=True)
class DiffPart:
    """The input of one task of the comparison."""

    ranges: OffsetRanges
    new: Callable[[], tuple[Files, Files]]
    """Returns the files of table and quarantine after the change."""


def windows(ranges: OffsetRanges) -> Iterator[OffsetRanges]:
    """Cut ranges into windows of at most `WINDOW_OFFSETS`."""
    window: dict[Any, tuple[int, int]] = {}
    room = WINDOW_OFFSETS
    for tp, (first, end) in ranges:
        while first < end:
            upto = min(end, first + room)
            window[tp] = (first, upto)
            room -= upto - first
            first = upto
            if not room:
                yield OffsetRanges(window)
                window, room = {}, WINDOW_OFFSETS
    if window:
        yield OffsetRanges(window)


# --- on an executor ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _DiffTask:
    """The comparison of the range that one task of a backfill read."""

    storage: Storage
    catalog_connection: str
    layouts: tuple[TableLayout, TableLayout]
    """The layouts of the table and the quarantine."""
    number: int
    windows: Sequence[tuple[OffsetRanges, tuple[tuple[str, ...], ...]]]
    """For each window, the files of table and quarantine before the change, and those after it."""
    key: str
    """The object key of the results, without extension."""


def _compare_task(task: _DiffTask) -> None:
    found = Comparison()
    columns = [field.name for field in task.layouts[0].schema.fields if field.name not in _ARCHIVED]
    with scratch_directory() as scratch, Store.of(task.storage) as store:
        local = scratch / f"{task.number}.parquet"
        with pq.ParquetWriter(local, DIFF_SCHEMA, compression="zstd") as writer:
            for window, paths in task.windows:
                table, quarantine, new_table, new_quarantine = (
                    _rows(task, number % 2, window, each, columns) for number, each in enumerate(paths)
                )
                for batch in compare((table, quarantine), (new_table, new_quarantine), columns, found):
                    writer.write_batch(batch)
        failpoints.reach("backfill.compared")
        _store(store, task, local, found)


def _rows(
    task: _DiffTask, table: int, window: OffsetRanges, paths: Sequence[str], columns: Sequence[str]
) -> WindowRows:
    layout = task.layouts[table]
    io = task_io(task.storage, task.catalog_connection, layout.data_location)
    names = [*_PLACE, *(("reason", "parser") if table else columns)]
    schema = layout.arrow_schema(pa.schema([(name, pa.null()) for name in names]))
    batches = (batch for path in paths for batch in read_file(io, layout, path, names))
    return WindowRows(window, batches, schema.remove_metadata())


def _store(store: Store, task: _DiffTask, local: Path, found: Comparison) -> None:
    # The figures are written last: without them, the task is executed again, with the same result.
    store.replace(f"{task.key}.parquet", local.read_bytes())
    store.replace(f"{task.key}.json", _DOCUMENT.write(found.document()), "application/json")
