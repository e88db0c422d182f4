"""Read messages of one writer's schema to documents.

The compiled walk checks every message and stores the fields to read. If it cannot store one of them (a value in a map,
or a field that is a record, an array or a map), fastavro reads whole messages. It gets only messages that the walk has
found valid to the last byte: it does not limit the nesting, so a bad message could end the process, and it reads a
negative index of a union as an index from the end (docs/decisions/0009).

Values of logical types are converted from their underlying type. Timestamps become times in UTC with microseconds;
`local-` timestamps, which have no zone, are read as UTC. Decimals become `Decimal`, dates and times of day Python's
types, UUIDs text. A value that the Python type cannot hold is not converted, except a timestamp, which becomes an
`OutOfRangeTime`. As Avro's specification requires, a logical type that is unknown, or not valid for its type, is
ignored.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import fastavro
import numpy as np
from fastavro.read import LOGICAL_READERS

from waybill.config.models.avro_schemas import AvroSchema
from waybill.config.models.schema_parsers import AvroLimits
from waybill.parsers.avro import _kernels as kernels
from waybill.parsers.avro._kernels import AvroFault, AvroKind
from waybill.parsers.avro.program import Node, Path, compile_schema
from waybill.parsers.confluent_framing import MessageBuffer
from waybill.parsers.documents import UnreadableMessage
from waybill.parsers.protocol import Reason
from waybill.parsers.timestamps import OutOfRangeTime
from waybill.records.batches._kernels import Array

LogicalReader = Callable[[Any], Any]
"""Converts a value of the underlying type."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_MAX_PRECISION = 1_000


def logical_reader(schema: Any) -> LogicalReader | None:
    """Return the function that converts the values of a schema; None if they are not converted."""
    if not isinstance(schema, dict) or not isinstance(schema.get("logicalType"), str):
        return None
    if schema["logicalType"] == "decimal":
        return _decimal(schema)
    if schema["logicalType"] == "uuid" and schema["type"] == "fixed" and schema.get("size") == 16:
        return _uuid
    return _READERS.get((schema["type"], schema["logicalType"]))


