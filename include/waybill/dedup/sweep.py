"""The driver of a sweep: plan, carry out, commit. What is wrong at any step, the next run begins at the first.

1. How far the stream's table was swept is read from the unique table.
2. The plan that starts there is found, or made and created if absent.
3. What was staged for the plan is found, or its tasks are carried out and their files written down.
4. The duplicates are committed, then the unique rows, each with how far the table is swept then.
5. The index gets what the sweep kept. It is derived from the unique table: left behind, the next sweep catches it up.

Readers take duplicates into account only as far as the unique table is swept: between the two commits there may be
more. A plan and what was staged for it are never taken back.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from waybill import failpoints
from waybill.config import Config, Dedup, Stream
from waybill.dedup.appends import NOTHING_SWEPT, Point, find_gained, gains_nothing, snapshots_since
from waybill.dedup.commit import commit_duplicates, commit_unique, is_committed, point_of_sweep
from waybill.dedup.execute import Execute, index_task
from waybill.dedup.first_sweep import beginning_text, check_range, check_since
from waybill.dedup.index.manifest import IndexOf, Manifest, horizon_within, update
from waybill.dedup.index_build import BuildJob, bring_up_to_date, rebuild
from waybill.dedup.plan import SweepPlan, epoch_ms, horizon_after
from waybill.dedup.report import SweepFigures, SweepReport
from waybill.dedup.staged import StagedSweep, discard, find_staged_sweep, record_staged_sweep, remove_objects
from waybill.dedup.tasks import Judged, SweepJob, UnknownTopicPartitions, Written, cut_tasks, judges_for
from waybill.errors import ConfigError, IndexDamaged, PlanUnusable, SweepUnsound, WaybillError
from waybill.names import TopicPartition, key_index_prefix, sweep_plan_key
from waybill.partition.report import RunOutcome
from waybill.staging.driver import settle_plan
from waybill.staging.table_layout import TableLayout
from waybill.staging.timing import StepClock
from waybill.store import Store
from waybill.tables import (
    Beginning,
    DedupTables,
    Outcome,
    SweepState,
    Swept,
    catalog_of,
    ensure_dedup_tables,
    files_reachable,
    load_tables,
    read_progress,
    read_sweep_state,
    remove_files,
)
from waybill.tables.state import ancestry

__all__ = ["Step", "run_sweep", "sweep_to_the_end"]

logger = logging.getLogger(__name__)

_REBUILDS = 3

Step = Callable[[str], None]
"""Called with the name of each step that was just done."""


class _Overtaken(Exception):
    """A rival has committed the plan's rows. An index that knows them would find that each of them repeats itself."""


def _reach(step: str) -> None:
    failpoints.reach(f"sweep.{step}")


def run_sweep(
    config: Config,
    name: str,
    execute: Execute,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    rebuild_index: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    done: Step = _reach,
    slots: int = 1,
) -> SweepReport:
    """Take what the table of stream `name` gained since the last sweep, and keep each key once within the window.

    `execute` carries out the tasks: on Spark, or in this process; `slots` of them side by side. `since`: where
    nothing was swept yet, what the table had gained before that is left out for good (`waybill.dedup.first_sweep`). `until`:
    a plan that this run makes ends with what the table had gained by then. `rebuild_index`: build the index anew first.

    Raises `SweepHistoryLost`, `ProgressLost`, `PlanUnusable`, `DamagedFile`, `SweepUnsound`, `CommitConflict`,
    `ConfigError`, or one of the retriable `StoreUnavailable` and `CatalogUnavailable`; whatever is raised, a later run
    goes on as if this one had not been.
    """
    stream = config.stream(name)
    if stream.dedup is None:
        raise ConfigError(f"stream {name} has no section dedup: there is nothing to sweep by")
    with Store.of(config.storage) as store, catalog_of(config) as catalog:
        sweep = _Sweep(
            config, name, stream, stream.dedup, store, catalog, execute, since, until, rebuild_index, now, done, slots
        )
        with files_reachable():
            return sweep.carry_out()


