"""Objects in S3: however workers are killed and race, each message is in one part, in order."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import DocumentDamaged, ObjectExists
from waybill.config.connections import S3Endpoint
from waybill.config.names import TopicPartition
from waybill.replay.requests.delivery.s3_objects import ExistingPart, RequestObjects, deliver_objects
from waybill.replay.requests.message import ReplayedMessage
from waybill.replay.requests.targets import ObjectCompression
from waybill.services.store import Description, ListedObject

REQUEST = "01KB0000000000000000000000"


class FakeStore:
    """What `RequestObjects` needs of a store, in memory."""

    bucket, prefix = "bucket", "archive"

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}

    def create_if_absent(self, key: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        if key in self.objects:
            raise ObjectExists(key)
        self.objects[key] = (bytes(data), dict(metadata or {}))

    def create_or_read_existing(self, key: str, data: bytes) -> bytes | None:
        try:
            self.create_if_absent(key, data)
        except ObjectExists:
            return self.objects[key][0]
        return None

    def describe(self, key: str) -> Description:
        data, metadata = self.objects[key]
        return Description(metadata, "etag", len(data))

    def list_objects(self, prefix: str) -> Iterator[ListedObject]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ListedObject(key, len(self.objects[key][0]), datetime(2026, 1, 1, tzinfo=UTC), "etag")


def messages_of(count: int) -> list[ReplayedMessage]:
    return [ReplayedMessage(TopicPartition("flights", n % 2), n, 1_000 + n, b"k", b"x" * (n % 7)) for n in range(count)]


def offsets_in(store: FakeStore) -> list[int]:
    found: list[int] = []
    for key in sorted(store.objects):
        data = store.objects[key][0]
        if key.endswith(".gz"):
            data = gzip.decompress(data)
        elif key.endswith(".zst"):
            data = bytes(cramjam.zstd.decompress(data))
        elif not key.endswith(".jsonl"):
            continue
        found += [json.loads(line)["offset"] for line in data.splitlines()]
    return found


def deliver(
    store: FakeStore, messages: list[ReplayedMessage], first_part: int = 0, **limits: int
) -> Iterator[ExistingPart]:
    return deliver_objects(RequestObjects(store, REQUEST, ObjectCompression.NONE), messages, first_part, **limits)


LIMITS = st.fixed_dictionaries({"part_messages": st.integers(1, 9), "part_bytes": st.integers(1, 1_500)})


@given(st.integers(0, 40), st.data())
def test_workers_that_are_killed_anywhere_deliver_each_message_once(count: int, data: st.DataObject) -> None:
    """Each worker may cut its parts in its own way, and dies before or after its cursor is stored."""
    store, messages = FakeStore(), messages_of(count)
    part, cursor = 0, 0
    for _ in range(data.draw(st.integers(0, 4))):
        position = cursor
        for done in deliver(store, messages[cursor:], part, **data.draw(LIMITS)):
            position += len(done.messages)
            step = data.draw(st.sampled_from(["store the cursor", "die", "die after it"]))
            if step != "die":
                part, cursor = done.number + 1, position
            if step != "store the cursor":
                break
    for done in deliver(store, messages[cursor:], part, **data.draw(LIMITS)):
        part, cursor = done.number + 1, cursor + len(done.messages)
    assert cursor == count
    assert offsets_in(store) == list(range(count))
    manifest = RequestObjects(store, REQUEST, ObjectCompression.NONE).finish(part)
    assert manifest["messages"] == count
    assert [each["key"] for each in manifest["parts"]] == [key for key in sorted(store.objects) if "part-" in key]


@given(st.integers(0, 40), LIMITS, LIMITS, st.lists(st.booleans(), max_size=60))
def test_two_workers_at_once_deliver_each_message_once(
    count: int, limits: dict[str, int], other: dict[str, int], turns: list[bool]
) -> None:
    store, messages = FakeStore(), messages_of(count)
    rivals = [deliver(store, messages, 0, **limits), deliver(store, messages, 0, **other)]
    got: list[list[ReplayedMessage]] = [[], []]
    for turn in [*turns, *[False] * (count + 1), *[True] * (count + 1)]:
        done = next(rivals[turn], None)
        got[turn] += done.messages if done else ()
    assert got == [messages, messages]
    assert offsets_in(store) == list(range(count))


@pytest.mark.parametrize("compression", list(ObjectCompression))
def test_lines_are_readable_in_each_compression(compression: ObjectCompression) -> None:
    store = FakeStore()
    objects = RequestObjects(store, REQUEST, compression)
    parts = list(deliver_objects(objects, messages_of(10), 0, part_messages=4))
    assert [len(part.messages) for part in parts] == [4, 4, 2]
    assert offsets_in(store) == list(range(10))
    manifest = objects.finish(3)
    assert (manifest["messages"], manifest["compression"]) == (10, str(compression))
    assert objects.finish(3) == manifest


def test_links_begin_with_the_manifest_and_are_signed_with_version_4() -> None:
    store = FakeStore()
    objects = RequestObjects(store, REQUEST, ObjectCompression.NONE)
    list(deliver_objects(objects, messages_of(3), 0, part_messages=2))
    objects.finish(2)
    endpoint = S3Endpoint(endpoint_url="http://s3.example", access_key="key", secret_key="the secret")
    links = [urlsplit(link) for link in objects.links(endpoint, timedelta(hours=1))]
    prefix = f"/bucket/archive/replays/{REQUEST}"
    assert [link.path for link in links] == [
        f"{prefix}/manifest.json",
        f"{prefix}/part-00000.jsonl",
        f"{prefix}/part-00001.jsonl",
    ]
    for link in links:
        query = parse_qs(link.query)
        assert (query["X-Amz-Algorithm"], query["X-Amz-Expires"]) == (["AWS4-HMAC-SHA256"], ["3600"])
        assert "secret" not in link.query


def test_a_part_of_something_else_stops_the_delivery() -> None:
    store = FakeStore()
    list(deliver(store, messages_of(6), part_messages=3))
    with pytest.raises(DocumentDamaged, match=r"part-00000.jsonl begins with flights/0/0, and flights/1/1 is expected"):
        list(deliver(store, messages_of(6)[1:], part_messages=3))


def test_messages_that_are_gone_since_a_part_was_written_stop_the_delivery() -> None:
    store = FakeStore()
    list(deliver(store, messages_of(6), part_messages=6))
    with pytest.raises(DocumentDamaged, match="there are fewer"):
        list(deliver(store, messages_of(4), part_messages=3))
    with pytest.raises(DocumentDamaged, match="ends with flights/1/5"):
        list(deliver(store, [message for message in messages_of(8) if message.offset != 3], part_messages=3))
