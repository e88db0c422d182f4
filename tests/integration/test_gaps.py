"""Named stops on the real stack: each stops one topic-partition until a person accepts the gap."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from archived_stream import ArchivedStream, Ran, add_rows
from ingest_scenes import Cluster

from devstack import Stack
from waybill.archive import ingest
from waybill.archive.chain import chain, gaps
from waybill.archive.chain.gaps import Gap, GapKind
from waybill.archive.ingest import Outcome
from waybill.archive.ingest.groups import report_run
from waybill.base.errors import IngestIncomplete, RetentionGap
from waybill.config.names import BackupName
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.partition.tasks import run_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture
def stream(stack: Stack, tmp_path: Path, topic_name: str) -> ArchivedStream:
    return ArchivedStream(tmp_path, topic_name)


def run(stream: ArchivedStream) -> list[ingest.TopicPartitionReport]:
    """Run all lanes once. Return the reports, including those of stopped topic-partitions."""
    lanes = [ingest.run_lane(stream.config, lane) for lane in ingest.plan_lanes(stream.config, stream.name)]
    return sorted((report for lane in lanes for report in lane.partitions), key=lambda report: report.tp)


def stop_of(stream: ArchivedStream) -> ingest.Failure:
    """Run once. Return the stop of partition 0, and assert that the others are archived."""
    first, *others = run(stream)
    assert first.outcome is Outcome.STOPPED
    assert not any(report.failure for report in others)
    assert first.failure is not None
    return first.failure


def accept(stream: ArchivedStream, *arguments: str, partition: int = 0) -> Ran:
    return stream.waybill("gaps", "accept", stream.topic, str(partition), *arguments)


def verify(stream: ArchivedStream) -> dict[str, Any]:
    (report,) = stream.waybill("verify", "--json").document
    return dict(report)


def faults(stream: ArchivedStream) -> list[tuple[str, int | None, int | None]]:
    return [(f["kind"], f["first_offset"], f["next_offset"]) for f in verify(stream)["faults"]]


def ranges(stream: ArchivedStream, partition: int = 0) -> list[tuple[int, int]]:
    with stream.store() as store:
        return [(o.name.first_offset, o.next_offset) for o in chain.walk_chain(store, 1, stream.tp(partition))]


def rows(stream: ArchivedStream) -> list[int]:
    """Return the offsets of partition 0 in the table."""
    with stream.tables() as tables:
        found = tables.main.scan(row_filter="partition = 0", selected_fields=("offset",)).to_arrow()
    return sorted(found.column("offset").to_pylist())


def delete(stream: ArchivedStream, key: str) -> bytes:
    """Remove an object from the bucket, which Waybill never does. Return its content."""
    with stream.store() as store:
        data = store.read(key)
        store.client.delete_object(Bucket=store.bucket, Key=key)
    return data


def put(stream: ArchivedStream, key: str, data: bytes) -> None:
    with stream.store() as store:
        store.client.put_object(Bucket=store.bucket, Key=key, Body=data)


# --- RetentionGap -----------------------------------------------------------------------------------------------------


@pytest.fixture
def expired(stream: ArchivedStream, cluster: Cluster) -> ArchivedStream:
    """Offsets 0–9 are archived, 10–24 are gone from Kafka, 25–29 still there. The other partition has ten."""
    stream.produce_events(10)
    stream.ingest()
    stream.produce_events(20, first=10)
    stream.produce_events(10, partition=1)
    cluster.delete_records(stream.tp(), before=25)
    return stream


def test_accepted_retention_gap_lets_ingest_continue_after_it(expired: ArchivedStream) -> None:
    stream = expired
    stop = stop_of(stream)
    assert stop.error == "RetentionGap"
    assert f'waybill gaps accept {stream.topic} 0 --reason "…"' in stop.message
    assert ranges(stream, 1) == [(0, 10)], "the other partition is archived"

    listed = stream.waybill("gaps", "--json").document
    (figures,) = [entry["figures"] for entry in listed["stops"]]
    assert (figures["committed_offset"], figures["earliest_offset"], figures["messages_at_most"]) == (10, 25, 15)
    assert listed["accepted"] == []

    ran = accept(stream, "--within", "10-19", "--reason", "seen before more was deleted", "--by", "ann")
    assert ran.code != 0
    assert "offsets 10–24 would be lost now, and the decision is about 10–19. Nothing was accepted" in ran.err
    assert stream.waybill("gaps", "--json").document["accepted"] == []
    ran = accept(stream, "--within", "10-24", "--reason", "broker disk was full", "--by", "ann")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        f"accepted: {stream.tp()} offsets 10–24 (RetentionGap), up to 15 messages: broker disk was full",
        "ingest resumes at offset 25",
    ]
    offsets = stream.waybill("offsets", "--json").document
    assert [(row["committed_offset"], row["state"]) for row in offsets] == [(25, "ok"), (10, "ok")]

    assert not any(report.failure for report in run(stream))
    assert ranges(stream) == [(0, 10), (10, 25), (25, 30)]
    stream.partition()
    assert rows(stream) == [*range(10), *range(25, 30)]
    report = verify(stream)
    assert report["faults"] == []
    (gap,) = report["accepted"]
    assert (gap["first_offset"], gap["next_offset"], gap["kind"]) == (10, 25, "RetentionGap")
    assert (gap["reason"], gap["accepted_by"]) == ("broker disk was full", "ann")
    assert gap["accepted_at"] <= time.time() * 1000
    lines = stream.waybill("verify").out.splitlines()
    assert f"events: accepted: {stream.tp()} offsets 10–24 (RetentionGap), by ann: broker disk was full" in lines
    assert lines[-1] == "sound, except for 1 accepted gap: nothing else lost, nothing repeated"


def test_first_decision_about_a_gap_counts(expired: ArchivedStream) -> None:
    assert accept(expired, "--reason", "first", "--by", "ann").code == 0
    ran = accept(expired, "--reason", "second", "--by", "bob", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["new"] is False
    assert [(gap["reason"], gap["accepted_by"]) for gap in ran.document["accepted"]] == [("first", "ann")]
    (entry,) = expired.waybill("gaps", "ls", "--stream", "events", "--json").document["accepted"]
    assert (entry["stream"], entry["reason"]) == ("events", "first")


def test_next_lane_completes_an_accepted_gap_after_a_crash(expired: ArchivedStream) -> None:
    """The process died after it had recorded the gap."""
    stop_of(expired)
    gap = Gap(expired.tp(), 1, 10, 25, GapKind.RETENTION, "why", "ann", 1)
    with expired.store() as store:
        gaps.record_gap(store, gap)
    assert [note for note in verify(expired)["notes"] if "the next ingest creates its gap marker" in note]
    assert not any(report.failure for report in run(expired))
    assert ranges(expired) == [(0, 10), (10, 25), (25, 30)]
    assert expired.waybill("gaps", "--json").document["stops"] == []
    assert faults(expired) == []


def test_accepted_gap_outlives_zookeepers_data(expired: ArchivedStream) -> None:
    assert accept(expired, "--reason", "why").code == 0
    remove_committed_offset(expired)
    assert not any(report.failure for report in run(expired))
    assert ranges(expired) == [(0, 10), (10, 25), (25, 30)]
    with expired.coordinator() as coordinator:
        found = coordinator.read_committed(expired.tp())
    assert found is not None
    assert (found.committed_offset, found.start_offset, found.last_object_offset) == (30, 0, 25)


def test_second_gap_right_after_the_first_is_accepted(expired: ArchivedStream, cluster: Cluster) -> None:
    assert accept(expired, "--reason", "first").code == 0
    cluster.delete_records(expired.tp(), before=28)
    assert stop_of(expired).error == "RetentionGap"
    assert accept(expired, "--reason", "second").code == 0
    run(expired)
    assert ranges(expired) == [(0, 10), (10, 25), (25, 28), (28, 30)]
    assert faults(expired) == []
    assert [gap["reason"] for gap in verify(expired)["accepted"]] == ["first", "second"]


def test_uncommitted_object_of_a_dead_lane_is_adopted_and_only_the_rest_is_a_gap(expired: ArchivedStream) -> None:
    with expired.store() as store:
        name = BackupName(expired.topic, 1, 0, 10)
        data = events(10, 20)
        store.create_if_absent(name.key(store.prefix), data)
    assert stop_of(expired).message.count("offsets 20–24") == 1
    assert accept(expired, "--reason", "why").code == 0
    run(expired)
    assert ranges(expired) == [(0, 10), (10, 20), (20, 25), (25, 30)]
    assert faults(expired) == []


def test_object_of_a_lane_that_slept_since_before_the_decision_makes_the_gap_smaller(expired: ArchivedStream) -> None:
    """It has messages that Kafka no longer has, and creates its object before the gap marker is created."""
    stop_of(expired)
    with expired.store() as store:
        gaps.record_gap(store, Gap(expired.tp(), 1, 10, 25, GapKind.RETENTION, "why", "ann", 1))
        store.create_if_absent(BackupName(expired.topic, 1, 0, 10).key(store.prefix), events(10, 20))
    assert stop_of(expired).message.count("offsets 20–24") == 1
    assert accept(expired, "--reason", "what is left").code == 0
    run(expired)
    report = verify(expired)
    assert report["faults"] == []
    assert [(gap["first_offset"], gap["next_offset"]) for gap in report["accepted"]][-1] == (20, 25)


def test_lane_that_slept_is_refused_once_the_gap_marker_exists(expired: ArchivedStream) -> None:
    assert accept(expired, "--reason", "why").code == 0
    with expired.store() as store, pytest.raises(Exception, match="exists already"):
        store.create_if_absent(BackupName(expired.topic, 1, 0, 10).key(store.prefix), events(10, 20))


def test_report_of_a_stopped_topic_partition_fails_with_the_remedy(expired: ArchivedStream) -> None:
    lanes = [ingest.run_lane(expired.config, lane) for lane in ingest.plan_lanes(expired.config, expired.name)]
    plan = ingest.IngestPlan(streams=(expired.name,), lanes=())
    with pytest.raises(IngestIncomplete, match=f"RetentionGap: .*waybill gaps accept {expired.topic} 0 --reason"):
        report_run(expired.config, None, plan, [lane.summary() for lane in lanes])


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["text", "sequencefile"])
def test_gap_in_a_chain_of_another_format_is_accepted(stream: ArchivedStream, cluster: Cluster, kind: str) -> None:
    document = yaml.safe_load(stream.file.read_text())
    document["streams"]["events"]["format"] = kind
    stream.file.write_text(yaml.safe_dump(document))
    stream.produce_events(10)
    stream.ingest()
    stream.produce_events(20, first=10)
    cluster.delete_records(stream.tp(), before=25)
    assert stop_of(stream).error == "RetentionGap"
    assert accept(stream, "--reason", "why").code == 0
    run(stream)
    assert ranges(stream) == [(0, 10), (10, 25), (25, 30)]
    stream.partition()
    assert rows(stream) == [*range(10), *range(25, 30)]
    assert faults(stream) == []
    assert [gap["next_offset"] for gap in verify(stream)["accepted"]] == [25]


@pytest.mark.deep
def test_spark_reads_the_messages_around_a_gap(spark: SparkSession, expired: ArchivedStream) -> None:
    from waybill.tables.spark.source import WaybillBackup

    assert accept(expired, "--reason", "why").code == 0
    run(expired)
    spark.dataSource.register(WaybillBackup)
    options = {"stream": "events", "config": str(expired.file)}
    messages = spark.read.format("waybill_backup").options(**options).load()
    found = sorted(row.offset for row in messages.where("partition = 0").select("offset").collect())
    assert found == [*range(10), *range(25, 30)]


# --- refused decisions ------------------------------------------------------------------------------------------------


def test_recreated_topic_cannot_be_accepted(stream: ArchivedStream, cluster: Cluster) -> None:
    stream.produce_events(10)
    stream.ingest()
    cluster.delete(stream.topic)
    cluster.create(stream.topic, partitions=2)
    stream.produce_events(20)
    assert stop_of(stream).error == "TopicRecreated"
    ran = accept(stream, "--reason", "whatever")
    assert ran.code == 1
    assert "the topic was recreated" in ran.err
    assert "Raise the stream's generation" in ran.err
    assert ran.err.endswith("There is no gap to accept.\n")
    assert ranges(stream) == [(0, 10)]


def test_accept_is_refused_when_there_is_no_gap(stream: ArchivedStream) -> None:
    ran = accept(stream, "--reason", "x")
    assert ran.code == 1
    assert "generation 1 has no archived offset yet, so there is no gap" in ran.err
    stream.produce_events(10)
    stream.ingest()
    ran = accept(stream, "--reason", "x")
    assert ran.code == 1
    assert "there is no gap to accept: Kafka's log continues where the archive ends, at 10" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing", "0", "--reason", "x"], "topic 'nothing' does not belong to any stream"),
        (["{topic}", "0", "--reason", " "], "--reason is empty"),
        (["{topic}", "0", "--reason", "x", "--from", "3"], "give --from and --to together"),
        (["{topic}", "0", "--reason", "x", "--stream", "other"], "no stream 'other'"),
    ],
)
def test_wrong_command_line_is_refused_with_the_reason(
    stream: ArchivedStream, arguments: list[str], message: str
) -> None:
    ran = stream.waybill("gaps", "accept", *(each.format(topic=stream.topic) for each in arguments))
    assert ran.code == 1
    assert message in ran.err


# --- ChainBroken ------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(stream: ArchivedStream) -> ArchivedStream:
    """Three objects of ten messages each."""
    for first in (0, 10, 20):
        stream.produce_events(10, first=first)
        stream.ingest()
    return stream


def test_lost_object_in_the_middle_of_a_chain_is_accepted(three: ArchivedStream) -> None:
    keys = three.object_keys()
    delete(three, keys[1])
    assert faults(three) == [("missing", 10, 20)]

    ran = accept(three, "--reason", "bucket cleaned by mistake", "--from", "10", "--to", "19")

    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"accepted: {three.tp()} offsets 10–19 (ChainBroken), up to 10 messages")
    assert ranges(three) == [(0, 10), (10, 20), (20, 30)]
    three.partition()
    assert rows(three) == [*range(10), *range(20, 30)]
    report = verify(three)
    assert report["faults"] == []
    assert [gap["kind"] for gap in report["accepted"]] == ["ChainBroken"]
    again = accept(three, "--reason", "again", "--from", "10", "--to", "19", "--json").document
    assert (again["new"], again["accepted"][0]["reason"]) == (False, "bucket cleaned by mistake")


def test_rows_of_an_object_that_was_lost_later_are_not_a_fault(three: ArchivedStream) -> None:
    three.partition()
    delete(three, three.object_keys()[1])
    assert accept(three, "--reason", "why", "--from", "10", "--to", "19").code == 0
    assert faults(three) == []
    assert rows(three) == list(range(30))


@pytest.mark.deep
def test_lost_first_object_is_accepted(three: ArchivedStream) -> None:
    delete(three, three.object_keys()[0])
    assert faults(three) == [("missing", 0, 10)]
    report = run_partition(three.config, three.name, lambda job, tasks: [run_task(job, task) for task in tasks])
    assert [fault for fault in report.faults if "no object holds offsets 0–9" in fault]
    assert accept(three, "--reason", "why", "--from", "0", "--to", "9").code == 0
    three.partition()
    assert rows(three) == list(range(10, 30))
    assert faults(three) == []


@pytest.mark.deep
@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (10, 18, "the next object starts at 20: the gap ends at 19, and not at 18"),
        (11, 19, "ends at 9: the gap starts at 10, and not at 11"),
        (9, 19, "ends at 9: the gap starts at 10, and not at 9"),
        (10, 20, "offsets 20–29 are not lost"),
        (0, 9, "offsets 0–9 are not lost"),
        (30, 40, "there is no object after offset 40: that is the chain's end"),
        (19, 10, "19 to 10 is no range of offsets"),
    ],
)
def test_accept_is_refused_for_a_range_that_is_not_exactly_what_is_missing(
    three: ArchivedStream, first: int, last: int, message: str
) -> None:
    delete(three, three.object_keys()[1])
    ran = accept(three, "--reason", "why", "--from", str(first), "--to", str(last))
    assert ran.code == 1
    assert message in ran.err
    assert faults(three) == [("missing", 10, 20)]


def test_damaged_object_must_be_moved_away_before_its_gap_is_accepted(three: ArchivedStream) -> None:
    key = three.object_keys()[1]
    with three.store() as store:
        data = bytearray(store.read(key))
    data[-1] ^= 1
    put(three, key, bytes(data))
    ran = accept(three, "--reason", "why", "--from", "10", "--to", "19")
    assert ran.code == 1
    assert f"move {key} away by hand" in ran.err
    delete(three, key)
    assert accept(three, "--reason", "why", "--from", "10", "--to", "19").code == 0
    assert faults(three) == []


def test_damaged_uncommitted_object_is_a_stop_with_the_remedy(stream: ArchivedStream) -> None:
    stream.produce_events(10)
    stream.ingest()
    stream.produce_events(10, first=10)
    with stream.store() as store:
        key = BackupName(stream.topic, 1, 0, 10).key(store.prefix)
        store.create_if_absent(key, events(10, 20)[:-1])
    stop = stop_of(stream)
    assert stop.error == "ChainBroken"
    assert f"move {key} away by hand. The next run then archives the offsets from 10 again" in stop.message
    (entry,) = stream.waybill("gaps", "--json").document["stops"]
    assert (entry["error"], entry["figures"]["first_offset"]) == ("ChainBroken", 10)
    delete(stream, key)
    assert not any(report.failure for report in run(stream))
    assert ranges(stream) == [(0, 10), (10, 20)]


def test_missing_last_object_stops_ingest_until_it_is_restored(three: ArchivedStream) -> None:
    """Nothing is archived after missing offsets."""
    data = delete(three, three.object_keys()[-1])
    three.produce_events(10, first=30)
    stop = stop_of(three)
    assert stop.error == "ChainBroken"
    assert "the chain's last backup object, offsets 20–29, is missing" in stop.message
    assert len(three.object_keys()) == 2
    put(three, BackupName(three.topic, 1, 0, 20).key(three.config.storage.prefix), data)
    assert not any(report.failure for report in run(three)), "ingest continues once the object is restored"
    assert ranges(three)[-2:] == [(20, 30), (30, 40)]


def test_objects_after_the_committed_offset_are_adopted(three: ArchivedStream) -> None:
    """ZooKeeper was restored from an old backup: the lane adopts object after object up to the chain's end."""
    move_committed_offset(three, 10, last_object_offset=0)
    three.produce_events(5, first=30)
    assert not any(report.failure for report in run(three))
    assert ranges(three) == [(0, 10), (10, 20), (20, 30), (30, 35)]


