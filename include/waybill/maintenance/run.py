"""One maintenance run of a stream: its tables one after the other, then what lies beside the archive.

First a retry of the quarantine that was killed is finished. Then, for each table, in this order: small files are
compacted, manifests are rewritten, the table's state is carried on into a fresh snapshot, older snapshots expire, and
orphans are removed. Any step may be cut off: the next run begins anew, and what was staged by then is an orphan.

Ingest, partition and dedup may run at the same time. A partition run, or a sweep, that commits in between makes a
step's commit be tried again by Iceberg, or the other way round; what it has staged and not committed yet is left alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill import names
from waybill.config import Config, Stream
from waybill.connections import S3Endpoint, connection
from waybill.errors import CompactionUnsound, ProcedureFailed, WaybillError
from waybill.maintenance.figures import MaintenanceReport, Shape, Step, TableReport
from waybill.maintenance.leftovers import (
    Location,
    Plans,
    StagedPlan,
    find_plans,
    find_retries,
    orphan_candidates,
    orphaned_indexes,
    sort_plans,
)
from waybill.maintenance.procedures import Procedures
from waybill.maintenance.snapshots_in_use import (
    Unswept,
    find_sweeps,
    find_unswept,
    of_other_tables,
    unneeded_index_files,
)
from waybill.quarantine import finish_retries
from waybill.store import ListedObject, Store
from waybill.tables import (
    DedupTables,
    StreamTables,
    Swept,
    catalog_of,
    load_dedup_tables,
    load_tables,
    read_progress,
    read_swept,
)
from waybill.tables.commit import carry_state_on
from waybill.tables.state import read_retries

__all__ = ["run_maintenance"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_ATTEMPTS = 3
_SMALL_MANIFEST_BYTES = 4 << 20
"""Half of what Iceberg makes them, `commit.manifest.target-size-bytes`."""

_SWEPT_WITHIN = timedelta(days=1)
"""Beyond `keep_snapshots`: what no sweep has taken in by then, none will without somebody's help."""


