"""Tasks of a partition run, carried out by Spark's executors.

Spark hands out the tasks and starts them again where an executor is lost; messages never become its rows. What goes to
an executor is the job and the tasks; what comes back is a `TaskResult` for each. For that a plain RDD of task numbers
does: a DataFrame with `mapInArrow` first starts the whole of Spark SQL, some seconds every hour (docs/decisions/0004).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark import SparkConf, SparkContext, TaskContext

from waybill.errors import WaybillError
from waybill.partition.carry_out import Execute
from waybill.partition.plan import ArchiveFault, Task
from waybill.partition.task import Job, TaskResult, run_task

__all__ = ["attempts_of", "spark_execute"]


def spark_execute(start: Callable[[], SparkContext]) -> Execute:
    """Carry out tasks on Spark. `start` is called only when there is something to do."""

    def execute(job: Job, tasks: Sequence[Task]) -> list[TaskResult | ArchiveFault]:
        context = start()
        attempts = attempts_of(context.getConf())
        # One partition, and so one Spark task, for each of ours.
        numbers = context.parallelize(range(len(tasks)), len(tasks))
        results = []
        for result in numbers.map(lambda number: _result(job, tasks[number], attempts)).collect():
            if isinstance(result, WaybillError):
                raise result
            results.append(result)
        return results

    return execute


def attempts_of(conf: SparkConf) -> int:
    """How often Spark starts a task before it gives up; in local mode once."""
    local = (conf.get("spark.master") or "").startswith("local")
    return 1 if local else int(conf.get("spark.task.maxFailures") or 4)


def _result(job: Job, task: Task, attempts: int) -> TaskResult | ArchiveFault | WaybillError:
    """What the task gave; or the error as a value, for the driver to raise as it is.

    Raised here, it would reach the driver as the text of a traceback. That is only done where Spark's next attempt may
    succeed.
    """
    try:
        return run_task(job, task)
    except WaybillError as error:
        context = TaskContext.get()
        if error.retriable and context is not None and context.attemptNumber() + 1 < attempts:
            raise
        return error
