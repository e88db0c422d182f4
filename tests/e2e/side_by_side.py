"""Tests that are stories: what they do with Airflow takes a minute or two, and they are told side by side."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from devstack import Stack
from devstack.airflow import AirflowClient, DagRun

__all__ = ["RUN_SECONDS", "STORIES", "Story", "run_dag", "side_by_side"]

RUN_SECONDS = 480.0
"""Of a run that shares the machine with those of other stories."""

Story = Callable[[Stack, AirflowClient], None]

STORIES: dict[str, Story] = {}
"""By the name of the test. Each has topics, a stream and DAGs of its own."""


def side_by_side(story: Story) -> Callable[[dict[str, Future[None]]], None]:
    """The test that waits for this story, and fails with what it raised."""
    STORIES[story.__name__] = story

    def test(stories: dict[str, Future[None]]) -> None:
        stories[story.__name__].result()

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


def run_dag(airflow: AirflowClient, dag_id: str, form: dict[str, Any] | None = None) -> DagRun:
    """Have the scheduler run a DAG once, with what a form says; the run when it has ended."""
    airflow.wait_for_dag(dag_id)
    airflow.unpause(dag_id)
    try:
        return airflow.wait_for_run(dag_id, airflow.trigger(dag_id, form), seconds=RUN_SECONDS)
    finally:
        airflow.pause(dag_id)
