"""The report of a partition run: one line for people, one document for programs; and the quarantine alert.

The alert is raised about a run of which too many messages could not be parsed. The run's rows are committed all the
same: holding back rows that could be read would help no reader. The snapshot stores how many messages went to
quarantine and why, so that a later check can raise the alert too, not only the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from waybill.config import Config
from waybill.config.partition_by import QuarantineAlert
from waybill.errors import QuarantineRateExceeded
from waybill.partition.lateness import LATENESS_PROPERTY, Lateness
from waybill.partition.plan import Plan
from waybill.partition.staged import Staged
from waybill.partition.statistics import (
    QUARANTINED_PROPERTY,
    REASONS_PROPERTY,
    ROWS_PROPERTY,
    ReasonCount,
    ReasonCounts,
)
from waybill.partition.tasks import TaskResult
from waybill.staging.driver import RunOutcome
from waybill.tables import Progress, catalog_of, load_tables

__all__ = ["Report", "check_quarantine", "quarantine_alert"]


_REASONS = 3


def quarantine_alert(
    stream: str, settings: QuarantineAlert, rows: int, quarantined: int, reasons: ReasonCounts
) -> str | None:
    """Return the alert about a run, or None if the share of quarantined messages is within `settings`."""
    messages = rows + quarantined
    if messages < settings.min_messages or not quarantined or quarantined <= settings.max_rate * messages:
        return None
    allowed = f"{(settings.max_rate * 100).normalize():f}%"
    listed = [
        f"{kind}: {each.messages:,}, such as {each.example}" for kind, each in reasons.most_frequent(_REASONS).items()
    ]
    example = next((f" {each.example}" for each in reasons.most_frequent(1).values()), "")
    return (
        f"{stream}: {quarantined:,} of {messages:,} messages ({quarantined / messages:.1%}) went to quarantine, more "
        f"than {allowed} (quarantine.max_rate); the run is committed. {'; '.join(listed)}. Look at them: "
        f"waybill quarantine show {stream}{example}; once they can be read: waybill quarantine retry {stream}"
    )


def check_quarantine(config: Config, name: str, since: datetime) -> int:
    """Check the runs that stream `name` has committed since then; return their number.

    It only reads, so it can be called again. Raises `QuarantineRateExceeded` with the alerts of all runs that have one,
    and `CatalogUnavailable`.
    """
    stream = config.stream(name)
    with catalog_of(config) as catalog:
        tables = load_tables(catalog, stream)
        runs = [] if tables is None else _committed_runs(tables.main.metadata, since)
    alerts = [
        quarantine_alert(
            name,
            stream.quarantine,
            int(run.get(ROWS_PROPERTY, "0")),
            int(run[QUARANTINED_PROPERTY]),
            ReasonCounts.from_text(run[REASONS_PROPERTY]) if REASONS_PROPERTY in run else ReasonCounts(),
        )
        for run in runs
    ]
    raised = [alert for alert in alerts if alert is not None]
    if raised:
        raise QuarantineRateExceeded("\n".join(raised))
    return len(runs)


def _committed_runs(metadata: TableMetadata, since: datetime) -> list[Mapping[str, str]]:
    """Return the properties of the snapshots that runs have committed since then."""
    since_ms = int(since.timestamp() * 1000)
    recent = [s.summary.additional_properties for s in metadata.snapshots if s.summary and s.timestamp_ms >= since_ms]
    return [properties for properties in recent if QUARANTINED_PROPERTY in properties]


_LATE_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a partition run."""

    stream: str
    outcome: RunOutcome
    plan: str | None
    resumed: bool
    """An earlier run or a rival made the plan: the archive may have more input than the plan covers."""
    more: bool
    """The plan leaves a part of the backlog to the next one, because of `partition.run_bytes`."""
    start: dict[str, int]
    """Progress before the run, by `topic/partition`."""
    end: dict[str, int]
    """Progress after the run."""
    tasks: int
    rows: int
    quarantined: int
    files: int
    file_bytes: int
    quarantine_files: int
    backup_bytes: int
    seconds: dict[str, float]
    """Wall-clock seconds of the driver's steps."""
    task_seconds: dict[str, float]
    """Wall-clock seconds of the stages within tasks, summed over the tasks."""
    task_cpu_seconds: float
    """CPU seconds of the executors' processes, summed over the tasks; not those of Spark itself."""
    peak_memory_bytes: int
    """Largest resident size of an executor's worker process; 0 when this run executed no task."""
    lateness: Lateness
    """Lateness of the rows."""
    reasons: dict[str, ReasonCount]
    """Kinds of reasons why messages went to quarantine, most frequent first."""
    alert: str | None
    """Set when more messages went to quarantine than the stream's config allows."""
    faults: tuple[str, ...]
    """Faults of the archive: their topic-partitions were left out from the fault on."""

    @classmethod
    def of(
        cls,
        *,
        stream: str,
        outcome: RunOutcome,
        start: Progress,
        plan: Plan | None,
        resumed: bool,
        more: bool,
        staged: Staged | None,
        results: Sequence[TaskResult],
        alert_settings: QuarantineAlert,
        faults: tuple[str, ...],
        seconds: Mapping[str, float],
    ) -> Report:
        """Compute the figures from plan, staged files and task results."""
        rows, quarantined = (staged.rows, staged.quarantined) if staged else (0, 0)
        reasons = staged.properties.get(REASONS_PROPERTY) if staged else None
        counts = ReasonCounts.from_text(reasons) if reasons else ReasonCounts()
        return cls(
            stream=stream,
            outcome=outcome,
            plan=plan.id if plan else None,
            resumed=resumed,
            more=more,
            start=_offsets(start),
            end=_offsets(staged.end if staged else start),
            tasks=len(plan.tasks) if plan else 0,
            rows=rows,
            quarantined=quarantined,
            files=staged.files if staged else 0,
            file_bytes=staged.file_bytes if staged else 0,
            quarantine_files=len(staged.quarantine_files) if staged else 0,
            backup_bytes=sum(span.size_bytes for task in plan.tasks for span in task) if plan else 0,
            seconds={step: round(spent, 3) for step, spent in seconds.items()},
            task_seconds=_sum_seconds(results),
            task_cpu_seconds=round(sum(result.cpu_seconds for result in results), 3),
            peak_memory_bytes=max((result.peak_memory_bytes for result in results), default=0),
            lateness=_lateness(staged),
            reasons=dict(counts.most_frequent()),
            alert=quarantine_alert(stream, alert_settings, rows, quarantined, counts),
            faults=faults,
        )

    def document(self) -> dict[str, Any]:
        """Return the report for a JSON file."""
        return {"v": 1, **dataclasses.asdict(self), "lateness": self.lateness.document()}

    def __str__(self) -> str:
        spent = f"{self.seconds['total']:.1f} s"
        if self.outcome is RunOutcome.NOTHING_NEW:
            return f"partitioned {self.stream}: nothing new, in {spent}"
        ends = [f"{tp} to {end:,}" for tp, end in self.end.items() if end != self.start.get(tp)]
        where = ", ".join(ends) if len(ends) <= 4 else f"{len(ends)} topic-partitions"
        adopted = " (committed by another run)" if self.outcome is RunOutcome.ADOPTED else ""
        late = self.lateness.later_than(_LATE_SECONDS)
        rows = f"{self.rows:,} rows" + (f" ({late:,} more than 1 h late)" if late else "")
        return (
            f"partitioned {self.stream}: {rows}, {self.quarantined:,} in quarantine, {self.files:,} files "
            f"{self.file_bytes / 1e6:.1f} MB, {where}, in {spent}{adopted}"
        )


def _lateness(staged: Staged | None) -> Lateness:
    text = staged.properties.get(LATENESS_PROPERTY) if staged else None
    return Lateness() if text is None else Lateness.from_text(text, "the staged files' statistics")


def _offsets(progress: Progress) -> dict[str, int]:
    return {str(tp): offset for tp, offset in sorted(progress.items())}


def _sum_seconds(results: Sequence[TaskResult]) -> dict[str, float]:
    stages = [dataclasses.asdict(result.seconds) for result in results]
    return {stage: round(sum(s[stage] for s in stages), 3) for stage in (stages[0] if stages else ())}
