"""The compiled loops of the formats: from messages in Arrow buffers to the bytes of a file, and back.

The writing loops fill arrays that the caller has made large enough (see `sequencefile` and `text`). The scanning loops
store the positions of the parts of each message. They check every length against the bytes that remain before they use
it, so that damaged bytes never make them read outside of an array.

The layouts follow Hadoop's `org.apache.hadoop.io.SequenceFile` (VInts: `WritableUtils.writeVLong`), and the
specification of MessagePack.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from waybill.records.batches._kernels import Array, Int, compiled, copy

SYNC_BYTES = 16
SYNC_MARK_BYTES = 4 + SYNC_BYTES
"""A sync mark: a record length of -1, then the file's sync bytes."""

MESSAGE_PACK_OFFSET_BYTES = 11
"""Size of a map header, the map key 1 and an int64."""
MAX_KEY_BYTES = 4 + MESSAGE_PACK_OFFSET_BYTES + 6
"""The largest size of a SequenceFile key without the bytes of the Kafka key."""
MAX_VINT_BYTES = 5


class SequenceFileFault(IntEnum):
    """The ways in which the records of a SequenceFile can be malformed."""

    NONE = 0
    RECORD_LENGTH = 1
    KEY = 2
    VALUE = 3
    SYNC = 4
    LENGTHS = 5


# --- numbers ----------------------------------------------------------------------------------------------------------


@compiled
def _put(target: Array, position: Int, value: Int, size: Int) -> Int:
    """Write `value` big-endian in `size` bytes; return the position after it."""
    for i in range(size):
        target[np.uint64(position + i)] = (value >> (8 * (size - 1 - i))) & 0xFF
    return position + size


@compiled
def _get(source: Array, position: Int, size: Int) -> Int:
    """Read the big-endian number of `size` bytes at `position`; signed for 8 bytes only. The bytes must exist."""
    value = np.int64(0)
    for i in range(size):
        value = (value << 8) | np.int64(source[np.uint64(position + i)])
    return value


@compiled
def _get_int(source: Array, position: Int) -> Int:
    """Read a signed number of four bytes."""
    value = _get(source, position, 4)
    return value - (1 << 32) if value >= 1 << 31 else value


@compiled
def _put_vint(target: Array, position: Int, value: Int) -> Int:
    """Write a non-negative Hadoop VInt: one byte up to 127, else a byte with the number of bytes that follow."""
    if value <= 127:
        target[np.uint64(position)] = value
        return position + 1
    size = 1
    while value >> (8 * size):
        size += 1
    target[np.uint64(position)] = (-112 - size) & 0xFF
    return _put(target, position + 1, value, size)


@compiled
def _get_vint(source: Array, position: Int, end: Int) -> tuple[Int, Int]:
    """Return the non-negative VInt at `position` and the position after it: -1 if it does not end before `end`."""
    if position >= end:
        return np.int64(0), -1
    first = np.int64(source[np.uint64(position)])
    position += 1
    if first <= 127:
        return first, position
    size = 144 - first  # -113 - (first - 256) + 1: the byte is signed in Java
    if size < 1 or size > 4 or position + size > end:
        return np.int64(0), -1
    return _get(source, position, size), position + size


# --- SequenceFile keys ------------------------------------------------------------------------------------------------


@compiled
def _put_message_pack(target: Array, position: Int, offset: Int, key: Array, start: Int, length: Int) -> Int:
    """Write the key as `BytesWritable`: its size, then the map {1: offset, 2: Kafka key}. Length -1: no Kafka key."""
    begin = position
    position += 4
    target[np.uint64(position)] = 0x81 if length < 0 else 0x82
    target[np.uint64(position + 1)] = 1
    target[np.uint64(position + 2)] = 0xD3
    position = _put(target, position + 3, offset, 8)
    if length >= 0:
        target[np.uint64(position)] = 2
        position += 1
        if length < 1 << 8:
            target[np.uint64(position)] = 0xC4
            position = _put(target, position + 1, length, 1)
        elif length < 1 << 16:
            target[np.uint64(position)] = 0xC5
            position = _put(target, position + 1, length, 2)
        else:
            target[np.uint64(position)] = 0xC6
            position = _put(target, position + 1, length, 4)
        copy(key, start, length, target, position)
        position += length
    _put(target, begin, position - begin - 4, 4)
    return position


@compiled
def _put_key(
    packed: Int, target: Array, position: Int, offset: Int, keys: Array, starts: Array, nulls: Array, row: Int
) -> Int:
    if packed == 0:
        return _put(target, position, offset, 8)
    length = np.int64(starts[row + 1]) - np.int64(starts[row])
    if nulls.size and nulls[row]:
        length = np.int64(-1)
    return _put_message_pack(target, position, offset, keys, np.int64(starts[row]), length)


