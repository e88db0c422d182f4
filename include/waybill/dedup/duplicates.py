"""The definition of a duplicate: which candidates of a batch repeat an earlier row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from waybill.dedup._kernels import find_repeated, latest_arrivals, latest_entries, may_repeat, number_keys
from waybill.dedup.candidates import Candidates
from waybill.dedup.index.lookup import EarlierRows
from waybill.records._kernels import Array

__all__ = ["MatchResult", "find_duplicates", "one_of_each_key"]


@dataclass(frozen=True, slots=True, eq=False)
class MatchResult:
    """For each candidate: whether it is kept, and for a duplicate the row that it repeats."""

    kept: Array
    """bool"""
    first_tp: Array
    """Topic-partition of the repeated row, int32. Valid where `kept` is false, like the next two."""
    first_offset: Array
    """Kafka offset of the repeated row, int64."""
    first_arrived_ms: Array
    """Arrival of the repeated row, epoch ms, int64."""

    def _set_duplicates(self, at: Array, tp: Array, offset: Array, arrived_ms: Array) -> None:
        """Record that the candidates at these indices repeat these rows."""
        self.kept[at] = False
        self.first_tp[at], self.first_offset[at], self.first_arrived_ms[at] = tp, offset, arrived_ms


def find_duplicates(candidates: Candidates, earlier: EarlierRows, window_ms: int, horizon_ms: int) -> MatchResult:
    """Return which candidates are kept, and which rows the others repeat. All candidates of a key must be in the batch.

    A row is a duplicate if a kept row of the same key arrived both at most `window_ms` before it and at or after
    `horizon_ms`: a row of the index (`earlier`), or a candidate that precedes it in the order of comparison. It repeats
    the latest of these rows. Two kept rows of a key cannot have the same arrival: the second would be a duplicate.

    The order of comparison, for the rows of a key: along each topic-partition by offset, whatever the timestamps;
    across topic-partitions by arrival, where a row is taken to arrive not earlier than the rows of its key before it in
    its own topic-partition; then by topic-partition.

    A key that occurs once costs about 20 ns, little more if the index has it. Only keys that occur several times in
    the batch are sorted.
    """
    n = len(candidates)
    result = MatchResult(np.ones(n, np.bool_), np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n, np.int64))
    several = _occurs_several_times(candidates.hi)
    of_several = several[earlier.candidate]
    _match_single(candidates, earlier.take(~of_several), window_ms, horizon_ms, result)
    _match_several(candidates, np.flatnonzero(several), earlier.take(of_several), window_ms, horizon_ms, result)
    return result


def one_of_each_key(candidates: Candidates) -> Array | None:
    """Return the indices of one candidate for each key, in no defined order; None if every key occurs once.

    An index lookup of one candidate of a key suffices for all of them: see `EarlierRows`.
    """
    c, several = candidates, _occurs_several_times(candidates.hi)
    rows = np.flatnonzero(several)
    if not len(rows):
        return None
    rows = rows[np.lexsort((c.lo[rows], c.hi[rows]))]
    keys = number_keys(rows, c.hi, c.lo)
    return np.concatenate((np.flatnonzero(~several), rows[np.flatnonzero(np.diff(keys, prepend=-1))]))


def _occurs_several_times(hi: Array) -> Array:
    """Return for each `hi` whether it occurs more than once, bool."""
    # Sorting all of them takes five times as long as this: 0.1 s for a million.
    slots = np.zeros(1 << (4 * len(hi)).bit_length(), np.uint8)
    few = np.flatnonzero(may_repeat(hi, slots))
    few = few[np.argsort(hi[few])]
    alike = hi[few[1:]] == hi[few[:-1]]
    several = np.zeros(len(hi), np.bool_)
    several[few[1:][alike]] = True
    several[few[:-1][alike]] = True
    return several


def _match_single(
    candidates: Candidates, earlier: EarlierRows, window_ms: int, horizon_ms: int, result: MatchResult
) -> None:
    """Match the candidates whose key occurs once in the batch with their rows in the index."""
    since_ms = np.maximum(candidates.arrived_ms[earlier.candidate] - window_ms, horizon_ms)
    first = earlier.take(earlier.arrived_ms >= since_ms)
    result._set_duplicates(first.candidate, first.tp, first.offset, first.arrived_ms)


def _match_several(
    candidates: Candidates, rows: Array, earlier: EarlierRows, window_ms: int, horizon_ms: int, result: MatchResult
) -> None:
    """Match candidates (their indices) whose keys occur several times with each other and with the index."""
    c = candidates
    rows = rows[np.lexsort((c.offset[rows], c.tp[rows], c.lo[rows], c.hi[rows]))]
    keys = number_keys(rows, c.hi, c.lo)
    # The sort is stable: rows with the same arrival stay in order of topic-partition and offset.
    order = np.lexsort((latest_arrivals(rows, keys, c.tp, c.arrived_ms), keys))
    rows = rows[order]  # `keys` is sorted already, so it stays as it is
    entries = _latest_entry_of_each_key(c, rows, keys, earlier)
    repeated = find_repeated(
        rows, keys, c.arrived_ms, entries, earlier.arrived_ms, np.int64(window_ms), np.int64(horizon_ms)
    )
    in_batch = np.flatnonzero(repeated >= 0)
    first = rows[repeated[in_batch]]
    result._set_duplicates(rows[in_batch], c.tp[first], c.offset[first], c.arrived_ms[first])
    in_index = np.flatnonzero(repeated < -1)
    entry = earlier.take(-2 - repeated[in_index])
    result._set_duplicates(rows[in_index], entry.tp, entry.offset, entry.arrived_ms)


def _latest_entry_of_each_key(candidates: Candidates, rows: Array, keys: Array, earlier: EarlierRows) -> Array:
    """Return for each key its latest index entry, -1 without one; an empty array if no key has an entry."""
    if not len(earlier.candidate):
        return np.empty(0, np.int64)
    entry_of = np.full(len(candidates), -1)
    entry_of[earlier.candidate] = np.arange(len(earlier.candidate))
    return latest_entries(rows, keys, entry_of, earlier.arrived_ms, earlier.tp, earlier.offset)
