"""Tasks of a partition run, carried out by Spark's executors.

Spark hands out the tasks and starts them again where an executor is lost; messages never become its rows. What goes to
an executor is the job and the tasks; what comes back is a `TaskResult` for each. For that a plain RDD of task numbers
does: a DataFrame with `mapInArrow` first starts the whole of Spark SQL, some seconds every hour (docs/decisions/0004).

Tasks of a dedup sweep, carried out by Spark's executors.

As in `waybill.spark.execute`, rows of messages never become Spark's: what goes through its shuffle are candidates, 48
bytes for each row that has a key, in a few large pieces of Arrow for each range of the hash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark import SparkConf, SparkContext, TaskContext

from waybill.dedup.judge import judge_range
from waybill.dedup.scan import scan
from waybill.dedup.tasks import Judged, SweepJob, SweepTask, UnknownTopicPartitions, Written
from waybill.dedup.write import write
from waybill.errors import WaybillError
from waybill.partition.tasks import Execute, run_task

__all__ = ["SparkSweep", "as_value", "attempts_of", "for_each", "may_succeed", "results_of", "spark_execute"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def spark_execute(start: Callable[[], SparkContext]) -> Execute:
    """Carry out tasks on Spark. `start` is called only when there is something to do."""
    return lambda job, tasks: for_each(start, lambda task: run_task(job, task), tasks)


def for_each(
    start: Callable[[], SparkContext], work: Callable[[_Task], _Result], tasks: Sequence[_Task]
) -> list[_Result]:
    """What the work gave for each task, in their order; a `WaybillError` is raised as it is."""
    results = []
    for result in results_of(start, work, tasks):
        if isinstance(result, WaybillError):
            raise result
        results.append(result)
    return results


def results_of(
    start: Callable[[], SparkContext], work: Callable[[_Task], _Result], tasks: Sequence[_Task]
) -> list[_Result | WaybillError]:
    """What the work gave for each task, in their order, or why it failed. `start` is called only if there are any."""
    if not tasks:
        return []
    context = start()
    attempts = attempts_of(context.getConf())
    # One partition, and so one Spark task, for each of ours.
    numbers = context.parallelize(range(len(tasks)), len(tasks))
    return list(numbers.map(lambda number: as_value(lambda: work(tasks[number]), attempts)).collect())


def attempts_of(conf: SparkConf) -> int:
    """How often Spark starts a task before it gives up; in local mode once."""
    local = (conf.get("spark.master") or "").startswith("local")
    return 1 if local else int(conf.get("spark.task.maxFailures") or 4)


def as_value(work: Callable[[], _Result], attempts: int) -> _Result | WaybillError:
    """What the work gave; or the error as a value, for the driver to raise as it is. Called on an executor.

    Raised here, it would reach the driver as the text of a traceback. That is only done where Spark's next attempt may
    succeed.
    """
    try:
        return work()
    except WaybillError as error:
        if may_succeed(error, attempts):
            raise
        return error


def may_succeed(error: WaybillError, attempts: int) -> bool:
    """Whether Spark has another attempt, and it may help. Called on an executor."""
    context = TaskContext.get()
    return error.retriable and context is not None and context.attemptNumber() + 1 < attempts


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
