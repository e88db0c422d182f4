"""From the values of documents (JSON, MessagePack, Avro, Protobuf) to typed columns.

What fits a type, and what becomes of it:

| type | fits |
|---|---|
| any | null, and a field that is not there: null |
| `boolean` | true and false |
| `int`, `long` | whole numbers in its range; also one written with a fraction of zero (`5.0`, `1e3`) up to 2^53 |
| `float`, `double` | numbers; a whole number only if it is exact (up to 2^24, 2^53); for `float` the nearest there is |
| `decimal(P,S)` | numbers, and texts that hold one, that need no more digits: exact, never rounded |
| `string` | texts |
| `binary` | bytes; in JSON, which has none, Base64 |
| `date` | dates; texts `2013-01-31` |
| `timestamp` | as for the event time |
| `json` | anything that JSON can say |
| `list<T>` | lists in which each element is null or fits T |

A text that holds a number is a text, and no number (but see `decimal`); a boolean is no number; times and dates are
between the years 1 and 9999. A batch is converted by Arrow in one go where that gives the same for each of its values,
else value by value. The tests hold one against the other.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import Column, ColumnKind, ColumnType, EventTimeFormat
from waybill.parsers.protocol import Faults, Misfit, arrow_type
from waybill.parsers.timestamps import convert, show, type_name

__all__ = ["convert_values", "is_float", "to_date", "to_float", "to_whole_number"]

_INT_RANGES = {ColumnKind.INT: (-(2**31), 2**31 - 1), ColumnKind.LONG: (-(2**63), 2**63 - 1)}
_EXACT_WHOLE_NUMBERS = {ColumnKind.FLOAT: 2**24, ColumnKind.DOUBLE: 2**53}
_DECIMAL = re.compile(r"[+-]?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_CANONICAL_DATE = f"^{_DATE.pattern}$"
_ROOM = Context(prec=100)
_FIRST_DATE = pa.scalar(date(1, 1, 1))

_FAST_TYPES: dict[ColumnKind, tuple[set[type], ...]] = {
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
"""Which types of Python's, alone or together, Arrow converts as this module would."""


def convert_values(values: Sequence[Any], column: Column, *, base64_texts: bool) -> tuple[pa.Array, Faults]:
    """What `values`, one for each message, are in the column; null where there is a fault.

    `base64_texts`: whether a text in a `binary` column is Base64; otherwise it does not fit.
    """
    if column.type.is_list:
        return _convert_lists(values, column, base64_texts)
    if column.type.kind is ColumnKind.TIMESTAMP:
        return _convert_timestamps(values, column.format or EventTimeFormat.ISO8601)
    fast = _convert_fast(values, column.type)
    if fast is not None:
        return fast, {}
    return _convert_each(values, column.type, base64_texts)


def is_float(value: Any) -> bool:
    """Whether a value, or an element of a list, is a float, which may be less than what the producer wrote."""
    return type(value) is float or (type(value) is list and any(type(element) is float for element in value))


def _convert_fast(values: Sequence[Any], kind: ColumnType) -> pa.Array | None:
    """By Arrow, if all values are of types with which it does the same; else None."""
    types = set(map(type, values))
    types.discard(type(None))
    if not types:
        return pa.nulls(len(values), arrow_type(kind))
    if not any(types <= taken for taken in _FAST_TYPES.get(kind.kind, ())):
        return None
    try:
        if kind.kind is ColumnKind.DATE and str in types:
            return _convert_dates(pa.array(values, pa.string()))
        found = pa.array(values, arrow_type(kind))
    except (pa.ArrowException, OverflowError, ValueError):
        return None
    if kind.kind is ColumnKind.FLOAT and pc.any(pc.is_inf(found)).as_py():
        return None  # it may have been finite as a double
    return found


def _convert_dates(texts: pa.Array) -> pa.Array | None:
    if not pc.all(pc.match_substring_regex(texts, _CANONICAL_DATE)).as_py():
        return None
    dates = texts.cast(pa.date32())
    return dates if pc.all(pc.greater_equal(dates, _FIRST_DATE)).as_py() else None


def _convert_each(values: Iterable[Any], kind: ColumnType, base64_texts: bool) -> tuple[pa.Array, Faults]:
    read = _reader(kind, base64_texts)
    found: list[Any] = []
    faults: Faults = {}
    for index, value in enumerate(values):
        try:
            found.append(None if value is None else read(value))
        except Misfit as misfit:
            found.append(None)
            faults[index] = str(misfit)
    return pa.array(found, arrow_type(kind)), faults


# --- lists and timestamps ---------------------------------------------------------------------------------------------


def _convert_lists(values: Sequence[Any], column: Column, base64_texts: bool) -> tuple[pa.Array, Faults]:
    """All elements of all lists in one go, as the column of their own that they would be."""
    faults: Faults = {
        index: _wrong(value, str(column.type))
        for index, value in enumerate(values)
        if value is not None and type(value) is not list
    }
    lists = [value if type(value) is list else None for value in values]
    element = column.model_copy(update={"type": column.type.element})
    elements, element_faults = convert_values(
        list(chain.from_iterable(found for found in lists if found)), element, base64_texts=base64_texts
    )
    offsets, end = [0], 0
    for index, found in enumerate(lists):
        for place in range(end, end + len(found or ())) if element_faults else ():
            if place in element_faults:
                faults.setdefault(index, f"[{place - end}]{element_faults[place]}")
        end += len(found or ())
        offsets.append(end)
    missing = pa.array([found is None or index in faults for index, found in enumerate(lists)], pa.bool_())
    return (
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, arrow_type(column.type), mask=missing),
        faults,
    )


