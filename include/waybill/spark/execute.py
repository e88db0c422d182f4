"""Tasks of a partition run, carried out by Spark's executors.

Spark hands out the tasks and starts them again where an executor is lost; messages never become its rows. What goes to
an executor is the job and the tasks; what comes back is a `TaskResult` for each. For that a plain RDD of task numbers
does: a DataFrame with `mapInArrow` first starts the whole of Spark SQL, some seconds every hour (docs/decisions/0004).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark import SparkConf, SparkContext, TaskContext

from waybill.errors import WaybillError
from waybill.partition.carry_out import Execute
from waybill.partition.task import run_task

__all__ = ["as_value", "attempts_of", "for_each", "may_succeed", "results_of", "spark_execute"]

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