def run_maintenance(
    config: Config,
    name: str,
    procedures: Callable[[], Procedures],
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> MaintenanceReport:
    """Keep the tables of stream `name` in shape.

    `procedures` is called once there is something to do for it.

    Raises `CompactionUnsound` when a compaction's rows are not as many as they were, `ConfigError`, `ProgressLost`,
    `CommitConflict`, one of the retriable `StoreUnavailable` and `CatalogUnavailable`, or what the procedures raise.
    """
    stream = config.stream(name)
    s3 = S3Endpoint.of(connection(config.storage.connection))
    began = time.monotonic()
    with Store.of(config.storage) as store, catalog_of(config) as catalog:
        tables = load_tables(catalog, stream)
        run = _Run(name, stream, store, s3, procedures, now())
        if tables is not None and run.finish_retries(catalog):
            tables = load_tables(catalog, stream)
        dedup = load_dedup_tables(catalog, stream) if stream.dedup is not None else None
        reports = () if tables is None else run.keep_tables(tables, dedup)
        steps = [] if tables is None else [run.remove_plans(tables)]
        if dedup is not None:
            steps += [run.remove_sweeps(dedup), run.remove_key_index(dedup)]
        steps.append(run.remove_indexes())
    return MaintenanceReport(name, reports, tuple(steps), time.monotonic() - began, tuple(run.warnings))


@dataclass(slots=True)
class _Run:
    name: str
    stream: Stream
    store: Store
    s3: S3Endpoint
    make_procedures: Callable[[], Procedures]
    now: datetime
    warnings: list[str] = field(default_factory=list)
    made: Procedures | None = None

    @property
    def procedures(self) -> Procedures:
        if self.made is None:
            self.made = self.make_procedures()
        return self.made

    # --- tables ---

    def finish_retries(self, catalog: Catalog) -> bool:
        """Carry out what a killed retry of the quarantine has left. It waits for somebody, but hinders nothing here."""
        try:
            finished = finish_retries(self.store, catalog, self.name, self.stream)
        except WaybillError as error:
            if error.retriable:
                raise
            self.warnings.append(f"{self.name}: a retry of the quarantine cannot be finished: {error}")
            return False
        for number in finished:
            logger.info("maintenance of %s: finished retry %d of the quarantine", self.name, number)
        return bool(finished)

    def keep_tables(self, tables: StreamTables, dedup: DedupTables | None) -> tuple[TableReport, ...]:
        def needed() -> Plans:
            plans = self._plans(tables)
            return replace(plans, open=(*plans.open, *self._retries(tables)))

        reports = [
            self._keep(tables.main, needed, unswept=lambda: self._unswept(tables.main, dedup)),
            self._keep(tables.quarantine, needed),
        ]
        if dedup is not None:
            reports += [self._keep(table, lambda: self._sweeps(dedup)) for table in (dedup.unique, dedup.duplicates)]
        return tuple(reports)

    def _keep(
        self, table: Table, needed: Callable[[], Plans], unswept: Callable[[], Unswept | None] = lambda: None
    ) -> TableReport:
        name = ".".join(table.name())
        before = Shape.of(table)
        steps = (
            self._step(name, "compact", lambda: self._compact(table, name)),
            self._step(name, "rewrite_manifests", lambda: self._rewrite_manifests(table, name)),
            self._step(name, "expire_snapshots", lambda: self._expire(table, name, unswept())),
            self._step(name, "remove_orphans", lambda: self._remove_orphans(table, name, needed)),
        )
        table.refresh()
        return TableReport(name, before, Shape.of(table), steps)

    def _step(self, subject: str, step: str, work: Callable[[], Mapping[str, int]]) -> Step:
        began = time.monotonic()
        done = Step(step, 0.0, work())
        done = Step(step, time.monotonic() - began, done.figures)
        logger.info("maintenance of %s, %s", subject, done)
        return done

    def _compact(self, table: Table, name: str) -> Mapping[str, int]:
        if Shape.of(table).data_files < self.stream.maintenance.min_input_files:
            return {}
        known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        rules = self.stream.maintenance
        done = _again_if_moved(
            table,
            lambda: self.procedures.rewrite_data_files(
                name,
                sort=bool(table.sort_order().fields),
                target_file_bytes=rules.target_file_bytes,
                min_input_files=rules.min_input_files,
            ),
        )
        table.refresh()
        made = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in known]
        check_compaction(name, made)
        if done.failed_files:
            self.warnings.append(f"{name}: {done.failed_files} files could not be compacted; Spark's log says why")
        if not done.files_before:
            return {}
        return {
            "files_before": done.files_before,
            "files_after": done.files_after,
            "bytes_before": done.bytes_before,
            "bytes_after": sum(_figure(snapshot, "added-files-size") for snapshot in _replaced(made)),
        }

    def _rewrite_manifests(self, table: Table, name: str) -> Mapping[str, int]:
        snapshot = table.metadata.current_snapshot()
        if snapshot is None or not _worth_rewriting(snapshot.manifests(table.io)):
            return {}
        done = _again_if_moved(table, lambda: self.procedures.rewrite_manifests(name))
        table.refresh()
        return {"manifests_before": done.manifests_before, "manifests_after": done.manifests_after}

    def _expire(self, table: Table, name: str, unswept: Unswept | None) -> Mapping[str, int]:
        rules = self.stream.maintenance
        older_than = self.now - rules.keep_snapshots
        before = len(table.metadata.snapshots)
        held: Mapping[str, int] = {}
        if unswept is not None and unswept.since < older_than and before > rules.keep_last:
            held = {"snapshots_not_swept": unswept.before(older_than)}
            self._tell_held(name, unswept, older_than)
            older_than = unswept.since
        if not any(snapshot.timestamp_ms < older_than.timestamp() * 1000 for snapshot in table.metadata.snapshots):
            return held
        if before <= rules.keep_last:
            return {}
        carry_state_on(table)
        done = _again_if_moved(
            table,
            lambda: self.procedures.expire_snapshots(name, older_than=older_than, keep_last=rules.keep_last),
        )
        table.refresh()
        return {
            **held,
            "snapshots_before": before,
            "snapshots_after": len(table.metadata.snapshots),
            "data_files_removed": done.data_files,
            "delete_files_removed": done.delete_files,
            "manifests_removed": done.manifests,
            "manifest_lists_removed": done.manifest_lists,
        }

    def _unswept(self, main: Table, dedup: DedupTables | None) -> Unswept | None:
        """What must not expire: sweeps have not taken it in. In this order: what was swept is in the table by then."""
        if self.stream.dedup is None:
            return None
        swept = None if dedup is None else self._swept(dedup)
        main.refresh()
        return find_unswept(main.metadata, swept)

    def _tell_held(self, name: str, unswept: Unswept, older_than: datetime) -> None:
        what = (
            f"{name}: {unswept.before(older_than)} snapshots that are older than maintenance.keep_snapshots stay, the "
            f"oldest from {unswept.since:%Y-%m-%d %H:%M:%S} UTC: no dedup sweep has taken them in yet"
        )
        logger.info("maintenance of %s", what)
        if unswept.since < older_than - _SWEPT_WITHIN:
            self.warnings.append(
                f"{what}. Let dedup__{self.name} run, or take `dedup` out of the stream's config: until then nothing "
                f"behind them expires"
            )

    def _remove_orphans(self, table: Table, name: str, needed: Callable[[], Plans]) -> Mapping[str, int]:
        location = Location.parse(table.location())
        before = self.now - self.stream.maintenance.orphans_after
        with Store(self.s3, location.bucket) as files:
            # Listed first: a plan that is made after this stages files that are younger than these.
            listed = list(files.list_objects(f"{location.key}/"))
        candidates = orphan_candidates(location, listed, before=before, protected=needed().protects)
        sizes = {path: entry.size_bytes for path, entry in candidates}
        removed = self.procedures.remove_orphan_files(name, candidates) if candidates else []
        return {
            "files_looked_at": len(listed),
            "files_removed": len(removed),
            "bytes_removed": sum(sizes.get(path, 0) for path in removed),
        }

    # --- beside the archive ---

    def remove_plans(self, tables: StreamTables) -> Step:
        return self._step(self.name, "remove_plans", lambda: self._remove_passed_plans(tables))

    def _remove_passed_plans(self, tables: StreamTables) -> Mapping[str, int]:
        return self._remove_passed(self._plans(tables))

    def _remove_passed(self, plans: Plans) -> Mapping[str, int]:
        before = self._leftovers_before
        old = [entry for plan in plans.passed if plan.modified < before for entry in plan.objects]
        return {**self._remove(old), "plans_open": len(plans.open)}

    def remove_sweeps(self, dedup: DedupTables) -> Step:
        return self._step(self.name, "remove_sweeps", lambda: self._remove_passed(self._sweeps(dedup)))

    def remove_key_index(self, dedup: DedupTables) -> Step:
        return self._step(self.name, "remove_key_index_files", lambda: self._remove_key_index(dedup))

    def _remove_key_index(self, dedup: DedupTables) -> Mapping[str, int]:
        uuid = str(dedup.unique.metadata.table_uuid)
        index = names.key_index_prefix(self.store.prefix, self.name, self.stream.generation, uuid)
        # First: what a sweep has made and committed since is in a manifest by then.
        needed = frozenset[str]().union(*(plan.staged_files for plan in self._sweeps(dedup).open))
        before = self._leftovers_before
        found = list(unneeded_index_files(self.store, index, before=before, needed=needed))
        return self._remove([*found, *of_other_tables(self.store, index, before=before)])

    def remove_indexes(self) -> Step:
        return self._step(self.name, "remove_indexes", self._remove_orphaned_indexes)

    def _remove_orphaned_indexes(self) -> Mapping[str, int]:
        if not self.stream.format.extension.is_indexed:
            return {}
        topics = [topic for topic in self.store.topics() if self.stream.matches(topic)]
        found = orphaned_indexes(self.store, topics, self.stream.generation)
        return self._remove(entry for entry in found if entry.modified < self._leftovers_before)

    @property
    def _leftovers_before(self) -> datetime:
        return self.now - self.stream.maintenance.leftovers_after

    def _remove(self, entries: Iterable[ListedObject]) -> Mapping[str, int]:
        objects = size_bytes = 0
        for entry in entries:
            self.store.remove(entry.key)
            objects, size_bytes = objects + 1, size_bytes + entry.size_bytes
        return {"objects_removed": objects, "bytes_removed": size_bytes}

    def _plans(self, tables: StreamTables) -> Plans:
        tables.main.refresh()
        progress = read_progress(tables.main.metadata, ".".join(tables.main.name()))
        uuid = str(tables.main.metadata.table_uuid)
        prefix = names.plans_prefix(self.store.prefix, self.name, self.stream.generation, uuid)
        return sort_plans(find_plans(self.store, prefix), progress)

    def _sweeps(self, dedup: DedupTables) -> Plans:
        swept = self._swept(dedup)
        uuid = str(dedup.unique.metadata.table_uuid)
        prefix = names.sweeps_prefix(self.store.prefix, self.name, self.stream.generation, uuid)
        return find_sweeps(self.store, prefix, swept)

    def _swept(self, dedup: DedupTables) -> Swept | None:
        dedup.unique.refresh()
        return read_swept(dedup.unique.metadata, ".".join(dedup.unique.name()))

    def _retries(self, tables: StreamTables) -> list[StagedPlan]:
        """Retries of the quarantine that one of the tables has not taken part in, or not any more, rolled back."""
        for table in (tables.main, tables.quarantine):
            table.refresh()
        behind = min(read_retries(table.metadata, ".".join(table.name())) for table in (tables.main, tables.quarantine))
        uuid = str(tables.main.metadata.table_uuid)
        prefix = names.retries_prefix(self.store.prefix, self.name, self.stream.generation, uuid)
        return find_retries(self.store, prefix, taken_part=behind)


