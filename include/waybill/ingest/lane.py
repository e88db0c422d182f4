"""A lane: one short task that drains several topic-partitions in turn.

Each gets an equal part of the time that is left; what one does not need is the others'. One that has more to archive
than fits its turn yields at the end of an object, and goes on when all others have had theirs. So every topic-partition
of a lane gets on in every run, as long as the budget has a second for each; where it has not, the plan puts those that
were left out first in the next run.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

from waybill.config import Config, Stream
from waybill.connections import connection
from waybill.errors import GenerationConflict, WaybillError
from waybill.ingest.orphaned_uploads import sweep
from waybill.ingest.plan import Lane
from waybill.ingest.protocol import PartitionRun
from waybill.ingest.report import LaneReport, Outcome, PartitionReport
from waybill.ingest.services import FindConnection, Services, connect
from waybill.ingest.turn import Clock, RateLimit, Turn
from waybill.names import TopicPartition
from waybill.records.recompress import Recompressor
from waybill.sources.kafka import Sight

__all__ = ["drain_lane", "run_lane"]

logger = logging.getLogger(__name__)

_MIN_TURN_SECONDS = 1.0
_MIN_TURN_FRACTION = 10
"""A turn is a second, or a tenth of a short budget, at least: what a turn costs besides must be little."""


def run_lane(
    config: Config, stream_name: str, lane: Lane, *, find: FindConnection = connection, clock: Clock | None = None
) -> LaneReport:
    """Connect, and archive what a lane's topic-partitions hold, within the stream's budget.

    What goes wrong with one topic-partition is in its report, and the lane goes on. Raises `ConfigError`,
    `KafkaUnavailable` or `CoordinationUnavailable` when a service cannot be reached to begin with.
    """
    with connect(config, stream_name, find) as services:
        return drain_lane(services, config, stream_name, lane, clock=clock)


def drain_lane(
    services: Services, config: Config, stream_name: str, lane: Lane, *, clock: Clock | None = None
) -> LaneReport:
    """`run_lane` with services that are connected."""
    clock = clock or Clock()
    stream = config.stream(stream_name)
    started = clock.monotonic()
    with nullcontext() if stream.recompress is None else Recompressor(stream.recompress) as recompressor:
        conflicts = {share.tp: _conflict(config, stream_name, share.topic) for share in lane.shares}
        draining = _Draining(services, stream, clock, started, recompressor, conflicts)
        reports = draining.run([share.tp for share in lane.shares])
    if lane.number == 0:
        sweep(services.coordinator, services.store, config, stream_name, clock)
    _show_progress(services, stream.consumer_group(stream_name), reports)
    report = LaneReport(
        stream=stream_name, lane=lane.number, seconds=clock.monotonic() - started, partitions=tuple(reports)
    )
    logger.info(
        "lane %d of %s: %d objects, %s messages, %.1f MB in %.1f s, lag %s, %d of %d topic-partitions failed",
        *(lane.number, stream_name, report.objects, f"{report.messages:,}", report.size_bytes / 1e6, report.seconds),
        *(f"{report.lag:,}", len(report.failures), len(reports)),
    )
    return report


def _show_progress(services: Services, group: str | None, reports: Iterable[PartitionReport]) -> None:
    """Commit to the consumer group that is for show. Nothing rests on it, so nothing fails with it."""
    if group is None:
        return
    offsets = {r.tp: r.committed_offset for r in reports if r.committed_offset is not None}
    try:
        services.source.commit_to_group(group, offsets)
    except WaybillError as error:
        logger.warning("%s", error)


class _Draining:
    """Turn after turn, until all is archived or the budget ends."""

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
        self._min_turn = min(_MIN_TURN_SECONDS, budget / _MIN_TURN_FRACTION)
        self._limit = RateLimit(int(stream.ingest.rate_limit), clock)
        self._seen: dict[TopicPartition, Sight] = {}
        self._stopped: set[TopicPartition] = set()

    def run(self, tps: list[TopicPartition]) -> list[PartitionReport]:
        """The topic-partitions in the order of their first turns."""
        self._look(tps)
        # Whoever's leader did not answer is asked last: that may take long, and others need not wait for it.
        waiting = deque(sorted(tps, key=lambda tp: tp not in self._seen) if self._seen else tps)
        reports: dict[TopicPartition, PartitionReport] = {}
        while waiting:
            tp = waiting.popleft()
            before, report = reports.get(tp), self._take_turn(tp, others=len(waiting))
            reports[tp] = report if before is None else before.followed_by(report)
            if report.outcome is Outcome.OUT_OF_TIME and self._clock.monotonic() < self._deadline:
                waiting.append(tp)
        return list(reports.values())

    def _look(self, tps: list[TopicPartition]) -> None:
        """Ask once for all: a request a topic-partition would be most of what a small one costs."""
        if len(tps) < 2:
            self._stopped = set(tps)
            return
        try:
            self._seen = self._services.source.look(tps)
            self._stopped = {stop.tp for stop in self._services.coordinator.list_stops()}
        except WaybillError as error:
            # Each will ask for itself, and report what goes wrong.
            logger.warning("%s", error)
            self._seen, self._stopped = {}, set(tps)

    def _take_turn(self, tp: TopicPartition, others: int) -> PartitionReport:
        now = self._clock.monotonic()
        if now >= self._deadline:
            return PartitionReport(topic=tp.topic, partition=tp.partition, outcome=Outcome.OUT_OF_TIME)
        length = max(self._min_turn, (self._deadline - now) / (others + 1))
        turn = Turn(
            # Twice the length, for an object to be finished in; the last one in the line takes nobody's time.
            deadline=min(self._deadline, now + 2 * length) if others else self._deadline,
            yields_at=now + length if others else self._deadline,
            limit=self._limit,
            recompressor=self._recompressor,
            seen=self._seen.pop(tp, None),
            conflict=self._conflicts.get(tp),
            has_stop=tp in self._stopped,
        )
        return PartitionRun(self._services, self._stream, tp, turn=turn, clock=self._clock).run()


def _conflict(config: Config, stream: str, topic: str) -> GenerationConflict | None:
    rival = config.rival(stream, topic)
    if rival is None:
        return None
    return GenerationConflict(
        f"topic {topic!r} belongs to the streams {stream!r} and {rival!r} in the same generation: both would write the "
        f"same chains. Correct the pattern of one, or give it another generation"
    )
