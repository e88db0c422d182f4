"""The files that a run has written, as a data file of the ledger.

Rows to the files of the `files` sink: one for each topic-partition and hour (or day), in bounded memory.

Rows are held until they take `memory_bytes`, and are then spilled, in order of topic-partition and hour. At the end
the files are made one after the other, each of what was spilled for it, in order of offset: a piece of one file is in
memory, and a block of each spill.

What is in a file, and how it is called, follows from the task alone, however much memory there was.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.names import FileName, Period, TopicPartition
from waybill.partition.alert import ROWS_PROPERTY
from waybill.partition.files_sink.delivery import Delivery, FilesLayout, digest
from waybill.partition.files_sink.encoders import encode_file
from waybill.partition.plan import Task
from waybill.staging.file_writer import PartitionedWriter
from waybill.staging.table_layout import TableLayout
from waybill.staging.uploads import Uploads
from waybill.store import Store
from waybill.tables.file_inventory import LEDGER_ROWS, LedgerEntry, ledger_batch

__all__ = ["FILES_PROPERTY", "FILE_BYTES_PROPERTY", "HourFiles", "figures_of", "ranges_of_task", "stage_entries"]

FILES_PROPERTY = "waybill.files"
"""Of the snapshot of a run whose rows went to files: how many they are."""
FILE_BYTES_PROPERTY = "waybill.file_bytes"

_MEMORY_BYTES = 64 << 20


def stage_entries(ledger: Table, entries: Sequence[LedgerEntry], name: str) -> list[DataFile]:
    """Write the entries down, in a data file whose name begins with `name`; nothing for none. It is not committed."""
    with (
        tempfile.TemporaryDirectory(prefix="waybill-") as scratch,
        closing(Uploads(ledger.io)) as uploads,
    ):
        writer = PartitionedWriter(
            TableLayout.of(ledger),
            LEDGER_ROWS,
            memory_bytes=_MEMORY_BYTES,
            scratch=Path(scratch),
            uploads=uploads,
            name=name,
        )
        writer.add(ledger_batch(entries))
        files = writer.finish()
        uploads.wait()
    return files


def figures_of(entries: Sequence[LedgerEntry]) -> Mapping[str, str]:
    """Properties of the snapshot that commits them."""
    return {
        ROWS_PROPERTY: str(sum(entry.rows for entry in entries)),
        FILES_PROPERTY: str(len(entries)),
        FILE_BYTES_PROPERTY: str(sum(entry.size_bytes for entry in entries)),
    }


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_US, _DAY_US = 3_600_000_000, 86_400_000_000
_MAX_HELD_BYTES = 1 << 30  # Arrow's binary columns have int32 offsets: more could not be put in one piece
_BLOCK_BYTES = 1 << 20

_Key = tuple[TopicPartition, int]
"""A file: topic-partition, and the number of the hour or day since 1970."""


def ranges_of_task(task: Task) -> dict[TopicPartition, tuple[int, int]]:
    """`[first_offset, next_offset)` of each topic-partition that a task reads; a task's spans of one are neighbours."""
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for span in task:
        first, _ = ranges.get(span.tp, (span.first_offset, 0))
        ranges[span.tp] = (first, span.next_offset)
    return ranges


