"""One maintenance run of a stream: its tables one after the other, then the objects beside the archive.

What a killed process left half done is ended first: the promotion or undo of a backfill, whose files would expire, and
retries of the quarantine. Then each table is maintained (`waybill.tables.maintenance.table`),
and plans, key index files and index objects that are no longer needed are removed from the archive's bucket.

Any step may be interrupted. The next run starts from the beginning, and removes the files that this one has staged.
Ingest, partition runs and sweeps may run at the same time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from waybill.base.errors import ProcedureFailed, SweepHistoryLost, WaybillError, expected
from waybill.config import names
from waybill.config.connections import S3Endpoint, find_connection
from waybill.config.models import Config, Stream
from waybill.services.store import ListedObject, Store
from waybill.tables.audit import AuditRecord, append_results, find_audit, keep_results_small
from waybill.tables.backfill.planning import open_requests
from waybill.tables.backfill.promotion import end_open_change
from waybill.tables.dedup.rebuild import histories_of, reads_from
from waybill.tables.iceberg import (
    DedupTables,
    StreamTables,
    SweepPosition,
    drop_branch,
    is_live,
    load_dedup_tables,
    load_tables,
    metadata_at,
    read_progress,
    read_sweep_position,
    target_of,
)
from waybill.tables.iceberg.generations import generations_of
from waybill.tables.iceberg.state import read_retries
from waybill.tables.maintenance.orphans import (
    find_ended_histories,
    find_orphaned_indexes,
    find_unneeded_index_files,
)
from waybill.tables.maintenance.plans import (
    Plans,
    StagedPlan,
    classify_plans,
    find_open_retries,
    find_plans,
    find_rejected_plans,
    find_sweep_plans,
)
from waybill.tables.maintenance.procedures import MaintenanceReport, MaintenanceStep, Procedures, TableReport
from waybill.tables.maintenance.table import TableMaintenance, UnsweptSnapshots, find_unswept_snapshots, timed_step
from waybill.tables.quarantine.retry import finish_retries
from waybill.tables.staging.services import StagingServices, services_of

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def run_maintenance(
    config: Config,
    name: str,
    make_procedures: Callable[[], Procedures],
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    services: StagingServices | None = None,
) -> MaintenanceReport:
    """Maintain the tables of stream `name`, and return what was done.

    `make_procedures` is called only if a table needs one of Iceberg's procedures. `services`: those to use; without
    them the run opens and closes its own.

    What ends the work on one table or one step leaves the others to be done; the first of these errors is raised when
    they are: `CompactionUnsound` when a compaction changed the number of rows, `ProgressLost`, the errors of
    procedures, or `UnexpectedFailure`. Raises at once the retriable `StoreUnavailable`, `CatalogUnavailable` and
    `CommitConflict`, since they concern all of them, and `ConfigError`.
    """
    stream = config.stream(name)
    s3 = S3Endpoint.of(find_connection(config.storage.connection))
    began = time.monotonic()
    with services_of(config, services) as opened:
        catalog = opened.catalog
        writers = {(other, each.generation) for other, each in config.streams.items() if each.table == stream.table}
        run = _MaintenanceRun(name, stream, opened.store, catalog, s3, make_procedures, now(), writers)
        tables = load_tables(catalog, stream)
        if tables is not None and not is_live(tables.main.metadata, stream.generation):
            logger.info("%s: generation %d is not live: its branch is not maintained", name, stream.generation)
            return MaintenanceReport(name, (), (), time.monotonic() - began, ())
        if tables is not None and run.end_killed_changes(config, tables, opened):
            tables = load_tables(catalog, stream)
        dedup = load_dedup_tables(catalog, stream) if stream.dedup is not None else None
        table_reports = () if tables is None else run.maintain_tables(tables, dedup)
        steps = run.remove_unneeded(tables, dedup)
    report = MaintenanceReport(name, table_reports, steps, time.monotonic() - began, tuple(run.warnings))
    if run.failures:
        logger.info("%s; %d parts of it failed", report, len(run.failures))
        raise run.failures[0]
    return report


@dataclass(slots=True)
class _MaintenanceRun:
    name: str
    stream: Stream
    store: Store
    catalog: Catalog
    s3: S3Endpoint
    make_procedures: Callable[[], Procedures]
    now: datetime
    writers: Collection[tuple[str, int]]
    """The streams of the config that write the table, each with its generation."""
    warnings: list[str] = field(default_factory=list)
    failures: list[WaybillError] = field(default_factory=list)
    """The errors that ended the work on a table or a step. The other tables and steps were still processed."""
    procedures: Procedures | None = None

    def alone(self, element: str, work: Callable[[], _T]) -> list[_T]:
        """Return the result of one table or step. If an error ended it, record the error, so that the others go on.

        Raises errors that concern the others as well: a service that does not answer.
        """
        try:
            return [work()]
        except Exception as error:
            failure = expected(f"maintenance of {self.name}, {element}", error)
            if failure.retriable and not isinstance(failure, ProcedureFailed):
                raise
            logger.exception("maintenance of %s, %s, has failed; the other parts are done", self.name, element)
            self.failures.append(failure)
            return []

    def get_procedures(self) -> Procedures:
        if self.procedures is None:
            self.procedures = self.make_procedures()
        return self.procedures

    # --- tables ---

    def end_killed_changes(self, config: Config, tables: StreamTables, services: StagingServices) -> bool:
        """Finish a backfill's change and retries of the quarantine that were killed. Return whether there were any.

        A change that cannot be finished becomes a warning for a person, and does not hinder maintenance.
        """
        try:
            change = end_open_change(config, self.name, tables, services)
            finished = finish_retries(self.store, services.catalog, self.name, self.stream)
        except Exception as error:
            failure = expected(f"{self.name}: ending what was killed", error)
            if failure.retriable:
                raise
            logger.exception("maintenance of %s: a backfill or a retry of the quarantine cannot be ended", self.name)
            self.warnings.append(f"{self.name}: a backfill or a retry of the quarantine cannot be ended: {failure}")
            return False
        if change is not None:
            logger.info("maintenance of %s: ended the %s of backfill %s", self.name, change.action, change.backfill)
        for number in finished:
            logger.info("maintenance of %s: finished retry %d of the quarantine", self.name, number)
        return change is not None or bool(finished)

    def maintain_tables(self, tables: StreamTables, dedup: DedupTables | None) -> tuple[TableReport, ...]:
        def find_needed() -> Plans:
            more = (*self._read_open_retries(tables), *self._read_open_backfills())
            return Plans(open=(*self._read_open_plans(tables), *more), passed=())

        steps = TableMaintenance(
            self.name, self.stream.maintenance, self.s3, self.get_procedures, self.now, self.warnings
        )
        work = [
            (
                tables.main,
                partial(steps.maintain, tables.main, find_needed, partial(self._find_unswept, tables.main, dedup)),
            ),
            (tables.quarantine, partial(steps.maintain, tables.quarantine, find_needed)),
        ]
        if dedup is not None:
            find_sweeps = partial(self._read_sweep_plans, dedup)
            work += [(table, partial(steps.maintain, table, find_sweeps)) for table in (dedup.unique, dedup.duplicates)]
        reports = [self.alone(f"table {'.'.join(table.name())}", maintain) for table, maintain in work]
        return tuple(report for found in reports for report in found)

    def _find_unswept(self, main: Table, dedup: DedupTables | None) -> UnsweptSnapshots | None:
        if self.stream.dedup is None:
            return None
        # Read the position before the main table, so that the swept snapshot is in the main table's history.
        if dedup is not None:
            for table in (dedup.unique, dedup.duplicates):
                table.refresh()
        main.refresh()
        try:
            swept = None if dedup is None else reads_from(main, dedup)
        except SweepHistoryLost:  # the next sweep fails with this error; the snapshots that it may need are kept
            swept = None if dedup is None else _position_of(dedup)
        return find_unswept_snapshots(main.metadata, swept)

    # --- beside the archive ---

    def remove_unneeded(self, tables: StreamTables | None, dedup: DedupTables | None) -> tuple[MaintenanceStep, ...]:
        """Remove objects that are not needed any more, besides the tables' own files."""
        work: dict[str, Callable[[], Mapping[str, int]]] = {}
        if tables is not None:
            work["remove_branches"] = lambda: self._remove_abandoned_branches(tables)
            work["remove_plans"] = lambda: self._remove_passed_plans(self._read_plans(tables))
        if dedup is not None:
            work["remove_sweeps"] = lambda: self._remove_passed_plans(self._read_sweep_plans(dedup))
            work["remove_key_index_files"] = lambda: self._remove_key_index_files(dedup)
        work["remove_indexes"] = self._remove_orphaned_index_objects
        steps = [self.alone(name, partial(timed_step, self.name, name, each)) for name, each in work.items()]
        return tuple(step for found in steps for step in found)

    def _remove_passed_plans(self, plans: Plans) -> Mapping[str, int]:
        before = self._leftovers_before
        passed = [plan for plan in plans.passed if plan.modified < before]
        self._append_audits(passed)
        old = [entry for plan in passed for entry in plan.objects]
        return {**self._remove(old), "plans_open": len(plans.open)}

    def _remove_abandoned_branches(self, tables: StreamTables) -> Mapping[str, int]:
        """Remove branches of runs whose plan can no longer be published: a frozen process may have left them behind."""
        # Read branches before plans: the plan of each branch is stored by then.
        both = (tables.main, tables.quarantine)
        branches = [(table, ref) for table in both for ref in table.metadata.refs if ref.startswith(names.run_ref(""))]
        if not branches:
            return {}
        rejected = {
            plan
            for name, generation in self._written_generations(tables)
            for plan in find_rejected_plans(self.store, self._plans_prefix(tables, name, generation))
        }
        open_plans = {plan.id for plan in self._read_open_plans(tables)} - rejected
        needed = {names.run_ref(plan) for plan in open_plans}
        return {"branches_removed": sum(drop_branch(table, ref) for table, ref in branches if ref not in needed)}

    def _append_audits(self, plans: Iterable[StagedPlan]) -> None:
        """Append the results of audits that the table of results lacks, before their objects are removed."""
        keys = [names.plan_of_audit(entry.key) for plan in plans for entry in plan.objects]
        audits = [find_audit(self.store, key) for key in keys if key is not None]
        append_results(self.catalog, [AuditRecord(self.name, audit) for audit in audits if audit is not None])
        keep_results_small(self.catalog)

    def _remove_key_index_files(self, dedup: DedupTables) -> Mapping[str, int]:
        # Read plans before index manifests: a sweep that commits in between is in a manifest by the time they are read.
        needed = frozenset[str]().union(*(plan.staged_files for plan in self._read_sweep_plans(dedup).open))
        before, prefix = self._leftovers_before, self.store.prefix
        unneeded: list[ListedObject] = []
        histories = self._histories_of(dedup)
        for generation, history, _ in histories:
            index = names.key_index_prefix(prefix, self.name, generation, history)
            unneeded += find_unneeded_index_files(self.store, index, before=before, needed=needed)
        known = [history for _, history, _ in histories]
        for below in (names.key_indexes_prefix(prefix, self.name), names.sweeps_of_stream_prefix(prefix, self.name)):
            unneeded += find_ended_histories(self.store, below, histories=known, before=before)
        return self._remove(unneeded)

    def _remove_orphaned_index_objects(self) -> Mapping[str, int]:
        if not self.stream.format.extension.is_indexed:
            return {}
        topics = [topic for topic in self.store.topics() if self.stream.matches(topic)]
        orphaned = find_orphaned_indexes(self.store, topics, self.stream.generation)
        return self._remove(entry for entry in orphaned if entry.modified < self._leftovers_before)

    @property
    def _leftovers_before(self) -> datetime:
        return self.now - self.stream.maintenance.leftovers_after

    def _remove(self, entries: Iterable[ListedObject]) -> Mapping[str, int]:
        objects = size_bytes = 0
        for entry in entries:
            self.store.remove(entry.key)
            objects, size_bytes = objects + 1, size_bytes + entry.size_bytes
        return {"objects_removed": objects, "bytes_removed": size_bytes}

    # --- plans and positions as they are now ---

    def _read_plans(self, tables: StreamTables) -> Plans:
        """Return the plans of this stream."""
        tables.main.refresh()
        return self._classified(tables, self.name, self.stream.generation)

    def _read_open_plans(self, tables: StreamTables) -> list[StagedPlan]:
        """Return the open plans of all generations of the table, for all streams that write it."""
        tables.main.refresh()
        found = (self._classified(tables, name, number) for name, number in self._written_generations(tables))
        return [plan for plans in found for plan in plans.open]

    def _written_generations(self, tables: StreamTables) -> set[tuple[str, int]]:
        """Return each stream of the table with each generation for which it may have plans."""
        known = generations_of(tables.main)
        streams = {name for name, _ in self.writers}
        return {*self.writers, *((name, generation) for name in streams for generation in known)}

    def _classified(self, tables: StreamTables, name: str, generation: int) -> Plans:
        main = tables.main
        published = metadata_at(main.metadata, target_of(main.metadata, generation))
        plans = find_plans(self.store, self._plans_prefix(tables, name, generation))
        return classify_plans(plans, read_progress(published, ".".join(main.name())))

    def _plans_prefix(self, tables: StreamTables, name: str, generation: int) -> str:
        return names.plans_prefix(self.store.prefix, name, generation, str(tables.main.metadata.table_uuid))

    def _read_open_retries(self, tables: StreamTables) -> list[StagedPlan]:
        """Return the retries of the quarantine that the main table or the quarantine has not committed.

        A table that was rolled back has not committed a retry any more.
        """
        both = (tables.main, tables.quarantine)
        for table in both:
            table.refresh()
        taken_part = min(read_retries(table.metadata, ".".join(table.name())) for table in both)
        uuid = str(tables.main.metadata.table_uuid)
        prefix = names.retries_prefix(self.store.prefix, self.name, self.stream.generation, uuid)
        return find_open_retries(self.store, prefix, taken_part=taken_part)

    def _read_open_backfills(self) -> list[StagedPlan]:
        """Return the backfills that can still be promoted: the names of their files begin with their ids."""
        found = open_requests(self.store, self.name, self.now)
        return [StagedPlan(request.plan_id, None, frozenset(), ()) for request in found]

    def _read_sweep_plans(self, dedup: DedupTables) -> Plans:
        found = []
        for generation, history, tables in self._histories_of(dedup):
            prefix = names.sweeps_prefix(self.store.prefix, self.name, generation, history)
            found.append(find_sweep_plans(self.store, prefix, _position_of(tables)))
        return Plans(
            open=tuple(plan for plans in found for plan in plans.open),
            passed=tuple(plan for plans in found for plan in plans.passed),
        )

    def _histories_of(self, dedup: DedupTables) -> list[tuple[int, str, DedupTables]]:
        """Return the generation, the name and the loaded tables of each history that has a branch."""
        dedup.unique.refresh()
        uuid = str(dedup.unique.metadata.table_uuid)
        return [
            (generation, names.history_name(uuid, tables.unique.history_id), tables)
            for generation, tables in histories_of(dedup, self.stream.generation)
        ]


def _position_of(dedup: DedupTables) -> SweepPosition | None:
    return read_sweep_position(dedup.unique.metadata, ".".join(dedup.unique.name()))
