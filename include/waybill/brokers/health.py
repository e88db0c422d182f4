"""The promises about the Kafka cluster: findings, as pure functions of what was read and what earlier watches saw."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from waybill.brokers.isr_history import IsrHistory, ReplicaState
from waybill.brokers.readings import GroupReading, Readings
from waybill.config.kafka_promises import GroupLag, KafkaPromiseName, KafkaPromises, Lasting, Skew
from waybill.config.kafka_topics import KafkaTopic
from waybill.config.promises import Promise, PromiseSeverity
from waybill.config.quantities import counted, rough_duration
from waybill.incidents.finding import Finding, Verdict
from waybill.names import TopicPartition
from waybill.sources.cluster_state import ClusterState

__all__ = ["Commits", "Subjects", "health_findings", "unknown_findings"]

_COMMAND = "waybill kafka health"
_NAMED = 3
"""So many topic-partitions are named in a finding; `waybill kafka health` has all."""
_LASTING = {
    KafkaPromiseName.OFFLINE_PARTITIONS: ReplicaState.OFFLINE,
    KafkaPromiseName.UNDER_MIN_ISR: ReplicaState.UNDER_MIN_ISR,
    KafkaPromiseName.SINGLE_IN_SYNC_REPLICA: ReplicaState.SINGLE_IN_SYNC,
    KafkaPromiseName.UNDER_REPLICATED: ReplicaState.UNDER_REPLICATED,
}

Commits = Mapping[str, tuple[int, int]]
"""By consumer group: its committed offsets, added up, and since when they are that (epoch ms)."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """What the promises are about."""

    promises: KafkaPromises
    declared: Mapping[str, KafkaTopic] = field(default_factory=dict)
    streams: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)
    """For each stream of Kafka: whether it archives a topic."""
    listed: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The topics that a stream lists by name; empty for a stream with a pattern."""

    def streams_of(self, topics: Collection[str]) -> list[str]:
        """Return the streams that archive one of the topics."""
        return sorted(name for name, matches in self.streams.items() if any(matches(topic) for topic in topics))


def health_findings(
    subjects: Subjects, readings: Readings, history: IsrHistory, commits: Commits, now_ms: int
) -> list[Finding]:
    """Return a finding about each promise, and one about each watched consumer group.

    `history` and `commits` include what `readings` shows.
    """
    promises = subjects.promises
    found = [_lasting(subjects, name, state, readings, history, now_ms) for name, state in _LASTING.items()]
    found += [
        _skew(KafkaPromiseName.LEADER_SKEW, promises.leader_skew, readings.state, _leaders(readings.state), now_ms),
        _skew(KafkaPromiseName.REPLICA_SKEW, promises.replica_skew, readings.state, _replicas(readings.state), now_ms),
        _below_declared(subjects, readings, now_ms),
        _unclean_election(subjects, readings, now_ms),
        _controllers(promises, readings, now_ms),
        _disk_used(promises, readings, now_ms),
        _clock_skew(promises, readings, now_ms),
        _unmatched_topics(subjects, readings, now_ms),
        _missing_topics(subjects, readings, now_ms),
        _access(promises, readings, now_ms),
    ]
    for name, group in readings.groups.items():
        settings = _group_settings(promises, name)
        if settings is not None:
            found.append(_group_lag(name, group, settings, commits, now_ms))
    return _given(found)


def unknown_findings(promises: KafkaPromises, commits: Commits) -> list[Finding]:
    """Return findings for a cluster that does not answer."""
    names = [name for name in KafkaPromiseName if name is not KafkaPromiseName.GROUP_LAG]
    found = [Finding("", name, Verdict.UNKNOWN, promises.of(name).severity, command=_COMMAND) for name in names]
    for group in commits:
        settings = _group_settings(promises, group)
        if settings is not None:
            promise = KafkaPromiseName.GROUP_LAG
            found.append(Finding("", promise, Verdict.UNKNOWN, settings.severity, command=_COMMAND, subject=group))
    return _given(found)


def _given(found: list[Finding]) -> list[Finding]:
    """Return the findings about promises that the config gives."""
    return [each for each in found if each.severity is not PromiseSeverity.OFF]


def _group_settings(promises: KafkaPromises, group: str) -> GroupLag | None:
    return next((each for pattern, each in promises.groups.items() if re.fullmatch(pattern, group)), None)


