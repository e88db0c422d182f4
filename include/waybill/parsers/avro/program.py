"""A writer's schema as the program that the compiled walk follows, with a slot for each field that is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from waybill.parsers.avro import _kernels as kernels
from waybill.parsers.avro._kernels import Kind

__all__ = ["Node", "Path", "Program", "compile_schema"]

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
