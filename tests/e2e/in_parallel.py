"""Scenarios of a minute or two with Airflow, which run in parallel. Each is a test that waits for its scenario."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from devstack import Stack
from devstack.airflow import AirflowClient, DagRun

RUN_SECONDS = 480.0
"""Timeout of a DAG run, which shares the machine with those of other scenarios."""

Scenario = Callable[[Stack, AirflowClient], None]

SCENARIOS: dict[str, Scenario] = {}
"""By the name of the test. Each scenario has its own topics, stream and DAGs."""


def in_parallel(scenario: Scenario) -> Callable[[dict[str, Future[None]]], None]:
    """Return a test that waits for this scenario, and raises what the scenario raised."""
    SCENARIOS[scenario.__name__] = scenario

    def test(scenarios: dict[str, Future[None]]) -> None:
        scenarios[scenario.__name__].result()

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


def run_dag(airflow: AirflowClient, dag_id: str, form: dict[str, Any] | None = None) -> DagRun:
    """Trigger a run of a DAG with the parameters of its form, and return the run when it has ended."""
    airflow.wait_for_dag(dag_id)
    airflow.unpause(dag_id)
    try:
        return airflow.wait_for_run(dag_id, airflow.trigger(dag_id, form), seconds=RUN_SECONDS)
    finally:
        airflow.pause(dag_id)
