"""Answers of a schema registry, and Avro messages by random schemas, compared with fastavro.

The parser runs as in production, with its client of the registry. Only the transport of httpx is replaced: it answers
from memory, since a server would take a millisecond for each request.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import fastavro
import httpx
from fastavro.validation import validate

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge, text, varint
from fuzzers.targets.parsed import columns_of, parse, parser_config
from waybill.base.errors import RegistryRefused, RegistryUnavailable
from waybill.config.models import EventTimeFormat
from waybill.parsers import Parser, build_parser
from waybill.parsers.timestamps import BadEventTime, to_microseconds
from waybill.services.clients import registry as client

_COLUMNS = columns_of(f0="json", f1="string", f2="long", f3="double", f4="list<string>")
_CONFIG = parser_config(
    name="avro", registry="fuzzed_registry", event_time={"field": "at", "format": "epoch_ms"}, message_id="id"
)
_read_time = to_microseconds(EventTimeFormat.EPOCH_MILLISECONDS)

Answer = Callable[[str], httpx.Response]


@contextmanager
def in_memory(answer: Answer) -> Iterator[Parser]:
    """Provide a parser whose registry answers so. `answer` gets the path of a request."""
    os.environ["AIRFLOW_CONN_FUZZED_REGISTRY"] = '{"conn_type": "http", "host": "http://registry.invalid"}'
    real, patience = client.SchemaRegistry._client, client.PATIENCE_SECONDS

    def transport(_: client.SchemaRegistry) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(lambda request: answer(request.url.raw_path.decode())))

    client.SchemaRegistry._client = transport  # type: ignore[method-assign]
    client.PATIENCE_SECONDS = 0.0
    try:
        yield build_parser(_CONFIG, _COLUMNS)
    finally:
        client.SchemaRegistry._client = real  # type: ignore[method-assign]
        client.PATIENCE_SECONDS = patience
        del os.environ["AIRFLOW_CONN_FUZZED_REGISTRY"]


# --- answers ----------------------------------------------------------------------------------------------------------

_SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}
_ANSWERS = [
    {"schema": json.dumps(_SCHEMA)},
    {"schema": json.dumps(_SCHEMA), "schemaType": "AVRO", "references": [{"name": "a", "subject": "s/ä", "version": 1}]},
    {"error_code": 40403, "message": "Schema not found"},
    {"error_code": 0, "message": "not found"},
    {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
    {"schema": "{}"}, {"schema": '["null","R"]'}, {"schema": '{"type":"fixed","name":"F","size":3}'},
    {"schema": '{"type":"record","name":"R","fields":[{"name":"at","type":{"type":"int","default":"0"}}]}'},
]  # fmt: skip
_answers = Mutator(
    [json.dumps(each).encode() for each in _ANSWERS],
    [b"null", b"[]", b"{}", b"1e400", b'"references":[{}]', b'"references":{"a":1}', b'"references":"x"', b"-1", b"true",
     b'\\"fields\\"', b'\\"name\\"', b'\\"type\\"', b"\\u0000", b"\\ud800", b"[" * 2000, b'"version":"x"', b'"version":null'],
)  # fmt: skip
_STATUS = [200, 200, 200, 200, 404, 404, 401, 403, 302, 308, 204, 429, 500, 504]
_MESSAGE = b"\0\0\0\0\x07\x02"


def _make_answer(chance: random.Random) -> bytes:
    """Return the number of a status, and the body of the answer to each request."""
    return bytes([chance.randrange(len(_STATUS))]) + _answers(chance)


def _check_answers(inputs: Sequence[bytes]) -> None:
    """Invariants: a reason for the messages, or one of the two errors of a registry that is away or is none.

    20,000 inputs in `make test-deep`: each has a registry, a client and a parser of its own, which takes 3 ms.
    """
    for given in inputs:
        if not given:
            continue
        status, body = _STATUS[given[0] % len(_STATUS)], given[1:]
        requests: list[str] = []

        def answer(
            path: str, status: int = status, body: bytes = body, requests: list[str] = requests
        ) -> httpx.Response:
            requests.append(path)
            return httpx.Response(status, content=body, headers={"location": "http://elsewhere.invalid/"})

        with in_memory(answer) as parser:
            try:
                # Ids of Confluent are positive int32: no registry has one beyond, so none is asked for it.
                parse(parser, [_MESSAGE, b"\0\xff\xff\xff\xffx", b"\0\x80\0\0\0x", b"", b"\0", b"x"], _COLUMNS)
            except (RegistryUnavailable, RegistryRefused) as error:
                assert len(str(error)) < 2_000
                assert not _is_schema(status, body), f"a schema is in the answer, and the run stops: {error}"
        asked = {each for each in requests if each.startswith("/schemas/ids/")}
        assert asked <= {"/schemas/ids/7"}, f"asked for {asked}"
        assert len(requests) < 200, f"{len(requests)} requests for one schema"


def _is_schema(status: int, body: bytes) -> bool:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return status == 200 and isinstance(document, dict) and isinstance(document.get("schema"), str)


# --- random schemas ---------------------------------------------------------------------------------------------------

_PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
_LOGICAL = [
    {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "int", "logicalType": "time-millis"}, {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "string", "logicalType": "uuid"}, {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 20},
    {"type": "int", "logicalType": "no-such-type"}, {"type": "int", "default": "0"},
]  # fmt: skip


class _Names:
    """The named types of a schema."""

    def __init__(self) -> None:
        self.defined: list[str] = []
        self.open: list[str] = []

    def new(self) -> str:
        self.defined.append(f"N{len(self.defined)}")
        return self.defined[-1]


def _schema(chance: random.Random) -> str:
    names = _Names()
    fields = [
        {"name": "at", "type": chance.choice(["long", "long", ["null", "long"], "double", "string"])},
        {"name": "id", "type": chance.choice(["string", "long", ["null", "string"], ["null", "string", "long"]])},
        *({"name": f"f{n}", "type": _type(chance, names, 0)} for n in range(chance.randrange(6))),
    ]
    chance.shuffle(fields)
    return json.dumps({"type": "record", "name": "Root", "fields": fields})


def _type(chance: random.Random, names: _Names, depth: int, *, optional: bool = False) -> Any:
    """Return a type. Only below an `optional` place may it name a record that is open: a message must be able to end."""
    match chance.randrange(10 if depth < 3 else 4):
        case 0 | 1 | 2:
            return chance.choice(_PRIMITIVES)
        case 3:
            known = [each for each in names.defined if optional or each not in names.open]
            if known and chance.random() < 0.3:
                return chance.choice(known)
            found = dict(chance.choice(_LOGICAL))
            if "name" in found:
                found["name"] = names.new()
            return found
        case 4:
            return {"type": "array", "items": _type(chance, names, depth + 1, optional=True)}
        case 5:
            return {"type": "map", "values": _type(chance, names, depth + 1, optional=True)}
        case 6:
            return {"type": "enum", "name": names.new(), "symbols": ["A", "B", chance.choice(["C", "A-B"])]}
        case 7:
            return {"type": "fixed", "name": names.new(), "size": chance.choice([0, 1, 3, 16])}
        case 8:
            branches = [_type(chance, names, 3, optional=True) for _ in range(chance.randrange(1, 4))]
            kinds = {str(each if isinstance(each, str) else each["type"]): each for each in branches}
            return ["null", *(each for kind, each in kinds.items() if kind != "null")]
        case _:
            name = names.new()
            names.open.append(name)
            fields = [{"name": f"g{n}", "type": _type(chance, names, depth + 1)} for n in range(chance.randrange(4))]
            names.open.pop()
            return {"type": "record", "name": name, "fields": fields}


_SCHEMAS = 400
_MAX_STEPS = 20


@lru_cache(maxsize=_SCHEMAS)
def _numbered(number: int) -> tuple[str, Any]:
    """Return the schema of a number: its text, and the same as fastavro reads it; None if it does not."""
    written = _schema(random.Random(f"avro schema {number}"))
    try:
        return written, fastavro.parse_schema(json.loads(written))
    except Exception:  # fastavro refuses names and defaults that a reader of the writer's schema need not know
        return written, None


def _datum(schema: Any, chance: random.Random, depth: int = 0) -> bytes:
    """Return the encoding of a random datum of a schema: written here, so that no library must accept the datum."""
    kind = schema if isinstance(schema, str) else "union" if isinstance(schema, list) else schema["type"]
    if isinstance(kind, dict | list):
        return _datum(kind, chance, depth)
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([chance.randrange(2)])
        case "int" | "long":
            number = (
                max(-(2**31), min(edge(chance), 2**31 - 1))
                if kind == "int"
                else max(-(2**63), min(edge(chance), 2**63 - 1))
            )
            return _zigzag(number)
        case "float" | "double":
            return chance.choice([b"\0", b"\x3f", b"\x7f", b"\xff"]) * (4 if kind == "float" else 8)
        case "bytes":
            return _sized(chance.randbytes(chance.randrange(6)))
        case "string":
            return _sized(text(chance, 5).encode())
        case "fixed":
            return chance.randbytes(schema["size"])
        case "enum":
            return _zigzag(chance.randrange(len(schema["symbols"])))
        case "union":
            number = chance.randrange(len(schema))
            return _zigzag(number) + _datum(schema[number], chance, depth + 1)
        case "array" | "map":
            count = 0 if depth > _MAX_STEPS else chance.choice([0, 1, 2])
            items = [_item(schema, kind, chance, depth) for _ in range(count)]
            return (_zigzag(count) + b"".join(items) if count else b"") + b"\0"
        case "record":
            return b"".join(_datum(each["type"], chance, depth + 1) for each in schema["fields"])
    return b""  # a name: the message ends early, and is refused or is short


def _item(schema: Any, kind: str, chance: random.Random, depth: int) -> bytes:
    if kind == "map":
        return _sized(text(chance, 3).encode()) + _datum(schema["values"], chance, depth + 1)
    return _datum(schema["items"], chance, depth + 1)


def _zigzag(number: int) -> bytes:
    return varint(number << 1 ^ number >> 63)


def _sized(content: bytes) -> bytes:
    return _zigzag(len(content)) + content


_mutate = Mutator(
    [b"\0"], [_zigzag(n) for n in (-1, 1, 2, 3, -(2**63), 2**63 - 1, 100)] + [b"\xff" * 9, b"\x80\0", b"\2", b"\xc3"]
)


def _make_message(chance: random.Random) -> bytes:
    """Return the number of a schema, which is the schema's id, and a message."""
    number = chance.randrange(8) if chance.random() < 0.5 else chance.randrange(_SCHEMAS)
    body = _datum(json.loads(_numbered(number)[0]), chance)
    return number.to_bytes(2, "big") + (body if chance.random() < 0.5 else _mutate.changed(body, chance))


