"""Kinesis as ingest sees it: slots, which are topic-partitions, and the shards that each of them archives.

A slot of a Kinesis stream takes the place of a topic-partition of Kafka. Waybill counts its offsets, so the log of a
slot ends where it is archived. The commit protocol is the same. What differs is here and in `ingest.slot_fetching`.

An object in S3 decides once which slot archives a shard (`waybill.archive.chain.shard_starts`). So two slots never read
one shard, whatever ZooKeeper loses and however long a lane was frozen.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from waybill.archive.chain.shard_starts import find_shard_start, find_stream_origin, read_slot_map
from waybill.archive.ingest.slot_assignment import ShardListing, StreamStart, check_checkpoint, extend_map
from waybill.archive.ingest.time_slice import Clock
from waybill.base.errors import ConfigError, KinesisUnavailable, RecordsExpired, StreamRecreated
from waybill.config.models import Stream
from waybill.config.models.quantities import counted, format_duration
from waybill.config.names import TopicPartition
from waybill.records.shards.checkpoint import Checkpoint, PositionKind, ShardPosition
from waybill.records.shards.lineage import Shard
from waybill.records.shards.slot_map import Assignment, SlotMap, garbage
from waybill.services.coordination import CommittedOffset, Coordinator, SlotRead
from waybill.services.coordination.shard_map import read_slot_map_copy
from waybill.services.kafka.cluster import Topic
from waybill.services.kafka.kafka import LogRange, PartitionState, StreamTopics
from waybill.services.kinesis.client import KinesisSource, StreamDescription
from waybill.services.kinesis.messages import encode_records
from waybill.services.kinesis.shard_reader import ShardReader
from waybill.services.store import Store

if TYPE_CHECKING:
    from waybill.archive.ingest.target import Position

logger = logging.getLogger(__name__)

_LISTINGS = 3
_UNKNOWN_END = 1 << 62
"""Stands for the end of a slot's log, which is not known: Kinesis does not count records."""


