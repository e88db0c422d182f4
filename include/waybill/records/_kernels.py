"""The compiled loops of decode: walk the records of many batches, then copy what they hold into Arrow's buffers.

`measure` reads every varint once, with every position checked against the end of its batch, and notes where each
record's parts lie; `fill` copies them. Whatever the bytes are, neither reads or writes outside of its arrays: `fill`
touches only what `measure` has checked. Records: Kafka's documentation, "Implementation, Message Format, Record".
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numba import njit

Array: TypeAlias = np.ndarray[Any, Any]
Int: TypeAlias = Any
"""An int64 to the compiler, whatever numpy's stubs make of it."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """`numba.njit`, cached on disk where there is a place for it (a container's file system may be read-only)."""
    try:
        fast: Any = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        fast = njit(nogil=True)(function)
    return cast("_Function", fast)


class Fault(IntEnum):
    """What `measure` found wrong with a batch's records."""

    NONE = 0
    RECORD_LENGTH = 1
    RECORD_FIELDS = 2
    OFFSET = 3
    HEADERS = 4
    RECORD_END = 5
    TRAILING = 6


# Columns of `batches`: one row a batch.
START, END, BASE_OFFSET, LAST_DELTA, BASE_TIMESTAMP, APPEND_TIME, IS_APPEND_TIME, COUNT, BATCH_COLUMNS = range(9)
# `state`: where the next call of `measure` goes on. POSITION is -1 before the first record of a batch.
BATCH, POSITION, DONE, LAST_SEEN, FAULT, STATE_FIELDS = range(6)
# Rows of `spans`: where a record's parts lie. A length of -1 is null.
KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, HEADERS, HEADER_COUNT, SPAN_ROWS = range(7)
# `totals`: what the rows of one call add up to.
KEY_BYTES, KEY_NULLS, VALUE_BYTES, VALUE_NULLS, N_HEADERS, HKEY_BYTES, HVALUE_BYTES, HVALUE_NULLS, TOTALS = range(9)
# `record`: the record just parsed; its first fields are those of a column of `spans`.
R_OFFSET_DELTA, R_TIMESTAMP_DELTA, R_END, R_HKEY_BYTES, R_HVALUE_BYTES, R_HVALUE_NULLS, RECORD_FIELDS = range(6, 13)


@compiled
def _varint(source: Array, position: Int, end: Int, max_bytes: Int) -> tuple[Int, Int]:
    """The zigzag varint at `position`, and the position after it: -1 when it passes `end` or `max_bytes`."""
    value = np.int64(0)
    shift = 0
    stop = min(end, position + max_bytes)
    while position < stop:
        byte = np.int64(source[np.uint64(position)])  # unsigned: see copy
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if max_bytes == 5:
                value &= 0xFFFFFFFF  # Kafka's readVarint drops what is beyond 32 bits, too
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position
        shift += 7
    return np.int64(0), -1


@compiled
def _bytes_field(source: Array, position: Int, end: Int) -> tuple[Int, Int, Int]:
    """Start, length (-1: null) and end of a field with its length before it; the end is -1 when it does not fit."""
    length, position = _varint(source, position, end, 5)
    if position < 0 or length > end - position:
        return position, length, -1
    if length < 0:
        return position, np.int64(-1), position
    return position, length, position + length


@compiled
def _scan_headers(source: Array, position: Int, end: Int, record: Array) -> Int:
    """Check a record's headers and add up their sizes; returns the position after them, -1 for a fault."""
    count, position = _varint(source, position, end, 5)
    if position < 0 or count < 0 or count > end - position:
        return -1
    record[HEADERS] = position
    record[HEADER_COUNT] = count
    record[R_HKEY_BYTES] = 0
    record[R_HVALUE_BYTES] = 0
    record[R_HVALUE_NULLS] = 0
    for _ in range(count):
        _, length, position = _bytes_field(source, position, end)
        if position < 0 or length < 0:
            return -1
        record[R_HKEY_BYTES] += length
        _, length, position = _bytes_field(source, position, end)
        if position < 0:
            return -1
        if length < 0:
            record[R_HVALUE_NULLS] += 1
        else:
            record[R_HVALUE_BYTES] += length
    return position


