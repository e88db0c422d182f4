"""Whole documents, by fastavro, for what the walk cannot note: values in maps, and fields that are lists or records.

Only messages that the walk has found sound to their last byte are given to fastavro: it does not count how deeply they
are nested, so that a bad one ends the process, and it takes a union's negative index for one from the end
(docs/decisions/0009).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from fastavro.read import LOGICAL_READERS

from waybill.parsers.avro.program import Reader, logical_reader

__all__ = ["whole_reader"]

_READ = ("type", "name", "size", "symbols", "items", "values", "precision", "scale")
"""The keys of a schema that matter to a reader. `fields` and `logicalType` are written anew."""


def whole_reader(schema: Any, named: Mapping[str, Any]) -> Callable[[bytes], Any]:
    """What reads a sound message of a schema that fastavro has parsed; `named` holds the types that it refers to."""
    parsed = fastavro.parse_schema(_OnePiece(named).schema(schema))

    def read(value: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(value), parsed, None)

    return read


class _OnePiece:
    """A copy of a schema with all it refers to, its logical types under names of ours.

    fastavro's own logical types raise for times beyond a datetime's years, and know no nanoseconds.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._there: set[str] = set()

    def schema(self, schema: Any) -> Any:
        """The copy. A named type is put where it comes first."""
        if isinstance(schema, list):
            return [self.schema(branch) for branch in schema]
        name = schema if isinstance(schema, str) else schema.get("name")
        if isinstance(schema, str) and name not in self._named:
            return schema
        if name in self._there:
            return name
        if name is not None:
            self._there.add(name)
        return self._definition(self._named[name] if isinstance(schema, str) else schema)

    def _definition(self, schema: dict[str, Any]) -> dict[str, Any]:
        copy = {key: schema[key] for key in _READ if key in schema}
        for key in ("type", "items", "values"):
            if isinstance(copy.get(key), list | dict) or (key != "type" and key in copy):
                copy[key] = self.schema(copy[key])
        if "fields" in schema:
            copy["fields"] = [{"name": f["name"], "type": self.schema(f["type"])} for f in schema["fields"]]
        reader = logical_reader(schema)
        if reader is not None:
            copy["logicalType"] = _register(schema, reader)
        return copy


def _register(schema: dict[str, Any], reader: Reader) -> str:
    """Make fastavro read a logical type as we do; gives the name that it has there."""
    particulars = [str(schema[key]) for key in ("precision", "scale") if key in schema]
    name = "-".join(["waybill", schema["logicalType"], *particulars])
    LOGICAL_READERS[f"{schema['type']}-{name}"] = lambda value, *_: reader(value)
    return name
