"""Write rows to data files: one file for each partition of the table, in bounded memory for any number of partitions.

Rows are buffered until they take `memory_bytes`. When the buffer is full and more rows come, the rows of each partition
that fill a large part of a row group are written to the partition's file. The rows of the other partitions are spilled
to the scratch disk: a year of history by day would otherwise become one small row group, or one small file, for each
day each time the buffer is full. At the end each partition's file gets the spilled rows of that partition. So a waiting
partition needs a position in a spill file, and no memory.

The new messages of one hour belong to few partitions. Then the buffer stays at the size of a row group: the first use
of memory costs a task more than the work on the rows in it (docs/decisions/0011).

Rows that arrive sorted, as those of another table's file do up to the end of its row group, are written as they
arrived: to make one contiguous copy of them and sort it takes half as long as to decode or to encode them
(docs/decisions/0015). Where the sort order of the buffered rows ends, a row group ends, unless it would be small.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.tables.staging.grouping import PartitionGrouping, PartitionSlice, PartitionValue
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.uploads import Uploads, scratch_directory

if TYPE_CHECKING:
    _Int64s = np.ndarray[Any, np.dtype[np.int64]]
    _Order = np.ndarray[Any, np.dtype[np.intp]]

ROW_GROUP_BYTES = 64 << 20
"""Size of the rows of one row group before encoding."""

_DICTIONARY_COLUMNS = ("topic", "partition", "generation", "reason", "parser", "quarantined_at")
_HEADER_KEYS = "headers.list.element.key"
_MAX_BUFFER_BYTES = 1 << 30  # Arrow's binary columns have int32 offsets, so one chunk cannot hold more
_FULL_FRACTION = 8
_MIN_TIME_US = -(1 << 63)


def write_data_files(
    table: Table, rows: pa.Schema, batches: Iterable[pa.RecordBatch], *, memory_bytes: int, name: str
) -> list[DataFile]:
    """Write batches with the schema `rows` to data files of `table`, whose names begin with `name`, and upload them.

    No snapshot references the files yet. After any error, also in `batches`, the files are deleted again.

    Raises `ScratchUnusable` when the disk is full, `OSError` when S3 cannot be reached, and what `batches` raises.
    """
    with scratch_directory() as scratch, closing(Uploads(table.io)) as uploads:
        writer = PartitionedWriter(
            TableLayout.of(table), rows, memory_bytes=memory_bytes, scratch=scratch, uploads=uploads, name=name
        )
        try:
            for batch in batches:
                writer.add(batch)
            files = writer.finish()
            uploads.wait()
        except BaseException:
            writer.abandon()
            uploads.discard()
            raise
    return files


class PartitionedWriter:
    """Write the rows of one task to data files of one table, whose names begin with `name`.

    The caller ends it with `finish` or `abandon`.
    """

    def __init__(
        self,
        layout: TableLayout,
        rows: pa.Schema,
        *,
        memory_bytes: int,
        scratch: Path,
        uploads: Uploads,
        name: str,
    ) -> None:
        self._layout = layout
        self._schema = layout.arrow_schema(rows)
        self._grouping = PartitionGrouping(layout.spec, layout.schema) if layout.spec.fields else None
        self._memory_bytes = min(memory_bytes, _MAX_BUFFER_BYTES)
        self._limit_bytes = min(self._memory_bytes, ROW_GROUP_BYTES)
        self._full_bytes = min(self._memory_bytes // _FULL_FRACTION, ROW_GROUP_BYTES)
        self._least_sorted_bytes = ROW_GROUP_BYTES // 2
        # A source row group arrives in batches: take its last batch too, instead of leaving a small rest.
        self._sorted_slack_bytes = ROW_GROUP_BYTES // 4
        self._scratch = scratch
        self._uploads = uploads
        self._name = name
        self._buffer: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._buffer_sorted_until_us: int | None = _MIN_TIME_US
        """Time of the last buffered row; None if the buffer is not sorted by time."""
        self._open: dict[PartitionValue, _OpenFile] = {}
        self._spills: list[_Spill] = []
        self._finished: list[DataFile] = []
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Buffer rows, and write rows once the buffer is full."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        is_in_order = self._buffer_sorted_until_us is not None
        if is_in_order and self._buffered_bytes >= self._least_sorted_bytes and self._sorted_until_us(rows) is None:
            self._flush_sorted()
        self._append_to_buffer(rows)
        slack_bytes = 0 if self._buffer_sorted_until_us is None else self._sorted_slack_bytes
        if self._buffered_bytes >= min(self._limit_bytes + slack_bytes, self._memory_bytes):
            self._flush_full_partitions()

    def finish(self) -> list[DataFile]:
        """Write all remaining rows and return the data files. They are uploaded when `Uploads.wait` returns."""
        last = {group.slice.value: group for group in self._take_buffer()}
        for spill in self._spills:
            spill.seal()
        partitions = set(last).union(self._open, *(spill.partitions for spill in self._spills))
        for partition in sorted(partitions, key=_nulls_first):
            for rows in self._remaining_pieces(partition, last.pop(partition, None)):
                self._write(partition, rows)
            self._close(partition)
        return self._finished

    def abandon(self) -> None:
        """Close the open files without finishing them."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def _append_to_buffer(self, rows: pa.RecordBatch) -> None:
        self._buffer_sorted_until_us = self._sorted_until_us(rows)
        self._buffer.append(rows)
        self._buffered_bytes += rows.nbytes

    def _sorted_until_us(self, rows: pa.RecordBatch) -> int | None:
        """Return the time of the last of `rows` if buffer and rows together are sorted by time, else None."""
        if self._grouping is None or self._buffer_sorted_until_us is None:
            return None
        times = self._grouping.times(rows)
        if times[0] < self._buffer_sorted_until_us or np.any(times[1:] < times[:-1]):
            return None
        return int(times[-1])

    def _flush_sorted(self) -> None:
        """Write the sorted buffer as one row group for each partition; keep small groups in the buffer."""
        groups = self._take_buffer()
        self._keep_in_buffer(groups, self._write_full_groups(groups, self._least_sorted_bytes))

    def _flush_full_partitions(self) -> None:
        """Write partitions with enough rows. Keep the others in the buffer if it may grow, else spill them."""
        buffered_bytes = self._buffered_bytes
        groups = self._take_buffer()
        rest = self._write_full_groups(groups, self._full_bytes)
        if self._limit_bytes == self._memory_bytes:
            self._spill(rest)
            return
        written_bytes = sum(group.size_bytes for group in groups) - sum(group.size_bytes for group in rest)
        if 2 * written_bytes < buffered_bytes:
            self._limit_bytes = min(2 * self._limit_bytes, self._memory_bytes)
        self._keep_in_buffer(groups, rest)

    def _write_full_groups(self, groups: list[_PartitionRows], full_bytes: int) -> list[_PartitionRows]:
        """Write the groups of at least `full_bytes`; return the others."""
        rest = []
        for group in groups:
            if group.size_bytes < full_bytes:
                rest.append(group)
                continue
            for piece in group.pieces(ROW_GROUP_BYTES):
                self._write(group.slice.value, piece)
        return rest

    def _keep_in_buffer(self, groups: list[_PartitionRows], rest: list[_PartitionRows]) -> None:
        """Put the groups `rest` back into the buffer; without a copy if that is all of them."""
        for table in [group.compact_copy() for group in rest] if len(rest) < len(groups) else [groups[0].table]:
            for batch in table.to_batches():
                self._append_to_buffer(batch)

    def _spill(self, groups: list[_PartitionRows]) -> None:
        spill = None
        for group in groups:
            if spill is None:
                spill = _Spill(self._scratch / f"{self._new_name()}.arrow", self._schema)
                self._spills.append(spill)
            spill.write(group.slice.value, group.rows())

    def _remaining_pieces(self, partition: PartitionValue, last: _PartitionRows | None) -> Iterator[pa.Table]:
        """Yield the rows of a partition that are not in its file yet, in pieces of about a row group."""
        pieces: list[pa.Table] = []
        collected_bytes = 0
        spilled = (spill.take(partition) for spill in self._spills)
        for table in [pa.Table.from_batches([b]) for b in spilled if b is not None]:
            pieces.append(table)
            collected_bytes += table.nbytes
            if collected_bytes >= ROW_GROUP_BYTES:
                yield self._sort_by_time(pieces)
                pieces, collected_bytes = [], 0
        if last is not None and collected_bytes + last.size_bytes <= ROW_GROUP_BYTES:
            pieces.append(last.rows())
            last = None
        if pieces:
            yield self._sort_by_time(pieces)
        if last is not None:
            yield from last.pieces(ROW_GROUP_BYTES)

    def _sort_by_time(self, pieces: list[pa.Table]) -> pa.Table:
        if len(pieces) == 1:
            return pieces[0]
        table = pa.concat_tables(pieces).combine_chunks()
        times = self._times(table)
        return table if times is None else table.take(pa.array(np.argsort(times, kind="stable")))

    def _take_buffer(self) -> list[_PartitionRows]:
        """Empty the buffer and return its rows by partition, each sorted by event time."""
        if not self._buffer:
            return []
        buffered_bytes, self._buffered_bytes = self._buffered_bytes, 0
        self._buffer_sorted_until_us = _MIN_TIME_US
        columns = [[batch.column(name) for batch in self._buffer] for name in self._schema.names]
        self._buffer.clear()
        order, slices = self._group(self._as_chunked_table(columns))
        table = self._as_chunked_table(columns) if order is None else self._as_contiguous_table(columns)
        row_bytes = buffered_bytes / table.num_rows
        return [_PartitionRows(each, table, order, row_bytes) for each in slices]

    def _group(self, table: pa.Table) -> tuple[_Order | None, Iterable[PartitionSlice]]:
        return (
            (None, [PartitionSlice((), 0, table.num_rows)]) if self._grouping is None else self._grouping.group(table)
        )

    def _as_chunked_table(self, columns: list[list[pa.Array]]) -> pa.Table:
        """Return the buffered rows as one table, without a copy."""
        whole = [pa.chunked_array(chunks, field.type) for chunks, field in zip(columns, self._schema, strict=True)]
        return pa.Table.from_arrays(whole, schema=self._schema)

    def _as_contiguous_table(self, columns: list[list[pa.Array]]) -> pa.Table:
        """Return the rows with one chunk for each column, since `take` is slow over many chunks.

        Releases each source column before it copies the next, so that only one column is in memory twice.
        """
        whole = []
        while columns:
            whole.append(pa.concat_arrays(columns.pop(0)))
        return pa.Table.from_arrays(whole, schema=self._schema)

    def _times(self, table: pa.Table) -> _Int64s | None:
        return None if self._grouping is None else self._grouping.times(table)

    def _new_name(self) -> str:
        # The name is unique, so that a slower rival never overwrites a committed file. It starts with the plan, for
        # people.
        return f"{self._name}-{uuid.uuid4().hex}"

    def _write(self, partition: PartitionValue, rows: pa.Table) -> None:
        file = self._open.get(partition)
        if file is None:
            file = _OpenFile(self._scratch / f"{self._new_name()}.parquet", self._schema)
            self._open[partition] = file
        file.write(rows, self._times(rows))

    def _close(self, partition: PartitionValue) -> None:
        file = self._open.pop(partition)
        metadata = file.close()
        path, size = self._layout.new_path(partition, file.local.stem), file.local.stat().st_size
        self._finished.append(
            self._layout.data_file(path, size, metadata, partition=partition, is_sorted=file.is_sorted)
        )
        self._uploads.send(file.local, path)


