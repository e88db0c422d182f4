"""Offsets of an object as ranges of consecutive offsets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.chain.object_scan import MAX_RANGES, collect_ranges


@given(st.sets(st.integers(0, 200)), st.lists(st.integers(0, 200), max_size=5))
def test_ranges_hold_the_offsets_however_they_are_split_into_arrays(offsets: set[int], cuts: list[int]) -> None:
    every = np.array(sorted(offsets), np.int64)
    bounds = [0, *sorted(min(cut, len(every)) for cut in cuts), len(every)]
    pieces = [every[a:b] for a, b in pairwise(bounds) if a < b]
    ranges, messages = collect_ranges(pieces)
    assert ranges is not None
    assert messages == len(offsets)
    assert [o for first, following in ranges.tolist() for o in range(first, following)] == sorted(offsets)
    assert all(end < start for (_, end), (start, _) in pairwise(ranges.tolist()))


def test_ranges_beyond_the_limit_are_not_kept_but_their_offsets_are_counted() -> None:
    ranges, messages = collect_ranges([np.arange(0, 2 * (MAX_RANGES + 10), 2), np.arange(10**6, 10**6 + 5)])
    assert ranges is None
    assert messages == MAX_RANGES + 15
