"""Archive the messages of Kafka again, into the chains of a generation that is not live.

The work is done by the stream's ordinary lanes: the same commit protocol, under the same locks. So the scheduled ingest
of the stream may run beside it, and a lane that is killed loses nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from waybill.archive.chain.chain import find_chain_start
from waybill.archive.ingest import plan_lanes, run_lane
from waybill.archive.ingest.kafka.backlog import estimate_bytes
from waybill.archive.ingest.lane_report import Outcome, TopicPartitionReport
from waybill.archive.ingest.services import connect_source
from waybill.base.errors import BackfillRefused
from waybill.config.models import Config, Stream
from waybill.config.models.enums import StartPosition
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import KafkaSource, LogRange
from waybill.services.store import Store
from waybill.tables.backfill.ranges import OffsetRanges

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
_PATIENCE_SECONDS = 300.0
"""The longest time without progress: another lane may hold the locks, or a topic-partition may have no leader."""


@dataclass(frozen=True, slots=True)
class InKafka:
    """The offsets that a generation can have after Kafka was archived up to the log end."""

    ranges: OffsetRanges
    """From the start of each chain (or where it would start) to the log end offset."""
    missing_bytes: int
    """An estimate of the bytes that are not archived yet, from the message size in the last object if there is one."""


def find_in_kafka(config: Config, name: str, store: Store) -> InKafka:
    """Return the offsets that a stream's generation can have, and an estimate of the bytes that are not archived yet.

    Raises `ConfigError`, or the retriable `KafkaUnavailable`, `CoordinationUnavailable` and `StoreUnavailable`.
    """
    stream = config.stream(name)
    with connect_source(config, name) as (found, coordinator):
        source = found.kafka
        tps = source.topic_partitions(stream)
        logs = source.offsets(tps)
        committed = coordinator.read_all_committed(tps)
        starts = {tp: _chain_start(store, source, stream, tp, logs[tp], committed.get(tp)) for tp in tps}
    ranges = {tp: (starts[tp], logs[tp].end) for tp in tps if starts[tp] < logs[tp].end}
    missing = (estimate_bytes(LogRange(first, end), committed.get(tp)) for tp, (first, end) in ranges.items())
    return InKafka(OffsetRanges(ranges), sum(missing))


def _chain_start(
    store: Store, source: KafkaSource, stream: Stream, tp: TopicPartition, log: LogRange, known: CommittedOffset | None
) -> int:
    """Return where the chain starts, or where a lane would start it now."""
    if known is not None and known.start_offset is not None:
        return known.start_offset
    recorded = find_chain_start(store, stream.generation, tp)
    if recorded is not None:
        return recorded.offset
    if isinstance(stream.start, datetime):
        offset = source.offset_at(tp, int(stream.start.timestamp() * 1000))
        return log.end if offset is None else offset
    return log.earliest if stream.start is StartPosition.EARLIEST else log.end


def archive_up_to(config: Config, name: str, ranges: OffsetRanges) -> None:
    """Run lanes of a stream until the committed offset of each topic-partition is at or beyond the end of its range.

    Raises `BackfillRefused` with the messages of the named stops, or if no topic-partition advances for five minutes;
    `ConfigError`; or one of the retriable `KafkaUnavailable`, `CoordinationUnavailable` and `StoreUnavailable`.
    """
    at_once = _archiving_all(config, name)
    reached: dict[TopicPartition, int] = {}
    advanced_at = time.monotonic()
    while True:
        lanes = plan_lanes(at_once, name)
        reports = {
            each.tp: each for lane in lanes for found in run_lane(at_once, lane).streams for each in found.partitions
        }
        with connect_source(config, name) as (_, coordinator):
            committed = {tp: c.committed_offset for tp, c in coordinator.read_all_committed(ranges.by_tp).items()}
        left = {tp: end for tp, (_, end) in ranges if committed.get(tp, -1) < end}
        if not left:
            return
        _raise_stops(name, left, reports)
        if committed != reached:
            reached, advanced_at = committed, time.monotonic()
            continue
        if time.monotonic() - advanced_at > _PATIENCE_SECONDS:
            raise BackfillRefused(
                f"{name}: nothing was archived for {_PATIENCE_SECONDS / 60:.0f} minutes: {_states(left, reports)}. "
                f"Run it again when the cause is gone"
            )
        time.sleep(_PAUSE_SECONDS)


def _archiving_all(config: Config, name: str) -> Config:
    """Return a config whose lanes complete an object at the end of the log, instead of waiting for its age."""
    stream = config.stream(name)
    topics = {topic: limits.model_copy(update={"max_age": None}) for topic, limits in stream.upload.topics.items()}
    upload = stream.upload.model_copy(update={"max_age": timedelta(0), "topics": topics})
    return config.model_copy(update={"streams": {**config.streams, name: stream.model_copy(update={"upload": upload})}})


def _raise_stops(
    name: str, left: Mapping[TopicPartition, int], reports: Mapping[TopicPartition, TopicPartitionReport]
) -> None:
    stops = [
        report.failure.message
        for tp in left
        if (report := reports.get(tp)) and report.outcome is Outcome.STOPPED and report.failure
    ]
    if stops:
        raise BackfillRefused(f"{name}: messages of the range cannot be archived: {'; '.join(stops)}")


def _states(left: Mapping[TopicPartition, int], reports: Mapping[TopicPartition, TopicPartitionReport]) -> str:
    def state(tp: TopicPartition) -> str:
        report = reports.get(tp)
        if report is None:
            return f"{tp} is in no lane"
        return f"{tp} {report.outcome}" + (f" ({report.failure.message})" if report.failure else "")

    return "; ".join(state(tp) for tp in list(left)[:5])
