"""Process several streams in parallel threads of one driver; an error of one stream ends only its own part.

The streams share the driver's process, its S3 client, catalog and Spark session, and Spark's Python workers. So the end
of the driver or its JVM (out of memory, a kill) ends the work on all streams. A worker that dies fails only the stream
whose task it ran: Spark starts another one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from waybill.base.errors import UnexpectedFailure, WaybillError, expected
from waybill.base.metering import working_for
from waybill.tables.spark.group_results import StreamOutcome, StreamResult
from waybill.tables.spark.job import current_stream, log_failure

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_LONGEST_MESSAGE = 2000


class StartedOnce(Generic[_T]):
    """Calls `start` at the first call, in whichever thread, and returns its result from then on.

    If `start` raises, the next call tries again.
    """

    def __init__(self, start: Callable[[], _T]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._started: list[_T] = []

    def __call__(self) -> _T:
        with self._lock:
            if not self._started:
                self._started.append(self._start())
            return self._started[0]

    @property
    def started(self) -> _T | None:
        """What `start` returned; None if it was not called."""
        return self._started[0] if self._started else None


@dataclass
class StreamWork:
    """The results of a job for one stream so far, also after an error."""

    job: str
    stream: str
    rows: int = 0
    committed: bool = False
    did_something: bool = False
    lines: list[str] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    """JSON documents."""
    counts: Counter[str] = field(default_factory=Counter)
    """The committed counts: `rows`, `quarantined`, `duplicates`."""
    errors: list[Exception] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @contextmanager
    def part(self) -> Iterator[None]:
        """Record an error that ends the block; the code after the block is still executed."""
        try:
            yield
        except Exception as error:
            if isinstance(error, WaybillError):
                log_failure(logger, self.job, self.stream, error)
            else:
                logger.exception("%s %s failed", self.job, self.stream)
            self.errors.append(error)

    def result(self) -> StreamResult:
        """Return the present result."""
        error = self.errors[0] if self.errors else None
        done = StreamOutcome.DONE if self.did_something or self.alerts else StreamOutcome.NOTHING_NEW
        return StreamResult(
            stream=self.stream,
            status=done if error is None else StreamOutcome.FAILED,
            committed=self.committed,
            rows=self.rows,
            seconds=round(time.monotonic() - self.began, 3),
            error=None if error is None else type(error).__name__,
            message=None if error is None else str(expected(f"stream {self.stream}", error))[:_LONGEST_MESSAGE],
            retriable=any(_can_retry(each) for each in self.errors),
            lines=tuple(self.lines),
            alerts=tuple(self.alerts),
            counts=dict(self.counts),
        )


def _can_retry(error: Exception) -> bool:
    # Any other error is a dead worker or an unexpected fault: Airflow tries again.
    is_unexpected = isinstance(error, UnexpectedFailure) or not isinstance(error, WaybillError)
    return is_unexpected or bool(getattr(error, "retriable", False))


def run_side_by_side(
    job: str,
    names: Sequence[str],
    do: Callable[[StreamWork], None],
    *,
    parallel: int,
    on_end: Callable[[StreamWork], None],
    can_go_on: Callable[[], bool] = lambda: True,
) -> list[StreamWork]:
    """Call `do` for each stream, `parallel` of them at a time, and return the results in the order of `names`.

    `on_end` is called after each stream. `can_go_on` is called after a stream has failed: if it returns False, no
    further stream is started, and the result contains neither that stream nor the remaining ones. Raises what `on_end`
    raises, when all threads have ended.
    """
    stopped = threading.Event()

    def run(name: str) -> StreamWork | None:
        if stopped.is_set():
            return None
        token = current_stream.set(name)
        try:
            work = StreamWork(job, name)
            with working_for(name, time.thread_time), work.part():
                do(work)
            if work.errors and not can_go_on():
                stopped.set()
                return None
            on_end(work)
            return work
        except BaseException:
            stopped.set()
            raise
        finally:
            current_stream.reset(token)

    if len(names) == 1:
        done = [run(names[0])]  # in this thread: its messages, signals and failpoints are those of a plain program
    else:
        with ThreadPoolExecutor(min(parallel, len(names)) or 1, thread_name_prefix="stream") as pool:
            done = list(pool.map(run, names))
    return [work for work in done if work is not None]
