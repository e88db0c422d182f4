"""Forecasts of lost brokers against what the real cluster does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archived_stream import ArchivedStream
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from devstack import Stack

pytestmark = pytest.mark.integration

_SECONDS = 60.0
REPLICAS = {"-one": [[2], [1]], "-two": [[2, 3], [3, 2], [3, 1]], "-three": [[2, 1, 3], [3, 1, 2]]}
"""The replicas of each topic-partition, by the topic's suffix."""


@pytest.fixture
def stream(stack: Stack, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchivedStream]:
    """Topic-partitions with one, two and three replicas. Broker 2 leads some of each, and a topic needs two in sync."""
    monkeypatch.setenv("WAYBILL_STATE_DIR", str(stack.state_dir))
    stream = ArchivedStream(tmp_path, f"unused-{topic_name}", partitions=1)
    stream.topic = topic_name
    listed = ", ".join(topic_name + suffix for suffix in REPLICAS)
    stream.file.write_text(stream.file.read_text().replace(f"topics: [unused-{topic_name}]", f"topics: [{listed}]"))
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    topics = [
        NewTopic(topic_name + suffix, len(replicas), replica_assignment=replicas, config={"min.insync.replicas": "2"})
        for suffix, replicas in REPLICAS.items()
    ]
    for created in admin.create_topics(topics).values():
        created.result(timeout=30)
    yield stream
    for deleted in admin.delete_topics([topic.topic for topic in topics]).values():
        deleted.result(timeout=30)


def by_name(document: dict[str, Any], stream: ArchivedStream) -> dict[str, dict[str, Any]]:
    """Return the partitions of the stream's topics, by names such as `two/0`."""
    return {
        f"{each['topic'].removeprefix(stream.topic + '-')}/{each['partition']}": each
        for each in document["partitions"]
        if each["topic"].removeprefix(stream.topic) in REPLICAS
    }


def effects(document: dict[str, Any], stream: ArchivedStream) -> dict[str, str]:
    return {name: each["effect"] for name, each in by_name(document, stream).items()}


def what_if(stream: ArchivedStream) -> dict[str, Any]:
    """Return the forecast for broker 2, as soon as the brokers know of the new topics."""
    deadline = time.monotonic() + _SECONDS
    while True:
        found: dict[str, Any] = stream.waybill("kafka", "what-if", "--broker", "2", "--json").document
        if len(by_name(found, stream)) == 5:
            return found
        assert time.monotonic() < deadline, found


def test_what_if_names_partitions_streams_and_messages_at_risk(stream: ArchivedStream) -> None:
    producer = Producer({"bootstrap.servers": stream.servers, "acks": 1, "log_level": 2})
    for _ in range(5):
        producer.produce(stream.topic + "-one", b"x", partition=0)
    producer.flush()
    found = what_if(stream)
    assert effects(found, stream) == {
        "one/0": "offline",
        "two/0": "no writes with acks=all",
        "two/1": "no writes with acks=all",
        "three/0": "leader moves",
        "three/1": "fewer replicas",
    }
    (row,) = found["streams"]
    assert (row["stream"], row["stops"], row["offline"], row["no_writes"]) == ("events", True, 1, 2)
    assert row["lost_at_most"] == 5
    text = stream.waybill("kafka", "what-if", "--broker", "2")
    assert text.code == 0
    assert "stops for 1 of 7" in text.out


def test_unknown_broker_and_rack_are_refused_with_those_that_exist(stream: ArchivedStream) -> None:
    assert "the brokers are: 1, 2, 3" in stream.waybill("kafka", "what-if", "--broker", "9").err
    assert "no live broker is in rack 'x'" in stream.waybill("kafka", "what-if", "--rack", "x").err
    assert "name what is lost" in stream.waybill("kafka", "what-if").err


def test_drill_refuses_a_cluster_that_is_not_the_local_stack(
    stream: ArchivedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = {"conn_type": "kafka", "extra": {"bootstrap.servers": "kafka.example.com:9092"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(remote))
    ran = stream.waybill("kafka", "drill", "--broker", "2")
    assert ran.code == 1
    assert "is not the local stack" in ran.err
    assert "--kill-with" in ran.err


@pytest.mark.stack_alone
def test_drill_finds_what_was_forecast_and_starts_the_broker_again(stack: Stack, stream: ArchivedStream) -> None:
    ran = stream.waybill("kafka", "drill", "--broker", "2", "--json", "--timeout", "90")
    report = ran.document
    different = [each for each in report["partitions"] if each["forecast"] != each["happened"]]
    assert ran.code == 0, f"{different} {ran.err}"
    assert report["is_as_forecast"]
    assert report["recovered_seconds"] is not None
    assert all(server.running for server in stack.status().servers if server.name.startswith("kafka"))
    happened = {name: each["happened"] for name, each in by_name(report, stream).items()}
    assert happened["one/0"]["effect"] == "offline"
    assert happened["three/0"] == {"effect": "leader moves", "leader": 1}


@pytest.mark.stack_alone
def test_producer_is_refused_where_the_forecast_says_no_writes(stack: Stack, stream: ArchivedStream) -> None:
    found = effects(what_if(stream), stream)
    stack.kill_broker(2)
    try:
        assert wait_until_refused(stream, "-two", 1), "one replica is in sync, and the topic needs two"
        assert found["two/1"] == "no writes with acks=all"
        assert not is_refused(stream, "-three", 0), "its leader has moved"
        assert found["three/0"] == "leader moves"
        assert not is_refused(stream, "-one", 1), "it has all its replicas, which are fewer than it needs"
    finally:
        stack.start_broker(2)


@pytest.mark.stack_alone
def test_drill_of_two_brokers_finds_that_the_controllers_lose_their_majority(stream: ArchivedStream) -> None:
    ran = stream.waybill("kafka", "drill", "--broker", "2", "--broker", "1", "--json", "--timeout", "90")
    report = ran.document
    different = [each for each in report["partitions"] if each["forecast"] != each["happened"]]
    assert ran.code == 0, f"{different} {ran.err}"
    happened = {name: each["happened"]["effect"] for name, each in by_name(report, stream).items()}
    assert happened["three/0"] == "offline", "nobody can elect broker 3"
    assert happened["three/1"] == "no writes with acks=all"


def wait_until_refused(stream: ArchivedStream, suffix: str, partition: int) -> bool:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        if is_refused(stream, suffix, partition):
            return True
        time.sleep(1)
    return False


def is_refused(stream: ArchivedStream, suffix: str, partition: int) -> bool:
    """Return whether a write with acks=all fails, for lack of replicas in sync."""
    errors: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": stream.servers, "acks": "all", "delivery.timeout.ms": 8000, "retries": 0, "log_level": 2}
    )
    try:
        producer.produce(
            stream.topic + suffix, b"x", partition=partition, on_delivery=lambda error, _: errors.append(error)
        )
    except KafkaException:
        return True
    producer.flush(20)
    return bool(errors) and errors[0] is not None
