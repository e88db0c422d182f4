"""Airflow on the run's stack, with streams of its own, and S3's connection in Airflow's database alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from side_by_side import STORIES, Story

from devstack import Stack
from devstack.airflow import Airflow

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

_SIDE_BY_SIDE = 2
"""Stories at a time, each with one DAG run at a time: two cores have no use for more, and each Spark takes memory."""


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


@pytest.fixture(scope="module")
def airflow(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """The run's Airflow with the DAGs of `CONFIG`. It stops here: it would go on parsing them beside other tests."""
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
        yield stack.airflow
    stack.stop_airflow()


@pytest.fixture(scope="module")
def stories(request: pytest.FixtureRequest, stack: Stack, airflow: Airflow) -> Iterator[dict[str, Future[None]]]:
    """The stories of all tests that were selected, by the test's name: they have begun, a few side by side."""

    def tell(story: Story) -> None:
        with airflow.client() as client:
            story(stack, client)

    names = [item.name for item in request.session.items if item.name in STORIES]
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        yield {name: pool.submit(tell, STORIES[name]) for name in names}
        pool.shutdown(cancel_futures=True)
