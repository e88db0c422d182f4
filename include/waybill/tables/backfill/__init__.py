"""Backfills: build a range of a stream's table again from the archive, compare it, promote it, and undo that.

| module | content |
|---|---|
| `choice`, `ranges` | the offsets: a person's choice, the ranges, and where data files lie |
| `planning`, `request` | the checks, the estimate, and the stored request with its tasks |
| `build`, `results` | executing the tasks, the branches, the audit |
| `diff`, `compare` | the differences between the built rows and the table's |
| `replace`, `cuts` | replacing a range in a table: files removed, added, and cut at the bounds |
| `events`, `promotion` | promoting, undoing and cancelling: claims, and their execution |
| `generation_…`, `archiving` | the same for a generation that is not live: its request, its build, its promotion |
| `kinds` | one set of functions for both kinds of backfills, which this package exports |
"""

from waybill.tables.backfill.choice import RangeChoice
from waybill.tables.backfill.events import BackfillAction, BackfillEvent, BackfillState, state_of
from waybill.tables.backfill.generation_request import GenerationRequest, Source
from waybill.tables.backfill.kinds import (
    AnyReport,
    AnyRequest,
    change_backfill,
    find_backfill,
    plan_backfill,
    report_backfill,
    report_backfills,
    request_backfill,
    run_backfill,
)
from waybill.tables.backfill.planning import Estimate, Trigger, open_requests
from waybill.tables.backfill.promotion import Changed, end_open_change
from waybill.tables.backfill.request import BackfillRequest, find_request, list_requests
from waybill.tables.backfill.work import TaskRunner, in_this_process

__all__ = [
    "AnyReport",
    "AnyRequest",
    "BackfillAction",
    "BackfillEvent",
    "BackfillRequest",
    "BackfillState",
    "Changed",
    "Estimate",
    "GenerationRequest",
    "RangeChoice",
    "Source",
    "TaskRunner",
    "Trigger",
    "change_backfill",
    "end_open_change",
    "find_backfill",
    "find_request",
    "in_this_process",
    "list_requests",
    "open_requests",
    "plan_backfill",
    "report_backfill",
    "report_backfills",
    "request_backfill",
    "run_backfill",
    "state_of",
]
