"""Messages that are JSON objects, read by orjson.

What JSON leaves open is settled so: of a key that is there twice the last value counts; NaN and Infinity, a byte order
mark, bytes that are not UTF-8 and lone surrogates are not JSON; nesting beyond orjson's limit of 1,024 levels is not
read. None of these stops a run: the message goes to quarantine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa

from waybill.config import FieldPath, JsonParser
from waybill.parsers.protocol import Parsed, Reason, reason
from waybill.parsers.timestamps import convert, json_type

__all__ = ["JsonMessages"]

_Getter = Callable[[dict[str, Any]], Any]


class _Absent:
    """Marks a field that a document does not have: null is a value."""


_ABSENT = _Absent()


class JsonMessages:
    """The parser `json`: event time and message id by field path."""

    name = "json"

    def __init__(self, config: JsonParser) -> None:
        self._format = config.event_time.format
        self._time_path = ".".join(config.event_time.field)
        self._get_time = _getter(config.event_time.field)
        self._id_path = ".".join(config.message_id or ())
        self._get_id = None if config.message_id is None else _getter(config.message_id)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        values = messages.column("value").to_pylist()
        rows, times, ids, errors = self._read_documents(values)
        event_time, faults = convert(times, self._format)
        for index, why in faults:
            errors[rows[index]] = why
        if not errors:
            return Parsed(event_time, pa.array(ids, pa.string()), pa.nulls(len(values), pa.string()))
        return _spread(len(values), rows, event_time, ids, errors)

    def _read_documents(self, values: list[bytes]) -> tuple[list[int], list[Any], list[str | None], dict[int, str]]:
        """The rows that are objects with an event time, those times, their ids, and the errors of all others."""
        rows: list[int] = []
        times: list[Any] = []
        ids: list[str | None] = []
        errors: dict[int, str] = {}
        loads, get_time, get_id = orjson.loads, self._get_time, self._get_id
        for row, value in enumerate(values):
            try:
                document = loads(value)
            except (orjson.JSONDecodeError, RecursionError) as error:
                errors[row] = reason(Reason.NOT_JSON, str(error))
                continue
            if type(document) is not dict:
                errors[row] = reason(Reason.NOT_AN_OBJECT, f"found {json_type(document)}")
                continue
            time = get_time(document)
            if time is None or time is _ABSENT:
                found = "is null" if time is None else "is missing"
                errors[row] = reason(Reason.EVENT_TIME_MISSING, f"field {self._time_path} {found}")
                continue
            message_id = None if get_id is None else get_id(document)
            if message_id is not None and type(message_id) is not str:
                try:
                    message_id = self._other_id(message_id, value)
                except ValueError as error:
                    errors[row] = str(error)
                    continue
            rows.append(row)
            times.append(time)
            ids.append(message_id or None)
        return rows, times, ids, errors

    def _other_id(self, found: Any, value: bytes) -> str | None:
        """A message id that is no string, as text. Raises `ValueError`, with the reason, if it cannot be an id."""
        if found is _ABSENT:
            return None
        if type(found) is int:
            return str(found)
        if type(found) is float and self._get_id is not None:
            # As the producer wrote it: orjson makes a float of a long integer, and two ids one.
            return _number_text(value, self._get_id)
        raise ValueError(reason(Reason.MESSAGE_ID_WRONG_TYPE, f"field {self._id_path} is {json_type(found)}"))


def _getter(path: FieldPath) -> _Getter:
    """A function that looks a path up in a document; `_ABSENT` where it does not lead anywhere."""
    if len(path) == 1:
        name = path[0]

        def get_field(document: dict[str, Any]) -> Any:
            return document.get(name, _ABSENT)

        return get_field

    def get_path(document: Any) -> Any:
        for name in path:
            if type(document) is not dict:
                return _ABSENT
            document = document.get(name, _ABSENT)
        return document

    return get_path


def _number_text(value: bytes, get: _Getter) -> str:
    try:
        found = get(json.loads(value, parse_float=str, parse_int=str))
    except RecursionError:
        raise ValueError(reason(Reason.NOT_JSON, "nested too deeply to read the message id")) from None
    return str(found)


def _spread(n: int, rows: list[int], event_time: pa.Array, ids: list[str | None], errors: dict[int, str]) -> Parsed:
    """Put what was read back to where it was, among the rows with errors."""
    positions: list[int | None] = [None] * n
    for position, row in enumerate(rows):
        positions[row] = position
    indices = pa.array(positions, pa.int32())
    return Parsed(
        event_time.take(indices),
        pa.array(ids, pa.string()).take(indices),
        pa.array([errors.get(row) for row in range(n)], pa.string()),
    )
