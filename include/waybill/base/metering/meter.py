"""The meter of this process.

The S3 clients count here; the code at the end of a step takes the figures and stores them.

A thread works for one stream at a time (`working_for`). The counts of a thread that works for no stream, such as one of
a library's pool, belong to all streams of the process. They are divided in proportion to the CPU time of the work on
each stream, and so is the CPU time of the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from waybill.base.metering.tally import Tally, divided

_SHARED = ""
_account: ContextVar[str] = ContextVar("account", default=_SHARED)


def current_account() -> str:
    """Return the stream that this thread works for; '' for none."""
    return _account.get()


class Meter:
    """Counts by stream. Several threads may use it."""

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        """Begin at zero in the child of a fork, whose CPU clock also begins at zero."""
        self._lock = threading.Lock()
        self._tallies: dict[str, Tally] = {}
        self._own_cpu: dict[str, float] = {}
        self._cpu_taken = 0.0

    # --- counting -----------------------------------------------------------------------------------------------------

    def count_request(self, operation: str, sent_bytes: int = 0, *, account: str | None = None, times: int = 1) -> None:
        """Count a request. `account`: the stream; by default that of this thread."""
        with self._lock:
            tally = self._tally(_account.get() if account is None else account)
            tally.requests[operation] += times
            tally.sent_bytes += sent_bytes

    def count_received(self, size_bytes: int, *, account: str | None = None) -> None:
        """Count the body of an answer."""
        with self._lock:
            self._tally(_account.get() if account is None else account).received_bytes += size_bytes

    def add(self, tally: Tally, *, account: str | None = None) -> None:
        """Add the counts of another process, or messages."""
        with self._lock:
            self._tally(_account.get() if account is None else account).add(tally)

    def add_own_cpu(self, stream: str, seconds: float) -> None:
        """Add CPU time of the work on a stream, which is the weight of the stream in `take`."""
        with self._lock:
            self._own_cpu[stream] = self._own_cpu.get(stream, 0.0) + seconds

    def _tally(self, account: str) -> Tally:
        found = self._tallies.get(account)
        if found is None:
            found = self._tallies[account] = Tally()
        return found

    # --- taking -------------------------------------------------------------------------------------------------------

    def take(self, step: str, streams: Collection[str], own: str) -> dict[str, Tally]:
        """Return the counts since the last call, by stream, and begin at zero.

        CPU seconds are those of this process, as the step `<step>_<own>`, or `step` if `own` is empty, and added ones,
        as `<step>_<name>`. Counts without a stream are divided among `streams` and the streams with counts.
        """
        with self._lock:
            tallies, own_cpu = self._tallies, self._own_cpu
            self._tallies, self._own_cpu = {}, {}
            seconds = self._process_seconds()
        shared = tallies.pop(_SHARED, Tally())
        shared.add_cpu(own, seconds)
        names = dict.fromkeys([*streams, *tallies])
        if not names:
            return {}
        parts = divided(shared, {name: own_cpu.get(name, 0.0) for name in names})
        for name, tally in tallies.items():
            parts[name].add(tally)
        for part in parts.values():
            part.cpu_seconds = {f"{step}_{name}" if name else step: each for name, each in part.cpu_seconds.items()}
        return parts

    def take_total(self, name: str) -> Tally:
        """Return the sum over all streams, with the CPU seconds of this process as `name`, and begin at zero."""
        with self._lock:
            total = Tally.sum(self._tallies.values())
            self._tallies, self._own_cpu = {}, {}
            total.add_cpu(name, self._process_seconds())
        return total

    def _process_seconds(self) -> float:
        """Return the CPU seconds of all threads since the last call, or since the process started."""
        now = time.process_time()
        seconds, self._cpu_taken = now - self._cpu_taken, now
        return seconds


meter = Meter()
"""The meter of this process."""

os.register_at_fork(after_in_child=meter._restart)


@contextmanager
def working_for(stream: str, cpu_clock: Callable[[], float] = time.process_time) -> Iterator[None]:
    """In the block, count the work of this thread for a stream.

    `cpu_clock`: `time.thread_time` if several threads work for streams in parallel.
    """
    token = _account.set(stream)
    began = cpu_clock()
    try:
        yield
    finally:
        meter.add_own_cpu(stream, cpu_clock() - began)
        _account.reset(token)
