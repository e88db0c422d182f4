"""Twice the message takes at most 2.5 times the work, for the worst messages of every parser, decoder and codec."""

from __future__ import annotations

import pytest
from fuzzers.worst import CASES, Worst, too_much_growth


@pytest.mark.parametrize("name", CASES)
def test_the_work_grows_with_the_size_of_a_message(name: str) -> None:
    growth = too_much_growth(CASES[name], last_bytes=1 << 19, enough_seconds=0.05)
    assert growth is None, growth


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_the_work_grows_with_the_size_of_a_large_message(name: str) -> None:
    growth = too_much_growth(CASES[name], last_bytes=1 << 22, enough_seconds=0.5)
    assert growth is None, growth


@pytest.mark.parametrize(("work", "grows"), [("linear", False), ("quadratic", True), ("exponential", True)])
def test_only_work_that_grows_faster_than_its_input_is_reported(work: str, grows: bool) -> None:
    def prepare(size: int):  # type: ignore[no-untyped-def]
        count = {"linear": size * 400, "quadratic": size * size * 8, "exponential": 1 << min(size // 10, 40)}[work]
        return lambda: sum(range(min(count, 10_000_000)))

    worst = Worst("sum", work, prepare, first_bytes=1 << 6)
    found = too_much_growth(worst, last_bytes=1 << 12, enough_seconds=0.1)
    assert (found is not None) == grows, found
