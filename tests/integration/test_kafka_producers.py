"""The report about producers, on topics that librdkafka wrote with known settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from archived_stream import ArchivedStream
from confluent_kafka import Producer

from devstack import Stack

pytestmark = pytest.mark.integration


@pytest.fixture
def stream(stack: Stack, tmp_path: Path, topic_name: str) -> ArchivedStream:
    return ArchivedStream(tmp_path, topic_name, partitions=2)


def produce(stream: ArchivedStream, count: int, value: bytes, **settings: Any) -> None:
    """Produce messages in one topic-partition; `%d` in the value becomes a number."""
    producer = Producer({"bootstrap.servers": stream.servers, "linger.ms": 50, "log_level": 2, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(30)
        producer.begin_transaction()
    for i in range(count):
        producer.produce(stream.topic, value.replace(b"%d", b"%d" % i), partition=0)
    producer.flush(30)
    if "transactional.id" in settings:
        producer.commit_transaction(30)


def test_report_tells_idempotent_transactional_and_plain_producers_apart(stream: ArchivedStream) -> None:
    produce(stream, 30, b"plain", **{"compression.type": "gzip"})
    produce(stream, 20, b"idempotent", **{"enable.idempotence": True, "compression.type": "zstd"})
    produce(stream, 10, b"transaction", **{"transactional.id": stream.topic, "compression.type": "lz4"})
    found = stream.waybill("kafka", "producers", stream.topic, "--json").document
    rows = {(each["idempotent"], each["transactional"]): each for each in found["producers"]}
    assert {key: each["messages"] for key, each in rows.items()} == {
        (False, False): 30,
        (True, False): 20,
        (True, True): 10,
    }
    assert {each["messages_sent_twice"] for each in found["producers"]} == {None, 0}
    assert list(rows[False, False]["batches_by_codec"]) == ["gzip"]
    assert found["control_batches"] == 1
    text = stream.waybill("kafka", "producers", stream.topic)
    assert text.code == 0
    assert "set enable.idempotence" in text.out


def test_savings_are_those_of_a_producer_that_uses_them(stream: ArchivedStream) -> None:
    """What the report promises for zstd and 64 KiB batches is, within a tenth, what librdkafka then writes."""
    value = b'{"name": "a value that repeats itself", "number": %d}'
    produce(stream, 5_000, value, **{"batch.num.messages": 10})
    found = stream.waybill("kafka", "producers", stream.topic, "--json").document
    promised = {(each["codec"], each["batch_bytes"]): each["bytes"] for each in found["savings"]}
    assert promised["none", None] == sum(each["bytes"] for each in found["producers"]), "as it is now"

    name = stream.topic + "-better"
    better = ArchivedStream(stream.file.parent, name, partitions=1)
    produce(
        better,
        5_000,
        value,
        **{"compression.type": "zstd", "batch.size": 64 << 10, "batch.num.messages": 100_000, "linger.ms": 1000},
    )
    written = better.waybill("kafka", "producers", name, "--json").document["producers"][0]["bytes"]
    assert promised["zstd", 64 << 10] == pytest.approx(written, rel=0.1)


def test_values_that_cannot_be_compressed_save_nothing(stream: ArchivedStream) -> None:
    for _ in range(3):
        produce(stream, 1, os.urandom(200_000))
    found = stream.waybill("kafka", "producers", stream.topic, "--json").document
    assert max(each["saved_share"] for each in found["savings"]) < 0.001
    assert [(each["next_offset"], each["end_offset"]) for each in found["samples"]] == [(3, 3), (0, 0)]
    ran = stream.waybill("kafka", "producers", stream.topic, "--limit", "100KB", "--json")
    cut = ran.document["samples"][0]
    assert (cut["first_offset"], cut["next_offset"], cut["end_offset"]) == (0, 1, 3), "a batch is read whole"
    assert ran.document["producers"][0]["messages"] == 1
    text = stream.waybill("kafka", "producers", stream.topic, "--limit", "100KB").out
    assert f"only the beginning was read: {stream.topic}/0 (offsets 0–0 of 0–2)" in text
    assert stream.waybill("kafka", "producers", stream.topic, "--limit", "few").code == 2


def test_unknown_topic_is_named(stream: ArchivedStream) -> None:
    ran = stream.waybill("kafka", "producers", "no-such-topic")
    assert ran.code == 1
    assert "there is no topic 'no-such-topic'" in ran.err
