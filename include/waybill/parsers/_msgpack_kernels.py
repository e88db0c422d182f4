"""The compiled loop of the parser `msgpack`: it finds messages with many keys that are not text.

Python keeps the keys of a map in a hash table. Its hashes of texts and binaries differ in each process, so that no
producer can choose keys that collide. Its hashes of numbers and arrays are known: with such keys, the time to read one
map grows with the square of their number, and 1 MB takes a minute.

The layout of messages: the MessagePack specification, "Formats".
"""

from __future__ import annotations

import numpy as np

from waybill.records.batches._kernels import Array, Int, compiled

_SCALAR, _ARRAY, _MAP = range(3)
_MAX_LEVELS = 2_000
"""The largest nesting: msgspec refuses messages that are nested more deeply."""


def _formats() -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return for each first byte: the bytes to skip, the bytes of a length or number of items, the kind, is it text."""
    formats = np.zeros((256, 4), np.int64)
    formats[:] = (1, 0, _SCALAR, False)  # small numbers, nil and booleans
    formats[0x80:0x90] = (1, 0, _MAP, False)
    formats[0x90:0xA0] = (1, 0, _ARRAY, False)
    for first in range(0xA0, 0xC0):
        formats[first] = (1 + first - 0xA0, 0, _SCALAR, True)
    for position, length in enumerate((1, 2, 4)):
        formats[0xC4 + position] = (1 + length, length, _SCALAR, False)  # binary
        formats[0xC7 + position] = (2 + length, length, _SCALAR, False)  # extension: its type follows the length
        formats[0xD9 + position] = (1 + length, length, _SCALAR, True)
    for first, size in ((0xCA, 4), (0xCB, 8)):  # floats
        formats[first, 0] = 1 + size
    for position in range(4):  # whole numbers of 1, 2, 4 and 8 bytes
        formats[0xCC + position, 0] = formats[0xD0 + position, 0] = 1 + (1 << position)
    for position in range(5):  # extensions of 1, 2, 4, 8 and 16 bytes
        formats[0xD4 + position, 0] = 2 + (1 << position)
    for position, length in enumerate((2, 4)):
        formats[0xDC + position] = (1 + length, length, _ARRAY, False)
        formats[0xDE + position] = (1 + length, length, _MAP, False)
    return formats


_FORMATS = _formats()


@compiled
def mark_many_other_keys(data: Array, bounds: Array, most: Int, marks: Array) -> None:
    """Set `marks[n]` if message n, the bytes `[bounds[n], bounds[n + 1])` of `data`, has more than `most` such keys.

    A value inside of a key that is an array counts as a key, because it takes part in each comparison. Data that is not
    MessagePack, or nested too deeply, is left to the decoder.
    """
    items = np.empty(_MAX_LEVELS, np.int64)  # at each level, how many items are still to come
    is_map = np.empty(_MAX_LEVELS, np.bool_)
    for message in range(len(bounds) - 1):
        if bounds[message + 1] - bounds[message] > most:  # a key takes at least one byte
            marks[message] = _other_keys(data, bounds[message], bounds[message + 1], most, items, is_map) > most


@compiled
def _other_keys(data: Array, start: Int, end: Int, most: Int, items: Array, is_map: Array) -> Int:
    """Return the number of keys that are not text; any number above `most` once it is above."""
    position, level, found = np.int64(start), 0, 0
    inside = -1  # the level below which all values are part of a key
    items[0], is_map[0] = 1, False
    while position < end and found <= most:
        kind, count, is_text, size = _read(data, position, end)
        if size < 0:
            return found
        is_key = is_map[level] and items[level] % 2 == 0 and not is_text
        if is_key or inside >= 0:
            found += 1
        items[level] -= 1
        position += size
        if kind != _SCALAR:
            if is_key and inside < 0:
                inside = level
            level += 1
            if level == _MAX_LEVELS:
                return found
            items[level], is_map[level] = count * (1 if kind == _ARRAY else 2), kind == _MAP
        while items[level] == 0:
            if level == 0:
                return found
            level -= 1
            if level == inside:
                inside = -1
    return found


@compiled
def _read(data: Array, position: Int, end: Int) -> tuple[Int, Int, bool, Int]:
    """Return kind, number of items, whether it is text, and size in bytes without items; -1 if it is cut short."""
    first = data[position]
    size, length_bytes, kind, is_text = _FORMATS[first]
    if position + 1 + length_bytes > end:
        return kind, 0, False, -1
    count = np.int64(0)
    for at in range(position + 1, position + 1 + length_bytes):
        count = (count << 8) | data[at]
    if kind == _SCALAR:
        size += count
    elif length_bytes == 0:
        count = np.int64(first) & 15
    return kind, count, is_text != 0, size
