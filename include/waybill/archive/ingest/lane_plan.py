"""Plan a run: find the topic-partitions with messages to archive, and assign them to lanes.

A run covers the streams of one group, or one stream. One metadata request describes all their topics, one ListOffsets
request to each broker returns the ends of their logs, and the committed offsets are read from ZooKeeper together.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from pydantic import BaseModel, ConfigDict

from waybill.archive.ingest.services import FindConnection, Sources, connect_sources
from waybill.archive.ingest.time_slice import Clock
from waybill.config.connections import find_connection
from waybill.config.models import Config, IsolationLevel, Stream
from waybill.config.names import TopicPartition
from waybill.services.coordination import (
    CommittedOffset,
    GroupProblem,
    GroupProblems,
    IngestState,
    Pause,
    Stage,
    read_ingest_states,
    read_pauses,
)
from waybill.services.kafka.kafka import LogRange, StreamTopics

logger = logging.getLogger(__name__)

MAX_LANES = 1024
"""Airflow maps a task over at most this many inputs (`core.max_map_length`)."""

_RUN_INTERVAL = timedelta(minutes=2)
"""The DAG's interval, with a minute for a late start."""

_STOP_CHECK_INTERVAL = timedelta(minutes=10)
"""The interval in which a run starts lanes only to check whether stopped topic-partitions can continue."""

_LANE_SECONDS = 10.0
"""The estimated work of a lane of a group, above which a run gets another lane."""
_SHARE_SECONDS = 0.05
_MISSING = "topic '{topic}' does not exist in Kafka: create it, or remove it from the stream's `topics`"
_NEAR_SECONDS = 0.5
_BYTES_PER_SECOND = 50e6


class LaneShare(BaseModel):
    """One topic-partition of a stream in a lane."""

    model_config = ConfigDict(frozen=True)

    stream: str
    topic: str
    partition: int
    estimated_bytes: int
    may_have_stop: bool = True
    """Whether the journal may hold a named stop of this topic-partition."""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def chain(self) -> tuple[str, TopicPartition]:
        """The stream and the topic-partition. Two streams may archive one topic, in different generations."""
        return self.stream, self.tp

    @property
    def estimated_seconds(self) -> float:
        """Return the estimated time of a lane for it."""
        return _SHARE_SECONDS + self.estimated_bytes / _BYTES_PER_SECOND


class Lane(BaseModel):
    """One lane's share of a run, in the order of the first time slices."""

    model_config = ConfigDict(frozen=True)

    number: int
    shares: tuple[LaneShare, ...]
    chores: tuple[str, ...] = ()
    """The streams whose chores this lane runs: one lane of a run does this."""
    planning_cpu_seconds: float = 0.0
    """The lane's share of the CPU time of planning, which the lane stores with its own usage."""

    @property
    def estimated_bytes(self) -> int:
        return sum(share.estimated_bytes for share in self.shares)

    @property
    def streams(self) -> tuple[str, ...]:
        """Return the streams of the lane, each once, in the order of their first time slices."""
        return tuple(dict.fromkeys(share.stream for share in self.shares))


class StreamProblem(BaseModel):
    """Why a stream, or some of its topic-partitions, does not advance."""

    model_config = ConfigDict(frozen=True)

    stream: str
    error: str
    """The name of the error's class, or `TopicMissing`."""
    message: str

    @property
    def key(self) -> tuple[str, str]:
        """The key of the problem, which is the same in each run."""
        return self.stream, self.error

    def to_problem(self, since_ms: int) -> GroupProblem:
        """Return the problem as the group's node records it."""
        return GroupProblem(self.stream, self.error, self.message, since_ms)


class IngestPlan(BaseModel):
    """The plan of a run."""

    model_config = ConfigDict(frozen=True)

    streams: tuple[str, ...]
    """The streams that the run covers: paused ones are left out."""
    lanes: tuple[Lane, ...]
    problems: tuple[StreamProblem, ...] = ()
    """The problems that planning found. Lanes may find more."""
    paused: tuple[str, ...] = ()
    """The streams that are left out because a person paused them."""
    has_news: bool = False
    """Whether a plan without lanes must be reported: a problem is new, or one that was reported is gone."""


