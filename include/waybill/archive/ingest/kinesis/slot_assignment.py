"""Assign the shards of a Kinesis stream to slots: S3 decides, ZooKeeper holds a copy.

What this relies on: `If-None-Match: *` of S3 decides each assignment once; an ended shard stays ended; a listing of the
stream that begins after the origin was recorded holds all shards that are readable at that time. It does not depend on
ZooKeeper's data, on a lock, or on the time between two steps of a plan.

What it survives: a crash at each step, concurrent plans with old listings and old checkpoints, a copy of the map that
is missing, damaged or old. Concurrent plans can only affect the balance of the slots: two of them may both give a shard
to the same free slot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from waybill.archive.ingest.kinesis import shard_starts
from waybill.base import failpoints
from waybill.base.errors import ConfigError, DocumentDamaged, StreamRecreated
from waybill.config import names
from waybill.records.shards.checkpoint import Checkpoint, PositionKind, ShardPosition
from waybill.records.shards.lineage import Shard
from waybill.records.shards.slot_map import (
    Assignment,
    RetentionLoss,
    SlotMap,
    StreamOrigin,
    check_owned,
    check_slot_count,
    gaps,
    plan_assignments,
)
from waybill.services.coordination import Coordinator
from waybill.services.coordination.shard_map import read_slot_map_copy, write_slot_map_copy
from waybill.services.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamStart:
    """The start of a stream's archive in the config. It is used only until the origin is recorded."""

    kind: PositionKind = PositionKind.TRIM_HORIZON
    """TRIM_HORIZON or AT_TIMESTAMP."""
    timestamp_ms: int | None = None
    """For AT_TIMESTAMP, epoch ms; None is the time of the first plan: the start `latest`."""


@dataclass(frozen=True, slots=True)
class ShardListing:
    """Kinesis's description of a stream."""

    shards: Mapping[str, Shard]
    """All shards that ListShards returns, closed ones included, by id."""
    creation_id: str
    """Identifies the stream among streams of the same name. Read it before and after ListShards; if the values differ,
    list again."""
    retention: timedelta


@dataclass(frozen=True, slots=True)
class ExtendedMap:
    """The slot map after a plan, and the inputs of the plan."""

    slot_map: SlotMap
    listing: ShardListing
    checkpoints: Mapping[int, Checkpoint]
    added: tuple[Assignment, ...] = ()
    """The assignments that this plan or a rival made."""

    @property
    def losses(self) -> tuple[RetentionLoss, ...]:
        """Shards that retention removed before they were archived. Only a lane that holds the lock can be sure."""
        return gaps(self.listing.shards, self.slot_map, self.checkpoints)


def extend_map(
    store: Store,
    coordinator: Coordinator,
    topic: str,
    slots: int,
    *,
    start: StreamStart,
    list_shards: Callable[[], ShardListing],
    read_checkpoints: Callable[[Collection[int]], Mapping[int, Checkpoint]],
    clock: Callable[[], float] = time.time,
) -> ExtendedMap:
    """Assign every shard that may start now to one of `slots` slots, and return the map.

    `read_checkpoints` returns the committed checkpoints of slots. For a slot without a node in ZooKeeper it reads the
    archive's chain; a slot whose chain is empty has an empty checkpoint. It leaves out slots whose state it cannot
    read: their shards count as not ended and not lost.

    Without new shards this takes one call of ZooKeeper and one of S3. It may be called again at any time.

    Raises `StreamRecreated` if the stream is not the one that the map describes, and `ConfigError` if there are too few
    slots. Raises `DocumentDamaged` or `DocumentTooNew` for a record in S3, `StoreUnavailable`, and
    `CoordinationUnavailable`.
    """
    paths, generation = coordinator.paths, coordinator.paths.generation
    stored = read_slot_map_copy(coordinator.session, paths, topic)
    origin = shard_starts.find_stream_origin(store, topic, generation)
    if origin is None:
        if stored.slot_map is not None:
            raise _origin_missing(store, topic, generation, paths.slot_map(topic))
        origin = _record_origin(store, topic, generation, start, list_shards, clock)
        failpoints.reach("slots.origin_recorded")
    copy = stored.slot_map if stored.slot_map is not None and stored.slot_map.origin == origin else None
    slot_map = shard_starts.read_slot_map(store, topic, generation, SlotMap(origin)) if copy is None else copy
    # List the shards after the origin, so that a shard that is missing in the origin is not from an earlier listing.
    # List them before the checkpoints: a shard that is not listed any more cannot be read to its end afterwards.
    listing = list_shards()
    if listing.creation_id != slot_map.origin.creation_id:
        raise StreamRecreated(topic, slot_map.origin.creation_id, listing.creation_id)
    checkpoints = read_checkpoints(sorted({*range(slots), *slot_map.slots}))
    before = slot_map.assignments.keys()
    now_ms = int(clock() * 1000)
    check_slot_count(topic, slots, slot_map, checkpoints)
    if plan_assignments(listing.shards, slot_map, checkpoints, slots=slots, now_ms=now_ms):
        # The copy may be older than S3: a slot that is free in the copy may hold a shard.
        slot_map = shard_starts.read_slot_map(store, topic, generation, slot_map)
        if missing := [slot for slot in slot_map.slots if slot not in checkpoints]:
            checkpoints = {**checkpoints, **read_checkpoints(missing)}
        check_slot_count(topic, slots, slot_map, checkpoints)
        slot_map = _assign(store, topic, generation, slots, slot_map, listing, checkpoints, now_ms)
    failpoints.reach("slots.assigned")
    _write_copy(coordinator, topic, copy, slot_map, stored.version)
    failpoints.reach("slots.copied")
    return ExtendedMap(
        slot_map,
        listing,
        checkpoints,
        tuple(each for shard_id, each in sorted(slot_map.assignments.items()) if shard_id not in before),
    )


