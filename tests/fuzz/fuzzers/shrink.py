"""The smallest input with the same failure: fewer inputs first, then fewer bytes, then plainer bytes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence

_MAX_SECONDS = 20.0
_MAX_CHECKS = 4_000
_PLAIN = (0x00, 0x30, 0x61)
"""Bytes that replace others if the failure stays: zero, `0`, `a`."""

Fails = Callable[[Sequence[bytes]], bool]


def signature(error: BaseException) -> tuple[str, str, int]:
    """Return what two failures with the same cause have in common: the class, and the file and line that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    return type(error).__name__, last.filename if last else "", (last.lineno or 0) if last else 0


class _Budget:
    def __init__(self, fails: Fails) -> None:
        self._fails = fails
        self._left = _MAX_CHECKS
        self._end = time.monotonic() + _MAX_SECONDS

    @property
    def is_spent(self) -> bool:
        return self._left <= 0 or time.monotonic() > self._end

    def fails(self, inputs: Sequence[bytes]) -> bool:
        self._left -= 1
        return not self.is_spent and self._fails(inputs)


def smallest(inputs: Sequence[bytes], fails: Fails) -> list[bytes]:
    """Return the smallest inputs for which `fails` holds, as far as some thousand tries find them."""
    budget = _Budget(fails)
    found = _fewer(list(inputs), budget)
    for at in range(min(len(found), 8)):

        def fails_with(value: bytes, at: int = at) -> bool:
            return budget.fails([*found[:at], value, *found[at + 1 :]])

        found[at] = _plainer(_shorter(found[at], fails_with), fails_with)
    return found


def _fewer(inputs: list[bytes], budget: _Budget) -> list[bytes]:
    """Return some of the inputs that fail together: often one."""
    size = max(1, len(inputs) // 2)
    while len(inputs) > 1 and not budget.is_spent:
        smaller = _first_smaller(inputs, size, budget)
        if smaller is not None:
            inputs = smaller
            size = max(1, min(size, len(inputs) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    return inputs


def _first_smaller(inputs: list[bytes], size: int, budget: _Budget) -> list[bytes] | None:
    """Return the first part of `size` inputs that fails, or all but such a part; None if neither does."""
    for start in range(0, len(inputs), size):
        part, rest = inputs[start : start + size], inputs[:start] + inputs[start + size :]
        if len(part) < len(inputs) and budget.fails(part):
            return part
        if rest and budget.fails(rest):
            return rest
    return None


def _shorter(value: bytes, fails: Callable[[bytes], bool]) -> bytes:
    size = len(value)
    while size:
        at = 0
        while at < len(value):
            shorter = value[:at] + value[at + size :]
            if fails(shorter):
                value = shorter
            else:
                at += size
        size //= 2
    return value


def _plainer(value: bytes, fails: Callable[[bytes], bool]) -> bytes:
    if len(value) > 400:
        return value
    for at in range(len(value)):
        for byte in _PLAIN:
            if value[at] == byte:
                break
            changed = value[:at] + bytes([byte]) + value[at + 1 :]
            if fails(changed):
                value = changed
                break
    return value
