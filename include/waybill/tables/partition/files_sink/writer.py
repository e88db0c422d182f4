"""Write rows to the files of the `files` sink: one for each topic-partition and hour (or day), in bounded memory.

Rows are buffered until they take `memory_bytes`, and are then spilled, sorted by topic-partition and hour. At the end
the files are written one after the other, each from its spilled rows in order of offset. Then one piece of one file is
in memory, and one block of each spill.

The names and the content of the files follow from the task alone, not from the available memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.config.names import FileName, SinkPeriod, TopicPartition
from waybill.services.store import Store
from waybill.tables.iceberg.file_inventory import INVENTORY_ARROW_SCHEMA, InventoryEntry, inventory_batch
from waybill.tables.partition.files_sink.encoders import encode_file
from waybill.tables.partition.files_sink.upload import FilesLayout, HourFileUploads, file_sha256
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.statistics import ROWS_PROPERTY
from waybill.tables.staging.file_writer import write_data_files

FILES_PROPERTY = "waybill.files"
"""Snapshot property of a run with sink `files`: the number of files that it wrote."""
FILE_BYTES_PROPERTY = "waybill.file_bytes"
"""Snapshot property of a run with sink `files`: the size of these files together."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_US, _DAY_US = 3_600_000_000, 86_400_000_000
_MEMORY_BYTES = 64 << 20
_MAX_BUFFER_BYTES = 1 << 30  # Arrow's binary columns have int32 offsets, so one chunk cannot hold more
_BLOCK_BYTES = 1 << 20

_FileKey = tuple[TopicPartition, int]
"""Identifies a file of a task: topic-partition, and the number of the hour or day since 1970."""


def stage_inventory(inventory: Table, entries: Sequence[InventoryEntry], name: str) -> list[DataFile]:
    """Write the entries to a data file of the inventory, whose name begins with `name`. It is not committed.

    Returns no file if there are no entries.
    """
    return write_data_files(
        inventory, INVENTORY_ARROW_SCHEMA, [inventory_batch(entries)], memory_bytes=_MEMORY_BYTES, name=name
    )


def inventory_properties(entries: Sequence[InventoryEntry]) -> Mapping[str, str]:
    """Return the properties of the snapshot that commits the entries."""
    return {
        ROWS_PROPERTY: str(sum(entry.rows for entry in entries)),
        FILES_PROPERTY: str(len(entries)),
        FILE_BYTES_PROPERTY: str(sum(entry.size_bytes for entry in entries)),
    }


def offset_ranges(task: Task) -> dict[TopicPartition, tuple[int, int]]:
    """Return `[first_offset, next_offset)` of each topic-partition of a task, whose spans follow each other."""
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for span in task:
        first, _ = ranges.get(span.tp, (span.first_offset, 0))
        ranges[span.tp] = (first, span.next_offset)
    return ranges


