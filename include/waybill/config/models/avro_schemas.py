"""Avro schemas, in the form that the reader of messages needs.

A message is read by the schema with which it was written. The meaning of its bytes depends on types, sizes and names
that are defined once, so these are checked. Other errors do not matter here: a default of the wrong type, an alias, a
name or a symbol with a hyphen, and a logical type that does not fit its type. Avro's specification forbids them, but
registries have such schemas, from producers that do not check them.

The work for a schema is bounded by its size. Each named type is stored once, by its full name, and everything else
refers to it by that name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
MAX_TYPES = 200_000
"""The most types that a schema may have, with the schemas that it refers to. Each field, branch and item has one."""
MAX_LEVELS = 150
"""The most types that may be nested in each other. Each takes up to three of Python's 1,000 calls."""

_MAX_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class AvroSchema:
    """A schema whose names are full names."""

    root: Any
    """A type: the name of a primitive or named type, the list of a union's branches, or a mapping with `type`."""
    named: Mapping[str, Any]
    """The definitions of the named types (records, enums, fixed) that it defines or refers to, by full name."""

    def missing_field(self, path: Sequence[str]) -> list[str] | None:
        """Return None if a message can have a field at `path`.

        Else return the names of the fields at the first place where `path` leaves the schema.
        """
        schemas = [self.root]
        for name in path:
            # Branches of unions may lead to the same type many times.
            found = {id(each): each for schema in schemas for each in self._definitions(schema)}
            fields = [field for definition in found.values() for field in definition.get("fields", ())]
            schemas = [field["type"] for field in fields if field["name"] == name]
            schemas += [definition["values"] for definition in found.values() if definition["type"] == "map"]
            if not schemas:
                return [field["name"] for field in fields]
        return None

    def _definitions(self, schema: Any) -> Iterator[dict[str, Any]]:
        """Yield the definitions of a type: one, or those of a union's branches."""
        if isinstance(schema, list):
            for branch in schema:
                yield from self._definitions(branch)
        elif isinstance(schema, dict):
            yield schema
        elif schema in self.named:
            yield self.named[schema]

    def fingerprint(self) -> bytes:
        """Return the CRC-64-AVRO of the schema's canonical form, in the byte order of Avro's single-object encoding."""
        from fastavro.schema import fingerprint

        return bytes.fromhex(fingerprint(self.canonical_form(), "CRC-64-AVRO"))

    def canonical_form(self) -> str:
        """Return the Parsing Canonical Form of Avro's specification."""
        return json.dumps(self._canonical(self.root, set()), separators=(",", ":"), ensure_ascii=False)

    def _canonical(self, schema: Any, written: set[str]) -> Any:
        if isinstance(schema, list):
            return [self._canonical(branch, written) for branch in schema]
        if isinstance(schema, str):
            if schema in PRIMITIVES or schema in written:
                return schema
            written.add(schema)
            schema = self.named[schema]
        kind = schema["type"]
        if kind in PRIMITIVES:
            return kind
        if kind in ("array", "map"):
            below = "items" if kind == "array" else "values"
            return {"type": kind, below: self._canonical(schema[below], written)}
        if kind in ("enum", "fixed"):
            content = "symbols" if kind == "enum" else "size"
            return {"name": schema["name"], "type": kind, content: schema[content]}
        fields = [{"name": each["name"], "type": self._canonical(each["type"], written)} for each in schema["fields"]]
        return {"name": schema["name"], "type": "record", "fields": fields}


def read_avro_schema(text: str, referenced: Sequence[str] = ()) -> AvroSchema:
    """Return the schema in `text`. Raise `ValueError` with a message of one line.

    `referenced`: the texts of the schemas whose types it names, each after the schemas on which it depends.
    """
    reader = _SchemaReader()
    try:
        for each in dict.fromkeys(referenced):
            reader.read(_json(each))
        return AvroSchema(reader.read(_json(text)), reader.named)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # also of a number with thousands of digits
        raise ValueError(f"is not JSON: {error}") from None