def _timestamp(numerator: int, denominator: int) -> LogicalReader:
    def read(value: int) -> datetime | OutOfRangeTime:
        try:
            return _EPOCH + timedelta(microseconds=value * numerator // denominator)
        except OverflowError:
            return OutOfRangeTime(f"{value * numerator // denominator} microseconds since 1970")

    return read


def _date(value: int) -> date | int:
    try:
        return date.fromordinal(_EPOCH_ORDINAL + value)
    except (ValueError, OverflowError):
        return value


def _time(per_second: int) -> LogicalReader:
    def read(value: int) -> time | int:
        seconds, part = divmod(value, per_second)
        if not 0 <= seconds < 86_400:
            return value
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, part * 1_000_000 // per_second)

    return read


def _decimal(schema: dict[str, Any]) -> LogicalReader | None:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema["type"] not in ("bytes", "fixed") or type(precision) is not int or type(scale) is not int:
        return None
    if not 0 <= scale <= precision <= _MAX_PRECISION or precision == 0:
        return None
    if schema["type"] == "fixed" and precision > _digits_of(schema["size"]):
        return None

    limit, context = int(10**precision), Context(prec=precision)

    def read(value: bytes) -> Decimal | bytes:
        number = int.from_bytes(value, "big", signed=True)
        return Decimal(number).scaleb(-scale, context) if abs(number) < limit else value

    return read


def _digits_of(size_bytes: int) -> int:
    """Return how many decimal digits a number of that many bytes can always hold."""
    if size_bytes * 2 > _MAX_PRECISION:
        return _MAX_PRECISION
    return len(str(2 ** (8 * size_bytes - 1) - 1)) - 1 if size_bytes > 0 else 0


def _uuid(value: bytes) -> str:
    return str(uuid.UUID(bytes=value))


_READERS: dict[tuple[str, str], LogicalReader] = {
    ("int", "date"): _date,
    ("int", "time-millis"): _time(1_000),
    ("long", "time-micros"): _time(1_000_000),
}
for _prefix in ("", "local-"):
    _READERS["long", f"{_prefix}timestamp-millis"] = _timestamp(1_000, 1)
    _READERS["long", f"{_prefix}timestamp-micros"] = _timestamp(1, 1)
    _READERS["long", f"{_prefix}timestamp-nanos"] = _timestamp(1, 1_000)


Document = dict[str, Any] | UnreadableMessage

_FAULT_TEXTS = {
    AvroFault.TRUNCATED: "the message ends in the middle of",
    AvroFault.NUMBER: "a number has too many bits in",
    AvroFault.BOOLEAN: "neither 0 nor 1 is",
    AvroFault.LENGTH: "a negative length is announced for",
    AvroFault.UTF8: "bytes that are not UTF-8 are in",
    AvroFault.ENUM: "there is no such symbol of",
    AvroFault.UNION: "there is no such branch of",
    AvroFault.COUNT: "more items than the message can hold are announced for",
    AvroFault.DEPTH: "more than {} levels are nested in",
    AvroFault.TRAILING: "bytes are left after",
    AvroFault.STEPS: "more than {} steps for each byte lead to",
    AvroFault.EMPTY_ITEMS: "more than {} items without bytes are announced for",
}
_LIMITS = {
    AvroFault.DEPTH: "max_depth",
    AvroFault.STEPS: "max_steps_per_byte",
    AvroFault.EMPTY_ITEMS: "max_empty_items",
}
"""The keys in the config whose limits a message may exceed."""


class SchemaReader:
    """Reads the messages that were written by one schema."""

    def __init__(self, schema: AvroSchema, paths: Sequence[Path], limits: AvroLimits | None = None) -> None:
        """`paths`: the fields that documents must have. They may have more.

        Raises `ValueError` for a schema that is too large, see `compile_schema`.
        """
        self._limits = limits or AvroLimits()
        self._program = compile_schema(schema, paths)
        self._setters = [_field_setter(path) for path in self._program.paths]
        self._value_readers = {
            number: _value_reader(node) for number, node in enumerate(self._program.nodes) if node.slot >= 0
        }
        self._read_by_fastavro = _fastavro_reader(schema) if self._program.needs_fastavro else None

    def read(self, values: MessageBuffer) -> list[Document]:
        """Return for each message a document, or the error of a message that is not valid."""
        program = self._program
        data, starts, ends = values
        found = np.empty((kernels.FOUND_ROWS, len(program.paths), len(starts)), np.int64)
        faults = np.empty((len(starts), kernels.FAULT_COLUMNS), np.int64)
        allowed = self._limits
        limits = np.array([allowed.max_depth, allowed.max_steps_per_byte, allowed.max_empty_items], np.int64)
        kernels.walk(data, starts, ends, program.table, program.children, limits, found, faults)
        documents: list[Document]
        if self._read_by_fastavro is None:
            documents = self._documents(data, found)
        else:
            documents = [
                {} if faults[row, kernels.FAULT] else self._whole_document(data[starts[row] : ends[row]].tobytes())
                for row in range(len(starts))
            ]
        for row in np.flatnonzero(faults[:, kernels.FAULT]):
            documents[row] = self._error(faults[row], starts[row])
        return documents

    def _error(self, fault: Array, start: int) -> UnreadableMessage:
        kind = AvroFault(fault[kernels.FAULT])
        label = self._program.nodes[fault[kernels.AT_NODE]].label
        where = f"{f'field {label}' if label else 'the message'}, byte {fault[kernels.AT_BYTE] - start} of the datum"
        if kind not in _LIMITS:
            return UnreadableMessage(Reason.NOT_AVRO, f"{_FAULT_TEXTS[kind]} {where}")
        key = _LIMITS[kind]
        text = _FAULT_TEXTS[kind].format(f"{getattr(self._limits, key):,}")
        return UnreadableMessage(Reason.NOT_AVRO, f"{text} {where}: see parser.limits.{key}")

    def _whole_document(self, value: bytes) -> Document:
        assert self._read_by_fastavro is not None
        document = self._read_by_fastavro(value)
        return document if isinstance(document, dict) else {}

    def _documents(self, data: Array, found: Array) -> list[Document]:
        documents: list[Document] = [{} for _ in range(found.shape[2])]
        for slot, set_field in enumerate(self._setters):
            rows, values = self._slot_values(data, found[:, slot])
            set_field(documents, rows, values)
        return documents

    def _slot_values(self, data: Array, found: Array) -> tuple[Sequence[int], list[Any]]:
        """Return the rows of messages that have the field, and its values."""
        nodes = found[kernels.NODE]
        rows: list[int] = []
        values: list[Any] = []
        for number in np.unique(nodes):
            if number < 0:
                continue
            at = np.flatnonzero(nodes == number)
            rows.extend(at.tolist())
            values.extend(self._value_readers[number](data, found[kernels.VALUE, at], found[kernels.LENGTH, at]))
        return rows, values


def _field_setter(path: Path) -> Callable[[list[Document], Sequence[int], list[Any]], None]:
    """Return the function that sets a field of documents to values."""
    *above, name = path

    def set_field(documents: list[Document], rows: Sequence[int], values: list[Any]) -> None:
        for row, value in zip(rows, values, strict=True):
            parent: Any = documents[row]
            for key in above:
                parent = parent.setdefault(key, {})
            parent[name] = value

    return set_field


# --- values that the walk has noted -----------------------------------------------------------------------------------

_ValueReader = Callable[[Array, Array, Array], list[Any]]
"""Returns the values of a field, from the bytes of a batch, and the values and lengths that the walk has stored."""


def _value_reader(node: Node) -> _ValueReader:
    plain = _plain_reader(node)
    logical = logical_reader(node.schema)
    if logical is None:
        return plain

    def read(data: Array, values: Array, lengths: Array) -> list[Any]:
        return list(map(logical, plain(data, values, lengths)))

    return read


def _plain_reader(node: Node) -> _ValueReader:
    if node.kind in (AvroKind.BYTES, AvroKind.FIXED):
        return _bytes
    if node.kind is AvroKind.ENUM:
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


_PLAIN: dict[AvroKind, _ValueReader] = {
    AvroKind.NULL: lambda _, values, __: [None] * len(values),
    AvroKind.BOOLEAN: lambda _, values, __: values.astype(np.bool_).tolist(),
    AvroKind.FLOAT: lambda _, values, __: values.astype(np.uint32).view(np.float32).tolist(),
    AvroKind.DOUBLE: lambda _, values, __: values.view(np.float64).tolist(),
    AvroKind.STRING: _texts,
}


# --- whole messages by fastavro ---------------------------------------------------------------------------------------


def _fastavro_reader(schema: AvroSchema) -> Callable[[bytes], Any]:
    """Return the function that reads a valid message of a schema."""
    copies = {name: _fastavro_type(definition) for name, definition in schema.named.items()}
    marked = _marked(_fastavro_type(schema.root), copies)

    def read(value: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(value), marked, None)

    return read


def _marked(schema: Any, copies: Mapping[str, Any]) -> Any:
    """Return a schema with the marks of one that fastavro has parsed, so that it does not parse and refuse it.

    fastavro would refuse symbols that Avro forbids. With the marks it takes named types from the schema.
    """
    if isinstance(schema, list):
        return [_marked(branch, copies) for branch in schema]
    if isinstance(schema, str) and schema not in copies:
        return schema
    definition = copies[schema] if isinstance(schema, str) else schema
    return {**definition, "__fastavro_parsed": True, "__named_schemas": copies}


def _fastavro_type(schema: Any) -> Any:
    """Return the copy of a type with Waybill's readers of logical types. Named types in it stay names.

    fastavro's own readers raise for times beyond the years of a `datetime`, and do not know nanoseconds.
    """
    if isinstance(schema, list):
        return [_fastavro_type(branch) for branch in schema]
    if isinstance(schema, str):
        return schema
    copy = {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
    for key in ("items", "values"):
        if key in copy:
            copy[key] = _fastavro_type(copy[key])
    if "fields" in schema:
        copy["fields"] = [{"name": field["name"], "type": _fastavro_type(field["type"])} for field in schema["fields"]]
    reader = logical_reader(schema)
    if reader is not None:
        copy["logicalType"] = _register(schema, reader)
    return copy


def _register(schema: dict[str, Any], reader: LogicalReader) -> str:
    """Register a reader of a logical type with fastavro, and return the name of the logical type there."""
    parameters = [str(schema[key]) for key in ("precision", "scale") if key in schema]
    name = "-".join(["waybill", schema["logicalType"], *parameters])
    LOGICAL_READERS[f"{schema['type']}-{name}"] = lambda value, *_: reader(value)
    return name