def plan_lanes(
    config: Config, stream_name: str, *, find: FindConnection = find_connection, clock: Clock | None = None
) -> list[Lane]:
    """Plan a run of one stream, with stopped topic-partitions, in at most `ingest.lanes` lanes. See `plan_run`.

    Raises `ConfigError`, `KafkaUnavailable` or `CoordinationUnavailable`.
    """
    with connect_sources(config, [stream_name], find) as sources:
        topics = sources.describe_streams({stream_name: config.stream(stream_name)}, assigns=True)
        if refused := topics[stream_name].refused:
            raise next(iter(refused.values()))
        for topic in topics[stream_name].missing:
            logger.warning("topic %s does not exist in Kafka", topic)
        shares, _ = _find_shares(config, sources, topics, clock or Clock(), with_stopped=True)
    lanes = _assign_to_lanes(shares, min(config.stream(stream_name).ingest.lanes, MAX_LANES))
    _log_plan(stream_name, topics, lanes)
    return lanes


def plan_run(
    config: Config,
    group: str | None,
    stream_names: Collection[str],
    *,
    with_stopped: bool = False,
    find: FindConnection = find_connection,
    clock: Clock | None = None,
) -> IngestPlan:
    """Plan a run of a group: the topic-partitions of its streams with something to archive, in lanes.

    If `group` is None, the run belongs to a stream's own DAG, which has `ingest.lanes` lanes.

    Topics and partitions are listed each time, so new ones are found without a restart. A topic-partition whose leader
    does not answer is planned too, and its lane reports the error. If there is nothing to archive, the plan has no
    lanes.

    A stream that cannot be planned is a problem of the plan, and the others are planned. If there are only stopped
    topic-partitions, lanes start only every ten minutes, or if `with_stopped` is true.

    Raises `ConfigError`, `KafkaUnavailable` or `CoordinationUnavailable` when a service cannot be reached.
    """
    clock = clock or Clock()
    broken = {name: config.broken[name] for name in stream_names if name in config.broken}
    problems = [StreamProblem(stream=name, error="ConfigError", message=text) for name, text in broken.items()]
    names = [name for name in stream_names if name not in broken]
    with connect_sources(config, names, find) as sources:
        paused = _paused(sources, config, names)
        active = {name: config.stream(name) for name in names if name not in paused}
        topics = sources.describe_streams(active, assigns=True) if active else {}
        with_stopped = with_stopped or _is_stop_check_due(clock)
        shares, states = _find_shares(config, sources, topics, clock, with_stopped=with_stopped)
        # Read the record only for a plan without lanes: a damaged record must not stop the archiving.
        reported = None
        if group is not None and not shares:
            reported = GroupProblems.read(sources.session, config.zookeeper.root, group)
    problems += _find_problems(topics, states)
    limits = {name: stream.ingest.lanes for name, stream in active.items()}
    if group is None:
        count = min(max(limits.values(), default=1), MAX_LANES)
    else:
        count = _count_lanes(shares, config.group(group).ingest.lanes)
    lanes = _assign_to_lanes(shares, count, limits)
    _log_plan(", ".join(names) if group is None else f"group {group}", topics, lanes)
    for name, pause in paused.items():
        logger.info("%s is paused by %s: %s", name, pause.by, pause.reason)
    covered = (*broken, *active)
    return IngestPlan(
        streams=covered,
        lanes=tuple(lanes),
        problems=tuple(problems),
        paused=tuple(paused),
        has_news={problem.key for problem in problems} != (set() if reported is None else reported.keys_of(covered)),
    )


def _paused(sources: Sources, config: Config, names: Collection[str]) -> dict[str, Pause]:
    """Return the streams whose ingest is paused, and the decision that paused each."""
    pauses = read_pauses(sources.session, config.zookeeper.root, names)
    active = ((name, decisions.active().get(Stage.INGEST)) for name, decisions in pauses.items())
    return {name: pause for name, pause in active if pause is not None}


def _is_stop_check_due(clock: Clock) -> bool:
    # Use the minute of the clock, so that no run has to store the time of the last check.
    interval_minutes = int(_STOP_CHECK_INTERVAL.total_seconds()) // 60
    return clock.now_ms() // 60_000 % interval_minutes == 0


