"""The audit of a retry: the checks of its staged rows before the retry is recorded.

A recorded retry is always finished, by any process that finds it. So the audit comes first, and is part of the record.
A retry that fails a critical check stores only its results: no number is taken, and the messages stay in quarantine.
The built-in checks are those about the moved rows themselves. The other checks compare a run with earlier runs, or
count the messages that go to quarantine, which a retry does not move.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyiceberg.table import Table

from waybill.base.errors import RetryRefused
from waybill.config.models import Stream
from waybill.config.models.quality import CheckName
from waybill.tables.audit import Audit, AuditInput, AuditRecord, HoldDecision, append_results, run_audit
from waybill.tables.audit.counts import COUNTS_PROPERTY
from waybill.tables.partition.publication import failures_text
from waybill.tables.quarantine.reparse import RetriedRows
from waybill.tables.quarantine.staged import StagedRetry
from waybill.tables.staging.services import StagingServices

CHECKS = frozenset(
    {
        CheckName.ROWS_MATCH_MESSAGES,
        CheckName.OFFSETS_UNIQUE,
        CheckName.MESSAGE_ID_NULL_SHARE,
        CheckName.CLOCK_SKEW,
        CheckName.COLUMN_BECAME_NULL,
    }
)
"""The built-in checks of a retry."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a retry."""

    number: int
    run_id: str
    now: datetime
    accepted: HoldDecision | None
    """A person's decision to move rows that fail critical checks."""

    @property
    def plan_id(self) -> str:
        """The name of the audit. Attempts at one number may stage different rows, so each has its own results."""
        return f"retry-{self.number}-{self.run_id[:16]}"


def audit_retry(
    services: StagingServices, name: str, stream: Stream, table: Table, rows: RetriedRows, attempt: Attempt
) -> Audit:
    """Check the staged rows of a retry of stream `name`, and return the results, which are not stored yet.

    `table`: the main table, as it was loaded for the retry.

    Raises `RetryRefused` if a critical check fails that no person has accepted; these results are stored. Otherwise
    raises what `run_audit` raises.
    """
    given = AuditInput(
        stream_name=name,
        stream=stream,
        plan_id=attempt.plan_id,
        run_id=attempt.run_id,
        planned_at=attempt.now,
        table=table,
        table_files=rows.files,
        quarantine_files=(),
        properties={COUNTS_PROPERTY: rows.counts.to_text()},
        checks=CHECKS,
    )
    audit = run_audit(services, given)
    if audit.failed_critical and attempt.accepted is None:
        append_results(services.catalog, [AuditRecord(name, audit)])
        raise RetryRefused(_refusal_text(name, audit, len(rows.offsets)))
    return audit


def _refusal_text(stream: str, audit: Audit, messages: int) -> str:
    """Return the message about a retry that failed a critical check: the failed checks, examples and the remedy."""
    return (
        f"{stream}: {messages:,} messages in quarantine can be parsed now, and are not moved to the table: "
        f"{failures_text(audit)}. Nothing was changed, and they stay in quarantine. Correct the config and retry "
        f'again, or move them as they are: `waybill quarantine retry {stream} --accept-failed-checks "why"`. `waybill '
        f"quality show {stream} --plan {audit.plan}` has all results"
    )


def failed_checks(retry: StagedRetry) -> list[str]:
    """Return the failed checks of a recorded retry that need a person's attention, the critical ones first."""
    audit, accepted = retry.audit, retry.accepted
    if audit is None:
        return []
    by = "" if accepted is None else f" ({accepted.by} accepted it: {accepted.reason})"
    return [*(f"{result}{by}" for result in audit.failed_critical), *map(str, audit.warnings)]
