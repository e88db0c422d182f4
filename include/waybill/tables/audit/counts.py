"""The counts that tasks of a partition run make for the built-in checks, so that an audit reads no message again.

Each task counts while it makes rows. The sum is recorded with the staged files, as a property of the snapshot that
commits them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from waybill.base.documents import Document
from waybill.base.errors import DocumentTooNew
from waybill.config.names import TopicPartition

COUNTS_PROPERTY = "waybill.audit_counts"
"""Snapshot property: the `AuditCounts` of a run."""

CLOCK_TOLERANCE_SECONDS = 300
"""How far clocks may differ before a time counts as later than the run was planned."""

_DOCUMENT = Document(name=COUNTS_PROPERTY)

OffsetRange = tuple[int, int]
"""The first and the last offset that a task read of a topic-partition."""


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """The counts of a run, or of one of its tasks."""

    messages: int = 0
    """Messages that were decoded."""
    without_event_time: int = 0
    """Messages that went to quarantine because they had no event time."""
    parser_failed: int = 0
    """Messages at which a built-in parser raised."""
    assigned_ids: int = 0
    """Rows that got an id assigned, because the message had none. Tombstones have no id, and are not counted."""
    event_times_ahead: int = 0
    """Rows whose event time is more than `CLOCK_TOLERANCE_SECONDS` later than the run was planned."""
    kafka_timestamps_ahead: int = 0
    """Messages whose Kafka timestamp is more than `CLOCK_TOLERANCE_SECONDS` later than the run was planned."""
    ahead_seconds: int = 0
    """How much later the latest of these times is than the run was planned."""
    repeated_offsets: int = 0
    """Places where an offset was not greater than the one before it."""
    repeated_example: str = ""
    """One of them, as `topic/partition@offset`."""
    ranges: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(default_factory=dict)
    """The offsets that each task read. They are compared when the tasks are summed up, and not recorded."""

    @classmethod
    def sum(cls, parts: Iterable[AuditCounts]) -> AuditCounts:
        """Add up the counts of all tasks of a run, and count where the offsets of two tasks overlap."""
        found = list(parts)
        ranges: dict[TopicPartition, list[OffsetRange]] = {}
        for part in found:
            for tp, own in part.ranges.items():
                ranges.setdefault(tp, []).extend(own)
        overlaps = [f"{tp}@{first}" for tp, each in sorted(ranges.items()) for first in _overlaps(sorted(each))]
        examples = [*(part.repeated_example for part in found if part.repeated_example), *overlaps, ""]
        return cls(
            messages=sum(part.messages for part in found),
            without_event_time=sum(part.without_event_time for part in found),
            parser_failed=sum(part.parser_failed for part in found),
            assigned_ids=sum(part.assigned_ids for part in found),
            event_times_ahead=sum(part.event_times_ahead for part in found),
            kafka_timestamps_ahead=sum(part.kafka_timestamps_ahead for part in found),
            ahead_seconds=max((part.ahead_seconds for part in found), default=0),
            repeated_offsets=sum(part.repeated_offsets for part in found) + len(overlaps),
            repeated_example=examples[0],
            ranges={tp: tuple(sorted(each)) for tp, each in ranges.items()},
        )

    def to_text(self) -> str:
        """Return the value of the snapshot property."""
        fields = {
            "messages": self.messages,
            "without_event_time": self.without_event_time,
            "assigned_ids": self.assigned_ids,
            "ahead": [self.event_times_ahead, self.kafka_timestamps_ahead, self.ahead_seconds],
            "repeated": [self.repeated_offsets, self.repeated_example],
            "parser_failed": self.parser_failed,
        }
        return _DOCUMENT.write(fields).decode()

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Parse what `to_text` returned.

        None for a newer version: the checks that need the counts then have no result.
        """
        try:
            document = _DOCUMENT.read(text, "")
        except DocumentTooNew:
            return None
        return cls(
            document["messages"], document["without_event_time"],
            document.get("parser_failed", 0),  # earlier versions of Waybill did not count it
            document["assigned_ids"],
            *document["ahead"], *document["repeated"],
        )  # fmt: skip


def _overlaps(ranges: list[OffsetRange]) -> Iterable[int]:
    """Yield the first offset of each range that begins before an earlier one ends."""
    end = -1
    for first, last in ranges:
        if first <= end:
            yield first
        end = max(end, last)
