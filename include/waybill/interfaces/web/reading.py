"""The status document in the memory of a process, read again every few seconds at most.

While a thread reads the document, a page shows the last known state, and does not wait for S3. There are two
exceptions: the request that starts a reading waits up to two seconds for it if the known state is old, and up to four
requests wait while there is no known state. The other requests do not wait: the API server has few threads, and
Airflow's own pages need them. When S3 does not answer, the last state stays, and the page states this.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from waybill.base.errors import WaybillError
from waybill.watch.promises.status import WatchStatus

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 3.0
_OLD_SECONDS = 15.0
_WAIT_SECONDS = 2.0
_WAITING = 4


@dataclass(frozen=True, slots=True)
class Known:
    """The last known state."""

    status: WatchStatus | None
    """None: there is no status document, or none was ever read."""
    problem: str
    """Why it could not be read again; '' if it could."""


class StatusReader:
    """Reads the status document for all requests of a process."""

    def __init__(
        self,
        read: Callable[[], bytes | None],
        where: str,
        *,
        every_seconds: float = _EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` returns the document, None without one, or raises a `WaybillError`. `where` names it in errors."""
        self._read = read
        self._where = where
        self._every = every_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._known = Known(None, "")
        self._content: bytes | None = None
        self._begun: float | None = None
        self._ended: float | None = None
        self._reading: Future[None] | None = None
        self._waiting = threading.BoundedSemaphore(_WAITING)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="waybill-status")

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def known(self) -> Known:
        """Return the last known state, and start to read it again if it is due."""
        with self._lock:
            now = self._clock()
            is_idle = self._reading is None or self._reading.done()
            if is_idle and (self._begun is None or now - self._begun >= self._every):
                self._begun = now
                self._reading = self._pool.submit(self._read_again)
                begins = True
            else:
                begins = False
            reading = self._reading
            is_old = self._ended is None or now - self._ended > _OLD_SECONDS
            is_nothing_known = self._known.status is None
        if is_old and reading is not None and (begins or is_nothing_known) and self._waiting.acquire(blocking=False):
            try:
                wait([reading], _WAIT_SECONDS)
            finally:
                self._waiting.release()
        if self._ended is None:
            return Known(None, f"{self._where} is being read: S3 has not answered yet")
        return self._known

    def _read_again(self) -> None:
        try:
            self._known = self._next()
        except Exception as error:
            if not isinstance(error, WaybillError):
                logger.exception("the status document cannot be read")
            self._known = Known(self._known.status, f"{type(error).__name__}: {error}")
        self._ended = self._clock()

    def _next(self) -> Known:
        content = self._read()
        if content is None:
            return Known(self._known.status, f"{self._where} does not exist: no watch has stored it")
        if content != self._content or self._known.status is None:
            status = WatchStatus.parse(content, self._where)
            self._content = content
            return Known(status, "")
        return Known(self._known.status, "")
