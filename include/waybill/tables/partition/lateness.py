"""How late rows are: Kafka's timestamp minus the event time, as a histogram in fixed buckets.

Late rows still go to the partition of their own hour. The figures help to decide how long to wait until an hour counts
as complete. Each commit stores the figures of its own rows as a property of the snapshot; `LatenessHistory` reads those
of the snapshots that have not expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from waybill.base.documents import Document
from waybill.tables.iceberg.state import ancestry

LATENESS_PROPERTY = "waybill.lateness"
_DOCUMENT = Document()

_MINUTE = 60
HOUR_SECONDS, DAY_SECONDS = 3600, 86_400
BOUNDS_SECONDS = (
    0,
    _MINUTE,
    5 * _MINUTE,
    15 * _MINUTE,
    HOUR_SECONDS,
    3 * HOUR_SECONDS,
    6 * HOUR_SECONDS,
    12 * HOUR_SECONDS,
    DAY_SECONDS,
    3 * DAY_SECONDS,
    7 * DAY_SECONDS,
    30 * DAY_SECONDS,
)
"""Inclusive upper bounds of the buckets. The first bucket holds rows that are not late. One more bucket holds rows
later than the last bound."""

QUANTILES = (0.5, 0.9, 0.99)

_BOUNDS_US = np.array(BOUNDS_SECONDS, dtype=np.int64) * 1_000_000


@dataclass(frozen=True, slots=True)
class Lateness:
    """A histogram of the lateness of some rows."""

    rows: tuple[int, ...] = (0,) * (len(BOUNDS_SECONDS) + 1)
    """Number of rows in each bucket."""
    most_seconds: int = 0
    """Lateness of the latest row, rounded up; 0 if no row is late."""
    unknown: int = 0
    """Rows without a Kafka timestamp."""

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Self:
        """Return the lateness of rows, from their columns `event_time` and `kafka_timestamp`."""
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
        """Add up several histograms."""
        total = Lateness()
        for one in some:
            total += one
        return total

    @property
    def known(self) -> int:
        """Number of rows with a Kafka timestamp."""
        return sum(self.rows)

    def later_than(self, seconds: int) -> int:
        """Return how many rows are later than `seconds`, which must be one of `BOUNDS_SECONDS`."""
        return sum(self.rows[BOUNDS_SECONDS.index(seconds) + 1 :])

    def quantile_seconds(self, share: float) -> int | None:
        """Return an upper bound of the lateness of this share of the rows, as precise as the buckets; None: no rows."""
        if not self.known:
            return None
        reached = np.cumsum(self.rows) >= share * self.known
        bucket = int(np.argmax(reached))
        return min(BOUNDS_SECONDS[bucket], self.most_seconds) if bucket < len(BOUNDS_SECONDS) else self.most_seconds

    def document(self) -> dict[str, Any]:
        """Return the figures for a JSON document."""
        return {
            "bounds_s": list(BOUNDS_SECONDS),
            "rows": list(self.rows),
            "most_s": self.most_seconds,
            "unknown": self.unknown,
        }

    def to_text(self) -> str:
        """Return the value of the snapshot property."""
        return _DOCUMENT.write(self.document()).decode()

    @classmethod
    def from_text(cls, text: str, where: str) -> Lateness:
        """Parse what `to_text` returned; `where` names it in errors. Raises `DocumentTooNew` for a newer Waybill's."""
        document = _DOCUMENT.read(text.encode(), where)
        return cls(tuple(document["rows"]), document["most_s"], document["unknown"])


@dataclass(frozen=True, slots=True)
class CommitLateness:
    """The lateness of the rows of one commit."""

    at: datetime
    run: str
    lateness: Lateness

    def document(self) -> dict[str, Any]:
        """Return the figures for a JSON document."""
        return {
            "at": self.at.isoformat(),
            "run": self.run,
            "rows": self.lateness.known + self.lateness.unknown,
            "later_than_1h": self.lateness.later_than(HOUR_SECONDS),
            "later_than_1d": self.lateness.later_than(DAY_SECONDS),
            "most_seconds": self.lateness.most_seconds,
        }


@dataclass(frozen=True, slots=True)
class LatenessHistory:
    """The lateness of the rows of a table, commit by commit."""

    commits: Sequence[CommitLateness]
    """Newest first."""
    known_since: datetime | None
    """Time of the oldest snapshot if older ones have expired; None: the table's history is complete."""

    @classmethod
    def of(cls, metadata: TableMetadata, name: str, since: datetime) -> LatenessHistory:
        """Return the lateness of the commits to a table since then. `name` names the table in errors.

        Raises `DocumentTooNew` when a newer Waybill wrote the figures.
        """
        snapshots = list(ancestry(metadata))
        expired = bool(snapshots) and snapshots[-1].parent_snapshot_id is not None
        commits = [_commit(snapshot, name) for snapshot in snapshots if _committed_at(snapshot) >= since]
        return cls([c for c in commits if c is not None], _committed_at(snapshots[-1]) if expired else None)

    @property
    def total(self) -> Lateness:
        """Add up all commits."""
        return Lateness.sum(commit.lateness for commit in self.commits)

    def document(self) -> dict[str, Any]:
        """Return the figures for a JSON document."""
        total = self.total
        return {
            "known_since": None if self.known_since is None else self.known_since.isoformat(),
            "rows": total.known,
            "without_kafka_timestamp": total.unknown,
            "buckets": [
                {"up_to_seconds": bound, "rows": rows, "share": rows / total.known if total.known else None}
                for bound, rows in zip((*BOUNDS_SECONDS, None), total.rows, strict=True)
            ],
            **{f"p{share * 100:.0f}_seconds": total.quantile_seconds(share) for share in QUANTILES},
            "most_seconds": total.most_seconds,
            "commits": [commit.document() for commit in self.commits],
        }


def _commit(snapshot: Snapshot, name: str) -> CommitLateness | None:
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    text = properties.get(LATENESS_PROPERTY)
    if text is None:
        return None
    lateness = Lateness.from_text(text, f"snapshot {snapshot.snapshot_id} of table {name}")
    return CommitLateness(_committed_at(snapshot), properties.get("waybill.run", ""), lateness)


def _committed_at(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
