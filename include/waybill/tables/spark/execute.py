"""Run the tasks of partition runs and of sweeps on Spark's executors.

Spark only schedules the tasks, and starts them again if an executor is lost; messages never become rows of Spark. The
driver sends the job and the tasks, and gets a `TaskResult` for each, with the usage of the executor's process for the
task (`waybill.base.metering`). A plain RDD of task numbers is enough for that: a DataFrame with `mapInArrow` would
start Spark SQL, which takes some seconds every hour (docs/decisions/0004).

A dedup sweep also needs Spark's shuffle. Only its candidates go through it: 48 bytes for each row that has a key, in a
few large pieces of Arrow for each range of the hash space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark import SparkConf, SparkContext, TaskContext

from waybill.base.errors import WaybillError
from waybill.base.metering import Tally, meter
from waybill.tables.dedup.candidates import scan
from waybill.tables.dedup.execute import InThisProcess
from waybill.tables.dedup.match import match_range
from waybill.tables.dedup.tasks import MatchedRange, SweepJob, SweepTask, UnplannedPartitions, WrittenFiles
from waybill.tables.dedup.write import write
from waybill.tables.partition.execute import Execute
from waybill.tables.partition.tasks import run_task
from waybill.tables.spark.layout import executors_have_this_waybill

_TASKS = "tasks"
"""The name of the CPU seconds of tasks."""
_MOST_ROWS_WITHOUT_SHUFFLE = 500_000
"""Candidates of this number of rows take 24 MB."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def spark_execute(start: Callable[[], SparkContext]) -> Execute:
    """Return a function that runs tasks of a partition run on Spark. It calls `start` only if there is a task."""
    return lambda job, tasks: run_each(start, lambda task: run_task(job, task), tasks)


def run_each(
    start: Callable[[], SparkContext], work: Callable[[_Task], _Result], tasks: Sequence[_Task]
) -> list[_Result]:
    """Run `work` for each task, and return the results in order. Raises the `WaybillError` of a failed task."""
    results = []
    for result in try_each(start, work, tasks):
        if isinstance(result, WaybillError):
            raise result
        results.append(result)
    return results


def try_each(
    start: Callable[[], SparkContext], work: Callable[[_Task], _Result], tasks: Sequence[_Task]
) -> list[_Result | WaybillError]:
    """Run `work` for each task, and return the results or errors in order. Calls `start` only if there is a task."""
    if not tasks:
        return []
    context = start()
    attempts = max_attempts(context.getConf())
    # One partition, and so one Spark task, for each task.
    numbers = context.parallelize(range(len(tasks)), len(tasks))
    metered = numbers.map(lambda number: _metered(lambda: work(tasks[number]), attempts))
    with executors_have_this_waybill():
        return _counted(metered.collect())


def _metered(work: Callable[[], _Result], attempts: int) -> tuple[_Result | WaybillError, Tally]:
    """Return the result or the error of `work`, and the usage of this process. Called on an executor."""
    return result_or_error(work, attempts), meter.take_total(_TASKS)


def _counted(results: Iterable[tuple[_Result, Tally]]) -> list[_Result]:
    """Add the usage of executors to the stream of this thread, and return the results."""
    results = list(results)
    meter.add(Tally.sum(tally for _, tally in results))
    return [result for result, _ in results]


def max_attempts(conf: SparkConf) -> int:
    """Return how many times Spark starts a task before it gives up; 1 in local mode."""
    local = (conf.get("spark.master") or "").startswith("local")
    return 1 if local else int(conf.get("spark.task.maxFailures") or 4)


def result_or_error(work: Callable[[], _Result], attempts: int) -> _Result | WaybillError:
    """Return the result of `work`, or its error as a value, for the driver to raise. Called on an executor.

    An error that is raised on an executor reaches the driver only as the text of a traceback. It is raised only if
    Spark's next attempt may succeed.
    """
    try:
        return work()
    except WaybillError as error:
        if can_retry(error, attempts):
            raise
        return error


def can_retry(error: WaybillError, attempts: int) -> bool:
    """Return whether Spark has another attempt that may succeed. Called on an executor."""
    context = TaskContext.get()
    return error.retriable and context is not None and context.attemptNumber() + 1 < attempts


class SparkSweep:
    """Runs a sweep's tasks on Spark. `start` is called only when there is a task."""

    def __init__(self, start: Callable[[], SparkContext]) -> None:
        self._start = start

    def for_each(self, work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
        """Run the same work for each task; raise a `WaybillError` unchanged."""
        return run_each(self._start, work, tasks)

    def match(
        self, job: SweepJob, tasks: Sequence[SweepTask]
    ) -> Sequence[MatchedRange | UnplannedPartitions | WaybillError]:
        """Implement `waybill.tables.dedup.execute.Execute`: two stages with Spark's shuffle between them.

        The candidates of a small sweep with one task need no shuffle: one Spark task scans and matches.
        """
        if len(tasks) == 1 and job.plan.records <= _MOST_ROWS_WITHOUT_SHUFFLE:
            [found] = try_each(self._start, lambda task: InThisProcess().match(job, [task]), tasks)
            return [found] if isinstance(found, WaybillError) else found
        context = self._start()
        attempts = max_attempts(context.getConf())
        sent = context.parallelize(range(len(tasks)), len(tasks)).flatMap(
            lambda number: _scan(job, tasks[number], attempts)
        )
        ranges = sent.partitionBy(job.hash_ranges, lambda hash_range: hash_range)
        metered = ranges.mapPartitionsWithIndex(lambda number, pairs: [_match_range(job, number, pairs, attempts)])
        with executors_have_this_waybill():
            return _counted(metered.collect())

    def write(
        self, job: SweepJob, tasks: Sequence[SweepTask], duplicate_lists: tuple[str, ...]
    ) -> Sequence[WrittenFiles | WaybillError]:
        """Implement `waybill.tables.dedup.execute.Execute`."""
        return try_each(self._start, lambda task: write(job, task, duplicate_lists), tasks)


def _scan(job: SweepJob, task: SweepTask, attempts: int) -> Iterator[tuple[int, Any]]:
    try:
        yield from scan(job, task)
    except WaybillError as error:
        if can_retry(error, attempts):
            raise
        yield 0, error
    yield 0, meter.take_total(_TASKS)


def _match_range(
    job: SweepJob, number: int, pairs: Iterable[tuple[int, Any]], attempts: int
) -> tuple[MatchedRange | UnplannedPartitions | WaybillError, Tally]:
    used = Tally()
    remaining = _without_tallies(pairs, used)
    result = result_or_error(lambda: match_range(job, number, _received(remaining)), attempts)
    for _ in remaining:  # Spark does not reuse a worker that leaves input unread
        pass
    used.add(meter.take_total(_TASKS))
    return result, used


def _without_tallies(pairs: Iterable[tuple[int, Any]], used: Tally) -> Iterator[Any]:
    """Yield the output of scanning tasks for a hash range, without collecting it in a list.

    Add their usage to `used`.
    """
    for _, found in pairs:
        if isinstance(found, Tally):
            used.add(found)
        else:
            yield found


def _received(found: Iterable[Any]) -> Iterator[Any]:
    """Yield the output of scanning tasks. Raise the error of a failed task."""
    for each in found:
        if isinstance(each, WaybillError):
            raise each
        yield each
