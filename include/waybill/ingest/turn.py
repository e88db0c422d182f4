"""Where a lane takes the time from: an argument, so that tests need not wait.

A lane's rate limit: so many bytes a second, on average, over all its topic-partitions.

What a lane grants one run over one topic-partition.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from waybill.errors import GenerationConflict
from waybill.records.recompress import Recompressor
from waybill.sources.kafka import Sight

__all__ = ["Clock", "RateLimit", "Turn"]


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


_STEP_SECONDS = 1.0


class RateLimit:
    """What was fetched is paid for by waiting before the next fetch is taken.

    So in any stretch of time at most the rate times its length is fetched, plus one fetch. Time in which nothing was
    fetched is not saved up. 0 bytes a second: no limit.
    """

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._paid_at = clock.monotonic()

    def spend(self, size_bytes: int) -> None:
        """Count what was fetched."""
        if self._bytes_per_second:
            self._paid_at = max(self._paid_at, self._clock.monotonic()) + size_bytes / self._bytes_per_second

    def wait(self, until: float, meanwhile: Callable[[], None]) -> bool:
        """Sleep until what was fetched is paid for, but not beyond `until` (of the clock's `monotonic`): False then.

        `meanwhile` is called after each second of sleep; what it raises ends the wait.
        """
        if self._paid_at <= self._clock.monotonic():
            return True
        while (left := min(self._paid_at, until) - self._clock.monotonic()) > 0:
            self._clock.sleep(min(left, _STEP_SECONDS))
            meanwhile()
        return self._paid_at < until


@dataclass(frozen=True, slots=True)
class Turn:
    """Times are seconds of the clock's `monotonic`."""

    deadline: float
    """When fetching ends. What the upload policy does not allow to complete by then is fetched again by a later run."""
    yields_at: float = math.inf
    """From then on the run ends behind the next object that it cuts, so no work is lost: others wait."""
    limit: RateLimit | None = None
    """The lane's."""
    recompressor: Recompressor | None = None
    """None: batches are archived as they are."""
    seen: Sight | None = None
    """What Kafka said when the lane began, asked for all of its topic-partitions at once; None: ask."""
    conflict: GenerationConflict | None = None
    """Why nothing may be archived: another stream writes the same chain."""
    has_stop: bool = True
    """Whether a stop of this topic-partition may be journaled."""
