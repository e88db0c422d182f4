"""Which of a batch's rows repeat another: the definition of a duplicate, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from waybill.dedup._kernels import find_repeated, latest_entries, may_repeat, number_keys, raise_arrivals
from waybill.dedup.candidates import Candidates
from waybill.records._kernels import Array

__all__ = ["Seen", "Verdicts", "judge", "one_of_each_key"]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the index knows of the candidates' keys: of each the latest kept row that arrived at or after the horizon.

    At most one entry for a candidate; an entry for one of a key's candidates is enough for all of them.
    """

    candidate: Array
    """int64: index of a candidate of that key."""
    arrived_ms: Array
    """int64: when the kept row arrived, epoch ms."""
    tp: Array
    """int32: its topic-partition, in the same numbers as the candidates'; more than these occur, if it is older."""
    offset: Array
    """int64: its offset."""

    @classmethod
    def nothing(cls) -> Seen:
        """No key was seen before."""
        none = np.empty(0, np.int64)
        return cls(none, none, np.empty(0, np.int32), none)

    def take(self, mask: Array) -> Seen:
        """The entries where this is true, or of these indices."""
        return Seen(self.candidate[mask], self.arrived_ms[mask], self.tp[mask], self.offset[mask])


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """For each candidate: kept or not, and where a row that is not kept was first seen."""

    kept: Array
    """bool"""
    first_tp: Array
    """int32, valid where not kept, as is all that follows."""
    first_offset: Array
    """int64"""
    first_arrived_ms: Array
    """int64"""

    def mark(self, at: Array, tp: Array, offset: Array, arrived_ms: Array) -> None:
        """Note that the candidates of these indices repeat these rows. For `judge` alone."""
        self.kept[at] = False
        self.first_tp[at], self.first_offset[at], self.first_arrived_ms[at] = tp, offset, arrived_ms


def judge(candidates: Candidates, seen: Seen, window_ms: int, horizon_ms: int) -> Verdicts:
    """Which of a batch's rows are kept, and what the others repeat. All candidates of a key must be there.

    A row is a duplicate if a kept row of the same key arrived at or after both `window_ms` before it and `horizon_ms`:
    one that the index knows, or one of the batch that comes earlier in the order in which rows of a key are judged. It
    repeats the latest of these; two cannot have arrived at the same time, since the second would be a duplicate.

    The order: by offset along each topic-partition, whatever the timestamps say; among topic-partitions by arrival,
    where a row counts as arrived no earlier than those of its key before it in its own; then by topic-partition.

    A key that occurs once and was not seen costs about 20 ns, one that was seen little more; one that occurs several
    times its part of a sort.
    """
    n = len(candidates)
    verdicts = Verdicts(np.ones(n, np.bool_), np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n, np.int64))
    several = _occurs_several_times(candidates.hi)
    among_several = several[seen.candidate]
    _judge_alone(candidates, seen.take(~among_several), window_ms, horizon_ms, verdicts)
    _judge_among(candidates, np.flatnonzero(several), seen.take(among_several), window_ms, horizon_ms, verdicts)
    return verdicts


def one_of_each_key(candidates: Candidates) -> Array | None:
    """Indices of candidates, one of each key, in no order; None: all of them, no key being there more than once.

    What the index knows of one candidate, it need not be asked for the others of its key: see `Seen`.
    """
    c, several = candidates, _occurs_several_times(candidates.hi)
    rows = np.flatnonzero(several)
    if not len(rows):
        return None
    rows = rows[np.lexsort((c.lo[rows], c.hi[rows]))]
    keys = number_keys(rows, c.hi, c.lo)
    return np.concatenate((np.flatnonzero(~several), rows[np.flatnonzero(np.diff(keys, prepend=-1))]))


def _occurs_several_times(hi: Array) -> Array:
    """For each half of a hash whether it is there more than once, bool."""
    # A sort of all of them takes five times as long as this: 0.1 s for a million.
    slots = np.zeros(1 << (4 * len(hi)).bit_length(), np.uint8)
    few = np.flatnonzero(may_repeat(hi, slots))
    few = few[np.argsort(hi[few])]
    alike = hi[few[1:]] == hi[few[:-1]]
    several = np.zeros(len(hi), np.bool_)
    several[few[1:][alike]] = True
    several[few[:-1][alike]] = True
    return several


def _judge_alone(candidates: Candidates, seen: Seen, window_ms: int, horizon_ms: int, verdicts: Verdicts) -> None:
    """Judge the candidates that are the only ones of their key, and were seen."""
    since_ms = np.maximum(candidates.arrived_ms[seen.candidate] - window_ms, horizon_ms)
    first = seen.take(seen.arrived_ms >= since_ms)
    verdicts.mark(first.candidate, first.tp, first.offset, first.arrived_ms)


def _judge_among(
    candidates: Candidates, rows: Array, seen: Seen, window_ms: int, horizon_ms: int, verdicts: Verdicts
) -> None:
    """Judge candidates (their indices) of which some have the same key."""
    c = candidates
    rows = rows[np.lexsort((c.offset[rows], c.tp[rows], c.lo[rows], c.hi[rows]))]
    keys = number_keys(rows, c.hi, c.lo)
    # The sort is stable: rows that arrived at one time stay in order of topic-partition and offset.
    order = np.lexsort((raise_arrivals(rows, keys, c.tp, c.arrived_ms), keys))
    rows = rows[order]  # keys are in order as they are
    entries = _entries(c, rows, keys, seen)
    repeated = find_repeated(
        rows, keys, c.arrived_ms, entries, seen.arrived_ms, np.int64(window_ms), np.int64(horizon_ms)
    )
    of_batch = np.flatnonzero(repeated >= 0)
    first = rows[repeated[of_batch]]
    verdicts.mark(rows[of_batch], c.tp[first], c.offset[first], c.arrived_ms[first])
    of_index = np.flatnonzero(repeated < -1)
    known = seen.take(-2 - repeated[of_index])
    verdicts.mark(rows[of_index], known.tp, known.offset, known.arrived_ms)


def _entries(candidates: Candidates, rows: Array, keys: Array, seen: Seen) -> Array:
    """For each key the latest of the index's entries, -1: there is none; empty where none was seen at all."""
    if not len(seen.candidate):
        return np.empty(0, np.int64)
    entry_of = np.full(len(candidates), -1)
    entry_of[seen.candidate] = np.arange(len(seen.candidate))
    return latest_entries(rows, keys, entry_of, seen.arrived_ms, seen.tp, seen.offset)
