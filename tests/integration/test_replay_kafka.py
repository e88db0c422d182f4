"""Delivery of replay requests into Kafka topics that others write to as well: each message exactly once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from replay_scenes import Delivered, ReplayScene, expected
from restore_scenes import Message, consume, create_topic

from devstack import Stack
from waybill.base import failpoints
from waybill.base.errors import KafkaUnavailable, ReplayRefused
from waybill.config.connections import KafkaEndpoint, find_connection
from waybill.config.names import TopicPartition
from waybill.replay.requests.delivery.kafka_topic import TopicDelivery
from waybill.replay.requests.delivery.outcome import TargetUnavailable
from waybill.replay.requests.message import ReplayedMessage
from waybill.replay.requests.states import RequestState
from waybill.services.kafka.target import TargetCluster

pytestmark = pytest.mark.integration

KEYS = [f"k{number}" for number in range(12)]


@pytest.fixture(scope="module")
def scene(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayScene]:
    del stack
    scene = ReplayScene(
        tmp_path_factory.mktemp("replay"),
        "test-replay-kafka",
        replay=", kafka: {connections: [kafka_default]}, claim_timeout: 10s",
    )
    text = scene.stream.file.read_text()
    scene.stream.file.write_text(text.replace("allow_http", "timeout: 2s, allow_http"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in scene.environment.items():
            patch.setenv(name, value)
        scene.produce(3_000, seed=3)
        scene.stream.ingest()
        scene.produce(500, seed=4)
        yield scene


@pytest.fixture(scope="module")
def wanted(scene: ReplayScene) -> list[Delivered]:
    keys = [key.encode() for key in KEYS]
    return expected(scene.stream.topic, scene.messages(), keys, scene.at_ms(0), scene.at_ms(60))


@pytest.fixture
def topic(scene: ReplayScene, topic_name: str) -> str:
    create_topic(scene.stream.servers, topic_name, 4)
    return topic_name


@pytest.fixture
def target() -> Iterator[TargetCluster]:
    with TargetCluster(KafkaEndpoint.of(find_connection("kafka_default"))) as opened:
        yield opened


def request_into(scene: ReplayScene, topic: str) -> str:
    return scene.request(KEYS, 0, 60, {"type": "kafka", "connection": "kafka_default", "topic": topic})


def by_key(messages: list[Any]) -> dict[bytes | None, list[Any]]:
    """Return time, value and headers of the messages of each key, in order."""
    found: dict[bytes | None, list[Any]] = {}
    for message in messages:
        at_ms = message.timestamp[1] if isinstance(message, Message) else message.timestamp_ms
        found.setdefault(message.key, []).append((at_ms, message.value, message.headers))
    return found


def check(scene: ReplayScene, topic: str, wanted: list[Delivered]) -> None:
    # Each key is in one partition of both topics, so its order is comparable.
    found = [message for message in consume(scene.stream.servers, topic) if message.key != b"rival"]
    assert len(found) == len(wanted)
    assert by_key(found) == by_key(wanted)


@contextmanager
def rival(scene: ReplayScene, topic: str) -> Iterator[None]:
    """Another producer that writes to the topic all the time, in transactions, some of which are aborted."""
    stop = threading.Event()

    def produce() -> None:
        producer = Producer(
            {"bootstrap.servers": scene.stream.servers, "transactional.id": topic, "linger.ms": 0, "log_level": 2}
        )
        producer.init_transactions(30)
        chosen = random.Random(1)
        while not stop.is_set():
            producer.begin_transaction()
            for number in range(20):
                producer.produce(topic, b"x", b"rival", number % 4)
            producer.flush(30)
            producer.commit_transaction(30) if chosen.random() < 0.5 else producer.abort_transaction(30)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def test_a_topic_that_others_write_to_gets_each_message_once(
    scene: ReplayScene, wanted: list[Delivered], topic: str
) -> None:
    request = request_into(scene, topic)
    with rival(scene, topic):
        assert scene.serve().completed == 1
    check(scene, topic, wanted)
    assert scene.show(request).progress.delivered == len(wanted)


@pytest.mark.deep
@pytest.mark.matrix
@pytest.mark.parametrize("place", [*failpoints.REPLAY, "replay.delivered@2"])
def test_a_topic_has_each_message_once_after_a_worker_was_killed(
    scene: ReplayScene, wanted: list[Delivered], topic: str, place: str
) -> None:
    name, _, count = place.partition("@")
    request = request_into(scene, topic)
    with rival(scene, topic):
        process = scene.worker({**os.environ, failpoints.VARIABLE: f"{name}=kill@{count or 1}"})
        process.wait(90)
        assert process.returncode == -signal.SIGKILL
        serve_until_completed(scene, request)
    check(scene, topic, wanted)


def serve_until_completed(scene: ReplayScene, request: str) -> None:
    deadline = time.monotonic() + 90
    while scene.show(request).state is not RequestState.COMPLETED:
        assert time.monotonic() < deadline, scene.show(request).problem
        scene.serve(30)
        time.sleep(0.5)


def messages_of(count: int, first: int = 0) -> list[ReplayedMessage]:
    tp = TopicPartition("archived", 0)
    return [
        ReplayedMessage(tp, offset, 1_700_000_000_000 + offset, b"k%d" % (offset % 9), b"v%d" % offset, (("h", None),))
        for offset in range(first, first + count)
    ]


def values(scene: ReplayScene, topic: str) -> list[bytes | None]:
    return sorted(message.value or b"" for message in consume(scene.stream.servers, topic))


def test_messages_behind_an_old_state_are_not_sent_again(scene: ReplayScene, topic: str, target: TargetCluster) -> None:
    messages = messages_of(300)
    first = TopicDelivery(target, topic, None)
    first.prepare()
    states = [first.state]
    for begin in range(0, 300, 50):
        assert first.deliver(messages[begin : begin + 50]) == []
        states.append(first.state)
    for number, state in enumerate(states):
        again = TopicDelivery(target, topic, state)
        again.prepare()
        again.deliver(messages[number * 50 :])
        twice = TopicDelivery(target, topic, again.state)
        twice.prepare()
    assert values(scene, topic) == sorted(message.value or b"" for message in messages)


def test_a_state_that_was_prepared_and_then_lost_its_worker_still_knows_what_the_target_has(
    scene: ReplayScene, topic: str, target: TargetCluster
) -> None:
    messages = messages_of(100)
    first = TopicDelivery(target, topic, None)
    first.prepare()
    begun = first.state
    first.deliver(messages)
    second = TopicDelivery(target, topic, begun)
    second.prepare()
    third = TopicDelivery(target, topic, second.state)
    third.prepare()
    third.deliver(messages)
    assert len(values(scene, topic)) == 100


def test_a_worker_behind_its_successor_sends_nothing(scene: ReplayScene, topic: str, target: TargetCluster) -> None:
    messages = messages_of(200)
    first = TopicDelivery(target, topic, None)
    first.prepare()
    with TargetCluster(KafkaEndpoint.of(find_connection("kafka_default"))) as other:
        second = TopicDelivery(other, topic, first.state)
        second.prepare()
        second.deliver(messages[:120])
        with pytest.raises(TargetUnavailable, match="another worker"):
            first.deliver(messages[:50])
        first.prepare()
        first.deliver(messages)
    assert values(scene, topic) == sorted(message.value or b"" for message in messages)


def wait_for_config(target: TargetCluster, topic: str, max_message_bytes: str) -> None:
    """Wait until every broker knows the config of a new topic: any of them may be asked."""
    deadline, seen = time.monotonic() + 30, 0
    while seen < 10:
        assert time.monotonic() < deadline
        with contextlib.suppress(KafkaUnavailable):
            found = target.find_topic(topic)
            is_known = found is not None and found.config["max.message.bytes"] == max_message_bytes
            seen = seen + 1 if is_known else 0
        time.sleep(0.05)


def test_a_message_that_is_too_large_for_the_topic_is_rejected_and_the_others_delivered(
    scene: ReplayScene, topic_name: str, target: TargetCluster
) -> None:
    create_topic(scene.stream.servers, topic_name, 1, max_message_bytes="2000")
    wait_for_config(target, topic_name, "2000")
    messages = messages_of(10)
    messages[4] = messages[4]._replace(value=bytes(3_000))
    delivery = TopicDelivery(target, topic_name, None)
    delivery.prepare()
    [rejection] = delivery.deliver(messages)
    assert rejection.message == messages[4]
    assert "max.message.bytes" in rejection.reason
    assert len(values(scene, topic_name)) == 9


def test_a_topic_that_is_missing_or_was_created_again_is_refused(
    scene: ReplayScene, topic: str, target: TargetCluster
) -> None:
    with pytest.raises(ReplayRefused, match="create it"):
        TopicDelivery(target, "no-such-topic", None).prepare()
    first = TopicDelivery(target, topic, None)
    first.prepare()
    target.delete_topic(topic)
    with pytest.raises(ReplayRefused, match="create it"):
        prepare_again_and_again(target, topic, first.state)


def prepare_again_and_again(target: TargetCluster, topic: str, state: dict[str, Any]) -> None:
    """Prepare as workers do, which come again when the brokers do not answer: until all know of a deletion."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(KafkaUnavailable):
            TopicDelivery(target, topic, state).prepare()
        time.sleep(0.2)