@compiled
def _parse_message_pack(source: Array, position: Int, end: Int, parsed: Array) -> Int:
    """Parse the map in `[position, end)` into offset, start and length of the Kafka key; return a
    `SequenceFileFault`."""
    if end - position < MESSAGE_PACK_OFFSET_BYTES:
        return SequenceFileFault.KEY.value
    entries = np.int64(source[position]) - 0x80
    if entries < 1 or entries > 2 or source[position + 1] != 1 or source[position + 2] != 0xD3:
        return SequenceFileFault.KEY.value
    parsed[0] = _get(source, position + 3, 8)
    parsed[1] = 0
    parsed[2] = -1
    position += MESSAGE_PACK_OFFSET_BYTES
    if entries == 2:
        if end - position < 2 or source[position] != 2:
            return SequenceFileFault.KEY.value
        kind = np.int64(source[position + 1]) - 0xC4
        if kind < 0 or kind > 2 or end - position < 2 + (1 << kind):
            return SequenceFileFault.KEY.value
        parsed[2] = _get(source, position + 2, 1 << kind)
        parsed[1] = position + 2 + (1 << kind)
        position = parsed[1] + parsed[2]
    return SequenceFileFault.NONE.value if position == end else SequenceFileFault.KEY.value


@compiled
def _parse_key(packed: Int, source: Array, position: Int, end: Int, parsed: Array) -> Int:
    if packed == 0:
        if end - position != 8:
            return SequenceFileFault.KEY.value
        parsed[0] = _get(source, position, 8)
        parsed[1] = 0
        parsed[2] = -1
        return SequenceFileFault.NONE.value
    if end - position < 4 or _get_int(source, position) != end - position - 4:
        return SequenceFileFault.KEY.value
    return _parse_message_pack(source, position + 4, end, parsed)


# --- SequenceFile, writing --------------------------------------------------------------------------------------------


@compiled
def write_records(
    packed: Int,
    offsets: Array,
    keys: Array,
    key_starts: Array,
    key_nulls: Array,
    values: Array,
    value_starts: Array,
    sync: Array,
    since_sync: Int,
    sync_interval: Int,
    target: Array,
) -> tuple[Int, Int]:
    """Write records one after the other, with a sync mark after each `sync_interval` bytes.

    Returns the number of bytes written to `target`, and the number of bytes since the last mark."""
    position = np.int64(0)
    for row in range(offsets.size):
        if since_sync >= sync_interval:
            position = _put(target, position, -1, 4)
            copy(sync, 0, SYNC_BYTES, target, position)
            position += SYNC_BYTES
            since_sync = np.int64(0)
        begin = position
        position = _put_key(packed, target, begin + 8, offsets[row], keys, key_starts, key_nulls, row)
        key_length = position - begin - 8
        start = np.int64(value_starts[row])
        length = np.int64(value_starts[row + 1]) - start
        position = _put(target, position, length, 4)
        copy(values, start, length, target, position)
        position += length
        _put(target, begin, position - begin - 8, 4)
        _put(target, begin + 4, key_length, 4)
        since_sync += position - begin
    return position, since_sync


@compiled
def write_block(
    packed: Int,
    offsets: Array,
    keys: Array,
    key_starts: Array,
    key_nulls: Array,
    values: Array,
    value_starts: Array,
    key_lengths: Array,
    key_target: Array,
    value_lengths: Array,
    value_target: Array,
    sizes: Array,
) -> None:
    """Write the four buffers of a block, uncompressed, and the number of bytes written to each into `sizes`."""
    sizes[:] = 0
    for row in range(offsets.size):
        before = sizes[1]
        sizes[1] = _put_key(packed, key_target, before, offsets[row], keys, key_starts, key_nulls, row)
        sizes[0] = _put_vint(key_lengths, sizes[0], sizes[1] - before)
        start = np.int64(value_starts[row])
        length = np.int64(value_starts[row + 1]) - start
        position = _put(value_target, sizes[3], length, 4)
        copy(values, start, length, value_target, position)
        sizes[3] = position + length
        sizes[2] = _put_vint(value_lengths, sizes[2], length + 4)


# --- SequenceFile, reading --------------------------------------------------------------------------------------------


@compiled
def _note(parsed: Array, value: Int, length: Int, row: Int, offsets: Array, spans: Array) -> None:
    offsets[row] = parsed[0]
    spans[0, row] = parsed[1]
    spans[1, row] = parsed[2]
    spans[2, row] = value
    spans[3, row] = length


@compiled
def _is_sync(source: Array, position: Int, sync: Array) -> bool:
    return np.array_equal(source[position : position + SYNC_BYTES], sync)


@compiled
def _scan_record(packed: Int, source: Array, begin: Int, length: Int, parsed: Array) -> tuple[Int, Int, Int]:
    """Parse a complete record; return the position of its value, the length of its value and a `SequenceFileFault`."""
    key_length = _get_int(source, begin + 4)
    if key_length < 0 or key_length > length - 4:
        return np.int64(0), np.int64(0), SequenceFileFault.KEY.value
    value = begin + 8 + key_length
    fault = _parse_key(packed, source, begin + 8, value, parsed)
    if fault != SequenceFileFault.NONE.value:
        return value, np.int64(0), fault
    value_length = _get_int(source, value)
    if value_length != length - key_length - 4:
        return value, value_length, SequenceFileFault.VALUE.value
    return value + 4, value_length, SequenceFileFault.NONE.value


