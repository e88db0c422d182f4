"""Statistics of a partition run: lateness, watermarks, and the reasons why messages went to quarantine.

Each task collects them while it makes rows. They are recorded with the staged files and become properties of the
snapshot that commits these, so that a retry or a rival commits the same statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.base.documents import Document
from waybill.base.errors import DocumentTooNew
from waybill.config.names import TopicPartition
from waybill.parsers.protocol import Reason
from waybill.tables.audit.counts import CLOCK_TOLERANCE_SECONDS, COUNTS_PROPERTY, AuditCounts, OffsetRange
from waybill.tables.iceberg.progress import Watermarks, merge_watermarks, watermarks_text
from waybill.tables.iceberg.state import WATERMARKS_PROPERTY
from waybill.tables.partition.lateness import LATENESS_PROPERTY, Lateness
from waybill.tables.partition.rows import Rows

ROWS_PROPERTY = "waybill.rows"
"""Snapshot property: the number of rows that the run made of messages."""
QUARANTINED_PROPERTY = "waybill.quarantined"
"""Snapshot property: the number of messages that the run put into quarantine."""
REASONS_PROPERTY = "waybill.reasons"
"""Snapshot property: the most frequent kinds of reasons, each with count and example."""

OTHER = "other"
"""The kind under which rare kinds are counted together when there are too many: a user's parser may give any kind."""

_DOCUMENT = Document(name="the counts of quarantined messages")
_STORED_KINDS = 20
_MAX_KINDS = 1000  # in memory


def reason_kinds(reasons: pa.Array) -> pa.Array:
    """Return the kind of each reason: the word before the colon and the details."""
    return pc.list_element(pc.split_pattern(reasons, ":", max_splits=1), 0)


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """Messages that went to quarantine for one kind of reason."""

    messages: int
    example: str
    """One of them, as `topic/partition@offset`."""


