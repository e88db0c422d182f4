"""Streams and shards: pages, the age of the list of shards, names and ARNs, the connection."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from fake_kinesis import FIRST_SEQUENCE, SHARD, STREAM, FakeKinesis, error

from waybill.base.errors import ConfigError, KinesisUnavailable
from waybill.config.connections import Connection, KinesisEndpoint
from waybill.services.kinesis import KinesisSource

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


def shard_fields(number: int, **more: Any) -> dict[str, Any]:
    return {
        "ShardId": f"shardId-{number:012}",
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
        "SequenceNumberRange": {"StartingSequenceNumber": str(FIRST_SEQUENCE)},
        "FieldOfTheFuture": {},
        **more,
    }


def test_a_stream_is_described() -> None:
    described = FakeKinesis().source().describe(STREAM)
    assert described.name == STREAM
    assert described.created_ms == 1_767_312_000_000
    assert described.retention == timedelta(hours=48)
    assert (described.open_shards, described.encryption_type, described.status) == (1, "KMS", "ACTIVE")


def test_a_missing_stream_is_named_with_the_remedy() -> None:
    kinesis = FakeKinesis()
    kinesis.inject("DescribeStreamSummary", error("ResourceNotFoundException"))
    with pytest.raises(ConfigError, match=r"stream 'orders' does not exist.*connection 'aws_kinesis'"):
        kinesis.source().describe(STREAM)


def test_all_pages_of_streams_are_listed() -> None:
    kinesis = FakeKinesis()
    kinesis.inject("ListStreams", {"StreamNames": ["b", "a"], "HasMoreStreams": True, "NextToken": "t"})
    kinesis.inject("ListStreams", {"StreamNames": ["c"], "HasMoreStreams": True})
    assert kinesis.source().list_streams() == ["a", "b", "c", STREAM]
    assert [arguments for _, arguments in kinesis.calls] == [{}, {"NextToken": "t"}, {"ExclusiveStartStreamName": "c"}]


def test_all_pages_of_shards_are_listed() -> None:
    kinesis = FakeKinesis()
    child = shard_fields(1, ParentShardId=SHARD, AdjacentParentShardId="shardId-000000000009")
    kinesis.inject("ListShards", {"Shards": [child], "NextToken": "t"})
    shards = kinesis.source().list_shards(STREAM)
    assert sorted(shards) == [SHARD, "shardId-000000000001"]
    assert shards["shardId-000000000001"].parents == (SHARD, "shardId-000000000009")
    assert [arguments for _, arguments in kinesis.calls] == [{"StreamName": STREAM}, {"NextToken": "t"}]


def test_an_expired_page_starts_the_list_anew() -> None:
    kinesis = FakeKinesis()
    for _ in range(2):
        kinesis.inject("ListShards", {"Shards": [shard_fields(7)], "NextToken": "t"})
        kinesis.inject("ListShards", error("ExpiredNextTokenException"))
    assert sorted(kinesis.source().list_shards(STREAM)) == [SHARD]
    kinesis.inject("ListShards", *[error("ExpiredNextTokenException")] * 3)
    with pytest.raises(KinesisUnavailable, match="expired 3 times"):
        kinesis.source().list_shards(STREAM)


def test_a_new_shard_is_noticed_within_a_minute() -> None:
    kinesis = FakeKinesis()
    source = kinesis.source()
    for _ in range(10):
        assert not source.list_shards(STREAM)[SHARD].is_closed
    assert kinesis.count("ListShards") == 1
    kinesis.closed = True
    kinesis.time += 30
    assert source.list_shards(STREAM)[SHARD].is_closed
    assert kinesis.count("ListShards") == 2
    source.list_shards(STREAM, fresh=True)
    assert kinesis.count("ListShards") == 3


def test_a_throttled_list_is_asked_for_again() -> None:
    kinesis = FakeKinesis()
    kinesis.inject("ListShards", error("LimitExceededException"), error("ResourceInUseException"), {})
    assert sorted(kinesis.source().list_shards(STREAM)) == [SHARD]
    assert len(kinesis.slept) == 3


def test_a_shard_that_lacks_a_field_is_a_named_error() -> None:
    kinesis = FakeKinesis()
    kinesis.inject("ListShards", {"Shards": [{"ShardId": "x"}]})
    with pytest.raises(KinesisUnavailable, match="lacks 'HashKeyRange'"):
        kinesis.source().list_shards(STREAM)


def test_an_arn_is_passed_as_such_and_chooses_the_region() -> None:
    kinesis = FakeKinesis()
    source = kinesis.source()
    source.list_shards(ARN)
    assert kinesis.calls[0][1] == {"StreamARN": ARN}
    with KinesisSource(KinesisEndpoint(region="us-east-1", access_key="k", secret_key="s")) as real:
        assert real.calls(ARN).client.meta.region_name == "eu-west-1"
        assert real.calls(STREAM).client.meta.region_name == "us-east-1"


def test_the_connection_may_have_an_endpoint_for_kinesis_alone() -> None:
    extra = {
        "region_name": "eu-central-1",
        "endpoint_url": "http://s3.local",
        "role_arn": "arn:aws:iam::123456789012:role/reader",
    }
    conn = Connection(conn_id="aws", login="k", password="s", extra=extra)
    endpoint = KinesisEndpoint.of(conn)
    assert (endpoint.endpoint_url, endpoint.region) == ("http://s3.local", "eu-central-1")
    assert endpoint.role is not None
    own = {**extra, "service_config": {"kinesis": {"endpoint_url": "http://kinesis.local"}}}
    assert KinesisEndpoint.of(conn.model_copy(update={"extra": own})).endpoint_url == "http://kinesis.local"
    wrong = {"service_config": {"kinesis": {"endpoint_url": "kinesis.local"}}}
    with pytest.raises(ConfigError, match=r"service_config\.kinesis\.endpoint_url"):
        KinesisEndpoint.of(conn.model_copy(update={"extra": wrong}))
