"""Convert the texts of fields (regex, delimited) to typed columns.

The texts that fit a type. For all types, an empty text is null. Texts are not trimmed.

| type | texts that fit |
|---|---|
| `boolean` | `true`, `false`, `1`, `0`, in any case of letters |
| `int`, `long` | whole numbers in its range; also with a fraction of zero (`5.0`) |
| `float`, `double` | numbers, `12`, `-1.5`, `2e3`, rounded to the nearest value of the type |
| `decimal(P,S)` | numbers that need no more digits: exact, never rounded |
| `string` | any |
| `binary` | Base64 |
| `date` | `2013-01-31` |
| `timestamp` | as for the event time |
| `json` | JSON; it is not reformatted |

Arrow converts texts of a common form as a batch; the others are converted one by one. Tests compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from waybill.config.models import Column, ColumnKind, Columns, ColumnType, EventTimeFormat, WrongType
from waybill.parsers.column_values import convert_values, to_date, to_float, to_whole_number
from waybill.parsers.protocol import ColumnErrors, ColumnValueError, Parsed, arrow_type, column_error
from waybill.parsers.timestamps import convert_times, shorten

NO_TEXT = pa.scalar(None, pa.string())

_NUMBER = "[+-]?[0-9]+(\\.[0-9]+)?([eE][+-]?[0-9]+)?"
_WHOLE_NUMBER = re.compile(r"([+-]?[0-9]{1,400})(\.0+)?", re.ASCII)
_FLOAT = re.compile(_NUMBER, re.ASCII)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

_COMMON_FORMS: dict[ColumnKind, str] = {
    ColumnKind.BOOLEAN: "^(?i:true|false|0|1)$",
    ColumnKind.INT: "^-?[0-9]{1,9}$",
    ColumnKind.LONG: "^-?[0-9]{1,18}$",
    # Short, and without an exponent: such a number is always in the range of a float.
    ColumnKind.FLOAT: "^-?[0-9]{1,30}(\\.[0-9]{1,30})?$",
    ColumnKind.DOUBLE: "^-?[0-9]{1,30}(\\.[0-9]{1,30})?$",
    ColumnKind.DATE: "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$",
}
"""Patterns of texts that Arrow's cast converts as this module does, one by one."""


@dataclass(frozen=True)
class TextColumns:
    """The columns of a stream whose messages have fields of text."""

    columns: Columns

    def fields(self) -> tuple[str, ...]:
        """Return the names of the fields that the columns need, each once."""
        return tuple(dict.fromkeys(_field(name, column) for name, column in self.columns.items()))

    def add_to(self, parsed: Parsed, texts: Mapping[str, pa.Array]) -> Parsed:
        """Return `parsed` with the columns, and with errors for messages that had none and whose values do not fit.

        `texts`: for each of `fields()`, an array with the text of each message. Texts of messages with an error are
        ignored.
        """
        if not self.columns:
            return parsed
        arrays: dict[str, pa.Array] = {}
        errors: dict[int, str] = {}
        for name, column in self.columns.items():
            field = _field(name, column)
            arrays[name], column_errors = convert_texts(texts[field], column)
            if column.wrong_type is WrongType.QUARANTINE:
                for row, detail in column_errors.items():
                    errors.setdefault(row, column_error((field,), detail))
        return parsed._replace(columns=arrays, error=_with_errors(parsed.error, errors))


def _field(name: str, column: Column) -> str:
    """Return the name of the column's field. Fields of text have no paths, so a dot is part of the name."""
    return ".".join(column.path(name))


def _with_errors(error: pa.Array, errors: Mapping[int, str]) -> pa.Array:
    if not errors:
        return error
    return pc.coalesce(error, pa.array([errors.get(row) for row in range(len(error))], pa.string()))


def convert_texts(texts: pa.Array, column: Column) -> tuple[pa.Array, ColumnErrors]:
    """Return the column of `texts`, and the errors of those that do not fit.

    `texts`: an array of strings; null and empty ones are missing. The column has the type `arrow_type(column.type)`,
    and nulls in the rows with errors.
    """
    texts = pc.if_else(pc.equal(texts, ""), NO_TEXT, texts)
    kind = column.type
    if kind.kind is ColumnKind.STRING:
        return texts, {}
    if kind.kind in _COMMON_FORMS:
        return _convert_common_then_others(texts, kind)
    if kind.kind is ColumnKind.TIMESTAMP:
        return _convert_timestamps(texts, column)
    if kind.kind is ColumnKind.JSON:
        return _convert_each(texts, kind, _json)
    return convert_values(texts.to_pylist(), column, base64_texts=True)


