"""Merges of the key index: many small sorted runs of a bucket become few, so that a sweep reads few filters.

Which runs: the window is cut into sixteenths by arrival, and a run belongs to the sixteenth of its last arrival,
because the last arrival decides when the run leaves the index. In the newest sixteenth, eight neighbouring runs of
similar size become one. An older sixteenth becomes one run. So a key is written about three times (measured in
tests/unit/tables/dedup/test_merge.py), runs leave as a whole when the horizon passes them, and hourly sweeps over four
weeks keep fewer than 40 runs in a bucket. Cassandra calls this time-window compaction.

A merge drops entries below the horizon, and all but the latest entry of each key: lookups return only the latest one.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from waybill.config.names import TopicPartition
from waybill.tables.dedup.index.manifest import IndexIdentity, IndexStore, Manifest, load_manifest, update_manifest
from waybill.tables.dedup.index.run_file import Array, IndexEntries
from waybill.tables.dedup.index.sorted_runs import FileStore, SortedRun, read_run, write_run

logger = logging.getLogger(__name__)

MERGE_BYTES_PER_KEY = 128
"""Memory for each entry that a merge reads: 83 bytes were measured, and the upload needs some."""
MAX_RUNS = 36
"""With more runs in a bucket, runs are merged whatever their sizes. A bucket keeps more only where memory forbids
merges: two for each multiple of the keys that one merge may hold."""

_FANOUT = 8
_MAX_SIZE_RATIO = 4  # between the runs of one merge in the newest part of the window
_WINDOW_PARTS = 16
_LEAST_SPAN_MS = 3_600_000
_LEAST_RUN_KEYS = 1 << 14  # fewer keys do not get a separate file
_BYTES_PER_KEY = 18
_ROUNDS = 10
_COLUMNS = {"hi": np.uint64, "tail": np.uint32, "arrived_ms": np.int64, "tp": np.int32, "offset": np.int64}

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_Group: TypeAlias = tuple[SortedRun, ...]
"""Sorted runs of one bucket that are merged into one."""


class ForEach(Protocol):
    """Runs the same work for each of several tasks, in this process or on executors."""

    def __call__(self, work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterable[_Result]:
        """Return the result of each task in the order of the tasks; raise what `work` raises.

        `work` and `tasks` must be picklable when they are sent to executors.
        """


def one_by_one(work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
    """Run the tasks in this process, one after the other: the `ForEach` without Spark."""
    return [work(task) for task in tasks]


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """The limits that decide which runs are merged."""

    span_ms: int
    """Length of a part of the window: how much later than necessary the first entry of a run may leave the index."""
    most_keys: int
    """Limit of keys in a merged run, which memory sets."""

    @classmethod
    def of(cls, window_ms: int, memory_bytes: int, effective_ms: int | None = None) -> MergePolicy:
        """Return the policy for a window.

        `memory_bytes`: what a merge may hold. `effective_ms`: the window that the index's budget allows, if shorter. A
        shortened window is cut into sixteenths of a half of the configured one, or of a quarter, and so on. So the
        boundaries stay where they are while the effective window varies a little, and runs are not merged repeatedly.
        """
        span_ms = max(window_ms // _WINDOW_PARTS, _LEAST_SPAN_MS)
        while effective_ms is not None and span_ms * _WINDOW_PARTS > effective_ms and span_ms >= 2 * _LEAST_SPAN_MS:
            span_ms //= 2
        return cls(span_ms, max(memory_bytes // MERGE_BYTES_PER_KEY, 1))


# --- all merges of an index ---


def merge_all(
    files: IndexStore,
    index: str,
    identity: IndexIdentity,
    policy: MergePolicy,
    horizon_ms: int,
    *,
    for_each: ForEach = one_by_one,
    work: Callable[[_Group], SortedRun | None] | None = None,
) -> Manifest | None:
    """Merge runs until the policy chooses none; return the manifest after that, or None if there is no index.

    `horizon_ms`: that of the unique table's state. `work` merges one group wherever `for_each` runs it; by default it
    uses `files`, so only in this process.

    Sweeps may change the index at the same time: a merged run replaces exactly the runs it was made of, or is discarded
    if one of them left the manifest. Maintenance deletes the files of discarded runs.

    Raises `IndexDamaged` when a run cannot be read (the index must be rebuilt), `CommitConflict`, `StoreUnavailable`.
    """
    merge = work or partial(merge_runs, files, index, horizon_ms)
    manifest = None
    for _ in range(_ROUNDS):
        manifest = load_manifest(files, index, identity).manifest
        groups = choose_merges(manifest.with_horizon(horizon_ms).runs, policy) if manifest else []
        if not groups:
            break
        merged = list(zip(groups, for_each(merge, groups), strict=True))
        _save_merged(files, index, identity, horizon_ms, merged)
    return manifest


def _save_merged(
    files: IndexStore,
    index: str,
    identity: IndexIdentity,
    horizon_ms: int,
    merged: Sequence[tuple[_Group, SortedRun | None]],
) -> None:
    def change(stored: Manifest | None) -> Manifest | None:
        changed = stored
        for runs, result in merged:
            after = changed.with_merged(runs, result) if changed else None
            if after is None:
                logger.info(
                    "key index %s: a merge of bucket %d is discarded, another process changed its runs first",
                    index,
                    runs[0].bucket,
                )
            else:
                changed = after
        return changed.with_horizon(horizon_ms) if changed and changed is not stored else None

    saved = update_manifest(files, index, identity, change)
    if saved:
        logger.info(
            "key index %s: merged %d runs into %d; %d runs, %d keys, %d bytes",
            index,
            sum(len(runs) for runs, _ in merged),
            sum(result is not None for _, result in merged),
            len(saved.runs),
            saved.keys,
            saved.size_bytes,
        )


# --- which runs ---


def choose_merges(runs: Iterable[SortedRun], policy: MergePolicy) -> list[_Group]:
    """Return the groups of runs to merge now; no run is in two groups. `runs` may be of all buckets.

    A merge may make others possible: choose again until there is none.
    """
    buckets: dict[int, list[SortedRun]] = defaultdict(list)
    for run in runs:
        buckets[run.bucket].append(run)
    return [group for _, found in sorted(buckets.items()) for group in _choose(sorted(found, key=_by_age), policy)]


def _by_age(run: SortedRun) -> tuple[int, int, int, str]:
    return run.last_sequence, run.first_sequence, run.max_arrived_ms, run.path


def _choose(runs: Sequence[SortedRun], policy: MergePolicy) -> list[_Group]:
    *older, newest = list(_by_window_part(runs, policy)) or [[]]
    groups = [group for part in older for group in _whole_part(part, policy)]
    groups += _similar_neighbours(newest, policy)
    if not groups and len(runs) > MAX_RUNS + 2 * (_keys_of(runs) // policy.most_keys):
        groups = _smallest_neighbours(runs, policy)
    return groups


def _by_window_part(runs: Iterable[SortedRun], policy: MergePolicy) -> Iterator[list[SortedRun]]:
    """Group runs by the part of the window with which they leave the index, the newest part last."""
    parts: dict[int, list[SortedRun]] = defaultdict(list)
    for run in runs:
        parts[run.max_arrived_ms // policy.span_ms].append(run)
    return (found for _, found in sorted(parts.items()))


def _whole_part(part: Sequence[SortedRun], policy: MergePolicy) -> Iterator[_Group]:
    """Merge all runs of an older part into as few runs as memory allows."""
    group: list[SortedRun] = []
    for run in part:
        if group and _keys_of(group) + run.keys > policy.most_keys:
            yield from _if_worthwhile(group)
            group = []
        group.append(run)
    yield from _if_worthwhile(group)


def _if_worthwhile(group: Sequence[SortedRun]) -> Iterator[_Group]:
    """Yield the group unless the merge would rewrite a large run only to add a few small ones."""
    largest = max(run.keys for run in group)
    if len(group) >= _FANOUT or (len(group) > 1 and (_keys_of(group) - largest) * _FANOUT >= largest):
        yield tuple(group)


def _similar_neighbours(part: Sequence[SortedRun], policy: MergePolicy) -> list[_Group]:
    """Merge neighbours of similar size, the smallest first."""
    neighbours = [tuple(part[at : at + _FANOUT]) for at in range(len(part) - _FANOUT + 1)]
    chosen: list[_Group] = []
    taken: set[str] = set()
    for group in sorted(neighbours, key=_keys_of):
        is_similar = max(run.keys for run in group) <= _MAX_SIZE_RATIO * max(min(run.keys for run in group), 1)
        if is_similar and _keys_of(group) <= policy.most_keys and taken.isdisjoint(run.path for run in group):
            chosen.append(group)
            taken.update(run.path for run in group)
    return chosen


def _smallest_neighbours(runs: Sequence[SortedRun], policy: MergePolicy) -> list[_Group]:
    """Merge the neighbours with the fewest keys that fit into memory: eight of them, or else two."""
    for count in (_FANOUT, 2):
        neighbours = [tuple(runs[at : at + count]) for at in range(len(runs) - count + 1)]
        fitting = [group for group in neighbours if _keys_of(group) <= policy.most_keys]
        if fitting:
            return [min(fitting, key=_keys_of)]
    return []


def _keys_of(runs: Iterable[SortedRun]) -> int:
    return sum(run.keys for run in runs)


# --- new runs ---


def least_run_keys(budget_bytes: int, buckets: int) -> int:
    """Return the number of entries below which `split_by_expiry` avoids a separate run.

    With a small budget a run must be a small part of a bucket's share, because runs leave the index as a whole.
    """
    share = budget_bytes // (buckets * _WINDOW_PARTS * _BYTES_PER_KEY)
    return max(1, min(_LEAST_RUN_KEYS, share))


def split_by_expiry(
    entries: IndexEntries, policy: MergePolicy, least_keys: int = _LEAST_RUN_KEYS
) -> Iterator[IndexEntries]:
    """Split entries by the part of the window with which they leave the index; small parts stay together.

    The order of entries is kept. A first sweep writes rows that arrived over a long time: as a single run they would
    leave the index at once, and the effective window would shrink by that time.
    """
    if len(entries) < 2 * least_keys:
        yield entries
        return
    part = entries.arrived_ms // policy.span_ms
    parts, counts = np.unique(part, return_counts=True)
    up_to = np.cumsum(counts)
    first = begun = 0
    for last, count in enumerate(up_to.tolist()):
        is_last = last + 1 == len(parts)
        if is_last or min(count - begun, len(entries) - count) >= least_keys:
            yield entries.select((part >= parts[first]) & (part <= parts[last]))
            first, begun = last + 1, count


def merge_runs(files: FileStore, index: str, horizon_ms: int, runs: Sequence[SortedRun]) -> SortedRun | None:
    """Write one run of the entries of these runs of one bucket; return None if none is above the horizon.

    `index`: prefix of the object keys of the index. Raises `IndexDamaged` when a run is missing or its content changed,
    `StoreUnavailable` when S3 does not answer.
    """
    entries = merge_entries((read_run(files, run) for run in runs), horizon_ms)
    if not len(entries):
        return None
    sequences = (min(run.first_sequence for run in runs), max(run.last_sequence for run in runs))
    return write_run(files, index, runs[0].bucket, sequences, entries)


def merge_entries(parts: Iterable[IndexEntries], horizon_ms: int) -> IndexEntries:
    """Return the latest entry of each key that arrived at or after the horizon, sorted by (hi, tail).

    The parts need not be sorted, but sorted parts are faster.
    """
    topic_partitions: dict[TopicPartition, int] = {}
    columns: dict[str, list[Array]] = {name: [] for name in _COLUMNS}
    for part in parts:
        counts = part.arrived_ms >= horizon_ms
        numbers = [topic_partitions.setdefault(tp, len(topic_partitions)) for tp in part.topic_partitions]
        for name in _COLUMNS:
            column = getattr(part, name) if name != "tp" else np.array(numbers, np.int32)[part.tp]
            columns[name].append(column if counts.all() else column[counts])
    if not columns["hi"]:
        return IndexEntries(**{name: np.empty(0, kind) for name, kind in _COLUMNS.items()}, topic_partitions=())
    whole = {name: _joined(columns, name) for name in ("hi", "tail")}
    order = np.argsort(whole["hi"], kind="stable")  # a merge sort of the sorted parts
    order = _latest_of_each_key(order, whole["hi"], whole["tail"], columns["arrived_ms"])
    sorted_columns = {name: (whole.pop(name) if name in whole else _joined(columns, name))[order] for name in _COLUMNS}
    return IndexEntries(**sorted_columns, topic_partitions=tuple(topic_partitions))


def _joined(columns: dict[str, list[Array]], name: str) -> Array:
    """Return a column of all parts, and free the parts' own arrays."""
    parts, columns[name] = columns[name], []
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _latest_of_each_key(order: Array, hi: Array, tail: Array, arrived_ms: Sequence[Array]) -> Array:
    """Turn an order by `hi` into one by (hi, tail) that has only the latest entry of each key."""
    sorted_hi = hi[order]
    same = sorted_hi[1:] == sorted_hi[:-1]
    if not same.any():
        return order
    # Few entries have a neighbour with the same `hi`: only these are sorted further.
    tied = np.zeros(len(order), np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    rows = order[tied]
    rows = rows[np.lexsort((_values_at(arrived_ms, rows), tail[rows], hi[rows]))]
    is_latest = np.ones(len(rows), np.bool_)
    is_latest[:-1] = (hi[rows[1:]] != hi[rows[:-1]]) | (tail[rows[1:]] != tail[rows[:-1]])
    order[tied] = rows
    kept = np.ones(len(order), np.bool_)
    kept[tied] = is_latest
    return order[kept]


def _values_at(parts: Sequence[Array], rows: Array) -> Array:
    """Return the values at these rows of a column whose parts are not joined yet."""
    starts = np.cumsum([0, *(len(part) for part in parts)])
    number = np.searchsorted(starts, rows, side="right") - 1
    found = np.empty(len(rows), parts[0].dtype)
    for at, part in enumerate(parts):
        here = number == at
        found[here] = part[rows[here] - starts[at]]
    return found
