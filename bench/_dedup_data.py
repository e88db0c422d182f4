"""What bench/dedup.py's methods are given: new rows as the partition job writes them, and windows of keys.

Everything follows from seeds: each process makes the same. A window's keys are hashes drawn at random, since nothing
but their number, their order and their arrival matters to a method. Among them, in the places that `Window.repeats`
says, are the hashes of the ids that new messages repeat; a method hashes ids in its own way, so it says what these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from _events import values
from decode import MESSAGE_BYTES

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile

    from waybill.staging.table_layout import TableLayout

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["DAY_MS", "NOW_MS", "PARTITIONS", "TOPIC", "WINDOW_MS", "Keys", "NewRows", "Window", "local_layout"]

DAY_MS = 86_400_000
WINDOW_MS = 28 * DAY_MS
NOW_MS = 1_780_000_000_000 // 3_600_000 * 3_600_000
"""When the new messages begin to arrive: they are one hour's."""

TOPIC = "bench"
PARTITIONS = 4

_HOUR_MS = 3_600_000
_OFFSET = 100_000_000  # of the first new message in each topic-partition
_PER_BATCH = 20_000
_PER_CHUNK = 1 << 20
_OF_TEN_AT_THE_END = 1
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_ID_BYTES = 36
_DASHES = [8, 13, 18, 23]
_DIGITS = [n for n in range(_ID_BYTES) if n not in _DASHES]


class Keys(NamedTuple):
    """A stretch of a window, in the order of arrival: hashes as two uint64, arrival in epoch ms."""

    hi: Array
    lo: Array
    arrived_ms: Array


