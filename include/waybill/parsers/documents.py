"""What parsers of self-describing documents (JSON, MessagePack) share: fields by path, and an error for each document.

A document is read by a compiled decoder, one at a time; event times are converted by the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from waybill.config import EventTime, FieldPath
from waybill.parsers.protocol import Parsed, Reason, reason
from waybill.parsers.timestamps import convert, type_name

__all__ = ["ABSENT", "Decoding", "DocumentReader", "Getter", "Unreadable"]

Getter = Callable[[dict[str, Any]], Any]


class _Absent:
    """Marks a field that a document does not have: null is a value."""


ABSENT = _Absent()


class Unreadable(Exception):
    """A message cannot be read, for a reason of its own kind."""

    def __init__(self, kind: Reason, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True)
class Decoding:
    """How one kind of document is decoded."""

    loads: Callable[[Any], Any]
    """Takes a message's bytes, or what a parser has made of them before."""
    refusals: tuple[type[Exception], ...]
    """What `loads` raises for bytes that are no document, besides `Unreadable`."""
    not_readable: Reason
    not_a_map: Reason
    other_id: Callable[[Any, bytes, Getter], str | None] | None = None
    """Makes text of a message id that is neither text nor a whole number; None if that cannot be an id.

    Takes what was decoded, the message, and what finds the field. Raises `ValueError` with a reason of its own.
    """


class DocumentReader:
    """Event times and message ids out of documents."""

    def __init__(self, event_time: EventTime, message_id: FieldPath | None, decoding: Decoding) -> None:
        self._decoding = decoding
        self._format = event_time.format
        self._time_path = ".".join(event_time.field)
        self._get_time = _getter(event_time.field)
        self._id_path = ".".join(message_id or ())
        self._get_id = None if message_id is None else _getter(message_id)

    def read(self, values: Sequence[Any]) -> Parsed:
        """`values`: what `Decoding.loads` takes. Never raises for what they hold."""
        rows, times, ids, errors = self._read_documents(values)
        event_time, faults = convert(times, self._format)
        for index, why in faults:
            errors[rows[index]] = why
        if not errors:
            return Parsed(event_time, pa.array(ids, pa.string()), pa.nulls(len(values), pa.string()))
        return _spread(len(values), rows, event_time, ids, errors)

    def _read_documents(self, values: Sequence[Any]) -> tuple[list[int], list[Any], list[str | None], dict[int, str]]:
        """The rows that are maps with an event time, those times, their ids, and the errors of all others."""
        rows: list[int] = []
        times: list[Any] = []
        ids: list[str | None] = []
        errors: dict[int, str] = {}
        loads, refusals = self._decoding.loads, self._decoding.refusals
        get_time, get_id = self._get_time, self._get_id
        for row, value in enumerate(values):
            try:
                document = loads(value)
            except Unreadable as error:
                errors[row] = reason(error.kind, str(error))
                continue
            except refusals as error:
                errors[row] = reason(self._decoding.not_readable, str(error))
                continue
            if type(document) is not dict:
                errors[row] = reason(self._decoding.not_a_map, f"found {type_name(document)}")
                continue
            time = get_time(document)
            if time is None or time is ABSENT:
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
        if found is ABSENT or self._get_id is None:
            return None
        if type(found) is int:
            return str(found)
        other_id = self._decoding.other_id
        text = None if other_id is None else other_id(found, value, self._get_id)
        if text is None:
            raise ValueError(reason(Reason.MESSAGE_ID_WRONG_TYPE, f"field {self._id_path} is {type_name(found)}"))
        return text


def _getter(path: FieldPath) -> Getter:
    """A function that looks a path up in a document; `ABSENT` where it does not lead anywhere."""
    if len(path) == 1:
        name = path[0]

        def get_field(document: dict[str, Any]) -> Any:
            return document.get(name, ABSENT)

        return get_field

    def get_path(document: Any) -> Any:
        for name in path:
            if type(document) is not dict:
                return ABSENT
            document = document.get(name, ABSENT)
        return document

    return get_path


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
