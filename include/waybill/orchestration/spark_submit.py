"""Airflow's Spark operator, for Waybill's jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from waybill.config import Config
from waybill.orchestration.task import export_connections
from waybill.spark.environment import with_brief_jvm, with_kept_memory

__all__ = ["JOBS", "WaybillSparkSubmit"]

JOBS = Path(__file__).parents[3] / "spark_jobs"

_ENVIRONMENTS = {"partition": (with_brief_jvm,), "dedup": (with_brief_jvm, with_kept_memory)}
"""What the environment of a job has beside Airflow's."""


class WaybillSparkSubmit(SparkSubmitOperator):
    """`spark-submit` of one of Waybill's jobs for one stream, with the endpoints that the config names.

    The jobs are idempotent: a retry, or a second submission beside one that still runs, carries out the same plan, and
    one of the two commits it.
    """

    def __init__(self, *, job: str, stream: str, config: Config, arguments: Sequence[str] = (), **kwargs: Any) -> None:
        """`arguments`: what the job is given beside its stream: templates, and what comes out empty is left out."""
        super().__init__(
            application=str(JOBS / f"{job}.py"),
            application_args=["--stream", stream, *arguments],
            conn_id=config.spark.connection,
            name=f"waybill-{job}-{stream}",
            **kwargs,
        )
        self._config = config
        self._job = job

    def execute(self, context: Any) -> None:
        self.application_args = [argument for argument in self.application_args or () if argument]
        # Through the environment of spark-submit, not through `env_vars`: on a cluster that puts secrets on a command
        # line, and the command line into the log.
        export_connections(self._config)
        for changed in _ENVIRONMENTS.get(self._job, ()):
            os.environ.update(changed(os.environ))
        super().execute(context)
