"""The slot maps of one run: which slot archives which shard, from ZooKeeper and the archive.

The archive decides (`shard_starts`). ZooKeeper has a copy, so that the archive is rarely read; if the copy differs, the
map is read from the archive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from waybill.archive.ingest.kinesis.shard_starts import find_shard_start, find_stream_origin, read_slot_map
from waybill.archive.ingest.kinesis.slot_assignment import ShardListing, StreamStart, check_checkpoint, extend_map
from waybill.base.errors import ConfigError
from waybill.config.models import Stream
from waybill.config.names import TopicPartition
from waybill.records.shards.checkpoint import Checkpoint
from waybill.records.shards.slot_map import Assignment, SlotMap
from waybill.services.coordination import Coordinator
from waybill.services.coordination.shard_map import read_slot_map_copy
from waybill.services.store import Store

logger = logging.getLogger(__name__)


class SlotMaps:
    """The slot maps of one stream of the config, by Kinesis stream. Each is read once.

    Every method raises `StoreUnavailable` or `CoordinationUnavailable` when a service does not answer.
    """

    def __init__(self, stream: Stream, store: Store, coordinator: Coordinator) -> None:
        self._stream, self._store, self._coordinator = stream, store, coordinator
        self._maps: dict[str, SlotMap] = {}

    def of(self, topic: str) -> SlotMap:
        """Return the slot map from ZooKeeper; if it has none, from the archive."""
        if topic not in self._maps:
            stored = read_slot_map_copy(self._coordinator.session, self._coordinator.paths, topic)
            self._maps[topic] = stored.slot_map or self._read_archived(topic)
        return self._maps[topic]

    def find(self, topic: str) -> SlotMap | None:
        """Return the slot map; None if no plan has given a slot to a shard of the Kinesis stream."""
        if find_stream_origin(self._store, topic, self._stream.generation) is None:
            return None
        return self.of(topic)

    def check_assignments(self, tp: TopicPartition, unread: Collection[Assignment]) -> None:
        """Before shards are read for the first time, read the map from the archive, unless it has these assignments."""
        if any(self._stored(tp.topic, each.shard_id) != each for each in unread):
            logger.warning("%s: the slot map in ZooKeeper differs from the archive, which is read instead", tp)
            self._maps[tp.topic] = self._read_archived(tp.topic)

    def check_owned(self, tp: TopicPartition, checkpoint: Checkpoint) -> None:
        """Raise `ShardNotOwned` if, by the archive, another slot or no slot archives a shard of a checkpoint."""
        generation = self._stream.generation
        self._maps[tp.topic] = check_checkpoint(
            self._store, self.of(tp.topic), tp.topic, generation, tp.partition, checkpoint
        )

    def extend(
        self,
        topic: str,
        start: StreamStart,
        list_shards: Callable[[], ShardListing],
        clock: Callable[[], float],
    ) -> SlotMap:
        """Assign slots to the readable shards that have none. Return the map. Raises `StreamRecreated`."""
        extended = extend_map(
            self._store,
            self._coordinator,
            topic,
            self._stream.kinesis.slots,
            start=start,
            list_shards=list_shards,
            read_checkpoints=lambda slots: self.checkpoints(topic, slots),
            clock=clock,
        )
        self._maps[topic] = extended.slot_map
        return extended.slot_map

    def checkpoints(self, topic: str, slots: Collection[int]) -> dict[int, Checkpoint]:
        """Return the committed checkpoints of slots.

        A slot whose node ZooKeeper has lost is left out: its lane writes the node again, from the archive.
        """
        committed = self._coordinator.read_all_committed(TopicPartition(topic, slot) for slot in slots)
        return {tp.partition: each.checkpoint for tp, each in committed.items() if each.checkpoint is not None}

    def _read_archived(self, topic: str) -> SlotMap:
        origin = find_stream_origin(self._store, topic, self._stream.generation)
        if origin is None:
            raise ConfigError(
                f"{topic}: no plan has given slots to its shards yet: run `waybill ingest` for the stream"
            )
        return read_slot_map(self._store, topic, self._stream.generation, SlotMap(origin))

    def _stored(self, topic: str, shard_id: str) -> Assignment | None:
        return find_shard_start(self._store, topic, self._stream.generation, shard_id)
