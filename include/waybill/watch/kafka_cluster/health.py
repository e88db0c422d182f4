"""The promises about the Kafka cluster: pure functions of this watch's readings and those of earlier watches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from waybill.config.models.kafka_promises import KafkaPromiseName, KafkaPromises, Lasting, Skew
from waybill.config.models.kafka_topics import DeclaredTopic
from waybill.config.models.promises import PromiseSeverity
from waybill.config.models.quantities import counted, duration_beside, rough_duration, share_beside
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import ClusterState
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import Finding
from waybill.watch.kafka_cluster.group_health import Commits, group_findings
from waybill.watch.kafka_cluster.isr_history import IsrHistory, ReplicaState
from waybill.watch.kafka_cluster.kafka_finding import HEALTH_COMMAND, first_of, kafka_finding, unknown_finding
from waybill.watch.kafka_cluster.quorum_health import QuorumTroubles, controllers_finding
from waybill.watch.kafka_cluster.readings import Groups, Readings

_LASTING = {
    KafkaPromiseName.OFFLINE_PARTITIONS: ReplicaState.OFFLINE,
    KafkaPromiseName.UNDER_MIN_ISR: ReplicaState.UNDER_MIN_ISR,
    KafkaPromiseName.SINGLE_IN_SYNC_REPLICA: ReplicaState.SINGLE_IN_SYNC,
    KafkaPromiseName.UNDER_REPLICATED: ReplicaState.UNDER_REPLICATED,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The readings of this watch and of earlier ones: Kafka does not store since when a state lasts."""

    history: IsrHistory = field(default_factory=IsrHistory)
    commits: Commits = field(default_factory=dict)
    quorum: QuorumTroubles = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subjects:
    """The streams and topics that the promises concern."""

    promises: KafkaPromises
    declared: Mapping[str, DeclaredTopic] = field(default_factory=dict)
    streams: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)
    """For each stream with a Kafka source: returns whether the stream archives a topic."""
    listed: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The topics that a stream lists by name; empty for a stream that has a pattern."""

    def streams_of(self, topics: Collection[str]) -> list[str]:
        """Return the streams that archive one of the topics."""
        return sorted(name for name, matches in self.streams.items() if any(matches(topic) for topic in topics))


def health_findings(
    subjects: Subjects, readings: Readings, seen: Seen, now_ms: int, failures: Failures | None = None
) -> list[Finding]:
    """Return a finding about each promise, and one about each watched consumer group.

    The verdict on a promise whose figures could not be read is unknown. `seen` already includes `readings`. If a
    promise raises an unexpected exception, its verdict is unknown too, and `failures` collects the exception.
    """
    promises, state, found = subjects.promises, readings.state, list[Finding]()
    failures = Failures() if failures is None else failures
    # `waybill kafka plan` is about declared topics only, and moves no replica that is where it may be.
    for_leaders = "waybill kafka plan" if subjects.declared else HEALTH_COMMAND
    skew = partial(_skew, state=state, now_ms=now_ms)
    name = KafkaPromiseName
    ways: dict[KafkaPromiseName, Callable[[], Finding]] = {
        each: partial(_lasting, subjects, each, kind, readings, seen.history, now_ms) for each, kind in _LASTING.items()
    }
    ways |= {
        name.LEADER_SKEW: lambda: skew(
            name.LEADER_SKEW, promises.leader_skew, counts=_leaders(state), command=for_leaders
        ),
        name.REPLICA_SKEW: lambda: skew(
            name.REPLICA_SKEW, promises.replica_skew, counts=_replicas(state), command=HEALTH_COMMAND
        ),
        name.BELOW_DECLARED: lambda: _below_declared(subjects, readings, now_ms),
        name.UNCLEAN_ELECTION: lambda: _unclean_election(subjects, readings, now_ms),
        name.CONTROLLERS: lambda: controllers_finding(
            promises.controllers,
            readings.quorum,
            readings.quorum_error,
            hidden=readings.quorum_hidden,
            troubles=seen.quorum,
            now_ms=now_ms,
        ),
        name.DISK_USED: lambda: _disk_used(promises, readings, now_ms),
        name.CLOCK_SKEW: lambda: _clock_skew(promises, readings, now_ms),
        name.UNMATCHED_TOPICS: lambda: _unmatched_topics(subjects, readings, now_ms),
        name.MISSING_TOPICS: lambda: _missing_topics(subjects, readings, now_ms),
        name.ACCESS: lambda: _access(promises, readings, now_ms),
    }
    for each, read in ways.items():
        found.append(failures.measure(f"promise {each}", read, partial(unknown_finding, each, promises.of(each))))
    found += group_findings(promises.groups, readings.groups, seen.commits, now_ms)
    return _given(found)


def unknown_findings(promises: KafkaPromises, commits: Commits) -> list[Finding]:
    """Return findings for a cluster that does not answer."""
    names = [name for name in KafkaPromiseName if name is not KafkaPromiseName.GROUP_LAG]
    why = "Kafka does not answer"
    found = [unknown_finding(name, promises.of(name), why) for name in names]
    found += group_findings(promises.groups, Groups(unread=dict.fromkeys(commits, why)), commits, 0)
    return _given(found)


def _given(found: list[Finding]) -> list[Finding]:
    """Return the findings about promises that are in the config."""
    return [each for each in found if each.severity is not PromiseSeverity.OFF]


# --- replicas ---------------------------------------------------------------------------------------------------------


def _lasting(
    subjects: Subjects,
    name: KafkaPromiseName,
    state: ReplicaState,
    readings: Readings,
    history: IsrHistory,
    now_ms: int,
) -> Finding:
    settings = subjects.promises.of(name)
    assert isinstance(settings, Lasting)
    lasting = history.lasting(state, settings.limit, now_ms)
    seconds = settings.limit.total_seconds()
    limit = f"none for longer than {rough_duration(seconds)}" if seconds else "none"
    if name is KafkaPromiseName.UNDER_MIN_ISR and not lasting:
        reduced = {tp.topic for tp in history.open.get(ReplicaState.UNDER_REPLICATED, ())}
        if hidden := sorted(reduced - readings.slow.rules.keys()):
            detail = f"min.insync.replicas is not known: the user may not describe the config of {first_of(hidden)}"
            return unknown_finding(name, settings, detail, limit=limit)
    return kafka_finding(
        name,
        settings,
        now_ms,
        broken=bool(lasting),
        figure=counted(len(lasting), "topic-partition"),
        limit=limit,
        detail=_affected(subjects, lasting, readings),
        names=[str(tp) for tp in sorted(lasting)],
        value=float(len(lasting)),
        since_ms=min(lasting.values(), default=None),
    )


def _affected(subjects: Subjects, tps: Collection[TopicPartition], readings: Readings) -> str:
    """Return the affected topic-partitions and streams, and the brokers whose replicas are missing."""
    partitions, live = readings.state.partitions, readings.state.brokers.keys()
    waiting = {
        node_id
        for tp in tps
        if tp in partitions
        for node_id in partitions[tp].replicas
        if node_id not in live or node_id not in partitions[tp].in_sync
    }
    brokers = f"; not in sync: broker {', '.join(map(str, sorted(waiting)))}" if waiting else ""
    streams = subjects.streams_of({tp.topic for tp in tps})
    return f"{first_of([str(tp) for tp in sorted(tps)])}{brokers}; streams: {', '.join(streams) or 'none'}"


def _leaders(state: ClusterState) -> Counter[int]:
    return Counter(each.leader for each in state.partitions.values() if each.has_leader)


def _replicas(state: ClusterState) -> Counter[int]:
    return Counter(node_id for each in state.partitions.values() for node_id in each.replicas)


def _skew(
    name: KafkaPromiseName, settings: Skew, *, state: ClusterState, counts: Counter[int], now_ms: int, command: str
) -> Finding:
    """Return the largest share of a broker or rack, relative to an equal share."""
    ratios = {f"broker {node_id}": ratio for node_id, ratio in _ratios({b: counts[b] for b in state.brokers}).items()}
    racks: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for node_id, broker in state.brokers.items():
        if broker.rack:
            racks[broker.rack] += counts[node_id]
            sizes[broker.rack] += 1
    total, brokers = sum(racks.values()), sum(sizes.values())
    if len(sizes) > 1 and total:
        ratios |= {f"rack {rack}": racks[rack] / (total * sizes[rack] / brokers) for rack in sizes}
    worst = max(ratios, key=lambda each: ratios[each], default=None)
    ratio = 1.0 if worst is None else ratios[worst]
    counted_ones = len(state.partitions) >= settings.min_partitions
    return kafka_finding(
        name,
        settings,
        now_ms,
        broken=counted_ones and ratio > float(settings.limit),
        figure=f"{share_beside(ratio, float(settings.limit))} of an equal share",
        limit=f"at most {float(settings.limit):.0%}"
        if counted_ones
        else f"none below {settings.min_partitions:,} topic-partitions; the cluster has {len(state.partitions):,}",
        detail=f"{worst} has the most",
        value=ratio,
        command=command,
    )


def _ratios(counts: Mapping[int, int]) -> dict[int, float]:
    average = sum(counts.values()) / len(counts) if counts else 0
    return {node_id: count / average for node_id, count in counts.items()} if average else {}


# --- topics -----------------------------------------------------------------------------------------------------------


def _below_declared(subjects: Subjects, readings: Readings, now_ms: int) -> Finding:
    fewest: dict[str, int] = {}
    for tp, partition in readings.state.partitions.items():
        fewest[tp.topic] = min(len(partition.replicas), fewest.get(tp.topic, len(partition.replicas)))
    faults, hidden = [], []
    for topic, declared in sorted(subjects.declared.items()):
        rules = readings.slow.rules.get(topic)
        # Defaults apply to topics that are created later: `waybill kafka apply` does not change an existing topic to
        # them.
        if topic in readings.state.refused:
            hidden.append(topic)
        elif topic not in fewest:
            faults.append(f"{topic} does not exist")
        elif declared.is_written("replication_factor") and fewest[topic] < declared.replication_factor:
            faults.append(f"{topic} has {fewest[topic]} replicas, and {declared.replication_factor} are declared")
        elif not declared.is_written("min_insync_replicas"):
            continue
        elif rules is None:
            hidden.append(topic)
        elif rules.min_in_sync < declared.min_insync_replicas:
            faults.append(
                f"{topic} has min.insync.replicas {rules.min_in_sync}, and {declared.min_insync_replicas} is declared"
            )
    return _of_topics(
        KafkaPromiseName.BELOW_DECLARED, subjects, faults, now_ms, hidden=hidden, command="waybill kafka plan"
    )


def _unclean_election(subjects: Subjects, readings: Readings, now_ms: int) -> Finding:
    rules = readings.slow.rules
    archived = [topic for topic in sorted(readings.state.topic_ids) if subjects.streams_of([topic])]
    faults = [
        topic
        for topic in archived
        if topic in rules
        and rules[topic].allows_unclean_election
        and not (topic in subjects.declared and subjects.declared[topic].unclean_leader_election)
    ]
    hidden = [topic for topic in archived if topic not in rules]
    return _of_topics(KafkaPromiseName.UNCLEAN_ELECTION, subjects, faults, now_ms, hidden=hidden)


def _unmatched_topics(subjects: Subjects, readings: Readings, now_ms: int) -> Finding:
    ignored = [re.compile(pattern) for pattern in subjects.promises.unmatched_topics.ignore]
    faults = [
        topic
        for topic in sorted(readings.state.topic_ids)
        if topic not in readings.state.internal
        and not topic.startswith("__")
        and not any(pattern.fullmatch(topic) for pattern in ignored)
        and not subjects.streams_of([topic])
    ]
    return _of_topics(KafkaPromiseName.UNMATCHED_TOPICS, subjects, faults, now_ms, command="waybill streams")


def _missing_topics(subjects: Subjects, readings: Readings, now_ms: int) -> Finding:
    existing, refused = readings.state.topic_ids.keys(), readings.state.refused
    faults, hidden = [], set[str]()
    for name, matches in sorted(subjects.streams.items()):
        listed = set(subjects.listed.get(name, ()))
        faults += [f"{name}: topic {topic}" for topic in sorted(listed - existing - refused)]
        hidden |= listed & refused
        if not listed and not any(matches(topic) for topic in existing):
            faults.append(f"{name}: no topic that the user may describe matches its pattern")
    return _of_topics(KafkaPromiseName.MISSING_TOPICS, subjects, faults, now_ms, hidden=sorted(hidden))


def _of_topics(
    name: KafkaPromiseName,
    subjects: Subjects,
    faults: list[str],
    now_ms: int,
    *,
    hidden: Sequence[str] = (),
    command: str = HEALTH_COMMAND,
) -> Finding:
    """Return the finding of topics with faults.

    `hidden`: topics whose relevant settings the user is not allowed to describe.
    """
    settings = subjects.promises.of(name)
    if hidden and not faults:
        return unknown_finding(name, settings, f"the user may not describe topic {first_of(hidden)}", limit="none")
    return kafka_finding(
        name,
        settings,
        now_ms,
        broken=bool(faults),
        figure=counted(len(faults), "topic"),
        limit="none",
        detail=first_of(faults, "; "),
        names=faults,
        value=float(len(faults)),
        command=command,
    )


# --- disks, clocks, access --------------------------------------------------------------------------------------------


def _disk_used(promises: KafkaPromises, readings: Readings, now_ms: int) -> Finding:
    """Return the used share of the fullest disk.

    Unknown if a broker's disks are unknown and no other disk breaks the promise.

    So an incident about a full disk stays open when its broker does not answer.
    """
    settings, name = promises.disk_used, KafkaPromiseName.DISK_USED
    limit = f"at most {float(settings.limit):.0%}"
    directories = readings.slow.directories
    failed = [f"broker {each.broker} cannot use {each.path}: {each.error}" for each in directories if each.error]
    used = {
        f"broker {each.broker}, {each.path}": 1 - each.usable_bytes / each.total_bytes
        for each in directories
        if each.total_bytes > 0 and not each.error
    }
    full = sorted((where for where in used if used[where] > float(settings.limit)), key=lambda where: -used[where])
    faults = [*failed, *full]
    if not faults:
        known = {each.broker for each in directories if each.total_bytes > 0}
        holding = {node_id for each in readings.state.partitions.values() for node_id in each.replicas}
        if unread := sorted({*readings.state.brokers, *holding} - known):
            detail = f"the disks of broker {first_of([str(each) for each in unread])} are not known"
            return unknown_finding(name, settings, detail, limit=limit)
    share = max(used.values(), default=0.0)
    return kafka_finding(
        name,
        settings,
        now_ms,
        broken=bool(faults),
        figure="a log directory failed" if failed else share_beside(share, float(settings.limit)),
        limit=limit,
        detail=first_of(faults, "; "),
        names=faults,
        value=share,
    )


def _clock_skew(promises: KafkaPromises, readings: Readings, now_ms: int) -> Finding:
    """Return how far timestamps were ahead of the clock when they were read.

    Old timestamps are allowed: data may be old.
    """
    settings, slow = promises.clock_skew, readings.slow
    limit_seconds = settings.limit.total_seconds()
    limit = f"at most {rough_duration(limit_seconds)}"
    if slow.is_without_times:
        detail = "no leader told the times of its messages"
        return unknown_finding(KafkaPromiseName.CLOCK_SKEW, settings, detail, limit=limit)
    ahead = {tp: each / 1000 for tp, each in slow.ahead_ms.items() if each > limit_seconds * 1000}
    faults = sorted(ahead, key=lambda tp: -ahead[tp])
    seconds = max(slow.ahead_ms.values(), default=0) / 1000
    return kafka_finding(
        KafkaPromiseName.CLOCK_SKEW,
        settings,
        now_ms,
        broken=bool(faults),
        figure=f"{duration_beside(seconds, limit_seconds)} ahead",
        limit=limit,
        detail=f"new messages have timestamps in the future: {first_of([str(tp) for tp in faults])}",
        names=[str(tp) for tp in faults],
        value=seconds,
        command=f"waybill kafka producers {faults[0].topic}" if faults else HEALTH_COMMAND,
    )


def _access(promises: KafkaPromises, readings: Readings, now_ms: int) -> Finding:
    missing = readings.missing_acls
    return kafka_finding(
        KafkaPromiseName.ACCESS,
        promises.access,
        now_ms,
        broken=bool(missing),
        figure=f"{counted(len(missing), 'ACL')} missing" if missing else "nothing is hidden",
        limit="none missing",
        detail=f"give Waybill's user: {first_of(missing, '; ')}",
        names=missing,
        value=float(len(missing)),
    )
