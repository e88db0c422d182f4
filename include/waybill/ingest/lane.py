"""A lane: one short task that archives several topic-partitions, one time slice after the other.

Each topic-partition gets an equal part of the time that is left, and unused time goes to the others. A topic-partition
with more to archive than fits its time slice yields at the end of an object, and continues when all others have had
their slice. So every topic-partition of a lane advances in every run, as long as the budget has a second for each.
Where it has not, the next plan puts first those that the lane did not reach.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

from waybill.config import Config, Stream
from waybill.connections import find_connection
from waybill.errors import GenerationConflict, WaybillError
from waybill.ingest.orphaned_uploads import abort_orphaned_uploads
from waybill.ingest.plan import Lane
from waybill.ingest.protocol import archive_topic_partition
from waybill.ingest.report import LaneReport, Outcome, TopicPartitionReport
from waybill.ingest.services import FindConnection, Services, connect
from waybill.ingest.target import ArchiveTarget
from waybill.ingest.time_slice import Clock, RateLimit, TimeSlice
from waybill.names import TopicPartition
from waybill.records.compression import Recompressor
from waybill.sources.kafka import PartitionState

__all__ = ["drain_lane", "run_lane"]

logger = logging.getLogger(__name__)

_MIN_SLICE_SECONDS = 1.0
_MIN_SLICE_FRACTION = 10
"""A time slice is at least a second, or a tenth of a short budget, since each slice has a fixed cost."""


def run_lane(
    config: Config, stream_name: str, lane: Lane, *, find: FindConnection = find_connection, clock: Clock | None = None
) -> LaneReport:
    """Connect, and archive a lane's topic-partitions within the stream's budget.

    An error of one topic-partition is in its report, and the lane continues with the others. Raises `ConfigError`,
    `KafkaUnavailable` or `CoordinationUnavailable` when a service cannot be connected.
    """
    with connect(config, stream_name, find) as services:
        return drain_lane(services, config, stream_name, lane, clock=clock)


def drain_lane(
    services: Services, config: Config, stream_name: str, lane: Lane, *, clock: Clock | None = None
) -> LaneReport:
    """Do the same as `run_lane`, with services that are connected."""
    clock = clock or Clock()
    stream = config.stream(stream_name)
    started = clock.monotonic()
    with nullcontext() if stream.recompress is None else Recompressor(stream.recompress) as recompressor:
        conflicts = {share.tp: _find_conflict(config, stream_name, share.topic) for share in lane.shares}
        time_slices = _TimeSlices(services, stream, clock, started, recompressor, conflicts)
        reports = time_slices.run([share.tp for share in lane.shares])
    if lane.number == 0:
        abort_orphaned_uploads(services.coordinator, services.store, config, stream_name, clock)
    _commit_to_consumer_group(services, stream.consumer_group(stream_name), reports)
    report = LaneReport(
        stream=stream_name, lane=lane.number, seconds=clock.monotonic() - started, partitions=tuple(reports)
    )
    logger.info(
        "lane %d of %s: %d objects, %s messages, %.1f MB in %.1f s, lag %s, %d of %d topic-partitions failed",
        *(lane.number, stream_name, report.objects, f"{report.messages:,}", report.size_bytes / 1e6, report.seconds),
        *(f"{report.lag:,}", len(report.failures), len(reports)),
    )
    return report


class _TimeSlices:
    """Gives time slices to a lane's topic-partitions, until all are archived or the budget ends."""

    def __init__(
        self,
        services: Services,
        stream: Stream,
        clock: Clock,
        started: float,
        recompressor: Recompressor | None,
        conflicts: Mapping[TopicPartition, GenerationConflict | None],
    ) -> None:
        self._services, self._stream, self._clock = services, stream, clock
        self._recompressor, self._conflicts = recompressor, conflicts
        budget = stream.ingest.budget.total_seconds()
        self._deadline = started + budget
        self._min_seconds = min(_MIN_SLICE_SECONDS, budget / _MIN_SLICE_FRACTION)
        self._rate_limit = RateLimit(int(stream.ingest.rate_limit), clock)
        self._described: dict[TopicPartition, PartitionState] = {}
        self._may_have_stop: set[TopicPartition] = set()

    def run(self, tps: list[TopicPartition]) -> list[TopicPartitionReport]:
        """Return the reports, in the order of the first time slices."""
        self._describe(tps)
        # Topic-partitions whose leader did not answer go last: they may take long, and the others need not wait.
        waiting = deque(sorted(tps, key=lambda tp: tp not in self._described) if self._described else tps)
        reports: dict[TopicPartition, TopicPartitionReport] = {}
        while waiting:
            tp = waiting.popleft()
            before, report = reports.get(tp), self._archive(tp, others=len(waiting))
            reports[tp] = report if before is None else before.merged_with(report)
            if report.outcome is Outcome.OUT_OF_TIME and self._clock.monotonic() < self._deadline:
                waiting.append(tp)
        return list(reports.values())

    def _describe(self, tps: list[TopicPartition]) -> None:
        """Ask Kafka once for all topic-partitions: for a small one, a request of its own would be most of its cost."""
        if len(tps) < 2:
            self._may_have_stop = set(tps)
            return
        try:
            self._described = self._services.source.describe_partitions(tps)
            self._may_have_stop = {stop.tp for stop in self._services.coordinator.list_stops()}
        except WaybillError as error:
            # Each topic-partition will ask for itself, and report its own error.
            logger.warning("%s", error)
            self._described, self._may_have_stop = {}, set(tps)

    def _archive(self, tp: TopicPartition, others: int) -> TopicPartitionReport:
        now = self._clock.monotonic()
        if now >= self._deadline:
            return TopicPartitionReport(topic=tp.topic, partition=tp.partition, outcome=Outcome.OUT_OF_TIME)
        return archive_topic_partition(
            ArchiveTarget(
                self._services,
                self._stream,
                tp,
                self._clock,
                self._next_slice(now, others),
                rate_limit=self._rate_limit,
                recompressor=self._recompressor,
                described=self._described.pop(tp, None),
                conflict=self._conflicts.get(tp),
                may_have_stop=tp in self._may_have_stop,
            )
        )

    def _next_slice(self, now: float, others: int) -> TimeSlice:
        if not others:  # no topic-partition waits after the last one
            return TimeSlice(deadline=self._deadline, yields_at=self._deadline)
        seconds = max(self._min_seconds, (self._deadline - now) / (others + 1))
        # Twice the time until the deadline, so that the object that is being written can be finished.
        return TimeSlice(deadline=min(self._deadline, now + 2 * seconds), yields_at=now + seconds)


def _find_conflict(config: Config, stream: str, topic: str) -> GenerationConflict | None:
    rival = config.rival(stream, topic)
    if rival is None:
        return None
    return GenerationConflict(
        f"topic {topic!r} belongs to the streams {stream!r} and {rival!r} in the same generation: both would write the "
        f"same chains. Correct the pattern of one, or give it another generation"
    )


def _commit_to_consumer_group(services: Services, group: str | None, reports: Iterable[TopicPartitionReport]) -> None:
    """Commit to the consumer group that shows the lag in other tools. Nothing depends on it, so an error is logged."""
    if group is None:
        return
    offsets = {r.tp: r.committed_offset for r in reports if r.committed_offset is not None}
    try:
        services.source.commit_to_group(group, offsets)
    except WaybillError as error:
        logger.warning("%s", error)