class _OpenFile:
    """A Parquet file in the scratch directory that gets more row groups."""

    def __init__(self, local: Path, schema: pa.Schema) -> None:
        self.local = local
        self.is_sorted = True
        self._last_us = _MIN_TIME_US
        self._writer = pq.ParquetWriter(
            local,
            schema,
            compression="zstd",
            use_dictionary=[*(n for n in _DICTIONARY_COLUMNS if n in schema.names), _HEADER_KEYS],
        )

    def write(self, rows: pa.Table, times_us: _Int64s | None) -> None:
        """Add a row group. `times_us`: its sorted event times, if the table has a sort order."""
        if times_us is not None:
            self.is_sorted &= bool(times_us[0] >= self._last_us)
            self._last_us = int(times_us[-1])
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> pq.FileMetaData:
        self._writer.close()
        return self._writer.writer.metadata

    def abandon(self) -> None:
        with suppress(OSError):  # this may have been called because the disk is full
            self._writer.close()


class _Spill:
    """One Arrow file with the rows of one flush that were too few for a row group, by partition."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._batches = 0
        self._places: dict[PartitionValue, int] = {}
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(path, schema, options=options)
        self._reader: Any = None

    def write(self, partition: PartitionValue, rows: pa.Table) -> None:
        for batch in rows.combine_chunks().to_batches():
            self._writer.write_batch(batch)
            self._places[partition] = self._batches
            self._batches += 1

    def seal(self) -> None:
        self._writer.close()
        self._reader = pa.ipc.open_file(pa.memory_map(str(self._path)))

    def take(self, partition: PartitionValue) -> pa.RecordBatch | None:
        place = self._places.pop(partition, None)
        return None if place is None else self._reader.get_batch(place)

    @property
    def partitions(self) -> set[PartitionValue]:
        return set(self._places)


@dataclass(frozen=True, slots=True, eq=False)
class _PartitionRows:
    """Rows of one partition: those of `table` at `order[start:end]`, or at `[start, end)` without an order.

    A table with an order has one chunk for each column.
    """

    slice: PartitionSlice
    table: pa.Table
    order: _Order | None
    row_bytes: float

    @property
    def size_bytes(self) -> int:
        return int((self.slice.end - self.slice.start) * self.row_bytes)

    def rows(self) -> pa.Table:
        return self._between(self.slice.start, self.slice.end)

    def compact_copy(self) -> pa.Table:
        """Return a copy of the rows: a slice would keep the whole table in memory."""
        rows = self.rows()
        return rows.take(pa.array(np.arange(rows.num_rows))) if self.order is None else rows

    def pieces(self, piece_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows in order in pieces of about `piece_bytes`, none much smaller than the others."""
        n = self.slice.end - self.slice.start
        count = max(1, round(self.size_bytes / piece_bytes))
        bounds = [self.slice.start + n * i // count for i in range(count + 1)]
        for start, end in pairwise(bounds):
            if start < end:
                yield self._between(start, end)

    def _between(self, start: int, end: int) -> pa.Table:
        if self.order is None:
            return self.table.slice(start, end - start)
        return self.table.take(pa.array(self.order[start:end]))


def _nulls_first(partition: PartitionValue) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value) for value in partition)
