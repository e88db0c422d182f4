"""Checkpoints: the archived positions of the shards of a slot.

A position refers to a whole Kinesis record: the user records of one KPL aggregate are archived together. So a position
needs a sequence number and no sub-sequence number.

Each backup object of a slot holds the checkpoint at its end (`waybill.records.shards.checkpoint_batch`), and the
committed offset in ZooKeeper holds the same checkpoint. A lane that adopts an object takes the checkpoint from the
object, since its own fetch may have ended at another position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self


class PositionKind(StrEnum):
    """The kinds of positions."""

    TRIM_HORIZON = "trim_horizon"
    """No record of the shard is archived, and its first record is next."""
    AT_TIMESTAMP = "at_timestamp"
    """No record of the shard is archived, and the first record that arrived at or after a time is next."""
    AFTER_SEQUENCE = "after_sequence"
    """All records up to a sequence number were archived."""
    AT_SEQUENCE = "at_sequence"
    """No record of the shard is archived, and the record with a sequence number is next: from an imported
    checkpoint."""
    SHARD_END = "shard_end"
    """The shard is closed, and all of its records were archived."""


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """The archived position of one shard."""

    kind: PositionKind
    sequence: str = ""
    """The sequence number of the last archived record, with AT_SEQUENCE that of the next one. SHARD_END keeps it; '' if
    there was no record."""
    timestamp_ms: int = -1
    """For AT_TIMESTAMP: epoch ms."""
    caught_up_ms: int = -1
    """Every record that arrived before this time (epoch ms) is archived; -1 if the shard was not read yet. A
    `RetentionGap` is possible only when the stream's retention passes it."""

    @property
    def is_ended(self) -> bool:
        return self.kind is PositionKind.SHARD_END

    @classmethod
    def trim_horizon(cls) -> Self:
        """Return the position before a shard's first record."""
        return cls(PositionKind.TRIM_HORIZON)

    @classmethod
    def at_timestamp(cls, timestamp_ms: int) -> Self:
        """Return the position before the first record that arrived at a time or later."""
        return cls(PositionKind.AT_TIMESTAMP, timestamp_ms=timestamp_ms)

    @classmethod
    def at_sequence(cls, sequence: str) -> Self:
        """Return the position before a record."""
        return cls(PositionKind.AT_SEQUENCE, sequence)

    def after(self, sequence: str) -> ShardPosition:
        """Return the position after a record."""
        return ShardPosition(PositionKind.AFTER_SEQUENCE, sequence, caught_up_ms=self.caught_up_ms)

    def at_shard_end(self) -> ShardPosition:
        """Return the position at the end of the closed shard."""
        sequence = "" if self.kind is PositionKind.AT_SEQUENCE else self.sequence
        return ShardPosition(PositionKind.SHARD_END, sequence, caught_up_ms=self.caught_up_ms)

    def caught_up(self, at_ms: int) -> ShardPosition:
        """Return the same position, with all records archived that arrived before `at_ms`."""
        return replace(self, caught_up_ms=max(at_ms, self.caught_up_ms))

    def is_behind(self, other: ShardPosition) -> bool:
        """Return whether `other` includes records, or the end of the shard, that this position does not include."""
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, int]:
        last = int(self.sequence or -1)
        return int(self.is_ended), last - 1 if self.kind is PositionKind.AT_SEQUENCE else last

    def to_fields(self) -> dict[str, Any]:
        """Return the position as JSON fields. Fields with their default are left out."""
        fields: dict[str, Any] = {"at": self.kind.value}
        if self.sequence:
            fields["sequence"] = self.sequence
        if self.timestamp_ms >= 0:
            fields["timestamp_ms"] = self.timestamp_ms
        if self.caught_up_ms >= 0:
            fields["caught_up_ms"] = self.caught_up_ms
        return fields

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Parse JSON fields. Raises `KeyError`, `TypeError` or `ValueError`."""
        position = cls(
            PositionKind(fields["at"]),
            str(fields.get("sequence", "")),
            int(fields.get("timestamp_ms", -1)),
            int(fields.get("caught_up_ms", -1)),
        )
        has_sequence, has_time = bool(position.sequence), position.timestamp_ms >= 0
        if position.sequence and not position.sequence.isdecimal():
            raise ValueError(f"{position.sequence!r} is no sequence number")
        if position.kind in (PositionKind.AFTER_SEQUENCE, PositionKind.AT_SEQUENCE) and not has_sequence:
            raise ValueError("a position at or after a sequence number has none")
        if has_time != (position.kind is PositionKind.AT_TIMESTAMP):
            raise ValueError(f"a position of kind {position.kind} has timestamp {position.timestamp_ms}")
        return position


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The positions of all shards that a slot has ever held, by shard id."""

    positions: Mapping[str, ShardPosition] = field(default_factory=dict)

    def position(self, shard_id: str) -> ShardPosition | None:
        """Return the position of a shard; None if the slot has archived no record of it."""
        return self.positions.get(shard_id)

    def moved(self, shard_id: str, position: ShardPosition) -> Checkpoint:
        """Return the checkpoint with one shard at another position."""
        return Checkpoint({**self.positions, shard_id: position})

    def without(self, shard_ids: Iterable[str]) -> Checkpoint:
        """Return the checkpoint without shards. Leave out only ended ones that are no parent of a listed shard."""
        dropped = set(shard_ids)
        return Checkpoint({shard_id: each for shard_id, each in self.positions.items() if shard_id not in dropped})

    def to_fields(self) -> dict[str, Any]:
        """Return the checkpoint as JSON fields."""
        return {shard_id: each.to_fields() for shard_id, each in sorted(self.positions.items())}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Parse JSON fields. Raises `KeyError`, `TypeError` or `ValueError`."""
        if not isinstance(fields, Mapping):
            raise TypeError(f"a {type(fields).__name__} is no checkpoint")
        return cls({str(shard_id): ShardPosition.of_fields(each) for shard_id, each in fields.items()})
