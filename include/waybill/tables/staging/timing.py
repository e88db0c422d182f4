"""Measure time, CPU time and memory of a run's steps and of tasks on executors."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


class StepClock:
    """Adds up the wall-clock time of a run's steps. Starts when it is created."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._steps: dict[str, float] = {}

    def timed(self, step: str, work: Callable[[], _T]) -> _T:
        """Return the result of `work`, and add its time to `step`. Steps may be nested."""
        began = time.monotonic()
        try:
            return work()
        finally:
            self._steps[step] = self._steps.get(step, 0.0) + time.monotonic() - began

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each step, in the order in which the steps first ended, and `total` since the start."""
        return {**self._steps, "total": time.monotonic() - self._began}


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """The usage of a task."""

    seconds: float
    """Wall-clock."""
    cpu_seconds: float
    """Of the executor's process, all threads."""
    peak_memory_bytes: int
    """Largest resident size of the executor's process since it started."""


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Measures one task; `start` it when the task begins."""

    began: float
    cpu_before: float

    @classmethod
    def start(cls) -> Stopwatch:
        return cls(time.perf_counter(), time.process_time())

    def usage(self) -> TaskUsage:
        """Return the usage of the process since `start`."""
        return TaskUsage(
            seconds=time.perf_counter() - self.began,
            cpu_seconds=time.process_time() - self.cpu_before,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        )
