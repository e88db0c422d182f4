"""Compile a writer's schema to the program that the compiled walk follows, with a slot for each field that is read."""

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
_MIN_BYTES = {Kind.NULL: 0, Kind.FLOAT: 4, Kind.DOUBLE: 8}
"""The smallest encoded size of scalar types; 1 for all others."""

Path = tuple[str, ...]
"""The names that lead to a field, from the outside in."""


@dataclass(slots=True)
class Node:
    """A node of a program: one type at one place of the schema."""

    kind: Kind
    schema: Any
    """The type as fastavro has parsed it."""
    label: str
    """The path of the first field of this node, for reasons for quarantine."""
    arg: int = 0
    """The size of a fixed, or the number of an enum's symbols."""
    children: tuple[int, ...] = ()
    min_bytes: int = 0
    """The smallest encoded size."""
    slot: int = -1
    """The slot that the walk writes the value to; -1: none."""


@dataclass(frozen=True)
class Program:
    """The input of `kernels.walk`: a schema as tables of numbers."""

    nodes: tuple[Node, ...]
    table: Any
    """The nodes as columns, of the rows that `_kernels` names."""
    children: Any
    """The children of all nodes, as node numbers."""
    paths: tuple[Path, ...]
    """The path of each slot."""
    needs_fastavro: bool
    """Whether the walk cannot note a field that is read: it is in a map, or is a record, an array or a map."""


def compile_schema(schema: Any, named: Mapping[str, Any], paths: Sequence[Path]) -> Program:
    """Return the program of a schema that fastavro has parsed.

    `named`: the named types that it refers to. `paths`: the fields to read.
    """
    compiler = _Compiler(named)
    slot_paths = tuple(dict.fromkeys(paths))
    compiler.compile(schema, "", [(path, slot) for slot, path in enumerate(slot_paths)])
    nodes = compiler.nodes
    table = np.zeros((kernels.NODE_ROWS, len(nodes)), np.int64)
    children: list[int] = []
    for number, node in enumerate(nodes):
        table[:, number] = (node.kind, node.arg, len(children), len(node.children), node.min_bytes, node.slot)
        children.extend(node.children)
    return Program(tuple(nodes), table, np.array([*children, 0], np.int64), slot_paths, compiler.needs_fastavro)


_Paths = list[tuple[Path, int]]
"""The fields to read below a node: the rest of each path, and its slot."""


class _Compiler:
    """Collects the nodes of a schema."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.nodes: list[Node] = []
        self.needs_fastavro = False
        self._named = dict(named)
        self._shared: dict[str, int] = {}

    def compile(self, schema: Any, label: str, paths: _Paths) -> int:
        """Add the nodes of `schema`, and return the number of the first.

        A named type has one node for all its places, except where it leads to a field to read.
        """
        if isinstance(schema, str) and schema not in _SCALARS:
            if not paths and schema in self._shared:
                return self._shared[schema]
            schema = self._named[schema]
        if isinstance(schema, list):
            return self._union(schema, label, paths)
        kind_name = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind_name, str) or (kind_name not in _SCALARS and kind_name not in _COMPLEX):
            return self.compile(kind_name, label, paths)  # {"type": {"type": …}}
        if isinstance(schema, dict) and "name" in schema:
            self._named[schema["name"]] = schema
        if kind_name in _SCALARS:
            return self._leaf(_SCALARS[kind_name], schema, label, paths)
        return int(_COMPLEX[kind_name](self, schema, label, paths))

    def _add(self, kind: Kind, schema: Any, label: str, **more: Any) -> int:
        self.nodes.append(Node(kind, schema, label, **more))
        return len(self.nodes) - 1

    def _leaf(self, kind: Kind, schema: Any, label: str, paths: _Paths, arg: int = 0) -> int:
        slots = [slot for path, slot in paths if not path]
        min_bytes = arg if kind is Kind.FIXED else _MIN_BYTES.get(kind, 1)
        return self._add(kind, schema, label, arg=arg, min_bytes=min_bytes, slot=slots[0] if slots else -1)

    def _fixed(self, schema: Any, label: str, paths: _Paths) -> int:
        return self._leaf(Kind.FIXED, schema, label, paths, schema["size"])

    def _enum(self, schema: Any, label: str, paths: _Paths) -> int:
        return self._leaf(Kind.ENUM, schema, label, paths, len(schema["symbols"]))

    def _union(self, schema: list[Any], label: str, paths: _Paths) -> int:
        number = self._add(Kind.UNION, schema, label)
        children = tuple(self.compile(branch, label, paths) for branch in schema)
        self.nodes[number].children = children
        self.nodes[number].min_bytes = 1 + min((self.nodes[child].min_bytes for child in children), default=0)
        return number

    def _items(self, schema: Any, label: str, paths: _Paths) -> int:
        kind = Kind.ARRAY if schema["type"] == "array" else Kind.MAP
        # An array has no fields, so no path leads into one.
        self.needs_fastavro |= any(kind is Kind.MAP or not path for path, _ in paths)
        number = self._add(kind, schema, label, min_bytes=1)
        item = schema["items"] if kind is Kind.ARRAY else schema["values"]
        self.nodes[number].children = (self.compile(item, f"{label}[]", []),)
        return number

    def _record(self, schema: Any, label: str, paths: _Paths) -> int:
        self.needs_fastavro |= any(not path for path, _ in paths)
        number = self._add(Kind.RECORD, schema, label)
        if not paths:
            self._shared[schema["name"]] = number
        children = []
        for field in schema["fields"]:
            name = field["name"]
            below = [(path[1:], slot) for path, slot in paths if path and path[0] == name]
            children.append(self.compile(field["type"], f"{label}.{name}" if label else name, below))
        self.nodes[number].children = tuple(children)
        self.nodes[number].min_bytes = sum(self.nodes[child].min_bytes for child in children)
        return number


_COMPLEX: dict[str, Any] = {
    "fixed": _Compiler._fixed,
    "enum": _Compiler._enum,
    "array": _Compiler._items,
    "map": _Compiler._items,
    "record": _Compiler._record,
    "error": _Compiler._record,
}