def _convert_common_then_others(texts: pa.Array, kind: ColumnType) -> tuple[pa.Array, ColumnErrors]:
    """Convert texts of the common form by Arrow and the others one by one: a few must not slow down the batch."""
    common = pc.fill_null(pc.match_substring_regex(texts, _COMMON_FORMS[kind.kind]), False)
    if kind.kind is ColumnKind.DATE:  # Arrow accepts the year 0
        common = pc.and_(common, pc.invert(pc.fill_null(pc.starts_with(texts, "0000"), False)))
    common_texts = pc.if_else(common, texts, NO_TEXT)
    # The same as for a single value: the text is read as a double, which is then rounded to a float.
    number_type = pa.float64() if kind.kind is ColumnKind.FLOAT else arrow_type(kind)
    converted = common_texts.cast(number_type).cast(arrow_type(kind), safe=kind.kind is not ColumnKind.FLOAT)
    if common_texts.null_count == texts.null_count:
        return converted, {}
    others, errors = _convert_each(pc.if_else(common, NO_TEXT, texts), kind, _READERS[kind.kind])
    return pc.coalesce(converted, others), errors


def _convert_timestamps(texts: pa.Array, column: Column) -> tuple[pa.Array, ColumnErrors]:
    present = texts.is_valid()
    times, found = convert_times(texts.filter(present), column.format or EventTimeFormat.ISO8601)
    if not found and not texts.null_count:
        return times, {}
    rows = pc.indices_nonzero(present).to_pylist()
    # The kind of reason, before the first colon, is that of an event time. It is not part of a column's error.
    return scatter(times, present), {rows[index]: text[text.index(":") :] for index, text in found}


def _convert_each(
    texts: pa.Array, kind: ColumnType, read: Callable[[str, ColumnKind], Any]
) -> tuple[pa.Array, ColumnErrors]:
    found: list[Any] = []
    errors: ColumnErrors = {}
    for row, text in enumerate(texts.to_pylist()):
        try:
            found.append(None if text is None else read(text, kind.kind))
        except ColumnValueError as error:
            found.append(None)
            errors[row] = str(error)
    return pa.array(found, arrow_type(kind)), errors


def _boolean(text: str, kind: ColumnKind) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ColumnValueError(f" is {shorten(text)}, which is not a {kind} (true, false, 1 or 0)")
    return value


def _whole_number(text: str, kind: ColumnKind) -> int:
    match = _WHOLE_NUMBER.fullmatch(text)
    if match is None:
        raise ColumnValueError(f" is {shorten(text)}, which is not a whole number")
    return to_whole_number(int(match[1]), kind)


def _float(text: str, kind: ColumnKind) -> float:
    if not _FLOAT.fullmatch(text):
        raise ColumnValueError(f" is {shorten(text)}, which is not a number")
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ColumnValueError(f" is {shorten(text)}, which is out of the range of {kind}")
    return to_float(value, kind)


def _date(text: str, kind: ColumnKind) -> date:  # noqa: ARG001
    return to_date(text)


def _json(text: str, kind: ColumnKind) -> str:  # noqa: ARG001
    try:
        orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise ColumnValueError(f" is {shorten(text)}, which is not JSON: {error}") from None
    return text


_READERS: dict[ColumnKind, Callable[[str, ColumnKind], Any]] = {
    ColumnKind.BOOLEAN: _boolean,
    ColumnKind.INT: _whole_number,
    ColumnKind.LONG: _whole_number,
    ColumnKind.FLOAT: _float,
    ColumnKind.DOUBLE: _float,
    ColumnKind.DATE: _date,
}


def scatter(array: pa.Array, present: pa.Array) -> pa.Array:
    """Return an array as long as `present`: the values of `array`, in order, in the rows that are true, else null."""
    counted = pc.cumulative_sum(present.cast(pa.int64()))
    return array.take(pc.if_else(present, pc.subtract(counted, 1), pa.scalar(None, pa.int64())))
