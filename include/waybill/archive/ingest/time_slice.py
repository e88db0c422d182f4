"""The time of a lane: its clock, the time slice of one topic-partition, and the limit of bytes in a second.

The clock is an argument everywhere, so that tests need not wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_SLEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Clock:
    """The time functions of a lane."""

    wall: Callable[[], float] = time.time
    """Returns seconds since 1970 UTC, for the age of messages."""
    monotonic: Callable[[], float] = time.monotonic
    """Returns seconds, for deadlines and durations."""
    sleep: Callable[[float], None] = time.sleep
    """Waits for a number of seconds of `monotonic`."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970 UTC."""
        return int(self.wall() * 1000)


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The time that a lane gives to one topic-partition. Times are seconds of the clock's `monotonic`."""

    deadline: float = math.inf
    """When fetching ends. Batches that the upload policy does not allow to complete by then are fetched again later."""
    yields_at: float = math.inf
    """From this time on the slice ends with the next object that is cut, so that the others need not wait: at that
    moment no fetched bytes are discarded."""


class RateLimit:
    """A limit of bytes in a second, over all topic-partitions of a lane. 0 bytes in a second: no limit.

    After a fetch, the lane waits for as long as these bytes take at that rate before it takes the next fetch. So in any
    period at most the rate times its length is fetched, plus one fetch. Unused time is not saved for later.
    """

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._next_fetch_at = clock.monotonic()

    def spend(self, size_bytes: int) -> None:
        """Count fetched bytes."""
        if self._bytes_per_second:
            start = max(self._next_fetch_at, self._clock.monotonic())
            self._next_fetch_at = start + size_bytes / self._bytes_per_second

    def wait(self, until: float, check: Callable[[], None]) -> bool:
        """Sleep until the next fetch is allowed; return False if that is not before `until` (of `monotonic`).

        `check` is called after every second of sleep, and its error ends the wait.
        """
        if self._next_fetch_at <= self._clock.monotonic():
            return True
        while (left := min(self._next_fetch_at, until) - self._clock.monotonic()) > 0:
            self._clock.sleep(min(left, _SLEEP_SECONDS))
            check()
        return self._next_fetch_at < until