def _schema_answer(path: str) -> httpx.Response:
    number = int(path.rpartition("/")[2])
    return httpx.Response(200, json={"schema": _numbered(number)[0]})


def _check_messages(inputs: Sequence[bytes]) -> None:
    """Oracle: fastavro. What Waybill reads, fastavro reads to the same; what fastavro writes, Waybill reads."""
    inputs = [each for each in inputs if len(each) > 1]
    numbers = [int.from_bytes(each[:2], "big") % _SCHEMAS for each in inputs]
    values = [b"\0" + number.to_bytes(4, "big") + each[2:] for number, each in zip(numbers, inputs, strict=True)]
    if not values:
        return
    with in_memory(_schema_answer) as parser:
        rows = parse(parser, values, _COLUMNS)
    for number, value, row in zip(numbers, inputs, rows, strict=True):
        schema = _numbered(number)[1]
        # For a refused message, fastavro would make as many items without bytes as it states: up to 2^63.
        if schema is not None and (row["error"] is None or not _has_empty_items(number)):
            _compare(schema, value[2:], row)


@lru_cache(maxsize=_SCHEMAS)
def _has_empty_items(number: int) -> bool:
    """Return whether a schema has an array whose items may have no bytes."""
    return any(
        _is_empty(each["items"]) for each in _definitions(json.loads(_numbered(number)[0])) if each["type"] == "array"
    )


