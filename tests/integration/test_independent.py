"""Archive and tables compared with what tools other than Waybill read.

One topic with everything that is awkward goes the whole way: ingest lanes, then the Spark job. What confluent-kafka
reads straight from Kafka must be what the backup objects decode to, and what the tables hold. Kafka's own
DumpLogSegments must accept every object, DuckDB must read the tables' files, and `waybill verify` must agree.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pytest
from archived_stream import ArchivedStream
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from devstack import Stack
from waybill.config.names import BackupName
from waybill.records.batches.decode import decode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
JOB = Path(__file__).parents[2] / "spark_jobs" / "partition.py"


class Message(NamedTuple):
    """A message with the fields that Kafka stores."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@pytest.fixture(scope="module")
def archived(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> ArchivedStream:
    """The topic, archived in several runs and partitioned in two, the second by the Spark job."""
    directory = tmp_path_factory.mktemp("independent")
    stream = ArchivedStream(directory, f"independent-{time.time_ns():x}", partitions=PARTITIONS, max_bytes="100KiB")
    source = random.Random(20130101)
    for part in range(3):
        produce_awkward(stream, source, 400)
        produce_transactions(stream, f"{stream.topic}-{part}")
        stream.ingest()
        if part == 1:
            stream.partition()
    partition_by_spark(stream)
    return stream


def produce_awkward(stream: ArchivedStream, source: random.Random, count: int) -> None:
    """Messages of every kind from a producer of each codec."""
    for codec in CODECS:
        producer = stream.producer(**{"compression.type": codec})
        for _ in range(count):
            produce_one(producer, stream.topic, source)
        assert producer.flush(60) == 0


def produce_one(producer: Producer, topic: str, source: random.Random) -> None:
    moment = datetime(2013, 1, 1 + source.randrange(5), source.randrange(24), tzinfo=UTC)
    event = {"id": f"{source.getrandbits(64):x}", "time": moment.isoformat(), "text": "ä" * source.randrange(200)}
    good = json.dumps(event).encode()
    values = [b"", b"not json", b"\xff\xfe", b"[1]", b'{"id": "no time"}', b'{"time": "yesterday"}', good[:-1], None]
    headers = [
        [],
        [("trace", source.randbytes(8))],
        [("again", b"1"), ("again", b"2"), ("again", b"1")],
        [("null", None), ("empty", b""), ("ünï", "ö".encode())],
    ]
    producer.produce(
        topic,
        value=source.choice(values) if source.random() < 0.2 else good,
        key=source.choice([None, b"", b"k", source.randbytes(20)]),
        partition=source.randrange(PARTITIONS),
        headers=source.choice(headers),
        timestamp=source.choice([int(moment.timestamp() * 1000), 1_357_016_400_123, 0]),
    )
    producer.poll(0)


def produce_transactions(stream: ArchivedStream, name: str) -> None:
    """Produce transactions, alternately committed and aborted, between other messages; the last is aborted."""
    transactions = stream.producer(**{"transactional.id": name, "compression.type": "lz4"})
    others = stream.producer()
    transactions.init_transactions(60)
    for number in range(6):
        transactions.begin_transaction()
        for i in range(30):
            value = {"id": f"{name}-{number}-{i}", "time": "2013-01-02T00:00:00Z", "committed": number % 2 == 0}
            transactions.produce(stream.topic, json.dumps(value).encode(), partition=i % PARTITIONS)
            if i % 10 == 5:
                transactions.flush(30)
                others.produce(stream.topic, json.dumps(value | {"id": f"o-{number}-{i}"}).encode(), partition=i % 3)
                others.flush(30)
        if number % 2:
            transactions.abort_transaction(60)
        else:
            transactions.commit_transaction(60)


def partition_by_spark(stream: ArchivedStream) -> None:
    # Many messages of the topic go to quarantine on purpose, so the alert must not fail the run.
    command = [sys.executable, str(JOB), "--stream", stream.name, "--config", str(stream.file), "--no-alerts"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]


# --- the same messages, read in four ways -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_kafka(archived: ArchivedStream) -> list[Message]:
    """Return the messages that confluent-kafka reads from Kafka with read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": archived.servers,
            "group.id": archived.topic,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([KafkaTopicPartition(archived.topic, partition, 0) for partition in range(PARTITIONS)])
    found, ended = [], set[int]()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "Kafka fell silent"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
            continue
        headers = tuple((key, value) for key, value in message.headers() or ())
        found.append(
            Message(
                message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(), headers
            )
        )
    consumer.close()
    return sorted(found, key=lambda m: m[:2])


def test_the_topic_has_messages_of_every_kind(in_kafka: list[Message]) -> None:
    """The other tests depend on it."""
    assert len(in_kafka) > 6000
    assert {m.key for m in in_kafka} >= {None, b"", b"k"}
    assert {m.value for m in in_kafka} >= {None, b"", b"not json"}
    headers = {header for m in in_kafka for header in m.headers}
    assert {("null", None), ("empty", b""), ("again", b"1"), ("ünï", "ö".encode())} <= headers
    assert any(len(m.headers) == 3 and m.headers[0] == m.headers[2] for m in in_kafka)
    for partition in range(PARTITIONS):
        offsets = [m.offset for m in in_kafka if m.partition == partition]
        assert len(offsets) < offsets[-1] - offsets[0] + 1, "no offset was left out"


def test_backup_objects_hold_the_same_messages(archived: ArchivedStream, in_kafka: list[Message]) -> None:
    assert list(in_backup(archived)) == in_kafka


def in_backup(archived: ArchivedStream) -> Iterator[Message]:
    with archived.store() as store:
        for partition in range(PARTITIONS):
            keys = [found.key for found in store.list_chain(archived.topic, 1, partition)]
            assert len(keys) >= 3
            for key in keys:
                for batch in decode(store.read(key), where=key, first_offset=BackupName.parse(key).first_offset):
                    yield from rows_of(batch, partition, "timestamp")


def rows_of(batch: pa.RecordBatch | pa.Table, partition: int | None, timestamp: str) -> Iterator[Message]:
    microseconds = batch.column(timestamp).cast(pa.int64())
    partitions = [partition] * batch.num_rows if partition is not None else batch.column("partition").to_pylist()
    columns = [microseconds, *(batch.column(name) for name in ("offset", "key", "value", "headers"))]
    for p, us, offset, key, value, headers in zip(partitions, *(c.to_pylist() for c in columns), strict=True):
        assert us % 1000 == 0
        yield Message(p, offset, us // 1000, key, value, tuple((h["key"], h["value"]) for h in headers))


def test_the_tables_hold_the_same_messages(archived: ArchivedStream, in_kafka: list[Message]) -> None:
    with archived.tables() as tables:
        main, quarantine = tables.main.scan().to_arrow(), tables.quarantine.scan().to_arrow()
    found = [message for rows in (main, quarantine) for message in rows_of(rows, None, "kafka_timestamp")]
    assert sorted(found, key=lambda m: m[:2]) == in_kafka
    assert quarantine.num_rows > 500
    assert set(main.column("topic").to_pylist()) == {archived.topic}


def test_parsable_messages_are_in_the_table_and_others_in_quarantine(archived: ArchivedStream) -> None:
    """A message is in the table if it is a tombstone or a JSON object with a time, else in quarantine with a reason."""
    with archived.tables() as tables:
        main, quarantine = tables.main.scan().to_arrow(), tables.quarantine.scan().to_arrow()
    assert all(value is None or has_time(value) for value in main.column("value").to_pylist())
    assert not any(value is None or has_time(value) for value in quarantine.column("value").to_pylist())
    assert all(quarantine.column("reason").to_pylist())
    for value, event_time, kafka_time in zip(
        *(main.column(name).to_pylist() for name in ("value", "event_time", "kafka_timestamp")), strict=True
    ):
        expected = kafka_time if value is None else datetime.fromisoformat(json.loads(value)["time"])
        assert event_time == expected


def has_time(value: bytes) -> bool:
    try:
        datetime.fromisoformat(json.loads(value)["time"])
    except (ValueError, KeyError, TypeError):
        return False
    return True


def test_duckdb_reads_the_tables_files(archived: ArchivedStream, in_kafka: list[Message], tmp_path: Path) -> None:
    """DuckDB has its own Parquet reader, so the files are valid not only for pyarrow."""
    with archived.tables() as tables, archived.store() as store:
        paths = [
            task.file.file_path for table in (tables.main, tables.quarantine) for task in table.scan().plan_files()
        ]
        for number, path in enumerate(paths):
            data = store.read(path.removeprefix(f"s3://{store.bucket}/"))
            (tmp_path / f"{number}.parquet").write_bytes(data)
    with duckdb.connect() as database:
        rows = database.execute(
            'SELECT partition, "offset", epoch_ms(kafka_timestamp), key, value, headers '
            "FROM read_parquet(?, union_by_name = true) ORDER BY 1, 2",
            [str(tmp_path / "*.parquet")],
        ).fetchall()
    found = [Message(*row[:5], tuple((h["key"], h["value"]) for h in row[5])) for row in rows]
    assert found == in_kafka


def test_kafkas_own_tool_accepts_every_object(
    stack: Stack, archived: ArchivedStream, in_kafka: list[Message], tmp_path: Path
) -> None:
    files = []
    with archived.store() as store:
        for partition in range(PARTITIONS):
            for found in store.list_chain(archived.topic, 1, partition):
                file = tmp_path / f"{archived.topic}-{partition}" / f"{found.name.first_offset:020d}.log"
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(store.read(found.key))
                files.append(str(file))
    command = [str(stack.kafka.java.binary), "-cp", f"{stack.kafka.jars}/*", "kafka.tools.DumpLogSegments"]
    command += ["--deep-iteration", "--files", ",".join(files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    batches = re.findall(r"^baseOffset: .* isvalid: (\w+)", done.stdout, re.MULTILINE)
    assert len(batches) > len(files) >= 3 * PARTITIONS
    assert set(batches) == {"true"}
    assert len(re.findall(r"^\| offset: ", done.stdout, re.MULTILINE)) == len(in_kafka)
    assert "Found" not in done.stdout + done.stderr, done.stdout


def test_verify_reports_no_fault(archived: ArchivedStream, in_kafka: list[Message]) -> None:
    ran = archived.waybill("verify", "--json")
    assert ran.code == 0, ran.out
    (report,) = ran.document
    figures = report["figures"]
    assert (report["faults"], report["notes"]) == ([], [])
    assert figures["messages"] == len(in_kafka) == figures["rows"] + figures["quarantine"]
    assert (figures["chains"], figures["lost"], figures["repeated"], figures["waiting"]) == (PARTITIONS, 0, 0, 0)


def test_cat_prints_the_same_messages(archived: ArchivedStream, in_kafka: list[Message]) -> None:
    keys = archived.object_keys(1)
    lines = [json.loads(line) for key in keys for line in archived.waybill("cat", key).out.splitlines()]
    expected = [m for m in in_kafka if m.partition == 1]
    assert [line["offset"] for line in lines] == [m.offset for m in expected]
    assert [line["key"] for line in lines if isinstance(line["key"], str | None)] == [
        m.key.decode() if m.key is not None else None for m in expected if m.key is None or is_text(m.key)
    ]


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
