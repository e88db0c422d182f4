"""A lane: one short task that archives topic-partitions of one or more streams, one time slice after the other.

Each topic-partition gets an equal part of the remaining time, and unused time is given to the others. A topic-partition
that needs more than its time slice stops at the end of an object, and continues after all others have had their slice.
So every topic-partition of a lane advances in every run, if the budget has a second for each. If it has not, the next
plan puts the topic-partitions that the lane did not reach first.

Each stream keeps its own budget, rate limit, isolation level and format.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from waybill.archive.ingest.lane_plan import Lane, LaneShare
from waybill.archive.ingest.lane_report import Failure, LaneReport, Outcome, StreamReport, TopicPartitionReport
from waybill.archive.ingest.orphaned_uploads import abort_orphaned_uploads
from waybill.archive.ingest.protocol import archive_topic_partition
from waybill.archive.ingest.services import FindConnection, connect_all
from waybill.archive.ingest.target import ArchiveTarget, IngestServices
from waybill.archive.ingest.time_slice import Clock, RateLimit, TimeSlice
from waybill.base.errors import GenerationConflict, UnexpectedFailure, WaybillError
from waybill.base.metering import Tally, meter, working_for
from waybill.config.connections import find_connection
from waybill.config.models import Config, IsolationLevel, Stream
from waybill.config.names import Stage, TopicPartition
from waybill.records.batches.compression import Recompressor
from waybill.services.coordination import UsageStore
from waybill.services.kafka.kafka import PartitionState

logger = logging.getLogger(__name__)

_MIN_SLICE_SECONDS = 1.0
_MIN_SLICE_FRACTION = 10
"""A time slice is at least a second, or a tenth of a short budget, since each slice has a fixed cost."""


def run_lane(
    config: Config,
    lane: Lane,
    *,
    find: FindConnection = find_connection,
    clock: Clock | None = None,
    stores_usage: bool = True,
) -> LaneReport:
    """Connect, and archive a lane's topic-partitions, each within its stream's budget.

    `stores_usage`: at the end, add the usage of this process to that of its streams.

    An error of one topic-partition is in its report, and the lane continues with the others. Raises `ConfigError`,
    `KafkaUnavailable` or `CoordinationUnavailable` when a service cannot be connected.
    """
    with connect_all(config, lane.streams, find) as services:
        report = drain_lane(services, config, lane, clock=clock)
        if stores_usage and lane.streams:
            _store_usage(config, services, lane, report)
        return report


def drain_lane(
    services: Mapping[str, IngestServices], config: Config, lane: Lane, *, clock: Clock | None = None
) -> LaneReport:
    """Archive like `run_lane`, with connected services by stream."""
    clock = clock or Clock()
    started = clock.monotonic()
    with ExitStack() as stack:
        streams = {
            name: _StreamInLane.begin(stack, services[name], config, name, clock, started) for name in lane.streams
        }
        reports = _TimeSlices(streams, clock).run(lane.shares)
    chores = {name: _do_chores(stream, name in lane.chores, clock, reports[name]) for name, stream in streams.items()}
    report = LaneReport(
        lane=lane.number,
        seconds=clock.monotonic() - started,
        streams=tuple(
            StreamReport(stream=name, partitions=tuple(each), chores=chores[name]) for name, each in reports.items()
        ),
    )
    logger.info(
        "lane %d of %s: %d objects, %s messages, %.1f MB in %.1f s, lag %s, %d of %d topic-partitions failed",
        *(lane.number, _list_streams(lane.streams), report.objects, f"{report.messages:,}", report.size_bytes / 1e6),
        *(report.seconds, f"{report.lag:,}", len(report.failures), len(report.partitions)),
    )
    return report


@dataclass(slots=True)
class _StreamInLane:
    """One stream of a lane: its services and its own limits."""

    name: str
    settings: Stream
    services: IngestServices
    config: Config
    deadline: float
    min_seconds: float
    rate_limit: RateLimit
    recompressor: Recompressor | None
    conflicts: dict[str, GenerationConflict | None] = field(default_factory=dict)
    """Topics that must not be archived, with the reason."""

    @classmethod
    def begin(
        cls, stack: ExitStack, services: IngestServices, config: Config, name: str, clock: Clock, started: float
    ) -> _StreamInLane:
        settings = config.stream(name)
        budget = settings.ingest.budget.total_seconds()
        level = settings.recompress
        return cls(
            name,
            settings,
            services,
            config,
            deadline=started + budget,
            min_seconds=min(_MIN_SLICE_SECONDS, budget / _MIN_SLICE_FRACTION),
            rate_limit=RateLimit(int(settings.ingest.rate_limit), clock),
            recompressor=None if level is None else stack.enter_context(Recompressor(level)),
        )

    def conflict(self, topic: str) -> GenerationConflict | None:
        if topic not in self.conflicts:
            self.conflicts[topic] = _find_conflict(self.config, self.name, topic)
        return self.conflicts[topic]


class _TimeSlices:
    """Gives time slices to a lane's topic-partitions, until all are archived or their budgets end."""

    def __init__(self, streams: Mapping[str, _StreamInLane], clock: Clock) -> None:
        self._streams, self._clock = streams, clock
        self._described: dict[tuple[str, TopicPartition], PartitionState] = {}

    def run(self, shares: Iterable[LaneShare]) -> dict[str, list[TopicPartitionReport]]:
        """Return the reports by stream, in the order of the first time slices."""
        shares = list(shares)
        self._describe(shares)
        # Put topic-partitions whose leader did not answer last: they may take long, and the others should not wait.
        waiting = deque(
            sorted(shares, key=lambda share: share.chain not in self._described) if self._described else shares
        )
        reports: dict[str, dict[TopicPartition, TopicPartitionReport]] = {name: {} for name in self._streams}
        while waiting:
            share = waiting.popleft()
            stream = self._streams[share.stream]
            of_stream = reports[share.stream]
            before = of_stream.get(share.tp)
            with working_for(share.stream):
                report = self._archive(stream, share, others=len(waiting))
            of_stream[share.tp] = report if before is None else before.merged_with(report)
            if report.outcome is Outcome.OUT_OF_TIME and self._clock.monotonic() < stream.deadline:
                waiting.append(share)
        return {name: list(each.values()) for name, each in reports.items()}

    def _describe(self, shares: list[LaneShare]) -> None:
        """Describe all topic-partitions with one request: separate requests would be most of the cost of small ones."""
        if len(shares) < 2:
            return
        together: dict[tuple[object, IsolationLevel], list[LaneShare]] = {}
        for share in shares:
            stream = self._streams[share.stream]
            key = stream.services.source.connection, stream.settings.isolation_level
            together.setdefault(key, []).append(share)
        try:
            for each in together.values():
                source = self._streams[each[0].stream].services.source
                found = source.describe_partitions({share.tp for share in each})
                self._described.update({share.chain: found[share.tp] for share in each if share.tp in found})
        except Exception as error:
            # Then each topic-partition sends its own request, and reports its own error.
            logger.warning("%s", error, exc_info=not isinstance(error, WaybillError))
            self._described = {}

    def _archive(self, stream: _StreamInLane, share: LaneShare, others: int) -> TopicPartitionReport:
        tp, now = share.tp, self._clock.monotonic()
        if now >= stream.deadline:
            return TopicPartitionReport(topic=tp.topic, partition=tp.partition, outcome=Outcome.OUT_OF_TIME)
        return archive_topic_partition(
            ArchiveTarget(
                stream.services,
                stream.settings,
                tp,
                self._clock,
                _next_slice(stream, now, others),
                rate_limit=stream.rate_limit,
                recompressor=stream.recompressor,
                described=self._described.pop(share.chain, None),
                conflict=stream.conflict(tp.topic),
                may_have_stop=share.may_have_stop,
            )
        )


