"""Decoding record batches to Arrow, with compiled loops and no Python code per message.

Batches are decompressed one after the other into one arena of a few megabytes, which stays in the processor's cache.
Then one call walks the records of all these batches and notes where their parts lie, and a few calls copy the parts
into Arrow buffers. docs/decisions/0002-decode.md gives the reasons and the measurements.

Importing this module imports numba and pyarrow. numba caches the compiled code beside the source or, if that directory
is not writable, in the user's cache directory (`NUMBA_CACHE_DIR` overrides both).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from waybill.errors import CorruptBatch
from waybill.records import _kernels as kernels
from waybill.records.compression import BadCompression, OutputTooSmall, decompress_into
from waybill.records.framing import (
    DEFAULT_MAX_BATCH_BYTES,
    HEADER_BYTES,
    BatchHeader,
    Frame,
    TimestampType,
    check_crc,
    frames,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["HEADERS_TYPE", "MESSAGE_SCHEMA", "NO_TIMESTAMP_US", "DecodeBuffers", "decode", "decode_offsets"]

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
_MAX_OFFSET = 2**63 - 1
_MAX_ROWS = 1 << 16
_MIN_RECORD_BYTES = 7
_OFFSETS_CHUNK = 1 << 20
_ARENA_BYTES = 2 << 20
_MAX_ARENA_BYTES = 1 << 30
"""Positions in the arena, and so in the Arrow columns, are int32."""
_BATCH_ROW = struct.Struct(f"={kernels.BATCH_COLUMNS}q")
_NO_HEADERS = pa.array([], HEADERS_TYPE.value_type)
_REASONS = {
    kernels.Fault.RECORD_LENGTH: "a record does not end within the batch",
    kernels.Fault.RECORD_FIELDS: "a record's fields do not fit its length",
    kernels.Fault.OFFSET: "a record's offset is not between the one before and the batch's last",
    kernels.Fault.HEADERS: "a record's headers do not fit its length",
    kernels.Fault.RECORD_END: "a record is longer than its fields",
    kernels.Fault.TRAILING: "bytes are left after the last record",
}


def decode(
    source: Buffer | Iterable[Frame],
    *,
    where: str,
    first_offset: int | None = None,
    next_offset: int | None = None,
    max_bytes: int = 64 << 20,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    verify_crc: bool = True,
    buffers: DecodeBuffers | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode record batches into Arrow RecordBatches of `MESSAGE_SCHEMA`, in order of offset.

    `source`: the bytes of whole record batches, or frames (from `read_frames`, so that a large object is never whole in
    memory). `where` names the object in errors. Only messages with an offset in `[first_offset, next_offset)` are
    yielded, and none of control batches. Batches outside of that range are not checked.

    A RecordBatch holds about 10,000 messages (about 2 MB). It holds at most `max_bytes` of keys, values and headers,
    unless it holds a single message. Empty ones are not yielded. `max_batch_bytes` limits the decompressed size of one
    record batch, since a few kilobytes can decompress to gigabytes. `buffers`: memory for a caller that decodes many
    small objects one after the other.

    Raises `CorruptBatch` or `UnsupportedBatch` with `where` and the byte at which the faulty batch starts. The messages
    that were yielded before are sound. `verify_crc=False` is for batches whose CRCs were checked before: malformed
    records are still found, but damage inside a value is not.
    """
    decoder = _Decoder(where, first_offset, next_offset, max_bytes, max_batch_bytes, buffers)
    for frame in _data_frames(source, where, decoder.limits, verify_crc=verify_crc):
        while not decoder.add(frame):
            yield from decoder.flush()
    yield from decoder.flush()


def decode_offsets(
    source: Buffer | Iterable[Frame],
    *,
    where: str,
    first_offset: int | None = None,
    next_offset: int | None = None,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    verify_crc: bool = True,
) -> Iterator[Int64s]:
    """Yield the offsets of the messages that `decode` would yield, in int64 arrays.

    An array holds at most a million offsets, or those of one batch. A batch whose header shows that it lacks no offset
    is not decompressed, since the CRC covers these fields of the header. So only compacted topics cost more than a CRC
    check. The arguments and errors are those of `decode`.
    """
    decoder = _Decoder(where, first_offset, next_offset, 1, max_batch_bytes, None)
    for frame in _data_frames(source, where, decoder.limits, verify_crc=verify_crc):
        if not frame.header.is_dense:
            yield from decoder.offsets_of(frame)
            continue
        low = max(frame.header.base_offset, int(decoder.limits[0]))
        high = min(frame.header.next_offset, int(decoder.limits[1]))
        for start in range(low, high, _OFFSETS_CHUNK):
            yield np.arange(start, min(start + _OFFSETS_CHUNK, high), dtype=np.int64)


def _data_frames(source: Buffer | Iterable[Frame], where: str, limits: Int64s, *, verify_crc: bool) -> Iterator[Frame]:
    """Yield the frames that can hold messages within the limits, checked."""
    first, following = int(limits[0]), int(limits[1])
    for frame in _frames_of(source, where):
        header = frame.header
        if header.next_offset <= first or header.base_offset >= following:
            continue
        if verify_crc:
            check_crc(frame, where)
        if header.is_control:
            continue
        if header.record_count:
            yield frame
        elif len(frame.data) > HEADER_BYTES and not header.codec:
            raise CorruptBatch(where, frame.position, "bytes follow the header of a batch without records")


def _frames_of(source: Buffer | Iterable[Frame], where: str) -> Iterable[Frame]:
    try:
        view = memoryview(source)  # type: ignore[arg-type]
    except TypeError:
        return source  # type: ignore[return-value]
    return frames(view, where=where)


