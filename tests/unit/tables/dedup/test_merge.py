"""Merges of the key index: the choice of runs, and the merged runs."""

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
from index_model import INDEX, STEP, TPS, Kept, entries_of, kept_rows, latest_rows, look_up, new_run

from waybill.base.errors import IndexDamaged
from waybill.tables.dedup.index.manifest import (
    IndexIdentity,
    Manifest,
    effective_window_ms,
    horizon_within,
    index_bytes,
    load_manifest,
    update_manifest,
)
from waybill.tables.dedup.index.merge import (
    MAX_RUNS,
    MERGE_BYTES_PER_KEY,
    MergePolicy,
    choose_merges,
    least_run_keys,
    merge_all,
    merge_entries,
    merge_runs,
    split_by_expiry,
)
from waybill.tables.dedup.index.run_file import IndexEntries
from waybill.tables.dedup.index.sorted_runs import SortedRun, read_run, write_run
from waybill.tables.iceberg.dedup import NO_HORIZON_MS

IDENTITY = IndexIdentity("00000000-0000-0000-0000-000000000001", ("message_id",), 1)
WINDOW_MS = 28 * DAY_MS
POLICY = MergePolicy.of(WINDOW_MS, 256 << 20)


# --- which runs ---


def merged_entry(number: int, group: tuple[SortedRun, ...]) -> SortedRun:
    """Return the manifest entry that the merge of a group has if no key occurs twice."""
    return replace(
        entry(f"merged-{number}", keys=sum(run.keys for run in group), bucket=group[0].bucket),
        first_sequence=min(run.first_sequence for run in group),
        last_sequence=max(run.last_sequence for run in group),
        min_arrived_ms=min(run.min_arrived_ms for run in group),
        max_arrived_ms=max(run.max_arrived_ms for run in group),
    )


def merge_fully(runs: list[SortedRun], policy: MergePolicy) -> tuple[list[SortedRun], int]:
    """Return the runs after all merges, and the number of keys that these wrote."""
    written = 0
    while groups := choose_merges(runs, policy):
        for group in groups:
            assert len(group) > 1
            assert len({run.bucket for run in group}) == 1
            runs = [run for run in runs if run not in group]
            runs.append(merged_entry(written, group))
            written += runs[-1].keys
    return runs, written


@dataclass
class Figures:
    most_runs: int
    mean_runs: float
    written_per_key: float


