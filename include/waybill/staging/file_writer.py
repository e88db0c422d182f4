"""Rows to data files: a file for each partition, in bounded memory however many there are.

Rows are held until they take `memory_bytes`. When that is reached and more is to come, the rows of each partition that
make a good part of a row group go to its file; those that do not are spilled, since a year of history by day would
otherwise be cut into a small row group, or a small file, for each day each time. At the end each partition's file gets
what was spilled for it, one after the other. So what is held for a partition is a place in a spill file, not a buffer.

An hour's new messages are of few partitions. Then a row group's worth is enough to hold: memory that was not used
before costs a task more than what it does with it (docs/decisions/0011).

Rows that come in order, as those of another table's file do up to the end of its row group, are written as they came:
to copy them into one piece, and then into order, takes half as long as to decode or to encode them
(docs/decisions/0015). So where the order of what is held ends, a row group ends, unless it were a small one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile

from waybill.staging.grouping import Cut, Grouping, Value
from waybill.staging.table_layout import TableLayout
from waybill.staging.uploads import Uploads

if TYPE_CHECKING:
    _Int64s = np.ndarray[Any, np.dtype[np.int64]]
    _Order = np.ndarray[Any, np.dtype[np.intp]]

__all__ = ["PartitionedWriter"]

ROW_GROUP_BYTES = 64 << 20
"""Rows of a row group before encoding."""

_DICTIONARY_COLUMNS = ("topic", "partition", "generation", "reason", "parser", "quarantined_at")
_HEADER_KEYS = "headers.list.element.key"
_MAX_HELD_BYTES = 1 << 30  # Arrow's binary columns have int32 offsets: more could not be put in one piece
_FULL_SHARE = 8
_BEFORE_ALL_US = -(1 << 63)


class _FileInTheMaking:
    """One Parquet file in the scratch directory."""

    def __init__(self, local: Path, schema: pa.Schema) -> None:
        self.local = local
        self.is_sorted = True
        self._last_us = _BEFORE_ALL_US
        self._writer = pq.ParquetWriter(
            local,
            schema,
            compression="zstd",
            use_dictionary=[*(n for n in _DICTIONARY_COLUMNS if n in schema.names), _HEADER_KEYS],
        )

    def write(self, rows: pa.Table, times_us: _Int64s | None) -> None:
        """Add a row group; `times_us`: its event times, sorted, if the table is kept in their order."""
        if times_us is not None:
            self.is_sorted &= bool(times_us[0] >= self._last_us)
            self._last_us = int(times_us[-1])
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> pq.FileMetaData:
        self._writer.close()
        return self._writer.writer.metadata

    def abandon(self) -> None:
        with suppress(OSError):  # the disk may be full, which is then why
            self._writer.close()


class _Spill:
    """Rows of one flush that were too few for a row group, by partition, in one Arrow file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._batches = 0
        self._places: dict[Value, int] = {}
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(path, schema, options=options)
        self._reader: Any = None

    def write(self, partition: Value, rows: pa.Table) -> None:
        for batch in rows.combine_chunks().to_batches():
            self._writer.write_batch(batch)
            self._places[partition] = self._batches
            self._batches += 1

    def seal(self) -> None:
        self._writer.close()
        self._reader = pa.ipc.open_file(pa.memory_map(str(self._path)))

    def take(self, partition: Value) -> pa.RecordBatch | None:
        place = self._places.pop(partition, None)
        return None if place is None else self._reader.get_batch(place)

    @property
    def partitions(self) -> set[Value]:
        return set(self._places)