def _convert_timestamps(values: Sequence[Any], written: EventTimeFormat) -> tuple[pa.Array, Faults]:
    places = [index for index, value in enumerate(values) if value is not None]
    # Some documents hold local times, which have no zone: as with texts, they are UTC.
    present = [_with_zone(values[index]) for index in places]
    times, found = convert(present, written)
    # The kind of fault, before the first colon, is that of an event time.
    faults = {places[index]: why[why.index(":") :] for index, why in found}
    if len(places) == len(values):
        return times, faults
    indices: list[int | None] = [None] * len(values)
    for place, index in enumerate(places):
        indices[index] = place
    return times.take(pa.array(indices, pa.int32())), faults


def _with_zone(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if type(value) is datetime and value.tzinfo is None else value


# --- value by value ---------------------------------------------------------------------------------------------------


def _reader(kind: ColumnType, base64_texts: bool) -> Callable[[Any], Any]:
    """The function that reads one value, not null. It raises `Misfit`."""
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


def _wrong(value: Any, wanted: object) -> str:
    return f" is {show(value)}, {type_name(value)}, where {wanted} is expected"


def _of_type(value: Any, wanted: type, kind: ColumnType) -> Any:
    if type(value) is not wanted:
        raise Misfit(_wrong(value, kind))
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Misfit(_wrong(value, ColumnKind.STRING))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit(f" is {show(value)}, which is not Unicode text: a surrogate stands alone") from None
    return value


def _whole_number(value: Any, kind: ColumnKind) -> int:
    if type(value) is float:
        if not value.is_integer():
            raise Misfit(f" is {show(value)}, which is no whole number")
        if abs(value) > _EXACT_WHOLE_NUMBERS[ColumnKind.DOUBLE]:
            raise Misfit(f" is {show(value)}, where a floating point number does not tell whole numbers apart")
        value = int(value)
    elif type(value) is not int:
        raise Misfit(_wrong(value, kind))
    return to_whole_number(value, kind)


def to_whole_number(value: int, kind: ColumnKind) -> int:
    """`value`, if it is in the type's range. Raises `Misfit`."""
    low, high = _INT_RANGES[kind]
    if not low <= value <= high:
        raise Misfit(f" is {show(value)}, which is out of the range of {kind}")
    return value


def _float(value: Any, kind: ColumnKind) -> float:
    if type(value) is int:
        if abs(value) > _EXACT_WHOLE_NUMBERS[kind]:
            raise Misfit(f" is {show(value)}, a whole number that {kind} cannot hold exactly")
        value = float(value)
    elif type(value) is not float:
        raise Misfit(_wrong(value, kind))
    return to_float(value, kind)


def to_float(value: float, kind: ColumnKind) -> float:
    """`value`, if the type has a number near it. Raises `Misfit`."""
    if kind is ColumnKind.FLOAT:
        try:
            struct.pack("<f", value)
        except OverflowError:
            raise Misfit(f" is {show(value)}, which is out of the range of {kind}") from None
    return value


def _decimal(value: Any, kind: ColumnType) -> Decimal:
    if type(value) is Decimal or type(value) is int:
        return _to_decimal(value, kind)
    if type(value) is not str and type(value) is not float:
        raise Misfit(_wrong(value, kind))
    # A float's shortest text is what the producer wrote, up to 15 digits; what has more is read exactly before.
    text = value if type(value) is str else repr(value)
    if not _DECIMAL.fullmatch(text):
        raise Misfit(f" is {show(value)}, which is no number")
    return _to_decimal(Decimal(text), kind)


def _to_decimal(value: Decimal | int, kind: ColumnType) -> Decimal:
    """`value`, if it needs no more digits than the type has, before and after the point. Raises `Misfit`."""
    if type(value) is int and abs(value) >= 10**kind.precision:
        raise Misfit(f" is {show(value)}, which is out of the range of {kind}")
    number = Decimal(value)
    if not number.is_finite():
        raise Misfit(f" is {value}, which is no number")
    if number and number.adjusted() >= kind.precision - kind.scale:
        raise Misfit(f" is {value}, which is out of the range of {kind}")
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    places = -exponent
    significant = "".join(map(str, digits)).rstrip("0") if number else ""
    if significant and places - (len(digits) - len(significant)) > kind.scale:
        raise Misfit(f" is {value}, which has more digits after the point than {kind}")
    return number.quantize(Decimal((0, (1,), -kind.scale)), context=_ROOM)


def _base64_or_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is not str:
        raise Misfit(_wrong(value, "Base64"))
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise Misfit(f" is {show(value)}, which is not Base64") from None


def _date(value: Any) -> date:
    if type(value) is date:
        return value
    if type(value) is not str:
        raise Misfit(_wrong(value, ColumnKind.DATE))
    return to_date(value)


def to_date(text: str) -> date:
    """The date that a text holds. Raises `Misfit`."""
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise Misfit(f" is {show(text)}, which is not a date (2013-01-31)")


def _json(value: Any) -> str:
    try:
        try:
            text = orjson.dumps(value, _json_other)
        except TypeError:
            # Maps of MessagePack may have keys that are not text. With the option, the others would take twice as long.
            text = orjson.dumps(value, _json_other, orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misfit(f" is {type_name(value)} that JSON cannot say: {error}") from None
    return text.decode()


def _json_other(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if type(value) is Decimal:
        return str(value)
    raise TypeError(f"there is {type_name(value)} in it")