def _find_problems(topics: Mapping[str, StreamTopics], states: Mapping[str, IngestState]) -> list[StreamProblem]:
    """Return the topics that cannot be read, and the named stops."""
    found = []
    for name, described in topics.items():
        found += [(name, type(error).__name__, str(error)) for error in described.refused.values()]
        found += [(name, "TopicMissing", _MISSING.format(topic=topic)) for topic in described.missing]
        found += [(name, stop.error, stop.message) for stop in states[name].stops]
    return [StreamProblem(stream=name, error=error, message=message) for name, error, message in found]


def _log_plan(what: str, topics: Mapping[str, StreamTopics], lanes: Collection[Lane]) -> None:
    logger.info(
        "planned %s: %d of %d topic-partitions, about %.1f MB, in %d lanes",
        what,
        sum(len(lane.shares) for lane in lanes),
        sum(len(found.tps) for found in topics.values()),
        sum(lane.estimated_bytes for lane in lanes) / 1e6,
        len(lanes),
    )


# --- topic-partitions with work ---------------------------------------------------------------------------------------


def _find_shares(
    config: Config, sources: Sources, topics: Mapping[str, StreamTopics], clock: Clock, *, with_stopped: bool
) -> tuple[list[LaneShare], dict[str, IngestState]]:
    """Return the topic-partitions to archive, overdue ones first, and ZooKeeper's state of each stream.

    Stopped topic-partitions are included if `with_stopped` is true or there are others: a lane checks whether they can
    continue.
    """
    tps = {name: found.tps for name, found in topics.items()}
    # Read Kafka first: an offset that is committed between the two answers must not look like a truncated log.
    ends = _find_ends(config, sources, tps)
    coordinators = {name: sources.coordinators[name] for name in topics}
    states = read_ingest_states(sources.session, coordinators, tps)
    starts = _find_starts(sources, tps, ends, states)
    shares: list[LaneShare] = []
    stopped_shares: list[LaneShare] = []
    for name, state in states.items():
        stopped = {stop.tp for stop in state.stops}
        for tp in tps[name]:
            end, committed = ends.get((name, tp)), state.committed.get(tp)
            log_range = None if end is None else LogRange(min(starts.get((name, tp), 0), end), end)
            estimate = sources.by_stream[name].estimate_bytes(log_range, committed)
            share = LaneShare(
                stream=name,
                topic=tp.topic,
                partition=tp.partition,
                estimated_bytes=estimate,
                may_have_stop=tp in stopped,
            )
            if tp in stopped:
                stopped_shares.append(share)
            elif estimate or end is None or committed is None or committed.committed_offset > end:
                # In the last case, the log ends before the committed offset. The lane records the named stop.
                shares.append(share)
    if shares or with_stopped:
        shares += stopped_shares
    return _in_order(shares, config, states, clock.now_ms()), states


def _find_ends(
    config: Config, sources: Sources, tps: Mapping[str, Collection[TopicPartition]]
) -> dict[tuple[str, TopicPartition], int]:
    """Return the ends of the logs, by stream and topic-partition. The request differs only by isolation level."""
    together: dict[tuple[object, IsolationLevel], list[str]] = defaultdict(list)
    for name in tps:
        together[sources.by_stream[name].connection, config.stream(name).isolation_level].append(name)
    ends = {}
    for names in together.values():
        found = sources.by_stream[names[0]].ends_briefly({tp for name in names for tp in tps[name]})
        ends.update({(name, tp): found[tp] for name in names for tp in tps[name] if tp in found})
    return ends


def _find_starts(
    sources: Sources,
    tps: Mapping[str, Collection[TopicPartition]],
    ends: Mapping[tuple[str, TopicPartition], int],
    states: Mapping[str, IngestState],
) -> dict[tuple[str, TopicPartition], int]:
    """Return the first offsets of the logs that have no committed offset: new chains. Most plans have none."""
    new = [(name, tp) for name in tps for tp in tps[name] if tp not in states[name].committed and (name, tp) in ends]
    if not new or sources.kafka is None:
        return {}
    found = sources.kafka.offsets_briefly({tp for _, tp in new})
    return {(name, tp): found[tp].earliest for name, tp in new if tp in found}


