"""Merges of the key index: which runs, and what comes of them."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_files import DAY_MS, HOUR_MS, MemoryFiles, entry
from index_model import INDEX, TPS, Kept, answers, kept_rows, latest, new_run, run_keys

from waybill.dedup.candidates import UNBOUNDED_MS
from waybill.dedup.index.manifest import (
    IndexOf,
    Manifest,
    effective_window_ms,
    horizon_within,
    index_bytes,
    load,
    update,
)
from waybill.dedup.index.merge import (
    MERGE_BYTES_PER_KEY,
    MOST_RUNS,
    MergePolicy,
    by_departure,
    choose,
    few_keys,
    gather,
    merge_all,
    merge_runs,
)
from waybill.dedup.index.runs import Run, RunKeys, read_run, write_run
from waybill.errors import IndexDamaged

OF = IndexOf("00000000-0000-0000-0000-000000000001", ("message_id",), 1)
WINDOW_MS = 28 * DAY_MS
POLICY = MergePolicy.of(WINDOW_MS, 256 << 20)


# --- which ---


def merged(number: int, group: tuple[Run, ...]) -> Run:
    """The entry that the merge of a group would have, if no key of it was there twice."""
    return replace(
        entry(f"merged-{number}", keys=sum(run.keys for run in group), bucket=group[0].bucket),
        first_sequence=min(run.first_sequence for run in group),
        last_sequence=max(run.last_sequence for run in group),
        min_arrived_ms=min(run.min_arrived_ms for run in group),
        max_arrived_ms=max(run.max_arrived_ms for run in group),
    )


def settle(runs: list[Run], policy: MergePolicy) -> tuple[list[Run], int]:
    """The runs after all merges, and how many keys those have written."""
    written = 0
    while groups := choose(runs, policy):
        for group in groups:
            assert len(group) > 1
            assert len({run.bucket for run in group}) == 1
            runs = [run for run in runs if run not in group]
            runs.append(merged(written, group))
            written += runs[-1].keys
    return runs, written


@dataclass
class Figures:
    most_runs: int
    mean_runs: float
    written_per_key: float


def keep_up(sweeps: int, keys_of: Callable[[int], int], every_ms: int = HOUR_MS, lag_ms: int = 0) -> Figures:
    """One bucket over many sweeps; figures are those of the second half, when old runs have begun to leave."""
    runs: list[Run] = []
    counts: list[int] = []
    fresh = written = 0
    for sweep in range(sweeps):
        start = sweep * every_ms
        arrived = (start - lag_ms, start + every_ms - 1)
        runs = [run for run in runs if run.max_arrived_ms >= start - WINDOW_MS]
        runs.append(entry(f"sweep-{sweep}", sequences=(sweep, sweep), keys=keys_of(sweep), arrived=arrived))
        runs, more = settle(runs, POLICY)
        counts.append(len(runs))
        fresh += keys_of(sweep)
        written += keys_of(sweep) + more
    late = counts[sweeps // 2 :]
    return Figures(max(late), sum(late) / len(late), written / fresh)


def test_hourly_sweeps_over_four_weeks_keep_below_40_runs_and_write_each_key_three_times() -> None:
    steady = keep_up(1500, lambda _: 4000)
    assert steady.most_runs == 27
    assert steady.mean_runs < 22
    assert steady.written_per_key < 3


def test_one_topic_partition_that_lags_by_days_changes_nothing() -> None:
    assert keep_up(1500, lambda _: 4000, lag_ms=10 * DAY_MS) == keep_up(1500, lambda _: 4000)


@pytest.mark.parametrize(
    ("keys_of", "most_written"),
    [
        (lambda sweep: 20_000 if sweep % 24 > 8 else 2_000, 3.0),  # by day and by night
        (lambda sweep: random.Random(sweep).randint(1_000, 10_000), 3.5),
        (lambda _: 1, 3.0),
    ],
    ids=["day-and-night", "uneven", "one"],
)
def test_uneven_and_small_streams_keep_below_40_runs_too(keys_of: Callable[[int], int], most_written: float) -> None:
    found = keep_up(1500, keys_of)
    assert found.most_runs <= 40
    assert found.written_per_key < most_written


def test_sweeps_every_quarter_of_an_hour_keep_to_the_bound_too() -> None:
    found = keep_up(4 * 24 * 40, lambda _: 400, every_ms=HOUR_MS // 4)
    assert found.most_runs <= 40
    assert found.written_per_key < 4


@settings(max_examples=60, deadline=None)
@given(
    made=st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(0, 10**9)), max_size=120),
    most_keys=st.sampled_from([10**4, 10**6, 10**9]),
    buckets=st.sampled_from([1, 4]),
)
def test_runs_of_any_kind_are_bounded_in_number_and_a_merge_in_keys(
    made: list[tuple[int, int, int]], most_keys: int, buckets: int
) -> None:
    policy = MergePolicy(42 * HOUR_MS, most_keys)
    runs = [
        entry(str(n), bucket=n % buckets, sequences=(n, n), keys=keys, arrived=(min(a, b), max(a, b)))
        for n, (keys, a, b) in enumerate(made)
    ]
    for group in choose(runs, policy):
        assert sum(run.keys for run in group) <= most_keys
    after, _ = settle(runs, policy)
    assert sum(run.keys for run in after) == sum(run.keys for run in runs)
    for bucket in range(buckets):
        ours = [run for run in after if run.bucket == bucket]
        assert len(ours) <= MOST_RUNS + 2 * (sum(run.keys for run in ours) // most_keys) + 1


def test_neighbours_are_merged_and_no_run_with_one_of_another_bucket() -> None:
    runs = [
        entry(f"{bucket}-{n}", bucket=bucket, sequences=(n, n), keys=10_000, arrived=(n, n + 1))
        for n in range(8)
        for bucket in range(2)
    ]
    random.Random(1).shuffle(runs)
    assert [[run.path[11:14] for run in group] for group in choose(runs, POLICY)] == [
        [f"0-{n}" for n in range(8)],
        [f"1-{n}" for n in range(8)],
    ]


def test_what_is_wider_than_its_share_of_the_window_is_not_made() -> None:
    runs = [entry(str(n), sequences=(n, n), keys=40_000, arrived=(n * DAY_MS, (n + 1) * DAY_MS - 1)) for n in range(28)]
    after, _ = settle(runs, POLICY)
    assert max(run.max_arrived_ms - run.min_arrived_ms for run in after) < POLICY.span_ms + DAY_MS
    assert len(after) > 14


def test_index_at_its_budget_keeps_to_it_and_the_window_shrinks_by_little_more_than_it_must() -> None:
    runs: list[Run] = []
    horizon_ms, windows = UNBOUNDED_MS, []
    for sweep in range(800):
        arrived = (sweep * HOUR_MS, (sweep + 1) * HOUR_MS - 1)
        runs.append(entry(f"sweep-{sweep}", sequences=(sweep, sweep), keys=1000, arrived=arrived))
        horizon_ms = horizon_within(runs, 10 * 24 * index_bytes(runs[-1:]), horizon_ms)
        windows.append(effective_window_ms(WINDOW_MS, horizon_ms, arrived[1]))
        runs = [run for run in runs if run.max_arrived_ms >= horizon_ms]
        runs, _ = settle(runs, MergePolicy.of(WINDOW_MS, 256 << 20, windows[-1]))
    assert len(runs) <= 40
    assert max(windows[500:]) < 10 * DAY_MS
    assert min(windows[500:]) > 9 * DAY_MS, "it loses runs of less than a day each"


def test_window_that_the_budget_cuts_short_is_cut_finer_in_halves() -> None:
    spans = [MergePolicy.of(WINDOW_MS, 1 << 28, days * DAY_MS).span_ms // HOUR_MS for days in (28, 27, 14, 13, 7, 1, 0)]
    assert spans == [42, 21, 21, 10, 10, 1, 1]
    assert MergePolicy.of(DAY_MS, 1 << 28, DAY_MS).span_ms == 1.5 * HOUR_MS
    assert MergePolicy.of(HOUR_MS, 1 << 28, HOUR_MS // 2).span_ms == HOUR_MS


# --- how ---


def entries(count: int, days: int) -> RunKeys:
    """Entries of as many days, in the order of their hashes."""
    random_numbers = np.random.default_rng(7)
    return RunKeys(
        hi=np.sort(random_numbers.integers(0, 1 << 63, count, dtype=np.uint64)),
        lo=np.arange(count, dtype=np.uint64),
        arrived_ms=random_numbers.integers(0, days * DAY_MS, count),
        tp=np.zeros(count, np.int32),
        offset=np.arange(count),
        topic_partitions=TPS[:1],
    )


def test_what_arrived_over_a_long_time_leaves_the_index_part_by_part() -> None:
    keys = entries(1_000_000, days=400)
    parts = list(by_departure(keys, MergePolicy.of(400 * DAY_MS, 256 << 20)))
    assert len(parts) == 16
    assert all(int(part.arrived_ms.max() - part.arrived_ms.min()) < 25 * DAY_MS for part in parts)
    assert all(bool(np.all(part.hi[1:] >= part.hi[:-1])) for part in parts)
    assert np.array_equal(np.sort(np.concatenate([part.lo for part in parts])), keys.lo)


def test_few_entries_are_not_cut_into_fewer() -> None:
    keys = entries(10_000, days=400)
    [part] = by_departure(keys, MergePolicy.of(400 * DAY_MS, 256 << 20))
    assert np.array_equal(part.lo, keys.lo)
    parts = [len(part) for part in by_departure(entries(50_000, days=400), POLICY)]
    assert sum(parts) == 50_000
    assert len(parts) > 1
    assert min(parts) >= 1 << 14


def test_a_small_budget_makes_small_runs_so_that_the_window_shrinks_by_little() -> None:
    few = few_keys(1 << 20, 16)
    assert (few, few_keys(16 << 30, 16), few_keys(1 << 20, 4096)) == (170, 1 << 14, 1)
    keys = entries(4_400, days=10)
    policy = MergePolicy.of(8 * DAY_MS, 256 << 20)
    assert len(list(by_departure(keys, policy))) == 1
    parts = list(by_departure(keys, policy, few))
    assert sum(map(len, parts)) == 4_400
    assert max(int(part.arrived_ms.max() - part.arrived_ms.min()) for part in parts) < DAY_MS


@settings(max_examples=40, deadline=None)
@given(rows=kept_rows(), cut=st.integers(1, 59), horizon=st.integers(-1, 42), later=st.integers(0, 10))
def test_merged_run_answers_as_those_it_was_made_of(rows: list[Kept], cut: int, horizon: int, later: int) -> None:
    files = MemoryFiles()
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    runs = [new_run(files, part, sequence) for sequence, part in enumerate(parts, 3)]
    by = merge_runs(files, INDEX, horizon, runs) if runs else None
    asked = sorted({(row.hi, row.lo) for row in rows})
    left = latest(rows, horizon)
    if by is None:
        assert not left
        return
    assert answers(files, [by], asked, horizon + later) == latest(rows, horizon + later)
    assert by.keys == len(left), "of each key the latest entry alone"
    assert (by.first_sequence, by.last_sequence) == (3, 2 + len(runs))
    assert by.min_arrived_ms >= horizon


def test_parts_need_not_be_sorted() -> None:
    rows = [Kept(hi, lo, 5, TPS[hi % 4], lo) for hi in range(50) for lo in range(3)]
    random.Random(1).shuffle(rows)
    parts = []
    for part in (rows[:70], rows[70:]):
        keys = run_keys(part)
        order = np.random.default_rng(1).permutation(len(keys))
        columns = [getattr(keys, name)[order] for name in ("hi", "lo", "arrived_ms", "tp", "offset")]
        parts.append(RunKeys(*columns, keys.topic_partitions))
    whole, wanted = gather(parts, 0), run_keys(rows)
    for name in ("hi", "lo", "arrived_ms", "offset"):
        assert getattr(whole, name).tolist() == getattr(wanted, name).tolist()
    assert [whole.topic_partitions[code] for code in whole.tp] == [TPS[hi % 4] for hi in wanted.hi.tolist()]


def test_memory_of_a_merge_is_what_it_is_said_to_be() -> None:
    files, random_numbers = MemoryFiles(), np.random.default_rng(1)
    runs = []
    for n in range(4):
        keys = RunKeys(
            hi=np.sort(random_numbers.integers(0, 2**64, 50_000, np.uint64)),
            lo=random_numbers.integers(0, 2**64, 50_000, np.uint64),
            arrived_ms=random_numbers.integers(0, HOUR_MS, 50_000) + n * HOUR_MS,
            tp=random_numbers.integers(0, 4, 50_000, np.int32),
            offset=random_numbers.integers(0, 10**6, 50_000),
            topic_partitions=TPS,
        )
        runs.append(write_run(files, INDEX, 0, (n, n), keys))
    merge_runs(files, INDEX, 0, runs)  # what is loaded once, and what numba compiles
    whole = pa.default_memory_pool()
    ours = pa.proxy_memory_pool(whole)  # which counts what is allocated from now on
    tracemalloc.start()
    pa.set_memory_pool(ours)
    try:
        merge_runs(files, INDEX, 0, runs)
        most = tracemalloc.get_traced_memory()[1] + ours.max_memory()
    finally:
        pa.set_memory_pool(whole)
        tracemalloc.stop()
    assert 200_000 * 64 < most < 200_000 * MERGE_BYTES_PER_KEY


# --- in the index ---


def index_of(files: MemoryFiles, runs: list[Run]) -> None:
    update(files, INDEX, OF, lambda _: replace(Manifest.empty(OF), covers=9, runs=tuple(runs)))


def sixteen_runs(files: MemoryFiles) -> tuple[list[Kept], list[Run]]:
    rows = [Kept(n, 1, n, TPS[0], n) for n in range(160)]
    runs = [new_run(files, rows[10 * n : 10 * n + 10], n) for n in range(16)]
    index_of(files, runs)
    return rows, runs


ASKED = [(n, 1) for n in range(170)]


def test_merges_go_on_until_there_is_none() -> None:
    files = MemoryFiles()
    rows, _ = sixteen_runs(files)
    manifest = merge_all(files, INDEX, OF, POLICY, UNBOUNDED_MS)
    assert manifest is not None
    assert len(manifest.runs) == 2
    assert manifest == load(files, INDEX, OF).manifest
    assert manifest.covers == 9
    assert answers(files, manifest.runs, ASKED, 0) == latest(rows, 0)
    assert merge_all(files, INDEX, OF, POLICY, UNBOUNDED_MS) == manifest, "nothing is left to do, and nothing is saved"


def test_what_is_below_the_horizon_leaves() -> None:
    files = MemoryFiles()
    rows, _ = sixteen_runs(files)
    manifest = merge_all(files, INDEX, OF, POLICY, 75)
    assert manifest is not None
    assert manifest.horizon_ms == 75
    assert manifest.keys == 85
    assert answers(files, manifest.runs, ASKED, 0) == latest(rows, 75)


def test_no_index_is_nothing_to_merge() -> None:
    assert merge_all(MemoryFiles(), INDEX, OF, POLICY, 0) is None


def test_sweep_that_saves_while_a_merge_is_under_way_loses_nothing() -> None:
    files = MemoryFiles()
    rows, _ = sixteen_runs(files)
    more = [Kept(n, 1, n, TPS[1], n) for n in range(160, 170)]

    def sweep(found: Manifest | None) -> Manifest | None:
        assert found is not None
        return found.with_rows(9, 10, 77, [new_run(files, more, 10)], UNBOUNDED_MS)

    def merge(group: tuple[Run, ...]) -> Run | None:
        if load(files, INDEX, OF).newest == 1:
            update(files, INDEX, OF, sweep)
        return merge_runs(files, INDEX, UNBOUNDED_MS, group)

    manifest = merge_all(files, INDEX, OF, POLICY, UNBOUNDED_MS, work=merge)
    assert manifest is not None
    assert manifest.covers == 10
    assert len(manifest.runs) == 3
    assert answers(files, manifest.runs, ASKED, 0) == latest([*rows, *more], 0)


def test_merge_whose_runs_a_rival_has_merged_comes_to_nothing() -> None:
    files = MemoryFiles()
    rows, runs = sixteen_runs(files)

    def merge(group: tuple[Run, ...]) -> Run | None:
        if load(files, INDEX, OF).newest == 1:  # the rival merges the first four of the first group
            by = merge_runs(files, INDEX, UNBOUNDED_MS, runs[:4])
            update(files, INDEX, OF, lambda found: found.with_merged(runs[:4], by) if found else None)
        return merge_runs(files, INDEX, UNBOUNDED_MS, group)

    manifest = merge_all(files, INDEX, OF, POLICY, UNBOUNDED_MS, work=merge)
    assert manifest is not None
    assert answers(files, manifest.runs, ASKED, 0) == latest(rows, 0)
    assert sum(run.keys for run in manifest.runs) == 160, "no entry is in two runs"
    assert [run.keys for run in sorted(manifest.runs, key=lambda run: run.last_sequence)] == [40, 10, 10, 10, 10, 80]


def test_run_that_cannot_be_read_is_told() -> None:
    files = MemoryFiles()
    _, runs = sixteen_runs(files)
    del files.contents[runs[3].path]
    with pytest.raises(IndexDamaged, match="it is gone"):
        merge_all(files, INDEX, OF, POLICY, UNBOUNDED_MS)
    assert load(files, INDEX, OF).newest == 1


def test_groups_are_carried_out_by_whoever_is_named() -> None:
    files = MemoryFiles()
    sixteen_runs(files)
    seen: list[int] = []

    def backwards(work, tasks):  # type: ignore[no-untyped-def]
        seen.append(len(tasks))
        return reversed([work(task) for task in reversed(tasks)])

    work = partial(merge_runs, files, INDEX, UNBOUNDED_MS)
    manifest = merge_all(files, INDEX, OF, POLICY, UNBOUNDED_MS, for_each=backwards, work=work)
    assert manifest is not None
    assert seen == [2]
    assert [len(read_run(files, run)) for run in manifest.runs] == [80, 80]
