"""The parser `json` by its compiled loop, by msgspec and by orjson: the same messages have the same result."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from waybill.config.models import Column, JsonParser
from waybill.parsers import Parsed
from waybill.parsers.json import JsonMessages
from waybill.parsers.named_fields import NamedFieldReader
from waybill.parsers.plain_json import PlainJsonReader
from waybill.records.batches.message_rows import MESSAGE_SCHEMA

CONFIGS = {
    "flat": {"event_time": {"field": "at", "format": "epoch_ms"}, "message_id": "id"},
    "seconds": {"event_time": {"field": "at", "format": "epoch_s"}, "message_id": "id"},
    "text": {"event_time": {"field": "at", "format": "iso8601"}, "message_id": "id"},
    "nested": {"event_time": {"field": "a.at", "format": "epoch_ms"}, "message_id": "a.b.id"},
    "no id": {"event_time": {"field": "at", "format": "epoch_ns"}},
    "odd names": {"event_time": {"field": ["x.y"], "format": "epoch_us"}, "message_id": ["é"]},
}

COLUMNS: dict[str, dict[str, Any]] = {
    "columns": {"b": "string", "c": {"type": "double", "field": "a"}, "x": {"type": "long", "wrong_type": "null"}},
    "more columns": {
        "at": {"type": "timestamp", "format": "epoch_ms"},
        "b": "boolean",
        "d": {"type": "date", "field": "a.at"},
        "f": {"type": "float", "field": "a.b", "wrong_type": "null"},
        "i": {"type": "int", "field": "x", "wrong_type": "null"},
        "s": {"type": "string", "field": ["x.y"], "wrong_type": "null"},
    },
    "shared columns": {"id": "string", "at": {"type": "long"}, "é": {"type": "timestamp", "wrong_type": "null"}},
}
CONFIGS |= dict.fromkeys(COLUMNS, CONFIGS["flat"])


def batch(values: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"offset": n, "timestamp": 0, "key": None, "value": v, "headers": []} for n, v in enumerate(values)],
        schema=MESSAGE_SCHEMA,
    )


def answer(parsed: Parsed) -> list[list[Any]]:
    """What counts of it: where there is an error, that alone."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in parsed.columns.values()
    ]
    times, (ids, errors) = parsed.event_time.cast(pa.int64()), parsed[1:3]
    rows = zip(*(array.to_pylist() for array in (errors, times, ids, *columns)), strict=True)
    return [[error] if error else [*map(repr, found)] for error, *found in rows]


def results(name: str, values: list[bytes]) -> dict[str, list[list[Any]]]:
    """What each reader makes of the messages, with orjson for those that it leaves."""
    config = JsonParser.model_validate(CONFIGS[name])
    columns = {column: Column.model_validate(kind) for column, kind in COLUMNS.get(name, {}).items()}
    parser = JsonMessages(config, columns)
    readers = parser._quick
    assert [type(reader) for reader in readers] == [*([] if columns else [PlainJsonReader]), NamedFieldReader]
    found = {}
    for which in [[], *([reader] for reader in readers), readers]:
        parser._quick = list(which)
        found[" ".join(type(reader).__name__ for reader in which)] = answer(parser.parse(batch(values)))
    return found


