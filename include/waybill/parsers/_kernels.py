"""The compiled loop of the parser `json`: it finds messages that may have a number too large for a float."""

from __future__ import annotations

from typing import Any

import numpy as np

from waybill.records.batches._kernels import Array, compiled

_ZERO, _NINE, _PLUS, _MINUS, _POINT, _E = (ord(c) for c in "09+-.e")
_MAX_DIGITS = 200
"""A number with at most this many digits and an exponent of one or two digits is below the largest float, 1e308."""


@compiled
def mark_huge_numbers(data: Array, bounds: Array, marks: Array) -> None:
    """Set `marks[n]` if message n, the bytes `[bounds[n], bounds[n + 1])` of `data`, may have such a number.

    Such a number has an exponent of at least three digits, or more than 200 digits in a row. A text that looks like one
    is marked as well, if the character before it can precede a number; few of the hexadecimal ids do. `data` may end
    anywhere. No number crosses from one message to the next, because a JSON object ends with a brace.
    """
    seen = _exponents(data)
    message = 0
    for word, found in enumerate(seen.view(np.uint64)):
        if not found:
            continue
        for position in range(8 * word, 8 * word + 8):
            if seen[position] and _is_number_before(data, position):
                while bounds[message + 1] <= position:
                    message += 1
                marks[message] = True
    message = 0
    position = 0
    while position < len(data):
        if _is_digit(data[position]):
            first, end = _run_around(data, position)
            if end - first > _MAX_DIGITS:
                while bounds[message + 1] <= position:
                    message += 1
                marks[message] = True
                # A run is looked at once: a text of a million digits must not be scanned again at each step.
                position = max(position, end - _MAX_DIGITS // 2)
        position += _MAX_DIGITS // 2


@compiled
def _exponents(data: Array) -> Array:
    """Return for each byte 1 if it is an `e` after a digit and before three digits (or `+` and two digits), else 0.

    The loop has no branch, so the compiler turns it into a few instructions for 32 bytes at a time.
    """
    n = len(data)
    seen = np.zeros((n + 7) // 8 * 8, np.uint8)
    for i in range(max(0, n - 4)):
        seen[i + 1] = (
            (np.uint8(data[i + 1] | np.uint8(0x20)) == np.uint8(_E))
            & (np.uint8(data[i] - np.uint8(_ZERO)) <= np.uint8(9))
            & ((data[i + 2] == np.uint8(_PLUS)) | (np.uint8(data[i + 2] - np.uint8(_ZERO)) <= np.uint8(9)))
            & (np.uint8(data[i + 3] - np.uint8(_ZERO)) <= np.uint8(9))
            & (np.uint8(data[i + 4] - np.uint8(_ZERO)) <= np.uint8(9))
        )
    return seen


@compiled
def _is_number_before(data: Array, position: Any) -> bool:
    """Return whether the digits before an exponent can be a number, and not part of a word."""
    first = position - 1
    while first > 0 and (_is_digit(data[first - 1]) or data[first - 1] == _POINT):
        first -= 1
    if first > 0 and data[first - 1] == _MINUS:
        first -= 1
    if first == 0:
        return True
    byte = data[first - 1]
    return byte in (32, 9, 10, 13, 58, 44, 91)  # space, tab, line feed, carriage return, colon, comma, bracket


@compiled
def _run_around(data: Array, position: Any) -> tuple[int, int]:
    """Return where the digits in a row around `position` begin, and where they have ended."""
    first, end = int(position), int(position) + 1
    while first > 0 and _is_digit(data[first - 1]):
        first -= 1
    while end < len(data) and _is_digit(data[end]):
        end += 1
    return first, end


@compiled
def _is_digit(byte: Any) -> bool:
    return bool(_ZERO <= byte <= _NINE)
