"""The rate limit of a lane, with a clock that only sleeping and work advance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.ingest import Clock
from waybill.archive.ingest.time_slice import RateLimit
from waybill.base.errors import CoordinationUnavailable

MIB = 1 << 20


class Time:
    """Seconds that pass only by sleeping, or when a test sets them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []
        self.clock = Clock(monotonic=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def test_limit_waits_for_fetched_bytes_and_checks_every_second(time: Time) -> None:
    limit, checks = RateLimit(2 * MIB, time.clock), []
    limit.spend(5 * MIB)
    limit.wait(time.now + 100, lambda: checks.append(time.now))
    assert time.sleeps == [1.0, 1.0, 0.5]
    assert len(checks) == 3


def test_limit_does_not_sleep_beyond_the_deadline_and_still_counts_the_bytes(time: Time) -> None:
    limit = RateLimit(MIB, time.clock)
    limit.spend(10 * MIB)
    assert not limit.wait(time.now + 1.5, lambda: None)
    assert time.now == 1001.5
    assert limit.wait(2000.0, lambda: None)
    assert time.now == 1010.0


def test_limit_of_zero_never_sleeps(time: Time) -> None:
    limit = RateLimit(0, time.clock)
    limit.spend(1 << 40)
    assert limit.wait(2000.0, lambda: None)
    assert time.sleeps == []


def test_error_of_the_check_ends_the_wait(time: Time) -> None:
    def lost() -> None:
        raise CoordinationUnavailable("gone")

    limit = RateLimit(1, time.clock)
    limit.spend(1000)
    with pytest.raises(CoordinationUnavailable):
        limit.wait(5000.0, lost)
    assert time.now == 1001.0


@given(st.lists(st.tuples(st.integers(1, 8 * MIB), st.floats(0, 30)), min_size=1, max_size=20))
def test_no_period_exceeds_the_rate_by_more_than_one_fetch(steps: list[tuple[int, float]]) -> None:
    """Each step is a fetch of a number of bytes after a number of seconds of other work."""
    time, rate = Time(), MIB
    limit = RateLimit(rate, time.clock)
    taken: list[tuple[float, int]] = []
    for size, work in steps:
        time.now += work
        limit.wait(1e9, lambda: None)
        taken.append((time.now, size))
        limit.spend(size)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            fetched = sum(size for _, size in taken[first:last])
            assert fetched <= rate * (taken[last][0] - taken[first][0]) + 1
