"""Record batches of real producers and brokers: Waybill decodes the same messages as independent clients."""

from __future__ import annotations

import re
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from fuzzers.targets.records import BATCHES, accepted_batches, at_offset, kept_ms
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.consumer import fetcher
from kafka.record.memory_records import MemoryRecords

from waybill.records.batches import Codec, ControlType, check_crc, control_type, empty_batch, frames, read_header
from waybill.records.batches.decode import decode, decode_offsets
from waybill.records.batches.encode import Record, control_batch, encode_batch, to_records

if TYPE_CHECKING:
    from devstack import Stack

pytestmark = pytest.mark.integration

CODECS = [codec.name.lower() for codec in Codec]
HEADERS = [("trace", b"1"), ("trace", None), ("trace", b""), ("größe", b"\xff\x00")]


def create_topic(stack: Stack, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, num_partitions=1, replication_factor=3, config=settings)
    admin.create_topics([new])[topic].result(timeout=30)


def producer(stack: Stack, **config: object) -> Producer:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return Producer({"bootstrap.servers": stack.bootstrap_servers, "acks": "all", "linger.ms": 50, **settings})


def produce_edge_cases(target: Producer, topic: str, count: int, *, start: int = 0) -> None:
    """Produce messages with every combination of null, empty and filled keys and values, some with headers."""
    for i in range(start, start + count):
        target.produce(
            topic,
            partition=0,
            key=(None, b"", b"key-%d" % i)[i % 3],
            value=(b'{"number": %d, "text": "%s"}' % (i, b"abc" * 40), None, b"")[i // 3 % 3],
            headers=HEADERS if i % 5 == 0 else None,
            timestamp=1_700_000_000_000 + i,
        )
    target.flush(30)


def consumed_by_confluent(stack: Stack, topic: str) -> list[Record]:
    """Return all messages of partition 0, including aborted transactions, as librdkafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": stack.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    records = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "confluent-kafka received nothing in 30 s"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return records
            records.append(
                Record(
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                )
            )
    finally:
        consumer.close()


def fetch(stack: Stack, topic: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, list[Record]]:
    """Return the record batches of partition 0 as the broker sends them, and the messages that kafka-python reads."""
    responses: list[bytes] = []

    class RecordingMemoryRecords(MemoryRecords):
        def __init__(self, data: Any) -> None:
            responses.append(bytes(data))
            super().__init__(data)

    monkeypatch.setattr(fetcher, "MemoryRecords", RecordingMemoryRecords)
    partition = KafkaPythonPartition(topic, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=stack.bootstrap_servers.split(","), enable_auto_commit=False, auto_offset_reset="earliest"
    )
    records = []
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = consumer.end_offsets([partition])[partition]
        deadline = time.monotonic() + 60
        while consumer.position(partition) < end:
            assert time.monotonic() < deadline, f"kafka-python is at offset {consumer.position(partition)} of {end}"
            for message in consumer.poll(timeout_ms=500).get(partition, []):
                headers = tuple(message.headers)
                records.append(Record(message.offset, message.timestamp, message.key, message.value, headers))
    finally:
        consumer.close()
    return join_responses(responses), records


def join_responses(responses: list[bytes]) -> bytes:
    """Return each batch once: fetch responses overlap and end with partial batches."""
    data, next_offset = b"", 0
    for response in responses:
        for frame in frames(response, where="fetch response", allow_partial=True):
            if frame.header.base_offset >= next_offset:
                data += frame.data
                next_offset = frame.header.next_offset
    return data


def decoded(data: bytes) -> list[Record]:
    return [
        record._replace(headers=tuple(record.headers))
        for batch in decode(data, where="fetched")
        for record in to_records(batch)
    ]


def dump_log(stack: Stack, file: Path) -> str:
    """Return the output of Kafka's own tool for a file of record batches. Deep iteration decompresses the records."""
    command = [str(stack.java.binary), "-XX:TieredStopAtLevel=1", "-cp", f"{stack.kafka.jars}/*"]
    command += ["kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_decode_returns_what_other_clients_consume(
    stack: Stack, topic_name: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(stack, topic_name)
    produce_edge_cases(producer(stack, compression_type=codec), topic_name, 900)
    data, by_kafka_python = fetch(stack, topic_name, monkeypatch)
    by_confluent = consumed_by_confluent(stack, topic_name)
    assert len(by_confluent) == 900
    assert decoded(data) == by_confluent
    assert decoded(data) == by_kafka_python
    assert Codec[codec.upper()] in {frame.header.codec for frame in frames(data, where="fetched")}


def test_large_messages_are_decoded(stack: Stack, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(stack, topic_name, max_message_bytes=str(4 << 20))
    sender = producer(stack, compression_type="zstd", message_max_bytes=4 << 20)
    noise = np.random.default_rng(3).bytes(3 << 20)
    for value in (noise[: 1 << 20], noise, b"z" * (3 << 20)):
        sender.produce(topic_name, partition=0, value=value)
    sender.flush(30)
    data, _ = fetch(stack, topic_name, monkeypatch)
    assert decoded(data) == consumed_by_confluent(stack, topic_name)
    assert [len(record.value or b"") for record in decoded(data)] == [1 << 20, 3 << 20, 3 << 20]


def test_log_append_time_of_the_broker_is_decoded(
    stack: Stack, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(stack, topic_name, message_timestamp_type="LogAppendTime")
    produce_edge_cases(producer(stack, compression_type="lz4"), topic_name, 20)
    data, by_kafka_python = fetch(stack, topic_name, monkeypatch)
    assert decoded(data) == consumed_by_confluent(stack, topic_name) == by_kafka_python
    assert min(record.timestamp_ms for record in decoded(data)) > 1_700_000_000_020


@pytest.mark.deep
def test_commit_and_abort_markers_are_distinguished(
    stack: Stack, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(stack, topic_name)
    sender = producer(stack, transactional_id=topic_name, compression_type="zstd")
    sender.init_transactions(60)
    for start, commit in ((0, True), (100, False), (200, True)):
        sender.begin_transaction()
        produce_edge_cases(sender, topic_name, 100, start=start)
        if commit:
            sender.commit_transaction(60)
        else:
            sender.abort_transaction(60)
    data, _ = fetch(stack, topic_name, monkeypatch)
    found = list(frames(data, where="fetched"))
    assert [control_type(frame, "fetched") for frame in found if frame.header.is_control] == [
        ControlType.COMMIT,
        ControlType.ABORT,
        ControlType.COMMIT,
    ]
    assert all(frame.header.is_transactional for frame in found)
    assert len({frame.header.producer_id for frame in found}) == 1
    assert decoded(data) == consumed_by_confluent(stack, topic_name)
    assert len(decoded(data)) == 300


def test_compacted_topic_with_missing_offsets_and_empty_batches(
    stack: Stack, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(
        stack,
        topic_name,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="100",
        delete_retention_ms="60000",
    )
    # The cleaner keeps the last batch of an idempotent producer even if newer keys supersede all its records.
    superseded = producer(stack, enable_idempotence=True)
    superseded.produce(topic_name, partition=0, key=b"key-1", value=b"superseded")
    superseded.flush(30)
    sender = producer(stack, compression_type="zstd", enable_idempotence=True)
    deadline, round_ = time.monotonic() + 100, 0
    while True:
        for i in range(30):
            key = b"repeated-%d" % (i % 7) if i % 2 else b"once-%d-%d" % (round_, i)
            sender.produce(topic_name, partition=0, key=key, value=None if i == 4 else b"v%d" % round_ * 30)
        sender.produce(topic_name, partition=0, key=b"key-1", value=b"supersedes")
        sender.flush(30)
        round_ += 1
        data, by_kafka_python = fetch(stack, topic_name, monkeypatch)
        found = list(frames(data, where="fetched"))
        # The horizon is set when tombstones are first cleaned.
        if found[0].header.record_count == 0 and any(frame.header.has_delete_horizon for frame in found):
            break
        assert time.monotonic() < deadline, "the log cleaner did not run"
        time.sleep(1)
    assert any(not frame.header.is_dense for frame in found)
    assert decoded(data) == by_kafka_python
    offsets = [offset for array in decode_offsets(data, where="fetched") for offset in array.tolist()]
    assert offsets == [record.offset for record in by_kafka_python]
    assert any(b - a > 1 for a, b in pairwise(offsets))
    for frame in found:
        check_crc(frame, "fetched")


@pytest.mark.deep
def test_kafkas_own_tool_accepts_archived_and_encoded_batches(
    stack: Stack, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has fetched batches, encoded batches of every codec, control records and an empty batch at the end."""
    create_topic(stack, topic_name)
    produce_edge_cases(producer(stack, compression_type="snappy"), topic_name, 90)
    data, _ = fetch(stack, topic_name, monkeypatch)
    offset = list(frames(data, where="fetched"))[-1].header.next_offset
    assert offset == 90
    for codec in Codec:
        records = [Record(offset + 2 * i, 1_700_000_000_000, b"ours", b"x" * 90, (("a", None),)) for i in range(5)]
        data += encode_batch(records, codec=codec, next_offset=offset + 20)
        offset += 20
    data += control_batch(offset, ControlType.ABORT, timestamp_ms=1, producer_id=9, producer_epoch=0)
    data += empty_batch(offset + 1, offset + 1000, leader_epoch=0, max_timestamp_ms=1_700_000_000_000)
    file = tmp_path / f"{0:020}.log"
    file.write_bytes(data)
    dump = dump_log(stack, file)
    assert "isvalid: false" not in dump
    batches = [line for line in dump.splitlines() if line.startswith("baseOffset: ")]
    assert len(batches) == len(list(frames(data, where="file")))
    assert all("isvalid: true" in line for line in batches)
    assert f"baseOffset: {offset + 1} lastOffset: {offset + 999} count: 0 " in batches[-1]
    assert "endTxnMarker: ABORT" in dump
    assert dump.count("payload: " + "x" * 90) == 5 * len(Codec)
    assert "Found bytes" not in dump  # the tool prints "Found N invalid bytes at the end of" for a truncated file


@pytest.mark.deep
def test_kafkas_own_tool_reads_accepted_batches_of_the_fuzzer_alike(stack: Stack, tmp_path: Path) -> None:
    """Records that were changed behind a valid CRC: Kafka finds the same offsets, times and sizes as Waybill."""
    log, expected, next_offset = [], [], 0
    for number in range(20):
        for batch, records in accepted_batches(BATCHES.inputs(1, number)):
            header = read_header(batch, 0, "fuzz")
            if header.is_control:  # the tool prints the type of a marker, and no record
                continue
            log.append(at_offset(batch, next_offset))
            moved = next_offset - header.base_offset
            expected += [(each.offset + moved, each.timestamp_ms, size(each.key), size(each.value)) for each in records]
            next_offset += header.last_offset_delta + 1
    assert len(log) > 1_000
    file = tmp_path / f"{0:020}.log"
    file.write_bytes(b"".join(log))
    record = re.compile(r"^\| offset: (\d+) \w+: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)", re.MULTILINE)
    by_kafka = [tuple(map(int, each)) for each in record.findall(dump_log(stack, file))]
    assert [(offset, kept_ms(time_ms), *sizes) for offset, time_ms, *sizes in by_kafka] == expected


def size(part: bytes | None) -> int:
    return -1 if part is None else len(part)
