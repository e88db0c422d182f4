"""Shared by the parsers of documents (JSON, MessagePack, Avro, Protobuf): event time, id and columns by field path.

A compiled decoder reads the documents one by one; event times and typed columns are converted as a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from waybill.config.models import Column, ColumnKind, Columns, ColumnType, EventTime, FieldPath, WrongType
from waybill.parsers.column_values import convert_values, from_exact, may_be_rounded
from waybill.parsers.protocol import ColumnErrors, ColumnValueError, Parsed, Reason, column_error, reason
from waybill.parsers.timestamps import convert_times, type_name

Getter = Callable[[dict[str, Any]], Any]
"""Returns the value of one field of a document; `MISSING` if the document does not have it."""

_GATHERED_DOCUMENTS = 64
"""The documents that are kept until `gather` takes their values. Keeping 10,000 triples the time to decode them."""


class _Missing:
    """The type of `MISSING`."""


MISSING = _Missing()
"""The value of a field that a document does not have, which differs from null."""


class UnreadableMessage(Exception):
    """A message cannot be read. `kind` is the kind of the reason for quarantine, the text is its details."""

    def __init__(self, kind: Reason, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True)
class DocumentFormat:
    """How the documents of one format are decoded."""

    loads: Callable[[Any], Any]
    """Returns the document of a message's bytes, or of what the parser has prepared from them."""
    decode_errors: tuple[type[Exception], ...]
    """The errors that `loads` raises for bytes that are not a document, in addition to `UnreadableMessage`."""
    not_readable: Reason
    not_a_map: Reason
    other_id: Callable[[Any, bytes, Getter], str | None] | None = None
    """Converts a message id that is neither a text nor a whole number to text; None if it cannot be an id.

    Its arguments are the decoded id, the message, and the getter of the id's field. Raises `ValueError` with the reason
    for quarantine.
    """
    read_exactly: Callable[[Any], Any] | None = None
    """See `DocumentColumns`."""
    read_verbatim: Callable[[Any], Any] | None = None
    """See `DocumentColumns`."""
    base64_texts: bool = False
    """See `DocumentColumns`."""


class _Documents(NamedTuple):
    """The documents of a batch that are maps with an event time, and the errors of all others."""

    rows: list[int]
    columns: list[list[Any]]
    """The values of each typed column."""
    times: list[Any]
    ids: list[str | None]
    errors: dict[int, str]