class DecodeBuffers:
    """Memory that calls of `decode` share. Only one call may use it at a time.

    Without it, each call would allocate a few megabytes, and the operating system would map every page again.
    """

    def __init__(self) -> None:
        self.arena: Bytes = np.empty(2 * _ARENA_BYTES, np.uint8)
        self.rows = _Rows()


class _Decoder:
    """An arena of decompressed batches, and the arrays that the kernels fill from it, for one call of `decode`."""

    def __init__(
        self,
        where: str,
        first_offset: int | None,
        next_offset: int | None,
        max_bytes: int,
        max_batch_bytes: int,
        buffers: DecodeBuffers | None,
    ) -> None:
        if not 0 < max_bytes <= _MAX_ARENA_BYTES or not 0 < max_batch_bytes <= _MAX_ARENA_BYTES:
            raise ValueError(
                f"max_bytes={max_bytes:,} and max_batch_bytes={max_batch_bytes:,} must be between 1 and "
                f"{_MAX_ARENA_BYTES:,}"
            )
        self.limits: Int64s = np.array([first_offset or 0, _MAX_OFFSET if next_offset is None else next_offset])
        self._where = where
        self._max_bytes = max_bytes
        self._max_batch_bytes = max_batch_bytes
        buffers = buffers or DecodeBuffers()
        # A larger arena, if a batch needs one, belongs to this decoder alone.
        self._arena, self._rows = buffers.arena, buffers.rows
        self._used = 0
        self._batches: list[tuple[int, bytes]] = []
        self._records = 0

    def add(self, frame: Frame) -> bool:
        """Decompress a batch into the arena. Return False if there is no room: flush, then call again."""
        if self._used >= _ARENA_BYTES or self._records >= _MAX_ROWS:
            return False
        start = self._used
        end = self._decompress(frame)
        if end is None:
            return False
        count = frame.header.record_count
        if count * _MIN_RECORD_BYTES > end - start:
            raise self._corrupt(frame.position, f"record count {count} does not fit {end - start} bytes of records")
        self._batches.append((frame.position, _batch_row(frame.header, start, end)))
        self._used = end
        self._records += count
        return True

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the content of the arena as RecordBatches, and empty the arena."""
        batches = np.frombuffer(b"".join(row for _, row in self._batches), np.int64).reshape(-1, kernels.BATCH_COLUMNS)
        state = np.zeros(kernels.STATE_FIELDS, np.int64)
        state[kernels.POSITION] = -1
        while state[kernels.BATCH] < len(batches):
            n = self._rows.measure(self._arena, batches, state, self.limits, self._max_bytes)
            self._raise_for(int(state[kernels.FAULT]), int(state[kernels.BATCH]))
            if n:
                yield self._rows.record_batch(self._arena, n)
        self._batches.clear()
        self._used = self._records = 0

    def offsets_of(self, frame: Frame) -> Iterator[Int64s]:
        """Yield the offsets of one batch within the limits. The arena must be empty."""
        while not self.add(frame):
            pass  # the arena was too small and has grown
        batch = np.frombuffer(self._batches[0][1], np.int64)
        offsets = np.empty(frame.header.record_count, np.int64)
        count = kernels.measure_offsets(self._arena, batch, self.limits, offsets)
        self._raise_for(-min(count, 0), 0)
        self._batches.clear()
        self._used = self._records = 0
        if count:
            yield offsets[:count]

    def _decompress(self, frame: Frame) -> int | None:
        """Append the decompressed batch to the arena. Return its end; None if the arena was too small and has grown."""
        start = self._used
        room = min(len(self._arena) - start, self._max_batch_bytes)
        output = self._arena.data[start : start + room]
        try:
            return start + decompress_into(frame.header.codec, frame.data[HEADER_BYTES:], output)
        except BadCompression as error:
            name = frame.header.codec.name.lower()
            raise self._corrupt(frame.position, f"records cannot be decompressed ({name}: {error})") from None
        except OutputTooSmall:
            if room == self._max_batch_bytes:
                raise self._corrupt(
                    frame.position,
                    f"a batch of {len(frame.data):,} bytes holds more than {room:,} bytes of records. "
                    f"If its producer is trusted, raise max_batch_bytes",
                ) from None
        if not start:
            self._arena = np.empty(min(2 * len(self._arena), _MAX_ARENA_BYTES), np.uint8)
        return None

    def _raise_for(self, fault: int, batch: int) -> None:
        if fault:
            raise self._corrupt(self._batches[batch][0], _REASONS[kernels.Fault(fault)])

    def _corrupt(self, position: int, reason: str) -> CorruptBatch:
        return CorruptBatch(self._where, position, reason)


def _batch_row(header: BatchHeader, start: int, end: int) -> bytes:
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


class _Rows:
    """The positions in the arena of the parts of up to `_MAX_ROWS` messages. Builds a RecordBatch from them."""

    def __init__(self) -> None:
        self._offsets: Int64s = np.empty(_MAX_ROWS, np.int64)
        self._timestamps: Int64s = np.empty(_MAX_ROWS, np.int64)
        self._spans = np.empty((kernels.SPAN_ROWS, _MAX_ROWS), np.int32)
        self._totals: Int64s = np.empty(kernels.TOTALS, np.int64)

    def measure(self, arena: Bytes, batches: Int64s, state: Int64s, limits: Int64s, max_bytes: int) -> int:
        return int(
            kernels.measure(
                arena, batches, state, limits, max_bytes, self._offsets, self._timestamps, self._spans, self._totals
            )
        )

    def record_batch(self, arena: Bytes, n: int) -> pa.RecordBatch:
        totals, spans = self._totals, self._spans
        # Copied, since Arrow would share the scratch array, which the next call of `measure` overwrites.
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
        return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


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