def check_checkpoint(
    store: Store, slot_map: SlotMap, topic: str, generation: int, slot: int, checkpoint: Checkpoint
) -> SlotMap:
    """Check that each shard of a slot's checkpoint is assigned to the slot.

    Return the map with the assignments that were read.

    A lane calls this before it adopts an object or continues from a checkpoint. The lane's map may be older than the
    checkpoint, so the stored assignments of shards that it does not hold are read from S3.

    Raises `ShardNotOwned`; then the lane writes nothing, so nothing is lost.
    """
    unknown = sorted(checkpoint.positions.keys() - slot_map.assignments.keys())
    found = (shard_starts.find_shard_start(store, topic, generation, shard_id) for shard_id in unknown)
    slot_map = slot_map.extended(each for each in found if each is not None)
    check_owned(slot_map, topic, slot, checkpoint)
    return slot_map


def _record_origin(
    store: Store,
    topic: str,
    generation: int,
    start: StreamStart,
    list_shards: Callable[[], ShardListing],
    clock: Callable[[], float],
) -> StreamOrigin:
    # Take the time before the listing: a shard that is created in between is in the listing, and starts at that time,
    # before all of its records.
    now_ms = int(clock() * 1000)
    listing = list_shards()
    position = initial_position(topic, start, now_ms, listing.retention)
    origin = StreamOrigin(listing.creation_id, now_ms, frozenset(listing.shards), position)
    failpoints.reach("slots.before_origin")
    origin = shard_starts.record_stream_origin(store, topic, generation, origin)
    logger.info("%s: the archive starts at %s with %d shards", topic, position.kind, len(origin.initial_shards))
    return origin


def initial_position(topic: str, start: StreamStart, now_ms: int, retention: timedelta) -> ShardPosition:
    """Return where the shards start that exist at the beginning of an archive.

    Raises `ConfigError` for a start in the future.
    """
    if start.kind is PositionKind.TRIM_HORIZON:
        return ShardPosition.trim_horizon().caught_up(now_ms)
    at_ms = now_ms if start.timestamp_ms is None else start.timestamp_ms
    if at_ms > now_ms:
        raise ConfigError(
            f"{topic}: the start at {at_ms} (epoch ms) is in the future, now it is {now_ms}. Configure a time that has "
            f"passed, or `latest`"
        )
    # Records that retention removed before the first plan are before the start, so they are not a gap.
    is_kept = at_ms >= now_ms - int(retention.total_seconds() * 1000)
    return ShardPosition.at_timestamp(at_ms).caught_up(at_ms if is_kept else now_ms)


def _assign(
    store: Store,
    topic: str,
    generation: int,
    slots: int,
    slot_map: SlotMap,
    listing: ShardListing,
    checkpoints: Mapping[int, Checkpoint],
    now_ms: int,
) -> SlotMap:
    while planned := plan_assignments(listing.shards, slot_map, checkpoints, slots=slots, now_ms=now_ms):
        for wanted in planned:
            made = shard_starts.record_shard_start(store, topic, generation, wanted)
            slot_map = slot_map.extended([made])
            logger.info("%s/%d: archives %s from %s on", topic, made.slot, made.shard_id, made.start.kind)
            failpoints.reach("slots.shard_assigned")
            if made.slot != wanted.slot:
                break  # a rival was first: plan the slots of the other shards again
    return slot_map


def _write_copy(coordinator: Coordinator, topic: str, before: SlotMap | None, slot_map: SlotMap, version: int) -> None:
    """Write the copy, merged with the assignments that other plans have written to it."""
    while before is None or slot_map.assignments.keys() - before.assignments.keys():
        if write_slot_map_copy(coordinator.session, coordinator.paths, topic, slot_map, version) is not None:
            return
        stored = read_slot_map_copy(coordinator.session, coordinator.paths, topic)
        before, version = stored.slot_map, stored.version
        if before is not None and before.origin != slot_map.origin:
            before = None
        if before is not None:
            slot_map = slot_map.extended(before.assignments.values())


def _origin_missing(store: Store, topic: str, generation: int, path: str) -> DocumentDamaged:
    key = names.stream_origin_key(store.prefix, topic, generation)
    return DocumentDamaged(
        f"{key} is missing, but ZooKeeper node {path} holds shards that were assigned after it was written. Restore it "
        f"from the bucket's versions. If this archive is new and the node is that of another one, delete the node"
    )
