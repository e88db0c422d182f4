"""Accepted gaps: what somebody has decided that a chain goes on without.

A decision is an object of its own, beside the chains that it is about, created if absent: the first decision about a
gap counts, and a loss of ZooKeeper's data does not forget it. A *hole* (`RetentionGap`, `ChainBroken`) is filled in the
chain by an object without messages (docs/protocol.md), so that every reader goes over it. After a *truncation*
(`LogTruncated`) there is nothing to fill: the chain keeps what the old log held.

The object that stands in a chain for an accepted hole: no message, and the hole's range.

It makes the decision safe as well as visible. Whoever would still put messages there, such as a lane that was asleep
since before the decision, is refused by S3 as anywhere in the protocol; and every reader of the chain, Kafka's own
tools among them, goes over exactly that range.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from waybill import names
from waybill.archive.backup_object import BackupObject
from waybill.documents import read_document
from waybill.errors import ConfigError
from waybill.names import GapName, TopicPartition
from waybill.records import framing
from waybill.store import Store

__all__ = [
    "MARK",
    "Decision",
    "Gap",
    "GapKind",
    "fill",
    "find",
    "of_chain",
    "of_topics",
    "record",
    "truncation",
    "withdraw",
]

_VERSION = 1

MARK = "gap"
"""The user metadata of a backup object that stands for an accepted hole: of what kind."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Who decided, and why."""

    reason: str
    by: str


class GapKind(StrEnum):
    """The named stop that was decided."""

    RETENTION = "RetentionGap"
    """Kafka deleted the offsets before they were archived."""
    TRUNCATED = "LogTruncated"
    """The offsets are archived from a log that an unclean election took back; what the new log holds there is not."""
    BROKEN = "ChainBroken"
    """The object that held the offsets is lost."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One accepted gap: offsets `[first_offset, next_offset)` of a chain, and who accepted it, when and why."""

    tp: TopicPartition
    generation: int
    first_offset: int
    next_offset: int
    kind: GapKind
    reason: str
    accepted_by: str
    accepted_at_ms: int
    """Milliseconds since 1970 UTC."""
    figures: Mapping[str, int | str] = field(default_factory=dict)
    """Those of the stop."""

    @property
    def is_hole(self) -> bool:
        """Whether no message of these offsets is in the chain."""
        return self.kind is not GapKind.TRUNCATED

    @property
    def messages_at_most(self) -> int:
        return self.next_offset - self.first_offset

    @property
    def name(self) -> GapName:
        seam = None if self.is_hole else self.next_offset
        return GapName(self.tp.topic, self.generation, self.tp.partition, self.first_offset, seam)

    def __str__(self) -> str:
        return f"{self.tp} offsets {self.first_offset}–{self.next_offset - 1} ({self.kind})"

    def document(self) -> dict[str, Any]:
        """As it is kept and printed, without the version."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "generation": self.generation,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "kind": str(self.kind),
            "reason": self.reason,
            "accepted_by": self.accepted_by,
            "accepted_at": self.accepted_at_ms,
            "figures": dict(self.figures),
        }

    def to_json(self) -> bytes:
        return json.dumps({"v": _VERSION, **self.document()}, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Gap:
        """Raises `GenerationConflict` for a document of a newer version, `ConfigError` for one that is damaged."""
        try:
            fields = read_document(data, _VERSION, key)
            found = cls(
                tp=TopicPartition(str(fields["topic"]), int(fields["partition"])),
                generation=int(fields["generation"]),
                first_offset=int(fields["first_offset"]),
                next_offset=int(fields["next_offset"]),
                kind=GapKind(fields["kind"]),
                reason=str(fields["reason"]),
                accepted_by=str(fields["accepted_by"]),
                accepted_at_ms=int(fields["accepted_at"]),
                figures=dict(fields["figures"]),
            )
            if found.name != GapName.parse(key) or not 0 <= found.first_offset <= found.next_offset:
                raise ValueError("its content is not what its name says")
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{key} is no accepted gap ({type(error).__name__}: {error}): restore it from the bucket's versions"
            ) from None
        return found


def record(store: Store, gap: Gap) -> Gap:
    """Write a decision down. Returns the one that counts: this one, or an earlier one of the same name."""
    key = gap.name.key(store.prefix)
    there = store.create_unless_there(key, gap.to_json())
    return gap if there is None else Gap.from_json(there, key)


def withdraw(store: Store, gap: Gap) -> None:
    """Take a decision back that nothing followed from."""
    store.remove(gap.name.key(store.prefix))


def find(store: Store, generation: int, tp: TopicPartition, first_offset: int) -> Gap | None:
    """The accepted hole that starts at an offset, if there is one. One call."""
    key = GapName(tp.topic, generation, tp.partition, first_offset).key(store.prefix)
    found = store.read_if_there(key)
    return None if found is None else Gap.from_json(found, key)


def truncation(store: Store, generation: int, tp: TopicPartition, offset: int, goes_on_at: int) -> Gap | None:
    """The accepted truncation that took back `offset`, and after which the chain goes on at `goes_on_at`, if any."""
    for gap in of_chain(store, generation, tp):
        if not gap.is_hole and gap.next_offset == goes_on_at and gap.first_offset <= offset:
            return gap
    return None


def of_chain(store: Store, generation: int, tp: TopicPartition) -> list[Gap]:
    """The accepted gaps of a chain, by first offset."""
    return list(_read(store, names.gap_prefix(store.prefix, tp.topic, generation, tp.partition), lambda _: True))


def of_topics(store: Store, generation: int, matches: Callable[[str], bool]) -> list[Gap]:
    """The accepted gaps of a generation in all topics that match, by topic-partition and first offset."""
    found = _read(
        store, names.gaps_prefix(store.prefix), lambda name: name.generation == generation and matches(name.topic)
    )
    return sorted(found, key=lambda gap: (gap.tp, gap.first_offset, gap.next_offset))


def _read(store: Store, prefix: str, wanted: Callable[[GapName], bool]) -> Iterator[Gap]:
    for key in store.keys(prefix):
        try:
            name = GapName.parse(key)
        except ValueError:
            continue  # somebody's notes
        if wanted(name):
            yield Gap.from_json(store.read(key), key)


def fill(target: BackupObject, gap: Gap) -> None:
    """Create the object, which was begun at the hole's start. Raises `ObjectAlreadyThere` or `StoreUnavailable`."""
    offset = gap.first_offset
    while offset < gap.next_offset:
        reach = min(gap.next_offset, offset + framing.MAX_OFFSETS_IN_BATCH)
        # No leader epoch: after a hole there is nothing in the log that the next batch must follow on.
        batch = memoryview(framing.empty_batch(offset, reach, leader_epoch=-1))
        target.begin_chunk(batch)
        for frame in framing.frames(batch, where=str(gap)):
            target.take(frame, archived=False)
        offset = reach
    target.complete()
