"""Event times as producers write them, to microseconds since 1970 UTC.

`to_microseconds` of a format says, for one value, what it means. `convert` does whole batches: by Arrow's compiled
casts where those give the same answer for every value of the batch, else value by value. The tests hold one against
the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import EventTimeFormat
from waybill.parsers.protocol import EVENT_TIME_TYPE, Reason, reason

__all__ = [
    "MAX_MICROSECONDS",
    "MIN_MICROSECONDS",
    "BadEventTime",
    "BeyondTime",
    "convert",
    "out_of_range",
    "show",
    "to_microseconds",
    "type_name",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

MIN_MICROSECONDS = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The first moment of year 1: what Python, Spark and most engines can show."""

MAX_MICROSECONDS = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The last microsecond of year 9999."""


class BeyondTime:
    """What stands in a document for a timestamp that no `datetime` can hold."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


_MOMENTS = (datetime, BeyondTime)
_TYPE_NAMES = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
    bytes: "binary",
    datetime: "a timestamp",
    BeyondTime: "a timestamp",
    date: "a date",
    time: "a time of day",
    Decimal: "a decimal",
}
_SHOWN = 100
_LONGEST_NUMBER = 100
_MOST_DIGITS = 40

# Microseconds in one unit of the format, as a fraction: (numerator, denominator).
_EPOCH_UNITS: dict[EventTimeFormat, tuple[int, int]] = {
    EventTimeFormat.EPOCH_SECONDS: (1_000_000, 1),
    EventTimeFormat.EPOCH_MILLISECONDS: (1_000, 1),
    EventTimeFormat.EPOCH_MICROSECONDS: (1, 1),
    EventTimeFormat.EPOCH_NANOSECONDS: (1, 1_000),
}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_WHOLE_NUMBER = "^-?[0-9]{1,18}$"
# What Arrow's cast and this module read alike; a zone is all that differs between the two.
_CANONICAL = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_CANONICAL_ZONED = _CANONICAL + r"(Z|[+-][0-9]{2}:[0-9]{2})$"
_CANONICAL_NAIVE = _CANONICAL + "$"
# Python takes any character between date and time, and would read the zone of 2013-01-01-05:00 as an hour.
_ISO8601 = re.compile(r"[0-9W-]+([Tt ].*)?", re.ASCII)


class BadEventTime(ValueError):
    """A value is no event time. The text is the reason that goes to quarantine."""


def convert(values: Sequence[Any] | pa.Array, written: EventTimeFormat) -> tuple[pa.Array, list[tuple[int, str]]]:
    """The event times of `values`, and the (index, reason) of those that are none.

    `values`: what documents held, or an array of strings without nulls. A `datetime` with a zone, which some documents
    hold, is taken as it is, whatever the format. The times are of `EVENT_TIME_TYPE`, null where
    there is a reason.
    """
    if not isinstance(values, pa.Array) and values and all(type(value) is datetime for value in values):
        return pa.array(values, EVENT_TIME_TYPE), []
    fast = _convert_iso8601(values) if written is EventTimeFormat.ISO8601 else _convert_epoch(values, written)
    if fast is not None:
        return fast, []
    if isinstance(values, pa.Array):
        return _convert_usual_and_others(values, written)
    return _convert_each(values, to_microseconds(written))


def to_microseconds(written: EventTimeFormat) -> Callable[[Any], int]:
    """The function that reads one value of a format. It raises `BadEventTime` for what is no event time."""
    if written is EventTimeFormat.ISO8601:
        return _iso8601
    numerator, denominator = _EPOCH_UNITS[written]

    def read(value: Any) -> int:
        return _epoch(value, numerator, denominator)

    return read


def out_of_range(shown: object) -> str:
    """The reason for a time before year 1 or after year 9999."""
    return reason(Reason.EVENT_TIME_OUT_OF_RANGE, f"{show(shown)} is not between the years 1 and 9999")


def _convert_usual_and_others(texts: pa.Array, written: EventTimeFormat) -> tuple[pa.Array, list[tuple[int, str]]]:
    """A few texts that are no event times should not cost the others their fast way."""
    iso8601 = written is EventTimeFormat.ISO8601
    usual = pc.match_substring_regex(texts, _CANONICAL_ZONED if iso8601 else _WHOLE_NUMBER)
    fast = _convert_iso8601(texts.filter(usual)) if iso8601 else _convert_epoch(texts.filter(usual), written)
    if fast is None:
        return _convert_each(texts.to_pylist(), to_microseconds(written))
    others = pc.invert(usual)
    slow, faults = _convert_each(texts.filter(others).to_pylist(), to_microseconds(written))
    times = pc.replace_with_mask(pa.nulls(len(texts), EVENT_TIME_TYPE), usual, fast)
    indices = pc.indices_nonzero(others)
    return pc.replace_with_mask(times, others, slow), [(indices[i].as_py(), why) for i, why in faults]


def _convert_each(values: Sequence[Any], read: Callable[[Any], int]) -> tuple[pa.Array, list[tuple[int, str]]]:
    times: list[int | None] = []
    faults: list[tuple[int, str]] = []
    for index, value in enumerate(values):
        try:
            times.append(read(value))
        except BadEventTime as fault:
            times.append(None)
            faults.append((index, str(fault)))
    return pa.array(times, pa.int64()).cast(EVENT_TIME_TYPE), faults