def simulate_sweeps(sweeps: int, keys_of: Callable[[int], int], every_ms: int = HOUR_MS, lag_ms: int = 0) -> Figures:
    """Simulate one bucket over many sweeps; the figures are those of the second half, when old runs leave."""
    runs: list[SortedRun] = []
    counts: list[int] = []
    fresh = written = 0
    for sweep in range(sweeps):
        start = sweep * every_ms
        arrived = (start - lag_ms, start + every_ms - 1)
        runs = [run for run in runs if run.max_arrived_ms >= start - WINDOW_MS]
        runs.append(entry(f"sweep-{sweep}", sequences=(sweep, sweep), keys=keys_of(sweep), arrived=arrived))
        runs, more = merge_fully(runs, POLICY)
        counts.append(len(runs))
        fresh += keys_of(sweep)
        written += keys_of(sweep) + more
    late = counts[sweeps // 2 :]
    return Figures(max(late), sum(late) / len(late), written / fresh)


def test_hourly_sweeps_keep_few_runs_and_write_each_key_less_than_three_times() -> None:
    steady = simulate_sweeps(1500, lambda _: 4000)
    assert steady.most_runs == 27
    assert steady.mean_runs < 22
    assert steady.written_per_key < 3


def test_lagging_topic_partition_does_not_change_the_merges() -> None:
    assert simulate_sweeps(1500, lambda _: 4000, lag_ms=10 * DAY_MS) == simulate_sweeps(1500, lambda _: 4000)


@pytest.mark.parametrize(
    ("keys_of", "most_written"),
    [
        (lambda sweep: 20_000 if sweep % 24 > 8 else 2_000, 3.0),  # many by day, few by night
        (lambda sweep: random.Random(sweep).randint(1_000, 10_000), 3.5),
        (lambda _: 1, 3.0),
    ],
    ids=["day-and-night", "uneven", "one"],
)
def test_uneven_and_small_streams_keep_at_most_40_runs(keys_of: Callable[[int], int], most_written: float) -> None:
    found = simulate_sweeps(1500, keys_of)
    assert found.most_runs <= 40
    assert found.written_per_key < most_written


def test_sweeps_every_15_minutes_keep_at_most_40_runs() -> None:
    found = simulate_sweeps(4 * 24 * 40, lambda _: 400, every_ms=HOUR_MS // 4)
    assert found.most_runs <= 40
    assert found.written_per_key < 4


@settings(max_examples=60, deadline=None)
@given(
    made=st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(0, 10**9)), max_size=120),
    most_keys=st.sampled_from([10**4, 10**6, 10**9]),
    buckets=st.sampled_from([1, 4]),
)
def test_number_of_runs_and_keys_of_a_merge_are_bounded_for_any_runs(
    made: list[tuple[int, int, int]], most_keys: int, buckets: int
) -> None:
    policy = MergePolicy(42 * HOUR_MS, most_keys)
    runs = [
        entry(str(n), bucket=n % buckets, sequences=(n, n), keys=keys, arrived=(min(a, b), max(a, b)))
        for n, (keys, a, b) in enumerate(made)
    ]
    for group in choose_merges(runs, policy):
        assert sum(run.keys for run in group) <= most_keys
    after, _ = merge_fully(runs, policy)
    assert sum(run.keys for run in after) == sum(run.keys for run in runs)
    for bucket in range(buckets):
        ours = [run for run in after if run.bucket == bucket]
        assert len(ours) <= MAX_RUNS + 2 * (sum(run.keys for run in ours) // most_keys) + 1


def test_merges_combine_neighbours_of_one_bucket() -> None:
    runs = [
        entry(f"{bucket}-{n}", bucket=bucket, sequences=(n, n), keys=10_000, arrived=(n, n + 1))
        for n in range(8)
        for bucket in range(2)
    ]
    random.Random(1).shuffle(runs)
    assert [[run.path[11:14] for run in group] for group in choose_merges(runs, POLICY)] == [
        [f"0-{n}" for n in range(8)],
        [f"1-{n}" for n in range(8)],
    ]


def test_merged_runs_span_at_most_a_part_of_the_window() -> None:
    runs = [entry(str(n), sequences=(n, n), keys=40_000, arrived=(n * DAY_MS, (n + 1) * DAY_MS - 1)) for n in range(28)]
    after, _ = merge_fully(runs, POLICY)
    assert max(run.max_arrived_ms - run.min_arrived_ms for run in after) < POLICY.span_ms + DAY_MS
    assert len(after) > 14


def test_budget_shortens_the_window_by_little_more_than_needed() -> None:
    runs: list[SortedRun] = []
    horizon_ms, windows = NO_HORIZON_MS, []
    for sweep in range(800):
        arrived = (sweep * HOUR_MS, (sweep + 1) * HOUR_MS - 1)
        runs.append(entry(f"sweep-{sweep}", sequences=(sweep, sweep), keys=1000, arrived=arrived))
        horizon_ms = horizon_within(runs, 10 * 24 * index_bytes(runs[-1:]), horizon_ms)
        windows.append(effective_window_ms(WINDOW_MS, horizon_ms, arrived[1]))
        runs = [run for run in runs if run.max_arrived_ms >= horizon_ms]
        runs, _ = merge_fully(runs, MergePolicy.of(WINDOW_MS, 256 << 20, windows[-1]))
    assert len(runs) <= 40
    assert max(windows[500:]) < 10 * DAY_MS
    assert min(windows[500:]) > 9 * DAY_MS, "each run that leaves spans less than a day"


def test_parts_of_a_shortened_window_are_halved() -> None:
    spans = [MergePolicy.of(WINDOW_MS, 1 << 28, days * DAY_MS).span_ms // HOUR_MS for days in (28, 27, 14, 13, 7, 1, 0)]
    assert spans == [42, 21, 21, 10, 10, 1, 1]
    assert MergePolicy.of(DAY_MS, 1 << 28, DAY_MS).span_ms == 1.5 * HOUR_MS
    assert MergePolicy.of(HOUR_MS, 1 << 28, HOUR_MS // 2).span_ms == HOUR_MS


# --- merged runs ---


def random_entries(count: int, days: int) -> IndexEntries:
    """Return entries of that many days, sorted by hash."""
    random_numbers = np.random.default_rng(7)
    return IndexEntries(
        hi=np.sort(random_numbers.integers(0, 1 << 63, count, dtype=np.uint64)),
        tail=np.arange(count, dtype=np.uint32),
        arrived_ms=random_numbers.integers(0, days * DAY_MS, count),
        tp=np.zeros(count, np.int32),
        offset=np.arange(count),
        topic_partitions=TPS[:1],
    )


def test_entries_of_a_long_time_are_split_by_expiry() -> None:
    keys = random_entries(1_000_000, days=400)
    parts = list(split_by_expiry(keys, MergePolicy.of(400 * DAY_MS, 256 << 20)))
    assert len(parts) == 16
    assert all(int(part.arrived_ms.max() - part.arrived_ms.min()) < 25 * DAY_MS for part in parts)
    assert all(bool(np.all(part.hi[1:] >= part.hi[:-1])) for part in parts)
    assert np.array_equal(np.sort(np.concatenate([part.tail for part in parts])), keys.tail)


def test_split_makes_no_small_runs() -> None:
    keys = random_entries(10_000, days=400)
    [part] = split_by_expiry(keys, MergePolicy.of(400 * DAY_MS, 256 << 20))
    assert np.array_equal(part.tail, keys.tail)
    parts = [len(part) for part in split_by_expiry(random_entries(50_000, days=400), POLICY)]
    assert sum(parts) == 50_000
    assert len(parts) > 1
    assert min(parts) >= 1 << 14


def test_small_budget_makes_small_runs() -> None:
    least_keys = least_run_keys(1 << 20, 16)
    assert (least_keys, least_run_keys(16 << 30, 16), least_run_keys(1 << 20, 4096)) == (227, 1 << 14, 1)
    keys = random_entries(4_400, days=10)
    policy = MergePolicy.of(8 * DAY_MS, 256 << 20)
    assert len(list(split_by_expiry(keys, policy))) == 1
    parts = list(split_by_expiry(keys, policy, least_keys))
    assert sum(map(len, parts)) == 4_400
    assert max(int(part.arrived_ms.max() - part.arrived_ms.min()) for part in parts) < DAY_MS


@settings(max_examples=40, deadline=None)
@given(rows=kept_rows(), cut=st.integers(1, 59), horizon=st.integers(-1, 42), later=st.integers(0, 10))
def test_merged_run_answers_like_the_runs_it_was_made_of(rows: list[Kept], cut: int, horizon: int, later: int) -> None:
    files = MemoryFiles()
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    runs = [new_run(files, part, sequence) for sequence, part in enumerate(parts, 3)]
    merged = merge_runs(files, INDEX, horizon, runs) if runs else None
    asked = sorted({(row.hi, row.lo) for row in rows})
    remaining = latest_rows(rows, horizon)
    if merged is None:
        assert not remaining
        return
    assert look_up(files, [merged], asked, horizon + later) == latest_rows(rows, horizon + later)
    assert merged.keys == len(remaining), "only the latest entry of each key"
    assert (merged.first_sequence, merged.last_sequence) == (3, 2 + len(runs))
    assert merged.min_arrived_ms >= horizon


def test_merge_sorts_unsorted_parts() -> None:
    rows = [Kept(hi, n * STEP, 5, TPS[hi % 4], n) for hi in range(50) for n in range(3)]
    random.Random(1).shuffle(rows)
    parts = []
    for part in (rows[:70], rows[70:]):
        keys = entries_of(part)
        order = np.random.default_rng(1).permutation(len(keys))
        columns = [getattr(keys, name)[order] for name in ("hi", "tail", "arrived_ms", "tp", "offset")]
        parts.append(IndexEntries(*columns, keys.topic_partitions))
    whole, wanted = merge_entries(parts, 0), entries_of(rows)
    for name in ("hi", "tail", "arrived_ms", "offset"):
        assert getattr(whole, name).tolist() == getattr(wanted, name).tolist()
    assert [whole.topic_partitions[code] for code in whole.tp] == [TPS[hi % 4] for hi in wanted.hi.tolist()]


def test_merge_takes_at_most_the_declared_memory_per_key() -> None:
    files, random_numbers = MemoryFiles(), np.random.default_rng(1)
    runs = []
    for n in range(4):
        keys = IndexEntries(
            hi=np.sort(random_numbers.integers(0, 2**64, 50_000, np.uint64)),
            tail=random_numbers.integers(0, 2**24, 50_000, np.uint32),
            arrived_ms=random_numbers.integers(0, HOUR_MS, 50_000) + n * HOUR_MS,
            tp=random_numbers.integers(0, 4, 50_000, np.int32),
            offset=random_numbers.integers(0, 10**6, 50_000),
            topic_partitions=TPS,
        )
        runs.append(write_run(files, INDEX, 0, (n, n), keys))
    merge_runs(files, INDEX, 0, runs)  # loads libraries and compiles
    whole = pa.default_memory_pool()
    ours = pa.proxy_memory_pool(whole)  # counts allocations from now on
    tracemalloc.start()
    pa.set_memory_pool(ours)
    try:
        merge_runs(files, INDEX, 0, runs)
        most = tracemalloc.get_traced_memory()[1] + ours.max_memory()
    finally:
        pa.set_memory_pool(whole)
        tracemalloc.stop()
    assert 200_000 * 64 < most < 200_000 * MERGE_BYTES_PER_KEY


# --- all merges of an index ---


def save_index(files: MemoryFiles, runs: list[SortedRun]) -> None:
    update_manifest(files, INDEX, IDENTITY, lambda _: replace(Manifest.empty(IDENTITY), covers=9, runs=tuple(runs)))


def sixteen_runs(files: MemoryFiles) -> tuple[list[Kept], list[SortedRun]]:
    rows = [Kept(n, 1, n, TPS[0], n) for n in range(160)]
    runs = [new_run(files, rows[10 * n : 10 * n + 10], n) for n in range(16)]
    save_index(files, runs)
    return rows, runs


ASKED = [(n, 1) for n in range(170)]


def test_merge_all_repeats_until_no_merge_is_left() -> None:
    files = MemoryFiles()
    rows, _ = sixteen_runs(files)
    manifest = merge_all(files, INDEX, IDENTITY, POLICY, NO_HORIZON_MS)
    assert manifest is not None
    assert len(manifest.runs) == 2
    assert manifest == load_manifest(files, INDEX, IDENTITY).manifest
    assert manifest.covers == 9
    assert look_up(files, manifest.runs, ASKED, 0) == latest_rows(rows, 0)
    assert merge_all(files, INDEX, IDENTITY, POLICY, NO_HORIZON_MS) == manifest, "no merge is left, none is saved"


def test_merge_all_drops_entries_below_the_horizon() -> None:
    files = MemoryFiles()
    rows, _ = sixteen_runs(files)
    manifest = merge_all(files, INDEX, IDENTITY, POLICY, 75)
    assert manifest is not None
    assert manifest.horizon_ms == 75
    assert manifest.keys == 85
    assert look_up(files, manifest.runs, ASKED, 0) == latest_rows(rows, 75)


def test_merge_all_returns_none_without_an_index() -> None:
    assert merge_all(MemoryFiles(), INDEX, IDENTITY, POLICY, 0) is None


def test_sweep_saved_during_a_merge_is_kept() -> None:
    files = MemoryFiles()
    rows, _ = sixteen_runs(files)
    more = [Kept(n, 1, n, TPS[1], n) for n in range(160, 170)]

    def sweep(found: Manifest | None) -> Manifest | None:
        assert found is not None
        return found.with_sweep(9, 10, 77, [new_run(files, more, 10)], NO_HORIZON_MS)

    def merge(group: tuple[SortedRun, ...]) -> SortedRun | None:
        if load_manifest(files, INDEX, IDENTITY).newest_version == 1:
            update_manifest(files, INDEX, IDENTITY, sweep)
        return merge_runs(files, INDEX, NO_HORIZON_MS, group)

    manifest = merge_all(files, INDEX, IDENTITY, POLICY, NO_HORIZON_MS, work=merge)
    assert manifest is not None
    assert manifest.covers == 10
    assert len(manifest.runs) == 3
    assert look_up(files, manifest.runs, ASKED, 0) == latest_rows([*rows, *more], 0)


def test_merge_is_discarded_when_a_rival_has_merged_its_runs() -> None:
    files = MemoryFiles()
    rows, runs = sixteen_runs(files)

    def merge(group: tuple[SortedRun, ...]) -> SortedRun | None:
        if load_manifest(files, INDEX, IDENTITY).newest_version == 1:  # a rival merges four runs of the group
            result = merge_runs(files, INDEX, NO_HORIZON_MS, runs[:4])
            update_manifest(
                files, INDEX, IDENTITY, lambda found: found.with_merged(runs[:4], result) if found else None
            )
        return merge_runs(files, INDEX, NO_HORIZON_MS, group)

    manifest = merge_all(files, INDEX, IDENTITY, POLICY, NO_HORIZON_MS, work=merge)
    assert manifest is not None
    assert look_up(files, manifest.runs, ASKED, 0) == latest_rows(rows, 0)
    assert sum(run.keys for run in manifest.runs) == 160, "no entry is in two runs"
    assert [run.keys for run in sorted(manifest.runs, key=lambda run: run.last_sequence)] == [40, 10, 10, 10, 10, 80]


def test_merge_all_raises_when_a_run_is_missing() -> None:
    files = MemoryFiles()
    _, runs = sixteen_runs(files)
    del files.contents[runs[3].path]
    with pytest.raises(IndexDamaged, match="it is missing"):
        merge_all(files, INDEX, IDENTITY, POLICY, NO_HORIZON_MS)
    assert load_manifest(files, INDEX, IDENTITY).newest_version == 1


def test_merge_all_runs_the_groups_by_the_given_for_each() -> None:
    files = MemoryFiles()
    sixteen_runs(files)
    seen: list[int] = []

    def backwards(work, tasks):  # type: ignore[no-untyped-def]
        seen.append(len(tasks))
        return reversed([work(task) for task in reversed(tasks)])

    work = partial(merge_runs, files, INDEX, NO_HORIZON_MS)
    manifest = merge_all(files, INDEX, IDENTITY, POLICY, NO_HORIZON_MS, for_each=backwards, work=work)
    assert manifest is not None
    assert seen == [2]
    assert [len(read_run(files, run)) for run in manifest.runs] == [80, 80]
