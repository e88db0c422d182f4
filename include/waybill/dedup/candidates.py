"""The rows that a sweep judges: one row each of plain numbers, without their key or message."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.records._kernels import Array
from waybill.tables.dedup import NO_HORIZON_MS

__all__ = ["UNBOUNDED_MS", "Candidates", "arrivals_ms"]

UNBOUNDED_MS = NO_HORIZON_MS
"""As a lower bound of arrival, or as a horizon: none."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Rows with a key, column by column; all arrays are of one length, and nobody changes them."""

    hi: Array
    """uint64: half of the key's hash."""
    lo: Array
    """uint64: the other half."""
    arrived_ms: Array
    """int64: arrival, epoch ms."""
    tp: Array
    """int32: ordinal in the plan's sorted list of topic-partitions."""
    offset: Array
    """int64: Kafka's offset."""
    file: Array
    """int32: ordinal in the plan's list of files."""
    row: Array
    """int64: row of that file, from 0."""

    def __len__(self) -> int:
        return len(self.hi)

    @classmethod
    def empty(cls) -> Candidates:
        """No row at all."""
        return cls(*(np.empty(0, field.type.to_pandas_dtype()) for field in _SCHEMA))

    def take(self, indices: Array) -> Candidates:
        """The rows of these indices, or where this mask is true, in that order."""
        return Candidates(*(column[indices] for column in self._columns()))

    def between(self, start: int, end: int) -> Candidates:
        """Those from `start` on and before `end`; nothing is copied."""
        return Candidates(*(column[start:end] for column in self._columns()))

    @staticmethod
    def concat(parts: Sequence[Candidates]) -> Candidates:
        """All of them, one after the other; no row for no parts."""
        if not parts:
            return Candidates.empty()
        return Candidates(*(np.concatenate(columns) for columns in zip(*(p._columns() for p in parts), strict=True)))

    def to_bytes(self) -> bytes:
        """As an Arrow IPC stream of one record batch, uncompressed: 48 bytes a row."""
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in self._columns()], schema=_SCHEMA)
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, _SCHEMA) as stream:
            stream.write_batch(batch)
        return sink.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Candidates:
        """The inverse of `to_bytes`. Nothing is copied: the arrays lie in `data`, and cannot be written."""
        with pa.ipc.open_stream(data) as stream:
            batch = stream.read_next_batch()
        return Candidates(*(column.to_numpy() for column in batch.columns))

    def _columns(self) -> tuple[Array, ...]:
        return self.hi, self.lo, self.arrived_ms, self.tp, self.offset, self.file, self.row


_SCHEMA = pa.schema(
    [
        pa.field("hi", pa.uint64(), nullable=False),
        pa.field("lo", pa.uint64(), nullable=False),
        pa.field("arrived_ms", pa.int64(), nullable=False),
        pa.field("tp", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("file", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)


def arrivals_ms(kafka_timestamp: pa.Array, event_time: pa.Array, tp: Array, low_ms: Array, high_ms: int) -> Array:
    """When each row arrived, as dedup counts it: epoch ms, int64.

    Kafka's timestamp, or the event time where there is none, whole milliseconds, no later than `high_ms` and no earlier
    than `low_ms[tp]` (int64, `UNBOUNDED_MS`: no such bound); the lower bound wins where they contradict.

    Raises `ValueError` if a row has neither time.
    """
    times = pc.coalesce(kafka_timestamp, event_time.cast(kafka_timestamp.type))
    if times.null_count:
        raise ValueError(f"{times.null_count:,} rows have neither kafka_timestamp nor event_time")
    return np.maximum(np.minimum(_whole_ms(times), high_ms), np.asarray(low_ms, np.int64)[tp])


def _whole_ms(times: pa.Array) -> Array:
    """Timestamps of any unit in ms, rounded down, before 1970 as well."""
    ticks: Array = times.cast(pa.int64()).to_numpy()
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[times.type.unit]
    return ticks * 1_000 if per_second == 1 else ticks // (per_second // 1_000)
