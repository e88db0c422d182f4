"""The size of the key index as a bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from index_files import HOUR_MS, entry

from waybill.dedup.candidates import UNBOUNDED_MS
from waybill.dedup.index.manifest import effective_window_ms, horizon_within, index_bytes

HOURS = [entry(f"h{n}", bucket=n % 2, arrived=(n * HOUR_MS, (n + 1) * HOUR_MS - 1)) for n in range(10)]
OF_ONE = 22_000


def test_an_index_within_its_budget_is_left_alone() -> None:
    assert index_bytes(HOURS) == 10 * OF_ONE
    assert horizon_within(HOURS, 10 * OF_ONE, UNBOUNDED_MS) == UNBOUNDED_MS
    assert horizon_within(HOURS, 10 * OF_ONE, 5) == 5
    assert horizon_within([], 0, 5) == 5


def test_oldest_runs_leave_until_the_rest_fits() -> None:
    assert horizon_within(HOURS, 10 * OF_ONE - 1, UNBOUNDED_MS) == HOUR_MS
    assert horizon_within(HOURS, 3 * OF_ONE, UNBOUNDED_MS) == 7 * HOUR_MS
    assert horizon_within(HOURS, 0, UNBOUNDED_MS) == 10 * HOUR_MS, "nothing fits: nothing is covered"


def test_runs_below_the_horizon_do_not_count() -> None:
    assert horizon_within(HOURS, 5 * OF_ONE, 5 * HOUR_MS) == 5 * HOUR_MS


def test_runs_that_end_at_the_same_time_leave_together() -> None:
    same = [entry(str(bucket), bucket=bucket, arrived=(0, 9)) for bucket in range(4)]
    assert horizon_within(same, 2 * OF_ONE, 0) == 10


@given(
    spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9)), max_size=30),
    budget=st.integers(0, 200_000),
    horizon=st.integers(-5, 60),
)
def test_what_is_at_or_after_the_horizon_is_kept_whole_and_no_more_leaves_than_must(
    spans: list[tuple[int, int, int]], budget: int, horizon: int
) -> None:
    runs = [entry(str(n), keys=keys * 1000, arrived=(min(a, b), max(a, b))) for n, (a, b, keys) in enumerate(spans)]
    after = horizon_within(runs, budget, horizon)
    kept = [run for run in runs if run.max_arrived_ms >= after]
    assert after >= horizon
    assert index_bytes(kept) <= budget
    if after > horizon:  # one step less would not do
        assert index_bytes(run for run in runs if run.max_arrived_ms >= after - 1) > budget


def test_effective_window() -> None:
    assert effective_window_ms(100, UNBOUNDED_MS, 5) == 100
    assert effective_window_ms(100, 900, 1000) == 100
    assert effective_window_ms(100, 960, 1000) == 40
    assert effective_window_ms(100, 2000, 1000) == 0