def _again_if_moved(table: Table, work: Callable[[], _T]) -> _T:
    """Carry out a procedure, and again if it failed while others committed to the table.

    Iceberg tries a refused commit again by itself, but not where the files that it replaces have moved meanwhile.
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
            logger.info("the table has moved on, once more: %s", failure)
    raise AssertionError("unreachable")


def check_compaction(table: str, made: Iterable[Snapshot]) -> None:
    """Raise `CompactionUnsound` unless each snapshot that replaced files has as many rows in the new as in the old."""
    for snapshot in _replaced(made):
        old, new = _figure(snapshot, "deleted-records"), _figure(snapshot, "added-records")
        if old != new:
            raise CompactionUnsound(table, snapshot.snapshot_id, old, new)


def _replaced(made: Iterable[Snapshot]) -> Iterator[Snapshot]:
    return (s for s in made if s.summary is not None and s.summary.operation is Operation.REPLACE)


def _figure(snapshot: Snapshot, key: str) -> int:
    return int(snapshot.summary.additional_properties.get(key, 0)) if snapshot.summary else 0


def _worth_rewriting(manifests: list[ManifestFile]) -> bool:
    """Rewriting puts all manifests in order: worth it once there are several that are much smaller than they may be."""
    return sum(manifest.manifest_length < _SMALL_MANIFEST_BYTES for manifest in manifests) > 1
