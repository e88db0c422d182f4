"""Kinesis as a source, on an emulator: every record once and in lineage order, also through bad answers."""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from chaos.kinesis_proxy import KinesisEffect, KinesisProxy
from kinesis_server import FilledStream, kinesis_client, kinesis_endpoint, kinesis_server, put_with_kpl

from devstack.kinesis import KinesisEmulator
from waybill.base.errors import ConfigError, KinesisUnavailable
from waybill.records.batches.decode import decode
from waybill.records.shards.checkpoint import Checkpoint, ShardPosition
from waybill.records.shards.lineage import parents_first
from waybill.services.kinesis import KinesisSource, ShardLimits, ShardReader
from waybill.services.kinesis.messages import encode_records

FAST = ShardLimits(calls_per_second=math.inf, bytes_per_second=math.inf)
MESSAGE = tuple[bytes | None, bytes | None, dict[str, bytes]]

PASSING = [
    KinesisEffect.EXPIRED_ITERATOR,
    KinesisEffect.THROTTLED,
    KinesisEffect.ERROR_500,
    KinesisEffect.NO_BODY_500,
    KinesisEffect.CUT,
    KinesisEffect.TRUNCATED,
    KinesisEffect.EMPTY_BODY,
    KinesisEffect.NO_ANSWER,
    KinesisEffect.RESET,
    KinesisEffect.EMPTY_BELOW_TIP,
    KinesisEffect.UNKNOWN_FIELDS,
    KinesisEffect.REPEATED,
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KinesisEmulator]:
    with kinesis_server(tmp_path_factory.mktemp("kinesis") / "server") as emulator:
        yield emulator


@pytest.fixture(scope="module")
def kinesis_url(emulator: KinesisEmulator) -> str:
    return emulator.endpoint_url


@pytest.fixture(scope="module")
def client(kinesis_url: str) -> Any:
    return kinesis_client(kinesis_url)


@pytest.fixture
def stream(client: Any) -> FilledStream:
    return FilledStream(client, f"orders-{uuid.uuid4().hex[:8]}", shards=2)


@pytest.fixture
def proxy(kinesis_url: str) -> Iterator[KinesisProxy]:
    with KinesisProxy(kinesis_url) as proxy:
        yield proxy


def archive(source: KinesisSource, stream: str, checkpoint: Checkpoint, messages: list[MESSAGE]) -> Checkpoint:
    """Read all shards from the checkpoint on, parents first, and append the decoded messages."""
    shards = source.list_shards(stream, fresh=True)
    for shard in parents_first(shards):
        position = checkpoint.position(shard.shard_id) or ShardPosition.trim_horizon()
        for read in ShardReader(source, stream, shard.shard_id, limits=FAST, max_records=7).read(position):
            encoded = encode_records(read.records, shard, len(messages))
            for batch in decode(encoded.data, where=shard.shard_id):
                for row in batch.to_pylist():
                    assert row["offset"] == len(messages)
                    headers = {each["key"]: each["value"] for each in row["headers"]}
                    messages.append((row["key"], row["value"], headers))
            checkpoint = checkpoint.moved(shard.shard_id, read.position)
    return checkpoint


def check(messages: list[MESSAGE], stream: FilledStream) -> None:
    """Check that each record is there once, and those of a partition key in their order."""
    assert sorted(value or b"" for _, value, _ in messages) == sorted(data for _, data in stream.put_values)
    found, expected = defaultdict(list), defaultdict(list)
    for key, value, _ in messages:
        found[key].append(value)
    for name, data in stream.put_values:
        expected[name.encode()].append(data)
    assert found == expected


def test_each_record_is_read_once_over_splits_and_merges(kinesis_url: str, stream: FilledStream) -> None:
    messages: list[MESSAGE] = []
    with KinesisSource(kinesis_endpoint(kinesis_url)) as source:
        first, second = (shard["ShardId"] for shard in stream.shards())
        stream.put(20)
        checkpoint = archive(source, stream.name, Checkpoint(), messages)
        assert len(messages) == 20
        stream.put(10)
        stream.split(first)
        stream.put(20)
        lower, upper = (s.shard_id for s in source.list_shards(stream.name, fresh=True).values() if s.parent_id)
        checkpoint = archive(source, stream.name, checkpoint, messages)
        ended = checkpoint.position(first)
        assert ended is not None
        assert ended.is_ended
        stream.put(5)
        stream.merge(upper, second)
        stream.put(20)
        stream.split(lower)
        stream.put(20)
        checkpoint = archive(source, stream.name, checkpoint, messages)
        check(messages, stream)
        # A pass without news adds nothing, and a reader that begins anew reads the same.
        before = len(messages)
        again = archive(source, stream.name, checkpoint, messages)
        assert len(messages) == before
        assert {k: (p.kind, p.sequence) for k, p in again.positions.items()} == {
            k: (p.kind, p.sequence) for k, p in checkpoint.positions.items()
        }
        anew: list[MESSAGE] = []
        archive(source, stream.name, Checkpoint(), anew)
        check(anew, stream)


def test_streams_are_described_by_name_and_arn(kinesis_url: str, stream: FilledStream) -> None:
    with KinesisSource(kinesis_endpoint(kinesis_url)) as source:
        assert stream.name in source.list_streams()
        described = source.describe(stream.name)
        assert source.describe(described.arn) == described
        assert described.open_shards == 2
        assert described.retention.total_seconds() == 24 * 3600
        stream.put(3)
        messages: list[MESSAGE] = []
        archive(source, described.arn, Checkpoint(), messages)
        check(messages, stream)
        with pytest.raises(ConfigError, match="stream 'missing' does not exist"):
            source.describe("missing")


