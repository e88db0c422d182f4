"""The rate limit, by a clock that stands still unless somebody sleeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.errors import CoordinationUnavailable
from waybill.ingest import Clock
from waybill.ingest.turn import RateLimit

MIB = 1 << 20


class Time:
    """Seconds that pass only when somebody sleeps or works."""

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


def test_what_was_fetched_is_waited_for_in_steps_and_the_session_is_looked_at(time: Time) -> None:
    limit, looks = RateLimit(2 * MIB, time.clock), []
    limit.spend(5 * MIB)
    limit.wait(time.now + 100, lambda: looks.append(time.now))
    assert time.sleeps == [1.0, 1.0, 0.5]
    assert len(looks) == 3


def test_nobody_sleeps_beyond_the_deadline_and_the_debt_stays(time: Time) -> None:
    limit = RateLimit(MIB, time.clock)
    limit.spend(10 * MIB)
    assert not limit.wait(time.now + 1.5, lambda: None)
    assert time.now == 1001.5
    assert limit.wait(2000.0, lambda: None)
    assert time.now == 1010.0


def test_without_a_limit_nobody_sleeps(time: Time) -> None:
    limit = RateLimit(0, time.clock)
    limit.spend(1 << 40)
    assert limit.wait(2000.0, lambda: None)
    assert time.sleeps == []


def test_a_lost_session_ends_the_wait(time: Time) -> None:
    def lost() -> None:
        raise CoordinationUnavailable("gone")

    limit = RateLimit(1, time.clock)
    limit.spend(1000)
    with pytest.raises(CoordinationUnavailable):
        limit.wait(5000.0, lost)
    assert time.now == 1001.0


@given(st.lists(st.tuples(st.integers(1, 8 * MIB), st.floats(0, 30)), min_size=1, max_size=20))
def test_no_stretch_of_time_exceeds_the_rate_by_more_than_a_fetch(steps: list[tuple[int, float]]) -> None:
    """Fetches of so many bytes, each after so many seconds of other work."""
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
