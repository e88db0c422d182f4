"""The store and the chain against a real S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from devstack import Stack
from waybill.archive.chain import chain, object_reader
from waybill.base.errors import ChainBroken, ConfigError, ObjectExists, ObjectMissing, StoreUnavailable
from waybill.config.connections import S3Endpoint
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches import Codec
from waybill.records.batches.encode import Record, encode_batch
from waybill.services.store import ChainId, Store

pytestmark = pytest.mark.integration

PART = 5 << 20  # S3's minimum


@pytest.fixture
def endpoint(stack: Stack) -> S3Endpoint:
    return S3Endpoint(
        endpoint_url=stack.s3_endpoint_url, access_key=stack.s3_access_key, secret_key=stack.s3_secret_key
    )


@pytest.fixture
def store(stack: Stack, endpoint: S3Endpoint, topic_name: str) -> Iterator[Store]:
    with Store(endpoint, stack.bucket, topic_name, part_bytes=PART) as store:
        yield store


def pending_uploads(store: Store) -> list[str]:
    answer = store.client.list_multipart_uploads(Bucket=store.bucket, Prefix=store.prefix)
    return [upload["Key"] for upload in answer.get("Uploads", [])]


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 4 * PART + 12345])
def test_upload_of_any_size_is_read_back_and_created_once(store: Store, size: int) -> None:
    data, key = os.urandom(size), f"{store.prefix}/{size}"
    for attempt in range(2):
        upload = store.upload_if_absent(key, {"attempt": str(attempt)})
        for start in range(0, size, 700_000):
            upload.write(memoryview(data)[start : start + 700_000])
        if attempt == 0:
            assert not store.exists(key)
            upload.complete()
        else:
            with pytest.raises(ObjectExists, match=key):
                upload.complete()
    assert store.read(key) == data
    assert store.metadata(key) == {"attempt": "0"}
    assert pending_uploads(store) == []


def test_aborted_upload_leaves_nothing(store: Store) -> None:
    key = f"{store.prefix}/aborted"
    upload = store.upload_if_absent(key)
    upload.write(os.urandom(2 * PART + 1))
    upload.abort()
    assert not store.exists(key)
    assert pending_uploads(store) == []


def test_upload_reuses_part_buffers(store: Store) -> None:
    for number in range(3):
        upload = store.upload_if_absent(f"{store.prefix}/{number}")
        upload.write(bytes(6 * PART))
        upload.complete()
    assert store._threads.buffers.qsize() <= 3


def test_missing_object_is_named(store: Store) -> None:
    for read in (store.read, store.metadata):
        with pytest.raises(ObjectMissing, match="no/such does not exist"):
            read("no/such")


def test_wrong_endpoint_keys_or_bucket_are_one_clear_line(stack: Stack, endpoint: S3Endpoint) -> None:
    wrong = [
        (endpoint.model_copy(update={"secret_key": "wrong"}), stack.bucket, ConfigError, "not allowed to read a"),
        (endpoint.model_copy(update={"access_key": "nobody"}), stack.bucket, ConfigError, "not allowed to read a"),
        (endpoint, "no-such-bucket", ConfigError, "'no-such-bucket' at .* does not exist: create it"),
        (
            endpoint.model_copy(update={"endpoint_url": "http://127.0.0.1:1"}),
            stack.bucket,
            StoreUnavailable,
            "Could not connect",
        ),
    ]
    for where, bucket, error, message in wrong:
        with Store(where, bucket) as store, pytest.raises(error, match=message):
            store.read("a")


# --- chains -----------------------------------------------------------------------------------------------------------


def put(store: Store, tp: TopicPartition, first: int, following: int, generation: int = 1, start: int = 0) -> str:
    key = BackupName(tp.topic, generation, tp.partition, first).key(store.prefix)
    records = [Record(offset, 1_000 + offset, None, b"v" * 50) for offset in range(start or first, following)]
    store.create_if_absent(key, encode_batch(records, codec=Codec.NONE, leader_epoch=7))
    return key


def test_listings_return_only_topics_and_chains(store: Store) -> None:
    for topic, generation, partition in [("a", 1, 0), ("a", 1, 1), ("a", 1, 10), ("a", 2, 0), ("a.b", 1, 0)]:
        for first in (0, 9, 10):
            put(store, TopicPartition(topic, partition), first, first + 1, generation)
    store.create_if_absent(f"{store.prefix}/backup/a/1_0_note.txt", b"no backup object")

    assert store.topics() == ["a", "a.b"]
    assert store.chains("a") == [ChainId(TopicPartition("a", p), g) for p, g in [(0, 1), (0, 2), (1, 1), (10, 1)]]
    assert [found.name.first_offset for found in store.list_chain("a", 1, 1)] == [0, 9, 10]
    assert [found.name.first_offset for found in store.list_chain("a", 1, 0, start_after=9)] == [10]
    assert store.chains("b") == []


def test_walk_chain_returns_each_object_with_its_range(store: Store) -> None:
    tp = TopicPartition("t", 0)
    for first, following in [(0, 10), (10, 15), (15, 40)]:
        put(store, tp, first, following)

    def ranges(from_offset: int | None = None, committed_offset: int | None = None) -> list[tuple[int, int]]:
        found = chain.walk_chain(store, 1, tp, from_offset=from_offset, committed_offset=committed_offset)
        return [(o.name.first_offset, o.next_offset) for o in found]

    everything = [(0, 10), (10, 15), (15, 40)]
    assert ranges() == everything
    assert ranges(committed_offset=40) == everything
    assert ranges(committed_offset=15) == everything, "the last object exists, but is not committed yet"
    assert ranges(from_offset=10) == everything[1:]
    assert ranges(from_offset=14, committed_offset=40) == everything[1:]
    assert ranges(from_offset=39) == everything[2:]
    assert ranges(from_offset=40, committed_offset=40) == []
    assert ranges(from_offset=40) == []
    assert chain.read_chain_end(store, 1, tp) == 40
    assert chain.read_chain_end(store, 2, tp) is None


def test_walk_chain_names_missing_offsets(store: Store) -> None:
    tp = TopicPartition("t", 0)
    with pytest.raises(ChainBroken, match="t/0, generation 1: no object holds offsets 0–9"):
        list(chain.walk_chain(store, 1, tp, from_offset=0, committed_offset=10))
    put(store, tp, 10, 20)
    with pytest.raises(ChainBroken, match="no object holds offsets 5–9"):
        list(chain.walk_chain(store, 1, tp, from_offset=5))


def test_inspect_object_returns_the_figures_of_an_object(store: Store) -> None:
    tp = TopicPartition("t", 0)
    name = BackupName("t", 1, 0, 5)
    key = put(store, tp, 5, 20, start=7)  # log compaction removed 5 and 6
    found = object_reader.inspect_object(store, name, key)
    assert (found.next_offset, found.messages, found.batches, found.leader_epoch) == (20, 13, 1, 7)
    assert (found.min_timestamp_ms, found.max_timestamp_ms) == (1_007, 1_019)
    assert found.size_bytes == len(store.read(key))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "cut short"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "CRC"),
        (lambda data: data[:0], "holds no record batch"),
        (lambda data: data * 2, "base offset"),
    ],
)
def test_inspect_object_names_damage(store: Store, damage: object, message: str) -> None:
    name = BackupName("t", 1, 0, 5)
    good = encode_batch([Record(5, 0, None, b"v")])
    store.create_if_absent(name.key(store.prefix), damage(good))  # type: ignore[operator]
    with pytest.raises(ChainBroken, match=message):
        object_reader.inspect_object(store, name, name.key(store.prefix))


def test_inspect_object_refuses_an_object_that_ends_before_its_name(store: Store) -> None:
    name = BackupName("t", 1, 0, 50)
    store.create_if_absent(name.key(store.prefix), encode_batch([Record(5, 0, None, b"v")]))
    with pytest.raises(ChainBroken, match="holds only offsets below 6"):
        object_reader.inspect_object(store, name, name.key(store.prefix))


def test_remove_with_an_etag_keeps_an_object_that_was_replaced(store: Store) -> None:
    key = f"{store.prefix}/replaced"
    store.create_if_absent(key, b"mine")
    mine = store.describe(key).etag
    store.remove(key)
    store.create_if_absent(key, b"another task's")
    store.remove(key, etag=mine)
    assert store.read(key) == b"another task's"
    store.remove(key, etag=store.describe(key).etag)
    assert not store.exists(key)
