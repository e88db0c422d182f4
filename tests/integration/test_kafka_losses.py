"""A real unclean election over 10,000 messages: the losses are those of the producer's log, and published again."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from archived_stream import ArchivedStream
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from test_unclean_election import FOLLOWER, LEADER, run, stream, wait_until_led_by

from devstack import Stack
from waybill.archive.ingest import Outcome
from waybill.watch.promises.watch_run import run_watch

__all__ = ["stream"]

pytestmark = [pytest.mark.deep, pytest.mark.integration, pytest.mark.stack_alone]

COPIED, ARCHIVED, PRODUCED, NEW = 3_000, 7_000, 10_000, 5_000
"""How many messages the follower has, how many are archived, how many the lost leader had, and how many came after."""


class ProducerLog:
    """Produces events, and remembers the offset that the leader gave each acknowledged one."""

    def __init__(self, stream: ArchivedStream) -> None:
        self.stream = stream
        self.keys: dict[int, bytes] = {}

    def produce(self, count: int, first: int, **settings: Any) -> None:
        producer = self.stream.producer(**settings)

        def on_delivery(error: Any, message: Any) -> None:
            if error is None and message.offset() is not None:
                self.keys[message.offset()] = message.key()

        for number in range(first, first + count):
            value = json.dumps({"id": f"e{number}", "time": f"2026-01-{1 + number % 5:02d}T00:00:00Z"}).encode()
            producer.produce(
                self.stream.topic,
                value,
                f"k{number}".encode(),
                0,
                on_delivery=on_delivery,
                headers=[("n", b"%d" % number)],
            )
            producer.poll(0)
        assert producer.flush(60) == 0


def consume_all(stream: ArchivedStream) -> list[Any]:
    """Return all messages of the topic, read by librdkafka."""
    consumer = Consumer(
        {"bootstrap.servers": stream.servers, "group.id": stream.topic, "enable.partition.eof": True, "log_level": 2}
    )
    consumer.assign([TopicPartition(stream.topic, 0, 0)])
    found = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is not None:
            break
        if message is not None:
            found.append(message)
    consumer.close()
    return found


def lose(
    stack: Stack, stream: ArchivedStream, directory: Path, *, archived_first: int = 0
) -> tuple[ProducerLog, ProducerLog]:
    """Let an unclean election take messages back. Return the producer's log before it, and after it.

    `archived_first`: so many are archived before the follower stops, and none later.
    """
    before, after = ProducerLog(stream), ProducerLog(stream)
    before.produce(archived_first, 0, acks="all")
    if archived_first:
        assert run(stream).outcome is Outcome.UP_TO_DATE
    before.produce(COPIED - archived_first, archived_first, acks="all")
    try:
        stack.stop_broker(FOLLOWER)
        wait_until_led_by(stack, stream.topic, LEADER, in_sync=[LEADER])
        before.produce(ARCHIVED - COPIED, COPIED, acks="all", **{"compression.type": "lz4"})
        if not archived_first:
            assert run(stream).outcome is Outcome.UP_TO_DATE
        before.produce(PRODUCED - ARCHIVED - 1_000, ARCHIVED, acks="1")
        before.produce(1_000, PRODUCED - 1_000, acks="0")  # not acknowledged: the producer's log has no offsets
        run_watch(stream.config, directory=directory)
        stack.kill_broker(LEADER)
        stack.start_broker(FOLLOWER)
        wait_until_led_by(stack, stream.topic, FOLLOWER, in_sync=[FOLLOWER])
        after.produce(NEW, 100_000, acks="1")
        run_watch(stream.config, directory=directory)
    finally:
        stack.start_broker(LEADER)
        if not stack.status().server(f"kafka-{FOLLOWER}").running:  # type: ignore[union-attr]
            stack.start_broker(FOLLOWER)
    return before, after


def test_losses_are_the_producers_log_and_are_published_again_once(
    stack: Stack, stream: ArchivedStream, tmp_path: Path
) -> None:
    before, after = lose(stack, stream, tmp_path)
    acknowledged = {offset: key for offset, key in before.keys.items() if offset >= 0}
    assert len(acknowledged) >= PRODUCED - 1_000

    found = stream.waybill("kafka", "losses", "events", "--out", str(tmp_path), "--json").document
    (loss,) = found["truncations"]
    assert [(each["first_offset"], each["next_offset"]) for each in loss["taken_back"]] == [(COPIED, ARCHIVED)]
    assert (loss["archived_messages"], loss["unknown_offsets"]) == (ARCHIVED - COPIED, PRODUCED - ARCHIVED)
    rows = pq.read_table(tmp_path / "losses.parquet").to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    archived = {row["offset"]: row["key"] for row in rows if row["fate"] == "archived"}
    assert archived == {offset: key for offset, key in acknowledged.items() if COPIED <= offset < ARCHIVED}
    unknown = {row["offset"] for row in rows if row["fate"] == "unknown"}
    assert unknown == set(range(ARCHIVED, PRODUCED))
    assert {offset for offset in acknowledged if offset >= ARCHIVED} <= unknown
    replaced = {row["offset"]: row["new_key"] for row in rows if row["new_leader_epoch"] is not None}
    assert replaced == {offset: key for offset, key in after.keys.items() if offset < PRODUCED}
    assert {b64decode(line["key"]) for line in lines if "key" in line} == set(archived.values())
    assert {row["leader_epoch"] for row in rows if row["fate"] == "archived"} == {
        each["leader_epoch"] for each in loss["taken_back"]
    }

    assert run(stream).outcome is Outcome.STOPPED
    assert stream.waybill("gaps", "accept", stream.topic, "0", "--reason", "power cut").code == 0
    options = ("--topic", stream.topic, "--partition", "0", "--reason", "power cut", "--by", "ann", "--yes", "--json")
    ran = stream.waybill("kafka", "republish", "events", *options)
    assert ran.code == 0, ran.err
    (published,) = ran.document["published"]
    assert (published["messages"], published["by"]) == (ARCHIVED - COPIED, "ann")
    assert stream.waybill("kafka", "republish", "events", *options).document["published"] == []

    again = [each for each in consume_all(stream) if any(name == "waybill-republished" for name, _ in each.headers())]
    assert [each.key() for each in again] == [archived[offset] for offset in sorted(archived)]
    (epoch,) = {each["leader_epoch"] for each in loss["taken_back"]}
    assert [dict(each.headers())["waybill-republished"] for each in again] == [
        f"{stream.topic}/0/{epoch}/{offset}".encode() for offset in sorted(archived)
    ]
    assert [dict(each.headers())["n"] for each in again] == [b"%d" % n for n in range(COPIED, ARCHIVED)]

    left = stream.waybill("kafka", "losses", "events", "--json").document["truncations"][0]
    assert (left["not_published_offsets"], left["published"][0]["is_done"]) == (0, True)
    assert left["unknown_offsets"] == PRODUCED - ARCHIVED, "an accepted loss is reported as before"
    assert run(stream).outcome is Outcome.UP_TO_DATE
    stream.partition()
    with stream.tables() as tables:
        ids = Counter(tables.main.scan(selected_fields=("message_id",)).to_arrow()["message_id"].to_pylist())
    assert {each for each, count in ids.items() if count > 1} == {f"e{n}" for n in range(COPIED, ARCHIVED)}, (
        "the archive still has the first copies"
    )
    assert ids.keys().isdisjoint(f"e{100_000 + n}" for n in range(ARCHIVED - COPIED)), "below the committed offset"
    ran = stream.waybill("verify")
    assert ran.code == 0, ran.out
    assert ran.out.splitlines()[-1].startswith("sound, except for 1 accepted gap")


def test_losses_of_messages_that_nobody_archived_are_listed_as_unknown(
    stack: Stack, stream: ArchivedStream, tmp_path: Path
) -> None:
    """1,000 messages are archived, the elected replica has 3,000, and the lost leader had 10,000."""
    lose(stack, stream, tmp_path, archived_first=1_000)
    for is_archived in (False, True):  # whether the archive has the new log, too
        if is_archived:
            assert run(stream).outcome is Outcome.UP_TO_DATE
        found = stream.waybill("kafka", "losses", "events", "--json").document
        (loss,) = found["truncations"]
        assert (loss["taken_back"], loss["archived_messages"]) == ([], 0)
        assert loss["unknown"] == {"first_offset": COPIED, "next_offset": PRODUCED}
        assert (loss["unknown_offsets"], loss["replaced_offsets"], loss["may_begin_at"]) == (7_000, NEW, [])
    assert f"{COPIED}–{PRODUCED - 1}" in stream.waybill("kafka", "losses", "events").out
    options = ("--topic", stream.topic, "--partition", "0", "--reason", "x")
    assert "nothing to publish" in stream.waybill("kafka", "republish", "events", *options).out


def test_log_that_has_the_whole_archive_has_no_losses(stream: ArchivedStream) -> None:
    stream.produce_events(10)
    run(stream)
    ran = stream.waybill("kafka", "losses", "events")
    assert "Kafka's log has every archived message of stream events" in ran.out
    options = ("--topic", stream.topic, "--partition", "0", "--reason", "x")
    assert "nothing to publish" in stream.waybill("kafka", "republish", "events", *options).out
    ran = stream.waybill("kafka", "losses", "events", "--partition", "7")
    assert ran.code == 1
    assert "has archived nothing of 7" in ran.err
    ran = stream.waybill("kafka", "losses", "events", "--generation", "2")
    assert "has archived nothing of its topics in generation 2" in ran.err
    ran = stream.waybill("kafka", "losses", "events", "--generation", "1", "--json")
    assert (ran.code, ran.document["truncations"], ran.document["failed"]) == (0, [], [])


def test_topic_that_was_created_again_has_no_losses_and_the_others_are_listed(stream: ArchivedStream) -> None:
    stream.produce_events(10)
    run(stream)
    admin = AdminClient({"bootstrap.servers": stream.servers})
    admin.delete_topics([stream.topic])[stream.topic].result(timeout=30)
    deadline = time.monotonic() + 30
    while True:
        try:
            admin.create_topics([NewTopic(stream.topic, 1)])[stream.topic].result(timeout=30)
            break
        except KafkaException:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    ran = stream.waybill("kafka", "losses", "events", "--json")
    assert ran.code == 1
    (failed,) = ran.document["failed"]
    assert (failed["topic"], failed["partition"], failed["error"]) == (stream.topic, 0, "RestoreRefused")
    assert "TopicRecreated" in failed["message"]
    assert f"{stream.topic}/0: its losses are not known" in ran.err
    options = ("--topic", stream.topic, "--partition", "0", "--reason", "x")
    assert "TopicRecreated" in stream.waybill("kafka", "republish", "events", *options).err