def test_aggregates_and_encrypted_records(kinesis_url: str, client: Any, stream: FilledStream) -> None:
    aggregator = RecordAggregator()
    for number in range(5):
        aggregator.add_user_record(f"user-{number % 2}", b"%d" % number)
    packed = aggregator.clear_and_get().get_contents()[2]
    client.put_record(StreamName=stream.name, PartitionKey="a", Data=packed)
    client.put_record(StreamName=stream.name, PartitionKey="a", Data=packed[:-1] + b"\0")
    client.start_stream_encryption(StreamName=stream.name, EncryptionType="KMS", KeyId="alias/aws/kinesis")
    stream.wait()
    client.put_record(StreamName=stream.name, PartitionKey="a", Data=b"secret")
    messages: list[MESSAGE] = []
    with KinesisSource(kinesis_endpoint(kinesis_url)) as source:
        assert source.describe(stream.name).encryption_type == "KMS"
        archive(source, stream.name, Checkpoint(), messages)
    assert [value for _, value, _ in messages] == [b"0", b"1", b"2", b"3", b"4", packed[:-1] + b"\0", b"secret"]
    assert [h.get("kinesis.sub_sequence_number") for _, _, h in messages[:6]] == [b"0", b"1", b"2", b"3", b"4", None]
    assert messages[5][2]["kinesis.damaged_aggregate"] == b"its MD5 is wrong"
    assert messages[6][2]["kinesis.encryption_type"] == b"KMS"


@pytest.mark.deep
def test_records_of_the_kinesis_producer_library(emulator: KinesisEmulator, stream: FilledStream) -> None:
    """The library itself, in Java, aggregates: its user records come once, with their keys."""
    count = 2000
    put_with_kpl(emulator, stream.name, count)
    messages: list[MESSAGE] = []
    with KinesisSource(kinesis_endpoint(emulator.endpoint_url)) as source:
        archive(source, stream.name, Checkpoint(), messages)
    by_number = {int(value or b""): (key, headers) for key, value, headers in messages}
    assert len(messages) == len(by_number) == count
    assert sum("kinesis.sub_sequence_number" in headers for _, headers in by_number.values()) > count // 2
    for number, (key, headers) in by_number.items():
        assert "kinesis.damaged_aggregate" not in headers
        assert "kinesis.outside_shard" not in headers
        if "kinesis.sub_sequence_number" in headers:
            assert key == b"key-%d" % (number % 7)
            expected = b"%d" % (number << 116) if number % 3 == 0 else None
            assert headers.get("kinesis.explicit_hash_key") == expected


@pytest.mark.parametrize("effect", PASSING)
def test_a_bad_answer_neither_loses_nor_repeats(effect: KinesisEffect, proxy: KinesisProxy, client: Any) -> None:
    stream = FilledStream(client, f"orders-{uuid.uuid4().hex[:8]}", shards=1)
    stream.put(20)
    messages: list[MESSAGE] = []
    with KinesisSource(kinesis_endpoint(proxy.endpoint_url)) as source:
        checkpoint = archive(source, stream.name, Checkpoint(), messages)
        messages.clear()
        proxy.hurt("GetRecords", effect)
        archive(source, stream.name, Checkpoint(), messages)
        check(messages, stream)
        stream.put(15)
        stream.split("shardId-000000000000")
        stream.put(5)
        proxy.hurt("GetRecords", effect, effect)
        archive(source, stream.name, checkpoint, messages)
        check(messages, stream)
    assert not proxy.pending


@pytest.mark.parametrize("action", ["ListShards", "GetShardIterator", "DescribeStreamSummary"])
@pytest.mark.parametrize("effect", [KinesisEffect.CUT, KinesisEffect.TRUNCATED, KinesisEffect.ERROR_500])
def test_a_bad_answer_to_another_call(
    action: str, effect: KinesisEffect, proxy: KinesisProxy, stream: FilledStream
) -> None:
    stream.put(4)
    proxy.hurt(action, effect)
    messages: list[MESSAGE] = []
    with KinesisSource(kinesis_endpoint(proxy.endpoint_url)) as source:
        source.describe(stream.name)
        archive(source, stream.name, Checkpoint(), messages)
    check(messages, stream)
    assert not proxy.pending


def test_a_lost_iterator_does_not_end_an_open_shard(proxy: KinesisProxy, stream: FilledStream) -> None:
    stream.put(4)
    proxy.hurt("GetRecords", KinesisEffect.NO_NEXT_ITERATOR)
    with (
        KinesisSource(kinesis_endpoint(proxy.endpoint_url)) as source,
        pytest.raises(KinesisUnavailable, match="lists the shard as open"),
    ):
        archive(source, stream.name, Checkpoint(), [])


def test_denied_access_names_the_stream_and_the_action(proxy: KinesisProxy, stream: FilledStream) -> None:
    proxy.hurt("GetRecords", KinesisEffect.ACCESS_DENIED)
    with (
        KinesisSource(kinesis_endpoint(proxy.endpoint_url)) as source,
        pytest.raises(ConfigError, match=f"{stream.name}.*kinesis:GetRecords.*connection 'aws_kinesis'"),
    ):
        archive(source, stream.name, Checkpoint(), [])
