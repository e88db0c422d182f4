"""Decode record batches to Arrow, with compiled loops and no Python code per message.

Batches are decompressed one after the other into one arena of a few megabytes, which stays in the processor's cache.
Then one call walks the records of all these batches and stores the positions of their parts, and a few calls copy the
parts into Arrow buffers. docs/decisions/0002-decode.md gives the reasons and the measurements.

Importing this module imports numba and pyarrow. numba caches the compiled code beside the source or, if that directory
is not writable, in the user's cache directory (`NUMBA_CACHE_DIR` overrides both).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from waybill.base.errors import CorruptBatch
from waybill.records.batches import _kernels as kernels
from waybill.records.batches.compression import BadCompression, OutputTooSmall, decompress_into
from waybill.records.batches.framing import HEADER_BYTES, Frame, check_crc, frames
from waybill.records.batches.large_batch import LargeBatch
from waybill.records.batches.limits import LARGEST, SET_ASIDE, Limits
from waybill.records.batches.message_rows import (
    FAULT_REASONS,
    MAX_ROWS,
    MessageRows,
    batch_row,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_MAX_OFFSET = 2**63 - 1
_MIN_RECORD_BYTES = 7
_OFFSETS_CHUNK = 1 << 20
_ARENA_BYTES = 2 << 20
_MAX_ARENA_BYTES = 1 << 30
"""Positions in the arena, and so in the Arrow columns, are int32."""
_WHOLE_BATCH_BYTES = 32 << 20
"""A batch with more bytes of records is decompressed piece by piece: a few kilobytes can hold gigabytes."""


def decode(
    source: Buffer | Iterable[Frame],
    *,
    where: str,
    first_offset: int | None = None,
    next_offset: int | None = None,
    max_bytes: int = 64 << 20,
    limits: Limits = LARGEST,
    set_aside: bool = False,
    whole_batch_bytes: int = _WHOLE_BATCH_BYTES,
    verify_crc: bool = True,
    buffers: DecodeBuffers | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode record batches into Arrow RecordBatches of `MESSAGE_SCHEMA`, in order of offset.

    `source`: the bytes of whole record batches, or frames (from `read_frames`, so that a large object is never whole in
    memory). `where` names the object in errors. Only messages with an offset in `[first_offset, next_offset)` are
    yielded, and none of control batches. Batches outside of that range are not checked.

    A RecordBatch holds about 10,000 messages (about 2 MB). It holds at most `max_bytes` of keys, values and headers,
    unless it holds a single message. Empty ones are not yielded. A record batch with more than `whole_batch_bytes` of
    records is decompressed piece by piece, since a few kilobytes can hold gigabytes. `buffers`: memory for a caller
    that decodes many small objects one after the other.

    `limits`: the limits of one message. With `set_aside`, a message that exceeds them is yielded with its offset,
    timestamp and key (up to 64 KiB), a null value and no headers, in a batch that has the column `SET_ASIDE` with the
    reason. Without `set_aside`, such a message raises `CorruptBatch`, since its null value must not be read as a
    tombstone.

    Raises `CorruptBatch` or `UnsupportedBatch` with `where` and the byte at which the faulty batch starts. The messages
    that were yielded before are sound. `verify_crc=False` is for batches whose CRCs were checked before: malformed
    records are still found, but damage inside a value is not.
    """
    decoder = _Decoder(where, first_offset, next_offset, max_bytes, whole_batch_bytes, buffers, limits)
    decoded = _decoded(decoder, _data_frames(source, where, decoder.limits, verify_crc=verify_crc))
    yield from decoded if set_aside else _refuse_incomplete(decoded, where)


def _decoded(decoder: _Decoder, source: Iterator[Frame]) -> Iterator[pa.RecordBatch]:
    for frame in source:
        while not decoder.add(frame):
            yield from decoder.flush()
            if decoder.is_too_large:
                yield from decoder.large_batch(frame)
                break
    yield from decoder.flush()


def _refuse_incomplete(batches: Iterator[pa.RecordBatch], where: str) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if SET_ASIDE not in batch.schema.names:
            yield batch
            continue
        row = batch.column(SET_ASIDE).is_valid().index(True).as_py()
        raise CorruptBatch(where, 0, f"offset {batch.column('offset')[row]}: {batch.column(SET_ASIDE)[row]}")


