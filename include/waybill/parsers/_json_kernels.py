"""The compiled loop of `waybill.parsers.plain_json`: it checks JSON documents and finds the wanted fields.

The loop accepts a document only if orjson reads it too, and then both see the same values. It leaves all other
documents to a slower reader: see `find_fields`.

Most bytes of a document lie in its texts. So quotes, backslashes and control characters are flagged first, by a loop
that the compiler turns into a few instructions for 32 bytes at a time, and the end of a text is the next flag.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from waybill.records.batches._kernels import Array, Int, allocation_free, inlined


class JsonKind(IntEnum):
    """The kinds of values of a field."""

    MISSING = 0
    NULL = 1
    INTEGER = 2
    """At most 18 digits, and not `-0`: its text is the one that Python would write."""
    TEXT = 3
    """Without escapes."""
    OTHER = 4


_MISSING, _NULL, _INTEGER, _TEXT, _OTHER = (kind.value for kind in JsonKind)
_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _POINT, _ZERO = (ord(c) for c in '"\\,:-+.0')
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = (ord(c) for c in "{}[]")
_SPACE, _TAB, _LINE_FEED, _RETURN = 32, 9, 10, 13
_E, _LETTER_T, _LETTER_F, _LETTER_N, _LETTER_U, _LETTER_D = (ord(c) for c in "etfnud")
_LOWER_CASE = 0x20
_TRUE, _FALSE, _NULL_TEXT = (np.frombuffer(text, np.uint8) for text in (b"true", b"false", b"null"))
_SIMPLE_ESCAPES = np.zeros(256, np.bool_)
_SIMPLE_ESCAPES[list(b'"\\/bfnrt')] = True

_FLAGGED_BYTES = 32
_MAX_INTEGER_DIGITS = 18
_MAX_DIGITS = 200
"""A number with at most this many digits and an exponent of one or two digits is below the largest float, 1e308."""
_MAX_DEPTH = 64
_IN_ARRAY, _UNTRACKED = -2, -1
"""Elements of the stack of open containers: an array, or an object whose fields are not wanted. Others are nodes."""

# Unsigned constants: numba makes a float of an unsigned and a signed number.
_ONE, _SEVEN, _EIGHT, _BYTE_SHIFT = (np.uint64(n) for n in (1, 7, 8, 56))
_EACH_BYTE = np.uint64(0x0101010101010101)


class Scratch:
    """The working memory of `find_fields`."""

    def __init__(self, longest: int) -> None:
        """`longest`: bytes of the longest message."""
        self.words = np.empty((longest + 2 * _FLAGGED_BYTES) // 8, np.uint64)
        self.flags = self.words.view(np.uint8)
        self.stack = np.empty(_MAX_DEPTH, np.int64)


@allocation_free
def find_fields(
    data: Array,
    bounds: Array,
    names: Array,
    entries: Array,
    nodes: Array,
    accepted: Array,
    kinds: Array,
    starts: Array,
    lengths: Array,
    numbers: Array,
    flags: Array,
    words: Array,
    stack: Array,
) -> None:
    """Find the wanted fields of every message; message n is the bytes `[bounds[n], bounds[n + 1])` of `data`.

    Sets `accepted[n]` if the message is a JSON object that orjson reads, provided that it is UTF-8. False negatives:
    objects that are nested deeply, with numbers of many digits or of large exponents, with escaped names beside wanted
    ones, with escaped surrogates, or with another value where a wanted field's object is expected.

    For field f of an accepted message, `kinds[f, n]` is its `JsonKind`. `starts` and `lengths` are the positions of a
    text or integer in `data`, without quotes; `numbers` is the integer. If a name occurs twice, the last value counts.

    The wanted fields are a tree. Node m, an object, has the entries `[nodes[m, 0], nodes[m, 1])`, and below it are the
    fields `[nodes[m, 2], nodes[m, 3])`; node 0 is the document. An entry has the start and length of its name in
    `names`, and its field or, if that is -1, its node.

    `flags`, `words` and `stack` are the arrays of `Scratch`.
    """
    for row in range(len(accepted)):
        start, end = np.int64(bounds[row]), np.int64(bounds[row + 1])
        while end > start and _is_space(data[np.uint64(end - 1)]):
            end -= 1
        kinds[:, row] = _MISSING
        accepted[row] = False
        # The walk relies on the last byte: every loop over digits or spaces ends there at the latest.
        if end - start >= 2 and data[np.uint64(end - 1)] == _CLOSE_OBJECT:
            _flag(data, start, end, flags)
            accepted[row] = _walk(
                data, start, end, words, stack, names, entries, nodes, row, kinds, starts, lengths, numbers
            )


@inlined
def _walk(
    data: Array,
    start: Int,
    end: Int,
    words: Array,
    stack: Array,
    names: Array,
    entries: Array,
    nodes: Array,
    row: Int,
    kinds: Array,
    starts: Array,
    lengths: Array,
    numbers: Array,
) -> bool:
    """Read one document; return whether it is accepted."""
    position = _skip_space(data, start)
    depth = np.int64(0)
    opened = np.int64(0)
    entry = np.int64(-1)
    if data[np.uint64(position)] != _OPEN_OBJECT:
        return False
    while True:
        # `position` is that of a bracket that opens, or else of a scalar.
        if opened >= _IN_ARRAY:
            _forget(entry, opened, row, entries, nodes, kinds)
            stack[depth] = opened
            position = _skip_space(data, position + 1)
            is_first = True
        else:
            position = _scalar(data, start, position, end, words, entry, entries, row, kinds, starts, lengths, numbers)
            if position < 0:
                return False
            is_first = False
        depth, position = _next_element(data, position, end, depth, stack, is_first)
        if depth < 0 or position < 0 or depth == _MAX_DEPTH - 1:
            return bool(depth < 0 and position == end)
        entry = np.int64(-1)
        if stack[depth] != _IN_ARRAY:
            entry, position = _name(data, start, position, end, words, stack[depth], names, entries, nodes)
            if position < 0:
                return False
        opened = _opened(data[np.uint64(position)], entry, entries)
        depth += opened >= _IN_ARRAY


@inlined
def _next_element(data: Array, position: Int, end: Int, depth: Int, stack: Array, is_first: bool) -> tuple[Int, Int]:
    """Close what ends at `position`; return the depth and the position of the next element, which is -1 for none.

    `is_first`: a container begins here, so that no comma is expected.
    """
    if is_first and not _is_end(data, position, stack[depth]):
        return depth, position
    if not is_first:
        position = _skip_space(data, position)
    while data[np.uint64(position)] != _COMMA:
        if not _is_end(data, position, stack[depth]):
            return depth, np.int64(-1)
        position += 1
        depth -= 1
        if depth < 0 or position == end:
            return depth, position if depth < 0 else np.int64(-1)
        position = _skip_space(data, position)
    return depth, _skip_space(data, position + 1)


@inlined
def _name(
    data: Array,
    start: Int,
    position: Int,
    end: Int,
    words: Array,
    node: Int,
    names: Array,
    entries: Array,
    nodes: Array,
) -> tuple[Int, Int]:
    """Read a name and a colon. Return the entry of the name (-1: not wanted), and the position of the value, or -1."""
    if data[np.uint64(position)] != _QUOTE:
        return np.int64(-1), np.int64(-1)
    first = position + 1
    position, is_plain = _text_end(data, start, first, end, words)
    if position < 0 or (node >= 0 and not is_plain):
        return np.int64(-1), np.int64(-1)
    entry = np.int64(-1)
    if node >= 0:
        entry = _find_entry(data, first, position - 1 - first, node, names, entries, nodes)
    position = _skip_space(data, position)
    if data[np.uint64(position)] != _COLON:
        return entry, np.int64(-1)
    return entry, _skip_space(data, position + 1)


@inlined
def _find_entry(data: Array, first: Int, length: Int, node: Int, names: Array, entries: Array, nodes: Array) -> Int:
    for entry in range(nodes[node, 0], nodes[node, 1]):
        if entries[entry, 1] == length:
            at = np.uint64(entries[entry, 0])
            same = np.uint64(0)
            while same < np.uint64(length) and data[np.uint64(first) + same] == names[at + same]:
                same += _ONE
            if same == np.uint64(length):
                return np.int64(entry)
    return np.int64(-1)


@inlined
def _opened(byte: Any, entry: Int, entries: Array) -> Int:
    """Return what a value that starts with `byte` adds to the stack; less than `_IN_ARRAY` if it is a scalar."""
    if byte == _OPEN_ARRAY:
        return np.int64(_IN_ARRAY)
    if byte == _OPEN_OBJECT:
        return np.int64(_UNTRACKED) if entry < 0 or entries[entry, 2] >= 0 else entries[entry, 3]
    return np.int64(_IN_ARRAY - 1)


@inlined
def _forget(entry: Int, opened: Int, row: Int, entries: Array, nodes: Array, kinds: Array) -> None:
    """Drop the stored data of an earlier value with the same name."""
    if entry < 0:
        return
    if entries[entry, 2] >= 0:
        kinds[entries[entry, 2], row] = _OTHER
    else:
        node = entries[entry, 3]
        for field in range(nodes[node, 2], nodes[node, 3]):
            kinds[field, row] = _MISSING if opened >= 0 else _OTHER


@inlined
def _is_end(data: Array, position: Int, container: Int) -> bool:
    return bool(data[np.uint64(position)] == (_CLOSE_ARRAY if container == _IN_ARRAY else _CLOSE_OBJECT))


# --- scalars ----------------------------------------------------------------------------------------------------------


@inlined
def _scalar(
    data: Array,
    start: Int,
    position: Int,
    end: Int,
    words: Array,
    entry: Int,
    entries: Array,
    row: Int,
    kinds: Array,
    starts: Array,
    lengths: Array,
    numbers: Array,
) -> Int:
    """Read a text, a number or a literal, and store it if it is wanted. Return its end, -1 if it is not accepted."""
    byte = data[np.uint64(position)]
    first = position
    last = position
    if byte == _QUOTE:
        first += 1
        position, is_plain = _text_end(data, start, first, end, words)
        last = position - 1
        kind = _TEXT if is_plain else _OTHER
    elif byte == _MINUS or _is_digit(byte):
        position, is_integer = _number_end(data, position)
        last = position
        kind = _INTEGER if is_integer else _OTHER
    else:
        position = _literal_end(data, position, end)
        kind = _NULL if byte == _LETTER_N else _OTHER
    if position < 0 or entry < 0:
        return position
    field = entries[entry, 2]
    if field < 0:
        return np.int64(-1)  # a scalar where the object of a wanted field is expected
    kinds[field, row] = kind
    starts[field, row] = first
    lengths[field, row] = last - first
    if kind == _INTEGER:
        numbers[field, row] = _integer(data, first, last)
    return position


@inlined
def _text_end(data: Array, start: Int, position: Int, end: Int, words: Array) -> tuple[Int, bool]:
    """Return the position after the closing quote, or -1, and whether the text has no escapes."""
    position = start + _next_flag(words, position - start)
    if position < end and data[np.uint64(position)] == _QUOTE:
        return position + 1, True
    return _escaped_text_end(data, start, position, end, words), False


@allocation_free
def _escaped_text_end(data: Array, start: Int, position: Int, end: Int, words: Array) -> Int:
    """Return the position after the closing quote, or -1. `position` is that of a flag."""
    while position < end and data[np.uint64(position)] == _BACKSLASH:
        position = _escape_end(data, position + 1, end)
        if position < 0:
            return position
        position = start + _next_flag(words, position - start)
    return position + 1 if position < end and data[np.uint64(position)] == _QUOTE else np.int64(-1)


@allocation_free
def _escape_end(data: Array, position: Int, end: Int) -> Int:
    """Return the position after an escape, whose backslash is before `position`; -1 for a surrogate or an error."""
    if position >= end:
        return np.int64(-1)
    byte = data[np.uint64(position)]
    if _SIMPLE_ESCAPES[byte]:
        return position + 1
    if byte != _LETTER_U or end - position < 5:
        return np.int64(-1)
    for at in range(position + 1, position + 5):
        if not _is_hexadecimal(data[np.uint64(at)]):
            return np.int64(-1)
    is_surrogate = data[np.uint64(position + 1)] | _LOWER_CASE == _LETTER_D and data[np.uint64(position + 2)] >= 56
    return np.int64(-1) if is_surrogate else position + 5


@inlined
def _number_end(data: Array, position: Int) -> tuple[Int, bool]:
    """Return the end of a number, or -1, and whether it is of `JsonKind.INTEGER`."""
    is_negative = data[np.uint64(position)] == _MINUS
    first = position + 1 if is_negative else position
    position = _digits_end(data, first)
    digits = position - first
    starts_with_zero = data[np.uint64(first)] == _ZERO
    if digits == 0 or digits > _MAX_DIGITS or (starts_with_zero and digits > 1):
        return np.int64(-1), False
    is_integer = digits <= _MAX_INTEGER_DIGITS and not (is_negative and starts_with_zero)
    if data[np.uint64(position)] == _POINT:
        is_integer = False
        first = position + 1
        position = _digits_end(data, first)
        if position == first:
            return np.int64(-1), False
    if data[np.uint64(position)] | _LOWER_CASE == _E:
        is_integer = False
        position = _exponent_end(data, position + 1)
    return position, is_integer


@inlined
def _exponent_end(data: Array, position: Int) -> Int:
    """Return the end of an exponent of one or two digits, or -1."""
    byte = data[np.uint64(position)]
    first = position + 1 if byte in (_PLUS, _MINUS) else position
    position = _digits_end(data, first)
    return position if 1 <= position - first <= 2 else np.int64(-1)


@inlined
def _digits_end(data: Array, position: Int) -> Int:
    while _is_digit(data[np.uint64(position)]):
        position += 1
    return position


@inlined
def _integer(data: Array, first: Int, last: Int) -> Int:
    is_negative = data[np.uint64(first)] == _MINUS
    value = np.int64(0)
    for at in range(first + 1 if is_negative else first, last):
        value = value * 10 + (np.int64(data[np.uint64(at)]) - _ZERO)
    return -value if is_negative else value


@allocation_free
def _literal_end(data: Array, position: Int, end: Int) -> Int:
    byte = data[np.uint64(position)]
    if byte == _LETTER_T:
        literal = _TRUE
    elif byte == _LETTER_F:
        literal = _FALSE
    elif byte == _LETTER_N:
        literal = _NULL_TEXT
    else:
        return np.int64(-1)
    if end - position < len(literal):
        return np.int64(-1)
    for at in range(len(literal)):
        if data[np.uint64(position + at)] != literal[at]:
            return np.int64(-1)
    return position + len(literal)


# --- bytes ------------------------------------------------------------------------------------------------------------


@inlined
def _flag(data: Array, start: Int, end: Int, flags: Array) -> None:
    """Set `flags[i]` to 1 where byte `start + i` is a quote, a backslash or a control character, and after the end."""
    first, length = np.uint64(start), end - start
    # A whole number of vectors if there are bytes after the message: the rest would be flagged byte by byte.
    rounded = (length + _FLAGGED_BYTES - 1) // _FLAGGED_BYTES * _FLAGGED_BYTES
    for i in range(np.uint64(min(rounded, len(data) - start))):
        byte = data[first + i]
        flags[i] = (byte == np.uint8(_QUOTE)) | (byte == np.uint8(_BACKSLASH)) | (byte < np.uint8(_SPACE))
    flags[np.uint64(length)] = 1


@inlined
def _next_flag(words: Array, position: Int) -> Int:
    """Return the first position, from `position` on, whose flag is set. `words` are eight flags each."""
    at = np.uint64(position)
    number = at // _EIGHT
    word = words[number] >> ((at & _SEVEN) * _EIGHT)
    if word:
        return position + _lowest_byte(word)
    while True:
        number += _ONE
        word = words[number]
        if word:
            return np.int64(number * _EIGHT) + _lowest_byte(word)


@inlined
def _lowest_byte(word: Any) -> Int:
    """Return the number of bytes of value 0 before the lowest byte of value 1."""
    return np.int64((((word - _ONE) & ~word & _EACH_BYTE) * _EACH_BYTE) >> _BYTE_SHIFT)


@inlined
def _skip_space(data: Array, position: Int) -> Int:
    return position if data[np.uint64(position)] > _SPACE else _space_end(data, position)


@allocation_free
def _space_end(data: Array, position: Int) -> Int:
    while _is_space(data[np.uint64(position)]):
        position += 1
    return position


@inlined
def _is_space(byte: Any) -> bool:
    return bool(byte in (_SPACE, _LINE_FEED, _RETURN, _TAB))


@inlined
def _is_digit(byte: Any) -> bool:
    return bool(np.uint8(byte - np.uint8(_ZERO)) <= np.uint8(9))


@allocation_free
def _is_hexadecimal(byte: Any) -> bool:
    return _is_digit(byte) or bool(np.uint8((byte | np.uint8(_LOWER_CASE)) - np.uint8(97)) <= np.uint8(5))
