"""Parameters of DAG runs: the form's choice of streams, and the checks of a run's parameters.

The file of the ingest DAGs imports this every minute, in each task, so it imports no operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Param


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


def check_params(context: Mapping[str, Any]) -> None:
    """Raise `AirflowFailException` for a parameter that the DAG does not have; for a task's `pre_execute`.

    A run that is triggered without the form can have any parameters: a misspelt one would be ignored.
    """
    from airflow.sdk.exceptions import AirflowFailException

    declared = context["dag"].params
    unknown = sorted(set(context["params"]).difference(declared))
    if unknown:
        raise AirflowFailException(f"unknown parameter: {', '.join(unknown)}; known parameters: {', '.join(declared)}")


def check_sweep_range(context: Mapping[str, Any]) -> None:
    """Check the combination of parameters of a dedup DAG's run; for a task's `pre_execute`.

    The form checks each parameter alone (JSON Schema). In a group, `since`, `until` and `rebuild_index` are for one
    stream. Raises `AirflowFailException`, since a retry would not help.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from waybill.base.errors import ConfigError
    from waybill.tables.dedup.first_sweep import check_range, parse_instant

    check_params(context)
    params = context["params"]
    given = {name: params.get(name) for name in ("since", "until")}
    if "streams" in params and (any(given.values()) or params.get("rebuild_index")) and len(params["streams"]) != 1:
        raise AirflowFailException(
            f"since, until and rebuild_index are for one stream, and streams has {len(params['streams'])}: select one"
        )
    try:
        times = {name: parse_instant(name, text) if text else None for name, text in given.items()}
        check_range(times["since"], times["until"], datetime.now(UTC))
    except ConfigError as error:
        raise AirflowFailException(str(error)) from error
