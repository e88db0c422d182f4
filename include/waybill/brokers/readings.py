"""Reading what the promises about the Kafka cluster need, with few requests.

Metadata, the quorum and watched consumer groups are read each time. Configs, disks and timestamps change slowly, so
they are read every five minutes. Whatever the user may not describe is left out, and its ACL is named.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self, TypeVar

from waybill.brokers.what_if import TopicRules
from waybill.config import IsolationLevel
from waybill.config.kafka_promises import GroupLag
from waybill.errors import ConfigError, KafkaUnavailable
from waybill.names import TopicPartition
from waybill.sources.cluster import Cluster
from waybill.sources.cluster_state import ClusterState, fetch_cluster_state
from waybill.sources.consumer_groups import fetch_all_group_offsets, list_groups
from waybill.sources.controllers import Quorum, fetch_quorum
from waybill.sources.kafka import KafkaSource
from waybill.sources.log_directories import LogDirectory, fetch_log_directories
from waybill.sources.topic_configs import fetch_effective_configs

__all__ = ["GroupReading", "Readings", "SlowReadings", "read_cluster"]

logger = logging.getLogger(__name__)

Read = TypeVar("Read")

_READ_AGAIN = timedelta(minutes=5)
_MIN_IN_SYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class SlowReadings:
    """What is read every five minutes."""

    read_ms: int = 0
    rules: Mapping[str, TopicRules] = field(default_factory=dict)
    """Without topics whose configuration the user may not describe."""
    directories: tuple[LogDirectory, ...] = ()
    newest_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The largest timestamp of each topic-partition of a stream. Epoch ms."""
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
            "newest": [[tp.topic, tp.partition, time_ms] for tp, time_ms in self.newest_ms.items()],
            "missing_acls": list(self.missing_acls),
        }

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Return the stored readings. Raises `KeyError`, `TypeError` or `ValueError` for other fields."""
        return cls(
            int(fields["read"]),
            {topic: TopicRules(int(low), bool(unclean)) for topic, (low, unclean) in fields["rules"].items()},
            tuple(LogDirectory(*each) for each in fields["directories"]),
            {TopicPartition(topic, int(number)): int(time_ms) for topic, number, time_ms in fields["newest"]},
            tuple(fields["missing_acls"]),
        )


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A watched consumer group."""

    state: str
    """Kafka's word for it: `Stable`, `Empty`, …"""
    committed: int
    """The committed offsets, added up."""
    lag: int
    """Messages before the group, at most."""


@dataclass(frozen=True, slots=True)
class Readings:
    """The cluster, as it was read at one moment."""

    state: ClusterState
    slow: SlowReadings
    quorum: Quorum | None
    """None: not known, or the cluster has none."""
    quorum_error: str = ""
    """Why no controller answered; '' if one did."""
    groups: Mapping[str, GroupReading] = field(default_factory=dict)
    missing_acls: tuple[str, ...] = ()
    """What the user may not describe: `Describe on the cluster`."""


def read_cluster(
    cluster: Cluster,
    slow: SlowReadings,
    streams: Mapping[str, Callable[[str], bool]],
    groups: Mapping[str, GroupLag],
    now_ms: int,
) -> Readings:
    """Read the cluster. `slow`: what was read before. `streams`: for each stream, whether it archives a topic.

    Raises `KafkaUnavailable` when no broker answers.
    """
    state = fetch_cluster_state(cluster)
    missing: list[str] = []
    if slow.is_due(now_ms, state.topic_ids):
        slow = _read_slowly(cluster, state, streams, now_ms)
    quorum, quorum_error = None, ""
    try:
        quorum = _allowed(lambda: fetch_quorum(cluster), "Describe on the cluster (quorum)", missing)
    except KafkaUnavailable as error:
        quorum_error = str(error)
    found = _read_groups(cluster, state, groups, missing) if groups else {}
    return Readings(state, slow, quorum, quorum_error, found, (*slow.missing_acls, *missing))


def _allowed(read: Callable[[], Read], acl: str, missing: list[str]) -> Read | None:
    """Return what `read` returns; None if Kafka refuses it to the user, and then note the ACL that is missing."""
    try:
        return read()
    except ConfigError as error:
        logger.info("%s", error)
        missing.append(acl)
        return None


def _read_slowly(
    cluster: Cluster, state: ClusterState, streams: Mapping[str, Callable[[str], bool]], now_ms: int
) -> SlowReadings:
    missing: list[str] = []
    topics = state.topic_ids.keys()
    configs = fetch_effective_configs(cluster, topics, (_MIN_IN_SYNC, _UNCLEAN))
    hidden = sorted(topics - configs.keys())
    if hidden:
        more = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
        missing.append(f"DescribeConfigs on topic {hidden[0]!r}{more}")
    directories = _allowed(
        lambda: fetch_log_directories(cluster, sorted(state.brokers)),
        "Describe on the cluster (log directories)",
        missing,
    )
    archived = {topic for topic in topics if any(matches(topic) for matches in streams.values())}
    led = [tp for tp, each in state.partitions.items() if tp.topic in archived and each.has_leader]
    newest = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED).newest_timestamps_briefly(led)
    return SlowReadings(
        now_ms,
        {
            topic: TopicRules(int(values.get(_MIN_IN_SYNC, "1")), values.get(_UNCLEAN, "false") == "true")
            for topic, values in configs.items()
        },
        tuple(directories or ()),
        newest,
        tuple(missing),
    )


def _read_groups(
    cluster: Cluster, state: ClusterState, groups: Mapping[str, GroupLag], missing: list[str]
) -> dict[str, GroupReading]:
    """Return the consumer groups that a pattern matches."""
    states = list_groups(cluster, sorted(state.brokers))
    watched = sorted(name for name in states if any(re.fullmatch(pattern, name) for pattern in groups))
    source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
    found: dict[str, GroupReading] = {}
    for name in watched:
        read = lambda name=name: fetch_all_group_offsets(cluster, name)  # noqa: E731
        committed = _allowed(read, f"Describe on group {name!r}", missing)
        if committed is None:
            continue
        ends = source.ends_briefly([tp for tp in committed if tp in state.partitions])
        lag = sum(max(0, ends[tp] - offset) for tp, offset in committed.items() if tp in ends)
        found[name] = GroupReading(states[name], sum(committed.values()), lag)
    return found
