"""How late the rows of a table's commits were, as its snapshots tell: those that were not expired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from waybill.partition.lateness import BOUNDS_SECONDS, LATENESS_PROPERTY, Lateness
from waybill.tables.state import ancestry

__all__ = ["DAY_SECONDS", "HOUR_SECONDS", "CommitLateness", "LatenessHistory"]

HOUR_SECONDS, DAY_SECONDS = 3600, 86_400
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class CommitLateness:
    """How late the rows of one commit were."""

    at: datetime
    run: str
    lateness: Lateness

    def document(self) -> dict[str, Any]:
        """For a JSON document."""
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
    """How late the rows of a table were."""

    commits: Sequence[CommitLateness]
    """Newest first."""
    known_since: datetime | None
    """When the oldest snapshot was made that is there still; None: there is none, or none was ever expired."""

    @classmethod
    def of(cls, metadata: TableMetadata, name: str, since: datetime) -> LatenessHistory:
        """Of the commits since then to a table, called `name` in errors.

        Raises `GenerationConflict` when a newer Waybill wrote the figures.
        """
        snapshots = list(ancestry(metadata))
        expired = bool(snapshots) and snapshots[-1].parent_snapshot_id is not None
        commits = [_commit(snapshot, name) for snapshot in snapshots if _made(snapshot) >= since]
        return cls([c for c in commits if c is not None], _made(snapshots[-1]) if expired else None)

    @property
    def total(self) -> Lateness:
        """All commits together."""
        return Lateness.sum(commit.lateness for commit in self.commits)

    def document(self) -> dict[str, Any]:
        """For a JSON document."""
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
    return CommitLateness(_made(snapshot), properties.get("waybill.run", ""), lateness)


def _made(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
