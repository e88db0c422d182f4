"""The figures of a maintenance run: what it is judged by, in the log and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyiceberg.table import Table

__all__ = ["MaintenanceReport", "Shape", "Step", "TableReport"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as its metadata shows it: the current snapshot's files, and how many snapshots there are."""

    data_files: int = 0
    data_bytes: int = 0
    rows: int = 0
    manifests: int = 0
    snapshots: int = 0

    @classmethod
    def of(cls, table: Table) -> Shape:
        """Of the table as it is loaded."""
        snapshot = table.metadata.current_snapshot()
        if snapshot is None:
            return cls()
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        return cls(
            data_files=int(said.get("total-data-files", 0)),
            data_bytes=int(said.get("total-files-size", 0)),
            rows=int(said.get("total-records", 0)),
            manifests=len(snapshot.manifests(table.io)),
            snapshots=len(table.metadata.snapshots),
        )

    def __str__(self) -> str:
        return (
            f"{self.data_files} files of {self.data_bytes / 1e6:,.1f} MB in {self.manifests} manifests, "
            f"{self.snapshots} snapshots"
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done, or looked at and found not to be needed."""

    name: str
    seconds: float
    figures: Mapping[str, int]
    """What it counted; empty: there was nothing to do."""

    def __str__(self) -> str:
        said = ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in self.figures.items())
        return f"{self.name.replace('_', ' ')}: {said or 'nothing to do'} ({self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True)
class TableReport:
    """What was done to one table."""

    table: str
    before: Shape
    after: Shape
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What a run did."""

    stream: str
    tables: tuple[TableReport, ...]
    store: tuple[Step, ...]
    """On what lies beside the archive."""
    seconds: float
    warnings: tuple[str, ...] = field(default=())
    """What somebody should look at; the rest was done all the same."""

    def document(self) -> dict[str, Any]:
        """As JSON, `"v": 1`."""
        return {"v": _VERSION, **asdict(self)}

    def __str__(self) -> str:
        tables = "; ".join(f"{t.table}: {t.before} → {t.after}" for t in self.tables) or "no tables yet"
        return f"maintained {self.stream} in {self.seconds:.1f} s: {tables}"
