"""Read the state of the Kafka cluster for the promises, with few requests.

Metadata, the quorum and watched consumer groups are read each time. Configs, disks and timestamps change slowly, so
they are read every five minutes. Parts that the user is not allowed to describe are left out, and the missing ACL is
named.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from waybill.base.errors import ConfigError, KafkaUnavailable, WaybillError
from waybill.config.models import IsolationLevel
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster import Cluster
from waybill.services.kafka.cluster_state import ClusterState, fetch_cluster_state, fetch_states_of_all
from waybill.services.kafka.consumer_groups import GroupList, fetch_all_group_offsets, list_groups
from waybill.services.kafka.controllers import Quorum, fetch_quorum
from waybill.services.kafka.kafka import KafkaSource
from waybill.services.kafka.log_directories import LogDirectory, fetch_log_directories
from waybill.services.kafka.topic_configs import fetch_effective_configs
from waybill.services.kafka.waiting_messages import MOST_OFFSETS, count_waiting
from waybill.watch.incidents.failures import Failures
from waybill.watch.kafka_cluster.what_if import TopicRules

logger = logging.getLogger(__name__)

_READ_AGAIN = timedelta(minutes=5)
_GROUP_TIMEOUT_SECONDS, _GROUPS_TIMEOUT_SECONDS = 3.0, 15.0
"""Timeouts for the committed offsets of one group, and of all groups."""
_SHARE = "share"
_WITH_OFFSETS = ("classic", "consumer", "streams")
"""The types of groups whose committed offsets OffsetFetch returns."""
_MIN_IN_SYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class SlowReadings:
    """The readings that are repeated every five minutes."""

    read_ms: int = 0
    rules: Mapping[str, TopicRules] = field(default_factory=dict)
    """Topics whose configs the user is not allowed to describe are missing."""
    directories: tuple[LogDirectory, ...] = ()
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The log end offsets of those topic-partitions of streams whose leaders answered."""
    ahead_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    """How far the largest timestamp of a topic-partition was ahead of the watch's clock, if it belongs to a message
    that arrived between two readings. Topic-partitions where it was not ahead are missing."""
    is_without_times: bool = False
    """Whether no leader of any stream's topic-partition answered."""
    missing_acls: tuple[str, ...] = ()

    def is_due(self, now_ms: int, topics: Iterable[str]) -> bool:
        """Return whether to read again: after five minutes, or because of a new topic."""
        is_old = not 0 <= now_ms - self.read_ms < _READ_AGAIN // timedelta(milliseconds=1)
        return is_old or (not self.missing_acls and any(topic not in self.rules for topic in topics))

    def document(self) -> dict[str, Any]:
        """Return the fields as they are stored."""
        return {
            "read": self.read_ms,
            "rules": {topic: [each.min_in_sync, each.allows_unclean_election] for topic, each in self.rules.items()},
            "directories": [
                [each.broker, each.path, each.error, each.total_bytes, each.usable_bytes] for each in self.directories
            ],
            "log_ends": [[tp.topic, tp.partition, end] for tp, end in self.log_ends.items()],
            "ahead": [[tp.topic, tp.partition, ahead_ms] for tp, ahead_ms in self.ahead_ms.items()],
            "without_times": self.is_without_times,
            "missing_acls": list(self.missing_acls),
        }

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Return the stored readings. Raises `KeyError`, `TypeError` or `ValueError` for other fields."""
        return cls(
            int(fields["read"]),
            {topic: TopicRules(int(low), bool(unclean)) for topic, (low, unclean) in fields["rules"].items()},
            tuple(LogDirectory(*each) for each in fields["directories"]),
            {TopicPartition(topic, int(number)): int(end) for topic, number, end in fields.get("log_ends", ())},
            {TopicPartition(topic, int(number)): int(ahead_ms) for topic, number, ahead_ms in fields.get("ahead", ())},
            bool(fields.get("without_times")),
            tuple(fields["missing_acls"]),
        )


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A watched consumer group."""

    state: str
    """The state, in Kafka's words: `Stable`, `Empty`, …"""
    committed: int
    """The sum of the committed offsets."""
    lag: int
    """The most messages that the group has not consumed, in the topic-partitions whose log end is known."""
    unread_ends: int = 0
    """Topic-partitions with a committed offset whose log end is not known: no leader answered."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The watched consumer groups."""

    read: Mapping[str, GroupReading] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    """Groups that could not be read, and why."""


@dataclass(frozen=True, slots=True)
class Readings:
    """The cluster, as it was read at one moment."""

    state: ClusterState
    slow: SlowReadings
    quorum: Quorum | None
    """None: unknown, or the cluster has no quorum."""
    quorum_error: str = ""
    """Why no controller answered; '' if one did."""
    quorum_hidden: bool = False
    """Whether the user is not allowed to describe the quorum."""
    groups: Groups = field(default_factory=Groups)
    missing_acls: tuple[str, ...] = ()
    """The ACLs that the user lacks, such as `Describe on the cluster`."""


