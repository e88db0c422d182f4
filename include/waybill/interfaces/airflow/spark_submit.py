"""The operators that submit Waybill's Spark jobs, and the assets of tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowTaskTimeout

from waybill.config.models import Config, Stream
from waybill.interfaces.airflow.tasks import export_connections
from waybill.tables.spark.job import with_brief_jvm, with_kept_memory

JOBS = Path(__file__).parents[4] / "spark_jobs"
"""The directory of the scripts that `spark-submit` runs."""

_ENVIRONMENT_CHANGES = {
    "partition": (with_brief_jvm, with_kept_memory),
    "backfill": (with_brief_jvm, with_kept_memory),
    "dedup": (with_brief_jvm, with_kept_memory),
}
"""By job: functions that take an environment and return it with more variables."""


def table_asset(config: Config, stream: Stream) -> Asset:
    """Return the asset of a stream's table. A partition run updates it, and sweeps wait for it."""
    table = stream.table
    path = table.replace(".", "/")
    # Airflow looks up a scheme in all providers, which loads boto3 and others, except for schemes that begin with x-.
    return Asset(name=table, uri=f"x-iceberg://{config.catalog.connection}/{path}", group="waybill")


class WaybillSparkSubmit(SparkSubmitOperator):
    """Runs `spark-submit` of one of Waybill's jobs, with the connections that the config names.

    The jobs are idempotent: a retry, or a second submission while the first still runs, executes the same plan, and
    only one of the two commits it.
    """

    def __init__(self, *, job: str, label: str, config: Config, arguments: Sequence[str], **kwargs: Any) -> None:
        """`label`: the subject of the application.

        `arguments`: templates; an argument that renders to '' is left out.
        """
        super().__init__(
            application=str(JOBS / f"{job}.py"),
            application_args=list(arguments),
            conn_id=config.spark.connection,
            name=f"waybill-{job}-{label}",
            **kwargs,
        )
        self._config = config
        self._job = job

    def execute(self, context: Any) -> None:
        arguments = [argument for argument in self.application_args or () if argument]
        self.application_args = [*arguments, *self.further_arguments(context)]
        # Pass them in the environment of spark-submit, not in `env_vars`: on a cluster Airflow puts these on a command
        # line, with the secrets, and logs the command line.
        export_connections(self._config)
        for change in _ENVIRONMENT_CHANGES.get(self._job, ()):
            os.environ.update(change(os.environ))
        try:
            super().execute(context)
        except AirflowTaskTimeout:
            # Airflow kills spark-submit, and the driver ends with it
            # (`waybill.tables.spark.job.end_with_spark_submit`).
            raise AirflowTaskTimeout(
                f"the Spark application {self.name} was waited for, and had not ended after {self.execution_timeout} "
                f"(`timeout` in the config). It is killed. A retry, and the next run, continue after what it has "
                f"committed. The last lines of its log above show what it was doing"
            ) from None

    def further_arguments(self, context: Any) -> list[str]:  # noqa: ARG002
        """Return arguments that depend on the run."""
        return []


class SubmitStream(WaybillSparkSubmit):
    """Submits a job for the one stream of a DAG."""

    def __init__(self, *, job: str, stream: str, config: Config, arguments: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(job=job, label=stream, config=config, arguments=["--stream", stream, *arguments], **kwargs)


class SubmitGroup(WaybillSparkSubmit):
    """Submits a job for the streams of a group, or for those that the form selects.

    The job writes the result of each stream to S3. The job, and this task, fail if another try may succeed; that try
    leaves out the streams that are done.
    """

    def __init__(self, *, job: str, group: str, config: Config, arguments: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(job=job, label=group, config=config, arguments=["--group", group, *arguments], **kwargs)

    def further_arguments(self, context: Any) -> list[str]:
        streams = [part for name in context["params"]["streams"] for part in ("--stream", name)]
        return [*streams, "--run", context["run_id"], *(["--resume"] if is_retry(context["ti"]) else [])]


def is_retry(task_instance: Any) -> bool:
    """Return whether Airflow runs the task again after a failure, not after a person cleared it.

    A cleared task gets all its retries again, in addition to its earlier tries.
    """
    first_try = task_instance.max_tries - (task_instance.task.retries or 0) + 1
    return bool(task_instance.try_number > first_try)
