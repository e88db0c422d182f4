"""Restores to Kafka: every message once, as it was, checked by other clients; and what a preflight refuses."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from archived_stream import WAYBILL, ArchivedStream
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from restore_scenes import alter_config, config_of, consume, create_topic, target_topic

from devstack import Stack
from devstack.jars import JarSet, resolve
from waybill.archive.chain.topic_settings import TopicSettings, record_topic_settings
from waybill.base.errors import ChainBroken, CorruptBatch
from waybill.config import names
from waybill.watch.ledger.signature import SignatureCheck, check_signed

pytestmark = pytest.mark.integration

_KAFKA_TOOLS = JarSet("kafka-tools", ("org.apache.kafka:kafka-tools:4.1.0",), size_mb=40)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TO = ("--to", "kafka_default")
REASON = ("--reason", "test", "--by", "ann")


@pytest.fixture
def archived(stack: Stack, tmp_path: Path, topic_name: str) -> ArchivedStream:
    """A stream of two partitions with keys, headers, tombstones and every codec, in several objects each."""
    stream = ArchivedStream(tmp_path, topic_name, max_bytes="4KiB")
    produce_everything(stream, 600)
    stream.ingest()
    return stream


def produce_everything(stream: ArchivedStream, count: int, seed: int = 1) -> None:
    chosen = random.Random(seed)
    for codec in CODECS:
        producer = stream.producer(**{"compression.codec": codec, "linger.ms": 20, "batch.num.messages": 40})
        for number in range(count // len(CODECS)):
            headers = [("a", b"1"), ("a", None), ("empty", b"")][: number % 4]
            value = None if number % 17 == 0 else chosen.randbytes(chosen.randrange(120)) if number % 5 else b""
            producer.produce(
                stream.topic,
                value,
                None if number % 11 == 0 else f"{codec}-{number}".encode(),
                number % 2,
                timestamp=1_700_000_000_000 + number * 7,
                headers=headers,
            )
        assert producer.flush(30) == 0


def restored(stream: ArchivedStream, target: str, *options: str) -> str:
    """Restore into a topic, and return the restore's id."""
    ran = stream.waybill("restore", "run", stream.name, *TO, "--to-topic", target, *REASON, *options)
    assert ran.code == 0, ran.err + ran.out
    return restore_id(stream)


def restore_id(stream: ArchivedStream) -> str:
    return str(stream.waybill("restore", "status", "--json").document[-1]["id"])


def test_restored_topic_has_the_same_messages_for_librdkafka_and_for_the_comparison(archived: ArchivedStream) -> None:
    with target_topic(archived) as target:
        restore = restored(archived, target)
        before, after = consume(archived.servers, archived.topic), consume(archived.servers, target)
        assert [message.without_offset() for message in after] == [message.without_offset() for message in before]
        assert {message.offset for message in after if message.partition == 0} == set(range(300))
        report = archived.waybill("restore", "verify", restore, "--json").document
        assert report["sound"] is True
        assert report["messages"] == len(before) == 600
        assert all(each["batches_compared_as_bytes"] > 5 for each in report["partitions"])
        assert all(each["sha256"] for partition in report["partitions"] for each in partition["objects"])
        again = archived.waybill("restore", "run", "--id", restore, "--json").document
        assert [each["messages"] for each in again["partitions"]] == [0, 0], "a second run has nothing to do"
        assert len(consume(archived.servers, target)) == 600


def test_whole_batches_are_produced_as_they_are_and_edges_are_encoded_again(archived: ArchivedStream) -> None:
    with target_topic(archived) as target:
        chosen = f"{archived.topic}/0@37-211"
        ran = archived.waybill(
            "restore", "run", archived.name, *TO, "--to-topic", target, *REASON, "--offsets", chosen, "--json"
        )
        assert ran.code == 0, ran.err
        [result] = ran.document["partitions"]
        assert result["messages"] == 175
        assert result["encoded_batches"] == 2
        before = [m for m in consume(archived.servers, archived.topic) if m.partition == 0 and 37 <= m.offset <= 211]
        after = consume(archived.servers, target)
        assert [m.without_offset() for m in after] == [m.without_offset() for m in before]


