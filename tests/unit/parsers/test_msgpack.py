from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import batch, ids, parse, parser_config, reasons, slow_examples, times

from waybill.config.models import Column, ParserConfig
from waybill.parsers import build_parser

pack = msgspec.msgpack.encode


def config(**keys: object) -> ParserConfig:
    event_time = {"field": "at", "format": "epoch_ms"}
    return parser_config(**{"name": "msgpack", "event_time": event_time, "message_id": "id"} | keys)


def test_valid_messages_are_parsed() -> None:
    parsed = parse(config(), pack({"at": 1, "id": "a"}), pack({"at": "2", "id": 7, 1: 2, b"k": []}), pack({"at": 3.5}))
    assert times(parsed) == [1000, 2000, 3500]
    assert ids(parsed) == ["a", "7", None]


def test_field_paths_lead_through_maps_only() -> None:
    deep = config(event_time={"field": "a.b"}, message_id=["x.y", "z"])
    parsed = parse(deep, pack({"a": {"b": "1970-01-01T00:00:01Z"}, "x.y": {"z": "i"}}), pack({"a": [{"b": 1}]}))
    assert (times(parsed), ids(parsed)[0]) == ([1_000_000, None], "i")
    assert parsed.error.to_pylist()[1] == "event_time_missing: field a.b is missing"


@pytest.mark.parametrize("written", ["iso8601", "epoch_s"])
def test_a_timestamp_is_used_as_event_time_whatever_the_format(written: str) -> None:
    moments = [datetime(2013, 1, 1, 5, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    stamped = [pack({"at": moment}) for moment in moments]
    chosen = config(event_time={"field": "at", "format": written})
    other = pack({"at": "1970-01-01" if written == "iso8601" else 0})
    for values in (stamped, [*stamped, other]):  # alone, and beside one that is written
        parsed = parse(chosen, *values)
        assert parsed.event_time.to_pylist()[:3] == moments
        assert parsed.error.null_count == len(values)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not_msgpack: Input data was truncated"),
        (b"\xc1", "not_msgpack: MessagePack data is malformed: invalid opcode"),
        (b"\x81\xa1\xff\x01", "not_msgpack: 'utf-8' codec can't decode byte 0xff"),
        (pack({"at": 1}) + b"\x01", "not_msgpack: MessagePack data is malformed: trailing characters"),
        (b"\x81\x81\x01\x02\x03", "not_msgpack: MessagePack data is malformed: map keys must be hashable"),
        (b"\x81\x91\x80\x03", "not_msgpack: "),
        (b"\x91" * 100_000, "not_msgpack: maximum recursion depth exceeded"),
        (b"\xdd\xff\xff\xff\xff", "not_msgpack: Input data was truncated"),
        (b"\xdf\xff\xff\xff\xff", "not_msgpack: Input data was truncated"),
        (b"\xc6\xff\xff\xff\xff", "not_msgpack: Input data was truncated"),
        (b"\x81\xa2at\xc7\x0c\xff\0\0\0\0\x7f" + b"\xff" * 7, "not_msgpack: Timestamp is out of range"),
        (b"{}", "not_msgpack: MessagePack data is malformed: trailing characters"),
        (pack([1]), "not_a_map: found an array"),
        (b"\xd4\x05\x01", "not_a_map: found an extension"),
        (pack({}), "event_time_missing: field at is missing"),
        (pack({b"at": 1}), "event_time_missing: field at is missing"),
        (pack({"at": None}), "event_time_missing: field at is null"),
        (pack({"at": True}), "event_time_wrong_type: found a boolean"),
        (pack({"at": b"1"}), "event_time_wrong_type: found binary"),
        (pack({"at": float("nan")}), "event_time_malformed: nan is not a number"),
        (pack({"at": float("inf")}), "event_time_malformed: inf is not a number"),
        (pack({"at": 2**64 - 1}), "event_time_out_of_range: "),
        (pack({"at": 1, "id": 1.5}), "message_id_wrong_type: field id is a number"),
        (pack({"at": 1, "id": b"a"}), "message_id_wrong_type: field id is binary"),
        (pack({"at": 1, "id": datetime(2013, 1, 1, tzinfo=UTC)}), "message_id_wrong_type: field id is a timestamp"),
    ],
)
def test_an_invalid_message_does_not_affect_others(value: bytes, reason: str) -> None:
    parsed = parse(config(), pack({"at": 1, "id": "a"}), value, pack({"at": 2, "id": "b"}))
    assert parsed.error.to_pylist()[1].startswith(reason)
    assert times(parsed) == [1000, None, 2000]
    assert [ids(parsed)[0], ids(parsed)[2]] == ["a", "b"]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["at", "id", "x"]), inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from(["at", "id"]), st.integers() | st.text(max_size=3) | values).filter(
    lambda d: all(not isinstance(v, int) or -(2**63) <= v < 2**64 for v in d.values())
)
damaged = st.builds(lambda d, at, byte: pack(d)[:at] + byte, documents, st.integers(0, 20), st.binary(max_size=3))


@given(st.lists(st.binary(max_size=40) | values.map(pack) | documents.map(pack) | damaged, max_size=5))
@slow_examples
def test_no_message_makes_the_parser_raise(messages: list[bytes]) -> None:
    together = parse(config(), *messages)
    alone = [parse(config(), message) for message in messages]
    assert times(together) == [times(one)[0] for one in alone]
    assert together.error.to_pylist() == [one.error.to_pylist()[0] for one in alone]


def finite(value: Any) -> bool:
    return "Infinity" not in json.dumps(value)


@given(st.lists(documents.filter(finite).filter(lambda d: not isinstance(d.get("id"), float)), max_size=5))
@slow_examples
def test_a_document_is_read_like_the_same_document_in_json(maps: list[dict[str, Any]]) -> None:
    as_json = parser_config(name="json", event_time={"field": "at", "format": "epoch_ms"}, message_id="id")
    twins = parse(as_json, *(json.dumps(one).encode() for one in maps))
    parsed = parse(config(), *(pack(one) for one in maps))
    assert (times(parsed), reasons(parsed)) == (times(twins), reasons(twins))
    there = parsed.error.is_null()
    assert parsed.message_id.filter(there) == twins.message_id.filter(there)


def test_the_reason_for_an_extension_is_the_same_each_time() -> None:
    message = msgspec.msgpack.encode({"at": 1, "id": msgspec.msgpack.Ext(5, b"abc")})
    columns = {"c": Column.model_validate("long")}
    parser = build_parser(config(message_id=None), columns)
    nested = msgspec.msgpack.encode({"at": 1, "c": [msgspec.msgpack.Ext(5, b"abc")]})
    [found] = parser.parse(batch(nested)).error.to_pylist()
    assert found == "column_wrong_type: field c is [extension 5 of 3 bytes], an array, where long is expected"
    assert reasons(parse(config(), message)) == ["message_id_wrong_type"]
