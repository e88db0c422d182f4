"""The fields that a stream names, out of JSON messages, without making an object of each: by msgspec.

msgspec checks a whole document, but makes values of the fields that its type names only. That takes half the time of
orjson and a dictionary. What it refuses is handed back, for orjson to read or to say what is wrong with it; what it
takes and orjson does not is looked for here, so that the same messages are read, with the same result:

- bytes that are not UTF-8, in a field that is not read: Arrow checks the whole batch;
- a number in such a field that no float holds, such as 1e400 (`_kernels.mark_huge_numbers`);
- nesting beyond orjson's limit of 1,024 levels, if Python's own is higher. Below that msgspec may refuse, and orjson
  then reads.

A typed column's field is read as what JSON has for its type, and converted by the same code; a message in which it is
anything else is orjson's. So are all messages of a stream that has a column of lists, objects, bytes or decimals.
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

from waybill.config import Column, ColumnKind, EventTime, EventTimeFormat, FieldPath
from waybill.parsers._kernels import mark_huge_numbers
from waybill.parsers.documents import DocumentColumns
from waybill.parsers.protocol import Parsed
from waybill.parsers.timestamps import convert

__all__ = ["NamedFieldReader", "Rows"]

Rows: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""Places of messages in a batch."""

_REFUSALS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_DEEP = 1000  # brackets, of which more might be nested beyond orjson's limit
_USUAL_IDS = {str, type(None)}
# orjson makes a float of an integer beyond 64 bits; that and its consequences are left to orjson.
_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Tree = dict[str, Any]
_Kinds = frozenset[type]
_NUMBER_OR_TEXT: _Kinds = frozenset({int, float, str})
_COLUMN_KINDS: dict[ColumnKind, _Kinds] = {
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
    """Reads event time, message id and columns. Make it with `of`."""

    def __init__(
        self, event_time: EventTime, message_id: FieldPath | None, columns: Mapping[str, Column], tree: _Tree
    ) -> None:
        document, _ = _struct(tree)
        self._format = event_time.format
        self._decode = msgspec.json.Decoder(document).decode
        self._time = _getter(tree, event_time.field)
        self._id = _nothing if message_id is None else _getter(tree, message_id)
        self._columns = DocumentColumns(dict(columns), base64_texts=True)
        self._values = [_getter(tree, column.path(name)) for name, column in columns.items()]

    @classmethod
    def of(
        cls,
        event_time: EventTime,
        message_id: FieldPath | None,
        columns: Mapping[str, Column] = MappingProxyType({}),
    ) -> NamedFieldReader | None:
        """None if the fields cannot be those of one type: one lies within another, has a name in quotes, or is read as
        what msgspec would not give as orjson does.
        """
        is_text = event_time.format is EventTimeFormat.ISO8601
        tree: _Tree = {}
        try:
            _plant(tree, event_time.field, frozenset({str}) if is_text else _NUMBER_OR_TEXT)
            if message_id is not None:
                _plant(tree, message_id, frozenset({str, int, _NULL}))
            for name, column in columns.items():
                _plant(tree, column.path(name), _kinds_of(column))
            return cls(event_time, message_id, columns, tree)
        except (_NotOneType, ValueError):  # ValueError: msgspec does not take the name
            return None

    def read(self, values: pa.Array) -> tuple[Parsed, Rows]:
        """What was read, and which messages that was; for the others something is out of the ordinary.

        `values`: binary, none null.
        """
        documents, rows = self._documents(values)
        times, ids = list(map(self._time, documents)), list(map(self._id, documents))
        if "" in ids or not set(map(type, ids)) <= _USUAL_IDS:
            ids = [str(found) if type(found) is int else found or None for found in ids]
        event_time, faults = convert(times, self._format)
        reasons = dict(faults)
        columns = self._columns.read([list(map(get, documents)) for get in self._values], ())
        reasons = {**columns.errors, **reasons}
        n = len(times)
        error = pa.array(map(reasons.get, range(n)), pa.string()) if reasons else pa.nulls(n, pa.string())
        return Parsed(event_time, pa.array(ids, pa.string()), error, columns.arrays), rows

    def _documents(self, values: pa.Array) -> tuple[list[Any], Rows]:
        data, bounds = _content(values)
        odd = _odd(values, data, bounds)
        content, decode = data.tobytes(), self._decode
        spans = list(pairwise(bounds.tolist()))
        if not odd:
            try:
                return [decode(content[start:end]) for start, end in spans], np.arange(len(values))
            except _REFUSALS:
                pass
        documents, rows = [], []
        for row, (start, end) in enumerate(spans):
            if row in odd:
                continue
            try:
                documents.append(decode(content[start:end]))
            except _REFUSALS:
                continue
            rows.append(row)
        return documents, np.array(rows, np.int64)


class _NotOneType(Exception):
    """The fields cannot be read by one type."""


def _kinds_of(column: Column) -> _Kinds:
    if column.type.is_list or column.type.kind not in _COLUMN_KINDS:
        raise _NotOneType
    return _COLUMN_KINDS[column.type.kind] | {_NULL}


def _plant(tree: _Tree, path: Sequence[str], kinds: _Kinds) -> None:
    """Put a field into the tree of names. One that is there already is read as what fits both."""
    *outer, name = path
    for step in outer:
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):
            raise _NotOneType
    found = tree.get(name, kinds)
    if isinstance(found, dict) or not (found & kinds) - {_NULL}:
        raise _NotOneType
    tree[name] = found & kinds


def _struct(tree: _Tree) -> tuple[Any, bool]:
    """The type that reads a tree, and whether it can do without all of its fields."""
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


def _nothing(_: Any) -> None:
    """The id of a message where there are none."""


def _getter(tree: _Tree, path: Sequence[str]) -> Callable[[Any], Any]:
    """What finds a field in a document. An object on the way that is missing or null gives None."""
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


def _content(values: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The bytes of all values one behind the other, and where each begins (one more: where the last ends)."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    found = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return found[bounds[0] : bounds[-1]], bounds - bounds[0]


def _odd(values: pa.Array, data: np.ndarray[Any, Any], bounds: np.ndarray[Any, Any]) -> set[int]:
    """The messages that msgspec might take for good, and orjson does not."""
    marks = np.zeros(len(values), np.bool_)
    mark_huge_numbers(data, bounds, marks)
    found = set(np.flatnonzero(marks).tolist())
    for row in np.flatnonzero(np.diff(bounds) > 2 * _DEEP).tolist():
        value = data[bounds[row] : bounds[row + 1]].tobytes()
        if value.count(b"[") + value.count(b"{") > _DEEP:
            found.add(row)
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:  # one of them is not UTF-8; which one, Arrow does not say
        found.update(row for row, value in enumerate(values.to_pylist()) if not _is_utf8(value))
    return found


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
