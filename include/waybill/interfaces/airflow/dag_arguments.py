"""The arguments that the DAG files pass to Airflow's `dag`: ids, pools, retries, timeouts, tags.

Every task and every run has a timeout, so no task hangs for ever. The file of the ingest DAGs imports this every
minute, in each task, so it imports no operator.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from waybill.config.models.groups import GroupedSection, group_dag_id
from waybill.config.names import Stage

_DEFAULT_POOL = "default_pool"

_SHORT_TASK = timedelta(minutes=30)
"""The execution timeout of short tasks, which plan, read results, report, or store a decision."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How many times a task of a DAG is retried, and after which pause."""

    retries: int = 0
    retry_delay: timedelta = timedelta()


_NO_RETRIES = Retries()


def group_arguments(
    stage: Stage, group: str, pool: str, longest: timedelta, retries: Retries = _NO_RETRIES
) -> dict[str, Any]:
    """Return arguments of the DAG of a group. `longest`: the execution timeout of its long task."""
    arguments = dag_arguments(
        group_dag_id(stage, group), str(stage), "group", longest=longest, retries=retries, pool=pool
    )
    return {**arguments, "max_active_runs": 1}


def stream_arguments(
    stage: Stage, stream: str, section: GroupedSection, longest: timedelta, retries: Retries = _NO_RETRIES
) -> dict[str, Any]:
    """Return arguments of a stream's own DAG. `section`: the stream's config section for the stage."""
    pool = section.pool or _DEFAULT_POOL
    dag_id = section.dag_id(stage, stream)
    arguments = dag_arguments(dag_id, str(stage), stream, longest=longest, retries=retries, pool=pool)
    return {**arguments, "max_active_runs": 1}


def dag_arguments(
    dag_id: str,
    *tags: str,
    longest: timedelta = _SHORT_TASK,
    retries: Retries = _NO_RETRIES,
    pool: str = _DEFAULT_POOL,
) -> dict[str, Any]:
    """Return arguments of a DAG. Its run ends when each task may have used all its retries up to their timeouts."""
    return {
        "dag_id": dag_id,
        "catchup": False,
        "default_args": {
            "owner": "waybill",
            "pool": pool,
            "execution_timeout": _SHORT_TASK,
            **dataclasses.asdict(retries),
        },
        "dagrun_timeout": (retries.retries + 1) * (longest + _SHORT_TASK + retries.retry_delay),
        "tags": ["waybill", *tags],
    }
