"""Each parser with messages of other projects, from the archive to a table; the rows are compared with another reader.

`avro` with a schema registry is in test_schema_registry.py.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import avro.io
import avro.name
import avro.schema
import msgpack
import pytest
from corpora import VEGA, alert_schemas, alerts, package
from google.protobuf import descriptor_pb2, json_format
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from partition_scenes import Scene

from devstack import Stack
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record

pytestmark = pytest.mark.integration

TP = TopicPartition("flights-corpus", 0)
Row = dict[str, Any]
MakeScene = Callable[..., Scene]


def partition_values(
    make_scene: MakeScene, values: list[bytes], parser: dict[str, Any], columns: dict[str, Any] | None = None
) -> tuple[dict[int, Row], dict[int, str]]:
    """Archive and partition the values. Return the table's rows and the quarantine's reasons, by offset."""
    scene = make_scene(parser=parser, columns=columns or {})
    scene.put(TP, [Record(n, 1_000 * n, None, value) for n, value in enumerate(values)])
    scene.run()
    scene.check_exactly_once()
    rows = {row["offset"]: row for row in scene.table.scan().to_arrow().to_pylist()}
    reasons = {row["offset"]: row["reason"] for row in scene.quarantine.scan().to_arrow().to_pylist()}
    return rows, reasons


def vega(name: str) -> Path:
    return package(VEGA) / "vega_datasets" / "_data" / name


def documents(name: str) -> list[Row]:
    found: list[Row] = json.loads(vega(name).read_text())
    return found


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


PRICES = {"close": "double", "signal": "string", "ret": "double"}


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_documents_are_read_as_written(stack: Stack, make_scene: MakeScene, name: str) -> None:
    prices = documents("ohlc.json")
    pack: Callable[[Row], Any] = {"json": lambda row: json.dumps(row).encode(), "msgpack": msgpack.packb}[name]
    others = documents("cars.json")[:20]  # they have no field `date`
    parser = {"name": name, "event_time": {"field": "date"}, "message_id": "date"}
    rows, reasons = partition_values(make_scene, [*map(pack, prices), *map(pack, others)], parser, PRICES)
    assert len(rows) == len(prices) > 40
    for n, price in enumerate(prices):
        assert (rows[n]["event_time"], rows[n]["message_id"]) == (day(price["date"]), price["date"])
        assert {column: rows[n][column] for column in PRICES} == {column: price.get(column) for column in PRICES}
    assert set(reasons.values()) == {"event_time_missing: field date is missing"}
    assert len(reasons) == len(others)


def test_delimited_records_are_read_as_by_csv(stack: Stack, make_scene: MakeScene) -> None:
    lines = vega("la-riots.csv").read_bytes().splitlines()
    names = lines[0].decode().split(",")
    parser = {"name": "delimited", "columns": names, "event_time": {"field": "death_date"}}
    rows, reasons = partition_values(
        make_scene, lines, parser, {"age": "int", "latitude": "double", "address": "string"}
    )
    expected = list(csv.DictReader(io.StringIO(vega("la-riots.csv").read_text())))
    assert len(rows) == len(expected) > 60
    assert reasons.keys() == {0}  # the header
    for n, person in enumerate(expected, 1):
        assert rows[n]["event_time"] == day(person["death_date"])
        assert rows[n]["age"] == (int(person["age"]) if person["age"] else None)
        assert rows[n]["latitude"] == float(person["latitude"])
        assert rows[n]["address"] == person["address"]


def test_delimited_records_with_quotes_are_read_as_by_csv(stack: Stack, make_scene: MakeScene) -> None:
    """A list of airports. It has no times, so the test puts one in front of each record."""
    header, *lines = vega("airports.csv").read_bytes().splitlines()
    parser = {"name": "delimited", "columns": ["at", *header.decode().split(",")], "event_time": {"field": "at"}}
    columns = {"name": "string", "longitude": "double"}
    rows, reasons = partition_values(make_scene, [b"2026-01-01," + line for line in lines], parser, columns)
    assert reasons == {}
    expected = list(csv.DictReader(io.StringIO(vega("airports.csv").read_text())))
    assert sum("," in airport["name"] for airport in expected) == 7  # those are in quotes
    assert [rows[n]["name"] for n in range(len(lines))] == [airport["name"] for airport in expected]
    assert [rows[n]["longitude"] for n in range(len(lines))] == [float(airport["longitude"]) for airport in expected]


def test_regex_groups_are_those_of_python(stack: Stack, make_scene: MakeScene) -> None:
    """The log file of a Kafka broker, written by log4j: some lines continue the line before."""
    lines = (stack.state_dir / "logs" / "kafka-1.log").read_bytes().splitlines()[:3000]
    pattern = r"^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) +(?P<level>[A-Z]+) +(?P<class>\w+): "
    columns = {"level": "string", "class": "string"}
    rows, reasons = partition_values(
        make_scene, lines, {"name": "regex", "pattern": pattern, "event_time": {"field": "at"}}, columns
    )
    expected = {n: found for n, line in enumerate(lines) if (found := re.match(pattern, line.decode()))}
    assert 100 < len(expected) < len(lines)
    assert rows.keys() == expected.keys()
    for n, found in expected.items():
        assert rows[n]["event_time"] == datetime.strptime(f"{found['at']}000+0000", "%Y-%m-%d %H:%M:%S,%f%z")
        assert (rows[n]["level"], rows[n]["class"]) == (found["level"], found["class"])
    assert {reason.partition(":")[0] for reason in reasons.values()} == {"pattern_not_found"}


def test_raw_values_are_stored_unchanged(stack: Stack, make_scene: MakeScene) -> None:
    values = [datum for files in alert_schemas().values() for datum in alerts(files[-1].parent)]
    rows, reasons = partition_values(make_scene, values, {"name": "raw"})
    assert reasons == {}
    assert [rows[n]["value"] for n in range(len(values))] == values
    assert [rows[n]["event_time"] for n in range(len(values))] == [
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(len(values))
    ]


def test_avro_with_a_schema_file_is_read_as_by_the_avro_package(
    stack: Stack, make_scene: MakeScene, tmp_path: Path
) -> None:
    """An alert of the only version with a timestamp; the avro package has written its schema to one file."""
    files = alert_schemas()["lsst.v8_0"]
    names = avro.name.Names()
    for file in files:
        schema = avro.schema.make_avsc_object(json.loads(file.read_text()), names)
    (tmp_path / "alert.avsc").write_text(str(schema))
    (datum,) = alerts(files[-1].parent)
    expected = avro.io.DatumReader(schema).read(avro.io.BinaryDecoder(io.BytesIO(datum)))
    assert isinstance(expected, dict)
    source = expected["diaSource"]
    parser = {
        "name": "avro",
        "schema": str(tmp_path / "alert.avsc"),
        "event_time": {"field": "diaSource.time_processed"},
        "message_id": "diaSourceId",
    }
    columns = {"ra": {"type": "double", "field": "diaSource.ra"}, "band": {"type": "string", "field": "diaSource.band"}}
    rows, reasons = partition_values(make_scene, [datum, datum[:-1], datum], parser, columns)
    assert rows.keys() == {0, 2}
    assert reasons[1].startswith("not_avro: the message ends in the middle of field cutoutTemplate")
    for row in rows.values():
        assert row["event_time"] == source["time_processed"]
        assert row["message_id"] == str(expected["diaSourceId"])
        assert (row["ra"], row["band"]) == (source["ra"], source["band"])


def spans() -> list[ReadableSpan]:
    """Return 40 spans of OpenTelemetry's SDK."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("corpus", "1.0")
    for n in range(20):
        with tracer.start_as_current_span(f"outer-{n}", attributes={"n": n, "even": n % 2 == 0}) as outer:
            outer.add_event("asked", {"times": [1, 2, n]})
            with tracer.start_as_current_span("inner"):
                pass
    provider.shutdown()
    return list(exporter.get_finished_spans())


