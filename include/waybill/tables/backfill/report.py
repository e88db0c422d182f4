"""What is known of one backfill, for commands, logs and the pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waybill.config.names import backfill_branch
from waybill.services.store import Store
from waybill.tables.audit import Audit, find_audit
from waybill.tables.backfill.build import Built
from waybill.tables.backfill.diff import Diff, find_diff
from waybill.tables.backfill.events import BackfillEvent, events_of, state_of
from waybill.tables.backfill.generation_request import BuiltGeneration, GenerationRequest
from waybill.tables.backfill.request import AnyRequest, find_built
from waybill.tables.backfill.results import find_records
from waybill.tables.backfill.states import BackfillState


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """What is known of one backfill."""

    request: AnyRequest
    state: BackfillState
    built: Built | BuiltGeneration | None
    diff: Diff | None
    events: Sequence[BackfillEvent]
    tasks_done: int = 0
    """Of a range; a generation has no tasks of its own."""
    audit: Audit | None = None
    """Of a range; the runs of a generation are audited one by one."""

    @property
    def tasks_text(self) -> str:
        """Return how many tasks are done, or which generation is built."""
        if isinstance(self.request, GenerationRequest):
            return f"generation {self.request.generation}"
        return f"{self.tasks_done}/{len(self.request.plan.tasks)}"

    def document(self) -> dict[str, Any]:
        """Return the report as JSON fields."""
        request, built = self.request, self.built
        kind, work, result = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        if isinstance(request, GenerationRequest):
            kind = {"generation": request.generation, "source": str(request.source)}
            work = {"compared": request.compared.document()}
        else:
            work = {"tasks": len(request.plan.tasks), "tasks_done": self.tasks_done}
            audit = None if self.audit is None else self.audit.to_fields()
            result = {"branch": backfill_branch(request.id), "audit": audit}
        return {
            "v": 1,
            "stream": request.stream,
            "id": request.id,
            **kind,
            "state": str(self.state),
            "by": request.by,
            "reason": request.reason,
            "at": request.at.isoformat(),
            "range": request.ranges.document(),
            **work,
            "rows": None if built is None else built.rows,
            "quarantined": None if built is None else built.quarantined,
            **result,
            "diff": None if self.diff is None else self.diff.document(),
            "events": [event.document() for event in self.events],
        }

    def lines(self) -> list[str]:
        """Return the report as lines for people."""
        request, built = self.request, self.built
        is_build = isinstance(request, GenerationRequest)
        if isinstance(request, GenerationRequest):
            work = f"generation {request.generation} from {request.source}"
        else:
            work = f"{self.tasks_done} of {len(request.plan.tasks)} tasks done"
        lines = [
            f"{request.stream} {request.id}: {self.state}, {work}",
            f"  requested by {request.by} at {request.at:%Y-%m-%d %H:%M:%S} UTC: {request.reason}",
            f"  range: {request.ranges}",
        ]
        if built is not None:
            rows = f"{built.rows:,} rows and {built.quarantined:,} quarantined messages"
            on_branch = f"{rows}, on the branch {backfill_branch(request.id)} of both tables"
            lines.append(f"  the branch had {rows}" if is_build else f"  {on_branch}")
        if self.audit is not None:
            failed = [result for result in self.audit.results if not result.success]
            lines.append(f"  audit: {len(self.audit.results)} checks, {len(failed)} failed")
            lines += [f"    {result.severity}: {result}" for result in failed]
        if self.diff is not None:
            lines += [f"  {line}" for line in self.diff.lines()]
        return lines + [f"  {event}" for event in self.events]


def report_backfill(store: Store, request: AnyRequest) -> BackfillReport:
    """Return what is known of a backfill."""
    state = state_of(store, request)
    if isinstance(request, GenerationRequest):
        built = find_built(store, request, BuiltGeneration)
        return BackfillReport(request, state, built, find_diff(store, request), events_of(store, request))
    return BackfillReport(
        request,
        state,
        tasks_done=len(find_records(store, request)),
        built=find_built(store, request, Built),
        audit=find_audit(store, request.plan.key),
        diff=find_diff(store, request),
        events=events_of(store, request),
    )
