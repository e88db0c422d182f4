"""Airflow on the test run's stack, with streams of its own, and S3's connection only in Airflow's database."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from in_parallel import SCENARIOS, Scenario

from devstack import Stack
from devstack.airflow import SCHEDULER, Airflow
from waybill.base.errors import StackError

CONFIG = """
version: 1
storage: {connection: e2e_s3, bucket: waybill, prefix: e2e}
zookeeper: {root: e2e}
restore:
  rehearsal: {schedule: AWAY}
replay:
  webhooks: {allow_http: true, allowed_networks: [127.0.0.0/8]}
groups:
  default:
    ingest: {schedule: AWAY}
  shops:
    partition: {schedule: AWAY}
    dedup: {schedule: AWAY}
streams:
  shop_a: &shop
    topics: [e2e-shop-a]
    upload: {max_age: 0s}
    ingest: {group: shops}
    parser:
      event_time: {field: at, format: epoch_ms}
      message_id: id
    quarantine: {max_rate: 5%, min_messages: 10}
    table: e2e.shop_a
    partition: {group: shops}
    dedup: {group: shops}
  shop_b:
    <<: *shop
    topics: [e2e-shop-b]
    table: e2e.shop_b
  shop_wrong: # not `field: time`, which the test of the clicks corrects everywhere in this file
    <<: *shop
    topics: [e2e-shop-wrong]
    parser:
      event_time: {field: when, format: epoch_ms}
      message_id: id
    table: e2e.shop_wrong
  shop_idle:
    <<: *shop
    topics: [e2e-shop-idle]
    table: e2e.shop_idle
  east: &grouped
    topics: [e2e-east]
    upload: {max_age: 0s}
    parser:
      event_time: {field: at, format: epoch_ms}
    table: e2e.east
    partition: {}
    maintenance: {}
  west:
    <<: *grouped
    topics: [e2e-west]
    table: e2e.west
  wrong: # has no parser, so Waybill leaves it out
    topics: [e2e-wrong]
    table: e2e.wrong
  orders:
    topics: {regex: "e2e-orders-.*"}
    upload: {max_bytes: 1MiB, max_age: 0s}
    ingest: {group: own, lanes: 2, budget: 20s}
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
    ingest: {group: own, lanes: 1, budget: 20s}
    parser:
      event_time: {field: at, format: epoch_ms}
    table: e2e.payments
    partition: {}
    maintenance: {}
  clicks:
    topics: [e2e-clicks]
    upload: {max_age: 0s}
    ingest: {group: own, lanes: 1, budget: 20s}
    parser:
      event_time: {field: time, format: epoch_ms}
    quarantine: {max_rate: 5%, min_messages: 10}
    table: e2e.clicks
    partition: {}
    maintenance: {}
  fares: &fares
    topics: [e2e-fares]
    upload: {max_age: 0s}
    ingest: {group: own, lanes: 1, budget: 20s}
    parser:
      event_time: {field: at, format: epoch_ms}
      message_id: id
    columns:
      fare: {type: double, field: amount}
    quality:
      checks:
        column_became_null: {severity: critical, min_rows: 100}
    table: e2e.fares
    partition: {}
    maintenance: {}
  bills:
    <<: *fares
    topics: [e2e-bills]
    columns:
      bill: {type: double, field: sum}
    table: e2e.bills
  trips:
    topics: [e2e-trips]
    upload: {max_age: 0s}
    ingest: {group: own, lanes: 1, budget: 20s}
    parser:
      event_time: {field: time.scheduled, format: iso8601}
      message_id: id
    columns:
      distance_km: {type: double, field: route.distance_km}
    table: e2e.trips
    partition_by: day
    partition: {}
    maintenance: {}
  tours:
    topics: [e2e-tours]
    upload: {max_age: 0s}
    ingest: {group: own, lanes: 1, budget: 20s}
    parser: &tours_parser
      event_time: {field: at, format: epoch_ms}
      message_id: id
    table: e2e.tours
    partition: {}
    maintenance: {}
  tours_next:
    topics: [e2e-tours]
    generation: 2
    format: {name: text, compression: none}
    upload: {max_age: 0s}
    ingest: {group: own, lanes: 1, budget: 20s}
    parser: *tours_parser
    columns:
      number: {type: long, field: at}
    table: e2e.tours
    partition: {}
    maintenance: {}
  parcels:
    topics: [e2e-parcels]
    upload: {max_age: 0s}
    ingest: {group: own, lanes: 1, budget: 20s}
    parser:
      event_time: {field: at, format: epoch_ms}
    table: e2e.parcels
    partition: {}
    maintenance: {}
  letters:
    topics: [e2e-letters]
    upload: {max_age: 0s}
    ingest: {group: own, lanes: 1, budget: 20s}
    parser:
      event_time: {field: at, format: epoch_ms}
    table: e2e.letters
    partition: {}
    maintenance: {}
  taps:
    source: kinesis
    topics: [e2e-taps]
    kinesis: {connection: e2e_kinesis, slots: 3}
    upload: {max_age: 0s}
    ingest: {group: own, lanes: 2, budget: 20s}
    parser:
      event_time: {field: at, format: epoch_ms}
      message_id: id
    table: e2e.taps
    partition: {}
    dedup: {}
    maintenance: {}
  visits:
    topics: [e2e-visits]
    upload: {max_age: 0s}
    ingest: {group: own, lanes: 1, budget: 20s}
    parser:
      event_time: {field: at, format: epoch_ms}
      message_id: id
    table: e2e.visits
    partition: {}
    dedup: {}
    maintenance: {}
