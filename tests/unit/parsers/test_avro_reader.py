"""The compiled walk and fastavro agree on which messages are valid, and on their content."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import numpy as np
import pytest
from avro_messages import EVERYTHING, encoded
from hypothesis import given
from hypothesis import strategies as st
from parsing import slow_examples

from waybill.config.models.avro_schemas import read_avro_schema
from waybill.config.models.schema_parsers import AvroLimits
from waybill.parsers.avro._kernels import is_utf8
from waybill.parsers.avro.reader import SchemaReader
from waybill.parsers.confluent_framing import MessageBuffer
from waybill.parsers.documents import UnreadableMessage

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
BELOW = st.recursive(
    st.none(),
    lambda below: st.fixed_dictionaries({"tier": st.text(), "again": below, "e": st.sampled_from("ABC")}),
    max_leaves=5,
)
DATA = st.fixed_dictionaries(
    {
        "at": LONGS,
        "id": st.none() | st.text() | LONGS,
        "yes": st.booleans(),
        "int": INTS,
        "float": st.floats(width=32),
        "double": st.floats(),
        "bytes": st.binary(),
        "fixed": st.binary(min_size=3, max_size=3),
        "enum": st.sampled_from("ABC"),
        "array": st.lists(st.none() | INTS),
        "map": st.dictionaries(st.text(), st.text()),
        "below": BELOW,
        "date": INTS,
        "time": INTS,
        "decimal": st.binary(max_size=6),
    }
)
SCALARS = ["at", "id", "yes", "int", "float", "double", "bytes", "fixed", "enum", "date", "time", "decimal"]
NOTED = [*((name,) for name in SCALARS), ("below", "tier"), ("below", "again", "tier"), ("below", "e")]
"""What the walk takes note of itself. With ("map", …) beside them, fastavro reads whole documents."""


def plain(schema: Any) -> Any:
    """A schema without logical types: data may hold whatever the underlying types can."""
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if key != "logicalType"}
    return [plain(each) for each in schema] if isinstance(schema, list) else schema


PLAIN = fastavro.parse_schema(plain(EVERYTHING))


def read(schema: Any, paths: list[tuple[str, ...]], *messages: bytes) -> list[Any]:
    ends = np.cumsum([len(message) for message in messages])
    starts = ends - [len(message) for message in messages]
    values = MessageBuffer(np.frombuffer(b"".join(messages), np.uint8), starts, ends)
    return SchemaReader(read_avro_schema(json.dumps(schema)), paths).read(values)


def found(document: dict[str, Any], paths: list[tuple[str, ...]]) -> list[str]:
    """What is at the paths, as text: NaN is not equal to itself, and -0.0 is to 0."""
    values = []
    for path in paths:
        value: Any = document
        for name in path:
            value = value.get(name, "missing") if isinstance(value, dict) else "missing"
        values.append(repr(value))
    return values


@given(st.lists(DATA, min_size=1, max_size=4))
@slow_examples
def test_walk_and_fastavro_read_the_written_values(data: list[dict[str, Any]]) -> None:
    messages = [encoded(plain(EVERYTHING), datum) for datum in data]
    walked = read(EVERYTHING, NOTED, *messages)
    whole = read(EVERYTHING, [*NOTED, ("map", "k")], *messages)
    raw = read(plain(EVERYTHING), NOTED, *messages)
    for datum, one, other, underlying in zip(data, walked, whole, raw, strict=True):
        assert found(one, NOTED) == found(other, NOTED)
        assert found(underlying, NOTED) == found(datum, NOTED)
        assert other["map"] == datum["map"]


@given(DATA, st.data())
def test_fastavro_accepts_every_message_that_the_walk_accepts(datum: dict[str, Any], draw: st.DataObject) -> None:
    message = bytearray(encoded(plain(EVERYTHING), datum))
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(message) - 1))
        message[at : at + draw.draw(st.integers(0, 2))] = draw.draw(st.binary(max_size=2))
    (document,) = read(plain(EVERYTHING), NOTED, bytes(message))
    if isinstance(document, UnreadableMessage):
        assert document.kind == "not_avro"
        return
    source = io.BytesIO(message)
    assert found(fastavro.schemaless_reader(source, PLAIN, None), NOTED) == found(document, NOTED)
    assert source.tell() == len(message)


@given(st.binary(), st.binary(max_size=30))
def test_random_bytes_give_a_document_or_an_error(value: bytes, other: bytes) -> None:
    for document in read(EVERYTHING, NOTED, value, other):
        assert isinstance(document, dict | UnreadableMessage)


@given(st.binary() | st.text().map(str.encode), st.binary(max_size=3))
def test_is_utf8_agrees_with_python(value: bytes, after: bytes) -> None:
    try:
        expected = bool([value.decode()])
    except UnicodeDecodeError:
        expected = False
    assert is_utf8(np.frombuffer(value + after + b" ", np.uint8), 0, len(value)) is expected


MAX_DEPTH = AvroLimits().max_depth
LIST = {"type": "record", "name": "List", "fields": [{"name": "next", "type": ["null", "List"]}]}


def test_nesting_is_limited() -> None:
    deepest, deeper, endless = read(
        LIST, [], b"\x02" * (MAX_DEPTH - 1) + b"\0", b"\x02" * MAX_DEPTH + b"\0", b"\x02" * 1_000_000
    )
    assert deepest == {}
    for document in (deeper, endless):
        assert str(document).startswith(f"more than {MAX_DEPTH} levels are nested in ")


@pytest.mark.parametrize(
    ("items", "message", "expected"),
    [
        ("int", b"\x04\x02\x04\x00", None),
        ("int", b"\x03\x04\x02\x04\x00", None),  # a negative count, with the block's size
        ("int", b"\x02\x02\x02\x04\x00", None),  # two blocks
        ("int", b"\x06\x02\x04\x00", "the message ends in the middle of field a, byte 4"),
        ("int", b"\x08\x02\x04\x00", "more items than the message can hold are announced for field a"),
        ("int", b"\x01\x02", "more items than the message can hold are announced for field a"),
        ("int", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", "more items than the message can hold"),
        ("int", b"\x02\x80\x80\x80\x80\x10\x00", "a number has too many bits in field a[]"),
        ("null", b"\x04\x00", None),
        (
            "null",
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "more than 1,024 items without bytes are announced for field a",
        ),
        ("boolean", b"\x02\x02\x00", "neither 0 nor 1 is field a[]"),
        ("string", b"\x02\x01\x00", "a negative length is announced for field a[]"),
        ("string", b"\x02\x02\xff\x00", "bytes that are not UTF-8 are in field a[]"),
        (["null", "int"], b"\x02\x01\x00", "there is no such branch of field a[]"),
        (["null", "int"], b"\x02\x04\x00", "there is no such branch of field a[]"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02\x01\x00", "there is no such symbol of field a[]"),
    ],
)
def test_lengths_and_counts_beyond_the_message_are_refused(items: Any, message: bytes, expected: str | None) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    (document,) = read(schema, [], message)
    if expected is None:
        assert document == {}
    else:
        assert str(document).startswith(expected)
