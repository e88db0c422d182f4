"""How late rows are: Kafka's timestamp minus the event time, as a histogram in fixed buckets.

Late rows go to their own hour all the same. The figures say how late they come, and so how long to wait until an hour
is taken for complete. Each commit has those of its own rows, as a property of the snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.documents import read_document

__all__ = ["BOUNDS_SECONDS", "LATENESS_PROPERTY", "Lateness"]

LATENESS_PROPERTY = "waybill.lateness"
_VERSION = 1

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
BOUNDS_SECONDS = (
    0,
    _MINUTE,
    5 * _MINUTE,
    15 * _MINUTE,
    _HOUR,
    3 * _HOUR,
    6 * _HOUR,
    12 * _HOUR,
    _DAY,
    3 * _DAY,
    7 * _DAY,
    30 * _DAY,
)
"""Upper bounds of the buckets, included; the first holds what is not late, and one more what is later than the last."""

_BOUNDS_US = np.array(BOUNDS_SECONDS, dtype=np.int64) * 1_000_000


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late some rows are."""

    rows: tuple[int, ...] = (0,) * (len(BOUNDS_SECONDS) + 1)
    """How many, by bucket."""
    most_seconds: int = 0
    """Of the latest row, rounded up; 0 if none is late."""
    unknown: int = 0
    """Rows without a Kafka timestamp."""

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Self:
        """Of rows that have an `event_time` and a `kafka_timestamp`."""
        late = pc.subtract(
            rows.column("kafka_timestamp").cast(pa.int64()), rows.column("event_time").cast(pa.int64())
        ).drop_null()
        unknown = rows.num_rows - len(late)
        if not len(late):
            return cls(unknown=unknown)
        late_us = np.asarray(late)
        buckets = np.bincount(np.searchsorted(_BOUNDS_US, late_us, side="left"), minlength=len(_BOUNDS_US) + 1)
        return cls(tuple(buckets.tolist()), max(0, -(-int(late_us.max()) // 1_000_000)), unknown)

    def __add__(self, other: Lateness) -> Lateness:
        rows = tuple(a + b for a, b in zip(self.rows, other.rows, strict=True))
        return Lateness(rows, max(self.most_seconds, other.most_seconds), self.unknown + other.unknown)

    @classmethod
    def sum(cls, some: Iterable[Lateness]) -> Lateness:
        """All of them together."""
        total = Lateness()
        for one in some:
            total += one
        return total

    @property
    def known(self) -> int:
        """Rows that have a Kafka timestamp."""
        return sum(self.rows)

    def later_than(self, seconds: int) -> int:
        """How many rows are later than one of `BOUNDS_SECONDS`."""
        return sum(self.rows[BOUNDS_SECONDS.index(seconds) + 1 :])

    def quantile_seconds(self, share: float) -> int | None:
        """A bound that at least this share of the rows keeps to: a bucket's, or the maximum's. None: no rows."""
        if not self.known:
            return None
        reached = np.cumsum(self.rows) >= share * self.known
        bucket = int(np.argmax(reached))
        return min(BOUNDS_SECONDS[bucket], self.most_seconds) if bucket < len(BOUNDS_SECONDS) else self.most_seconds

    def document(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "bounds_s": list(BOUNDS_SECONDS),
            "rows": list(self.rows),
            "most_s": self.most_seconds,
            "unknown": self.unknown,
        }

    def to_text(self) -> str:
        """The snapshot's property."""
        return json.dumps({"v": _VERSION, **self.document()}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, where: str) -> Lateness:
        """The inverse of `to_text`. Raises `GenerationConflict` for what a newer Waybill wrote; `where` names it."""
        document = read_document(text.encode(), _VERSION, where)
        return cls(tuple(document["rows"]), document["most_s"], document["unknown"])