@compiled
def _parse_record(source: Array, position: Int, end: Int, record: Array) -> Int:
    """Parse the record at `position` into `record`; returns a `Fault`."""
    length, position = _varint(source, position, end, 5)
    if position < 0 or length < 1 or length > end - position:
        return Fault.RECORD_LENGTH.value
    end = position + length
    delta, position = _varint(source, position + 1, end, 10)  # the byte of attributes is unused
    if position < 0:
        return Fault.RECORD_FIELDS.value
    record[R_TIMESTAMP_DELTA] = delta
    delta, position = _varint(source, position, end, 5)
    if position < 0:
        return Fault.RECORD_FIELDS.value
    record[R_OFFSET_DELTA] = delta
    record[KEY], record[KEY_LENGTH], position = _bytes_field(source, position, end)
    if position < 0:
        return Fault.RECORD_FIELDS.value
    record[VALUE], record[VALUE_LENGTH], position = _bytes_field(source, position, end)
    if position < 0:
        return Fault.RECORD_FIELDS.value
    position = _scan_headers(source, position, end, record)
    if position < 0:
        return Fault.HEADERS.value
    if position != end:
        return Fault.RECORD_END.value
    record[R_END] = end
    return Fault.NONE.value


@compiled
def _add_to_totals(record: Array, totals: Array) -> None:
    if record[KEY_LENGTH] < 0:
        totals[KEY_NULLS] += 1
    else:
        totals[KEY_BYTES] += record[KEY_LENGTH]
    if record[VALUE_LENGTH] < 0:
        totals[VALUE_NULLS] += 1
    else:
        totals[VALUE_BYTES] += record[VALUE_LENGTH]
    totals[N_HEADERS] += record[HEADER_COUNT]
    totals[HKEY_BYTES] += record[R_HKEY_BYTES]
    totals[HVALUE_BYTES] += record[R_HVALUE_BYTES]
    totals[HVALUE_NULLS] += record[R_HVALUE_NULLS]


@compiled
def _keep(record: Array, batch: Array, row: Int, offset: Int, offsets: Array, timestamps: Array, spans: Array) -> None:
    """Note a record as row `row`. Timestamps wrap around as in Java when the delta is absurd."""
    offsets[row] = offset
    if batch[IS_APPEND_TIME] != 0:
        timestamps[row] = batch[APPEND_TIME]
    else:
        timestamps[row] = batch[BASE_TIMESTAMP] + record[R_TIMESTAMP_DELTA]
    for field in range(SPAN_ROWS):
        spans[field, row] = record[field]


@compiled
def _size(record: Array) -> Int:
    """What a record adds to the bytes of a RecordBatch, offsets and headers' overhead included."""
    data = max(record[KEY_LENGTH], 0) + max(record[VALUE_LENGTH], 0) + record[R_HKEY_BYTES] + record[R_HVALUE_BYTES]
    return data + 28 + 8 * record[HEADER_COUNT]


@compiled
def _measure_batch(
    source: Array,
    batch: Array,
    state: Array,
    row: Int,
    room: Int,
    limits: Array,
    record: Array,
    offsets: Array,
    timestamps: Array,
    spans: Array,
    totals: Array,
) -> tuple[Int, Int]:
    """Walk one batch from `state` on while there is room; returns rows and room, room -1 when it is used up."""
    while state[DONE] < batch[COUNT]:
        if row == offsets.size:
            return row, -1
        fault = _parse_record(source, state[POSITION], batch[END], record)
        delta = record[R_OFFSET_DELTA]
        if fault == Fault.NONE.value and not state[LAST_SEEN] < delta <= batch[LAST_DELTA]:
            fault = Fault.OFFSET.value
        if fault != Fault.NONE.value:
            state[FAULT] = fault
            return row, room
        offset = batch[BASE_OFFSET] + delta
        if limits[0] <= offset < limits[1]:
            size = _size(record)
            if size > room and row > 0:
                return row, -1
            room = max(room - size, 0)
            _keep(record, batch, row, offset, offsets, timestamps, spans)
            _add_to_totals(record, totals)
            row += 1
        state[DONE] += 1
        state[LAST_SEEN] = delta
        state[POSITION] = record[R_END]
    if state[POSITION] != batch[END]:
        state[FAULT] = Fault.TRAILING.value
    return row, room


