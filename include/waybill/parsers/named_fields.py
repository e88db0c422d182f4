"""Read the configured fields of JSON messages by msgspec, without a dictionary for each message.

msgspec checks the whole document, but creates values only for the fields of its type. This takes half the time of
orjson with dictionaries. The results must be those of orjson, so messages that msgspec refuses are left to orjson, and
so are the messages that msgspec accepts and orjson refuses. This module finds the latter:

- bytes that are not UTF-8 in a field that is not read: Arrow checks the whole batch;
- a number in such a field that is too large for a float, such as 1e400 (`_kernels.mark_huge_numbers`);
- nesting beyond orjson's limit of 1,024 levels, if Python's own limit is higher.

The field of a typed column is read as the JSON type of the column, and converted by the same code as in `documents`. A
message with another type there is left to orjson. So are all messages of a stream with a column of lists, JSON, bytes
or decimals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import attrgetter, or_
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from waybill.config.models import Column, ColumnKind, EventTime, EventTimeFormat, FieldPath
from waybill.parsers._kernels import mark_huge_numbers
from waybill.parsers.documents import DocumentColumns
from waybill.parsers.protocol import Parsed
from waybill.parsers.timestamps import convert_times

Rows: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""Indices of messages in a batch."""

_REFUSALS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_MAX_BRACKETS = 1000  # messages with more brackets may be nested beyond orjson's limit
_PLAIN_ID_TYPES = {str, type(None)}
# orjson reads an integer beyond 64 bits as a float, so such messages are left to orjson.
_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Tree = dict[str, Any]
_JsonTypes = frozenset[type]
_NUMBER_OR_TEXT: _JsonTypes = frozenset({int, float, str})
_COLUMN_TYPES: dict[ColumnKind, _JsonTypes] = {
    ColumnKind.BOOLEAN: frozenset({bool}),
    ColumnKind.INT: frozenset({int}),
    ColumnKind.LONG: frozenset({int}),
    ColumnKind.FLOAT: frozenset({int, float}),
    ColumnKind.DOUBLE: frozenset({int, float}),
    ColumnKind.STRING: frozenset({str}),
    ColumnKind.DATE: frozenset({str}),
    ColumnKind.TIMESTAMP: _NUMBER_OR_TEXT,
}
_NULL = type(None)
_TYPES: dict[type, Any] = {int: _Int64}


class NamedFieldReader:
    """Reads event time, message id and columns. Created by `for_fields`."""

    def __init__(
        self, event_time: EventTime, message_id: FieldPath | None, columns: Mapping[str, Column], tree: _Tree
    ) -> None:
        document, _ = _struct(tree)
        self._time_format = event_time.format
        self._decode = msgspec.json.Decoder(document).decode
        self._time = _getter(tree, event_time.field)
        self._id = _no_id if message_id is None else _getter(tree, message_id)
        self._columns = DocumentColumns(dict(columns), base64_texts=True)
        self._values = [_getter(tree, column.path(name)) for name, column in columns.items()]

    @classmethod
    def for_fields(
        cls,
        event_time: EventTime,
        message_id: FieldPath | None,
        columns: Mapping[str, Column] = MappingProxyType({}),
    ) -> NamedFieldReader | None:
        """Return a reader of the fields; None if msgspec cannot read all of them as orjson does.

        It cannot if one field contains another, if msgspec refuses the name of a field, or if the type of a column has
        no exact counterpart.
        """
        is_text = event_time.format is EventTimeFormat.ISO8601
        tree: _Tree = {}
        try:
            _add_field(tree, event_time.field, frozenset({str}) if is_text else _NUMBER_OR_TEXT)
            if message_id is not None:
                _add_field(tree, message_id, frozenset({str, int, _NULL}))
            for name, column in columns.items():
                _add_field(tree, column.path(name), _json_types(column))
            return cls(event_time, message_id, columns, tree)
        except (_NotOneType, ValueError):  # ValueError: msgspec does not take the name
            return None

    def read(self, values: pa.Array) -> tuple[Parsed, Rows]:
        """Return the parsed messages, and their rows. The other messages must be read by orjson.

        `values`: a binary array without nulls.
        """
        documents, rows = self._documents(values)
        times, ids = list(map(self._time, documents)), list(map(self._id, documents))
        if "" in ids or not set(map(type, ids)) <= _PLAIN_ID_TYPES:
            ids = [str(found) if type(found) is int else found or None for found in ids]
        event_time, errors = convert_times(times, self._time_format)
        reasons = dict(errors)
        columns = self._columns.read([list(map(get, documents)) for get in self._values], ())
        reasons = {**columns.errors, **reasons}
        n = len(times)
        error = pa.array(map(reasons.get, range(n)), pa.string()) if reasons else pa.nulls(n, pa.string())
        return Parsed(event_time, pa.array(ids, pa.string()), error, columns.arrays), rows

    def _documents(self, values: pa.Array) -> tuple[list[Any], Rows]:
        data, bounds = content_of(values)
        for_orjson = _rows_for_orjson(values, data, bounds)
        content, decode = data.tobytes(), self._decode
        spans = list(pairwise(bounds.tolist()))
        if not for_orjson:
            try:
                return [decode(content[start:end]) for start, end in spans], np.arange(len(values))
            except _REFUSALS:
                pass
        documents, rows = [], []
        for row, (start, end) in enumerate(spans):
            if row in for_orjson:
                continue
            try:
                documents.append(decode(content[start:end]))
            except _REFUSALS:
                continue
            rows.append(row)
        return documents, np.array(rows, np.int64)


