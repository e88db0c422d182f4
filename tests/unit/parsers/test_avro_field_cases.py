"""The parser `avro` with schemas, messages and registries that the field has: one of them stops itself only."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from typing import Any

import httpx
import pytest
from avro_messages import encoded
from parsing import batch, check, ids, parser_config, reasons, times
from pydantic import TypeAdapter

from waybill.base.errors import RegistryRefused
from waybill.config.models import Columns
from waybill.parsers import Parsed, build_parser
from waybill.parsers.avro import messages as avro_messages_module
from waybill.services.clients.registry import SchemaRegistry

GOOD = {"type": "record", "name": "Good", "fields": [{"name": "at", "type": "long"}, {"name": "id", "type": "string"}]}
GOOD_ID = 7
MESSAGE = b"\0\0\0\0\x07" + encoded(GOOD, {"at": 1, "id": "good"})
AT = {"name": "at", "type": "long"}


class Registry:
    """A registry in memory: `schemas` by id, or an answer of another kind."""

    def __init__(self) -> None:
        self.schemas: dict[int, Any] = {GOOD_ID: GOOD}
        self.answers: dict[int, httpx.Response] = {}
        self.requests: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        self.requests.append(path)
        if path == "/schemas/types":
            return httpx.Response(200, json=["JSON", "PROTOBUF", "AVRO"])
        schema_id = int(path.rpartition("/")[2]) if path.startswith("/schemas/ids/") else -1
        if schema_id in self.schemas:
            schema = self.schemas[schema_id]
            return httpx.Response(200, json={"schema": schema if isinstance(schema, str) else json.dumps(schema)})
        return self.answers.get(schema_id) or httpx.Response(404, json={"error_code": 40403})


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    found = Registry()
    monkeypatch.setenv("AIRFLOW_CONN_FIELD", '{"conn_type": "http", "host": "http://registry.invalid"}')
    transport = httpx.MockTransport(found.answer)
    monkeypatch.setattr(SchemaRegistry, "_client", lambda _: httpx.Client(transport=transport))
    return found


def parse(*values: bytes, columns: dict[str, str] | None = None, **keys: object) -> Parsed:
    config = parser_config(
        name="avro", registry="field", event_time={"field": "at", "format": "epoch_s"}, message_id="id", **keys
    )
    kinds: Columns = TypeAdapter(Columns).validate_python(columns or {})
    parsed = build_parser(config, kinds).parse(batch(*values))
    if not columns:
        check(parsed, len(values))
    return parsed


def framed(schema_id: int, datum: bytes = b"") -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + datum


def error(parsed: Parsed, row: int = 0) -> str:
    found = parsed.error.to_pylist()[row]
    assert isinstance(found, str)
    return found


# --- P3: ids and answers ----------------------------------------------------------------------------------------------


def test_an_id_that_no_registry_can_have_is_unknown_without_a_request(registry: Registry) -> None:
    parsed = parse(bytes.fromhex("00ffffffff78"), framed(2**31), MESSAGE, framed(2**32 - 2))
    assert reasons(parsed) == ["schema_unknown", "schema_unknown", None, "schema_unknown"]
    assert ids(parsed)[2] == "good"
    assert registry.requests == ["/schemas/ids/7"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            httpx.Response(404, json={"error_code": 0, "message": "HTTP 404 Not Found"}),
            "schema_unknown: the registry has",
        ),
        (httpx.Response(404, text="<html>"), "schema_unknown: the registry has no schema with the id 8"),
        (
            httpx.Response(403, json={"error_code": 40301}),
            "schema_unusable: the schema with the id 8 cannot be read: the",
        ),
        (
            httpx.Response(302, headers={"location": "/login"}),
            "schema_unusable: the schema with the id 8 cannot be read",
        ),
        (httpx.Response(200, html="<html>"), "schema_unusable: the schema with the id 8 cannot be read: the registry"),
        (httpx.Response(200, json={"schema": None}), "schema_unusable: the schema with the id 8 cannot be read: the"),
        (
            httpx.Response(200, json=[]),
            "schema_unusable: the schema with the id 8 cannot be read: the registry answers",
        ),
        (
            httpx.Response(200, json={"schema": "s", "references": [{}]}),
            "schema_unusable: the schema with the id 8 has a",
        ),
        (
            httpx.Response(200, json={"schema": "s", "schemaType": "JSON"}),
            "schema_unusable: the schema with the id 8 is",
        ),
        (httpx.Response(200, json={"schema": ""}), "schema_unusable: the schema with the id 8 is not JSON: "),
        (httpx.Response(200, json={"schema": "[" * 10_000}), "schema_unusable: the schema with the id 8 is nested too"),
    ],
)
def test_an_answer_about_one_id_concerns_its_messages_only(
    registry: Registry, answer: httpx.Response, reason: str
) -> None:
    registry.answers[8] = answer
    parsed = parse(framed(8), MESSAGE, framed(8, b"more"), MESSAGE)
    assert times(parsed)[1::2] == [1_000_000] * 2
    assert [error(parsed, row).startswith(reason) for row in (0, 2)] == [True, True]


def test_rejected_credentials_stop_the_run(registry: Registry) -> None:
    registry.answers[8] = httpx.Response(401)
    with pytest.raises(RegistryRefused):
        parse(framed(8), MESSAGE)
    registry.answers[8] = httpx.Response(403)
    with pytest.raises(RegistryRefused):
        parse(framed(8), framed(9))  # no schema is given, and none was before


def test_many_unknown_ids_make_few_requests_and_hide_no_schema_of_more_messages(registry: Registry) -> None:
    unknown = [framed(1_000 + n) for n in range(500)]
    parsed = parse(*unknown, MESSAGE, MESSAGE, limits={"max_unknown_ids": 20})
    assert reasons(parsed) == ["schema_unknown"] * 500 + [None, None]
    assert len(registry.requests) == 21
    assert "registry has no schema with the id 1019" in error(parsed, 19)
    assert error(parsed, 20) == (
        "schema_unknown: the id 1020 was not looked up, since 20 ids with as many messages have no usable schema in "
        "the registry: see parser.limits.max_unknown_ids"
    )


def test_ids_are_asked_for_once_for_all_batches_of_a_task(registry: Registry) -> None:
    config = parser_config(name="avro", registry="field", event_time={"field": "at", "format": "epoch_s"})
    parser = build_parser(config)
    for _ in range(3):
        assert reasons(parser.parse(batch(framed(1), MESSAGE, framed(2)))) == ["schema_unknown", None, "schema_unknown"]
    assert len(registry.requests) == 3


# --- P6: the work for a schema, and for a message ---------------------------------------------------------------------


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema of records with two records of the level below each, without any byte but for `at`."""
    kind: Any = {"type": "record", "name": "L0", "fields": []}
    for level in range(1, levels + 1):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"L{level - 1}"}]
        kind = {"type": "record", "name": f"L{level}", "fields": fields}
    return {
        "type": "record",
        "name": "R",
        "fields": [AT, {"name": "id", "type": "string"}, {"name": "x", "type": kind}],
    }


