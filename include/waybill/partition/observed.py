"""What a run learns of its messages beside the rows: how late they are, how far each log's time is, what was refused.

It is written down with the files that were staged, and becomes properties of the snapshot that commits them: whoever
commits, a retry included, commits the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from waybill.names import TopicPartition
from waybill.partition.lateness import LATENESS_PROPERTY, Lateness
from waybill.partition.refused import REASONS_PROPERTY, Refused
from waybill.partition.rows import Rows
from waybill.tables.state import WATERMARKS_PROPERTY
from waybill.tables.watermarks import Watermarks, merge_watermarks, watermarks_text

__all__ = ["Observed", "Observer"]


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