def test_committed_offset_in_the_middle_of_an_object_is_a_stop(three: ArchivedStream) -> None:
    move_committed_offset(three, 15, last_object_offset=None)
    three.produce_events(5, first=30)
    stop = stop_of(three)
    assert stop.error == "ChainBroken"
    assert "no backup object starts or ends at the committed offset 15" in stop.message
    assert len(three.object_keys()) == 3, "nothing was archived twice"


def move_committed_offset(stream: ArchivedStream, offset: int, last_object_offset: int | None) -> None:
    with stream.coordinator() as coordinator:
        found = coordinator.read_committed(stream.tp())
        assert found is not None
        moved = replace(found, committed_offset=offset, last_object_offset=last_object_offset)
        coordinator.write_committed(stream.tp(), moved, found.version)


def remove_committed_offset(stream: ArchivedStream) -> None:
    """Delete the znode, as if ZooKeeper had lost its data."""
    with stream.coordinator() as coordinator:
        coordinator.session.client.delete(
            coordinator.session.full_path(coordinator.paths.committed_offset(stream.tp()))
        )


# --- GenerationConflict -----------------------------------------------------------------------------------------------


def test_document_of_a_newer_waybill_stops_its_topic_partition(stream: ArchivedStream) -> None:
    stream.produce_events(10)
    stream.produce_events(10, partition=1)
    stream.ingest()
    with stream.coordinator() as coordinator:
        path = coordinator.session.full_path(coordinator.paths.committed_offset(stream.tp(0)))
        coordinator.session.client.set(path, b'{"v":2,"committed_offset":10}')
    stream.produce_events(10, first=10)
    stream.produce_events(10, partition=1, first=10)
    assert stop_of(stream).error == "GenerationConflict"
    assert ranges(stream, 1) == [(0, 10), (10, 20)], "the other partition is archived"
    assert "stopped: GenerationConflict" in stream.waybill("offsets").out
    ran = accept(stream, "--reason", "x")
    assert ran.code == 1
    assert "was written by a newer Waybill (document version 2" in ran.err


