"""Ingest on the real stack: the archive holds every message of Kafka exactly once, whatever happens in between."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from ingest_scenes import STREAM, Archive, Cluster

from devstack import Stack
from waybill.archive import ingest
from waybill.archive.ingest import Clock, IngestServices, Outcome
from waybill.base.errors import CommitConflict, CoordinationUnavailable
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.encode import Record
from waybill.records.batches.framing import Codec, read_frames
from waybill.services.coordination import CommittedOffset, Coordinator

pytestmark = pytest.mark.integration

NOW_MS = int(time.time() * 1000)


def numbered(start: int, stop: int) -> list[tuple[bytes, bytes]]:
    return [(b"key-%d" % i, b'{"number": %d}' % i) for i in range(start, stop)]


def assert_same_messages(archive: Archive, cluster: Cluster, tp: TopicPartition) -> list[Record]:
    """Assert that the chain has no gap and holds what a consumer of Kafka reads. Return these messages."""
    ranges = archive.ranges(tp)
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    in_kafka = cluster.messages(tp)
    assert archive.messages(tp) == in_kafka
    return in_kafka


# --- the archived messages --------------------------------------------------------------------------------------------


def test_every_message_is_archived_unchanged(archive: Archive, cluster: Cluster, topic_name: str) -> None:
    cluster.create(topic_name, partitions=2)
    headers = [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("null", None)]
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        records = [
            Record(0, NOW_MS + i, key, value, headers if i % 3 else [])
            for i, (key, value) in enumerate([(b"k", b"v" * 300), (None, b"v"), (b"", b""), (b"tombstone", None)] * 50)
        ]
        cluster.produce(TopicPartition(topic_name, number % 2), records, compression_type=codec)

    first = archive.run()

    assert not first.failures
    assert first.messages == 1000
    assert first.objects == 2
    assert first.lag == 0
    for partition in (0, 1):
        assert len(assert_same_messages(archive, cluster, TopicPartition(topic_name, partition))) in (400, 600)

    again = archive.run()
    assert again.partitions == ()
    with archive.services() as services:
        assert archive.run_one(services, TopicPartition(topic_name, 0)).objects == ()


def test_run_finds_new_topics_and_partitions_of_a_pattern(stack: Stack, cluster: Cluster, topic_name: str) -> None:
    archive = Archive(stack, topic_name, {"regex": re.escape(topic_name) + r"-[ab]"})
    for suffix in "ac":
        cluster.create(f"{topic_name}-{suffix}")
        cluster.produce(TopicPartition(f"{topic_name}-{suffix}", 0), numbered(0, 10))
    assert [p.tp for p in archive.run().partitions] == [TopicPartition(f"{topic_name}-a", 0)]

    cluster.create(f"{topic_name}-b")
    cluster.add_partitions(f"{topic_name}-a", 2)
    cluster.produce(TopicPartition(f"{topic_name}-a", 1), numbered(0, 7))
    cluster.produce(TopicPartition(f"{topic_name}-b", 0), numbered(0, 5))
    found = {p.tp: p.messages for p in archive.run().partitions}

    assert found == {TopicPartition(f"{topic_name}-a", 1): 7, TopicPartition(f"{topic_name}-b", 0): 5}


def test_topic_that_does_not_exist_is_logged_and_the_others_are_archived(
    stack: Stack, cluster: Cluster, tp: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.produce(tp, numbered(0, 3))
    archive = Archive(stack, tp.topic, [tp.topic, f"{tp.topic}-missing"])
    assert archive.run().messages == 3
    assert f"topic {tp.topic}-missing does not exist" in caplog.text


def produce_transactions(cluster: Cluster, tp: TopicPartition) -> None:
    """Produce committed and aborted transactions of two producers, interleaved. The last one is aborted."""
    first, second = (cluster.producer(transactional_id=f"{tp.topic}-{n}", compression_type="lz4") for n in (1, 2))
    for producer in (first, second):
        producer.init_transactions(20)

    def send(producer: object, key: bytes, count: int) -> None:
        for i in range(count):
            producer.produce(tp.topic, key=key, value=b"%d" % i, partition=0)  # type: ignore[attr-defined]
        producer.flush(20)  # type: ignore[attr-defined]

    first.begin_transaction()
    second.begin_transaction()
    send(first, b"committed", 10)
    send(second, b"aborted", 10)
    send(first, b"committed", 5)
    second.abort_transaction(20)
    first.commit_transaction(20)
    second.begin_transaction()
    send(second, b"committed", 4)
    second.commit_transaction(20)
    first.begin_transaction()
    send(first, b"aborted", 6)
    first.abort_transaction(20)
    cluster.wait_for_markers(tp)


def test_aborted_transactions_are_left_out_and_the_object_still_ends_after_them(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    produce_transactions(cluster, tp)
    report = archive.run()

    assert report.lag == 0
    messages = assert_same_messages(archive, cluster, tp)
    assert len(messages) == 19
    assert {message.key for message in messages} == {b"committed"}
    (only,) = archive.chain(tp)
    assert only.next_offset == report.partitions[0].end_offset
    with archive.store() as store, store.open(only.key) as stream:
        headers = [frame.header for frame in read_frames(stream, only.key)]
    assert not any(header.is_control for header in headers)
    assert (headers[-1].record_count, headers[-1].next_offset) == (0, only.next_offset)


def test_read_uncommitted_archives_aborted_messages_too(stack: Stack, cluster: Cluster, tp: TopicPartition) -> None:
    archive = Archive(stack, tp.topic, [tp.topic], {"isolation_level": "read_uncommitted"})
    produce_transactions(cluster, tp)
    archive.run()
    archived = archive.messages(tp)
    assert archived == cluster.messages(tp, "read_uncommitted")
    assert len(archived) == 35


def test_messages_after_an_open_transaction_wait_for_its_end(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    cluster.produce(tp, numbered(0, 5))
    producer = cluster.producer(transactional_id=tp.topic)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(tp.topic, b"open", partition=0)
    producer.flush(20)
    cluster.produce(tp, numbered(5, 8))

    assert archive.run().messages == 5
    assert archive.run().partitions == ()

    producer.commit_transaction(20)
    cluster.wait_for_markers(tp)
    assert archive.run().messages == 4
    assert_same_messages(archive, cluster, tp)


@pytest.mark.deep
def test_compacted_topic_is_archived_with_its_missing_offsets(
    archive: Archive, cluster: Cluster, topic_name: str
) -> None:
    cluster.create(
        topic_name,
        cleanup_policy="compact",
        segment_ms=200,
        min_cleanable_dirty_ratio=0.01,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=300,
        delete_retention_ms=100,
    )
    tp = TopicPartition(topic_name, 0)
    cluster.produce(tp, [(b"only once", b"x")])
    for round_ in range(4):
        cluster.produce(tp, [(b"%d" % (i % 5), b"%d" % round_) for i in range(40)], batch_num_messages=10)
        time.sleep(0.25)
    deadline = time.monotonic() + 25
    while len(cluster.messages(tp)) > 60:
        assert time.monotonic() < deadline, "the log cleaner did not run"
        cluster.produce(tp, [(b"roll", b"x")])
        time.sleep(0.5)

    report = archive.run()

    assert report.lag == 0
    messages = assert_same_messages(archive, cluster, tp)
    assert messages[0].offset == 0
    assert messages[-1].offset + 1 > len(messages)


def test_objects_are_cut_by_size_and_large_ones_are_multipart_uploads(
    stack: Stack, cluster: Cluster, tp: TopicPartition
) -> None:
    archive = Archive(stack, tp.topic, [tp.topic], {"upload": {"max_age": "0s", "max_bytes": "36MiB"}})
    messages = [(None, os.urandom(500_000)) for _ in range(100)]
    cluster.produce(tp, messages, message_max_bytes=1_000_000)

    report = archive.run()

    sizes = [found.size_bytes for found in archive.chain(tp)]
    assert len(sizes) == 2
    assert 32 << 20 < sizes[0] <= 36 << 20  # three parts
    assert report.objects == 2
    assert [message.value for message in archive.messages(tp)] == [value for _, value in messages]
    with archive.store() as store:
        pending = store.client.list_multipart_uploads(Bucket=stack.bucket, Prefix=tp.topic)
        assert not pending.get("Uploads")
        assert store.metadata(archive.chain(tp)[0].key)["first-offset"] == "0"


def dump_log_segments(stack: Stack, files: list[Path]) -> str:
    """Return the output of Kafka's own tool for log segments, with every record decoded."""
    done = subprocess.run(
        [
            *(str(stack.kafka.java.binary), "-cp", f"{stack.kafka.jars}/*", "kafka.tools.DumpLogSegments"),
            *("--deep-iteration", "--files", ",".join(map(str, files))),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Found" not in done.stdout + done.stderr, done.stdout
    return done.stdout


@pytest.mark.deep
def test_kafkas_own_tool_reads_every_backup_object(
    stack: Stack, cluster: Cluster, archive: Archive, tp: TopicPartition, tmp_path: Path
) -> None:
    cluster.produce(tp, numbered(0, 50), compression_type="zstd")
    archive.run()
    produce_transactions(cluster, tp)
    archive.run()
    files = []
    with archive.store() as store:
        for found in archive.chain(tp):
            file = tmp_path / f"{found.name.first_offset:020d}.log"
            file.write_bytes(store.read(found.key))
            files.append(file)

    dumped = dump_log_segments(stack, files)

    batches = re.findall(r"^baseOffset: .* isvalid: (\w+)", dumped, re.MULTILINE)
    assert len(files) == 2
    assert len(batches) >= 4
    assert set(batches) == {"true"}
    assert len(re.findall(r"^\| offset: ", dumped, re.MULTILINE)) == 69


@pytest.mark.deep
def test_uncompressed_batches_are_stored_compressed(
    stack: Stack, cluster: Cluster, tp: TopicPartition, tmp_path: Path
) -> None:
    """One chain holds all kinds of batches, and Waybill's decoder and Kafka's own tool read it."""
    archive = Archive(stack, tp.topic, [tp.topic], {"upload": {"max_age": "0s"}, "recompress": "zstd:3"})
    records = [
        Record(0, NOW_MS + i, b"k%d" % i, b'{"number": %d, "text": "again and again"}' % i, [("h", None), ("h", b"")])
        for i in range(300)
    ]
    for codec in ("none", "lz4", "zstd"):
        cluster.produce(tp, records, compression_type=codec)
    producer = cluster.producer(transactional_id=tp.topic)
    producer.init_transactions(20)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for i in range(50):
            producer.produce(tp.topic, key=b"t", value=b"in a transaction %d" % i, partition=0)
        producer.flush(20)
        end(20)
    cluster.wait_for_markers(tp)

    report = archive.run()

    assert len(assert_same_messages(archive, cluster, tp)) == 950
    (found,) = archive.chain(tp)
    file = tmp_path / f"{found.name.first_offset:020d}.log"
    with archive.store() as store:
        file.write_bytes(store.read(found.key))
    with file.open("rb") as stream:
        headers = [frame.header for frame in read_frames(stream, found.key)]
    assert {h.codec for h in headers if h.record_count} == {Codec.LZ4, Codec.ZSTD}
    assert [h.is_transactional for h in headers if h.producer_id >= 0] == [True]
    assert report.size_bytes == file.stat().st_size, "the report counts stored bytes"
    dumped = dump_log_segments(stack, [file])
    assert set(re.findall(r"^baseOffset: .* isvalid: (\w+)", dumped, re.MULTILINE)) == {"true"}
    assert len(re.findall(r"^\| offset: ", dumped, re.MULTILINE)) == 950
    assert {*re.findall(r"compresscodec: (\w+)", dumped)} >= {"zstd", "lz4"}


# --- when objects are cut, and where chains start ---------------------------------------------------------------------


def test_young_messages_wait_until_they_are_old_enough(stack: Stack, cluster: Cluster, tp: TopicPartition) -> None:
    archive = Archive(stack, tp.topic, [tp.topic], {"upload": {"max_age": "1h"}})
    cluster.produce(tp, numbered(0, 10))
    with archive.services() as services:
        young = archive.run_one(services, tp)
        assert (young.outcome, young.objects, young.lag) == (Outcome.WAITING, (), 10)

        later = Clock(wall=lambda: time.time() + 3600)
        assert archive.run_one(services, tp, clock=later).messages == 10

        # The mean size is known now, so the first batch shows that nothing is due.
        cluster.produce(tp, numbered(10, 20))
        assert archive.run_one(services, tp).outcome is Outcome.WAITING
        earlier = Clock(wall=lambda: time.time() - 3600)
        assert archive.run_one(services, tp, clock=earlier).messages == 10, "a message from the future is due"
    assert_same_messages(archive, cluster, tp)


def test_first_run_records_the_start_of_a_stream_that_starts_at_latest(
    stack: Stack, cluster: Cluster, topic_name: str
) -> None:
    archive = Archive(stack, topic_name, [topic_name], {"start": "latest"})
    cluster.create(topic_name, partitions=2)
    first_two = [TopicPartition(topic_name, number) for number in (0, 1)]
    for tp in first_two:
        cluster.produce(tp, numbered(0, 4))
    assert archive.run().messages == 0
    for tp in first_two:
        cluster.produce(tp, numbered(4, 9))
    cluster.add_partitions(topic_name, 3)
    added = TopicPartition(topic_name, 2)
    cluster.produce(added, numbered(0, 3))

    assert archive.run().messages == 13

    assert [archive.ranges(tp) for tp in first_two] == [[(4, 9)], [(4, 9)]]
    assert archive.ranges(added) == [(0, 3)], "an added partition starts with its first message"


def test_chain_starts_at_a_configured_time(stack: Stack, cluster: Cluster, tp: TopicPartition) -> None:
    archive = Archive(stack, tp.topic, [tp.topic], {"start": "2026-01-01T00:00:00Z"})
    turn_of_year = 1_767_225_600_000
    records = [Record(0, turn_of_year + hour * 3_600_000, None, b"%d" % hour) for hour in (-2, -1, 0, 1)]
    cluster.produce(tp, records)
    assert archive.run().messages == 2  # whole batches are archived; the two messages before the range do not count
    assert archive.ranges(tp) == [(2, 4)]
    assert [message.value for message in archive.messages(tp)] == [b"0", b"1"]


@pytest.mark.deep
def test_next_run_continues_when_the_budget_ends(stack: Stack, cluster: Cluster, tp: TopicPartition) -> None:
    archive = Archive(stack, tp.topic, [tp.topic], {"upload": {"max_age": "0s", "max_bytes": "1MiB"}})
    cluster.produce(tp, [(None, os.urandom(100_000)) for _ in range(200)])
    ticks = iter(range(1_000_000))
    hurried = Clock(monotonic=lambda: float(next(ticks)) * 5)  # each call of the clock takes five seconds
    with archive.services() as services:
        first = archive.run_one(services, tp, clock=hurried)
        assert first.outcome is Outcome.OUT_OF_TIME
        assert first.lag
        assert archive.run_one(services, tp).outcome is Outcome.UP_TO_DATE
    assert len(assert_same_messages(archive, cluster, tp)) == 200


def group_offsets(stack: Stack, group: str, tps: list[TopicPartition]) -> list[int]:
    """Return the offsets from which a consumer of the group would continue; -1001 where none is committed."""
    consumer = Consumer({"bootstrap.servers": stack.bootstrap_servers, "group.id": group})
    try:
        return [c.offset for c in consumer.committed([ConfluentPartition(tp.topic, tp.partition) for tp in tps], 20)]
    finally:
        consumer.close()


def test_lane_commits_to_its_consumer_group_unless_the_group_has_members(
    stack: Stack, cluster: Cluster, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create(topic_name, partitions=2)
    tps = [TopicPartition(topic_name, number) for number in (0, 1)]
    for tp, count in zip(tps, (10, 25), strict=True):
        cluster.produce(tp, numbered(0, count))
    archive = Archive(stack, topic_name, [topic_name], {"ingest": {"consumer_group": f"{topic_name}-{{stream}}"}})
    group = f"{topic_name}-{STREAM}"
    deadline = time.monotonic() + 60
    while min(group_offsets(stack, group, tps)) < 0:  # the coordinator of a cluster's first group may need some time
        assert time.monotonic() < deadline, caplog.text
        for tp in tps:
            cluster.produce(tp, numbered(0, 1))
        assert archive.run().failures == []
    before = group_offsets(stack, group, tps)
    assert before == [archive.ranges(tp)[-1][1] for tp in tps]
    member = Consumer({"bootstrap.servers": stack.bootstrap_servers, "group.id": group})
    try:
        member.subscribe([topic_name])
        while not member.assignment():
            assert time.monotonic() < deadline, "the group has no member"
            member.poll(0.1)
        cluster.produce(tps[0], numbered(0, 5))
        report = archive.run()
        assert (report.messages, report.failures) == (5, [])
        assert f"could not commit to consumer group '{group}': it has members" in caplog.text
        assert group_offsets(stack, group, tps) == before
    finally:
        member.close()


# --- rivals, zombies, crashes -----------------------------------------------------------------------------------------


class Crash(BaseException):
    """Ends the lane as a crash would."""


class CrashingCoordinator(Coordinator):
    """Raises before a committed offset is written."""

    def write_committed(self, tp: TopicPartition, committed: CommittedOffset, version: int) -> CommittedOffset:
        if committed.committed_offset > 0:
            raise Crash
        return super().write_committed(tp, committed, version)


@contextmanager
def services_with(archive: Archive, coordinator: type[Coordinator]) -> Iterator[IngestServices]:
    """The archive's services, with another class of coordinator."""
    with archive.services() as services:
        services.coordinator.__class__ = coordinator
        yield services


def crash_between_upload_and_commit(archive: Archive, tp: TopicPartition) -> None:
    with services_with(archive, CrashingCoordinator) as services, pytest.raises(Crash):
        archive.run_one(services, tp)


def test_object_of_a_lane_that_crashed_before_its_commit_is_adopted(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    cluster.produce(tp, numbered(0, 10))
    crash_between_upload_and_commit(archive, tp)
    assert archive.ranges(tp) == [(0, 10)]
    cluster.produce(tp, numbered(10, 25))

    report = archive.run()

    (partition,) = report.partitions
    assert [(o.first_offset, o.next_offset, o.adopted) for o in partition.objects] == [(0, 10, True), (10, 25, False)]
    assert report.messages == 15
    assert_same_messages(archive, cluster, tp)


def test_damaged_object_is_not_adopted(archive: Archive, cluster: Cluster, tp: TopicPartition) -> None:
    cluster.produce(tp, numbered(0, 10))
    crash_between_upload_and_commit(archive, tp)
    key = BackupName(tp.topic, 1, 0, 0).key(archive.name)
    with archive.store() as store:
        data = bytearray(store.read(key))
        data[-1] ^= 1
        store.client.put_object(Bucket=store.bucket, Key=key, Body=bytes(data))

    (partition,) = archive.run().partitions

    assert partition.failure is not None
    assert partition.failure.error == "ChainBroken"
    assert "CRC" in partition.failure.message
    assert key in partition.failure.message
    committed = archive.committed(tp)
    assert committed is not None
    assert committed.committed_offset == 0


def test_two_lanes_at_once_archive_each_message_once(archive: Archive, cluster: Cluster, tp: TopicPartition) -> None:
    """With the lock and without it, since the lock only saves work."""

    class Unlocked(Coordinator):
        @contextmanager
        def lock(self, _: TopicPartition) -> Iterator[None]:
            yield

    for kind in (Coordinator, Unlocked):
        cluster.produce(tp, numbered(0, 500))
        reports: list[ingest.TopicPartitionReport] = []
        start = threading.Barrier(2)

        def lane(kind: type[Coordinator] = kind, start: threading.Barrier = start) -> None:
            with services_with(archive, kind) as services:
                start.wait(20)
                reports.append(archive.run_one(services, tp))  # noqa: B023 - both threads end within the round

        threads = [threading.Thread(target=lane) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(reports) == 2
        assert not any(report.failure for report in reports)
        assert sum(report.messages for report in reports) == 500
    assert_same_messages(archive, cluster, tp)


def test_lane_whose_commit_is_refused_continues_from_the_rivals_offset(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    class Overtaken(Coordinator):
        """A rival does the whole run before the first commit."""

        overtaken = False

        def write_committed(self, tp: TopicPartition, committed: CommittedOffset, version: int) -> CommittedOffset:
            if committed.committed_offset > 0 and not self.overtaken:
                type(self).overtaken = True
                with archive.services() as rival:
                    before = rival.coordinator.read_committed(tp)
                    assert before is not None
                    rival.coordinator.write_committed(tp, replace(before, committed_offset=10), before.version)
            return super().write_committed(tp, committed, version)

    cluster.produce(tp, numbered(0, 10))
    with services_with(archive, Overtaken) as services:
        report = archive.run_one(services, tp)
        assert Overtaken.overtaken
        assert report.failure is None
        assert report.committed_offset == 10
        found = services.coordinator.read_committed(tp)
        assert found is not None
        with pytest.raises(CommitConflict, match="moved by another lane"):
            services.coordinator.write_committed(tp, replace(found, committed_offset=11), found.version - 1)
    assert_same_messages(archive, cluster, tp)


def test_lane_rebuilds_the_committed_offset_from_the_chain(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    produce_transactions(cluster, tp)
    archive.run()
    before = archive.committed(tp)
    with archive.services() as services:
        coordinator = services.coordinator
        coordinator.session.client.delete(coordinator.session.full_path(coordinator.paths.committed_offset(tp)))
    cluster.produce(tp, numbered(0, 5))

    report = archive.run()

    assert report.messages == 5
    assert_same_messages(archive, cluster, tp)
    after = archive.committed(tp)
    assert before is not None
    assert after is not None
    assert after.topic_id == before.topic_id
    assert after.topic_id


# --- named stops ------------------------------------------------------------------------------------------------------


def test_retention_gap_stops_its_topic_partition_and_no_other(
    archive: Archive, cluster: Cluster, topic_name: str
) -> None:
    cluster.create(topic_name, partitions=2)
    gone, sound = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    for tp in (gone, sound):
        cluster.produce(tp, numbered(0, 10))
    archive.run()
    for tp in (gone, sound):
        cluster.produce(tp, numbered(10, 30))
    cluster.delete_records(gone, before=25)

    report = archive.run()

    stopped, archived = report.partitions
    assert (archived.outcome, archived.messages) == (Outcome.UP_TO_DATE, 20)
    assert stopped.outcome is Outcome.STOPPED
    assert stopped.failure is not None
    assert stopped.failure.error == "RetentionGap"
    assert "offsets 10–24" in stopped.failure.message
    with archive.services() as services:
        (stop,) = services.coordinator.list_stops()
    assert (stop.tp, stop.error) == (gone, "RetentionGap")
    assert (stop.figures["committed_offset"], stop.figures["earliest_offset"]) == (10, 25)
    assert archive.ranges(gone) == [(0, 10)]
    assert archive.run().partitions[0].outcome is Outcome.STOPPED, "it is planned again, and still stopped"


def test_recreated_topic_stops_its_topic_partition(archive: Archive, cluster: Cluster, tp: TopicPartition) -> None:
    cluster.produce(tp, numbered(0, 10))
    archive.run()
    cluster.delete(tp.topic)
    cluster.create(tp.topic)
    cluster.produce(tp, numbered(0, 20))

    (partition,) = archive.run().partitions

    assert partition.failure is not None
    assert partition.failure.error == "TopicRecreated"
    assert archive.ranges(tp) == [(0, 10)]


def test_log_that_ends_before_the_committed_offset_is_a_stop_until_it_is_long_enough(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    cluster.produce(tp, numbered(0, 10))
    archive.run()
    with archive.services() as services:
        before = services.coordinator.read_committed(tp)
        assert before is not None
        ahead = services.coordinator.write_committed(tp, replace(before, committed_offset=12), before.version)

        (partition,) = archive.run().partitions
        assert partition.failure is not None
        assert partition.failure.error == "LogTruncated"

        services.coordinator.write_committed(tp, before, ahead.version)
        assert archive.run().failures == []
        assert services.coordinator.list_stops() == []


def test_planning_without_zookeeper_fails_with_its_address(
    stack: Stack, archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    cluster.produce(tp, numbered(0, 10))
    nowhere = {"AIRFLOW_CONN_ZOOKEEPER_DEFAULT": '{"conn_type": "zookeeper", "host": "127.0.0.1", "port": 1}'}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*nowhere.popitem())
        with pytest.raises(CoordinationUnavailable, match=r"127\.0\.0\.1:1 .* started no session within 4 s"):
            ingest.plan_lanes(archive.config, STREAM)
    assert archive.run().messages == 10
