"""Where replicas are placed: evenly, on different brokers, in different racks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.services.kafka.cluster_state import Broker
from waybill.watch.kafka_cluster.placement import alternate_racks, complete, has_rack_fault, place


def brokers(*racks: str | None) -> dict[int, Broker]:
    return {node_id: Broker(node_id, "h", 1, rack) for node_id, rack in enumerate(racks)}


def test_scheme_is_that_of_kafka() -> None:
    assert place(brokers(None, None, None), 4, 2) == [(0, 1), (1, 2), (2, 0), (0, 1)]


def test_racks_alternate() -> None:
    assert alternate_racks(brokers("b", "a", "a", "b", "c").values()) == [1, 0, 4, 2, 3]
    assert alternate_racks(brokers("b", None, "a").values()) == [0, 1, 2], "without all racks, none counts"


def test_racks_do_not_count_if_a_broker_has_none() -> None:
    assert place(brokers("a", "a", None), 3, 2) == [(0, 1), (1, 2), (2, 0)]


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 replicas need as many brokers, and there are 2"):
        place(brokers(None, None), 1, 3)


CLUSTERS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 5), st.integers(0, 20))
def test_leaders_and_replicas_are_spread_evenly(count: int, partitions: int, factor: int, start: int) -> None:
    factor = min(factor, count)
    found = place(brokers(*[None] * count), partitions, factor, start=start)
    leaders, replicas = Counter(each[0] for each in found), Counter(node for each in found for node in each)
    assert all(len(set(each)) == factor for each in found)
    assert max(leaders.values()) - min(leaders[node] for node in range(count)) <= 1
    assert max(replicas.values()) - min(replicas[node] for node in range(count)) <= factor


def test_brokers_of_racks_of_different_size_get_about_the_same_number_of_replicas() -> None:
    counts = Counter(node for each in place(brokers(*"bbabaabbab"), 18, 2) for node in each)
    assert max(counts.values()) - min(counts.values()) <= 3, "the plain scheme leaves 5"


@given(CLUSTERS, st.integers(1, 20), st.integers(1, 5))
def test_replicas_are_in_as_many_racks_as_there_are(racks: list[str], partitions: int, factor: int) -> None:
    cluster = brokers(*racks)
    factor = min(factor, len(racks))
    for replicas in place(cluster, partitions, factor):
        assert len(set(replicas)) == factor
        assert len({racks[node] for node in replicas}) == min(factor, len(set(racks)))
        assert not has_rack_fault(replicas, cluster)


@given(CLUSTERS, st.integers(1, 5), st.data())
def test_completed_replicas_keep_the_leader_and_have_no_fault(
    racks: list[str], factor: int, data: st.DataObject
) -> None:
    cluster = brokers(*racks)
    factor = min(factor, len(racks))
    before = tuple(data.draw(st.permutations(range(len(racks))))[: data.draw(st.integers(1, factor))])
    after = complete(before, factor, cluster, Counter())
    assert len(set(after)) == factor
    assert not has_rack_fault(after, cluster)
    assert after[0] == before[0]
    if len(before) == factor and not has_rack_fault(before, cluster):
        assert after == before, "what fits is not moved"


def test_replica_on_a_broker_that_is_away_is_no_rack_fault() -> None:
    assert not has_rack_fault((0, 9), brokers("a", "b"))


def test_least_loaded_broker_gets_the_new_replica() -> None:
    assert complete((0,), 2, brokers(None, None, None), {1: 5, 2: 3}) == (0, 2)