class ShardProgress(StrEnum):
    """What becomes of a shard."""

    WAITING = "waits for its parents"
    NEW = "gets a slot in the next run"
    READING = "is read"
    ENDED = "is archived to its end"
    EXPIRED = "was removed by Kinesis before its end was archived"


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard, its lineage, and how far it is archived."""

    topic: str
    shard_id: str
    parents: tuple[str, ...]
    slot: int | None
    """None if it has none yet."""
    position: ShardPosition | None
    """None if it has no slot yet."""
    progress: ShardProgress


class SlotSource:
    """The Kinesis streams of one stream of the config. Use it from one thread, for one run: it asks most things once.

    Every method raises `KinesisUnavailable`, `StoreUnavailable` or `CoordinationUnavailable` when a service does not
    answer, and `ConfigError` when Kinesis refuses access.
    """

    is_kafka = False

    def __init__(
        self,
        kinesis: KinesisSource,
        stream: Stream,
        store: Store,
        coordinator: Coordinator,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._kinesis, self._stream, self._store, self._coordinator = kinesis, stream, store, coordinator
        self._clock = clock or Clock()
        self._descriptions: dict[str, StreamDescription] = {}
        self._maps: dict[str, SlotMap] = {}

    # --- what a source tells about topics, for plans and reports ---

    def describe_streams(self, streams: Mapping[str, Stream], *, assigns: bool = False) -> dict[str, StreamTopics]:
        """Return the Kinesis streams of the stream, whose partitions are the slots that have shards to read.

        `assigns`: give slots to new shards whose parents are archived.
        """
        topics, missing = {}, []
        for name in self._names():
            description = self._describe(name)
            if description is None:
                missing.append(name)
            else:
                topics[name] = Topic(name, creation_id(description), self._slots_to_read(name, assigns=assigns))
        return dict.fromkeys(streams, StreamTopics(topics, tuple(missing), {}))

    def _slots_to_read(self, topic: str, *, assigns: bool) -> tuple[int, ...]:
        try:
            slot_map = self._extend(topic) if assigns else self._find_map(topic)
        except StreamRecreated as stop:
            # The lanes record it for each slot.
            logger.warning("%s", stop)
            slot_map = self._map(topic)
        if slot_map is None:
            return ()
        checkpoints = self._checkpoints(topic, slot_map.slots)
        return tuple(each for each in slot_map.slots if slot_map.open_shards(each, checkpoints.get(each, Checkpoint())))

    def topic_partitions(self, stream: Stream) -> list[TopicPartition]:
        """Return the slots that have shards to read, sorted."""
        return self.describe_streams({"": stream})[""].tps

    def topic(self, name: str) -> Topic:
        """Return a Kinesis stream as a topic. Raises `KinesisUnavailable` if it does not exist."""
        description = self._existing(name)
        return Topic(name, creation_id(description), tuple(range(self._stream.kinesis.slots)))

    def offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the range `[0, committed offset)` of each slot: what is known of its log."""
        tps = list(tps)
        committed = self._coordinator.read_all_committed(tps)
        return {tp: LogRange(0, committed[tp].committed_offset if tp in committed else 0) for tp in tps}

    offsets_briefly = offsets

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
        """Return the time (epoch ms) of arrival up to which all records are archived that have not left Kinesis.

        None if it is not known: a shard has no slot yet, or a slot was not read since it was given its last shard.
        """
        times = [self._clock.now_ms()]
        for name in self._names():
            if self._describe(name) is None:
                continue
            # In this order: a shard that is listed had its slot before the slot's last read was asked for.
            slot_map = self._find_map(name)
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
        """Return how far each slot is read. A slot whose shards have all ended is left out: no lane reads it."""
        checkpoints = self._checkpoints(topic, slot_map.slots)
        tps = [
            TopicPartition(topic, slot)
            for slot in slot_map.slots
            if slot_map.open_shards(slot, checkpoints.get(slot, Checkpoint()))
        ]
        reads = self._coordinator.read_slot_reads(tps)
        return [(tp.partition, reads.get(tp)) for tp in tps]

    def assigned(self, tp: TopicPartition) -> int:
        """Return how many shards a slot has, ended ones included. The number never falls."""
        return len(self._map(tp.topic).shards_of(tp.partition))

    def shard_states(self, committed: Mapping[TopicPartition, CommittedOffset]) -> list[ShardState]:
        """Return every shard that Kinesis lists, and those that have a slot and have not ended, by topic and id.

        `committed`: the committed offsets of the slots.
        """
        found = []
        for name in self._names():
            listed = self._kinesis.list_shards(self._address(name)) if self._describe(name) is not None else {}
            slot_map = self._find_map(name)
            assignments = {} if slot_map is None else slot_map.assignments
            for shard_id in sorted({*listed, *assignments}):
                state = _shard_state(name, shard_id, listed.get(shard_id), assignments.get(shard_id), committed)
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

    def raise_if_shards_differ(self, tp: TopicPartition, position: Position, now_ms: int) -> None:
        """Raise a named stop unless Kinesis still has every record behind the committed checkpoint.

        Raises `StreamRecreated`, or `RecordsExpired` with the checkpoint at which an accepted gap lets ingest go on.
        """
        description = self._existing(tp.topic)
        recorded = position.committed.topic_id or self._map(tp.topic).origin.creation_id
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

    def open_shards(
        self, tp: TopicPartition, committed: CommittedOffset, clock: Clock
    ) -> tuple[_SlotReader, Mapping[str, ShardPosition]]:
        """Return what reads the shards of a slot, and where each of those that have not ended continues.

        Before a shard is read for the first time, the archive must say that it is the slot's. If it says something
        else than the map in ZooKeeper, the map is read from the archive. Raises `ShardNotOwned`.
        """
        description = self._existing(tp.topic)
        unread = [each for each in self._open(tp, committed) if _position(committed, each.shard_id) is None]
        if any(self._stored(tp.topic, each.shard_id) != each for each in unread):
            logger.warning("%s: the slot map in ZooKeeper differs from the archive, which is read instead", tp)
            self._maps[tp.topic] = self._read_archived_map(tp.topic)
        self.check_owned(tp, committed.checkpoint or Checkpoint())
        address = self._address(tp.topic)
        shards = self._kinesis.list_shards(address)
        return _SlotReader(self._kinesis, address, description.retention, shards, clock), self._positions(tp, committed)

    def check_owned(self, tp: TopicPartition, checkpoint: Checkpoint) -> None:
        """Raise `ShardNotOwned` if the archive says that another slot, or none, archives a shard of a checkpoint."""
        generation = self._stream.generation
        self._maps[tp.topic] = check_checkpoint(
            self._store, self._map(tp.topic), tp.topic, generation, tp.partition, checkpoint
        )

    def forgettable(self, tp: TopicPartition, checkpoint: Checkpoint) -> frozenset[str]:
        """Return the ended shards that a checkpoint of a slot need not name any more."""
        return garbage(self._kinesis.list_shards(self._address(tp.topic)), self._map(tp.topic), checkpoint)

    def _positions(self, tp: TopicPartition, committed: CommittedOffset) -> dict[str, ShardPosition]:
        """Return where the shards of a slot continue that have not ended."""
        return {each.shard_id: _position(committed, each.shard_id) or each.start for each in self._open(tp, committed)}

    def _open(self, tp: TopicPartition, committed: CommittedOffset) -> tuple[Assignment, ...]:
        return self._map(tp.topic).open_shards(tp.partition, committed.checkpoint or Checkpoint())

    # --- the slot map ---

    def _map(self, topic: str) -> SlotMap:
        """Return the slot map as ZooKeeper has it; without that, as the archive has it."""
        if topic not in self._maps:
            stored = read_slot_map_copy(self._coordinator.session, self._coordinator.paths, topic)
            self._maps[topic] = stored.slot_map or self._read_archived_map(topic)
        return self._maps[topic]

    def _find_map(self, topic: str) -> SlotMap | None:
        """Return the slot map; None if no plan has given a slot to a shard of the Kinesis stream."""
        if find_stream_origin(self._store, topic, self._stream.generation) is None:
            return None
        return self._map(topic)

    def _read_archived_map(self, topic: str) -> SlotMap:
        origin = find_stream_origin(self._store, topic, self._stream.generation)
        if origin is None:
            raise ConfigError(
                f"{topic}: no plan has given slots to its shards yet: run `waybill ingest` for the stream"
            )
        return read_slot_map(self._store, topic, self._stream.generation, SlotMap(origin))

    def _stored(self, topic: str, shard_id: str) -> Assignment | None:
        return find_shard_start(self._store, topic, self._stream.generation, shard_id)

    def _extend(self, topic: str) -> SlotMap:
        """Give slots to the shards that may be read now and have none. Return the map."""
        extended = extend_map(
            self._store,
            self._coordinator,
            topic,
            self._stream.kinesis.slots,
            start=start_of(self._stream),
            list_shards=lambda: self._list(topic),
            read_checkpoints=lambda slots: self._checkpoints(topic, slots),
            clock=self._clock.wall,
        )
        self._maps[topic] = extended.slot_map
        return extended.slot_map

    def _list(self, topic: str) -> ShardListing:
        """List the shards of a Kinesis stream that is the same before and after."""
        address = self._address(topic)
        for _ in range(_LISTINGS):
            before = self._kinesis.describe(address)
            shards = self._kinesis.list_shards(address, fresh=True)
            after = self._kinesis.describe(address)
            if before.created_ms == after.created_ms:
                return ShardListing(shards, creation_id(after), after.retention)
        raise KinesisUnavailable(f"Kinesis stream {topic!r} was created again while its shards were listed")

    def _checkpoints(self, topic: str, slots: Collection[int]) -> dict[int, Checkpoint]:
        """Return the committed checkpoints of slots.

        A slot whose node ZooKeeper has lost is left out: its lane writes the node again, from the archive.
        """
        committed = self._coordinator.read_all_committed(TopicPartition(topic, slot) for slot in slots)
        return {tp.partition: each.checkpoint for tp, each in committed.items() if each.checkpoint is not None}

    # --- Kinesis ---

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


