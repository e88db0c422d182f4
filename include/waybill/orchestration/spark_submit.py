"""The operator that submits Waybill's Spark jobs, the assets that start other DAGs, and a check before a sweep."""

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

JOBS = Path(__file__).parents[3] / "spark_jobs"
"""The directory of the scripts that `spark-submit` runs."""

_ENVIRONMENT_CHANGES = {"partition": (with_brief_jvm,), "dedup": (with_brief_jvm, with_kept_memory)}
"""By job: functions that take an environment and return it with more variables."""


def table_asset(config: Config, stream: Stream) -> Asset:
    """Return the asset of the table of a stream's generation. A partition run updates it, and sweeps wait for it."""
    table = names.table_name(stream.table, stream.generation)
    path = table.replace(".", "/")
    # Airflow looks up the scheme in all providers, which loads boto3 among others; schemes that begin with x- it does
    # not look up.
    return Asset(name=table, uri=f"x-iceberg://{config.catalog.connection}/{path}", group="waybill")


class WaybillSparkSubmit(SparkSubmitOperator):
    """Runs `spark-submit` of one of Waybill's jobs for one stream, with the connections that the config names.

    The jobs are idempotent: a retry, or a second submission while the first still runs, executes the same plan, and
    only one of the two commits it.
    """

    def __init__(self, *, job: str, stream: str, config: Config, arguments: Sequence[str] = (), **kwargs: Any) -> None:
        """`arguments`: more arguments of the job, as templates. Those that render to an empty string are left out."""
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
        # Through the environment of spark-submit, not through `env_vars`: on a cluster Airflow puts these on a command
        # line, secrets included, and logs the command line.
        export_connections(self._config)
        for change in _ENVIRONMENT_CHANGES.get(self._job, ()):
            os.environ.update(change(os.environ))
        super().execute(context)


def check_sweep_range(context: Mapping[str, Any]) -> None:
    """Check the parameters `since` and `until` of a run of `dedup__<stream>`; for a task's `pre_execute`.

    The form checks each parameter alone (JSON Schema), and cannot compare the two. A run that is triggered without the
    form may have any parameters: a misspelt `until` would be ignored and the sweep would have no bound. Raises
    `AirflowFailException`, since a retry would not help.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from waybill.dedup.first_sweep import check_range, parse_instant
    from waybill.errors import ConfigError

    declared = context["dag"].params
    unknown = sorted(set(context["params"]).difference(declared))
    if unknown:
        raise AirflowFailException(f"unknown parameter: {', '.join(unknown)}; known parameters: {', '.join(declared)}")
    given = {name: context["params"].get(name) for name in ("since", "until")}
    try:
        times = {name: parse_instant(name, text) if text else None for name, text in given.items()}
        check_range(times["since"], times["until"], datetime.now(UTC))
    except ConfigError as error:
        raise AirflowFailException(str(error)) from error
