"""Work on a key index that is cut into tasks, and who carries them out.

Merges of the key index: many small runs of a bucket become few, so that a sweep asks few.

Which runs: the window is cut into sixteenths by arrival, and a run belongs to the one that its last arrival is in, for
that says when it can leave the index. Where the newest runs go, eight neighbours of about one size become one. A
sixteenth that is over becomes one run. So a key is written some three times (measured in tests/unit/dedup/
test_merge.py), runs leave whole as the horizon passes them, and hourly sweeps over four weeks keep below 40 runs in a
bucket. That is what Cassandra calls time-window compaction.

A merge leaves out what is below the horizon, and of each key all entries but the latest: no other is ever the answer.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from waybill.dedup.index.manifest import IndexFiles, IndexOf, Manifest, load, update
from waybill.dedup.index.runs import Array, Files, Run, RunKeys, read_run, write_run
from waybill.names import TopicPartition

__all__ = [
    "MERGE_BYTES_PER_KEY",
    "MOST_RUNS",
    "ForEach",
    "MergePolicy",
    "by_departure",
    "choose",
    "few_keys",
    "gather",
    "merge_all",
    "merge_runs",
    "one_by_one",
]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class ForEach(Protocol):
    """Carries out the same work for each of several tasks, anywhere."""

    def __call__(self, work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterable[_Result]:
        """What came of each, in the order of the tasks; what `work` raises is raised as it is.

        `work` and `tasks` can be pickled, if what they were made of can be.
        """


def one_by_one(work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
    """In this process, one after the other."""
    return [work(task) for task in tasks]


logger = logging.getLogger(__name__)

MERGE_BYTES_PER_KEY = 128
"""Of memory, for each entry of the runs that a merge reads: 83 were measured, and the upload takes its share."""
MOST_RUNS = 36
"""Beyond that many in a bucket, runs are merged whatever they are. More there are only where memory does not allow it:
two for each time that the bucket's keys are more than a merge may hold."""

