"""The horizon that keeps the key index within its budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from index_files import HOUR_MS, entry

from waybill.tables.dedup.index.manifest import effective_window_ms, horizon_within, index_bytes
from waybill.tables.iceberg.dedup import NO_HORIZON_MS

HOURS = [entry(f"h{n}", bucket=n % 2, arrived=(n * HOUR_MS, (n + 1) * HOUR_MS - 1)) for n in range(10)]
RUN_BYTES = 22_000


def test_horizon_stays_while_the_index_is_within_its_budget() -> None:
    assert index_bytes(HOURS) == 10 * RUN_BYTES
    assert horizon_within(HOURS, 10 * RUN_BYTES, NO_HORIZON_MS) == NO_HORIZON_MS
    assert horizon_within(HOURS, 10 * RUN_BYTES, 5) == 5
    assert horizon_within([], 0, 5) == 5


def test_horizon_rises_until_the_remaining_runs_fit() -> None:
    assert horizon_within(HOURS, 10 * RUN_BYTES - 1, NO_HORIZON_MS) == HOUR_MS
    assert horizon_within(HOURS, 3 * RUN_BYTES, NO_HORIZON_MS) == 7 * HOUR_MS
    assert horizon_within(HOURS, 0, NO_HORIZON_MS) == 10 * HOUR_MS, "nothing fits: nothing is covered"


def test_runs_below_the_horizon_do_not_count_towards_the_budget() -> None:
    assert horizon_within(HOURS, 5 * RUN_BYTES, 5 * HOUR_MS) == 5 * HOUR_MS


def test_runs_with_the_same_last_arrival_leave_together() -> None:
    same = [entry(str(bucket), bucket=bucket, arrived=(0, 9)) for bucket in range(4)]
    assert horizon_within(same, 2 * RUN_BYTES, 0) == 10


@given(
    spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9)), max_size=30),
    budget=st.integers(0, 200_000),
    horizon=st.integers(-5, 60),
)
def test_horizon_keeps_whole_runs_and_removes_no_more_than_needed(
    spans: list[tuple[int, int, int]], budget: int, horizon: int
) -> None:
    runs = [entry(str(n), keys=keys * 1000, arrived=(min(a, b), max(a, b))) for n, (a, b, keys) in enumerate(spans)]
    after = horizon_within(runs, budget, horizon)
    kept = [run for run in runs if run.max_arrived_ms >= after]
    assert after >= horizon
    assert index_bytes(kept) <= budget
    if after > horizon:  # a horizon that is 1 ms lower exceeds the budget
        assert index_bytes(run for run in runs if run.max_arrived_ms >= after - 1) > budget


def test_effective_window_is_the_shorter_of_window_and_distance_to_the_horizon() -> None:
    assert effective_window_ms(100, NO_HORIZON_MS, 5) == 100
    assert effective_window_ms(100, 900, 1000) == 100
    assert effective_window_ms(100, 960, 1000) == 40
    assert effective_window_ms(100, 2000, 1000) == 0
