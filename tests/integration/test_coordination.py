"""The coordinator against a real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from kazoo.client import KazooClient

from devstack import Stack
from waybill.connections import ZooKeeperEndpoint
from waybill.coordination import Committed, Coordinator
from waybill.errors import (
    CommitConflict,
    ConfigError,
    CoordinationUnavailable,
    GenerationConflict,
    LockHeld,
    RetentionGap,
)
from waybill.names import TopicPartition, ZkPaths

pytestmark = pytest.mark.integration

TP = TopicPartition("t", 0)


def connected(stack: Stack, root: str, chroot: str = "tests/coordination") -> Coordinator:
    endpoint = ZooKeeperEndpoint(hosts=stack.zookeeper_hosts, chroot=chroot)
    return Coordinator(endpoint, ZkPaths(root, "s", 1), timedelta(seconds=4), clock=lambda: 1_000.5)


@pytest.fixture
def one(stack: Stack, topic_name: str) -> Iterator[Coordinator]:
    with connected(stack, topic_name) as coordinator:
        yield coordinator


@pytest.fixture
def two(stack: Stack, topic_name: str) -> Iterator[Coordinator]:
    with connected(stack, topic_name) as coordinator:
        yield coordinator


def test_lock_is_one_lanes_at_a_time(one: Coordinator, two: Coordinator) -> None:
    with one.lock(TP):
        with pytest.raises(LockHeld, match="t/0: another lane holds the lock"), two.lock(TP):
            pytest.fail("locked twice")
        with two.lock(TopicPartition("t", 1)):
            pass
    with two.lock(TP):
        pass


def test_commit_moves_only_from_the_version_that_was_read(one: Coordinator, two: Coordinator) -> None:
    assert one.read_committed(TP) is None
    first = one.write_committed(TP, Committed(10, "id", 3, 500, 5, 77), version=-1)
    assert first == Committed(10, "id", 3, 500, 5, 77, version=0)
    with pytest.raises(CommitConflict, match="t/0: the committed offset was moved"):
        two.write_committed(TP, Committed(11), version=-1)
    second = two.write_committed(TP, Committed(20), first.version)
    with pytest.raises(CommitConflict):
        one.write_committed(TP, Committed(30), first.version)
    assert one.read_committed(TP) == second


def test_commit_whose_answer_was_lost_is_found_out(one: Coordinator) -> None:
    document = Committed(10, committed_at_ms=77)
    for version in (-1, 0):
        written = one.write_committed(TP, document, version)
        assert one.write_committed(TP, document, version) == written  # as a retry after the first try went through


def test_commit_after_the_node_was_deleted_is_refused(one: Coordinator) -> None:
    written = one.write_committed(TP, Committed(10), version=-1)
    one._client.delete(one._path(one.paths.committed_offset(TP)))
    with pytest.raises(CommitConflict):
        one.write_committed(TP, Committed(20), written.version)


def test_all_committed_offsets_at_once(one: Coordinator) -> None:
    tps = [TopicPartition(topic, partition) for topic in ("a", "b") for partition in range(3)]
    for offset, tp in enumerate(tps):
        one.write_committed(tp, Committed(offset), version=-1)
    assert {tp: found.committed_offset for tp, found in one.list_committed().items()} == dict(
        zip(tps, range(6), strict=True)
    )
    assert one.read_all_committed([tps[3], TP]) == {tps[3]: one.read_committed(tps[3])}


def test_first_number_of_partitions_is_written_down_once(one: Coordinator, two: Coordinator) -> None:
    assert one.first_partitions("t", 3) == 3
    assert two.first_partitions("t", 5) == 3
    one.write_committed(TopicPartition("rebuilt", 0), Committed(7), version=-1)
    assert one.first_partitions("rebuilt", 2) == 0


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b'{"v":2,"committed_offset":1}', GenerationConflict, "newer Waybill .document version 2"),
        (b"17", ConfigError, "does not hold a document of Waybill's"),
        (b"\xff", ConfigError, "Delete the node"),
        (b'{"v":1}', ConfigError, "KeyError: 'committed_offset'"),
    ],
)
def test_node_of_somebody_else_is_refused(one: Coordinator, data: bytes, error: type[Exception], message: str) -> None:
    path = one._path(one.paths.committed_offset(TP))
    one._client.create(path, data, makepath=True)
    with pytest.raises(error, match=message):
        one.read_committed(TP)
    assert one._client.get(path)[0] == data


def test_stops_are_journaled_with_figures_until_they_are_cleared(one: Coordinator, two: Coordinator) -> None:
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
    assert two.clear_stop(TP)
    assert not one.clear_stop(TP)
    assert one.list_stops() == []


def test_session_that_ended_writes_nothing_more(stack: Stack, one: Coordinator, two: Coordinator) -> None:
    with one.lock(TP):
        end_session(stack, one)
        with pytest.raises(CoordinationUnavailable, match=r"session at .* has ended"):
            one.write_committed(TP, Committed(10), version=-1)
    assert two.read_committed(TP) is None
    with two.lock(TP):
        pass


def end_session(stack: Stack, coordinator: Coordinator) -> None:
    """The same session, closed by another connection: as when it expires while a lane sleeps."""
    intruder = KazooClient(hosts=stack.zookeeper_hosts, client_id=coordinator._client.client_id)
    intruder.start(10)
    intruder.stop()
    intruder.close()
    deadline = time.monotonic() + 10
    while not coordinator._lost:
        assert time.monotonic() < deadline
        time.sleep(0.01)
