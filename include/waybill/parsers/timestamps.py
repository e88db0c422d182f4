"""Convert event times, as producers write them, to microseconds since 1970 UTC.

`to_microseconds` defines the result for one value of a format. `convert_times` converts whole batches: by Arrow's
compiled casts where they give the same result for every value of the batch, else value by value. Tests compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.config.models import EventTimeFormat
from waybill.parsers.protocol import EVENT_TIME_TYPE, Reason, reason

if TYPE_CHECKING:
    _Int64s = np.ndarray[Any, np.dtype[np.int64]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

MIN_MICROSECONDS = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The first moment of year 1, the earliest that Python, Spark and most engines can represent."""

MAX_MICROSECONDS = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The last microsecond of year 9999."""


class OutOfRangeTime:
    """A timestamp of a document that Python's `datetime` cannot hold."""

    def __init__(self, text: str) -> None:
        """`text`: the timestamp as a reason for quarantine shows it."""
        self._text = text

    def __repr__(self) -> str:
        return self._text


_TIMESTAMPS = (datetime, OutOfRangeTime)
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
    OutOfRangeTime: "a timestamp",
    date: "a date",
    time: "a time of day",
    Decimal: "a decimal",
}
_SHOWN_CHARACTERS = 100
_MAX_NUMBER_CHARACTERS = 100
_MAX_DIGITS = 40
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1

# Microseconds in one unit of the format, as a fraction: (numerator, denominator).
_EPOCH_UNITS: dict[EventTimeFormat, tuple[int, int]] = {
    EventTimeFormat.EPOCH_SECONDS: (1_000_000, 1),
    EventTimeFormat.EPOCH_MILLISECONDS: (1_000, 1),
    EventTimeFormat.EPOCH_MICROSECONDS: (1, 1),
    EventTimeFormat.EPOCH_NANOSECONDS: (1, 1_000),
}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_WHOLE_NUMBER = "^-?[0-9]{1,18}$"
# The texts that Arrow's cast and this module read alike. The two forms differ in the zone only.
_CANONICAL = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_CANONICAL_ZONED = _CANONICAL + r"(Z|[+-][0-9]{2}:[0-5][0-9])$"
_CANONICAL_NAIVE = _CANONICAL + "$"
# Python accepts any character between date and time, would read the zone of 2013-01-01-05:00 as an hour, and takes an
# offset of 80 minutes, +00:80, for +01:20.
_OFFSET = r"[+-][0-9]{2}(:?[0-5][0-9](:?[0-5][0-9]([.,][0-9]+)?)?)?"
_ISO8601 = re.compile(rf"[0-9W-]+([Tt ][^+-]*({_OFFSET})?)?", re.ASCII)


class BadEventTime(ValueError):
    """A value is not an event time. The text is the reason for quarantine."""


