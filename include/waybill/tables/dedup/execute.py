"""Run the tasks of a sweep, on Spark's executors (`waybill.tables.spark.execute`) or in this process.

`match_all` and `write_all` run one stage each, and remove the files of its tasks if one of them fails.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from waybill.base.errors import IndexDamaged, WaybillError
from waybill.services.store import Store
from waybill.tables.dedup.candidates import Candidates, scan
from waybill.tables.dedup.commit import remove_objects
from waybill.tables.dedup.index.filters import build, probe
from waybill.tables.dedup.index.lookup import EarlierRows
from waybill.tables.dedup.index.manifest import Manifest
from waybill.tables.dedup.index.merge import ForEach, one_by_one
from waybill.tables.dedup.keys import hash_keys
from waybill.tables.dedup.match import find_duplicates, match_range
from waybill.tables.dedup.tasks import MatchedRange, SweepJob, SweepTask, UnplannedPartitions, WrittenFiles
from waybill.tables.dedup.write import write
from waybill.tables.iceberg import DedupTables, remove_files

logger = logging.getLogger(__name__)

_MAX_REBUILDS = 3  # the most rebuilds of a damaged index in one sweep
_Result = TypeVar("_Result")


class Execute(Protocol):
    """Runs the tasks of a sweep. A `WaybillError` in place of a result is the reason why that task failed."""

    @property
    def for_each(self) -> ForEach:
        """Run tasks that build the index."""

    def match(
        self, job: SweepJob, tasks: Sequence[SweepTask]
    ) -> Sequence[MatchedRange | UnplannedPartitions | WaybillError]:
        """Scan the files of the tasks, exchange the candidates by hash range, and return the result of each range."""

    def write(
        self, job: SweepJob, tasks: Sequence[SweepTask], duplicate_lists: tuple[str, ...]
    ) -> Sequence[WrittenFiles | WaybillError]:
        """Write the rows of the tasks. `duplicate_lists`: locations of the lists that the matching tasks wrote."""


class InThisProcess:
    """Runs one task after the other, without Spark: for tests, and small streams."""

    for_each: ForEach = staticmethod(one_by_one)

    def match(
        self, job: SweepJob, tasks: Sequence[SweepTask]
    ) -> Sequence[MatchedRange | UnplannedPartitions | WaybillError]:
        sent: dict[int, list[Any]] = defaultdict(list)
        for task in tasks:
            for hash_range, found in scan(job, task):
                sent[hash_range].append(found)
        return [_result_of(partial(match_range, job, number, sent[number])) for number in range(job.hash_ranges)]

    def write(
        self, job: SweepJob, tasks: Sequence[SweepTask], duplicate_lists: tuple[str, ...]
    ) -> Sequence[WrittenFiles | WaybillError]:
        return [_result_of(partial(write, job, task, duplicate_lists)) for task in tasks]


def _result_of(work: Callable[[], _Result]) -> _Result | WaybillError:
    try:
        return work()
    except WaybillError as error:
        return error


# --- stages ---


def match_all(
    execute: Execute,
    store: Store,
    job: SweepJob,
    tasks: Sequence[SweepTask],
    rebuild_index: Callable[[], Manifest],
) -> tuple[SweepJob, list[MatchedRange]]:
    """Find the duplicates of all hash ranges. Repeat it if the index is damaged or rows have unplanned partitions.

    Returns the job of the last attempt, which has the runs of the rebuilt index and all topic-partitions. Raises the
    error of a task that failed.
    """
    for attempt in range(_MAX_REBUILDS + 1):
        results = execute.match(job, tasks)
        matched = [result for result in results if isinstance(result, MatchedRange)]
        if len(matched) == len(results):
            return job, matched
        _remove_outputs(store, matched)
        unplanned = [result for result in results if isinstance(result, UnplannedPartitions)]
        errors = [result for result in results if isinstance(result, WaybillError)]
        damage = [error for error in errors if isinstance(error, IndexDamaged)]
        if unplanned:
            found = {tp for result in unplanned for tp in result.topic_partitions}
            job = replace(job, topic_partitions=tuple(sorted({*job.topic_partitions, *found})))
        elif damage and attempt < _MAX_REBUILDS:
            logger.warning("dedup %s: the key index is damaged, rebuilding it: %s", job.plan.stream, damage[0])
            manifest = rebuild_index()
            job = replace(job, runs=manifest.runs, covers=manifest.covers)
        else:
            raise errors[0]
    raise AssertionError("unreachable")


def write_all(
    execute: Execute,
    store: Store,
    tables: DedupTables,
    job: SweepJob,
    tasks: Sequence[SweepTask],
    duplicate_lists: Sequence[str],
) -> list[WrittenFiles]:
    """Write the rows of all tasks. If one fails, remove the files of the others and raise its error."""
    locations = tuple(f"s3://{store.bucket}/{key}" for key in duplicate_lists)
    results = execute.write(job, tasks, locations)
    written = [result for result in results if isinstance(result, WrittenFiles)]
    errors = [result for result in results if isinstance(result, WaybillError)]
    if errors:
        files = [file for result in written for file in (*result.unique_files, *result.duplicate_files)]
        remove_files(tables.unique.io, [file.file_path for file in files])
        raise errors[0]
    return written


def _remove_outputs(store: Store, matched: Sequence[MatchedRange]) -> None:
    runs = [path for result in matched for run in result.runs for path in (run.path, run.filter_path)]
    lists = [result.duplicate_list for result in matched if result.duplicate_list is not None]
    remove_objects(store, [*runs, *lists])


def warm_up() -> None:
    """Compile the loops that every task uses.

    It starts no thread and no connection, since these do not survive a fork.
    """
    hashes = hash_keys([pa.array(["a", "b", "a"])], bytes(16))
    zeros = np.zeros(3, np.int64)
    rows = Candidates(hashes.hi, hashes.lo, zeros, zeros.astype(np.int32), np.arange(3), zeros.astype(np.int32), zeros)
    find_duplicates(rows, EarlierRows.none(), 1, 0)
    probe(build(np.unique(hashes.hi)), hashes.hi)
