"""Which topic-partitions a run drains, and which lane drains which."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterable, Mapping
from datetime import timedelta

from pydantic import BaseModel, ConfigDict

from waybill.config import Config
from waybill.connections import connection
from waybill.coordination import Committed
from waybill.ingest.services import FindConnection, connect_source
from waybill.ingest.turn import Clock
from waybill.names import TopicPartition
from waybill.sources.kafka import LogRange

__all__ = ["Lane", "LaneShare", "estimate_bytes", "plan_lanes"]

logger = logging.getLogger(__name__)

MAX_LANES = 1024
"""Airflow expands a mapped task no further (`core.max_map_length`)."""

_UNKNOWN_MESSAGE_BYTES = 1024
_RUN_INTERVAL = timedelta(minutes=2)
"""Of the DAG, with room for a late start."""


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
    """One lane's share of a run, in the order of the first turns."""

    model_config = ConfigDict(frozen=True)

    number: int
    shares: tuple[LaneShare, ...]

    @property
    def estimated_bytes(self) -> int:
        return sum(share.estimated_bytes for share in self.shares)


def plan_lanes(
    config: Config, stream_name: str, *, find: FindConnection = connection, clock: Clock | None = None
) -> list[Lane]:
    """Plan a run of a stream: its topic-partitions with something to archive, in at most `ingest.lanes` lanes.

    Topics and topic-partitions are looked up anew, so new ones are found without a restart. One whose leader does not
    answer is planned all the same: its lane says what is wrong. An empty list: nothing to do.

    Raises `ConfigError`, `KafkaUnavailable` or `CoordinationUnavailable`.
    """
    stream = config.stream(stream_name)
    with connect_source(config, stream_name, find) as (source, coordinator):
        tps = source.topic_partitions(stream)
        held = source.offsets_briefly(tps)
        committed = coordinator.read_all_committed(tps)
        stopped = {stop.tp for stop in coordinator.list_stops()}
    shares = []
    for tp in tps:
        estimate = estimate_bytes(held[tp], committed.get(tp)) if tp in held else 0
        # One that stands still goes along, however little it lags: a lane finds out whether it may go on.
        if estimate or tp in stopped or tp not in held or tp not in committed or _is_beyond(held[tp], committed[tp]):
            shares.append(LaneShare(topic=tp.topic, partition=tp.partition, estimated_bytes=estimate))
    overdue = _overdue(shares, committed, (clock or Clock()).now_ms(), stream.ingest.budget)
    lanes = _pack(shares, min(stream.ingest.lanes, MAX_LANES), overdue)
    logger.info(
        "planned %s: %d of %d topic-partitions, about %.1f MB, in %d lanes",
        *(stream_name, len(shares), len(tps), sum(lane.estimated_bytes for lane in lanes) / 1e6, len(lanes)),
    )
    return lanes


def estimate_bytes(held: LogRange, committed: Committed | None) -> int:
    """How many bytes there are to archive: the lag times the mean message size of the last object."""
    start = held.earliest if committed is None else committed.committed_offset
    return max(0, held.end - start) * mean_message_bytes(committed)


def mean_message_bytes(committed: Committed | None) -> int:
    """The mean size of a message in the last object, as stored; a guess if there was none."""
    if committed is None or not committed.object_messages:
        return _UNKNOWN_MESSAGE_BYTES
    return max(1, committed.object_bytes // committed.object_messages)


def _is_beyond(held: LogRange, committed: Committed) -> bool:
    """The committed offset is not in the log: retention, a truncation or a recreated topic. A lane names it."""
    return not held.earliest <= committed.committed_offset <= held.end


def _overdue(
    shares: Iterable[LaneShare], committed: Mapping[TopicPartition, Committed], now_ms: int, budget: timedelta
) -> dict[TopicPartition, int]:
    """Those that the last runs did not get to, or that are new, and when they last got on (milliseconds, 0: never).

    A topic that rarely has a message is taken for one of them, which does no harm.
    """
    limit_ms = now_ms - int((2 * budget + _RUN_INTERVAL).total_seconds() * 1000)
    last = {share.tp: committed[share.tp].committed_at_ms if share.tp in committed else 0 for share in shares}
    return {tp: at_ms for tp, at_ms in last.items() if at_ms < limit_ms}


def _pack(shares: Iterable[LaneShare], lanes: int, overdue: Mapping[TopicPartition, int] | None = None) -> list[Lane]:
    """Longest processing time first: each topic-partition, largest first, goes to the lane with least to do.

    Within a lane the smallest come first: a large backlog keeps no small topic waiting. But before them come those
    that are overdue, the longest waiting first, so that many small ones keep nobody waiting for ever.
    """
    waiting = overdue or {}
    loads: list[tuple[int, int, list[LaneShare]]] = [(0, number, []) for number in range(lanes)]
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