class _SchemaReader:
    """Reads schemas that refer to each other."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}
        self._own: set[str] = set()
        """The named types of the schema that is being read."""
        self._types = 0

    def read(self, document: Any) -> Any:
        """Return the root type of a schema."""
        self._own = set()
        return self._type(document, "", 0)

    def _type(self, schema: Any, namespace: str, level: int) -> Any:
        self._types += 1
        if self._types > MAX_TYPES:
            raise ValueError(f"has more than {MAX_TYPES:,} types")
        if level > MAX_LEVELS:
            raise ValueError(f"nests types more than {MAX_LEVELS} levels deep")
        if isinstance(schema, list):
            return [self._type(branch, namespace, level + 1) for branch in schema]
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if isinstance(schema, dict) and isinstance(kind, list | dict):
            return self._type(kind, namespace, level + 1)
        if not isinstance(kind, str):
            raise _fault(f"{_shown(schema)} is not a type")
        if isinstance(schema, dict) and kind in _COMPLEX:
            return _COMPLEX[kind](self, schema, namespace, level)
        if isinstance(schema, dict) and kind in PRIMITIVES:
            return _with_logical_type(kind, schema) if "logicalType" in schema else kind
        return self._reference(kind, namespace)

    def _reference(self, name: str, namespace: str) -> str:
        """Return the full name of a type. As Java does, look for it in the namespace first, and then outside."""
        if name in PRIMITIVES:
            return name
        within = f"{namespace}.{name}"
        if "." not in name and namespace and within in self.named:
            return within
        if name not in self.named:
            raise _fault(f"the type {_shown(name)} is not defined")
        return name

    def _items(self, schema: dict[str, Any], namespace: str, level: int) -> Any:
        below = "items" if schema["type"] == "array" else "values"
        if below not in schema:
            raise _fault(f"an {schema['type']} has no {below}" if below == "items" else "a map has no values")
        return {"type": schema["type"], below: self._type(schema[below], namespace, level + 1)}

    def _enum(self, schema: dict[str, Any], namespace: str, level: int) -> str:  # noqa: ARG002
        name, _ = self._define(schema, namespace)
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not all(map(_is_text, symbols)):
            raise _fault(f"the symbols of {_shown(name)} are not a list of texts")
        if len(set(symbols)) < len(symbols):
            raise _fault(f"{_shown(name)} has the same symbol twice")
        return self._defined(name, {"type": "enum", "name": name, "symbols": symbols})

    def _fixed(self, schema: dict[str, Any], namespace: str, level: int) -> str:  # noqa: ARG002
        name, _ = self._define(schema, namespace)
        size = schema.get("size")
        if type(size) is not int or size < 0:
            raise _fault(f"the size of {_shown(name)} is {_shown(size)}")
        return self._defined(name, _with_logical_type("fixed", schema) | {"name": name, "size": size})

    def _record(self, schema: dict[str, Any], namespace: str, level: int) -> str:
        name, within = self._define(schema, namespace)
        stated = schema.get("fields", [])
        if not isinstance(stated, list):
            raise _fault(f"the fields of {_shown(name)} are not a list")
        fields: dict[str, Any] = {}
        for field in stated:
            field_name = field.get("name") if isinstance(field, dict) else None
            if not isinstance(field_name, str) or not _is_text(field_name) or "type" not in field:
                raise _fault(f"a field of {_shown(name)} has no name or no type")
            if field_name in fields:
                raise _fault(f"{_shown(name)} has two fields {_shown(field_name)}")
            fields[field_name] = self._type(field["type"], within, level + 1)
        listed = [{"name": each, "type": kind} for each, kind in fields.items()]
        return self._defined(name, {"type": "record", "name": name, "fields": listed})

    def _define(self, schema: dict[str, Any], namespace: str) -> tuple[str, str]:
        """Return the full name of a named type and its namespace, so that its fields can refer to it."""
        name, stated = schema.get("name"), schema.get("namespace")
        if not _is_text(name) or not name:
            raise _fault(f"a type {schema['type']} has no name")
        within = stated if isinstance(stated, str) else namespace
        if "." in name:
            within = name.rpartition(".")[0]
        elif within:
            name = f"{within}.{name}"
        if name in PRIMITIVES or not _is_text(name):
            raise _fault(f"a type {schema['type']} has the name {_shown(name)}")
        if name in self._own:
            raise _fault(f"it defines the type {_shown(name)} twice")
        self._own.add(name)
        self.named.setdefault(name, None)
        return name, within

    def _defined(self, name: str, definition: dict[str, Any]) -> str:
        """Store a definition. Two schemas may contain the same one, as a copy."""
        if self.named[name] is not None and self.named[name] != definition:
            raise _fault(f"the type {_shown(name)} has another definition in a schema that is referred to")
        self.named[name] = definition
        return name


_COMPLEX: dict[str, Any] = {
    "array": _SchemaReader._items,
    "map": _SchemaReader._items,
    "enum": _SchemaReader._enum,
    "fixed": _SchemaReader._fixed,
    "record": _SchemaReader._record,
    "error": _SchemaReader._record,
}


def _with_logical_type(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a type with the attributes of its logical type, which its reader checks."""
    stated: dict[str, Any] = {key: schema[key] for key in ("logicalType", "precision", "scale") if key in schema}
    return {"type": kind, **stated}


def _is_text(value: Any) -> bool:
    """Return whether a value is a text that can be written as UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        return bool([value.encode()])
    except UnicodeEncodeError:
        return False


def _fault(detail: str) -> ValueError:
    return ValueError(f"is not an Avro schema: {detail}")


def _shown(value: Any) -> str:
    """Return a part of a schema for a line of a message."""
    text = value if isinstance(value, str) else repr(value) if not isinstance(value, dict | list) else "a value"
    text = " ".join(text.encode(errors="backslashreplace").decode().split())
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"
