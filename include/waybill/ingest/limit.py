"""A lane's rate limit: so many bytes a second, on average, over all its topic-partitions."""

from __future__ import annotations

from collections.abc import Callable

from waybill.ingest.clock import Clock

__all__ = ["RateLimit"]

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
