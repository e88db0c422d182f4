"""Figures of Kafka and ZooKeeper: archive lag, retention runway, named stops and pauses."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from waybill.archive.ingest.services import Sources
from waybill.config.models import Config, Stream
from waybill.config.models.promises import PromiseName
from waybill.config.models.quantities import counted, rough_duration
from waybill.config.names import Stage, TopicPartition
from waybill.services.coordination import CommittedOffset, Stop
from waybill.services.coordination.coordinator import IngestState, read_ingest_states
from waybill.services.coordination.pauses import StreamPauses, read_pauses
from waybill.services.kafka.cluster import Topic
from waybill.services.kafka.kafka import LogRange, StreamTopics
from waybill.services.kafka.topic_configs import TopicRetention
from waybill.watch.incidents.finding import Finding, Verdict, duration_finding, measured
from waybill.watch.promises.samples import Key, OffsetSample, Samples

_RATE_MS = 3_600_000
"""Rates are those of the last hour."""


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs of all streams, as Kafka and ZooKeeper show them now."""

    offsets: Mapping[Key, OffsetSample]
    stops: Mapping[str, tuple[Stop, ...]]
    pauses: Mapping[str, StreamPauses]
    retention: Mapping[str, TopicRetention] = field(default_factory=dict)
    """The retention by topic; topics whose configs the user is not allowed to describe are missing."""
    chain_starts: Mapping[Key, int] = field(default_factory=dict)
    """The offset at which each chain starts; chains for which it is unknown are missing."""
    archived_messages: Mapping[Key, int] = field(default_factory=dict)
    """The number of messages in each chain; chains for which it is unknown are missing."""
    committed: Mapping[str, Mapping[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    """The committed offsets of each stream."""
    topics: Mapping[str, Topic] = field(default_factory=dict)
    """The topics of all streams of Kafka, by name."""
    archived_to_ms: Mapping[Key, int] = field(default_factory=dict)
    """For slots of Kinesis streams, the arrival time up to which all records are archived, in epoch ms."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """The topics or topic-partitions of each stream that are not in `offsets`, and why. Completely read streams are
    missing."""

    def archived_from(self, key: Key) -> int:
        """Return the offset from which on a topic-partition is archived."""
        return self.chain_starts.get(key, self.offsets[key].start)

    def end_offsets(self, name: str) -> tuple[int, int]:
        """Return the sum of a stream's log end offsets, and the number of topic-partitions in it."""
        found = self.of_stream(name)
        return sum(each.end for each in found.values()), len(found)

    def of_stream(self, name: str) -> dict[TopicPartition, OffsetSample]:
        """Return the topic-partitions of a stream."""
        return {tp: each for (stream, tp), each in self.offsets.items() if stream == name}


def observe(config: Config, sources: Sources, names: Iterable[str]) -> Logs:
    """Return the logs of streams, with a few requests for all of them. No message is read.

    Raises `KafkaUnavailable`, `CoordinationUnavailable`, or `ConfigError`.
    """
    streams = {name: config.stream(name) for name in names}
    topics = sources.describe_streams(streams)
    slot_streams = {name for name, stream in streams.items() if stream.is_kinesis}
    tps = {name: found.tps for name, found in topics.items()}
    # Committed offsets are read before Kafka's: a commit in between only makes the lag look larger than it is.
    states = read_ingest_states(sources.session, {name: sources.coordinators[name] for name in streams}, tps)
    kafka_tps = {tp for name, each in tps.items() if name not in slot_streams for tp in each}
    ranges = sources.kafka.offsets_briefly(kafka_tps) if sources.kafka is not None and kafka_tps else {}
    offsets = {(name, tp): _offsets(ranges[tp], states[name], tp) for name in tps for tp in tps[name] if tp in ranges}
    for name in slot_streams:
        offsets |= {(name, tp): _slot_offsets(states[name], tp) for tp in tps[name]}
    return Logs(
        offsets=offsets,
        stops={name: state.stops for name, state in states.items()},
        pauses=read_pauses(sources.session, config.zookeeper.root, list(streams)),
        chain_starts={
            (name, tp): committed.start_offset
            for name, state in states.items()
            for tp, committed in state.committed.items()
            if committed.start_offset is not None
        },
        archived_messages={
            (name, tp): committed.counts.messages
            for name, state in states.items()
            for tp, committed in state.committed.items()
            if committed.counts is not None
        },
        committed={name: state.committed for name, state in states.items()},
        topics={
            topic: described
            for name, found in topics.items()
            if name not in slot_streams
            for topic, described in found.topics.items()
        },
        retention=_retention(sources, kafka_tps, {name: topics[name] for name in slot_streams}),
        archived_to_ms={
            (name, tp): read.archived_to_ms
            for name in slot_streams
            for tp, read in sources.coordinators[name].read_slot_reads(tps[name]).items()
        },
        unread=_unread(topics, offsets),
    )


def joined(parts: Sequence[Logs]) -> Logs:
    """Combine the logs of several observations of different streams."""
    merged = {
        each.name: {key: value for part in parts for key, value in getattr(part, each.name).items()}
        for each in dataclasses.fields(Logs)
    }
    return Logs(**merged)


def _unread(topics: Mapping[str, StreamTopics], offsets: Mapping[Key, OffsetSample]) -> dict[str, str]:
    found = {}
    for name, described in topics.items():
        silent = [str(tp) for tp in described.tps if (name, tp) not in offsets]
        reasons = [str(error) for error in described.refused.values()]
        if silent:
            more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
            reasons.append(f"the log of {silent[0]}{more} is not known: no leader answered")
        if reasons:
            found[name] = "; ".join(reasons)
    return found


_OF_ALL_TPS = (PromiseName.ARCHIVE_LAG, PromiseName.RETENTION_RUNWAY, PromiseName.TABLE_LAG, PromiseName.COMPLETE_BY)


def without_verdicts(found: Sequence[Finding], why: str) -> list[Finding]:
    """Return the findings about a stream if some topic-partitions could not be read, for the reason `why`.

    If a promise is broken for the topic-partitions that were read, it is broken. If it is kept for them, it is unknown.
    """
    if not why:
        return list(found)
    return [
        dataclasses.replace(each, verdict=Verdict.UNKNOWN, figure="not known", detail=why, value=None)
        if each.promise in _OF_ALL_TPS and each.verdict is Verdict.KEPT
        else each
        for each in found
    ]


def _retention(
    sources: Sources, kafka_tps: Collection[TopicPartition], slot_streams: Mapping[str, StreamTopics]
) -> dict[str, TopicRetention]:
    found: dict[str, TopicRetention] = {}
    if sources.kafka is not None and kafka_tps:
        found |= sources.kafka.retention({tp.topic for tp in kafka_tps})
    for name, described in slot_streams.items():
        from waybill.archive.ingest.kinesis.slot_source import slots_of

        slots = slots_of(sources.by_stream[name])
        for topic in described.topics:
            found[topic] = TopicRetention(slots.retention(topic) // timedelta(milliseconds=1), None)
    return found


def _slot_offsets(state: IngestState, tp: TopicPartition) -> OffsetSample:
    """Return the offsets of a slot. Its log end offset is its committed offset."""
    committed = state.committed.get(tp)
    end = 0 if committed is None else committed.committed_offset
    return OffsetSample(0, end, end)


def _offsets(log: LogRange, state: IngestState, tp: TopicPartition) -> OffsetSample:
    committed = state.committed.get(tp)
    return OffsetSample(log.earliest, log.end, log.earliest if committed is None else committed.committed_offset)


# --- findings ---------------------------------------------------------------------------------------------------------


def archive_lag(name: str, stream: Stream, logs: Logs, samples: Samples, now_ms: int) -> Finding:
    """Return the age of the oldest message of a stream in Kafka that is not archived.

    It is the time since a watch saw it first. Kafka timestamps are not used: producers may set any.
    """
    promise = stream.promises.archive_lag
    lags: dict[TopicPartition, float] = {}
    for tp, offsets in logs.of_stream(name).items():
        if (name, tp) in logs.archived_to_ms:
            lags[tp] = max(0.0, (now_ms - logs.archived_to_ms[name, tp]) / 1000)
        elif offsets.end > offsets.committed:
            since = samples.beyond_since((name, tp), offsets.committed)
            lags[tp] = 0.0 if since is None else max(0.0, (now_ms - since) / 1000)
    worst = max(lags, key=lambda tp: lags[tp], default=None)
    late = [tp for tp, lag in lags.items() if lag > promise.limit.total_seconds()]
    behind = sum(each.end - each.committed for tp, each in logs.of_stream(name).items() if tp in late)
    return duration_finding(
        name,
        PromiseName.ARCHIVE_LAG,
        promise,
        0.0 if worst is None else lags[worst],
        now_ms,
        detail=f"{counted(len(late), 'topic-partition')}, at most {counted(behind, 'message')}; the oldest in {worst}",
        command=f"waybill offsets --stream {name}",
    )


def retention_runway(name: str, stream: Stream, logs: Logs, samples: Samples, now_ms: int) -> Finding:
    """Return how long Kafka keeps the messages of a stream that are not archived."""
    promise = stream.promises.retention_runway
    runways = {
        tp: runway
        for tp, offsets in logs.of_stream(name).items()
        if offsets.end > offsets.committed and (runway := _runway(name, tp, offsets, logs, samples, now_ms)) is not None
    }
    runways |= _slot_runways(name, stream, logs, now_ms)
    worst = min(runways, key=lambda tp: runways[tp], default=None)
    seconds = None if worst is None else runways[worst]
    lost = worst is not None and logs.offsets[name, worst].start > logs.offsets[name, worst].committed
    figure = "no loss in sight" if seconds is None else rough_duration(seconds)
    return measured(
        name,
        PromiseName.RETENTION_RUNWAY,
        promise,
        is_broken=seconds is not None and seconds < promise.limit.total_seconds(),
        figure="messages are deleted already" if lost else figure,
        limit=f"at least {rough_duration(promise.limit.total_seconds())}",
        detail=f"the first messages that Kafka deletes before they are archived are in {worst}",
        command=f"waybill offsets --stream {name}",
        since_ms=now_ms,
        value=seconds,
    )


def _slot_runways(name: str, stream: Stream, logs: Logs, now_ms: int) -> dict[TopicPartition, float]:
    """Return the seconds until Kinesis deletes records of slots whose archiving is late."""
    late_ms = stream.promises.archive_lag.limit // timedelta(milliseconds=1)
    runways = {}
    for (owner, tp), archived_to_ms in logs.archived_to_ms.items():
        retention = logs.retention.get(tp.topic)
        if owner == name and retention is not None and retention.retention_ms and now_ms - archived_to_ms > late_ms:
            runways[tp] = max(0, archived_to_ms + retention.retention_ms - now_ms) / 1000
    return runways


def _runway(
    name: str, tp: TopicPartition, offsets: OffsetSample, logs: Logs, samples: Samples, now_ms: int
) -> float | None:
    """Return the seconds until messages of a topic-partition are deleted before they are archived; None: never.

    There are two estimates, of which the shorter one is returned. By time: the oldest message that is not archived is
    deleted when it is as old as `retention.ms`; its age grows as fast as it did in the last hour. By offsets: the log
    start offset approaches the committed offset as fast as in the last hour, which also covers `retention.bytes`.
    """
    if offsets.start > offsets.committed:
        return 0.0
    key = (name, tp)
    before = samples.at_least_ago(key, _RATE_MS)
    elapsed_ms = 0 if before is None else now_ms - before[0]
    found: list[float] = []
    retention = logs.retention.get(tp.topic)
    oldest_ms = samples.latest_before(key, offsets.committed)
    if retention is not None and retention.retention_ms is not None and oldest_ms is not None:
        left_ms = max(0, retention.retention_ms - (now_ms - oldest_ms))
        growth = 1.0
        if before is not None and elapsed_ms > 0:
            # The duration of the log that was archived within the last hour.
            was_oldest_ms = samples.latest_before(key, before[1].committed)
            archived_ms = 0 if was_oldest_ms is None else oldest_ms - was_oldest_ms
            growth = 1.0 - min(1.0, archived_ms / elapsed_ms)
        if growth > 0:
            found.append(left_ms / growth / 1000)
    if before is not None and elapsed_ms > 0:
        gain = (offsets.start - before[1].start) - (offsets.committed - before[1].committed)
        if gain > 0:
            found.append((offsets.committed - offsets.start) * elapsed_ms / gain / 1000)
    return min(found, default=None)


def named_stops(name: str, stream: Stream, logs: Logs) -> Finding:
    """Return whether topic-partitions of a stream are stopped until a person decides."""
    stops = logs.stops.get(name, ())
    first = min(stops, key=lambda stop: stop.stopped_at_ms, default=None)
    return measured(
        name,
        PromiseName.NAMED_STOP,
        stream.promises.named_stop,
        is_broken=bool(stops),
        figure=counted(len(stops), "stopped topic-partition"),
        limit="none",
        detail="" if first is None else f"{first.tp}: {first.error}: {first.message}",
        command=f"waybill gaps ls --stream {name}",
        since_ms=None if first is None else first.stopped_at_ms,
        value=len(stops),
    )


def pauses(name: str, stream: Stream, logs: Logs, now_ms: int) -> Finding:
    """Return how long a stream, or a stage of it, is paused."""
    active = logs.pauses[name].active() if name in logs.pauses else {}
    first = min(active.values(), key=lambda pause: pause.at_ms, default=None)
    return duration_finding(
        name,
        PromiseName.PAUSED,
        stream.promises.paused,
        0.0 if first is None else (now_ms - first.at_ms) / 1000,
        now_ms,
        detail="" if first is None else f"{', '.join(_stages(active))}: paused by {first.by}, because: {first.reason}",
        command=f"waybill resume {name} --reason …",
    )


def _stages(stages: Iterable[Stage]) -> Iterator[str]:
    return (str(stage) for stage in sorted(stages))
