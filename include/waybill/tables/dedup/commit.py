"""The staged results of a sweep (files of both tables, the state after it, sorted runs), and their commit.

Two tables cannot be committed together. So the first run that executed a plan records its files in an object that is
created if absent. A rival, or a retry after a crash between the two commits, commits these files instead of its own.

Each commit adds rows and the swept position of the stream's table in one snapshot, as a partition run does
(`waybill.tables.iceberg.commit`). It is refused on top of a snapshot that is no longer the table's current one. Then
the position is read again: still at the plan's start, another snapshot came first (a compaction), so the commit is
repeated; at the plan's end or beyond, a rival has committed the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.base.documents import Document
from waybill.base.errors import CommitConflict, PlanUnusable, SweepHistoryLost, WaybillError
from waybill.config.names import TopicPartition, staged_key
from waybill.services.store import Store
from waybill.tables.dedup.appends import TablePosition
from waybill.tables.dedup.index.manifest import horizon_within
from waybill.tables.dedup.index.sorted_runs import SortedRun
from waybill.tables.dedup.sweep_plan import SweepPlan, horizon_after
from waybill.tables.dedup.tasks import MatchedRange, SweepJob, WrittenFiles
from waybill.tables.iceberg import CommitOutcome, DedupTables, commit_snapshot, commit_with_retry, remove_files
from waybill.tables.iceberg.dedup import (
    DUPLICATES_PROPERTY,
    NO_HORIZON_MS,
    ROWS_PROPERTY,
    SweepPosition,
    SweepState,
    read_sweep_position,
    sweep_position_text,
    sweep_properties,
)
from waybill.tables.iceberg.histories import TableHistory
from waybill.tables.iceberg.state import (
    PLAN_PROPERTY,
    RUN_PROPERTY,
    SWEEP_REBUILD_PROPERTY,
    SWEPT_PROPERTY,
    ancestry,
    metadata_as_of,
)
from waybill.tables.staging.driver import record_staged_document, staged_files
from waybill.tables.staging.table_layout import file_entries

_DOCUMENT = Document(
    "{where} cannot be read ({error}): remove the object, and run again",
    remedy="Let the Waybill that wrote it commit it, or remove the object, and run again",
)
_THREADS = 4  # waits for S3, not for the CPU


# --- staged ---


@dataclass(frozen=True, slots=True)
class StagedSweep:
    """The files of a plan, and the state of the tables and the index once they are committed."""

    run_id: str
    unique_files: Sequence[DataFile]
    duplicate_files: Sequence[DataFile]
    state: SweepState
    """The state after the sweep."""
    runs: tuple[SortedRun, ...]
    """The kept keys."""
    covers: int
    """Sequence number of the unique table up to which the index had all rows when duplicates were searched."""

    @classmethod
    def of(
        cls, job: SweepJob, run_id: str, matched: Sequence[MatchedRange], written: Sequence[WrittenFiles]
    ) -> StagedSweep:
        """Collect the results of a job's tasks, and compute the state after the sweep."""
        plan = job.plan
        runs = tuple(run for result in matched for run in result.runs)
        watermarks = dict(plan.watermarks)
        for result in written:
            for tp, arrived_ms in result.arrived_ms.items():
                watermarks[tp] = max(watermarks.get(tp, arrived_ms), arrived_ms)
        horizon_ms = max(plan.horizon_ms, horizon_after(watermarks, plan.window_ms))
        horizon_ms = horizon_within((*job.runs, *runs), job.budget_bytes, horizon_ms)
        return cls(
            run_id,
            [file for result in written for file in result.unique_files],
            [file for result in written for file in result.duplicate_files],
            SweepState(_position_after(plan), watermarks, horizon_ms, plan.beginning),
            runs,
            job.covers,
        )

    @property
    def rows(self) -> int:
        """Return the number of kept rows."""
        return sum(file.record_count for file in self.unique_files)

    @property
    def duplicates(self) -> int:
        return sum(file.record_count for file in self.duplicate_files)


