"""A retry of a quarantine: parse rows again, and move the messages that can be read now to the stream's table.

`waybill.tables.staging.driver.run_staged_job` is the order of the steps; `_RetryJob` supplies them. The plan is the
number of the next retry:

1. Find the retry with this number, if a process has recorded it and not finished. Then finish that one.
2. Else parse the selected rows again, write those that can be read now to data files of the table, audit these, and
   record the retry with its audit in an object that is created if absent. If a critical check fails, the retry ends
   here, and nothing is recorded or committed.
3. Commit the files to the table, together with the number of the retry, in one snapshot.
4. Drop the rows from the quarantine, and store the number of the retry there too, in one snapshot.

Between 3 and 4 the rows are in both tables: readers of the quarantine leave out the rows of those retries whose numbers
the table has and the quarantine does not. After a crash at any line the next retry, or maintenance, continues at 1.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.base import failpoints
from waybill.base.errors import CommitConflict, ConfigError, PlanUnusable
from waybill.config.models import Config, Stream
from waybill.config.names import retry_key
from waybill.services.store import Store
from waybill.tables.audit import AuditRecord, HoldDecision, append_results
from waybill.tables.iceberg import (
    RETRIES_PROPERTY,
    CommitOutcome,
    StreamTables,
    commit_snapshot,
    commit_with_retry,
    ensure_tables,
    is_live,
    load_tables,
    read_progress,
    read_retries,
    remove_files,
)
from waybill.tables.iceberg.catalog import translate_catalog_errors
from waybill.tables.partition.publication import decision_text
from waybill.tables.quarantine.files import drop_rows, translate_file_errors
from waybill.tables.quarantine.offset_sets import OffsetSet
from waybill.tables.quarantine.quarantine_report import RetryReport
from waybill.tables.quarantine.reparse import MAX_MESSAGES, StayedMessages, count_rows, stage_rows
from waybill.tables.quarantine.retry_audit import Attempt, audit_retry, failed_checks
from waybill.tables.quarantine.row_filter import RowFilter
from waybill.tables.quarantine.staged import StagedRetry, find_retry, new_offsets_key, read_offsets, record_retry
from waybill.tables.quarantine.view import View, open_view, retries_of
from waybill.tables.staging.driver import FinishedJob, NothingToCommit, RunOutcome, run_staged_job
from waybill.tables.staging.services import StagingServices, services_of
from waybill.tables.staging.table_layout import file_entries, load_data_files
from waybill.tables.staging.timing import StepClock

logger = logging.getLogger(__name__)


def retry_quarantine(
    config: Config,
    name: str,
    row_filter: RowFilter,
    *,
    dry_run: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    max_messages: int = MAX_MESSAGES,
    accepted: HoldDecision | None = None,
) -> RetryReport:
    """Parse the selected rows of stream `name`'s quarantine by the present config, and move what can be read now.

    It runs in this process, in bounded memory. With `dry_run` it only reports what would be moved, without an audit.
    Bounds of event times are relative to `now`. One retry moves at most about `max_messages`; further retries follow
    until all selected rows are parsed. `accepted`: a person's decision to move rows that fail critical checks; it is
    stored with the retry if one fails.

    Raises `RetryRefused` if a critical check of the audit fails; then this retry has changed nothing, and the messages
    stay in quarantine. Otherwise raises `ConfigError`, `PlanUnusable`, `DocumentDamaged`, `DocumentTooNew`,
    `ProgressLost`, `ParserBroken`, `CommitConflict`, or one of the retriable `StoreUnavailable` and
    `CatalogUnavailable`. After any of these a later call continues, and no message is lost or moved twice.
    """
    began = time.monotonic()
    stream = config.stream(name)
    if stream.sink.is_files:
        raise ConfigError(
            f"stream {name} writes files, and messages cannot be moved to the files of a final hour. Read single "
            f"messages with waybill quarantine show {name} TOPIC/PARTITION@OFFSET --raw, or raise the stream's "
            f"generation to have the whole archive parsed again"
        )
    report = RetryReport(name, dry_run)
    with services_of(config) as services:
        store, catalog = services.store, services.catalog
        if dry_run:
            view = open_view(store, catalog, name, stream)
            if view is not None:
                report.moved, report.stayed = count_rows(view, stream, row_filter, now())
        elif (tables := load_tables(catalog, stream)) is not None:
            _check_live(tables, name, stream)
            is_done = False
            while not is_done:
                request = _RetryRequest(services, row_filter, now(), max_messages, accepted)
                is_done = _RetryJob(name, stream, store, catalog, request).run(report)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _check_live(tables: StreamTables, name: str, stream: Stream) -> None:
    if not is_live(tables.main.metadata, stream.generation):
        raise ConfigError(
            f"generation {stream.generation} of stream {name} is not live, and a retry writes to what consumers read: "
            f"promote it first (waybill generation promote {name}), or build the generation again"
        )


def finish_retries(store: Store, catalog: Catalog, name: str, stream: Stream) -> list[int]:
    """Finish the retries of stream `name`'s quarantine that were killed; return their numbers.

    For maintenance: the files of an unfinished retry are no orphans, and no reader counts its rows twice, but a process
    has to finish it. Raises what `retry_quarantine` raises.
    """
    report = RetryReport(name, dry_run=False)
    tables = load_tables(catalog, stream)
    if tables is not None and not stream.sink.is_files and is_live(tables.main.metadata, stream.generation):
        is_done = False
        while not is_done:
            is_done = _RetryJob(name, stream, store, catalog).run(report)
    return report.finished


@dataclass(frozen=True, slots=True)
class _NextRetry:
    """The next retry of the loaded tables; the plan of a `_RetryJob`."""

    key: str
    number: int
    tables: StreamTables
    in_main: int
    """Retries that the table has taken part in; one more than `number` between the two commits."""

    @property
    def id(self) -> str:
        return f"retry {self.number}"


@dataclass(frozen=True, slots=True)
class _RetryRequest:
    """The request for a new retry: the messages to move."""

    services: StagingServices
    row_filter: RowFilter
    now: datetime
    max_messages: int
    accepted: HoldDecision | None


@dataclass(slots=True)
class _RetryJob:
    """The steps of one retry, a `StagedJob`. Without `request` it only finishes a retry of another run."""

    name: str
    stream: Stream
    store: Store
    catalog: Catalog
    request: _RetryRequest | None = None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    offsets: OffsetSet = field(default_factory=OffsetSet)
    """The messages in the files that this run has staged."""
    stayed: list[StayedMessages] | None = None
    has_more: bool = False
    io: FileIO | None = None
    """The file IO of the table for which the files are staged."""

    @property
    def label(self) -> str:
        return f"quarantine of {self.name}"

    def run(self, report: RetryReport) -> bool:
        """Run one retry and add its figures to the report. Return whether all selected rows have been parsed."""
        finished: FinishedJob[_NextRetry, StagedRetry] = run_staged_job(self, clock=StepClock(), on_step=lambda _: None)
        if self.stayed is not None:
            report.stayed = self.stayed
        if finished.staged is None:
            return True
        retry = finished.staged
        if retry.run_id == self.run_id:
            report.retries.append(retry.number)
            report.moved += retry.rows
            report.warnings += failed_checks(retry)
            return not self.has_more
        if finished.outcome is RunOutcome.COMMITTED:
            report.finished.append(retry.number)
            report.finished_messages += retry.rows
            report.warnings += failed_checks(retry)
        return False  # parse the selected rows again: this retry may have moved other rows, or only some of them

    # --- plan ---

    def find_or_create_plan(self) -> _NextRetry:
        ensure_tables(self.catalog, self.stream)  # staged files may have columns that the config got later
        tables = load_tables(self.catalog, self.stream)
        assert tables is not None
        in_main, in_quarantine = retries_of(tables)
        number = min(in_main, in_quarantine)
        uuid = str(tables.main.metadata.table_uuid)
        key = retry_key(self.store.prefix, self.name, self.stream.generation, uuid, number)
        if in_main != in_quarantine and find_retry(self.store, key) is None:
            raise PlanUnusable(
                f"table {'.'.join(tables.main.name())} has taken part in {in_main} retries, its quarantine in "
                f"{in_quarantine}, and {key}, which lists the missing changes, does not exist: restore it"
            )
        return _NextRetry(key, number, tables, in_main)

    # --- stage ---

    def find_staged(self, plan: _NextRetry) -> StagedRetry | None:
        return find_retry(self.store, plan.key)

    def execute(self, plan: _NextRetry) -> StagedRetry:
        request = self.request
        if request is None:
            raise NothingToCommit(RunOutcome.NOTHING_NEW)
        view = View.of(self.store, self.name, self.stream, plan.tables)
        file_name = f"retry-{self.run_id}"
        with translate_file_errors(plan.tables.main):
            rows = stage_rows(view, self.stream, request.row_filter, request.now, file_name, request.max_messages)
        self.io = plan.tables.main.io
        self.offsets, self.stayed, self.has_more = rows.offsets, rows.stayed, rows.has_more
        if not len(rows.offsets):
            raise NothingToCommit(RunOutcome.NOTHING_NEW)
        failpoints.reach("retry.staged")
        try:
            audit = audit_retry(
                request.services,
                self.name,
                self.stream,
                plan.tables.main,
                rows,
                Attempt(plan.number, self.run_id, request.now, request.accepted),
            )
        except Exception:
            remove_files(self.io, [file.file_path for file in rows.files])
            raise
        failpoints.reach("retry.audited")
        return StagedRetry(
            key=plan.key,
            number=plan.number,
            run_id=self.run_id,
            created_at=request.now,
            parse_settings=self.stream.parse_settings,
            choice=request.row_filter.document(),
            rows=len(rows.offsets),
            ranges=rows.offsets.ranges,
            entries=tuple(file_entries(rows.files)),
            offsets_key=new_offsets_key(plan.key),
            audit=audit,
            accepted=request.accepted if audit.failed_critical else None,
        )

    def record_staged(self, _: _NextRetry, staged: StagedRetry) -> bool:
        is_recorded = record_retry(self.store, staged, self.offsets)
        if is_recorded:
            failpoints.reach("retry.recorded")
        return is_recorded

    def discard(self, staged: StagedRetry) -> None:
        assert self.io is not None
        self.store.remove(staged.offsets_key)
        remove_files(self.io, staged.files)

    # --- commit ---

    def commit(self, plan: _NextRetry, staged: StagedRetry) -> CommitOutcome:
        is_committed = False
        if plan.in_main <= staged.number:
            self._store_results(staged)
            is_committed = self._commit_to_table(plan.tables.main, staged)
        is_dropped = self._drop_from_quarantine(plan.tables.quarantine, staged)
        return CommitOutcome.COMMITTED if is_committed or is_dropped else CommitOutcome.ADOPTED

    def _store_results(self, retry: StagedRetry) -> None:
        """Append the results of the audit, unless that was done: the process that commits the retry has stored them."""
        if retry.audit is None:
            return
        if retry.accepted is not None:
            logger.info(
                "%s: retry %d has failed checks, and %s", self.name, retry.number, decision_text(retry.accepted)
            )
        append_results(self.catalog, [AuditRecord(self.name, retry.audit)])
        failpoints.reach("retry.results_stored")

    def _commit_to_table(self, main: Table, retry: StagedRetry) -> bool:
        """Add the files and the retry's number to the table. Return False if another process has done so."""
        name = ".".join(main.name())
        files: list[DataFile] | None = None

        def attempt() -> bool | None:
            nonlocal files
            if _is_in_table(main, name, retry):
                return False
            with translate_file_errors(main):
                files = _load_files(main, retry) if files is None else files
            state = {RETRIES_PROPERTY: str(retry.number + 1), **self._properties(retry)}
            return True if commit_snapshot(main, state, added=files) else None

        is_committed = commit_with_retry(main, attempt)
        if is_committed:
            failpoints.reach("retry.committed")
        return is_committed

    def _drop_from_quarantine(self, quarantine: Table, retry: StagedRetry) -> bool:
        """Drop the rows that the retry moved. Return False if another process has done so."""
        with translate_catalog_errors("load the quarantine"):
            quarantine.refresh()
        if read_retries(quarantine.metadata, ".".join(quarantine.name())) > retry.number:
            return False
        moved = read_offsets(self.store, retry)
        memory_bytes = self.stream.partition.memory
        with translate_file_errors(quarantine):
            dropped = drop_rows(quarantine, moved, retry.number, self._properties(retry), memory_bytes=memory_bytes)
        if dropped:
            failpoints.reach("retry.dropped")
        return dropped

    def _properties(self, retry: StagedRetry) -> dict[str, str]:
        return {"waybill.stream": self.name, "waybill.run": retry.run_id}