SCALARS = st.sampled_from(
    [
        *(b"0", b"-0", b"1", b"-7", b"1.5", b"1e3", b"1E+20", b"1e400", b"-1e400", b"1e308", b"1.8e308", b"12e307"),
        *(b"1" * 19, b"1" * 20, b"1" * 30, b"9223372036854775807", b"9223372036854775808", b"18446744073709551616"),
        *(b"1" * 310, b"1" * 250 + b"e99", b"0." + b"0" * 400 + b"1", b"0." + b"0" * 400 + b"1e390", b"1e-400"),
        *(b"01", b"1.", b"-", b".5", b"+1", b"NaN", b"Infinity", b"-Infinity", b"nul", b"true", b"false", b"null"),
        *(b'""', b'"a"', b'"1"', b'"1357016400123"', b'"2013-01-01T05:00:00Z"', b'"2013-01-01"', b'"1e400"'),
        *(b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\u0061"', b'"\\q"', b'"\x01"'),
        *(b'"\\ud83d"', b'"\\uDC00"'),
        *(b'"\\u00e9"', b'"\\u12"', b'"\\uq000"', b'"\\\\"', b'"\\""', b'"a\\/\\n"', b'"\\'),
        *(b"1" * 18, b"-" + b"9" * 18, b"1e99", b"1e100", b"1E-05", b"-0.0e-0", b"1e", b"1e+", b"tru", b"nulll"),
        *('"é"'.encode(), b'"a\nb"', b'"', b'"58e123456"', b'"5 1e999"', b"\x00", b"\xef\xbb\xbf"),
    ]
)
KEYS = st.sampled_from([b'"at"', b'"id"', b'"a"', b'"b"', b'"x.y"', '"é"'.encode(), b'"\\u0061t"', b'"x"', b'"\xff"'])
SPACE = st.sampled_from([b"", b"", b" ", b"\n", b"\t"])


def objects(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    pair = st.tuples(KEYS, SPACE, inner).map(lambda p: p[0] + b":" + p[1] + p[2])
    return st.lists(pair, max_size=4).map(lambda pairs: b"{" + b",".join(pairs) + b"}")


def arrays(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(inner, max_size=3).map(lambda items: b"[" + b", ".join(items) + b"]")


VALUES = st.recursive(SCALARS, lambda inner: objects(inner) | arrays(inner), max_leaves=10)


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=settings.default.max_examples * 2 // 5)  # the test has many parameters
@given(values=st.lists(objects(VALUES) | VALUES | st.binary(max_size=20), max_size=4))
@example(values=[b'{"at": 1, "x": 1e400}', b'{"at": 1, "x": 1e300}'])
@example(values=[b'{"at": 1, "x": [-1.5E+999]}', b'{"at": 1, "x": "\xff"}', b'{"at": 2}'])
@example(values=[b'{"at": 1, "x": ' + b"7" * 309 + b"}", b'{"at": 1, "x": ' + b"7" * 300 + b"}"])
@example(values=[b'{"at": 1, "x": ' + b"7" * 220 + b"e99}", b'{"at": 1}'])
@example(values=[b'{"at":1,"x":' + b"[" * 990 + b"]" * 990 + b"}", b'{"at":1,"x":' + b"[" * 1030 + b"]" * 1030 + b"}"])
@example(values=[b'{"at":1,"x":"' + b"[" * 2100 + b'"}', b'{"at":1,"x":[' + b"{}," * 1100 + b"0]}"])
@example(values=[b'{"at":1,"a":{"at":1,"b":{"id":"x"}},"a":{}}', b'{"at":1,"at":"2","id":"x","id":""}'])
@example(values=[b'{"at":1,"a":{"at":1,"b":[]},"a":{"at":2,"b":null}}', b'{"a":{"at":1},"a":null,"at":1}'])
@example(values=[b' \n{ "at" : 1 , "id" : "b" , "x" : [ ] , "b" : { } }\r\n\t ', b"{}", b"{} ", b"{", b"}", b"", b" "])
@example(values=[b'{"at":1,"id":"a"},', b'{"at":1,"id":"a"}}', b'{"at":1,"id":["a"}', b'{"at":1,}'])
@example(values=[b'{"at":1,"x":{}', b'{"at":1,"x":[1,]}'])
@example(values=[b'{"at":1,"x":' + b"[" * 62 + b"]" * 62 + b"}", b'{"at":1,"x":' + b"[" * 64 + b"]" * 64 + b"}"])
@example(values=[b'{"at":1,"x":"' + b"a" * n + b'","id":"' + b"b" * n + b'"}' for n in range(70)])
@example(values=[b'{"at":-1,"id":-0}', b'{"at":253402300799999,"id":7}', b'{"at":253402300800000}'])
@example(values=[b'{"at":-62135596800000}', b'{"at":-62135596800001}'])
@example(values=[b'{"at":1,"id":"a"}', b',{"at":2,"id":"b"}', b'{"at":3} {"at":4}'])
def test_every_reader_gives_the_same_result(name: str, values: list[bytes]) -> None:
    orjson, *others = results(name, values).values()
    for other in others:
        assert other == orjson


@pytest.mark.parametrize("name", CONFIGS)
def test_every_reader_gives_the_same_result_for_damaged_documents(name: str) -> None:
    rng = random.Random(name)
    at = "2013-01-01T05:00:00Z" if name == "text" else 1_700_000_000_000
    a = 1.5 if name == "columns" else {"at": 1.5, "b": {"id": 7}}
    if name == "more columns":
        a = {"at": "2013-01-01", "b": 1.25}
    b = name == "more columns" or "text"
    good = json.dumps(
        {"at": at, "id": "0e123" * 4, "x.y": 5, "é": "ü", "a": a, "b": b, "x": 12, "n": [1e99]},
        ensure_ascii=False,
    ).encode()
    values = []
    for _ in range(1_000):
        damaged = bytearray(good)
        for _ in range(rng.choice([1, 1, 2])):
            damaged[rng.randrange(len(damaged))] = rng.choice(b'"{}[]:,0123456789eE+-.\\u\x00\x1f\xff aN')
        values.append(bytes(damaged))
    orjson, *others = results(name, values).values()
    for other in others:
        assert other == orjson
    assert any(len(row) > 1 for row in orjson)
    assert any(len(row) == 1 for row in orjson)


def test_plain_messages_are_read_by_msgspec() -> None:
    config = JsonParser.model_validate(CONFIGS["nested"])
    reader = NamedFieldReader.for_fields(config.event_time, config.message_id)
    assert reader is not None
    values = [
        b'{"a": {"at": 1, "b": {"id": "x"}}, "price": 1.5e3}',
        b'{"a": {"at": 1, "b": {"id": 7}}}',
        b'{"a": {"at": 1.5, "b": {}}}',
        b'{"a": {"at": "1", "b": null}}',
        b'{"a": {"at": 1}, "hash": "0e123456e789"}',
    ]
    parsed, rows = reader.read(pa.array(values, pa.binary()).slice(0))
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert parsed.message_id.to_pylist() == ["x", "7", None, None, None]


def test_plain_messages_are_read_by_the_loop() -> None:
    config = JsonParser.model_validate(CONFIGS["nested"])
    reader = PlainJsonReader.for_fields(config.event_time, config.message_id)
    assert reader is not None
    values = [
        b'{"a": {"at": 1, "b": {"id": "x"}}, "price": -1.5e3, "list": [{}, [], true, false, null, "\\u00e9\\n"]}',
        b'{"a": {"at": -1, "b": {"id": 70, "at": 2}}, "at": 3}',
        b'{"a": {"at": 1.5, "b": {}}}',
        '{"x": [{"a": {"at": 5}}], "a": {"b": {"id": null}, "at": 12}, "é": "é"}'.encode(),
        b'{"a": {"at": "1", "b": {}}}',
        b'{"a": {"at": 4, "b": {"id": "\\n"}}}',
    ]
    parsed, rows = reader.read(pa.array([b"", *values], pa.binary()).slice(1))
    assert rows.tolist() == [0, 1, 3]
    assert parsed.event_time.cast(pa.int64()).to_pylist() == [1_000, -1_000, 12_000]
    assert parsed.message_id.to_pylist() == ["x", "70", None]
    assert parsed.error.null_count == 3


def test_texts_as_event_times_are_read_by_the_loop() -> None:
    config = JsonParser.model_validate(CONFIGS["text"])
    reader = PlainJsonReader.for_fields(config.event_time, config.message_id)
    assert reader is not None
    values = [b'{"at":"2013-01-01T05:00:00Z"}', b'{"at":"yesterday"}', b'{"at":5}', b'{"at":"2013-01-01 05:00"}']
    parsed, rows = reader.read(pa.array(values, pa.binary()))
    assert rows.tolist() == [0, 3]
    assert [time.isoformat() for time in parsed.event_time.to_pylist()] == ["2013-01-01T05:00:00+00:00"] * 2


@pytest.mark.parametrize(("field", "message_id"), [("a", "a.b"), ("a.b", "a")])
def test_the_loop_reads_no_field_inside_another(field: str, message_id: str) -> None:
    config = JsonParser.model_validate({"event_time": {"field": field, "format": "epoch_ms"}, "message_id": message_id})
    assert PlainJsonReader.for_fields(config.event_time, config.message_id) is None


@pytest.mark.parametrize(("field", "message_id"), [("a", "a.b"), ("a.b", "a"), ('a"b', None), ("a", "b\\c")])
def test_fields_without_a_msgspec_type_are_left_to_orjson(field: str, message_id: str | None) -> None:
    config = JsonParser.model_validate({"event_time": {"field": field, "format": "epoch_ms"}, "message_id": message_id})
    assert NamedFieldReader.for_fields(config.event_time, config.message_id) is None
