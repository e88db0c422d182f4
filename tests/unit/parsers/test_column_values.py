"""Values of documents in typed columns: which fit, and that Arrow converts batches like single values."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waybill.config.models import Column
from waybill.parsers import column_values
from waybill.parsers.column_values import convert_values
from waybill.parsers.protocol import arrow_type

WRONG = object()
TYPES = (
    *("boolean", "int", "long", "float", "double", "decimal(6,2)", "decimal(38,0)", "string", "binary", "date"),
    *("timestamp", "json", "list<int>", "list<string>", "list<decimal(6,2)>", "list<timestamp>", "list<json>"),
)


def column(kind: str, **keys: Any) -> Column:
    return Column.model_validate({"type": kind} | keys)


def convert(kind: str, *values: Any, base64_texts: bool = True, **keys: Any) -> list[Any]:
    """Return the converted values, `WRONG` for each that does not fit."""
    array, errors = convert_values(values, column(kind, **keys), base64_texts=base64_texts)
    array.validate(full=True)
    assert array.type == arrow_type(column(kind).type)
    assert all(not array[index].is_valid for index in errors)
    return [WRONG if index in errors else value for index, value in enumerate(array.to_pylist())]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        *((kind, None, None) for kind in TYPES),
        ("boolean", True, True),
        ("boolean", 1, WRONG),
        ("boolean", "true", WRONG),
        ("int", 2**31 - 1, 2**31 - 1),
        ("int", -(2**31), -(2**31)),
        ("int", 2**31, WRONG),
        ("int", 5.0, 5),
        ("int", -0.0, 0),
        ("int", 5.5, WRONG),
        ("int", 3e9, WRONG),
        ("int", "5", WRONG),
        ("int", True, WRONG),
        ("int", math.nan, WRONG),
        ("int", math.inf, WRONG),
        ("int", Decimal(5), WRONG),
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", 2**63, WRONG),
        ("long", 10**400, WRONG),
        ("long", 2.0**53, 2**53),
        ("long", 2.0**53 + 2, WRONG),
        ("float", 0.5, 0.5),
        ("float", 0.1, 0.10000000149011612),
        ("float", 2**24, 2.0**24),
        ("float", 2**24 + 1, WRONG),
        ("float", 1e300, WRONG),
        ("float", -math.inf, -math.inf),
        ("float", "0.5", WRONG),
        ("double", 1e300, 1e300),
        ("double", 2**53, 2.0**53),
        ("double", 2**53 + 1, WRONG),
        ("double", 10**400, WRONG),
        ("double", math.inf, math.inf),
        ("double", False, WRONG),
        ("decimal(6,2)", 12, Decimal("12.00")),
        ("decimal(6,2)", -9999, Decimal("-9999.00")),
        ("decimal(6,2)", 10_000, WRONG),
        ("decimal(6,2)", 12.5, Decimal("12.50")),
        ("decimal(6,2)", 0.1, Decimal("0.10")),
        ("decimal(6,2)", 12.345, WRONG),
        ("decimal(6,2)", "12.3400", Decimal("12.34")),
        ("decimal(6,2)", "-1e3", Decimal("-1000.00")),
        ("decimal(6,2)", "0." + "0" * 300, Decimal("0.00")),
        ("decimal(6,2)", "0e999", Decimal("0.00")),
        ("decimal(6,2)", "1e999", WRONG),
        ("decimal(6,2)", "1e-999", WRONG),
        ("decimal(6,2)", "12,5", WRONG),
        ("decimal(6,2)", "", WRONG),
        ("decimal(6,2)", "NaN", WRONG),
        ("decimal(6,2)", Decimal("12.300"), Decimal("12.30")),
        ("decimal(6,2)", Decimal("1E-41"), WRONG),
        ("decimal(6,2)", Decimal("0E-60"), Decimal("0.00")),
        ("decimal(38,0)", Decimal("1E-39"), WRONG),
        ("decimal(38,0)", Decimal("6.171621327711269438159643E-15"), WRONG),
        ("decimal(6,2)", Decimal("NaN"), WRONG),
        ("decimal(6,2)", Decimal("sNaN"), WRONG),
        ("decimal(6,2)", Decimal("Infinity"), WRONG),
        ("decimal(6,2)", math.nan, WRONG),
        ("decimal(6,2)", True, WRONG),
        ("decimal(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
        ("decimal(38,0)", 10**38, WRONG),
        ("decimal(38,0)", 10**400, WRONG),
        ("string", "", ""),
        ("string", "é\0😀", "é\0😀"),
        ("string", "\ud800", WRONG),
        ("string", b"bytes", WRONG),
        ("string", 12, WRONG),
        ("string", {"a": 1}, WRONG),
        ("binary", b"\x00\xff", b"\x00\xff"),
        ("binary", "AP8=", b"\x00\xff"),
        ("binary", "AP8", WRONG),
        ("binary", "A P8=", WRONG),
        ("binary", "é", WRONG),
        ("binary", 0, WRONG),
        ("date", date(2013, 1, 31), date(2013, 1, 31)),
        ("date", "2013-01-31", date(2013, 1, 31)),
        ("date", "0001-01-01", date(1, 1, 1)),
        ("date", "0000-01-01", WRONG),
        ("date", "2013-02-29", WRONG),
        ("date", "2013-1-31", WRONG),
        ("date", "20130131", WRONG),
        ("date", "2013-01-31T00:00:00Z", WRONG),
        ("date", datetime(2013, 1, 31, tzinfo=UTC), WRONG),
        ("date", 15736, WRONG),
        ("timestamp", "2013-01-31T10:15:00-05:00", datetime(2013, 1, 31, 15, 15, tzinfo=UTC)),
        ("timestamp", "2013-01-31", datetime(2013, 1, 31, tzinfo=UTC)),
        ("timestamp", datetime.fromisoformat("2013-01-31"), datetime(2013, 1, 31, tzinfo=UTC)),
        ("timestamp", datetime(2013, 1, 31, 1, tzinfo=timezone(timedelta(hours=1))), datetime(2013, 1, 31, tzinfo=UTC)),
        ("timestamp", "soon", WRONG),
        ("timestamp", 1357016400, WRONG),
        ("json", {"a": [1, None, {"b": "é"}]}, '{"a":[1,null,{"b":"é"}]}'),
        ("json", "text", '"text"'),
        ("json", False, "false"),
        ("json", 1.5, "1.5"),
        ("json", {1: b"\x00\xff", None: 2}, '{"1":"AP8=","null":2}'),
        ("json", [Decimal("1.50"), date(2013, 1, 31)], '["1.50","2013-01-31"]'),
        ("json", math.nan, WRONG),
        ("json", 2**64, WRONG),
        ("json", "\ud800", WRONG),
        ("json", [msgspec.msgpack.Ext(1, b"x")], WRONG),
        ("list<int>", [], []),
        ("list<int>", [1, None, 3], [1, None, 3]),
        ("list<int>", [1, "2"], WRONG),
        ("list<int>", {"a": 1}, WRONG),
        ("list<int>", 1, WRONG),
        ("list<string>", "ab", WRONG),
        ("list<timestamp>", ["1970-01-01T00:00:00Z", None], [datetime(1970, 1, 1, tzinfo=UTC), None]),
        ("list<json>", [1, [2], {"a": 3}], ["1", "[2]", '{"a":3}']),
    ],
)
def test_a_value_is_converted_or_refused(kind: str, value: Any, expected: Any) -> None:
    """Alone, and in a batch with nulls."""
    assert convert(kind, value) == [expected]
    assert convert(kind, None, value, None, value) == [None, expected, None, expected]


@pytest.mark.parametrize("kind", TYPES)
def test_a_number_that_is_too_long_for_a_message_is_refused(kind: str) -> None:
    assert convert(kind, 10**5000) == [WRONG]


def test_formats_with_bytes_do_not_read_texts_as_base64() -> None:
    assert convert("binary", "AP8=", b"\x00\xff", base64_texts=False) == [WRONG, b"\x00\xff"]


@pytest.mark.parametrize(
    ("written", "value"),
    [("epoch_s", 86400), ("epoch_ms", "86400000"), ("epoch_us", 8.64e10), ("epoch_ns", 86_400_000_000_000)],
)
def test_epochs_are_converted(written: str, value: Any) -> None:
    assert convert("timestamp", value, None, format=written) == [datetime(1970, 1, 2, tzinfo=UTC), None]
    assert convert("list<timestamp>", [value, None], format=written) == [[datetime(1970, 1, 2, tzinfo=UTC), None]]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", "12", " is '12', a string, where int is expected"),
        ("int", 2**40, " is 1099511627776, which is out of the range of int"),
        ("long", 1e18, " is 1e+18, where a floating point number does not represent every whole number"),
        ("double", 2**60, " is 1152921504606846976, a whole number that double cannot hold exactly"),
        ("decimal(6,2)", 1.234, " is 1.234, which has more digits after the point than decimal(6,2)"),
        ("timestamp", "x", ": 'x' is not an ISO 8601 date and time"),
        ("list<int>", [1, 2.5], "[1] is 2.5, which is not a whole number"),
        ("list<int>", "x", " is 'x', a string, where list<int> is expected"),
        ("json", {"a": b"x", "b": 2**70}, " is an object that JSON cannot represent: Integer exceeds 64-bit range"),
    ],
)
def test_a_value_that_does_not_fit_has_an_error_message(kind: str, value: Any, expected: str) -> None:
    _, errors = convert_values([None, value], column(kind), base64_texts=True)
    assert errors == {1: expected}


KINDS = (
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**65), 2**65),
    st.sampled_from([2**24, 2**24 + 1, 2**53, 2**53 + 1, 2**63, 9999, 10000, 10**38]),
    st.floats(),
    st.integers(-100_000, 100_000).map(lambda n: n / 100),
    st.decimals(-10_000, 10_000, places=2),
    st.decimals(),
    st.text(max_size=5),
    st.sampled_from(["AAEC", "12.50", "1e2", "2013-01-31", "0000-01-01", "2013-01-31T00:00:00Z", "\ud800"]),
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, UTC])),
)
ANY = st.one_of(st.none(), *KINDS)
VALUES = st.one_of(
    st.sampled_from(KINDS).flatmap(lambda kind: st.lists(st.one_of(st.none(), kind))),
    st.lists(ANY),
    st.lists(st.one_of(ANY, st.lists(ANY, max_size=3), st.just({"a": 1}))),
)


@given(st.sampled_from(TYPES), VALUES, st.booleans())
# Arrow cannot remove more than 38 digits after the point: it returned 0 for these (apache/arrow#50964).
@example("decimal(38,0)", [False, Decimal("6.171621327711269438159643E-15")], False)
@example("decimal(38,0)", [Decimal("6.171621327711269438159643E-15")], False)
@example("decimal(6,2)", [Decimal("1.25"), 7, None, Decimal("1E-41")], False)
@example("decimal(6,2)", [Decimal("0E-60"), Decimal("1.25")], False)
def test_a_batch_is_converted_like_each_value_alone(kind: str, values: list[Any], base64_texts: bool) -> None:
    together, errors = convert_values(values, column(kind), base64_texts=base64_texts)
    together.validate(full=True)
    alone = [convert_values([value], column(kind), base64_texts=base64_texts) for value in values]
    assert pa.concat_arrays([together.slice(0, 0), *(array for array, _ in alone)]).equals(together) or _nan(together)
    assert errors == {n: found[0] for n, (_, found) in enumerate(alone) if found}


@given(st.sampled_from([kind for kind in TYPES if "list" not in kind and kind != "timestamp"]), VALUES)
@example("decimal(38,0)", [Decimal("6.171621327711269438159643E-15"), Decimal("1")])
@example("decimal(38,0)", [Decimal("1E-39")])
@example("decimal(38,38)", [Decimal("1E-77")])
@example("decimal(6,2)", [Decimal("0E-60")])
def test_arrow_and_value_by_value_conversion_agree(kind: str, values: list[Any]) -> None:
    fast = column_values._convert_by_arrow(values, column(kind).type)
    slow, errors = column_values._convert_each(values, column(kind).type, base64_texts=True)
    assert fast is None or (not errors and (fast.equals(slow) or _nan(fast)))


def _nan(array: pa.Array) -> bool:
    """Return whether the array contains a NaN, which is not equal to itself."""
    return any(value != value for value in array.to_pylist())
