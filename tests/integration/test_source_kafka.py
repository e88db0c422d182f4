"""The Kafka source with real brokers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

import pytest
from ingest_scenes import Cluster

from devstack import Stack
from waybill.base.errors import KafkaUnavailable, LogTruncated, RetentionGap, TopicRecreated
from waybill.config.connections import KafkaEndpoint
from waybill.config.models import IsolationLevel
from waybill.config.names import TopicPartition
from waybill.records.batches.framing import check_crc
from waybill.services.kafka.cluster import Cluster as Brokers
from waybill.services.kafka.kafka import KafkaSource, LogRange
from waybill.services.kafka.log_directories import fetch_log_directories

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(stack: Stack) -> Cluster:
    return Cluster(stack.bootstrap_servers)


@pytest.fixture
def endpoint(stack: Stack) -> KafkaEndpoint:
    return KafkaEndpoint(bootstrap_servers=tuple(stack.bootstrap_servers.split(",")))


@pytest.fixture
def source(endpoint: KafkaEndpoint) -> Iterator[KafkaSource]:
    with KafkaSource(endpoint, retry_timeout=timedelta(seconds=5)) as source:
        yield source


@pytest.fixture
def tp(cluster: Cluster, topic_name: str) -> TopicPartition:
    cluster.create(topic_name)
    return TopicPartition(topic_name, 0)


def test_offsets_returns_the_log_ranges_of_many_topic_partitions(
    source: KafkaSource, cluster: Cluster, topic_name: str
) -> None:
    cluster.create(topic_name, partitions=6)
    tps = [TopicPartition(topic_name, number) for number in range(6)]
    for tp in tps[1:]:
        cluster.produce(tp, [(None, b"v")] * tp.partition)
    cluster.delete_records(tps[5], before=2)
    assert source.offsets(tps) == {tp: LogRange(2 if tp.partition == 5 else 0, tp.partition) for tp in tps}
    assert source.offsets([]) == {}
    assert topic_name in source.topics()
    assert uuid.UUID(source.topic(topic_name).topic_id).int


def test_end_is_the_last_stable_offset_under_read_committed(
    endpoint: KafkaEndpoint, source: KafkaSource, cluster: Cluster, tp: TopicPartition
) -> None:
    producer = cluster.producer(transactional_id=tp.topic)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(tp.topic, b"open", partition=0)
    producer.flush(20)
    assert source.offsets([tp])[tp].end == 0
    with KafkaSource(endpoint, IsolationLevel.READ_UNCOMMITTED) as uncommitted:
        assert uncommitted.offsets([tp])[tp].end == 1
    producer.abort_transaction(20)
    cluster.wait_for_markers(tp)
    assert source.offsets([tp])[tp].end == 2


def test_offset_at_returns_the_first_offset_from_a_time_on(
    source: KafkaSource, cluster: Cluster, tp: TopicPartition
) -> None:
    from waybill.records.batches.encode import Record

    for timestamp_ms in (1_000_000, 2_000_000):
        cluster.produce(tp, [Record(0, timestamp_ms, None, b"v")])
    assert [source.offset_at(tp, at) for at in (0, 1_000_000, 1_000_001, 2_000_001)] == [0, 0, 1, None]


def test_read_yields_whole_batches_in_order_up_to_the_end(
    endpoint: KafkaEndpoint, cluster: Cluster, tp: TopicPartition
) -> None:
    cluster.produce(tp, [(None, os.urandom(300_000)) for _ in range(40)])  # more than a fetch, batches larger than one
    with KafkaSource(endpoint, fetch_bytes=200_000) as source:
        read = []
        for chunk in source.read(tp, 5, 31):
            for frame in chunk.frames:
                check_crc(frame, chunk.where)
                assert chunk.data[frame.position : frame.position + len(frame.data)] == frame.data
            read += [(frame.header.base_offset, frame.header.next_offset) for frame in chunk.frames]
    assert read[0][0] <= 5 < read[0][1]
    assert all(a[1] == b[0] for a, b in pairwise(read))
    assert read[-1][1] >= 31 > read[-1][0]


def test_read_with_first_batch_only_yields_one_batch(source: KafkaSource, cluster: Cluster, tp: TopicPartition) -> None:
    for _ in range(5):
        cluster.produce(tp, [(None, b"v" * 100)])
    (chunk,) = source.read(tp, 1, 5, first_batch_only=True)
    assert [frame.header.base_offset for frame in chunk.frames] == [1]


def test_source_can_be_used_after_a_read_was_closed_early(
    source: KafkaSource, cluster: Cluster, tp: TopicPartition
) -> None:
    cluster.produce(tp, [(None, os.urandom(900_000)) for _ in range(20)])
    for _ in range(3):
        chunks = source.read(tp, 0, 20)
        assert next(chunks).frames[0].header.base_offset == 0
        chunks.close()
    assert source.offsets([tp])[tp] == LogRange(0, 20)


def test_read_before_the_log_raises_retention_gap(source: KafkaSource, cluster: Cluster, tp: TopicPartition) -> None:
    cluster.produce(tp, [(None, b"v")] * 10)
    cluster.delete_records(tp, before=4)
    with pytest.raises(RetentionGap, match="offsets 1–3"):
        list(source.read(tp, 1, 10))


def test_read_after_the_log_raises_log_truncated(source: KafkaSource, cluster: Cluster, tp: TopicPartition) -> None:
    cluster.produce(tp, [(None, b"v")] * 10)
    with pytest.raises(LogTruncated, match="ends at 10, before the committed offset 12"):
        list(source.read(tp, 12, 15))


def test_epoch_end_is_unknown_for_an_epoch_that_the_log_does_not_have(
    source: KafkaSource, cluster: Cluster, tp: TopicPartition
) -> None:
    cluster.produce(tp, [(None, b"v")] * 10)
    end = source.epoch_end(tp, 0)
    assert (end.leader_epoch, end.end_offset) == (0, 10)
    assert source.epoch_end(tp, 99).end_offset == -1


def test_read_of_a_recreated_topic_raises_topic_recreated(
    source: KafkaSource, cluster: Cluster, tp: TopicPartition
) -> None:
    cluster.produce(tp, [(None, b"old")] * 3)
    before = source.topic(tp.topic).topic_id
    cluster.delete(tp.topic)
    cluster.create(tp.topic)
    cluster.produce(tp, [(None, b"new")] * 10)
    with pytest.raises(TopicRecreated, match=before):
        list(source.read(tp, 3, 10, topic_id=before))


def test_offsets_of_a_topic_that_does_not_exist_fail_soon_with_its_name(source: KafkaSource) -> None:
    with pytest.raises(KafkaUnavailable, match="there is no topic 'no-such-topic'"):
        source.offsets([TopicPartition("no-such-topic", 0)])


def test_broker_that_has_left_the_cluster_is_one_that_does_not_answer(endpoint: KafkaEndpoint) -> None:
    """Another broker may still have listed it a moment ago, as a frozen one is listed until its session ends."""
    timeout = timedelta(seconds=5)
    with Brokers(endpoint, request_timeout=timeout, retry_timeout=timeout) as brokers:
        found = fetch_log_directories(brokers, [1, 2, 3, 99])
    assert {each.broker for each in found} == {1, 2, 3}


def test_connecting_without_a_broker_raises_kafka_unavailable() -> None:
    endpoint = KafkaEndpoint(bootstrap_servers=("127.0.0.1:1",))
    source = KafkaSource(endpoint, request_timeout=timedelta(seconds=1))
    with pytest.raises(KafkaUnavailable, match=r"Kafka at 127\.0\.0\.1:1: could not connect"), source:
        pass
