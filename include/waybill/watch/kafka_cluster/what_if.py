"""The effects of a loss of brokers on each topic-partition and stream. Pure functions of the cluster's state.

The rules are those of Kafka's controller in KRaft mode (`PartitionChangeBuilder`, KIP-631, KIP-966):

- A lost broker leaves the in-sync replicas, unless it is the last one of them.
- A new leader is the first live in-sync replica in the order of the replicas; a leader that lives stays.
- Without a live in-sync replica, an eligible leader replica (KIP-966) leads. Without one of those, the topic-partition
  is offline, or, if the topic allows unclean elections, the first live replica leads and takes messages back.
- Fewer in-sync replicas than `min.insync.replicas`: the leader refuses writes with `acks=all`. A topic-partition with
  fewer replicas needs all of them.
- Without a majority of the controllers, no leader is elected, and no replica leaves the in-sync replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import NO_LEADER, ClusterState, TopicPartitionReplicas


class OutageEffect(IntEnum):
    """The effect on a topic-partition, from harmless to worst."""

    NONE = 0
    """No replica is on a lost broker."""
    FEWER_REPLICAS = 1
    """A follower is lost. The leader stays, and acknowledges all writes."""
    LEADER_MOVES = 2
    """Another in-sync replica leads, and acknowledges all writes."""
    NO_WRITES = 3
    """Writes with `acks=all` fail: there are fewer in-sync replicas than `min.insync.replicas`."""
    UNCLEAN = 4
    """A replica that is not in sync leads, and takes messages back."""
    OFFLINE = 5
    """No replica leads: the topic-partition can be neither read nor written."""

    @property
    def title(self) -> str:
        return _TITLES[self]


_TITLES = {
    OutageEffect.NONE: "unaffected",
    OutageEffect.FEWER_REPLICAS: "fewer replicas",
    OutageEffect.LEADER_MOVES: "leader moves",
    OutageEffect.NO_WRITES: "no writes with acks=all",
    OutageEffect.UNCLEAN: "unclean election",
    OutageEffect.OFFLINE: "offline",
}


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The settings of a topic that decide the effect of a lost broker."""

    min_in_sync: int = 1
    allows_unclean_election: bool = False


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """The facts about a cluster that decide an effect, besides the replicas."""

    topics: Mapping[str, TopicRules] = field(default_factory=dict)
    """Topics that are missing here have Kafka's defaults."""
    eligible: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """The eligible leader replicas (KIP-966), by topic-partition."""
    voters: frozenset[int] = frozenset()
    """The controllers of the quorum, with those that are not brokers. Empty: unknown; they are assumed to survive."""
    away: frozenset[int] = frozenset()
    """The voters that have already failed."""
    has_quorum: bool = True
    """Whether a controller leads now."""

    def of_topic(self, topic: str) -> TopicRules:
        """Return the rules of a topic."""
        return self.topics.get(topic, TopicRules())

    def keeps_quorum(self, lost: Collection[int]) -> bool:
        """Return whether the controllers have a majority without the nodes `lost`."""
        left = self.voters - self.away - frozenset(lost)
        return self.has_quorum and (not self.voters or 2 * len(left) > len(self.voters))


