"""Kinesis streams are archived by lanes: each record once, and a child after its parents."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from ingest_scenes import STREAM
from kinesis_scenes import KinesisStream, Put, archive_of

from waybill.archive.chain.gaps import GapKind
from waybill.archive.ingest import run_lane
from waybill.archive.ingest.gap_acceptance import accept_gap
from waybill.archive.ingest.kinesis.shard_starts import find_stream_origin, read_slot_map
from waybill.archive.ingest.kinesis.slot_object import new_slot_object
from waybill.archive.ingest.lane import drain_lane
from waybill.archive.ingest.lane_report import Outcome, TopicPartitionReport
from waybill.archive.ingest.target import ArchiveTarget
from waybill.archive.ingest.time_slice import Clock
from waybill.base.decision import Decision
from waybill.config.names import TopicPartition
from waybill.records.batches import framing
from waybill.records.shards.checkpoint import Checkpoint, PositionKind
from waybill.records.shards.checkpoint_batch import SlotState, checkpoint_batch, read_checkpoint_batch
from waybill.records.shards.slot_map import SlotMap
from waybill.services.coordination.shard_map import read_slot_map_copy, write_slot_map_copy
from waybill.watch.verify import VerifyReport, verify_stream
from waybill.watch.verify.verify_report import FaultKind

if TYPE_CHECKING:
    from ingest_scenes import Archive

    from devstack import Stack
    from waybill.records.batches.encode import Record


@pytest.fixture
def kinesis(stack: Stack, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[KinesisStream]:
    """A stream of two shards."""
    with KinesisStream.connected(stack, topic_name, monkeypatch) as stream:
        yield stream


@pytest.fixture
def slots(stack: Stack, kinesis: KinesisStream) -> Archive:
    """Its archive in three slots."""
    return archive_of(stack, kinesis)


def archived(archive: Archive, topic: str, slots: int = 3) -> dict[int, list[Record]]:
    return {slot: archive.messages(TopicPartition(topic, slot)) for slot in range(slots)}


def header(record: Record, name: str) -> str:
    value = dict(record.headers)[f"kinesis.{name}"]
    assert value is not None
    return value.decode()


def identities(records: dict[int, list[Record]]) -> list[tuple[str, str]]:
    return sorted(
        (header(each, "shard_id"), header(each, "sequence_number")) for found in records.values() for each in found
    )


def assert_complete(archive: Archive, topic: str, puts: list[Put], slots: int = 3) -> dict[int, list[Record]]:
    found = archived(archive, topic, slots)
    assert identities(found) == sorted((put.shard_id, put.sequence) for put in puts)
    by_shard = defaultdict(set)
    for slot, records in found.items():
        for each in records:
            by_shard[header(each, "shard_id")].add(slot)
    assert all(len(slots_of_shard) == 1 for slots_of_shard in by_shard.values())
    return found


def archived_map(archive: Archive, topic: str) -> SlotMap:
    with archive.store() as store:
        origin = find_stream_origin(store, topic, 1)
        assert origin is not None
        return read_slot_map(store, topic, 1, SlotMap(origin))


def numbered(keys: int, first: int, count: int) -> list[tuple[str, bytes]]:
    return [(f"key-{number % keys}", b"%d" % number) for number in range(first, first + count)]


def test_each_record_is_archived_once_with_its_key_time_and_origin(kinesis: KinesisStream, slots: Archive) -> None:
    puts = kinesis.put(numbered(10, 0, 40))
    report = slots.run()
    assert {each.outcome for each in report.partitions} == {Outcome.UP_TO_DATE}
    found = assert_complete(slots, kinesis.name, puts)
    by_identity = {
        (header(each, "shard_id"), header(each, "sequence_number")): each for part in found.values() for each in part
    }
    for put in puts:
        record = by_identity[put.shard_id, put.sequence]
        assert (record.key, record.value) == (put.key.encode(), put.data)
        assert record.timestamp_ms > 1_600_000_000_000
    assert report.messages == 40


def test_a_run_without_news_archives_nothing(kinesis: KinesisStream, slots: Archive) -> None:
    kinesis.put(numbered(10, 0, 20))
    slots.run()
    again = slots.run()
    assert [each.objects for each in again.partitions] == [(), ()]
    assert {each.outcome for each in again.partitions} == {Outcome.UP_TO_DATE}


def test_offsets_go_on_where_the_last_object_ended(kinesis: KinesisStream, slots: Archive) -> None:
    puts = kinesis.put(numbered(10, 0, 20))
    slots.run()
    puts += kinesis.put(numbered(10, 20, 20))
    slots.run()
    assert_complete(slots, kinesis.name, puts)
    for slot in range(2):
        ranges = slots.ranges(TopicPartition(kinesis.name, slot))
        assert ranges[0][0] == 0
        assert [begin for begin, _ in ranges[1:]] == [end for _, end in ranges[:-1]]


def test_the_children_of_a_split_and_of_a_merge_start_when_their_parents_are_archived(
    kinesis: KinesisStream, slots: Archive
) -> None:
    puts = kinesis.put(numbered(20, 0, 40))
    slots.run()
    puts += kinesis.put(numbered(20, 40, 40))
    left, right = kinesis.open_shards()
    kinesis.split(left)
    puts += kinesis.put(numbered(20, 80, 40))
    first, second, third = kinesis.open_shards()
    kinesis.merge(second, third)
    puts += kinesis.put(numbered(20, 120, 40))
    # Of a child, whose parents are not archived, nothing is read.
    slots.run()
    seen = {shard_id for shard_id, _ in identities(archived(slots, kinesis.name))}
    assert seen == {left, right}
    for _ in range(3):
        slots.run()
    found = assert_complete(slots, kinesis.name, puts)
    assert len({header(each, "shard_id") for part in found.values() for each in part}) == 5
    ended = {
        shard_id
        for slot in range(3)
        if (committed := slots.committed(TopicPartition(kinesis.name, slot))) and committed.checkpoint
        for shard_id, position in committed.checkpoint.positions.items()
        if position.kind is PositionKind.SHARD_END
    }
    assert ended == {left, right, second}
    assert first not in ended


def test_a_loss_of_zookeepers_data_changes_nothing(kinesis: KinesisStream, slots: Archive) -> None:
    puts = kinesis.put(numbered(20, 0, 40))
    kinesis.split(kinesis.open_shards()[0])
    puts += kinesis.put(numbered(20, 40, 40))
    slots.run()
    slots.run()
    before = archived_map(slots, kinesis.name)
    with slots.services() as services:
        session = services.coordinator.session
        session.client.delete(session.full_path(services.coordinator.paths.base), recursive=True)
        assert services.coordinator.list_committed() == {}
    puts += kinesis.put(numbered(20, 80, 40))
    slots.run()
    slots.run()
    assert_complete(slots, kinesis.name, puts)
    assert archived_map(slots, kinesis.name) == before


def test_a_stream_that_was_created_again_is_a_named_stop(kinesis: KinesisStream, slots: Archive) -> None:
    kinesis.put(numbered(20, 0, 10))
    slots.run()
    kinesis.delete()
    kinesis.create(2)
    kinesis.put(numbered(20, 10, 10))
    report = slots.run()
    assert {each.outcome for each in report.partitions} == {Outcome.STOPPED}
    assert {each.failure.error for each in report.partitions if each.failure} == {"StreamRecreated"}
    assert len(identities(archived(slots, kinesis.name))) == 10


def test_with_start_latest_only_later_records_are_archived(stack: Stack, kinesis: KinesisStream) -> None:
    archive = archive_of(stack, kinesis, start="latest")
    kinesis.put(numbered(20, 0, 10))
    archive.run()
    puts = kinesis.put(numbered(20, 10, 10))
    archive.run()
    assert_complete(archive, kinesis.name, puts)


def test_one_slot_archives_more_shards_than_there_are_slots(stack: Stack, kinesis: KinesisStream) -> None:
    archive = archive_of(stack, kinesis, slots=1)
    puts = kinesis.put(numbered(20, 0, 40))
    kinesis.split(kinesis.open_shards()[1])
    puts += kinesis.put(numbered(20, 40, 40))
    for _ in range(3):
        archive.run()
    found = assert_complete(archive, kinesis.name, puts, slots=1)
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for record in found[0]:
        by_key[record.key].append(int(record.value or b""))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


# --- named stops and gaps ---------------------------------------------------------------------------------------------


def days_later(days: float) -> Clock:
    return Clock(wall=lambda: time.time() + days * 86_400)


def run_later(archive: Archive, days: float) -> list[TopicPartitionReport]:
    reports = []
    for lane in archive.plan():
        with archive.services() as services:
            reports += drain_lane({STREAM: services}, archive.config, lane, clock=days_later(days)).partitions
    return reports


def test_records_that_retention_may_have_removed_are_a_stop_until_a_person_accepts_the_gap(
    kinesis: KinesisStream, slots: Archive
) -> None:
    puts = kinesis.put(numbered(20, 0, 20))
    slots.run()
    reports = run_later(slots, days=1.1)
    assert {(each.outcome, each.failure.error) for each in reports if each.failure} == {
        (Outcome.STOPPED, "RetentionGap")
    }
    assert len(reports) == 2
    for slot in range(2):
        tp = TopicPartition(kinesis.name, slot)
        before = slots.committed(tp)
        assert before is not None
        with slots.services() as services:
            accepted = accept_gap(
                services,
                slots.config.stream(STREAM),
                tp,
                Decision("we were away", "tester"),
                clock=days_later(1.1),
            )
        assert [(gap.first_offset, gap.next_offset, gap.kind) for gap in accepted.gaps] == [
            (before.committed_offset, before.committed_offset + 1, GapKind.RETENTION)
        ]
    # Kinesis still has all records of this test, so the shards are read again from their beginnings.
    puts += kinesis.put(numbered(20, 20, 20))
    assert {each.outcome for each in run_later(slots, days=1.1)} == {Outcome.UP_TO_DATE}
    found = identities(archived(slots, kinesis.name))
    assert set(found) == {(put.shard_id, put.sequence) for put in puts}
    assert len(found) == 20 + 40


def test_a_shard_without_records_is_proven_to_be_empty_before_retention_passes(
    kinesis: KinesisStream, slots: Archive
) -> None:
    for days in (0.0, 0.5, 1.0, 1.5):
        assert {each.outcome for each in run_later(slots, days)} == {Outcome.UP_TO_DATE}
    ranges = slots.ranges(TopicPartition(kinesis.name, 0))
    assert len(ranges) == 3, "a checkpoint is committed when a quarter of the retention has passed"


def test_the_archive_decides_where_the_copy_in_zookeeper_names_another_slot(
    kinesis: KinesisStream, slots: Archive
) -> None:
    puts = kinesis.put(numbered(20, 0, 20))
    lanes = slots.plan()
    with slots.services() as services:
        recorded = archived_map(slots, kinesis.name)
        moved = next(iter(recorded.shards_of(0)))
        wrong = replace(recorded, assignments={**recorded.assignments, moved.shard_id: replace(moved, slot=1)})
        session, paths = services.coordinator.session, services.coordinator.paths
        version = read_slot_map_copy(session, paths, kinesis.name).version
        write_slot_map_copy(session, paths, kinesis.name, wrong, version)
    for lane in lanes:
        run_lane(slots.config, lane)
    # Slot 0 does not know that the shard is its own until the copy is written again.
    assert moved.shard_id not in {shard_id for shard_id, _ in identities(archived(slots, kinesis.name))}
    with slots.services() as services:
        session = services.coordinator.session
        session.delete(services.coordinator.paths.slot_map(kinesis.name), "delete the copy")
    slots.run()
    found = assert_complete(slots, kinesis.name, puts)
    assert {header(each, "shard_id") for each in found[0]} == {moved.shard_id}


def test_an_object_with_a_shard_of_another_slot_is_not_committed(kinesis: KinesisStream, slots: Archive) -> None:
    kinesis.put(numbered(20, 0, 20))
    slots.run()
    tp, other = TopicPartition(kinesis.name, 0), TopicPartition(kinesis.name, 1)
    with slots.services() as services:
        committed, foreign = services.coordinator.read_committed(tp), services.coordinator.read_committed(other)
        assert committed is not None
        assert foreign is not None
        assert committed.checkpoint is not None
        assert foreign.checkpoint is not None
        target = ArchiveTarget(services, slots.config.stream(STREAM), tp)
        forged = new_slot_object(target, committed.committed_offset, committed.topic_id, committed.checkpoint)
        forged.checkpoint = Checkpoint({**committed.checkpoint.positions, **foreign.checkpoint.positions})
        forged.complete()
    report = slots.run()
    stopped = {each.partition: each.failure.error for each in report.partitions if each.failure}
    assert stopped == {0: "ShardNotOwned"}
    assert slots.committed(tp) == committed


# --- what reads the archive ------------------------------------------------------------------------------------------


class _Quiet:
    def begin(self, what: str, total: int) -> None: ...

    def advance(self, steps: int) -> None: ...


def verified(archive: Archive) -> VerifyReport:
    with archive.services() as services:
        return verify_stream(
            STREAM,
            archive.config.stream(STREAM),
            store=services.store,
            read_committed=services.coordinator.read_committed,
            committed_tps=list(services.coordinator.list_committed()),
            catalog=None,
            listener=_Quiet(),
        )


def test_verify_compares_the_shards_that_objects_cover(kinesis: KinesisStream, slots: Archive) -> None:
    kinesis.put(numbered(20, 0, 40))
    slots.run()
    kinesis.put(numbered(20, 40, 40))
    kinesis.split(kinesis.open_shards()[0])
    kinesis.put(numbered(20, 80, 40))
    for _ in range(3):
        slots.run()
    report = verified(slots)
    assert report.faults == []
    assert (report.figures.messages, report.figures.shards) == (120, 4)
    # An object in the middle of a chain that covers less than it did.
    tp = TopicPartition(kinesis.name, 0)
    first, second, *_ = slots.chain(tp)
    with slots.store() as store:
        data = store.read(second.key)
        frames = list(framing.frames(data, where=second.key))
        state = read_checkpoint_batch(frames[-1], second.key)
        assert state is not None
        covered = {shard_id: each._replace(after_sequence="17") for shard_id, each in state.covered.items()}
        changed = checkpoint_batch(frames[-1].header.base_offset, SlotState(state.checkpoint, covered))
        store.replace(second.key, data[: frames[-1].position] + changed)
    (fault,) = verified(slots).faults
    assert (fault.kind, fault.where) == (FaultKind.SHARD, second.key)
    assert "after 17" in fault.what
    assert first.next_offset == second.name.first_offset
