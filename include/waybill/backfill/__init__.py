"""Backfills: build a range of a stream's table again from the archive, compare it, promote it, and undo that.

| module | content |
|---|---|
| `choice`, `ranges` | which offsets: as a person chooses them, as ranges, and where data files lie |
| `planning`, `request` | the checks, the estimate, and the stored request with its tasks |
| `build`, `results` | executing the tasks, the branches, the audit |
| `diff`, `compare` | the differences between the built rows and the table's |
| `replace`, `cuts` | replacing a range in a table: files removed, added, and cut at the bounds |
| `events`, `promotion` | promoting, undoing and cancelling: claims, and what they do |
"""

from waybill.backfill.build import BackfillReport, report_backfill, report_backfills, run_backfill
from waybill.backfill.choice import Choice
from waybill.backfill.events import Action, Event, State, state_of
from waybill.backfill.planning import Estimate, open_requests, plan_backfill, request_backfill
from waybill.backfill.promotion import Changed, change_backfill
from waybill.backfill.request import Request, find_request, list_requests
from waybill.backfill.work import ForEach, in_this_process

__all__ = [
    "Action",
    "BackfillReport",
    "Changed",
    "Choice",
    "Estimate",
    "Event",
    "ForEach",
    "Request",
    "State",
    "change_backfill",
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
