"""Random streams: the matching code and the key index, without tables and S3, must agree with the oracle.

`WAYBILL_SEEDS=2000` runs that many streams instead of a few. tests/integration/test_sweep.py does the same with tables,
S3 and drivers that are killed, at a few hundred times the cost.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import oracle
import pyarrow as pa
import pytest
from index_files import MemoryFiles
from oracle import Row

from waybill.config.names import TopicPartition
from waybill.tables.dedup.candidates import Candidates
from waybill.tables.dedup.index.lookup import BucketIndex
from waybill.tables.dedup.index.merge import MergePolicy, choose_merges, merge_entries, merge_runs
from waybill.tables.dedup.index.run_file import IndexEntries, tail_of
from waybill.tables.dedup.index.sorted_runs import SortedRun, write_run
from waybill.tables.dedup.keys import exclude_assigned_ids, hash_keys, hash_range_of
from waybill.tables.dedup.match import find_duplicates
from waybill.tables.dedup.rows import arrivals_ms
from waybill.tables.dedup.sweep_plan import earliest_arrival_ms, horizon_after

SEEDS = int(os.environ.get("WAYBILL_SEEDS", "8"))
SECRET = bytes(range(16))
START_MS = 1_600_000_000_000
TPS = [TopicPartition(topic, number) for topic in ("flights", "flights.b") for number in range(2)]
TIME = pa.timestamp("us", "UTC")


@dataclass
class Stream:
    """The index and the state after each sweep, of the tested code and of the oracle."""

    rng: random.Random
    files: MemoryFiles = field(default_factory=MemoryFiles)
    buckets: int = 4
    window_ms: int = 3_600_000
    now_ms: int = START_MS
    runs: list[SortedRun] = field(default_factory=list)
    kept: list[IndexEntries] = field(default_factory=list)
    """All rows that were ever kept: the content of the unique table."""
    watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    horizon_ms: int = oracle.NEVER
    state: oracle.State = field(default_factory=oracle.State)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    waiting: list[Row] = field(default_factory=list)

    # --- rows ---

    def append(self) -> None:
        """Add rows for the next sweep: late, early, at the same time as others, or held back for some sweeps."""
        made = [self._row() for _ in range(self.rng.randrange(1, 50))]
        held = [row for row in self.waiting if self.rng.random() < 0.1]
        self.waiting = [row for row in self.waiting if row not in held] + made
        self.rng.shuffle(self.waiting)

    def _row(self) -> Row:
        rng = self.rng
        tp = rng.choice(TPS[: rng.randrange(1, 5)])
        offset = self.offsets[tp] = self.offsets.get(tp, -1) + rng.choice((1, 1, 4))
        kind = rng.randrange(12)
        time: int | None = self.now_ms - rng.randrange(self.window_ms)
        if kind == 0:
            time = self.now_ms + rng.choice((-1, 1)) * rng.randrange(100 * self.window_ms)
        elif kind == 1:
            time = None
        elif kind < 5:
            time = self.now_ms - rng.choice((0, 1, self.window_ms - 1, self.window_ms, self.window_ms + 1))
        ids = [f"id-{rng.randrange(25)}"] * 8 + [f"{tp}@{offset}", f"{tp}@{offset + 1}"]
        return Row(tp, offset, time, self.now_ms - rng.randrange(1000), (rng.choice(ids),))

    # --- a sweep ---

    def sweep(self) -> None:
        """Sweep by the tested code and by the oracle; check that kept rows, duplicates and states are equal."""
        batch = [row for row in self.waiting if self.rng.random() < 0.9]
        self.waiting = [row for row in self.waiting if row not in batch]
        forced = self.now_ms - self.rng.randrange(2 * self.window_ms) if self.rng.random() < 0.15 else oracle.NEVER
        expected = oracle.sweep(
            self.state, batch, high_ms=self.now_ms, window_ms=self.window_ms, forced_horizon_ms=forced
        )
        found = self._sweep(batch)
        assert found == _comparable(expected)
        self.horizon_ms = max(self.horizon_ms, horizon_after(self.watermarks, self.window_ms), forced)
        self.state = expected.state
        assert (self.watermarks, self.horizon_ms) == (dict(self.state.watermarks), self.state.horizon_ms)

    def _sweep(self, batch: Sequence[Row]) -> dict[tuple[TopicPartition, int], tuple[object, ...]]:
        keyless, candidates = self._candidates(batch)
        found: dict[tuple[TopicPartition, int], tuple[object, ...]] = {}
        for row, arrived_ms in keyless:
            found[row.tp, row.offset] = (arrived_ms,)
        hash_ranges = self.rng.choice((self.buckets, 4 * self.buckets))
        numbers = hash_range_of(candidates.hi, hash_ranges)
        runs = [
            run
            for number in range(hash_ranges)
            for run in self._match(number * self.buckets // hash_ranges, candidates.take(numbers == number), found)
        ]
        self.runs += runs
        return found

    def _candidates(self, batch: Sequence[Row]) -> tuple[list[tuple[Row, int]], Candidates]:
        times = [None if row.kafka_timestamp_ms is None else row.kafka_timestamp_ms * 1000 for row in batch]
        tp = np.array([TPS.index(row.tp) for row in batch], np.int32)
        low = np.array([earliest_arrival_ms(self.watermarks, tp_, self.window_ms) for tp_ in TPS], np.int64)
        events = pa.array([row.event_time_ms * 1000 for row in batch], TIME)
        arrived = arrivals_ms(pa.array(times, TIME), events, tp, low, self.now_ms)
        for row, at in zip(batch, arrived.tolist(), strict=True):
            self.watermarks[row.tp] = max(self.watermarks.get(row.tp, at), at)
        rows = pa.RecordBatch.from_pydict(
            {
                "topic": [row.tp.topic for row in batch],
                "partition": pa.array([row.tp.partition for row in batch], pa.int32()),
                "offset": pa.array([row.offset for row in batch], pa.int64()),
                "message_id": pa.array([row.key_values[0] for row in batch], pa.string()),
            }
        )
        hashes = exclude_assigned_ids(hash_keys([rows.column("message_id")], SECRET), ["message_id"], rows)
        offsets, place = rows.column("offset").to_numpy(), np.arange(len(batch))
        made = Candidates(hashes.hi, hashes.lo, arrived, tp, offsets, np.zeros(len(batch), np.int32), place)
        keyless = [(batch[n], int(arrived[n])) for n in np.flatnonzero(~hashes.present)]
        return keyless, made.take(np.flatnonzero(hashes.present))

    def _match(
        self, bucket: int, candidates: Candidates, found: dict[tuple[TopicPartition, int], tuple[object, ...]]
    ) -> list[SortedRun]:
        if not len(candidates):
            return []
        tps = list(TPS)
        index = BucketIndex(self.files, [run for run in self.runs if run.bucket == bucket], tps)
        earlier = index.lookup(candidates.hi, candidates.lo, self.horizon_ms)
        result = find_duplicates(candidates, earlier, self.window_ms, self.horizon_ms)
        for n in range(len(candidates)):
            place = (tps[candidates.tp[n]], int(candidates.offset[n]))
            found[place] = (int(candidates.arrived_ms[n]),)
            if not result.kept[n]:
                first = (tps[result.first_tp[n]], int(result.first_offset[n]), int(result.first_arrived_ms[n]))
                found[place] += first
        kept = candidates.take(np.flatnonzero(result.kept))
        if not len(kept):
            return []
        kept = kept.take(np.lexsort((kept.lo, kept.hi)))
        self.kept.append(IndexEntries(kept.hi, tail_of(kept.lo), kept.arrived_ms, kept.tp, kept.offset, tuple(TPS)))
        return [write_run(self.files, "index/", bucket, (1, 1), self.kept[-1])]

    # --- the index ---

    def merge(self) -> None:
        """Merge the runs that the policy chooses, or any runs of a bucket: the answers stay the same."""
        groups = choose_merges(self.runs, MergePolicy(3_600_000, 1 << 20))
        if self.rng.random() < 0.5:
            number = self.rng.randrange(self.buckets)
            bucket = [run for run in self.runs if run.bucket == number]
            groups = [tuple(self.rng.sample(bucket, self.rng.randrange(1, len(bucket) + 1)))] if bucket else []
        for group in groups:
            merged = merge_runs(self.files, "index/", self.horizon_ms, group)
            self.runs = [run for run in self.runs if run not in group] + ([] if merged is None else [merged])

    def rebuild(self) -> None:
        """Rebuild the index of all kept rows, perhaps with another number of buckets."""
        self.buckets = self.rng.choice((1, 4, 16))
        entries = merge_entries(self.kept, self.horizon_ms)
        numbers = hash_range_of(entries.hi, self.buckets)
        self.runs = [
            write_run(self.files, "index/", number, (1, 1), entries.select(np.flatnonzero(numbers == number)))
            for number in np.unique(numbers).tolist()
        ]

    def change_window(self) -> None:
        """Change the window as a config change does: it applies from the next plan on."""
        self.window_ms = self.rng.choice((1_800_000, 3_600_000, 7_200_000))


def _comparable(swept: oracle.Swept) -> dict[tuple[TopicPartition, int], tuple[object, ...]]:
    kept = {(k.row.tp, k.row.offset): (k.arrived_ms,) for k in swept.kept}
    return kept | {
        (d.row.tp, d.row.offset): (d.arrived_ms, d.first.row.tp, d.first.row.offset, d.first.arrived_ms)
        for d in swept.duplicates
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_sweep_of_a_random_stream_matches_the_oracle(seed: int) -> None:
    stream = Stream(random.Random(seed))
    for _ in range(12):
        stream.now_ms += stream.rng.choice((1, -1000, stream.rng.randrange(stream.window_ms)))
        stream.append()
        stream.sweep()
        if stream.rng.random() < 0.3:
            stream.rng.choice((stream.merge, stream.rebuild, stream.change_window))()
    assert stream.state.kept
