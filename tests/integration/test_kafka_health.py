"""`waybill kafka health` on the real cluster: lags of groups, lost brokers, topics without a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archived_stream import ArchivedStream
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from devstack import Stack
from waybill.watch.promises.watch_run import run_watch

pytestmark = pytest.mark.integration

MINUTE_MS = 60_000
_SECONDS = 60.0


class Healthy(ArchivedStream):
    """A stream whose cluster is watched, at times that the test chooses."""

    now_ms = 1_800_000_000_000

    def promise(self, **kafka: Any) -> None:
        text = self.file.read_text()
        self.file.write_text(text + f"kafka: {{promises: {json.dumps(kafka)}}}\n")

    def watch(self, directory: Path, minutes: int) -> list[str]:
        """Watch some minutes after the watch before, and return the open incidents about this test's group."""
        self.now_ms += minutes * MINUTE_MS
        report = run_watch(self.config, now_ms=lambda: self.now_ms, directory=directory)
        return [f"{each.promise}: {each.figure}" for each in report.open if each.subject == self.topic]

    def health(self, *options: str) -> dict[str, dict[str, Any]]:
        found = self.waybill("kafka", "health", "--json", *options).document
        return {f"{each['promise']} {each['subject']}".strip(): each for each in found["promises"]}


@pytest.fixture
def stream(stack: Stack, tmp_path: Path, topic_name: str) -> Iterator[Healthy]:
    stream = Healthy(tmp_path, topic_name, partitions=1)
    yield stream
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    admin.delete_topics([topic_name])[topic_name].result(timeout=30)


def commit(stream: Healthy, offset: int) -> None:
    """Commit an offset for the group that is named as the topic."""
    consumer = Consumer({"bootstrap.servers": stream.servers, "group.id": stream.topic, "log_level": 2})
    consumer.commit(offsets=[TopicPartition(stream.topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_lag_of_a_group_that_commits_nothing_is_told_although_it_is_small(stream: Healthy, tmp_path: Path) -> None:
    stream.promise(groups={stream.topic: {"limit": 100, "commits_within": "10m"}})
    stream.produce_events(10)
    commit(stream, 4)
    assert stream.watch(tmp_path, 1) == [], "a lag of 6 is small"
    assert stream.watch(tmp_path, 9) == []
    assert stream.watch(tmp_path, 2) == ["kafka_group_lag: 6 messages, no commit for 11 min"]
    commit(stream, 5)
    assert len(stream.watch(tmp_path, 1)) == 1, "kept, but not for long enough to be over"
    assert stream.watch(tmp_path, 6) == []
    commit(stream, 10)
    assert stream.watch(tmp_path, 60) == [], "a group without lag has nothing to commit"
    stream.produce_events(200, first=10)
    assert stream.watch(tmp_path, 1) == ["kafka_group_lag: 200 messages"]


def test_health_names_topics_without_a_stream_and_streams_without_a_topic(stream: Healthy) -> None:
    ignored = "(?!" + stream.topic + ").*"
    stream.promise(unmatched_topics={"severity": "warning", "ignore": [ignored]})
    assert stream.health()["unmatched_topics"]["verdict"] == "kept"
    stream.file.write_text(stream.file.read_text().replace(f"topics: [{stream.topic}]", "topics: [does-not-exist]"))
    found = stream.health()
    assert found["unmatched_topics"]["detail"] == stream.topic
    assert found["missing_topics"]["detail"] == "events: topic does-not-exist"
    ran = stream.waybill("kafka", "health")
    assert ran.code == 1
    assert "missing_topics" in ran.out


@pytest.mark.deep
@pytest.mark.stack_alone
def test_lost_broker_is_reported_with_its_streams_and_is_history_afterwards(
    stack: Stack, stream: Healthy, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    name = f"{stream.topic}-two"
    admin.create_topics([NewTopic(name, 1, replica_assignment=[[2, 3]], config={"min.insync.replicas": "2"})])[
        name
    ].result(timeout=30)
    stream.file.write_text(stream.file.read_text().replace(f"topics: [{stream.topic}]", f"topics: [{name}]"))
    stack.kill_broker(3)
    try:
        deadline = time.monotonic() + _SECONDS
        while (found := stream.health())["under_min_isr"]["verdict"] != "broken":
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
        assert f"{name}/0" in found["under_min_isr"]["detail"]
        assert "broker 3; streams: events" in found["under_min_isr"]["detail"]
        stream.watch(tmp_path, 1)
    finally:
        stack.start_broker(3)
    deadline = time.monotonic() + _SECONDS
    while stream.health()["under_min_isr"]["verdict"] != "kept":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    ended = set[tuple[str, str]]()
    while (name, "under_min_isr") not in ended:  # the broker that has just started may answer with older metadata
        assert time.monotonic() < deadline, ended
        stream.watch(tmp_path, 1)
        history = stream.waybill("kafka", "health", "--history", "--json").document["history"]
        ended = {(each["topic"], each["state"]) for each in history}
    assert "under_min_isr" in stream.waybill("kafka", "health", "--history").out
    admin.delete_topics([name])[name].result(timeout=30)
