"""A throttle of copies: only what Waybill set is changed and removed, also by another process after a crash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.base.errors import ConfigError
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import Broker, ClusterState, TopicPartitionReplicas
from waybill.services.kafka.topic_changes import Resource
from waybill.watch.kafka_cluster import throttle
from waybill.watch.kafka_cluster.throttle import Throttle, throttled_topics
from waybill.watch.kafka_cluster.topics_plan import ReplicaMove

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER, FOLLOWER = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
MOVES = [ReplicaMove(TopicPartition("t", 0), (1,), (1, 2), None)]


class FakeKafka:
    """Configs of topics and brokers. Brokers 1 to 3 are alive; `ends_after` changes, the process ends."""

    def __init__(self) -> None:
        self.configs: dict[tuple[Resource, str], dict[str, str]] = {}
        self.alive = {1, 2, 3}
        self.ends_after: int | None = None

    def change(self, _: Any, kind: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        if self.ends_after is not None:
            if self.ends_after == 0:
                raise KeyboardInterrupt
            self.ends_after -= 1
        found = self.configs.setdefault((kind, name), {})
        for key, value in changes.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value

    def rates(self, node_id: int) -> dict[str, str]:
        return dict(self.configs.get((Resource.BROKER, str(node_id)), {}))

    def of_topic(self, topic: str = "t") -> dict[str, str]:
        return dict(self.configs.get((Resource.TOPIC, topic), {}))

    def state(self, _: Any, topics: Iterable[str]) -> ClusterState:
        partitions = {TopicPartition(topic, 0): TopicPartitionReplicas(1, 0, (1,), (1,), ()) for topic in topics}
        return ClusterState("c", 1, {node: Broker(node, "h", 1, None) for node in self.alive}, partitions)


class MemoryStore:
    """The operations of `Store` that records of throttles need."""

    prefix = ""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def keys(self, prefix: str) -> Iterator[str]:
        return iter([key for key in self.objects if key.startswith(prefix)])

    def read_if_exists(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def create_or_read_existing(self, key: str, data: bytes) -> bytes | None:
        existing = self.objects.get(key)
        self.objects.setdefault(key, data)
        return existing

    def remove(self, key: str) -> None:
        self.objects.pop(key, None)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    fake = FakeKafka()
    monkeypatch.setattr(throttle, "change_configs", fake.change)
    monkeypatch.setattr(throttle, "fetch_cluster_state", fake.state)
    monkeypatch.setattr(throttle, "fetch_own_configs", lambda _, topics: {each: fake.of_topic(each) for each in topics})
    monkeypatch.setattr(throttle, "fetch_broker_configs", lambda _, ids, __: {each: fake.rates(each) for each in ids})
    return fake


@pytest.fixture
def store() -> Any:
    return MemoryStore()


def both(rate: int) -> dict[str, str]:
    return {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}


def make(store: Any, rate: int | None, lines: list[str] | None = None) -> Throttle:
    cluster: Any = SimpleNamespace()
    return Throttle(cluster, store, rate, (lines if lines is not None else []).append)


def test_throttle_is_set_for_the_copied_replicas_and_removed(kafka: FakeKafka, store: Any) -> None:
    make(store, 5).limit("t", MOVES)
    assert kafka.of_topic() == {LEADER: "0:1", FOLLOWER: "0:2"}
    assert [kafka.rates(node) for node in (1, 2, 3)] == [both(5), both(5), {}]
    assert throttled_topics(store) == {"t"}
    make(store, 5).remove("t")
    assert (kafka.of_topic(), kafka.rates(1), kafka.rates(2), store.objects) == ({}, {}, {}, {})


def test_rate_of_an_operator_stays(kafka: FakeKafka, store: Any) -> None:
    kafka.configs[Resource.BROKER, "1"] = {LEADER_RATE: "9"}
    kafka.configs[Resource.BROKER, "3"] = both(5)
    lines: list[str] = []
    make(store, 5, lines).limit("t", MOVES)
    assert "broker 1 keeps the throttle" in lines[0]
    kafka.configs[Resource.BROKER, "2"] = both(7)  # an operator changes it while the copies run
    make(store, 5).remove("t")
    assert [kafka.rates(node) for node in (1, 2, 3)] == [{LEADER_RATE: "9"}, both(7), both(5)]
    assert store.objects == {}


def test_throttle_of_a_topic_that_waybill_did_not_set_is_refused(kafka: FakeKafka, store: Any) -> None:
    kafka.configs[Resource.TOPIC, "t"] = {LEADER: "*"}
    with pytest.raises(ConfigError, match="which Waybill did not set"):
        make(store, 5).limit("t", MOVES)
    make(store, None).limit("t", MOVES)
    make(store, 5).adjust("t")
    make(store, 5).remove("t")
    assert kafka.of_topic() == {LEADER: "*"}


def limit_and_remove(made: Throttle) -> None:
    made.limit("t", MOVES)
    made.remove("t")


@pytest.mark.parametrize("changes", range(6))
def test_next_process_removes_what_a_killed_one_has_set(kafka: FakeKafka, store: Any, changes: int) -> None:
    kafka.ends_after = changes
    with pytest.raises(KeyboardInterrupt):
        limit_and_remove(make(store, 5))
    kafka.ends_after = None
    assert throttled_topics(store) == {"t"}
    make(store, 8).remove("t")
    assert (kafka.of_topic(), kafka.rates(1), kafka.rates(2), store.objects) == ({}, {}, {}, {})


@pytest.mark.parametrize("changes", [0, 1, 2])
def test_copies_under_way_get_the_new_rate(kafka: FakeKafka, store: Any, changes: int) -> None:
    make(store, 5).limit("t", MOVES)
    kafka.ends_after = changes
    if changes < 2:
        with pytest.raises(KeyboardInterrupt):
            make(store, 8).adjust("t")
    kafka.ends_after = None
    make(store, 8).adjust("t")
    assert [kafka.rates(node) for node in (1, 2)] == [both(8), both(8)]
    make(store, 9).remove("t")
    assert [kafka.rates(node) for node in (1, 2)] == [{}, {}]
    make(store, 5).limit("t", MOVES)
    make(store, None).adjust("t")
    assert (kafka.rates(1), kafka.of_topic()) == ({}, {})


def test_rate_that_copies_of_another_topic_need_stays(kafka: FakeKafka, store: Any) -> None:
    make(store, 5).limit("t", MOVES)
    make(store, 6).limit("u", [ReplicaMove(TopicPartition("u", 0), (2,), (2, 3), None)])
    make(store, 5).remove("t")
    assert [kafka.rates(node) for node in (1, 2, 3)] == [{}, both(6), both(6)]
    make(store, 5).remove("u")
    assert [kafka.rates(node) for node in (1, 2, 3)] == [{}, {}, {}]


def test_broker_that_does_not_answer_is_named(kafka: FakeKafka, store: Any) -> None:
    make(store, 5).limit("t", MOVES)
    kafka.alive.remove(2)
    lines: list[str] = []
    make(store, 5, lines).remove("t")
    assert "broker 2 does not answer, and keeps its throttle" in lines[0]
    assert (kafka.rates(1), kafka.of_topic(), store.objects) == ({}, {}, {})