class PartitionedWriter:
    """Writes the rows of one task to one table's files, whose names begin with `name`. `finish` or `abandon` it."""

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
        self._grouping = Grouping(layout.spec, layout.schema) if layout.spec.fields else None
        self._memory_bytes = min(memory_bytes, _MAX_HELD_BYTES)
        self._limit_bytes = min(self._memory_bytes, ROW_GROUP_BYTES)
        self._full_bytes = min(self._memory_bytes // _FULL_SHARE, ROW_GROUP_BYTES)
        self._least_in_order_bytes = ROW_GROUP_BYTES // 2
        # The last rows of a row group, which come by batches, are not to be left over.
        self._slack_in_order_bytes = ROW_GROUP_BYTES // 4
        self._scratch = scratch
        self._uploads = uploads
        self._name = name
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._held_until_us: int | None = _BEFORE_ALL_US
        """The last time of what is held, if that is in order."""
        self._open: dict[Value, _FileInTheMaking] = {}
        self._spills: list[_Spill] = []
        self._finished: list[DataFile] = []
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows; they are written when there are enough of them."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        is_in_order = self._held_until_us is not None
        if is_in_order and self._held_bytes >= self._least_in_order_bytes and self._order_until_us(rows) is None:
            self._write_in_order()
        self._hold(rows)
        slack_bytes = 0 if self._held_until_us is None else self._slack_in_order_bytes
        if self._held_bytes >= min(self._limit_bytes + slack_bytes, self._memory_bytes):
            self._make_room()

    def finish(self) -> list[DataFile]:
        """Write what is left. The files have arrived when `Uploads.wait` returns."""
        last = {group.cut.value: group for group in self._take_held()}
        for spill in self._spills:
            spill.seal()
        partitions = set(last).union(self._open, *(spill.partitions for spill in self._spills))
        for partition in sorted(partitions, key=_nulls_first):
            for rows in self._full_pieces(partition, last.pop(partition, None)):
                self._write(partition, rows)
            self._close(partition)
        return self._finished

    def abandon(self) -> None:
        """Let go of the open files."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def _hold(self, rows: pa.RecordBatch) -> None:
        self._held_until_us = self._order_until_us(rows)
        self._held.append(rows)
        self._held_bytes += rows.nbytes

    def _order_until_us(self, rows: pa.RecordBatch) -> int | None:
        """The last time of `rows`, if they are in order behind what is held, and that is."""
        if self._grouping is None or self._held_until_us is None:
            return None
        times = self._grouping.times(rows)
        if times[0] < self._held_until_us or np.any(times[1:] < times[:-1]):
            return None
        return int(times[-1])

    def _write_in_order(self) -> None:
        """Write what is held, and in order, as row groups as large as they are; hold small ones on."""
        groups = self._take_held()
        self._hold_on(groups, self._write_full(groups, self._least_in_order_bytes))

    def _make_room(self) -> None:
        """Write full pieces to their files. Hold the rest on, if there may be more; else spill it."""
        held_bytes = self._held_bytes
        groups = self._take_held()
        rest = self._write_full(groups, self._full_bytes)
        if self._limit_bytes == self._memory_bytes:
            self._spill(rest)
            return
        written_bytes = sum(group.size_bytes for group in groups) - sum(group.size_bytes for group in rest)
        if 2 * written_bytes < held_bytes:
            self._limit_bytes = min(2 * self._limit_bytes, self._memory_bytes)
        self._hold_on(groups, rest)

    def _write_full(self, groups: list[_Group], full_bytes: int) -> list[_Group]:
        """Write the groups that are as large as that; the others."""
        rest = []
        for group in groups:
            if group.size_bytes < full_bytes:
                rest.append(group)
                continue
            for piece in group.pieces(ROW_GROUP_BYTES):
                self._write(group.cut.value, piece)
        return rest

    def _hold_on(self, groups: list[_Group], rest: list[_Group]) -> None:
        """Hold the rest of the groups; if that is all of them, nothing is copied."""
        for table in [group.copied() for group in rest] if len(rest) < len(groups) else [groups[0].table]:
            for batch in table.to_batches():
                self._hold(batch)

    def _spill(self, groups: list[_Group]) -> None:
        spill = None
        for group in groups:
            if spill is None:
                spill = _Spill(self._scratch / f"{self._new_name()}.arrow", self._schema)
                self._spills.append(spill)
            spill.write(group.cut.value, group.rows())

    def _full_pieces(self, partition: Value, last: _Group | None) -> Iterator[pa.Table]:
        """All rows of a partition that are not in its file yet, in pieces of about a row group."""
        pieces: list[pa.Table] = []
        gathered = 0
        spilled = (spill.take(partition) for spill in self._spills)
        for table in [pa.Table.from_batches([b]) for b in spilled if b is not None]:
            pieces.append(table)
            gathered += table.nbytes
            if gathered >= ROW_GROUP_BYTES:
                yield self._in_order(pieces)
                pieces, gathered = [], 0
        if last is not None and gathered + last.size_bytes <= ROW_GROUP_BYTES:
            pieces.append(last.rows())
            last = None
        if pieces:
            yield self._in_order(pieces)
        if last is not None:
            yield from last.pieces(ROW_GROUP_BYTES)

    def _in_order(self, pieces: list[pa.Table]) -> pa.Table:
        if len(pieces) == 1:
            return pieces[0]
        table = pa.concat_tables(pieces).combine_chunks()
        times = self._times(table)
        return table if times is None else table.take(pa.array(np.argsort(times, kind="stable")))

    def _take_held(self) -> list[_Group]:
        """What is held, by partition, each in order of event time; then nothing is held."""
        if not self._held:
            return []
        held_bytes, self._held_bytes = self._held_bytes, 0
        self._held_until_us = _BEFORE_ALL_US
        columns = [[batch.column(name) for batch in self._held] for name in self._schema.names]
        self._held.clear()
        order, cuts = self._cut(self._as_they_came(columns))
        table = self._as_they_came(columns) if order is None else self._in_one_piece(columns)
        row_bytes = held_bytes / table.num_rows
        return [_Group(cut, table, order, row_bytes) for cut in cuts]

    def _cut(self, table: pa.Table) -> tuple[_Order | None, Iterable[Cut]]:
        return (None, [Cut((), 0, table.num_rows)]) if self._grouping is None else self._grouping.cut(table)

    def _as_they_came(self, columns: list[list[pa.Array]]) -> pa.Table:
        """Nothing is copied."""
        whole = [pa.chunked_array(chunks, field.type) for chunks, field in zip(columns, self._schema, strict=True)]
        return pa.Table.from_arrays(whole, schema=self._schema)

    def _in_one_piece(self, columns: list[list[pa.Array]]) -> pa.Table:
        """One chunk a column; `take` is slow over many. Column by column, which are let go of, so that memory is."""
        whole = []
        while columns:
            whole.append(pa.concat_arrays(columns.pop(0)))
        return pa.Table.from_arrays(whole, schema=self._schema)

    def _times(self, table: pa.Table) -> _Int64s | None:
        return None if self._grouping is None else self._grouping.times(table)

    def _new_name(self) -> str:
        # Unique, so that a loser never writes over what a winner committed. The plan's id is for whoever reads a list.
        return f"{self._name}-{uuid.uuid4().hex}"

    def _write(self, partition: Value, rows: pa.Table) -> None:
        file = self._open.get(partition)
        if file is None:
            file = _FileInTheMaking(self._scratch / f"{self._new_name()}.parquet", self._schema)
            self._open[partition] = file
        file.write(rows, self._times(rows))

    def _close(self, partition: Value) -> None:
        file = self._open.pop(partition)
        metadata = file.close()
        path, size = self._layout.new_path(partition, file.local.stem), file.local.stat().st_size
        self._finished.append(
            self._layout.data_file(path, size, metadata, partition=partition, is_sorted=file.is_sorted)
        )
        self._uploads.send(file.local, path)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Rows of one partition: those of `table` at the cut's `order[start:end]`; at `[start, end)` without an order.

    A table with an order is of one chunk a column.
    """

    cut: Cut
    table: pa.Table
    order: _Order | None
    row_bytes: float

    @property
    def size_bytes(self) -> int:
        return int((self.cut.end - self.cut.start) * self.row_bytes)

    def rows(self) -> pa.Table:
        return self._between(self.cut.start, self.cut.end)

    def copied(self) -> pa.Table:
        """The rows by themselves: while there is a slice of it, the whole table takes memory."""
        rows = self.rows()
        return rows.take(pa.array(np.arange(rows.num_rows))) if self.order is None else rows

    def pieces(self, piece_bytes: int) -> Iterator[pa.Table]:
        """In order, each of about `piece_bytes`, and none much smaller than the others."""
        n = self.cut.end - self.cut.start
        count = max(1, round(self.size_bytes / piece_bytes))
        bounds = [self.cut.start + n * i // count for i in range(count + 1)]
        for start, end in pairwise(bounds):
            if start < end:
                yield self._between(start, end)

    def _between(self, start: int, end: int) -> pa.Table:
        if self.order is None:
            return self.table.slice(start, end - start)
        return self.table.take(pa.array(self.order[start:end]))


def _nulls_first(partition: Value) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value) for value in partition)