def _next_slice(stream: _StreamInLane, now: float, others: int) -> TimeSlice:
    if not others:  # after the last one, no other topic-partition waits
        return TimeSlice(deadline=stream.deadline, yields_at=stream.deadline)
    seconds = max(stream.min_seconds, (stream.deadline - now) / (others + 1))
    # Twice the time until the deadline, so that the object that is being written can be finished.
    return TimeSlice(deadline=min(stream.deadline, now + 2 * seconds), yields_at=now + seconds)


def _find_conflict(config: Config, stream: str, topic: str) -> GenerationConflict | None:
    rival = config.rival(stream, topic)
    if rival is None:
        return None
    return GenerationConflict(
        f"topic {topic!r} belongs to the streams {stream!r} and {rival!r} in the same generation: both would write the "
        f"same chains. Correct the pattern of one, or give it another generation"
    )


def _store_usage(config: Config, services: Mapping[str, IngestServices], lane: Lane, report: LaneReport) -> None:
    """Add what this process has used to the usage of the lane's streams. An error is logged."""
    for stream in report.streams:
        meter.add(Tally(messages=stream.messages), account=stream.stream)
    meter.add(Tally(cpu_seconds={"plan": lane.planning_cpu_seconds}))
    session = services[lane.streams[0]].coordinator.session
    tallies = meter.take(Stage.INGEST, lane.streams, "lane")
    UsageStore(session, config.zookeeper.root).add(f"{Stage.INGEST}-{lane.number}", tallies)


def _list_streams(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} streams"


def _do_chores(
    stream: _StreamInLane, aborts_uploads: bool, clock: Clock, reports: Iterable[TopicPartitionReport]
) -> tuple[Failure, ...]:
    """Run the chores, on which no commit depends, and return their unexpected failures."""
    name, services = stream.name, stream.services
    failures = []
    try:
        if aborts_uploads:
            with working_for(name):
                abort_orphaned_uploads(services.coordinator, services.store, stream.config, name, clock)
    except Exception as fault:
        failures.append(UnexpectedFailure(f"{name}: aborting the uploads of killed lanes", fault))
        logger.exception("%s", failures[-1])
    group = stream.settings.consumer_group(name)
    try:
        _commit_to_consumer_group(services, group, reports)
    except Exception as fault:
        failures.append(UnexpectedFailure(f"{name}: committing to the consumer group {group}", fault))
        logger.exception("%s", failures[-1])
    return tuple(Failure(error=each.stop_name, message=str(each), retriable=each.retriable) for each in failures)


def _commit_to_consumer_group(
    services: IngestServices, group: str | None, reports: Iterable[TopicPartitionReport]
) -> None:
    """Commit to the consumer group that shows the lag in other tools.

    Nothing depends on it, so an error is only logged.
    """
    if group is None:
        return
    offsets = {r.tp: r.committed_offset for r in reports if r.committed_offset is not None}
    try:
        services.kafka.commit_to_group(group, offsets)
    except WaybillError as error:
        logger.warning("%s", error)
