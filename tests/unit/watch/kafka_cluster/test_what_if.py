"""What the loss of brokers does, against a controller that fences one broker after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import Broker, ClusterState, TopicPartitionReplicas
from waybill.watch.kafka_cluster.what_if import (
    ClusterRules,
    OutageEffect,
    PartitionForecast,
    TopicRules,
    Unarchived,
    brokers_of_rack,
    forecast,
    forecast_streams,
    observe,
)

TP = TopicPartition("flights", 0)
FIVE = range(1, 6)


def cluster(partition: TopicPartitionReplicas, brokers: Iterable[int] = (1, 2, 3)) -> ClusterState:
    return ClusterState("c", 1, {each: Broker(each, "h", 1, f"r{each % 2}") for each in brokers}, {TP: partition})


def led(leader: int, replicas: tuple[int, ...], in_sync: tuple[int, ...] | None = None) -> TopicPartitionReplicas:
    return TopicPartitionReplicas(leader, 1, replicas, replicas if in_sync is None else in_sync, ())


def only(
    partition: TopicPartitionReplicas, lost: Iterable[int], rules: ClusterRules | None = None
) -> PartitionForecast:
    (found,) = forecast(cluster(partition), rules or ClusterRules({"flights": TopicRules(2)}), set(lost)).partitions
    return found


@pytest.mark.parametrize(
    ("lost", "effect", "leader"),
    [
        ([3], OutageEffect.FEWER_REPLICAS, 1),
        ([1], OutageEffect.LEADER_MOVES, 2),
        ([1, 2], OutageEffect.NO_WRITES, 3),
        ([1, 2, 3], OutageEffect.OFFLINE, -1),
    ],
)
def test_effect_grows_with_the_lost_replicas(lost: list[int], effect: OutageEffect, leader: int) -> None:
    found = only(led(1, (1, 2, 3)), lost)
    assert (found.effect, found.leader) == (effect, leader)


def test_replica_that_is_not_in_sync_leads_only_if_the_topic_allows_it() -> None:
    partition = led(1, (1, 2), in_sync=(1,))
    assert only(partition, [1]).effect is OutageEffect.OFFLINE
    found = only(partition, [1], ClusterRules({"flights": TopicRules(1, allows_unclean_election=True)}))
    assert (found.effect, found.leader, found.only_copy) == (OutageEffect.UNCLEAN, 2, True)


def test_eligible_replica_leads_without_an_unclean_election() -> None:
    partition = led(1, (1, 2), in_sync=(1,))
    found = only(partition, [1], ClusterRules({"flights": TopicRules(1)}, eligible={TP: (2,)}))
    assert (found.effect, found.leader) == (OutageEffect.LEADER_MOVES, 2)


def test_without_a_majority_of_controllers_nobody_is_elected() -> None:
    rules = ClusterRules({"flights": TopicRules(1)}, voters=frozenset({1, 2, 3}))
    assert only(led(1, (1, 2, 3)), [1, 2], rules).effect is OutageEffect.OFFLINE
    waiting = only(led(3, (3, 1)), [1, 2], rules)
    assert waiting.effect is OutageEffect.NO_WRITES, "the lost follower stays in sync, and the leader waits for it"


def test_controllers_that_are_no_brokers_count_for_the_majority() -> None:
    """Brokers 1 to 3 are controllers as well; 101 and 102 are controllers alone, which metadata do not list."""
    voters = frozenset({1, 2, 3, 101, 102})
    rules = ClusterRules({"flights": TopicRules(1)}, voters=voters)
    assert forecast(cluster(led(1, (1, 2, 3))), rules, {1, 2}).keeps_quorum, "3, 101 and 102 are a majority"
    rules = ClusterRules({"flights": TopicRules(1)}, voters=voters, away=frozenset({101}))
    found = forecast(cluster(led(1, (1, 2, 3))), rules, {1, 2})
    assert (found.had_quorum, found.keeps_quorum) == (True, False)
    assert only(led(1, (1, 2, 3)), [1, 2], rules).effect is OutageEffect.OFFLINE


@pytest.mark.parametrize(
    "rules",
    [ClusterRules(voters=frozenset({1, 2, 3}), away=frozenset({2, 3})), ClusterRules(has_quorum=False)],
)
def test_majority_that_is_lost_already_stays_lost(rules: ClusterRules) -> None:
    found = forecast(cluster(led(1, (1, 2))), rules, {1})
    assert (found.had_quorum, found.keeps_quorum) == (False, False)
    assert found.partitions[0].effect is OutageEffect.OFFLINE, "nobody can elect broker 2"


def test_topic_partition_that_is_broken_already_is_told_apart() -> None:
    found = only(led(-1, (1, 2), in_sync=(1,)), [1])
    assert (found.before, found.effect, found.is_worse) == (OutageEffect.OFFLINE, OutageEffect.OFFLINE, False)


def test_stream_counts_messages_that_only_lost_brokers_have() -> None:
    other = TopicPartition("flights", 1)
    state = ClusterState(
        "c",
        1,
        {each: Broker(each, "h", 1, None) for each in (1, 2)},
        {TP: led(1, (1,)), other: led(1, (1, 2))},
    )
    found = forecast(state, ClusterRules({"flights": TopicRules(1)}), {1})
    unarchived = {"s": {TP: Unarchived(7), other: Unarchived(5)}}
    (stream,) = forecast_streams(found, {"s": [TP, other], "elsewhere": []}, unarchived)
    assert (stream.stream, stream.offline, stream.at_risk, stream.stops) == ("s", 1, 7, True)
    assert stream.is_at_risk_exact


def test_messages_of_an_offline_topic_partition_are_not_taken_for_none() -> None:
    found = forecast(cluster(led(-1, (1,)), (2, 3)), ClusterRules({"flights": TopicRules(1)}), {1})
    (stream,) = forecast_streams(found, {"s": [TP]}, {"s": {}})
    assert (stream.is_at_risk_exact, stream.at_risk_not_known) == (False, (TP,))
    (stream,) = forecast_streams(found, {"s": [TP]}, {"s": {TP: Unarchived(30, seen_at_ms=5)}})
    assert (stream.is_at_risk_exact, stream.at_risk, stream.at_risk_not_known) == (False, 30, ())


@pytest.mark.parametrize(("eligible", "only_copy"), [((1,), True), ((1, 2), False), ((), True)])
def test_without_replicas_in_sync_the_eligible_ones_hold_the_messages(
    eligible: tuple[int, ...], only_copy: bool
) -> None:
    rules = ClusterRules({"flights": TopicRules(1)}, eligible={TP: eligible} if eligible else {})
    assert only(led(-1, (1, 2), in_sync=()), [1], rules).only_copy is only_copy


def test_rack_is_its_live_brokers() -> None:
    assert brokers_of_rack(cluster(led(1, (1,))), "r1") == (1, 3)


# --- against a controller, step by step -------------------------------------------------------------------------------


class Controller:
    """Fences brokers one at a time, as Kafka's controller does: an oracle that knows nothing of forecasts."""

    def __init__(self, partition: TopicPartitionReplicas, settings: TopicRules) -> None:
        self.leader, self.in_sync = partition.leader, set(partition.in_sync)
        self.replicas, self.settings = partition.replicas, settings
        self.live = set(FIVE)
        self.was_unclean = False

    def fence(self, broker: int) -> None:
        self.live.discard(broker)
        if len(self.in_sync) > 1:
            self.in_sync.discard(broker)
        if self.leader == broker or self.leader == -1:
            self.elect()

    def elect(self) -> None:
        clean = [each for each in self.replicas if each in self.live and each in self.in_sync]
        rest = [each for each in self.replicas if each in self.live]
        self.leader = -1
        if clean:
            self.leader = clean[0]
        elif self.settings.allows_unclean_election and rest:
            self.leader, self.in_sync, self.was_unclean = rest[0], {rest[0]}, True


