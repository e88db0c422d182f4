"""Texts as values of typed columns: which fit, and that batches are converted like single texts."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models import Column
from waybill.parsers.column_texts import convert_texts
from waybill.parsers.protocol import arrow_type

WRONG = object()
TYPES = (
    *("boolean", "int", "long", "float", "double", "decimal(6,2)", "decimal(38,10)", "string", "binary", "date"),
    *("timestamp", "json"),
)


def column(kind: str, **keys: Any) -> Column:
    return Column.model_validate({"type": kind} | keys)


def convert(kind: str, *texts: str | None, **keys: Any) -> list[Any]:
    """Return the converted texts, `WRONG` for each that does not fit."""
    array, errors = convert_texts(pa.array(texts, pa.string()), column(kind, **keys))
    array.validate(full=True)
    assert array.type == arrow_type(column(kind).type)
    assert all(not array[index].is_valid for index in errors)
    return [WRONG if index in errors else value for index, value in enumerate(array.to_pylist())]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        *((kind, "", None) for kind in TYPES),
        *((kind, " ", WRONG) for kind in TYPES if kind not in ("string", "json")),
        ("boolean", "true", True),
        ("boolean", "FALSE", False),
        ("boolean", "1", True),
        ("boolean", "0", False),
        ("boolean", "yes", WRONG),
        ("int", "-12", -12),
        ("int", "007", 7),
        ("int", "+5", 5),
        ("int", "5.0", 5),
        ("int", "5.5", WRONG),
        ("int", "1e3", WRONG),
        ("int", "0x10", WRONG),
        ("int", "１２", WRONG),
        ("int", "2147483647", 2**31 - 1),
        ("int", "2147483648", WRONG),
        ("int", " 5", WRONG),
        ("long", "9223372036854775807", 2**63 - 1),
        ("long", "-9223372036854775809", WRONG),
        ("long", "1" * 5000, WRONG),
        ("float", "0.5", 0.5),
        ("float", "0.1", 0.10000000149011612),
        ("float", "1e39", WRONG),
        ("double", "-1.5e3", -1500.0),
        ("double", "+.5", WRONG),
        ("double", "1e400", WRONG),
        ("double", "1e-400", 0.0),
        ("double", "nan", WRONG),
        ("double", "inf", WRONG),
        ("double", "9007199254740993", 9007199254740992.0),
        ("decimal(6,2)", "12.3", Decimal("12.30")),
        ("decimal(6,2)", "12.3400", Decimal("12.34")),
        ("decimal(6,2)", "12.345", WRONG),
        ("decimal(6,2)", "10000", WRONG),
        (
            "decimal(38,10)",
            "1234567890123456789012345678.0123456789",
            Decimal("1234567890123456789012345678.0123456789"),
        ),
        ("string", " é😀 ", " é😀 "),
        ("binary", "AP8=", b"\x00\xff"),
        ("binary", "AP8", WRONG),
        ("date", "2013-01-31", date(2013, 1, 31)),
        ("date", "2013-02-29", WRONG),
        ("date", "2012-02-29", date(2012, 2, 29)),
        ("date", "0000-01-01", WRONG),
        ("timestamp", "2013-01-31T10:15:00-05:00", datetime(2013, 1, 31, 15, 15, tzinfo=UTC)),
        ("timestamp", "soon", WRONG),
        ("json", '{"a": [1,  2]}', '{"a": [1,  2]}'),
        ("json", "null", "null"),
        ("json", "{", WRONG),
        ("json", "[" * 5000, WRONG),
    ],
)
def test_a_text_is_converted_or_refused(kind: str, text: str, expected: Any) -> None:
    """Alone, and among others."""
    assert convert(kind, text) == [expected]
    assert convert(kind, None, text, "", text) == [None, expected, None, expected]


@pytest.mark.parametrize("written", ["epoch_s", "epoch_ms"])
def test_epochs_are_converted(written: str) -> None:
    texts = ["", "86400", None, "soon"]
    expected = (
        datetime(1970, 1, 2, tzinfo=UTC) if written == "epoch_s" else datetime(1970, 1, 1, 0, 1, 26, 400_000, UTC)
    )
    assert convert("timestamp", *texts, format=written) == [None, expected, None, WRONG]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("boolean", "yes", " is 'yes', which is not a boolean (true, false, 1 or 0)"),
        ("int", "a", " is 'a', which is not a whole number"),
        ("long", "9" * 20, " is 99999999999999999999, which is out of the range of long"),
        ("double", "1e400", " is '1e400', which is out of the range of double"),
        ("date", "today", " is 'today', which is not a date (2013-01-31)"),
        ("timestamp", "x", ": 'x' is not an ISO 8601 date and time"),
    ],
)
def test_a_text_that_does_not_fit_has_an_error_message(kind: str, text: str, expected: str) -> None:
    _, errors = convert_texts(pa.array([None, text]), column(kind))
    assert errors == {1: expected}


TEXTS = st.lists(
    st.one_of(
        st.none(),
        st.text(max_size=4),
        st.integers().map(str),
        st.integers(-(2**31) - 1, 2**31).map(str),
        st.floats().map(repr),
        st.decimals(-20_000, 20_000, places=2).map(str),
        st.dates().map(str),
        st.datetimes(timezones=st.just(UTC)).map(str),
        st.from_regex(r"\A[+-]?[0-9]{0,20}\.?[0-9]{0,3}([eE][+-]?[0-9]{1,3})?\Z"),
        st.from_regex(r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}\Z"),
        st.sampled_from(["true", "False", "0", "1", "", "0000-01-01", "AAEC", "{}"]),
    )
)


@given(st.sampled_from(TYPES), TEXTS)
def test_a_batch_of_texts_is_converted_like_each_text_alone(kind: str, texts: list[str | None]) -> None:
    together, errors = convert_texts(pa.array(texts, pa.string()), column(kind))
    together.validate(full=True)
    alone = [convert_texts(pa.array([text], pa.string()), column(kind)) for text in texts]
    assert pa.concat_arrays([together.slice(0, 0), *(array for array, _ in alone)]).equals(together)
    assert errors == {n: found[0] for n, (_, found) in enumerate(alone) if found}


@given(TEXTS)
def test_numbers_are_read_as_python_reads_them(texts: list[str | None]) -> None:
    for kind, read in (("long", Decimal), ("double", float), ("decimal(38,10)", Decimal)):
        for text, found in zip(texts, convert(kind, *texts), strict=True):
            assert found is WRONG or found is None or (text and found == read(text))
