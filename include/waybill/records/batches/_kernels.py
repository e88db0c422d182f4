"""The compiled loops of `decode`: walk the records of many batches, then copy their parts into Arrow buffers.

`measure` reads every varint once, checks every position against the end of its batch, and stores the positions of the
parts of each record. The `fill_` functions copy these parts and rely on the checks of `measure`. So damaged bytes never
make a loop read or write outside of its arrays.

The layout of records: Kafka's documentation, "Implementation, Message Format, Record".
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numba import njit

Array: TypeAlias = np.ndarray[Any, Any]
Int: TypeAlias = Any
"""An int64 for the compiler. It is `Any`, since numpy's type stubs do not support the operators in these functions."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Apply `numba.njit`, with a cache on disk unless no directory is writable (as in some containers)."""
    return _compile(function)


def allocation_free(function: _Function) -> _Function:
    """Apply `numba.njit` to a function that creates no arrays. It then does not count references to its arguments.

    Each count is an atomic instruction. In a loop over parts of a few bytes, these take most of the time.
    """
    return _compile(function, _nrt=False)


def inlined(function: _Function) -> _Function:
    """Make the function a part of every compiled function that calls it. It creates no arrays.

    An array is seven arguments of a compiled call. In a short function with several arrays, passing the arguments takes
    longer than the work.
    """
    decorate: Any = njit  # its annotations lack `_nrt`
    return cast("_Function", decorate(inline="always", _nrt=False)(function))


def _compile(function: _Function, **options: Any) -> _Function:
    try:
        fast: Any = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:
        fast = njit(nogil=True, **options)(function)
    return cast("_Function", fast)


class RecordFault(IntEnum):
    """The ways in which the records of a batch can be malformed."""

    NONE = 0
    RECORD_LENGTH = 1
    RECORD_FIELDS = 2
    OFFSET = 3
    HEADERS = 4
    RECORD_END = 5
    TRAILING = 6


# Columns of `batches`, which has one row for each batch.
START, END, BASE_OFFSET, LAST_DELTA, BASE_TIMESTAMP, APPEND_TIME, IS_APPEND_TIME, COUNT, BATCH_COLUMNS = range(9)
# `state`: where the next call of `measure` continues. POSITION is -1 before the first record of a batch.
BATCH, POSITION, DONE, LAST_SEEN, FAULT, STATE_FIELDS = range(6)
# Elements of `limits`: the offsets that are wanted, and the largest size and number of headers of one message.
FIRST_OFFSET, NEXT_OFFSET, MAX_BYTES, MAX_HEADERS, LIMITS = range(5)
# Rows of `spans`: the positions of a record's parts. A length of -1 is null. For a message that exceeds a limit,
# HEADERS holds TOO_LARGE or TOO_MANY_HEADERS, and VALUE the size or the number of headers; the value is null, and there
# are no headers.
KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, HEADERS, HEADER_COUNT, SPAN_ROWS = range(7)
TOO_LARGE, TOO_MANY_HEADERS = -1, -2
KEPT_KEY_BYTES = 64 << 10
"""The longest key that is kept of a message that exceeds a limit."""
# `totals`: sums over the rows of one call. BEYOND: how many messages exceed a limit.
KEY_BYTES, KEY_NULLS, VALUE_BYTES, VALUE_NULLS, N_HEADERS, HKEY_BYTES, HVALUE_BYTES, HVALUE_NULLS, BEYOND, TOTALS = (
    range(10)
)
# `record`: the last parsed record; its first fields are those of a column of `spans`.
(
    R_OFFSET_DELTA,
    R_TIMESTAMP_DELTA,
    R_END,
    R_HKEY_BYTES,
    R_HVALUE_BYTES,
    R_HVALUE_NULLS,
    R_LENGTH,
    RECORD_FIELDS,
) = range(6, 14)
_LARGEST_INT32 = (1 << 31) - 1


@compiled
def _varint(source: Array, position: Int, end: Int, max_bytes: Int) -> tuple[Int, Int]:
    """Return the zigzag varint at `position` and the position after it: -1 if it exceeds `end` or `max_bytes`."""
    value = np.int64(0)
    shift = 0
    stop = min(end, position + max_bytes)
    while position < stop:
        byte = np.int64(source[np.uint64(position)])  # unsigned: see copy
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if max_bytes == 5:
                value &= 0xFFFFFFFF  # Kafka's readVarint drops the bits beyond 32 too
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position
        shift += 7
    return np.int64(0), -1