def _definitions(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, list):
        for each in schema:
            yield from _definitions(each)
    elif isinstance(schema, dict):
        yield schema
        for below in (schema.get("items"), schema.get("values"), *(each["type"] for each in schema.get("fields", ()))):
            yield from _definitions(below)


def _is_empty(schema: Any) -> bool:
    if isinstance(schema, str):
        return schema not in _PRIMITIVES or schema == "null"  # a name: it may be that of an empty record
    if isinstance(schema, dict):
        return schema.get("size") == 0 or (
            schema["type"] == "record" and all(_is_empty(each["type"]) for each in schema["fields"])
        )
    return False


def _compare(schema: Any, body: bytes, row: dict[str, Any]) -> None:
    source = io.BytesIO(body)
    try:
        document: Any = fastavro.schemaless_reader(source, schema, None)
        whole = source.tell() == len(body)
    except Exception:  # fastavro raises whatever its reads and conversions raise
        document, whole = None, False
    shown = f"{json.dumps(schema)} {body.hex()} {row}: {document}"
    unreadable = row["error"] is not None and row["error"].partition(":")[0] in ("not_avro", "schema_unusable")
    if unreadable:
        assert document is None or not whole or not _is_canonical(schema, document, body), f"refused: {shown}"
        return
    if document is None:
        return  # a value that Python's type of a logical type cannot hold
    assert whole, f"bytes are left over: {shown}"
    if row["error"] is not None:
        return
    try:
        assert row["time"] == _read_time(document["at"]), shown
    except BadEventTime as error:
        raise AssertionError(shown) from error
    assert row["id"] == (str(document["id"]) if document["id"] not in (None, "") else None), shown
    for name, kind in (("f1", str), ("f2", int)):
        if type(document.get(name)) is kind:
            assert row[name] == document[name], shown


def _is_canonical(schema: Any, document: Any, body: bytes) -> bool:
    """Whether fastavro writes a message so, and every int is one of 32 bits: then it is valid to its last byte."""
    target = io.BytesIO()
    try:
        if not validate(document, schema, raise_errors=False):
            return False
        fastavro.schemaless_writer(target, schema, document)
    except Exception:  # the document is not what the schema allows
        return False
    return target.getvalue() == body


ANSWERS = Target("registry", _make_answer, _check_answers, batch=50, deep=20_000, smoke=200)
AVRO = Target("avro", _make_message, _check_messages, batch=1_000, smoke=2_000)
