"""The end of an ingest run: what was archived, in figures, and whether anything did not go well."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from waybill.errors import IngestIncomplete
from waybill.ingest import IngestReport, LaneReport, merge_reports

__all__ = ["report_run"]

log = logging.getLogger(__name__)


def report_run(stream: str, planned_lanes: int | None, reports: Sequence[LaneReport]) -> IngestReport:
    """Log what the lanes of a run did, and return it. `planned_lanes` is None when planning failed.

    Raises `IngestIncomplete` when a topic-partition stopped or failed, or a lane left no report: the others' work is
    done all the same, but somebody should look.
    """
    if planned_lanes is None:
        raise IngestIncomplete(f"ingest of {stream} did not begin: the log of the task 'plan' says why")
    run = merge_reports(stream, reports)
    log.info(
        "ingest of %s: %s messages in %d new objects, %.1f MB, from %d topic-partitions in %d lanes, %.1f s, lag %s",
        *(stream, f"{run.messages:,}", run.objects, run.size_bytes / 1e6, len(run.partitions), run.lanes, run.seconds),
        f"{run.lag:,}",
    )
    problems = [f"{p.failure.error}: {p.failure.message}" for p in run.failures if p.failure is not None]
    if len(reports) < planned_lanes:
        problems.append(
            f"{planned_lanes - len(reports)} of {planned_lanes} lanes ended without a report: their log says why. "
            f"The next run goes on from the committed offsets"
        )
    if problems:
        raise IngestIncomplete(f"ingest of {stream} is incomplete:\n" + "\n".join(f"- {text}" for text in problems))
    return run