class _NotOneType(Exception):
    """One msgspec type cannot read all fields."""


def _json_types(column: Column) -> _JsonTypes:
    if column.type.is_list or column.type.kind not in _COLUMN_TYPES:
        raise _NotOneType
    return _COLUMN_TYPES[column.type.kind] | {_NULL}


def _add_field(tree: _Tree, path: Sequence[str], types: _JsonTypes) -> None:
    """Add a field to the tree of names. A field that is added twice is read as the types that both uses accept."""
    *outer, name = path
    for step in outer:
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):
            raise _NotOneType
    known = tree.get(name, types)
    if isinstance(known, dict) or not (known & types) - {_NULL}:
        raise _NotOneType
    tree[name] = known & types


def _struct(tree: _Tree) -> tuple[Any, bool]:
    """Return the msgspec type of a tree, and whether all its fields are optional."""
    fields: list[tuple[str, Any, Any]] = []
    for number, found in enumerate(tree.values()):
        if isinstance(found, dict):
            inner, is_optional = _struct(found)
            kind, default = (inner | None, None) if is_optional else (inner, msgspec.NODEFAULT)
        else:
            kind = reduce(or_, (_TYPES.get(each, each) for each in sorted(found, key=str)))
            default = None if _NULL in found else msgspec.NODEFAULT
        fields.append((f"f{number}", kind, default))
    made = msgspec.defstruct(
        "Document",
        [(name, kind) if default is msgspec.NODEFAULT else (name, kind, default) for name, kind, default in fields],
        rename={name: written for (name, *_), written in zip(fields, tree, strict=True)},
        kw_only=True,
        gc=False,
    )
    return made, all(default is None for *_, default in fields)


def _no_id(_: Any) -> None:
    """Return no id, for a stream without message ids."""


def _getter(tree: _Tree, path: Sequence[str]) -> Callable[[Any], Any]:
    """Return the getter of a field. It returns None if an object on the path is missing or null."""
    names = []
    for step in path:
        names.append(f"f{list(tree).index(step)}")
        tree = tree[step]
    plain = attrgetter(".".join(names))
    if len(names) == 1:
        return plain

    def get(document: Any) -> Any:
        try:
            return plain(document)
        except AttributeError:
            return None

    return get


def content_of(values: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the concatenated bytes of all values, and the position of each; the last position is the end."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    found = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return found[bounds[0] : bounds[-1]], bounds - bounds[0]


def _rows_for_orjson(values: pa.Array, data: np.ndarray[Any, Any], bounds: np.ndarray[Any, Any]) -> set[int]:
    """Return the rows of messages that msgspec might accept and orjson refuses."""
    marks = np.zeros(len(values), np.bool_)
    mark_huge_numbers(data, bounds, marks)
    found = set(np.flatnonzero(marks).tolist())
    for row in np.flatnonzero(np.diff(bounds) > 2 * _MAX_BRACKETS).tolist():
        value = data[bounds[row] : bounds[row + 1]].tobytes()
        if value.count(b"[") + value.count(b"{") > _MAX_BRACKETS:
            found.add(row)
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:  # one value is not UTF-8, and Arrow does not report which one
        found.update(row for row, value in enumerate(values.to_pylist()) if not _is_utf8(value))
    return found


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
