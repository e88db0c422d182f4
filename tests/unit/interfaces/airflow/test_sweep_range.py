"""The parameters since and until of a DAG run, which are checked before Spark starts."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from waybill.interfaces.airflow.run_params import check_sweep_range


def task_context(params: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a task's context that the check reads."""
    dag = DAG("dedup__flights", params={"since": None, "until": None, "rebuild_index": False})
    return {"dag": dag, "params": {**dag.params.dump(), **params}}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"since": None, "until": None},
        {"since": "", "until": "2036-01-31T00:00:00Z"},
        {"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T01:00:00+01:00"},
    ],
)
def test_valid_range_passes(params: dict[str, Any]) -> None:
    check_sweep_range(task_context(params))


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"since": "9000-01-31T00:00:00Z"}, "is in the future"),
        ({"since": "2026-01-31T00:00:00Z", "until": "2026-01-30T23:59:59Z"}, "is after until 2026-01-30T23:59:59Z"),
        ({"until": "2026-02-31T00:00:00Z"}, "until: '2026-02-31T00:00:00Z' is not a time"),
    ],
)
def test_invalid_range_fails_the_task_without_a_retry(params: dict[str, Any], why: str) -> None:
    with pytest.raises(AirflowFailException, match=why):
        check_sweep_range(task_context(params))


def group_context(streams: list[str], **params: Any) -> dict[str, Any]:
    """Return the context of a run of a group's DAG."""
    dag = DAG("dedup", params={"streams": [], "since": None, "until": None, "rebuild_index": False})
    return {"dag": dag, "params": {**dag.params.dump(), "streams": streams, **params}}


@pytest.mark.parametrize("streams", [[], ["a", "b"]])
@pytest.mark.parametrize("params", [{"since": "2026-01-01T00:00:00Z"}, {"rebuild_index": True}])
def test_a_range_in_a_group_needs_one_stream(streams: list[str], params: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match=f"streams has {len(streams)}: select one"):
        check_sweep_range(group_context(streams, **params))
    check_sweep_range(group_context(["a"], **params))
    check_sweep_range(group_context(streams))


def test_unknown_parameter_fails_the_task() -> None:
    with pytest.raises(AirflowFailException, match="unknown parameter: untill; known parameters: since, until"):
        check_sweep_range(task_context({"untill": "2026-01-31T00:00:00Z"}))