@pytest.mark.deep
def test_restore_up_to_a_time_ends_before_the_first_message_at_or_after_it(archived: ArchivedStream) -> None:
    with target_topic(archived) as target:
        restored(archived, target, "--until", "2023-11-14T22:13:20.350Z")
        before, after = consume(archived.servers, archived.topic), consume(archived.servers, target)
        expected = []
        for partition in (0, 1):
            for message in before:
                if message.partition == partition:
                    if message.timestamp[1] >= 1_700_000_000_350:
                        break
                    expected.append(message.without_offset())
        assert expected
        assert [message.without_offset() for message in after] == expected


def test_transactional_messages_are_restored_without_aborted_ones_and_markers(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    producer = stream.producer(**{"transactional.id": topic_name})
    producer.init_transactions(30)
    for number in range(30):
        producer.begin_transaction()
        for each in range(5):
            producer.produce(topic_name, f"{number}-{each}".encode(), b"k", 0)
        producer.abort_transaction(30) if number % 3 == 0 else producer.commit_transaction(30)
    stream.ingest()
    with target_topic(stream) as target:
        restore = restored(stream, target)
        before = consume(stream.servers, topic_name, isolation="read_committed")
        after = consume(stream.servers, target)
        assert [m.without_offset() for m in after] == [m.without_offset() for m in before]
        assert [m.offset for m in after] == list(range(100)), "the target has no markers and no gaps"
        assert stream.waybill("restore", "verify", restore).code == 0


@pytest.mark.deep
def test_append_time_and_recompressing_target_keep_what_consumers_see(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    stream = ArchivedStream(tmp_path, topic_name, partitions=1, topic_config=config)
    stream.produce_events(50)
    stream.ingest()
    with target_topic(stream, compression_type="gzip") as target:
        restore = restored(stream, target)
        before, after = consume(stream.servers, topic_name), consume(stream.servers, target)
        assert [m.timestamp[1] for m in after] == [m.timestamp[1] for m in before]
        assert [m[3:] for m in after] == [m[3:] for m in before]
        report = stream.waybill("restore", "verify", restore, "--json").document
        assert (report["sound"], report["messages"]) == (True, 50)
        assert report["partitions"][0]["batches_compared_as_bytes"] == 0, "the target compresses anew"


def test_consumer_continues_in_the_target_at_exactly_its_next_message(archived: ArchivedStream) -> None:
    group = f"readers-{archived.topic}"
    source = Consumer({"bootstrap.servers": archived.servers, "group.id": group, "enable.auto.commit": False})
    source.commit(
        offsets=[TopicPartition(archived.topic, 0, 120), TopicPartition(archived.topic, 1, 300)], asynchronous=False
    )
    source.close()
    with target_topic(archived) as target:
        restore = restored(
            archived, target, "--offsets", f"{archived.topic}/0@100-", "--offsets", f"{archived.topic}/1@-"
        )
        planned = archived.waybill("restore", "groups", restore, "--group", group, "--json").document
        assert [(each["target_offset"], each["state"]) for each in planned] == [(20, "planned"), (300, "planned")]
        done = archived.waybill("restore", "groups", restore, "--group", group, "--commit", "--json").document
        assert [each["state"] for each in done] == ["committed", "committed"]
        reader = Consumer({"bootstrap.servers": archived.servers, "group.id": group, "auto.offset.reset": "error"})
        reader.subscribe([target])
        message = reader.poll(30)
        reader.close()
        assert message is not None
        assert (message.partition(), message.offset()) == (0, 20)
        expected = [m for m in consume(archived.servers, archived.topic) if (m.partition, m.offset) == (0, 120)]
        assert [(message.key(), message.value())] == [(m.key, m.value) for m in expected]
        # The reader may have committed. A group that is further on stays there.
        ahead = Consumer({"bootstrap.servers": archived.servers, "group.id": group, "enable.auto.commit": False})
        ahead.commit(offsets=[TopicPartition(target, 0, 150)], asynchronous=False)
        ahead.close()
        kept = archived.waybill("restore", "groups", restore, "--group", group, "--commit", "--json").document
        assert kept[0]["state"] == "backwards"


def damage(stream: ArchivedStream, key: str, data: bytes) -> None:
    with stream.store() as store:
        store.client.put_object(Bucket=store.bucket, Key=key, Body=data)


@pytest.mark.parametrize(
    "kind", ["flipped", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("swapped", "missing", "short"))]
)
def test_damaged_object_stops_the_restore_and_is_named_and_nothing_behind_it_is_produced(
    archived: ArchivedStream, kind: str
) -> None:
    keys = archived.object_keys(0)
    assert len(keys) > 3
    with archived.store() as store, target_topic(archived) as target:
        whole = store.read(keys[1])
        first = names.BackupName.parse(keys[1]).first_offset
        behind = names.BackupName.parse(keys[2]).first_offset
        if kind == "swapped":
            damage(archived, keys[1], store.read(keys[2]))
        elif kind == "flipped":
            damage(archived, keys[1], whole[:-1] + bytes([whole[-1] ^ 1]))
        elif kind == "short":
            from waybill.records.batches import frames

            damage(archived, keys[1], b"".join(frame.data for frame in list(frames(whole, where="x"))[:-1]))
        else:
            store.remove(keys[1])
        ran = archived.waybill("restore", "run", archived.name, *TO, "--to-topic", target, *REASON, "--json")
        assert ran.code == 1
        broken, sound = ran.document["partitions"]
        named = keys[0] if kind == "missing" else keys[1]
        assert named in broken["error"], broken["error"]
        assert sound["complete"], "the other topic-partition is restored"
        produced = [m for m in consume(archived.servers, target) if m.partition == 0]
        assert first <= len(produced) < behind or (kind == "missing" and len(produced) == first)
        assert [m.offset for m in produced] == list(range(len(produced)))
        damage(archived, keys[1], whole)
        assert archived.waybill("restore", "run", "--id", restore_id(archived)).code == 0
        assert archived.waybill("restore", "verify", restore_id(archived)).code == 0
        assert len(consume(archived.servers, target)) == 600


def plan(stream: ArchivedStream, target: str, *options: str) -> Any:
    return stream.waybill("restore", "plan", stream.name, *TO, "--to-topic", target, *options, "--json")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("config", "problem", "remedy"),
    [
        ({"message_timestamp_type": "LogAppendTime"}, "message.timestamp.type=LogAppendTime", "CreateTime"),
        ({"retention_ms": "86400000"}, "it would be deleted on arrival", "--suspend-cleanup"),
        ({"cleanup_policy": "compact"}, "is compacted", "--suspend-cleanup"),
        ({"message_timestamp_before_max_ms": "86400000"}, "refuses messages older than 1d", "message.timestamp.before"),
    ],
)
def test_preflight_refuses_a_target_that_would_lose_messages(
    archived: ArchivedStream, config: dict[str, str], problem: str, remedy: str
) -> None:
    with target_topic(archived, **config) as target:
        ran = plan(archived, target)
        assert ran.code == 1
        [found] = ran.document["problems"]
        assert problem in found["what"]
        assert remedy in found["remedy"]
        refused = archived.waybill("restore", "run", archived.name, *TO, "--to-topic", target, *REASON)
        assert refused.code == 1
        assert problem in refused.err
        assert consume(archived.servers, target) == []


