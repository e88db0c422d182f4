"""Accepted gaps: ranges of offsets that a person decided to leave missing from a chain, and their markers in the chain.

Each decision is an S3 object beside the chains, created if absent: the first decision about a gap is in force, and it
outlives a loss of ZooKeeper's data.

After a `RetentionGap` or a `ChainBroken` no message of the range is in the chain. A *gap marker* then takes the range's
place in the chain: a backup object without messages (docs/protocol.md). The marker also makes the decision safe. If a
lane that was frozen before the decision later tries to create an object with these messages, S3 refuses it, as
everywhere in the protocol. And every reader of the chain, including Kafka's own tools, skips exactly that range.

After a `LogTruncated` there is no marker: the chain keeps the messages of the log before the truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self

from waybill.archive.chain.backup_object import BackupObject
from waybill.base.documents import Document, Stored, readable
from waybill.config import names
from waybill.config.names import GapName, TopicPartition
from waybill.records.batches import framing
from waybill.services.store import Store

GAP_METADATA_KEY = "gap"
"""The key of a gap marker's user metadata. Its value is the `GapKind`; other backup objects do not have this key."""


class GapKind(StrEnum):
    """The named stop whose gap was accepted."""

    RETENTION = "RetentionGap"
    """Kafka's retention deleted the offsets before they were archived."""
    TRUNCATED = "LogTruncated"
    """The offsets were archived from a log that an unclean leader election truncated; the messages that the new log
    has at these offsets are not archived."""
    BROKEN = "ChainBroken"
    """The backup object that held the offsets is lost."""


@dataclass(frozen=True, slots=True)
class Gap(Stored):
    """One accepted gap: offsets `[first_offset, next_offset)` of a chain, and who accepted it, when and why."""

    DOCUMENT: ClassVar = Document(
        "{where} is not a valid accepted gap ({kind}: {error}): restore it from the bucket's versions", dump=readable
    )

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
    """The figures of the named stop, such as the number of lost messages."""

    @property
    def has_marker(self) -> bool:
        """Whether a gap marker stands for the gap in the chain, so that the chain has no message of these offsets."""
        return self.kind is not GapKind.TRUNCATED

    @property
    def messages_at_most(self) -> int:
        return self.next_offset - self.first_offset

    @property
    def name(self) -> GapName:
        seam = None if self.has_marker else self.next_offset
        return GapName(self.tp.topic, self.generation, self.tp.partition, self.first_offset, seam)

    def __str__(self) -> str:
        return f"{self.tp} offsets {self.first_offset}–{self.next_offset - 1} ({self.kind})"

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as they are stored and printed, without the document's version."""
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

    @classmethod
    def of_fields(cls, where: str, fields: Mapping[str, Any]) -> Self:
        """Return the gap with these fields. Raises one of `waybill.base.documents.DAMAGES`."""
        gap = cls(
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
        if gap.name != GapName.parse(where) or not 0 <= gap.first_offset <= gap.next_offset:
            raise ValueError("its content does not match its name")
        return gap


# --- stored decisions -------------------------------------------------------------------------------------------------


def record_gap(store: Store, gap: Gap) -> Gap:
    """Store an accepted gap. Return the valid record: this one, or an earlier one with the same name."""
    key = gap.name.key(store.prefix)
    existing = store.create_or_read_existing(key, gap.to_json())
    return gap if existing is None else Gap.from_json(key, existing)


def withdraw_gap(store: Store, gap: Gap) -> None:
    """Remove an accepted gap that turned out to have no effect."""
    store.remove(gap.name.key(store.prefix))


def find_gap(store: Store, generation: int, tp: TopicPartition, first_offset: int) -> Gap | None:
    """Return the accepted gap with a marker that starts at an offset; None if there is none. One call to S3."""
    key = GapName(tp.topic, generation, tp.partition, first_offset).key(store.prefix)
    data = store.read_if_exists(key)
    return None if data is None else Gap.from_json(key, data)


def find_truncation(
    store: Store, generation: int, tp: TopicPartition, truncated_offset: int, continue_offset: int
) -> Gap | None:
    """Return the accepted truncation that covers `truncated_offset` and lets the chain continue at `continue_offset`.

    Returns None if no such truncation was accepted.
    """
    for gap in list_gaps_of_chain(store, generation, tp):
        if not gap.has_marker and gap.next_offset == continue_offset and gap.first_offset <= truncated_offset:
            return gap
    return None


def list_gaps_of_chain(store: Store, generation: int, tp: TopicPartition) -> list[Gap]:
    """Return the accepted gaps of a chain, by first offset."""
    return list(_read(store, names.gap_prefix(store.prefix, tp.topic, generation, tp.partition), lambda _: True))


def list_gaps_of_topics(store: Store, generation: int, matches: Callable[[str], bool]) -> list[Gap]:
    """Return the accepted gaps of a generation in all matching topics, by topic-partition and first offset."""
    gaps = _read(
        store, names.gaps_prefix(store.prefix), lambda name: name.generation == generation and matches(name.topic)
    )
    return sorted(gaps, key=lambda gap: (gap.tp, gap.first_offset, gap.next_offset))


def _read(store: Store, prefix: str, is_wanted: Callable[[GapName], bool]) -> Iterator[Gap]:
    for key in store.keys(prefix):
        try:
            name = GapName.parse(key)
        except ValueError:
            continue  # not written by Waybill, such as a note for other operators
        if is_wanted(name):
            yield Gap.from_json(key, store.read(key))


# --- the marker -------------------------------------------------------------------------------------------------------


def write_gap_marker(target: BackupObject, gap: Gap) -> None:
    """Create the marker of an accepted gap. `target` must start at the gap's first offset.

    Raises `ObjectExists` if the chain has another object at this offset, `StoreUnavailable` if S3's answer is unknown.
    """
    offset = gap.first_offset
    while offset < gap.next_offset:
        batch_end = min(gap.next_offset, offset + framing.MAX_OFFSETS_IN_BATCH)
        # Without a leader epoch: after a gap, the next batch need not continue the log of any earlier batch.
        batch = memoryview(framing.empty_batch(offset, batch_end, leader_epoch=-1))
        target.begin_chunk(batch)
        for frame in framing.frames(batch, where=str(gap)):
            target.take(frame, archived=False)
        offset = batch_end
    target.complete()
