"""`ingest__<stream>`: archives the new messages of Kafka, every minute.

plan → lanes in parallel → report. A lane archives several topic-partitions. One that fails does not delay the others,
but the report task fails. No task is retried: the next run, a minute later, continues from the committed offsets.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, dag, task

from waybill.config import Config, Stream, load_config


@task
def plan(stream: str) -> list[dict[str, Any]]:
    from waybill.ingest import plan_lanes
    from waybill.orchestration.tasks import begin_task

    return [planned.model_dump(mode="json") for planned in plan_lanes(begin_task(), stream)]


@task(map_index_template="{{ lane_name }}")
def lane(stream: str, planned: dict[str, Any]) -> dict[str, Any]:
    from airflow.sdk import get_current_context

    from waybill.ingest import Lane, run_lane
    from waybill.orchestration.tasks import begin_task

    work = Lane.model_validate(planned)
    get_current_context()["lane_name"] = ", ".join(str(share.tp) for share in work.shares)[:250]
    return run_lane(begin_task(), stream, work).model_dump(mode="json")


@task(trigger_rule="all_done")
def report(stream: str, lanes: list[dict[str, Any]] | None, reports: Any) -> None:
    from waybill.ingest import LaneReport
    from waybill.orchestration.tasks import report_ingest

    report_ingest(stream, None if lanes is None else len(lanes), [LaneReport.model_validate(r) for r in reports or []])


def ingest_dag(name: str, stream: Stream) -> DAG:
    """Return the ingest DAG of one stream."""

    @dag(
        dag_id=f"ingest__{name}",
        schedule="* * * * *",
        catchup=False,
        max_active_runs=1,
        default_args={"owner": "waybill"},
        tags=["waybill", "ingest", name],
        doc_md=__doc__,
    )
    def build() -> None:
        lanes = plan(name)
        limit = stream.ingest.budget + timedelta(minutes=2)  # a lane finishes its upload after the end of the budget
        reports = lane.override(execution_timeout=limit).partial(stream=name).expand(planned=lanes)
        report(name, lanes, reports)

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each stream of the config."""
    for name, stream in config.streams.items():
        globals()[f"ingest__{name}"] = ingest_dag(name, stream)


build_all(load_config())
