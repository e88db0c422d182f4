"""A group of streams in one ingest run: one plan, lanes that mix streams, problems, and pauses."""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from archived_stream import waybill
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from devstack import Stack
from waybill.archive.chain.object_reader import inspect_object
from waybill.archive.ingest import IngestPlan, Lane, LaneReport, LaneShare, Outcome, plan_run, run_lane
from waybill.archive.ingest.groups import report_run
from waybill.archive.ingest.time_slice import Clock
from waybill.base.errors import IngestIncomplete, RetentionGap
from waybill.config.models import Config, load_config, load_valid_streams
from waybill.config.names import TopicPartition
from waybill.services.coordination import Coordinator, ZooKeeperSession
from waybill.services.kafka.cluster import Cluster
from waybill.services.store import Store

pytestmark = pytest.mark.integration

GROUP = "default"


class Streams:
    """Streams of one topic each, in the default group, with a ZooKeeper root and an S3 prefix of their own."""

    def __init__(self, stack: Stack, name: str, folder: Path, count: int) -> None:
        self.stack, self.name = stack, name
        self.file = folder / "streams.yaml"
        self.settings: dict[str, dict[str, Any]] = {
            f"s{number}": {
                "topics": [f"{name}-{number}"],
                "upload": {"max_age": "0s"},
                "parser": {"event_time": {"field": "time"}},
                "table": f"groups.t{number}",
            }
            for number in range(count)
        }
        self.write()
        self.admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        self.create([f"{name}-{number}" for number in range(count)])

    def write(self) -> None:
        root = {"version": 1, "storage": {"bucket": self.stack.bucket, "prefix": self.name}}
        root |= {
            "zookeeper": {"root": self.name},
            "groups": {GROUP: {"ingest": {"lanes": 2}}},
            "streams": self.settings,
        }
        self.file.write_text(yaml.safe_dump(root))

    def create(self, topics: list[str]) -> None:
        new = [NewTopic(topic, 3, 1, config={"retention.ms": "-1"}) for topic in topics]
        for created in self.admin.create_topics(new).values():
            created.result(timeout=30)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(timeout=30)

    def produce(self, *streams: str, count: int = 10) -> None:
        producer = Producer({"bootstrap.servers": self.stack.bootstrap_servers, "linger.ms": 5})
        for stream in streams:
            for number in range(count * 3):
                producer.produce(self.settings[stream]["topics"][0], b"{}", partition=number % 3)
        assert producer.flush(30) == 0

    @property
    def config(self) -> Config:
        return load_valid_streams(self.file)

    def plan(self, **options: Any) -> IngestPlan:
        config = self.config
        return plan_run(config, GROUP, [*config.streams, *config.broken], clock=at_minute(1), **options)

    def run(self) -> dict[str, int]:
        """Run the group once, report it, and return the archived messages by stream."""
        plan = self.plan()
        lanes = [run_lane(self.config, lane) for lane in plan.lanes]
        report_run(self.config, GROUP, plan, [lane.summary() for lane in lanes])
        return messages_of(lanes)

    def archived(self, stream: str) -> int:
        """Return the number of messages in the chains of a stream's topic."""
        topic = self.settings[stream]["topics"][0]
        with Store.of(self.config.storage) as store:
            return sum(
                inspect_object(store, stored.name, stored.key).messages
                for partition in range(3)
                for stored in store.list_chain(topic, 1, partition)
            )


def at_minute(minute: int) -> Clock:
    """A clock at a minute of the hour. Stopped topic-partitions are checked at every tenth minute."""
    return Clock(wall=lambda: 1_800_000_000.0 // 3600 * 3600 + 60 * minute)


def messages_of(lanes: list[LaneReport]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for lane in lanes:
        for stream in lane.streams:
            found[stream.stream] += stream.messages
    return dict(found)


@pytest.fixture
def streams(stack: Stack, topic_name: str, tmp_path: Path) -> Streams:
    return Streams(stack, topic_name, tmp_path, 4)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int | None]]:
    """Count the requests to Kafka, by kind and broker."""
    counts: Counter[tuple[str, int | None]] = Counter()
    send = Cluster.send

    def counted_send(self: Cluster, node_id: int | None, request: Any) -> Any:
        counts[type(request).__name__, node_id] += 1
        return send(self, node_id, request)

    monkeypatch.setattr(Cluster, "send", counted_send)
    return counts


