"""Promote a backfill, undo its promotion, or cancel it: one change of both tables, which any process can finish.

Two tables cannot be committed together. The quarantine is changed first, the main table second, as by a partition run.
The claim (`waybill.tables.backfill.events`) is made before anything is changed, and describes the change. A process
that finds an unfinished claim, of a killed process or a rival, executes it, with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table import Table

from waybill.base.errors import BackfillRefused, BackfillUnderWay, CommitConflict
from waybill.config.models import Config, Stream
from waybill.config.names import backfill_tag
from waybill.services.store import Store
from waybill.tables.audit import find_audit
from waybill.tables.backfill.events import (
    ABANDONED_AFTER,
    BackfillEvent,
    check_action,
    events_of,
    find_claim,
    make_claim,
    record_event,
    state_of,
)
from waybill.tables.backfill.replace import Cutter, RangeChange
from waybill.tables.backfill.request import BackfillRequest, find_request, list_requests
from waybill.tables.backfill.results import BuiltFiles, load_built_files
from waybill.tables.backfill.states import BackfillAction, BackfillState
from waybill.tables.backfill.work import TaskRunner, in_this_process, reach_step
from waybill.tables.iceberg import (
    StreamTables,
    is_live,
    load_tables,
    read_progress,
    read_retries,
    translate_storage_errors,
)
from waybill.tables.quarantine.retry import finish_retries
from waybill.tables.quarantine.view import retries_of
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices, services_of

logger = logging.getLogger(__name__)

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of `change_range`."""

    event: BackfillEvent
    is_new: bool
    """False: an earlier call or a rival had made the same change."""


def change_range(
    config: Config,
    name: str,
    backfill: str,
    action: BackfillAction,
    *,
    by: str,
    reason: str,
    accept_failed_checks: bool = False,
    for_each: TaskRunner = in_this_process,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = reach_step,
    services: StagingServices | None = None,
) -> Changed:
    """Promote, undo or cancel a backfill of stream `name`, and return the event.

    It first finishes a change that another process has begun. If the last event of the backfill is the same action,
    that event is returned. `accept_failed_checks`: promote even if the audit has failed.

    Calls `on_step` with `claimed`, `decided`, `quarantine_moved` and `moved`.

    Raises `BackfillRefused`, with the reason, if the action does not apply; `PlanUnusable`, `ConfigError`,
    `ProgressLost`, `DocumentDamaged`, `DocumentTooNew`; the retriable `CommitConflict`, `StoreUnavailable` and
    `CatalogUnavailable`. After any of these the same call continues.
    """
    stream = config.stream(name)
    with services_of(config, services) as opened, translate_storage_errors():
        request = find_request(opened.store, name, backfill)
        changer = Changer(config, name, stream, opened, for_each, on_step)
        for _ in range(_ATTEMPTS):
            tables = changer.load(request)
            ended = changer.end_claim(tables)
            if ended is not None:
                if ended.backfill == backfill and ended.action is action and ended.is_effective:
                    return Changed(ended, is_new=True)
                continue
            try:
                finish_retries(opened.store, opened.catalog, name, stream)
            except BackfillUnderWay:
                continue
            state = state_of(opened.store, request)
            last = next((event for event in reversed(events_of(opened.store, request)) if event.is_effective), None)
            if last is not None and last.action is action:
                return Changed(last, is_new=False)
            changer.check(request, state, action, tables, now(), accept_failed_checks=accept_failed_checks)
            claim = BackfillEvent(backfill, action, by, reason, now(), changer.next_number(request))
            if make_claim(opened.store, name, stream, tables, claim):
                on_step("claimed")
                event = changer.do(claim)
                if event.is_effective:
                    return Changed(event, is_new=True)
        raise CommitConflict(f"backfill {backfill} of {name}: others changed the stream's tables each time; run again")


def end_open_change(
    config: Config, name: str, tables: StreamTables, services: StagingServices, for_each: TaskRunner = in_this_process
) -> BackfillEvent | None:
    """Finish a promotion, undo or cancellation that another process has begun; return None if there is none.

    The other process may still be running: both have the same result. Raises what `change_range` raises.
    """
    with translate_storage_errors():
        return Changer(config, name, config.stream(name), services, for_each, reach_step).end_claim(tables)


def refuse_if_not_of(request: BackfillRequest, stream: Stream, tables: StreamTables | None) -> StreamTables:
    """Return the tables. Raise `BackfillRefused` unless the backfill was requested for these tables."""
    if tables is None or str(tables.main.metadata.table_uuid) != request.table_uuid:
        raise BackfillRefused(
            f"backfill {request.id} of {request.stream} is of a table that was dropped or replaced since: request it "
            f"again"
        )
    if request.plan.generation != stream.generation:
        raise BackfillRefused(
            f"backfill {request.id} of {request.stream} is of generation {request.plan.generation}, and the config has "
            f"{stream.generation}"
        )
    if not is_live(tables.main.metadata, stream.generation):
        raise BackfillRefused(
            f"backfill {request.id} of {request.stream} is of generation {request.plan.generation}, which is no longer "
            f"live: promote the generation first"
        )
    return tables


