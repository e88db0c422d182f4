"""From the texts of fields (regex, delimited) to typed columns.

What fits a type: for all types, an empty text is null. Nothing is trimmed.

| type | fits |
|---|---|
| `boolean` | `true`, `false`, `1`, `0`, in any case of letters |
| `int`, `long` | whole numbers in its range; also with a fraction of zero (`5.0`) |
| `float`, `double` | numbers, `12`, `-1.5`, `2e3`: the nearest there is |
| `decimal(P,S)` | numbers that need no more digits: exact, never rounded |
| `string` | any |
| `binary` | Base64 |
| `date` | `2013-01-31` |
| `timestamp` | as for the event time |
| `json` | JSON, kept as it is written |

Texts of the usual form are converted by Arrow in one go, the others one by one. The tests hold one against the other.
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

from waybill.config import Column, ColumnKind, Columns, ColumnType, EventTimeFormat, WrongType
from waybill.parsers.column_values import convert_values, to_date, to_float, to_whole_number
from waybill.parsers.protocol import Faults, Misfit, Parsed, arrow_type, column_fault
from waybill.parsers.texts import NO_TEXT, spread
from waybill.parsers.timestamps import convert, show

__all__ = ["TextColumns", "convert_texts"]

_NUMBER = "[+-]?[0-9]+(\\.[0-9]+)?([eE][+-]?[0-9]+)?"
_WHOLE_NUMBER = re.compile(r"([+-]?[0-9]{1,400})(\.0+)?", re.ASCII)
_FLOAT = re.compile(_NUMBER, re.ASCII)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

_USUAL: dict[ColumnKind, str] = {
    ColumnKind.BOOLEAN: "^(?i:true|false|0|1)$",
    ColumnKind.INT: "^-?[0-9]{1,9}$",
    ColumnKind.LONG: "^-?[0-9]{1,18}$",
    # Without an exponent, and short: no float is out of range.
    ColumnKind.FLOAT: "^-?[0-9]{1,30}(\\.[0-9]{1,30})?$",
    ColumnKind.DOUBLE: "^-?[0-9]{1,30}(\\.[0-9]{1,30})?$",
    ColumnKind.DATE: "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$",
}
"""Texts that Arrow's cast takes as this module does."""


@dataclass(frozen=True)
class TextColumns:
    """Reads the columns of a stream whose messages have fields of text."""

    columns: Columns

    def fields(self) -> tuple[str, ...]:
        """The names of the fields that are needed, each once."""
        return tuple(dict.fromkeys(_field(name, column) for name, column in self.columns.items()))

    def add_to(self, parsed: Parsed, texts: Mapping[str, pa.Array]) -> Parsed:
        """`parsed` with the columns, and with an error where one does not fit and there was none before.

        `texts`: for each of `fields`, the text of each message; what belongs to a message with an error means nothing.
        """
        if not self.columns:
            return parsed
        arrays: dict[str, pa.Array] = {}
        errors: dict[int, str] = {}
        for name, column in self.columns.items():
            field = _field(name, column)
            arrays[name], faults = convert_texts(texts[field], column)
            if column.wrong_type is WrongType.QUARANTINE:
                for row, what in faults.items():
                    errors.setdefault(row, column_fault((field,), what))
        return parsed._replace(columns=arrays, error=_with_errors(parsed.error, errors))


def _field(name: str, column: Column) -> str:
    """Where fields have plain names, a dot in one is part of the name."""
    return ".".join(column.path(name))


def _with_errors(error: pa.Array, errors: Mapping[int, str]) -> pa.Array:
    if not errors:
        return error
    return pc.coalesce(error, pa.array([errors.get(row) for row in range(len(error))], pa.string()))


