"""Since when topic-partitions lack in-sync replicas, and for how long they did earlier: Kafka does not store this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import ClusterState
from waybill.watch.kafka_cluster.what_if import TopicRules

_KEPT = timedelta(days=14)
_MOST_EPISODES = 2_000


class ReplicaState(StrEnum):
    """What a topic-partition lacks. A topic-partition can have several states; an offline one has only that state."""

    OFFLINE = "offline"
    UNDER_MIN_ISR = "under_min_isr"
    SINGLE_IN_SYNC = "single_in_sync"
    UNDER_REPLICATED = "under_replicated"


@dataclass(frozen=True, slots=True)
class Episode:
    """A state of topic-partitions of one topic that has ended."""

    state: ReplicaState
    topic: str
    partitions: int
    """The largest number of topic-partitions that had the state at once."""
    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class IsrHistory:
    """The states that the watch has seen.

    Times are those of watches, so they are exact to the interval between watches.
    """

    open: Mapping[ReplicaState, Mapping[TopicPartition, int]] = field(default_factory=dict)
    """Since when a topic-partition is in a state (epoch ms)."""
    ended: tuple[Episode, ...] = ()
    """Oldest first."""

    def followed(self, found: Mapping[ReplicaState, Iterable[TopicPartition]], now_ms: int) -> Self:
        """Return the history after a watch that found these states."""
        still: dict[ReplicaState, dict[TopicPartition, int]] = {}
        ended: list[Episode] = []
        for state in ReplicaState:
            before = self.open.get(state, {})
            now = set(found.get(state, ()))
            still[state] = {tp: before.get(tp, now_ms) for tp in sorted(now)}
            ended += _episodes(state, {tp: since for tp, since in before.items() if tp not in now}, now_ms)
        oldest_ms = now_ms - _KEPT // timedelta(milliseconds=1)
        kept = [each for each in (*self.ended, *ended) if each.until_ms >= oldest_ms]
        return replace(self, open=still, ended=tuple(kept[-_MOST_EPISODES:]))

    def lasting(self, state: ReplicaState, longer_than: timedelta, now_ms: int) -> dict[TopicPartition, int]:
        """Return the topic-partitions that have been in a state for longer than `longer_than`, and since when."""
        latest_ms = now_ms - longer_than // timedelta(milliseconds=1)
        return {tp: since for tp, since in self.open.get(state, {}).items() if since <= latest_ms}

    def document(self) -> dict[str, Any]:
        """Return the fields as they are stored."""
        return {
            "open": {
                str(state): [[tp.topic, tp.partition, since] for tp, since in tps.items()]
                for state, tps in self.open.items()
            },
            "ended": [
                [str(each.state), each.topic, each.partitions, each.since_ms, each.until_ms] for each in self.ended
            ],
        }

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Return the stored history. Raises `KeyError`, `TypeError` or `ValueError` for other fields."""
        return cls(
            {
                ReplicaState(state): {TopicPartition(topic, int(number)): int(since) for topic, number, since in tps}
                for state, tps in fields["open"].items()
            },
            tuple(
                Episode(ReplicaState(state), topic, int(count), int(since), int(until))
                for state, topic, count, since, until in fields["ended"]
            ),
        )


def _episodes(state: ReplicaState, over: Mapping[TopicPartition, int], now_ms: int) -> list[Episode]:
    """Return an episode for each topic: when a broker restarts, all its topic-partitions recover within seconds."""
    by_topic: dict[str, list[int]] = {}
    for tp, since in over.items():
        by_topic.setdefault(tp.topic, []).append(since)
    return [Episode(state, topic, len(each), min(each), now_ms) for topic, each in sorted(by_topic.items())]


def classify(state: ClusterState, rules: Mapping[str, TopicRules]) -> dict[ReplicaState, list[TopicPartition]]:
    """Return the topic-partitions in each state. Topics without `rules` have Kafka's defaults."""
    found: dict[ReplicaState, list[TopicPartition]] = {each: [] for each in ReplicaState}
    usual, live = TopicRules(), state.brokers.keys()
    for tp, partition in state.partitions.items():
        replicas = len(partition.replicas)
        in_sync = sum(node_id in live for node_id in partition.in_sync)
        if not partition.has_leader:
            found[ReplicaState.OFFLINE].append(tp)
            continue
        if in_sync == replicas:
            continue
        found[ReplicaState.UNDER_REPLICATED].append(tp)
        # If a topic has fewer replicas than min.insync.replicas, a broker requires all of its replicas.
        if in_sync < min(rules.get(tp.topic, usual).min_in_sync, replicas):
            found[ReplicaState.UNDER_MIN_ISR].append(tp)
        if in_sync <= 1:
            found[ReplicaState.SINGLE_IN_SYNC].append(tp)
    return found
