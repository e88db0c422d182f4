"""Tasks of a partition run, carried out by Spark's executors.

Spark hands out the tasks and starts them again where an executor is lost; messages never become its rows. What goes to
an executor is the job and the tasks; what comes back is a pickled `TaskResult` for each.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from waybill.errors import WaybillError
from waybill.partition.plan import Task
from waybill.partition.run import Execute
from waybill.partition.task import Job, TaskResult, run_task

__all__ = ["spark_execute"]

_RESULT = "result"


def spark_execute(session: Callable[[], SparkSession]) -> Execute:
    """Carry out tasks on Spark. `session` is called only when there is something to do."""

    def execute(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        spark = session()
        rows = (
            spark.range(0, len(tasks), 1, len(tasks))  # one partition, and so one Spark task, for each of ours
            .mapInArrow(_worker(job, tasks, _attempts(spark)), f"{_RESULT} binary")
            .collect()
        )
        results = [pickle.loads(bytes(row[_RESULT])) for row in rows]
        for result in results:
            if isinstance(result, WaybillError):
                raise result
        return results

    return execute


def _attempts(spark: SparkSession) -> int:
    """How often Spark starts a task before it gives up; in local mode once."""
    local = (spark.conf.get("spark.master") or "").startswith("local")
    return 1 if local else int(spark.conf.get("spark.task.maxFailures", "4") or 4)


def _worker(
    job: Job, tasks: Sequence[Task], attempts: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def carry_out(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                result = pickle.dumps(_result(job, tasks[index], attempts))
                yield pa.RecordBatch.from_pydict({_RESULT: pa.array([result], pa.binary())})

    return carry_out


def _result(job: Job, task: Task, attempts: int) -> TaskResult | WaybillError:
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
