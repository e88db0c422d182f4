"""Which topic-partitions a run drains, and which lane drains which."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from waybill.config.models import Config
from waybill.connections import connection
from waybill.coordination import Committed
from waybill.ingest.services import FindConnection, connect_source
from waybill.names import TopicPartition
from waybill.sources.kafka import LogRange

__all__ = ["Lane", "LaneShare", "estimate_bytes", "plan_lanes"]

log = logging.getLogger(__name__)

MAX_LANES = 1024
"""Airflow expands a mapped task no further (`core.max_map_length`)."""

_UNKNOWN_MESSAGE_BYTES = 1024


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
    """One lane's share of a run, smallest topic-partition first: a large backlog never keeps a small topic waiting."""

    model_config = ConfigDict(frozen=True)

    number: int
    shares: tuple[LaneShare, ...]

    @property
    def estimated_bytes(self) -> int:
        return sum(share.estimated_bytes for share in self.shares)


def plan_lanes(config: Config, stream_name: str, *, find: FindConnection = connection) -> list[Lane]:
    """Plan a run of a stream: its topic-partitions with something to archive, in at most `ingest.lanes` lanes.

    Topics and topic-partitions are looked up anew, so new ones are found without a restart. An empty list: nothing to
    do. Raises `ConfigError`, `KafkaUnavailable` or `CoordinationUnavailable`.
    """
    stream = config.stream(stream_name)
    with connect_source(config, stream_name, find) as (source, coordinator):
        tps = source.topic_partitions(stream)
        held = source.offsets(tps)
        committed = coordinator.read_all_committed(tps)
        stopped = {stop.tp for stop in coordinator.list_stops()}
    shares = []
    for tp in tps:
        estimate = estimate_bytes(held[tp], committed.get(tp))
        # One that stands still goes along, however little it lags: a lane finds out whether it may go on.
        if estimate or tp in stopped or tp not in committed or _is_beyond(held[tp], committed[tp]):
            shares.append(LaneShare(topic=tp.topic, partition=tp.partition, estimated_bytes=estimate))
    lanes = _pack(shares, min(stream.ingest.lanes, MAX_LANES))
    log.info(
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


def _pack(shares: Iterable[LaneShare], lanes: int) -> list[Lane]:
    """Longest processing time first: each topic-partition, largest first, goes to the lane with least to do."""
    loads: list[tuple[int, int, list[LaneShare]]] = [(0, number, []) for number in range(lanes)]
    for share in sorted(shares, key=lambda s: (-s.estimated_bytes, s.tp)):
        load, number, taken = heapq.heappop(loads)
        taken.append(share)
        heapq.heappush(loads, (load + share.estimated_bytes + 1, number, taken))
    filled = sorted((number, taken) for _, number, taken in loads if taken)
    return [Lane(number=number, shares=tuple(reversed(taken))) for number, (_, taken) in enumerate(filled)]