def _is_in_table(main: Table, name: str, retry: StagedRetry) -> bool:
    """Return whether the table has the retry. Raise `CommitConflict` if the retry cannot be added to it."""
    retries = read_retries(main.metadata, name)
    if retries > retry.number:
        return True
    if retries < retry.number:
        raise CommitConflict(
            f"table {name} has taken part in {retries} retries, and retry {retry.number} was to be next: the table was "
            f"rolled back meanwhile. Run again"
        )
    progress = read_progress(main.metadata, name)
    ahead = [tp for tp, (_, following) in retry.ranges.items() if following > progress.get(tp, 0)]
    if ahead:
        raise CommitConflict(
            f"table {name} was rolled back to before messages of {ahead[0]} that retry {retry.number} moves: let a "
            f"partition run bring it to where it was, then run again"
        )
    return False


def _load_files(main: Table, retry: StagedRetry) -> list[DataFile]:
    try:
        return load_data_files(main, retry.entries)
    except FileNotFoundError as error:
        raise PlanUnusable(
            f"{retry.key} lists a file that does not exist and that is not in table {'.'.join(main.name())}: {error}."
            f" Restore it. If the quarantine has not taken part in this retry either ({RETRIES_PROPERTY} of its "
            f"snapshots is at most {retry.number}), the object may be removed instead: the rows are parsed again"
        ) from error