@st.composite
def partitions(draw: st.DrawFn) -> TopicPartitionReplicas:
    replicas = tuple(draw(st.permutations(FIVE))[: draw(st.integers(1, 4))])
    in_sync = tuple(each for each in replicas if draw(st.booleans())) or replicas[:1]
    return TopicPartitionReplicas(draw(st.sampled_from(in_sync)), 1, replicas, in_sync, ())


@given(partitions(), st.sets(st.sampled_from(FIVE), min_size=1), st.integers(1, 3))
def test_forecast_agrees_with_a_controller_that_fences_in_any_order(
    partition: TopicPartitionReplicas, lost: set[int], min_in_sync: int
) -> None:
    settings = TopicRules(min_in_sync)
    found = forecast(cluster(partition, FIVE), ClusterRules({"flights": settings}), lost).partitions
    for order in itertools.islice(itertools.permutations(sorted(lost)), 24):
        controller = Controller(partition, settings)
        for broker in order:
            controller.fence(broker)
        now = TopicPartitionReplicas(controller.leader, 2, partition.replicas, tuple(controller.in_sync), ())
        happened = observe(partition, now, controller.live, settings, answers=controller.leader >= 0)
        if not found:
            assert lost.isdisjoint(partition.replicas)
            continue
        assert found[0].effect is happened
        # Which of several in-sync replicas leads may depend on the order in which brokers end.
        if len(lost) == 1 and happened is not OutageEffect.OFFLINE:
            assert found[0].leader == controller.leader


@given(partitions(), st.sampled_from(FIVE), st.integers(1, 3))
def test_forecast_of_one_lost_broker_agrees_where_unclean_elections_are_allowed(
    partition: TopicPartitionReplicas, lost: int, min_in_sync: int
) -> None:
    settings = TopicRules(min_in_sync, allows_unclean_election=True)
    found = forecast(cluster(partition, FIVE), ClusterRules({"flights": settings}), {lost}).partitions
    controller = Controller(partition, settings)
    controller.fence(lost)
    if found:
        assert (found[0].leader, found[0].effect is OutageEffect.UNCLEAN) == (controller.leader, controller.was_unclean)


@given(partitions(), st.sets(st.sampled_from(FIVE)), st.sampled_from(FIVE))
def test_losing_more_brokers_never_harms_less(partition: TopicPartitionReplicas, lost: set[int], one_more: int) -> None:
    rules = ClusterRules({"flights": TopicRules(2)})
    few = forecast(cluster(partition, FIVE), rules, lost).partitions
    more = forecast(cluster(partition, FIVE), rules, lost | {one_more}).partitions
    if few:
        assert more[0].effect >= few[0].effect