def test_topic_that_matches_two_streams_is_a_stop(stream: ArchivedStream) -> None:
    """The config alone does not show the conflict: it begins with the first topic that matches both patterns."""
    stream.produce_events(10)
    document = yaml.safe_load(stream.file.read_text())
    other = {**document["streams"]["events"], "topics": {"regex": stream.topic[:-1] + "."}, "table": "other.events"}
    document["streams"]["other"] = other
    document["streams"]["events"]["topics"] = {"regex": stream.topic[:-2] + ".."}
    stream.file.write_text(yaml.safe_dump(document))
    first, second = run(stream)
    for report in (first, second):
        assert report.failure is not None
        assert report.failure.error == "GenerationConflict"
        assert "belongs to the streams 'events' and 'other' in the same generation" in report.failure.message
    assert stream.object_keys() == []


# --- verify and accepted gaps -----------------------------------------------------------------------------------------


@pytest.fixture
def accepted(expired: ArchivedStream) -> ArchivedStream:
    assert accept(expired, "--reason", "why").code == 0
    run(expired)
    assert faults(expired) == []
    return expired


def test_gap_marker_without_an_accepted_gap_is_a_fault(accepted: ArchivedStream) -> None:
    with accepted.store() as store:
        (gap,) = gaps.list_gaps_of_chain(store, 1, accepted.tp())
        gaps.withdraw_gap(store, gap)
    assert faults(accepted) == [("gap", 10, 25)]


