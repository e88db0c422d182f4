"""Publish the staged files of a plan: write a branch, audit, then move `main`; or hold the plan for a person.

Two tables cannot be published together. The quarantine is published first, the main table second. Readers count a row
of the quarantine only below the main table's progress, so between the two steps they ignore the additional rows of the
quarantine.

The staged files, the audit and a person's decision are stored as objects beside the plan, which are created if absent,
and never changed. So any process that continues (a retry, a rival or a command) has the same result:

- The audit found no critical failure, or a person released the plan: it is published.
- The audit found one, and no person has decided: the plan is held. Later runs are held too, since the next plan starts
  where this one ends.
- A person rejected the plan: its branches are removed. The next plan starts where this one did, with another name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waybill.base.errors import PublicationHeld, PublicationRejected
from waybill.config.models import Stream
from waybill.config.names import run_ref
from waybill.tables.audit import (
    Audit,
    AuditInput,
    AuditRecord,
    DecisionKind,
    HoldDecision,
    append_results,
    find_audit,
    find_decision,
    record_audit,
    run_audit,
)
from waybill.tables.iceberg import (
    BLOCKED_PARTITIONS_PROPERTY,
    BlockedPartitions,
    Commit,
    CommitOutcome,
    StreamTables,
    blocked_partitions_text,
    drop_branch,
    publish,
    stage_on_branch,
    target_of,
)
from waybill.tables.partition.partition_plan import Plan
from waybill.tables.partition.staged import Staged
from waybill.tables.partition.statistics import QUARANTINED_PROPERTY, ROWS_PROPERTY
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices

logger = logging.getLogger(__name__)

OnAudit = Callable[[AuditRecord], None]

_FAILURES_IN_MESSAGE = 5
_EXAMPLES_IN_MESSAGE = 3


@dataclass(frozen=True, slots=True)
class Publication:
    """The publication of the staged files of one plan."""

    services: StagingServices
    stream_name: str
    stream: Stream
    tables: StreamTables
    plan: Plan
    staged: Staged
    attempt: int
    """The number of earlier plans with the same start."""
    on_audit: OnAudit | None = None
    """Called with the result of the audit in any case. By default, the result is appended to the results table."""

    def run(self, on_step: OnStep) -> tuple[CommitOutcome, Audit | None]:
        """Write the files to branches, audit them, and publish them. Returns no audit if a rival has published them.

        Calls `on_step` with `quarantine_branched`, `branched`, `audited` and `quarantine_published`.

        Raises `PublicationHeld` if a person has to decide, the retriable `PublicationRejected` if one has rejected the
        plan, and as `waybill.tables.iceberg.publish` and `waybill.tables.audit.run_audit` do.
        """
        quarantine, main = self._quarantine_commit(), self._main_commit()
        if quarantine is not None:
            stage_on_branch(self.tables.quarantine, quarantine)
            on_step("quarantine_branched")
        branched = stage_on_branch(self.tables.main, main)
        if branched is None:
            return CommitOutcome.ADOPTED, None
        on_step("branched")
        audit = self._find_or_make_audit(on_step)
        self._report_audit(AuditRecord(self.stream_name, audit, branched.snapshot_id))
        on_step("audited")
        self._check_may_publish(audit)
        if quarantine is not None:
            publish(self.tables.quarantine, quarantine)
            on_step("quarantine_published")
        return publish(self.tables.main, main), audit

    def _quarantine_commit(self) -> Commit | None:
        if not self.staged.quarantine_files:
            return None
        return Commit(
            self.plan.id,
            run_ref(self.plan.id),
            self.plan.start,
            self.staged.end,
            self.staged.quarantine_files,
            self._origin(),
            target_of(self.tables.quarantine.metadata, self.stream.generation),
            must_be_at_start=False,
        )

    def _main_commit(self) -> Commit:
        counts = {ROWS_PROPERTY: str(self.staged.rows), QUARANTINED_PROPERTY: str(self.staged.quarantined)}
        return Commit(
            self.plan.id,
            run_ref(self.plan.id),
            self.plan.start,
            self.staged.end,
            self.staged.table_files,
            {**self._origin(), **counts, **self._blocked_partitions(), **self.staged.properties},
            target_of(self.tables.main.metadata, self.stream.generation),
        )

    def _origin(self) -> dict[str, str]:
        return {"waybill.stream": self.stream_name, "waybill.run": self.staged.run_id}

    def _blocked_partitions(self) -> Mapping[str, str]:
        """Return the property that records where faults of the archive have stopped topic-partitions."""
        if not self.staged.faults:
            return {}
        attempt = self.attempt + 1 if self.staged.end == self.plan.start else 0
        offsets = {tp: fault.offset for tp, fault in self.staged.faults.items()}
        return {BLOCKED_PARTITIONS_PROPERTY: blocked_partitions_text(BlockedPartitions(offsets, attempt))}

    def _find_or_make_audit(self, on_step: OnStep) -> Audit:
        found = find_audit(self.services.store, self.plan.key)
        if found is not None:
            return found
        given = AuditInput(
            stream_name=self.stream_name,
            stream=self.stream,
            plan_id=self.plan.id,
            run_id=self.staged.run_id,
            planned_at=self.plan.created_at,
            table=self.tables.main,
            table_files=self.staged.table_files,
            quarantine_files=self.staged.quarantine_files,
            properties=self.staged.properties,
        )
        return record_audit(self.services.store, self.plan.key, run_audit(self.services, given, on_step=on_step))

    def _report_audit(self, record: AuditRecord) -> None:
        if self.on_audit is not None:
            self.on_audit(record)
        else:
            append_results(self.services.catalog, [record])

    def _check_may_publish(self, audit: Audit) -> None:
        if not audit.failed_critical:
            return
        decision = find_decision(self.services.store, self.plan.key)
        if decision is None:
            raise PublicationHeld(held_text(self.stream_name, audit, self.staged))
        if decision.kind is DecisionKind.REJECTED:
            drop_branches(self.tables, self.plan.id)
            raise PublicationRejected(
                f"{self.stream_name}: {decision.by} rejected plan {self.plan.id} at {decision.at:%H:%M:%S} UTC "
                f"({decision.reason}); the next run parses its messages again"
            )
        logger.info("%s: publishing plan %s, which %s", self.stream_name, self.plan.id, decision_text(decision))


def drop_branches(tables: StreamTables, plan_id: str) -> None:
    """Remove the branches of a rejected plan, if they exist."""
    for table in (tables.quarantine, tables.main):
        drop_branch(table, run_ref(plan_id))


def decision_text(decision: HoldDecision) -> str:
    """Return a decision as a clause: who, when, why."""
    return f"{decision.by} {decision.kind} at {decision.at:%Y-%m-%d %H:%M:%S} UTC: {decision.reason}"


def held_text(stream: str, audit: Audit, staged: Staged) -> str:
    """Return the message about a held plan: the failed checks, examples and the remedy."""
    return (
        f"{stream}: {staged.rows:,} rows and {staged.quarantined:,} quarantined messages are held, not published: "
        f"{failures_text(audit)}. Readers can look at the branch {run_ref(audit.plan)} of the table. Decide: "
        f"`waybill quality release {stream} --reason …` publishes them as they are; `waybill quality reject {stream} "
        f"--reason …` drops them, and the next run parses the same messages again. `waybill quality show {stream}` has "
        f"all results"
    )


def failures_text(audit: Audit) -> str:
    """Return the critical failures of an audit as a clause, with examples of the first ones."""
    failures = audit.failed_critical
    listed = [
        f"{failure}" + (f", such as {'; '.join(failure.examples[:_EXAMPLES_IN_MESSAGE])}" if failure.examples else "")
        for failure in failures[:_FAILURES_IN_MESSAGE]
    ]
    if len(failures) > _FAILURES_IN_MESSAGE:
        listed.append(f"and {len(failures) - _FAILURES_IN_MESSAGE} more")
    return "; ".join(listed)
