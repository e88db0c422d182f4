"""Typed columns of each parser: a value, null, or quarantine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import batch, parser_config, slow_examples

from waybill.config.models import Column
from waybill.parsers import Parsed, build_parser

pack = msgspec.msgpack.encode
JSON = {"name": "json", "event_time": {"field": "at", "format": "epoch_s"}, "message_id": "id"}
REGEX = {
    "name": "regex",
    "pattern": r"^(?P<at>\d+) (?P<host>\S*)(?: (?P<size>\S+))?$",
    "event_time": {"field": "at", "format": "epoch_s"},
}
DELIMITED = {
    "name": "delimited",
    "columns": ["at", "host", "size", "a.b"],
    "event_time": {"field": "at", "format": "epoch_s"},
    "message_id": "host",
}


def parse(parser: Mapping[str, Any], columns: Mapping[str, Any], *values: bytes) -> Parsed:
    """What the parser makes of the values; each alone must give the same."""
    typed = {name: Column.model_validate(column) for name, column in columns.items()}
    made = build_parser(parser_config(**parser), typed)
    parsed = made.parse(batch(*values))
    for array in (parsed.event_time, parsed.message_id, parsed.error, *parsed.columns.values()):
        assert len(array) == len(values)
        array.validate(full=True)
    alone = [made.parse(batch(value)) for value in values]
    assert parsed.error.to_pylist() == [each.error[0].as_py() for each in alone]
    for name, array in parsed.columns.items():
        assert all(
            error or found == each.columns[name][0]
            for error, found, each in zip(parsed.error.to_pylist(), array, alone, strict=True)
        )
    return parsed


def rows(parsed: Parsed) -> list[Any]:
    """The columns of each message, or why it is refused."""
    values = zip(*(array.to_pylist() for array in parsed.columns.values()), strict=True)
    return [error or value for error, value in zip(parsed.error.to_pylist(), values, strict=True)]


def test_json_columns_are_found_by_path() -> None:
    columns = {"carrier": "string", "b": {"type": "int", "field": "a.b"}, "dotted": {"type": "int", "field": ["a.b"]}}
    parsed = parse(
        JSON,
        columns,
        b'{"at": 1, "carrier": "UA", "a": {"b": 2}, "a.b": 3}',
        b'{"at": 1, "carrier": null, "a": {"b": null}}',
        b'{"at": 1, "a": 7}',
        b'{"at": 1, "a": [{"b": 2}], "a.b": "x"}',
        b'{"at": 1, "carrier": "AA", "carrier": "DL"}',
        b'{"carrier": 7}',
        b"?",
    )
    assert rows(parsed) == [
        ("UA", 2, 3),
        (None, None, None),
        (None, None, None),
        "column_wrong_type: field a.b is 'x', a string, where int is expected",
        ("DL", None, None),
        "event_time_missing: field at is missing",
        "not_json: unexpected character, expected a JSON value: line 1 column 1 (char 0)",
    ]


def test_the_reason_names_the_first_configured_column_that_does_not_fit() -> None:
    message = b'{"at": 1, "x": "a", "y": "b", "z": "c"}'
    [why] = rows(parse(JSON, {"z": {"type": "int", "wrong_type": "null"}, "y": "int", "x": "int"}, message))
    assert why.startswith("column_wrong_type: field y is 'b'")


def test_wrong_type_null_keeps_the_message() -> None:
    columns = {"x": {"type": "int", "wrong_type": None}, "y": "string"}
    parsed = parse(JSON, columns, b'{"at": 1, "x": "a", "y": "b"}', b'{"at": "soon", "x": "a", "y": "b"}')
    assert rows(parsed) == [(None, "b"), "event_time_malformed: 'soon' is not a number"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("12.50", "12.50"),
        ("1234567890123456.78", "1234567890123456.78"),
        ("0.1000000000000000000000000001", "0.1000000000000000000000000001"),
        ("1234567890123456789012345678", "1234567890123456789012345678"),
        ("-1E+3", "-1000"),
        ("1e-28", "0.0000000000000000000000000001"),
        ("1.00000000000000000000000000000", "1"),
        ('"1234567890123456.78"', "1234567890123456.78"),
        ("0.10000000000000000000000000001", None),
        ("1e-99999999999999999999", None),
        ("[1.5]", None),
    ],
)
def test_json_decimals_are_exact(number: str, expected: str | None) -> None:
    """Though orjson makes floats of them."""
    scale = 28 if expected is None or expected.startswith("0.") else 2
    columns = {"d": {"type": f"decimal(38,{scale})", "field": "x.d"}}
    message = f'{{"at": 1, "x": {{"d": {number}, "other": 1e-99999999999999999999}}}}'.encode()
    [found] = rows(parse(JSON, columns, message))
    if expected is None:
        assert found.startswith("column_wrong_type: field x.d is ")
    else:
        assert found == (Decimal(expected),)
    nulled = {"d": {**columns["d"], "wrong_type": "null"}}
    assert rows(parse(JSON, nulled, message)) == [(None if expected is None else Decimal(expected),)]


def test_json_lists_of_decimals_are_exact() -> None:
    [found] = rows(parse(JSON, {"d": "list<decimal(18,2)>"}, b'{"at": 1, "d": [1, null, 1234567890123456.78]}'))
    assert found == ([1, None, Decimal("1234567890123456.78")],)


def test_a_decimal_in_a_message_nested_too_deeply_goes_to_quarantine() -> None:
    message = b'{"at": 1, "d": 0.5, "deep": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    assert rows(parse(JSON, {"d": "decimal(3,1)"}, message)) in (
        ["column_wrong_type: field d cannot be read exactly: nested too deeply"],
        [(Decimal("0.5"),)],  # where Python's own limit is higher
    )
    too_deep = b'{"at": 1, "j": ' + b"[" * 500 + b"]" * 500 + b"}"
    [why] = rows(parse(JSON, {"j": "json"}, too_deep))
    assert why.startswith("column_wrong_type: field j is an array that JSON cannot represent: Recursion limit reached")


DOCUMENTS = st.lists(
    st.dictionaries(
        st.sampled_from(["at", "a", "b"]),
        st.recursive(
            st.one_of(
                st.none(),
                st.booleans(),
                st.integers(-(2**64), 2**64),
                st.integers(-300, 300),
                st.floats(allow_nan=False, allow_infinity=False),
                st.text(st.characters(codec="utf-8"), max_size=4),
                st.sampled_from(["1970-01-01", "1970-01-01T00:00:00Z", "1", "AAEC"]),
            ),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["b", "c"]), inner, max_size=2),
            max_leaves=4,
        ),
    ),
    max_size=8,
)


def fits(kind: str, value: Any) -> bool:
    """The rule in other words, for some of the types."""
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str)
    if kind == "list<string>":
        return isinstance(value, list) and all(v is None or isinstance(v, str) for v in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind == "double":
        return isinstance(value, float) or abs(value) <= 2**53 or abs(value) > 2**64
    whole = isinstance(value, int) or (value == int(value) and abs(value) <= 2**53)
    return whole and -(2**63) <= value < 2**63


@given(DOCUMENTS, st.sampled_from(["boolean", "string", "list<string>", "double", "long", "json"]))
@slow_examples
def test_json_columns_have_the_values_that_pythons_json_reads(documents: list[dict[str, Any]], kind: str) -> None:
    values = [json.dumps({**document, "at": 1}).encode() for document in documents]
    columns = {"a": kind, "ab": {"type": kind, "field": "a.b", "wrong_type": "null"}}
    parsed = parse(JSON, columns, *values)
    for text, error, a, ab in zip(
        values, parsed.error.to_pylist(), *(column.to_pylist() for column in parsed.columns.values()), strict=True
    ):
        document = json.loads(text)
        found = document.get("a")
        within = found.get("b") if isinstance(found, dict) else None
        if kind == "json":
            assert error is None
            assert [None if t is None else json.loads(t) for t in (a, ab)] == [as_orjson(found), as_orjson(within)]
            continue
        assert (error is None) == (found is None or fits(kind, found))
        assert error is not None or a == found
        assert ab == (within if within is not None and fits(kind, within) else None)


def as_orjson(value: Any) -> Any:
    """orjson reads a whole number of more than 64 bits as a float."""
    if isinstance(value, dict):
        return {key: as_orjson(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_orjson(inner) for inner in value]
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


def test_msgpack_columns_of_bytes_and_timestamps_are_read() -> None:
    parser = {**JSON, "name": "msgpack"}
    columns = {"b": "binary", "t": "timestamp", "j": "json", "d": "decimal(5,2)"}
    moment = datetime(2013, 1, 1, 5, tzinfo=UTC)
    parsed = parse(
        parser,
        columns,
        pack({"at": 1, "b": b"\xff", "t": moment, "j": {1: b"\xff"}, "d": 0.25}),
        pack({"at": 1, "b": "/w=="}),
        pack({"at": 1, "t": "2013-01-01T05:00:00Z"}),
    )
    assert rows(parsed) == [
        (b"\xff", moment, '{"1":"/w=="}', Decimal("0.25")),
        "column_wrong_type: field b is '/w==', a string, where binary is expected",
        (None, moment, None, None),
    ]


def test_regex_columns_are_read() -> None:
    columns = {"host": "string", "bytes": {"type": "int", "field": "size"}}
    parsed = parse(REGEX, columns, b"1 web1 12", b"1 web1", b"1 ", b"1 web1 -", b"x", b"\xff")
    assert rows(parsed) == [
        ("web1", 12),
        ("web1", None),
        (None, None),
        "column_wrong_type: field size is '-', which is not a whole number",
        "pattern_not_found: the pattern is found nowhere in the message",
        "not_utf8: invalid start byte at byte 0",
    ]


RECORDS = [
    b"1,web1,12,x",
    b'1,"web,2",13,""',
    b"1,,,",
    b'1,"a""b",7,x\n',
    b"1,a,b,c",
    b"1,a",
    b'1,"a,3,x',
    b'"1\n",a,3,x',
]


@pytest.mark.parametrize("quote", ['"', "'"])
def test_delimited_columns_are_read_by_arrow_and_one_by_one(quote: str) -> None:
    columns = {
        "host": "string",
        "size": "int",
        "again": {"type": "string", "field": "size"},
        "dotted": {"type": "string", "field": "a.b"},
    }
    records = [record.replace(b'"', quote.encode()) for record in RECORDS]
    parsed = parse({**DELIMITED, "quote": quote}, columns, *records)
    assert rows(parsed) == [
        ("web1", 12, "12", "x"),
        ("web,2", 13, "13", None),
        (None, None, None, None),
        (f"a{quote}b", 7, "7", "x"),
        "column_wrong_type: field size is 'b', which is not a whole number",
        "wrong_column_count: found 2 columns where 4 are expected",
        "not_delimited: a quote is not closed",
        "event_time_malformed: '1\\n' is not a number",
    ]
    assert parsed.message_id.to_pylist()[:2] == ["web1", "web,2"]


def test_event_time_and_id_can_also_be_columns() -> None:
    columns = {"at": "long", "id": {"type": "string", "field": "host"}}
    assert rows(parse(DELIMITED, columns, b"5,web1,,")) == [(5, "web1")]
    assert rows(parse(JSON, {"at": "long", "id": "string"}, b'{"at": 5, "id": "i"}')) == [(5, "i")]


def test_an_empty_batch_has_empty_columns() -> None:
    for parser in (JSON, REGEX, DELIMITED):
        assert parse(parser, {"host": "int", "size": "string"}).columns["host"].type == pa.int32()