@dataclass(frozen=True, slots=True)
class WantedReadings:
    """The parts of a cluster to read."""

    streams: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)
    """For each stream with a Kafka source: returns whether the stream archives a topic."""
    topics: Collection[str] = ()
    """Topics that are named in the config, whether they exist or not."""
    groups: Collection[str] = ()
    """The patterns of watched consumer groups."""
    known_groups: Collection[str] = ()
    """The groups that an earlier watch has read."""
    committed: Mapping[str, int] = field(default_factory=dict)
    """The sums of their committed offsets at that time."""


def read_cluster(
    cluster: Cluster, slow: SlowReadings, wanted: WantedReadings, now_ms: int, failures: Failures | None = None
) -> Readings:
    """Read the cluster. `slow`: the earlier slow readings. `failures`: collects unexpected exceptions.

    Raises `KafkaUnavailable` when no broker answers.
    """
    failures = Failures() if failures is None else failures
    state = fetch_cluster_state(cluster)
    missing: list[str] = []
    unlisted = sorted(set(wanted.topics) - state.topic_ids.keys())
    if unlisted:
        state = _with_unlisted(state, fetch_states_of_all(cluster, sorted(state.brokers), unlisted))
    if slow.is_due(now_ms, state.topic_ids):
        try:
            slow = _read_slowly(cluster, state, slow, wanted.streams, now_ms)
        except KafkaUnavailable as error:
            # The cluster has answered. The earlier readings are used until the next watch reads again.
            logger.warning("configs, disks and timestamps are those of an earlier watch: %s", error)
        except Exception as error:
            failures.caught("configs, disks and timestamps of Kafka", error)
    quorum, quorum_error, quorum_hidden = None, "", False
    try:
        quorum = fetch_quorum(cluster)
    except KafkaUnavailable as error:
        quorum_error = str(error)
    except ConfigError as error:
        quorum_hidden = True
        _note_missing(missing, "Describe on the cluster (quorum)", error)
    except Exception as error:
        quorum_error = str(failures.caught("the quorum of Kafka's controllers", error))
    groups = _read_groups(cluster, state, wanted, missing, failures) if wanted.groups else Groups()
    missing += [f"Describe on topic {topic!r}" for topic in sorted(state.refused)]
    return Readings(state, slow, quorum, quorum_error, quorum_hidden, groups, (*missing, *slow.missing_acls))


def _with_unlisted(state: ClusterState, answers: Iterable[ClusterState]) -> ClusterState:
    """Return the state with missing topics added, which brokers return when they are requested by name.

    A full list leaves out topics that the user is not allowed to describe, and new topics that the broker does not know
    yet.
    """
    for each in answers:
        state = replace(
            state,
            partitions={**each.partitions, **state.partitions},
            topic_ids={**each.topic_ids, **state.topic_ids},
            refused=state.refused | each.refused,
        )
    return state


def _note_missing(missing: list[str], acl: str, error: ConfigError) -> None:
    logger.info("%s", error)
    missing.append(acl)


def _read_slowly(
    cluster: Cluster,
    state: ClusterState,
    before: SlowReadings,
    streams: Mapping[str, Callable[[str], bool]],
    now_ms: int,
) -> SlowReadings:
    missing: list[str] = []
    topics = state.topic_ids.keys()
    directories: list[LogDirectory] = []
    try:
        directories = fetch_log_directories(cluster, sorted(state.brokers))
    except ConfigError as error:
        _note_missing(missing, "Describe on the cluster (log directories)", error)
    configs = fetch_effective_configs(cluster, topics, (_MIN_IN_SYNC, _UNCLEAN))
    missing += [f"DescribeConfigs on topic {topic!r}" for topic in sorted(topics - configs.keys())]
    archived = {topic for topic in topics if any(matches(topic) for matches in streams.values())}
    led = {tp: each.has_leader for tp, each in state.partitions.items() if tp.topic in archived}
    log_ends, ahead_ms = _read_times(cluster, led, before, now_ms)
    return SlowReadings(
        now_ms,
        {
            topic: TopicRules(int(values.get(_MIN_IN_SYNC, "1")), values.get(_UNCLEAN, "false") == "true")
            for topic, values in configs.items()
        },
        tuple(directories),
        log_ends,
        ahead_ms,
        any(led.values()) and not log_ends,
        tuple(missing),
    )


