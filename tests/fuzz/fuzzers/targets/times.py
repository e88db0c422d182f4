"""Event times of every format, compared with exact arithmetic and with dateutil."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
from dateutil.parser import isoparser

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge
from fuzzers.targets.parsed import MAX_REASON_BYTES
from waybill.config.models import EventTimeFormat
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS, convert_times

_FORMATS = list(EventTimeFormat)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS = {
    EventTimeFormat.EPOCH_SECONDS: Decimal(1_000_000),
    EventTimeFormat.EPOCH_MILLISECONDS: Decimal(1_000),
    EventTimeFormat.EPOCH_MICROSECONDS: Decimal(1),
    EventTimeFormat.EPOCH_NANOSECONDS: Decimal("0.001"),
}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_EXTENDED = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_iso = isoparser().isoparse
_mutate = Mutator(
    [b"2026-01-31T23:59:59.999999Z", b"2026-01-31 00:00:00+02:00", b"1700000000000", b"1700000000.123", b"-1e3",
     b"0001-01-01T00:00:00Z", b"9999-12-31T23:59:59.999999-23:59", b"2026-W05-6", b"20260131T235959Z", b"2024-02-29"],
    [b"T", b"t", b"z", b"Z", b"+24:00", b"-00:00", b":60", b"24:00:00", b".", b",5", b"e", b"E+", b"-", b"+", b" ", b"W",
     b"9" * 30, b"1" * 1000, "٣".encode(), b"\0", b"00", b"1e999999999", b"_", b"NaN", b"inf"],
)  # fmt: skip


def _make(chance: random.Random) -> bytes:
    """Return the number of a format, the kind of value, and a text."""
    body = str(edge(chance)).encode() if chance.random() < 0.2 else _mutate(chance)
    return bytes([chance.randrange(len(_FORMATS)), chance.choice([0, 0, 1, 2])]) + body


def _value(given: bytes) -> Any:
    """Return a text, or the number in it as a document would hold it."""
    text = given[2:].decode(errors="replace")
    try:
        if given[1] == 1:
            return int(text)
        if given[1] == 2:
            return float(text)
    except ValueError:
        pass
    return text


def _check(inputs: Sequence[bytes]) -> None:
    """Oracles: Decimal for epochs; dateutil for texts of date, time and offset. One bad value changes no other."""
    for number, time_format in enumerate(_FORMATS):
        values = [_value(each) for each in inputs if len(each) > 1 and each[0] % len(_FORMATS) == number]
        found = _converted(values, time_format)
        for value, time in zip(values, found, strict=True):
            assert [time] == _converted([value], time_format), f"{value!r} depends on the batch"
            _compare(value, time, time_format)
        texts = [value for value in values if isinstance(value, str)]
        assert _converted(pa.array(texts, pa.string()), time_format) == _converted(texts, time_format)


def _converted(values: Any, time_format: EventTimeFormat) -> list[int | None]:
    array, errors = convert_times(values, time_format)
    array.validate(full=True)
    times: list[int | None] = array.cast(pa.int64()).to_pylist()
    assert [time is None for time in times] == [index in dict(errors) for index in range(len(times))]
    assert all(time is None or MIN_MICROSECONDS <= time <= MAX_MICROSECONDS for time in times)
    assert all(len(text.encode()) <= MAX_REASON_BYTES for _, text in errors)
    return times


def _compare(value: Any, time: int | None, time_format: EventTimeFormat) -> None:
    shown = f"{value!r} as {time_format}: {time}"
    if time_format is EventTimeFormat.ISO8601:
        if isinstance(value, str) and _EXTENDED.fullmatch(value):
            assert time == _by_dateutil(value), f"{shown}, expected {_by_dateutil(value)}"
        return
    written = value if isinstance(value, str) else repr(value)
    if not _NUMBER.fullmatch(written):
        assert time is None, shown
        return
    if len(written) > 90 or "e" in written.lower():
        return  # long numbers are refused by their length; the range of exponents is bounded
    with localcontext(prec=300):
        expected = (Decimal(written) * _MICROSECONDS[time_format]).to_integral_value("ROUND_FLOOR")
    in_range = MIN_MICROSECONDS <= expected <= MAX_MICROSECONDS
    assert time == (int(expected) if in_range else None), f"{shown}, expected {expected}"


def _by_dateutil(text: str) -> int | None:
    if text[11:13] == "24":
        return None  # dateutil takes 24:00 for the next midnight; Waybill takes times as Python writes them
    try:
        found = _iso(text.replace(" ", "T"))
    except ValueError:
        return None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    micros = (found - _EPOCH) // timedelta(microseconds=1)
    return micros if MIN_MICROSECONDS <= micros <= MAX_MICROSECONDS else None


TIMES = Target("times", _make, _check)
