"""Delivery of replayed messages to a real S3 server: killed workers, rivals, and links that anybody can read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

import httpx
import pytest

from devstack import Stack
from waybill.config.connections import S3Endpoint
from waybill.config.names import TopicPartition, replay_seen_prefix
from waybill.replay.requests.delivery.s3_objects import RequestObjects, deliver_objects
from waybill.replay.requests.delivery.seen import SeenIds
from waybill.replay.requests.message import ReplayedMessage
from waybill.replay.requests.targets import ObjectCompression
from waybill.services.store import Store

pytestmark = pytest.mark.integration

REQUEST = "01KB0000000000000000000000"


@pytest.fixture
def endpoint(stack: Stack) -> S3Endpoint:
    return S3Endpoint(
        endpoint_url=stack.s3_endpoint_url, access_key=stack.s3_access_key, secret_key=stack.s3_secret_key
    )


@pytest.fixture
def store(stack: Stack, endpoint: S3Endpoint, topic_name: str) -> Iterator[Store]:
    with Store(endpoint, stack.bucket, topic_name) as store:
        yield store


def messages_of(count: int) -> list[ReplayedMessage]:
    return [
        ReplayedMessage(TopicPartition("flights", 0), n, 1_763_892_000_000 + n, b"AA1", bytes([n % 256]))
        for n in range(count)
    ]


def test_a_killed_worker_and_a_rival_leave_each_message_once_behind_links(store: Store, endpoint: S3Endpoint) -> None:
    objects, messages = RequestObjects(store, REQUEST, ObjectCompression.GZIP), messages_of(1_000)
    killed = deliver_objects(objects, messages, 0, part_messages=300)
    assert [part.was_there for part in islice(killed, 2)] == [False, False]
    # Its cursor was never stored, so the next worker begins again, and cuts its parts in another way.
    rival = deliver_objects(objects, messages, 0, part_messages=350)
    parts = list(rival)
    assert [(len(part.messages), part.was_there) for part in parts] == [
        (300, True),
        (300, True),
        (350, False),
        (50, False),
    ]
    assert [message for part in parts for message in part.messages] == messages
    # And the first one was only asleep.
    assert [(len(part.messages), part.was_there) for part in killed] == [(350, True), (50, True)]

    manifest = objects.finish(4)
    assert manifest["messages"] == 1_000
    assert objects.finish(4) == manifest
    links = objects.links(endpoint, timedelta(minutes=5))
    assert len(links) == 5
    assert httpx.get(links[0]).json() == manifest
    offsets = []
    for link in links[1:]:
        lines = gzip.decompress(httpx.get(link).raise_for_status().content).splitlines()
        offsets += [json.loads(line)["offset"] for line in lines]
    assert offsets == list(range(1_000))
    assert httpx.get(links[0].partition("?")[0]).status_code == 403


def test_the_ids_of_delivered_messages_are_kept_in_objects(store: Store) -> None:
    prefix = replay_seen_prefix(store.prefix, REQUEST)
    seen, tp = SeenIds(), TopicPartition("flights", 0)
    for number in range(3):
        assert not seen.is_duplicate(b"id-%d" % number, tp, number)
        changes = seen.changes()
        assert changes is not None
        store.create_if_absent(f"{prefix}0000000001-{number:010}", changes)
    after = SeenIds()
    after.add_stored((key, store.read(key)) for key in store.keys(prefix))
    assert [after.is_duplicate(b"id-%d" % number, tp, number) for number in range(3)] == [False] * 3
    assert [after.is_duplicate(b"id-%d" % number, tp, 10 + number) for number in range(4)] == [True, True, True, False]