# --- the order of time slices, and the lanes --------------------------------------------------------------------------


def _in_order(
    shares: Iterable[LaneShare], config: Config, states: Mapping[str, IngestState], now_ms: int
) -> list[LaneShare]:
    """Return the shares in the order of their first time slices, by `_order`."""
    by_stream: dict[str, list[LaneShare]] = defaultdict(list)
    for share in shares:
        by_stream[share.stream].append(share)
    overdue: dict[tuple[str, TopicPartition], int] = {}
    for name, each in by_stream.items():
        overdue.update(_find_overdue(each, states[name].committed, now_ms, config.stream(name)))
    return _order([share for each in by_stream.values() for share in each], overdue)


def _order(shares: Iterable[LaneShare], overdue: Mapping[tuple[str, TopicPartition], int]) -> list[LaneShare]:
    """Return the sort key: the smallest first, so that a large backlog does not delay small topics.

    Overdue topic-partitions come before all others, the longest waiting first, so that many small ones cannot delay
    them for ever.
    """
    return sorted(shares, key=lambda share: (overdue.get(share.chain, math.inf), share.estimated_bytes, share.chain))


def _find_overdue(
    shares: Iterable[LaneShare], committed: Mapping[TopicPartition, CommittedOffset], now_ms: int, stream: Stream
) -> dict[tuple[str, TopicPartition], int]:
    """Return the topic-partitions that the last runs did not reach, or that are new, and when they last advanced.

    The time is in milliseconds since 1970 UTC; 0 for one that never advanced. A topic that rarely has a message may
    also be returned, which is harmless.
    """
    limit_ms = now_ms - int((2 * stream.ingest.budget + _RUN_INTERVAL).total_seconds() * 1000)
    last_ms = {share.chain: committed[share.tp].committed_at_ms if share.tp in committed else 0 for share in shares}
    return {chain: at_ms for chain, at_ms in last_ms.items() if at_ms < limit_ms}


def _count_lanes(shares: Collection[LaneShare], most: int) -> int:
    """Return how many lanes a run of a group needs.

    Each lane costs the start of a process, so small work shares a lane.
    """
    needed = math.ceil(sum(share.estimated_seconds for share in shares) / _LANE_SECONDS)
    return max(1, min(needed, most, MAX_LANES))


def _assign_to_lanes(
    shares: Iterable[LaneShare], lane_count: int, stream_lanes: Mapping[str, int] | None = None
) -> list[Lane]:
    """Give each topic-partition, the largest first, to the lane with the least work (longest processing time first).

    A stream is in at most `stream_lanes` of the lanes. Within a lane the shares keep their order.
    """
    limits = stream_lanes or {}
    order = list(shares)
    position = {share.chain: index for index, share in enumerate(order)}
    several = len({share.stream for share in order}) > 1
    loads = [0.0] * lane_count
    taken: list[list[LaneShare]] = [[] for _ in range(lane_count)]
    lanes_of: dict[str, set[int]] = defaultdict(set)
    for share in sorted(order, key=lambda share: (-share.estimated_bytes, share.chain)):
        own = lanes_of[share.stream]
        allowed = own if len(own) >= limits.get(share.stream, lane_count) else range(lane_count)
        least = min(loads[lane] for lane in allowed)
        # Prefer a lane that already has the stream, if the loads differ little: each lane reports by stream.
        near = [lane for lane in own if several and loads[lane] <= least + _NEAR_SECONDS]
        number = min(near or allowed, key=lambda lane: (loads[lane], lane))
        own.add(number)
        taken[number].append(share)
        loads[number] += share.estimated_seconds
    filled = [sorted(each, key=lambda share: position[share.chain]) for each in taken if each]
    first_lane: dict[str, int] = {}
    for number, each in enumerate(filled):
        for share in each:
            first_lane.setdefault(share.stream, number)
    return [
        Lane(
            number=number,
            shares=tuple(each),
            chores=tuple(stream for stream, first in first_lane.items() if first == number),
        )
        for number, each in enumerate(filled)
    ]
