"""What the DAG files pass to Airflow's `dag`: ids, pools, tags, and the form's choice of streams.

The file of the ingest DAGs imports this every minute, in each task, so it imports no operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Param

from waybill.config.groups import GroupedSection, group_dag_id
from waybill.names import Stage

__all__ = ["group_arguments", "stream_arguments", "streams_param"]

_DEFAULT_POOL = "default_pool"


def group_arguments(stage: Stage, group: str, pool: str, **of_tasks: Any) -> dict[str, Any]:
    """Return arguments of the DAG of a group. `of_tasks`: more defaults of its tasks, such as `retries`."""
    return _arguments(group_dag_id(stage, group), stage, pool, "group", of_tasks)


def stream_arguments(stage: Stage, stream: str, section: GroupedSection, **of_tasks: Any) -> dict[str, Any]:
    """Return arguments of the own DAG of a stream, whose section for the stage is `section`."""
    return _arguments(section.dag_id(stage, stream), stage, section.pool or _DEFAULT_POOL, stream, of_tasks)


def _arguments(dag_id: str, stage: Stage, pool: str, tag: str, of_tasks: dict[str, Any]) -> dict[str, Any]:
    return {
        "dag_id": dag_id,
        "catchup": False,
        "max_active_runs": 1,
        "default_args": {"owner": "waybill", "pool": pool, **of_tasks},
        "tags": ["waybill", str(stage), tag],
    }


def streams_param(streams: Sequence[str]) -> Param:
    """Return the parameter that selects streams of a DAG. Airflow refuses other names when a run is triggered."""
    return Param(
        [],
        type="array",
        items={"type": "string", "enum": list(streams)},
        uniqueItems=True,
        examples=list(streams),
        title="Streams",
        description="Only these streams. Empty: all streams of the DAG.",
    )
