"""The rows of decoded messages: their Arrow schema, and the RecordBatches that the kernels fill."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from waybill.records.batches import _kernels as kernels
from waybill.records.batches.framing import BatchHeader, TimestampType
from waybill.records.batches.limits import SET_ASIDE, Limits

if TYPE_CHECKING:
    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

HEADERS_TYPE = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)
"""The schema of the batches that `decode` yields: one row for each message.

- `timestamp`: Kafka's timestamp in microseconds, the unit of Iceberg's `timestamptz`. With LogAppendTime it is the
  batch's timestamp, otherwise the record's. "No timestamp" (-1 ms in Kafka) stays -1 ms, which is `NO_TIMESTAMP_US`;
  Java producers refuse every other negative timestamp. Milliseconds beyond ±9,223,372,036,854,775 (the year 294,247,
  from producers that send nanoseconds as milliseconds) become that limit; the archive keeps the original.
- `key`, `value`: null and empty differ. A null value is a tombstone.
- `headers`: in order, with repeated keys; null and empty values differ. Bytes of a header's key that are not UTF-8
  become U+FFFD, as in Kafka's Java client.
"""

NO_TIMESTAMP_US = -1000
"""The `timestamp` of a message without a timestamp, in microseconds."""

_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
MAX_ROWS = 1 << 16
SET_ASIDE_SCHEMA = MESSAGE_SCHEMA.append(pa.field(SET_ASIDE, pa.string()))
_BATCH_ROW = struct.Struct(f"={kernels.BATCH_COLUMNS}q")
_NO_HEADERS = pa.array([], HEADERS_TYPE.value_type)
FAULT_REASONS = {
    kernels.RecordFault.RECORD_LENGTH: "a record does not end within the batch",
    kernels.RecordFault.RECORD_FIELDS: "a record's fields do not fit its length",
    kernels.RecordFault.OFFSET: "a record's offset is not between the one before and the batch's last",
    kernels.RecordFault.HEADERS: "a record's headers do not fit its length",
    kernels.RecordFault.RECORD_END: "a record is longer than its fields",
    kernels.RecordFault.TRAILING: "bytes are left after the last record",
}


def batch_row(header: BatchHeader, start: int, end: int) -> bytes:
    """Return the fields of a batch that the kernels need, in the order of the columns in `_kernels`."""
    return _BATCH_ROW.pack(
        start,
        end,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.timestamp_type is TimestampType.LOG_APPEND_TIME,
        header.record_count,
    )


class MessageRows:
    """The positions in the arena of the parts of up to `MAX_ROWS` messages. Builds a RecordBatch from them."""

    def __init__(self) -> None:
        self._offsets: Int64s = np.empty(MAX_ROWS, np.int64)
        self._timestamps: Int64s = np.empty(MAX_ROWS, np.int64)
        self._spans = np.empty((kernels.SPAN_ROWS, MAX_ROWS), np.int32)
        self._totals: Int64s = np.empty(kernels.TOTALS, np.int64)

    def measure(self, arena: Bytes, batches: Int64s, state: Int64s, limits: Int64s, max_bytes: int) -> int:
        return int(
            kernels.measure(
                arena, batches, state, limits, max_bytes, self._offsets, self._timestamps, self._spans, self._totals
            )
        )

    def measure_head(self, arena: Bytes, end: int, batch: Int64s, state: Int64s, limits: Int64s) -> int:
        """Store the message at the position of `state`, which is too large, from its first bytes; return 0 or 1."""
        return int(
            kernels.measure_head(
                arena,
                state[kernels.POSITION],
                end,
                batch,
                state,
                limits,
                self._offsets,
                self._timestamps,
                self._spans,
                self._totals,
            )
        )

    def record_batch(self, arena: Bytes, n: int, limits: Limits) -> pa.RecordBatch:
        """Return the first `n` stored messages. A message that exceeds a limit makes a column `SET_ASIDE`."""
        totals, spans = self._totals, self._spans
        # Copy it, since Arrow would share the scratch array, which the next call of `measure` overwrites.
        offsets, offset_buffer = _new(n, np.int64)
        offsets[:] = self._offsets[:n]
        timestamps, timestamp_buffer = _new(n, np.int64)
        kernels.fill_microseconds(self._timestamps, n, _MAX_TIMESTAMP_MS, timestamps)
        columns = [
            pa.Array.from_buffers(pa.int64(), n, [None, offset_buffer]),
            pa.Array.from_buffers(MESSAGE_SCHEMA.field("timestamp").type, n, [None, timestamp_buffer]),
            _binary(arena, spans[kernels.KEY : kernels.KEY + 2], n, *totals[kernels.KEY_BYTES : kernels.KEY_NULLS + 1]),
            _binary(
                arena,
                spans[kernels.VALUE : kernels.VALUE + 2],
                n,
                *totals[kernels.VALUE_BYTES : kernels.VALUE_NULLS + 1],
            ),
            _headers(arena, spans, n, totals),
        ]
        if not totals[kernels.BEYOND]:
            return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
        return pa.RecordBatch.from_arrays([*columns, self._reasons(n, limits)], schema=SET_ASIDE_SCHEMA)

    def _reasons(self, n: int, limits: Limits) -> Any:
        reasons: list[str | None] = [None] * n
        marks, sizes = self._spans[kernels.HEADERS, :n], self._spans[kernels.VALUE]
        for row in np.flatnonzero(marks < 0).tolist():
            too_large = marks[row] == kernels.TOO_LARGE
            reasons[row] = (limits.size_reason if too_large else limits.headers_reason)(int(sizes[row]))
        return pa.array(reasons, pa.string())


def left_out(first_offset: int, next_offset: int, timestamp_ms: int, reason: str) -> pa.RecordBatch:
    """Return messages of which only the offsets are known."""
    n = next_offset - first_offset
    time_us = min(max(timestamp_ms, -_MAX_TIMESTAMP_MS), _MAX_TIMESTAMP_MS) * 1000
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(first_offset, next_offset, dtype=np.int64)),
            pa.array(np.full(n, time_us)).cast(MESSAGE_SCHEMA.field("timestamp").type),
            pa.nulls(n, pa.binary()),
            pa.nulls(n, pa.binary()),
            pa.array([[]] * n, HEADERS_TYPE),
            pa.repeat(reason, n),
        ],
        schema=SET_ASIDE_SCHEMA,
    )


def _new(n: int, kind: Any) -> tuple[Any, Any]:
    """Return an uninitialised array of `n` elements, and the Arrow buffer that contains it."""
    buffer = pa.allocate_buffer(n * np.dtype(kind).itemsize)
    return np.frombuffer(buffer, kind), buffer


def _binary(arena: Bytes, spans: Any, n: int, n_bytes: int, nulls: int) -> Any:
    """Return an Arrow binary column of the bytes at `spans` (starts, lengths)."""
    ends, end_buffer = _new(n + 1, np.int32)
    data, data_buffer = _new(int(n_bytes), np.uint8)
    validity, validity_buffer = _new((n + 7) // 8 if nulls else 0, np.uint8)
    validity[:] = 0
    kernels.fill_bytes(arena, spans[0], spans[1], n, ends, validity, data)
    return pa.Array.from_buffers(
        pa.binary(), n, [validity_buffer if nulls else None, end_buffer, data_buffer], null_count=int(nulls)
    )


def _headers(arena: Bytes, spans: Any, n: int, totals: Int64s) -> Any:
    entries = int(totals[kernels.N_HEADERS])
    list_ends, list_buffer = _new(n + 1, np.int32)
    if not entries:
        list_ends[:] = 0
        return pa.Array.from_buffers(HEADERS_TYPE, n, [None, list_buffer], children=[_NO_HEADERS])
    key_spans, value_spans = np.empty((2, entries), np.int32), np.empty((2, entries), np.int32)
    kernels.fill_headers(arena, spans, n, list_ends, key_spans, value_spans)
    keys = _text(_binary(arena, key_spans, entries, int(totals[kernels.HKEY_BYTES]), 0))
    values = _binary(arena, value_spans, entries, int(totals[kernels.HVALUE_BYTES]), int(totals[kernels.HVALUE_NULLS]))
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    return pa.Array.from_buffers(HEADERS_TYPE, n, [None, list_buffer], children=[pairs])


def _text(keys: Any) -> Any:
    """Return binary values as strings. Bytes that are not UTF-8 become U+FFFD."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([bytes(key).decode("utf-8", errors="replace") for key in keys.to_pylist()], pa.string())
