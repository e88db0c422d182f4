"""Streams side by side in one driver: what fails for one ends only its own part."""

from __future__ import annotations

import logging
import threading

import pytest

from waybill.base.errors import ParserBroken, StoreUnavailable
from waybill.tables.spark.group_results import StreamOutcome
from waybill.tables.spark.job import add_stream, current_stream
from waybill.tables.spark.side_by_side import StartedOnce, StreamWork, run_side_by_side


def ignore(_: StreamWork) -> None:
    pass


def test_a_stream_that_fails_ends_only_its_own_part() -> None:
    faults: dict[str, Exception] = {
        "b": ParserBroken("x.Parser", "raised"),
        "c": StoreUnavailable("S3 is away"),
        "d": RuntimeError("a worker died"),
        "e": MemoryError(),
    }

    def do(work: StreamWork) -> None:
        work.rows, work.did_something, work.committed = 3, True, True
        if work.stream in faults:
            raise faults[work.stream]

    done = run_side_by_side("partition", list("abcdef"), do, parallel=3, on_end=ignore)
    results = {work.stream: work.result() for work in done}
    assert [(r.stream, r.status, r.error, r.retriable) for r in results.values()] == [
        ("a", StreamOutcome.DONE, None, False),
        ("b", StreamOutcome.FAILED, "ParserBroken", False),
        ("c", StreamOutcome.FAILED, "StoreUnavailable", True),
        ("d", StreamOutcome.FAILED, "RuntimeError", True),
        ("e", StreamOutcome.FAILED, "MemoryError", True),
        ("f", StreamOutcome.DONE, None, False),
    ]
    assert results["b"].committed, "what was committed before the error stays known"
    assert results["b"].message == str(faults["b"])


def test_as_many_streams_as_asked_for_are_worked_on_at_a_time() -> None:
    together = threading.Barrier(3, timeout=20)
    most, running, lock = 0, 0, threading.Lock()

    def do(work: StreamWork) -> None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1

    done = run_side_by_side("dedup", [f"s{n}" for n in range(6)], do, parallel=3, on_end=ignore)
    assert not any(work.errors for work in done)
    assert most == 3


def test_what_follows_a_part_that_failed_is_done_all_the_same() -> None:
    def do(work: StreamWork) -> None:
        with work.part():
            raise ParserBroken("x.Parser", "raised")
        work.lines.append("hours marked")

    [work] = run_side_by_side("partition", ["a"], do, parallel=1, on_end=ignore)
    result = work.result()
    assert (result.status, result.lines, result.error) == (StreamOutcome.FAILED, ("hours marked",), "ParserBroken")


def test_no_further_stream_is_begun_when_spark_has_ended() -> None:
    ended: list[str] = []

    def do(work: StreamWork) -> None:
        if work.stream == "b":
            raise RuntimeError("the JVM has gone")

    done = run_side_by_side(
        "partition",
        list("abcd"),
        do,
        parallel=1,
        on_end=lambda work: ended.append(work.stream),
        can_go_on=lambda: False,
    )
    assert [work.stream for work in done] == ended == ["a"]


def test_results_that_cannot_be_written_end_the_application() -> None:
    def on_end(work: StreamWork) -> None:
        raise StoreUnavailable("S3 is away")

    with pytest.raises(StoreUnavailable):
        run_side_by_side("partition", list("abcd"), ignore, parallel=2, on_end=on_end)


def test_log_lines_carry_the_name_of_the_stream() -> None:
    records: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(self.format(record))

    handler = Collector()
    handler.addFilter(add_stream)
    handler.setFormatter(logging.Formatter("%(stream)s%(message)s"))
    log = logging.getLogger("waybill.test_side_by_side")
    log.addHandler(handler)
    try:
        run_side_by_side("p", ["a", "b"], lambda _: log.warning("at work"), parallel=2, on_end=ignore)
        log.warning("done")
    finally:
        log.removeHandler(handler)
    assert sorted(records) == ["[a] at work", "[b] at work", "done"]
    assert current_stream.get() == ""


def test_spark_is_started_once_and_again_after_a_failed_start() -> None:
    starts: list[int] = []

    def start() -> int:
        starts.append(1)
        if len(starts) == 1:
            raise RuntimeError("no port")
        return len(starts)

    once = StartedOnce(start)
    assert once.started is None
    with pytest.raises(RuntimeError):
        once()
    assert [once(), once(), once.started] == [2, 2, 2]
