"""Values by which one message hurts others, or becomes another value; compared with independent readers."""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from typing import Any

import msgpack
import msgspec
import pytest
from google.protobuf import json_format, struct_pb2
from hypothesis import example, given
from hypothesis import strategies as st
from parsing import batch, parser_config, reasons
from test_field_cases import protobuf as protobuf_parser

from waybill.config.models.columns import Column
from waybill.parsers import Parsed, build_parser
from waybill.parsers.protocol import MAX_REASON_CHARACTERS, bounded_reason
from waybill.parsers.timestamps import shorten

AT = {"field": "t", "format": "epoch_ms"}
KINDS = ["boolean", "int", "long", "float", "double", "decimal(9,2)", "string", "binary", "date", "timestamp", "json"]
KINDS += [f"list<{kind}>" for kind in ("long", "string", "decimal(9,2)")]


def read(name: str, kind: str, value: bytes, **keys: object) -> Parsed:
    """Parse one message with a typed column `a`."""
    config = parser_config(**{"name": name, "event_time": AT} | keys)
    return build_parser(config, {"a": Column.model_validate(kind)}).parse(batch(value))


def read_json(kind: str, value: str) -> Parsed:
    return read("json", kind, b'{"t":1,"a":' + value.encode() + b"}")


def read_msgpack(kind: str, value: bytes, **keys: object) -> Parsed:
    return read("msgpack", kind, b"\x82\xa1t\x01\xa1a" + value, **keys)


# --- reasons ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [300, 800, 985, 1020])
def test_nesting_is_never_a_fault_of_the_parser(kind: str, levels: int) -> None:
    found = [
        read_json(kind, "[" * levels + "]" * levels),
        read_json(kind, '{"a":' * levels + "1.5" + "}" * levels),
        read_msgpack(kind, b"\x91" * levels + b"\xc0"),
        read_msgpack(kind, b"\x81\xa1a" * levels + b"\xc0"),
    ]
    for parsed in found:
        assert reasons(parsed)[0] in {"column_wrong_type", "not_json", "not_msgpack"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=9),
        lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=3), below, max_size=4),
    )
)
def test_a_short_value_is_quoted_as_python_writes_it(value: object) -> None:
    text = repr(value)
    assert shorten(value) == (text if len(text) <= 100 else text[:99] + "…")


def test_quoting_a_value_reads_no_more_of_it_than_it_shows() -> None:
    inner: Any = "x" * (1 << 20)
    for _ in range(100_000):  # `repr` would copy the text for each level, and refuses so many
        inner = [inner]
    assert shorten(inner) == "[" * 99 + "…"


@pytest.mark.parametrize("detail", ["\ud800" * 10**6, "\ud800" * 999, "a\ud800" * 500, "😀" * 1000, "😀" * 1001])
def test_a_reason_is_bounded_after_its_escapes(detail: str) -> None:
    text = bounded_reason(detail)
    assert len(text) <= MAX_REASON_CHARACTERS
    assert len(text.encode()) <= 4 * MAX_REASON_CHARACTERS


# --- numbers of JSON --------------------------------------------------------------------------------------------------

NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
NEAR_THE_LIMIT = st.integers(2**53 - 3, 2**53 + 3).map(str)


@given(
    st.sampled_from(["int", "long"]),
    NUMBERS | NEAR_THE_LIMIT.flatmap(lambda each: st.sampled_from([each, each + ".0"])),
)
@example("long", "1e-400")
@example("long", "0.99999999999999999999")
@example("long", "9007199254740993.0")
@example("int", "12345678901234567890123")
def test_a_whole_number_is_the_one_that_was_written(kind: str, text: str) -> None:
    number = Decimal(text)
    bits = 31 if kind == "int" else 63
    is_plain = text.lstrip("-").isdigit()
    fits = number == number.to_integral_value() and -(2**bits) <= number < 2**bits
    expected = int(number) if fits and (is_plain or abs(number) <= 2**53) else None
    parsed = read_json(kind, text)
    assert parsed.columns["a"].to_pylist() == [expected]
    assert reasons(parsed) == [None if expected is not None else "column_wrong_type"]
    assert read_json(f"list<{kind}>", f"[{text}]").columns["a"].to_pylist() == [
        None if expected is None else [expected]
    ]


@given(NUMBERS | NEAR_THE_LIMIT)
@example("12345678901234567890123")
@example("-9223372036854775809")
@example("18446744073709551616")
def test_a_float_is_the_nearest_and_a_whole_number_must_be_exact(text: str) -> None:
    number = json.loads(text)
    expected = None if type(number) is int and abs(number) > 2**53 else float(text)
    parsed = read_json("double", text)
    assert parsed.columns["a"].to_pylist() == [expected]
    assert read_json("list<double>", f"[{text}]").columns["a"].to_pylist() == [None if expected is None else [expected]]


