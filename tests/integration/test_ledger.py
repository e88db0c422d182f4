"""The ledger on the real stack, compared with consumers and readers that are not Waybill's."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from archived_stream import ArchivedStream, remove_rows
from backfill_scenes import FIRST, SECOND, Killed, build, die_at, promote, put, undo, use
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from ingest_scenes import Cluster
from partition_scenes import Scene, event, junk
from test_gaps import remove_committed_offset
from test_holds import hold, refuse_more_than_half, reject, release

from devstack import Stack
from waybill.base.errors import KafkaUnavailable
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.tables.dedup.execute import InThisProcess
from waybill.tables.dedup.sweep import run_sweep
from waybill.tables.partition import publication
from waybill.tables.partition.generations import promote_generation
from waybill.tables.staging.services import services_of
from waybill.watch.ledger import Ledger, read_ledger

pytestmark = pytest.mark.integration

TP = TopicPartition("flights", 0)


def add_to_config(stream: ArchivedStream, **settings: Any) -> None:
    document = yaml.safe_load(stream.file.read_text())
    document["streams"]["events"].update(settings)
    stream.file.write_text(yaml.safe_dump(document))


def ledger(stream: ArchivedStream, *options: str, code: int = 0) -> dict[str, Any]:
    ran = stream.waybill("ledger", "events", "--json", *options)
    assert ran.code == code, ran.out + ran.err
    return dict(ran.document)


def value(n: int, *, good: bool = True) -> bytes:
    return json.dumps({"id": f"e{n}", "time": "2026-01-01T00:00:00Z"}).encode() if good else b"{"


def produce_transactions(stream: ArchivedStream, cluster: Cluster) -> None:
    """Three committed transactions of ten messages, two aborted ones of five, in turn; and two messages in none."""
    producer = cluster.producer(transactional_id=stream.topic)
    producer.init_transactions(20)
    for n in range(5):
        producer.begin_transaction()
        for i in range(5 if n % 2 else 10):
            producer.produce(stream.topic, value(100 * n + i), partition=0)
        producer.flush(20)
        (producer.abort_transaction if n % 2 else producer.commit_transaction)(20)
    cluster.wait_for_markers(stream.tp())
    cluster.produce(stream.tp(), [(None, value(900)), (None, value(901, good=False))])


def test_ledger_of_transactions_equals_two_independent_consumers(
    stack: Stack, cluster: Cluster, tmp_path: Path, topic_name: str
) -> None:
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    produce_transactions(stream, cluster)
    stream.ingest()
    stream.partition()
    committed, all_messages = (cluster.messages(stream.tp(), level) for level in ("read_committed", "read_uncommitted"))

    (line,) = ledger(stream)["topic_partitions"]
    assert line["messages"] == len(committed) == 32
    assert line["aborted"] == len(all_messages) - len(committed) == 10
    assert line["control"] == 5, "one marker ends each transaction"
    assert line["offsets"] == line["messages"] + line["aborted"] + line["control"] == line["log_end_offset"]
    assert (line["removed_by_compaction"], line["reason_not_recorded"], line["not_archived"]) == (0, 0, 0)
    assert (line["tables"]["rows"], line["tables"]["quarantine"]) == (31, 1)

    (read,) = ledger(stream, "--read-objects")["topic_partitions"]
    assert read == line


def test_ledger_of_a_compacted_topic_equals_an_independent_consumer(
    stack: Stack, cluster: Cluster, tmp_path: Path, topic_name: str
) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "300",
        "delete.retention.ms": "100",
    }
    stream = ArchivedStream(tmp_path, topic_name, partitions=1, topic_config=settings)
    sent = 0
    for round_ in range(4):
        batch = [(b"%d" % (i % 5), value(100 * round_ + i)) for i in range(40)]
        cluster.produce(stream.tp(), batch, batch_num_messages=10)
        sent += len(batch)
        time.sleep(0.25)
    deadline = time.monotonic() + 25
    while len(before := cluster.messages(stream.tp())) > 60:
        assert time.monotonic() < deadline, "the log cleaner did not run"
        cluster.produce(stream.tp(), [(b"roll", value(sent))])
        sent += 1
        time.sleep(0.5)
    stream.ingest()
    after = cluster.messages(stream.tp())  # the cleaner may have run again
    stream.partition()

    (line,) = ledger(stream, "--read-objects")["topic_partitions"]
    assert len(after) <= line["messages"] <= len(before)
    assert line["removed_by_compaction"] == sent - line["messages"]
    assert (line["control"], line["aborted"]) == (0, 0)
    assert line["tables"]["rows"] == line["messages"]


def test_ledger_names_gaps_and_what_waits(stack: Stack, cluster: Cluster, tmp_path: Path, topic_name: str) -> None:
    stream = ArchivedStream(tmp_path, topic_name)
    stream.produce_events(10)
    stream.ingest()
    stream.partition()
    stream.produce_events(20, first=10)
    stream.produce_events(10, partition=1)
    cluster.delete_records(stream.tp(), before=25)
    assert stream.waybill("gaps", "accept", stream.topic, "0", "--reason", "disk", "--by", "ann").code == 0
    stream.ingest()
    stream.produce_events(3, first=100)

    found = ledger(stream)
    first, second = found["topic_partitions"]
    assert (first["offsets"], first["messages"], first["accepted_gaps"], first["not_archived"]) == (30, 15, 15, 3)
    (gap,) = first["gaps"]
    assert (gap["first_offset"], gap["next_offset"], gap["reason"], gap["accepted_by"]) == (10, 25, "disk", "ann")
    assert (first["tables"]["rows"], first["tables"]["waiting"]) == (10, 5)
    assert (second["tables"]["rows"], second["tables"]["waiting"]) == (0, 10)
    assert found["balanced"]
    lines = stream.waybill("ledger", "events").out.splitlines()
    assert f"accepted: {stream.tp()} offsets 10–24 (RetentionGap), by ann: disk" in lines
    assert lines[-1] == "balanced"


def test_ledger_needs_no_kafka(stack: Stack, tmp_path: Path, topic_name: str) -> None:
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    stream.produce_events(10)
    stream.ingest()
    away = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}})
    for ran in (
        stream.waybill("ledger", "events", "--json", AIRFLOW_CONN_KAFKA_DEFAULT=away),
        stream.waybill("ledger", "events", "--json", AIRFLOW_CONN_KAFKA_DEFAULT=None),
        stream.waybill("ledger", "events", "--json", "--no-kafka"),
    ):
        assert ran.code == 0, ran.err
        (line,) = ran.document["topic_partitions"]
        assert (line["messages"], line["log_end_offset"], line["not_archived"]) == (10, None, None)
        assert any(note.startswith("what is not archived yet is left out: ") for note in ran.document["notes"])


def test_missing_row_does_not_balance_and_names_the_topic_partition(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    stream = ArchivedStream(tmp_path, topic_name)
    for partition in range(2):
        stream.produce_events(10, partition=partition)
    stream.ingest()
    stream.partition()
    assert ledger(stream)["balanced"]
    with stream.tables() as tables:
        remove_rows(tables.main, 1, 3, 5)

    found = ledger(stream, code=1)
    (imbalance,) = found["imbalances"]
    assert (imbalance["partition"], imbalance["first_offset"], imbalance["next_offset"]) == (1, 0, 10)
    assert imbalance["what"] == "10 messages were archived there, and the tables have 8: 2 missing"
    ran = stream.waybill("ledger", "events")
    assert ran.code == 1
    assert f"does not balance: {stream.tp(1)} offsets 0–9: {imbalance['what']}" in ran.out.splitlines()


def test_offsets_archived_before_the_counts_are_not_known_until_the_objects_are_read(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    """ZooKeeper loses the committed offset, and with it what ingest has counted."""
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    stream.produce_events(10)
    stream.ingest()
    remove_committed_offset(stream)
    stream.produce_events(5, first=10)
    stream.ingest()
    stream.partition()

    found = ledger(stream)
    (line,) = found["topic_partitions"]
    assert (line["messages"], line["offsets"], line["tables"]["rows"]) == (None, 15, 15)
    (note,) = found["notes"]
    assert note.startswith(f"{stream.tp()}: the number of messages is not known, since offsets 0–9 were archived by")
    (line,) = ledger(stream, "--read-objects")["topic_partitions"]
    assert (line["messages"], line["reason_not_recorded"]) == (15, 0)


def test_an_object_that_was_lost_is_named_until_its_gap_is_accepted(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    for first in (0, 10, 20):
        stream.produce_events(10, first=first)
        stream.ingest()
    stream.partition()
    with stream.store() as store:
        store.client.delete_object(Bucket=store.bucket, Key=stream.object_keys()[1])
    found = ledger(stream, "--read-objects", code=1)
    assert "ingest has counted 30 messages, and the objects hold 20" in [found["what"] for found in found["imbalances"]]

    arguments = ("--from", "10", "--to", "19", "--reason", "gone")
    assert stream.waybill("gaps", "accept", stream.topic, "0", *arguments).code == 0
    found = ledger(stream)
    (note,) = found["notes"]
    assert "since a backup object was lost after its messages had been counted" in note
    (line,) = ledger(stream, "--read-objects")["topic_partitions"]
    assert (line["messages"], line["accepted_gaps"], line["gaps"][0]["kind"]) == (20, 10, "ChainBroken")
    assert (line["tables"]["rows"], line["tables"]["of_lost_objects"]) == (30, 10)


@pytest.mark.parametrize("kind", ["text", "sequencefile"])
def test_other_formats_are_counted_too(
    stack: Stack, cluster: Cluster, tmp_path: Path, topic_name: str, kind: str
) -> None:
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    add_to_config(stream, format=kind)
    produce_transactions(stream, cluster)
    stream.ingest()
    stream.partition()
    (line,) = ledger(stream)["topic_partitions"]
    assert (line["messages"], line["aborted"], line["control"]) == (32, 10, 5)
    assert ledger(stream, "--read-objects")["topic_partitions"] == [line]


def test_rows_are_unique_or_duplicates_or_not_swept(stack: Stack, tmp_path: Path, topic_name: str) -> None:
    stream = ArchivedStream(tmp_path, topic_name)
    add_to_config(stream, dedup={"window": "30d"})
    stream.produce_events(10)
    stream.produce_events(7, partition=1)  # the same ids
    stream.ingest()
    stream.partition()
    assert ledger(stream)["notes"] == ["the tables of dedup are left out: there was no dedup sweep yet"]
    run_sweep(stream.config, "events", InThisProcess())
    stream.produce_events(4, partition=1, first=20)
    stream.ingest()
    stream.partition()

    found = ledger(stream)
    dedup = [line["dedup"] for line in found["topic_partitions"]]
    assert sum(terms["unique"] for terms in dedup) == 10
    assert sum(terms["duplicates"] for terms in dedup) == 7
    assert [terms["unswept"] for terms in dedup] == [0, 4]
    assert found["balanced"]
    assert found["notes"] == []


def test_signed_ledger_is_checked(stack: Stack, tmp_path: Path, topic_name: str) -> None:
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    stream.produce_events(3)
    stream.ingest()
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    connection = json.dumps({"conn_type": "generic", "password": pem})
    ran = stream.waybill("ledger", "events", "--sign", "ledger_key", AIRFLOW_CONN_LEDGER_KEY=connection)
    assert ran.code == 0, ran.err
    file = tmp_path / "ledger.json"
    file.write_text(ran.out)
    public = base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
    good = stream.waybill("ledger", "check", str(file), "--public-key", public)
    assert (good.code, good.out) == (0, f"{file}: valid: signed with this key, and not changed since\n")
    file.write_text(ran.out.replace('"messages": 3', '"messages": 4'))
    changed = stream.waybill("ledger", "check", str(file), "--public-key", public)
    assert (changed.code, changed.out) == (1, f"{file}: CHANGED: the content is not what was signed\n")


# --- scenes without ingest: their objects are read --------------------------------------------------------------------


def without_kafka() -> dict[TopicPartition, int]:
    raise KafkaUnavailable("not asked")


def ledger_of(config: Config) -> Ledger:
    with services_of(config) as services:
        return read_ledger(config, "flights", services, dict, without_kafka, read_objects=True)


def terms(scene: Scene, config: Config | None = None) -> tuple[int, int, int, int]:
    """Return rows, quarantine, held and waiting of the only topic-partition; it must balance."""
    found = ledger_of(config or scene.config)
    assert found.imbalances == []
    (line,) = found.lines
    assert line.messages is not None
    return line.messages.rows, line.messages.quarantine, line.messages.held, line.messages.waiting


def test_held_rows_are_a_term_until_a_person_decides(
    make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "run_audit", refuse_more_than_half)
    scene = make_scene()
    scene.put(TP, [event(n, n) for n in range(10)])
    scene.run()
    scene.put(TP, [event(10, 10), *(junk(n) for n in range(11, 20))])
    hold(scene)
    scene.put(TP, [event(n, n) for n in range(20, 23)])

    assert terms(scene) == (10, 0, 10, 3)
    reject(scene)
    assert terms(scene) == (10, 0, 0, 13)
    hold(scene)
    assert terms(scene) == (10, 0, 13, 0)
    release(scene)
    assert terms(scene) == (14, 9, 0, 0)


def test_files_of_a_sink_are_counted_by_their_inventory(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(partition_by="hour", sink="files")
    scene.put(TP, [event(n, n) for n in range(10)] + [junk(10)])
    scene.run()
    assert terms(scene) == (10, 1, 0, 0)


def test_a_rollback_lets_messages_wait_again(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.put(TP, [event(n, n) for n in range(10)])
    scene.run()
    first = scene.table.metadata.current_snapshot_id
    assert first is not None
    scene.put(TP, [*(event(n, n) for n in range(10, 14)), junk(14)])
    scene.run()
    assert terms(scene) == (14, 1, 0, 0)
    scene.table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert terms(scene) == (10, 0, 0, 5), "the quarantine still has the row, and it is not final"
    scene.run()
    assert terms(scene) == (14, 1, 0, 0)


@pytest.mark.deep
@pytest.mark.parametrize("step", ["claimed", "decided", "quarantine_moved", "moved"])
def test_a_backfill_balances_when_it_is_promoted_killed_on_the_way_and_undone(
    make_scene: Callable[..., Scene], step: str
) -> None:
    scene = make_scene(parser=FIRST)
    put(scene, TP, 0, 30)
    scene.run()
    before = terms(scene)
    use(scene, SECOND)
    backfill = build(scene, "flights/0@5-16")
    assert terms(scene) == before
    with pytest.raises(Killed):
        promote(scene, backfill, on_step=die_at(step))
    assert terms(scene) == (before if step != "moved" else (24, 6, 0, 0))
    promote(scene, backfill)
    assert terms(scene) == (24, 6, 0, 0)
    undo(scene, backfill)
    assert terms(scene) == before == (25, 5, 0, 0)


def test_the_generation_of_the_config_is_counted_whichever_is_live(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.put(TP, [event(n, n) for n in range(10)])
    scene.run()
    first = scene.config
    scene.config = scene.with_stream(generation=2)
    scene.put(TP, [event(n, n) for n in range(12)])
    scene.run()
    assert (terms(scene, first), terms(scene)) == ((10, 0, 0, 0), (12, 0, 0, 0))
    promote_generation(scene.config, "flights", 2, by="ann", reason="better")
    assert (terms(scene, first), terms(scene)) == ((10, 0, 0, 0), (12, 0, 0, 0))
