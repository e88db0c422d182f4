"""The driver of a partition run: plan, carry out, commit. What is wrong at any step, the next run begins at the first.

1. Progress is read from the table.
2. The plan that starts there is found, or made and created if absent.
3. What was staged for the plan is found, or the plan's tasks are carried out and their files written down.
4. The quarantine's files are committed, then the table's, each with the end of what was staged as progress.

Readers take quarantine rows into account only below the table's progress: between the two commits there may be more.

A plan and what was staged for it are never taken back. Where a backup object is damaged or gone, what is staged ends
before it, and the commit says so beside the progress. If nothing could be staged at all, that is committed as well: the
progress stays, and the next plan has the next number.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

from pyiceberg.catalog import Catalog

from waybill import failpoints
from waybill.archive.chain import ChainObject
from waybill.archive.spans import ArchiveFault, clip, find_fault
from waybill.config import Config, Stream
from waybill.names import TopicPartition, plan_key
from waybill.partition.alert import QUARANTINED_PROPERTY, ROWS_PROPERTY
from waybill.partition.files_sink.delivery import FilesLayout, Origin
from waybill.partition.files_sink.writer import figures_of, stage_entries
from waybill.partition.observed import Observed
from waybill.partition.plan import Plan, committed_offsets, list_chains, make_plan
from waybill.partition.report import Report, RunOutcome
from waybill.partition.staged import Staged, discard, find_staged, record_staged
from waybill.partition.tasks import Execute, Job, TaskResult, carry_out, carry_out_whole
from waybill.staging.driver import settle_plan
from waybill.staging.table_layout import TableLayout
from waybill.staging.timing import StepClock
from waybill.store import Store
from waybill.tables import (
    LEFT_OUT_PROPERTY,
    Commit,
    LeftOut,
    Outcome,
    Progress,
    StreamTables,
    catalog_of,
    commit_files,
    ensure_tables,
    files_reachable,
    fit_columns,
    left_out_text,
    read_left_out,
)
from waybill.tables import read_progress as progress_of
from waybill.tables.file_inventory import sequence_of

__all__ = ["Execute", "Step", "run_partition", "run_to_the_end"]

logger = logging.getLogger(__name__)

Step = Callable[[str], None]
"""Called with the name of each step that was just done."""


def _reach(step: str) -> None:
    failpoints.reach(f"partition.{step}")


def run_partition(
    config: Config,
    name: str,
    execute: Execute,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    done: Step = _reach,
    slots: int = 1,
) -> Report:
    """Turn what is new in the archive of stream `name` into rows.

    `execute` carries out the tasks: on Spark, or in this process; `slots` of them side by side. A topic-partition whose
    chain is broken, or has an object that is damaged, is left out from the fault on, and named in the report's
    `faults`.

    Raises `ProgressLost`, `ParserBroken`, `CommitConflict`, `PlanUnusable`, `ConfigError`, or one of the retriable
    `StoreUnavailable` and `CatalogUnavailable`; whatever is raised, a later run goes on without loss.
    """
    stream = config.stream(name)
    with (
        Store.of(config.storage) as store,
        catalog_of(config) as catalog,
        files_reachable(),
    ):
        return _Run(config, name, stream, store, catalog, execute, now, done, slots).carry_out()


def run_to_the_end(config: Config, name: str, execute: Execute, *, slots: int = 1) -> Iterator[Report]:
    """`run_partition`, and again as long as there is more: a plan is bounded, and an earlier run's may be behind.

    Raises what `run_partition` raises.
    """
    while True:
        report = run_partition(config, name, execute, slots=slots)
        yield report
        if not (report.resumed or report.more):
            return


@dataclass(slots=True)
class _Run:
    config: Config
    name: str
    stream: Stream
    store: Store
    catalog: Catalog
    execute: Execute
    now: Callable[[], datetime]
    done: Step
    slots: int = 1
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    made_plan: bool = False
    more: bool = False
    broken: list[str] = field(default_factory=list)
    """Chains that the listing shows to be broken."""
    known: dict[TopicPartition, ArchiveFault] = field(default_factory=dict)
    """Faults that an earlier run met, and that are there still."""
    results: list[TaskResult] = field(default_factory=list)
    clock: StepClock = field(default_factory=StepClock)

    def carry_out(self) -> Report:
        tables = ensure_tables(self.catalog, self.stream)
        start = progress_of(tables.main.metadata, ".".join(tables.main.name()))
        plan = self.clock.timed("plan", lambda: self._settle_plan(tables, start))
        if plan is None:
            return self._report(RunOutcome.NOTHING_NEW, start, None, None)
        # A rival with a newer config may have made it, and given the table columns since it was loaded here.
        if plan.reading.files is None:
            fit_columns(tables.main, plan.reading.columns)
        self.done("planned")
        staged = self.clock.timed("tasks", lambda: self._stage(plan, tables))
        self.done("staged")
        outcome = self.clock.timed("commit", lambda: self._commit(plan, tables, staged))
        self.done("committed")
        return self._report(RunOutcome(outcome), start, plan, staged)

    def _settle_plan(self, tables: StreamTables, start: Progress) -> Plan | None:
        uuid = str(tables.main.metadata.table_uuid)
        before = read_left_out(tables.main.metadata)
        key = plan_key(self.config.storage.prefix, self.name, self.stream.generation, uuid, start, before.attempt)
        return settle_plan(self.store, key, Plan.from_json, lambda: self._make_plan(key, start, before))

    def _make_plan(self, key: str, start: Progress, before: LeftOut) -> Plan | None:
        self.made_plan = True
        committed = committed_offsets(self.config, self.name)
        chains, self.broken = list_chains(self.store, self.stream, start, committed)
        self.known = self._faults_still_there(chains, start, before)
        chains = {tp: _before_fault(objects, self.known.get(tp)) for tp, objects in chains.items()}
        plan = make_plan(
            key,
            stream=self.name,
            generation=self.stream.generation,
            reading=self.stream.reading,
            created_at=self.now(),
            start=start,
            chains=chains,
            task_bytes=self.stream.partition.task_bytes,
            run_bytes=self.stream.partition.run_bytes,
            slots=self.slots,
            faults=self.known,
        )
        self.more = plan is not None and any(
            plan.end.get(tp, -1) < objects[-1].next_offset for tp, objects in chains.items() if objects
        )
        return plan

    def _faults_still_there(
        self, chains: Mapping[TopicPartition, Sequence[ChainObject]], start: Progress, before: LeftOut
    ) -> dict[TopicPartition, ArchiveFault]:
        """What stopped topic-partitions last time, and would again. Else each run would do all behind it in vain."""
        found = {}
        for tp, offset in before.offsets.items():
            spans = clip(tp, chains.get(tp, ()), start.get(tp))
            span = next((span for span in spans if span.first_offset <= offset < span.next_offset), None)
            if span is not None and (fault := find_fault(self.store, span)):
                found[tp] = fault
        return found

    def _stage(self, plan: Plan, tables: StreamTables) -> Staged:
        staged = find_staged(self.store, plan, tables)
        if staged is not None:
            logger.info("partition %s: plan %s was carried out by run %s before", self.name, plan.id, staged.run_id)
            return staged
        carry = carry_out if plan.reading.files is None else carry_out_whole
        done = carry(
            self.execute, self._job(plan, tables), plan.tasks, lambda void: discard(tables.main.io, self._staged(void))
        )
        self.results = done.results
        # Nothing came of the plan but its faults: what is sound is left to the next one.
        self.more |= carry is carry_out_whole and bool(done.faults)
        self.done("carried_out")
        ours = self._staged(done.results, {**plan.start, **done.end}, {**plan.faults, **done.faults})
        ours = self._with_ledger(plan, tables, ours)
        if record_staged(self.store, plan, ours):
            return ours
        logger.info("partition %s: another run has carried out plan %s; its files count", self.name, plan.id)
        discard(tables.main.io, ours)
        found = find_staged(self.store, plan, tables)
        assert found is not None
        return found

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
            Observed.all(result.observed for result in results).properties(),
        )

    def _with_ledger(self, plan: Plan, tables: StreamTables, staged: Staged) -> Staged:
        """With the files that were written, where rows go to files."""
        if plan.reading.files is None:
            return staged
        entries = [entry for result in self.results for entry in result.entries]
        return replace(
            staged,
            table_files=stage_entries(tables.main, entries, plan.id),
            properties={**staged.properties, **figures_of(entries)},
        )

    def _files(self, plan: Plan, tables: StreamTables) -> FilesLayout | None:
        if plan.reading.files is None:
            return None
        main = tables.main
        origin = Origin(str(main.metadata.table_uuid), sequence_of(main), plan.id, plan.created_at)
        return FilesLayout(self.config.files_root(self.name), self.stream.by_hour, plan.reading.files, origin)

    def _job(self, plan: Plan, tables: StreamTables) -> Job:
        return Job(
            plan_id=plan.id,
            run_id=self.run_id,
            generation=plan.generation,
            planned_at=plan.created_at,
            reading=plan.reading,
            storage=self.config.storage,
            catalog_connection=self.config.catalog.connection,
            table=TableLayout.of(tables.main),
            quarantine=TableLayout.of(tables.quarantine),
            memory_bytes=self.stream.partition.memory,
            files=self._files(plan, tables),
        )

    def _commit(self, plan: Plan, tables: StreamTables, staged: Staged) -> Outcome:
        properties = {"waybill.stream": self.name, "waybill.run": staged.run_id}
        if staged.quarantine_files:
            files = staged.quarantine_files
            commit_files(
                tables.quarantine, Commit(plan.id, plan.start, staged.end, files, properties), must_be_at_start=False
            )
            self.done("quarantine_committed")
        properties |= {ROWS_PROPERTY: str(staged.rows), QUARANTINED_PROPERTY: str(staged.quarantined)}
        if staged.faults:
            properties[LEFT_OUT_PROPERTY] = self._left_out(plan, tables, staged)
        properties |= staged.properties
        files = staged.table_files
        return commit_files(tables.main, Commit(plan.id, plan.start, staged.end, files, properties))

    def _left_out(self, plan: Plan, tables: StreamTables, staged: Staged) -> str:
        before = read_left_out(tables.main.metadata)
        attempt = before.attempt + 1 if staged.end == plan.start else 0
        return left_out_text(LeftOut({tp: fault.offset for tp, fault in staged.faults.items()}, attempt))

    def _report(self, outcome: RunOutcome, start: Progress, plan: Plan | None, staged: Staged | None) -> Report:
        return Report.of(
            stream=self.name,
            outcome=outcome,
            start=start,
            plan=plan,
            resumed=plan is not None and not self.made_plan,
            more=self.more,
            staged=staged,
            results=self.results,
            alert_settings=self.stream.quarantine,
            faults=(*self.broken, *(fault.message for fault in (staged.faults if staged else self.known).values())),
            seconds=self.clock.seconds(),
        )


def _before_fault(objects: Sequence[ChainObject], fault: ArchiveFault | None) -> list[ChainObject]:
    """What of a chain lies before a fault."""
    if fault is None:
        return list(objects)
    sound = (found for found in objects if found.name.first_offset < fault.offset)
    return [replace(found, next_offset=min(found.next_offset, fault.offset)) for found in sound]