def convert_times(
    values: Sequence[Any] | pa.Array, time_format: EventTimeFormat
) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Return the event times of `values`, and (index, reason for quarantine) of each value that is not an event time.

    `values`: values of documents, or an array of strings without nulls. A `datetime` with a zone, which some document
    formats have, is used unchanged, for any format. The times have `EVENT_TIME_TYPE`, and are null for the values with
    a reason.
    """
    if not isinstance(values, pa.Array) and values and all(type(value) is datetime for value in values):
        return pa.array(values, EVENT_TIME_TYPE), []
    times = _convert_iso8601(values) if time_format is EventTimeFormat.ISO8601 else _convert_epoch(values, time_format)
    if times is not None:
        return times, []
    if isinstance(values, pa.Array):
        return _convert_canonical_then_others(values, time_format)
    return _convert_each(values, to_microseconds(time_format))


def to_microseconds(time_format: EventTimeFormat) -> Callable[[Any], int]:
    """Return the function that converts one value of a format. It raises `BadEventTime` for any other value."""
    if time_format is EventTimeFormat.ISO8601:
        return _iso8601
    numerator, denominator = _EPOCH_UNITS[time_format]

    def read(value: Any) -> int:
        return _epoch(value, numerator, denominator)

    return read


def out_of_range(value: object) -> str:
    """Return the reason for a time before year 1 or after year 9999."""
    return reason(Reason.EVENT_TIME_OUT_OF_RANGE, f"{shorten(value)} is not between the years 1 and 9999")


def _convert_canonical_then_others(
    texts: pa.Array, time_format: EventTimeFormat
) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Convert the canonical texts by Arrow and the others one by one: a few bad texts must not slow down the batch."""
    iso8601 = time_format is EventTimeFormat.ISO8601
    canonical = pc.match_substring_regex(texts, _CANONICAL_ZONED if iso8601 else _WHOLE_NUMBER)
    times = (
        _convert_iso8601(texts.filter(canonical)) if iso8601 else _convert_epoch(texts.filter(canonical), time_format)
    )
    if times is None:
        return _convert_each(texts.to_pylist(), to_microseconds(time_format))
    others = pc.invert(canonical)
    other_times, errors = _convert_each(texts.filter(others).to_pylist(), to_microseconds(time_format))
    times = pc.replace_with_mask(pa.nulls(len(texts), EVENT_TIME_TYPE), canonical, times)
    indices = pc.indices_nonzero(others)
    return pc.replace_with_mask(times, others, other_times), [(indices[i].as_py(), text) for i, text in errors]


def _convert_each(values: Sequence[Any], read: Callable[[Any], int]) -> tuple[pa.Array, list[tuple[int, str]]]:
    times: list[int | None] = []
    errors: list[tuple[int, str]] = []
    for index, value in enumerate(values):
        try:
            times.append(read(value))
        except BadEventTime as error:
            times.append(None)
            errors.append((index, str(error)))
    return pa.array(times, pa.int64()).cast(EVENT_TIME_TYPE), errors


# --- ISO 8601 ---------------------------------------------------------------------------------------------------------


