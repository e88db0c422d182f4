"""`ingest`: archives the new messages of Kafka, every minute, for all streams of a group.

plan → lanes in parallel → report. A lane archives topic-partitions of several streams. A failing lane does not delay
the others. If there are no new messages, the run consists only of the task `plan`.

The report fails when a stream has a new problem, and names it; while the problem lasts, later runs log it and succeed.
No task is retried: the next run, a minute later, continues from the committed offsets.

A stream with `ingest.group: own` has a separate DAG, `ingest__<stream>`. Its report fails as long as there is a
problem.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, dag, task

from waybill.config.models import Config, load_valid_streams
from waybill.config.names import Stage
from waybill.interfaces.airflow.dag_arguments import group_arguments, stream_arguments
from waybill.interfaces.airflow.run_params import streams_param


@task(show_return_value_in_logs=False)
def plan(group: str | None, streams: list[str]) -> list[dict[str, Any]]:
    from airflow.sdk import get_current_context
    from airflow.sdk.exceptions import DownstreamTasksSkipped

    from waybill.interfaces.airflow.tasks import plan_ingest

    context = get_current_context()
    planned = plan_ingest(group, streams, context["params"]["streams"])
    if planned is None:
        raise DownstreamTasksSkipped(tasks=["lane", "report"])
    lanes, for_report = planned
    context["ti"].xcom_push("plan", for_report)
    return lanes


@task(map_index_template="{{ lane_name }}", show_return_value_in_logs=False)
def lane(planned: dict[str, Any]) -> dict[str, Any]:
    from airflow.sdk import get_current_context

    from waybill.interfaces.airflow.tasks import run_planned_lane

    shares = [f"{share['stream']}: {share['topic']}/{share['partition']}" for share in planned["shares"]]
    get_current_context()["lane_name"] = ", ".join(shares)[:250]
    return run_planned_lane(planned)


@task(trigger_rule="all_done")
def report(group: str | None, lanes: Any) -> None:
    from airflow.sdk import get_current_context

    from waybill.interfaces.airflow.tasks import report_ingest

    # The value is None after a failed plan. A missing value as an argument would fail the task before its first line.
    plan = get_current_context()["ti"].xcom_pull(task_ids="plan", key="plan")
    report_ingest(group, plan, list(lanes or []))


def lane_timeout_of(config: Config, names: list[str]) -> timedelta:
    """Return the timeout of lanes: the longest budget of the streams, plus the time to finish the upload."""
    budgets = [config.streams[name].ingest.budget for name in names if name in config.streams]
    return max(budgets, default=timedelta()) + timedelta(minutes=2)


def ingest_dag(
    group: str | None, names: list[str], schedule: str, lane_timeout: timedelta, arguments: dict[str, Any]
) -> DAG:
    """Return the ingest DAG of some streams. `group` is None for a stream's own DAG."""

    @dag(**arguments, schedule=schedule, params={"streams": streams_param(names)}, doc_md=__doc__)
    def build() -> None:
        planned = plan(group, names)
        reports = lane.override(execution_timeout=lane_timeout).expand(planned=planned)
        report(group, reports)

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each group, and for each stream with a separate DAG."""
    for group, streams in config.ingest_groups().items():
        settings = config.group(group).ingest
        timeout = lane_timeout_of(config, streams)
        # The pool may have one slot, and then the lanes run one after another.
        arguments = group_arguments(Stage.INGEST, group, settings.pool, settings.lanes * timeout)
        globals()[f"group__{group}"] = ingest_dag(group, streams, settings.schedule, timeout, arguments)
    for name, stream in config.streams.items():
        if stream.ingest.has_own_dag:
            timeout = lane_timeout_of(config, [name])
            arguments = stream_arguments(Stage.INGEST, name, stream.ingest, stream.ingest.lanes * timeout)
            globals()[f"stream__{name}"] = ingest_dag(None, [name], stream.ingest.schedule, timeout, arguments)


build_all(load_valid_streams())
