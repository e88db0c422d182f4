"""Held publications: which stream has one, and a person's decision to release or to reject it.

The decision is stored before anything is published or removed. If the process dies in between, the next partition run
of the stream executes the decision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from waybill.base import failpoints
from waybill.base.errors import DecisionRefused
from waybill.config.models import Config
from waybill.config.names import run_ref
from waybill.tables.audit import Audit, DecisionKind, HoldDecision, find_audit, find_decision, record_decision
from waybill.tables.iceberg import StreamTables, load_tables, translate_storage_errors
from waybill.tables.partition.next_plan import NextPlan
from waybill.tables.partition.partition_plan import Plan
from waybill.tables.partition.publication import Publication, drop_branches
from waybill.tables.partition.staged import Staged, find_staged
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices, services_of


@dataclass(frozen=True, slots=True)
class Hold:
    """A plan whose audit found a critical failure, and which is not published."""

    plan: Plan
    attempt: int
    tables: StreamTables
    staged: Staged
    audit: Audit
    decision: HoldDecision | None
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


def find_hold(services: StagingServices, config: Config, name: str) -> Hold | None:
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


def decide_hold(
    config: Config,
    name: str,
    kind: DecisionKind,
    *,
    by: str,
    reason: str,
    plan: str | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = lambda _: None,
    services: StagingServices | None = None,
) -> Hold:
    """Store a decision about the held plan of stream `name`, execute it, and return the plan with the decision.

    `RELEASED` publishes the held rows unchanged. `REJECTED` drops them: the next run parses the same messages again,
    with the config of that time. `plan`: the id of the plan that the person has seen; None: the plan that is held now.
    Calls `on_step` with `found`, `decided`, for a release with the steps of `Publication.run`, and with `done`.

    Raises `DecisionRefused` if no plan or another plan is held, or if the opposite decision was made before; otherwise
    as `find_hold` does, and for a release as `Publication.run` does.
    """

    def reached(step: str) -> None:
        failpoints.reach(f"decision.{step}")
        on_step(step)

    with services_of(config, services) as opened, translate_storage_errors():
        hold = find_hold(opened, config, name)
        if hold is None:
            raise DecisionRefused(
                f"{name}: no run is held, so there is nothing to decide. `waybill quality show {name}` has the last "
                f"audit"
            )
        if plan is not None and plan != hold.plan.id:
            raise DecisionRefused(
                f"{name}: plan {hold.plan.id} is held now, and the decision is about plan {plan}, which is decided or "
                f"published. Look at the one that is held: `waybill quality show {name} --plan {hold.plan.id}`"
            )
        reached("found")
        decision = record_decision(opened.store, hold.plan.key, HoldDecision(kind, by, reason, now()))
        reached("decided")
        if kind is DecisionKind.RELEASED:
            stream = config.stream(name)
            Publication(opened, name, stream, hold.tables, hold.plan, hold.staged, hold.attempt).run(reached)
        else:
            drop_branches(hold.tables, hold.plan.id)
        reached("done")
        return dataclasses.replace(hold, decision=decision)
