"""The token bucket and the circuit breaker, with clocks of the test."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.replay.requests.delivery.breaker import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, Breaker
from waybill.replay.requests.delivery.rate import TokenBucket


@given(
    st.floats(0.1, 1000),
    st.integers(1, 20),
    st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_no_span_of_time_has_more_requests_than_the_rate_allows(rate: float, burst: int, gaps: list[float]) -> None:
    bucket, now, sent = TokenBucket(rate, burst), 0.0, []
    for gap in gaps:
        now += gap
        now += bucket.take(now)
        sent.append(now)
    for first, last in itertools.combinations(range(len(sent)), 2):
        assert last - first + 1 <= burst + rate * (sent[last] - sent[first]) + 1e-6


def test_requests_that_are_late_wait_for_nothing() -> None:
    bucket = TokenBucket(2.0)
    assert [bucket.take(at) for at in (0.0, 0.5, 5.0)] == [0, 0, 0]
    assert bucket.take(5.0) == pytest.approx(0.5)
    assert bucket.take(4.0) == pytest.approx(1.0)  # a clock that went back


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_senseless_rates_are_refused(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        TokenBucket(rate, burst)


def test_the_breaker_opens_at_its_limit_and_pauses_grow() -> None:
    breaker, now = Breaker(3), 1_000
    for _ in range(2):
        breaker = breaker.failed(now)
        assert breaker.wait_ms(now) == 0
    pauses = []
    for _ in range(8):
        breaker = breaker.failed(now)
        pauses.append(breaker.wait_ms(now))
        assert breaker.is_on_trial
        now += pauses[-1]
        assert breaker.wait_ms(now) == 0
    assert pauses[:3] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS]
    assert pauses[-1] == LONGEST_PAUSE_MS
    assert breaker.succeeded() == Breaker(3)


def test_a_pause_that_the_target_asks_for_is_kept_up_to_the_longest() -> None:
    assert Breaker(1).failed(0, 45_000).wait_ms(0) == 45_000
    assert Breaker(1).failed(0, 10**9).wait_ms(0) == LONGEST_PAUSE_MS


def test_a_clock_that_goes_back_does_not_prolong_the_pause() -> None:
    assert Breaker(1).failed(10**12).wait_ms(0) == FIRST_PAUSE_MS


@given(st.lists(st.booleans(), max_size=40))
def test_the_state_survives_as_a_document(events: list[bool]) -> None:
    breaker = Breaker(3)
    for number, is_failure in enumerate(events):
        breaker = breaker.failed(number) if is_failure else breaker.succeeded()
        assert Breaker.of(3, breaker.document()) == breaker
    assert Breaker.of(3, None) == Breaker(3)
    assert Breaker.of(3, {"v": 2}) == Breaker(3)
    assert Breaker.of(3, {"v": 1, "failures": "many"}) == Breaker(3)
