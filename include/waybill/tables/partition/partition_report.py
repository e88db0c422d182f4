"""The report of a partition run: one line for people, one document for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waybill.config.models.partition_by import QuarantineAlert
from waybill.tables.audit import Audit
from waybill.tables.iceberg import Progress
from waybill.tables.partition.alerts import run_alerts
from waybill.tables.partition.lateness import LATENESS_PROPERTY, Lateness
from waybill.tables.partition.partition_plan import Plan
from waybill.tables.partition.staged import Staged
from waybill.tables.partition.statistics import REASONS_PROPERTY, ReasonCount, ReasonCounts
from waybill.tables.partition.tasks import TaskResult
from waybill.tables.staging.driver import RunOutcome

_LATE_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The figures of a partition run."""

    stream: str
    outcome: RunOutcome
    plan: str | None
    resumed: bool
    """Whether an earlier run or a rival made the plan, so that the archive may have more input than the plan covers."""
    more: bool
    """Whether the plan leaves a part of the backlog to the next plan, because of `partition.run_bytes`."""
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
    alerts: tuple[str, ...]
    """Alerts for a person, although the run is published."""
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
        audit: Audit | None,
        results: Sequence[TaskResult],
        alert_settings: QuarantineAlert,
        faults: tuple[str, ...],
        seconds: Mapping[str, float],
    ) -> PartitionReport:
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
            alerts=run_alerts(stream, alert_settings, rows, quarantined, counts, audit),
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