@pytest.mark.parametrize("columns", [{}, {"x": "json"}])
def test_records_without_bytes_that_double_at_each_level_are_refused(
    registry: Registry, columns: dict[str, str]
) -> None:
    registry.schemas[8] = doubling(24)
    registry.schemas[9] = doubling(100)
    registry.schemas[10] = doubling(3)
    parsed = parse(framed(8, b"\x02\x02i"), framed(9, b"\x02\x02i"), MESSAGE, framed(10, b"\x02\x02i"), columns=columns)
    assert reasons(parsed) == ["not_avro", "not_avro", None, None]
    assert error(parsed).endswith("see parser.limits.max_steps_per_byte")
    assert error(parsed).startswith("not_avro: more than 16 steps for each byte lead to field x.")


def nested_arrays(levels: int) -> str:
    return '{"type":"array","items":' * levels + '"int"' + "}" * levels


def chain(length: int) -> list[Any]:
    """Return a union whose last branch is a record of a record of a record …, each of which is defined before it."""
    above = (
        {"type": "record", "name": f"C{n}", "fields": [{"name": "c", "type": f"C{n - 1}"}]} for n in range(1, length)
    )
    return [{"type": "record", "name": "C0", "fields": [AT]}, *above]


@pytest.mark.parametrize(
    ("schema", "detail"),
    [
        (nested_arrays(200), "nests types more than 150 levels deep"),
        (nested_arrays(600), "nests types more than 150 levels deep"),
        (nested_arrays(100_000), "is nested too deeply"),
        ([*chain(1_000)[:-1], {"type": "record", "name": "R", "fields": [{"name": "c", "type": "C998"}]}], ""),
        ({"type": "fixed", "name": "F", "size": 10**30}, ""),
        (["int"] * 200_000, "has more than 200,000 types"),
        ({"type": "record", "name": "R", "fields": [{"name": "x" * 500_000, "type": doubling(20)}]}, ""),
    ],
)
def test_no_schema_stops_the_messages_of_others(registry: Registry, schema: Any, detail: str) -> None:
    registry.schemas[8] = schema
    parsed = parse(framed(8, b"\x02\x02i"), MESSAGE, columns={"c": "json", "x": "list<json>"})
    assert reasons(parsed)[1] is None
    assert reasons(parsed)[0] is not None
    assert len(error(parsed)) <= 1_000
    if detail:
        assert error(parsed) == f"schema_unusable: the schema with the id 8 {detail}"


