"""Offsets of an object as runs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waybill.verify.archive import MAX_RUNS, _collect


@given(st.sets(st.integers(0, 200)), st.lists(st.integers(0, 200), max_size=5))
def test_runs_are_the_offsets_however_they_come(offsets: set[int], cuts: list[int]) -> None:
    every = np.array(sorted(offsets), np.int64)
    bounds = [0, *sorted(min(cut, len(every)) for cut in cuts), len(every)]
    pieces = [every[a:b] for a, b in pairwise(bounds) if a < b]
    runs, messages = _collect(pieces)
    assert runs is not None
    assert messages == len(offsets)
    assert [o for first, following in runs.tolist() for o in range(first, following)] == sorted(offsets)
    assert all(end < start for (_, end), (start, _) in pairwise(runs.tolist()))


def test_too_many_runs_are_not_kept() -> None:
    runs, messages = _collect([np.arange(0, 2 * (MAX_RUNS + 10), 2), np.arange(10**6, 10**6 + 5)])
    assert runs is None
    assert messages == MAX_RUNS + 15
