"""The driver of a dedup sweep: plan, find duplicates, write, commit, extend the key index.

1. Read from the unique table through which snapshot the stream's table has been swept.
2. Find the plan that starts there, or make one and create its object if absent.
3. Find the files recorded for the plan, or run its tasks and record their files.
4. Commit the duplicates, then the unique rows, each with the new position.
5. Add the kept keys to the key index. If this fails, the next sweep adds them from the unique table.

If the rows of the stream's table were replaced, all of this works on a branch of the unique table and the duplicates
table, which begins empty, until the branch is published (`waybill.tables.dedup.rebuild`).

A run that fails at any step leaves only its plan and its record: the next run starts at step 1 and finds them. Steps 2
to 4 are those of `waybill.tables.staging.driver`.

Between the two commits the duplicates table is ahead of the unique table. So readers take duplicates into account only
up to the position of the unique table.
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

from waybill.base import failpoints
from waybill.base.errors import CommitConflict, ConfigError, PlanUnusable, SweepUnsound, WaybillError
from waybill.config.models import Config, Dedup, Stream
from waybill.config.names import history_name, sweep_plan_key
from waybill.services.store import Store
from waybill.tables.dedup.appends import TABLE_START, TablePosition, scan_appends, snapshots_since
from waybill.tables.dedup.commit import (
    StagedSweep,
    commit_duplicates,
    commit_unique,
    discard_staged_sweep,
    find_staged_sweep,
    is_committed,
    record_staged_sweep,
    remove_objects,
)
from waybill.tables.dedup.execute import Execute, match_all, write_all
from waybill.tables.dedup.first_sweep import check_range, check_since, format_first_sweep_start
from waybill.tables.dedup.index.manifest import IndexIdentity, Manifest
from waybill.tables.dedup.key_index import KeyIndex
from waybill.tables.dedup.rebuild import find_change, follow_main, give_up_rebuilds, publish_if_current
from waybill.tables.dedup.status import DedupWindow, window_alert
from waybill.tables.dedup.sweep_plan import SweepPlan, epoch_ms
from waybill.tables.dedup.sweep_report import SweepReport, TaskResults
from waybill.tables.dedup.tasks import SweepJob, WrittenFiles, count_hash_ranges, cut_tasks
from waybill.tables.iceberg import (
    CommitOutcome,
    FirstSweepStart,
    SweepState,
    ensure_dedup_tables,
    is_live,
    load_tables,
    read_progress,
    read_sweep_state,
    translate_storage_errors,
)
from waybill.tables.iceberg.state import ancestry
from waybill.tables.staging.driver import (
    NothingToCommit,
    OnStep,
    RunOutcome,
    find_or_create,
    repeat_while_more,
    run_staged_job,
)
from waybill.tables.staging.services import StagingServices, services_of
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.timing import StepClock

logger = logging.getLogger(__name__)


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
    merge_index: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = _reach,
    slots: int = 1,
    services: StagingServices | None = None,
) -> SweepReport:
    """Sweep the rows appended to the table of stream `name` since the last sweep: keep each key once per window.

    `execute` runs the tasks, on Spark or in this process, `slots` of them at a time. `since`: the first sweep
    permanently leaves out rows that were committed before this time (`waybill.tables.dedup.first_sweep`). `until`: a
    plan that this run makes ends with the rows that were committed by this time. `rebuild_index`: rebuild the key index
    first. `merge_index`: merge small sorted runs of it afterwards. `services`: those to use; by default the sweep opens
    and closes its own.

    Raises `SweepHistoryLost`, `ProgressLost`, `PlanUnusable`, `DamagedFile`, `SweepUnsound`, `CommitConflict`,
    `ConfigError`, or one of the retriable `StoreUnavailable` and `CatalogUnavailable`. After any of these, a later run
    continues as if this one had not run.
    """
    stream = config.stream(name)
    if stream.dedup is None:
        raise ConfigError(f"stream {name!r} has no dedup: add a section `dedup` to it in the config ({{}} is enough)")
    options = _Options(since, until, rebuild_index, merge_index, slots)
    with services_of(config, services) as opened, translate_storage_errors():
        of_stream = _Services(config, name, stream, stream.dedup, opened.store, opened.catalog)
        return _sweep_once(of_stream, options, _Runtime(execute, now, on_step))


def run_all_sweeps(
    config: Config,
    name: str,
    execute: Execute,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    rebuild_index: bool = False,
    merge_index: bool = False,
    slots: int = 1,
    services: StagingServices | None = None,
) -> Iterator[SweepReport]:
    """Yield the reports of `run_sweep`, repeated until no rows are left.

    A plan may be limited in size, or made by an earlier run.

    Raises what `run_sweep` raises, and `ConfigError` for a range that `waybill.tables.dedup.first_sweep.check_range`
    refuses.
    """
    check_range(since, until, datetime.now(UTC))
    later = partial(
        run_sweep, config, name, execute, until=until, merge_index=merge_index, slots=slots, services=services
    )
    yield from repeat_while_more(partial(later, since=since, rebuild_index=rebuild_index), later)


# --- one sweep ---


@dataclass(frozen=True, slots=True)
class _Services:
    """The stream, and the services that hold its data."""

    config: Config
    name: str
    stream: Stream
    settings: Dedup
    store: Store
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of the caller."""

    since: datetime | None
    until: datetime | None
    rebuild_index: bool
    merge_index: bool
    slots: int