_FANOUT = 8
_EVEN = 4
_SHARE_OF_WINDOW = 16
_LEAST_SPAN_MS = 3_600_000
_FEW_KEYS = 1 << 14  # less than that is not worth a file of its own
_BYTES_PER_KEY = 24
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """What merges aim for."""

    span_ms: int
    """By how much later than it could a run's first entry leaves the index, at most."""
    most_keys: int
    """Of a merged run: what memory allows."""

    @classmethod
    def of(cls, window_ms: int, memory_bytes: int, effective_ms: int | None = None) -> MergePolicy:
        """`memory_bytes`: what a merge may hold; `effective_ms`: the window that the index's budget leaves, if less.

        A window that is not whole is cut into sixteenths of the half of the promised one, or of a quarter, and so on:
        so the cuts stay where they are while it goes up and down a little, or else runs were merged again and again.
        """
        span_ms = max(window_ms // _SHARE_OF_WINDOW, _LEAST_SPAN_MS)
        while effective_ms is not None and span_ms * _SHARE_OF_WINDOW > effective_ms and span_ms >= 2 * _LEAST_SPAN_MS:
            span_ms //= 2
        return cls(span_ms, max(memory_bytes // MERGE_BYTES_PER_KEY, 1))


# --- which ---


def choose(runs: Iterable[Run], policy: MergePolicy) -> list[tuple[Run, ...]]:
    """Which runs are to be merged with each other now; no run is in two groups. Runs of all buckets may be given.

    A merge may make others possible: choose again, until there is none.
    """
    buckets: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        buckets[run.bucket].append(run)
    return [group for _, found in sorted(buckets.items()) for group in _choose(sorted(found, key=_place), policy)]


def _place(run: Run) -> tuple[int, int, int, str]:
    return run.last_sequence, run.first_sequence, run.max_arrived_ms, run.path


def _choose(runs: Sequence[Run], policy: MergePolicy) -> list[tuple[Run, ...]]:
    *closed, newest = list(_eras(runs, policy)) or [[]]
    groups = [group for era in closed for group in _whole(era, policy)]
    groups += _alike(newest, policy)
    if not groups and len(runs) > MOST_RUNS + 2 * (_keys(runs) // policy.most_keys):
        groups = _smallest(runs, policy)
    return groups


def _eras(runs: Iterable[Run], policy: MergePolicy) -> Iterator[list[Run]]:
    """Runs by the part of the window that they leave in, the newest part last."""
    parts: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        parts[run.max_arrived_ms // policy.span_ms].append(run)
    return (found for _, found in sorted(parts.items()))


def _whole(era: Sequence[Run], policy: MergePolicy) -> Iterator[tuple[Run, ...]]:
    """A part that is over: all of it, in as few runs as memory allows."""
    group: list[Run] = []
    for run in era:
        if group and _keys(group) + run.keys > policy.most_keys:
            yield from _worthwhile(group)
            group = []
        group.append(run)
    yield from _worthwhile(group)


def _worthwhile(group: Sequence[Run]) -> Iterator[tuple[Run, ...]]:
    """Unless a large run would be written again for the sake of a few small ones."""
    largest = max(run.keys for run in group)
    if len(group) >= _FANOUT or (len(group) > 1 and (_keys(group) - largest) * _FANOUT >= largest):
        yield tuple(group)


def _alike(era: Sequence[Run], policy: MergePolicy) -> list[tuple[Run, ...]]:
    """Neighbours of about one size, the smallest first."""
    windows = [tuple(era[at : at + _FANOUT]) for at in range(len(era) - _FANOUT + 1)]
    chosen: list[tuple[Run, ...]] = []
    taken: set[str] = set()
    for group in sorted(windows, key=_keys):
        is_even = max(run.keys for run in group) <= _EVEN * max(min(run.keys for run in group), 1)
        if is_even and _keys(group) <= policy.most_keys and taken.isdisjoint(run.path for run in group):
            chosen.append(group)
            taken.update(run.path for run in group)
    return chosen


def _smallest(runs: Sequence[Run], policy: MergePolicy) -> list[tuple[Run, ...]]:
    """Of all neighbours that memory allows to merge those with the fewest keys; many if there are."""
    for count in (_FANOUT, 2):
        windows = [tuple(runs[at : at + count]) for at in range(len(runs) - count + 1)]
        fitting = [group for group in windows if _keys(group) <= policy.most_keys]
        if fitting:
            return [min(fitting, key=_keys)]
    return []


def _keys(runs: Iterable[Run]) -> int:
    return sum(run.keys for run in runs)


def few_keys(budget_bytes: int, buckets: int) -> int:
    """Of fewer entries there is no run of its own where `by_departure` can avoid it.

    Of an index with a small budget, a run must be a small part of a bucket's share: the oldest leave it as wholes.
    """
    share = budget_bytes // (buckets * _SHARE_OF_WINDOW * _BYTES_PER_KEY)
    return max(1, min(_FEW_KEYS, share))


def by_departure(keys: RunKeys, policy: MergePolicy, few: int = _FEW_KEYS) -> Iterator[RunKeys]:
    """Entries by the part of the window that they leave in, parts of few entries together; each as sorted as they were.

    Whoever writes what arrived over a long time, as the first sweep of a table does, writes a run of each: one run of
    all of it would leave the index whole, and the effective window with it.
    """
    if len(keys) < 2 * few:
        yield keys
        return
    part = keys.arrived_ms // policy.span_ms
    parts, counts = np.unique(part, return_counts=True)
    up_to = np.cumsum(counts)
    first = begun = 0
    for last, entries in enumerate(up_to.tolist()):
        is_last = last + 1 == len(parts)
        if is_last or min(entries - begun, len(keys) - entries) >= few:
            yield keys.at((part >= parts[first]) & (part <= parts[last]))
            first, begun = last + 1, entries


# --- how ---


def merge_runs(files: Files, index: str, horizon_ms: int, runs: Sequence[Run]) -> Run | None:
    """A new run of what these runs of one bucket hold; None if nothing is left of it above the horizon.

    `index`: what the keys of the index's files start with. Raises `IndexDamaged` when a run is gone or not what was
    written, `StoreUnavailable` when S3 does not answer.
    """
    keys = gather((read_run(files, run) for run in runs), horizon_ms)
    if not len(keys):
        return None
    sequences = (min(run.first_sequence for run in runs), max(run.last_sequence for run in runs))
    return write_run(files, index, runs[0].bucket, sequences, keys)


def gather(parts: Iterable[RunKeys], horizon_ms: int) -> RunKeys:
    """The entries of all parts that arrived at or after the horizon, sorted, of each key the latest alone.

    The parts need not be sorted; they are quicker to sort if they are.
    """
    topic_partitions: dict[TopicPartition, int] = {}
    columns: dict[str, list[Array]] = {name: [] for name in _COLUMNS}
    for part in parts:
        counts = part.arrived_ms >= horizon_ms
        codes = [topic_partitions.setdefault(tp, len(topic_partitions)) for tp in part.topic_partitions]
        for name in _COLUMNS:
            column = getattr(part, name) if name != "tp" else np.array(codes, np.int32)[part.tp]
            columns[name].append(column if counts.all() else column[counts])
    if not columns["hi"]:
        return RunKeys(**{name: np.empty(0, kind) for name, kind in _COLUMNS.items()}, topic_partitions=())
    whole = {name: _joined(columns, name) for name in ("hi", "lo")}
    order = np.argsort(whole["hi"], kind="stable")  # it merges what is sorted in parts
    order = _latest_of_each(order, whole["hi"], whole["lo"], columns["arrived_ms"])
    sorted_columns = {name: (whole.pop(name) if name in whole else _joined(columns, name))[order] for name in _COLUMNS}
    return RunKeys(**sorted_columns, topic_partitions=tuple(topic_partitions))


_COLUMNS = {"hi": np.uint64, "lo": np.uint64, "arrived_ms": np.int64, "tp": np.int32, "offset": np.int64}


def _joined(columns: dict[str, list[Array]], name: str) -> Array:
    """A column of all parts; the parts' own arrays are let go."""
    parts, columns[name] = columns[name], []
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _latest_of_each(order: Array, hi: Array, lo: Array, arrived_ms: Sequence[Array]) -> Array:
    """An order by `hi` made one by (hi, lo), with the latest entry alone of each key that is there more than once."""
    sorted_hi = hi[order]
    same = sorted_hi[1:] == sorted_hi[:-1]
    if not same.any():
        return order
    # Few have a neighbour with the same half of a hash: only these are sorted further.
    tied = np.zeros(len(order), np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    rows = order[tied]
    rows = rows[np.lexsort((_of_rows(arrived_ms, rows), lo[rows], hi[rows]))]
    is_latest = np.ones(len(rows), np.bool_)
    is_latest[:-1] = (hi[rows[1:]] != hi[rows[:-1]]) | (lo[rows[1:]] != lo[rows[:-1]])
    order[tied] = rows
    kept = np.ones(len(order), np.bool_)
    kept[tied] = is_latest
    return order[kept]


def _of_rows(parts: Sequence[Array], rows: Array) -> Array:
    """These rows of a column whose parts are not joined yet."""
    starts = np.cumsum([0, *(len(part) for part in parts)])
    number = np.searchsorted(starts, rows, side="right") - 1
    found = np.empty(len(rows), parts[0].dtype)
    for at, part in enumerate(parts):
        here = number == at
        found[here] = part[rows[here] - starts[at]]
    return found


def merge_all(
    files: IndexFiles,
    index: str,
    of: IndexOf,
    policy: MergePolicy,
    horizon_ms: int,
    *,
    for_each: ForEach = one_by_one,
    work: Callable[[tuple[Run, ...]], Run | None] | None = None,
) -> Manifest | None:
    """Merge what there is to merge; the index after that, or None if there is no index.

    `horizon_ms`: of the unique table's state. `work`: merges a group wherever `for_each` carries it out; by default
    with `files` itself, which then must be there.

    Sweeps may go on meanwhile: what was merged is put in the place of exactly the runs that it was made of, and not
    at all if one of these is not there any more. Files that came to nothing are left to maintenance.

    Raises `IndexDamaged` when a run cannot be read (the index has to be built anew), `CommitConflict`,
    `StoreUnavailable`.
    """
    merge = work or partial(merge_runs, files, index, horizon_ms)
    manifest = None
    for _ in range(_ROUNDS):
        manifest = load(files, index, of).manifest
        groups = choose(manifest.above(horizon_ms).runs, policy) if manifest else []
        if not groups:
            break
        merged = list(zip(groups, for_each(merge, groups), strict=True))
        _put_in_place(files, index, of, horizon_ms, merged)
    return manifest


def _put_in_place(
    files: IndexFiles, index: str, of: IndexOf, horizon_ms: int, merged: Sequence[tuple[tuple[Run, ...], Run | None]]
) -> None:
    def change(found: Manifest | None) -> Manifest | None:
        changed = found
        for runs, by in merged:
            after = changed.with_merged(runs, by) if changed else None
            if after is None:
                logger.info(
                    "key index %s: a merge of bucket %d came to nothing, another was first", index, runs[0].bucket
                )
            else:
                changed = after
        return changed.above(horizon_ms) if changed and changed is not found else None

    saved = update(files, index, of, change)
    if saved:
        logger.info(
            "key index %s: merged %d runs into %d; %d runs, %d keys, %d bytes",
            index,
            sum(len(runs) for runs, _ in merged),
            sum(by is not None for _, by in merged),
            len(saved.runs),
            saved.keys,
            saved.size_bytes,
        )
