"""Held publications: which stream has one, and a person's decision to release or to reject it.

The decision is stored before anything is published or removed. If the process dies in between, the next partition run
of the stream does what was decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from waybill.audit import Audit, Decision, DecisionKind, find_audit, find_decision, record_decision
from waybill.config import Config
from waybill.errors import DecisionRefused
from waybill.names import run_ref
from waybill.partition.next_plan import NextPlan
from waybill.partition.plan import Plan
from waybill.partition.publication import Publication, drop_branches
from waybill.partition.staged import Staged, find_staged
from waybill.staging.driver import OnStep
from waybill.staging.services import Services, services_of
from waybill.tables import CommitOutcome, StreamTables, load_tables, translate_storage_errors

__all__ = ["Hold", "find_hold", "reject_hold", "release_hold"]


@dataclass(frozen=True, slots=True)
class Hold:
    """A plan whose audit found a critical failure, and which is not published."""

    plan: Plan
    attempt: int
    tables: StreamTables
    staged: Staged
    audit: Audit
    decision: Decision | None
    """None: a person has to decide. Otherwise the process that stored it has not finished."""

    def document(self) -> dict[str, Any]:
        """Return the hold for a JSON document."""
        decided = self.decision
        return {
            "stream": self.plan.stream,
            "plan": self.plan.id,
            "branch": run_ref(self.plan.id),
            "rows": self.staged.rows,
            "quarantined": self.staged.quarantined,
            "failed": [str(result) for result in self.audit.failed_critical],
            "decision": None
            if decided is None
            else {"kind": decided.kind, "by": decided.by, "reason": decided.reason, "at": decided.at.isoformat()},
        }


def find_hold(services: Services, config: Config, name: str) -> Hold | None:
    """Return the held plan of stream `name`; None if there is none.

    Raises `ProgressLost`, `PlanUnusable`, `DocumentDamaged`, `DocumentTooNew`, or one of the retriable
    `StoreUnavailable` and `CatalogUnavailable`.
    """
    stream, store = config.stream(name), services.store
    tables = load_tables(services.catalog, stream)
    if tables is None:
        return None
    upcoming = NextPlan.of(store, name, stream, tables)
    content = store.read_if_exists(upcoming.key)
    audit = find_audit(store, upcoming.key)
    if content is None or audit is None or not audit.failed_critical:
        return None
    plan = Plan.from_json(upcoming.key, content)
    staged = find_staged(store, plan, tables)
    if staged is None:
        return None
    return Hold(plan, upcoming.attempt, tables, staged, audit, find_decision(store, upcoming.key))


def release_hold(
    config: Config,
    name: str,
    *,
    by: str,
    reason: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = lambda _: None,
    services: Services | None = None,
) -> Hold:
    """Publish the held rows of stream `name` as they are, and return the plan with the stored decision.

    Calls `on_step` with `decided`, and the steps of `Publication.run`. Raises `DecisionRefused` if nothing is held, or
    if it was rejected before; otherwise as `find_hold` and `Publication.run` do.
    """
    with services_of(config, services) as opened, translate_storage_errors():
        hold = _held(opened, config, name)
        decision = record_decision(opened.store, hold.plan.key, Decision(DecisionKind.RELEASED, by, reason, now()))
        on_step("decided")
        stream = config.stream(name)
        publication = Publication(opened, name, stream, hold.tables, hold.plan, hold.staged, hold.attempt)
        outcome, _ = publication.run(on_step)
        assert outcome in (CommitOutcome.COMMITTED, CommitOutcome.ADOPTED)
        return Hold(hold.plan, hold.attempt, hold.tables, hold.staged, hold.audit, decision)


def reject_hold(
    config: Config,
    name: str,
    *,
    by: str,
    reason: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = lambda _: None,
    services: Services | None = None,
) -> Hold:
    """Drop the held rows of stream `name`: the next run parses the same messages again, with the config of that time.

    Calls `on_step` with `decided`. Raises `DecisionRefused` if nothing is held, or if it was released before; otherwise
    as `find_hold` does.
    """
    with services_of(config, services) as opened, translate_storage_errors():
        hold = _held(opened, config, name)
        decision = record_decision(opened.store, hold.plan.key, Decision(DecisionKind.REJECTED, by, reason, now()))
        on_step("decided")
        drop_branches(hold.tables, hold.plan.id)
        return Hold(hold.plan, hold.attempt, hold.tables, hold.staged, hold.audit, decision)


def _held(services: Services, config: Config, name: str) -> Hold:
    hold = find_hold(services, config, name)
    if hold is None:
        raise DecisionRefused(
            f"{name}: no run is held, so there is nothing to decide. `waybill quality show {name}` has the last audit"
        )
    return hold