def find_staged_sweep(store: Store, plan: SweepPlan, tables: DedupTables) -> StagedSweep | None:
    """Return the staged sweep of a plan; None if no run has recorded its files.

    Raises `PlanUnusable` when a staged file does not exist any more, or when the record is of another plan;
    `DocumentTooNew` when a newer version of Waybill wrote the document, `DocumentDamaged` when it cannot be parsed.
    """
    key = staged_key(plan.key)
    found = store.read_if_exists(key)
    if found is None:
        return None
    try:
        document = _DOCUMENT.read(found, key)
        if document["plan"] != plan.digest:
            raise PlanUnusable(
                f"{key} belongs to another plan than {plan.key} is now: one of the two was replaced by hand. Remove "
                f"{key}, and run again"
            )
        state = _parse_state(plan, document["state"])
        runs = tuple(SortedRun(**fields) for fields in document["runs"])
        return StagedSweep(
            document["run"],
            staged_files(tables.unique, document["unique"], key),
            staged_files(tables.duplicates, document["duplicates"], key),
            state,
            runs,
            document["covers"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DOCUMENT.damage(key, error) from error


def record_staged_sweep(store: Store, plan: SweepPlan, staged: StagedSweep) -> bool:
    """Record the files of a plan. Return False if another run has recorded its files first."""
    state = staged.state
    fields = {
        "plan": plan.digest,
        "run": staged.run_id,
        "unique": file_entries(staged.unique_files),
        "duplicates": file_entries(staged.duplicate_files),
        "state": {
            "watermarks": {str(tp): at for tp, at in sorted(state.watermarks.items())},
            "horizon_ms": None if state.horizon_ms == NO_HORIZON_MS else state.horizon_ms,
        },
        "runs": [asdict(run) for run in staged.runs],
        "covers": staged.covers,
    }
    return record_staged_document(store, staged_key(plan.key), _DOCUMENT, fields)


def discard_staged_sweep(store: Store, tables: DedupTables, staged: StagedSweep) -> None:
    """Remove the files of a run whose record was refused. No table and no manifest has ever referenced them."""
    remove_files(tables.unique.io, [file.file_path for file in (*staged.unique_files, *staged.duplicate_files)])
    remove_objects(store, [path for run in staged.runs for path in (run.path, run.filter_path)])


def remove_objects(store: Store, keys: Sequence[str]) -> None:
    """Remove objects that nothing references. Errors are ignored: maintenance removes the remaining objects."""

    def remove(key: str) -> None:
        with suppress(WaybillError):
            store.remove(key)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(remove, keys))


def _parse_state(plan: SweepPlan, document: Mapping[str, Any]) -> SweepState:
    horizon_ms = document["horizon_ms"]
    return SweepState(
        swept=_position_after(plan),
        watermarks={TopicPartition.parse(tp): int(at) for tp, at in document["watermarks"].items()},
        horizon_ms=NO_HORIZON_MS if horizon_ms is None else int(horizon_ms),
        beginning=plan.beginning,
    )


def _position_after(plan: SweepPlan) -> SweepPosition:
    assert plan.end.snapshot_id is not None  # a plan has at least one snapshot
    return SweepPosition(plan.main, plan.end.snapshot_id, plan.end.sequence)


# --- commit ---


def commit_duplicates(tables: DedupTables, plan: SweepPlan, staged: StagedSweep) -> CommitOutcome:
    """Add the duplicates of a sweep. The table may be behind the plan's start: not every sweep has duplicates.

    Call it without duplicates too: it detects duplicates of another plan beyond this plan's start, which would become
    final with this sweep.

    Raises `SweepHistoryLost` when it finds any; `CommitConflict`, `CatalogUnavailable`.
    """
    assert staged.state.swept is not None
    table = tables.duplicates
    properties = {
        SWEPT_PROPERTY: sweep_position_text(staged.state.swept),
        DUPLICATES_PROPERTY: str(staged.duplicates),
        **_origin(plan, staged),
    }

    def attempt() -> CommitOutcome | None:
        branch = _branch_of(table, plan)
        beyond = list(_commits_beyond(table, plan))
        within_plan = [found for found in beyond if found.swept.sequence <= plan.end.sequence]
        is_foreign = not all(_is_of_same_run(found, properties) for found in within_plan)
        if is_foreign or (beyond and not within_plan and staged.duplicates):
            _check_unique_is_ahead(tables, plan, beyond[-1].swept)
            return CommitOutcome.ADOPTED
        if within_plan or not staged.duplicates:
            return CommitOutcome.ADOPTED
        added = staged.duplicate_files
        return CommitOutcome.COMMITTED if commit_snapshot(table, properties, added=added, branch=branch) else None

    return commit_with_retry(table, attempt)


def commit_unique(table: TableHistory, plan: SweepPlan, staged: StagedSweep) -> CommitOutcome:
    """Add the kept rows of a sweep, and the state after it. Raises `CommitConflict`, `CatalogUnavailable`."""
    properties = {
        **sweep_properties(staged.state),
        ROWS_PROPERTY: str(staged.rows),
        DUPLICATES_PROPERTY: str(staged.duplicates),
        **_origin(plan, staged),
    }

    def attempt() -> CommitOutcome | None:
        if is_committed(table, plan):
            return CommitOutcome.ADOPTED
        added, branch = staged.unique_files, _branch_of(table, plan)
        if any(file.spec_id != table.spec().spec_id for file in added):  # PyIceberg would write the new one
            raise CommitConflict(
                f"table {'.'.join(table.name())} got another partitioning while plan {plan.key} was executed, as after "
                f"the promotion of a generation. Run again"
            )
        return CommitOutcome.COMMITTED if commit_snapshot(table, properties, added=added, branch=branch) else None

    return commit_with_retry(table, attempt)


def is_committed(unique: TableHistory, plan: SweepPlan) -> bool:
    """Return whether the loaded unique table has the plan's rows; False if it is at the plan's start.

    Raises `CommitConflict` when neither is true.
    """
    _branch_of(unique, plan)
    name = ".".join(unique.name())
    found = read_sweep_position(unique.metadata, name)
    sequence = 0 if found is None else found.sequence
    if found is None or found.main == plan.main:
        if sequence == plan.start.sequence:
            return False
        # Sweeps of one table form a sequence: each starts where the previous one ended.
        if sequence >= plan.end.sequence:
            return True
    raise CommitConflict(
        f"table {name} is swept through {'nothing' if found is None else found}, neither where plan {plan.key} starts "
        f"nor at its end or beyond: it was rolled back, or written by another program, while the plan was executed. "
        f"Run again"
    )


def _branch_of(table: TableHistory, plan: SweepPlan) -> str:
    """Return the branch that shows the history which the plan extends. Raises `CommitConflict` if there is none."""
    assert table.history_id == plan.rebuild
    if table.ref is None:
        raise CommitConflict(
            f"table {'.'.join(table.name())} no longer has the history that plan {plan.key} extends: a rebuild was "
            f"published or given up while the plan was executed. Run again"
        )
    return table.ref


def position_of_sweep(unique: Table, swept: SweepPosition) -> TablePosition | None:
    """Return the position of the snapshot that a sweep committed; None: it is not in the table's history any more."""
    text = sweep_position_text(swept)
    found = [
        TablePosition(snapshot.snapshot_id, snapshot.sequence_number or 0)
        for snapshot in ancestry(unique.metadata)
        if snapshot.summary and snapshot.summary.additional_properties.get(SWEPT_PROPERTY) == text
    ]
    # Later snapshots can repeat the property: maintenance copies the state before older ones expire.
    return min(found, key=lambda position: position.sequence, default=None)


def _origin(plan: SweepPlan, staged: StagedSweep) -> dict[str, str]:
    history = {} if plan.rebuild is None else {SWEEP_REBUILD_PROPERTY: plan.rebuild}
    return {PLAN_PROPERTY: plan.id, "waybill.stream": plan.stream, RUN_PROPERTY: staged.run_id, **history}


@dataclass(frozen=True, slots=True)
class _DuplicatesCommit:
    """A snapshot of the duplicates table that a sweep committed."""

    swept: SweepPosition
    properties: Mapping[str, str]


def _commits_beyond(duplicates: Table, plan: SweepPlan) -> Iterator[_DuplicatesCommit]:
    """Yield the sweeps' snapshots of the duplicates table beyond the plan's start, the newest first."""
    name = ".".join(duplicates.name())
    for snapshot in ancestry(duplicates.metadata):
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        if SWEPT_PROPERTY not in properties:
            continue
        swept = read_sweep_position(metadata_as_of(duplicates.metadata, snapshot), name)
        if swept is None or (swept.main == plan.main and swept.sequence <= plan.start.sequence):
            return
        yield _DuplicatesCommit(swept, properties)


def _is_of_same_run(found: _DuplicatesCommit, properties: Mapping[str, str]) -> bool:
    """Return whether the run with these properties made the commit, not a run of another plan with the same start."""
    # Older versions of Waybill left out the run when they copied the state before snapshots expired.
    is_run = found.properties.get(RUN_PROPERTY) in (None, properties[RUN_PROPERTY])
    return is_run and found.properties[SWEPT_PROPERTY] == properties[SWEPT_PROPERTY]


def _check_unique_is_ahead(tables: DedupTables, plan: SweepPlan, found: SweepPosition) -> None:
    """Raise `SweepHistoryLost` unless the unique table has this plan or a later one, which a rival committed."""
    tables.unique.refresh()  # after the duplicates were loaded: a rival commits those first
    if is_committed(tables.unique, plan):
        return
    name = ".".join(tables.duplicates.name())
    raise SweepHistoryLost(
        f"table {name} has the duplicates of a sweep through snapshot {found.snapshot} (sequence number "
        f"{found.sequence}), but {'.'.join(tables.unique.name())} has no rows of it, nor has plan {plan.key}: one of "
        f"the two tables was rolled back or dropped, or the plan was removed. Roll {name} back to its last snapshot "
        f"whose {SWEPT_PROPERTY} has a sequence number of {plan.start.sequence} or less, or drop both, and the next "
        f"sweep starts from what the main table holds now"
    )
