"""What a run put into quarantine, counted by kind of reason, with an example of each.

What a run learns of its messages beside the rows: how late they are, how far each log's time is, what was refused.

It is written down with the files that were staged, and becomes properties of the snapshot that commits them: whoever
commits, a retry included, commits the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from waybill.names import TopicPartition
from waybill.partition.lateness import LATENESS_PROPERTY, Lateness
from waybill.partition.rows import Rows
from waybill.tables.progress import Watermarks, merge_watermarks, watermarks_text
from waybill.tables.state import WATERMARKS_PROPERTY

__all__ = ["OTHER", "REASONS_PROPERTY", "Observed", "Observer", "Refusal", "Refused", "kinds"]

REASONS_PROPERTY = "waybill.reasons"
"""Of the snapshot of a run: the kinds that most of its messages in quarantine have."""

_VERSION = 1
_MOST = 20
_MOST_HELD = 1000
OTHER = "other"
"""The kind of what is counted together, when there are too many: a parser of one's own may give any."""


def kinds(reasons: pa.Array) -> pa.Array:
    """What reasons start with, before the colon and the particulars."""
    return pc.list_element(pc.split_pattern(reasons, ":", max_splits=1), 0)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Messages that were refused for one kind of reason."""

    messages: int
    example: str
    """One of them, as `topic/partition@offset`."""


@dataclass(frozen=True, slots=True)
class Refused:
    """By kind of reason."""

    by_kind: Mapping[str, Refusal] = field(default_factory=dict)

    @classmethod
    def of(cls, tp: TopicPartition, quarantine: pa.RecordBatch) -> Self:
        """Rows of the quarantine of one topic-partition, in order of offset."""
        if not quarantine.num_rows:
            return cls()
        found, offsets = kinds(quarantine.column("reason")), quarantine.column("offset")
        counts = pc.value_counts(found)
        return cls(
            {
                each["values"]: Refusal(each["counts"], f"{tp}@{offsets[found.index(each['values']).as_py()]}")
                for each in counts.to_pylist()
            }
        )

    def __add__(self, other: Refused) -> Refused:
        """Together; the first example counts."""
        total = dict(self.by_kind)
        for kind, found in other.by_kind.items():
            known = total.get(kind)
            total[kind] = found if known is None else Refusal(known.messages + found.messages, known.example)
        return Refused(total)._bounded()

    def _bounded(self) -> Refused:
        if len(self.by_kind) <= _MOST_HELD:
            return self
        kept = dict(self.most(_MOST_HELD // 2))
        rest = [found for kind, found in self.by_kind.items() if kind not in kept]
        if OTHER in kept:
            rest.append(kept.pop(OTHER))
        return Refused({**kept, OTHER: Refusal(sum(found.messages for found in rest), rest[-1].example)})

    @property
    def messages(self) -> int:
        return sum(found.messages for found in self.by_kind.values())

    def most(self, number: int = _MOST) -> Mapping[str, Refusal]:
        """The kinds with most messages, most first."""
        ranked = sorted(self.by_kind.items(), key=lambda each: (-each[1].messages, each[0]))
        return dict(ranked[:number])

    def to_text(self) -> str:
        """The document that `from_text` reads: the most frequent kinds."""
        document: dict[str, Any] = {kind: [found.messages, found.example] for kind, found in self.most().items()}
        return json.dumps({"v": _VERSION, "reasons": document}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The inverse of `to_text`; of another version nothing is known, which costs a message its particulars."""
        document = json.loads(text)
        if document.get("v") != _VERSION:
            return cls()
        return cls({kind: Refusal(*found) for kind, found in document["reasons"].items()})


@dataclass(frozen=True, slots=True)
class Observed:
    """What was learnt."""

    lateness: Lateness = field(default_factory=Lateness)
    watermarks: Watermarks = field(default_factory=dict)
    refused: Refused = field(default_factory=Refused)

    @classmethod
    def all(cls, some: Iterable[Observed]) -> Observed:
        """Several together."""
        total = Observed()
        for one in some:
            watermarks = merge_watermarks(total.watermarks, one.watermarks)
            total = cls(total.lateness + one.lateness, watermarks, total.refused + one.refused)
        return total

    def properties(self) -> Mapping[str, str]:
        """Of the snapshot."""
        found = {LATENESS_PROPERTY: self.lateness.to_text()}
        if self.watermarks:
            found[WATERMARKS_PROPERTY] = watermarks_text(self.watermarks)
        if self.refused.by_kind:
            found[REASONS_PROPERTY] = self.refused.to_text()
        return found


class Observer:
    """Looks at what passes by."""

    def __init__(self, planned_at: datetime) -> None:
        # A Kafka timestamp from after the plan was made is a producer's wrong clock: it must not move the watermark.
        self._latest = pa.scalar(planned_at, pa.timestamp("us", tz="UTC")).cast(pa.int64())
        self._lateness = Lateness()
        self._refused = Refused()
        self._newest_us: dict[TopicPartition, int] = {}

    def see(self, tp: TopicPartition, messages: pa.RecordBatch, rows: Rows) -> None:
        """`messages` of `MESSAGE_SCHEMA`, and the rows that were made of them."""
        self._lateness += Lateness.of(rows.table)
        self._refused += Refused.of(tp, rows.quarantine)
        timestamps = messages.column("timestamp").cast(pa.int64())
        newest = pc.max(timestamps)
        if newest.is_valid and newest.as_py() > self._latest.as_py():
            newest = pc.max(timestamps.filter(pc.less_equal(timestamps, self._latest)))
        if newest.is_valid and newest.as_py() >= 0:
            self._newest_us[tp] = max(self._newest_us.get(tp, 0), newest.as_py())

    def result(self) -> Observed:
        """What was seen so far."""
        watermarks = {tp: newest // 1000 for tp, newest in self._newest_us.items()}
        return Observed(self._lateness, watermarks, self._refused)