# --- ISO 8601 ---------------------------------------------------------------------------------------------------------


def _convert_iso8601(values: Sequence[Any] | pa.Array) -> pa.Array | None:
    """By Arrow's cast, if all values are of one canonical form and in range; else None."""
    try:
        texts = values if isinstance(values, pa.Array) else pa.array(values, pa.string())
        if pc.all(pc.match_substring_regex(texts, _CANONICAL_ZONED), skip_nulls=False).as_py():
            times = texts.cast(EVENT_TIME_TYPE)
        elif pc.all(pc.match_substring_regex(texts, _CANONICAL_NAIVE), skip_nulls=False).as_py():
            times = texts.cast(pa.timestamp("us")).cast(pa.int64()).cast(EVENT_TIME_TYPE)
        else:
            return None
    except (pa.ArrowException, UnicodeEncodeError):
        return None
    return times if _all_in_range(times.cast(pa.int64())) else None


def _iso8601(value: Any) -> int:
    if type(value) in _MOMENTS:
        return _moment(value)
    if not isinstance(value, str):
        raise _wrong_type(value, "a string (ISO 8601)")
    try:
        # RFC 3339 allows t and z; Python does not.
        time = datetime.fromisoformat(value.upper()) if _ISO8601.fullmatch(value) else None
    except ValueError:
        time = None
    if time is None:
        raise BadEventTime(reason(Reason.EVENT_TIME_MALFORMED, f"{show(value)} is not an ISO 8601 date and time"))
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return _in_range((time - _EPOCH) // _MICROSECOND, value)


# --- epochs -----------------------------------------------------------------------------------------------------------


def _convert_epoch(values: Sequence[Any] | pa.Array, written: EventTimeFormat) -> pa.Array | None:
    """By integer arithmetic, if all values are int64 numbers (or their texts) and in range; else None."""
    numerator, denominator = _EPOCH_UNITS[written]
    try:
        numbers = _int64s(values)
        if numbers is None:
            return None
        times = pc.multiply_checked(numbers, numerator) if denominator == 1 else _floor_divide(numbers, denominator)
    except (pa.ArrowException, OverflowError):
        return None
    return times.cast(EVENT_TIME_TYPE) if _all_in_range(times) else None


def _int64s(values: Sequence[Any] | pa.Array) -> pa.Array | None:
    if isinstance(values, pa.Array):
        whole = pc.all(pc.match_substring_regex(values, _WHOLE_NUMBER), skip_nulls=False).as_py()
        return values.cast(pa.int64()) if whole else None
    # A bool is an int to Python and to Arrow, and would become 0 or 1.
    return pa.array(values, pa.int64()) if set(map(type, values)) <= {int} else None


def _floor_divide(numbers: pa.Array, divisor: int) -> pa.Array:
    """Arrow divides towards zero; times before 1970 are to be rounded down as well."""
    quotient = pc.divide(numbers, divisor)
    below = pc.less(numbers, pc.multiply(quotient, divisor))
    return pc.subtract(quotient, below.cast(pa.int64()))


def _epoch(value: Any, numerator: int, denominator: int) -> int:
    if type(value) in _MOMENTS:
        return _moment(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong_type(value, "a number, or a string that holds one")
    if isinstance(value, int):
        return _in_range(value * numerator // denominator, value)
    # A float's shortest text is what the producer wrote, up to 17 digits: no binary rounding creeps in.
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        raise BadEventTime(reason(Reason.EVENT_TIME_MALFORMED, f"{show(value)} is not a number"))
    number = Decimal(text)
    if number.adjusted() > _MOST_DIGITS:
        raise BadEventTime(out_of_range(value))
    if number and number.adjusted() < -_MOST_DIGITS:
        # As a ratio it could have a denominator of a thousand digits. It is the epoch, or just before it.
        return -1 if number < 0 else 0
    top, bottom = number.as_integer_ratio()
    return _in_range(top * numerator // (bottom * denominator), value)


# --- both -------------------------------------------------------------------------------------------------------------


def _all_in_range(microseconds: pa.Array) -> bool:
    bounds = pc.min_max(microseconds)
    if bounds["min"].as_py() is None:
        return True
    return bool(bounds["min"].as_py() >= MIN_MICROSECONDS and bounds["max"].as_py() <= MAX_MICROSECONDS)


def _moment(value: datetime | BeyondTime) -> int:
    if isinstance(value, BeyondTime):
        raise BadEventTime(out_of_range(value))
    return (value - _EPOCH) // _MICROSECOND


def _in_range(microseconds: int, shown: object) -> int:
    if not MIN_MICROSECONDS <= microseconds <= MAX_MICROSECONDS:
        raise BadEventTime(out_of_range(shown))
    return microseconds


def _wrong_type(value: Any, wanted: str) -> BadEventTime:
    return BadEventTime(reason(Reason.EVENT_TIME_WRONG_TYPE, f"found {type_name(value)} where {wanted} is expected"))


def type_name(value: Any) -> str:
    """What a value of a document is, as a reason says it."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def show(value: object) -> str:
    """A value of a document as a reason shows it: cut to a line."""
    try:
        text = repr(value)
    except ValueError:  # an int of more than 4,300 digits
        return "a huge number"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
