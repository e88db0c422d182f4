"""A lane: one short task that drains several topic-partitions in turn."""

from __future__ import annotations

import logging

from waybill.config.models import Config
from waybill.connections import connection
from waybill.ingest.plan import Lane
from waybill.ingest.protocol import Clock, PartitionRun
from waybill.ingest.report import LaneReport, Outcome, PartitionReport
from waybill.ingest.services import FindConnection, Services, connect
from waybill.names import TopicPartition

__all__ = ["drain_lane", "run_lane"]

log = logging.getLogger(__name__)


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
    deadline = started + stream.ingest.budget.total_seconds()
    reports = []
    for share in lane.shares:
        if clock.monotonic() >= deadline:
            reports.append(_out_of_time(share.tp))
        else:
            reports.append(PartitionRun(services, stream, share.tp, deadline=deadline, clock=clock).run())
    report = LaneReport(
        stream=stream_name, lane=lane.number, seconds=clock.monotonic() - started, partitions=tuple(reports)
    )
    log.info(
        "lane %d of %s: %d objects, %s messages, %.1f MB in %.1f s, lag %s, %d of %d topic-partitions failed",
        *(lane.number, stream_name, report.objects, f"{report.messages:,}", report.size_bytes / 1e6, report.seconds),
        *(f"{report.lag:,}", len(report.failures), len(reports)),
    )
    return report


def _out_of_time(tp: TopicPartition) -> PartitionReport:
    return PartitionReport(topic=tp.topic, partition=tp.partition, outcome=Outcome.OUT_OF_TIME)
