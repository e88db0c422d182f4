"""Decisions with one click: held rows, a quarantine and a backfill, from Airflow's login to the rows in the table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from in_parallel import RUN_SECONDS, run_dag
from pages_browser import CHROMIUM, DRIVER, Browser, open_browser
from test_through_airflow import correct_config, create_topic, produce, rows_of, run_backfill, values_in, waybill

from devstack import Stack
from devstack.airflow import USER, Airflow, AirflowClient, DagRun, RunState
from waybill.config.models import load_valid_streams
from waybill.config.names import status_key, table_states_key
from waybill.services.store import Store

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.deep,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs Debian's Chromium: apt-get install chromium chromium-driver"
    ),
]

TOPIC = "e2e-bills"
ACT_DAGS = ("quality_decision", "quarantine_retry", "backfill", "backfill_undo")


def watch() -> None:
    """Watch once, and read the tables again, which the watch does every five minutes."""
    with Store.of(load_valid_streams().storage) as store:
        for key in (status_key(store.prefix), table_states_key(store.prefix)):
            store.remove_if_exists(key)
    command = [sys.executable, "-m", "waybill.interfaces.cli", "watch"]
    subprocess.run(command, capture_output=True, timeout=180, check=False, env=os.environ)


def range_of_today() -> dict[str, str]:
    """Return a time range for Kafka's timestamps of this test's messages."""
    now = datetime.now(UTC)
    since, until = now - timedelta(days=1), now + timedelta(days=1)
    return {"since": since.strftime("%Y-%m-%dT%H:00:00Z"), "until": until.strftime("%Y-%m-%dT%H:00:00Z")}


def archive_and_partition(client: AirflowClient) -> DagRun:
    run = run_dag(client, "ingest__bills")
    assert run.state is RunState.SUCCESS, client.failure_report("ingest__bills", run.run_id)
    return run_dag(client, "partition__bills")


def click(browser: Browser, client: AirflowClient, action: str, dag: str, shown: str) -> None:
    """Watch, wait until the page shows something, click, and wait for the DAG run."""
    watch()
    browser.open("/streams/bills")
    browser.wait(lambda: shown in browser.text, 90)
    browser.act(action, f"a person says {action}")
    assert browser.all("h1")[0].text in ("Ordered", "At work", "Done"), browser.text
    newest = client.runs(dag)[0]
    run = client.wait_for_run(dag, newest.run_id, seconds=RUN_SECONDS)
    assert run.state is RunState.SUCCESS, client.failure_report(dag, run.run_id)
    browser.wait(lambda: browser.all("h1")[0].text == "Done")  # the page asks again by itself
    browser.driver.refresh()
    browser.wait(lambda: browser.all("h1")[0].text == "Done")
    assert client.runs(dag)[0].run_id == newest.run_id, "a reload orders nothing"


def test_person_releases_a_hold_retries_a_quarantine_promotes_a_backfill_and_undoes_it(
    stack: Stack, airflow: Airflow
) -> None:
    with airflow.client() as client, open_browser(airflow.url) as browser:
        for dag in ACT_DAGS:
            client.wait_for_dag(dag)
            client.unpause(dag)
        create_topic(stack, TOPIC, partitions=1)
        produce(stack, TOPIC, range(200), amount="sum")
        run = archive_and_partition(client)
        assert run.state is RunState.SUCCESS, client.failure_report("partition__bills", run.run_id)
        produce(stack, TOPIC, range(200, 500), amount="total")
        assert archive_and_partition(client).state is RunState.FAILED, "the column became null"
        browser.sign_in(USER, airflow.password)

        click(browser, client, "release", "quality_decision", "A run is held")
        assert len(values_in("e2e.bills", "message_id")) == 500, "the held rows are published as they are"

        producer = Producer({"bootstrap.servers": stack.bootstrap_servers})
        for _number in range(5):
            producer.produce(TOPIC, b"no JSON")
        assert producer.flush(30) == 0
        run = archive_and_partition(client)
        assert run.state is RunState.SUCCESS, client.failure_report("partition__bills", run.run_id)
        click(browser, client, "retry", "quarantine_retry", "not_json")

        correct_config("{type: double, field: sum}", "{type: double, field: at}")
        built = run_backfill(client, "bills", "run", **range_of_today(), reason="bills come from another field")
        [identifier] = re.findall(r"requested backfill (\w+)", built["act"])
        client.unpause("backfill")
        times = [float(1_700_000_000_000 + number * 1000) for number in range(500)]
        click(browser, client, "promote", "backfill", "column bill")
        assert values_in("e2e.bills", "bill") == times
        click(browser, client, "undo", "backfill_undo", "promoted")
        assert values_in("e2e.bills", "message_id") == sorted(f"{TOPIC}-{number}" for number in range(500))
        bills = [row["bill"] for row in rows_of("e2e.bills", "bill")]
        assert bills.count(None) == 300, "the rows are as before"
        status = waybill("backfill", "status", "bills", identifier)
        assert [(event["action"], event["by"], event["reason"]) for event in status["events"]] == [
            ("promote", USER, "a person says promote"),
            ("undo", USER, "a person says undo"),
        ]
