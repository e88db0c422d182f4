"""While S3 hangs, pages do not take the threads of the API server, which Airflow's own pages need."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sample_status import sample_status

from waybill.config.models import Config
from waybill.interfaces.web.frame import Links
from waybill.interfaces.web.reading import StatusReader
from waybill.interfaces.web.trace import PageTracer
from waybill.interfaces.web.trace_page import TracePage, TraceQuery

LINKS = Links("/waybill/ui", "")


class Hanging:
    """S3, which hangs until it is told not to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0
        self.clock = 0.0

    def read(self) -> bytes:
        self.asked += 1
        self.answers.wait(30)
        return sample_status().content()

    def load_config(self) -> Config:
        self.asked += 1
        self.answers.wait(30)
        raise LookupError("S3 answers again")


@pytest.fixture
def s3() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.answers.set()


def seconds_of(number: int, call: object) -> list[float]:
    """Return how long each of several calls at once takes."""

    def timed(_: int) -> float:
        began = time.monotonic()
        call()  # type: ignore[operator]
        return time.monotonic() - began

    with ThreadPoolExecutor(number) as pool:
        return sorted(pool.map(timed, range(number)))


def test_once_a_state_is_known_one_request_at_most_waits_for_s3(s3: Hanging) -> None:
    s3.answers.set()
    reader = StatusReader(s3.read, "status", clock=lambda: s3.clock)
    assert reader.known().status is not None
    s3.answers.clear()
    s3.clock = 3600
    *others, slowest = seconds_of(20, reader.known)
    assert others[-1] < 1, others
    assert slowest < 3
    s3.clock = 7200
    assert seconds_of(20, reader.known)[-1] < 1, "a reading that hangs is not waited for again"
    assert s3.asked == 2
    s3.answers.set()
    reader.close()


def test_while_nothing_is_known_four_requests_at_most_wait_for_s3(s3: Hanging) -> None:
    reader = StatusReader(s3.read, "status", clock=lambda: s3.clock)
    seconds = seconds_of(20, reader.known)
    assert sum(each > 1 for each in seconds) <= 4
    assert reader.known().status is None
    s3.answers.set()
    reader.close()


def test_a_trace_does_not_wait_for_others_and_not_for_long_for_s3(s3: Hanging) -> None:
    tracer = PageTracer(s3.load_config, wait_seconds=0.3)
    query = TraceQuery("", "flights", "0", "7", "")
    problems: list[str] = []

    def trace() -> None:
        page: TracePage = tracer(query, LINKS, ())
        problems.append(page.problem)

    assert seconds_of(12, trace)[-1] < 2
    assert sum("at work" in each for each in problems) == 8
    assert sum("have not answered within" in each for each in problems) == 4
    assert "at work" in tracer(query, LINKS, ()).problem, "those that hang still count"
    s3.answers.set()
    end = time.monotonic() + 30
    while tracer(query, LINKS, ()).problem != "S3 answers again":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_first_trace_may_take_longer_since_it_loads_libraries(s3: Hanging) -> None:
    tracer = PageTracer(s3.load_config, wait_seconds=0.5)
    query = TraceQuery("", "flights", "0", "7", "")
    threading.Timer(0.8, s3.answers.set).start()
    assert tracer(query, LINKS, ()).problem == "S3 answers again"
    s3.answers.clear()
    assert "have not answered within" in tracer(query, LINKS, ()).problem