def test_a_chain_of_types_in_references_is_limited(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [json.dumps(each) for each in chain(1_000)]
    registry.answers[8] = httpx.Response(
        200, json={"schema": '"C999"', "references": [{"subject": "c", "version": 999}]}
    )

    def with_references(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if not path.startswith("/subjects/"):
            return registry.answer(request)
        n = int(path.rpartition("/")[2])
        below = [{"subject": "c", "version": n - 1}] if n > 1 else []
        return httpx.Response(
            200, json={"schema": texts[n] if n > 1 else f"[{texts[0]},{texts[1]}]", "references": below}
        )

    transport = httpx.MockTransport(with_references)
    monkeypatch.setattr(SchemaRegistry, "_client", lambda _: httpx.Client(transport=transport))
    parsed = parse(framed(8, b"\x02"), MESSAGE)
    assert error(parsed) == "schema_unusable: the schema with the id 8 nests types more than 150 levels deep"
    assert ids(parsed)[1] == "good"


def test_an_exception_that_nobody_expects_concerns_the_messages_of_its_schema(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry.schemas[8] = GOOD
    real = avro_messages_module.read_avro_schema
    calls: list[str] = []

    def read(text: str, referenced: Any) -> Any:
        calls.append(text)
        if len(calls) == 1:
            raise KeyError("unexpected")
        return real(text, referenced)

    monkeypatch.setattr(avro_messages_module, "read_avro_schema", read)
    parsed = parse(framed(8, b"\x02\x02i"), framed(8, b"\x02\x02i"), MESSAGE)
    assert reasons(parsed) == ["schema_unusable", "schema_unusable", None]
    assert "the schema with the id 8 cannot be read: KeyError at parsers/avro/messages.py:" in error(parsed)
    assert "KeyError: 'unexpected'" in caplog.text


ARRAY = {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}
OF_EMPTY = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ARRAY}, AT]}


@pytest.mark.parametrize("columns", [{}, {"x": "json"}, {"x": "list<json>"}])
def test_items_without_bytes_are_limited_for_the_whole_message(registry: Registry, columns: dict[str, str]) -> None:
    registry.schemas[8] = OF_EMPTY
    block = b"\x80\x10"  # 1,024 items
    few, many = b"\x80\x10\0\x02", block * 20_000 + b"\0\x02"
    parsed = parse(framed(8, few), framed(8, b"\x80\x08\x80\x08\0\x02"), framed(8, many), MESSAGE, columns=columns)
    assert reasons(parsed) == [None, None, "not_avro", None]
    assert error(parsed, 2) == (
        "not_avro: more than 1,024 items without bytes are announced for field x, byte 2 of the datum: "
        "see parser.limits.max_empty_items"
    )