@dataclass(frozen=True, slots=True)
class _Runtime:
    """The executor of tasks, and the clock, steps and id of this sweep run."""

    execute: Execute
    now: Callable[[], datetime]
    on_step: OnStep
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    clock: StepClock = field(default_factory=StepClock)


def _sweep_once(services: _Services, options: _Options, runtime: _Runtime) -> SweepReport:
    tables = load_tables(services.catalog, services.stream)
    if tables is None or not is_live(tables.main.metadata, services.stream.generation):
        why = "the stream's table does not exist yet" if tables is None else "its generation is not live"
        logger.info("dedup %s: %s", services.name, why)
        return SweepReport.of(
            stream=services.name,
            outcome=RunOutcome.NOTHING_NEW,
            start=TABLE_START,
            plan=None,
            resumed=False,
            more=False,
            staged=None,
            results=TaskResults(),
            index=None,
            state=SweepState(),
            seconds=runtime.clock.seconds(),
        )
    sweep = _Sweep(services, options, runtime, tables.main)
    finished = run_staged_job(sweep, clock=runtime.clock, on_step=runtime.on_step)
    if finished.plan is None and options.rebuild_index:
        runtime.clock.timed("index", sweep.rebuild_index)
    if finished.plan is not None and finished.staged is not None:
        plan, staged = finished.plan, finished.staged
        runtime.clock.timed("index_on", lambda: sweep.extend_index(plan, staged))
        runtime.on_step("index_saved")
        if options.merge_index:
            runtime.clock.timed("merge", lambda: sweep.merge_index(plan, staged))
    sweep.publish_rebuild()
    return sweep.report(finished.outcome, finished.plan, finished.staged)


