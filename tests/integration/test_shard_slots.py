"""Shards are assigned to slots with a real S3 and a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from devstack import Stack
from waybill.archive.ingest.kinesis.shard_starts import find_stream_origin, list_shard_starts
from waybill.archive.ingest.kinesis.slot_assignment import (
    ExtendedMap,
    ShardListing,
    StreamStart,
    check_checkpoint,
    extend_map,
)
from waybill.base.errors import ConfigError, DocumentDamaged, ShardNotOwned, StreamRecreated
from waybill.config import names
from waybill.config.connections import S3Endpoint, ZooKeeperEndpoint
from waybill.records.shards.checkpoint import Checkpoint, PositionKind, ShardPosition
from waybill.records.shards.lineage import Shard
from waybill.records.shards.slot_map import SlotMap
from waybill.services.coordination import Coordinator, ZkPaths, ZooKeeperSession
from waybill.services.coordination.shard_map import read_slot_map_copy, write_slot_map_copy
from waybill.services.store import Store

pytestmark = pytest.mark.integration

ENDED = ShardPosition.trim_horizon().after("5").at_shard_end()


def shard(shard_id: str, *parents: str, closed: bool = False) -> Shard:
    return Shard(shard_id, 0, 9, "1", "9" if closed else "", *parents)


class Plans:
    """Plans of one stream of its own."""

    def __init__(self, store: Store, coordinator: Coordinator, topic: str) -> None:
        self.store, self.coordinator, self.topic = store, coordinator, topic
        self.shards = [shard("s0"), shard("s1")]
        self.checkpoints: dict[int, Checkpoint] = {}
        self.creation_id = "arn/1"

    @property
    def path(self) -> str:
        return self.coordinator.paths.slot_map(self.topic)

    def run(self, slots: int = 3) -> ExtendedMap:
        return extend_map(
            self.store,
            self.coordinator,
            self.topic,
            slots,
            start=StreamStart(PositionKind.AT_TIMESTAMP),
            list_shards=self._list,
            read_checkpoints=self._read,
            clock=lambda: 1_000.0,
        )

    def _list(self) -> ShardListing:
        return ShardListing({each.shard_id: each for each in self.shards}, self.creation_id, timedelta(days=1))

    def _read(self, slots: Collection[int]) -> dict[int, Checkpoint]:
        return {slot: self.checkpoints.get(slot, Checkpoint()) for slot in slots}

    def split(self) -> None:
        """s0 is closed and archived to its end. Its children are listed."""
        self.shards = [shard("s0", closed=True), shard("s1"), shard("s2", "s0"), shard("s3", "s0")]
        self.checkpoints[0] = Checkpoint({"s0": ENDED})


@pytest.fixture
def plans(stack: Stack, topic_name: str) -> Iterator[Plans]:
    endpoint = S3Endpoint(
        endpoint_url=stack.s3_endpoint_url, access_key=stack.s3_access_key, secret_key=stack.s3_secret_key
    )
    session = ZooKeeperSession(ZooKeeperEndpoint(hosts=stack.zookeeper_hosts, chroot="tests/slots"))
    with Store(endpoint, stack.bucket, topic_name) as store, session:
        yield Plans(store, Coordinator(session, ZkPaths(topic_name, "s", 1)), topic_name)


def slots_of(slot_map: SlotMap) -> dict[str, int]:
    return {shard_id: each.slot for shard_id, each in slot_map.assignments.items()}


def test_the_first_plan_records_the_origin_and_children_follow_their_parents(plans: Plans) -> None:
    assert slots_of(plans.run().slot_map) == {"s0": 0, "s1": 1}
    plans.split()
    done = plans.run()
    assert slots_of(done.slot_map) == {"s0": 0, "s1": 1, "s2": 0, "s3": 2}
    assert [each.shard_id for each in done.added] == ["s2", "s3"]
    assert {each.shard_id: each.start.kind.value for each in done.slot_map.assignments.values()} == {
        "s0": "at_timestamp",
        "s1": "at_timestamp",
        "s2": "trim_horizon",
        "s3": "trim_horizon",
    }
    assert find_stream_origin(plans.store, plans.topic, 1) == done.slot_map.origin
    assert {each.shard_id: each for each in list_shard_starts(plans.store, plans.topic, 1)} == done.slot_map.assignments
    assert read_slot_map_copy(plans.coordinator.session, plans.coordinator.paths, plans.topic).slot_map == done.slot_map


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"v":1,"map":"AAAA"}', b'{"v":1,"map":7}'])
def test_a_missing_or_damaged_copy_is_rebuilt_from_the_archive(plans: Plans, content: bytes | None) -> None:
    plans.run()
    plans.split()
    before = plans.run().slot_map
    session = plans.coordinator.session
    if content is None:
        session.delete(plans.path, "wipe")
    else:
        session.put(plans.path, content, "damage")
    done = plans.run()
    assert (done.slot_map, done.added) == (before, ())
    assert read_slot_map_copy(session, plans.coordinator.paths, plans.topic).slot_map == before


def test_an_old_copy_does_not_move_a_shard(plans: Plans) -> None:
    old = plans.run().slot_map
    plans.split()
    before = plans.run().slot_map
    session, paths = plans.coordinator.session, plans.coordinator.paths
    version = read_slot_map_copy(session, paths, plans.topic).version
    assert write_slot_map_copy(session, paths, plans.topic, old, version) == version + 1
    assert write_slot_map_copy(session, paths, plans.topic, old, version) is None
    plans.checkpoints[1] = Checkpoint({"s1": ENDED})  # slot 1 is free now, and would be chosen for s3
    assert plans.run().slot_map == before


def test_plans_at_the_same_time_agree(plans: Plans) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = [each.result().slot_map for each in [pool.submit(plans.run) for _ in range(8)]]
    assert all(each == found[0] for each in found)
    assert plans.run().slot_map == found[0]


def test_a_recreated_stream_is_refused(plans: Plans) -> None:
    plans.run()
    plans.creation_id = "arn/2"
    with pytest.raises(StreamRecreated, match="was recreated"):
        plans.run()


def test_fewer_slots_than_open_shards_need_are_refused(plans: Plans) -> None:
    plans.run()
    with pytest.raises(ConfigError, match=r"1 slots are configured, but slot 1 holds s1.*at least 2"):
        plans.run(slots=1)
    assert plans.run(slots=7).added == ()


def test_a_lane_with_an_old_map_reads_the_stored_assignment_before_it_refuses(plans: Plans) -> None:
    old = plans.run().slot_map
    plans.split()
    new = plans.run().slot_map
    checkpoint = Checkpoint({"s0": ENDED, "s2": ShardPosition.trim_horizon()})
    found = check_checkpoint(plans.store, old, plans.topic, 1, 0, checkpoint)
    assert found.assignments["s2"] == new.assignments["s2"]
    with pytest.raises(ShardNotOwned, match="slot 0 names s3, which is assigned to slot 2"):
        check_checkpoint(plans.store, old, plans.topic, 1, 0, checkpoint.moved("s3", ENDED))
    with pytest.raises(ShardNotOwned, match="assigned to no slot"):
        check_checkpoint(plans.store, old, plans.topic, 1, 0, checkpoint.moved("s9", ENDED))


def test_a_lost_or_damaged_origin_stops_the_plan(plans: Plans) -> None:
    plans.run()
    key = names.stream_origin_key(plans.store.prefix, plans.topic, 1)
    plans.store.replace(key, b'{"v":1}')
    with pytest.raises(DocumentDamaged, match=r"not a valid origin of a stream.*restore it"):
        plans.run()
    plans.store.remove_if_exists(key)
    with pytest.raises(DocumentDamaged, match="is missing, but ZooKeeper node"):
        plans.run()
