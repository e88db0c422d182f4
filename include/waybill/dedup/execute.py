"""Who carries out the tasks of a sweep: Spark (`waybill.spark.execute`), or this process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from waybill.config import Storage
from waybill.dedup.candidates import Candidates
from waybill.dedup.duplicates import Seen, judge
from waybill.dedup.hashing import hash_keys
from waybill.dedup.index.filters import build, probe
from waybill.dedup.index.merge import ForEach, one_by_one
from waybill.dedup.index.runs import Run
from waybill.dedup.index_build import BuildJob, BuildTask, index_rows
from waybill.dedup.judge import judge_range
from waybill.dedup.scan import scan
from waybill.dedup.tasks import Judged, SweepJob, SweepTask, UnknownTopicPartitions, Written
from waybill.dedup.write import write
from waybill.errors import WaybillError
from waybill.store import Store
from waybill.tables import task_io

__all__ = ["Execute", "InThisProcess", "index_task", "warm_up"]

_Result = TypeVar("_Result")


class Execute(Protocol):
    """Carries out tasks, anywhere. A `WaybillError` among results: why that task failed."""

    @property
    def for_each(self) -> ForEach:
        """How work on the index is carried out."""

    def judge(
        self, job: SweepJob, tasks: Sequence[SweepTask]
    ) -> Sequence[Judged | UnknownTopicPartitions | WaybillError]:
        """Scan, exchange the candidates by ranges of the hash, judge each range; what came of the ranges."""

    def write(
        self, job: SweepJob, tasks: Sequence[SweepTask], marks: tuple[str, ...]
    ) -> Sequence[Written | WaybillError]:
        """Write the rows of the tasks; `marks`: locations of what was marked."""


def warm_up() -> None:
    """Load the compiled loops that every task uses. No thread and no connection: those do not survive a fork."""
    hashes = hash_keys([pa.array(["a", "b", "a"])], bytes(16))
    none = np.zeros(3, np.int64)
    rows = Candidates(hashes.hi, hashes.lo, none, none.astype(np.int32), np.arange(3), none.astype(np.int32), none)
    judge(rows, Seen.nothing(), 1, 0)
    probe(build(np.unique(hashes.hi)), hashes.hi)


def index_task(storage: Storage, catalog_connection: str, job: BuildJob, task: BuildTask) -> list[Run]:
    """Carry out a task of building the index, on an executor. Raises as `index_rows` does."""
    io = task_io(storage, catalog_connection, job.unique.data_location)
    with Store.of(storage) as store:
        return index_rows(store, io, job, task)


class InThisProcess:
    """One task after the other, without Spark: for tests, and small streams."""

    for_each: ForEach = staticmethod(one_by_one)

    def judge(
        self, job: SweepJob, tasks: Sequence[SweepTask]
    ) -> Sequence[Judged | UnknownTopicPartitions | WaybillError]:
        sent: dict[int, list[Any]] = defaultdict(list)
        for task in tasks:
            for number, found in scan(job, task):
                sent[number].append(found)
        return [_as_value(partial(judge_range, job, number, sent[number])) for number in range(job.judges)]

    def write(
        self, job: SweepJob, tasks: Sequence[SweepTask], marks: tuple[str, ...]
    ) -> Sequence[Written | WaybillError]:
        return [_as_value(partial(write, job, task, marks)) for task in tasks]


def _as_value(work: Callable[[], _Result]) -> _Result | WaybillError:
    try:
        return work()
    except WaybillError as error:
        return error
