"""Which slot archives which shard, and from which position on. Pure functions, without a server.

A Kinesis stream is archived as the topic-partitions 0…N-1, its slots. An assignment of a shard to a slot is made once
and never changes, so two slots never read one shard. A shard is assigned when all of its parents have ended: their last
record is archived and committed. `waybill.archive.ingest.kinesis.slot_assignment` decides assignments with S3; this
module calculates which are due.

A parent has ended if the checkpoint of its slot shows it, or if an assignment names it as a parent. The second follows
from the rule itself: no child is assigned before its parents have ended. So an ended shard can be removed from a
checkpoint as soon as a child of it is assigned.

The stream's origin records the state at the first plan: the shards that were listed, and the time at which archiving
starts. A parent that is not listed any more and was never assigned was removed before archiving began only if its child
was listed at the origin and it was not. Every other such parent was removed before it was archived. It is still
assigned, so that its slot shows the loss as a `RetentionGap`, and its children wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from waybill.base.errors import ConfigError, ShardNotOwned
from waybill.records.shards.checkpoint import Checkpoint, ShardPosition
from waybill.records.shards.lineage import Shard


@dataclass(frozen=True, slots=True)
class StreamOrigin:
    """The inputs and the decision of the first plan of a stream and generation."""

    creation_id: str
    """Identifies the stream among streams of the same name, such as its ARN and creation time."""
    decided_at_ms: int
    """When the origin was decided. It is not after the listing of `initial_shards`. Epoch ms."""
    initial_shards: frozenset[str]
    """The ids of the shards that were listed, closed ones included."""
    initial_start: ShardPosition
    """Where these shards start, unless they were imported: TRIM_HORIZON or AT_TIMESTAMP. Its `caught_up_ms` is the time
    from which on a record that retention removes is a `RetentionGap`. All other shards start at TRIM_HORIZON."""
    imported: str = ""
    """Where the starts of shards were imported from, by whom and when; '' if there was no import."""

    def start_of(self, shard_id: str) -> ShardPosition:
        """Return the position at which a shard starts."""
        return self.initial_start if shard_id in self.initial_shards else ShardPosition.trim_horizon()

    def was_removed_before(self, parent_id: str, child_id: str) -> bool:
        """Return whether a parent that is not listed now was not listed at the origin either.

        A child that was not listed at the origin was created later, so its parent still existed.
        """
        return child_id in self.initial_shards and parent_id not in self.initial_shards

    def to_fields(self) -> dict[str, Any]:
        """Return the origin as JSON fields."""
        return {
            "creation_id": self.creation_id,
            "decided_at": self.decided_at_ms,
            "initial_shards": sorted(self.initial_shards),
            "initial_start": self.initial_start.to_fields(),
            **({"imported": self.imported} if self.imported else {}),
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Parse JSON fields. Raises `KeyError`, `TypeError` or `ValueError`."""
        return cls(
            str(fields["creation_id"]),
            int(fields["decided_at"]),
            frozenset(str(each) for each in fields["initial_shards"]),
            _start_of_fields(fields["initial_start"]),
            str(fields.get("imported", "")),
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """The decision which slot archives a shard, and from which position on. It never changes."""

    shard_id: str
    slot: int
    start: ShardPosition
    parents: tuple[str, ...] = ()
    """The ids of its parents. Empty also for a shard that retention removed before it was assigned."""
    creation_id: str = ""
    """The stream that the shard belongs to, as `StreamOrigin.creation_id`."""
    decided_at_ms: int = 0
    """Epoch ms."""

    def to_fields(self) -> dict[str, Any]:
        """Return the assignment as JSON fields, without the shard's id."""
        return {
            "slot": self.slot,
            "start": self.start.to_fields(),
            "parents": list(self.parents),
            "creation_id": self.creation_id,
            "decided_at": self.decided_at_ms,
        }

    @classmethod
    def of_fields(cls, shard_id: str, fields: Mapping[str, Any]) -> Self:
        """Parse JSON fields. Raises `KeyError`, `TypeError` or `ValueError`."""
        slot = int(fields["slot"])
        if slot < 0:
            raise ValueError(f"{slot} is no slot")
        return cls(
            shard_id,
            slot,
            ShardPosition.of_fields(fields["start"]),
            tuple(str(each) for each in fields["parents"]),
            str(fields["creation_id"]),
            int(fields["decided_at"]),
        )


def _start_of_fields(fields: Mapping[str, Any]) -> ShardPosition:
    start = ShardPosition.of_fields(fields)
    if start.is_ended or start.sequence:
        raise ValueError(f"a stream cannot start at {start.kind}")
    return start


@dataclass(frozen=True)
class SlotMap:
    """The assignments of one stream and generation. Maps only grow: the union of two of them is sound."""

    origin: StreamOrigin
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    """By shard id."""

    @cached_property
    def named_parents(self) -> frozenset[str]:
        """The parents of assigned shards. Those of them that were assigned have ended."""
        return frozenset(parent for each in self.assignments.values() for parent in each.parents)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The slots that have a shard, ended ones included. Sorted."""
        return tuple(sorted({each.slot for each in self.assignments.values()}))

    def shards_of(self, slot: int) -> tuple[Assignment, ...]:
        """Return the assignments of a slot, in the order of the shards' ids."""
        return tuple(each for _, each in sorted(self.assignments.items()) if each.slot == slot)

    def open_shards(self, slot: int, checkpoint: Checkpoint) -> tuple[Assignment, ...]:
        """Return the shards that a lane must read for a slot: those that have not ended."""
        return tuple(each for each in self.shards_of(slot) if not self.has_ended(each.shard_id, {slot: checkpoint}))

    def has_ended(self, shard_id: str, checkpoints: Mapping[int, Checkpoint]) -> bool:
        """Return whether an assigned shard is known to be archived to its end, and committed.

        `checkpoints` are the committed ones, by slot. The state of a missing slot is unknown.
        """
        assignment = self.assignments.get(shard_id)
        if assignment is None:
            return False
        if shard_id in self.named_parents:
            return True
        checkpoint = checkpoints.get(assignment.slot)
        position = None if checkpoint is None else checkpoint.position(shard_id)
        return position is not None and position.is_ended

    def extended(self, assignments: Iterable[Assignment]) -> SlotMap:
        """Return the map with more assignments. Existing assignments are not changed."""
        return SlotMap(self.origin, {each.shard_id: each for each in assignments} | dict(self.assignments))

    def to_fields(self) -> dict[str, Any]:
        """Return the map as JSON fields."""
        return {
            "origin": self.origin.to_fields(),
            "assignments": {shard_id: each.to_fields() for shard_id, each in sorted(self.assignments.items())},
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Parse JSON fields. Raises `KeyError`, `TypeError` or `ValueError`."""
        assignments = dict(fields["assignments"])
        return cls(
            StreamOrigin.of_fields(fields["origin"]),
            {str(shard_id): Assignment.of_fields(str(shard_id), each) for shard_id, each in assignments.items()},
        )


# --- what is due ------------------------------------------------------------------------------------------------------


def assignable(
    listed: Mapping[str, Shard], slot_map: SlotMap, checkpoints: Mapping[int, Checkpoint]
) -> tuple[Shard, ...]:
    """Return the listed shards that have no slot yet and can start now: all of their parents have ended.

    They are in the order of their ids. No shard is the parent of another one.
    """
    return tuple(
        shard
        for _, shard in sorted(listed.items())
        if shard.shard_id not in slot_map.assignments
        and all(_is_done(parent, shard.shard_id, listed, slot_map, checkpoints) for parent in shard.parents)
    )


def _is_done(
    parent_id: str,
    child_id: str,
    listed: Mapping[str, Shard],
    slot_map: SlotMap,
    checkpoints: Mapping[int, Checkpoint],
) -> bool:
    if parent_id in slot_map.assignments:
        return slot_map.has_ended(parent_id, checkpoints)
    return parent_id not in listed and slot_map.origin.was_removed_before(parent_id, child_id)


def _removed_unassigned(listed: Mapping[str, Shard], slot_map: SlotMap) -> list[str]:
    """Return the shards that retention removed after the origin and before they had a slot.

    They waited for their parents for longer than the stream's retention. If there are several such generations of
    shards, the last one, whose child is listed, and the initial ones are returned.
    """
    origin = slot_map.origin
    lost = {
        parent
        for shard in listed.values()
        if shard.shard_id not in slot_map.assignments
        for parent in shard.parents
        if not origin.was_removed_before(parent, shard.shard_id)
    }
    return sorted((lost | origin.initial_shards) - listed.keys() - slot_map.assignments.keys() - slot_map.named_parents)


def choose_slot(parents: Collection[str], slots: int, slot_map: SlotMap, checkpoints: Mapping[int, Checkpoint]) -> int:
    """Return the slot for a shard that can start now.

    It is a free slot, whose shards have all ended: one of its parents if there is such a slot, else the lowest. With no
    free slot it is the one with the fewest shards that have not ended, the lowest of several.
    """
    loads = dict.fromkeys(range(slots), 0)
    for shard_id, each in slot_map.assignments.items():
        if each.slot in loads and not slot_map.has_ended(shard_id, checkpoints):
            loads[each.slot] += 1
    least = min(loads.values())
    candidates = [slot for slot, load in loads.items() if load == least]
    if least == 0:
        near = {slot_map.assignments[parent].slot for parent in parents if parent in slot_map.assignments}
        candidates = [slot for slot in candidates if slot in near] or candidates
    return min(candidates)


def plan_assignments(
    listed: Mapping[str, Shard],
    slot_map: SlotMap,
    checkpoints: Mapping[int, Checkpoint],
    *,
    slots: int,
    now_ms: int,
) -> list[Assignment]:
    """Return the assignments that are due, in the order in which they are to be recorded.

    Slots and starts follow from the arguments alone. First come shards that retention removed before they had a slot
    (module docstring), then the shards that can start.
    """
    origin, planned = slot_map.origin, []
    due: list[tuple[str, tuple[str, ...]]] = [(each, ()) for each in _removed_unassigned(listed, slot_map)]
    due += [(each.shard_id, each.parents) for each in assignable(listed, slot_map, checkpoints)]
    for shard_id, parents in due:
        # A planned shard has not ended, so it counts as load of its slot.
        slot = choose_slot(parents, slots, slot_map, checkpoints)
        start = origin.start_of(shard_id)
        if shard_id not in origin.initial_shards:
            start = start.caught_up(_began_after_ms(parents, slot_map, checkpoints))
        assignment = Assignment(shard_id, slot, start, parents, origin.creation_id, now_ms)
        planned.append(assignment)
        slot_map = slot_map.extended([assignment])
    return planned


def _began_after_ms(parents: Collection[str], slot_map: SlotMap, checkpoints: Mapping[int, Checkpoint]) -> int:
    """Return a time, in epoch ms, at which a shard did not exist yet; -1 if it is unknown.

    It is the last time at which a parent was read while it was open: the end of a shard does not change the time of
    its position. A child waits for its parents, perhaps longer than the retention of its own first records.
    """
    known = [-1]
    for parent in parents:
        assignment = slot_map.assignments.get(parent)
        checkpoint = None if assignment is None else checkpoints.get(assignment.slot)
        position = None if checkpoint is None else checkpoint.position(parent)
        known.append(-1 if position is None else position.caught_up_ms)
    return max(known)


# --- what was lost, and what may be forgotten -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetentionLoss:
    """A shard that retention removed, or cut at its beginning, before it was archived."""

    shard_id: str
    slot: int
    is_removed: bool
    """True: the shard is not listed any more; accepting the gap moves its position to SHARD_END. False: its first
    records may be gone; accepting the gap gives its position, TRIM_HORIZON, the `caught_up_ms` of the trim horizon."""


def gaps(
    listed: Mapping[str, Shard],
    slot_map: SlotMap,
    checkpoints: Mapping[int, Checkpoint],
    open_at_trim_horizon: Collection[str] = (),
) -> tuple[RetentionLoss, ...]:
    """Return the assigned shards whose records retention removed before their slot archived them, by shard id.

    Read `checkpoints` after `listed`. A slot without a checkpoint in it is left out, since its state is not known. A
    lane that has not committed yet may hold the end of a shard, so only the lane itself may stop its slot.

    `open_at_trim_horizon` are the ids that ListShards returns with the filter AT_TRIM_HORIZON. A shard that began after
    the origin and is among them has begun before the trim horizon. If it was not read yet, its first records may be
    gone: it waited too long for its parents, or for its lane. Its position does not show this.
    """
    found = []
    for shard_id, each in sorted(slot_map.assignments.items()):
        checkpoint = checkpoints.get(each.slot)
        if checkpoint is None or slot_map.has_ended(shard_id, checkpoints):
            continue
        position = checkpoint.position(shard_id) or each.start
        is_unread = position == ShardPosition.trim_horizon()
        if shard_id not in listed:
            found.append(RetentionLoss(shard_id, each.slot, is_removed=True))
        elif is_unread and shard_id in open_at_trim_horizon:
            found.append(RetentionLoss(shard_id, each.slot, is_removed=False))
    return tuple(found)


def garbage(listed: Mapping[str, Shard], slot_map: SlotMap, checkpoint: Checkpoint) -> frozenset[str]:
    """Return the shards that can be removed from a slot's checkpoint (`Checkpoint.without`).

    Each has ended, is not listed, is no parent of a listed shard, and is a parent of an assigned shard. The last
    condition keeps the knowledge that it has ended: without it, the shard would look like one that was never read.
    """
    needed = {parent for shard in listed.values() for parent in shard.parents}
    return frozenset(
        shard_id
        for shard_id, position in checkpoint.positions.items()
        if position.is_ended
        and shard_id not in listed
        and shard_id not in needed
        and shard_id in slot_map.assignments
        and shard_id in slot_map.named_parents
    )


# --- checks -----------------------------------------------------------------------------------------------------------


def check_owned(slot_map: SlotMap, topic: str, slot: int, checkpoint: Checkpoint) -> None:
    """Check that every shard of a slot's checkpoint is assigned to that slot.

    Raises `ShardNotOwned` for the first shard that is not. Its `owner_slot` is -1 if the map does not hold the shard:
    then the map may be old, and `waybill.archive.ingest.kinesis.slot_assignment.check_checkpoint` reads the stored
    assignment first.
    """
    for shard_id in sorted(checkpoint.positions):
        assignment = slot_map.assignments.get(shard_id)
        if assignment is None or assignment.slot != slot:
            raise ShardNotOwned(topic, slot, shard_id, -1 if assignment is None else assignment.slot)


def check_slot_count(topic: str, slots: int, slot_map: SlotMap, checkpoints: Mapping[int, Checkpoint]) -> None:
    """Raise `ConfigError` if the config has too few slots for the shards that have not ended."""
    if slots < 1:
        raise ConfigError(f"{topic}: {slots} slots are configured. Configure at least 1")
    open_slots = [
        (each.slot, shard_id)
        for shard_id, each in slot_map.assignments.items()
        if each.slot >= slots and not slot_map.has_ended(shard_id, checkpoints)
    ]
    if open_slots:
        highest, shard_id = max(open_slots)
        raise ConfigError(
            f"{topic}: {slots} slots are configured, but slot {highest} holds {shard_id}, which is not archived to its "
            f"end, and a shard never changes its slot. Configure at least {highest + 1} slots, or raise the stream's "
            f"generation"
        )
