"""The input of bench/dedup.py: new rows in the files of a partition run, and windows of message keys.

Everything follows from seeds, so each process makes the same. The keys of a window are random hashes, since only their
number, order and arrival matter to a method. At the places `Window.repeats` they are the hashes of the ids that new
messages repeat; every method hashes ids in its own way, and passes these hashes to `Window.chunks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from events import event_values

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile

    from waybill.tables.staging.table_layout import TableLayout

    Array = np.ndarray[Any, np.dtype[Any]]

HOUR_MS = 3_600_000
WINDOW_MS = 28 * 24 * HOUR_MS
NOW_MS = 1_780_000_000_000 // HOUR_MS * HOUR_MS
"""The arrival of the first new message; the others arrive within an hour."""

TOPIC = "bench"
PARTITIONS = 4

_FIRST_OFFSET = 100_000_000
_BATCH_ROWS = 20_000
_CHUNK_KEYS = 1 << 20
_ID_BYTES = 36
_ID_DASHES = [8, 13, 18, 23]
_ID_DIGITS = [n for n in range(_ID_BYTES) if n not in _ID_DASHES]
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


class Keys(NamedTuple):
    """Keys of a window in the order of arrival: hashes as two uint64, arrival in epoch ms."""

    hi: Array
    lo: Array
    arrived_ms: Array


@dataclass(frozen=True)
class NewRows:
    """`count` new messages, of which 6 in 1,000 repeat a key of the window."""

    count: int

    @cached_property
    def repeated(self) -> Array:
        """The numbers of the messages that repeat a key, ascending."""
        return np.sort(np.random.default_rng(11).choice(self.count, self.count * 6 // 1000, replace=False))

    @cached_property
    def ids(self) -> Array:
        """The message ids, one row of 36 bytes each: UUIDs of version 4 as text."""
        chance = np.random.default_rng(12)
        ids = np.full((self.count, _ID_BYTES), ord("-"), np.uint8)
        ids[:, _ID_DIGITS] = _HEX[chance.integers(0, 16, (self.count, len(_ID_DIGITS)), dtype=np.uint8)]
        ids[:, 14] = ord("4")
        ids[:, 19] = _HEX[chance.integers(8, 12, self.count, dtype=np.uint8)]
        return ids

    def id_texts(self, numbers: Array) -> pa.Array:
        """Return the message ids of these numbers as an Arrow array."""
        return _fixed_width(self.ids[numbers], pa.string())

    def write(self, layout: TableLayout, io: FileIO, scratch: Path) -> list[DataFile]:
        """Write the rows to files, as a partition run with two tasks does."""
        from waybill.tables.partition.rows import TABLE_ROWS
        from waybill.tables.staging.file_writer import PartitionedWriter
        from waybill.tables.staging.uploads import Uploads

        uploads = Uploads(io)
        files: list[DataFile] = []
        try:
            for task, (first, end) in enumerate([(0, self.count // 2), (self.count // 2, self.count)]):
                writer = PartitionedWriter(
                    layout, TABLE_ROWS, memory_bytes=256 << 20, scratch=scratch, uploads=uploads, name=f"new-{task}"
                )
                for start in range(first, end, _BATCH_ROWS):
                    writer.add(self._batch(start, min(_BATCH_ROWS, end - start), TABLE_ROWS))
                files += writer.finish()
            uploads.wait()
        finally:
            uploads.close()
        return files

    def _batch(self, start: int, n: int, schema: pa.Schema) -> pa.RecordBatch:
        """Return `n` rows of the table. All are of one topic-partition, like the rows that a task parses at a time."""
        numbers = np.arange(start, start + n)
        arrived_ms = NOW_MS + numbers * HOUR_MS // self.count
        event_ms = arrived_ms - np.random.default_rng(start).integers(5, 2000, n)
        ids = self.ids[start : start + n]
        values = event_values(start, n)
        values[:, 13:45] = ids[:, _ID_DIGITS]  # the id within the JSON
        headers = schema.field("headers").type
        no_headers = pa.ListArray.from_arrays(
            pa.array(np.zeros(n + 1, np.int32)), pa.array([], headers.value_type), type=headers
        )
        columns = [
            pa.repeat(TOPIC, n),
            pa.repeat(pa.scalar(start // _BATCH_ROWS % PARTITIONS, pa.int32()), n),
            pa.array(_FIRST_OFFSET + numbers // (_BATCH_ROWS * PARTITIONS) * _BATCH_ROWS + numbers % _BATCH_ROWS),
            _timestamps(arrived_ms),
            _fixed_width(ids[:, :8], pa.binary()),
            no_headers,
            _fixed_width(values, pa.binary()),
            _timestamps(event_ms),
            _fixed_width(ids, pa.string()),
            pa.repeat(pa.scalar(1, pa.int32()), n),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class Window:
    """`count` keys that arrived evenly over the 28 days before the new messages."""

    count: int
    new: NewRows

    @cached_property
    def repeats(self) -> Array:
        """The places in the window of the keys that `new.repeated` repeat.

        Nine of ten are among the keys of the last day, the others among those of the first.
        """
        chance = np.random.default_rng(13)
        n = len(self.new.repeated)
        day = max(self.count // 28, n)
        old = chance.choice(day, n // 10, replace=False)
        recent = self.count - 1 - chance.choice(day, n - n // 10, replace=False)
        return chance.permutation(np.concatenate([old, recent]))

    def chunks(self, hi: Array, lo: Array) -> Iterator[Keys]:
        """Yield all keys; `hi` and `lo` are the hashes of the repeated ids, in the order of `new.repeated`."""
        for start in range(0, self.count, _CHUNK_KEYS):
            n = min(_CHUNK_KEYS, self.count - start)
            high, low = np.random.default_rng([17, start]).integers(0, 1 << 64, (2, n), dtype=np.uint64)
            here = np.flatnonzero((self.repeats >= start) & (self.repeats < start + n))
            high[self.repeats[here] - start] = hi[here]
            low[self.repeats[here] - start] = lo[here]
            # The oldest key is still within the window of the last new message.
            span_ms = WINDOW_MS - 2 * HOUR_MS
            yield Keys(high, low, NOW_MS - span_ms + np.arange(start, start + n) * span_ms // self.count)


@dataclass(frozen=True)
class Inputs:
    """The input of one method: the new rows and their Parquet files, the window, and a folder for its own files."""

    new: NewRows
    files: Sequence[str]
    window: Window
    folder: Path


def local_layout(folder: Path) -> TableLayout:
    """Return the layout of a stream's table by hour, with its files in a local folder."""
    from waybill.config.models import PartitionBy
    from waybill.tables.iceberg.schemas import TABLE_SCHEMA, partition_spec
    from waybill.tables.staging.table_layout import TableLayout

    return TableLayout("bench.new", f"file://{folder}", TABLE_SCHEMA, partition_spec(PartitionBy()), 1, {})


def _fixed_width(rows: Array, kind: pa.DataType) -> pa.Array:
    n, width = rows.shape
    offsets = pa.py_buffer(np.arange(0, (n + 1) * width, width, dtype=np.int32))
    return pa.Array.from_buffers(kind, n, [None, offsets, pa.py_buffer(np.ascontiguousarray(rows))])


def _timestamps(ms: Array) -> pa.Array:
    return pa.array(ms.astype(np.int64) * 1000, pa.timestamp("us", "UTC"))