class HourFiles:
    """Writes the files of one task. `finish` or `abandon` it."""

    def __init__(
        self, layout: FilesLayout, task: Task, generation: int, store: Store, *, memory_bytes: int, scratch: Path
    ) -> None:
        self._layout = layout
        self._ranges = ranges_of_task(task)
        self._generation = generation
        self._bucket = store.bucket
        self._memory_bytes = min(memory_bytes, _MAX_HELD_BYTES)
        self._scratch = scratch
        self._delivery = Delivery(store, layout)
        self._held: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._sorted: list[_Spill | _Held] = []
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows of one topic-partition; those of one must come in order of offset."""
        if not rows.num_rows:
            return
        tp = TopicPartition(rows.column("topic")[0].as_py(), rows.column("partition")[0].as_py())
        self.rows += rows.num_rows
        self._held.setdefault(tp, []).append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._memory_bytes:
            spill = _Spill(self._scratch / f"{uuid.uuid4().hex}.arrow")
            for key_of, table in self._take_held():
                spill.write(key_of, table)
            spill.seal()
            self._sorted.append(spill)

    def finish(self) -> list[LedgerEntry]:
        """Write the files, and see them arrive. What the ledger is to list."""
        self._sorted.append(_Held(self._take_held()))
        keys = sorted(set().union(*(some.keys for some in self._sorted)))
        try:
            entries = [self._make(tp, period) for tp, period in keys]
            self._delivery.wait()
        finally:
            self._delivery.close()
        return entries

    def abandon(self) -> None:
        """Let go of the threads. What has arrived stays, for another attempt to adopt."""
        self._delivery.close()

    def _make(self, tp: TopicPartition, number: int) -> LedgerEntry:
        first_offset, next_offset = self._ranges[tp]
        period = Period(tp.topic, self._start(number), self._layout.by_hour)
        kind, origin = self._layout.format, self._layout.origin
        name = FileName(period, self._generation, tp.partition, first_offset, kind.extension)
        local = self._scratch / f"{uuid.uuid4().hex}.{kind.extension}"
        made_by = f"{origin.plan} {origin.planned_at.isoformat()}"
        rows = encode_file(local, kind, name, made_by, self._rows((tp, number)))
        size_bytes, sha256 = local.stat().st_size, digest(local)
        self._delivery.send(local, name, sha256, {"next-offset": str(next_offset), "rows": str(rows)})
        path = f"s3://{self._bucket}/{name.key(self._layout.root)}"
        return LedgerEntry(
            period.start, tp.topic, tp.partition, first_offset, next_offset, path, rows, size_bytes, sha256, origin.plan
        )

    def _rows(self, key: _Key) -> Iterator[pa.Table]:
        for some in self._sorted:
            yield from some.take(key)

    def _start(self, number: int) -> datetime:
        return _EPOCH + timedelta(microseconds=number * self._unit_us)

    @property
    def _unit_us(self) -> int:
        return _HOUR_US if self._layout.by_hour else _DAY_US

    def _take_held(self) -> Iterator[tuple[list[tuple[_Key, int, int]], pa.Table]]:
        """What is held, a topic-partition at a time, in order of hours, and where which hour is; then nothing is held.

        Within an hour rows stay in the order in which they came.
        """
        held, self._held = self._held, {}
        self._held_bytes = 0
        for tp in sorted(held):
            table = pa.Table.from_batches(held.pop(tp)).combine_chunks()
            times = np.asarray(pc.cast(table.column("event_time").combine_chunks(), pa.int64()))
            numbers: Any = times // self._unit_us
            if np.any(numbers[1:] < numbers[:-1]):
                order = np.argsort(numbers, kind="stable")
                table, numbers = table.take(pa.array(order)), numbers[order]
            bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            yield [((tp, int(numbers[start])), start, stop) for start, stop in pairwise(bounds)], table


class _Held:
    """Rows in memory, by file."""

    def __init__(self, groups: Iterable[tuple[list[tuple[_Key, int, int]], pa.Table]]) -> None:
        self._rows = {key: table.slice(start, stop - start) for keys, table in groups for key, start, stop in keys}

    @property
    def keys(self) -> set[_Key]:
        return set(self._rows)

    def take(self, key: _Key) -> Iterator[pa.Table]:
        if key in self._rows:
            yield self._rows.pop(key)


class _Spill:
    """Rows in an Arrow file in the scratch directory, in blocks. What is taken in order is decompressed once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[_Key, tuple[int, int]] = {}
        self._ends: list[int] = []
        self._writer: Any = None
        self._reader: Any = None
        self._block: tuple[int, pa.RecordBatch] | None = None

    def write(self, places: list[tuple[_Key, int, int]], table: pa.Table) -> None:
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
    def keys(self) -> set[_Key]:
        return set(self._places)

    def take(self, key: _Key) -> Iterator[pa.Table]:
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
