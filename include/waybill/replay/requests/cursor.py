"""The cursor of a request: the ranges to read, the place reached, and the state of the delivery.

The cursor is a JSON document in the database, stored after each delivered batch together with the figures, and read by
the next worker. Workers pass on no other state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from waybill.config.names import TopicPartition
from waybill.replay.requests.stored import Progress


class OffsetRange(NamedTuple):
    """The offsets `[first_offset, next_offset)` of a topic-partition."""

    tp: TopicPartition
    first_offset: int
    next_offset: int


class CursorPlace(NamedTuple):
    """A place in the ranges of a request: everything before it is read."""

    range_number: int
    offset: int
    """An offset of that range; in the place after the last range, 0."""


@dataclass(slots=True)
class Cursor:
    """The state of one request that one worker stores and the next one reads."""

    ranges: tuple[OffsetRange, ...]
    """The ranges to read, in this order. They never change, so every worker reads the same messages in the same
    order."""
    place: CursorPlace
    """Every message before it is delivered, rejected, or dropped as a duplicate."""
    found: int = 0
    """The number of wanted messages before the place."""
    delivered: int = 0
    duplicates: int = 0
    """How many of them were dropped as duplicates."""
    delivery: dict[str, Any] = field(default_factory=dict)
    """The state of the delivery to the target, for the next worker."""
    failing_since_ms: int | None = None
    """Since when (epoch ms) every attempt has failed; None: the last attempt succeeded."""
    problem: str = ""
    """Why the last attempt failed."""
    is_planned: bool = True
    """Whether `ranges` is known; False if every attempt has failed earlier."""

    @classmethod
    def at_beginning(cls, ranges: Sequence[OffsetRange]) -> Self:
        """Return the cursor of a request before its first message."""
        cursor = cls(tuple(ranges), CursorPlace(0, 0))
        cursor.place = cursor.first_place_of(0)
        return cursor

    @classmethod
    def unplanned(cls) -> Self:
        """Return the cursor of a request whose ranges are not known yet."""
        return cls((), CursorPlace(0, 0), is_planned=False)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the cursor of what `document` returned."""
        return cls(
            ranges=tuple(
                OffsetRange(TopicPartition(topic, partition), first_offset, next_offset)
                for topic, partition, first_offset, next_offset in document["ranges"]
            ),
            place=CursorPlace(*document["place"]),
            found=document["found"],
            delivered=document["delivered"],
            duplicates=document["duplicates"],
            delivery=dict(document["delivery"]),
            failing_since_ms=document["failing_since_ms"],
            problem=document["problem"],
            is_planned=document["planned"],
        )

    def document(self) -> dict[str, Any]:
        """Return the cursor as JSON."""
        return {
            "ranges": [[each.tp.topic, each.tp.partition, each.first_offset, each.next_offset] for each in self.ranges],
            "place": list(self.place),
            "found": self.found,
            "delivered": self.delivered,
            "duplicates": self.duplicates,
            "delivery": self.delivery,
            "failing_since_ms": self.failing_since_ms,
            "problem": self.problem,
            "planned": self.is_planned,
        }

    def progress(self) -> Progress:
        """Return the figures, with the cursor, as the database stores them."""
        return Progress(self.document(), self.found, self.delivered, self.share)

    @property
    def is_at_end(self) -> bool:
        """Whether everything is read and delivered."""
        return self.place.range_number >= len(self.ranges)

    @property
    def share(self) -> float:
        """How much of the offsets is read, from 0 to 1."""
        if not self.is_planned:
            return 0.0
        total = sum(each.next_offset - each.first_offset for each in self.ranges)
        number = self.place.range_number
        passed = sum(each.next_offset - each.first_offset for each in self.ranges[:number])
        if number < len(self.ranges):
            passed += self.place.offset - self.ranges[number].first_offset
        return passed / total if total else 1.0

    def first_place_of(self, range_number: int) -> CursorPlace:
        """Return the place at which a range begins; the end if the number is that after the last range."""
        if range_number >= len(self.ranges):
            return CursorPlace(len(self.ranges), 0)
        return CursorPlace(range_number, self.ranges[range_number].first_offset)

    def place_behind(self, range_number: int, next_offset: int) -> CursorPlace:
        """Return the place after all messages of a range before `next_offset`."""
        if next_offset >= self.ranges[range_number].next_offset:
            return self.first_place_of(range_number + 1)
        return CursorPlace(range_number, next_offset)