class _Sweep:
    """The steps of one sweep: a `waybill.tables.staging.driver.StagedJob`."""

    def __init__(self, services: _Services, options: _Options, runtime: _Runtime, main: Table) -> None:
        self._services = services
        self._options = options
        self._runtime = runtime
        self._main = main
        shown = ensure_dedup_tables(services.catalog, services.stream, main)
        self._dedup = follow_main(main, shown, runtime.on_step)
        history = self._dedup.unique.history_id
        self._rebuild = None if history == shown.unique.history_id else history
        """The rebuild that the sweep is a part of."""
        self._published = False
        self._state = _read_state(self._dedup.unique)
        """The state before the sweep."""
        swept = self._state.swept
        self._start = TABLE_START if swept is None else TablePosition(swept.snapshot, swept.sequence)
        self._made_plan = False
        self._more = False
        self._results = TaskResults()
        self._extended_index: Manifest | None = None

    @property
    def label(self) -> str:
        return f"dedup {self._services.name}"

    # --- plan ---

    def find_or_create_plan(self) -> SweepPlan | None:
        services, main = self._services, self._main
        if self._start != TABLE_START:
            self._check_since(self._state.beginning, self._start)
        unique = self._dedup.unique
        history = history_name(str(unique.metadata.table_uuid), unique.history_id)
        generation = services.stream.generation
        key = sweep_plan_key(services.store.prefix, services.name, generation, history, self._start.sequence)
        plan = find_or_create(services.store, key, SweepPlan.from_json, lambda: self._make_plan(key))
        if plan is None:
            return None
        if not self._made_plan:
            # The rival that made the plan may have a newer config, and have added columns to the tables.
            main.refresh()
            self._dedup = ensure_dedup_tables(services.catalog, services.stream, main).at(unique.history_id)
        self._check_history(plan)
        if self._start == TABLE_START:
            self._check_first_plan(plan)
        return plan

    def _make_plan(self, key: str) -> SweepPlan | None:
        services, options, main, state = self._services, self._options, self._main, self._state
        self._made_plan = True
        appended = scan_appends(
            main,
            self._start,
            run_bytes=services.settings.run_bytes,
            since_ms=None if options.since is None else epoch_ms(options.since),
            until_ms=None if options.until is None else epoch_ms(options.until),
        )
        if appended is None:
            return None
        self._more = appended.more
        created_at = self._runtime.now()
        topic_partitions = {*read_progress(main.metadata, ".".join(main.name())), *state.watermarks}
        return SweepPlan(
            key=key,
            stream=services.name,
            generation=services.stream.generation,
            created_at=created_at,
            main=str(main.metadata.table_uuid),
            start=self._start,
            end=appended.end,
            files=appended.files,
            topic_partitions=tuple(sorted(topic_partitions)),
            watermarks=state.watermarks,
            window_ms=services.settings.window_ms,
            horizon_ms=state.horizon_ms,
            key_columns=services.settings.key,
            source=services.settings.source,
            buckets=services.settings.buckets,
            beginning=appended.beginning or state.beginning,
            rebuild=self._dedup.unique.history_id,
        )

    def _check_history(self, plan: SweepPlan) -> None:
        """Raise `PlanUnusable` if the table's history does not contain the range of a plan that was found.

        If the table's rows were replaced, raises `CommitConflict`: the next sweep follows the replacement.
        """
        main = self._main
        is_in_history = any(snapshot.snapshot_id == plan.end.snapshot_id for snapshot in ancestry(main.metadata))
        if plan.main == str(main.metadata.table_uuid) and plan.start == self._start and is_in_history:
            return
        if self._rebuild is not None:
            give_up_rebuilds(self._dedup)
        if self._rebuild is not None or find_change(main, self._dedup) is not None:
            raise CommitConflict(
                f"plan {plan.key} has rows that {'.'.join(main.name())} does not show any more: they were replaced "
                f"while the plan was executed. Run again"
            )
        raise PlanUnusable(
            f"plan {plan.key} ends with snapshot {plan.end.snapshot_id} of table {'.'.join(main.name())}, which is not "
            f"in the history of its current snapshot: the table was rolled back since. Remove the object, and run again"
        )

    def _check_first_plan(self, plan: SweepPlan) -> None:
        """Raise `ConfigError` if the first sweep's plan, perhaps made by another run, is for another `since`."""
        beginning = plan.beginning
        after = TABLE_START if beginning is None else TablePosition(beginning.snapshot, beginning.sequence)
        self._check_since(beginning, after, planned=True)
        if beginning is not None:
            logger.info("%s: %s", self.label, format_first_sweep_start(beginning))

    def _check_since(self, beginning: FirstSweepStart | None, start: TablePosition, *, planned: bool = False) -> None:
        """Raise `ConfigError` if a sweep that continues from `start` cannot respect `since`."""
        if self._options.since is not None:
            unswept = snapshots_since(self._main, start)
            check_since(self._main, epoch_ms(self._options.since), beginning, unswept, planned=planned)

    # --- tasks ---

    def find_staged(self, plan: SweepPlan) -> StagedSweep | None:
        return find_staged_sweep(self._services.store, plan, self._dedup)

    def execute(self, plan: SweepPlan) -> StagedSweep:
        """Find the duplicates among the plan's rows and write all rows, each to one of the two tables.

        Raises `NothingToCommit` if a rival has committed the plan.
        """
        store, settings, slots = self._services.store, self._services.settings, self._options.slots
        execute, clock = self._runtime.execute, self._runtime.clock
        manifest = clock.timed("index", lambda: self._index_before(plan, rebuild=self._options.rebuild_index))
        job = self._job(plan, manifest)
        if not plan.records:
            return StagedSweep.of(job, self._runtime.id, [], [])
        logger.info(
            "%s: plan %s: %s rows in %s files, %.1f MB, through snapshot %d; the key index has %s keys",
            self.label,
            plan.id,
            f"{plan.records:,}",
            f"{len(plan.files):,}",
            plan.size_bytes / 1e6,
            plan.end.snapshot_id,
            f"{manifest.keys:,}",
        )
        tasks = cut_tasks(plan.files, settings.task_bytes, slots)
        rebuild = partial(self._index_before, plan, rebuild=True)
        job, matched = clock.timed("judge", lambda: match_all(execute, store, job, tasks, rebuild))
        duplicates = sum(result.duplicates for result in matched)
        logger.info("%s: %s of these rows are duplicates; writing both kinds", self.label, f"{duplicates:,}")
        self._runtime.on_step("matched")
        lists = [result.duplicate_list for result in matched if result.duplicate_list is not None]
        written = clock.timed("write", lambda: write_all(execute, store, self._dedup, job, tasks, lists))
        remove_objects(store, lists)
        self._results = TaskResults(matched, written)
        staged = StagedSweep.of(job, self._runtime.id, matched, written)
        try:
            _check_each_row_written_once(plan, duplicates, written)
        except SweepUnsound:
            self.discard(staged)
            raise
        return staged

    def _job(self, plan: SweepPlan, manifest: Manifest) -> SweepJob:
        config, settings = self._services.config, self._services.settings
        return SweepJob(
            plan=plan,
            topic_partitions=plan.topic_partitions,
            storage=config.storage,
            catalog_connection=config.catalog.connection,
            main=TableLayout.of(self._main),
            unique=TableLayout.of(self._dedup.unique),
            duplicates=TableLayout.of(self._dedup.duplicates),
            secret=self._dedup.unique.metadata.table_uuid.bytes,
            hash_ranges=count_hash_ranges(plan.records, settings.memory, self._options.slots),
            index=self._key_index(manifest.identity).prefix,
            runs=manifest.runs,
            covers=manifest.covers,
            budget_bytes=settings.index_budget_bytes,
            memory_bytes=settings.memory,
        )

    def record_staged(self, plan: SweepPlan, staged: StagedSweep) -> bool:
        return record_staged_sweep(self._services.store, plan, staged)

    def discard(self, staged: StagedSweep) -> None:
        discard_staged_sweep(self._services.store, self._dedup, staged)

    # --- commit ---

    def commit(self, plan: SweepPlan, staged: StagedSweep) -> CommitOutcome:
        commit_duplicates(self._dedup, plan, staged)
        if staged.duplicate_files:
            self._runtime.on_step("duplicates_committed")
        return commit_unique(self._dedup.unique, plan, staged)

    def publish_rebuild(self) -> None:
        """If the sweep belongs to a rebuild that has reached the end of the table, publish the rebuild."""
        if self._rebuild is not None:
            self._published = publish_if_current(self._main, self._dedup, self._runtime.on_step)

    # --- key index ---

    def rebuild_index(self) -> None:
        """Rebuild the key index with the present config, if there is nothing to sweep."""
        settings = self._services.settings
        index = self._key_index(IndexIdentity.of_table(self._dedup.unique, settings.key, settings.buckets))
        index.bring_up_to_date(self._state.horizon_ms, rebuild=True, for_each=self._runtime.execute.for_each)

    def extend_index(self, plan: SweepPlan, staged: StagedSweep) -> None:
        """Add the keys that the sweep kept. If this fails, the next sweep adds them from the unique table."""
        try:
            self._extended_index = self._key_index(self._identity_of(plan)).add_sweep(staged)
        except (WaybillError, OSError) as error:
            logger.warning("%s: the key index stays behind, the next sweep catches up: %s", self.label, error)

    def merge_index(self, plan: SweepPlan, staged: StagedSweep) -> None:
        """Merge small sorted runs. If this fails, the merge after the next sweep merges them."""
        try:
            self._extended_index = self._key_index(self._identity_of(plan)).merge(staged.state)
        except (WaybillError, OSError) as error:
            logger.warning("%s: no sorted runs are merged, the next sweep does it: %s", self.label, error)

    def _index_before(self, plan: SweepPlan, *, rebuild: bool) -> Manifest:
        """Return the key index of all rows before the plan's.

        Raises `NothingToCommit` if a rival has committed the plan: then the index has the plan's rows, and each of
        these rows would seem to be a duplicate of itself.
        """
        index = self._key_index(self._identity_of(plan))
        for_each = self._runtime.execute.for_each
        manifest = index.bring_up_to_date(self._state.horizon_ms, rebuild=rebuild, for_each=for_each)
        if is_committed(self._dedup.unique, plan):  # the table after its refresh for the index
            logger.info("%s: another run has committed plan %s", self.label, plan.id)
            raise NothingToCommit(RunOutcome.ADOPTED)
        return manifest

    def _identity_of(self, plan: SweepPlan) -> IndexIdentity:
        return IndexIdentity.of_table(self._dedup.unique, plan.key_columns, plan.buckets)

    def _key_index(self, identity: IndexIdentity) -> KeyIndex:
        services = self._services
        return KeyIndex.of(services.config, services.name, services.store, self._dedup.unique, identity)

    # --- report ---

    def report(self, outcome: RunOutcome, plan: SweepPlan | None, staged: StagedSweep | None) -> SweepReport:
        index, settings = self._extended_index, self._services.settings
        alert = None
        if staged is not None and index is not None:
            alert = window_alert(self._services.name, settings, DedupWindow.of(staged.state, settings), index)
        return SweepReport.of(
            stream=self._services.name,
            outcome=outcome,
            start=self._start,
            plan=plan,
            resumed=plan is not None and not self._made_plan,
            more=self._more,
            staged=staged,
            results=self._results,
            index=None if index is None else (index.keys, index.size_bytes),
            state=_read_state(self._dedup.unique) if staged is None else staged.state,
            seconds=self._runtime.clock.seconds(),
            alert=alert,
            rebuild=self._rebuild,
            published=self._published,
        )


def _read_state(unique: Table) -> SweepState:
    return read_sweep_state(unique.metadata, ".".join(unique.name()))


def _check_each_row_written_once(plan: SweepPlan, duplicates: int, written: Sequence[WrittenFiles]) -> None:
    """Raise `SweepUnsound` unless the tables get all rows of the plan, and as many duplicates as were found."""
    rows, written_duplicates = sum(w.rows for w in written), sum(w.duplicates for w in written)
    if rows + written_duplicates != plan.records or written_duplicates != duplicates:
        raise SweepUnsound(plan.id, plan.records, rows, written_duplicates, duplicates)
