"""Workers that serve replay requests, compared with what librdkafka's consumer reads from the topic."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from replay_scenes import KEY, ReplayScene, expected, places
from restore_scenes import Message
from sqlalchemy import update
from webhook_servers import Receiver, receiving

from devstack import Stack
from waybill.config import names
from waybill.replay.requests.cursor import Cursor
from waybill.replay.requests.database import Database, requests
from waybill.replay.requests.states import RequestState
from waybill.replay.requests.stored import cursor_json

pytestmark = pytest.mark.integration

PLAIN_OBJECTS = {"type": "s3", "compression": "none"}


@pytest.fixture(scope="module")
def scene(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayScene]:
    """Three topic-partitions: two thirds archived in several objects, the rest only in Kafka."""
    del stack
    scene = ReplayScene(tmp_path_factory.mktemp("replay"), "test-replay-worker")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in scene.environment.items():
            patch.setenv(name, value)
        scene.produce(4_000, seed=1)
        scene.stream.ingest()
        scene.produce(2_000, seed=2)
        yield scene


@pytest.fixture(scope="module")
def messages(scene: ReplayScene) -> list[Message]:
    found = scene.messages()
    assert len(found) > 6_000
    return found


@contextmanager
def webhook(**settings: object) -> Iterator[Receiver]:
    with receiving(Receiver(KEY, **settings)) as receiver:  # type: ignore[arg-type]
        yield receiver


def test_an_hour_of_a_key_is_delivered_to_objects_once_and_in_order(
    scene: ReplayScene, messages: list[Message]
) -> None:
    request = scene.request(["k1", "k4"], 10, 50, PLAIN_OBJECTS)
    assert scene.serve().completed == 1
    wanted = expected(scene.stream.topic, messages, [b"k1", b"k4"], scene.at_ms(10), scene.at_ms(50))
    assert len(wanted) > 500
    assert scene.parts(request) == wanted
    stored = scene.show(request)
    assert (stored.state, stored.progress.share) == (RequestState.COMPLETED, 1.0)
    assert stored.progress.delivered == len(wanted) == scene.manifest(request)["messages"]
    assert stored.progress.found == stored.progress.delivered + stored.duplicates
    assert stored.duplicates > 5
    with scene.stream.store() as store:
        assert not list(store.keys(names.replay_seen_prefix(store.prefix, request)))


def test_a_webhook_gets_every_message_in_order_of_each_partition(scene: ReplayScene, messages: list[Message]) -> None:
    with webhook() as receiver:
        request = scene.request(["k2"], 0, 60, {"type": "webhook", "url": receiver.url})
        assert scene.serve().completed == 1
    wanted = expected(scene.stream.topic, messages, [b"k2"], scene.at_ms(0), scene.at_ms(60))
    assert list(receiver.messages) == places(wanted)
    assert set(receiver.messages.values()) == {1}
    assert receiver.values == [message.value for message in wanted]
    assert (receiver.challenges, receiver.forgeries) == (1, 0)
    assert scene.show(request).progress.delivered == len(wanted)


def test_random_requests_deliver_what_the_oracle_says(scene: ReplayScene, messages: list[Message]) -> None:
    chosen = random.Random(7)
    requests = {}
    for _ in range(12):
        keys = [f"k{number}".encode() for number in chosen.sample(range(14), chosen.randint(1, 4))]
        begin, end = sorted(chosen.sample(range(-5 * 60_000, 65 * 60_000), 2))
        minutes = (begin / 60_000, end / 60_000)
        request = scene.request(keys, *minutes, PLAIN_OBJECTS)
        requests[request] = expected(
            scene.stream.topic, messages, keys, scene.at_ms(minutes[0]), scene.at_ms(minutes[1])
        )
    assert scene.serve(180).completed == len(requests)
    for request, wanted in requests.items():
        assert scene.parts(request) == wanted


def test_ingest_that_goes_on_while_a_request_is_served_moves_the_seam_and_nothing_else(
    stack: Stack, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    del stack
    scene = ReplayScene(tmp_path_factory.mktemp("replay"), "test-replay-seam", partitions=1)
    for name, value in scene.environment.items():
        monkeypatch.setenv(name, value)
    for seed in range(3):
        scene.produce(300, seed=seed)
        scene.stream.ingest()
    scene.produce(300, seed=9)
    request = scene.request(["k1", "k2", "k3"], 0, 60, PLAIN_OBJECTS)
    stop = threading.Event()
    rival = threading.Thread(target=lambda: (scene.stream.ingest(), stop.set()))
    rival.start()
    scene.serve()
    rival.join()
    wanted = expected(scene.stream.topic, scene.messages(), [b"k1", b"k2", b"k3"], scene.at_ms(0), scene.at_ms(60))
    assert scene.parts(request) == wanted


def test_all_partitions_are_read_when_the_topic_shows_another_partitioner(
    stack: Stack, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    del stack
    scene = ReplayScene(tmp_path_factory.mktemp("replay"), "test-replay-partitioner", partitions=4)
    for name, value in scene.environment.items():
        monkeypatch.setenv(name, value)
    producer = scene.stream.producer(partitioner="consistent_random")  # librdkafka's default: CRC-32 of the key
    for number in range(200):
        producer.produce(scene.stream.topic, b"%d" % number, b"k%d" % (number % 20), timestamp=scene.at_ms(number / 10))
    assert producer.flush(30) == 0
    scene.stream.ingest()
    request = scene.request([f"k{number}" for number in range(3)], 0, 60, PLAIN_OBJECTS)
    scene.serve()
    assert len(scene.parts(request)) == 30


def test_a_webhook_that_is_down_gets_the_messages_when_it_is_back(scene: ReplayScene, messages: list[Message]) -> None:
    is_down = [True]
    with webhook(respond=lambda _: (503, {}, b"") if is_down[0] else (200, {}, b"{}")) as receiver:
        request = scene.request(["k3"], 0, 60, {"type": "webhook", "url": receiver.url})
        scene.stream.file.write_text(scene.stream.file.read_text().replace("allow_http", "attempts: 1, allow_http"))
        assert scene.serve().turns == 1
        stored = scene.show(request)
        assert stored.state is RequestState.ONGOING
        assert "503" in stored.problem
        assert stored.not_before_ms > time.time() * 1000 + 5_000
        is_down[0] = False
        make_due(scene, request)
        assert scene.serve().completed == 1
    wanted = expected(scene.stream.topic, messages, [b"k3"], scene.at_ms(0), scene.at_ms(60))
    assert set(receiver.messages) == set(places(wanted))
    assert scene.show(request).problem == ""


def test_a_webhook_that_cannot_prove_that_it_is_the_owners_gets_nothing(scene: ReplayScene) -> None:
    with receiving(Receiver(b"another key that is long enough!")) as receiver:
        request = scene.request(["k3"], 0, 60, {"type": "webhook", "url": receiver.url})
        assert scene.serve().failed == 1
    stored = scene.show(request)
    assert stored.state is RequestState.FAILED
    assert "401" in stored.reason
    assert not receiver.messages


def test_messages_that_a_webhook_rejects_are_listed_and_the_others_delivered(
    scene: ReplayScene, messages: list[Message]
) -> None:
    wanted = expected(scene.stream.topic, messages, [b"k5"], scene.at_ms(0), scene.at_ms(60))
    bad = wanted[3].offset

    def respond(body: dict[str, object]) -> tuple[int, dict[str, str], bytes]:
        found = [message["offset"] for message in body["messages"]]  # type: ignore[attr-defined]
        return (422, {}, b"no") if bad in found else (200, {}, b"{}")

    with webhook(respond=respond) as receiver:
        request = scene.request(["k5"], 0, 60, {"type": "webhook", "url": receiver.url})
        assert scene.serve().completed == 1
    stored = scene.show(request)
    assert (stored.rejected, stored.progress.delivered) == (1, len(wanted) - 1)
    assert set(receiver.messages) == set(places(wanted)) - {places(wanted)[3]}


def test_a_cancelled_request_stops_and_a_stream_that_is_gone_is_tried_later(scene: ReplayScene) -> None:
    request = scene.request(["k1"], 0, 60, PLAIN_OBJECTS)
    text = scene.stream.file.read_text()
    scene.stream.file.write_text(text.replace("  events:\n", "  others:\n"))
    try:
        scene.serve()
    finally:
        scene.stream.file.write_text(text)
    assert "events" in scene.show(request).problem
    assert scene.stream.waybill("replay", "cancel", request, "--reason", "test", "--by", "ann").code == 0
    make_due(scene, request)
    assert scene.serve().turns == 0
    assert scene.show(request).state is RequestState.CANCELLED


def make_due(scene: ReplayScene, request_id: str) -> None:
    """Let workers claim a request at once, as if the pauses of its queue and of its target were over."""
    stored = scene.show(request_id)
    cursor = Cursor.of(stored.progress.cursor or {})
    if "breaker" in cursor.delivery:
        cursor.delivery["breaker"]["open_until_ms"] = 0
    values = {"not_before_ms": 0, "cursor": cursor_json(cursor.document())}
    with Database.of(scene.stream.config) as database:
        database.write(
            lambda connection: connection.execute(update(requests).where(requests.c.id == request_id).values(values))
        )