@dataclass(frozen=True)
class NewRows:
    """The new messages: `count` of them, of which 6 in 1,000 repeat a key of the window."""

    count: int

    @cached_property
    def repeated(self) -> Array:
        """Which of them repeat a key, by number, ascending."""
        chance = np.random.default_rng(11)
        return np.sort(chance.choice(self.count, self.count * 6 // 1000, replace=False))

    @cached_property
    def ids(self) -> Array:
        """The message ids, a row of 36 bytes each: UUIDs of version 4, as text."""
        chance = np.random.default_rng(12)
        made = np.full((self.count, _ID_BYTES), ord("-"), np.uint8)
        made[:, _DIGITS] = _HEX[chance.integers(0, 16, (self.count, len(_DIGITS)), dtype=np.uint8)]
        made[:, 14] = ord("4")
        made[:, 19] = _HEX[chance.integers(8, 12, self.count, dtype=np.uint8)]
        return made

    def id_texts(self, which: Array | None = None) -> pa.Array:
        """Message ids as Arrow has them: of all, or of those numbered so."""
        rows = self.ids if which is None else self.ids[which]
        return _fixed_width(rows, pa.string())

    def batches(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Rows of the table, the numbers from `first` to `end`: each topic-partition's in turns."""
        from waybill.partition.rows import TABLE_ROWS

        for start in range(first, end, _PER_BATCH):
            yield self._batch(start, min(_PER_BATCH, end - start), TABLE_ROWS)

    def _batch(self, start: int, n: int, schema: pa.Schema) -> pa.RecordBatch:
        numbers = np.arange(start, start + n)
        # A batch of the archive is of one topic-partition, and so is what a task reads at a time.
        partition = start // _PER_BATCH % PARTITIONS
        arrived_ms = NOW_MS + numbers * _HOUR_MS // self.count
        event_ms = arrived_ms - np.random.default_rng(start).integers(5, 2000, n)
        ids = self.ids[start : start + n]
        made = values(start, n)
        made[:, 13:45] = ids[:, _DIGITS]  # the id, as the message has it
        headers = schema.field("headers").type
        empty = pa.array([], headers.value_type)
        columns = [
            pa.repeat(TOPIC, n),
            pa.repeat(pa.scalar(partition, pa.int32()), n),
            pa.array(_OFFSET + numbers // (_PER_BATCH * PARTITIONS) * _PER_BATCH + numbers % _PER_BATCH),
            _timestamps(arrived_ms),
            _fixed_width(ids[:, :8], pa.binary()),
            pa.ListArray.from_arrays(pa.array(np.zeros(n + 1, np.int32)), empty, type=headers),
            _fixed_width(made, pa.binary()),
            _timestamps(event_ms),
            _fixed_width(ids, pa.string()),
            pa.repeat(pa.scalar(1, pa.int32()), n),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def write(self, layout: TableLayout, io: FileIO, scratch: Path, tasks: int = 2) -> list[DataFile]:
        """The rows in files as a partition run of so many tasks writes them."""
        from waybill.partition.rows import TABLE_ROWS
        from waybill.staging.file_writer import PartitionedWriter
        from waybill.staging.uploads import Uploads

        uploads = Uploads(io)
        files: list[DataFile] = []
        try:
            for task in range(tasks):
                writer = PartitionedWriter(
                    layout, TABLE_ROWS, memory_bytes=256 << 20, scratch=scratch, uploads=uploads, name=f"new-{task}"
                )
                for batch in self.batches(self.count * task // tasks, self.count * (task + 1) // tasks):
                    writer.add(batch)
                files += writer.finish()
            uploads.wait()
        finally:
            uploads.close()
        return files

    @property
    def message_bytes(self) -> int:
        """Of a message's value."""
        return MESSAGE_BYTES


@dataclass(frozen=True)
class Window:
    """`count` keys that arrived evenly over the 28 days before the new ones, of which `new` repeats some."""

    count: int
    new: NewRows

    @cached_property
    def repeats(self) -> Array:
        """Where in the window the keys are that the new messages `new.repeated` repeat: nine of ten among those of the
        last day, the others among those of the first day, at the window's end."""
        chance = np.random.default_rng(13)
        n = len(self.new.repeated)
        at_end = n * _OF_TEN_AT_THE_END // 10
        day = max(self.count // 28, n)
        old = chance.choice(day, at_end, replace=False)
        recent = self.count - 1 - chance.choice(day, n - at_end, replace=False)
        return chance.permutation(np.concatenate([old, recent]))

    def chunks(self, hi: Array, lo: Array) -> Iterator[Keys]:
        """All keys; `hi` and `lo`: the hashes of the repeated messages, in the order of `new.repeated`."""
        for start in range(0, self.count, _PER_CHUNK):
            n = min(_PER_CHUNK, self.count - start)
            chance = np.random.default_rng([17, start])
            high, low = chance.integers(0, 1 << 64, (2, n), dtype=np.uint64)
            here = np.flatnonzero((self.repeats >= start) & (self.repeats < start + n))
            high[self.repeats[here] - start] = hi[here]
            low[self.repeats[here] - start] = lo[here]
            yield Keys(high, low, self.arrived_ms(start, n))

    def arrived_ms(self, start: int, n: int) -> Array:
        """Arrival of the keys from number `start` on. The oldest is in the window of the last new message, too."""
        span_ms = WINDOW_MS - 2 * _HOUR_MS
        return NOW_MS - span_ms + np.arange(start, start + n) * span_ms // self.count


def local_layout(folder: Path) -> TableLayout:
    """That of a stream's table by hour, whose files go to a directory here."""
    from waybill.config import PartitionBy
    from waybill.staging.table_layout import TableLayout
    from waybill.tables.schemas import TABLE_SCHEMA, partition_spec

    return TableLayout("bench.new", f"file://{folder}", TABLE_SCHEMA, partition_spec(PartitionBy()), 1, {})


def _fixed_width(rows: Array, kind: pa.DataType) -> pa.Array:
    n, width = rows.shape
    offsets = pa.py_buffer(np.arange(0, (n + 1) * width, width, dtype=np.int32))
    return pa.Array.from_buffers(kind, n, [None, offsets, pa.py_buffer(np.ascontiguousarray(rows))])


def _timestamps(ms: Array) -> pa.Array:
    return pa.array(ms.astype(np.int64) * 1000, pa.timestamp("us", "UTC"))