"""

_LIVENESS_SECONDS = 150.0
"""A busy machine delays heartbeats, but not for so long."""
_IN_PARALLEL = 2
"""Scenarios at a time, each with one DAG run: more would not be faster on two cores, and Spark takes memory."""


@contextmanager
def liveness_probe(stack: Stack) -> Iterator[None]:
    """Restart a scheduler that is alive without a heartbeat, as the probe of Airflow's Helm chart does.

    In one run of CI the scheduler queued all runs and started none. The log that this prints says where it hung.
    """
    ended = threading.Event()

    def watch() -> None:
        healthy = time.monotonic()
        while not ended.wait(10.0):
            reason = stack.airflow.why_not_ready() or ""
            if "scheduler" not in reason:
                healthy = time.monotonic()
            elif time.monotonic() - healthy > _LIVENESS_SECONDS:
                print(f"{reason}: the scheduler is started again.\n{stack.log_excerpt(SCHEDULER)}")
                stack.restart_scheduler()
                healthy = time.monotonic()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def without_schedules(config: str) -> str:
    """Return the config with schedules that are half a year away.

    If a DAG is unpaused shortly after a time of its schedule (within a tenth of the interval), Airflow starts a run for
    that time at once. A test's own run would then find nothing to do.
    """
    away = datetime.now(UTC) + timedelta(days=183)
    cron = f"'0 0 {min(away.day, 28)} {away.month} *'"
    once = f"schedule: {cron}"
    config = config.replace("AWAY", cron)
    for section in ("partition", "dedup", "maintenance"):
        own = rf"^    {section}: {{(?!group:|schedule:)"
        config = re.sub(own, f"    {section}: {{{once}, ", config, flags=re.MULTILINE)
    return config


@pytest.fixture(scope="package")
def airflow(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Airflow with the DAGs of `CONFIG`. It stops after the folder, else it would parse DAGs during other tests."""
    config = tmp_path_factory.mktemp("e2e") / "streams.yaml"
    config.write_text(without_schedules(CONFIG))
    stack.start_airflow({"WAYBILL_CONFIG": str(config)})
    s3 = stack.environment()["AIRFLOW_CONN_AWS_DEFAULT"]
    kinesis = stack.start_kinesis().connection()
    # For the `waybill` command, which reads only the environment. Airflow was started without this variable.
    with (
        pytest.MonkeyPatch.context() as patch,
        stack.airflow.client() as client,
        liveness_probe(stack),
    ):
        patch.setenv("WAYBILL_CONFIG", str(config))
        patch.setenv("AIRFLOW_CONN_E2E_S3", s3)
        patch.setenv("AIRFLOW_CONN_E2E_KINESIS", json.dumps(kinesis))
        client.create_connection("e2e_s3", json.loads(s3))
        client.create_connection("e2e_kinesis", kinesis)
        yield stack.airflow
    stack.stop_airflow()


@pytest.fixture(scope="module")
def scenarios(request: pytest.FixtureRequest, stack: Stack, airflow: Airflow) -> Iterator[dict[str, Future[None]]]:
    """Start the scenarios of all selected tests, a few in parallel, and return them by the test's name."""

    def play(scenario: Scenario) -> None:
        with airflow.client() as client:
            try:
                scenario(stack, client)
            except StackError as error:
                error.add_note(f"{airflow.why_not_ready() or 'Airflow is healthy'}\n{stack.log_excerpt(SCHEDULER)}")
                raise

    names = [item.name for item in request.session.items if item.name in SCENARIOS]
    with ThreadPoolExecutor(_IN_PARALLEL) as pool:
        yield {name: pool.submit(play, SCENARIOS[name]) for name in names}
        pool.shutdown(cancel_futures=True)
