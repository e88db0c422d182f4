"""The coordinator with a real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from kazoo.client import KazooClient

from devstack import Stack
from waybill.base.errors import (
    CommitConflict,
    CoordinationUnavailable,
    DocumentDamaged,
    DocumentTooNew,
    LockHeld,
    RetentionGap,
)
from waybill.config.connections import ZooKeeperEndpoint
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset, Coordinator, ZkPaths, ZooKeeperSession

pytestmark = pytest.mark.integration

TP = TopicPartition("t", 0)


def connected(stack: Stack, root: str, chroot: str = "tests/coordination") -> Coordinator:
    endpoint = ZooKeeperEndpoint(hosts=stack.zookeeper_hosts, chroot=chroot)
    session = ZooKeeperSession(endpoint, timedelta(seconds=4))
    return Coordinator(session, ZkPaths(root, "s", 1), clock=lambda: 1_000.5)


@pytest.fixture
def one(stack: Stack, topic_name: str) -> Iterator[Coordinator]:
    with connected(stack, topic_name) as coordinator:
        yield coordinator


@pytest.fixture
def two(stack: Stack, topic_name: str) -> Iterator[Coordinator]:
    with connected(stack, topic_name) as coordinator:
        yield coordinator


def test_lock_belongs_to_one_lane_at_a_time(one: Coordinator, two: Coordinator) -> None:
    with one.lock(TP):
        with pytest.raises(LockHeld, match="t/0: another lane holds the lock"), two.lock(TP):
            pytest.fail("locked twice")
        with two.lock(TopicPartition("t", 1)):
            pass
    with two.lock(TP):
        pass


def test_write_committed_succeeds_only_over_the_version_that_was_read(one: Coordinator, two: Coordinator) -> None:
    assert one.read_committed(TP) is None
    first = one.write_committed(TP, CommittedOffset(10, "id", 3, 500, 5, 77), version=-1)
    assert first == CommittedOffset(10, "id", 3, 500, 5, 77, version=0)
    with pytest.raises(CommitConflict, match="t/0: the committed offset was moved"):
        two.write_committed(TP, CommittedOffset(11), version=-1)
    second = two.write_committed(TP, CommittedOffset(20), first.version)
    with pytest.raises(CommitConflict):
        one.write_committed(TP, CommittedOffset(30), first.version)
    assert one.read_committed(TP) == second


def test_write_committed_detects_that_its_own_first_try_succeeded(one: Coordinator) -> None:
    document = CommittedOffset(10, committed_at_ms=77)
    for version in (-1, 0):
        written = one.write_committed(TP, document, version)
        assert one.write_committed(TP, document, version) == written  # a retry after a lost answer


def test_write_committed_is_refused_after_the_node_was_deleted(one: Coordinator) -> None:
    written = one.write_committed(TP, CommittedOffset(10), version=-1)
    one.session.client.delete(one.session.full_path(one.paths.committed_offset(TP)))
    with pytest.raises(CommitConflict):
        one.write_committed(TP, CommittedOffset(20), written.version)


def test_list_committed_returns_all_committed_offsets(one: Coordinator) -> None:
    tps = [TopicPartition(topic, partition) for topic in ("a", "b") for partition in range(3)]
    for offset, tp in enumerate(tps):
        one.write_committed(tp, CommittedOffset(offset), version=-1)
    assert {tp: found.committed_offset for tp, found in one.list_committed().items()} == dict(
        zip(tps, range(6), strict=True)
    )
    assert one.read_all_committed([tps[3], TP]) == {tps[3]: one.read_committed(tps[3])}


def test_first_partition_count_is_recorded_once(one: Coordinator, two: Coordinator) -> None:
    assert one.first_partition_count("t", 3) == 3
    assert two.first_partition_count("t", 5) == 3
    one.write_committed(TopicPartition("rebuilt", 0), CommittedOffset(7), version=-1)
    assert one.first_partition_count("rebuilt", 2) == 0


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b'{"v":2,"committed_offset":1}', DocumentTooNew, "newer Waybill .document version 2"),
        (b"17", DocumentDamaged, "does not hold a document of Waybill's"),
        (b"\xff", DocumentDamaged, "Delete the node"),
        (b'{"v":1}', DocumentDamaged, "KeyError: 'committed_offset'"),
    ],
)
def test_read_committed_refuses_a_damaged_or_newer_node(
    one: Coordinator, data: bytes, error: type[Exception], message: str
) -> None:
    path = one.session.full_path(one.paths.committed_offset(TP))
    one.session.client.create(path, data, makepath=True)
    with pytest.raises(error, match=message):
        one.read_committed(TP)
    assert one.session.client.get(path)[0] == data


def test_journal_keeps_stops_with_figures_until_they_are_cleared(one: Coordinator, two: Coordinator) -> None:
    assert one.list_stops() == []
    for _ in range(2):
        one.record_stop(TP, RetentionGap("t", 0, 100, 250))
    (stop,) = two.list_stops()
    assert (stop.tp, stop.error, stop.stopped_at_ms) == (TP, "RetentionGap", 1_000_500)
    assert stop.figures == {
        "topic": "t",
        "partition": 0,
        "committed_offset": 100,
        "earliest_offset": 250,
        "messages_at_most": 150,
    }
    assert "offsets 100–249" in stop.message
    assert not two.clear_stop(TP, named=False)
    assert two.clear_stop(TP, unexpected=False)
    assert not one.clear_stop(TP)
    assert one.list_stops() == []


def test_coordinator_writes_nothing_after_its_session_ended(stack: Stack, one: Coordinator, two: Coordinator) -> None:
    with one.lock(TP):
        end_session(stack, one)
        with pytest.raises(CoordinationUnavailable, match=r"session at .* has ended"):
            one.write_committed(TP, CommittedOffset(10), version=-1)
    assert two.read_committed(TP) is None
    with two.lock(TP):
        pass


def end_session(stack: Stack, coordinator: Coordinator) -> None:
    """Close the session from another connection. The coordinator sees it expire, as when a lane sleeps too long."""
    closer = KazooClient(hosts=stack.zookeeper_hosts, client_id=coordinator.session.client.client_id)
    closer.start(10)
    closer.stop()
    closer.close()
    deadline = time.monotonic() + 10
    while not coordinator.session.lost:
        assert time.monotonic() < deadline
        time.sleep(0.01)
