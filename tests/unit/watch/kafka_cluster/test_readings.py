"""What is read of a cluster, from answers of Kafka's protocol in memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from waybill.base.errors import ConfigError, KafkaUnavailable
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import Broker, ClusterState, TopicPartitionReplicas
from waybill.watch.incidents.failures import Failures
from waybill.watch.kafka_cluster import readings
from waybill.watch.kafka_cluster.readings import GroupReading, SlowReadings, WantedReadings

TP = TopicPartition("flights", 0)
STATE = ClusterState(
    "c",
    1,
    {node: Broker(node, "h", 1, None) for node in (1, 2)},
    {TP: TopicPartitionReplicas(1, 1, (1, 2), (1, 2), ())},
)
REFUSED = kafka_errors.GroupAuthorizationFailedError


class FakeCluster:
    """Two brokers with consumer groups. `offsets`: by group, its committed offset of `flights/0`, or an error."""

    def __init__(self, listed: dict[int, dict[str, str] | type[Exception]], offsets: dict[str, Any]) -> None:
        self.listed, self.offsets = listed, offsets

    def attempts(self, action: str, _: float | None = None) -> Iterator[None]:
        yield
        raise KafkaUnavailable(action)

    def translate(self, action: str, error: BaseException, *_: Any) -> Exception:
        return ConfigError(f"{action}: {error}")

    def send(self, node_id: int | None, request: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self._answer(node_id, request))
        except kafka_errors.KafkaError as error:
            future.set_exception(error)
        return future

    def wait(self, future: Future[Any], _: float | None = None) -> Any:
        return future.result()

    def _answer(self, node_id: int | None, request: Any) -> Any:
        match request:
            case ListGroupsRequest():
                listed = self.listed[node_id or 0]
                if isinstance(listed, type):
                    raise listed()
                group = ListGroupsResponse.ListedGroup
                groups = [group(group_id=name, group_state=state) for name, state in listed.items()]
                return ListGroupsResponse(error_code=0, groups=groups)
            case FindCoordinatorRequest():
                offset = self.offsets.get(request.key)
                code = offset.errno if isinstance(offset, type) else 0
                return FindCoordinatorResponse(error_code=code, node_id=1, error_message="")
            case OffsetFetchRequest():
                topic = OffsetFetchResponse.OffsetFetchResponseTopic
                offset = self.offsets.get(request.group_id, -1)
                partition = topic.OffsetFetchResponsePartition(partition_index=0, committed_offset=offset, error_code=0)
                return OffsetFetchResponse(error_code=0, topics=[topic(name="flights", partitions=[partition])])
        raise AssertionError(request)


class FakeSource:
    """Log ends and largest timestamps."""

    def __init__(self, ends: dict[TopicPartition, int], newest: dict[TopicPartition, tuple[int, int]]) -> None:
        self.ends, self.newest = ends, newest

    def sharing(self, *_: Any) -> FakeSource:
        return self

    def ends_briefly(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.ends[tp] for tp in tps if tp in self.ends}

    def newest_timestamps_briefly(self, tps: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return {tp: self.newest[tp] for tp in tps if tp in self.newest}


def read_groups(
    monkeypatch: pytest.MonkeyPatch,
    cluster: FakeCluster,
    *,
    patterns: tuple[str, ...],
    known: tuple[str, ...] = (),
    ends: dict[TopicPartition, int] | None = None,
) -> tuple[readings.Groups, list[str]]:
    monkeypatch.setattr(readings, "KafkaSource", FakeSource({TP: 100} if ends is None else ends, {}))
    missing: list[str] = []
    wanted = WantedReadings(groups=patterns, known_groups=known)
    return readings._read_groups(cluster, STATE, wanted, missing, Failures()), missing  # type: ignore[arg-type]


def test_listed_group_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({1: {"app-1": "Stable", "other": "Empty"}, 2: {}}, {"app-1": 90})
    found, missing = read_groups(monkeypatch, cluster, patterns=("app-.*",))
    assert (found.read, found.unread, missing) == ({"app-1": GroupReading("Stable", 90, 10)}, {}, [])
    partly, _ = read_groups(monkeypatch, cluster, patterns=("app-.*",), ends={})
    assert partly.read == {"app-1": GroupReading("Stable", 90, 0, unread_ends=1)}


def test_group_that_is_hidden_is_asked_for_by_name_and_its_acl_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({1: {}, 2: {}}, {"app-1": REFUSED, "app.x": REFUSED})
    found, missing = read_groups(monkeypatch, cluster, patterns=("app-.*", r"app\.x"), known=("app-1",))
    assert found.read == {}
    assert found.unread.keys() == {"app-1", "app.x"}
    assert missing == ["Describe on group 'app-1'", "Describe on group 'app.x'"]


def test_group_of_a_broker_that_does_not_answer_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    away = kafka_errors.KafkaTimeoutError
    gone = FakeCluster({1: {}, 2: away}, {})
    found, _ = read_groups(monkeypatch, gone, patterns=("app-.*",), known=("app-1",))
    assert found.unread == {"app-1": "broker 2 did not list its groups"}
    no_coordinator = FakeCluster({1: {}, 2: away}, {"app-1": kafka_errors.CoordinatorNotAvailableError})
    found, _ = read_groups(monkeypatch, no_coordinator, patterns=("app-.*",), known=("app-1",))
    assert found.unread.keys() == {"app-1"}
    moved = FakeCluster({1: {}, 2: away}, {"app-1": 90})
    found, _ = read_groups(monkeypatch, moved, patterns=("app-.*",), known=("app-1",))
    assert found.read == {"app-1": GroupReading("", 90, 10)}


def test_group_that_kafka_has_no_more_is_forgotten_unless_the_config_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({1: {}, 2: {}}, {})
    found, _ = read_groups(monkeypatch, cluster, patterns=("app-.*", "named"), known=("app-1",))
    assert found.read == {}
    assert found.unread == {"named": "the group does not exist: it has no consumers and no committed offsets"}


def test_timestamp_ahead_counts_while_new_messages_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowReadings()

    def read(end: int | None, newest: tuple[int, int], now_ms: int) -> dict[TopicPartition, int]:
        nonlocal slow
        source = FakeSource({} if end is None else {TP: end}, {} if end is None else {TP: newest})
        monkeypatch.setattr(readings, "KafkaSource", source)
        ends, ahead_ms = readings._read_times(None, {TP: True}, slow, now_ms)  # type: ignore[arg-type]
        slow = SlowReadings(now_ms, log_ends=ends, ahead_ms=ahead_ms)
        return ahead_ms

    assert read(10, (9, 500), 1_000) == {}, "an old message is no fault"
    assert read(20, (15, 9_000), 2_000) == {TP: 7_000}
    assert read(20, (15, 9_000), 3_000) == {TP: 7_000}, "nothing came since, so nothing is known to be better"
    assert read(None, (0, 0), 4_000) == {TP: 7_000}, "its leader did not answer"
    assert read(25, (22, 9_900), 5_000) == {TP: 4_900}
    assert read(30, (22, 9_900), 6_000) == {}, "newer messages have correct times"


def test_topic_that_one_broker_lacks_is_taken_from_another() -> None:
    lacks, knows = replace(STATE, partitions={}), replace(STATE, topic_ids={"flights": "id"})
    refuses = replace(lacks, refused=frozenset({"hidden"}))
    found = readings._with_unlisted(lacks, [lacks, knows, refuses])
    assert (found.topic_ids, found.partitions.keys(), found.refused) == ({"flights": "id"}, {TP}, {"hidden"})


def typed_cluster(types: dict[str, str], offsets: dict[str, Any]) -> FakeCluster:
    """Return a cluster whose brokers tell the types of groups (Kafka 3.8 and later)."""

    class TypedCluster(FakeCluster):
        def _answer(self, node_id: int | None, request: Any) -> Any:
            if isinstance(request, ListGroupsRequest):
                group = ListGroupsResponse.ListedGroup
                listed = types if node_id == 1 else {}
                groups = [
                    group(group_id=name, group_state="Stable", group_type=kind, version=5)
                    for name, kind in listed.items()
                ]
                return ListGroupsResponse(error_code=0, groups=groups, version=5)
            return super()._answer(node_id, request)

    return TypedCluster({1: {}, 2: {}}, offsets)


def test_groups_whose_offsets_kafka_does_not_tell_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """V6: a share group with a backlog was kept with lag 0, since OffsetFetch answers with an empty list."""
    types = {
        "app-share": "share",
        "app-new": "consumer",
        "app-old": "classic",
        "app-streams": "streams",
        "app-x": "odd",
    }
    offsets = {"app-new": 90, "app-old": 95, "app-streams": 80}
    found, _ = read_groups(monkeypatch, typed_cluster(types, offsets), patterns=("app-.*",))
    assert {name: each.lag for name, each in found.read.items()} == {"app-new": 10, "app-old": 5, "app-streams": 20}
    assert found.unread.keys() == {"app-share", "app-x"}
    assert found.unread["app-share"].startswith("not measured: it is a share group")
    assert "type 'odd'" in found.unread["app-x"]


def test_a_group_without_committed_offsets_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = read_groups(monkeypatch, typed_cluster({"app-1": "classic"}, {}), patterns=("app-.*",))
    assert found.read == {}
    assert found.unread == {"app-1": "not measured: the group, which is Stable, has no committed offsets"}


def test_an_error_in_one_answer_hides_no_other_group(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({1: {"app-1": "Stable", "app-2": "Stable"}, 2: {}}, {"app-1": "no offset", "app-2": 90})
    failures = Failures()
    monkeypatch.setattr(readings, "KafkaSource", FakeSource({TP: 100}, {}))
    found = readings._read_groups(cluster, STATE, WantedReadings(groups=("app-.*",)), [], failures)  # type: ignore[arg-type]
    assert found.read == {"app-2": GroupReading("Stable", 90, 10)}
    assert "consumer group 'app-1': unexpected" in found.unread["app-1"]
    assert len(failures.texts) == 1


@pytest.mark.parametrize(
    ("committed_before", "lag"), [(98, 0), (97, 2), (None, 2)], ids=["idle", "at work", "first watch"]
)
def test_markers_before_an_idle_group_are_no_messages(
    monkeypatch: pytest.MonkeyPatch, committed_before: int | None, lag: int
) -> None:
    """V5: a transactional consumer that has read everything stands one before the end, at the marker."""
    monkeypatch.setattr(readings, "KafkaSource", FakeSource({TP: 100}, {}))
    monkeypatch.setattr(readings, "count_waiting", lambda *_: 0)
    wanted = WantedReadings(groups=("app",), committed={} if committed_before is None else {"app": committed_before})
    cluster = FakeCluster({1: {"app": "Stable"}, 2: {}}, {"app": 98})
    found = readings._read_groups(cluster, STATE, wanted, [], Failures())  # type: ignore[arg-type]
    assert found.read["app"].lag == lag


def test_offsets_that_cannot_be_read_count_as_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise ConfigError("no ACL Read")

    monkeypatch.setattr(readings, "KafkaSource", FakeSource({TP: 100}, {}))
    monkeypatch.setattr(readings, "count_waiting", refuse)
    cluster = FakeCluster({1: {"app": "Stable"}, 2: {}}, {"app": 98})
    wanted = WantedReadings(groups=("app",), committed={"app": 98})
    found = readings._read_groups(cluster, STATE, wanted, [], Failures())  # type: ignore[arg-type]
    assert found.read["app"].lag == 2
