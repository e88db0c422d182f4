"""`ingest`: archives the new messages of Kafka, every minute, for all streams of a group.

plan → lanes in parallel → report. A lane archives topic-partitions of several streams. One that fails does not delay
the others. When nothing is new, the run is the task `plan` alone.

The report fails when a stream has a new problem, and names it; while the problem lasts, later runs log it and succeed.
No task is retried: the next run, a minute later, continues from the committed offsets.

A stream with `ingest.group: own` has a DAG of its own, `ingest__<stream>`. Its report fails as long as there is a
problem.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, dag, task

from waybill.config import Config, load_valid_streams
from waybill.config.groups import DEFAULT_GROUP


@task(show_return_value_in_logs=False)
def plan(group: str | None, streams: list[str]) -> list[dict[str, Any]]:
    from airflow.sdk import get_current_context
    from airflow.sdk.exceptions import DownstreamTasksSkipped

    from waybill.orchestration.tasks import plan_ingest

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

    from waybill.orchestration.tasks import run_planned_lane

    shares = [f"{share['stream']}: {share['topic']}/{share['partition']}" for share in planned["shares"]]
    get_current_context()["lane_name"] = ", ".join(shares)[:250]
    return run_planned_lane(planned)


@task(trigger_rule="all_done")
def report(group: str | None, lanes: Any) -> None:
    from airflow.sdk import get_current_context

    from waybill.orchestration.tasks import report_ingest

    # None after a failed plan. As an argument, a value that was never pushed would fail the task before its first line.
    plan = get_current_context()["ti"].xcom_pull(task_ids="plan", key="plan")
    report_ingest(group, plan, list(lanes or []))


def ingest_dag(
    config: Config, dag_id: str, group: str | None, streams: Collection[str], schedule: str, pool: str | None
) -> DAG:
    """Return the ingest DAG of some streams. `group` is None for a stream's own DAG."""
    names = list(streams)
    budgets = [config.streams[name].ingest.budget for name in names if name in config.streams]
    lane_timeout = max(budgets, default=timedelta()) + timedelta(minutes=2)  # a lane finishes its upload after the end

    @dag(
        dag_id=dag_id,
        schedule=schedule,
        catchup=False,
        max_active_runs=1,
        params={
            "streams": Param(
                [],
                type="array",
                items={"type": "string", "enum": names},
                title="Streams",
                description="Archive only these streams, one per line. Empty: all of the DAG.",
            )
        },
        default_args={"owner": "waybill", **({"pool": pool} if pool else {})},
        tags=["waybill", "ingest", *(names if group is None else [f"group {group}"])],
        doc_md=__doc__,
    )
    def build() -> None:
        planned = plan(group, names)
        reports = lane.override(execution_timeout=lane_timeout).expand(planned=planned)
        report(group, reports)

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each group, and for each stream that has a DAG of its own."""
    for group, streams in config.ingest_groups().items():
        dag_id = "ingest" if group == DEFAULT_GROUP else f"ingest_group__{group}"
        settings = config.group(group).ingest
        globals()[dag_id] = ingest_dag(config, dag_id, group, streams, settings.schedule, settings.pool)
    for name, stream in config.streams.items():
        if stream.ingest.has_own_dag:
            ingest = stream.ingest
            dag_id = f"ingest__{name}"
            globals()[dag_id] = ingest_dag(config, dag_id, None, [name], ingest.schedule, ingest.pool)


build_all(load_valid_streams())
