"""Maintain one table: compact small files, rewrite manifests, expire snapshots, remove orphan files.

Ingest, partition runs and sweeps may commit at the same time. If such a commit comes between the start and the commit
of a step, Iceberg retries the step's commit, or `_retry_if_moved` repeats the step. Files that a run has staged and not
committed yet are protected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill.base.errors import CompactionUnsound, ProcedureFailed
from waybill.config.connections import S3Endpoint
from waybill.config.models import Maintenance
from waybill.services.store import Store
from waybill.tables.iceberg import SweepPosition
from waybill.tables.iceberg.commit import copy_state_to_new_snapshot
from waybill.tables.iceberg.generations import generations_of
from waybill.tables.iceberg.state import ancestry
from waybill.tables.maintenance.orphans import Location, select_orphan_candidates
from waybill.tables.maintenance.plans import Plans
from waybill.tables.maintenance.procedures import MaintenanceStep, Procedures, TableReport, TableSize

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_ATTEMPTS = 3
_SMALL_MANIFEST_BYTES = 4 << 20
"""Half of the size that Iceberg aims at, `commit.manifest.target-size-bytes`."""

_SWEEP_GRACE = timedelta(days=1)
"""Snapshots older than `keep_snapshots` by more than this, and still not swept, are a reason for a warning."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# --- snapshots that a sweep still needs -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnsweptSnapshots:
    """Snapshots of the main table that no sweep has processed. They must not expire.

    Without them, a sweep cannot find out which files they added, and if these files have been compacted since then, the
    files themselves would be removed.
    """

    committed_at: tuple[datetime, ...]
    """The time of each commit, oldest first; at least one."""

    @property
    def since(self) -> datetime:
        """The time of the oldest commit. No snapshot of that time or later may expire."""
        return self.committed_at[0]

    def before(self, time: datetime) -> int:
        """Return how many of these snapshots were committed before `time`."""
        return sum(at < time for at in self.committed_at)


def find_unswept_snapshots(main: TableMetadata, swept: SweepPosition | None) -> UnsweptSnapshots | None:
    """Return the snapshots of a main table after the swept one; None if there are none.

    Before the first sweep, `swept` is None and all snapshots are unswept: the first sweep takes all rows, and may read
    their files for a long time.
    """
    through = -1 if swept is None else swept.sequence
    later = [s.timestamp_ms for s in ancestry(main) if (s.sequence_number or 0) > through]
    return UnsweptSnapshots(tuple(_EPOCH + timedelta(milliseconds=at) for at in sorted(later))) if later else None


