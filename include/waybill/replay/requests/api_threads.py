"""The thread pool in which the HTTP API waits for its database.

While the database does not answer, each call holds a thread for as long as a transaction is repeated (30 s). So the API
has a small thread pool, apart from the threads that Airflow's own routes need. If all its threads are busy, a call
waits without a thread. After a failed call, waiting calls and calls within the next `RETRY_SECONDS` fail at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import anyio

from waybill.base.errors import ReplayUnavailable

T = TypeVar("T")

THREADS = 8
RETRY_SECONDS = 5.0


class DatabaseThreads:
    """Runs functions that query the database."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limiter = anyio.CapacityLimiter(THREADS)
        self._clock = clock
        self._failed: float | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise its error.

        Shortly after a failure, raise `ReplayUnavailable` at once.
        """
        return await anyio.to_thread.run_sync(lambda: self._run(work), limiter=self._limiter)

    def _run(self, work: Callable[[], T]) -> T:
        if self._failed is not None and self._clock() - self._failed < RETRY_SECONDS:
            raise ReplayUnavailable("the database did not answer a moment ago")
        try:
            found = work()
        except ReplayUnavailable:
            self._failed = self._clock()
            raise
        self._failed = None
        return found
