"""Compile a writer's schema to the program that the compiled walk follows, with a slot for each field that is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from waybill.config.models.avro_schemas import MAX_LEVELS, AvroSchema
from waybill.parsers.avro import _kernels as kernels
from waybill.parsers.avro._kernels import AvroKind

_SCALARS = {
    "null": AvroKind.NULL,
    "boolean": AvroKind.BOOLEAN,
    "int": AvroKind.INT,
    "long": AvroKind.LONG,
    "float": AvroKind.FLOAT,
    "double": AvroKind.DOUBLE,
    "bytes": AvroKind.BYTES,
    "string": AvroKind.STRING,
}
_MIN_BYTES = {AvroKind.NULL: 0, AvroKind.FLOAT: 4, AvroKind.DOUBLE: 8}
"""The smallest encoded size of scalar types; 1 for all others."""

MAX_NODES = 400_000
"""The most nodes of a program. A nullable field has three: the union and its branches."""
_LARGEST = 1 << 40
"""A size that no message has. Sizes of a schema may be larger, and add up to numbers of any size."""
_MAX_LABEL = 200

Path = tuple[str, ...]
"""The names that lead to a field, from the outside in."""


@dataclass(slots=True)
class Node:
    """A node of a program: one type at one place of the schema."""

    kind: AvroKind
    schema: Any
    """The type, as `AvroSchema` has it."""
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
    """Whether the walk cannot store a field that is read: it is in a map, or is a record, an array or a map."""


def compile_schema(schema: AvroSchema, paths: Sequence[Path]) -> Program:
    """Return the program of a schema. `paths`: the fields to read.

    Raises `ValueError`, with a message of one line that continues "the schema …", for a schema that is too large.
    """
    compiler = _Compiler(schema.named)
    slot_paths = tuple(dict.fromkeys(paths))
    compiler.compile(schema.root, "", tuple((path, slot) for slot, path in enumerate(slot_paths)), 0)
    nodes = compiler.nodes
    _complete_min_bytes(nodes)
    table = np.zeros((kernels.NODE_ROWS, len(nodes)), np.int64)
    children: list[int] = []
    for number, node in enumerate(nodes):
        table[:, number] = (node.kind, node.arg, len(children), len(node.children), node.min_bytes, node.slot)
        children.extend(node.children)
    return Program(tuple(nodes), table, np.array([*children, 0], np.int64), slot_paths, compiler.needs_fastavro)


def _complete_min_bytes(nodes: Sequence[Node]) -> None:
    """Set the smallest size to 1 at least, except of the nodes that have no bytes in any message.

    Those are nulls, fixed of size 0, and records of them. A record that contains itself was not complete when its
    fields were added up, so its size there counted as 0.
    """
    parents: dict[int, list[int]] = {}
    missing = [len(node.children) for node in nodes]
    for number, node in enumerate(nodes):
        for child in node.children:
            parents.setdefault(child, []).append(number)
    without_bytes = [
        number
        for number, node in enumerate(nodes)
        if node.kind is AvroKind.NULL
        or (node.kind is AvroKind.FIXED and node.arg == 0)
        or (node.kind is AvroKind.RECORD and not node.children)
    ]
    for number in without_bytes:
        for parent in parents.get(number, ()):
            missing[parent] -= 1
            if missing[parent] == 0 and nodes[parent].kind is AvroKind.RECORD:
                without_bytes.append(parent)
    empty = set(without_bytes)
    for number, node in enumerate(nodes):
        node.min_bytes = 0 if number in empty else max(1, node.min_bytes)


_Paths = tuple[tuple[Path, int], ...]
"""The fields to read below a node: the rest of each path, and its slot."""


class _Compiler:
    """Collects the nodes of a schema."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.nodes: list[Node] = []
        self.needs_fastavro = False
        self._named = named
        self._shared: dict[tuple[str, _Paths], int] = {}

    def compile(self, schema: Any, label: str, paths: _Paths, level: int) -> int:
        """Add the nodes of `schema`, and return the number of the first.

        A named type has one node for all its places that lead to the same fields to read. So the number of nodes is at
        most that of the schema's types for each field on the way to one that is read.
        """
        if level > MAX_LEVELS:
            raise ValueError(f"nests types more than {MAX_LEVELS} levels deep")
        if isinstance(schema, list):
            return self._union(schema, label, paths, level)
        if isinstance(schema, str) and schema not in _SCALARS:
            if (schema, paths) not in self._shared:
                # The number that the node will have: a record may contain itself.
                self._shared[schema, paths] = len(self.nodes)
                self._complex(self._named[schema], label, paths, level)
            return self._shared[schema, paths]
        if isinstance(schema, str) or schema["type"] in _SCALARS:
            return self._leaf(_SCALARS[schema if isinstance(schema, str) else schema["type"]], schema, label, paths)
        return self._complex(schema, label, paths, level)

    def _complex(self, schema: Any, label: str, paths: _Paths, level: int) -> int:
        match schema["type"]:
            case "fixed":
                return self._leaf(AvroKind.FIXED, schema, label, paths, min(schema["size"], _LARGEST))
            case "enum":
                return self._leaf(AvroKind.ENUM, schema, label, paths, len(schema["symbols"]))
            case "record":
                return self._record(schema, label, paths, level)
        return self._items(schema, label, paths, level)

    def _add(self, kind: AvroKind, schema: Any, label: str, **more: Any) -> int:
        if len(self.nodes) == MAX_NODES:
            raise ValueError(f"has more than {MAX_NODES:,} types at the fields to read and below them")
        self.nodes.append(Node(kind, schema, label, **more))
        return len(self.nodes) - 1

    def _leaf(self, kind: AvroKind, schema: Any, label: str, paths: _Paths, arg: int = 0) -> int:
        slots = [slot for path, slot in paths if not path]
        min_bytes = arg if kind is AvroKind.FIXED else _MIN_BYTES.get(kind, 1)
        return self._add(kind, schema, label, arg=arg, min_bytes=min_bytes, slot=slots[0] if slots else -1)

    def _union(self, schema: list[Any], label: str, paths: _Paths, level: int) -> int:
        number = self._add(AvroKind.UNION, schema, label)
        children = [self.compile(branch, label, paths, level + 1) for branch in schema]
        self.nodes[number].children = tuple(children)
        smallest = min((self.nodes[child].min_bytes for child in children), default=0)
        self.nodes[number].min_bytes = min(1 + smallest, _LARGEST)
        return number

    def _items(self, schema: Any, label: str, paths: _Paths, level: int) -> int:
        kind = AvroKind.ARRAY if schema["type"] == "array" else AvroKind.MAP
        # An array has no fields, so no path leads into one.
        self.needs_fastavro |= any(kind is AvroKind.MAP or not path for path, _ in paths)
        number = self._add(kind, schema, label, min_bytes=1)
        item = schema["items"] if kind is AvroKind.ARRAY else schema["values"]
        self.nodes[number].children = (self.compile(item, _short_label(f"{label}[]"), (), level + 1),)
        return number

    def _record(self, schema: Any, label: str, paths: _Paths, level: int) -> int:
        self.needs_fastavro |= any(not path for path, _ in paths)
        number = self._add(AvroKind.RECORD, schema, label)
        below: dict[str, list[tuple[Path, int]]] = {}
        for path, slot in paths:
            if path:
                below.setdefault(path[0], []).append((path[1:], slot))
        children = []
        for field in schema["fields"]:
            name = field["name"]
            field_label = _short_label(f"{label}.{name}" if label else name)
            children.append(self.compile(field["type"], field_label, tuple(below.get(name, ())), level + 1))
        self.nodes[number].children = tuple(children)
        size = sum(self.nodes[child].min_bytes for child in children)
        self.nodes[number].min_bytes = min(size, _LARGEST)
        return number


def _short_label(label: str) -> str:
    """Return a label of bounded length: those of nested fields with long names would add up to the square of them."""
    return label if len(label) <= _MAX_LABEL else f"{label[:_MAX_LABEL]}…"
