"""What Avro's logical types make of a value: the same, whichever way a message is read.

Timestamps become moments in UTC (`local-` ones, which have no zone, as well), to the microsecond; decimals `Decimal`;
dates and times of day Python's own; UUIDs text. A value that its Python type cannot hold stays what the writer wrote,
but a timestamp becomes a `BeyondTime`. A logical type that is unknown or does not fit is passed over, as Avro asks for.

A writer's schema as the program that the compiled walk follows, with a slot for each field that is wanted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np

from waybill.parsers.avro import _kernels as kernels
from waybill.parsers.avro._kernels import Kind
from waybill.parsers.timestamps import BeyondTime

__all__ = ["Node", "Path", "Program", "Reader", "compile_schema", "logical_reader"]

Reader = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_MOST_DIGITS = 1_000


def logical_reader(schema: Any) -> Reader | None:
    """What turns a value of the underlying type into what it means; None where there is nothing to be done."""
    if not isinstance(schema, dict) or not isinstance(schema.get("logicalType"), str):
        return None
    if schema["logicalType"] == "decimal":
        return _decimal(schema)
    if schema["logicalType"] == "uuid" and schema["type"] == "fixed" and schema.get("size") == 16:
        return _uuid
    return _READERS.get((schema["type"], schema["logicalType"]))


def _timestamp(numerator: int, denominator: int) -> Reader:
    def read(value: int) -> datetime | BeyondTime:
        try:
            return _EPOCH + timedelta(microseconds=value * numerator // denominator)
        except OverflowError:
            return BeyondTime(f"{value * numerator // denominator} microseconds since 1970")

    return read


def _date(value: int) -> date | int:
    try:
        return date.fromordinal(_EPOCH_ORDINAL + value)
    except (ValueError, OverflowError):
        return value


def _time(per_second: int) -> Reader:
    def read(value: int) -> time | int:
        seconds, part = divmod(value, per_second)
        if not 0 <= seconds < 86_400:
            return value
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, part * 1_000_000 // per_second)

    return read


def _decimal(schema: dict[str, Any]) -> Reader | None:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema["type"] not in ("bytes", "fixed") or not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if not 0 <= scale <= precision <= _MOST_DIGITS or precision == 0:
        return None

    beyond, context = int(10**precision), Context(prec=precision)

    def read(value: bytes) -> Decimal | bytes:
        number = int.from_bytes(value, "big", signed=True)
        return Decimal(number).scaleb(-scale, context) if abs(number) < beyond else value

    return read


def _uuid(value: bytes) -> str:
    return str(uuid.UUID(bytes=value))


_READERS: dict[tuple[str, str], Reader] = {
    ("int", "date"): _date,
    ("int", "time-millis"): _time(1_000),
    ("long", "time-micros"): _time(1_000_000),
}
for _prefix in ("", "local-"):
    _READERS["long", f"{_prefix}timestamp-millis"] = _timestamp(1_000, 1)
    _READERS["long", f"{_prefix}timestamp-micros"] = _timestamp(1, 1)
    _READERS["long", f"{_prefix}timestamp-nanos"] = _timestamp(1, 1_000)


_SCALARS = {
    "null": Kind.NULL,
    "boolean": Kind.BOOLEAN,
    "int": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "bytes": Kind.BYTES,
    "string": Kind.STRING,
}
_LEAST_BYTES = {Kind.NULL: 0, Kind.FLOAT: 4, Kind.DOUBLE: 8}

Path = tuple[str, ...]


@dataclass(slots=True)
class Node:
    """One place of a schema."""

    kind: Kind
    schema: Any
    """As fastavro has parsed it."""
    label: str
    """How a reason calls it: the path of the first field that it is."""
    arg: int = 0
    children: tuple[int, ...] = ()
    least_bytes: int = 0
    slot: int = -1


@dataclass(frozen=True)
class Program:
    """What `kernels.walk` follows."""

    nodes: tuple[Node, ...]
    table: Any
    children: Any
    paths: tuple[Path, ...]
    """The path of each slot."""
    whole: bool
    """Whether a wanted field cannot be noted by the walk: what is in a map or is none of the plain types."""


def compile_schema(schema: Any, named: Mapping[str, Any], wanted: Sequence[Path]) -> Program:
    """The program of a schema that fastavro has parsed; `named` holds the named types that it refers to."""
    compiler = _Compiler(named)
    paths = tuple(dict.fromkeys(wanted))
    compiler.compile(schema, "", [(path, slot) for slot, path in enumerate(paths)])
    nodes = compiler.nodes
    table = np.zeros((kernels.NODE_ROWS, len(nodes)), np.int64)
    children: list[int] = []
    for number, node in enumerate(nodes):
        table[:, number] = (node.kind, node.arg, len(children), len(node.children), node.least_bytes, node.slot)
        children.extend(node.children)
    return Program(tuple(nodes), table, np.array([*children, 0], np.int64), paths, compiler.whole)


_Wanted = list[tuple[Path, int]]
"""What is still to be found below a node: the rest of the path, and the slot."""


class _Compiler:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self.nodes: list[Node] = []
        self.whole = False
        self._named = dict(named)
        self._shared: dict[str, int] = {}

    def compile(self, schema: Any, label: str, wanted: _Wanted) -> int:
        """The number of the node for `schema`. A named type has one node, but for those that lead to a wanted field."""
        if isinstance(schema, str) and schema not in _SCALARS:
            if not wanted and schema in self._shared:
                return self._shared[schema]
            schema = self._named[schema]
        if isinstance(schema, list):
            return self._union(schema, label, wanted)
        kind_name = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind_name, str) or (kind_name not in _SCALARS and kind_name not in _COMPLEX):
            return self.compile(kind_name, label, wanted)  # {"type": {"type": …}}
        if isinstance(schema, dict) and "name" in schema:
            self._named[schema["name"]] = schema
        if kind_name in _SCALARS:
            return self._leaf(_SCALARS[kind_name], schema, label, wanted)
        return int(_COMPLEX[kind_name](self, schema, label, wanted))

    def _add(self, kind: Kind, schema: Any, label: str, **more: Any) -> int:
        self.nodes.append(Node(kind, schema, label, **more))
        return len(self.nodes) - 1

    def _leaf(self, kind: Kind, schema: Any, label: str, wanted: _Wanted, arg: int = 0) -> int:
        slots = [slot for path, slot in wanted if not path]
        least = arg if kind is Kind.FIXED else _LEAST_BYTES.get(kind, 1)
        return self._add(kind, schema, label, arg=arg, least_bytes=least, slot=slots[0] if slots else -1)

    def _fixed(self, schema: Any, label: str, wanted: _Wanted) -> int:
        return self._leaf(Kind.FIXED, schema, label, wanted, schema["size"])

    def _enum(self, schema: Any, label: str, wanted: _Wanted) -> int:
        return self._leaf(Kind.ENUM, schema, label, wanted, len(schema["symbols"]))

    def _union(self, schema: list[Any], label: str, wanted: _Wanted) -> int:
        number = self._add(Kind.UNION, schema, label)
        children = tuple(self.compile(branch, label, wanted) for branch in schema)
        self.nodes[number].children = children
        self.nodes[number].least_bytes = 1 + min((self.nodes[child].least_bytes for child in children), default=0)
        return number

    def _items(self, schema: Any, label: str, wanted: _Wanted) -> int:
        kind = Kind.ARRAY if schema["type"] == "array" else Kind.MAP
        # An array has no fields: a path that leads into one leads nowhere.
        self.whole |= any(kind is Kind.MAP or not path for path, _ in wanted)
        number = self._add(kind, schema, label, least_bytes=1)
        item = schema["items"] if kind is Kind.ARRAY else schema["values"]
        self.nodes[number].children = (self.compile(item, f"{label}[]", []),)
        return number

    def _record(self, schema: Any, label: str, wanted: _Wanted) -> int:
        self.whole |= any(not path for path, _ in wanted)
        number = self._add(Kind.RECORD, schema, label)
        if not wanted:
            self._shared[schema["name"]] = number
        children = []
        for field in schema["fields"]:
            name = field["name"]
            below = [(path[1:], slot) for path, slot in wanted if path and path[0] == name]
            children.append(self.compile(field["type"], f"{label}.{name}" if label else name, below))
        self.nodes[number].children = tuple(children)
        self.nodes[number].least_bytes = sum(self.nodes[child].least_bytes for child in children)
        return number


_COMPLEX: dict[str, Any] = {
    "fixed": _Compiler._fixed,
    "enum": _Compiler._enum,
    "array": _Compiler._items,
    "map": _Compiler._items,
    "record": _Compiler._record,
    "error": _Compiler._record,
}