def test_one_run_archives_all_streams_of_the_group_and_the_next_has_nothing_to_do(
    streams: Streams, requests: Counter[tuple[str, int | None]]
) -> None:
    assert streams.run() == {"s0": 0, "s1": 0, "s2": 0, "s3": 0}, "the first run records where the chains start"
    streams.produce("s0", "s2")
    plan = streams.plan()
    assert {share.stream for lane in plan.lanes for share in lane.shares} == {"s0", "s2"}
    assert len(plan.lanes) == 1, "so little work is not worth a second lane"
    assert streams.run() == {"s0": 30, "s2": 30}

    requests.clear()
    plan = streams.plan()
    assert (plan.lanes, plan.problems, plan.paused) == ((), (), ())
    assert not plan.has_news
    assert requests["MetadataRequest", None] == 1
    to_leaders = {node: count for (kind, node), count in requests.items() if kind == "ListOffsetsRequest"}
    assert set(to_leaders.values()) == {1}, "one request to each broker"


def test_streams_of_a_lane_keep_their_isolation_level_and_format(streams: Streams) -> None:
    streams.settings["s1"] |= {"isolation_level": "read_uncommitted", "format": "text"}
    streams.write()
    streams.run()
    producer = Producer({"bootstrap.servers": streams.stack.bootstrap_servers, "transactional.id": streams.name})
    producer.init_transactions()
    producer.begin_transaction()
    for stream in ("s0", "s1"):
        producer.produce(streams.settings[stream]["topics"][0], b"aborted", partition=0)
    assert producer.flush(30) == 0
    producer.abort_transaction()
    streams.produce("s0", "s1", count=5)
    streams.run()
    assert (streams.archived("s0"), streams.archived("s1")) == (15, 16), "s1 also archives the aborted message"


