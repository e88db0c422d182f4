"""The report of a sweep: one line for people, one JSON document for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waybill.tables.dedup.appends import TablePosition
from waybill.tables.dedup.commit import StagedSweep
from waybill.tables.dedup.sweep_plan import SweepPlan
from waybill.tables.dedup.tasks import MatchedRange, WrittenFiles
from waybill.tables.iceberg.dedup import NO_HORIZON_MS, SweepState
from waybill.tables.staging.driver import RunOutcome
from waybill.tables.staging.timing import TaskUsage


@dataclass(frozen=True, slots=True)
class TaskResults:
    """The results of a sweep's tasks; empty if another run executed them."""

    matched: Sequence[MatchedRange] = ()
    written: Sequence[WrittenFiles] = ()


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The figures of a sweep. The field names are those of the JSON document."""

    stream: str
    outcome: RunOutcome
    plan: str | None
    resumed: bool
    """Whether an earlier run or a rival made the plan, so that the table may have grown since then."""
    more: bool
    """Whether the plan leaves appended files to the next sweep, because of `dedup.run_bytes`."""
    start: int
    """Sequence number up to which the stream's table was swept before."""
    end: int
    """Sequence number up to which the stream's table is swept now."""
    end_snapshot: int | None
    """Snapshot id of `end`; None: nothing was swept yet."""
    files_swept: int
    """Number of swept data files of the stream's table."""
    swept_bytes: int
    """Size of these files."""
    rows: int
    """Rows that were kept."""
    duplicates: int
    keyless: int | None
    """Kept rows without a key; None: another run read them."""
    files: int
    """Data files added to the unique table."""
    file_bytes: int
    """Size of these files."""
    duplicate_files: int
    """Data files added to the duplicates table."""
    horizon_ms: int | None
    """Rows that arrived before it are no longer compared, epoch ms; None: there is no horizon yet."""
    index_keys: int | None
    index_bytes: int | None
    """Entries and size of the key index after the sweep; None: the index lacks rows, which the next sweep adds."""
    index_read_bytes: int | None
    """Bytes read of the key index; None: another run read it."""
    left_out: int | None
    """Rows that the first sweep permanently left out; None: no rows."""
    complete_since_ms: int | None
    """Time from which all appended rows are swept, epoch ms; None: from the table's beginning."""
    seconds: dict[str, float]
    """Wall-clock seconds of the driver's steps."""
    task_seconds: dict[str, float]
    """Wall-clock seconds of the tasks by kind, added up."""
    task_cpu_seconds: dict[str, float]
    """CPU seconds of the executors' Python processes by kind, added up; without Spark's own."""
    peak_memory_bytes: int
    """Largest resident size of an executor's worker process; 0 if this run executed no task."""
    alert: str | None
    """Set when the sweep compares keys less far back than the config promises; None also if the index lacks rows."""
    rebuild: str | None = None
    """The rebuild of the unique table that the sweep is a part of, if any: consumers do not see its rows yet."""
    published: bool = False
    """Whether the sweep has finished the rebuild: consumers see its rows now."""

    @classmethod
    def of(
        cls,
        *,
        stream: str,
        outcome: RunOutcome,
        start: TablePosition,
        plan: SweepPlan | None,
        resumed: bool,
        more: bool,
        staged: StagedSweep | None,
        results: TaskResults,
        index: tuple[int, int] | None,
        state: SweepState,
        seconds: Mapping[str, float],
        alert: str | None = None,
        rebuild: str | None = None,
        published: bool = False,
    ) -> SweepReport:
        """Add up the figures. `start`: position before the sweep; `index`: entries and bytes of the key index."""
        end = plan.end if plan else start
        scanned = [found for matched in results.matched for found in matched.scanned]
        usages = {
            "scan": [found.usage for found in scanned],
            "judge": [matched.usage for matched in results.matched],  # the reports' name of matching tasks
            "write": [written.usage for written in results.written],
        }
        return cls(
            stream=stream,
            outcome=outcome,
            plan=plan.id if plan else None,
            resumed=resumed,
            more=more,
            start=start.sequence,
            end=end.sequence,
            end_snapshot=end.snapshot_id,
            files_swept=len(plan.files) if plan else 0,
            swept_bytes=plan.size_bytes if plan else 0,
            rows=staged.rows if staged else 0,
            duplicates=staged.duplicates if staged else 0,
            keyless=sum(found.keyless for found in scanned) if results.written or not plan else None,
            files=len(staged.unique_files) if staged else 0,
            file_bytes=sum(file.file_size_in_bytes for file in staged.unique_files) if staged else 0,
            duplicate_files=len(staged.duplicate_files) if staged else 0,
            horizon_ms=None if state.horizon_ms == NO_HORIZON_MS else state.horizon_ms,
            index_keys=index[0] if index else None,
            index_bytes=index[1] if index else None,
            index_read_bytes=sum(found.index_read_bytes for found in results.matched) if results.matched else None,
            left_out=state.beginning.rows if state.beginning else None,
            complete_since_ms=state.beginning.since_ms if state.beginning else None,
            seconds={step: round(spent, 3) for step, spent in seconds.items()},
            task_seconds={kind: round(sum(u.seconds for u in found), 3) for kind, found in usages.items()},
            task_cpu_seconds={kind: round(sum(u.cpu_seconds for u in found), 3) for kind, found in usages.items()},
            peak_memory_bytes=_peak_memory(usage for found in usages.values() for usage in found),
            alert=alert,
            rebuild=rebuild,
            published=published,
        )

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {"v": 1, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        spent = f"{self.seconds['total']:.1f} s"
        if self.outcome is RunOutcome.NOTHING_NEW:
            return f"swept {self.stream}: nothing new, in {spent}{self._rebuild_text}"
        adopted = " (committed by another run)" if self.outcome is RunOutcome.ADOPTED else ""
        found = self.rows + self.duplicates
        share = f" ({self.duplicates / found:.2%})" if self.duplicates else ""
        return (
            f"swept {self.stream}: {self.rows:,} rows kept, {self.duplicates:,} duplicates{share}, {self.files:,} "
            f"files {self.file_bytes / 1e6:.1f} MB, through snapshot {self.end_snapshot}, in {spent}{adopted}"
            f"{self._rebuild_text}"
        )

    @property
    def _rebuild_text(self) -> str:
        if self.rebuild is None:
            return ""
        return f"; rebuild {self.rebuild}{', published' if self.published else ', not published yet'}"


def _peak_memory(usages: Iterable[TaskUsage]) -> int:
    return max((usage.peak_memory_bytes for usage in usages), default=0)
