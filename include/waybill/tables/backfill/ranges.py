"""The range of a backfill: offsets `[first, next)` for each topic-partition.

The range decides which rows a backfill replaces. A data file lies inside the range, outside of it, or across its
bounds; the column bounds in the file's manifest entry often show which of these applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from waybill.base.errors import BackfillRefused
from waybill.config.names import TopicPartition
from waybill.tables.quarantine.offset_sets import by_topic_partition

if TYPE_CHECKING:
    Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Placement(StrEnum):
    """Where the rows of a data file lie, relative to the range."""

    INSIDE = "inside"
    """All rows are inside the range."""
    OUTSIDE = "outside"
    ACROSS = "across"
    """Some rows are inside, some outside."""
    UNKNOWN = "unknown"
    """The column bounds do not show it."""


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Offsets `[first, next)` by topic-partition. Immutable."""

    by_tp: Mapping[TopicPartition, tuple[int, int]]

    @classmethod
    def parse(cls, document: Mapping[str, tuple[int, int]]) -> Self:
        """Parse what `document` returned."""
        return cls({TopicPartition.parse(tp): (int(first), int(end)) for tp, (first, end) in document.items()})

    def document(self) -> dict[str, list[int]]:
        """Return the ranges for a JSON document, by `topic/partition`."""
        return {str(tp): list(offsets) for tp, offsets in sorted(self.by_tp.items())}

    def __str__(self) -> str:
        return ", ".join(f"{tp} {first}–{end - 1}" for tp, (first, end) in sorted(self.by_tp.items()))

    def __iter__(self) -> Iterator[tuple[TopicPartition, tuple[int, int]]]:
        return iter(sorted(self.by_tp.items()))

    @property
    def offsets(self) -> int:
        """The number of offsets; there are at most as many messages."""
        return sum(end - first for first, end in self.by_tp.values())

    def overlap(self, other: OffsetRanges) -> OffsetRanges:
        """Return the offsets that are in both."""
        common = {
            tp: (max(first, other.by_tp[tp][0]), min(end, other.by_tp[tp][1]))
            for tp, (first, end) in self.by_tp.items()
            if tp in other.by_tp
        }
        return OffsetRanges({tp: found for tp, found in common.items() if found[0] < found[1]})

    def check_below(self, progress: Mapping[TopicPartition, int], what: str) -> None:
        """Raise `BackfillRefused` unless the range lies below `progress`; `what` names its owner."""
        for tp, (first, end) in self:
            if end > progress.get(tp, 0):
                raise BackfillRefused(
                    f"{tp}: offsets {first}–{end - 1} reach beyond {what}, which is {progress.get(tp, 0)}: partition "
                    f"runs parse the offsets from there on"
                )

    # --- rows and files ---

    def mask(self, rows: pa.RecordBatch) -> Bools:
        """Return which rows lie inside. The rows have the columns topic, partition and offset."""
        found = np.zeros(rows.num_rows, bool)
        offsets = rows.column("offset").to_numpy()
        for tp, places in by_topic_partition(rows):
            if tp in self.by_tp:
                first, end = self.by_tp[tp]
                found[places] = (offsets[places] >= first) & (offsets[places] < end)
        return found

    @property
    def scan_filter(self) -> str:
        """A condition that every row inside fulfils, with which scans skip files."""
        topics = ", ".join(f"'{topic}'" for topic in sorted({tp.topic for tp in self.by_tp}))
        partitions = ", ".join(str(partition) for partition in sorted({tp.partition for tp in self.by_tp}))
        first = min(first for first, _ in self.by_tp.values())
        end = max(end for _, end in self.by_tp.values())
        return f"topic in ({topics}) and partition in ({partitions}) and offset >= {first} and offset < {end}"

    def place(self, file: DataFile, schema: Schema) -> Placement:
        """Return where the rows of a file lie, according to its column bounds: never `ACROSS`."""
        bounds = [_bounds(file, schema, name) for name in ("topic", "partition", "offset")]
        if None in bounds:
            return Placement.UNKNOWN
        (low_topic, high_topic), (low_partition, high_partition), (low, high) = bounds  # type: ignore[misc]
        # The bounds of a long name are truncated, and then differ from each other: the comparisons are still correct.
        met = [
            tp
            for tp, (first, end) in self.by_tp.items()
            if low_topic <= tp.topic <= high_topic
            and low_partition <= tp.partition <= high_partition
            and first <= high
            and low < end
        ]
        if not met:
            return Placement.OUTSIDE
        holds_all = all(self.by_tp[tp][0] <= low and high < self.by_tp[tp][1] for tp in met)
        if low_topic == high_topic and len(met) == high_partition - low_partition + 1 and holds_all:
            return Placement.INSIDE
        return Placement.UNKNOWN


def _bounds(file: DataFile, schema: Schema, name: str) -> tuple[Any, Any] | None:
    field = schema.find_field(name)
    low, high = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    if low is None or high is None or not isinstance(field.field_type, PrimitiveType):
        return None
    return from_bytes(field.field_type, low), from_bytes(field.field_type, high)
