"""Messages of one writer's schema to documents: what is wanted of them, or all of it where the walk cannot note it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from waybill.config.schemas import AvroSchema
from waybill.parsers.avro import _kernels as kernels
from waybill.parsers.avro._kernels import Fault, Kind
from waybill.parsers.avro.program import Node, Path, compile_schema, logical_reader
from waybill.parsers.avro.whole import whole_reader
from waybill.parsers.confluent_framing import Values
from waybill.parsers.documents import Unreadable
from waybill.parsers.protocol import Reason
from waybill.records._kernels import Array

__all__ = ["Document", "SchemaReader"]

Document = dict[str, Any] | Unreadable

_FAULTS = {
    Fault.TRUNCATED: "the message ends in the middle of",
    Fault.NUMBER: "a number has too many bits in",
    Fault.BOOLEAN: "neither 0 nor 1 is",
    Fault.LENGTH: "a negative length is announced for",
    Fault.UTF8: "bytes that are not UTF-8 are in",
    Fault.ENUM: "there is no such symbol of",
    Fault.UNION: "there is no such branch of",
    Fault.COUNT: "more items than the message can hold are announced for",
    Fault.DEPTH: f"more than {kernels.MAX_DEPTH} levels are nested in",
    Fault.TRAILING: "bytes are left after",
}


class SchemaReader:
    """Reads the messages that were written by one schema."""

    def __init__(self, schema: AvroSchema, wanted: Sequence[Path]) -> None:
        """`wanted`: the paths of the fields that documents must have. They may have more."""
        self._program = compile_schema(schema.parsed, schema.named, wanted)
        self._columns = [_columns_of(path) for path in self._program.paths]
        self._values = {number: _value_reader(node) for number, node in enumerate(self._program.nodes)}
        self._whole = whole_reader(schema.parsed, schema.named) if self._program.whole else None

    def read(self, values: Values) -> list[Document]:
        """A document for each message, or why there is none."""
        program = self._program
        data, starts, ends = values
        found = np.empty((kernels.FOUND_ROWS, len(program.paths), len(starts)), np.int64)
        faults = np.empty((len(starts), kernels.FAULT_COLUMNS), np.int64)
        kernels.walk(data, starts, ends, program.table, program.children, found, faults)
        documents: list[Document]
        if self._whole is None:
            documents = self._documents(data, found)
        else:
            documents = [
                {} if faults[row, kernels.FAULT] else self._read_whole(data[starts[row] : ends[row]].tobytes())
                for row in range(len(starts))
            ]
        for row in np.flatnonzero(faults[:, kernels.FAULT]):
            documents[row] = self._unreadable(faults[row], starts[row])
        return documents

    def _unreadable(self, fault: Array, start: int) -> Unreadable:
        what = _FAULTS[Fault(fault[kernels.FAULT])]
        label = self._program.nodes[fault[kernels.AT_NODE]].label
        where = f"field {label}" if label else "the message"
        return Unreadable(Reason.NOT_AVRO, f"{what} {where}, byte {fault[kernels.AT_BYTE] - start} of the datum")

    def _read_whole(self, value: bytes) -> Document:
        assert self._whole is not None
        document = self._whole(value)
        return document if isinstance(document, dict) else {}

    def _documents(self, data: Array, found: Array) -> list[Document]:
        documents: list[Document] = [{} for _ in range(found.shape[2])]
        for slot, put in enumerate(self._columns):
            rows, values = self._slot_values(data, found[:, slot])
            put(documents, rows, values)
        return documents

    def _slot_values(self, data: Array, found: Array) -> tuple[Sequence[int], list[Any]]:
        """The rows that have a field, and its values."""
        nodes = found[kernels.NODE]
        rows: list[int] = []
        values: list[Any] = []
        for number in np.unique(nodes):
            if number < 0:
                continue
            at = np.flatnonzero(nodes == number)
            rows.extend(at.tolist())
            values.extend(self._values[number](data, found[kernels.VALUE, at], found[kernels.LENGTH, at]))
        return rows, values


def _columns_of(path: Path) -> Callable[[list[Document], Sequence[int], list[Any]], None]:
    """A function that puts the values of a field into documents."""
    *above, name = path

    def put(documents: list[Document], rows: Sequence[int], values: list[Any]) -> None:
        for row, value in zip(rows, values, strict=True):
            place: Any = documents[row]
            for key in above:
                place = place.setdefault(key, {})
            place[name] = value

    return put


_Values = Callable[[Array, Array, Array], list[Any]]
"""From the bytes of a batch, and the values and lengths that the walk has noted, to the values of a field."""


def _value_reader(node: Node) -> _Values:
    plain = _plain_reader(node)
    logical = logical_reader(node.schema)
    if logical is None:
        return plain

    def read(data: Array, values: Array, lengths: Array) -> list[Any]:
        return list(map(logical, plain(data, values, lengths)))

    return read


def _plain_reader(node: Node) -> _Values:
    if node.kind in (Kind.BYTES, Kind.FIXED):
        return _bytes
    if node.kind is Kind.ENUM:
        symbols = node.schema["symbols"]
        return lambda _, values, __: [symbols[value] for value in values.tolist()]
    return _PLAIN.get(node.kind, lambda _, values, __: values.tolist())


def _bytes(data: Array, values: Array, lengths: Array) -> list[Any]:
    spans = zip(values.tolist(), lengths.tolist(), strict=True)
    view: Any = data.data
    return [bytes(view[start : start + length]) for start, length in spans]


def _texts(data: Array, values: Array, lengths: Array) -> list[Any]:
    spans = zip(values.tolist(), lengths.tolist(), strict=True)
    view: Any = data.data
    return [str(view[start : start + length], "utf-8") for start, length in spans]


_PLAIN: dict[Kind, _Values] = {
    Kind.NULL: lambda _, values, __: [None] * len(values),
    Kind.BOOLEAN: lambda _, values, __: values.astype(np.bool_).tolist(),
    Kind.FLOAT: lambda _, values, __: values.astype(np.uint32).view(np.float32).tolist(),
    Kind.DOUBLE: lambda _, values, __: values.view(np.float64).tolist(),
    Kind.STRING: _texts,
}
