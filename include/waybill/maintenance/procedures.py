"""What maintenance asks of an engine: Iceberg's four procedures, each with the figures of what it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from waybill.store import ListedObject

__all__ = ["Expired", "Procedures", "Rewritten", "RewrittenManifests"]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What compaction did."""

    files_before: int
    files_after: int
    bytes_before: int
    failed_files: int
    """Files that stayed as they were, since rewriting them failed."""


@dataclass(frozen=True, slots=True)
class RewrittenManifests:
    """What rewriting manifests did."""

    manifests_before: int
    manifests_after: int


@dataclass(frozen=True, slots=True)
class Expired:
    """What expiry removed."""

    data_files: int
    delete_files: int
    manifests: int
    manifest_lists: int


class Procedures(Protocol):
    """Iceberg's procedures on a table, `namespace.name`. Each call commits at most what its name says."""

    def rewrite_data_files(self, table: str, *, sort: bool, target_file_bytes: int, min_input_files: int) -> Rewritten:
        """Make large files of small ones, one partition at a time; with `sort` in the table's own sort order."""

    def rewrite_manifests(self, table: str) -> RewrittenManifests:
        """Make few manifests of many, in the order of partitions."""

    def expire_snapshots(self, table: str, *, older_than: datetime, keep_last: int) -> Expired:
        """Forget older snapshots but the `keep_last` latest, and remove what none of the others references."""

    def remove_orphan_files(self, table: str, candidates: Sequence[tuple[str, ListedObject]]) -> list[str]:
        """Remove those of the candidates (their locations, and as listed) that no snapshot references; which."""
