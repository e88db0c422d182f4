"""Alerts of the Rubin Observatory, in every published version, through a real schema registry into a table."""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import avro.io
import avro.name
import avro.schema
import pytest
from archived_stream import ArchivedStream
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from corpora import alert_schemas, alerts
from partition_scenes import Scene
from registry_server import as_connection, registry_server
from restore_scenes import target_topic

from devstack import Stack
from waybill.base.errors import ConnectionMissing, RegistryUnavailable
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record

pytestmark = pytest.mark.integration

TP = TopicPartition("flights-alerts", 0)
PARSER = {
    "name": "avro",
    "registry": "alerts_registry",
    "event_time": {"field": "diaSource.midpointMjdTai", "format": "epoch_s"},
    "message_id": "diaSource.diaSourceId",
}
COLUMNS = {
    "ra": {"type": "double", "field": "diaSource.ra"},
    "snr": {"type": "float", "field": "diaSource.snr"},
    "detector": {"type": "int", "field": "diaSource.detector"},
    "previous": {"type": "json", "field": "prvDiaSources"},
    "image": {"type": "binary", "field": "cutoutDifference"},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry_server(tmp_path_factory.mktemp("registry")) as url:
        yield url


@pytest.fixture(scope="module")
def schema_ids(url: str) -> dict[str, int]:
    """Register each version's alert, with references to its records, and return the ids by version."""
    ids = {}
    with SchemaRegistryClient({"url": url}) as client:
        for version, files in alert_schemas().items():
            references = []
            for file in files:
                subject = file.name.removesuffix(".avsc")
                ids[version] = client.register_schema(subject, Schema(file.read_text(), "AVRO", references))
                if file is not files[-1]:
                    references.append(SchemaReference(subject, subject, 1))
    return ids


@pytest.fixture
def registry(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ALERTS_REGISTRY", as_connection(url))


def framed(schema_id: int, datum: bytes) -> bytes:
    return b"\0" + struct.pack(">I", schema_id) + datum


def read_by_avro(version: str, datum: bytes) -> dict[str, Any]:
    """Decode an alert with Avro's own implementation."""
    files = alert_schemas()[version]
    names = avro.name.Names()
    for file in files:
        schema = avro.schema.make_avsc_object(json.loads(file.read_text()), names)
    found = avro.io.DatumReader(schema).read(avro.io.BinaryDecoder(io.BytesIO(datum)))
    assert isinstance(found, dict)
    return found


def test_partition_decodes_every_version_with_its_own_schema(
    stack: Stack, registry: None, schema_ids: dict[str, int], make_scene: Callable[..., Scene]
) -> None:
    assert len(schema_ids) >= 15
    data = [(version, datum) for version, files in alert_schemas().items() for datum in alerts(files[-1].parent)]
    good = [framed(schema_ids[version], datum) for version, datum in data]
    bad = {
        "schema_unknown: the registry has no schema with the id 999999": framed(999_999, data[0][1]),
        "not_avro: starts with 0x7b": b'{"alertId": 1}',
        "not_avro: the message ends": good[0][:-1],
        "not_avro: bytes are left": good[0] + b"\0",
    }
    scene = make_scene(parser=PARSER, columns=COLUMNS)
    scene.put(TP, [Record(n, 1_000, None, value) for n, value in enumerate([*good, *bad.values()])])
    scene.run()

    expected = {n: read_by_avro(version, datum) for n, (version, datum) in enumerate(data)}
    timed = {n: alert for n, alert in expected.items() if "midpointMjdTai" in alert["diaSource"]}
    rows = {row["offset"]: row for row in scene.table.scan().to_arrow().to_pylist()}
    assert rows.keys() == timed.keys()
    assert 0 < len(timed) < len(expected)  # the first versions name the field differently
    for offset, alert in timed.items():
        source, row = alert["diaSource"], rows[offset]
        assert row["value"] == good[offset]
        assert row["event_time"].timestamp() == pytest.approx(source["midpointMjdTai"], abs=1e-6)
        assert row["message_id"] == str(source["diaSourceId"])
        assert (row["ra"], row["snr"], row["detector"]) == (source["ra"], source["snr"], source.get("detector"))
        assert row["image"] == alert["cutoutDifference"]
        previous = None if row["previous"] is None else [each["ra"] for each in json.loads(row["previous"])]
        assert previous == (alert["prvDiaSources"] and [each["ra"] for each in alert["prvDiaSources"]])
    reasons = {row["offset"]: row["reason"] for row in scene.quarantine.scan().to_arrow().to_pylist()}
    assert [reasons[len(good) + n].startswith(reason) for n, reason in enumerate(bad)] == [True] * len(bad)
    for offset in expected.keys() - timed.keys():
        assert reasons[offset] == "event_time_missing: field diaSource.midpointMjdTai is missing"
    scene.check_exactly_once()


def test_partition_decodes_what_confluents_serializer_writes(
    stack: Stack, url: str, registry: None, make_scene: Callable[..., Scene]
) -> None:
    fields = [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "no", "type": "int"},
    ]
    schema = {"type": "record", "name": "Booking", "fields": fields}
    context = SerializationContext("bookings", MessageField.VALUE)
    with SchemaRegistryClient({"url": url}) as client:
        serializer = AvroSerializer(client, json.dumps(schema))
        values = [serializer({"at": n * 1_000_000, "no": n}, context) for n in range(3)]
    parser = {"name": "avro", "registry": "alerts_registry", "event_time": {"field": "at"}, "message_id": "no"}
    scene = make_scene(parser=parser)
    scene.put(TP, [Record(n, 1_000, None, value) for n, value in enumerate(values)])
    scene.run()
    rows = scene.table.scan().to_arrow().sort_by("offset")
    assert rows["message_id"].to_pylist() == ["0", "1", "2"]
    assert [time.timestamp() for time in rows["event_time"].to_pylist()] == [0.0, 1.0, 2.0]


def test_partition_commits_nothing_while_the_registry_is_unreachable(
    stack: Stack,
    registry: None,
    schema_ids: dict[str, int],
    make_scene: Callable[..., Scene],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version, files = next(reversed(alert_schemas().items()))
    scene = make_scene(parser=PARSER)
    scene.put(TP, [Record(0, 1_000, None, framed(schema_ids[version], next(alerts(files[-1].parent))))])
    value = os.environ["AIRFLOW_CONN_ALERTS_REGISTRY"]
    monkeypatch.delenv("AIRFLOW_CONN_ALERTS_REGISTRY")
    with pytest.raises(ConnectionMissing, match="AIRFLOW_CONN_ALERTS_REGISTRY"):
        scene.run()
    monkeypatch.setattr("waybill.services.clients.registry.PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("AIRFLOW_CONN_ALERTS_REGISTRY", as_connection("http://127.0.0.1:1"))
    with pytest.raises(RegistryUnavailable):
        scene.run()
    assert scene.quarantine.scan().to_arrow().num_rows == 0
    monkeypatch.setenv("AIRFLOW_CONN_ALERTS_REGISTRY", value)
    scene.run()
    scene.check_exactly_once()
    assert scene.table.scan().to_arrow().num_rows == 1


def test_restore_refuses_schema_ids_that_the_registry_of_the_target_lacks(
    stack: Stack, registry: None, schema_ids: dict[str, int], tmp_path: Path, topic_name: str
) -> None:
    known = min(schema_ids.values())
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    producer = stream.producer()
    for schema_id in (known, 999_999, known):
        producer.produce(topic_name, framed(schema_id, b"x"), partition=0)
    assert producer.flush(30) == 0
    stream.ingest()
    with target_topic(stream) as target:
        options = ("--to", "kafka_default", "--to-topic", target, "--registry", "alerts_registry", "--json")
        ran = stream.waybill("restore", "plan", stream.name, *options)
        assert ran.code == 1
        [problem] = ran.document["problems"]
        assert "schema id 999999, which the target's registry does not know" in problem["what"]
