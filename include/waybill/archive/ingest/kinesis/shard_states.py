"""The archived position of each shard of a Kinesis stream, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from waybill.config.names import TopicPartition
from waybill.records.shards.checkpoint import ShardPosition
from waybill.records.shards.lineage import Shard
from waybill.records.shards.slot_map import Assignment
from waybill.services.coordination import CommittedOffset


class ShardProgress(StrEnum):
    """The archiving state of a shard."""

    WAITING = "waits for its parents"
    NEW = "gets a slot in the next run"
    READING = "is read"
    ENDED = "is archived to its end"
    EXPIRED = "was removed by Kinesis before its end was archived"


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard, its lineage, and its archived position."""

    topic: str
    shard_id: str
    parents: tuple[str, ...]
    slot: int | None
    """None if it has none yet."""
    position: ShardPosition | None
    """None if it has no slot yet."""
    progress: ShardProgress


def shard_state(
    topic: str,
    shard_id: str,
    listed: Shard | None,
    assignment: Assignment | None,
    committed: Mapping[TopicPartition, CommittedOffset],
) -> ShardState:
    """Return the state of a shard. `listed`: None if Kinesis does not list it; `assignment`: None without a slot.

    `committed`: the committed offsets of the slots.
    """
    if assignment is None:
        parents = () if listed is None else listed.parents
        progress = ShardProgress.WAITING if parents else ShardProgress.NEW
        return ShardState(topic, shard_id, parents, None, None, progress)
    slot = committed.get(TopicPartition(topic, assignment.slot))
    position = (None if slot is None else committed_position(slot, shard_id)) or assignment.start
    if position.is_ended:
        progress = ShardProgress.ENDED
    else:
        progress = ShardProgress.READING if listed is not None else ShardProgress.EXPIRED
    return ShardState(topic, shard_id, assignment.parents, assignment.slot, position, progress)


def committed_position(committed: CommittedOffset, shard_id: str) -> ShardPosition | None:
    """Return the committed position of a shard in a slot; None if no record of it is archived."""
    return None if committed.checkpoint is None else committed.checkpoint.position(shard_id)
