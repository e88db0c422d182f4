"""`waybill offsets rebuild`, `set` and `import` on the real stack: no chain is torn, no offset moves without --yes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from archived_stream import ArchivedStream, Ran
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from ingest_scenes import Cluster
from kazoo.client import KazooClient

from devstack import Stack
from waybill.archive.ingest import plan_lanes, run_lane
from waybill.archive.ingest.offset_changes import ImportCheck
from waybill.services.coordination import CommittedOffset

pytestmark = pytest.mark.integration


@pytest.fixture
def stream(stack: Stack, tmp_path: Path, topic_name: str) -> ArchivedStream:
    return ArchivedStream(tmp_path, topic_name)


@pytest.fixture
def archived(stream: ArchivedStream) -> ArchivedStream:
    """Two objects of ten messages in partition 0; partition 1 is empty."""
    for first in (0, 10):
        stream.produce_events(10, first=first)
        stream.ingest()
    return stream


def committed(stream: ArchivedStream, partition: int = 0) -> CommittedOffset | None:
    with stream.coordinator() as coordinator:
        return coordinator.read_committed(stream.tp(partition))


def remove_znodes(stream: ArchivedStream) -> None:
    """Delete all znodes of the stream."""
    with stream.coordinator() as coordinator:
        coordinator.session.client.delete(coordinator.session.full_path(coordinator.paths.base), recursive=True)


def ranges(stream: ArchivedStream) -> list[int]:
    return [int(key.rpartition("_")[2].partition(".")[0]) for key in stream.object_keys()]


def figures(ran: Ran) -> list[tuple[int | None, int | None, bool]]:
    return [(row["before"], row["after"], row["written"]) for row in ran.document]


# --- rebuild ----------------------------------------------------------------------------------------------------------


def test_rebuild_writes_nothing_when_the_offsets_agree(archived: ArchivedStream) -> None:
    before = committed(archived)
    ran = archived.waybill("offsets", "rebuild")
    assert ran.code == 0, ran.err
    assert [line.split() for line in ran.out.splitlines()][1:] == [
        ["events", str(archived.tp(0)), "20", "20", "correct"],
        ["events", str(archived.tp(1)), "0", "0", "there", "is", "no", "chain"],
    ]
    assert committed(archived) == before


def test_rebuild_restores_the_offset_after_zookeeper_lost_its_data(archived: ArchivedStream) -> None:
    before = committed(archived)
    assert before is not None
    remove_znodes(archived)
    ran = archived.waybill("offsets", "rebuild", "--json")
    assert ran.code == 0, ran.err
    assert figures(ran) == [(None, 20, True)]
    after = committed(archived)
    assert after is not None
    for name in ("committed_offset", "topic_id", "leader_epoch", "start_offset", "last_object_offset", "extension"):
        assert getattr(after, name) == getattr(before, name), name
    assert archived.waybill("verify").code == 0


def test_rebuild_moves_an_existing_offset_only_with_yes(archived: ArchivedStream) -> None:
    """The last object is lost. After the rebuild, the next lane archives again what Kafka still has."""
    key = archived.object_keys()[-1]
    with archived.store() as store:
        store.client.delete_object(Bucket=store.bucket, Key=key)
    ran = archived.waybill("offsets", "rebuild")
    assert ran.code == 1
    assert "NOT written" in ran.out
    assert "To write them, add --yes" in ran.err
    found = committed(archived)
    assert found is not None
    assert found.committed_offset == 20

    ran = archived.waybill("offsets", "rebuild", "--stream", "events", "--topic", archived.topic, "--yes", "--json")
    assert ran.code == 0, ran.err
    assert figures(ran)[0] == (20, 10, True)
    found = committed(archived)
    assert found is not None
    assert found.set_by_hand.startswith("rebuilt from the chain, from 20 (by ")
    archived.ingest()
    assert ranges(archived) == [0, 10]
    assert archived.waybill("verify").code == 0


def test_rebuild_reports_a_damaged_last_object(archived: ArchivedStream) -> None:
    remove_znodes(archived)
    key = archived.object_keys()[-1]
    with archived.store() as store:
        store.client.put_object(Bucket=store.bucket, Key=key, Body=store.read(key)[:-1])
    (row,) = archived.waybill("offsets", "rebuild", "--json").document
    assert (row["after"], row["written"]) == (None, False)
    assert f"move {key} away by hand" in row["trouble"]
    assert committed(archived) is None


def test_offset_is_not_changed_while_a_lane_holds_the_lock(archived: ArchivedStream) -> None:
    remove_znodes(archived)
    with archived.coordinator() as lane, lane.lock(archived.tp()):
        (row,) = archived.waybill("offsets", "rebuild", "--json").document
        assert "another lane holds the lock" in row["trouble"]
        ran = archived.waybill("offsets", "set", "events", str(archived.tp()), "20", "--reason", "x")
        assert (ran.code, "another lane holds the lock" in ran.err) == (1, True)


# --- set --------------------------------------------------------------------------------------------------------------


def set_offset(stream: ArchivedStream, offset: int, partition: int = 0) -> Ran:
    return stream.waybill("offsets", "set", "events", str(stream.tp(partition)), str(offset), "--reason", "a test")


@pytest.mark.parametrize(
    ("offset", "message"),
    [(10, "offsets 10–19 would be archived twice"), (25, "offsets 20–24 would be in no object")],
)
def test_set_refuses_an_offset_that_would_tear_the_chain(archived: ArchivedStream, offset: int, message: str) -> None:
    archived.produce_events(10, first=20)
    ran = set_offset(archived, offset)
    assert ran.code == 1
    assert f"the chain of generation 1 ends at 20, and {offset} would tear it: {message}" in ran.err
    found = committed(archived)
    assert found is not None
    assert found.committed_offset == 20


def test_set_accepts_the_end_of_the_chain(archived: ArchivedStream) -> None:
    remove_znodes(archived)
    ran = set_offset(archived, 20)
    assert ran.code == 0, ran.err
    assert ran.out == f"the committed offset of {archived.tp()} is 20: the next backup object starts there\n"
    found = committed(archived)
    assert found is not None
    assert (found.committed_offset, found.start_offset) == (20, 0)
    assert found.set_by_hand.startswith("a test (by ")


def test_set_decides_where_a_new_chain_starts(stream: ArchivedStream) -> None:
    stream.produce_events(30)
    for outside in (31, 10**12):
        ran = set_offset(stream, outside)
        assert ran.code == 1
        assert f"Kafka holds offsets 0 to 30: a chain cannot start at {outside}" in ran.err
    assert set_offset(stream, 12).code == 0
    stream.ingest()
    assert ranges(stream) == [12]
    assert stream.waybill("verify").code == 0
    ran = set_offset(stream, 5)
    assert ran.code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["events", "x/y/z", "1", "--reason", "x"], "give a topic-partition"),
        (["events", "other/0", "1", "--reason", "x"], "topic 'other' does not belong to stream 'events'"),
        (["nobody", "other/0", "1", "--reason", "x"], "no stream 'nobody'"),
        (["events", "{topic}/0", "1", "--reason", ""], "--reason is empty"),
    ],
)
def test_set_refuses_a_wrong_command_line(stream: ArchivedStream, arguments: list[str], message: str) -> None:
    ran = stream.waybill("offsets", "set", *(each.format(topic=stream.topic) for each in arguments))
    assert ran.code == 1
    assert message in ran.err


# --- import -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def zookeeper(stack: Stack) -> Iterator[KazooClient]:
    client = KazooClient(hosts=stack.zookeeper_hosts)
    client.start(30)
    yield client
    client.stop()
    client.close()


def write_secor_offsets(
    zookeeper: KazooClient, root: str, topic: str, offsets: dict[int, bytes], group: str = "secor_backup"
) -> str:
    """Write the znodes of Secor: the next offset, in ASCII. Return its `kafka.zookeeper.path`."""
    for partition, offset in offsets.items():
        zookeeper.create(f"/{root}/consumers/{group}/offsets/{topic}/{partition}", offset, makepath=True)
    return f"/{root}"


def proposals(ran: Ran) -> list[tuple[int, int | None, str, bool]]:
    return [(row["partition"], row["offset"], row["verdict"], row["imported"]) for row in ran.document]


def test_import_continues_where_secor_stopped(stream: ArchivedStream, zookeeper: KazooClient) -> None:
    stream.produce_events(30)
    stream.produce_events(10, partition=1)
    path = write_secor_offsets(zookeeper, stream.topic, stream.topic, {0: b"12", 1: b"99"})
    plan = stream.waybill("offsets", "import", "events", "--from-secor", path)
    assert plan.code == 0, plan.err
    lines = [line.split() for line in plan.out.splitlines()]
    assert lines[1] == [str(stream.tp(0)), "12", "0", "30", "import"]
    assert lines[2] == [str(stream.tp(1)), "99", "0", "10", *ImportCheck.OUTSIDE.split()]
    assert "Nothing was written" in plan.out
    assert committed(stream) is None

    ran = stream.waybill("offsets", "import", "events", "--from-secor", path, "--yes", "--json")
    assert ran.code == 0, ran.err
    assert proposals(ran) == [(0, 12, "import", True), (1, 99, "outside", False)]
    found = committed(stream)
    assert found is not None
    assert (found.committed_offset, found.start_offset) == (12, 12)
    assert found.set_by_hand.startswith(f"imported from Secor's offsets at {path} (by ")
    stream.ingest()
    assert ranges(stream) == [12]
    assert stream.waybill("verify").code == 0

    again = stream.waybill("offsets", "import", "events", "--from-secor", path, "--yes", "--json")
    assert proposals(again) == [(0, 12, "has_chain", False), (1, 99, "has_chain", False)]


def test_imported_offset_outlives_zookeepers_data(stream: ArchivedStream, zookeeper: KazooClient) -> None:
    """Before the first object exists, the chain start in S3 holds it."""
    stream.produce_events(30)
    path = write_secor_offsets(zookeeper, stream.topic, stream.topic, {0: b"12"})
    assert stream.waybill("offsets", "import", "events", "--from-secor", path, "--yes").code == 0
    remove_znodes(stream)
    stream.ingest()
    assert ranges(stream) == [12]


def test_import_asks_for_the_group_when_several_have_offsets(stream: ArchivedStream, zookeeper: KazooClient) -> None:
    stream.produce_events(30)
    path = write_secor_offsets(zookeeper, stream.topic, stream.topic, {0: b"12"})
    write_secor_offsets(zookeeper, stream.topic, stream.topic, {0: b"7"}, group="secor_partition")
    write_secor_offsets(zookeeper, stream.topic, "another-topic", {0: b"7"}, group="unrelated")
    ran = stream.waybill("offsets", "import", "events", "--from-secor", path)
    assert ran.code == 1
    assert "several groups have offsets of the stream's topics (secor_backup, secor_partition): give --group" in ran.err
    ran = stream.waybill("offsets", "import", "events", "--from-secor", path, "--group", "secor_partition", "--json")
    assert proposals(ran) == [(0, 7, "import", False), (1, None, "no_offset", False)]


def test_import_reads_secors_offsets_from_another_zookeeper(
    stack: Stack, stream: ArchivedStream, zookeeper: KazooClient
) -> None:
    stream.produce_events(30)
    write_secor_offsets(zookeeper, f"{stream.topic}/kafka", stream.topic, {0: b"12"})
    host, _, port = stack.zookeeper_hosts.rpartition(":")
    other = f'{{"conn_type": "zookeeper", "host": "{host}", "port": {port}, "schema": "{stream.topic}"}}'
    arguments = ("offsets", "import", "events", "--from-secor", "/kafka", "--zookeeper", "secor_zk", "--json")
    ran = stream.waybill(*arguments, AIRFLOW_CONN_SECOR_ZK=other)
    assert ran.code == 0, ran.err
    assert proposals(ran)[0] == (0, 12, "import", False)


@pytest.mark.parametrize("data", [b"", b"-1", b"12x", b"\x00\x01"])
def test_import_refuses_a_znode_without_an_offset(stream: ArchivedStream, zookeeper: KazooClient, data: bytes) -> None:
    path = write_secor_offsets(zookeeper, stream.topic, stream.topic, {0: data})
    ran = stream.waybill("offsets", "import", "events", "--from-secor", path)
    assert ran.code == 1
    assert "no offset of Secor's" in ran.err


def test_import_continues_where_a_consumer_group_stopped(stack: Stack, stream: ArchivedStream) -> None:
    stream.produce_events(30)
    stream.produce_events(10, partition=1)
    commit_to_group(stack, stream.topic, {0: 17})
    arguments = ("offsets", "import", "events", "--from-group", stream.topic)
    assert proposals(stream.waybill(*arguments, "--json")) == [
        (0, 17, "import", False),
        (1, None, "no_offset", False),
    ]
    ran = stream.waybill(*arguments, "--yes")
    assert ran.code == 0, ran.err
    assert "1 topic-partition without a usable offset: the next run starts the chain at the first message" in ran.out
    stream.ingest()
    assert ranges(stream) == [17]
    archived = [row["committed_offset"] for row in stream.waybill("offsets", "--json").document]
    assert archived == [30, 10]


def test_import_skips_and_lists_a_group_offset_that_retention_deleted(stack: Stack, stream: ArchivedStream) -> None:
    stream.produce_events(30)
    commit_to_group(stack, stream.topic, {0: 5})
    Cluster(stack.bootstrap_servers).delete_records(stream.tp(), before=10)
    ran = stream.waybill("offsets", "import", "events", "--from-group", stream.topic, "--yes", "--json")
    assert proposals(ran)[0] == (0, 5, "outside", False)
    assert (ran.document[0]["earliest_offset"], ran.document[0]["end_offset"]) == (10, 30)
    assert committed(stream) is None


def test_import_from_a_group_that_does_not_exist_imports_nothing(stream: ArchivedStream) -> None:
    ran = stream.waybill("offsets", "import", "events", "--from-group", "nobody", "--json")
    assert ran.code == 0, ran.err
    assert {row["verdict"] for row in ran.document} == {"no_offset"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the source of the offsets: either --from-secor PATH or --from-group GROUP"),
        (
            ["--from-group", "a", "--from-secor", "/b"],
            "give the source of the offsets: either --from-secor PATH or --from-group GROUP",
        ),
        (["--from-group", "a", "--group", "b"], "--group and --zookeeper can only be used together with --from-secor"),
        (["--from-secor", "/nowhere"], "ZooKeeper has no offsets of the stream's topics at /nowhere/consumers"),
    ],
)
def test_import_refuses_a_wrong_command_line(stream: ArchivedStream, arguments: list[str], message: str) -> None:
    ran = stream.waybill("offsets", "import", "events", *arguments)
    assert ran.code == 1
    assert message in ran.err


def commit_to_group(stack: Stack, topic: str, offsets: dict[int, int]) -> None:
    """Commit offsets by a consumer whose group has the topic's name."""
    settings: dict[str, Any] = {"bootstrap.servers": stack.bootstrap_servers, "group.id": topic}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        wanted = [ConfluentPartition(topic, partition, offset) for partition, offset in offsets.items()]
        deadline = time.monotonic() + 60
        while True:  # the first commit of a cluster creates the topic of the groups' offsets
            with suppress(KafkaException):
                consumer.commit(offsets=wanted, asynchronous=False)
                return
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        consumer.close()


# --- a lane after a rebuild -------------------------------------------------------------------------------------------


def test_ingest_continues_from_a_rebuilt_offset(archived: ArchivedStream) -> None:
    remove_znodes(archived)
    assert archived.waybill("offsets", "rebuild").code == 0
    archived.produce_events(5, first=20)
    reports = [run_lane(archived.config, lane) for lane in plan_lanes(archived.config, "events")]
    assert not any(report.failures for report in reports)
    assert ranges(archived) == [0, 10, 20]
    assert archived.waybill("verify").code == 0
