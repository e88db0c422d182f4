"""Consumer groups after a restore: where each group continues in the target.

A group that had consumed up to an archived offset continues at the target offset of its next message. Offsets come from
the source cluster, or from a file that was written while it was alive. A group is moved backwards only if requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from waybill.archive.restore.offset_map import read_map
from waybill.archive.restore.restore_plan import PartitionPlan, RestorePlan
from waybill.config.names import TopicPartition
from waybill.services.kafka.target import TargetCluster
from waybill.services.store import Store


class MoveState(StrEnum):
    """What happens to a group's offset."""

    COMMITTED = "committed"
    PLANNED = "planned"
    UNCHANGED = "unchanged"
    """The group is already at this offset."""
    BACKWARDS = "backwards"
    """The group's offset in the target is higher. It is moved only with `--backwards`."""
    OUTSIDE = "outside"
    """The group's next message lies before the restored range: it would miss the messages in between."""


@dataclass(frozen=True, slots=True)
class GroupMove:
    """One offset of one consumer group."""

    group: str
    source: TopicPartition
    target: TopicPartition
    source_offset: int
    target_offset: int
    """The offset at which the group continues."""
    present_offset: int | None
    """The offset that the group has in the target now."""
    state: MoveState

    def document(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "source": str(self.source),
            "target": str(self.target),
            "source_offset": self.source_offset,
            "target_offset": self.target_offset,
            "present_offset": self.present_offset,
            "state": str(self.state),
        }


def plan_moves(
    store: Store,
    target: TargetCluster,
    plan: RestorePlan,
    groups: Mapping[str, Mapping[TopicPartition, int]],
    *,
    backwards: bool = False,
) -> list[GroupMove]:
    """Return where each group continues. `groups`: the committed offsets of each group in the source cluster."""
    moves = []
    for partition in plan.partitions:
        source = partition.source
        with_offset = {group: offsets[source] for group, offsets in groups.items() if source in offsets}
        if not with_offset:
            continue
        end = target.log.offsets([partition.target])[partition.target].end
        offset_map = read_map(store, plan.id, partition.source, end)
        for group, source_offset in sorted(with_offset.items()):
            present = target.log.group_offsets(group, [partition.target]).get(partition.target)
            target_offset = offset_map.translate(source_offset)
            state = _state(partition, source_offset, target_offset, present, backwards=backwards)
            moves.append(
                GroupMove(group, partition.source, partition.target, source_offset, target_offset, present, state)
            )
    return moves


def _state(
    partition: PartitionPlan, source_offset: int, target_offset: int, present: int | None, *, backwards: bool
) -> MoveState:
    if source_offset < partition.first_offset:
        return MoveState.OUTSIDE
    if present == target_offset:
        return MoveState.UNCHANGED
    if present is not None and present > target_offset and not backwards:
        return MoveState.BACKWARDS
    return MoveState.PLANNED


def commit_moves(target: TargetCluster, moves: list[GroupMove]) -> list[GroupMove]:
    """Commit the planned moves, in one request for each group, and return all moves with their new state.

    Raises `KafkaUnavailable` when a group has members: stop its consumers first.
    """
    by_group: dict[str, dict[TopicPartition, int]] = {}
    for move in moves:
        if move.state is MoveState.PLANNED:
            by_group.setdefault(move.group, {})[move.target] = move.target_offset
    for group, offsets in by_group.items():
        target.log.commit_to_group(group, offsets)
    return [replace(move, state=MoveState.COMMITTED) if move.state is MoveState.PLANNED else move for move in moves]
