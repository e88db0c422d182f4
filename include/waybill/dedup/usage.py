"""What a task takes of time and memory."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

from waybill.dedup.task import Usage

__all__ = ["Stopwatch"]


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
