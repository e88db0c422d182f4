"""Airflow's own deadline alerts, and the watch's questions to Airflow's API, on a real Airflow with the LocalExecutor.

This Airflow has a config of its own: a run of a partition DAG that lasts longer than 5 seconds misses its deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alert_servers import AlertServers, alert_servers
from in_parallel import run_dag

from devstack import Stack
from devstack.airflow import AirflowClient, RunState
from waybill.config.models import load_config
from waybill.watch.incidents.finding import REACHABLE, TASKS, Finding, Verdict
from waybill.watch.promises.measure import measure
from waybill.watch.promises.services import WatchServices

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

CONFIG = """
version: 1
storage: {bucket: waybill, prefix: deadlines}
zookeeper: {root: deadlines}
alerts:
  airflow_url: https://airflow.example.com
  channels:
    team: {type: email, connection: mail, to: [ann@example.com]}
    chat: {type: slack, connection: slack_hook}
    hook: {type: webhook, connection: hook}
airflow:
  connection: waybill_airflow
  deadlines: {partition: 5s}
streams:
  late:
    topics: [deadlines-late]
    ingest: {schedule: '0 0 29 2 *'}
    parser: {event_time: {field: at, format: epoch_ms}}
    table: deadlines.late
    partition: {schedule: '0 0 29 2 *'}
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AlertServers]:
    with alert_servers(tmp_path_factory.mktemp("alerts")) as servers:
        yield servers


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deadlines") / "streams.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def airflow(stack: Stack, servers: AlertServers, config_file: Path) -> Iterator[AirflowClient]:
    # The SMTP provider has no field for a CA: it trusts what OpenSSL trusts.
    environment = {**servers.environment, "SSL_CERT_FILE": servers.ca_file, "WAYBILL_CONFIG": str(config_file)}
    stack.start_airflow(environment)
    with stack.airflow.client() as client, pytest.MonkeyPatch.context() as patch:
        for name, value in {**stack.environment(), **servers.environment}.items():
            patch.setenv(name, value)
        yield client
    stack.stop_airflow()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.5)
    return condition()


def tasks_of(dag: str, config_file: Path) -> Finding:
    """Return what a watch finds about the tasks of a DAG."""
    from waybill.config.connections import find_connection

    config = load_config(config_file)
    with WatchServices(config, find_connection) as services:
        findings = measure(config, services, int(time.time() * 1000), stores=False).findings
    [finding] = [each for each in findings if each.promise == TASKS and each.subject == dag]
    [airflow] = [each for each in findings if (each.promise, each.subject) == (REACHABLE, "Airflow")]
    assert airflow.verdict is Verdict.KEPT, airflow
    return finding


def test_run_that_misses_its_deadline_is_told_once_by_mail_and_on_slack(
    airflow: AirflowClient, servers: AlertServers, config_file: Path
) -> None:
    airflow.wait_for_dag("partition__late")
    run = run_dag(airflow, "partition__late")  # an application starts and ends: longer than the deadline
    assert wait_for(lambda: bool(servers.mails and servers.posts), 60), "nobody was told"
    [mail] = servers.mails
    assert mail["Subject"] == "[warning] partition__late: the run has not ended 5 s after it was queued"
    assert mail["To"] == "ann@example.com"
    [(path, _, body)] = servers.posts
    assert (path, body["text"]) == ("/services/T0/B0/x", mail["Subject"])
    assert run.run_id.partition("+")[0] in str(body["blocks"])
    time.sleep(5)
    assert (len(servers.mails), len(servers.posts)) == (1, 1)
    # The same run, asked by the watch: late, but it succeeded.
    assert run.state is RunState.SUCCESS
    airflow.unpause("partition__late")  # a paused DAG is a problem of its own
    assert tasks_of("partition__late", config_file).verdict is Verdict.KEPT


def test_the_watch_finds_a_failed_run_and_its_end(airflow: AirflowClient, config_file: Path) -> None:
    airflow.wait_for_dag("backfill")
    failed = run_dag(airflow, "backfill", {"stream": "late", "action": "promote", "backfill": "20200101_0000"})
    assert failed.state is RunState.FAILED
    airflow.unpause("backfill")
    finding = tasks_of("backfill", config_file)
    assert finding.verdict is Verdict.BROKEN
    assert finding.figure == "1 task failed"
    assert "act" in finding.detail
    assert finding.link.startswith("https://airflow.example.com/dags/backfill/runs/manual__")
