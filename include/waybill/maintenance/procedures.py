"""The interface to Iceberg's four maintenance procedures, and the figures that each returns.

`waybill.spark.iceberg` implements it on Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from waybill.store import ListedObject

__all__ = ["CompactionResult", "ExpiryResult", "ManifestRewriteResult", "Procedures"]


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