def _convert_iso8601(values: Sequence[Any] | pa.Array) -> pa.Array | None:
    """Return the times by Arrow's cast if all values have one canonical form and are in range; else None."""
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
    if type(value) in _TIMESTAMPS:
        return _timestamp(value)
    if not isinstance(value, str):
        raise _wrong_type(value, "a string (ISO 8601)")
    try:
        # RFC 3339 allows the letters t and z in lower case; Python does not.
        time = datetime.fromisoformat(value.upper()) if _ISO8601.fullmatch(value) else None
    except ValueError:
        time = None
    if time is None:
        raise BadEventTime(reason(Reason.EVENT_TIME_MALFORMED, f"{shorten(value)} is not an ISO 8601 date and time"))
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return _in_range((time - _EPOCH) // _MICROSECOND, value)


# --- epochs -----------------------------------------------------------------------------------------------------------


def _convert_epoch(values: Sequence[Any] | pa.Array, time_format: EventTimeFormat) -> pa.Array | None:
    """Return the times by integer arithmetic if all values are int64 numbers or their texts, in range; else None."""
    numerator, denominator = _EPOCH_UNITS[time_format]
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
    # Python and Arrow treat a bool as an int: it would become 0 or 1.
    return pa.array(values, pa.int64()) if set(map(type, values)) <= {int} else None


def whole_number_bounds(time_format: EventTimeFormat) -> tuple[int, int]:
    """Return the least and the greatest int64 number that is a time of the format; (1, 0) if numbers are none."""
    if time_format is EventTimeFormat.ISO8601:
        return 1, 0
    numerator, denominator = _EPOCH_UNITS[time_format]
    least = -(-MIN_MICROSECONDS * denominator // numerator)
    most = ((MAX_MICROSECONDS + 1) * denominator - 1) // numerator
    return max(least, _MIN_INT64), min(most, _MAX_INT64)


def convert_whole_numbers(numbers: _Int64s, time_format: EventTimeFormat) -> pa.Array:
    """Return the times of numbers within `whole_number_bounds`."""
    numerator, denominator = _EPOCH_UNITS[time_format]
    return pa.array(numbers * numerator // denominator).cast(EVENT_TIME_TYPE)


def _floor_divide(numbers: pa.Array, divisor: int) -> pa.Array:
    """Divide and round down. Arrow divides towards zero, which rounds times before 1970 up."""
    quotient = pc.divide(numbers, divisor)
    below = pc.less(numbers, pc.multiply(quotient, divisor))
    return pc.subtract(quotient, below.cast(pa.int64()))


def _epoch(value: Any, numerator: int, denominator: int) -> int:
    if type(value) in _TIMESTAMPS:
        return _timestamp(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong_type(value, "a number, or a string that holds one")
    if isinstance(value, int):
        return _in_range(value * numerator // denominator, value)
    # The shortest text of a float is what the producer wrote, up to 17 digits, without binary rounding.
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _MAX_NUMBER_CHARACTERS or not _NUMBER.fullmatch(text):
        raise BadEventTime(reason(Reason.EVENT_TIME_MALFORMED, f"{shorten(value)} is not a number"))
    number = Decimal(text)
    if number.adjusted() > _MAX_DIGITS:
        raise BadEventTime(out_of_range(value))
    if number and number.adjusted() < -_MAX_DIGITS:
        # The ratio could have a denominator of a thousand digits. Rounded down, the time is 0 or -1.
        return -1 if number < 0 else 0
    top, bottom = number.as_integer_ratio()
    return _in_range(top * numerator // (bottom * denominator), value)


# --- shared -----------------------------------------------------------------------------------------------------------


def _all_in_range(microseconds: pa.Array) -> bool:
    bounds = pc.min_max(microseconds)
    if bounds["min"].as_py() is None:
        return True
    return bool(bounds["min"].as_py() >= MIN_MICROSECONDS and bounds["max"].as_py() <= MAX_MICROSECONDS)


def _timestamp(value: datetime | OutOfRangeTime) -> int:
    if isinstance(value, OutOfRangeTime):
        raise BadEventTime(out_of_range(value))
    return (value - _EPOCH) // _MICROSECOND


def _in_range(microseconds: int, value: object) -> int:
    if not MIN_MICROSECONDS <= microseconds <= MAX_MICROSECONDS:
        raise BadEventTime(out_of_range(value))
    return microseconds


def _wrong_type(value: Any, expected: str) -> BadEventTime:
    return BadEventTime(reason(Reason.EVENT_TIME_WRONG_TYPE, f"found {type_name(value)} where {expected} is expected"))


def type_name(value: Any) -> str:
    """Return the name of the type of a document's value, for reasons for quarantine."""
    kind = type(value)
    return _TYPE_NAMES.get(kind) or str(getattr(kind, "type_name", kind.__name__))


def shorten(value: object) -> str:
    """Return a document's value as text, cut to 100 characters, for reasons for quarantine.

    The work is bounded whatever the value is. `repr` of a list copies the text of the innermost value once for each
    level, and raises beyond a thousand levels.
    """
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _SHOWN_CHARACTERS:
            return text[: _SHOWN_CHARACTERS - 1] + "…"
    return text


def _pieces(value: object) -> Iterator[str]:
    """Yield the text of a value. Each level of nesting yields a character first, so the reader stops in time."""
    if isinstance(value, str | bytes):
        yield repr(value[: _SHOWN_CHARACTERS + 1])
    elif type(value) is dict:
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(key)
            yield ": "
            yield from _pieces(item)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item)
        yield "]"
    else:
        yield _leaf(value)


def _leaf(value: object) -> str:
    try:
        return str(value) if type(value) is Decimal else repr(value)
    except ValueError:  # Python refuses to print an int of more than 4,300 digits
        return "a huge number"