def _finding(
    name: KafkaPromiseName,
    settings: Promise,
    now_ms: int,
    *,
    broken: bool,
    figure: str,
    limit: str,
    detail: str = "",
    value: float | None = None,
    command: str = _COMMAND,
    subject: str = "",
    since_ms: int | None = None,
) -> Finding:
    return Finding(
        stream="",
        promise=name,
        verdict=Verdict.BROKEN if broken else Verdict.KEPT,
        severity=settings.severity,
        figure=figure,
        limit=limit,
        detail=detail if broken else "",
        command=command,
        subject=subject,
        since_ms=(now_ms if since_ms is None else since_ms) if broken else None,
        value=value,
    )


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
    return _finding(
        name,
        settings,
        now_ms,
        broken=bool(lasting),
        figure=counted(len(lasting), "topic-partition"),
        limit=f"none for longer than {rough_duration(seconds)}" if seconds else "none",
        detail=_affected(subjects, lasting, readings),
        value=float(len(lasting)),
        since_ms=min(lasting.values(), default=None),
    )


def _affected(subjects: Subjects, tps: Collection[TopicPartition], readings: Readings) -> str:
    """Return which topic-partitions and streams are affected, and which brokers they wait for."""
    named = ", ".join(str(tp) for tp in sorted(tps)[:_NAMED])
    more = f" and {len(tps) - _NAMED} more" if len(tps) > _NAMED else ""
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
    return f"{named}{more}{brokers}; streams: {', '.join(streams) or 'none'}"


def _leaders(state: ClusterState) -> Counter[int]:
    return Counter(each.leader for each in state.partitions.values() if each.has_leader)


def _replicas(state: ClusterState) -> Counter[int]:
    return Counter(node_id for each in state.partitions.values() for node_id in each.replicas)


def _skew(name: KafkaPromiseName, settings: Skew, state: ClusterState, counts: Counter[int], now_ms: int) -> Finding:
    """Return how much the broker or rack with the most has, relative to an equal share."""
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
    return _finding(
        name,
        settings,
        now_ms,
        broken=counted_ones and ratio > float(settings.limit),
        figure=f"{ratio:.0%} of an equal share",
        limit=f"at most {float(settings.limit):.0%}",
        detail=f"{worst} has the most",
        value=ratio,
        command="waybill kafka plan",
    )


def _ratios(counts: Mapping[int, int]) -> dict[int, float]:
    average = sum(counts.values()) / len(counts) if counts else 0
    return {node_id: count / average for node_id, count in counts.items()} if average else {}


# --- topics -----------------------------------------------------------------------------------------------------------


def _below_declared(subjects: Subjects, readings: Readings, now_ms: int) -> Finding:
    fewest: dict[str, int] = {}
    for tp, partition in readings.state.partitions.items():
        fewest[tp.topic] = min(len(partition.replicas), fewest.get(tp.topic, len(partition.replicas)))
    faults = []
    for topic, declared in sorted(subjects.declared.items()):
        if topic not in fewest:
            continue
        rules = readings.slow.rules.get(topic)
        # A default is for topics that are created: `waybill kafka apply` would not change an existing topic to it.
        if declared.is_written("replication_factor") and fewest[topic] < declared.replication_factor:
            faults.append(f"{topic} has {fewest[topic]} replicas, and {declared.replication_factor} are declared")
        elif (
            declared.is_written("min_insync_replicas")
            and rules is not None
            and rules.min_in_sync < declared.min_insync_replicas
        ):
            faults.append(
                f"{topic} has min.insync.replicas {rules.min_in_sync}, and {declared.min_insync_replicas} is declared"
            )
    return _of_topics(KafkaPromiseName.BELOW_DECLARED, subjects, faults, now_ms, command="waybill kafka plan")


def _unclean_election(subjects: Subjects, readings: Readings, now_ms: int) -> Finding:
    allowed = [topic for topic, rules in sorted(readings.slow.rules.items()) if rules.allows_unclean_election]
    faults = [
        topic
        for topic in allowed
        if subjects.streams_of([topic])
        and not (topic in subjects.declared and subjects.declared[topic].unclean_leader_election)
    ]
    return _of_topics(KafkaPromiseName.UNCLEAN_ELECTION, subjects, faults, now_ms)


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
    existing = readings.state.topic_ids.keys()
    faults = []
    for name, matches in sorted(subjects.streams.items()):
        listed = subjects.listed.get(name, ())
        faults += [f"{name}: topic {topic}" for topic in sorted(set(listed) - existing)]
        if not listed and not any(matches(topic) for topic in existing):
            faults.append(f"{name}: no topic matches its pattern")
    return _of_topics(KafkaPromiseName.MISSING_TOPICS, subjects, faults, now_ms)


def _of_topics(
    name: KafkaPromiseName, subjects: Subjects, faults: list[str], now_ms: int, command: str = _COMMAND
) -> Finding:
    more = f" and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
    return _finding(
        name,
        subjects.promises.of(name),
        now_ms,
        broken=bool(faults),
        figure=counted(len(faults), "topic"),
        limit="none",
        detail=f"{'; '.join(faults[:_NAMED])}{more}",
        value=float(len(faults)),
        command=command,
    )


# --- controllers, disks, clocks, groups -------------------------------------------------------------------------------


