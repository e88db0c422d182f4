"""Lookups of keys in all sorted runs of a bucket."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_files import MemoryFiles
from index_model import LAST, STEP, TPS, Kept, kept_rows, latest_rows, look_up, new_run

from waybill.base.errors import IndexDamaged
from waybill.tables.dedup.index.lookup import BucketIndex

ASKED = [(hi, lo) for hi in (0, 1, 2, 3, 4, 2**59, 2**60 - 1) for lo in (0, STEP, 2 * STEP, LAST)]


@settings(max_examples=60, deadline=None)
@given(rows=kept_rows(), cuts=st.lists(st.integers(0, 60), max_size=6), horizon=st.integers(-1, 42))
def test_lookup_answers_like_a_dict_whatever_runs_the_rows_are_in(
    rows: list[Kept], cuts: list[int], horizon: int
) -> None:
    files = MemoryFiles()
    bounds = [0, *sorted(cuts), len(rows)]
    parts = [rows[start:end] for start, end in pairwise(bounds)]
    runs = [new_run(files, part, sequence) for sequence, part in enumerate(parts) if part]
    assert look_up(files, runs, ASKED, horizon) == latest_rows(rows, horizon)


def test_lookup_answers_a_repeated_key_each_time() -> None:
    files = MemoryFiles()
    run = new_run(files, [Kept(7, 7, 10, TPS[0], 3)])
    seven = np.array([7, 8, 7], np.uint64)
    earlier = BucketIndex(files, [run], list(TPS)).lookup(seven, seven, 0)
    assert earlier.candidate.tolist() == [0, 2]
    assert earlier.offset.tolist() == [3, 3]


def test_lookup_reads_nothing_without_keys_or_of_runs_below_the_horizon() -> None:
    files = MemoryFiles()
    run = new_run(files, [Kept(7, 7, 10, TPS[0], 3)])
    files.contents.clear()
    some, none = np.array([7], np.uint64), np.empty(0, np.uint64)
    index = BucketIndex(files, [run], [])
    assert len(index.lookup(none, none, 0).candidate) == 0
    assert len(index.lookup(some, some, 11).candidate) == 0
    assert len(BucketIndex(files, [], []).lookup(some, some, 0).candidate) == 0
    with pytest.raises(IndexDamaged, match="it is missing"):
        index.lookup(some, some, 10)


def test_lookup_raises_when_one_of_several_runs_is_damaged() -> None:
    files = MemoryFiles()
    sound = new_run(files, [Kept(7, 7, 10, TPS[0], 3)])
    damaged = replace(new_run(files, [Kept(8, 8, 10, TPS[0], 4)]), filter_crc32c=0)
    seven = np.array([7], np.uint64)
    with pytest.raises(IndexDamaged, match="its checksum differs"):
        BucketIndex(files, [sound, damaged], []).lookup(seven, seven, 0)
