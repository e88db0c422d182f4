"""What a sweep says at its end: one line for people, one document for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waybill.dedup.appends import Point
from waybill.dedup.plan import SweepPlan
from waybill.dedup.staged import StagedSweep
from waybill.dedup.tasks import Judged, Written
from waybill.partition.report import RunOutcome
from waybill.staging.timing import Usage
from waybill.tables.dedup import NO_HORIZON_MS, SweepState

__all__ = ["SweepFigures", "SweepReport"]


@dataclass(frozen=True, slots=True)
class SweepFigures:
    """What the tasks of a sweep came to, as long as this run carried them out."""

    judged: Sequence[Judged] = ()
    written: Sequence[Written] = ()


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The figures of a sweep."""

    stream: str
    outcome: RunOutcome
    plan: str | None
    resumed: bool
    """The plan was an earlier run's, or a rival's: there may be more to do than it says."""
    more: bool
    """The plan leaves some of what the table gained to the next one, because of `dedup.run_bytes`."""
    start: int
    """Through which sequence number of the stream's table it was swept before."""
    end: int
    """Through which it is swept now."""
    end_snapshot: int | None
    """The id of that snapshot; None: nothing was swept yet."""
    files_swept: int
    """Data files of the stream's table that were swept."""
    swept_bytes: int
    """Of these."""
    rows: int
    """Rows that were kept."""
    duplicates: int
    keyless: int | None
    """Kept rows without a key; None: another run read them."""
    files: int
    file_bytes: int
    duplicate_files: int
    horizon_ms: int | None
    """Rows that arrived before it are not known again, epoch ms; None: there is no such bound yet."""
    index_keys: int | None
    index_bytes: int | None
    """Of the key index after the sweep; None: it is behind, and the next sweep catches up."""
    index_read_bytes: int | None
    """Of the key index before it, how much was read; None: another run did."""
    left_out: int | None
    """Rows of the table that the first sweep has left out for good, as it was asked to; None: all are swept."""
    complete_since_ms: int | None
    """From when on all that the table gained is swept, epoch ms; None: from its beginning."""
    seconds: dict[str, float]
    """Wall-clock seconds of the driver's steps."""
    task_seconds: dict[str, float]
    """Wall-clock seconds of the tasks, by kind, summed."""
    task_cpu_seconds: dict[str, float]
    """CPU seconds of the executors' processes, by kind, summed; not those of Spark itself."""
    peak_memory_bytes: int
    """The most that an executor's worker process held resident; 0 when no task was carried out by this run."""

    @classmethod
    def of(
        cls,
        *,
        stream: str,
        outcome: RunOutcome,
        start: Point,
        plan: SweepPlan | None,
        resumed: bool,
        more: bool,
        staged: StagedSweep | None,
        figures: SweepFigures,
        index: tuple[int, int] | None,
        state: SweepState,
        seconds: Mapping[str, float],
    ) -> SweepReport:
        """Add up what happened. `start`: through what it was swept before; `index`: its keys and bytes."""
        end = plan.end if plan else start
        scanned = [found for judged in figures.judged for found in judged.scanned]
        kinds = {
            "scan": [found.usage for found in scanned],
            "judge": [judged.usage for judged in figures.judged],
            "write": [written.usage for written in figures.written],
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
            keyless=sum(found.keyless for found in scanned) if figures.written or not plan else None,
            files=len(staged.unique_files) if staged else 0,
            file_bytes=sum(file.file_size_in_bytes for file in staged.unique_files) if staged else 0,
            duplicate_files=len(staged.duplicate_files) if staged else 0,
            horizon_ms=None if state.horizon_ms == NO_HORIZON_MS else state.horizon_ms,
            index_keys=index[0] if index else None,
            index_bytes=index[1] if index else None,
            index_read_bytes=sum(found.index_read_bytes for found in figures.judged) if figures.judged else None,
            left_out=state.beginning.rows if state.beginning else None,
            complete_since_ms=state.beginning.since_ms if state.beginning else None,
            seconds={step: round(spent, 3) for step, spent in seconds.items()},
            task_seconds={kind: round(sum(u.seconds for u in found), 3) for kind, found in kinds.items()},
            task_cpu_seconds={kind: round(sum(u.cpu_seconds for u in found), 3) for kind, found in kinds.items()},
            peak_memory_bytes=_peak(usage for found in kinds.values() for usage in found),
        )

    def document(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"v": 1, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        spent = f"{self.seconds['total']:.1f} s"
        if self.outcome is RunOutcome.NOTHING_NEW:
            return f"swept {self.stream}: nothing new, in {spent}"
        adopted = " (committed by another run)" if self.outcome is RunOutcome.ADOPTED else ""
        found = self.rows + self.duplicates
        share = f" ({self.duplicates / found:.2%})" if self.duplicates else ""
        return (
            f"swept {self.stream}: {self.rows:,} rows kept, {self.duplicates:,} duplicates{share}, {self.files:,} "
            f"files {self.file_bytes / 1e6:.1f} MB, through snapshot {self.end_snapshot}, in {spent}{adopted}"
        )


def _peak(usages: Iterable[Usage]) -> int:
    return max((usage.peak_memory_bytes for usage in usages), default=0)