def _controllers(promises: KafkaPromises, readings: Readings, now_ms: int) -> Finding:
    settings, name = promises.controllers, KafkaPromiseName.CONTROLLERS
    limit = f"at most {rough_duration(settings.limit.total_seconds())}"
    if readings.quorum_error:
        detail = f"nobody elects leaders: {readings.quorum_error}"
        return _finding(name, settings, now_ms, broken=True, figure="none leads", limit=limit, detail=detail)
    caught_up = {} if readings.quorum is None else readings.quorum.caught_up_ms
    newest = max(caught_up.values(), default=-1)
    lags = {voter: max(0, newest - time_ms) / 1000 if time_ms >= 0 else None for voter, time_ms in caught_up.items()}
    unknown = sorted(voter for voter, lag in lags.items() if lag is None)
    known = {voter: lag for voter, lag in lags.items() if lag is not None}
    worst = max(known, key=lambda voter: known[voter], default=None)
    seconds = 0.0 if worst is None else known[worst]
    late = [voter for voter in known if known[voter] > settings.limit.total_seconds()]
    behind = sorted({*late, *unknown})
    return _finding(
        name,
        settings,
        now_ms,
        broken=bool(behind),
        figure=rough_duration(seconds) if late or not unknown else "not caught up",
        limit=limit,
        detail=f"controller {', '.join(map(str, behind))} of {len(caught_up)} is behind the leader of the quorum",
        value=seconds,
        since_ms=now_ms - int(max(0.0, seconds - settings.limit.total_seconds()) * 1000),
    )


def _disk_used(promises: KafkaPromises, readings: Readings, now_ms: int) -> Finding:
    settings, name = promises.disk_used, KafkaPromiseName.DISK_USED
    failed = [each for each in readings.slow.directories if each.error]
    used = {
        f"broker {each.broker}, {each.path}": 1 - each.usable_bytes / each.total_bytes
        for each in readings.slow.directories
        if each.total_bytes > 0 and not each.error
    }
    worst = max(used, key=lambda where: used[where], default=None)
    share = 0.0 if worst is None else used[worst]
    detail = worst or ""
    if failed:
        detail = f"broker {failed[0].broker} cannot use {failed[0].path}: {failed[0].error}"
    return _finding(
        name,
        settings,
        now_ms,
        broken=bool(failed) or share > float(settings.limit),
        figure="a log directory failed" if failed else f"{share:.0%}",
        limit=f"at most {float(settings.limit):.0%}",
        detail=detail,
        value=share,
    )


def _clock_skew(promises: KafkaPromises, readings: Readings, now_ms: int) -> Finding:
    """Return how far timestamps were ahead when they were read. Old timestamps are no fault: data may be old."""
    settings = promises.clock_skew
    newest = readings.slow.newest_ms
    worst = max(newest, key=lambda tp: newest[tp], default=None)
    seconds = 0.0 if worst is None else max(0.0, (newest[worst] - readings.slow.read_ms) / 1000)
    return _finding(
        KafkaPromiseName.CLOCK_SKEW,
        settings,
        now_ms,
        broken=seconds > settings.limit.total_seconds(),
        figure=f"{rough_duration(seconds)} ahead",
        limit=f"at most {rough_duration(settings.limit.total_seconds())}",
        detail=f"a message of {worst} has a timestamp in the future",
        value=seconds,
        command="" if worst is None else f"waybill kafka producers {worst.topic}",
    )


def _access(promises: KafkaPromises, readings: Readings, now_ms: int) -> Finding:
    missing = readings.missing_acls
    return _finding(
        KafkaPromiseName.ACCESS,
        promises.access,
        now_ms,
        broken=bool(missing),
        figure=f"{counted(len(missing), 'ACL')} missing" if missing else "nothing is hidden",
        limit="none missing",
        detail=f"give Waybill's user: {'; '.join(missing)}",
        value=float(len(missing)),
    )


def _group_lag(name: str, group: GroupReading, settings: GroupLag, commits: Commits, now_ms: int) -> Finding:
    """Return a group's lag. It is frozen if nobody commits while messages wait: then a small lag is not a good one."""
    _, since_ms = commits.get(name, (0, now_ms))
    silent = timedelta(milliseconds=now_ms - since_ms)
    is_frozen = group.lag > 0 and silent > settings.commits_within
    lag = counted(group.lag, "message")
    figure = f"{lag}, no commit for {rough_duration(silent.total_seconds())}" if is_frozen else lag
    detail = f"the group is {group.state or 'in an unknown state'}"
    if is_frozen:
        detail += ": nobody commits, so its lag says only how long it stands still"
    return _finding(
        KafkaPromiseName.GROUP_LAG,
        settings,
        now_ms,
        broken=is_frozen or group.lag > settings.limit,
        figure=figure,
        limit=f"at most {counted(settings.limit, 'message')}",
        detail=detail,
        value=float(group.lag),
        subject=name,
        since_ms=since_ms if is_frozen else None,
    )
