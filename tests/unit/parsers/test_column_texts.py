"""Which texts fit which type of column, and that texts in bulk become what they become one by one."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.config import Column
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
    """What becomes of texts, `WRONG` where there is a fault."""
    array, faults = convert_texts(pa.array(texts, pa.string()), column(kind, **keys))
    array.validate(full=True)
    assert array.type == arrow_type(column(kind).type)
    assert all(not array[index].is_valid for index in faults)
    return [WRONG if index in faults else value for index, value in enumerate(array.to_pylist())]


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
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
def test_what_becomes_of_a_text(kind: str, text: str, meant: Any) -> None:
    """Alone, and among others."""
    assert convert(kind, text) == [meant]
    assert convert(kind, None, text, "", text) == [None, meant, None, meant]


@pytest.mark.parametrize("written", ["epoch_s", "epoch_ms"])
def test_epochs(written: str) -> None:
    texts = ["", "86400", None, "soon"]
    meant = datetime(1970, 1, 2, tzinfo=UTC) if written == "epoch_s" else datetime(1970, 1, 1, 0, 1, 26, 400_000, UTC)
    assert convert("timestamp", *texts, format=written) == [None, meant, None, WRONG]


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("boolean", "yes", " is 'yes', which is no boolean (true, false, 1 or 0)"),
        ("int", "a", " is 'a', which is no whole number"),
        ("long", "9" * 20, " is 99999999999999999999, which is out of the range of long"),
        ("double", "1e400", " is '1e400', which is out of the range of double"),
        ("date", "today", " is 'today', which is not a date (2013-01-31)"),
        ("timestamp", "x", ": 'x' is not an ISO 8601 date and time"),
    ],
)
def test_what_is_said_of_a_text_that_does_not_fit(kind: str, text: str, said: str) -> None:
    _, faults = convert_texts(pa.array([None, text]), column(kind))
    assert faults == {1: said}


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
def test_texts_in_bulk_become_what_they_become_one_by_one(kind: str, texts: list[str | None]) -> None:
    together, faults = convert_texts(pa.array(texts, pa.string()), column(kind))
    together.validate(full=True)
    alone = [convert_texts(pa.array([text], pa.string()), column(kind)) for text in texts]
    assert pa.concat_arrays([together.slice(0, 0), *(array for array, _ in alone)]).equals(together)
    assert faults == {n: found[0] for n, (_, found) in enumerate(alone) if found}


@given(TEXTS)
def test_numbers_are_those_that_python_reads(texts: list[str | None]) -> None:
    for kind, read in (("long", Decimal), ("double", float), ("decimal(38,10)", Decimal)):
        for text, found in zip(texts, convert(kind, *texts), strict=True):
            assert found is WRONG or found is None or (text and found == read(text))
