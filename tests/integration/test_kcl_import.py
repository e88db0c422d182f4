"""The archive of a Kinesis stream starts where a consumer with the Kinesis Client Library stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3
import pytest
from kinesis_scenes import KinesisStream
from moto.server import ThreadedMotoServer

from devstack.kinesis import REGION
from waybill.archive.ingest.kinesis.kcl_import import ShardImport, import_leases, propose_lease_imports
from waybill.archive.ingest.kinesis.shard_starts import find_stream_origin
from waybill.base.decision import Decision
from waybill.base.errors import ConfigError, GapRefused
from waybill.config.connections import find_connection
from waybill.config.names import TopicPartition
from waybill.records.shards.checkpoint import PositionKind
from waybill.services.kinesis.kcl_leases import Lease, read_leases

if TYPE_CHECKING:
    from ingest_scenes import Archive

    from devstack import Stack

STREAM = "drill"


@pytest.fixture(scope="module")
def dynamodb_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def kinesis(
    stack: Stack, topic_name: str, dynamodb_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KinesisStream]:
    config = {"dynamodb": {"endpoint_url": dynamodb_url}}
    with KinesisStream.connected(stack, topic_name, monkeypatch, service_config=config) as stream:
        yield stream


@pytest.fixture
def archive(stack: Stack, kinesis: KinesisStream) -> Archive:
    from ingest_scenes import Archive

    section = {"connection": "kinesis_test", "slots": 3}
    stream = {"source": "kinesis", "kinesis": section, "parser": {"name": "raw"}, "upload": {"max_age": "0s"}}
    return Archive(stack, kinesis.name, [kinesis.name], stream)


def put_leases(url: str, table: str, leases: dict[str, tuple[str, int]]) -> None:
    """Create a lease table as KCL 2 does."""
    client = boto3.client(
        "dynamodb", endpoint_url=url, region_name=REGION, aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for key, (checkpoint, sub_sequence) in leases.items():
        item = {
            "leaseKey": {"S": key},
            "checkpoint": {"S": checkpoint},
            "checkpointSubSequenceNumber": {"N": str(sub_sequence)},
            "leaseCounter": {"N": "17"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
        }
        client.put_item(TableName=table, Item=item)
    client.close()


def imported(archive: Archive, topic: str, leases: list[Lease]) -> list[ShardImport]:
    with archive.services() as services:
        proposals = propose_lease_imports(services, topic, leases)
        import_leases(services, archive.config.stream(STREAM), topic, proposals, Decision("imported", "tester"))
    return proposals


def values(archive: Archive, topic: str) -> list[bytes]:
    return sorted(each.value or b"" for slot in range(3) for each in archive.messages(TopicPartition(topic, slot)))


def test_each_shard_goes_on_behind_its_checkpoint(kinesis: KinesisStream, archive: Archive, dynamodb_url: str) -> None:
    first, second = kinesis.open_shards()
    puts = kinesis.put((f"key-{number}", b"%03d" % number) for number in range(40))
    kinesis.split(first)
    puts += kinesis.put((f"key-{number}", b"%03d" % number) for number in range(40, 80))
    left = kinesis.open_shards()[0]
    of_second = [put for put in puts if put.shard_id == second]
    put_leases(
        dynamodb_url,
        kinesis.name,
        {first: ("SHARD_END", 0), second: (of_second[4].sequence, 0), left: ("TRIM_HORIZON", 0)},
    )
    leases = read_leases(find_connection("kinesis_test"), kinesis.name)
    assert [each.shard_id for each in leases] == sorted([first, second, left])
    imported(archive, kinesis.name, leases)
    for _ in range(2):
        archive.run()
    wanted = [put.data for put in puts if put.shard_id != first and put not in of_second[:5]]
    assert values(archive, kinesis.name) == sorted(wanted)
    with archive.store() as store:
        origin = find_stream_origin(store, kinesis.name, 1)
    assert origin is not None
    assert origin.imported.startswith("imported (by tester, 20")


def test_an_aggregate_that_was_read_in_part_is_archived_again_whole(kinesis: KinesisStream, archive: Archive) -> None:
    from aws_kinesis_agg.aggregator import RecordAggregator

    aggregator = RecordAggregator()
    for number in range(5):
        aggregator.add_user_record("key", b"%d" % number)
    key, _, data = aggregator.clear_and_get().get_contents()
    answer = kinesis.client.put_record(StreamName=kinesis.name, PartitionKey=key, Data=data)
    shard_id, sequence = answer["ShardId"], answer["SequenceNumber"]
    with archive.services() as services:
        [whole] = [
            each
            for each in propose_lease_imports(services, kinesis.name, [Lease(shard_id, sequence, 4)])
            if each.shard_id == shard_id
        ]
    assert whole.position is not None
    assert (whole.position.kind, whole.repeated) == (PositionKind.AFTER_SEQUENCE, 0)
    found = {each.shard_id: each for each in imported(archive, kinesis.name, [Lease(shard_id, sequence, 1)])}
    assert found[shard_id].repeated == 2
    archive.run()
    assert values(archive, kinesis.name) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_shard_whose_lease_was_removed_is_not_read_again(kinesis: KinesisStream, archive: Archive) -> None:
    """The library removes the lease of a shard when its children are read."""
    parent = kinesis.open_shards()[0]
    kinesis.put((f"key-{number}", b"old") for number in range(20))
    kinesis.split(parent)
    leases = [Lease(each, "TRIM_HORIZON", 0) for each in kinesis.open_shards()[:2]]
    found = {each.shard_id: each for each in imported(archive, kinesis.name, leases)}
    position = found[parent].position
    assert position is not None
    assert position.is_ended


def test_an_import_is_refused_when_the_archive_has_begun_or_the_table_is_another_ones(
    kinesis: KinesisStream, archive: Archive
) -> None:
    with archive.services() as services, pytest.raises(ConfigError, match="lists none of the 1 shards"):
        propose_lease_imports(services, kinesis.name, [Lease("shardId-000000000099", "TRIM_HORIZON", 0)])
    with pytest.raises(ConfigError, match="no table 'nothing'"):
        read_leases(find_connection("kinesis_test"), "nothing")
    archive.run()
    with archive.services() as services, pytest.raises(GapRefused, match="has begun"):
        propose_lease_imports(services, kinesis.name, [Lease(kinesis.open_shards()[0], "TRIM_HORIZON", 0)])