@dataclass(frozen=True, slots=True)
class _SlotAnswer:
    """One answer of GetRecords, as record batches."""

    batches: bytes
    position: ShardPosition
    size_bytes: int


class _SlotReader:
    """Reads the shards of a slot."""

    def __init__(
        self,
        kinesis: KinesisSource,
        address: str,
        retention: timedelta,
        shards: Mapping[str, Shard],
        clock: Clock,
    ) -> None:
        self._kinesis, self._address, self._shards, self._clock = kinesis, address, shards, clock
        self.retention = retention

    def read(self, shard_id: str, position: ShardPosition) -> Generator[_SlotAnswer, None, None]:
        reader = ShardReader(self._kinesis, self._address, shard_id, now=self._clock.wall)
        with closing(reader.read(position)) as reads:
            for read in reads:
                data = encode_records(read.records, self._shards[shard_id], 0).data if read.records else b""
                yield _SlotAnswer(data, read.position, read.size_bytes)


def _position(committed: CommittedOffset, shard_id: str) -> ShardPosition | None:
    return None if committed.checkpoint is None else committed.checkpoint.position(shard_id)


def start_of(stream: Stream) -> StreamStart:
    """Return where the archive of a Kinesis stream begins, as the config says."""
    if isinstance(stream.start, datetime):
        return StreamStart(PositionKind.AT_TIMESTAMP, int(stream.start.timestamp() * 1000))
    return StreamStart() if stream.start.is_earliest else StreamStart(PositionKind.AT_TIMESTAMP)


def _shard_state(
    topic: str,
    shard_id: str,
    listed: Shard | None,
    assignment: Assignment | None,
    committed: Mapping[TopicPartition, CommittedOffset],
) -> ShardState:
    if assignment is None:
        parents = () if listed is None else listed.parents
        progress = ShardProgress.WAITING if parents else ShardProgress.NEW
        return ShardState(topic, shard_id, parents, None, None, progress)
    slot = committed.get(TopicPartition(topic, assignment.slot))
    position = (None if slot is None else _position(slot, shard_id)) or assignment.start
    if position.is_ended:
        progress = ShardProgress.ENDED
    else:
        progress = ShardProgress.READING if listed is not None else ShardProgress.EXPIRED
    return ShardState(topic, shard_id, assignment.parents, assignment.slot, position, progress)


def creation_id(description: StreamDescription) -> str:
    """Return what identifies a Kinesis stream: one that is deleted and created again has another creation time."""
    return f"{description.arn}@{description.created_ms}"


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