def convert_texts(texts: pa.Array, column: Column) -> tuple[pa.Array, Faults]:
    """What `texts` (strings; null and empty ones are missing) are in the column; null where there is a fault."""
    texts = pc.if_else(pc.equal(texts, ""), NO_TEXT, texts)
    kind = column.type
    if kind.kind is ColumnKind.STRING:
        return texts, {}
    if kind.kind in _USUAL:
        return _convert_usual_and_others(texts, kind)
    if kind.kind is ColumnKind.TIMESTAMP:
        return _convert_timestamps(texts, column)
    if kind.kind is ColumnKind.JSON:
        return _convert_each(texts, kind, _json)
    return convert_values(texts.to_pylist(), column, base64_texts=True)


def _convert_usual_and_others(texts: pa.Array, kind: ColumnType) -> tuple[pa.Array, Faults]:
    """A few texts that are wrong, or written in an unusual way, should not cost the others their fast way."""
    usual = pc.fill_null(pc.match_substring_regex(texts, _USUAL[kind.kind]), False)
    found = pc.if_else(usual, texts, NO_TEXT)
    if kind.kind is ColumnKind.DATE:  # Arrow knows a year 0
        usual = pc.and_(usual, pc.invert(pc.fill_null(pc.starts_with(texts, "0000"), False)))
        found = pc.if_else(usual, texts, NO_TEXT)
    through = pa.float64() if kind.kind is ColumnKind.FLOAT else arrow_type(kind)
    converted = found.cast(through).cast(arrow_type(kind), safe=kind.kind is not ColumnKind.FLOAT)
    if found.null_count == texts.null_count:
        return converted, {}
    others, faults = _convert_each(pc.if_else(usual, NO_TEXT, texts), kind, _READERS[kind.kind])
    return pc.coalesce(converted, others), faults


def _convert_timestamps(texts: pa.Array, column: Column) -> tuple[pa.Array, Faults]:
    present = texts.is_valid()
    times, found = convert(texts.filter(present), column.format or EventTimeFormat.ISO8601)
    if not found and not texts.null_count:
        return times, {}
    rows = pc.indices_nonzero(present).to_pylist()
    # The kind of fault, before the first colon, is that of an event time.
    return spread(times, present), {rows[index]: why[why.index(":") :] for index, why in found}


def _convert_each(texts: pa.Array, kind: ColumnType, read: Callable[[str, ColumnKind], Any]) -> tuple[pa.Array, Faults]:
    found: list[Any] = []
    faults: Faults = {}
    for row, text in enumerate(texts.to_pylist()):
        try:
            found.append(None if text is None else read(text, kind.kind))
        except Misfit as misfit:
            found.append(None)
            faults[row] = str(misfit)
    return pa.array(found, arrow_type(kind)), faults


def _boolean(text: str, kind: ColumnKind) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise Misfit(f" is {show(text)}, which is no {kind} (true, false, 1 or 0)")
    return value


def _whole_number(text: str, kind: ColumnKind) -> int:
    match = _WHOLE_NUMBER.fullmatch(text)
    if match is None:
        raise Misfit(f" is {show(text)}, which is no whole number")
    return to_whole_number(int(match[1]), kind)


def _float(text: str, kind: ColumnKind) -> float:
    if not _FLOAT.fullmatch(text):
        raise Misfit(f" is {show(text)}, which is no number")
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Misfit(f" is {show(text)}, which is out of the range of {kind}")
    return to_float(value, kind)


def _date(text: str, kind: ColumnKind) -> date:  # noqa: ARG001
    return to_date(text)


def _json(text: str, kind: ColumnKind) -> str:  # noqa: ARG001
    try:
        orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise Misfit(f" is {show(text)}, which is not JSON: {error}") from None
    return text


_READERS: dict[ColumnKind, Callable[[str, ColumnKind], Any]] = {
    ColumnKind.BOOLEAN: _boolean,
    ColumnKind.INT: _whole_number,
    ColumnKind.LONG: _whole_number,
    ColumnKind.FLOAT: _float,
    ColumnKind.DOUBLE: _float,
    ColumnKind.DATE: _date,
}