@pytest.mark.deep
def test_preflight_refuses_too_few_partitions_foreign_messages_and_its_own_source(archived: ArchivedStream) -> None:
    create_topic(archived.servers, f"{archived.topic}-narrow", 1)
    assert "has 1 partitions, and the archive needs 2" in str(plan(archived, f"{archived.topic}-narrow").document)
    with target_topic(archived) as target:
        producer = archived.producer()
        producer.produce(target, b"somebody's", partition=1)
        assert producer.flush(30) == 0
        [found] = plan(archived, target).document["problems"]
        assert "is not empty: it has offsets 0–0" in found["what"]
    assert "would be archived again" in str(plan(archived, archived.topic).document)
    missing = plan(archived, "no-such-topic")
    assert "does not exist" in str(missing.document)
    assert plan(archived, "no-such-topic", "--create").code == 0


@pytest.mark.deep
def test_target_keeps_everything_while_the_restore_runs_and_its_own_config_comes_back(archived: ArchivedStream) -> None:
    with target_topic(archived, retention_ms="86400000", cleanup_policy="compact") as target:
        ran = archived.waybill("restore", "run", archived.name, *TO, "--to-topic", target, *REASON, "--suspend-cleanup")
        assert ran.code == 0, ran.err
        config = config_of(archived.servers, target)
        assert (config["retention.ms"], config["cleanup.policy"]) == ("86400000", "compact")


@pytest.mark.deep
def test_created_topic_has_as_many_partitions_as_the_archived_one(archived: ArchivedStream) -> None:
    name = f"created-{archived.topic}"
    restored(archived, name, "--create", "--replication-factor", "1", "--topic-partition", f"{archived.topic}/0")
    found = consume(archived.servers, name)
    assert len(found) == 300
    assert {message.partition for message in found} == {0}