@compiled
def measure(
    source: Array,
    batches: Array,
    state: Array,
    limits: Array,
    max_bytes: Int,
    offsets: Array,
    timestamps: Array,
    spans: Array,
    totals: Array,
) -> Int:
    """Walk records from `state` on until the row arrays or `max_bytes` are full, or all batches are done.

    Notes the rows with an offset in `[limits[0], limits[1])` and returns how many. `state[FAULT]` is set when the
    records of batch `state[BATCH]` are malformed. `state[BATCH] == len(batches)`: all done.
    """
    record = np.empty(RECORD_FIELDS, np.int64)
    totals[:] = 0
    row = 0
    room = np.int64(max_bytes)
    while state[BATCH] < batches.shape[0]:
        batch = batches[state[BATCH]]
        if state[POSITION] < 0:
            state[POSITION] = batch[START]
            state[DONE] = 0
            state[LAST_SEEN] = -1
        row, room = _measure_batch(source, batch, state, row, room, limits, record, offsets, timestamps, spans, totals)
        if room < 0 or state[FAULT] != 0:
            break
        state[BATCH] += 1
        state[POSITION] = -1
    return row


@compiled
def copy(source: Array, start: Int, length: Int, target: Array, position: Int) -> None:
    # Unsigned: a signed index could count from the end, and the check for that keeps the loop from being vectorised
    # (780 ns for 325 bytes; unsigned 19 ns).
    first, to = np.uint64(start), np.uint64(position)
    for i in range(np.uint64(length)):
        target[to + i] = source[first + i]


@compiled
def fill_bytes(source: Array, starts: Array, lengths: Array, n: Int, ends: Array, validity: Array, data: Array) -> None:
    """Write an Arrow binary column of `n` rows. `validity` comes zeroed, and empty when no row is null."""
    position = np.int64(0)
    ends[0] = 0
    for row in range(n):
        length = np.int64(lengths[row])
        if length >= 0:
            copy(source, np.int64(starts[row]), length, data, position)
            position += length
            if validity.size:
                validity[row >> 3] |= np.uint8(1 << (row & 7))
        ends[row + 1] = position


@compiled
def fill_headers(source: Array, spans: Array, n: Int, list_ends: Array, key_spans: Array, value_spans: Array) -> None:
    """Write the list's offsets, and note where each header's key and value lie."""
    entry = 0
    list_ends[0] = 0
    end = source.size
    for row in range(n):
        position = np.int64(spans[HEADERS, row])
        for _ in range(spans[HEADER_COUNT, row]):
            start, length, position = _bytes_field(source, position, end)
            key_spans[0, entry] = start
            key_spans[1, entry] = length
            start, length, position = _bytes_field(source, position, end)
            value_spans[0, entry] = start
            value_spans[1, entry] = length
            entry += 1
        list_ends[row + 1] = entry


@compiled
def fill_microseconds(timestamps_ms: Array, n: Int, limit_ms: Int, target: Array) -> None:
    """Milliseconds to microseconds; what does not fit an int64 becomes the nearest whole millisecond that does."""
    for row in range(n):
        target[row] = min(max(timestamps_ms[row], -limit_ms), limit_ms) * 1000


@compiled
def measure_offsets(source: Array, batch: Array, limits: Array, offsets: Array) -> Int:
    """The offsets of one batch's records within the limits, without a look at what else they hold.

    `offsets` has room for the batch's record count. Returns how many, or minus a `Fault`.
    """
    row = 0
    position = batch[START]
    last = np.int64(-1)
    for _ in range(batch[COUNT]):
        length, position = _varint(source, position, batch[END], 5)
        if position < 0 or length < 1 or length > batch[END] - position:
            return -Fault.RECORD_LENGTH.value
        end = position + length
        _, position = _varint(source, position + 1, end, 10)
        if position < 0:
            return -Fault.RECORD_FIELDS.value
        delta, position = _varint(source, position, end, 5)
        if position < 0:
            return -Fault.RECORD_FIELDS.value
        if not last < delta <= batch[LAST_DELTA]:
            return -Fault.OFFSET.value
        last = delta
        position = end
        if limits[0] <= batch[BASE_OFFSET] + delta < limits[1]:
            offsets[row] = batch[BASE_OFFSET] + delta
            row += 1
    if position != batch[END]:
        return -Fault.TRAILING.value
    return row
