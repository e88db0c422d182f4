"""Airflow on the run's stack, with streams of its own, and S3's connection in Airflow's database alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from devstack import Stack
from devstack.airflow import AirflowClient, DagRun

CONFIG = """
version: 1
storage: {connection: e2e_s3, bucket: waybill, prefix: e2e}
zookeeper: {root: e2e}
streams:
  orders:
    topics: {regex: "e2e-orders-.*"}
    upload: {max_bytes: 1MiB, max_age: 0s}
    ingest: {lanes: 2, budget: 20s}
    parser:
      event_time: {field: at, format: epoch_ms}
      message_id: id
    table: e2e.orders
    partition_by: hour
    partition: {}
    maintenance: {min_input_files: 2}
  payments:
    topics: [e2e-payments-sound, e2e-payments-recreated]
    upload: {max_age: 0s}
    ingest: {lanes: 1, budget: 20s}
    parser:
      event_time: {field: at, format: epoch_ms}
    table: e2e.payments
    partition: {}
    maintenance: {}
  clicks:
    topics: [e2e-clicks]
    upload: {max_age: 0s}
    ingest: {lanes: 1, budget: 20s}
    parser:
      event_time: {field: time, format: epoch_ms}
    quarantine: {max_rate: 5%, min_messages: 10}
    table: e2e.clicks
    partition: {}
    maintenance: {}
  visits:
    topics: [e2e-visits]
    upload: {max_age: 0s}
    ingest: {lanes: 1, budget: 20s}
    parser:
      event_time: {field: at, format: epoch_ms}
      message_id: id
    table: e2e.visits
    partition: {}
    dedup: {}
    maintenance: {}
"""

_RUN_SECONDS = 240.0


def without_schedules(config: str) -> str:
    """The config with schedules that are half a year away.

    A DAG that is unpaused soon after its schedule's last time runs for that time at once ("soon": a tenth of what lies
    between two times), and a test's own run would then find its work done.
    """
    away = datetime.now(UTC) + timedelta(days=183)
    once = f"schedule: '0 0 {min(away.day, 28)} {away.month} *'"
    for section in ("partition", "dedup", "maintenance"):
        config = re.sub(rf"^    {section}: {{", f"    {section}: {{{once}, ", config, flags=re.MULTILINE)
    return config


@pytest.fixture(scope="session")
def airflow(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowClient]:
    """A client of the run's Airflow, which has the DAGs of `CONFIG`."""
    config = tmp_path_factory.mktemp("e2e") / "streams.yaml"
    config.write_text(without_schedules(CONFIG))
    stack.start_airflow({"WAYBILL_CONFIG": str(config)})
    s3 = stack.environment()["AIRFLOW_CONN_AWS_DEFAULT"]
    # The `waybill` command that the tests call knows the environment only; Airflow was started without this variable.
    with (
        pytest.MonkeyPatch.context() as patch,
        stack.airflow.client() as client,
    ):
        patch.setenv("WAYBILL_CONFIG", str(config))
        patch.setenv("AIRFLOW_CONN_E2E_S3", s3)
        client.create_connection("e2e_s3", json.loads(s3))
        yield client


@pytest.fixture
def run_dag(airflow: AirflowClient) -> Callable[..., DagRun]:
    """Has the scheduler run a DAG once, with what a form says, and returns the run when it has ended."""

    def run(dag_id: str, form: dict[str, Any] | None = None) -> DagRun:
        airflow.wait_for_dag(dag_id)
        airflow.unpause(dag_id)
        try:
            return airflow.wait_for_run(dag_id, airflow.trigger(dag_id, form), seconds=_RUN_SECONDS)
        finally:
            airflow.pause(dag_id)

    return run
