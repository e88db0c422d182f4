"""The streams of a group in one ingest run: the report of the run, and its new problems.

A stream that does not advance must not fail the run of all other streams every minute. So a run of a group fails when a
problem appears, and succeeds while it lasts. ZooKeeper records the problems that were reported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from waybill.archive.ingest.lane_plan import IngestPlan, StreamProblem
from waybill.archive.ingest.lane_report import LaneSummary, StreamSummary, merge_reports
from waybill.archive.ingest.services import FindConnection
from waybill.base.errors import IngestIncomplete
from waybill.config.connections import find_connection
from waybill.config.models import Config
from waybill.config.models.quantities import counted
from waybill.services.coordination import GroupProblem, GroupProblems, ZooKeeperSession

logger = logging.getLogger(__name__)

Problems = Mapping[tuple[str, str], GroupProblem]
"""Problems by stream and error."""


def report_run(
    config: Config,
    group: str | None,
    plan: IngestPlan,
    lanes: Sequence[LaneSummary],
    find: FindConnection = find_connection,
) -> None:
    """Log the figures of a run by stream, and record the problems of its group.

    Raises `IngestIncomplete` if a lane left no summary, if a problem is new, or, for a stream's own DAG (`group` None),
    if there is any problem.
    """
    report = merge_reports(lanes)
    for stream in report.streams:
        _log_stream(stream)
    found = [*plan.problems, *_failures(report.streams)]
    new = _merge(found, {}) if group is None else _record(config, group, plan, found, find)
    texts = [f"{problem.stream}: {problem.error}: {problem.message}" for problem in new.values()]
    if len(lanes) < len(plan.lanes):
        texts.append(
            f"{len(plan.lanes) - len(lanes)} of {counted(len(plan.lanes), 'lane')} ended without a report: see their "
            f"logs. The next run continues at the committed offsets"
        )
    if texts:
        what = "ingest" if group is None else f"ingest of the group {group}"
        raise IngestIncomplete(f"{what} is incomplete:\n" + "\n".join(f"- {text}" for text in texts))


def _log_stream(stream: StreamSummary) -> None:
    logger.info(
        "%s: %s in %s, %.1f MB, from %s, lag %s",
        stream.stream,
        counted(stream.messages, "message"),
        counted(stream.objects, "new object"),
        stream.size_bytes / 1e6,
        counted(stream.topic_partitions, "topic-partition"),
        f"{stream.lag:,}",
    )


def _failures(streams: Iterable[StreamSummary]) -> list[StreamProblem]:
    return [
        StreamProblem(stream=stream.stream, error=failure.error, message=failure.message)
        for stream in streams
        for failure in (*(report.failure for report in stream.failures), *stream.chores)
        if failure is not None
    ]


def _merge(found: Iterable[StreamProblem], known: Problems) -> dict[tuple[str, str], GroupProblem]:
    """Return the problems by stream and error, each with the time at which it was first found."""
    now_ms = int(time.time() * 1000)
    merged: dict[tuple[str, str], GroupProblem] = {}
    for each in found:
        problem = each.to_problem(now_ms)
        before = known.get(problem.key)
        if problem.key not in merged:
            merged[problem.key] = problem if before is None else replace(problem, since_ms=before.since_ms)
    return merged


def _record(
    config: Config, group: str, plan: IngestPlan, found: Collection[StreamProblem], find: FindConnection
) -> Problems:
    """Record the problems that were found, log them, and return the new ones."""
    with ZooKeeperSession.of(config, find) as session:
        recorded = GroupProblems.read(session, config.zookeeper.root, group)
        current = _merge(found, recorded.known)
        # A stream that this run left out, for example a paused one, keeps its problems.
        kept = {key: each for key, each in recorded.known.items() if key[0] not in plan.streams}
        GroupProblems(recorded.root, group, {**kept, **current}).write(session)
    for key, problem in recorded.known.items():
        if key in current:
            logger.warning("%s still has a problem: %s: %s", problem.stream, problem.error, current[key].message)
        elif key not in kept:
            logger.info("%s no longer has the problem %s", problem.stream, problem.error)
    return {key: problem for key, problem in current.items() if key not in recorded.known}