def sweep_to_the_end(
    config: Config,
    name: str,
    execute: Execute,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    rebuild_index: bool = False,
    slots: int = 1,
) -> Iterator[SweepReport]:
    """`run_sweep`, and again as long as there is more: a plan is bounded, and an earlier run's may be behind.

    Raises what `run_sweep` raises, and `ConfigError` for a range that `waybill.dedup.first_sweep.check_range` refuses.
    """
    check_range(since, until, datetime.now(UTC))
    while True:
        report = run_sweep(config, name, execute, since=since, until=until, rebuild_index=rebuild_index, slots=slots)
        since, rebuild_index = None, False
        yield report
        if not (report.resumed or report.more):
            return


@dataclass(slots=True)
class _Sweep:
    config: Config
    name: str
    stream: Stream
    settings: Dedup
    store: Store
    catalog: Catalog
    execute: Execute
    since: datetime | None
    until: datetime | None
    rebuild_index: bool
    now: Callable[[], datetime]
    done: Step
    slots: int
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    made_plan: bool = False
    more: bool = False
    figures: SweepFigures = field(default_factory=SweepFigures)
    index_figures: tuple[int, int] | None = None
    clock: StepClock = field(default_factory=StepClock)

    def carry_out(self) -> SweepReport:
        tables = load_tables(self.catalog, self.stream)
        if tables is None:
            logger.info("dedup of %s: there is no table yet", self.name)
            return self._report(RunOutcome.NOTHING_NEW, NOTHING_SWEPT, None, None, SweepState())
        main = tables.main
        dedup = ensure_dedup_tables(self.catalog, self.stream, main)
        state = read_sweep_state(dedup.unique.metadata, ".".join(dedup.unique.name()))
        start = NOTHING_SWEPT if state.swept is None else Point(state.swept.snapshot, state.swept.sequence)
        if start != NOTHING_SWEPT:
            self._check_since(main, state.beginning, start)
        plan = self.clock.timed("plan", lambda: self._settle_plan(main, dedup, start, state))
        if plan is None:
            if self.rebuild_index:
                of = IndexOf.of_table(dedup.unique, self.settings.key, self.settings.buckets)
                self.clock.timed("index", lambda: self._index(dedup.unique, state, of))
            return self._report(RunOutcome.NOTHING_NEW, start, None, None, state)
        if not self.made_plan:  # a rival with a newer config may have given the tables columns since
            main.refresh()
            dedup = ensure_dedup_tables(self.catalog, self.stream, main)
        _check_plan(plan, main, start)
        if start == NOTHING_SWEPT:
            self._begin(plan, main)
        self.done("planned")
        try:
            staged = self.clock.timed("tasks", lambda: self._stage(plan, main, dedup, state))
        except _Overtaken:
            logger.info("dedup of %s: another run has committed plan %s meanwhile", self.name, plan.id)
            state = read_sweep_state(dedup.unique.metadata, ".".join(dedup.unique.name()))
            return self._report(RunOutcome.ADOPTED, start, plan, None, state)
        self.done("staged")
        outcome = self.clock.timed("commit", lambda: self._commit(plan, dedup, staged))
        self.done("committed")
        self.clock.timed("index_on", lambda: self._move_index_on(plan, dedup.unique, staged))
        self.done("index_moved")
        return self._report(RunOutcome(outcome), start, plan, staged, staged.state)

    # --- plan ---

    def _check_since(self, main: Table, beginning: Beginning | None, start: Point, *, planned: bool = False) -> None:
        """Raise `ConfigError` where `since` cannot be kept to by what goes on from `start`."""
        if self.since is not None:
            unswept = snapshots_since(main, start)
            check_since(main, epoch_ms(self.since), beginning, unswept, planned=planned)

    def _begin(self, plan: SweepPlan, main: Table) -> None:
        """Hold `since` against the first sweep's plan, which another run may have made for another time, or none."""
        begin = plan.beginning
        after = NOTHING_SWEPT if begin is None else Point(begin.snapshot, begin.sequence)
        self._check_since(main, begin, after, planned=True)
        if begin is not None:
            logger.info("dedup of %s: %s", self.name, beginning_text(begin))

    def _settle_plan(self, main: Table, dedup: DedupTables, start: Point, state: SweepState) -> SweepPlan | None:
        unique = str(dedup.unique.metadata.table_uuid)
        key = sweep_plan_key(self.store.prefix, self.name, self.stream.generation, unique, start.sequence)
        return settle_plan(self.store, key, SweepPlan.from_json, lambda: self._make_plan(key, main, start, state))

    def _make_plan(self, key: str, main: Table, start: Point, state: SweepState) -> SweepPlan | None:
        self.made_plan = True
        gained = find_gained(
            main,
            start,
            run_bytes=self.settings.run_bytes,
            since_ms=None if self.since is None else epoch_ms(self.since),
            until_ms=None if self.until is None else epoch_ms(self.until),
        )
        if gained is None:
            return None
        self.more = gained.more
        created_at = self.now()
        known = {*read_progress(main.metadata, ".".join(main.name())), *state.watermarks}
        return SweepPlan(
            key=key,
            stream=self.name,
            generation=self.stream.generation,
            created_at=created_at,
            main=str(main.metadata.table_uuid),
            start=start,
            end=gained.end,
            files=gained.files,
            topic_partitions=tuple(sorted(known)),
            watermarks=state.watermarks,
            window_ms=self.settings.window_ms,
            horizon_ms=state.horizon_ms,
            key_columns=self.settings.key,
            source=self.settings.source,
            buckets=self.settings.buckets,
            beginning=gained.beginning or state.beginning,
        )

    # --- tasks ---

    def _stage(self, plan: SweepPlan, main: Table, dedup: DedupTables, state: SweepState) -> StagedSweep:
        staged = find_staged_sweep(self.store, plan, dedup)
        if staged is not None:
            logger.info("dedup of %s: plan %s was carried out by run %s before", self.name, plan.id, staged.run_id)
            return staged
        ours = self._carry_out(plan, main, dedup, state)
        self.done("carried_out")
        if record_staged_sweep(self.store, plan, ours):
            return ours
        logger.info("dedup of %s: another run has carried out plan %s; its files count", self.name, plan.id)
        discard(self.store, dedup, ours)
        found = find_staged_sweep(self.store, plan, dedup)
        assert found is not None
        return found

    def _carry_out(self, plan: SweepPlan, main: Table, dedup: DedupTables, state: SweepState) -> StagedSweep:
        of = IndexOf.of_table(dedup.unique, plan.key_columns, plan.buckets)
        manifest = self.clock.timed("index", lambda: self._index_before(plan, dedup.unique, state, of))
        if not plan.records:
            return self._staged(plan, manifest, [], [])
        logger.info(
            "dedup of %s: plan %s: %s rows in %s files, %.1f MB, through snapshot %d; the key index has %s keys",
            self.name,
            plan.id,
            f"{plan.records:,}",
            f"{len(plan.files):,}",
            sum(file.size_bytes for file in plan.files) / 1e6,
            plan.end.snapshot_id,
            f"{manifest.keys:,}",
        )
        manifest, job, judged = self.clock.timed("judge", lambda: self._judge(plan, main, dedup, state, manifest))
        logger.info("dedup of %s: %s of these are duplicates; writing both kinds", self.name, f"{_marked(judged):,}")
        self.done("judged")
        marks = [found.marks for found in judged if found.marks is not None]
        written = self.clock.timed("write", lambda: self._write(job, marks, dedup))
        remove_objects(self.store, marks)
        self.figures = SweepFigures(judged, written)
        staged = self._staged(plan, manifest, judged, written)
        try:
            _check_sound(plan, judged, written)
        except SweepUnsound:
            discard(self.store, dedup, staged)
            raise
        return staged

    def _judge(
        self, plan: SweepPlan, main: Table, dedup: DedupTables, state: SweepState, manifest: Manifest
    ) -> tuple[Manifest, SweepJob, list[Judged]]:
        """What came of each range of the hash; again with another index, where that one was damaged."""
        known = plan.topic_partitions
        for attempt in range(_REBUILDS + 1):
            job = self._job(plan, main, dedup, manifest, known)
            found = self.execute.judge(job, cut_tasks(plan.files, self.settings.task_bytes, self.slots))
            judged = [result for result in found if isinstance(result, Judged)]
            if len(judged) == len(found):
                return manifest, job, judged
            self._take_back(judged)
            strange = [result for result in found if isinstance(result, UnknownTopicPartitions)]
            faults = [result for result in found if isinstance(result, WaybillError)]
            damage = [fault for fault in faults if isinstance(fault, IndexDamaged)]
            if strange:
                known = tuple(sorted({*known, *(tp for result in strange for tp in result.topic_partitions)}))
            elif damage and attempt < _REBUILDS:
                logger.warning("dedup of %s: the key index is damaged, it is built anew: %s", self.name, damage[0])
                self.rebuild_index = True
                manifest = self._index_before(plan, dedup.unique, state, manifest.of)
            else:
                raise faults[0]
        raise AssertionError("unreachable")

    def _job(
        self, plan: SweepPlan, main: Table, dedup: DedupTables, manifest: Manifest, known: tuple[TopicPartition, ...]
    ) -> SweepJob:
        return SweepJob(
            plan=plan,
            topic_partitions=known,
            storage=self.config.storage,
            catalog_connection=self.config.catalog.connection,
            main=TableLayout.of(main),
            unique=TableLayout.of(dedup.unique),
            duplicates=TableLayout.of(dedup.duplicates),
            secret=dedup.unique.metadata.table_uuid.bytes,
            judges=judges_for(plan.records, self.settings.memory, self.slots),
            index=self._index_prefix(dedup.unique),
            runs=manifest.runs,
            covers=manifest.covers,
            budget_bytes=self.settings.index_budget_bytes,
            memory_bytes=self.settings.memory,
        )

    def _write(self, job: SweepJob, marks: Sequence[str], dedup: DedupTables) -> list[Written]:
        locations = tuple(f"s3://{self.store.bucket}/{key}" for key in marks)
        tasks = cut_tasks(job.files, self.settings.task_bytes, self.slots)
        found = self.execute.write(job, tasks, locations)
        written = [result for result in found if isinstance(result, Written)]
        faults = [result for result in found if isinstance(result, WaybillError)]
        if faults:
            files = [file for result in written for file in (*result.unique_files, *result.duplicate_files)]
            remove_files(dedup.unique.io, [file.file_path for file in files])
            raise faults[0]
        return written

    def _take_back(self, judged: Sequence[Judged]) -> None:
        runs = [path for result in judged for run in result.runs for path in (run.path, run.filter_path)]
        remove_objects(self.store, [*runs, *(result.marks for result in judged if result.marks is not None)])

    def _staged(
        self, plan: SweepPlan, manifest: Manifest, judged: Sequence[Judged], written: Sequence[Written]
    ) -> StagedSweep:
        runs = tuple(run for result in judged for run in result.runs)
        watermarks = dict(plan.watermarks)
        for result in written:
            for tp, arrived_ms in result.arrived_ms.items():
                watermarks[tp] = max(watermarks.get(tp, arrived_ms), arrived_ms)
        horizon_ms = max(plan.horizon_ms, horizon_after(watermarks, plan.window_ms))
        horizon_ms = horizon_within((*manifest.runs, *runs), self.settings.index_budget_bytes, horizon_ms)
        assert plan.end.snapshot_id is not None
        return StagedSweep(
            self.run_id,
            [file for result in written for file in result.unique_files],
            [file for result in written for file in result.duplicate_files],
            SweepState(
                Swept(plan.main, plan.end.snapshot_id, plan.end.sequence), watermarks, horizon_ms, plan.beginning
            ),
            runs,
            manifest.covers,
        )

    # --- commit ---

    def _commit(self, plan: SweepPlan, dedup: DedupTables, staged: StagedSweep) -> Outcome:
        commit_duplicates(dedup, plan, staged)
        if staged.duplicate_files:
            self.done("duplicates_committed")
        return commit_unique(dedup.unique, plan, staged)

    # --- index ---

    def _index_prefix(self, unique: Table) -> str:
        return key_index_prefix(self.store.prefix, self.name, self.stream.generation, str(unique.metadata.table_uuid))

    def _index(self, unique: Table, state: SweepState, of: IndexOf) -> Manifest:
        """The index, with everything in it that the unique table has."""
        job = BuildJob.of_table(self._index_prefix(unique), of, unique, state.horizon_ms, self.settings)
        make = rebuild if self.rebuild_index else bring_up_to_date
        self.rebuild_index = False
        work = partial(index_task, self.config.storage, self.config.catalog.connection, job)
        return make(self.store, job, unique, for_each=self.execute.for_each, work=work)

    def _index_before(self, plan: SweepPlan, unique: Table, state: SweepState, of: IndexOf) -> Manifest:
        """The same, to judge the rows of a plan by. Raises `_Overtaken` if they are in it."""
        manifest = self._index(unique, state, of)
        if is_committed(unique, plan):  # by what the index was just made of
            raise _Overtaken
        return manifest

    def _move_index_on(self, plan: SweepPlan, unique: Table, staged: StagedSweep) -> None:
        """Add what the sweep kept. If that fails, the next sweep does it, from the unique table."""
        assert staged.state.swept is not None
        of = IndexOf.of_table(unique, plan.key_columns, plan.buckets)
        try:
            unique.refresh()
            point = point_of_sweep(unique, staged.state.swept)
            if point is None or point.snapshot_id is None:
                return
            sequence, snapshot_id = point.sequence, point.snapshot_id

            def with_rows(manifest: Manifest | None) -> Manifest | None:
                if manifest is None:
                    return None
                if not gains_nothing(unique, Point(manifest.covers_snapshot, manifest.covers), point):
                    return None
                return manifest.with_rows(staged.covers, sequence, snapshot_id, staged.runs, staged.state.horizon_ms)

            saved = update(self.store, self._index_prefix(unique), of, with_rows)
            self.index_figures = None if saved is None else (saved.keys, saved.size_bytes)
        except (WaybillError, OSError) as error:
            logger.warning("dedup of %s: the key index is left behind, the next sweep catches up: %s", self.name, error)

    # --- report ---

    def _report(
        self,
        outcome: RunOutcome,
        start: Point,
        plan: SweepPlan | None,
        staged: StagedSweep | None,
        state: SweepState,
    ) -> SweepReport:
        return SweepReport.of(
            stream=self.name,
            outcome=outcome,
            start=start,
            plan=plan,
            resumed=plan is not None and not self.made_plan,
            more=self.more,
            staged=staged,
            figures=self.figures,
            index=self.index_figures,
            state=state,
            seconds=self.clock.seconds(),
        )


def _check_plan(plan: SweepPlan, main: Table, start: Point) -> None:
    """Raise `PlanUnusable` if a plan that was found is of another history of the table than there is now."""
    is_in_history = any(snapshot.snapshot_id == plan.end.snapshot_id for snapshot in ancestry(main.metadata))
    if plan.main == str(main.metadata.table_uuid) and plan.start == start and is_in_history:
        return
    raise PlanUnusable(
        f"plan {plan.key} ends with snapshot {plan.end.snapshot_id} of table {'.'.join(main.name())}, which is not in "
        f"the history of its current snapshot: the table was rolled back since. Remove the object, and run again"
    )


def _marked(judged: Sequence[Judged]) -> int:
    return sum(of_range.candidates - of_range.kept for of_range in judged)


def _check_sound(plan: SweepPlan, judged: Sequence[Judged], written: Sequence[Written]) -> None:
    """Raise `SweepUnsound` unless each row of the plan came to one place, and to the right one."""
    rows, duplicates = sum(w.rows for w in written), sum(w.duplicates for w in written)
    marked = _marked(judged)
    if rows + duplicates != plan.records or duplicates != marked:
        raise SweepUnsound(plan.id, plan.records, rows, duplicates, marked)