def decode_offsets(
    source: Buffer | Iterable[Frame],
    *,
    where: str,
    first_offset: int | None = None,
    next_offset: int | None = None,
    whole_batch_bytes: int = _WHOLE_BATCH_BYTES,
    verify_crc: bool = True,
) -> Iterator[Int64s]:
    """Yield the offsets of the messages of `decode` in int64 arrays, including messages that exceed the limits.

    An array holds at most a million offsets, or the offsets of one batch. A batch whose header shows that it lacks no
    offset is not decompressed, since the CRC covers these fields of the header. So only compacted topics cost more than
    a CRC check. The arguments and errors are those of `decode`.
    """
    decoder = _Decoder(where, first_offset, next_offset, _MAX_ARENA_BYTES, whole_batch_bytes, None, LARGEST)
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
        self.rows = MessageRows()


class _Decoder:
    """An arena of decompressed batches, and the arrays that the kernels fill from it, for one call of `decode`."""

    def __init__(
        self,
        where: str,
        first_offset: int | None,
        next_offset: int | None,
        max_bytes: int,
        whole_batch_bytes: int,
        buffers: DecodeBuffers | None,
        limits: Limits,
    ) -> None:
        if not 0 < max_bytes <= _MAX_ARENA_BYTES or not 0 < whole_batch_bytes <= _MAX_ARENA_BYTES:
            raise ValueError(
                f"max_bytes={max_bytes:,} and whole_batch_bytes={whole_batch_bytes:,} must be between 1 and "
                f"{_MAX_ARENA_BYTES:,}"
            )
        if not 0 < limits.max_bytes <= LARGEST.max_bytes or not 0 <= limits.max_headers <= LARGEST.max_headers:
            raise ValueError(f"{limits} must be positive, and at most {LARGEST}")
        last = _MAX_OFFSET if next_offset is None else next_offset
        self.limits: Int64s = np.array([first_offset or 0, last, limits.max_bytes, limits.max_headers])
        self._message_limits = limits
        self.is_too_large = False
        """Whether the last batch that `add` refused is too large to be decompressed as a whole."""
        self._where = where
        self._max_bytes = max_bytes
        self._whole_batch_bytes = whole_batch_bytes
        buffers = buffers or DecodeBuffers()
        # A larger arena, if a batch needs one, belongs to this decoder alone.
        self._arena, self._rows = buffers.arena, buffers.rows
        self._used = 0
        self._batches: list[tuple[int, bytes]] = []
        self._records = 0

    def add(self, frame: Frame) -> bool:
        """Decompress a batch into the arena. Return False if there is no room: flush, then call again.

        If `is_too_large`, call `large_batch` instead.
        """
        self.is_too_large = False
        if self._used >= _ARENA_BYTES or self._records >= MAX_ROWS:
            return False
        start = self._used
        end = self._decompress(frame)
        if end is None:
            return False
        count = frame.header.record_count
        if count * _MIN_RECORD_BYTES > end - start:
            raise self._corrupt(frame.position, f"record count {count} does not fit {end - start} bytes of records")
        self._batches.append((frame.position, batch_row(frame.header, start, end)))
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
                yield self._rows.record_batch(self._arena, n, self._message_limits)
        self._batches.clear()
        self._used = self._records = 0

    def large_batch(self, frame: Frame) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a batch that is too large for the arena, which must be empty."""
        window, rows = self._arena, self._rows
        yield from LargeBatch(
            frame, self._where, self._message_limits, self.limits, window, rows, self._max_bytes
        ).batches()

    def offsets_of(self, frame: Frame) -> Iterator[Int64s]:
        """Yield the offsets of one batch within the limits. The arena must be empty."""
        while not self.add(frame):  # the arena was too small and has grown
            if self.is_too_large:
                for messages in self.large_batch(frame):
                    yield messages.column("offset").to_numpy()
                return
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
        room = min(len(self._arena) - start, self._whole_batch_bytes)
        output = self._arena.data[start : start + room]
        try:
            return start + decompress_into(frame.header.codec, frame.data[HEADER_BYTES:], output)
        except BadCompression as error:
            name = frame.header.codec.name.lower()
            raise self._corrupt(frame.position, f"records cannot be decompressed ({name}: {error})") from None
        except OutputTooSmall:
            if room == self._whole_batch_bytes:
                self.is_too_large = True
                return None
        if not start:
            self._arena = np.empty(min(2 * len(self._arena), max(self._whole_batch_bytes, len(self._arena))), np.uint8)
        return None

    def _raise_for(self, fault: int, batch: int) -> None:
        if fault:
            raise self._corrupt(self._batches[batch][0], FAULT_REASONS[kernels.RecordFault(fault)])

    def _corrupt(self, position: int, reason: str) -> CorruptBatch:
        return CorruptBatch(self._where, position, reason)
