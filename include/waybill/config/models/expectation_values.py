"""Values in the arguments of expectations, converted to the type of the column that they are compared with.

YAML has no dates, times, bytes and decimals: they are text or numbers there, and no value of such a column is equal to
them. `typed_arguments` returns the values that are equal to the column's, as an audit has it in pandas
(`waybill.tables.audit.pandas_frame`): dates as `date`, times as `datetime` in UTC, bytes, decimals of up to 15 digits
as `float` and longer ones as `Decimal`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from waybill.config.models.columns import ColumnKind, ColumnType

_EXACT_DIGITS = 15
"""Decimals of up to this many digits are floats in an audit."""
_INTEGERS = (ColumnKind.INT, ColumnKind.LONG)
_TEXTS = (ColumnKind.STRING, ColumnKind.JSON)
_WITHOUT_BOUNDS = (*_TEXTS, ColumnKind.BINARY, ColumnKind.BOOLEAN)
"""Great Expectations reads text in a bound as a date, and accepts only numbers and times besides."""

_BOUNDED = frozenset(
    ["expect_column_values_to_be_between", "expect_column_max_to_be_between", "expect_column_min_to_be_between"]
)
"""Expectations whose bounds are compared with values of the column."""
_BOUNDED_TIMES = frozenset(["expect_column_mean_to_be_between", "expect_column_median_to_be_between"])
"""Expectations whose bounds are a time if the column holds times."""


class MismatchedValue(ValueError):
    """A value that no value of the column can be equal to. `argument` holds it."""

    def __init__(self, argument: str, column: str, kind: ColumnType, value: Any, reason: str) -> None:
        super().__init__(f"{value!r} is compared with the column {column!r}, which is {_article(kind)}: {reason}")
        self.argument = argument


def typed_arguments(name: str, arguments: Mapping[str, Any], types: Mapping[str, ColumnType]) -> dict[str, Any]:
    """Return the arguments of the expectation `name`, with its values converted. `types`: of the columns, by name.

    Columns without a type, and arguments that are compared with no value of a column, stay as they are.

    Raises `MismatchedValue`.
    """
    found = dict(arguments)
    kind = types.get(str(arguments.get("column")))
    if kind is not None:
        for argument, value, convert in _compared(name, arguments, kind):
            found[argument] = _converted(argument, str(arguments["column"]), kind, value, convert)
    pairs = arguments.get("value_pairs_set")
    if isinstance(pairs, list):
        found["value_pairs_set"] = [_typed_pair(pair, arguments, types) for pair in pairs]
    if isinstance(condition := arguments.get("row_condition"), dict):
        found["row_condition"] = _typed_condition(condition, types)
    return found


def _compared(name: str, arguments: Mapping[str, Any], kind: ColumnType) -> Iterator[tuple[str, Any, _Convert]]:
    """Yield each argument that is compared with values of the column, and how to convert it."""
    values = arguments.get("value_set")
    if isinstance(values, list):
        yield "value_set", values, lambda each: [typed_value(one, kind) for one in each]
    if name in _BOUNDED or (name in _BOUNDED_TIMES and kind.kind is ColumnKind.TIMESTAMP):
        for argument, strict, is_upper in (("min_value", "strict_min", False), ("max_value", "strict_max", True)):
            if arguments.get(argument) is not None:
                up = is_upper is not bool(arguments.get(strict))
                yield argument, arguments[argument], partial(_typed_bound, kind=kind, up=up)


_Convert = Callable[[Any], Any]


def _converted(argument: str, column: str, kind: ColumnType, value: Any, convert: _Convert) -> Any:
    try:
        return convert(value)
    except _Mismatch as error:
        raise MismatchedValue(argument, column, kind, error.value, error.reason) from None


def _typed_pair(pair: Any, arguments: Mapping[str, Any], types: Mapping[str, ColumnType]) -> Any:
    if not isinstance(pair, list) or len(pair) != 2:
        return pair
    columns = [str(arguments.get(argument)) for argument in ("column_A", "column_B")]
    return [_typed_member(value, column, types.get(column)) for column, value in zip(columns, pair, strict=True)]


def _typed_member(value: Any, column: str, kind: ColumnType | None) -> Any:
    if kind is None:
        return value
    return _converted("value_pairs_set", column, kind, value, lambda each: typed_value(each, kind))


def _typed_condition(condition: Mapping[str, Any], types: Mapping[str, ColumnType]) -> dict[str, Any]:
    """Return a row condition in the form of a section, with its parameters converted."""
    if isinstance(conditions := condition.get("conditions"), list):
        return {**condition, "conditions": [_typed_condition(each, types) for each in conditions]}
    if condition.get("type") != "comparison":
        return dict(condition)
    column, value = str(condition["column"]["name"]), condition["parameter"]
    kind = types.get(column)
    if kind is None or value is None:
        return dict(condition)

    def convert(each: Any) -> Any:
        return [_in_condition(one, kind) for one in each] if isinstance(each, list) else _in_condition(each, kind)

    return {**condition, "parameter": _converted("row_condition", column, kind, value, convert)}


def _in_condition(value: Any, kind: ColumnType) -> Any:
    """Return a value for a row condition, which pandas evaluates as text."""
    found = typed_value(value, kind)
    if not isinstance(found, Decimal):
        return found
    if found != found.to_integral_value():
        raise _Mismatch(value, f"a condition compares decimals of more than {_EXACT_DIGITS} digits with whole numbers")
    return int(found)


# --- values -----------------------------------------------------------------------------------------------------------


class _Mismatch(Exception):
    def __init__(self, value: Any, reason: str) -> None:
        super().__init__(value, reason)
        self.value, self.reason = value, reason


def typed_value(value: Any, kind: ColumnType) -> Any:
    """Return the value that a column of this type would hold in an audit. None is not changed."""
    if value is None:
        return None
    if kind.is_list or isinstance(value, list | dict):
        raise _Mismatch(value, "lists and sections are compared with no value; use another expectation")
    return _CONVERSIONS[kind.kind](value, kind)


def _typed_bound(value: Any, kind: ColumnType, *, up: bool) -> Any:
    """Return a bound. Great Expectations has no decimals there: a long one becomes the float next to it.

    `up`: the float must not be below the bound; else not above.
    """
    if kind.is_list or isinstance(value, list | dict):
        raise _Mismatch(value, "lists and sections are compared with no value; use another expectation")
    if kind.kind in _WITHOUT_BOUNDS:
        raise _Mismatch(value, "only numbers, dates and times have bounds; use a set of values, or a regex")
    if kind.kind in _INTEGERS and not isinstance(value, bool):
        number = _decimal(value)
        return int(number) if number == number.to_integral_value() else float(number)
    if kind.kind is not ColumnKind.DECIMAL or kind.precision <= _EXACT_DIGITS:
        return typed_value(value, kind)
    number = _decimal(value)
    near = float(number)
    if up and Decimal(near) < number:
        near = math.nextafter(near, math.inf)
    elif not up and Decimal(near) > number:
        near = math.nextafter(near, -math.inf)
    if abs(Decimal(near) - number) >= Decimal(1).scaleb(-kind.scale):
        raise _Mismatch(value, f"a bound can have about {_EXACT_DIGITS} digits")
    return near


def _boolean(value: Any, _: ColumnType) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _Mismatch(value, "write true or false")


def _integer(value: Any, _: ColumnType) -> int:
    number = _decimal(value)
    if number != number.to_integral_value():
        raise _Mismatch(value, "write a whole number")
    return int(number)


def _double(value: Any, _: ColumnType) -> float:
    return float(value) if isinstance(value, float) else float(_decimal(value))


def _single(value: Any, kind: ColumnType) -> float:
    number = _double(value, kind)
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])  # 0.1 is another number in 32 bits
    except OverflowError:
        raise _Mismatch(value, "it is too large for a float") from None


def _of_decimal(value: Any, kind: ColumnType) -> float | Decimal:
    number = _decimal(value)
    return float(number) if kind.precision <= _EXACT_DIGITS else number


def _text(value: Any, _: ColumnType) -> str:
    if isinstance(value, str):
        return value
    raise _Mismatch(value, f'write it in quotes: "{value}"')


def _bytes(value: Any, kind: ColumnType) -> bytes:
    return _text(value, kind).encode()


def _date(value: Any, _: ColumnType) -> date:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise _Mismatch(value, "write it as 2026-11-25") from None


def _timestamp(value: Any, _: ColumnType) -> datetime:
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise _Mismatch(value, "write it as 2026-11-25, or 2026-11-25T09:30:00Z; without a zone it is UTC") from None


def _decimal(value: Any) -> Decimal:
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        try:
            number = Decimal(str(value).strip())
        except InvalidOperation:
            number = Decimal("nan")
        if number.is_finite() and abs(number.adjusted()) <= 400:
            return number
    raise _Mismatch(value, "write a number")


_CONVERSIONS: Mapping[ColumnKind, Callable[[Any, ColumnType], Any]] = {
    ColumnKind.BOOLEAN: _boolean,
    ColumnKind.INT: _integer,
    ColumnKind.LONG: _integer,
    ColumnKind.FLOAT: _single,
    ColumnKind.DOUBLE: _double,
    ColumnKind.DECIMAL: _of_decimal,
    **dict.fromkeys(_TEXTS, _text),
    ColumnKind.BINARY: _bytes,
    ColumnKind.DATE: _date,
    ColumnKind.TIMESTAMP: _timestamp,
}


def _article(kind: ColumnType) -> str:
    return f"{'an' if str(kind)[0] in 'aeiou' else 'a'} {kind}"