@compiled
def _bytes_field(source: Array, position: Int, end: Int) -> tuple[Int, Int, Int]:
    """Return start, length (-1: null) and end of a length-prefixed field; the end is -1 if the field does not fit."""
    length, position = _varint(source, position, end, 5)
    if position < 0 or length > end - position:
        return position, length, -1
    if length < 0:
        return position, np.int64(-1), position
    return position, length, position + length


@compiled
def _scan_headers(source: Array, position: Int, end: Int, record: Array) -> Int:
    """Check a record's headers and add up their sizes; return the position after them, -1 for a fault."""
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
    """Parse the record at `position` into `record`; return a `RecordFault`."""
    length, position = _varint(source, position, end, 5)
    if position < 0 or length < 1 or length > end - position:
        return RecordFault.RECORD_LENGTH.value
    record[R_LENGTH] = length
    end = position + length
    delta, position = _varint(source, position + 1, end, 10)  # the byte of attributes is unused
    if position < 0:
        return RecordFault.RECORD_FIELDS.value
    record[R_TIMESTAMP_DELTA] = delta
    delta, position = _varint(source, position, end, 5)
    if position < 0:
        return RecordFault.RECORD_FIELDS.value
    record[R_OFFSET_DELTA] = delta
    record[KEY], record[KEY_LENGTH], position = _bytes_field(source, position, end)
    if position < 0:
        return RecordFault.RECORD_FIELDS.value
    record[VALUE], record[VALUE_LENGTH], position = _bytes_field(source, position, end)
    if position < 0:
        return RecordFault.RECORD_FIELDS.value
    position = _scan_headers(source, position, end, record)
    if position < 0:
        return RecordFault.HEADERS.value
    if position != end:
        return RecordFault.RECORD_END.value
    record[R_END] = end
    return RecordFault.NONE.value


@compiled
def _apply_limits(record: Array, limits: Array, totals: Array) -> None:
    """If a record exceeds a limit, leave out its value and headers, and store which limit."""
    if record[R_LENGTH] > limits[MAX_BYTES]:
        record[VALUE] = record[R_LENGTH]
        record[HEADERS] = TOO_LARGE
    elif record[HEADER_COUNT] > limits[MAX_HEADERS]:
        record[VALUE] = min(record[HEADER_COUNT], _LARGEST_INT32)
        record[HEADERS] = TOO_MANY_HEADERS
    else:
        return
    record[VALUE_LENGTH] = -1
    record[HEADER_COUNT] = 0
    record[R_HKEY_BYTES] = 0
    record[R_HVALUE_BYTES] = 0
    record[R_HVALUE_NULLS] = 0
    if record[KEY_LENGTH] > KEPT_KEY_BYTES:
        record[KEY_LENGTH] = -1
    totals[BEYOND] += 1


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
    """Store a record as row `row`. As in Java, timestamps wrap around if the delta is too large."""
    offsets[row] = offset
    if batch[IS_APPEND_TIME] != 0:
        timestamps[row] = batch[APPEND_TIME]
    else:
        timestamps[row] = batch[BASE_TIMESTAMP] + record[R_TIMESTAMP_DELTA]
    for field in range(SPAN_ROWS):
        spans[field, row] = record[field]


