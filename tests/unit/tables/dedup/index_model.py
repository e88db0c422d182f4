"""A model of the key index, a dict of kept rows; and sorted runs of the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from waybill.config.names import TopicPartition
from waybill.tables.dedup.index.lookup import BucketIndex
from waybill.tables.dedup.index.run_file import IndexEntries, tail_of
from waybill.tables.dedup.index.sorted_runs import FileStore, SortedRun, write_run

INDEX = "archive/dedup/flights/0/00000000-0000-0000-0000-000000000001/"
LAST = 2**64 - 1
STEP = 1 << 40
"""Second halves of hashes that differ by this are two keys to the index, which keeps the leading 24 bits."""
TPS = tuple(TopicPartition(topic, n) for topic in ("flights", "a.b") for n in range(2))


@dataclass(frozen=True)
class Kept:
    """A kept row: the hash of its key, and what the index stores of it."""

    hi: int
    lo: int
    arrived_ms: int
    tp: TopicPartition
    offset: int


def kept_rows(max_arrived_ms: int = 40) -> st.SearchStrategy[list[Kept]]:
    """Generate rows of few keys: some share one half of their hash. No two of a key arrived at the same time."""
    row = st.builds(
        Kept,
        hi=st.sampled_from([0, 1, 2, 3, 2**59, 2**60 - 1]),
        lo=st.sampled_from([0, STEP, LAST]),
        arrived_ms=st.integers(0, max_arrived_ms),
        tp=st.sampled_from(TPS),
        offset=st.integers(0, 100),
    )
    return st.lists(row, max_size=60, unique_by=lambda kept: (kept.hi, kept.lo, kept.arrived_ms))


def entries_of(rows: Iterable[Kept]) -> IndexEntries:
    """Return the index entries of rows, sorted."""
    rows = sorted(rows, key=lambda row: (row.hi, row.lo))
    tps = tuple(dict.fromkeys(row.tp for row in rows))
    return IndexEntries(
        hi=np.array([row.hi for row in rows], np.uint64),
        tail=tail_of(np.array([row.lo for row in rows], np.uint64)),
        arrived_ms=np.array([row.arrived_ms for row in rows], np.int64),
        tp=np.array([tps.index(row.tp) for row in rows], np.int32),
        offset=np.array([row.offset for row in rows], np.int64),
        topic_partitions=tps,
    )


def new_run(files: FileStore, rows: Iterable[Kept], sequence: int = 1, bucket: int = 0) -> SortedRun:
    """Write a sorted run of rows."""
    return write_run(files, INDEX, bucket, (sequence, sequence), entries_of(rows))


def latest_rows(rows: Iterable[Kept], horizon_ms: int) -> dict[tuple[int, int], Kept]:
    """Return what the index must answer for each key."""
    found: dict[tuple[int, int], Kept] = {}
    for row in sorted(rows, key=lambda row: row.arrived_ms):
        if row.arrived_ms >= horizon_ms:
            found[row.hi, row.lo] = row
    return found


def look_up(
    files: FileStore, runs: Sequence[SortedRun], keys: Sequence[tuple[int, int]], horizon_ms: int
) -> dict[tuple[int, int], Kept]:
    """Return what an index of these runs answers for the keys; check that each is answered at most once."""
    known = [TopicPartition("a.b", 1), TopicPartition("another", 0)]
    hi, lo = (np.array([key[half] for key in keys], np.uint64) for half in (0, 1))
    earlier = BucketIndex(files, runs, known).lookup(hi, lo, horizon_ms)
    assert len(set(earlier.candidate.tolist())) == len(earlier.candidate)
    assert earlier.tp.dtype == np.int32
    assert len(set(known)) == len(known)
    assert known[:2] == [TopicPartition("a.b", 1), TopicPartition("another", 0)]
    found = zip(
        *(column.tolist() for column in (earlier.candidate, earlier.arrived_ms, earlier.tp, earlier.offset)),
        strict=True,
    )
    return {keys[at]: Kept(*keys[at], arrived, known[tp], offset) for at, arrived, tp, offset in found}
