"""The parser `avro`: framings, field paths, event times, and a reason for each invalid message."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import avro.schema
import fastavro
import pytest
from avro_messages import EVERYTHING, encoded
from parsing import batch, check, ids, parse, parser_config, reasons, times
from pydantic import TypeAdapter, ValidationError

from waybill.config.models import Columns, ParserConfig
from waybill.parsers import build_parser

BOOKING: dict[str, Any] = {
    "type": "record",
    "name": "Booking",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "written", "type": ["string", "long", "null"]},
        {
            "name": "passenger",
            "type": ["null", {"type": "record", "name": "P", "fields": [{"name": "no", "type": "long"}]}],
        },
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}


def booking(**fields: Any) -> dict[str, Any]:
    return {"id": "b", "at": 1_000, "written": None, "passenger": None, "tags": {}} | fields


@pytest.fixture
def avsc(tmp_path: Path) -> Path:
    path = tmp_path / "booking.avsc"
    path.write_text(json.dumps(BOOKING))
    return path


def config(avsc: Path, **keys: object) -> ParserConfig:
    return parser_config(
        **{"name": "avro", "schema": str(avsc), "event_time": {"field": "at"}, "message_id": "id"} | keys
    )


def test_valid_messages_are_parsed(avsc: Path) -> None:
    messages = [
        encoded(BOOKING, booking()),
        encoded(BOOKING, booking(id=None, at=-1)),
        encoded(BOOKING, booking(id="")),
    ]
    parsed = parse(config(avsc), *messages)
    assert times(parsed) == [1_000_000, -1_000, 1_000_000]
    assert ids(parsed) == ["b", None, None]
    assert parsed.error.null_count == 3


def test_field_paths_lead_through_records_unions_and_maps(avsc: Path) -> None:
    by_number = config(avsc, message_id="passenger.no")
    messages = [encoded(BOOKING, booking(passenger={"no": 7})), encoded(BOOKING, booking())]
    assert ids(parse(by_number, *messages)) == ["7", None]
    by_tag = config(avsc, message_id=["tags", "a.b"])
    assert ids(parse(by_tag, encoded(BOOKING, booking(tags={"a.b": "t"})), messages[0])) == ["t", None]


def test_event_times_of_other_formats_are_parsed(avsc: Path) -> None:
    written = config(avsc, event_time={"field": "written", "format": "epoch_s"})
    parsed = parse(written, *(encoded(BOOKING, booking(written=value)) for value in ("1.5", 2, "soon", None)))
    assert times(parsed) == [1_500_000, 2_000_000, None, None]
    assert reasons(parsed) == [None, None, "event_time_malformed", "event_time_missing"]


@pytest.mark.parametrize(
    ("logical", "value", "expected"),
    [
        ("timestamp-millis", 1, 1_000),
        ("timestamp-micros", -1, -1),
        ("timestamp-nanos", -1, -1),
        ("local-timestamp-millis", 1, 1_000),
        ("local-timestamp-micros", 1, 1),
        ("local-timestamp-nanos", 1_999, 1),
        ("timestamp-micros", 253_402_300_799_999_999, 253_402_300_799_999_999),
        ("timestamp-micros", 253_402_300_800_000_000, "event_time_out_of_range"),
        ("timestamp-millis", -(2**63), "event_time_out_of_range"),
        ("time-micros", 1, "event_time_wrong_type"),
    ],
)
@pytest.mark.parametrize("written", ["iso8601", "epoch_s"])
def test_a_timestamp_is_used_as_event_time_whatever_the_format(
    tmp_path: Path, logical: str, value: int, expected: object, written: str
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}
    (tmp_path / "r.avsc").write_text(
        json.dumps(schema).replace('"long"', f'{{"type":"long","logicalType":"{logical}"}}')
    )
    chosen = config(tmp_path / "r.avsc", event_time={"field": "at", "format": written}, message_id=None)
    parsed = parse(chosen, encoded(schema, {"at": value}))
    assert (times(parsed) if isinstance(expected, int) else reasons(parsed)) == [expected]


def test_each_invalid_message_goes_to_quarantine_with_its_reason(avsc: Path) -> None:
    good = encoded(BOOKING, booking(tags={"k": "v"}))
    parsed = parse(
        config(avsc), good, good[:-1], good + b"\0", b"", b'{"id": "b"}', good[:2] + b"\xff" + good[3:], good
    )
    assert [error and error.partition(",")[0] for error in parsed.error.to_pylist()] == [
        None,
        "not_avro: the message ends in the middle of field tags",
        "not_avro: bytes are left after the message",
        "not_avro: the message ends in the middle of field id",
        "not_avro: there is no such branch of field id",
        "not_avro: bytes that are not UTF-8 are in field id",
        None,
    ]


def test_single_objects_need_the_fingerprint_of_the_schema(avsc: Path) -> None:
    # Without logical types: the avro package, which calculates fingerprints on its own, does not leave them out.
    plain = json.dumps(BOOKING).replace('{"type": "long", "logicalType": "timestamp-millis"}', '"long"')
    avsc.write_text(plain)
    framed = config(avsc, framing="single_object", event_time={"field": "at", "format": "epoch_ms"})
    good = encoded(BOOKING, booking())
    prefix = b"\xc3\x01" + avro.schema.parse(plain).fingerprint("CRC-64-AVRO")
    parsed = parse(framed, prefix + good, good, b"\xc3", b"", b"\xc3\x01" + b"8bytes.." + good, prefix, prefix + good)
    assert times(parsed)[::6] == [1_000_000, 1_000_000]
    assert reasons(parsed) == [None, *["not_avro"] * 3, "schema_unknown", "not_avro", None]
    assert "does not have the fingerprint 2e2e736574796238" in parsed.error.to_pylist()[4]


def test_columns_of_every_type_are_read(tmp_path: Path) -> None:
    (tmp_path / "everything.avsc").write_text(json.dumps(EVERYTHING))
    chosen = config(tmp_path / "everything.avsc")
    kinds = {
        "yes": "boolean", "int": "int", "double": "double", "bytes": "binary", "enum": "string", "date": "date",
        "decimal": "decimal(9,2)", "array": "list<int>", "map": "json", "below": "json", "at": "timestamp",
    }  # fmt: skip
    columns: Columns = TypeAdapter(Columns).validate_python(
        {f"c_{name}": {"type": kind, "field": name} for name, kind in kinds.items()}
    )
    datum = {
        "at": datetime(2026, 1, 2, tzinfo=UTC), "id": 7, "yes": True, "int": -1, "float": 0.5, "double": 1.5,
        "bytes": b"b", "fixed": b"abc", "enum": "C", "array": [1, None], "map": {"k": "v"},
        "below": {"tier": "gold", "again": None, "e": "A"}, "date": datetime(2026, 1, 2, tzinfo=UTC).date(), "time": 1,
        "decimal": Decimal("-1.25"),
    }  # fmt: skip
    datum["time"] = datetime(2026, 1, 2, 3, tzinfo=UTC).time()
    parsed = build_parser(chosen, columns).parse(batch(encoded(EVERYTHING, datum), b""))
    check(parsed, 2)
    assert reasons(parsed) == [None, "not_avro"]
    assert ids(parsed)[0] == "7"
    found = {name.removeprefix("c_"): column.to_pylist()[0] for name, column in parsed.columns.items()}
    expected = {name: datum[name] for name in kinds}
    assert found == expected | {"map": '{"k":"v"}', "below": '{"tier":"gold","again":null,"e":"A"}'}


def test_a_dumped_config_contains_the_schema_and_needs_no_file(avsc: Path) -> None:
    chosen = config(avsc)
    dumped = chosen.model_dump(mode="json")
    avsc.unlink()
    again: ParserConfig = TypeAdapter(ParserConfig).validate_python(dumped)
    assert again == chosen
    assert times(parse(again, encoded(BOOKING, booking()))) == [1_000_000]


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"schema": "nowhere.avsc"}, "nowhere.avsc cannot be read: No such file or directory"),
        ({"schema": 7}, "must be the path of an Avro schema"),
        ({"schema": {"path": "a"}}, "must be the path of an Avro schema"),
        ({"registry": "registry"}, "needs either a schema (a file) or a registry (a connection): set one of them"),
        ({"schema": None}, "needs either a schema (a file) or a registry (a connection): set one of them"),
        ({"schema": None, "registry": "r", "framing": "single_object"}, "has no effect with a registry"),
        ({"framing": "confluent"}, "Input should be 'none' or 'single_object'"),
        ({"event_time": {"field": "time"}}, "is not in the schema; the fields at that level are: id, at, written"),
        ({"message_id": "passenger.name"}, "is not in the schema; the fields at that level are: no"),
        ({"message_id": "at.x"}, "is not in the schema; the fields at that level are: none"),
    ],
)
def test_loading_refuses_invalid_parser_keys(avsc: Path, keys: dict[str, object], error: str) -> None:
    with pytest.raises(ValidationError) as raised:
        config(avsc, **keys)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not UTF-8 text"),
        (b'{"type": "record"}', "is not an Avro schema: "),
        (b'"there.is.none"', "is not an Avro schema: the type there.is.none is not defined"),
        (b"7", "is not an Avro schema"),
        (b"[" * 100_000, "is nested too deeply"),
        (b" " * (4 << 20) + b"1", "is larger than 4 MiB"),
    ],
)
def test_loading_refuses_a_file_without_a_schema(avsc: Path, content: bytes, error: str) -> None:
    avsc.write_bytes(content)
    with pytest.raises(ValidationError) as raised:
        config(avsc)
    assert error in str(raised.value)


def test_fingerprint_equals_the_example_of_the_specification() -> None:
    # Java's SchemaNormalization gives 7275a51a3f395c8f for "int"; it is written with its last byte first.
    assert fastavro.schema.fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572"
