"""The whole system as a user sees it: events in Kafka, DAG runs in Airflow, rows in the table."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from in_parallel import RUN_SECONDS, in_parallel, run_dag
from kinesis_scenes import KinesisStream
from webhook_servers import Receiver, receiving

from devstack import Stack
from devstack.airflow import AirflowClient, DagRun, RunState
from devstack.flights import flight_events
from waybill.base.errors import StackError
from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.config.models import load_valid_streams
from waybill.config.names import BackupName
from waybill.records.batches.encode import Record, encode_batch
from waybill.services.store import Store
from waybill.tables.iceberg import open_catalog

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(1800)]


KM_PER_MILE = 1.609344

_config_lock = threading.Lock()


def create_topic(stack: Stack, topic: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, 3)], operation_timeout=30)[topic].result(timeout=60)


def produce(stack: Stack, topic: str, ids: range, amount: str = "amount") -> None:
    producer = Producer({"bootstrap.servers": stack.bootstrap_servers, "compression.type": "zstd", "linger.ms": 20})
    for i in ids:
        event = {"id": f"{topic}-{i}", "at": 1_700_000_000_000 + i * 1000, amount: i}
        producer.produce(topic, key=str(i), value=json.dumps(event), headers=[("test", b"e2e")])
    assert producer.flush(60) == 0


def waybill(*arguments: str, code: int = 0) -> Any:
    command = [sys.executable, "-m", "waybill.interfaces.cli", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def correct_config(wrong: str, right: str) -> None:
    """Replace a text in the config, atomically: tasks of other streams read it, too."""
    with _config_lock:
        config = Path(os.environ["WAYBILL_CONFIG"])
        corrected = config.with_suffix(".corrected")
        corrected.write_text(config.read_text().replace(wrong, right))
        corrected.replace(config)


def run_backfill(airflow: AirflowClient, stream: str, action: str, **form: Any) -> dict[str, str]:
    """Run the DAG `backfill` with this form, and return the logs of its tasks."""
    run = run_dag(airflow, "backfill", {"action": action, "stream": stream, **form})
    assert run.state is RunState.SUCCESS, airflow.failure_report("backfill", run.run_id)
    done = [task for task in airflow.task_instances("backfill", run.run_id) if task.state == "success"]
    return {task.task_id: airflow.log("backfill", run.run_id, task) for task in done}


def undo_backfill(airflow: AirflowClient, stream: str, backfill: str, reason: str) -> None:
    """Run the DAG `backfill_undo`."""
    run = run_dag(airflow, "backfill_undo", {"stream": stream, "backfill": backfill, "reason": reason})
    assert run.state is RunState.SUCCESS, airflow.failure_report("backfill_undo", run.run_id)


@in_parallel
def test_dags_bring_each_message_to_the_table_once_and_succeed_with_nothing_to_do(
    stack: Stack, airflow: AirflowClient
) -> None:
    create_topic(stack, "e2e-orders-eu")
    produce(stack, "e2e-orders-eu", range(2_000))
    for dag_id in ("ingest__orders", "partition__orders"):
        run = run_dag(airflow, dag_id)
        assert run.state is RunState.SUCCESS, airflow.failure_report(dag_id, run.run_id)
    [report] = waybill("verify", "orders")
    assert (report["figures"]["rows"], report["figures"]["lost"], report["figures"]["repeated"]) == (2_000, 0, 0)

    # A topic that matches the pattern is created after the DAGs, and the first topic gets more messages.
    create_topic(stack, "e2e-orders-us", partitions=1)
    produce(stack, "e2e-orders-us", range(500))
    produce(stack, "e2e-orders-eu", range(2_000, 2_100))
    for dag_id in ("ingest__orders", "partition__orders"):
        run = run_dag(airflow, dag_id)
        assert run.state is RunState.SUCCESS, airflow.failure_report(dag_id, run.run_id)
    [report] = waybill("verify", "orders")
    assert (report["figures"]["rows"], report["figures"]["lost"], report["figures"]["repeated"]) == (2_600, 0, 0)

    run = run_dag(airflow, "ingest__orders")
    assert run.state is RunState.SUCCESS, "there is nothing to do: " + airflow.failure_report(run.dag_id, run.run_id)

    run = run_dag(airflow, "maintenance__orders")
    assert run.state is RunState.SUCCESS, airflow.failure_report("maintenance__orders", run.run_id)
    [maintain] = airflow.task_instances("maintenance__orders", run.run_id)
    log = airflow.log("maintenance__orders", run.run_id, maintain)
    assert re.search(r"compact: files before \d+, files after \d+", log), log
    [report] = waybill("verify", "orders")
    assert (report["figures"]["rows"], report["figures"]["lost"], report["figures"]["repeated"]) == (2_600, 0, 0)


@in_parallel
def test_group_archives_its_streams_in_one_run_and_names_the_one_with_an_error(
    stack: Stack, airflow: AirflowClient
) -> None:
    def states(run: DagRun) -> dict[str, str | None]:
        return {task.task_id: task.state for task in airflow.task_instances("ingest", run.run_id)}

    def lags() -> dict[str, int]:
        rows = waybill("offsets")
        return {name: sum(r["lag"] for r in rows if r["stream"] == name) for name in ("east", "west")}

    for topic in ("e2e-east", "e2e-west"):
        create_topic(stack, topic)
        produce(stack, topic, range(100))
    run = run_dag(airflow, "ingest")
    assert run.state is RunState.FAILED, "the problem of a stream is new"
    assert states(run) == {"plan": "success", "lane": "success", "report": "failed"}
    [report] = [task for task in airflow.task_instances("ingest", run.run_id) if task.task_id == "report"]
    log = airflow.log("ingest", run.run_id, report)
    assert "east: 100 messages" in log
    assert "west: 100 messages" in log
    assert "wrong: ConfigError" in log
    [error] = [trace for file, trace in airflow.import_errors().items() if "config_problems" in file]
    assert "streams.wrong.parser" in error

    produce(stack, "e2e-east", range(100, 150))
    produce(stack, "e2e-west", range(100, 150))
    run = run_dag(airflow, "ingest", {"streams": ["east"]})
    assert run.state is RunState.SUCCESS, airflow.failure_report("ingest", run.run_id)
    assert lags() == {"east": 0, "west": 50}

    waybill("pause", "west", "--reason", "a test", "--stage", "ingest")
    run = run_dag(airflow, "ingest")
    assert run.state is RunState.SUCCESS, airflow.failure_report("ingest", run.run_id)
    assert states(run) == {"plan": "success", "lane": "skipped", "report": "skipped"}, "there was nothing to do"
    waybill("resume", "west", "--reason", "a test")
    run = run_dag(airflow, "ingest")
    assert run.state is RunState.SUCCESS, "the problem was reported before"

    run = run_dag(airflow, "watch")
    assert run.state is RunState.SUCCESS, airflow.failure_report("watch", run.run_id)
    assert {name for name in ("east", "west") for each in waybill("incidents", "ls") if each["stream"] == name} == set()
    assert lags() == {"east": 0, "west": 0}
    with pytest.raises(StackError, match="streams"):
        airflow.trigger("ingest", {"streams": ["noeth"]})


@in_parallel
def test_stopped_topic_fails_the_report_and_no_other_topic(stack: Stack, airflow: AirflowClient) -> None:
    topics = ("e2e-payments-sound", "e2e-payments-recreated")
    for topic in topics:
        create_topic(stack, topic, partitions=1)
        produce(stack, topic, range(100))
    run = run_dag(airflow, "ingest__payments")
    assert run.state is RunState.SUCCESS, airflow.failure_report("ingest__payments", run.run_id)

    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    admin.delete_topics([topics[1]], operation_timeout=30)[topics[1]].result(timeout=60)
    create_topic(stack, topics[1], partitions=1)
    for topic in topics:
        produce(stack, topic, range(100, 150))
    run = run_dag(airflow, "ingest__payments")

    assert run.state is RunState.FAILED
    tasks = {task.task_id: task for task in airflow.task_instances("ingest__payments", run.run_id)}
    assert {name: task.state for name, task in tasks.items()} == {
        "plan": "success",
        "lane": "success",
        "report": "failed",
    }
    log = airflow.log("ingest__payments", run.run_id, tasks["report"])
    assert "TopicRecreated" in log
    assert "Raise the stream's generation" in log
    lags = {row["topic"]: row["lag"] for row in waybill("offsets", "--stream", "payments") if row["topic"] == topics[0]}
    assert lags == {"e2e-payments-sound": 0}


@in_parallel
def test_too_many_messages_in_quarantine_fail_one_task_and_a_retry_moves_them(
    stack: Stack, airflow: AirflowClient
) -> None:
    create_topic(stack, "e2e-clicks", partitions=1)
    produce(stack, "e2e-clicks", range(100))
    run = run_dag(airflow, "ingest__clicks")
    assert run.state is RunState.SUCCESS, airflow.failure_report("ingest__clicks", run.run_id)

    run = run_dag(airflow, "partition__clicks")
    assert run.state is RunState.FAILED
    tasks = {task.task_id: task for task in airflow.task_instances("partition__clicks", run.run_id)}
    assert {name: task.state for name, task in tasks.items()} == {"partition": "success", "check_alerts": "failed"}
    log = airflow.log("partition__clicks", run.run_id, tasks["check_alerts"])
    assert "clicks: 100 of 100 messages (100.0%) went to quarantine, more than 5%" in log
    assert "event_time_missing: 100, such as e2e-clicks/0@0" in log
    run = run_dag(airflow, "partition__clicks")
    assert run.state is RunState.SUCCESS, "there are no new messages, and the alert was raised before"

    correct_config("field: time,", "field: at,")
    selection = {"reasons": ["event_time_missing"], "topic_partitions": ["e2e-clicks/0"], "last_offset": 89}
    run = run_dag(airflow, "quarantine_retry", {"stream": "clicks", **selection})
    assert run.state is RunState.SUCCESS, airflow.failure_report("quarantine_retry", run.run_id)
    [task] = airflow.task_instances("quarantine_retry", run.run_id)
    log = airflow.log("quarantine_retry", run.run_id, task)
    assert "clicks: moved 90 messages to the table, 0 stay in quarantine" in log
    [report] = waybill("verify", "clicks")
    assert (report["sound"], report["figures"]["rows"], report["figures"]["quarantine"]) == (True, 90, 10)


@pytest.mark.deep
@in_parallel
def test_a_renamed_field_is_held_rejected_corrected_and_published(stack: Stack, airflow: AirflowClient) -> None:
    create_topic(stack, "e2e-fares", partitions=1)

    def archive_and_partition() -> DagRun:
        run = run_dag(airflow, "ingest__fares")
        assert run.state is RunState.SUCCESS, airflow.failure_report("ingest__fares", run.run_id)
        return run_dag(airflow, "partition__fares")

    produce(stack, "e2e-fares", range(200))
    run = archive_and_partition()
    assert run.state is RunState.SUCCESS, airflow.failure_report("partition__fares", run.run_id)

    produce(stack, "e2e-fares", range(200, 500), amount="total")
    run = archive_and_partition()
    assert run.state is RunState.FAILED
    tasks = {task.task_id: task for task in airflow.task_instances("partition__fares", run.run_id)}
    assert tasks["partition"].state == "failed"
    log = airflow.log("partition__fares", run.run_id, tasks["partition"])
    assert "300 rows and 0 quarantined messages are held, not published: column_became_null(" in log
    assert "waybill quality reject fares" in log
    assert values_in("e2e.fares", "fare") == [float(amount) for amount in range(200)]

    correct_config("{type: double, field: amount}", "{type: double, field: total}")
    form = {"stream": "fares", "decision": "reject", "reason": "the field has a new name"}
    run = run_dag(airflow, "quality_decision", form)
    assert run.state is RunState.SUCCESS, airflow.failure_report("quality_decision", run.run_id)
    run = run_dag(airflow, "partition__fares")
    assert run.state is RunState.SUCCESS, airflow.failure_report("partition__fares", run.run_id)
    assert values_in("e2e.fares", "fare") == [float(amount) for amount in range(500)]
    [report] = waybill("verify", "fares")
    assert (report["sound"], report["figures"]["rows"]) == (True, 500)


@pytest.mark.deep  # sixteen DAG runs
@in_parallel
def test_days_with_a_wrong_unit_are_backfilled_beside_live_runs_promoted_undone_and_promoted_again(
    stack: Stack, airflow: AirflowClient
) -> None:
    flights = sorted(islice(flight_events(), 6_000), key=lambda flight: flight.timestamp_ms)
    days = [(day, list(found)) for day, found in groupby(flights, key=lambda flight: day_of(flight.timestamp_ms))]
    create_topic(stack, "e2e-trips")
    counts: Counter[tuple[date, str]] = Counter()

    def archive_and_partition(number: int, unit: str) -> None:
        day, events = days[number]
        producer = Producer({"bootstrap.servers": stack.bootstrap_servers, "linger.ms": 20})
        for event in events:
            flight = json.loads(event.value or b"")
            flight["route"]["distance_km"] = flight["route"]["distance_miles"] * KM_PER_MILE
            producer.produce("e2e-trips", json.dumps(flight), event.key, timestamp=event.timestamp_ms)
        assert producer.flush(60) == 0
        for dag_id in ("ingest__trips", "partition__trips"):
            run = run_dag(airflow, dag_id)
            assert run.state is RunState.SUCCESS, airflow.failure_report(dag_id, run.run_id)
        counts[day, unit] = len(events)

    backfill = partial(run_backfill, airflow, "trips")

    def units() -> Counter[tuple[date, str]]:
        """Count the rows by day and by the unit that their column has."""
        found: Counter[tuple[date, str]] = Counter()
        for row in rows_of("e2e.trips", "event_time", "value", "distance_km"):
            miles = json.loads(row["value"])["route"]["distance_miles"]
            unit = {miles: "miles", miles * KM_PER_MILE: "km"}[row["distance_km"]]
            found[row["event_time"].date(), unit] += 1
        return found

    archive_and_partition(0, "km")
    correct_config("field: route.distance_km", "field: route.distance_miles")
    for number in (1, 2):
        archive_and_partition(number, "miles")
    correct_config("field: route.distance_miles", "field: route.distance_km")
    archive_and_partition(3, "km")
    assert units() == counts

    wrong_days = {"since": f"{days[1][0]}T00:00:00Z", "until": f"{days[3][0]}T00:00:00Z"}
    dry = backfill("plan", **wrong_days)
    assert dry.keys() == {"act"}
    assert "trips: 4 objects" in dry["act"]
    built = backfill("run", **wrong_days, reason="the distance was in miles")
    [identifier] = re.findall(r"requested backfill (\w+)", built["act"])
    changed = len(days[1][1]) + len(days[2][1])
    assert f"column distance_km: {changed:,}" in built["report"], built["report"]
    archive_and_partition(4, "km")  # published while the backfill waits for a decision
    assert units() == counts, "consumers see nothing of a backfill before its promotion"
    diff = waybill("backfill", "diff", "trips", identifier)
    assert diff["messages"] == {"changed": changed}, diff

    corrected = Counter({(day, "km"): count for (day, _), count in counts.items()})
    backfill("promote", backfill=identifier, reason="the diff is as expected")
    assert units() == corrected
    undo_backfill(airflow, "trips", identifier, "a report still expects miles")
    assert units() == counts
    backfill("promote", backfill=identifier, reason="the report is changed")
    assert units() == corrected
    [report] = waybill("verify", "trips")
    assert (report["sound"], report["figures"]["rows"]) == (True, sum(counts.values()))
    status = waybill("backfill", "status", "trips", identifier)
    assert [(event["action"], event["by"]) for event in status["events"]] == [
        ("promote", "admin"), ("undo", "admin"), ("promote", "admin"),
    ]  # fmt: skip


@pytest.mark.deep
@in_parallel
def test_a_new_generation_is_built_from_kafka_promoted_and_undone(stack: Stack, airflow: AirflowClient) -> None:
    create_topic(stack, "e2e-tours")
    produce(stack, "e2e-tours", range(400))
    for dag_id in ("ingest__tours", "partition__tours"):
        run = run_dag(airflow, dag_id)
        assert run.state is RunState.SUCCESS, airflow.failure_report(dag_id, run.run_id)

    backfill = partial(run_backfill, airflow, "tours")

    def generations() -> Counter[int]:
        """Count the rows that consumers see by their generation."""
        return Counter(row["generation"] for row in rows_of("e2e.tours", "generation"))

    built = backfill("run", generation=2, source="kafka", everything=True, reason="objects that other tools can read")
    [identifier] = re.findall(r"requested backfill (\w+)", built["act"])
    assert generations() == {1: 400}, "consumers see nothing of a generation before its promotion"
    diff = waybill("backfill", "diff", "tours", identifier)
    assert diff["messages"].get("removed", 0) == diff["messages"].get("added", 0) == 0, diff
    backfill("promote", backfill=identifier, reason="the diff is as expected")
    assert generations() == {2: 400}
    [report] = waybill("verify", "tours_next")
    assert (report["sound"], report["figures"]["rows"]) == (True, 400)
    undo_backfill(airflow, "tours", identifier, "a consumer cannot read it yet")
    assert generations() == {1: 400}
    [report] = waybill("verify", "tours")
    assert (report["sound"], report["figures"]["rows"]) == (True, 400)


@pytest.mark.deep
@in_parallel
def test_request_over_http_and_one_of_a_form_are_served_to_a_webhook(stack: Stack, airflow: AirflowClient) -> None:
    key = "a key of thirty-two random bytes"
    create_topic(stack, "e2e-letters")
    produce(stack, "e2e-letters", range(300))
    run = run_dag(airflow, "ingest__letters")
    assert run.state is RunState.SUCCESS, airflow.failure_report("ingest__letters", run.run_id)

    # Both connections are only in Airflow's database; the command line, which migrates, needs the environment.
    database = {"conn_type": "sqlite", "host": str(Path(os.environ["WAYBILL_CONFIG"]).with_name("replay.db"))}
    migration = {**os.environ, "AIRFLOW_CONN_WAYBILL_REPLAY": json.dumps(database)}
    subprocess.run(
        [sys.executable, "-m", "waybill.interfaces.cli", "replay", "migrate"], env=migration, check=True, timeout=60
    )
    airflow.create_connection("waybill_replay", database)
    airflow.create_connection("waybill_webhooks", {"conn_type": "http", "password": key})

    now = datetime.now(UTC)
    times = {"from": (now - timedelta(hours=1)).isoformat(), "to": now.isoformat()}
    path = "/waybill/replay/requests"
    with receiving(Receiver(key.encode())) as receiver:
        wanted = {"stream": "letters", "keys": ["7", "8"], **times, "target": {"type": "webhook", "url": receiver.url}}
        assert airflow.call_plugin("POST", path, wanted, anonymous=True).status_code == 401
        refused = airflow.call_plugin("POST", path, {**wanted, "keys": []})
        assert (refused.status_code, refused.json()["detail"]["field"]) == (422, "keys")
        accepted = airflow.call_plugin("POST", path, wanted)
        assert accepted.status_code == 202, accepted.text
        run = run_dag(airflow, "replay_index")
        assert run.state is RunState.SUCCESS, airflow.failure_report("replay_index", run.run_id)
        form = {"stream": "letters", "keys": ["9"], "target": "webhook", "url": receiver.url}
        form |= {name: f"{time[:19]}Z" for name, time in times.items()}
        run = run_dag(airflow, "replay_request", form)
        assert run.state is RunState.SUCCESS, airflow.failure_report("replay_request", run.run_id)
        run = run_dag(airflow, "replay")
        assert run.state is RunState.SUCCESS, airflow.failure_report("replay", run.run_id)
        served = airflow.call_plugin("GET", accepted.headers["Location"]).json()
    assert (served["state"], served["progress"]["delivered"], served["requester"]) == ("completed", 2, "admin")
    values = {json.loads(value or b"")["id"] for value in receiver.values}
    assert values == {f"e2e-letters-{number}" for number in (7, 8, 9)}


@pytest.mark.deep
@in_parallel
def test_form_restores_a_topic_and_a_rehearsal_shows_how_long_it_takes(stack: Stack, airflow: AirflowClient) -> None:
    create_topic(stack, "e2e-parcels")
    produce(stack, "e2e-parcels", range(500))
    run = run_dag(airflow, "ingest__parcels")
    assert run.state is RunState.SUCCESS, airflow.failure_report("ingest__parcels", run.run_id)

    form = {"stream": "parcels", "to": "kafka_default", "to_topic": "e2e-parcels-copy", "create": True}
    refused = run_dag(airflow, "restore", {**form, "action": "run", "create": False, "reason": "test"})
    assert refused.state is RunState.FAILED
    [act] = [each for each in airflow.task_instances("restore", refused.run_id) if each.task_id == "act"]
    assert "topic 'e2e-parcels-copy' does not exist" in airflow.log("restore", refused.run_id, act)
    with pytest.raises(StackError, match="until"):
        airflow.trigger("restore", {**form, "until": "yesterday"})

    run = run_dag(airflow, "restore", {**form, "action": "run", "reason": "test"})
    assert run.state is RunState.SUCCESS, airflow.failure_report("restore", run.run_id)
    [status] = waybill("restore", "status")
    assert (status["state"], status["reason"]) == ("complete", "test")
    report = waybill("restore", "verify", status["id"])
    assert (report["sound"], report["messages"]) == (True, 500)

    run = run_dag(airflow, "rehearse", {"stream": "parcels"})
    assert run.state is RunState.SUCCESS, airflow.failure_report("rehearse", run.run_id)
    [rehearse] = airflow.task_instances("rehearse", run.run_id)
    assert "the whole stream would take" in airflow.log("rehearse", run.run_id, rehearse)
    topics = AdminClient({"bootstrap.servers": stack.bootstrap_servers}).list_topics(timeout=30).topics
    assert not [name for name in topics if name.startswith("waybill-rehearsal-")]


@pytest.mark.deep
@in_parallel
def test_partition_run_triggers_a_sweep_that_keeps_each_id_once(stack: Stack, airflow: AirflowClient) -> None:
    create_topic(stack, "e2e-visits")
    produce(stack, "e2e-visits", range(300))
    produce(stack, "e2e-visits", range(20))
    airflow.wait_for_dag("dedup__visits")
    airflow.unpause("dedup__visits")
    try:
        for dag_id in ("ingest__visits", "partition__visits"):
            run = run_dag(airflow, dag_id)
            assert run.state is RunState.SUCCESS, airflow.failure_report(dag_id, run.run_id)
        run = triggered_run(airflow, "dedup__visits")
    finally:
        airflow.pause("dedup__visits")
    assert run.state is RunState.SUCCESS, airflow.failure_report("dedup__visits", run.run_id)
    assert run.run_id.startswith("asset_triggered__")
    tasks = {task.task_id: task for task in airflow.task_instances("dedup__visits", run.run_id)}
    assert "visits: sweeps compare keys over 28d of 28d" in airflow.log(
        "dedup__visits", run.run_id, tasks["check_window"]
    )
    [status] = waybill("dedup", "status", "visits")
    assert (status["rows"], status["duplicates"], status["index"]["keys"]) == (300, 20, 300)
    assert ids_in("e2e.visits_unique") == sorted(f"e2e-visits-{i}" for i in range(300))

    for name in ("since", "until"):
        with pytest.raises(StackError, match=name):
            airflow.trigger("dedup__visits", {name: "yesterday"})
    run = run_dag(airflow, "dedup__visits", {"since": "2026-01-31T00:00:00Z", "until": "2026-01-30T00:00:00Z"})
    assert run.state is RunState.FAILED
    tasks = {task.task_id: task for task in airflow.task_instances("dedup__visits", run.run_id)}
    assert "is after until 2026-01-30T00:00:00Z" in airflow.log("dedup__visits", run.run_id, tasks["sweep"])
    form = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-31T00:00:00Z", "rebuild_index": True}
    run = run_dag(airflow, "dedup__visits", form)
    assert run.state is RunState.SUCCESS, airflow.failure_report("dedup__visits", run.run_id)
    [status] = waybill("dedup", "status", "visits")
    assert (status["rows"], status["duplicates"], status["index"]["version"] > 1) == (300, 20, True)


@pytest.mark.deep
@in_parallel
def test_a_kinesis_stream_that_is_split_comes_to_the_unique_table_once(stack: Stack, airflow: AirflowClient) -> None:
    def event(number: int) -> tuple[str, bytes]:
        fields = {"id": f"e2e-taps-{number}", "at": 1_700_000_000_000 + number * 1000}
        return str(number), json.dumps(fields).encode()

    with KinesisStream.created(stack.start_kinesis(), "e2e-taps", 2) as kinesis:
        kinesis.put(event(number) for number in range(100))
        kinesis.split(kinesis.open_shards()[0])
        kinesis.put(event(number) for number in range(80, 200))
        airflow.wait_for_dag("dedup__taps")
        airflow.unpause("dedup__taps")
        try:
            # The first run archives the parent up to its end, and the second one its children.
            for dag_id in ("ingest__taps", "ingest__taps", "partition__taps"):
                run = run_dag(airflow, dag_id)
                assert run.state is RunState.SUCCESS, airflow.failure_report(dag_id, run.run_id)
            run = triggered_run(airflow, "dedup__taps")
        finally:
            airflow.pause("dedup__taps")
    assert run.state is RunState.SUCCESS, airflow.failure_report("dedup__taps", run.run_id)
    assert len(ids_in("e2e.taps")) == 220
    assert ids_in("e2e.taps_unique") == sorted(f"e2e-taps-{number}" for number in range(200))


@in_parallel
def test_cleanup_removes_old_rows_of_airflows_database_and_keeps_new_ones(stack: Stack, airflow: AirflowClient) -> None:
    def events() -> list[str]:
        with closing(sqlite3.connect(stack.airflow.database, timeout=120)) as database:
            return [event for (event,) in database.execute("SELECT event FROM log WHERE owner = 'e2e' ORDER BY event")]

    def clean(form: dict[str, Any]) -> str:
        run = run_dag(airflow, "airflow_cleanup", form)
        assert run.state is RunState.SUCCESS, airflow.failure_report("airflow_cleanup", run.run_id)
        [task] = airflow.task_instances("airflow_cleanup", run.run_id)
        return airflow.log("airflow_cleanup", run.run_id, task)

    # For 2.4 hours after the scheduled time, Airflow also starts the run of that time when the DAG is enabled. It comes
    # first, so it has ended when this one has.
    clean({})
    now = datetime.now(UTC)
    with closing(sqlite3.connect(stack.airflow.database, timeout=120)) as database, database:
        for days in (1, 40, 400):
            row = (f"{days} days", f"{now - timedelta(days=days):%Y-%m-%d %H:%M:%S.%f}")
            database.execute("INSERT INTO log (event, dttm, owner) VALUES (?, ?, 'e2e')", row)
    assert "rows meeting deletion criteria" in clean({"keep_days": 365, "dry_run": True})
    assert events() == ["1 days", "40 days", "400 days"]
    clean({"keep_days": 365})
    assert events() == ["1 days", "40 days"]


def archive(topic: str, ids: Iterable[int]) -> None:
    """Create a backup object of the topic's first topic-partition, as ingest would."""
    events = [json.dumps({"id": f"{topic}-{i}", "at": 1_700_000_000_000 + i * 1000}).encode() for i in ids]
    records = [Record(offset, 1_700_000_000_000, None, event, ()) for offset, event in enumerate(events)]
    with Store.of(load_valid_streams().storage) as store:
        store.create_if_absent(BackupName(topic, 1, 0, 0).key(store.prefix), encode_batch(records))


