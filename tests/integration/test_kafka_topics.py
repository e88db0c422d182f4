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
from kafka_tools import describe_topic, run_tool
from typer.testing import CliRunner

from devstack import Stack
from devstack.kafka import BROKER_IDS
from waybill.brokers.forecast_inputs import connect_cluster
from waybill.brokers.placement import place
from waybill.cli.app import app
from waybill.names import TopicPartition, topic_changes_prefix
from waybill.sources.cluster_state import Broker, fetch_cluster_state
from waybill.sources.topic_changes import fetch_broker_configs, reassign

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
        document = {"partitions": 2, **fields}
        kafka = f"kafka: {{topics: {{{self.topic}: {json.dumps(document)}}}}}\n"
        self.stream.file.write_text(self._text + kafka)

    def create(self, replicas: list[list[int]], **configs: str) -> None:
        new = NewTopic(self.topic, len(replicas), replica_assignment=replicas, config=configs)
        self.admin.create_topics([new])[self.topic].result(timeout=30)

    def plan(self, *options: str) -> dict[str, Any]:
        ran = self.stream.waybill("kafka", "plan", "--json", *options)
        assert ran.code == 0, ran.err
        return ran.document  # type: ignore[no-any-return]

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

    declared.declare(partitions=1, replication_factor=2, cleanup_policy="compact,delete", retention="forever")
    refused = declared.plan()
    assert refused["steps"] == []
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
    (step,) = declared.plan()["steps"]
    assert (step["step"], [move["before"] for move in step["moves"]]) == ("reassign", [[1], [2]])
    assert step["bytes"] > 100_000
    ran = declared.apply("--throttle", "20MiB")
    assert ran.code == 0, ran.err
    partitions, _ = describe_topic(declared.stack, declared.topic)
    assert [len(each.in_sync) for each in partitions] == [3, 3]
    assert throttles(declared) == []
    moves = [{"topic": declared.topic, "partition": n, "replicas": list(p.replicas)} for n, p in enumerate(partitions)]
    file = declared.stream.file.with_name("moves.json")
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    tool = run_tool(
        declared.stack, "reassign.ReassignPartitionsCommand", "--verify", "--reassignment-json-file", str(file)
    )
    assert tool.count("is completed") == 2


def test_data_is_not_copied_without_consent(declared: Declared, monkeypatch: pytest.MonkeyPatch) -> None:
    declared.create([[1], [2]], **{"min.insync.replicas": "2"})
    declared.declare()
    monkeypatch.setenv("WAYBILL_CONFIG", str(declared.stream.file))
    ran = CliRunner().invoke(app, ["kafka", "apply"], input="n\n")
    assert ran.exit_code == 1
    assert "Copy this data between brokers?" in ran.output
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


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(3, 13))])
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
