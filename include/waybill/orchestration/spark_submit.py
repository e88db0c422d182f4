"""A stream's tables as Airflow's assets: what one DAG makes, and others wait for.

The range that a run of `dedup__<stream>` was asked for, checked before Spark is started for it.

Airflow's Spark operator, for Waybill's jobs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset

from waybill import names
from waybill.config import Config, Stream
from waybill.orchestration.tasks import export_connections
from waybill.spark.job import with_brief_jvm, with_kept_memory

__all__ = ["JOBS", "WaybillSparkSubmit", "check_sweep_range", "table_asset"]


def table_asset(config: Config, stream: Stream) -> Asset:
    """The table of a stream's generation."""
    table = names.table_name(stream.table, stream.generation)
    path = table.replace(".", "/")
    # With another scheme than x-…, Airflow loads all providers, boto3 with them, to ask who knows it.
    return Asset(name=table, uri=f"x-iceberg://{config.catalog.connection}/{path}", group="waybill")


def check_sweep_range(context: Mapping[str, Any]) -> None:
    """Hold `since` and `until` of a run's parameters against each other and the time; for a task's `pre_execute`.

    The form checks each by itself (JSON Schema), and cannot compare them; and a run that is not triggered by the form
    may have any others: a misspelt `until` would be no bound at all. Raises `AirflowFailException`, since trying again
    would not help.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from waybill.dedup.first_sweep import check_range, parse_instant
    from waybill.errors import ConfigError

    known = context["dag"].params
    strange = sorted(set(context["params"]).difference(known))
    if strange:
        raise AirflowFailException(f"no such parameter: {', '.join(strange)}; there are: {', '.join(known)}")
    given = {name: context["params"].get(name) for name in ("since", "until")}
    try:
        times = {name: parse_instant(name, text) if text else None for name, text in given.items()}
        check_range(times["since"], times["until"], datetime.now(UTC))
    except ConfigError as error:
        raise AirflowFailException(str(error)) from error


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
