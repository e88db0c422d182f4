"""The interface to Iceberg's four maintenance procedures, the figures that each returns, and the report of a run.

`waybill.tables.spark.iceberg` implements it on Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Protocol

from pyiceberg.table import Table

from waybill.services.store import ListedObject


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The figures of a compaction."""

    files_before: int
    files_after: int
    bytes_before: int
    failed_files: int
    """Files that were not replaced because rewriting them failed."""


@dataclass(frozen=True, slots=True)
class ManifestRewriteResult:
    """The figures of rewriting manifests."""

    manifests_before: int
    manifests_after: int


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """The numbers of files that snapshot expiry removed."""

    data_files: int
    delete_files: int
    manifests: int
    manifest_lists: int


class Procedures(Protocol):
    """Iceberg's procedures on a table, which is named `namespace.name`. They raise `ProcedureFailed`."""

    def rewrite_data_files(
        self, table: str, *, sort: bool, target_file_bytes: int, min_input_files: int
    ) -> CompactionResult:
        """Rewrite small data files into large ones, one partition at a time; with `sort`, in the table's sort order."""

    def rewrite_manifests(self, table: str) -> ManifestRewriteResult:
        """Rewrite many manifests into few, ordered by partition."""

    def expire_snapshots(self, table: str, *, older_than: datetime, keep_last: int) -> ExpiryResult:
        """Expire snapshots before `older_than`, except the `keep_last` latest, and remove files that only they have."""

    def remove_orphan_files(self, table: str, candidates: Sequence[tuple[str, ListedObject]]) -> list[str]:
        """Remove the candidates that no snapshot references, and return their locations.

        A candidate is a location, as Iceberg's metadata writes it, and the listed object.
        """


_VERSION = 1


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table in its metadata: the files of the current snapshot, and the number of snapshots."""

    data_files: int = 0
    data_bytes: int = 0
    rows: int = 0
    manifests: int = 0
    snapshots: int = 0

    @classmethod
    def of(cls, table: Table) -> TableSize:
        """Return the size of the loaded table."""
        snapshot = table.metadata.current_snapshot()
        if snapshot is None:
            return cls()
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        return cls(
            data_files=int(summary.get("total-data-files", 0)),
            data_bytes=int(summary.get("total-files-size", 0)),
            rows=int(summary.get("total-records", 0)),
            manifests=len(snapshot.manifests(table.io)),
            snapshots=len(table.metadata.snapshots),
        )

    def __str__(self) -> str:
        return (
            f"{self.data_files} files of {self.data_bytes / 1e6:,.1f} MB in {self.manifests} manifests, "
            f"{self.snapshots} snapshots"
        )


@dataclass(frozen=True, slots=True)
class MaintenanceStep:
    """One step of maintenance, whether or not there was something to do."""

    name: str
    seconds: float
    figures: Mapping[str, int]
    """The numbers that the step counted; empty if there was nothing to do."""

    def __str__(self) -> str:
        figures = ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in self.figures.items())
        return f"{self.name.replace('_', ' ')}: {figures or 'nothing to do'} ({self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True)
class TableReport:
    """The steps for one table, with its size before and after."""

    table: str
    before: TableSize
    after: TableSize
    steps: tuple[MaintenanceStep, ...]


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """The result of a maintenance run."""

    stream: str
    tables: tuple[TableReport, ...]
    store: tuple[MaintenanceStep, ...]
    """The steps for plans, key indexes and index objects in the archive's bucket."""
    seconds: float
    warnings: tuple[str, ...] = field(default=())
    """Problems that a person should look at. The other steps were still executed."""

    @property
    def changed_something(self) -> bool:
        """Return whether a table or an object was changed."""
        steps = (*self.store, *(step for table in self.tables for step in table.steps))
        removed = (value for step in steps for figure, value in step.figures.items() if figure.endswith("_removed"))
        return any(table.before != table.after for table in self.tables) or any(removed)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON fields, with `"v": 1`."""
        return {"v": _VERSION, **asdict(self)}

    def __str__(self) -> str:
        tables = "; ".join(f"{t.table}: {t.before} → {t.after}" for t in self.tables) or "no tables yet"
        return f"maintained {self.stream} in {self.seconds:.1f} s: {tables}"