def test_accepted_gap_of_archived_offsets_is_a_fault(accepted: ArchivedStream) -> None:
    with accepted.store() as store:
        gaps.record_gap(store, Gap(accepted.tp(), 1, 5, 27, GapKind.BROKEN, "too much", "eve", 1))
        gaps.record_gap(store, Gap(accepted.tp(), 1, 27, 28, GapKind.TRUNCATED, "no such seam", "eve", 1))
    assert sorted(faults(accepted)) == [("gap", 5, 10), ("gap", 10, 25), ("gap", 25, 27), ("gap", 27, 28)]


@pytest.mark.deep
def test_repeated_rows_beside_a_gap_are_a_fault(accepted: ArchivedStream) -> None:
    accepted.partition()
    with accepted.tables() as tables:
        row = tables.main.scan(row_filter="partition = 0 and offset = 9").to_arrow()
        add_rows(tables.main, row)
    assert faults(accepted) == [("repeated", 9, 10)]


def test_journaled_stop_is_listed_with_its_remedy(stream: ArchivedStream) -> None:
    with stream.coordinator() as coordinator:
        coordinator.record_stop(stream.tp(), RetentionGap(stream.topic, 0, 10, 25))
    lines = stream.waybill("gaps").out.splitlines()
    assert lines[0].split() == ["stream", "topic-partition", "stopped", "by", "offsets", "lost", "at", "most", "since"]
    assert lines[1].split()[:4] == ["events", str(stream.tp()), "RetentionGap", "15"]
    assert any(f'waybill gaps accept {stream.topic} 0 --reason "…"' in line for line in lines)
    assert lines[-1] == "No gap has been accepted."


def events(first: int, following: int) -> bytes:
    """Return the content of a backup object with the offsets `[first, following)`."""
    from waybill.records.batches.encode import Record, encode_batch

    records = [
        Record(
            offset, 1_767_225_600_000, b"k", json.dumps({"id": f"e{offset}", "time": "2026-01-01T00:00:00Z"}).encode()
        )
        for offset in range(first, following)
    ]
    return encode_batch(records)