@compiled
def _size(record: Array) -> Int:
    """Return the bytes that a record adds to a RecordBatch, including offsets and the overhead of headers."""
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
    """Walk one batch from `state` on while there is room; return the rows and the room, -1 if it is used up."""
    while state[DONE] < batch[COUNT]:
        if row == offsets.size:
            return row, -1
        fault = _parse_record(source, state[POSITION], batch[END], record)
        delta = record[R_OFFSET_DELTA]
        if fault == RecordFault.NONE.value and not state[LAST_SEEN] < delta <= batch[LAST_DELTA]:
            fault = RecordFault.OFFSET.value
        if fault != RecordFault.NONE.value:
            state[FAULT] = fault
            return row, room
        offset = batch[BASE_OFFSET] + delta
        if limits[FIRST_OFFSET] <= offset < limits[NEXT_OFFSET]:
            beyond = totals[BEYOND]
            _apply_limits(record, limits, totals)
            size = _size(record)
            if size > room and row > 0:
                totals[BEYOND] = beyond  # the next call counts this record
                return row, -1
            room = max(room - size, 0)
            _keep(record, batch, row, offset, offsets, timestamps, spans)
            _add_to_totals(record, totals)
            row += 1
        state[DONE] += 1
        state[LAST_SEEN] = delta
        state[POSITION] = record[R_END]
    if state[POSITION] != batch[END]:
        state[FAULT] = RecordFault.TRAILING.value
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

    Stores the rows with an offset within the limits, and returns their number. Sets `state[FAULT]` if the records of
    batch `state[BATCH]` are malformed. After the last batch, `state[BATCH] == len(batches)`.
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
def whole_records(source: Array, position: Int, end: Int, most: Int, max_bytes: Int, last: Int) -> tuple[Int, Int]:
    """Return how many whole records of at most `max_bytes` follow each other, and where the last of them ends.

    At most `most` records, which begin before `last`. The next record is cut short at `end`, too large, or has a
    damaged length.
    """
    count = np.int64(0)
    while count < most and position < last:
        length, start = _varint(source, position, end, 5)
        if start < 0 or length < 1 or length > max_bytes or length > end - start:
            break
        position = start + length
        count += 1
    return count, position


@compiled
def measure_head(
    source: Array,
    position: Int,
    end: Int,
    batch: Array,
    state: Array,
    limits: Array,
    offsets: Array,
    timestamps: Array,
    spans: Array,
    totals: Array,
) -> Int:
    """Store the record at `position`, which exceeds `MAX_BYTES`, from its first bytes alone; return the rows: 0 or 1.

    The bytes up to `end` hold everything before the value, if the key is small enough to keep. `state[POSITION]`
    becomes the end of the record, which lies beyond `end`. Sets `state[LAST_SEEN]`, and `state[FAULT]` if the bytes are
    malformed.
    """
    totals[:] = 0
    record = np.zeros(RECORD_FIELDS, np.int64)
    length, position = _varint(source, position, end, 5)
    state[FAULT] = RecordFault.RECORD_FIELDS.value
    if position < 0 or length < 1:
        state[FAULT] = RecordFault.RECORD_LENGTH.value
        return 0
    state[POSITION] = position + length
    record[R_LENGTH] = length
    delta, position = _varint(source, position + 1, end, 10)
    if position < 0:
        return 0
    record[R_TIMESTAMP_DELTA] = delta
    delta, position = _varint(source, position, end, 5)
    if position < 0:
        return 0
    key_length, position = _varint(source, position, end, 5)
    if position < 0 or key_length > state[POSITION] - position:
        return 0
    if not state[LAST_SEEN] < delta <= batch[LAST_DELTA]:
        state[FAULT] = RecordFault.OFFSET.value
        return 0
    state[FAULT] = RecordFault.NONE.value
    state[LAST_SEEN] = delta
    offset = batch[BASE_OFFSET] + delta
    if not limits[FIRST_OFFSET] <= offset < limits[NEXT_OFFSET]:
        return 0
    record[KEY] = position
    record[KEY_LENGTH] = max(key_length, -1)
    _apply_limits(record, limits, totals)
    _keep(record, batch, 0, offset, offsets, timestamps, spans)
    _add_to_totals(record, totals)
    return 1


@compiled
def copy(source: Array, start: Int, length: Int, target: Array, position: Int) -> None:
    # Unsigned: a signed index could count from the end of the array, and the check for that prevents the compiler from
    # vectorising the loop (780 ns for 325 bytes, 19 ns unsigned).
    first, to = np.uint64(start), np.uint64(position)
    for i in range(np.uint64(length)):
        target[to + i] = source[first + i]


@compiled
def fill_bytes(source: Array, starts: Array, lengths: Array, n: Int, ends: Array, validity: Array, data: Array) -> None:
    """Write an Arrow binary column of `n` rows. `validity` must be zeroed; it is empty if no row is null."""
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
    """Write the offsets of the list column, and store the positions of each header's key and value."""
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
    """Convert milliseconds to microseconds. Values that do not fit an int64 become the nearest whole millisecond."""
    for row in range(n):
        target[row] = min(max(timestamps_ms[row], -limit_ms), limit_ms) * 1000