@pytest.mark.deep
@in_parallel
def test_a_group_shows_the_result_of_each_stream_and_sweeps_after_its_partition_run(
    stack: Stack, airflow: AirflowClient
) -> None:
    for topic, messages in (("e2e-shop-a", 200), ("e2e-shop-b", 100), ("e2e-shop-wrong", 50)):
        archive(topic, [*range(messages), *range(10)])
    airflow.wait_for_dag("partition_group__shops")
    with pytest.raises(StackError, match="shop_x"):
        airflow.trigger("partition_group__shops", {"streams": ["shop_x"]})

    airflow.wait_for_dag("dedup_group__shops")
    airflow.unpause("dedup_group__shops")
    try:
        run = run_dag(airflow, "partition_group__shops")
        swept = triggered_run(airflow, "dedup_group__shops")
    finally:
        airflow.pause("dedup_group__shops")
    assert run.state is RunState.FAILED, "too many messages of one stream are in quarantine"
    tasks = airflow.task_instances("partition_group__shops", run.run_id)
    assert [task.state for task in tasks if task.task_id in ("partition", "results")] == ["success", "success"]
    streams = [task for task in tasks if task.task_id == "stream"]
    assert sorted(str(task.state) for task in streams) == ["failed", "success", "success"]
    [failed] = [task for task in streams if task.state == "failed"]
    assert failed.try_number == 1
    log = airflow.log("partition_group__shops", run.run_id, failed)
    assert "shop_wrong: 60 of 60 messages (100.0%) went to quarantine, more than 5%" in log

    assert swept.state is RunState.SUCCESS, airflow.failure_report(swept.dag_id, swept.run_id)
    assert ids_in("e2e.shop_a_unique") == sorted(f"e2e-shop-a-{i}" for i in range(200))
    assert ids_in("e2e.shop_b_unique") == sorted(f"e2e-shop-b-{i}" for i in range(100))

    run = run_dag(airflow, "partition_group__shops", {"streams": ["shop_a"]})
    assert run.state is RunState.SUCCESS, airflow.failure_report(run.dag_id, run.run_id)
    tasks = airflow.task_instances("partition_group__shops", run.run_id)
    assert {task.task_id: task.state for task in tasks} == {
        "partition": "success",
        "results": "success",
        "stream": "skipped",
    }
    form = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-31T00:00:00Z"}
    run = run_dag(airflow, "dedup_group__shops", form)
    assert run.state is RunState.FAILED
    tasks = {task.task_id: task for task in airflow.task_instances("dedup_group__shops", run.run_id)}
    assert "streams has 0: select one" in airflow.log("dedup_group__shops", run.run_id, tasks["sweep"])


