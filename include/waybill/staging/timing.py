"""How long a run took, and each of its steps.

What a task takes of time and memory.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["StepClock", "Stopwatch", "Usage"]

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


@dataclass(frozen=True, slots=True)
class Usage:
    """What a task took."""

    seconds: float
    """Wall-clock."""
    cpu_seconds: float
    """Of the executor's process, all threads."""
    peak_memory_bytes: int
    """The most that the executor's process ever held resident."""


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Started when a task begins."""

    began: float
    cpu_before: float

    @classmethod
    def start(cls) -> Stopwatch:
        return cls(time.perf_counter(), time.process_time())

    def usage(self) -> Usage:
        """Since then."""
        return Usage(
            seconds=time.perf_counter() - self.began,
            cpu_seconds=time.process_time() - self.cpu_before,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        )