@compiled
def measure_offsets(source: Array, batch: Array, limits: Array, offsets: Array) -> Int:
    """Write the offsets of one batch's records within the limits, without parsing keys, values and headers.

    `offsets` must have room for the batch's record count. Returns the number of offsets, or minus a `RecordFault`.
    """
    row = 0
    position = batch[START]
    last = np.int64(-1)
    for _ in range(batch[COUNT]):
        length, position = _varint(source, position, batch[END], 5)
        if position < 0 or length < 1 or length > batch[END] - position:
            return -RecordFault.RECORD_LENGTH.value
        end = position + length
        _, position = _varint(source, position + 1, end, 10)
        if position < 0:
            return -RecordFault.RECORD_FIELDS.value
        delta, position = _varint(source, position, end, 5)
        if position < 0:
            return -RecordFault.RECORD_FIELDS.value
        if not last < delta <= batch[LAST_DELTA]:
            return -RecordFault.OFFSET.value
        last = delta
        position = end
        if limits[FIRST_OFFSET] <= batch[BASE_OFFSET] + delta < limits[NEXT_OFFSET]:
            offsets[row] = batch[BASE_OFFSET] + delta
            row += 1
    if position != batch[END]:
        return -RecordFault.TRAILING.value
    return row


# `renumbered`: the result of `renumber`. The fault is one of `RecordFault`.
KEPT, WRITTEN, MAX_TIMESTAMP, RENUMBER_FAULT, RENUMBERED_FIELDS = range(5)


@compiled
def _put_varint(target: Array, position: Int, value: Int) -> Int:
    """Write a zigzag varint and return the position after it. Wraps at 64 bits as Java."""
    rest = np.uint64((value << 1) ^ (value >> 63))
    while rest > np.uint64(0x7F):
        target[position] = np.uint8((rest & np.uint64(0x7F)) | np.uint64(0x80))
        rest >>= np.uint64(7)
        position += 1
    target[position] = np.uint8(rest)
    return position + 1


@compiled
def _varint_size(value: Int) -> Int:
    rest = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        size += 1
    return size


@compiled
def renumber(source: Array, batch: Array, limits: Array, target: Array, renumbered: Array) -> None:
    """Copy the records with an offset in `[limits[0], limits[1])` to `target`, with offset deltas 0, 1, 2 and so on.

    `batch` is one row of `batches`. Keys, values and headers are copied byte for byte. With LogAppendTime, timestamp
    deltas become 0, since every record has the batch's timestamp. `target` is at least as large as the records section:
    a delta never gets larger. Fills `renumbered`.
    """
    record = np.empty(RECORD_FIELDS, np.int64)
    position = batch[START]
    written = np.int64(0)
    kept = np.int64(0)
    last_delta = np.int64(-1)
    highest = np.int64(-1)
    for _ in range(batch[COUNT]):
        fault = _parse_record(source, position, batch[END], record)
        delta = record[R_OFFSET_DELTA]
        if fault == RecordFault.NONE.value and not last_delta < delta <= batch[LAST_DELTA]:
            fault = RecordFault.OFFSET.value
        if fault != RecordFault.NONE.value:
            renumbered[RENUMBER_FAULT] = fault
            return
        last_delta = delta
        end = record[R_END]
        if limits[0] <= batch[BASE_OFFSET] + delta < limits[1]:
            _, body = _varint(source, position, end, 5)
            _, after_timestamp = _varint(source, body + 1, end, 10)
            _, rest = _varint(source, after_timestamp, end, 5)
            timestamp_delta = np.int64(0)
            if batch[IS_APPEND_TIME] == 0:
                timestamp_delta = record[R_TIMESTAMP_DELTA]
            length = 1 + _varint_size(timestamp_delta) + _varint_size(kept) + (end - rest)
            written = _put_varint(target, written, length)
            target[written] = source[body]
            written = _put_varint(target, written + 1, timestamp_delta)
            written = _put_varint(target, written, kept)
            target[written : written + (end - rest)] = source[rest:end]
            written += end - rest
            timestamp = batch[APPEND_TIME]
            if batch[IS_APPEND_TIME] == 0:
                timestamp = batch[BASE_TIMESTAMP] + timestamp_delta
            if kept == 0 or timestamp > highest:
                highest = timestamp
            kept += 1
        position = end
    if position != batch[END]:
        renumbered[RENUMBER_FAULT] = RecordFault.TRAILING.value
        return
    renumbered[KEPT] = kept
    renumbered[WRITTEN] = written
    renumbered[MAX_TIMESTAMP] = highest
    renumbered[RENUMBER_FAULT] = RecordFault.NONE.value