class DocumentReader:
    """Reads event times, message ids and typed columns from documents."""

    def __init__(
        self,
        event_time: EventTime,
        message_id: FieldPath | None,
        decoding: DocumentFormat,
        columns: Mapping[str, Column] = MappingProxyType({}),
    ) -> None:
        self._document_format = decoding
        self._time_format = event_time.format
        self._time_field = event_time.field
        self._time_path = ".".join(event_time.field)
        self._get_time = _getter(event_time.field)
        self._id_path = ".".join(message_id or ())
        self._get_id = None if message_id is None else _getter(message_id)
        self._columns = DocumentColumns(
            dict(columns), decoding.read_exactly, decoding.base64_texts, decoding.read_verbatim
        )

    def read(self, values: Sequence[Any]) -> Parsed:
        """Parse messages; `values` are the arguments of `DocumentFormat.loads`. No content makes this method raise."""
        found = self._read_documents(values)
        rows, errors = found.rows, found.errors
        event_time, time_errors = convert_times(found.times, self._time_format)
        for index, text in time_errors:
            errors[rows[index]] = text
        columns = self._read_columns(found, values)
        for index, text in columns.errors.items():
            errors.setdefault(rows[index], text)
        ids = pa.array(found.ids, pa.string())
        if not errors:
            return Parsed(event_time, ids, pa.nulls(len(values), pa.string()), columns.arrays)
        return _scatter(
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
        loads, decode_errors = self._document_format.loads, self._document_format.decode_errors
        get_time, get_id = self._get_time, self._get_id
        for row, value in enumerate(values):
            try:
                document = loads(value)
            except UnreadableMessage as error:
                errors[row] = reason(error.kind, str(error))
                continue
            except decode_errors as error:
                errors[row] = reason(self._document_format.not_readable, str(error))
                continue
            if type(document) is not dict:
                errors[row] = reason(self._document_format.not_a_map, f"found {type_name(document)}")
                continue
            time = get_time(document)
            if time is None or time is MISSING:
                found = "is null" if time is None else f"is missing{_other_case(document, self._time_field)}"
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
                if len(documents) == _GATHERED_DOCUMENTS:
                    self._columns.gather(documents, columns)
                    documents.clear()
        self._columns.gather(documents, columns)
        return _Documents(rows, columns, times, ids, errors)

    def _other_id(self, found: Any, value: bytes) -> str | None:
        """Return as text a message id that is not a string. Raise `ValueError` with the reason if it is not an id."""
        if found is MISSING or self._get_id is None:
            return None
        if type(found) is int:
            return str(found)
        other_id = self._document_format.other_id
        text = None if other_id is None else other_id(found, value, self._get_id)
        if text is None:
            raise ValueError(reason(Reason.MESSAGE_ID_WRONG_TYPE, f"field {self._id_path} is {type_name(found)}"))
        return text


def _getter(path: FieldPath) -> Getter:
    """Return a function that returns the value at a path in a document; `MISSING` if there is no such field."""
    if len(path) == 1:
        name = path[0]

        def get_field(document: dict[str, Any]) -> Any:
            return document.get(name, MISSING)

        return get_field

    def get_path(document: Any) -> Any:
        for name in path:
            if type(document) is not dict:
                return MISSING
            document = document.get(name, MISSING)
        return document

    return get_path


def _other_case(document: Any, path: FieldPath) -> str:
    """Return a hint at a field whose name differs from the missing one only in case; '' if there is none."""
    for number, name in enumerate(path):
        if type(document) is not dict:
            break
        if name not in document:
            wanted = name.casefold()
            found = [each for each in document if type(each) is str and each.casefold() == wanted]
            return f"; there is a field `{'.'.join((*path[:number], found[0]))}`" if found else ""
        document = document[name]
    return ""


def _scatter(n: int, rows: list[int], parsed: Parsed, errors: dict[int, str]) -> Parsed:
    """Return `parsed`, whose messages are `rows`, as a result for all `n` messages, with the errors of the others."""
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


class ColumnsRead(NamedTuple):
    """The typed columns of a batch of documents."""

    arrays: Mapping[str, pa.Array]
    errors: dict[int, str]
    """The reasons for quarantine, by the index of the document."""


@dataclass(frozen=True)
class DocumentColumns:
    """Reads the typed columns of a stream from documents."""

    columns: Columns
    read_exactly: Callable[[Any], Any] | None = None
    """Decodes a message again, with numbers that have a fraction or an exponent as `Decimal`, for columns of numbers.

    Raises `ValueError` if it cannot. None if the decoder never rounds numbers.
    """
    base64_texts: bool = False
    """Whether a `binary` column reads texts as Base64, because the document format has no bytes."""
    read_verbatim: Callable[[Any], Any] | None = None
    """Decodes a message again, with each number as the producer wrote it, for columns of JSON.

    Raises `ValueError` if it cannot. None if the format has no digits of its own.
    """

    def gather(self, documents: Sequence[dict[str, Any]], into: Sequence[list[Any]]) -> None:
        """Append the values of each column in `documents` to the list of that column; None for a missing field."""
        for values, (name, column) in zip(into, self.columns.items(), strict=True):
            values += _values_at(column.path(name), documents)

    def read(self, gathered: Sequence[list[Any]], messages: Sequence[Any]) -> ColumnsRead:
        """Return the columns of the values that `gather` has collected from `messages`. No content makes this raise."""
        arrays: dict[str, pa.Array] = {}
        errors: dict[int, str] = {}
        for values, (name, column) in zip(gathered, self.columns.items(), strict=True):
            path = column.path(name)
            unreadable = self._read_again(column.type, path, values, messages)
            arrays[name], column_errors = convert_values(values, column, base64_texts=self.base64_texts)
            if column.wrong_type is WrongType.QUARANTINE:
                for index, detail in {**column_errors, **unreadable}.items():
                    errors.setdefault(index, column_error(path, detail))
        return ColumnsRead(arrays, errors)

    def _read_again(
        self, kind: ColumnType, path: FieldPath, values: list[Any], messages: Sequence[Any]
    ) -> ColumnErrors:
        """Replace rounded numbers by the producer's exact ones.

        Return the errors of numbers that cannot be read exactly.
        """
        errors: ColumnErrors = {}
        read = self.read_verbatim if kind.kind is ColumnKind.JSON else self.read_exactly
        if read is None:
            return errors
        for index, value in enumerate(values):
            if not may_be_rounded(value, kind):
                continue
            try:
                [exact] = _values_at(path, [read(messages[index])])
                values[index] = from_exact(exact, kind)
            except ColumnValueError as error:
                values[index], errors[index] = None, str(error)
            except ValueError as error:
                values[index], errors[index] = None, f" cannot be read exactly: {error}"
        return errors


def _values_at(path: FieldPath, documents: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the value at a path in each document; None if there is no such field."""
    values: list[Any] = list(documents)
    for name in path:
        values = [value.get(name) if type(value) is dict else None for value in values]
    return values
