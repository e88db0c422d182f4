"""Kinesis as a source of ingest: slots, which are topic-partitions, and the shards that each slot archives.

A slot of a Kinesis stream takes the place of a topic-partition of Kafka. Waybill counts its offsets, so the log of a
slot ends where it is archived. The commit protocol is the same. The differences are here and in `slot_fetching`.

An object in S3 decides once which slot archives a shard (`shard_starts`). So two slots never read the same shard, even
if ZooKeeper loses data or a lane was frozen for a long time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from typing import NoReturn

from waybill.archive.chain.gaps import GAP_METADATA_KEY, Gap
from waybill.archive.chain.object_reader import ObjectSummary
from waybill.archive.ingest.kinesis.shard_states import ShardState, committed_position, shard_state
from waybill.archive.ingest.kinesis.slot_assignment import ShardListing, StreamStart
from waybill.archive.ingest.kinesis.slot_fetching import SlotFetch
from waybill.archive.ingest.kinesis.slot_maps import SlotMaps
from waybill.archive.ingest.kinesis.slot_object import new_slot_object
from waybill.archive.ingest.kinesis.slot_reader import SlotReader
from waybill.archive.ingest.position import Position
from waybill.archive.ingest.target import ArchiveTarget, Source
from waybill.archive.ingest.time_slice import Clock
from waybill.base.errors import (
    ChainBroken,
    ConfigError,
    KinesisUnavailable,
    ObjectExists,
    RecordsExpired,
    RetentionGap,
    StreamRecreated,
    expected,
)
from waybill.config.connections import KinesisEndpoint
from waybill.config.models import Stream
from waybill.config.models.quantities import counted, format_duration
from waybill.config.names import BackupName, TopicPartition
from waybill.records.shards.checkpoint import Checkpoint, PositionKind, ShardPosition
from waybill.records.shards.lineage import Shard
from waybill.records.shards.slot_map import Assignment, SlotMap, garbage
from waybill.services.coordination import CommittedOffset, Coordinator, SlotRead
from waybill.services.kafka.cluster import Topic
from waybill.services.kafka.kafka import LogRange, PartitionState, StreamTopics
from waybill.services.kinesis.client import KinesisSource, StreamDescription
from waybill.services.kinesis.shard_reader import ShardReader
from waybill.services.store import Store

logger = logging.getLogger(__name__)

_LISTINGS = 3
_UNKNOWN_END = 1 << 62
"""Stands for the end of a slot's log, which is unknown: Kinesis does not count records."""