def test_new_problem_fails_one_report_and_healthy_streams_are_archived(
    streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    streams.run()
    streams.delete(f"{streams.name}-1")
    streams.settings["s2"]["partition_by"] = "century"
    streams.write()
    streams.produce("s0", "s3")
    with pytest.raises(IngestIncomplete) as failure:
        streams.run()
    assert f"s1: TopicMissing: topic '{streams.name}-1' does not exist in Kafka" in str(failure.value)
    assert "s2: ConfigError: " in str(failure.value)
    assert "streams.s2.partition_by" in str(failure.value)
    assert (streams.archived("s0"), streams.archived("s3")) == (30, 30)

    streams.produce("s0")
    with caplog.at_level(logging.INFO):
        assert streams.run() == {"s0": 30}, "known problems do not fail the run"
    assert "s1 still has a problem: TopicMissing" in caplog.text
    listed = {row["stream"]: row for row in waybill("streams", "--json", WAYBILL_CONFIG=str(streams.file)).document}
    assert [problem["error"] for problem in listed["s1"]["problems"]] == ["TopicMissing"]
    assert [problem["error"] for problem in listed["s2"]["problems"]] == ["ConfigError"]
    assert listed["s0"]["problems"] == []

    streams.create([f"{streams.name}-1"])
    del streams.settings["s2"]["partition_by"]
    streams.write()
    caplog.clear()
    plan = streams.plan()
    assert plan.problems == ()
    assert plan.has_news, "two problems are gone"
    streams.produce("s1")
    with caplog.at_level(logging.INFO), pytest.raises(IngestIncomplete, match="s1: TopicRecreated"):
        streams.run()
    assert "s1 no longer has the problem TopicMissing" in caplog.text


def test_stopped_topic_partition_begins_a_lane_alone_only_every_ten_minutes(streams: Streams) -> None:
    streams.run()
    tp = TopicPartition(f"{streams.name}-1", 0)
    with Coordinator.of(streams.config, "s1") as coordinator:
        coordinator.record_stop(tp, RetentionGap(tp.topic, tp.partition, committed_offset=0, earliest_offset=10))
    plan = streams.plan()
    assert plan.lanes == ()
    assert [(problem.stream, problem.error) for problem in plan.problems] == [("s1", "RetentionGap")]
    names = list(streams.config.streams)
    (lane,) = plan_run(streams.config, GROUP, names, clock=at_minute(20)).lanes
    assert [share.tp for share in lane.shares] == [tp]
    (lane,) = streams.plan(with_stopped=True).lanes
    (report,) = run_lane(streams.config, lane).partitions
    assert report.outcome is Outcome.UP_TO_DATE, "the log continues from the committed offset: the stop was an old one"
    assert streams.plan().problems == ()


def test_paused_stream_is_left_out_until_it_is_resumed(streams: Streams) -> None:
    def command(*arguments: str) -> Any:
        return waybill(*arguments, WAYBILL_CONFIG=str(streams.file))

    streams.run()
    paused = command("pause", "s1", "--reason", "the producer is being repaired", "--by", "ada")
    assert paused.code == 0, paused.err
    assert "paused s1: ingest, maintenance, partition" in paused.out
    again = command("pause", "s1", "--reason", "again")
    assert (again.code, "paused already" in again.err) == (1, True)

    streams.produce("s0", "s1")
    assert streams.plan().paused == ("s1",)
    assert streams.run() == {"s0": 30}
    shown = command("streams")
    assert "s1: ingest, maintenance, partition paused since" in shown.out
    assert "by ada: the producer is being repaired" in shown.out

    resumed = command("resume", "s1", "--reason", "repaired", "--by", "grace", "--stage", "ingest")
    assert "still paused: maintenance, partition" in resumed.out
    assert streams.run() == {"s1": 30}
    (row,) = [row for row in command("streams", "--json").document if row["stream"] == "s1"]
    assert [(each["action"], each["by"]) for each in row["decisions"]] == [("pause", "ada"), ("resume", "grace")]
    assert sorted(row["paused"]) == ["maintenance", "partition"]


def test_coordinators_of_a_run_share_one_session(streams: Streams) -> None:
    config = load_config(streams.file)
    with ZooKeeperSession.of(config) as session:
        first, second = (Coordinator.sharing(session, config, name) for name in ("s0", "s1"))
        tp = TopicPartition("t", 0)
        with first.lock(tp), second.lock(tp):  # of different streams
            assert first.session is second.session


def test_lane_of_several_streams_continues_after_a_stream_that_fails(streams: Streams) -> None:
    streams.run()
    streams.produce("s0", "s2")
    streams.delete(f"{streams.name}-1")
    shares = [
        LaneShare(stream=f"s{number}", topic=f"{streams.name}-{number}", partition=0, estimated_bytes=1)
        for number in (0, 1, 2)
    ]
    streams.settings["s1"]["ingest"] = {"budget": "5s"}
    streams.write()
    report = run_lane(streams.config, Lane(number=0, shares=tuple(shares)))
    assert messages_of([report]) == {"s0": 10, "s1": 0, "s2": 10}
    (failed,) = report.failures
    assert failed.tp == TopicPartition(f"{streams.name}-1", 0)


@pytest.mark.deep
def test_twenty_healthy_streams_stay_on_time_beside_broken_ones(stack: Stack, topic_name: str, tmp_path: Path) -> None:
    healthy = [f"s{number}" for number in range(20)]
    streams = Streams(stack, topic_name, tmp_path, 24)
    streams.run()
    streams.delete(f"{streams.name}-20")  # a deleted topic
    streams.delete(f"{streams.name}-21")
    streams.settings["s22"]["table"] = "no-table"  # an invalid config
    streams.settings["s23"]["topics"] = streams.settings["s0"]["topics"]  # a topic of another stream
    streams.write()
    streams.create([f"{streams.name}-21"])
    streams.produce("s21")  # a named stop: the topic was created again
    with pytest.raises(IngestIncomplete) as failure:
        streams.run()
    for problem in ("s20: TopicMissing", "s21: TopicRecreated", "s22: ConfigError", "s23: ConfigError"):
        assert f"- {problem}" in str(failure.value)

    before = {stream: streams.archived(stream) for stream in healthy}
    for run in range(5):
        streams.produce(*healthy)
        started = time.monotonic()
        assert {stream: count for stream, count in streams.run().items() if count} == dict.fromkeys(healthy, 30)
        assert time.monotonic() - started < 45, f"run {run}: a minute has to be enough, on a slow machine, too"
    assert {stream: streams.archived(stream) - before[stream] for stream in healthy} == dict.fromkeys(healthy, 150)