@compiled
def scan_records(packed: Int, source: Array, size: Int, sync: Array, offsets: Array, spans: Array) -> Any:
    """Store the positions of keys and values in `source[:size]`, which begins with a record or a sync mark.

    Stops before an incomplete record, or when `offsets` is full. Returns the number of rows, the position after the
    last one and a `SequenceFileFault`.
    """
    parsed = np.zeros(3, np.int64)
    position = np.int64(0)
    row = 0
    while row < offsets.size and size - position >= 4:
        length = _get_int(source, position)
        if length == -1:
            if size - position < SYNC_MARK_BYTES:
                break
            if not _is_sync(source, position + 4, sync):
                return row, position, SequenceFileFault.SYNC.value
            position += SYNC_MARK_BYTES
            continue
        if length < 12:  # a key and the length of a value
            return row, position, SequenceFileFault.RECORD_LENGTH.value
        if size - position < 8 + length:
            break
        value, value_length, fault = _scan_record(packed, source, position, length, parsed)
        if fault != SequenceFileFault.NONE.value:
            return row, position, fault
        _note(parsed, value, value_length, row, offsets, spans)
        row += 1
        position += 8 + length
    return row, position, SequenceFileFault.NONE.value


@compiled
def scan_block(
    packed: Int,
    key_lengths: Array,
    keys: Array,
    value_lengths: Array,
    values: Array,
    offsets: Array,
    spans: Array,
) -> Int:
    """Store the positions of `offsets.size` keys in `keys`, and of their values in `values`.

    Return a `SequenceFileFault`.
    """
    parsed = np.zeros(3, np.int64)
    in_key_lengths = key = in_value_lengths = value = np.int64(0)
    for row in range(offsets.size):
        length, in_key_lengths = _get_vint(key_lengths, in_key_lengths, key_lengths.size)
        if in_key_lengths < 0 or length > keys.size - key:
            return SequenceFileFault.LENGTHS.value
        fault = _parse_key(packed, keys, key, key + length, parsed)
        if fault != SequenceFileFault.NONE.value:
            return fault
        key += length
        length, in_value_lengths = _get_vint(value_lengths, in_value_lengths, value_lengths.size)
        if in_value_lengths < 0 or length < 4 or length > values.size - value:
            return SequenceFileFault.LENGTHS.value
        if _get_int(values, value) != length - 4:
            return SequenceFileFault.VALUE.value
        _note(parsed, value + 4, length - 4, row, offsets, spans)
        value += length
    if in_key_lengths != key_lengths.size or key != keys.size:
        return SequenceFileFault.LENGTHS.value
    if in_value_lengths != value_lengths.size or value != values.size:
        return SequenceFileFault.LENGTHS.value
    return SequenceFileFault.NONE.value


# --- text -------------------------------------------------------------------------------------------------------------


@compiled
def _is_at(source: Array, position: Int, end: Int, delimiter: Array) -> bool:
    """Return whether `delimiter` is at `position` of `source[:end]` with another delimiter appended."""
    for i in range(delimiter.size):
        at = position + i
        if at < end:
            if source[np.uint64(at)] != delimiter[i]:
                return False
        elif delimiter[at - end] != delimiter[i]:
            return False
    return True


@compiled
def mark_unfit(values: Array, starts: Array, delimiter: Array, unfit: Array) -> None:
    """Mark each value in which a reader would find a delimiter before the one that ends the value.

    A delimiter of several bytes can begin within the value and end within the delimiter that follows.
    """
    for row in range(unfit.size):
        end = np.int64(starts[row + 1])
        for position in range(np.int64(starts[row]), end):
            if values[np.uint64(position)] == delimiter[0] and _is_at(values, position, end, delimiter):
                unfit[row] = True
                break


@compiled
def write_text(values: Array, starts: Array, delimiter: Array, target: Array) -> Int:
    """Write the values, each followed by the delimiter; return the number of bytes written."""
    position = np.int64(0)
    for row in range(starts.size - 1):
        start = np.int64(starts[row])
        length = np.int64(starts[row + 1]) - start
        copy(values, start, length, target, position)
        position += length
        copy(delimiter, 0, delimiter.size, target, position)
        position += delimiter.size
    return position


@compiled
def find_delimiters(source: Array, size: Int, delimiter: Array, found: Array) -> Int:
    """Find the delimiters in `source[:size]` from the start on, none overlapping another; return their number.

    `found` must have room for `size // delimiter.size` positions.
    """
    count = 0
    position = np.int64(0)
    while position + delimiter.size <= size:
        if source[np.uint64(position)] == delimiter[0] and _is_at(source, position, size, delimiter):
            found[count] = position
            count += 1
            position += delimiter.size
        else:
            position += 1
    return count