@dataclass(frozen=True, slots=True)
class ReasonCounts:
    """Messages that went to quarantine, by kind of reason."""

    by_kind: Mapping[str, ReasonCount] = field(default_factory=dict)

    @classmethod
    def of(cls, tp: TopicPartition, quarantine: pa.RecordBatch) -> Self:
        """Count rows of the quarantine of one topic-partition, sorted by offset."""
        if not quarantine.num_rows:
            return cls()
        found, offsets = reason_kinds(quarantine.column("reason")), quarantine.column("offset")
        counts = pc.value_counts(found)
        return cls(
            {
                each["values"]: ReasonCount(each["counts"], f"{tp}@{offsets[found.index(each['values']).as_py()]}")
                for each in counts.to_pylist()
            }
        )

    def __add__(self, other: ReasonCounts) -> ReasonCounts:
        """Add up both; keep the first example of each kind."""
        total = dict(self.by_kind)
        for kind, found in other.by_kind.items():
            known = total.get(kind)
            total[kind] = found if known is None else ReasonCount(known.messages + found.messages, known.example)
        return ReasonCounts(total)._bounded()

    def _bounded(self) -> ReasonCounts:
        if len(self.by_kind) <= _MAX_KINDS:
            return self
        kept = dict(self.most_frequent(_MAX_KINDS // 2))
        rest = [found for kind, found in self.by_kind.items() if kind not in kept]
        if OTHER in kept:
            rest.append(kept.pop(OTHER))
        return ReasonCounts({**kept, OTHER: ReasonCount(sum(found.messages for found in rest), rest[-1].example)})

    @property
    def messages(self) -> int:
        return sum(found.messages for found in self.by_kind.values())

    def most_frequent(self, number: int = _STORED_KINDS) -> Mapping[str, ReasonCount]:
        """Return the kinds with most messages, most frequent first."""
        ranked = sorted(self.by_kind.items(), key=lambda each: (-each[1].messages, each[0]))
        return dict(ranked[:number])

    def to_text(self) -> str:
        """Return the snapshot property, with the most frequent kinds only."""
        reasons = {kind: [found.messages, found.example] for kind, found in self.most_frequent().items()}
        return _DOCUMENT.write({"reasons": reasons}).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse what `to_text` returned. Another version counts as empty: only details of the alert depend on it."""
        try:
            document = _DOCUMENT.read(text, "")
        except DocumentTooNew:
            return cls()
        return cls({kind: ReasonCount(*found) for kind, found in document["reasons"].items()})


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Statistics of a run, or of one of its tasks."""

    lateness: Lateness = field(default_factory=Lateness)
    watermarks: Watermarks = field(default_factory=dict)
    reasons: ReasonCounts = field(default_factory=ReasonCounts)
    counts: AuditCounts = field(default_factory=AuditCounts)

    @classmethod
    def sum(cls, parts: Iterable[RunStatistics]) -> RunStatistics:
        """Add up the statistics of all tasks of a run."""
        lateness, reasons, counts = Lateness(), ReasonCounts(), list[AuditCounts]()
        watermarks: Watermarks = {}
        for one in parts:
            lateness += one.lateness
            reasons += one.reasons
            watermarks = merge_watermarks(watermarks, one.watermarks)
            counts.append(one.counts)
        return cls(lateness, watermarks, reasons, AuditCounts.sum(counts))

    def snapshot_properties(self) -> Mapping[str, str]:
        """Return the properties of the snapshot that commits the run."""
        found = {LATENESS_PROPERTY: self.lateness.to_text(), COUNTS_PROPERTY: self.counts.to_text()}
        if self.watermarks:
            found[WATERMARKS_PROPERTY] = watermarks_text(self.watermarks)
        if self.reasons.by_kind:
            found[REASONS_PROPERTY] = self.reasons.to_text()
        return found


class StatisticsBuilder:
    """Collects the statistics of one task, batch by batch."""

    def __init__(self, planned_at: datetime) -> None:
        # A Kafka timestamp later than the plan comes from a producer's wrong clock: it must not move the watermark.
        self._planned_at_us = pa.scalar(planned_at, pa.timestamp("us", tz="UTC")).cast(pa.int64())
        self._lateness = Lateness()
        self._reasons = ReasonCounts()
        self._newest_us: dict[TopicPartition, int] = {}
        self._counts = _CountsBuilder(self._planned_at_us.as_py())

    def add(self, tp: TopicPartition, messages: pa.RecordBatch, rows: Rows) -> None:
        """Add a batch: `messages` of `MESSAGE_SCHEMA`, and the rows that were made of them."""
        self._lateness += Lateness.of(rows.table)
        reasons = ReasonCounts.of(tp, rows.quarantine)
        self._reasons += reasons
        timestamps = messages.column("timestamp").cast(pa.int64())
        newest = pc.max(timestamps)
        self._counts.add(tp, messages, rows, reasons, newest.as_py())
        if newest.is_valid and newest.as_py() > self._planned_at_us.as_py():
            newest = pc.max(timestamps.filter(pc.less_equal(timestamps, self._planned_at_us)))
        if newest.is_valid and newest.as_py() >= 0:
            self._newest_us[tp] = max(self._newest_us.get(tp, 0), newest.as_py())

    def result(self) -> RunStatistics:
        """Return the statistics of all batches so far."""
        watermarks = {tp: newest // 1000 for tp, newest in self._newest_us.items()}
        return RunStatistics(self._lateness, watermarks, self._reasons, self._counts.result())


class _CountsBuilder:
    """Counts for the built-in checks: a few calls of Arrow and numpy for each batch."""

    def __init__(self, planned_at_us: int) -> None:
        self._planned_at_us = planned_at_us
        self._latest_us = planned_at_us + CLOCK_TOLERANCE_SECONDS * 1_000_000
        self._messages = self._without_event_time = self._parser_failed = self._assigned_ids = 0
        self._event_times_ahead = self._kafka_timestamps_ahead = 0
        self._newest_us = planned_at_us
        self._repeated = 0
        self._example = ""
        self._ranges: dict[TopicPartition, OffsetRange] = {}

    def add(
        self,
        tp: TopicPartition,
        messages: pa.RecordBatch,
        rows: Rows,
        reasons: ReasonCounts,
        newest_timestamp_us: int | None,
    ) -> None:
        """Add a batch. `reasons`: those of its quarantined messages; `newest_timestamp_us`: its newest timestamp."""
        if not messages.num_rows:
            return
        self._messages += messages.num_rows
        self._assigned_ids += rows.assigned_ids
        missing = reasons.by_kind.get(Reason.EVENT_TIME_MISSING)
        self._without_event_time += missing.messages if missing else 0
        failed = reasons.by_kind.get(Reason.PARSER_FAILED)
        self._parser_failed += failed.messages if failed else 0
        self._event_times_ahead += self._count_ahead(rows.table.column("event_time"))
        if newest_timestamp_us is not None and newest_timestamp_us > self._latest_us:
            self._kafka_timestamps_ahead += self._count_ahead(messages.column("timestamp"))
        self._add_offsets(tp, np.asarray(messages.column("offset")))

    def _count_ahead(self, times: pa.Array) -> int:
        times_us = times.cast(pa.int64())
        newest = pc.max(times_us).as_py()
        if newest is None or newest <= self._latest_us:
            return 0
        self._newest_us = max(self._newest_us, newest)
        return int(pc.sum(pc.greater(times_us, self._latest_us)).as_py())

    def _add_offsets(self, tp: TopicPartition, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        known = self._ranges.get(tp)
        first, last = int(offsets[0]), int(offsets[-1])
        repeats = np.flatnonzero(offsets[1:] <= offsets[:-1])
        found = [int(offsets[at + 1]) for at in repeats[:1]]
        if known is not None and first <= known[1]:
            self._repeated += 1
            found.insert(0, first)
        self._repeated += len(repeats)
        if found and not self._example:
            self._example = f"{tp}@{found[0]}"
        self._ranges[tp] = (first, last) if known is None else (min(known[0], first), max(known[1], last))

    def result(self) -> AuditCounts:
        """Return the counts of all batches so far."""
        return AuditCounts(
            messages=self._messages,
            without_event_time=self._without_event_time,
            parser_failed=self._parser_failed,
            assigned_ids=self._assigned_ids,
            event_times_ahead=self._event_times_ahead,
            kafka_timestamps_ahead=self._kafka_timestamps_ahead,
            ahead_seconds=-(-(self._newest_us - self._planned_at_us) // 1_000_000),
            repeated_offsets=self._repeated,
            repeated_example=self._example,
            ranges={tp: (found,) for tp, found in self._ranges.items()},
        )
