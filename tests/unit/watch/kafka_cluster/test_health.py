"""The promises about the Kafka cluster: each finding, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models.kafka_promises import KafkaPromiseName, KafkaPromises
from waybill.config.models.kafka_topics import DeclaredTopic
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import Broker, ClusterState, TopicPartitionReplicas
from waybill.services.kafka.controllers import Quorum
from waybill.services.kafka.log_directories import LogDirectory
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.kafka_cluster import health
from waybill.watch.kafka_cluster.group_health import follow_commits
from waybill.watch.kafka_cluster.health import Seen, Subjects, health_findings, unknown_findings
from waybill.watch.kafka_cluster.isr_history import IsrHistory, ReplicaState, classify
from waybill.watch.kafka_cluster.quorum_health import follow_quorum
from waybill.watch.kafka_cluster.readings import GroupReading, Groups, Readings, SlowReadings
from waybill.watch.kafka_cluster.what_if import TopicRules
from waybill.watch.promises.kafka_figures import KafkaMemory
from waybill.watch.promises.status import BrokerStatus
from waybill.watch.promises.status_build import broker_statuses

NOW_MS = 1_800_000_000_000
MINUTE = 60_000
BROKERS = {node: Broker(node, f"b{node}", 9092, f"rack-{node}") for node in (1, 2, 3)}


def partition(replicas: list[int], in_sync: list[int], leader: int | None = None) -> TopicPartitionReplicas:
    leading = (in_sync[0] if in_sync else -1) if leader is None else leader
    return TopicPartitionReplicas(leading, 1, tuple(replicas), tuple(in_sync), ())


def cluster(partitions: Mapping[str, TopicPartitionReplicas], live: tuple[int, ...] = (1, 2, 3)) -> ClusterState:
    tps = {TopicPartition.parse(name): each for name, each in partitions.items()}
    brokers = {node: BROKERS[node] for node in live}
    return ClusterState("c", 1, brokers, tps, {tp.topic: "id" for tp in tps})


SOUND = cluster({"flights/0": partition([1, 2, 3], [1, 2, 3]), "flights/1": partition([2, 3, 1], [2, 3, 1])})


def findings(
    state: ClusterState = SOUND,
    *,
    promises: dict[str, Any] | None = None,
    rules: Mapping[str, TopicRules] | None = None,
    declared: Mapping[str, DeclaredTopic] | None = None,
    listed: tuple[str, ...] = ("flights",),
    history: IsrHistory | None = None,
    commits: Mapping[str, tuple[int, int]] | None = None,
    slow: Mapping[str, Any] | None = None,
    quorum_troubles: Mapping[str, int] | None = None,
    **readings: Any,
) -> dict[str, Finding]:
    """Return the findings about a cluster, by promise."""
    known = {"flights": TopicRules(min_in_sync=2)} if rules is None else rules
    disks = tuple(LogDirectory(node, "/data", "", 100, 50) for node in BROKERS)
    read = SlowReadings(NOW_MS, known, **{"directories": disks, **(slow or {})})
    given_readings = Readings(state, read, **{"quorum": Quorum(1, dict.fromkeys((1, 2, 3), NOW_MS)), **readings})
    subjects = Subjects(
        KafkaPromises.model_validate(promises or {}), declared or {}, {"s": listed.__contains__}, {"s": listed}
    )
    troubles = {} if quorum_troubles is None else quorum_troubles
    followed = IsrHistory().followed(classify(state, known), NOW_MS) if history is None else history
    seen = Seen(
        followed, commits or {}, follow_quorum(troubles, given_readings.quorum, given_readings.quorum_error, NOW_MS)
    )
    found = health_findings(subjects, given_readings, seen, NOW_MS)
    return {each.promise.removeprefix("kafka_"): each for each in found}


def broken(found: Mapping[str, Finding]) -> set[str]:
    return {name for name, each in found.items() if each.verdict is Verdict.BROKEN}


def test_sound_cluster_breaks_no_promise() -> None:
    found = findings()
    assert broken(found) == set()
    assert {each.verdict for each in found.values()} == {Verdict.KEPT}
    assert "unmatched_topics" not in found, "it is off by default"


# --- replicas ---


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (partition([1, 2, 3], [], -1), {ReplicaState.OFFLINE}),
        (partition([1, 2, 3], [1, 2]), {ReplicaState.UNDER_REPLICATED}),
        (
            partition([1, 2, 3], [1]),
            {ReplicaState.UNDER_REPLICATED, ReplicaState.UNDER_MIN_ISR, ReplicaState.SINGLE_IN_SYNC},
        ),
        (partition([1], [1]), set()),
        (partition([1, 2, 3], [1, 2, 3]), set()),
    ],
)
def test_state_of_a_topic_partition_follows_from_its_replicas(
    state: TopicPartitionReplicas, expected: set[ReplicaState]
) -> None:
    found = classify(cluster({"flights/0": state}), {"flights": TopicRules(min_in_sync=2)})
    assert {name for name, tps in found.items() if tps} == expected


def test_short_shrink_is_history_and_a_long_one_is_an_alert() -> None:
    state = cluster({"flights/0": partition([1, 2, 3], [1, 2])})
    rules = {"flights": TopicRules(min_in_sync=2)}
    history = IsrHistory().followed(classify(state, rules), NOW_MS - 4 * MINUTE)
    assert broken(findings(state, history=history.followed(classify(state, rules), NOW_MS))) == set()
    old = IsrHistory().followed(classify(state, rules), NOW_MS - 6 * MINUTE)
    found = findings(state, history=old.followed(classify(state, rules), NOW_MS))
    assert broken(found) == {"under_replicated"}
    assert found["under_replicated"].since_ms == NOW_MS - 6 * MINUTE
    assert "broker 3; streams: s" in found["under_replicated"].detail
    (episode,) = history.followed(classify(SOUND, rules), NOW_MS).ended
    assert (episode.topic, episode.partitions, episode.until_ms - episode.since_ms) == ("flights", 1, 4 * MINUTE)


def test_offline_and_under_min_isr_are_alerts_at_once() -> None:
    offline = cluster({"flights/0": partition([1], [], -1)}, live=(2, 3))
    assert broken(findings(offline)) == {"offline_partitions"}
    state = cluster({"flights/0": partition([1, 2, 3], [1])}, live=(1,))
    assert broken(findings(state)) == {"under_min_isr"}


replica_sets = st.lists(st.sampled_from([1, 2, 3]), unique=True)


@given(
    st.lists(
        st.dictionaries(st.integers(0, 3), st.tuples(replica_sets.filter(bool), replica_sets), max_size=4), max_size=12
    )
)
def test_history_dates_each_state_from_its_first_watch(watches: list[dict[int, tuple[list[int], list[int]]]]) -> None:
    """Against a model that looks at all watches again each time."""
    history, seen = IsrHistory(), list[dict[ReplicaState, set[TopicPartition]]]()
    for number, partitions in enumerate(watches):
        state = cluster(
            {
                f"flights/{n}": partition(replicas, [r for r in replicas if r in live])
                for n, (replicas, live) in partitions.items()
            }
        )
        found = classify(state, {"flights": TopicRules(min_in_sync=2)})
        seen.append({name: set(tps) for name, tps in found.items()})
        history = IsrHistory.parse(history.followed(found, number * MINUTE).document())
        for name in ReplicaState:
            expected = {}
            for tp in seen[-1][name]:
                first = number
                while first and tp in seen[first - 1][name]:
                    first -= 1
                expected[tp] = first * MINUTE
            assert history.open[name] == expected


# --- topics, brokers, groups ---


def test_skew_names_the_broker_or_rack_with_the_most() -> None:
    uneven = cluster({f"flights/{n}": partition([1], [1]) for n in range(40)})
    found = findings(uneven)
    assert {"leader_skew", "replica_skew"} <= broken(found)
    assert found["leader_skew"].value == pytest.approx(3.0)
    assert "has the most" in found["leader_skew"].detail
    assert "leader_skew" not in broken(findings(cluster({f"flights/{n}": partition([1], [1]) for n in range(9)})))


def test_skew_recommends_a_plan_only_where_a_plan_does_something() -> None:
    uneven = cluster({f"flights/{n}": partition([1], [1]) for n in range(40)})
    declared = {"flights": DeclaredTopic.model_validate({"partitions": 40})}
    assert findings(uneven)["leader_skew"].command == "waybill kafka health"
    assert findings(uneven, declared=declared)["leader_skew"].command == "waybill kafka plan"
    assert findings(uneven, declared=declared)["replica_skew"].command == "waybill kafka health"


def test_detail_names_the_first_and_names_has_all() -> None:
    state = cluster({f"flights/{n}": partition([n % 3 + 1], [], -1) for n in range(5)})
    found = findings(state)["offline_partitions"]
    assert "flights/2 and 2 more" in found.detail
    assert found.names == tuple(f"flights/{n}" for n in range(5))


def test_topic_below_what_is_declared_is_named() -> None:
    written = {"partitions": 2, "replication_factor": 3, "min_insync_replicas": 2}
    declared = {"flights": DeclaredTopic.model_validate(written)}
    assert broken(findings(declared=declared)) == set()
    few = cluster({"flights/0": partition([1, 2], [1, 2])})
    assert "flights has 2 replicas, and 3" in findings(few, declared=declared)["below_declared"].detail
    low = findings(declared=declared, rules={"flights": TopicRules(min_in_sync=1)})["below_declared"]
    assert "min.insync.replicas 1" in low.detail
    defaults = {"flights": DeclaredTopic.model_validate({"partitions": 2})}
    assert broken(findings(few, declared=defaults, rules={"flights": TopicRules(min_in_sync=1)})) == set()
    absent = findings(declared={**declared, "orders": declared["flights"]})["below_declared"]
    assert (absent.verdict, absent.detail) == (Verdict.BROKEN, "orders does not exist")


def test_what_the_user_may_not_describe_is_unknown_and_not_kept() -> None:
    written = {"partitions": 2, "replication_factor": 3, "min_insync_replicas": 2}
    declared = {"flights": DeclaredTopic.model_validate(written)}
    reduced = cluster({"flights/0": partition([1, 2, 3], [1, 2])})
    found = findings(reduced, rules={}, declared=declared)
    for name in ("below_declared", "unclean_election", "under_min_isr"):
        assert (found[name].verdict, "flights" in found[name].detail) == (Verdict.UNKNOWN, True), name
    assert findings(rules={})["under_min_isr"].verdict is Verdict.KEPT, "all replicas are in sync"


def test_hidden_topic_is_not_reported_as_missing() -> None:
    state = replace(cluster({"other/0": partition([1], [1])}), refused=frozenset({"flights"}))
    declared = {"flights": DeclaredTopic.model_validate({"partitions": 2})}
    found = findings(state, declared=declared)
    assert found["missing_topics"].verdict is found["below_declared"].verdict is Verdict.UNKNOWN
    assert "may not describe topic flights" in found["missing_topics"].detail


def test_unclean_election_counts_for_topics_of_streams_unless_declared() -> None:
    unclean = {"flights": TopicRules(2, True), "other": TopicRules(2, True)}
    assert findings(rules=unclean)["unclean_election"].detail == "flights"
    declared = {"flights": DeclaredTopic.model_validate({"partitions": 2, "unclean_leader_election": True})}
    assert "unclean_election" not in broken(findings(rules=unclean, declared=declared))


def test_lagging_and_missing_controllers() -> None:
    late = Quorum(1, {1: NOW_MS, 2: NOW_MS - 31_000, 3: NOW_MS - 29_000})
    found = findings(quorum=late)["controllers"]
    assert (found.verdict, "controller 2 of 3" in found.detail) == (Verdict.BROKEN, True)
    kept = findings(quorum=None)["controllers"]
    assert (kept.verdict, kept.figure) == (Verdict.KEPT, "ZooKeeper elects")
    assert findings(quorum=None, quorum_hidden=True)["controllers"].verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("readings", "key", "words"),
    [
        ({"quorum": Quorum(1, {1: NOW_MS, 2: -1, 3: NOW_MS})}, "2", "controller 2 of 3"),
        ({"quorum": None, "quorum_error": "no answer"}, "", "no controller leads the quorum"),
    ],
)
def test_failover_of_controllers_is_no_alert_before_the_limit(readings: dict[str, Any], key: str, words: str) -> None:
    first = findings(**readings)["controllers"]
    assert first.verdict is Verdict.UNKNOWN, "so an open incident stays, and none is opened"
    at_limit = findings(quorum_troubles={key: NOW_MS - 30_000}, **readings)["controllers"]
    assert at_limit.verdict is Verdict.UNKNOWN
    later = findings(quorum_troubles={key: NOW_MS - 31_000}, **readings)["controllers"]
    assert (later.verdict, later.since_ms, words in later.detail) == (Verdict.BROKEN, NOW_MS - 31_000, True)


def test_trouble_of_controllers_is_dated_by_the_first_watch_that_saw_it() -> None:
    unknown = Quorum(1, {1: 5, 2: -1})
    troubles = follow_quorum({}, unknown, "", 10)
    assert troubles == {"2": 10}
    troubles = follow_quorum(troubles, None, "no answer", 20)
    assert troubles == {"2": 10, "": 20}
    assert follow_quorum(troubles, unknown, "", 30) == {"2": 10}
    assert follow_quorum(troubles, Quorum(1, {1: 5, 2: 5}), "", 30) == {}


def test_full_and_failed_disks() -> None:
    full = LogDirectory(2, "/data", "", 100, 14)
    assert findings(slow={"directories": (full,)})["disk_used"].detail == "broker 2, /data"
    failed = replace(full, usable_bytes=90, error="KafkaStorageError")
    assert "cannot use /data" in findings(slow={"directories": (failed,)})["disk_used"].detail


def test_disks_that_are_not_known_are_unknown() -> None:
    """So the incident about a full disk stays open when the disk stops its broker."""
    directories = tuple(LogDirectory(node, "/data", "", 100, 50) for node in (1, 3))
    state = cluster({"flights/0": partition([1, 2, 3], [1, 3])}, live=(1, 3))
    found = findings(state, slow={"directories": directories})["disk_used"]
    assert (found.verdict, found.detail) == (Verdict.UNKNOWN, "the disks of broker 2 are not known")
    assert findings(slow={"directories": ()})["disk_used"].verdict is Verdict.UNKNOWN, "the ACL is missing"
    sizeless = tuple(LogDirectory(node, "/data", "", -1, -1) for node in BROKERS)
    assert findings(slow={"directories": sizeless})["disk_used"].verdict is Verdict.UNKNOWN


def test_clock_ahead_is_a_fault_and_old_messages_are_not() -> None:
    tp = TopicPartition("flights", 0)
    assert "clock_skew" in broken(findings(slow={"ahead_ms": {tp: 11 * MINUTE}}))
    assert findings(slow={"ahead_ms": {tp: 9 * MINUTE}})["clock_skew"].figure == "9 min ahead"
    assert findings(slow={"is_without_times": True})["clock_skew"].verdict is Verdict.UNKNOWN


def test_unmatched_and_missing_topics() -> None:
    state = cluster({"other/0": partition([1], [1]), "tmp-1/0": partition([1], [1])})
    promises = {"unmatched_topics": {"severity": "warning", "ignore": ["tmp-.*"]}}
    found = findings(state, promises=promises)
    assert found["unmatched_topics"].detail == "other"
    assert found["missing_topics"].detail == "s: topic flights"


def test_missing_acls_are_named() -> None:
    found = findings(missing_acls=("Describe on the cluster",))
    assert "give Waybill's user: Describe on the cluster" in found["access"].detail


GROUPS = {"groups": {"app-.*": {"limit": 100, "commits_within": "10m"}}}


@pytest.mark.parametrize(
    ("lag", "silent_minutes", "is_broken", "figure"),
    [
        (5, 1, False, "5 messages"),
        (5, 20, True, "5 messages, no commit for 20 min"),
        (0, 20, False, "0 messages"),
        (101, 1, True, "101 messages"),
    ],
)
def test_frozen_lag_is_told_apart_from_a_small_one(lag: int, silent_minutes: int, is_broken: bool, figure: str) -> None:
    group = GroupReading("Stable", 50, lag)
    commits = {"app-1": (50, NOW_MS - silent_minutes * MINUTE)}
    found = findings(promises=GROUPS, groups=Groups({"app-1": group}), commits=commits)["group_lag"]
    assert (found.verdict is Verdict.BROKEN, found.figure, found.subject) == (is_broken, figure, "app-1")


def test_group_that_cannot_be_read_is_unknown_and_keeps_its_date() -> None:
    commits = {"app-1": (50, NOW_MS - 20 * MINUTE)}
    unread = Groups(unread={"app-1": "no coordinator"})
    followed = follow_commits(commits, unread, NOW_MS)
    assert followed == commits
    found = findings(promises=GROUPS, groups=unread, commits=followed)["group_lag"]
    assert (found.verdict, found.subject, found.detail) == (Verdict.UNKNOWN, "app-1", "no coordinator")
    again = Groups({"app-1": GroupReading("Stable", 50, 5)})
    assert follow_commits(followed, again, NOW_MS) == commits, "the clock of a frozen lag was not set back"
    assert follow_commits(commits, Groups(), NOW_MS) == {}, "Kafka has no such group any more"


def test_lag_is_unknown_while_a_log_end_is_unless_what_is_known_breaks_the_promise() -> None:
    partly = GroupReading("Stable", 50, 5, unread_ends=1)
    found = findings(promises=GROUPS, groups=Groups({"app-1": partly}))["group_lag"]
    assert (found.verdict, "1 log" in found.detail) == (Verdict.UNKNOWN, True)
    enough = Groups({"app-1": replace(partly, lag=101)})
    assert findings(promises=GROUPS, groups=enough)["group_lag"].verdict is Verdict.BROKEN


def test_pattern_without_a_group_is_shown() -> None:
    found = findings(promises=GROUPS)["group_lag"]
    assert (found.verdict, found.subject) == (Verdict.UNKNOWN, "app-.*")


def test_everything_is_unknown_when_the_cluster_does_not_answer() -> None:
    promises = KafkaPromises.model_validate(GROUPS)
    found = unknown_findings(promises, {"app-1": (5, 1)})
    assert {each.verdict for each in found} == {Verdict.UNKNOWN}
    assert {each.promise for each in found} == set(KafkaPromiseName) - {KafkaPromiseName.UNMATCHED_TOPICS}


def test_memory_is_read_as_it_was_written_and_damage_is_an_empty_one() -> None:
    state = cluster({"flights/0": partition([1, 2, 3], [1])})
    slow = SlowReadings(
        NOW_MS,
        {"flights": TopicRules(2, True)},
        (LogDirectory(1, "/data", "", 100, 50),),
        {TopicPartition("flights", 0): 7},
        {TopicPartition("flights", 0): MINUTE},
        True,
        ("Describe on the cluster",),
    )
    memory = KafkaMemory(
        IsrHistory().followed(classify(state, {}), NOW_MS), {"app-1": (5, NOW_MS)}, slow, {"": NOW_MS, "2": NOW_MS}
    )
    memory = replace(memory, history=memory.history.followed(classify(SOUND, {}), NOW_MS + MINUTE))
    assert KafkaMemory.parse(memory.content()) == memory
    assert KafkaMemory.parse(b"damaged") == KafkaMemory()


def test_pages_show_brokers_that_are_alive_and_those_that_should_hold_replicas() -> None:
    state = cluster({"flights/0": partition([1, 2], [1]), "flights/1": partition([1, 3], [3, 1])}, live=(1, 3))
    slow = SlowReadings(NOW_MS, {}, (LogDirectory(1, "/a", "", 100, 50), LogDirectory(1, "/b", "", 100, 20)))
    found = broker_statuses(Readings(state, slow, Quorum(1, {1: NOW_MS})))
    assert found == (
        BrokerStatus(1, "rack-1", True, 1, 2, 0, 0.8, True),
        BrokerStatus(2, "", False, 0, 1, 1, None, False),
        BrokerStatus(3, "rack-3", True, 1, 1, 0, None, False),
    )


def test_skew_that_does_not_count_prints_no_limit() -> None:
    """V4: 300 % of an equal share stood beside `at most 150%`, as kept."""
    state = cluster({f"flights/{number}": partition([1, 2, 3], [1, 2, 3]) for number in range(6)})
    found = findings(state)["leader_skew"]
    assert (found.verdict, found.figure) == (Verdict.KEPT, "300% of an equal share")
    assert found.limit == "none below 30 topic-partitions; the cluster has 6"
    many = cluster({f"flights/{number}": partition([1, 2, 3], [1, 2, 3]) for number in range(30)})
    counts = findings(many)["leader_skew"]
    assert (counts.verdict, counts.limit) == (Verdict.BROKEN, "at most 150%")


def test_no_figure_beyond_its_limit_is_shown_as_the_limit() -> None:
    disks = tuple(LogDirectory(node, "/data", "", 1_000_000, 149_000) for node in BROKERS)
    found = findings(slow={"directories": disks})["disk_used"]
    assert (found.verdict, found.figure, found.limit) == (Verdict.BROKEN, "85.1%", "at most 85%")
    ahead = findings(slow={"ahead_ms": {TopicPartition("flights", 0): 600_400}})["clock_skew"]
    assert (ahead.verdict, ahead.figure) == (Verdict.BROKEN, "just over 10 min ahead")


def test_a_promise_that_raises_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Finding:
        raise KeyError("no such broker")

    sound = findings()
    monkeypatch.setattr(health, "_disk_used", fail)
    failures = Failures()
    disks = (LogDirectory(1, "/data", "", 100, 50),)
    readings = Readings(SOUND, SlowReadings(NOW_MS, {}, directories=disks), Quorum(1, {1: NOW_MS}))
    found = health_findings(Subjects(KafkaPromises()), readings, Seen(), NOW_MS, failures)
    assert {each.promise.removeprefix("kafka_") for each in found} >= sound.keys() - {"group_lag"}
    [disk] = [each for each in found if each.promise == KafkaPromiseName.DISK_USED]
    assert disk.verdict is Verdict.UNKNOWN
    assert "promise kafka_disk_used: unexpected KeyError" in disk.detail
    assert failures.texts == [disk.detail]