# --- the steps --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TableMaintenance:
    """The maintenance steps of one stream's tables. Its only state is the list of warnings."""

    stream: str
    rules: Maintenance
    s3: S3Endpoint
    get_procedures: Callable[[], Procedures]
    """Starts Spark at the first call."""
    now: datetime
    warnings: list[str]

    def maintain(
        self,
        table: Table,
        find_needed: Callable[[], Plans],
        find_unswept: Callable[[], UnsweptSnapshots | None] = lambda: None,
    ) -> TableReport:
        """Run all steps for a table, in order.

        `find_needed` returns the plans whose staged files must stay. `find_unswept` returns the snapshots that must not
        expire. Both are called as late as possible, so that their results are new.

        Raises `CompactionUnsound` if a compaction changed the number of rows, and the errors of procedures and catalog.
        """
        name = ".".join(table.name())
        before = TableSize.of(table)
        steps = (
            timed_step(name, "compact", lambda: self._compact(table, name)),
            timed_step(name, "rewrite_manifests", lambda: self._rewrite_manifests(table, name)),
            timed_step(name, "expire_snapshots", lambda: self._expire_snapshots(table, name, find_unswept())),
            timed_step(name, "remove_orphans", lambda: self._remove_orphans(table, name, find_needed)),
        )
        table.refresh()
        return TableReport(name, before, TableSize.of(table), steps)

    def _compact(self, table: Table, name: str) -> Mapping[str, int]:
        if TableSize.of(table).data_files < self.rules.min_input_files:
            return {}
        known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        result = _retry_if_moved(
            table,
            lambda: self.get_procedures().rewrite_data_files(
                name,
                sort=bool(table.sort_order().fields),
                target_file_bytes=self.rules.target_file_bytes,
                min_input_files=self.rules.min_input_files,
            ),
        )
        table.refresh()
        new = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in known]
        check_compaction(name, new)
        if result.failed_files:
            self.warnings.append(
                f"{name}: files that could not be compacted: {result.failed_files}; Spark's log has the reason"
            )
        if not result.files_before:
            return {}
        return {
            "files_before": result.files_before,
            "files_after": result.files_after,
            "bytes_before": result.bytes_before,
            "bytes_after": sum(_summary_figure(snapshot, "added-files-size") for snapshot in _replacing(new)),
        }

    def _rewrite_manifests(self, table: Table, name: str) -> Mapping[str, int]:
        snapshot = table.metadata.current_snapshot()
        if snapshot is None or not _worth_rewriting(snapshot.manifests(table.io)):
            return {}
        result = _retry_if_moved(table, lambda: self.get_procedures().rewrite_manifests(name))
        table.refresh()
        return {"manifests_before": result.manifests_before, "manifests_after": result.manifests_after}

    def _expire_snapshots(self, table: Table, name: str, unswept: UnsweptSnapshots | None) -> Mapping[str, int]:
        older_than = self.now - self.rules.keep_snapshots
        before = len(table.metadata.snapshots)
        kept: Mapping[str, int] = {}
        if unswept is not None and unswept.since < older_than and before > self.rules.keep_last:
            kept = {"snapshots_not_swept": unswept.before(older_than)}
            self._report_unswept(name, unswept, older_than)
            older_than = unswept.since
        if not any(snapshot.timestamp_ms < older_than.timestamp() * 1000 for snapshot in table.metadata.snapshots):
            return kept
        if before <= self.rules.keep_last:
            return {}
        # Copy the state first: progress and other state are in the properties of snapshots that may expire now.
        for branch in generations_of(table).values() or (MAIN_BRANCH,):
            copy_state_to_new_snapshot(table, branch)
        result = _retry_if_moved(
            table,
            lambda: self.get_procedures().expire_snapshots(name, older_than=older_than, keep_last=self.rules.keep_last),
        )
        table.refresh()
        return {
            **kept,
            "snapshots_before": before,
            "snapshots_after": len(table.metadata.snapshots),
            "data_files_removed": result.data_files,
            "delete_files_removed": result.delete_files,
            "manifests_removed": result.manifests,
            "manifest_lists_removed": result.manifest_lists,
        }

    def _report_unswept(self, name: str, unswept: UnsweptSnapshots, older_than: datetime) -> None:
        what = (
            f"{name}: snapshots older than maintenance.keep_snapshots that are kept because no dedup sweep has "
            f"processed them: {unswept.before(older_than)}, the oldest from {unswept.since:%Y-%m-%d %H:%M:%S} UTC"
        )
        logger.info("maintenance of %s", what)
        if unswept.since < older_than - _SWEEP_GRACE:
            self.warnings.append(
                f"{what}. Let dedup run for {self.stream}, or remove `dedup` from its config: until then these "
                f"and all later snapshots stay"
            )

    def _remove_orphans(self, table: Table, name: str, find_needed: Callable[[], Plans]) -> Mapping[str, int]:
        location = Location.parse(table.location())
        before = self.now - self.rules.orphans_after
        with Store(self.s3, location.bucket) as files:
            # List the files before the plans are read: a plan that is created after the listing stages younger files,
            # which are not in the listing.
            listed = list(files.list_objects(f"{location.key}/"))
        candidates = select_orphan_candidates(location, listed, before=before, protected=find_needed().protects)
        sizes = {path: entry.size_bytes for path, entry in candidates}
        removed = self.get_procedures().remove_orphan_files(name, candidates) if candidates else []
        return {
            "files_looked_at": len(listed),
            "files_removed": len(removed),
            "bytes_removed": sum(sizes.get(path, 0) for path in removed),
        }


def timed_step(subject: str, name: str, work: Callable[[], Mapping[str, int]]) -> MaintenanceStep:
    """Run a step, log it, and return it with its figures and duration."""
    began = time.monotonic()
    figures = work()
    step = MaintenanceStep(name, time.monotonic() - began, figures)
    logger.info("maintenance of %s, %s", subject, step)
    return step


def check_compaction(table: str, new: Iterable[Snapshot]) -> None:
    """Raise `CompactionUnsound` unless every new snapshot that replaced files has the same number of rows as before."""
    for snapshot in _replacing(new):
        old_rows, new_rows = _summary_figure(snapshot, "deleted-records"), _summary_figure(snapshot, "added-records")
        if old_rows != new_rows:
            raise CompactionUnsound(table, snapshot.snapshot_id, old_rows, new_rows)


def _retry_if_moved(table: Table, work: Callable[[], _T]) -> _T:
    """Return the result of a procedure, which is repeated if it failed while another commit changed the table.

    Iceberg retries a refused commit by itself, unless the other commit removed files that this one replaces.
    """
    for attempt in range(_ATTEMPTS):
        table.refresh()
        before = table.metadata.current_snapshot_id
        try:
            return work()
        except ProcedureFailed as failure:
            table.refresh()
            if attempt + 1 == _ATTEMPTS or table.metadata.current_snapshot_id == before:
                raise
            logger.info("the table has a new snapshot, repeating the procedure: %s", failure)
    raise AssertionError("unreachable")


def _replacing(snapshots: Iterable[Snapshot]) -> Iterator[Snapshot]:
    return (s for s in snapshots if s.summary is not None and s.summary.operation is Operation.REPLACE)


def _summary_figure(snapshot: Snapshot, key: str) -> int:
    return int(snapshot.summary.additional_properties.get(key, 0)) if snapshot.summary else 0


def _worth_rewriting(manifests: list[ManifestFile]) -> bool:
    """Return whether several manifests are small. Rewriting replaces all manifests, so one small one is not enough."""
    return sum(manifest.manifest_length < _SMALL_MANIFEST_BYTES for manifest in manifests) > 1
