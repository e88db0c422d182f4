"""Build a backfill: execute its tasks, put the result on branches, audit it, and compare it with the table.

Every step finds the results of an earlier run or a rival, and continues from them. `main` is not changed, and partition
runs go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from waybill.archive.chain.spans import ArchiveFault
from waybill.base.documents import As, Document, Stored, spaced
from waybill.base.errors import BackfillRefused
from waybill.config.models import Config, Stream
from waybill.config.names import TopicPartition, backfill_branch, backfill_built_key
from waybill.services.store import Store
from waybill.tables.audit import AuditInput, AuditRecord, append_results, find_audit, record_audit, run_audit
from waybill.tables.backfill.diff import DiffPart, Files, find_diff, make_diff
from waybill.tables.backfill.events import ABANDONED_AFTER, state_of
from waybill.tables.backfill.promotion import refuse_if_not_of
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.backfill.replace import Cutter, RangeChange
from waybill.tables.backfill.request import BackfillRequest, find_built, find_request
from waybill.tables.backfill.results import (
    BuiltFiles,
    PlannedTask,
    TaskRecord,
    find_records,
    load_built_files,
    run_and_record,
)
from waybill.tables.backfill.states import BackfillState
from waybill.tables.backfill.work import TaskRunner, in_this_process, reach_step
from waybill.tables.iceberg import StreamTables, drop_branch, ensure_tables, evolve_columns, translate_storage_errors
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.tasks import Job
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices, services_of
from waybill.tables.staging.table_layout import TableLayout, load_data_files

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built(Stored):
    """The record that both branches exist: created if absent."""

    DOCUMENT: ClassVar = Document("{where} cannot be read ({error}): restore the object", dump=spaced)

    main_base: Annotated[int, As("main")]
    """The snapshot of `main` that the branch was built on, and that the diff compares with."""
    quarantine_base: Annotated[int, As("quarantine")]
    rows: int
    quarantined: int


# --- building ---------------------------------------------------------------------------------------------------------


def build_range(
    config: Config,
    name: str,
    backfill: str,
    for_each: TaskRunner = in_this_process,
    *,
    parallel: int | None = None,
    bytes_per_second: float | None = None,
    on_step: OnStep = reach_step,
    services: StagingServices | None = None,
) -> None:
    """Build a requested backfill of stream `name`, or continue.

    `for_each` executes tasks: at most `parallel` at a time. They read at most `bytes_per_second` of the archive on
    average; None: no limit.

    Calls `on_step` with `quarantine_branched`, `branched`, `built`, `audited` and `diffed`.

    Raises `BackfillRefused` if the backfill is cancelled or the archive has a fault in the range, `ParserBroken`,
    `PlanUnusable`, `ConfigError`, `DocumentDamaged`, `DocumentTooNew`, or one of the retriable `CommitConflict`,
    `StoreUnavailable` and `CatalogUnavailable`. After any of these a later call continues.
    """
    stream = config.stream(name)
    with services_of(config, services) as opened, translate_storage_errors():
        request = find_request(opened.store, name, backfill)
        run = _Build(config, name, stream, opened, request, for_each, on_step)
        if run.state() is BackfillState.CANCELLED:
            raise BackfillRefused(f"backfill {backfill} of {name} was cancelled: request it again")
        tables = run.load()
        built = find_built(opened.store, request, Built)
        if built is None:
            run.execute_tasks(tables, parallel, bytes_per_second)
            built = run.branch(tables)
        run.audit(tables)
        run.diff(tables, built)


@dataclass(frozen=True, slots=True)
class _Build:
    config: Config
    name: str
    stream: Stream
    services: StagingServices
    request: BackfillRequest
    for_each: TaskRunner
    on_step: OnStep

    @property
    def store(self) -> Store:
        return self.services.store

    def state(self) -> BackfillState:
        return state_of(self.store, self.request)

    def load(self) -> StreamTables:
        tables = ensure_tables(self.services.catalog, self.stream)
        refuse_if_not_of(self.request, self.stream, tables)
        evolve_columns(tables.main, self.request.plan.parse_settings.columns)
        return tables

    # --- tasks ---

    def execute_tasks(self, tables: StreamTables, parallel: int | None, bytes_per_second: float | None) -> None:
        done = find_records(self.store, self.request)
        job = self._job(tables)
        left = [
            PlannedTask(job, self.name, self.request.id, number, spans)
            for number, spans in enumerate(self.request.plan.tasks)
            if number not in done
        ]
        size = parallel or (1 if bytes_per_second else len(left)) or 1
        began, read_bytes = time.monotonic(), 0
        for at in range(0, len(left), size):
            wave = left[at : at + size]
            self._raise_faults(self.for_each(run_and_record, wave))
            read_bytes += sum(span.size_bytes for task in wave for span in task.spans)
            if bytes_per_second and at + size < len(left):
                time.sleep(max(read_bytes / bytes_per_second - (time.monotonic() - began), 0))

    def _raise_faults(self, results: Sequence[ArchiveFault | None]) -> None:
        faults = [fault for fault in results if fault is not None]
        if faults:
            raise BackfillRefused(
                f"backfill {self.request.id} of {self.name}: the archive cannot be read: "
                f"{'; '.join(fault.message for fault in faults)}. Repair the archive and run it again, or cancel it "
                f"and request one without these offsets"
            )

    def _job(self, tables: StreamTables) -> Job:
        plan = self.request.plan
        return Job(
            plan_id=self.request.plan_id,
            run_id=self.request.plan_id,
            generation=plan.generation,
            planned_at=plan.created_at,
            parse_settings=plan.parse_settings,
            storage=self.config.storage,
            catalog_connection=self.config.catalog.connection,
            table=TableLayout.of(tables.main),
            quarantine=TableLayout.of(tables.quarantine),
            memory_bytes=self.stream.partition.memory,
            objects_in_part=self.request.objects_in_part,
        )

    # --- branches ---

    def branch(self, tables: StreamTables) -> Built:
        files = load_built_files(self.store, self.request, tables)
        properties = {"waybill.stream": self.name, "waybill.run": self.request.plan_id}
        change = RangeChange(self._cutter(), properties, lambda _: None)
        quarantine = change.branch(tables.quarantine, files.quarantine, ABANDONED_AFTER)
        self.on_step("quarantine_branched")
        main = change.branch(tables.main, files.table, ABANDONED_AFTER)
        self.on_step("branched")
        assert main.parent_snapshot_id is not None
        assert quarantine.parent_snapshot_id is not None
        rows = files.messages - files.quarantined
        built = Built(main.parent_snapshot_id, quarantine.parent_snapshot_id, rows, files.quarantined)
        key = backfill_built_key(self.store.prefix, self.name, self.request.id)
        existing = self.store.create_or_read_existing(key, built.to_json())
        if self.state() not in (BackfillState.PLANNED, BackfillState.BUILT):
            # Another process promoted or cancelled the backfill while this one was slow: the branch belongs to that
            # process.
            self._drop_branches(tables)
        self.on_step("built")
        return built if existing is None else Built.from_json(key, existing)

    def _drop_branches(self, tables: StreamTables) -> None:
        for table in (tables.quarantine, tables.main):
            drop_branch(table, backfill_branch(self.request.id))
        if self.state() is BackfillState.CANCELLED:
            raise BackfillRefused(f"backfill {self.request.id} of {self.name} was cancelled while it was built")

    # --- audit and diff ---

    def audit(self, tables: StreamTables) -> None:
        request = self.request
        if find_audit(self.store, request.plan.key) is None:
            files = load_built_files(self.store, request, tables)
            given = self._audit_input(tables, files)
            audit = run_audit(self.services, given, on_step=lambda _: None)
            audit = record_audit(self.store, request.plan.key, audit)
            append_results(self.services.catalog, [AuditRecord(self.name, audit)])
        self.on_step("audited")

    def _audit_input(self, tables: StreamTables, files: BuiltFiles) -> AuditInput:
        return AuditInput(
            stream_name=self.name,
            stream=self.stream,
            plan_id=self.request.plan_id,
            run_id=files.run_id,
            planned_at=self.request.at,
            table=tables.main,
            table_files=files.table,
            quarantine_files=files.quarantine,
            properties=files.properties,
        )

    def diff(self, tables: StreamTables, built: Built) -> None:
        if find_diff(self.store, self.request) is None:
            cutter = self._cutter()
            old = (
                Files.of(tables.main, cutter.files_of_range(tables.main, built.main_base)),
                Files.of(tables.quarantine, cutter.files_of_range(tables.quarantine, built.quarantine_base)),
            )
            make_diff(self.config, self.store, self.request, tables, old, self._parts(tables), self.for_each)
        self.on_step("diffed")

    def _parts(self, tables: StreamTables) -> list[DiffPart]:
        """Return a part for each task of the backfill."""
        records = find_records(self.store, self.request)

        def files(record: TaskRecord) -> tuple[Files, Files]:
            return (
                Files.of(tables.main, load_data_files(tables.main, record.table)),
                Files.of(tables.quarantine, load_data_files(tables.quarantine, record.quarantine)),
            )

        return [
            DiffPart(_together(spans), partial(files, records[number]))
            for number, spans in enumerate(self.request.plan.tasks)
        ]

    def _cutter(self) -> Cutter:
        return Cutter.of(self.config, self.store, self.request, self.for_each)


def _together(spans: Task) -> OffsetRanges:
    """Return the offsets of a task."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for span in spans:
        first, end = found.get(span.tp, (span.first_offset, span.next_offset))
        found[span.tp] = min(first, span.first_offset), max(end, span.next_offset)
    return OffsetRanges(found)
