"""Convert the values of documents (JSON, MessagePack, Avro, Protobuf) to typed columns.

The values that fit a type:

| type | values that fit |
|---|---|
| any | null, and a missing field: null |
| `boolean` | true and false |
| `int`, `long` | whole numbers in its range; also one written with a fraction of zero (`5.0`, `1e3`) up to 2^53 |
| `float`, `double` | numbers, rounded to the nearest `float`; whole numbers only if exact (up to 2^24, 2^53) |
| `decimal(P,S)` | numbers, and texts of numbers, that need no more digits: exact, never rounded |
| `string` | texts |
| `binary` | bytes; in JSON, which has no bytes, Base64 |
| `date` | dates; texts `2013-01-31` |
| `timestamp` | as for the event time |
| `json` | anything that JSON can represent |
| `list<T>` | lists in which each element is null or fits T |

A text of a number is not a number (except for `decimal`), and a boolean is not a number. Times and dates are between
the years 1 and 9999. Arrow converts a batch as a whole where that gives the same result for each value; else the batch
is converted value by value. Tests compare the two.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Clamped, Context, Decimal, Rounded
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from waybill.config.models import Column, ColumnKind, ColumnType, EventTimeFormat
from waybill.parsers.protocol import ColumnErrors, ColumnValueError, arrow_type
from waybill.parsers.timestamps import convert_times, shorten, type_name

_INT_RANGES = {ColumnKind.INT: (-(2**31), 2**31 - 1), ColumnKind.LONG: (-(2**63), 2**63 - 1)}
_EXACT_WHOLE_NUMBERS = {ColumnKind.FLOAT: 2**24, ColumnKind.DOUBLE: 2**53}
_FIRST_BEYOND_64_BITS = 2.0**63
_DECIMAL = re.compile(r"[+-]?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_CANONICAL_DATE = f"^{_DATE.pattern}$"
_WIDE_CONTEXT = Context(prec=100)
_MAX_ARROW_SCALE_CHANGE = 38
_FIRST_DATE = pa.scalar(date(1, 1, 1))

_ARROW_INPUT_TYPES: dict[ColumnKind, tuple[set[type], ...]] = {
    ColumnKind.BOOLEAN: ({bool},),
    ColumnKind.INT: ({int},),
    ColumnKind.LONG: ({int},),
    ColumnKind.FLOAT: ({float, int},),
    ColumnKind.DOUBLE: ({float, int},),
    ColumnKind.DECIMAL: ({Decimal, int},),
    ColumnKind.STRING: ({str},),
    ColumnKind.BINARY: ({bytes},),
    ColumnKind.DATE: ({date}, {str}),
}
"""The sets of Python types of which Arrow converts any mixture as this module does, value by value."""


def convert_values(values: Sequence[Any], column: Column, *, base64_texts: bool) -> tuple[pa.Array, ColumnErrors]:
    """Return the column of `values`, one for each message, and the errors of those that do not fit.

    The column has the type `arrow_type(column.type)`, and nulls in the rows with errors. `base64_texts`: whether a text
    in a `binary` column is read as Base64; else it does not fit.
    """
    if column.type.is_list:
        return _convert_lists(values, column, base64_texts)
    if column.type.kind is ColumnKind.TIMESTAMP:
        return _convert_timestamps(values, column.format or EventTimeFormat.ISO8601)
    array = _convert_by_arrow(values, column.type)
    if array is not None:
        return array, {}
    return _convert_each(values, column.type, base64_texts)


def _has_float(value: Any) -> bool:
    """Return whether a value, or an element of a list, is a float: it may have fewer digits than the producer wrote."""
    return type(value) is float or (type(value) is list and any(type(element) is float for element in value))


def may_be_rounded(value: Any, kind: ColumnType) -> bool:
    """Return whether a value of a document holds a float in whose place the producer wrote a number of another kind.

    In a column of whole numbers, `1e-400` would be 0 and `9007199254740993.0` its neighbour. In a column of floats, a
    whole number of more than 64 bits would not be seen as one.
    """
    if kind.kind is ColumnKind.DECIMAL or kind.kind in _INT_RANGES:
        return _has_float(value)
    if kind.kind is ColumnKind.JSON:
        return any(True for _ in _floats_in(value))
    if kind.kind in _EXACT_WHOLE_NUMBERS and _has_float(value):
        return any(abs(each) >= _FIRST_BEYOND_64_BITS for each in _floats_in(value))
    return False


def from_exact(value: Any, kind: ColumnType, where: str = "") -> Any:
    """Convert a number that was read exactly (`Decimal` or `int`), or a list of them, to a value for the column's type.

    Raises `ColumnValueError` if the type takes whole numbers, and the number is not one, or beyond 2^53.
    """
    if type(value) is list:
        return [from_exact(each, kind, f"[{index}]") for index, each in enumerate(value)]
    if type(value) is not Decimal:
        return value
    if kind.kind in _EXACT_WHOLE_NUMBERS:
        return float(value)
    if kind.kind not in _INT_RANGES:
        return value
    if abs(value) > _EXACT_WHOLE_NUMBERS[ColumnKind.DOUBLE]:
        raise ColumnValueError(
            f"{where} is {shorten(value)}, where a floating point number does not represent every whole number"
        )
    if value != value.to_integral_value():
        raise ColumnValueError(f"{where} is {shorten(value)}, which is not a whole number")
    return int(value)


def _convert_by_arrow(values: Sequence[Any], kind: ColumnType) -> pa.Array | None:
    """Return the column as Arrow converts it; None if the result could differ from a conversion value by value."""
    types = set(map(type, values))
    types.discard(type(None))
    if not types:
        return pa.nulls(len(values), arrow_type(kind))
    if not any(types <= accepted for accepted in _ARROW_INPUT_TYPES.get(kind.kind, ())):
        return None
    if Decimal in types and not _can_rescale(values, kind.scale):
        return None
    try:
        if kind.kind is ColumnKind.DATE and str in types:
            return _convert_dates(pa.array(values, pa.string()))
        array = pa.array(values, arrow_type(kind))
    except (pa.ArrowException, OverflowError, ValueError):
        return None
    if kind.kind is ColumnKind.FLOAT and pc.any(pc.is_inf(array)).as_py():
        return None  # the value may have been finite as a double
    return array


def _can_rescale(values: Sequence[Any], scale: int) -> bool:
    """Return whether no decimal has more than 38 digits after the point beyond `scale`.

    For such a decimal Arrow reads past the end of its table of powers of ten (apache/arrow#50964): with 39 digits more
    it returns 0 instead of an error. A `Context` finds them three times as fast as Arrow converts them: it rounds, or
    clamps a zero, when an exponent is below Emin - prec + 1 = -(scale + 38). It also rounds more than 39 digits, which
    fit no column unless they end in zeros: those are converted one by one.
    """
    context = Context(prec=_MAX_ARROW_SCALE_CHANGE + 1, Emin=-scale, traps=[Rounded, Clamped])
    try:
        deque(map(context.plus, (value for value in values if value is not None)), maxlen=0)
    except (Rounded, Clamped):
        return False
    return True


def _convert_dates(texts: pa.Array) -> pa.Array | None:
    if not pc.all(pc.match_substring_regex(texts, _CANONICAL_DATE)).as_py():
        return None
    dates = texts.cast(pa.date32())
    return dates if pc.all(pc.greater_equal(dates, _FIRST_DATE)).as_py() else None


def _convert_each(values: Iterable[Any], kind: ColumnType, base64_texts: bool) -> tuple[pa.Array, ColumnErrors]:
    read = _value_reader(kind, base64_texts)
    found: list[Any] = []
    errors: ColumnErrors = {}
    for index, value in enumerate(values):
        try:
            found.append(None if value is None else read(value))
        except ColumnValueError as error:
            found.append(None)
            errors[index] = str(error)
    return pa.array(found, arrow_type(kind)), errors


# --- lists and timestamps ---------------------------------------------------------------------------------------------


def _convert_lists(values: Sequence[Any], column: Column, base64_texts: bool) -> tuple[pa.Array, ColumnErrors]:
    """Convert the elements of all lists as one column, then cut it into lists."""
    errors: ColumnErrors = {
        index: _wrong_type(value, str(column.type))
        for index, value in enumerate(values)
        if value is not None and type(value) is not list
    }
    lists = [value if type(value) is list else None for value in values]
    element = column.model_copy(update={"type": column.type.element})
    elements, element_errors = convert_values(
        list(chain.from_iterable(found for found in lists if found)), element, base64_texts=base64_texts
    )
    offsets, end = [0], 0
    for index, found in enumerate(lists):
        for element_index in range(end, end + len(found or ())) if element_errors else ():
            if element_index in element_errors:
                errors.setdefault(index, f"[{element_index - end}]{element_errors[element_index]}")
        end += len(found or ())
        offsets.append(end)
    missing = pa.array([found is None or index in errors for index, found in enumerate(lists)], pa.bool_())
    return (
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, arrow_type(column.type), mask=missing),
        errors,
    )


def _convert_timestamps(values: Sequence[Any], time_format: EventTimeFormat) -> tuple[pa.Array, ColumnErrors]:
    present_indices = [index for index, value in enumerate(values) if value is not None]
    # Some documents have local times without a zone. Like texts without a zone, they are read as UTC.
    present = [_with_zone(values[index]) for index in present_indices]
    times, found = convert_times(present, time_format)
    # The kind of reason, before the first colon, is that of an event time. It is not part of a column's error.
    errors = {present_indices[index]: text[text.index(":") :] for index, text in found}
    if len(present_indices) == len(values):
        return times, errors
    indices: list[int | None] = [None] * len(values)
    for position, index in enumerate(present_indices):
        indices[index] = position
    return times.take(pa.array(indices, pa.int32())), errors


def _with_zone(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if type(value) is datetime and value.tzinfo is None else value


# --- value by value ---------------------------------------------------------------------------------------------------


def _value_reader(kind: ColumnType, base64_texts: bool) -> Callable[[Any], Any]:
    """Return the function that converts one value that is not null. It raises `ColumnValueError`."""
    match kind.kind:
        case ColumnKind.INT | ColumnKind.LONG:
            return lambda value: _whole_number(value, kind.kind)
        case ColumnKind.FLOAT | ColumnKind.DOUBLE:
            return lambda value: _float(value, kind.kind)
        case ColumnKind.DECIMAL:
            return lambda value: _decimal(value, kind)
        case ColumnKind.BINARY:
            return _base64_or_bytes if base64_texts else lambda value: _of_type(value, bytes, kind)
        case ColumnKind.DATE:
            return _date
        case ColumnKind.JSON:
            return _json
        case ColumnKind.STRING:
            return _text
    return lambda value: _of_type(value, bool, kind)


def _wrong_type(value: Any, expected: object) -> str:
    return f" is {shorten(value)}, {type_name(value)}, where {expected} is expected"


def _of_type(value: Any, expected: type, kind: ColumnType) -> Any:
    if type(value) is not expected:
        raise ColumnValueError(_wrong_type(value, kind))
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ColumnValueError(_wrong_type(value, ColumnKind.STRING))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ColumnValueError(f" is {shorten(value)}, which is not Unicode text: a surrogate stands alone") from None
    return value


def _whole_number(value: Any, kind: ColumnKind) -> int:
    if type(value) is float:
        if not value.is_integer():
            raise ColumnValueError(f" is {shorten(value)}, which is not a whole number")
        if abs(value) > _EXACT_WHOLE_NUMBERS[ColumnKind.DOUBLE]:
            raise ColumnValueError(
                f" is {shorten(value)}, where a floating point number does not represent every whole number"
            )
        value = int(value)
    elif type(value) is not int:
        raise ColumnValueError(_wrong_type(value, kind))
    return to_whole_number(value, kind)


def to_whole_number(value: int, kind: ColumnKind) -> int:
    """Return `value` if it is in the range of the type. Raise `ColumnValueError` if not."""
    low, high = _INT_RANGES[kind]
    if not low <= value <= high:
        raise ColumnValueError(f" is {shorten(value)}, which is out of the range of {kind}")
    return value


def _float(value: Any, kind: ColumnKind) -> float:
    if type(value) is int:
        if abs(value) > _EXACT_WHOLE_NUMBERS[kind]:
            raise ColumnValueError(f" is {shorten(value)}, a whole number that {kind} cannot hold exactly")
        value = float(value)
    elif type(value) is not float:
        raise ColumnValueError(_wrong_type(value, kind))
    return to_float(value, kind)


def to_float(value: float, kind: ColumnKind) -> float:
    """Return `value` if it is in the range of the type. Raise `ColumnValueError` if not."""
    if kind is ColumnKind.FLOAT:
        try:
            struct.pack("<f", value)
        except OverflowError:
            raise ColumnValueError(f" is {shorten(value)}, which is out of the range of {kind}") from None
    return value


def _decimal(value: Any, kind: ColumnType) -> Decimal:
    if type(value) is Decimal or type(value) is int:
        return _to_decimal(value, kind)
    if type(value) is not str and type(value) is not float:
        raise ColumnValueError(_wrong_type(value, kind))
    # The shortest text of a float is what the producer wrote, up to 15 digits. Longer ones were read exactly before.
    text = value if type(value) is str else repr(value)
    if not _DECIMAL.fullmatch(text):
        raise ColumnValueError(f" is {shorten(value)}, which is not a number")
    return _to_decimal(Decimal(text), kind)


def _to_decimal(value: Decimal | int, kind: ColumnType) -> Decimal:
    """Return `value` if the type has enough digits before and after the point. Raise `ColumnValueError` if not."""
    if type(value) is int and abs(value) >= 10**kind.precision:
        raise ColumnValueError(f" is {shorten(value)}, which is out of the range of {kind}")
    number = Decimal(value)
    if not number.is_finite():
        raise ColumnValueError(f" is {shorten(value)}, which is not a number")
    if number and number.adjusted() >= kind.precision - kind.scale:
        raise ColumnValueError(f" is {shorten(value)}, which is out of the range of {kind}")
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    places = -exponent
    significant = "".join(map(str, digits)).rstrip("0") if number else ""
    if significant and places - (len(digits) - len(significant)) > kind.scale:
        raise ColumnValueError(f" is {shorten(value)}, which has more digits after the point than {kind}")
    return number.quantize(Decimal((0, (1,), -kind.scale)), context=_WIDE_CONTEXT)


def _base64_or_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is not str:
        raise ColumnValueError(_wrong_type(value, "Base64"))
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ColumnValueError(f" is {shorten(value)}, which is not Base64") from None


def _date(value: Any) -> date:
    if type(value) is date:
        return value
    if type(value) is not str:
        raise ColumnValueError(_wrong_type(value, ColumnKind.DATE))
    return to_date(value)


def to_date(text: str) -> date:
    """Return the date of a text `2013-01-31`. Raise `ColumnValueError` for any other text."""
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise ColumnValueError(f" is {shorten(text)}, which is not a date (2013-01-31)")


def _json(value: Any) -> str:
    try:
        try:
            text = orjson.dumps(value, _json_other)
        except TypeError:
            # Maps of MessagePack may have keys that are not text. The option doubles the time, so it is the second try.
            text = orjson.dumps(value, _json_other, orjson.OPT_NON_STR_KEYS)
            json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    except (TypeError, ValueError, RecursionError) as error:
        raise ColumnValueError(f" is {type_name(value)} that JSON cannot represent: {error}") from None
    if b"null" in text and (found := _first_not_finite(value)) is not None:  # orjson writes NaN as null
        raise ColumnValueError(f" is {type_name(value)} that JSON cannot represent: it contains {found}")
    return text.decode()


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    """Raise `ValueError` if two keys are equal: the number 1 and the text "1" are, when both are written as text."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("two of its keys have the same text")


def _first_not_finite(value: Any) -> float | None:
    """Return a NaN or an infinity that is anywhere in a value; None if all its numbers are finite."""
    return next((each for each in _floats_in(value) if not math.isfinite(each)), None)


def _floats_in(value: Any) -> Iterator[float]:
    """Yield the floats that are anywhere in a value, except in keys."""
    below = [value]
    while below:
        each = below.pop()
        if type(each) is float:
            yield each
        elif type(each) is dict:
            below.extend(each.values())
        elif type(each) is list:
            below.extend(each)


def _json_other(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if type(value) is Decimal:
        return str(value)
    raise TypeError(f"it contains {type_name(value)}")