@dataclass(frozen=True, slots=True)
class Changer:
    """Executes claims for one stream."""

    config: Config
    name: str
    stream: Stream
    services: StagingServices
    for_each: TaskRunner
    on_step: OnStep

    @property
    def store(self) -> Store:
        return self.services.store

    def load(self, request: BackfillRequest) -> StreamTables:
        """Load the tables. Raises `BackfillRefused` if they are not the tables of the backfill."""
        return refuse_if_not_of(request, self.stream, load_tables(self.services.catalog, self.stream))

    def next_number(self, request: BackfillRequest) -> int:
        """Return the number of the next claim."""
        return min(retries_of(self.load(request)))

    def end_claim(self, tables: StreamTables) -> BackfillEvent | None:
        """Execute an unfinished claim, and return its event; None if there is no such claim."""
        claim = find_claim(self.store, self.name, self.stream, tables)
        if claim is None:
            return None
        logger.info("%s: backfill %s: ending what %s began: %s", self.name, claim.backfill, claim.by, claim.action)
        return self.do(claim)

    # --- checks before the claim ---

    def check(
        self,
        request: BackfillRequest,
        state: BackfillState,
        action: BackfillAction,
        tables: StreamTables,
        now: datetime,
        *,
        accept_failed_checks: bool,
    ) -> None:
        """Raise `BackfillRefused` if the action does not apply."""
        check_action(request, state, action)
        if action is BackfillAction.PROMOTE:
            if now - request.at > ABANDONED_AFTER:
                raise BackfillRefused(
                    f"backfill {request.id} of {self.name} was requested more than {ABANDONED_AFTER.days} days ago, "
                    f"and its files are no longer kept: cancel it, and request it again"
                )
            self._check_audit(request, accept_failed_checks=accept_failed_checks)
            self._progress_check(request)(tables.main)
            load_built_files(self.store, request, tables)
        elif action is BackfillAction.UNDO:
            later = self._promoted_later(request)
            if later is not None:
                raise BackfillRefused(
                    f"backfill {later.id} of {self.name} was promoted after {request.id} and replaced some of the same "
                    f"offsets: undo {later.id} first"
                )
            tag = backfill_tag(request.id)
            if any(tag not in table.metadata.refs for table in (tables.main, tables.quarantine)):
                raise BackfillRefused(
                    f"backfill {request.id} of {self.name} can no longer be undone: the tag {tag}, which kept the rows "
                    f"from before, has expired. Request a new backfill of the range instead"
                )

    def _check_audit(self, request: BackfillRequest, *, accept_failed_checks: bool) -> None:
        audit = find_audit(self.store, request.plan.key)
        if audit is None:
            raise BackfillRefused(
                f"backfill {request.id} of {self.name} was not audited: `waybill backfill run {self.name} --id "
                f"{request.id}` continues"
            )
        if audit.failed_critical and not accept_failed_checks:
            failed = "; ".join(str(result) for result in audit.failed_critical[:3])
            raise BackfillRefused(
                f"the audit of backfill {request.id} of {self.name} has failed: {failed}. Cancel it, or promote it "
                f"with --accept-failed-checks and a reason"
            )

    def _promoted_later(self, request: BackfillRequest, before: int | None = None) -> BackfillRequest | None:
        """Return a promoted backfill of some of the same offsets that was promoted later."""
        own = _last_promotion(events_of(self.store, request))
        for other in list_requests(self.store, self.name):
            if other.id == request.id or not request.ranges.overlap(other.ranges).by_tp:
                continue
            if state_of(self.store, other, before) is BackfillState.PROMOTED:
                theirs = _last_promotion(events_of(self.store, other))
                if theirs > own:
                    return other
        return None

    # --- the change ---

    def do(self, claim: BackfillEvent) -> BackfillEvent:
        """Execute the parts of a claim that no other process has executed, and return the event."""
        request = find_request(self.store, self.name, claim.backfill)
        tables = self.load(request)
        is_blocked = claim.action is BackfillAction.UNDO and self._promoted_later(request, claim.number) is not None
        event = record_event(self.store, request, claim, is_blocked=is_blocked)
        self.on_step("decided")
        change = self._change(request)
        new = BuiltFiles("", (), (), 0, 0, {})
        if event.action is BackfillAction.PROMOTE and event.is_effective:
            is_moved = read_retries(tables.quarantine.metadata, ".".join(tables.quarantine.name())) > claim.number
            new = load_built_files(self.store, request, tables, with_quarantine=not is_moved)

        def move(table: Table, change: RangeChange, files: Any) -> None:
            if not event.is_effective:
                change.nothing(table, claim.number)
            elif event.action is BackfillAction.PROMOTE:
                change.promote(table, files, claim.number)
            elif event.action is BackfillAction.UNDO:
                change.undo(table, claim.number, ABANDONED_AFTER)
            else:
                change.cancel(table, claim.number)

        replaces_rows = event.is_effective and event.action is not BackfillAction.CANCEL
        check_main = self._progress_check(request) if replaces_rows else lambda _: None
        # Check this before the quarantine is changed: if the main table cannot be changed, the quarantine must not be
        # either.
        check_main(tables.main)
        move(tables.quarantine, change(lambda _: None), new.quarantine)
        self.on_step("quarantine_moved")
        move(tables.main, change(check_main), new.table)
        self.on_step("moved")
        logger.info("%s: backfill %s: %s by %s: %s", self.name, request.id, event.action, event.by, event.reason)
        return event

    def _change(self, request: BackfillRequest) -> Callable[[Callable[[Table], None]], RangeChange]:
        cutter = Cutter.of(self.config, self.store, request, self.for_each)
        properties = {"waybill.stream": self.name, "waybill.run": request.plan_id}
        return lambda check: RangeChange(cutter, properties, check)

    def _progress_check(self, request: BackfillRequest) -> Callable[[Table], None]:
        def check(main: Table) -> None:
            name = ".".join(main.name())
            request.ranges.check_below(read_progress(main.metadata, name), f"the progress of table {name}")

        return check


def _last_promotion(events: list[BackfillEvent]) -> int:
    """Return the number of the last promotion; -1 without one."""
    return max((e.number for e in events if e.action is BackfillAction.PROMOTE and e.is_effective), default=-1)