@dataclass(frozen=True, slots=True)
class PartitionForecast:
    """A topic-partition after the loss."""

    tp: TopicPartition
    before: OutageEffect
    """The effect without the loss: `NONE`, or the present fault of the topic-partition."""
    effect: OutageEffect
    leader: int
    """-1 if none."""
    in_sync: tuple[int, ...]
    min_in_sync: int
    only_copy: bool
    """Whether every in-sync replica is on a lost broker: offsets that are not archived exist only on these disks.

    Without in-sync replicas, the eligible leader replicas hold the messages; without those either, any replica may.
    """

    @property
    def is_worse(self) -> bool:
        return self.effect > self.before


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cluster after the loss of brokers."""

    lost: tuple[int, ...]
    had_quorum: bool
    """Whether the controllers have a majority without the loss."""
    keeps_quorum: bool
    partitions: Sequence[PartitionForecast]
    """The topic-partitions with a replica on a lost broker, sorted."""
    total: int
    """How many topic-partitions the cluster has."""

    def with_effect(self, effect: OutageEffect) -> list[PartitionForecast]:
        """Return the topic-partitions with an effect."""
        return [each for each in self.partitions if each.effect is effect]


@dataclass(frozen=True, slots=True)
class Unarchived:
    """The number of offsets of a topic-partition that are in Kafka and not archived.

    There are at most as many messages.
    """

    offsets: int
    seen_at_ms: int | None = None
    """None: the log end was read now. Otherwise the leader does not answer, and a watch read this log end at this time
    (epoch ms); later messages are not counted."""


@dataclass(frozen=True, slots=True)
class StreamForecast:
    """A stream after the loss of brokers. Counts are of topic-partitions."""

    stream: str
    partitions: int
    offline: int
    unclean: int
    no_writes: int
    at_risk: int
    """The number of offsets that are lost if the brokers never come back: only these brokers have them, and they are
    not archived. Topic-partitions for which this is unknown are not counted. There are at most as many messages."""
    at_risk_seen: Mapping[TopicPartition, Unarchived] = field(default_factory=dict)
    """The part of `at_risk` that is a lower bound: the leaders do not answer, and an earlier watch read the log
    ends."""
    at_risk_not_known: tuple[TopicPartition, ...] = ()
    """Topic-partitions that only the lost brokers have, and whose log end is unknown."""

    @property
    def is_at_risk_exact(self) -> bool:
        """Whether the leaders of all topic-partitions at risk answered."""
        return not self.at_risk_seen and not self.at_risk_not_known

    @property
    def stops(self) -> bool:
        """Whether archiving stops for a topic-partition until the brokers come back, or a person decides."""
        return bool(self.offline or self.unclean)


def brokers_of_rack(state: ClusterState, rack: str) -> tuple[int, ...]:
    """Return the live brokers of a rack."""
    return tuple(sorted(node_id for node_id, broker in state.brokers.items() if broker.rack == rack))


def forecast(state: ClusterState, rules: ClusterRules, lost: Collection[int]) -> Forecast:
    """Return what happens to each topic-partition if the brokers `lost` end at once."""
    live = frozenset(state.brokers)
    remaining = live - frozenset(lost)
    keeps_quorum = rules.keeps_quorum(lost)
    found = []
    for tp in sorted(tp for tp, partition in state.partitions.items() if not set(partition.replicas).isdisjoint(lost)):
        partition = state.partitions[tp]
        settings = rules.of_topic(tp.topic)
        before = _effect(partition, partition.leader, _live(partition.in_sync, live), settings)
        leader, in_sync, is_unclean = _after(partition, remaining, settings, rules.eligible.get(tp, ()), keeps_quorum)
        effect = _effect(partition, leader, _live(in_sync, remaining), settings)
        if is_unclean:
            effect = max(effect, OutageEffect.UNCLEAN)
        elif not keeps_quorum and not remaining.issuperset(in_sync):
            # The leader waits for the lost follower, because no controller removes it from the in-sync replicas.
            effect = max(effect, OutageEffect.NO_WRITES)
        only_copy = _only_they_have(partition, rules.eligible.get(tp, ()), lost)
        found.append(PartitionForecast(tp, before, effect, leader, in_sync, settings.min_in_sync, only_copy))
    return Forecast(tuple(sorted(lost)), rules.keeps_quorum(()), keeps_quorum, found, len(state.partitions))


def _only_they_have(partition: TopicPartitionReplicas, eligible: tuple[int, ...], lost: Collection[int]) -> bool:
    """Return whether only lost brokers are known to have all messages. At least one of `lost` has a replica."""
    return set(partition.in_sync or eligible) <= set(lost)


def _after(
    partition: TopicPartitionReplicas,
    live: frozenset[int],
    settings: TopicRules,
    eligible: tuple[int, ...],
    keeps_quorum: bool,
) -> tuple[int, tuple[int, ...], bool]:
    """Return the leader and the in-sync replicas after the loss, and whether the leader was not in sync."""
    if not keeps_quorum:
        return (partition.leader if partition.leader in live else NO_LEADER), partition.in_sync, False
    in_sync = _live(partition.in_sync, live)
    if in_sync:
        leader = partition.leader if partition.leader in in_sync else _first(partition.replicas, in_sync)
        return leader, in_sync, False
    candidates = _live(eligible, live)
    if candidates:
        leader = _first(partition.replicas, candidates)
        return leader, (leader,), False
    candidates = _live(partition.replicas, live)
    if settings.allows_unclean_election and candidates:
        return candidates[0], (candidates[0],), True
    # The controller keeps the last in-sync replica, so that it knows which replica to elect when a broker comes back.
    return NO_LEADER, partition.in_sync[-1:], False


def _first(replicas: Iterable[int], among: Collection[int]) -> int:
    return next(node_id for node_id in (*replicas, *among) if node_id in among)


def _live(replicas: Iterable[int], live: Collection[int]) -> tuple[int, ...]:
    return tuple(node_id for node_id in replicas if node_id in live)


def _effect(
    partition: TopicPartitionReplicas, leader: int, in_sync: tuple[int, ...], settings: TopicRules
) -> OutageEffect:
    """Return the effect on the topic-partition `partition`, which now has this leader and these in-sync replicas.

    `in_sync` holds live brokers alone.
    """
    if leader == NO_LEADER:
        return OutageEffect.OFFLINE
    # If a topic has fewer replicas than min.insync.replicas, a broker requires all of its replicas.
    if len(in_sync) < min(settings.min_in_sync, len(partition.replicas)):
        return OutageEffect.NO_WRITES
    if leader != partition.leader:
        return OutageEffect.LEADER_MOVES
    return OutageEffect.FEWER_REPLICAS if len(in_sync) < len(partition.replicas) else OutageEffect.NONE


def observe(
    before: TopicPartitionReplicas,
    now: TopicPartitionReplicas,
    live: Collection[int],
    settings: TopicRules,
    *,
    answers: bool,
) -> OutageEffect:
    """Return the observed effect on a topic-partition, for the comparison with a forecast.

    `live`: the brokers that live now. `answers`: whether a leader answers requests about the topic-partition.
    """
    leader = now.leader if answers else NO_LEADER
    effect = _effect(before, leader, _live(now.in_sync, live), settings)
    if effect is OutageEffect.OFFLINE:
        return effect
    if leader not in before.in_sync and before.in_sync:
        return max(effect, OutageEffect.UNCLEAN)
    if not set(live).issuperset(now.in_sync):  # the leader waits for a follower that does not answer
        return max(effect, OutageEffect.NO_WRITES)
    return effect


# --- streams ----------------------------------------------------------------------------------------------------------


def forecast_streams(
    found: Forecast,
    streams: Mapping[str, Collection[TopicPartition]],
    unarchived: Mapping[str, Mapping[TopicPartition, Unarchived]],
) -> list[StreamForecast]:
    """Return what happens to each stream, sorted by name. Streams without an effect are left out.

    `unarchived`: for each stream, the offsets that are not archived. Topic-partitions for which they are unknown are
    missing.
    """
    by_tp = {each.tp: each for each in found.partitions}
    forecasts = []
    for name in sorted(streams):
        affected = [by_tp[tp] for tp in streams[name] if tp in by_tp]
        if not affected:
            continue
        behind = unarchived.get(name, {})
        only_there = [each.tp for each in affected if each.only_copy]
        at_risk = {tp: behind[tp] for tp in only_there if tp in behind}
        forecasts.append(
            StreamForecast(
                stream=name,
                partitions=len(streams[name]),
                offline=sum(each.effect is OutageEffect.OFFLINE for each in affected),
                unclean=sum(each.effect is OutageEffect.UNCLEAN for each in affected),
                no_writes=sum(each.effect is OutageEffect.NO_WRITES for each in affected),
                at_risk=sum(each.offsets for each in at_risk.values()),
                at_risk_seen={tp: each for tp, each in at_risk.items() if each.seen_at_ms is not None},
                at_risk_not_known=tuple(tp for tp in only_there if tp not in at_risk),
            )
        )
    return forecasts
