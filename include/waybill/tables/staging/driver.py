"""The driver of every run that stages data files first and commits them afterwards: partition, dedup, quarantine retry.

Two tables cannot be committed together, and a run may be killed at any line. So a run records each decision in an
object that is created if absent. A run that comes second, a rival or a retry after a crash, finds the object and
continues from there:

1. Plan: which input the run reads. The plan's object is named after the point where the run starts, so every run that
   starts there finds the same plan.
2. Stage: execute the plan's tasks, which write data files that no table references, then record these files. The first
   run that records them wins: its rivals delete their own files and continue with the recorded ones.
3. Commit: add the recorded files to the tables. A commit that a rival has made is skipped.

`run_staged_job` is this order. A `StagedJob` supplies the steps.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.base.documents import Document
from waybill.base.errors import ObjectExists, PlanUnusable
from waybill.services.store import Store
from waybill.tables.iceberg import CommitOutcome
from waybill.tables.staging.table_layout import FileEntry, load_data_files
from waybill.tables.staging.timing import StepClock

LEAST_TASK_BYTES = 32 << 20
"""Input bytes below which a task is not split only to use an idle executor slot, since each task writes separate
files."""

logger = logging.getLogger(__name__)

OnStep = Callable[[str], None]
"""Called with the name of each step right after it; the names are those of the failpoints."""


class RunOutcome(StrEnum):
    """How a run ended. Each is a success."""

    NOTHING_NEW = "nothing_new"
    COMMITTED = "committed"
    ADOPTED = "adopted"
    """Another run committed the same plan."""


class StoredPlan(Protocol):
    """The part of a plan that the driver reads."""

    @property
    def id(self) -> str:
        """Name the plan in log lines."""


class StagedFiles(Protocol):
    """The part of the recorded files that the driver reads."""

    @property
    def run_id(self) -> str:
        """Name the run that wrote the files."""


PlanT = TypeVar("PlanT", bound=StoredPlan)
StagedT = TypeVar("StagedT", bound=StagedFiles)


class StagedJob(Protocol[PlanT, StagedT]):
    """The steps of one run. Each may be called again by a retry or by a rival after any crash."""

    @property
    def label(self) -> str:
        """Name the run in log lines, such as `partition flights`."""

    def find_or_create_plan(self) -> PlanT | None:
        """Return the plan that starts where the tables are now; None if there is no input."""

    def find_staged(self, plan: PlanT) -> StagedT | None:
        """Return the files that an earlier run or a rival recorded for the plan, if any."""

    def execute(self, plan: PlanT) -> StagedT:
        """Run the plan's tasks, which write data files. Raise `NothingToCommit` to end the run without a commit."""

    def record_staged(self, plan: PlanT, staged: StagedT) -> bool:
        """Record the files unless the plan has files already. Return False if another run was first."""

    def discard(self, staged: StagedT) -> None:
        """Delete files of this run that were not recorded, so that nothing references them."""

    def commit(self, plan: PlanT, staged: StagedT) -> CommitOutcome:
        """Add the recorded files to the tables, unless a rival has added them."""


class NothingToCommit(Exception):
    """Raised by `StagedJob.execute` to end the run: `outcome` is the reported outcome."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class FinishedJob(Generic[PlanT, StagedT]):
    """How `run_staged_job` ended."""

    outcome: RunOutcome
    plan: PlanT | None
    """None: there was no input."""
    staged: StagedT | None
    """The files that were committed, by this run or by a rival; None if there was no commit."""


def run_staged_job(job: StagedJob[PlanT, StagedT], *, clock: StepClock, on_step: OnStep) -> FinishedJob[PlanT, StagedT]:
    """Plan, execute the tasks, record the staged files, commit. A retry or a rival finds every decision.

    Times the steps `plan`, `tasks` and `commit` by `clock`. Calls `on_step` with `planned`, `executed` (data files
    are written, not recorded), `staged` (recorded) and `committed`. Raises what the steps of `job` raise.
    """
    plan = clock.timed("plan", job.find_or_create_plan)
    if plan is None:
        return FinishedJob(RunOutcome.NOTHING_NEW, None, None)
    on_step("planned")
    try:
        staged = clock.timed("tasks", lambda: _find_or_stage(job, plan, on_step))
    except NothingToCommit as end:
        return FinishedJob(end.outcome, plan, None)
    on_step("staged")
    outcome = clock.timed("commit", lambda: job.commit(plan, staged))
    on_step("committed")
    return FinishedJob(RunOutcome(outcome), plan, staged)


def _find_or_stage(job: StagedJob[PlanT, StagedT], plan: PlanT, on_step: OnStep) -> StagedT:
    recorded = job.find_staged(plan)
    if recorded is not None:
        logger.info("%s: run %s has already executed plan %s", job.label, recorded.run_id, plan.id)
        return recorded
    own = job.execute(plan)
    on_step("executed")
    if job.record_staged(plan, own):
        return own
    logger.info("%s: another run executed plan %s first; committing its files", job.label, plan.id)
    job.discard(own)
    recorded = job.find_staged(plan)
    assert recorded is not None  # recorded objects are removed only by maintenance, long after the commit
    return recorded


# --- runs one after the other ---


class _Report(Protocol):
    @property
    def resumed(self) -> bool: ...

    @property
    def more(self) -> bool: ...


_ReportT = TypeVar("_ReportT", bound=_Report)


def repeat_while_more(
    run: Callable[[], _ReportT], run_again: Callable[[], _ReportT] | None = None
) -> Iterator[_ReportT]:
    """Yield the report of `run`, then those of `run_again` (by default `run`) until no input is left.

    One run may leave input behind: a plan is bounded (`more`), and the plan of an earlier run that was `resumed` ends
    where the input ended at that time.
    """
    while True:
        report = run()
        yield report
        if not (report.resumed or report.more):
            return
        run = run_again or run


# --- objects that are created if absent ---


class _JsonDocument(Protocol):
    def to_json(self) -> bytes: ...


_DocumentT = TypeVar("_DocumentT", bound=_JsonDocument)


def find_or_create(
    store: Store, key: str, parse: Callable[[str, bytes], _DocumentT], make: Callable[[], _DocumentT | None]
) -> _DocumentT | None:
    """Return the plan stored under `key`; without one, store and return what `make` returns, None for no input.

    `parse` is called with key and content. If a rival creates the object in the meantime, return the rival's plan.
    """
    found = store.read_if_exists(key)
    if found is None:
        plan = make()
        if plan is None:
            return None
        try:
            store.create_if_absent(key, plan.to_json())
        except ObjectExists:
            found = store.read_if_exists(key)
        else:
            return plan
    return None if found is None else parse(key, found)


def record_staged_document(store: Store, key: str, document: Document, fields: Mapping[str, Any]) -> bool:
    """Record what the run `fields["run"]` staged. Return False if another run recorded its files first."""
    existing = store.create_or_read_existing(key, document.write(fields))
    # The object may be our own: a create whose response was lost is sent again, and refused.
    return existing is None or bool(json.loads(existing)["run"] == fields["run"])


def staged_files(table: Table, entries: Sequence[FileEntry], key: str) -> list[DataFile]:
    """Return the data files of `table` that object `key` lists. Raise `PlanUnusable` when one no longer exists."""
    try:
        return load_data_files(table, entries)
    except FileNotFoundError as error:
        raise PlanUnusable(
            f"{key} lists a data file that no longer exists: {error}. To execute the plan again, remove this object "
            f"and run again"
        ) from error
