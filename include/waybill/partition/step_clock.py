"""How long a run took, and each of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["StepClock"]

_T = TypeVar("_T")


class StepClock:
    """A run carries it along. It starts when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._steps: dict[str, float] = {}

    def timed(self, step: str, work: Callable[[], _T]) -> _T:
        """Do some work of a step, which may be in the middle of another step's. What a step takes adds up."""
        began = time.monotonic()
        try:
            return work()
        finally:
            self._steps[step] = self._steps.get(step, 0.0) + time.monotonic() - began

    def seconds(self) -> dict[str, float]:
        """Of each step so far, in the order in which they ended, and `total`: since the start."""
        return {**self._steps, "total": time.monotonic() - self._began}