def test_a_record_that_contains_itself_has_bytes(registry: Registry) -> None:
    """Its items are not those without bytes, of which a message may have few."""
    inner = {"type": "record", "name": "S", "fields": [{"name": "r", "type": "R"}]}
    fields = [{"name": "s", "type": {"type": "array", "items": inner}}, AT]
    registry.schemas[8] = {"type": "record", "name": "R", "fields": fields}
    leaf = b"\0\x02"
    parsed = parse(framed(8, b"\x80\x7d" + leaf * 8_000 + b"\0\x02"), columns={"s": "list<json>"})
    assert reasons(parsed) == [None]
    assert len(parsed.columns["s"][0]) == 8_000


def test_limits_of_the_config_apply(registry: Registry) -> None:
    registry.schemas[8] = OF_EMPTY
    registry.schemas[9] = doubling(14)
    registry.schemas[10] = {"type": "record", "name": "L", "fields": [AT, {"name": "n", "type": ["null", "L"]}]}
    deep = framed(10, b"\x02\x02" * 600 + b"\x02\0")
    values = [framed(8, b"\x82\x10\0\x02"), framed(9, b"\x02\x02i"), deep]
    assert reasons(parse(*values)) == ["not_avro"] * 3
    limits = {"max_empty_items": 1_025, "max_steps_per_byte": 10_000, "max_depth": 700}
    assert reasons(parse(*values, limits=limits, columns={"x": "json"})) == [None] * 3
    # orjson, which writes columns of JSON, has a limit of its own: 254 levels.
    assert reasons(parse(deep, limits=limits, columns={"n": "json"})) == ["column_wrong_type"]


def worst_of(size_bytes: int) -> list[tuple[Any, bytes]]:
    """Return schemas and messages of about that size, for which the documents are largest."""
    nulls = [{"name": f"n{n}", "type": "null"} for n in range(14)]
    item = {"type": "record", "name": "I", "fields": [*nulls, {"name": "i", "type": "int"}]}
    arrays = {"type": "array", "items": {"type": "array", "items": "int"}}
    count = encoded("long", size_bytes)
    found = []
    for kind, content in ((item, b"\x02"), ("int", b"\x02"), (arrays["items"], b"\0")):
        schema = {
            "type": "record",
            "name": "R",
            "fields": [AT, {"name": "x", "type": {"type": "array", "items": kind}}],
        }
        found.append((schema, b"\x02" + count + content * size_bytes + b"\0"))
    return found


@pytest.mark.parametrize("number", range(3))
def test_memory_grows_with_the_size_of_the_message(registry: Registry, number: int) -> None:
    peaks = []
    for size in (10_000, 20_000, 40_000):
        schema, message = worst_of(size)[number]
        registry.schemas[8] = schema
        tracemalloc.start()
        parsed = parse(framed(8, message), columns={"x": "list<json>"})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert reasons(parsed) == [None]
    assert all(after <= 2.5 * before for before, after in pairwise(peaks))
    assert peaks[-1] < 40_000 * 3_000


# --- P8: schemas that Avro's specification forbids --------------------------------------------------------------------


def with_field(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [AT, {"name": "x", "type": kind, **more}]}


@pytest.mark.parametrize("also", [{}, {"m": "json"}])  # with a whole map beside it, fastavro reads the messages
@pytest.mark.parametrize(
    ("kind", "more", "datum", "column", "value"),
    [
        ("int", {"default": "0"}, b"\x0e", "int", 7),
        (["null", "int"], {"default": 7}, b"\x02\x0e", "int", 7),
        (
            {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 20},
            {},
            b"abcd",
            "binary",
            b"abcd",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, {}, b"\x02a", "binary", b"a"),
        ({"type": "bytes", "logicalType": "decimal", "precision": True}, {}, b"\x02a", "binary", b"a"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 4}, {}, b"\x02a", "binary", b"a"),
        ({"type": "string", "logicalType": "timestamp-millis"}, {}, b"\x02a", "string", "a"),
        ({"type": "long", "logicalType": "date"}, {}, b"\x0e", "long", 7),
        ({"type": "fixed", "name": "F", "size": 3, "logicalType": "uuid"}, {}, b"abc", "binary", b"abc"),
        ({"type": "enum", "name": "E", "symbols": ["A-B", ""]}, {}, b"\0", "string", "A-B"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "Z"}, {"default": "Y"}, b"\0", "string", "A"),
        ({"type": "enum", "name": "my-enum", "namespace": "1.2", "symbols": ["A"]}, {}, b"\0", "string", "A"),
    ],
)
def test_schemas_with_faults_that_do_not_change_what_bytes_mean_are_read(
    registry: Registry, kind: Any, more: Any, datum: bytes, column: str, value: Any, also: dict[str, str]
) -> None:
    schema = with_field(kind, **more)
    schema["fields"].append({"name": "m", "type": {"type": "map", "values": "int"}})
    registry.schemas[8] = schema
    parsed = parse(framed(8, b"\x02" + datum + b"\0"), columns={"x": column, **also})
    assert reasons(parsed) == [None]
    assert parsed.columns["x"].to_pylist() == [value]


