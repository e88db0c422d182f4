"""Windows cover all offsets exactly once and stay within their budget."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from waybill.watch.verify.offsets import LAST_OFFSET, offset_windows, ranges_of

RANGES = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 200)).map(lambda r: (r[0], r[0] + r[1])), max_size=6)


def inside(window: tuple[int, int], ranges: list[tuple[int, int]]) -> int:
    return sum(max(0, min(b, window[1]) - max(a, window[0])) for a, b in ranges)


@given(RANGES, st.integers(1, 300))
@example([(0, 10), (0, 10)], 1)
@example([], 1)
@example([(5, 6), (100, 200), (150, 400)], 50)
def test_windows_cover_all_offsets_and_keep_the_budget(ranges: list[tuple[int, int]], budget: int) -> None:
    windows = list(offset_windows(ranges, budget))
    assert windows[0][0] == 0
    assert windows[-1][1] == LAST_OFFSET
    for (_, end), (start, _) in pairwise(windows):
        assert end == start
    assert all(start < end for start, end in windows)
    assert all(inside(window, ranges) <= max(budget, len(ranges)) for window in windows)


@given(RANGES, st.integers(50, 300))
def test_windows_are_no_more_than_needed(ranges: list[tuple[int, int]], budget: int) -> None:
    total = sum(b - a for a, b in ranges)
    # At each cut, less than one offset of each range is left unused in the budget.
    assert len(list(offset_windows(ranges, budget))) <= 1 + total // max(1, budget - 2 * len(ranges))


def test_window_includes_ranges_that_are_far_apart() -> None:
    assert list(offset_windows([(0, 10), (10**12, 10**12 + 10)], 1000)) == [(0, LAST_OFFSET)]


def test_long_range_is_divided_into_windows() -> None:
    assert list(offset_windows([(100, 350)], 100)) == [(0, 200), (200, 300), (300, LAST_OFFSET)]


@given(st.sets(st.integers(0, 60)))
def test_ranges_of_offsets_are_the_offsets_merged(offsets: set[int]) -> None:
    ranges = list(ranges_of(sorted(offsets)))
    assert [offset for first, following in ranges for offset in range(first, following)] == sorted(offsets)
    assert all(end < start for (_, end), (start, _) in pairwise(ranges))