def triggered_run(airflow: AirflowClient, dag_id: str) -> DagRun:
    """Return the run that Airflow triggered by itself, when it has ended."""
    end = time.monotonic() + RUN_SECONDS
    while not (runs := airflow.runs(dag_id)):
        assert time.monotonic() < end, f"no run of {dag_id} was triggered"
        time.sleep(0.5)
    return airflow.wait_for_run(dag_id, runs[-1].run_id, seconds=RUN_SECONDS)


def day_of(time_ms: int) -> date:
    return datetime.fromtimestamp(time_ms / 1000, UTC).date()


def ids_in(table: str) -> list[str]:
    """Return the message ids of a table's rows, sorted."""
    return values_in(table, "message_id")


def values_in(table: str, column: str) -> list[Any]:
    """Return the values that readers of a table see in a column, sorted."""
    return sorted(row[column] for row in rows_of(table, column))


def rows_of(table: str, *columns: str) -> list[dict[str, Any]]:
    """Return some columns of the rows that readers of a table see."""
    config = load_valid_streams()
    s3 = S3Endpoint.of(find_connection(config.storage.connection))
    with closing(open_catalog(CatalogEndpoint.of(find_connection(config.catalog.connection)), s3)) as catalog:
        rows: list[dict[str, Any]] = catalog.load_table(table).scan(selected_fields=columns).to_arrow().to_pylist()
    return rows
