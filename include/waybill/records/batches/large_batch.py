"""Decode one record batch that is too large to be decompressed as a whole.

It is decompressed piece by piece into a window, which holds whole messages. The window grows only up to the size of a
message within the limits, and as bytes arrive, never to the size that a length field states. If a message exceeds the
limits, only its first bytes are kept, and the others are skipped. So the memory depends on the limits alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from waybill.base.errors import CorruptBatch
from waybill.records.batches import _kernels as kernels
from waybill.records.batches.compression import BadCompression, DecompressedStream
from waybill.records.batches.framing import HEADER_BYTES, Frame
from waybill.records.batches.limits import Limits
from waybill.records.batches.message_rows import FAULT_REASONS, MAX_ROWS, MessageRows, batch_row, left_out

if TYPE_CHECKING:
    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

MOST_BATCH_BYTES = 4 << 30
"""After this number of bytes of one batch, the remaining messages are left out. Kafka's producers build a batch in
memory, in at most 2 GiB; a batch of zstd can hold 30,000 times its own bytes."""

_HEAD_BYTES = kernels.KEPT_KEY_BYTES + 64
"""The most bytes before a record's value, if its key is small enough to keep."""
_LENGTH_BYTES = 5


class LargeBatch:
    """The decoder of one record batch, which has been checked and has records."""

    def __init__(
        self, frame: Frame, where: str, limits: Limits, wanted: Int64s, window: Bytes, rows: MessageRows, max_bytes: int
    ) -> None:
        """`wanted`: the limits in the form of the kernels. `window`: memory to begin with, at least `_HEAD_BYTES`."""
        self._frame, self._header, self._where = frame, frame.header, where
        self._limits, self._wanted, self._max_bytes = limits, wanted, max_bytes
        self._window, self._rows = (
            window if len(window) >= 2 * _HEAD_BYTES else np.empty(2 * _HEAD_BYTES, np.uint8),
            rows,
        )
        self._stream = DecompressedStream(frame.header.codec, frame.data[HEADER_BYTES:])
        self._start = self._end = 0
        """The bytes of the window that are not decoded yet."""
        self._read_bytes = 0
        self._done, self._last_seen = 0, -1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the wanted messages. Raises `CorruptBatch`."""
        while self._done < self._header.record_count:
            # The decision depends on the message, not on the content of the window: a retry must leave out the same
            # messages.
            room = MOST_BATCH_BYTES - (self._read_bytes - (self._end - self._start))
            if room <= 0:
                yield from self._leave_out_the_rest()
                return
            count, stop = kernels.whole_records(
                self._window,
                self._start,
                self._end,
                self._header.record_count - self._done,
                self._limits.max_bytes,
                self._start + room,
            )
            if count:
                yield from self._decode(int(count), int(stop))
            elif self._is_next_too_large():
                yield from self._pass_over()
            elif not self._read_more():
                raise self._corrupt(FAULT_REASONS[kernels.RecordFault.RECORD_LENGTH])
        if self._start < self._end or self._read_more():
            raise self._corrupt(FAULT_REASONS[kernels.RecordFault.TRAILING])

    def _decode(self, count: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the next whole messages, which end at `stop`."""
        batches = self._row(self._start, stop, count)
        state = self._state()
        while state[kernels.BATCH] < 1:
            n = self._rows.measure(self._window, batches, state, self._wanted, self._max_bytes)
            self._raise_for(state)
            if n:
                yield self._rows.record_batch(self._window, n, self._limits)
        self._last_seen, self._start, self._done = int(state[kernels.LAST_SEEN]), stop, self._done + count

    def _is_next_too_large(self) -> bool:
        length = self._next_length()
        return length is not None and length > self._limits.max_bytes

    def _next_length(self) -> int | None:
        """Return the length of the next record; None if it has not been read yet."""
        value, shift = 0, 0
        for byte in self._window[self._start : min(self._end, self._start + _LENGTH_BYTES)].tolist():
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= 0xFFFFFFFF
                return int((value >> 1) ^ -(value & 1))
            shift += 7
        return None

    def _pass_over(self) -> Iterator[pa.RecordBatch]:
        """Yield the kept part of the next message, which is too large, and go to its end."""
        while self._end - self._start < _HEAD_BYTES and self._read_more():
            pass
        state = self._state()
        n = self._rows.measure_head(self._window, self._end, self._row(0, 0, 1)[0], state, self._wanted)
        self._raise_for(state)
        if n:
            yield self._rows.record_batch(self._window, n, self._limits)
        self._last_seen, self._done = int(state[kernels.LAST_SEEN]), self._done + 1
        self._skip_to(int(state[kernels.POSITION]))

    def _skip_to(self, stop: int) -> None:
        """Go to a position of the window that may lie beyond its bytes."""
        beyond = stop - self._end
        self._start = min(stop, self._end)
        while beyond > 0:
            self._start = self._end = 0
            read = self._fill(self._window[: min(beyond, len(self._window))])
            if not read:
                raise self._corrupt(FAULT_REASONS[kernels.RecordFault.RECORD_LENGTH])
            beyond -= read

    def _read_more(self) -> bool:
        """Read into the free part of the window, which grows if there is none. Return whether any byte was read."""
        if self._start:
            rest = self._end - self._start
            self._window[:rest] = self._window[self._start : self._end]
            self._start, self._end = 0, rest
        if self._end == len(self._window):
            grown = np.empty(2 * len(self._window), np.uint8)
            grown[: self._end] = self._window
            self._window = grown
        read = self._fill(self._window[self._end :])
        self._end += read
        return read > 0

    def _fill(self, target: Bytes) -> int:
        try:
            read = self._stream.read_into(target.data)
        except BadCompression as error:
            name = self._header.codec.name.lower()
            raise self._corrupt(f"records cannot be decompressed ({name}: {error})") from None
        self._read_bytes += read
        return read

    def _leave_out_the_rest(self) -> Iterator[pa.RecordBatch]:
        if not self._header.is_dense:
            raise self._corrupt(
                f"a batch of {len(self._frame.data):,} bytes holds more than {MOST_BATCH_BYTES:,} bytes of records, "
                f"and lacks offsets, so that those of its other messages are not known"
            )
        first = max(self._header.base_offset + self._last_seen + 1, int(self._wanted[kernels.FIRST_OFFSET]))
        following = min(self._header.next_offset, int(self._wanted[kernels.NEXT_OFFSET]))
        why = self._limits.batch_reason(MOST_BATCH_BYTES)
        for start in range(first, following, MAX_ROWS):
            yield left_out(start, min(start + MAX_ROWS, following), self._header.max_timestamp_ms, why)

    def _row(self, start: int, end: int, count: int) -> Int64s:
        row = batch_row(self._header._replace(record_count=count), start, end)
        return np.frombuffer(row, np.int64).reshape(1, -1)

    def _state(self) -> Int64s:
        state = np.zeros(kernels.STATE_FIELDS, np.int64)
        state[kernels.POSITION], state[kernels.LAST_SEEN] = self._start, self._last_seen
        return state

    def _raise_for(self, state: Int64s) -> None:
        if fault := int(state[kernels.FAULT]):
            raise self._corrupt(FAULT_REASONS[kernels.RecordFault(fault)])

    def _corrupt(self, reason: str) -> CorruptBatch:
        return CorruptBatch(self._where, self._frame.position, reason)
