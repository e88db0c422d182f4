"""A partition run: turn the new backup objects of a stream's archive into rows of its tables.

`waybill.tables.staging.driver.run_staged_job` is the order of the steps; `_PartitionJob` supplies them:

1. Read the progress from the table. Find the plan that starts there, or list the chains and create it.
2. Find the files that were recorded for the plan, or execute its tasks and record their files.
3. Write the files to a branch of each table, audit them, and publish them (`waybill.tables.partition.publication`):
   each table gets the files, and the end of the staged files as progress, in one snapshot.

A plan, and the record of its files, are never changed or withdrawn. Where a backup object is damaged or missing, the
staged files end before it, and the commit stores the fault beside the progress. If nothing could be staged at all, the
fault is committed as well: the progress stays, and the next plan gets the next attempt number. The plan after a
rejected one also gets the next number.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

from waybill.archive.chain.chain import ChainObject
from waybill.archive.chain.spans import ArchiveFault, find_fault, spans_from
from waybill.base import failpoints
from waybill.config.models import Config, Stream
from waybill.config.names import TopicPartition
from waybill.services.store import Store
from waybill.tables.audit import Audit
from waybill.tables.iceberg import (
    CommitOutcome,
    Progress,
    StreamTables,
    ensure_tables,
    evolve_columns,
    translate_storage_errors,
)
from waybill.tables.iceberg.file_inventory import last_sequence_number
from waybill.tables.partition.execute import Execute, execute_all_or_none, execute_tasks
from waybill.tables.partition.files_sink.upload import FilesLayout, Origin
from waybill.tables.partition.files_sink.writer import inventory_properties, stage_inventory
from waybill.tables.partition.next_plan import NextPlan
from waybill.tables.partition.partition_plan import Plan, list_chains, make_plan
from waybill.tables.partition.partition_report import PartitionReport
from waybill.tables.partition.publication import OnAudit, Publication, drop_branches
from waybill.tables.partition.staged import Staged, discard, find_staged, record_staged
from waybill.tables.partition.statistics import RunStatistics
from waybill.tables.partition.tasks import Job, TaskResult
from waybill.tables.staging.driver import FinishedJob, OnStep, find_or_create, repeat_while_more, run_staged_job
from waybill.tables.staging.services import StagingServices, services_of
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.timing import StepClock

logger = logging.getLogger(__name__)


def _reach(step: str) -> None:
    failpoints.reach(f"partition.{step}")


def run_partition(
    config: Config,
    name: str,
    execute: Execute,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = _reach,
    slots: int = 1,
    services: StagingServices | None = None,
    on_audit: OnAudit | None = None,
) -> PartitionReport:
    """Turn the new backup objects of stream `name` into rows, and return the run's report.

    `execute` runs the tasks, on Spark or in this process; `slots` of them run in parallel. `services`: those to use;
    without them the run opens and closes its own. `on_audit` is called with the result of the audit, also for a held
    run; by default, the run appends the result to the results table. A topic-partition whose chain is broken or has a
    damaged object is left out from the fault on, and named in the report's `faults`.

    Raises `PublicationHeld` if an audit has failed and a person has to decide, `ProgressLost`, `ParserBroken`,
    `CommitConflict`, `PlanUnusable`, `DocumentDamaged`, `DocumentTooNew`, `ConfigError`, or one of the retriable
    `PublicationRejected`, `StoreUnavailable` and `CatalogUnavailable`. After any of these a later run continues without
    loss.
    """
    stream = config.stream(name)
    with services_of(config, services) as opened, translate_storage_errors():
        clock = StepClock()
        tables = ensure_tables(opened.catalog, stream)
        upcoming = NextPlan.of(opened.store, name, stream, tables)
        job = _PartitionJob(config, name, stream, opened, tables, upcoming, execute, now, on_step, slots, on_audit)
        finished = run_staged_job(job, clock=clock, on_step=on_step)
        return job.report(finished, clock)


def run_to_the_end(
    config: Config,
    name: str,
    execute: Execute,
    *,
    slots: int = 1,
    services: StagingServices | None = None,
    on_audit: OnAudit | None = None,
) -> Iterator[PartitionReport]:
    """Yield the reports of `run_partition` until the archive has no more input. Raises what `run_partition` raises."""
    return repeat_while_more(
        lambda: run_partition(config, name, execute, slots=slots, services=services, on_audit=on_audit)
    )


@dataclass(slots=True)
class _PartitionJob:
    """The steps of one run, a `StagedJob`, and the data of its report."""

    config: Config
    name: str
    stream: Stream
    services: StagingServices
    tables: StreamTables
    upcoming: NextPlan
    run_tasks: Execute
    now: Callable[[], datetime]
    on_step: OnStep
    slots: int
    on_audit: OnAudit | None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    audit: Audit | None = None
    made_plan: bool = False
    more: bool = False
    broken_chains: list[str] = field(default_factory=list)
    """Messages about chains that the listing shows to be broken."""
    known_faults: dict[TopicPartition, ArchiveFault] = field(default_factory=dict)
    """Faults that an earlier run met, and that the archive still has."""
    results: list[TaskResult] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"partition {self.name}"

    @property
    def store(self) -> Store:
        return self.services.store

    # --- plan ---

    def find_or_create_plan(self) -> Plan | None:
        for rejected in self.upcoming.rejected:
            # The rejecting process may have been interrupted, or a frozen run may have built a branch since then.
            drop_branches(self.tables, rejected)
        key = self.upcoming.key
        plan = find_or_create(self.store, key, Plan.from_json, lambda: self._make_plan(key))
        # A rival with a newer config may have made the plan, and added columns to the table after it was loaded here.
        if plan is not None and plan.parse_settings.files is None:
            evolve_columns(self.tables.main, plan.parse_settings.columns)
        return plan

    def _make_plan(self, key: str) -> Plan | None:
        self.made_plan = True
        committed = self.services.committed_offsets(self.name)
        topics = self.services.archived_topics(self.stream)
        generation = self.stream.generation
        chains, self.broken_chains = list_chains(self.store, topics, generation, self.upcoming.start, committed)
        self.known_faults = self._find_faults_again(chains)
        chains = {tp: _before_fault(objects, self.known_faults.get(tp)) for tp, objects in chains.items()}
        plan = make_plan(
            key,
            stream=self.name,
            generation=self.stream.generation,
            parse_settings=self.stream.parse_settings,
            created_at=self.now(),
            start=self.upcoming.start,
            chains=chains,
            task_bytes=self.stream.partition.task_bytes,
            run_bytes=self.stream.partition.run_bytes,
            slots=self.slots,
            faults=self.known_faults,
        )
        self.more = plan is not None and any(
            plan.end.get(tp, -1) < objects[-1].next_offset for tp, objects in chains.items() if objects
        )
        return plan

    def _find_faults_again(
        self, chains: Mapping[TopicPartition, Sequence[ChainObject]]
    ) -> dict[TopicPartition, ArchiveFault]:
        """Return the faults that stopped topic-partitions last time and still exist.

        Without this check, each run would execute all tasks after a fault in vain.
        """
        faults = {}
        for tp, offset in self.upcoming.blocked.offsets.items():
            spans = spans_from(tp, chains.get(tp, ()), self.upcoming.start.get(tp))
            span = next((span for span in spans if span.first_offset <= offset < span.next_offset), None)
            if span is not None and (fault := find_fault(self.store, span)):
                faults[tp] = fault
        return faults

    # --- tasks ---

    def find_staged(self, plan: Plan) -> Staged | None:
        return find_staged(self.store, plan, self.tables)

    def execute(self, plan: Plan) -> Staged:
        writes_files = plan.parse_settings.files is not None
        execute = execute_all_or_none if writes_files else execute_tasks
        executed = execute(
            self.run_tasks,
            self._job(plan),
            plan.tasks,
            lambda obsolete: self.discard(self._staged(obsolete)),
        )
        self.results = executed.results
        # If the whole plan was discarded because of a fault, the next plan has the rest of the archive as input.
        self.more |= writes_files and bool(executed.faults)
        staged = self._staged(executed.results, {**plan.start, **executed.end}, {**plan.faults, **executed.faults})
        return self._with_inventory(plan, staged) if writes_files else staged

    def record_staged(self, plan: Plan, staged: Staged) -> bool:
        return record_staged(self.store, plan, staged)

    def discard(self, staged: Staged) -> None:
        discard(self.tables.main.io, staged)

    def _staged(
        self,
        results: Sequence[TaskResult],
        end: Progress = MappingProxyType({}),
        faults: Mapping[TopicPartition, ArchiveFault] = MappingProxyType({}),
    ) -> Staged:
        return Staged(
            self.run_id,
            [file for result in results for file in result.table_files],
            [file for result in results for file in result.quarantine_files],
            end,
            faults,
            RunStatistics.sum(result.statistics for result in results).snapshot_properties(),
        )

    def _with_inventory(self, plan: Plan, staged: Staged) -> Staged:
        """Add the inventory's data file, which lists the files of the sink `files`."""
        entries = [entry for result in self.results for entry in result.inventory]
        return replace(
            staged,
            table_files=stage_inventory(self.tables.main, entries, plan.id),
            properties={**staged.properties, **inventory_properties(entries)},
        )

    def _job(self, plan: Plan) -> Job:
        return Job(
            plan_id=plan.id,
            run_id=self.run_id,
            generation=plan.generation,
            planned_at=plan.created_at,
            parse_settings=plan.parse_settings,
            storage=self.config.storage,
            catalog_connection=self.config.catalog.connection,
            table=TableLayout.of(self.tables.main),
            quarantine=TableLayout.of(self.tables.quarantine),
            memory_bytes=self.stream.partition.memory,
            files=self._files_layout(plan),
        )

    def _files_layout(self, plan: Plan) -> FilesLayout | None:
        if plan.parse_settings.files is None:
            return None
        main = self.tables.main
        origin = Origin(str(main.metadata.table_uuid), last_sequence_number(main), plan.id, plan.created_at)
        return FilesLayout(self.config.files_root(self.name), self.stream.by_hour, plan.parse_settings.files, origin)

    # --- commit ---

    def commit(self, plan: Plan, staged: Staged) -> CommitOutcome:
        publication = Publication(
            self.services, self.name, self.stream, self.tables, plan, staged, self.upcoming.attempt, self.on_audit
        )
        outcome, self.audit = publication.run(self.on_step)
        return outcome

    # --- report ---

    def report(self, finished: FinishedJob[Plan, Staged], clock: StepClock) -> PartitionReport:
        staged = finished.staged
        return PartitionReport.of(
            stream=self.name,
            outcome=finished.outcome,
            start=self.upcoming.start,
            plan=finished.plan,
            resumed=finished.plan is not None and not self.made_plan,
            more=self.more,
            staged=staged,
            audit=self.audit,
            results=self.results,
            alert_settings=self.stream.quarantine,
            faults=(
                *self.broken_chains,
                *(fault.message for fault in (staged.faults if staged else self.known_faults).values()),
            ),
            seconds=clock.seconds(),
        )


def _before_fault(objects: Sequence[ChainObject], fault: ArchiveFault | None) -> list[ChainObject]:
    """Return the part of a chain that lies before a fault."""
    if fault is None:
        return list(objects)
    sound = (found for found in objects if found.name.first_offset < fault.offset)
    return [replace(found, next_offset=min(found.next_offset, fault.offset)) for found in sound]
