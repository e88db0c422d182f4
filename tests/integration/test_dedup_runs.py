"""Sorted runs of the key index on a real S3."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from devstack import Stack
from waybill.base.errors import ConfigError, IndexDamaged, ObjectMissing
from waybill.config.connections import S3Endpoint
from waybill.config.names import TopicPartition, key_index_prefix
from waybill.services.store import PART_BYTES, Store
from waybill.tables.dedup.index.lookup import QuickReads
from waybill.tables.dedup.index.run_file import IndexEntries
from waybill.tables.dedup.index.sorted_runs import find_in_run, read_run, write_run

pytestmark = pytest.mark.integration

COUNT = 1_200_000
"""More keys than fit into one part of a multipart upload."""


@pytest.fixture
def endpoint(stack: Stack) -> S3Endpoint:
    return S3Endpoint(
        endpoint_url=stack.s3_endpoint_url, access_key=stack.s3_access_key, secret_key=stack.s3_secret_key
    )


@pytest.fixture
def store(stack: Stack, endpoint: S3Endpoint, topic_name: str) -> Iterator[Store]:
    with Store(endpoint, stack.bucket, topic_name) as store:
        yield store


def random_entries(count: int) -> IndexEntries:
    """Return entries of one of 16 buckets and of one day."""
    rng = np.random.default_rng(count)
    hi, tail = np.sort(rng.integers(0, 1 << 60, count, np.uint64)), rng.integers(0, 1 << 24, count, np.uint32)
    arrived = 1_760_000_000_000 + rng.integers(0, 86_400_000, count)
    tps = (TopicPartition("flights", 0), TopicPartition("flights", 1))
    return IndexEntries(hi, tail, arrived, rng.integers(0, 2, count, np.int32), rng.integers(0, 1 << 22, count), tps)


def test_read_range_ends_at_the_end_of_the_object(store: Store) -> None:
    content, key = os.urandom(100_000), f"{store.prefix}/object"
    store.create_if_absent(key, content)
    assert store.read_range(key, 0, 10) == content[:10]
    assert store.read_range(key, 70_000, 20_000) == content[70_000:90_000]
    assert store.read_range(key, 99_990, 100) == content[-10:]
    assert store.read_range(key, 100_000, 1) == b""
    with pytest.raises(ObjectMissing, match="nothing"):
        store.read_range(f"{store.prefix}/nothing", 0, 10)


def test_quick_reads_return_what_the_store_returns(store: Store, endpoint: S3Endpoint) -> None:
    content, key = os.urandom(100_000), f"{store.prefix}/object"
    store.create_if_absent(key, content)
    reads = QuickReads(store, endpoint)
    assert bytes(reads.read(key)) == content
    assert bytes(reads.read_range(key, 70_000, 20_000)) == content[70_000:90_000]
    assert bytes(reads.read_range(key, 99_990, 100)) == content[-10:]
    assert bytes(reads.read_range(key, 100_000, 1)) == b""


def test_quick_reads_raise_what_the_store_raises(store: Store, endpoint: S3Endpoint) -> None:
    reads = QuickReads(store, endpoint)
    with pytest.raises(ObjectMissing, match="nothing"):
        reads.read(f"{store.prefix}/nothing")
    with pytest.raises(ObjectMissing, match="nothing"):
        reads.read_range(f"{store.prefix}/nothing", 0, 10)
    stranger = endpoint.model_copy(update={"secret_key": "another"})
    with Store(stranger, store.bucket, store.prefix) as refused, pytest.raises(ConfigError, match="SignatureDoesNot"):
        QuickReads(refused, stranger).read(f"{store.prefix}/nothing")


def test_failed_quick_read_is_repeated_by_the_store(store: Store, endpoint: S3Endpoint) -> None:
    content, key = os.urandom(1000), f"{store.prefix}/object"
    store.create_if_absent(key, content)
    nowhere = endpoint.model_copy(update={"endpoint_url": "http://127.0.0.1:9"})
    reads = QuickReads(store, nowhere)
    assert reads.read(key) == content
    assert reads.read_range(key, 10, 20) == content[10:30]


def test_large_run_is_written_read_and_searched(store: Store) -> None:
    written = random_entries(COUNT)
    prefix = key_index_prefix(store.prefix, "flights", 0, "11111111-2222-3333-4444-555555555555")
    run = write_run(store, prefix, 0, (1, 4), written)
    assert run.bytes > PART_BYTES
    assert list(store.keys(prefix)) == [run.filter_path, run.path]

    asked = np.arange(5, COUNT, 40_000)
    others = random_entries(1_000)
    found = find_in_run(
        store, run, np.append(written.hi[asked], others.hi), np.append(written.tail[asked], others.tail)
    )
    assert found.index.tolist() == list(range(len(asked)))
    for name in ("arrived_ms", "tp", "offset"):
        assert np.array_equal(getattr(found, name), getattr(written, name)[asked])

    everything = read_run(store, run)
    for name in ("hi", "tail", "arrived_ms", "tp", "offset"):
        assert np.array_equal(getattr(everything, name), getattr(written, name))


def test_missing_or_truncated_run_raises_index_damaged(store: Store) -> None:
    prefix = key_index_prefix(store.prefix, "flights", 0, "11111111-2222-3333-4444-555555555555")
    written = random_entries(200_000)
    run = write_run(store, prefix, 0, (1, 1), written)
    content = store.read(run.path)
    store.remove(run.path)
    with pytest.raises(IndexDamaged, match="it is missing"):
        find_in_run(store, run, written.hi[:1], written.tail[:1])
    store.create_if_absent(run.path, content[:1_000_000])
    with pytest.raises(IndexDamaged, match="bytes instead of"):
        find_in_run(store, run, written.hi[:1], written.tail[:1])