# --- values that are not what a column expects ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "datum", "column"),
    [
        ("double", b"\0\0\0\0\0\0\xf8\x7f", "json"),
        ("double", b"\0\0\0\0\0\0\xf0\x7f", "json"),
        ("float", b"\0\0\x80\xff", "json"),
        ({"type": "array", "items": "double"}, b"\x02\0\0\0\0\0\0\xf8\x7f\0", "json"),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\xff" * 9 + b"\x01", "json"),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\xff" * 9 + b"\x01", "timestamp"),
        (
            {"type": "array", "items": {"type": "long", "logicalType": "timestamp-micros"}},
            b"\x02" + b"\xff" * 9 + b"\x01\0",
            "json",
        ),
        ({"type": "int", "logicalType": "date"}, b"\xff" * 4 + b"\x0f", "date"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 60}, b"\x32" + b"\x7f" * 25, "decimal(38,0)"),
        ("bytes", b"\x02\xff", "string"),
        ("string", b"\x02a", "binary"),
        ({"type": "fixed", "name": "F", "size": 0}, b"", "string"),
        ("null", b"", "list<string>"),
    ],
)
def test_a_value_that_a_column_cannot_hold_has_a_reason_or_is_null(
    registry: Registry, kind: Any, datum: bytes, column: str
) -> None:
    registry.schemas[8] = with_field(kind)
    for wrong_type in ("null", "quarantine"):
        parsed = parse(
            framed(8, b"\x02" + datum),
            MESSAGE,
            columns={"x": {"type": column, "wrong_type": wrong_type}},  # type: ignore[dict-item]
        )
        assert reasons(parsed)[0] in (None, "column_wrong_type")
        assert reasons(parsed)[1] is None
        if wrong_type == "null":
            assert parsed.columns["x"].to_pylist()[0] is None or column == "json"


# --- V7: a field that a producer has renamed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "at", "hint"),
    [
        ("At", "long", "; there is a field `At`"),
        ("AT", ["null", "long"], "; there is a field `AT`"),
        ("At", {"type": "array", "items": "long"}, "; there is a field `At`"),
        ("time", "long", ""),
    ],
    ids=str,
)
def test_a_missing_field_is_told_with_the_field_of_another_case(
    registry: Registry, name: str, at: Any, hint: str
) -> None:
    renamed = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}, {"name": name, "type": at}]}
    registry.schemas[9] = renamed
    value = [1] if isinstance(at, dict) else 1
    parsed = parse(framed(9, encoded(renamed, {"id": "a", name: value})), MESSAGE)
    assert parsed.error.to_pylist() == [f"event_time_missing: field at is missing{hint}", None]
    assert times(parsed)[1] == 1_000_000


def test_a_missing_nested_field_is_told_with_the_field_of_another_case(registry: Registry) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "aT", "type": "long"}]}
    outer = {"type": "record", "name": "O", "fields": [{"name": "time", "type": inner}]}
    registry.schemas[9] = outer
    config = parser_config(name="avro", registry="field", event_time={"field": "time.at", "format": "epoch_s"})
    parsed = build_parser(config).parse(batch(framed(9, encoded(outer, {"time": {"aT": 1}}))))
    assert parsed.error.to_pylist() == ["event_time_missing: field time.at is missing; there is a field `time.aT`"]
