"""What Waybill has to do with Airflow itself: whether the watch asks its API, and deadlines of its DAG runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from waybill.config.models.base import Section
from waybill.config.models.promises import Promise
from waybill.config.models.quantities import DurationBetween
from waybill.config.models.services import ConnectionId

_Deadline = Annotated[timedelta, DurationBetween("5s", "30d")]


class AirflowTasks(Promise):
    """The last run of each DAG of Waybill succeeded, and no task stands still. A time alone is the limit."""

    limit: Annotated[timedelta, DurationBetween("1m", "30d")] = Field(
        timedelta(minutes=30), description="How long a task may wait until it runs."
    )
    running_limit: Annotated[timedelta, DurationBetween("1m", "30d")] = Field(
        timedelta(hours=25), description="How long a task may run. Longer than all timeouts: Airflow ends tasks itself."
    )


class Deadlines(Section):
    """Airflow's own deadline alerts: how long after it was queued a DAG run must have ended."""

    partition: _Deadline | None = Field(None, description="Of the runs of all partition DAGs.")
    backfill: _Deadline | None = Field(None, description="Of the runs of the DAG `backfill`.")


class Airflow(Section):
    """Airflow, as the watch sees it from outside, and its own deadline alerts."""

    connection: ConnectionId | None = Field(
        None,
        description="Airflow connection (type `http`) of Airflow's API, such as `waybill_airflow`: the URL, a user and "
        "a password. Without it, the watch does not ask Airflow.",
    )
    tasks: AirflowTasks = Field(
        AirflowTasks(), description="The last run of each DAG succeeded, and no task waits or runs for too long."
    )
    deadlines: Deadlines = Field(
        Deadlines(),
        description="Airflow's own deadline alerts, sent to the channels of `alerts.warning` by email and to Slack.",
    )
