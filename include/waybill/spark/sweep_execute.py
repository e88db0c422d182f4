"""Tasks of a dedup sweep, carried out by Spark's executors.

As in `waybill.spark.execute`, rows of messages never become Spark's: what goes through its shuffle are candidates, 48
bytes for each row that has a key, in a few large pieces of Arrow for each range of the hash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark import SparkContext

from waybill.dedup.judging import judge_range
from waybill.dedup.scan import scan
from waybill.dedup.task import Judged, SweepJob, SweepTask, UnknownTopicPartitions, Written
from waybill.dedup.writing import write
from waybill.errors import WaybillError
from waybill.spark.execute import as_value, attempts_of, for_each, may_succeed, results_of

__all__ = ["SparkSweep"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class SparkSweep:
    """Carries out a sweep's tasks on Spark. `start` is called only when there is something to do."""

    def __init__(self, start: Callable[[], SparkContext]) -> None:
        self._start = start

    def for_each(self, work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
        """The same work for each task; a `WaybillError` is raised as it is."""
        return for_each(self._start, work, tasks)

    def judge(
        self, job: SweepJob, tasks: Sequence[SweepTask]
    ) -> Sequence[Judged | UnknownTopicPartitions | WaybillError]:
        """As `waybill.dedup.execute.Execute` has it: two stages, and Spark's shuffle between them."""
        context = self._start()
        attempts = attempts_of(context.getConf())
        sent = context.parallelize(range(len(tasks)), len(tasks)).flatMap(
            lambda number: _scan(job, tasks[number], attempts)
        )
        ranges = sent.partitionBy(job.judges, lambda judge: judge)
        return list(
            ranges.mapPartitionsWithIndex(lambda number, pairs: [_judge(job, number, pairs, attempts)]).collect()
        )

    def write(
        self, job: SweepJob, tasks: Sequence[SweepTask], marks: tuple[str, ...]
    ) -> Sequence[Written | WaybillError]:
        """As `waybill.dedup.execute.Execute` has it."""
        return results_of(self._start, lambda task: write(job, task, marks), tasks)


def _scan(job: SweepJob, task: SweepTask, attempts: int) -> Iterator[tuple[int, Any]]:
    try:
        yield from scan(job, task)
    except WaybillError as error:
        if may_succeed(error, attempts):
            raise
        yield 0, error


def _judge(
    job: SweepJob, number: int, pairs: Iterable[tuple[int, Any]], attempts: int
) -> Judged | UnknownTopicPartitions | WaybillError:
    unread = iter(pairs)
    judged = as_value(lambda: judge_range(job, number, _sent(unread)), attempts)
    deque(unread, maxlen=0)  # a worker that leaves any of it is not used again
    return judged


def _sent(pairs: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """What came for a judge, which no list keeps. Raises what a task that scans has met."""
    for _, found in pairs:
        if isinstance(found, WaybillError):
            raise found
        yield found