@pytest.mark.parametrize("number", ["1E400", "-1e400", "9" * 400])
def test_a_number_beyond_a_double_is_a_reason_of_the_whole_message(number: str) -> None:
    for kind in ("json", "double", "decimal(9,2)"):
        assert reasons(read_json(kind, number)) == ["not_json"]


# --- MessagePack ------------------------------------------------------------------------------------------------------

OTHER = (
    st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.binary(max_size=3) | st.none() | st.booleans()
)
KEYS = st.text(max_size=40) | OTHER | st.lists(OTHER | st.text(max_size=2), max_size=3).map(tuple)
DOCUMENTS = st.recursive(
    OTHER | st.text(max_size=300) | st.binary(min_size=250, max_size=260),
    lambda below: st.lists(below, max_size=20) | st.dictionaries(KEYS, below, max_size=20),
    max_leaves=30,
)


def other_keys(value: object) -> int:
    """Return how many keys are not text, values inside of keys included."""
    if isinstance(value, dict):
        keys = sum(0 if type(key) is str else 1 + (len(key) if type(key) is tuple else 0) for key in value)
        return keys + sum(map(other_keys, value.values()))
    return sum(map(other_keys, value)) if isinstance(value, list) else 0


@given(DOCUMENTS)
def test_keys_that_are_not_text_are_counted_as_another_reader_finds_them(document: object) -> None:
    packed = msgpack.packb(document)
    count = other_keys(document)
    assert msgpack.unpackb(packed, strict_map_key=False, use_list=False) is not NotImplemented
    assert reasons(read_msgpack("boolean", packed, max_other_keys=count))[0] in {None, "column_wrong_type"}
    if count:
        parsed = read_msgpack("boolean", packed, max_other_keys=count - 1)
        assert parsed.error.to_pylist() == [
            f"not_msgpack: its maps have more than {count - 1:,} keys that are not text (max_other_keys)"
        ]


def test_one_message_with_many_other_keys_does_not_affect_others() -> None:
    many = msgpack.packb({"t": 2, **dict.fromkeys(range(1001))})  # type: ignore[dict-item]
    good = [msgpack.packb({"t": number}) for number in (1, 3)]
    config = parser_config(name="msgpack", event_time=AT)
    parsed = build_parser(config).parse(batch(good[0], many, good[1]))
    assert reasons(parsed) == [None, "not_msgpack", None]
    assert reasons(
        build_parser(parser_config(name="msgpack", event_time=AT, max_other_keys=1001)).parse(batch(many))
    ) == [None]


@given(st.binary(max_size=60))
def test_no_bytes_make_the_msgpack_parser_raise(value: bytes) -> None:
    for limit in (0, 1000):
        assert reasons(read_msgpack("json", value, max_other_keys=limit)) != ["parser_failed"]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("around", [b"", b"\x91", b"\x92\xc0", b"\x81\xa1k"])
def test_a_number_that_json_does_not_have_is_no_null(number: float, around: bytes) -> None:
    parsed = read_msgpack("json", around + struct.pack(">Bd", 0xCB, number))
    assert parsed.error.to_pylist()[0].endswith(f"that JSON cannot represent: it contains {number}")


def test_two_keys_with_one_text_do_not_become_one() -> None:
    assert read_msgpack("json", msgspec.msgpack.encode({1: "a", "2": "b"})).columns["a"].to_pylist() == [
        '{"1":"a","2":"b"}'
    ]
    parsed = read_msgpack("json", msgspec.msgpack.encode({"k": {1: "a", "1": "b"}}))
    assert parsed.error.to_pylist()[0].endswith("two of its keys have the same text")


# --- Struct of Protobuf -----------------------------------------------------------------------------------------------


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
        lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3),
        max_leaves=8,
    )
)
@example(1e300)
@example(float(2**53))
@example(-float(2**64))
def test_a_struct_is_the_json_that_protobuf_makes_of_it(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    found = struct_pb2.Struct()
    json_format.ParseDict({"v": value}, found)
    config, columns = protobuf_parser(tmp_path_factory.mktemp("struct"), "proto3")
    content = found.SerializeToString()
    message = b"\x08\x01\x1a" + bytes([len(content) & 0x7F | 0x80, len(content) >> 7]) + content
    parsed = build_parser(config, columns).parse(batch(message))
    assert parsed.error.to_pylist() == [None]
    assert json.loads(parsed.columns["doc"].to_pylist()[0]) == json_format.MessageToDict(found)