class HourFileWriter:
    """Writes the files of one task. The caller ends it with `finish` or `abandon`."""

    def __init__(
        self, layout: FilesLayout, task: Task, generation: int, store: Store, *, memory_bytes: int, scratch: Path
    ) -> None:
        self._layout = layout
        self._ranges = offset_ranges(task)
        self._generation = generation
        self._bucket = store.bucket
        self._memory_bytes = min(memory_bytes, _MAX_BUFFER_BYTES)
        self._scratch = scratch
        self._uploads = HourFileUploads(store, layout)
        self._buffer: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._buffered_bytes = 0
        self._sources: list[_BlockSpill | _BufferedRows] = []
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of one topic-partition; its rows must arrive in order of offset."""
        if not rows.num_rows:
            return
        tp = TopicPartition(rows.column("topic")[0].as_py(), rows.column("partition")[0].as_py())
        self.rows += rows.num_rows
        self._buffer.setdefault(tp, []).append(rows)
        self._buffered_bytes += rows.nbytes
        if self._buffered_bytes >= self._memory_bytes:
            spill = _BlockSpill(self._scratch / f"{uuid.uuid4().hex}.arrow")
            for key_of, table in self._take_buffer():
                spill.write(key_of, table)
            spill.seal()
            self._sources.append(spill)

    def finish(self) -> list[InventoryEntry]:
        """Write and upload the files. Return their entries for the file inventory."""
        self._sources.append(_BufferedRows(self._take_buffer()))
        keys = sorted(set().union(*(source.keys for source in self._sources)))
        try:
            entries = [self._write_file(tp, period) for tp, period in keys]
            self._uploads.wait()
        finally:
            self._uploads.close()
        return entries

    def abandon(self) -> None:
        """Stop the threads. Uploaded files are kept, so that another attempt can adopt them."""
        self._uploads.close()

    def _write_file(self, tp: TopicPartition, number: int) -> InventoryEntry:
        first_offset, next_offset = self._ranges[tp]
        period = SinkPeriod(tp.topic, self._start(number), self._layout.by_hour)
        kind, origin = self._layout.format, self._layout.origin
        name = FileName(period, self._generation, tp.partition, first_offset, kind.extension)
        local = self._scratch / f"{uuid.uuid4().hex}.{kind.extension}"
        made_by = f"{origin.plan} {origin.planned_at.isoformat()}"
        rows = encode_file(local, kind, name, made_by, self._rows((tp, number)))
        size_bytes, sha256 = local.stat().st_size, file_sha256(local)
        self._uploads.send(local, name, sha256, {"next-offset": str(next_offset), "rows": str(rows)})
        path = f"s3://{self._bucket}/{name.key(self._layout.root)}"
        return InventoryEntry(
            period.start, tp.topic, tp.partition, first_offset, next_offset, path, rows, size_bytes, sha256, origin.plan
        )

    def _rows(self, key: _FileKey) -> Iterator[pa.Table]:
        for source in self._sources:
            yield from source.take(key)

    def _start(self, number: int) -> datetime:
        return _EPOCH + timedelta(microseconds=number * self._unit_us)

    @property
    def _unit_us(self) -> int:
        return _HOUR_US if self._layout.by_hour else _DAY_US

    def _take_buffer(self) -> Iterator[tuple[list[tuple[_FileKey, int, int]], pa.Table]]:
        """Empty the buffer. Yield a table for each topic-partition, sorted by hour, with the rows of each file in it.

        Within an hour the rows stay in the order in which they arrived.
        """
        held, self._buffer = self._buffer, {}
        self._buffered_bytes = 0
        for tp in sorted(held):
            table = pa.Table.from_batches(held.pop(tp)).combine_chunks()
            times = np.asarray(pc.cast(table.column("event_time").combine_chunks(), pa.int64()))
            numbers: Any = times // self._unit_us
            if np.any(numbers[1:] < numbers[:-1]):
                order = np.argsort(numbers, kind="stable")
                table, numbers = table.take(pa.array(order)), numbers[order]
            bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            yield [((tp, int(numbers[start])), start, stop) for start, stop in pairwise(bounds)], table


class _BufferedRows:
    """Buffered rows, by file."""

    def __init__(self, groups: Iterable[tuple[list[tuple[_FileKey, int, int]], pa.Table]]) -> None:
        self._rows = {key: table.slice(start, stop - start) for keys, table in groups for key, start, stop in keys}

    @property
    def keys(self) -> set[_FileKey]:
        return set(self._rows)

    def take(self, key: _FileKey) -> Iterator[pa.Table]:
        if key in self._rows:
            yield self._rows.pop(key)


class _BlockSpill:
    """Rows in an Arrow file in the scratch directory, in blocks. Reading in order decompresses each block once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[_FileKey, tuple[int, int]] = {}
        self._ends: list[int] = []
        self._writer: Any = None
        self._reader: Any = None
        self._block: tuple[int, pa.RecordBatch] | None = None

    def write(self, places: list[tuple[_FileKey, int, int]], table: pa.Table) -> None:
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_file(self._path, table.schema, options=options)
        before = self._ends[-1] if self._ends else 0
        self._places |= {key: (before + start, before + stop) for key, start, stop in places}
        for block in table.to_batches(max_chunksize=max(1, table.num_rows * _BLOCK_BYTES // max(table.nbytes, 1))):
            self._writer.write_batch(block)
            before += block.num_rows
            self._ends.append(before)

    def seal(self) -> None:
        self._writer.close()
        self._reader = pa.ipc.open_file(pa.memory_map(str(self._path)))

    @property
    def keys(self) -> set[_FileKey]:
        return set(self._places)

    def take(self, key: _FileKey) -> Iterator[pa.Table]:
        start, stop = self._places.get(key, (0, 0))
        while start < stop:
            number = int(np.searchsorted(self._ends, start, side="right"))
            before = self._ends[number - 1] if number else 0
            end = min(stop, self._ends[number])
            yield pa.Table.from_batches([self._read(number).slice(start - before, end - start)])
            start = end

    def _read(self, number: int) -> pa.RecordBatch:
        if self._block is None or self._block[0] != number:
            self._block = (number, self._reader.get_batch(number))
        return self._block[1]