def test_protobuf_is_read_as_by_opentelemetry(stack: Stack, make_scene: MakeScene, tmp_path: Path) -> None:
    """OpenTelemetry's schema and encoder; the rows must agree with its JSON of the same spans."""
    requests = encode_spans(spans()).resource_spans
    messages = [span for resource in requests for scope in resource.scope_spans for span in scope.spans]
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add(file: Any) -> None:
        for dependency in file.dependencies:
            add(dependency)
        files[file.name] = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(files[file.name])

    add(trace_pb2.DESCRIPTOR)
    descriptors = descriptor_pb2.FileDescriptorSet(file=list(files.values()))
    (tmp_path / "otlp.desc").write_bytes(descriptors.SerializeToString())
    parser = {
        "name": "protobuf",
        "descriptor_set": str(tmp_path / "otlp.desc"),
        "message": "opentelemetry.proto.trace.v1.Span",
        "event_time": {"field": "start_time_unix_nano", "format": "epoch_ns"},
        "message_id": "name",
    }
    columns = {
        "kind": "string",
        "trace_id": "binary",
        "attributes": "json",
        "events": "json",
        "parent_span_id": "binary",
    }
    values = [span.SerializeToString() for span in messages]
    rows, reasons = partition_values(make_scene, [*values, values[0][:-1], b""], parser, columns)
    assert [reasons[len(values)].partition(":")[0], reasons[len(values) + 1]] == [
        "not_protobuf",
        "event_time_missing: field start_time_unix_nano is missing",
    ]
    assert len(rows) == len(values) == 40
    for n, span in enumerate(messages):
        expected = json_format.MessageToDict(span, preserving_proto_field_name=True)
        microseconds = int(expected["start_time_unix_nano"]) // 1_000
        assert rows[n]["event_time"] == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
        assert (rows[n]["message_id"], rows[n]["kind"]) == (expected["name"], expected["kind"])
        assert (rows[n]["trace_id"], rows[n]["parent_span_id"]) == (span.trace_id, span.parent_span_id)
        assert [each["key"] for each in json.loads(rows[n]["attributes"])] == [
            each["key"] for each in expected.get("attributes", [])
        ]
        assert [each["name"] for each in json.loads(rows[n]["events"])] == [
            each["name"] for each in expected.get("events", [])
        ]
