"""Where a lane takes the time from: an argument, so that tests need not wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Clock"]


@dataclass(frozen=True, slots=True)
class Clock:
    """Where a lane takes the time from."""

    wall: Callable[[], float] = time.time
    """Seconds since 1970 UTC: the age of messages."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds: budgets and durations."""
    sleep: Callable[[float], None] = time.sleep
    """Wait so many seconds of `monotonic`."""

    def now_ms(self) -> int:
        return int(self.wall() * 1000)