class SlotSource:
    """The Kinesis streams of one stream of the config. Implements `waybill.archive.ingest.target.Source`.

    Use it from one thread, for one run, since it caches most answers.

    Every method raises `KinesisUnavailable`, `StoreUnavailable` or `CoordinationUnavailable` when a service does not
    answer, and `ConfigError` when Kinesis refuses access.
    """

    first_checkpoint = Checkpoint()

    def __init__(
        self,
        kinesis: KinesisSource,
        stream: Stream,
        store: Store,
        coordinator: Coordinator,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._kinesis, self._stream, self._coordinator = kinesis, stream, coordinator
        self._clock = clock or Clock()
        self._descriptions: dict[str, StreamDescription] = {}
        self._maps = SlotMaps(stream, store, coordinator)

    @property
    def kafka(self) -> NoReturn:
        raise ConfigError("this works for streams of Kafka, and the stream has `source: kinesis`")

    @property
    def connection(self) -> object:
        return self  # each Kinesis stream gets its own requests, so that a stream that does not answer is refused alone

    # --- topics, for plans and reports ---

    def describe_streams(self, streams: Mapping[str, Stream], *, assigns: bool = False) -> dict[str, StreamTopics]:
        """Return the Kinesis streams of the stream, whose partitions are the slots that have shards to read.

        `assigns`: assign slots to new shards whose parents are archived. A stream that cannot be read is refused.
        """
        found = {}
        for name in streams:
            try:
                found[name] = self._describe_slots(assigns=assigns)
            except Exception as error:
                failure = expected(name, error)
                if failure is not error:
                    logger.exception("the stack trace of the problem of stream %s", name)
                found[name] = StreamTopics({}, (), {name: failure})
        return found

    def _describe_slots(self, *, assigns: bool = False) -> StreamTopics:
        topics, missing = {}, []
        for name in self._names():
            description = self._describe(name)
            if description is None:
                missing.append(name)
            else:
                topics[name] = Topic(name, creation_id(description), self._slots_to_read(name, assigns=assigns))
        return StreamTopics(topics, tuple(missing), {})

    def _slots_to_read(self, topic: str, *, assigns: bool) -> tuple[int, ...]:
        try:
            slot_map = self._give_slots(topic) if assigns else self._maps.find(topic)
        except StreamRecreated as stop:
            # The lanes record this state for each slot.
            logger.warning("%s", stop)
            slot_map = self._maps.of(topic)
        if slot_map is None:
            return ()
        checkpoints = self._maps.checkpoints(topic, slot_map.slots)
        return tuple(each for each in slot_map.slots if slot_map.open_shards(each, checkpoints.get(each, Checkpoint())))

    def topic_partitions(self, stream: Stream) -> list[TopicPartition]:  # noqa: ARG002 - it is that of the source
        """Return the slots that have shards to read, sorted."""
        return self._describe_slots().tps

    def topic(self, name: str) -> Topic:
        """Return a Kinesis stream as a topic. Raises `KinesisUnavailable` if it does not exist."""
        description = self._existing(name)
        return Topic(name, creation_id(description), tuple(range(self._stream.kinesis.slots)))

    def offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the range `[0, committed offset)` of each slot: the known part of its log."""
        tps = list(tps)
        committed = self._coordinator.read_all_committed(tps)
        return {tp: LogRange(0, committed[tp].committed_offset if tp in committed else 0) for tp in tps}

    offsets_briefly = offsets

    def ends_briefly(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:  # noqa: ARG002
        """Return nothing: Kinesis does not count records."""
        return {}

    def describe_partitions(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, PartitionState]:  # noqa: ARG002
        """Return nothing: `describe` sends one request for all slots of a stream."""
        return {}

    def estimate_bytes(self, log_range: LogRange | None, committed: CommittedOffset | None) -> int:  # noqa: ARG002
        """Return the estimate of the last run, since no end is known."""
        return 0 if committed is None else committed.object_bytes

    def description(self, topic: str) -> StreamDescription:
        """Return the description of a Kinesis stream. Raises `KinesisUnavailable` if it does not exist."""
        return self._existing(topic)

    def listed_shards(self, topic: str) -> dict[str, Shard]:
        """Return the shards that Kinesis lists, by id."""
        return self._kinesis.list_shards(self._address(topic))

    def reader(self, topic: str, shard_id: str, *, max_records: int) -> ShardReader:
        """Return a reader of one shard."""
        return ShardReader(self._kinesis, self._address(topic), shard_id, max_records=max_records)

    def archived_to_ms(self) -> int | None:
        """Return the arrival time (epoch ms) up to which all records that are still in Kinesis are archived.

        None if it is unknown: a shard has no slot yet, or a slot was not read since its last shard was assigned.
        """
        times = [self._clock.now_ms()]
        for name in self._names():
            if self._describe(name) is None:
                continue
            # List the shards first: then a listed shard had its slot before the slot's last read is requested.
            slot_map = self._maps.find(name)
            reads = [] if slot_map is None else self._reads_of_open_slots(name, slot_map)
            listed = self._kinesis.list_shards(self._address(name), fresh=True)
            if slot_map is None or listed.keys() - slot_map.assignments.keys():
                return None
            for slot, read in reads:
                if read is None or read.shards != len(slot_map.shards_of(slot)):
                    return None
                times.append(read.archived_to_ms)
        return min(times)

    def _reads_of_open_slots(self, topic: str, slot_map: SlotMap) -> list[tuple[int, SlotRead | None]]:
        """Return the time up to which each slot is read.

        Slots whose shards have all ended are left out: no lane reads them.
        """
        checkpoints = self._maps.checkpoints(topic, slot_map.slots)
        tps = [
            TopicPartition(topic, slot)
            for slot in slot_map.slots
            if slot_map.open_shards(slot, checkpoints.get(slot, Checkpoint()))
        ]
        reads = self._coordinator.read_slot_reads(tps)
        return [(tp.partition, reads.get(tp)) for tp in tps]

    def shard_states(self, committed: Mapping[TopicPartition, CommittedOffset]) -> list[ShardState]:
        """Return every shard that Kinesis lists, and those that have a slot and have not ended, by topic and id.

        `committed`: the committed offsets of the slots.
        """
        found = []
        for name in self._names():
            listed = self._kinesis.list_shards(self._address(name)) if self._describe(name) is not None else {}
            slot_map = self._maps.find(name)
            assignments = {} if slot_map is None else slot_map.assignments
            for shard_id in sorted({*listed, *assignments}):
                state = shard_state(name, shard_id, listed.get(shard_id), assignments.get(shard_id), committed)
                has_ended = slot_map is not None and shard_id in slot_map.named_parents
                if shard_id in listed or not has_ended:
                    found.append(state)
        return found

    def retention(self, topic: str) -> timedelta:
        """Return how long Kinesis keeps the records of a stream."""
        return self._existing(topic).retention

    # --- the commit protocol ---

    def describe(self, tp: TopicPartition) -> PartitionState:
        """Return the state of a slot: its Kinesis stream, and a log without a known end."""
        return PartitionState(self.topic(tp.topic), LogRange(0, _UNKNOWN_END))

    def end_offset(self, described: PartitionState) -> None:
        """Return None: Kinesis does not count records."""

    def first_offset(self, target: ArchiveTarget, described: PartitionState) -> int:  # noqa: ARG002
        """Return 0: where a shard begins is recorded for each shard."""
        return 0

    def check_rebuilt(self, tp: TopicPartition, committed: CommittedOffset) -> None:
        """Raise `ChainBroken` if the chain's last object had no checkpoint."""
        if committed.checkpoint is None:
            raise _checkpoint_missing(tp, committed.last_object_offset)

    def adopted_checkpoint(self, tp: TopicPartition, name: BackupName, summary: ObjectSummary) -> Checkpoint:
        """Return the checkpoint of an object. Raises `ChainBroken` without one, and `ShardNotOwned`."""
        if summary.slot_state is None:
            raise _checkpoint_missing(tp, name.first_offset)
        self._maps.check_owned(tp, summary.slot_state.checkpoint)
        return summary.slot_state.checkpoint

    def check_log(self, target: ArchiveTarget, position: Position) -> None:
        """Raise a named stop unless Kinesis still has every record after the committed checkpoint.

        Raises `StreamRecreated`, or `RecordsExpired` with the checkpoint at which ingest continues after the gap is
        accepted.
        """
        tp, now_ms = target.tp, target.clock.now_ms()
        description = self._existing(tp.topic)
        recorded = position.committed.topic_id or self._maps.of(tp.topic).origin.creation_id
        if recorded != creation_id(description):
            raise StreamRecreated(tp.topic, recorded, creation_id(description))
        address = self._address(tp.topic)
        listed = self._kinesis.list_shards(address)
        positions = self._positions(tp, position.committed)
        trim_ms = now_ms - description.retention // timedelta(milliseconds=1)
        gone = [each for each in positions if each not in listed]
        unproven = [each for each, at in positions.items() if each in listed and 0 <= at.caught_up_ms < trim_ms]
        if gone or unproven:
            after = position.committed.checkpoint or Checkpoint()
            for shard_id in gone:
                after = after.moved(shard_id, positions[shard_id].at_shard_end())
            for shard_id in unproven:
                after = after.moved(shard_id, ShardPosition.trim_horizon().caught_up(now_ms))
            problem = _expiry(gone, unproven, description.retention)
            offset = position.committed.committed_offset
            raise RecordsExpired(tp.topic, tp.partition, offset, [*gone, *unproven], problem, after)

    def put_gap_marker(
        self, target: ArchiveTarget, position: Position, gap: Gap, stop: RetentionGap
    ) -> tuple[BackupName, str]:
        """Create the marker with the checkpoint after the gap, unless an object of its name exists."""
        assert isinstance(stop, RecordsExpired)  # `check_log` raises no other gap
        before = position.committed.checkpoint or Checkpoint()
        marker = new_slot_object(target, gap.first_offset, position.topic_id, before, {GAP_METADATA_KEY: gap.kind})
        marker.checkpoint = stop.checkpoint
        with suppress(ObjectExists):
            marker.complete()
        return marker.name, marker.key

    def outcome_without_fetch(self, target: ArchiveTarget, position: Position) -> None:
        """Return None: only a fetch shows whether there are new records."""

    def open_fetch(self, target: ArchiveTarget, position: Position) -> SlotFetch:
        """Begin a pass over the shards of a slot that have not ended. Raises `ShardNotOwned`.

        Before a shard is read for the first time, the archive must show that it belongs to the slot. If the archive and
        the map in ZooKeeper differ, the map is read from the archive.
        """
        tp, committed = target.tp, position.committed
        checkpoint = committed.checkpoint or Checkpoint()
        description = self._existing(tp.topic)
        unread = [each for each in self._open(tp, committed) if committed_position(committed, each.shard_id) is None]
        self._maps.check_assignments(tp, unread)
        self._maps.check_owned(tp, checkpoint)
        address = self._address(tp.topic)
        shards = self._kinesis.list_shards(address)
        slot_map = self._maps.of(tp.topic)
        return SlotFetch(
            target,
            position,
            SlotReader(self._kinesis, address, description.retention, shards, target.clock),
            self._positions(tp, committed),
            assigned=len(slot_map.shards_of(tp.partition)),
            forgotten=garbage(shards, slot_map, checkpoint),
        )

    def _positions(self, tp: TopicPartition, committed: CommittedOffset) -> dict[str, ShardPosition]:
        """Return where the shards of a slot continue that have not ended."""
        return {
            each.shard_id: committed_position(committed, each.shard_id) or each.start
            for each in self._open(tp, committed)
        }

    def _open(self, tp: TopicPartition, committed: CommittedOffset) -> tuple[Assignment, ...]:
        return self._maps.of(tp.topic).open_shards(tp.partition, committed.checkpoint or Checkpoint())

    # --- Kinesis ---

    def _give_slots(self, topic: str) -> SlotMap:
        """Assign slots to the readable shards that have none. Return the map."""
        return self._maps.extend(topic, start_of(self._stream), lambda: self._list(topic), self._clock.wall)

    def _list(self, topic: str) -> ShardListing:
        """List the shards of a Kinesis stream, and check that the stream was not created again in between."""
        address = self._address(topic)
        for _ in range(_LISTINGS):
            before = self._kinesis.describe(address)
            shards = self._kinesis.list_shards(address, fresh=True)
            after = self._kinesis.describe(address)
            if before.created_ms == after.created_ms:
                return ShardListing(shards, creation_id(after), after.retention)
        raise KinesisUnavailable(f"Kinesis stream {topic!r} was created again while its shards were listed")

    def _names(self) -> list[str]:
        if self._stream.listed_topics:
            return sorted(self._stream.listed_topics)
        return sorted(name for name in self._kinesis.list_streams() if self._stream.matches(name))

    def _describe(self, name: str) -> StreamDescription | None:
        """Return the description of a Kinesis stream; None if it does not exist."""
        if name not in self._descriptions:
            described = self._kinesis.find(self._address(name))
            if described is None:
                return None
            self._descriptions[name] = described
        return self._descriptions[name]

    def _existing(self, name: str) -> StreamDescription:
        description = self._describe(name)
        if description is None:
            raise KinesisUnavailable(f"there is no Kinesis stream {name!r}: it was deleted, or is in another region")
        return description

    def _address(self, name: str) -> str:
        """Return the ARN of a stream that the config lists with it, else the name."""
        listed = self._stream.topics if isinstance(self._stream.topics, tuple) else ()
        return next((each for each in listed if each.endswith(f"/{name}")), name)


def connect_slots(
    stack: ExitStack,
    streams: Mapping[str, Stream],
    endpoints: Mapping[str, KinesisEndpoint],
    store: Store,
    coordinators: Mapping[str, Coordinator],
) -> dict[str, SlotSource]:
    """Return the sources of streams of Kinesis. Those of one endpoint share a client, which `stack` closes."""
    clients: dict[KinesisEndpoint, KinesisSource] = {}
    for endpoint in endpoints.values():
        if endpoint not in clients:
            clients[endpoint] = stack.enter_context(KinesisSource(endpoint))
    return {
        name: SlotSource(clients[endpoints[name]], stream, store, coordinators[name])
        for name, stream in streams.items()
    }


def slots_of(source: Source) -> SlotSource:
    """Return the source of a Kinesis stream as a `SlotSource`. Raises `ConfigError` for a stream of Kafka."""
    if not isinstance(source, SlotSource):
        raise ConfigError("this works for streams of Kinesis, and the stream has `source: kafka`")
    return source


def start_of(stream: Stream) -> StreamStart:
    """Return where the archive of a Kinesis stream begins, according to the config."""
    if isinstance(stream.start, datetime):
        return StreamStart(PositionKind.AT_TIMESTAMP, int(stream.start.timestamp() * 1000))
    return StreamStart() if stream.start.is_earliest else StreamStart(PositionKind.AT_TIMESTAMP)


def creation_id(description: StreamDescription) -> str:
    """Return an id of a Kinesis stream: a stream that is deleted and created again has another creation time."""
    return f"{description.arn}@{description.created_ms}"


def _checkpoint_missing(tp: TopicPartition, first_offset: int | None) -> ChainBroken:
    """Return the error for a last object of a slot that holds no checkpoint."""
    return ChainBroken(
        f"{tp}: the last object of the chain begins at offset {first_offset} and has no checkpoint batch, so it does "
        f"not state up to where its shards are archived. Waybill did not write it for this stream. If the stream read "
        f"Kafka before, raise its generation; else move the object away by hand, and run again",
        first_offset,
    )


def _expiry(gone: Sequence[str], unproven: Sequence[str], retention: timedelta) -> str:
    parts = []
    if gone:
        parts.append(
            f"Kinesis has removed {counted(len(gone), 'shard')} before the end was archived ({', '.join(gone[:5])})"
        )
    if unproven:
        parts.append(
            f"{counted(len(unproven), 'shard')} ({', '.join(unproven[:5])}) was not read for longer than the stream's "
            f"retention of {format_duration(retention)}, so records may be gone"
        )
    return "; ".join(parts)
