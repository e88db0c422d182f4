"""The compiled loop of the parser `json`: which messages may hold a number that is too large for a float."""

from __future__ import annotations

from typing import Any

import numpy as np

from waybill.records._kernels import Array, compiled

__all__ = ["mark_huge_numbers"]

_ZERO, _NINE, _PLUS, _MINUS, _POINT, _E = (ord(c) for c in "09+-.e")
_MOST_DIGITS = 200
"""With no more digits than that before the point, an exponent of one or two digits makes no float infinite (1e308)."""


@compiled
def mark_huge_numbers(data: Array, bounds: Array, marks: Array) -> None:
    """Set `marks[n]` where message n, the bytes `[bounds[n], bounds[n + 1])` of `data`, may hold such a number.

    It has an exponent of three digits or more, or more than 200 digits in a row. Text that looks like one is marked,
    too, if what stands before it may stand before a number: nearly none of the hexadecimal digits that ids are made of.
    `data` may end anywhere; a number does not reach from one message into the next, since an object ends with a brace.
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
    for position in range(0, len(data), _MOST_DIGITS // 2):
        if _is_digit(data[position]) and _run_around(data, position) > _MOST_DIGITS:
            while bounds[message + 1] <= position:
                message += 1
            marks[message] = True


@compiled
def _exponents(data: Array) -> Array:
    """For each byte 1 if it is an `e` between a digit and three digits, a `+` before those included, else 0.

    One pass without a branch, which the compiler makes a few instructions for 32 bytes at a time.
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
    """Whether the digits before an exponent may be a number's, and not a word's."""
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
def _run_around(data: Array, position: Any) -> int:
    """How many digits in a row there are around one."""
    first = last = position
    while first > 0 and _is_digit(data[first - 1]):
        first -= 1
    while last + 1 < len(data) and _is_digit(data[last + 1]):
        last += 1
    return int(last - first + 1)


@compiled
def _is_digit(byte: Any) -> bool:
    return bool(_ZERO <= byte <= _NINE)
