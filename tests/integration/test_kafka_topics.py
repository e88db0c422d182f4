"""Topics made as declared, on the real cluster, and compared with Kafka's own tools."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archived_stream import ArchivedStream, Ran
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_tools import describe_topic, describe_topics, propose_replicas, run_tool
from typer.testing import CliRunner

from devstack import Stack
from devstack.kafka import BROKER_IDS
from waybill.config.names import TopicPartition, topic_changes_prefix
from waybill.interfaces.cli.app import app
from waybill.services.kafka.cluster_state import Broker, fetch_cluster_state
from waybill.services.kafka.topic_changes import Resource, change_configs, fetch_broker_configs, reassign
from waybill.watch.kafka_cluster.config_changes import differs
from waybill.watch.kafka_cluster.forecast_inputs import connect_cluster
from waybill.watch.kafka_cluster.placement import place

pytestmark = pytest.mark.integration

_SECONDS = 60.0
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


class Declared:
    """A stream, and topics that its config declares."""

    def __init__(self, stack: Stack, stream: ArchivedStream) -> None:
        self.stack, self.stream = stack, stream
        self.topic = stream.topic + "-declared"
        self._text = stream.file.read_text()
        self.admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})

    def declare(self, **fields: Any) -> None:
        """Declare the topic, with 2 partitions of 3 replicas unless `fields` say otherwise."""
        self.declare_topics(
            {self.topic: {"partitions": 2, "replication_factor": 3, "min_insync_replicas": 2, **fields}}
        )

    def declare_topics(self, topics: dict[str, dict[str, Any]]) -> None:
        self.stream.file.write_text(f"{self._text}kafka: {{topics: {json.dumps(topics)}}}\n")

    def create(self, replicas: list[list[int]], **configs: str) -> None:
        new = NewTopic(self.topic, len(replicas), replica_assignment=replicas, config=configs)
        self.admin.create_topics([new])[self.topic].result(timeout=30)

    def plan(self, *options: str) -> dict[str, Any]:
        ran = self.stream.waybill("kafka", "plan", "--json", *options)
        assert ran.code == 0, ran.err
        return ran.document  # type: ignore[no-any-return]

    def describe_plan(self) -> list[str]:
        return [step["step"] for step in self.plan()["steps"]]

    def apply(self, *options: str) -> Ran:
        return self.stream.waybill("kafka", "apply", "--yes", "--json", *options)


@pytest.fixture
def declared(stack: Stack, tmp_path: Path, topic_name: str) -> Iterator[Declared]:
    found = Declared(stack, ArchivedStream(tmp_path, topic_name, partitions=1))
    yield found
    if found.topic in found.admin.list_topics(timeout=30).topics:
        found.admin.delete_topics([found.topic])[found.topic].result(timeout=30)


def throttles(declared: Declared) -> list[Any]:
    """Return what is left of throttles: the configs of brokers and of the topic."""
    with connect_cluster(declared.stream.config) as cluster:
        brokers = [limits for limits in fetch_broker_configs(cluster, BROKER_IDS, _RATES).values() if limits]
    _, configs = describe_topic(declared.stack, declared.topic)
    return brokers + [name for name in configs if "throttled" in name]


def test_topic_is_created_as_declared_changed_and_never_shrunk(declared: Declared) -> None:
    declared.declare(retention="7d", cleanup_policy="compact,delete", configs={"segment.bytes": "1048576"})
    assert [step["step"] for step in declared.plan()["steps"]] == ["create"]
    assert declared.stream.waybill("kafka", "plan", "--check").code == 1
    ran = declared.apply("--by", "ann", "--reason", "a new feed")
    assert ran.code == 0, ran.err
    partitions, configs = describe_topic(declared.stack, declared.topic)
    assert [len(each.replicas) for each in partitions] == [3, 3]
    assert configs["min.insync.replicas"] == "2"
    assert configs["retention.ms"] == "604800000"
    assert configs["unclean.leader.election.enable"] == "false"
    assert configs["segment.bytes"] == "1048576"
    assert "compact" in configs["cleanup.policy"]

    declared.declare(partitions=4, retention="forever", cleanup_policy="compact,delete")
    assert [step["step"] for step in declared.plan()["steps"]] == ["add_partitions", "alter"]
    assert declared.apply().code == 0
    partitions, configs = describe_topic(declared.stack, declared.topic)
    assert (len(partitions), configs["retention.ms"]) == (4, "-1")
    again = declared.apply()
    assert (again.code, again.document["applied"]["steps"]) == (0, []), "a second run does nothing"

    declared.declare(partitions=4, retention="1d", cleanup_policy="compact,delete", min_insync_replicas=1)
    assert declared.describe_plan() == ["alter_with_risk"]
    kept = declared.apply()
    assert (kept.code, [step["step"] for step in kept.document["left"]["steps"]]) == (1, ["alter_with_risk"])
    assert "not done" in kept.err
    assert "Add --allow-loss" in kept.err
    assert declared.apply("--allow-loss").code == 0
    assert declared.describe_plan() == []

    declared.declare(partitions=1, replication_factor=2, min_insync_replicas=1, retention="forever", configs={})
    refused = declared.plan()
    assert [step["step"] for step in refused["steps"]] == ["alter"], "more retention; no key left out is reset"
    reasons = " ".join(each["reason"] for each in refused["refused"])
    assert "Kafka cannot remove any" in reasons
    assert "Waybill removes no replica" in reasons

    with declared.stream.store() as store:
        records = [json.loads(store.read(key)) for key in sorted(store.keys(topic_changes_prefix(store.prefix)))]
    assert (records[0]["by"], records[0]["reason"]) == ("ann", "a new feed")
    assert [step["step"] for step in records[1]["steps"]] == ["add_partitions", "alter"]


def test_replicas_are_added_under_a_throttle_which_is_removed(declared: Declared) -> None:
    declared.create([[1], [2]], **{"min.insync.replicas": "2"})
    declared.stream.topic = declared.topic
    declared.stream.produce_events(2_000)
    declared.declare()
    operators = dict.fromkeys(_RATES, "104857600")
    with connect_cluster(declared.stream.config) as cluster:
        change_configs(cluster, Resource.BROKER, str(BROKER_IDS[-1]), operators)
    (step,) = declared.plan()["steps"]
    assert (step["step"], [move["before"] for move in step["moves"]]) == ("reassign", [[1], [2]])
    assert step["bytes"] > 100_000
    ran = declared.apply("--throttle", "20MiB")
    left = throttles(declared)
    with connect_cluster(declared.stream.config) as cluster:
        change_configs(cluster, Resource.BROKER, str(BROKER_IDS[-1]), dict.fromkeys(_RATES))
    assert ran.code == 0, ran.err
    assert left == [operators], "the rate that an operator set stays"
    partitions, _ = describe_topic(declared.stack, declared.topic)
    assert [len(each.in_sync) for each in partitions] == [3, 3]
    moves = [{"topic": declared.topic, "partition": n, "replicas": list(p.replicas)} for n, p in enumerate(partitions)]
    file = declared.stream.file.with_name("moves.json")
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    tool = run_tool(
        declared.stack, "reassign.ReassignPartitionsCommand", "--verify", "--reassignment-json-file", str(file)
    )
    assert tool.count("is completed") == 2


def test_nothing_is_copied_or_added_without_consent(declared: Declared, monkeypatch: pytest.MonkeyPatch) -> None:
    declared.create([[1], [2]], **{"min.insync.replicas": "2"})
    declared.declare(partitions=3)
    monkeypatch.setenv("WAYBILL_CONFIG", str(declared.stream.file))
    ran = CliRunner().invoke(app, ["kafka", "apply", "--json"], input="n\n")
    assert ran.exit_code == 1
    assert "copy" not in ran.stdout
    assert "copy 2 topic-partitions" in ran.stderr, "what is asked for is shown"
    assert "Copy this data between brokers; add these topic-partitions, which cannot be undone?" in ran.stderr
    partitions, _ = describe_topic(declared.stack, declared.topic)
    assert [each.replicas for each in partitions] == [(1,), (2,)]


def test_preferred_leaders_lead_again(declared: Declared) -> None:
    declared.create([[1, 2, 3], [2, 3, 1]], **{"min.insync.replicas": "2"})
    declared.declare()
    with connect_cluster(declared.stream.config) as cluster:
        tp = TopicPartition(declared.topic, 0)
        reassign(cluster, {tp: [3, 1, 2]})
        deadline = time.monotonic() + _SECONDS
        while fetch_cluster_state(cluster, [tp.topic]).partitions[tp].replicas != (3, 1, 2):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert [step["step"] for step in declared.plan()["steps"]] == ["elect"]
    assert declared.apply().code == 0
    assert describe_topic(declared.stack, declared.topic)[0][0].leader == 3


def test_random_topics_are_as_their_plan_says(declared: Declared) -> None:
    """After `apply`, `kafka-topics.sh --describe` prints the placement and the configs of the plan, and no others."""
    rng = random.Random(19)
    topics = {}
    for number in range(6):
        factor = rng.randint(1, 3)
        topics[f"{declared.topic}-{number}"] = {
            "partitions": rng.randint(1, 7),
            "replication_factor": factor,
            "min_insync_replicas": rng.randint(1, factor),
            "retention": rng.choice(["1h", "30d", "forever"]),
            "cleanup_policy": rng.choice(["delete", "compact", "compact,delete"]),
            "configs": rng.choice([{}, {"min.cleanable.dirty.ratio": "0.50", "max.message.bytes": "0100000"}]),
        }
    declared.declare_topics(topics)
    try:
        ran = declared.apply()
        assert ran.code == 0, ran.err
        described = describe_topics(declared.stack, f"{declared.topic}-.*")
        assert len(described) == len(topics)
        for step in ran.document["applied"]["steps"]:
            partitions, configs = described[step["topic"]]
            assert [list(each.replicas) for each in partitions] == step["replicas"]
            assert [each.leader for each in partitions] == [each[0] for each in step["replicas"]]
            assert configs.keys() == step["configs"].keys()
            assert not any(differs(configs[name], value) for name, value in step["configs"].items())
    finally:
        for deleted in declared.admin.delete_topics(list(topics)).values():
            deleted.result(timeout=30)


def test_placement_in_random_racks_is_as_even_as_that_of_kafka_reassign_partitions(stack: Stack) -> None:
    """200 clusters of up to 12 brokers in up to 4 racks. The method of the tool starts and shifts at random."""
    rng = random.Random(19)
    clusters = []
    for _ in range(200):
        names = "abcd"[: rng.randint(1, 4)]
        racks = [rng.choice(names) for _ in range(rng.randint(1, 12))]
        clusters.append((rng.randint(1, 40), rng.randint(1, min(5, len(racks))), racks))
    less_even = 0
    for (partitions, factor, racks), theirs in zip(clusters, propose_replicas(stack.java, clusters), strict=True):
        ids = list(range(len(racks)))
        ours = place({each: Broker(each, "h", 1, racks[each]) for each in ids}, partitions, factor)
        assert spread(leader_counts(ours, ids)) <= spread(leader_counts(theirs, ids))
        assert rack_counts(ours, racks) == rack_counts(theirs, racks)
        less_even += spread(replica_counts(ours, ids)) > spread(replica_counts(theirs, ids))
    assert less_even <= 20, "4 % in 10,000 clusters"


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(2, 13))])
def test_placement_is_as_even_as_that_of_kafka_reassign_partitions(declared: Declared, seed: int) -> None:
    """The tool starts at a random broker and shifts at random, so it may be less even."""
    rng = random.Random(seed)
    brokers = sorted(rng.sample(BROKER_IDS, rng.randint(1, 3)))
    partitions, factor = rng.randint(1, 12), rng.randint(1, len(brokers))
    declared.create([[brokers[0]] * 1 for _ in range(partitions)])
    file = declared.stream.file.with_name("topics.json")
    file.write_text(json.dumps({"version": 1, "topics": [{"topic": declared.topic}]}))
    if factor > 1:  # the tool keeps the replication factor that the topic has
        declared.admin.delete_topics([declared.topic])[declared.topic].result(timeout=30)
        wait_until_gone(declared)
        declared.create([brokers[:factor] for _ in range(partitions)])
    text = run_tool(
        declared.stack,
        "reassign.ReassignPartitionsCommand",
        "--generate",
        "--topics-to-move-json-file",
        str(file),
        "--broker-list",
        ",".join(map(str, brokers)),
    )
    proposed = json.loads(text[text.index("Proposed partition reassignment configuration") :].splitlines()[1])
    theirs = [tuple(each["replicas"]) for each in proposed["partitions"]]
    ours = place({each: Broker(each, "h", 1, f"rack-{each}") for each in brokers}, partitions, factor)
    assert len(ours) == len(theirs)
    for count in (leader_counts, replica_counts):
        assert sum(count(ours, brokers)) == sum(count(theirs, brokers))
        assert spread(count(ours, brokers)) <= spread(count(theirs, brokers))


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


def rack_counts(replicas: list[tuple[int, ...]], racks: list[str]) -> list[list[int]]:
    """Return how many replicas of each topic-partition are in one rack, most first."""
    return [sorted(Counter(racks[broker] for broker in each).values(), reverse=True) for each in replicas]


def leader_counts(replicas: list[tuple[int, ...]], brokers: list[int]) -> list[int]:
    counts = Counter(each[0] for each in replicas)
    return [counts[broker] for broker in brokers]


def replica_counts(replicas: list[tuple[int, ...]], brokers: list[int]) -> list[int]:
    counts = Counter(broker for each in replicas for broker in each)
    return [counts[broker] for broker in brokers]


def wait_until_gone(declared: Declared) -> None:
    deadline = time.monotonic() + _SECONDS
    while declared.topic in declared.admin.list_topics(timeout=30).topics:
        assert time.monotonic() < deadline
        time.sleep(0.2)
