"""A real unclean leader election: archived messages that it truncates are kept, and no object is overwritten."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from archived_stream import ArchivedStream
from confluent_kafka.admin import AdminClient, NewTopic

from devstack import Stack
from waybill.archive import ingest
from waybill.archive.chain import chain, gaps
from waybill.archive.chain.gaps import Gap, GapKind
from waybill.archive.ingest import Outcome
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import to_records
from waybill.records.batches.framing import read_frames

pytestmark = [pytest.mark.deep, pytest.mark.integration, pytest.mark.stack_alone]

FOLLOWER, LEADER = 2, 3
_SECONDS = 120.0


@pytest.fixture
def stream(stack: Stack, tmp_path: Path, topic_name: str) -> ArchivedStream:
    """One topic-partition with a replica on each of two brokers. The last live one may lead it."""
    stream = ArchivedStream(tmp_path, f"unused-{topic_name}", partitions=1)
    stream.topic = topic_name
    stream.file.write_text(stream.file.read_text().replace(f"topics: [unused-{topic_name}]", f"topics: [{topic_name}]"))
    settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "retention.ms": "-1"}
    topic = NewTopic(topic_name, 1, replica_assignment=[[LEADER, FOLLOWER]], config=settings)
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    admin.create_topics([topic])[topic_name].result(timeout=30)
    wait_until_led_by(stack, topic_name, LEADER, in_sync=[FOLLOWER, LEADER])
    return stream


def wait_until_led_by(stack: Stack, topic: str, node_id: int, *, in_sync: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 2})
    deadline = time.monotonic() + _SECONDS
    while True:
        found = admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions.values()
        if [(p.leader, sorted(p.isrs)) for p in found] == [(node_id, in_sync)]:
            return
        assert time.monotonic() < deadline, f"broker {node_id} does not lead {topic} with {in_sync} in sync"
        time.sleep(0.1)


def run(stream: ArchivedStream) -> ingest.TopicPartitionReport:
    (lane,) = ingest.plan_lanes(stream.config, stream.name)
    (report,) = ingest.run_lane(stream.config, lane).partitions
    return report


def archived(stream: ArchivedStream) -> list[tuple[int, bytes | None]]:
    """Return the offset and the key of every message in the chain."""
    found = []
    with stream.store() as store:
        for backup in chain.walk_chain(store, 1, stream.tp()):
            limits = {"first_offset": backup.name.first_offset, "next_offset": backup.next_offset}
            with store.open(backup.key) as data:
                for batch in decode(read_frames(data, backup.key), where=backup.key, **limits):
                    found += [(record.offset, record.key) for record in to_records(batch)]
    return found


def test_unclean_election_is_a_stop_until_the_truncation_is_accepted(stack: Stack, stream: ArchivedStream) -> None:
    stream.produce_events(10)
    try:
        stack.stop_broker(FOLLOWER)  # a clean stop, so the cluster knows at once
        wait_until_led_by(stack, stream.topic, LEADER, in_sync=[LEADER])
        stream.produce_events(10, first=10)
        assert run(stream).outcome is Outcome.UP_TO_DATE
        before = archived(stream)
        assert [offset for offset, _ in before] == list(range(20))

        stack.kill_broker(LEADER)
        stack.start_broker(FOLLOWER)
        wait_until_led_by(stack, stream.topic, FOLLOWER, in_sync=[FOLLOWER])
        (row,) = stream.waybill("offsets", "--json").document
        assert (row["committed_offset"], row["end_offset"]) == (20, 10), "the new leader does not have the rest"

        stopped = run(stream)
        assert stopped.outcome is Outcome.STOPPED
        assert stopped.failure is not None
        assert stopped.failure.error == "LogTruncated"
        assert "ends at 10, before the committed offset 20" in stopped.failure.message
        assert "took back 10 archived offsets" in stopped.failure.message
        (entry,) = stream.waybill("gaps", "--json").document["stops"]
        assert (entry["figures"]["end_offset"], entry["figures"]["messages_at_most"]) == (10, 10)

        stream.produce_events(30, first=100)  # the new log becomes longer than the archived part of the old one
        assert run(stream).outcome is Outcome.STOPPED, "the length of the log does not make it the archived log"
        assert archived(stream) == before
    finally:
        stack.start_broker(LEADER)
        if not stack.status().server(f"kafka-{FOLLOWER}").running:  # type: ignore[union-attr]
            stack.start_broker(FOLLOWER)

    ran = stream.waybill("gaps", "accept", stream.topic, "0", "--reason", "power cut in one rack")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1] == "ingest resumes at offset 20"
    assert run(stream).outcome is Outcome.UP_TO_DATE
    after = archived(stream)
    assert after[:20] == before
    assert after[20:] == [(offset, b"k%d" % (90 + offset)) for offset in range(20, 40)], "from the new log"
    stream.produce_events(5, first=130)
    assert run(stream).messages == 5, "ingest continues without another stop"
    stream.partition()
    ran = stream.waybill("verify")
    assert ran.code == 0, ran.out
    assert f"accepted: {stream.tp()} offsets 10–19 (LogTruncated)" in ran.out
    assert ran.out.splitlines()[-1].startswith("sound, except for 1 accepted gap")


def test_ingest_waits_after_an_accepted_truncation_until_the_log_is_long_enough(
    stack: Stack, stream: ArchivedStream
) -> None:
    """The new log is shorter than the archive: there is no stop, and no message is lost or archived twice."""
    stream.produce_events(10)
    run(stream)
    move_ahead(stream, 20)
    assert run(stream).outcome is Outcome.STOPPED
    with stream.store() as store:
        less = Gap(stream.tp(), 1, 15, 20, GapKind.TRUNCATED, "another decision", "ann", 1)
        gaps.record_gap(store, less)
    assert run(stream).outcome is Outcome.STOPPED, "a decision about fewer offsets does not accept this truncation"
    with stream.store() as store:
        gaps.withdraw_gap(store, less)
    ran = stream.waybill("gaps", "accept", stream.topic, "0", "--reason", "x")
    assert (
        ran.out.splitlines()[-1] == "ingest resumes at offset 20, once Kafka's log reaches it: the log ends at 10 now"
    )
    assert run(stream).outcome is Outcome.WAITING
    stream.produce_events(5, first=10)
    assert run(stream).outcome is Outcome.WAITING
    assert stream.waybill("gaps", "--json").document["stops"] == []
    stream.produce_events(15, first=15)
    assert run(stream).outcome is Outcome.UP_TO_DATE
    assert [offset for offset, _ in archived(stream)] == list(range(30))


def move_ahead(stream: ArchivedStream, offset: int) -> None:
    """Archive offsets up to `offset` that the log does not have, as if the log had been truncated."""
    from dataclasses import replace

    from waybill.config.names import BackupName
    from waybill.records.batches.encode import Record, encode_batch

    with stream.coordinator() as coordinator, stream.store() as store:
        found = coordinator.read_committed(stream.tp())
        assert found is not None
        key = BackupName(stream.topic, 1, 0, found.committed_offset).key(store.prefix)
        records = [Record(n, 1_767_225_600_000, b"k%d" % n, b"{}") for n in range(found.committed_offset, offset)]
        store.create_if_absent(key, encode_batch(records, leader_epoch=found.leader_epoch))
        moved = replace(found, committed_offset=offset, last_object_offset=found.committed_offset)
        coordinator.write_committed(stream.tp(), moved, found.version)
