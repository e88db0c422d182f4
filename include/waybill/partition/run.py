"""The driver of a partition run: plan, carry out, commit. What is wrong at any step, the next run begins at the first.

1. Progress is read from the table.
2. The plan that starts there is found, or made and created if absent.
3. What was staged for the plan is found, or the plan's tasks are carried out and their files written down.
4. The quarantine's files are committed, then the table's, each with the plan's end as progress.

Readers take quarantine rows into account only below the table's progress: between the two commits there may be more.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from pyiceberg.catalog import Catalog

from waybill import failpoints
from waybill.config import Config, Stream
from waybill.connections import CatalogEndpoint, S3Endpoint, connection
from waybill.errors import ChainGap
from waybill.names import plan_key
from waybill.partition.backlog import committed_offsets, list_chains
from waybill.partition.files import TableLayout
from waybill.partition.plan import Plan, Task, make_plan, settle_plan
from waybill.partition.report import Report, RunOutcome
from waybill.partition.staged import Staged, discard, find_staged, record_staged
from waybill.partition.task import Job, TaskResult
from waybill.store import Store
from waybill.tables import Commit, Outcome, Progress, StreamTables, commit_files, ensure_tables, open_catalog
from waybill.tables import read_progress as progress_of

__all__ = ["Execute", "Step", "run_partition", "run_to_the_end"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")

Execute = Callable[[Job, Sequence[Task]], Iterable[TaskResult]]
"""Carries out tasks, in any order and anywhere, and gives what they staged."""

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
) -> Report:
    """Turn what is new in the archive of stream `name` into rows.

    `execute` carries out the tasks: on Spark, or in this process. Chains that are found broken are left out from the
    fault on, and named in the report's `faults`.

    Raises `ProgressLost`, `ChainBroken`, `CorruptBatch`, `CommitConflict`, `PlanUnusable`, `ConfigError`, or one of the
    retriable `StoreUnavailable` and `CatalogUnavailable`; whatever is raised, a later run goes on without loss.
    """
    stream = config.stream(name)
    s3 = S3Endpoint.of(connection(config.storage.connection))
    with (
        Store.of(config.storage) as store,
        closing(open_catalog(CatalogEndpoint.of(connection(config.catalog.connection)), s3)) as catalog,
    ):
        return _Run(config, name, stream, store, catalog, execute, now, done).carry_out()


def run_to_the_end(config: Config, name: str, execute: Execute) -> Iterator[Report]:
    """`run_partition`, and again as long as it carries out a plan of an earlier run: the archive has grown since.

    Raises what `run_partition` raises.
    """
    while True:
        report = run_partition(config, name, execute)
        yield report
        if not report.resumed:
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
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    made_plan: bool = False
    faults: list[str] = field(default_factory=list)
    results: list[TaskResult] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def carry_out(self) -> Report:
        began = time.monotonic()
        tables = ensure_tables(self.catalog, self.stream)
        start = progress_of(tables.main.metadata, ".".join(tables.main.name()))
        plan = self._timed("plan", lambda: self._settle_plan(tables, start))
        if plan is None:
            return self._report(RunOutcome.NOTHING_NEW, start, None, None, began)
        self.done("planned")
        staged = self._timed("tasks", lambda: self._stage(plan, tables))
        self.done("staged")
        outcome = self._timed("commit", lambda: self._commit(plan, tables, staged))
        self.done("committed")
        return self._report(RunOutcome(outcome), start, plan, staged, began)

    def _settle_plan(self, tables: StreamTables, start: Progress) -> Plan | None:
        uuid = str(tables.main.metadata.table_uuid)
        key = plan_key(self.config.storage.prefix, self.name, self.stream.generation, uuid, start)
        return settle_plan(self.store, key, lambda: self._make_plan(key, start))

    def _make_plan(self, key: str, start: Progress) -> Plan | None:
        self.made_plan = True
        committed = committed_offsets(self.config, self.name)
        chains, self.faults = list_chains(self.store, self.stream, start, committed)
        return make_plan(
            key,
            stream=self.name,
            generation=self.stream.generation,
            reading=self.stream.reading,
            created_at=self.now(),
            start=start,
            chains=chains,
            task_bytes=self.stream.partition.task_bytes,
        )

    def _stage(self, plan: Plan, tables: StreamTables) -> Staged:
        staged = find_staged(self.store, plan, tables)
        if staged is not None:
            log.info("partition %s: plan %s was carried out by run %s before", self.name, plan.id, staged.run_id)
            return staged
        self.results = self._carry_out_tasks(plan, tables)
        self.done("carried_out")
        ours = Staged(
            self.run_id,
            [file for result in self.results for file in result.table_files],
            [file for result in self.results for file in result.quarantine_files],
        )
        if record_staged(self.store, plan, ours):
            return ours
        log.info("partition %s: another run has carried out plan %s; its files count", self.name, plan.id)
        discard(tables.main.io, ours)
        found = find_staged(self.store, plan, tables)
        assert found is not None
        return found

    def _carry_out_tasks(self, plan: Plan, tables: StreamTables) -> list[TaskResult]:
        try:
            return list(self.execute(self._job(plan, tables), plan.tasks))
        except ChainGap:
            # The plan took the missing object's range for its neighbour's: nobody can ever carry it out. Once the
            # object is back, the next run has to plan anew.
            self.store.remove(plan.key)
            raise

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
        )

    def _commit(self, plan: Plan, tables: StreamTables, staged: Staged) -> Outcome:
        properties = {"waybill.stream": self.name, "waybill.run": staged.run_id}
        if staged.quarantine_files:
            files = staged.quarantine_files
            commit_files(
                tables.quarantine, Commit(plan.id, plan.start, plan.end, files, properties), must_be_at_start=False
            )
            self.done("quarantine_committed")
        properties["waybill.quarantined"] = str(staged.quarantined)
        files = staged.table_files
        return commit_files(tables.main, Commit(plan.id, plan.start, plan.end, files, properties))

    def _timed(self, step: str, work: Callable[[], _T]) -> _T:
        began = time.monotonic()
        try:
            return work()
        finally:
            self.seconds[step] = time.monotonic() - began

    def _report(
        self, outcome: RunOutcome, start: Progress, plan: Plan | None, staged: Staged | None, began: float
    ) -> Report:
        return Report.of(
            stream=self.name,
            outcome=outcome,
            start=start,
            plan=plan,
            resumed=plan is not None and not self.made_plan,
            staged=staged,
            results=self.results,
            faults=tuple(self.faults),
            seconds={**self.seconds, "total": time.monotonic() - began},
        )