def _read_times(
    cluster: Cluster, led: Mapping[TopicPartition, bool], before: SlowReadings, now_ms: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the log end of each topic-partition, and how far ahead the largest timestamp of new messages is.

    Kafka returns the largest timestamp of the whole log, with its offset. The timestamp is used if the message arrived
    after the last reading. Without a new message or an answer, the earlier result is kept. `led`: whether each
    topic-partition of a stream has a leader.
    """
    source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
    asked = [tp for tp, has_leader in led.items() if has_leader]
    newest, ends = source.newest_timestamps_briefly(asked), source.ends_briefly(asked)
    log_ends, ahead_ms = dict[TopicPartition, int](), dict[TopicPartition, int]()
    for tp in led:
        before_end = before.log_ends.get(tp)
        end = ends.get(tp, before_end)
        if end is None:
            continue
        log_ends[tp] = end
        offset, time_ms = newest.get(tp, (-1, now_ms))
        if offset >= (before_end or 0):
            ahead_ms[tp] = time_ms - now_ms
        elif end == before_end:
            ahead_ms[tp] = before.ahead_ms.get(tp, 0)
    return log_ends, {tp: ahead for tp, ahead in ahead_ms.items() if ahead > 0}


def _read_groups(
    cluster: Cluster, state: ClusterState, wanted: WantedReadings, missing: list[str], failures: Failures
) -> Groups:
    """Read the consumer groups that a pattern matches.

    Known groups, and groups that the config names, are requested by name.

    Kafka's list leaves out groups that the user is not allowed to describe, and groups whose broker does not answer.
    """
    listed = _list_groups(cluster, state, missing)
    named = {name for name in map(_name_of, wanted.groups) if name}
    watched = sorted(
        name
        for name in {*listed.states, *wanted.known_groups, *named}
        if any(re.fullmatch(pattern, name) for pattern in wanted.groups)
    )
    read, unread = dict[str, GroupReading](), dict[str, str]()
    deadline = time.monotonic() + _GROUPS_TIMEOUT_SECONDS
    for name in watched:
        if time.monotonic() > deadline:
            unread[name] = "there was no time left: other groups took too long to answer"
            continue
        try:
            found = _read_group(cluster, state, wanted, listed, name)
        except ConfigError as error:
            acl = f"Describe on group {name!r}"
            _note_missing(missing, acl, error)
            unread[name] = f"the user lacks {acl}"
        except KafkaUnavailable as error:
            unread[name] = str(error)
        except Exception as error:  # an error of one group does not stop the loop over the groups
            unread[name] = str(failures.caught(f"consumer group {name!r}", error))
        else:
            if isinstance(found, GroupReading):
                read[name] = found
            elif found or name in named:
                unread[name] = found or "the group does not exist: it has no consumers and no committed offsets"
    return Groups(read, unread)


def _list_groups(cluster: Cluster, state: ClusterState, missing: list[str]) -> GroupList:
    try:
        return list_groups(cluster, sorted(state.brokers))
    except ConfigError as error:
        _note_missing(missing, "Describe on the groups", error)
    except KafkaUnavailable as error:  # an error in an answer: groups whose names are known can still be read
        logger.warning("%s", error)
    return GroupList({}, tuple(state.brokers))


def _read_group(
    cluster: Cluster, state: ClusterState, wanted: WantedReadings, listed: GroupList, name: str
) -> GroupReading | str:
    """Return the committed offsets of a group, or why they cannot be measured; '' if the group does not exist in Kafka.

    Raises `KafkaUnavailable`, and `ConfigError` if the user is not allowed to describe the group.
    """
    kind = listed.types.get(name, "")
    if kind == _SHARE:
        # Their offsets are in Kafka's share coordinator. OffsetFetch answers for such a group with an empty list, as
        # for a group that has committed nothing.
        return "not measured: it is a share group, whose offsets Kafka does not tell as those of a consumer group"
    committed = fetch_all_group_offsets(cluster, name, _GROUP_TIMEOUT_SECONDS)
    if committed:
        return _group_reading(cluster, state, listed.states.get(name, ""), committed, wanted.committed.get(name))
    if kind and kind not in _WITH_OFFSETS:
        return f"not measured: it is a group of the type {kind!r}, which Waybill does not know"
    if name in listed.states:
        word = listed.states[name] or "in an unknown state"
        return f"not measured: the group, which is {word}, has no committed offsets"
    if listed.silent:
        return f"broker {', '.join(map(str, listed.silent))} did not list its groups"
    return ""


def _group_reading(
    cluster: Cluster,
    state: ClusterState,
    word: str,
    committed: Mapping[TopicPartition, int],
    committed_before: int | None,
) -> GroupReading:
    existing = [tp for tp in committed if tp in state.partitions]
    source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
    ends = source.ends_briefly([tp for tp in existing if state.partitions[tp].has_leader])
    lags = {tp: max(0, ends[tp] - committed[tp]) for tp in existing if tp in ends}
    if sum(committed.values()) == committed_before:
        # Check a small lag only now, since every working group has one at each watch.
        lags = {tp: _without_markers(source, tp, committed[tp], lag) for tp, lag in lags.items()}
    return GroupReading(word, sum(committed.values()), sum(lags.values()), len(existing) - len(ends))


def _without_markers(source: KafkaSource, tp: TopicPartition, committed: int, lag: int) -> int:
    """Return the number of messages that a group has not consumed.

    If it cannot be read, return the number of offsets.
    """
    if not 0 < lag <= MOST_OFFSETS:
        return lag
    try:
        return count_waiting(source, tp, committed, committed + lag)
    except WaybillError as error:
        logger.info(
            "%s: %d offsets from %d on count as messages, since they cannot be read: %s", tp, lag, committed, error
        )
        return lag


def _name_of(pattern: str) -> str:
    """Return the only name that a pattern can match; '' if the pattern can match several."""
    name = re.sub(r"\\([.\-_])", r"\1", pattern)
    return "" if set(name) & set(r"\^$*+?{}[]|()") else name
