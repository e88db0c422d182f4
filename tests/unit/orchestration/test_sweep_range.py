"""The range of a DAG run, before Spark is started for it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from waybill.orchestration.spark_submit import check_sweep_range


def of_run(params: dict[str, Any]) -> dict[str, Any]:
    """The context of a task, as far as it is looked at."""
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
def test_ranges_that_may_be_asked_for(params: dict[str, Any]) -> None:
    check_sweep_range(of_run(params))


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"since": "9000-01-31T00:00:00Z"}, "is in the future"),
        ({"since": "2026-01-31T00:00:00Z", "until": "2026-01-30T23:59:59Z"}, "is after until 2026-01-30T23:59:59Z"),
        ({"until": "2026-02-31T00:00:00Z"}, "until: '2026-02-31T00:00:00Z' is not a time"),
    ],
)
def test_others_fail_the_task_and_it_is_not_tried_again(params: dict[str, Any], why: str) -> None:
    with pytest.raises(AirflowFailException, match=why):
        check_sweep_range(of_run(params))


def test_a_parameter_that_there_is_not_is_no_bound_that_is_passed_over() -> None:
    with pytest.raises(AirflowFailException, match="no such parameter: untill; there are: since, until"):
        check_sweep_range(of_run({"untill": "2026-01-31T00:00:00Z"}))