@pytest.mark.deep
def test_foreign_producer_in_the_target_stops_the_restore(archived: ArchivedStream) -> None:
    with target_topic(archived) as target:
        restore = restored(archived, target, "--offsets", f"{archived.topic}/0@0-99")
        producer = Producer({"bootstrap.servers": archived.servers})
        producer.produce(target, b"foreign", partition=0)
        assert producer.flush(30) == 0
        ran = archived.waybill("restore", "run", "--id", restore, "--json")
        assert ran.code == 1
        assert "another producer writes to the topic" in ran.document["partitions"][0]["error"]
        verified = archived.waybill("restore", "verify", restore)
        assert verified.code == 1
        assert "the target has more messages than the archive, from offset 100 on" in verified.out.replace("\n", " ")


@pytest.mark.deep
def test_recreated_target_is_refused(archived: ArchivedStream) -> None:
    with target_topic(archived) as target:
        restore = restored(archived, target)
    time.sleep(1)
    create_topic(archived.servers, target, 2)
    ran = archived.waybill("restore", "run", "--id", restore)
    assert ran.code == 1
    assert "was deleted and created again" in ran.err


@pytest.mark.deep
def test_sigterm_ends_a_restore_with_an_error_code_and_says_how_far_it_came(archived: ArchivedStream) -> None:
    with target_topic(archived) as target:
        environment = {
            **os.environ,
            "WAYBILL_CONFIG": str(archived.file),
            "WAYBILL_FAILPOINTS": "restore.position_read=sleep:4",
        }
        command = [WAYBILL, "restore", "run", archived.name, *TO, "--to-topic", target, *REASON, "--json"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while (
            not archived.waybill("restore", "status", "--json").out.strip().startswith("[{")
            and time.monotonic() < deadline
        ):
            if archived.waybill("restore", "status", "--json").document:
                break
            time.sleep(0.2)
        time.sleep(2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1, err
        document = json.loads(out)
        assert document["stopped"] is True
        restore = document["restore"]
        assert archived.waybill("restore", "run", "--id", restore).code == 0
        assert archived.waybill("restore", "verify", restore).code == 0


@pytest.mark.deep
def test_compacted_topic_is_restored_without_its_missing_offsets(stack: Stack, tmp_path: Path, topic_name: str) -> None:
    compacted = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "300",
        "delete.retention.ms": "100",
    }
    stream = ArchivedStream(tmp_path, topic_name, partitions=1, topic_config=compacted)
    for round_number in range(3):
        producer = stream.producer()
        for number in range(40):
            producer.produce(topic_name, f"{round_number}".encode(), f"k{number % (8 + round_number)}".encode(), 0)
        assert producer.flush(30) == 0
        time.sleep(0.4)
    deadline = time.monotonic() + 60
    while len(consume(stream.servers, topic_name)) > 60 and time.monotonic() < deadline:
        time.sleep(0.5)
    stream.ingest()
    before = consume(stream.servers, topic_name)
    with target_topic(stream) as target:
        restore = restored(stream, target)
        after = consume(stream.servers, target)
        assert [m.offset for m in after] == list(range(len(after)))
        verified = stream.waybill("restore", "verify", restore, "--json").document
        assert verified["sound"] is True
        # Compaction goes on after the archive was written: what is left of the topic is in the archive.
        kept = {m.without_offset() for m in after}
        assert {m.without_offset() for m in before} <= kept
        assert len(before) < 120


@pytest.mark.deep
def test_other_clients_read_the_restored_topic_as_the_original(stack: Stack, archived: ArchivedStream) -> None:
    with target_topic(archived) as target:
        restored(archived, target)
        for read in (read_with_aiokafka, read_with_console_consumer):
            original, copy = read(stack, archived.topic), read(stack, target)
            assert len(original) == 600
            assert sorted(copy) == sorted(original)


def read_with_aiokafka(stack: Stack, topic: str) -> list[str]:
    """Return partition, timestamp, key, value and headers of each message, as text."""

    async def read() -> list[str]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=stack.bootstrap_servers, enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [aiokafka.TopicPartition(topic, number) for number in (0, 1)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
            found: list[str] = []
            while len(found) < sum(ends.values()):
                for messages in (await consumer.getmany(timeout_ms=1000)).values():
                    found += [repr((m.partition, m.timestamp, m.key, m.value, m.headers)) for m in messages]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(read(), 60))


def read_with_console_consumer(stack: Stack, topic: str) -> list[str]:
    """Return the lines of Kafka's own console consumer."""
    tools = resolve(_KAFKA_TOOLS, stack.java)
    command = [str(stack.java.binary), "-XX:TieredStopAtLevel=1", "-cp", f"{tools}/*"]
    command += ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", stack.bootstrap_servers]
    command += ["--topic", topic, "--from-beginning", "--max-messages", "600", "--timeout-ms", "30000"]
    for name in ("key", "headers", "timestamp", "partition"):
        command += ["--property", f"print.{name}=true"]
    command += ["--property", "line.separator=\u0001\n", "--property", "null.literal=NULL"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.decode("latin-1").split("\u0001\n")[:-1]


def rehearsal(stream: ArchivedStream, seed: str) -> Any:
    from waybill.archive.restore import rehearse

    return rehearse(stream.config, seed)


def test_rehearsal_restores_a_range_compares_it_and_leaves_no_topic(archived: ArchivedStream) -> None:
    found = rehearsal(archived, "night 1")
    assert found.messages == found.next_offset - found.first_offset > 0
    assert found.recovery_seconds > 0
    topics = AdminClient({"bootstrap.servers": archived.servers}).list_topics(timeout=30).topics
    assert not [name for name in topics if name.startswith("waybill-rehearsal-")]
    with archived.store() as store:
        [key] = [key for key in store.keys(f"{store.prefix}/restores/") if key.endswith("rehearsal.json")]
        assert json.loads(store.read(key))["messages"] == found.messages


def test_rehearsal_names_the_object_and_the_offset_of_one_flipped_bit(archived: ArchivedStream) -> None:
    for partition in (0, 1):
        for key in archived.object_keys(partition):
            with archived.store() as store:
                data = store.read(key)
            damage(archived, key, data[:-1] + bytes([data[-1] ^ 1]))
    named = r"backup/.*_[0-9]{20}\.kafka.*CRC-32C of the batch at offset [0-9]+"
    with pytest.raises((CorruptBatch, ChainBroken), match=named):
        rehearsal(archived, "night 2")


@pytest.mark.deep
def test_watch_archives_the_settings_of_topics_and_create_makes_the_topic_as_it_was(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    stream = ArchivedStream(tmp_path, topic_name, partitions=3, topic_config={"max.message.bytes": "2000000"})
    stream.produce_events(20)
    stream.ingest()
    assert stream.waybill("watch").code in (0, 1)
    name = f"as-it-was-{topic_name}"
    restored(stream, name, "--create")
    config = config_of(stream.servers, name)
    assert (config["max.message.bytes"], config["retention.ms"]) == ("2000000", "-1")
    assert {message.partition for message in consume(stream.servers, name)} == {0}
    topics = AdminClient({"bootstrap.servers": stream.servers}).list_topics(name, timeout=30).topics
    assert len(topics[name].partitions) == 3


@pytest.mark.deep
def test_signed_report_says_what_was_compared(archived: ArchivedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Ed25519PrivateKey.generate()
    secret = b64encode(key.private_bytes_raw()).decode()
    monkeypatch.setenv("AIRFLOW_CONN_WAYBILL_SIGNING", json.dumps({"conn_type": "generic", "password": secret}))
    with target_topic(archived) as target:
        restore = restored(archived, target)
        signed = archived.waybill("restore", "verify", restore, "--sign", "waybill_signing").document
        assert check_signed(signed, key.public_key(), "report") is SignatureCheck.VALID
        assert secret not in json.dumps(signed)
        signed["report"]["messages"] += 1
        assert check_signed(signed, key.public_key(), "report") is SignatureCheck.CHANGED


def test_message_stamped_ahead_is_refused_and_named_and_restored_after_the_config_is_raised(
    stack: Stack, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
    stream = ArchivedStream(tmp_path, topic_name, partitions=1, topic_config=unlimited)
    ahead_ms = int(time.time() * 1000) + 2 * 3_600_000
    producer = stream.producer(**{"compression.codec": "zstd", "linger.ms": 200})
    for number in range(20):
        timestamp = ahead_ms if number == 13 else 1_700_000_000_000
        producer.produce(stream.topic, f"{number}".encode(), b"k", 0, timestamp=timestamp)
        if number == 9:
            assert producer.flush(30) == 0  # two batches at least
    assert producer.flush(30) == 0
    stream.ingest()
    with target_topic(stream) as target:
        ran = plan(stream, target)
        assert ran.code == 1
        [found] = [each for each in ran.document["problems"] if not each["warning"]]
        assert "message.timestamp.after.max.ms=3600000" in found["what"]
        assert f"({ahead_ms})" in found["what"]
        assert "Set message.timestamp.after.max.ms of the topic to 7" in found["remedy"]
        with monkeypatch.context() as patched:  # as if an estimate had missed the message
            patched.setattr("waybill.archive.restore.preflight.check_topic", lambda *_: iter(()))
            stopped = stream.waybill("restore", "run", stream.name, *TO, "--to-topic", target, *REASON, "--json")
        assert stopped.code == 1
        error = stopped.document["partitions"][0]["error"]
        assert f"the message at archived offset 13 of {stream.topic}/0" in error
        assert f"({ahead_ms})" in error
        assert "InvalidTimestampError" in error
        assert "message.timestamp.after.max.ms of the topic to more than 7" in error
        assert "(it is 3600000)" in error
        assert [message.offset for message in consume(stream.servers, target)] == list(range(10))
        alter_config(stream.servers, target, **unlimited)
        restore = restore_id(stream)
        assert stream.waybill("restore", "run", "--id", restore).code == 0
        assert stream.waybill("restore", "verify", restore).code == 0
        before, after = consume(stream.servers, stream.topic), consume(stream.servers, target)
        assert [message.without_offset() for message in after] == [message.without_offset() for message in before]


def test_topic_archived_with_append_time_is_created_with_create_time_until_everything_is_restored(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "2000000"}
    stream = ArchivedStream(tmp_path, topic_name, partitions=1, topic_config=config)
    stream.produce_events(50)
    stream.ingest()
    with stream.store() as store:
        archived = {**config, "message.format.version": "2.8"}  # Kafka 4 does not know it
        record_topic_settings(store, TopicSettings(stream.topic, "an-id", 1, archived), 1)
    name = f"created-{topic_name}"
    planned = plan(stream, name, "--create")
    assert planned.code == 0, planned.err
    texts = [each["what"] for each in planned.document["problems"]]
    assert any("message.timestamp.type=CreateTime, not LogAppendTime" in text for text in texts), texts
    assert any("without message.format.version=2.8" in text for text in texts), texts
    assert planned.document["creates"][name]["message.timestamp.type"] == "CreateTime"
    ran = stream.waybill("restore", "run", stream.name, *TO, "--to-topic", name, "--create", *REASON)
    assert ran.code == 0, ran.err
    assert "message.timestamp.type=CreateTime, not LogAppendTime" in ran.err.replace("\n", " ")
    restore = restore_id(stream)
    [document] = stream.waybill("restore", "status", restore, "--json").document
    assert any("not LogAppendTime" in text for text in document["warnings"])
    before, after = consume(stream.servers, stream.topic), consume(stream.servers, name)
    assert [m.timestamp[1] for m in after] == [m.timestamp[1] for m in before]
    assert {m.timestamp[0] for m in after} == {1}, "CreateTime"
    found = config_of(stream.servers, name)
    assert (found["message.timestamp.type"], found["max.message.bytes"]) == ("LogAppendTime", "2000000")
    assert stream.waybill("restore", "verify", restore).code == 0


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({}, ("--replication-factor", "9"), "InvalidReplicationFactorError"),
        ({"max.message.bytes": "300"}, (), "refuses batches of more than 300 bytes (max.message.bytes)"),
        ({"retention.bytes": "1000"}, (), "keeps 1000 bytes of each partition"),
    ],
)
def test_topic_that_cannot_be_created_or_would_lose_messages_is_refused_by_the_targets_own_answer(
    archived: ArchivedStream, config: dict[str, str], options: tuple[str, ...], expected: str
) -> None:
    with archived.store() as store:
        record_topic_settings(store, TopicSettings(archived.topic, "an-id", 2, config), 1)
    ran = plan(archived, f"none-{archived.topic}", "--create", *options)
    assert ran.code == 1
    refused = [each["what"] for each in ran.document["problems"] if not each["warning"]]
    assert any(expected in text for text in refused), refused
    topics = AdminClient({"bootstrap.servers": archived.servers}).list_topics(timeout=30).topics
    assert f"none-{archived.topic}" not in topics
