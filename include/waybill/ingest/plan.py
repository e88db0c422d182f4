"""Planning a run: which topic-partitions have something to archive, and which lane archives which of them."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterable, Mapping
from datetime import timedelta

from pydantic import BaseModel, ConfigDict

from waybill.config import Config
from waybill.connections import find_connection
from waybill.coordination import CommittedOffset
from waybill.ingest.services import FindConnection, connect_source
from waybill.ingest.time_slice import Clock
from waybill.names import TopicPartition
from waybill.sources.kafka import LogRange

__all__ = ["Lane", "LaneShare", "estimate_bytes", "plan_lanes"]

logger = logging.getLogger(__name__)

MAX_LANES = 1024
"""Airflow maps a task over at most this many inputs (`core.max_map_length`)."""

_ASSUMED_MESSAGE_BYTES = 1024
"""The mean message size where no object shows one."""

_RUN_INTERVAL = timedelta(minutes=2)
"""The DAG's interval, with a minute for a late start."""


class LaneShare(BaseModel):
    """One topic-partition in a lane."""

    model_config = ConfigDict(frozen=True)

    topic: str
    partition: int
    estimated_bytes: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Lane(BaseModel):
    """One lane's share of a run, in the order of the first time slices."""

    model_config = ConfigDict(frozen=True)

    number: int
    shares: tuple[LaneShare, ...]

    @property
    def estimated_bytes(self) -> int:
        return sum(share.estimated_bytes for share in self.shares)


def plan_lanes(
    config: Config, stream_name: str, *, find: FindConnection = find_connection, clock: Clock | None = None
) -> list[Lane]:
    """Plan a run of a stream: its topic-partitions with something to archive, in at most `ingest.lanes` lanes.

    Topics and partitions are listed each time, so new ones are found without a restart. A topic-partition whose leader
    does not answer is planned, too, and its lane reports the error. An empty list means that there is nothing to do.

    Raises `ConfigError`, `KafkaUnavailable` or `CoordinationUnavailable`.
    """
    stream = config.stream(stream_name)
    with connect_source(config, stream_name, find) as (source, coordinator):
        tps = source.topic_partitions(stream)
        log_ranges = source.offsets_briefly(tps)
        committed = coordinator.read_all_committed(tps)
        stopped = {stop.tp for stop in coordinator.list_stops()}
    shares = []
    for tp in tps:
        log_range, offset = log_ranges.get(tp), committed.get(tp)
        estimate = 0 if log_range is None else estimate_bytes(log_range, offset)
        # A stopped topic-partition is planned even without a lag, since its lane finds out whether it may continue.
        is_normal = log_range is not None and offset is not None and _is_within(log_range, offset)
        if estimate or tp in stopped or not is_normal:
            shares.append(LaneShare(topic=tp.topic, partition=tp.partition, estimated_bytes=estimate))
    overdue = _find_overdue(shares, committed, (clock or Clock()).now_ms(), stream.ingest.budget)
    lanes = _assign_to_lanes(shares, min(stream.ingest.lanes, MAX_LANES), overdue)
    logger.info(
        "planned %s: %d of %d topic-partitions, about %.1f MB, in %d lanes",
        *(stream_name, len(shares), len(tps), sum(lane.estimated_bytes for lane in lanes) / 1e6, len(lanes)),
    )
    return lanes


def estimate_bytes(log_range: LogRange, committed: CommittedOffset | None) -> int:
    """Return the estimated bytes to archive: the lag times the mean message size in the last object."""
    start = log_range.earliest if committed is None else committed.committed_offset
    return max(0, log_range.end - start) * _mean_message_bytes(committed)


def _mean_message_bytes(committed: CommittedOffset | None) -> int:
    if committed is None or not committed.object_messages:
        return _ASSUMED_MESSAGE_BYTES
    return max(1, committed.object_bytes // committed.object_messages)


def _is_within(log_range: LogRange, committed: CommittedOffset) -> bool:
    """Return whether the log holds the committed offset. Else the lane finds the named stop."""
    return log_range.earliest <= committed.committed_offset <= log_range.end


def _find_overdue(
    shares: Iterable[LaneShare], committed: Mapping[TopicPartition, CommittedOffset], now_ms: int, budget: timedelta
) -> dict[TopicPartition, int]:
    """Return the topic-partitions that the last runs did not reach, or that are new, and when they last advanced.

    The time is in milliseconds since 1970 UTC; 0 for one that never advanced. A topic that rarely has a message is also
    returned, which does no harm.
    """
    limit_ms = now_ms - int((2 * budget + _RUN_INTERVAL).total_seconds() * 1000)
    last_ms = {share.tp: committed[share.tp].committed_at_ms if share.tp in committed else 0 for share in shares}
    return {tp: at_ms for tp, at_ms in last_ms.items() if at_ms < limit_ms}


def _assign_to_lanes(
    shares: Iterable[LaneShare], lane_count: int, overdue: Mapping[TopicPartition, int] | None = None
) -> list[Lane]:
    """Give each topic-partition, the largest first, to the lane with the least work (longest processing time first).

    Within a lane the smallest come first, so that a large backlog delays no small topic. Before them come the overdue
    ones, the longest waiting first, so that many small ones cannot delay them for ever.
    """
    waiting = overdue or {}
    loads: list[tuple[int, int, list[LaneShare]]] = [(0, number, []) for number in range(lane_count)]
    for share in sorted(shares, key=lambda s: (-s.estimated_bytes, s.tp)):
        load, number, taken = heapq.heappop(loads)
        taken.append(share)
        heapq.heappush(loads, (load + share.estimated_bytes + 1, number, taken))
    filled = sorted((number, taken) for _, number, taken in loads if taken)
    return [
        Lane(
            number=number,
            shares=tuple(sorted(taken, key=lambda s: (waiting.get(s.tp, math.inf), s.estimated_bytes, s.tp))),
        )
        for number, (_, taken) in enumerate(filled)
    ]
