"""Typed columns out of documents: the fields by path, an array for each column, and an error where one does not fit.

What parsers of self-describing documents (JSON, MessagePack) share: fields by path, and an error for each document.

A document is read by a compiled decoder, one at a time; event times and typed columns are converted by the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from waybill.config import Column, ColumnKind, Columns, EventTime, FieldPath, WrongType
from waybill.parsers.column_values import convert_values, is_float
from waybill.parsers.protocol import Faults, Parsed, Reason, column_fault, reason
from waybill.parsers.timestamps import convert, type_name

__all__ = ["ABSENT", "ColumnsRead", "Decoding", "DocumentColumns", "DocumentReader", "Getter", "Unreadable"]


class ColumnsRead(NamedTuple):
    """What a batch of documents holds for the columns."""

    arrays: Mapping[str, pa.Array]
    errors: dict[int, str]
    """The reason for quarantine of each document that has one, by its place."""


@dataclass(frozen=True)
class DocumentColumns:
    """Reads the columns of a stream."""

    columns: Columns
    read_exactly: Callable[[Any], Any] | None = None
    """Decodes a message once more, numbers with a fraction as `Decimal`. None: no float is less than what was written.

    Raises `ValueError` when that cannot be done.
    """
    base64_texts: bool = False
    """Whether the documents have no bytes, so that a `binary` column takes a text for Base64."""

    def gather(self, documents: Sequence[dict[str, Any]], into: Sequence[list[Any]]) -> None:
        """Add the values that `documents` hold for each column, None where there is none, to the list for it."""
        for values, (name, column) in zip(into, self.columns.items(), strict=True):
            values += _values_at(column.path(name), documents)

    def read(self, gathered: Sequence[list[Any]], messages: Sequence[Any]) -> ColumnsRead:
        """The columns, from the values that were gathered of all `messages`. Never raises for what they hold."""
        arrays: dict[str, pa.Array] = {}
        errors: dict[int, str] = {}
        for values, (name, column) in zip(gathered, self.columns.items(), strict=True):
            path = column.path(name)
            unread = self._read_exactly(path, values, messages) if column.type.kind is ColumnKind.DECIMAL else {}
            arrays[name], faults = convert_values(values, column, base64_texts=self.base64_texts)
            if column.wrong_type is WrongType.QUARANTINE:
                for place, what in {**faults, **unread}.items():
                    errors.setdefault(place, column_fault(path, what))
        return ColumnsRead(arrays, errors)

    def _read_exactly(self, path: FieldPath, values: list[Any], messages: Sequence[Any]) -> Faults:
        """Replace floats by the numbers that were written."""
        faults: Faults = {}
        if self.read_exactly is None:
            return faults
        for place, value in enumerate(values):
            if is_float(value):
                try:
                    [values[place]] = _values_at(path, [self.read_exactly(messages[place])])
                except ValueError as error:
                    values[place] = None
                    faults[place] = f" cannot be read exactly: {error}"
        return faults


def _values_at(path: FieldPath, documents: Sequence[dict[str, Any]]) -> list[Any]:
    """The values that a path leads to; None where it leads nowhere."""
    values: list[Any] = list(documents)
    for name in path:
        values = [value.get(name) if type(value) is dict else None for value in values]
    return values


Getter = Callable[[dict[str, Any]], Any]


class _Absent:
    """Marks a field that a document does not have: null is a value."""


ABSENT = _Absent()


_GATHERED = 64
"""Documents that are kept until the columns' values are taken: ten thousand would take three times as long to make."""


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
    read_exactly: Callable[[Any], Any] | None = None
    """See `DocumentColumns`."""
    base64_texts: bool = False
    """See `DocumentColumns`."""


class _Documents(NamedTuple):
    """Those of a batch that are maps with an event time, and the errors of all others, by row."""

    rows: list[int]
    columns: list[list[Any]]
    """The values for each of the typed columns."""
    times: list[Any]
    ids: list[str | None]
    errors: dict[int, str]


class DocumentReader:
    """Event times, message ids and typed columns out of documents."""

    def __init__(
        self,
        event_time: EventTime,
        message_id: FieldPath | None,
        decoding: Decoding,
        columns: Mapping[str, Column] = MappingProxyType({}),
    ) -> None:
        self._decoding = decoding
        self._format = event_time.format
        self._time_path = ".".join(event_time.field)
        self._get_time = _getter(event_time.field)
        self._id_path = ".".join(message_id or ())
        self._get_id = None if message_id is None else _getter(message_id)
        self._columns = DocumentColumns(dict(columns), decoding.read_exactly, decoding.base64_texts)

    def read(self, values: Sequence[Any]) -> Parsed:
        """`values`: what `Decoding.loads` takes. Never raises for what they hold."""
        found = self._read_documents(values)
        rows, errors = found.rows, found.errors
        event_time, faults = convert(found.times, self._format)
        for index, why in faults:
            errors[rows[index]] = why
        columns = self._read_columns(found, values)
        for index, why in columns.errors.items():
            errors.setdefault(rows[index], why)
        ids = pa.array(found.ids, pa.string())
        if not errors:
            return Parsed(event_time, ids, pa.nulls(len(values), pa.string()), columns.arrays)
        return _spread(
            len(values), rows, Parsed(event_time, ids, pa.nulls(len(rows), pa.string()), columns.arrays), errors
        )

    def _read_columns(self, found: _Documents, values: Sequence[Any]) -> ColumnsRead:
        messages = values if len(found.rows) == len(values) else [values[row] for row in found.rows]
        return self._columns.read(found.columns, messages)

    def _read_documents(self, values: Sequence[Any]) -> _Documents:
        rows: list[int] = []
        columns: list[list[Any]] = [[] for _ in self._columns.columns]
        documents: list[dict[str, Any]] = []
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
            if columns:
                documents.append(document)
                if len(documents) == _GATHERED:
                    self._columns.gather(documents, columns)
                    documents.clear()
        self._columns.gather(documents, columns)
        return _Documents(rows, columns, times, ids, errors)

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


def _spread(n: int, rows: list[int], parsed: Parsed, errors: dict[int, str]) -> Parsed:
    """Put what was read back to where it was, among the rows with errors."""
    positions: list[int | None] = [None] * n
    for position, row in enumerate(rows):
        positions[row] = position
    indices = pa.array(positions, pa.int32())
    return Parsed(
        parsed.event_time.take(indices),
        parsed.message_id.take(indices),
        pa.array([errors.get(row) for row in range(n)], pa.string()),
        {name: column.take(indices) for name, column in parsed.columns.items()},
    )
