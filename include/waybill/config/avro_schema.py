"""Avro schemas: read and checked when the config is loaded, and again where messages are read by them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["AvroSchema", "read_avro_schema"]

_RECORDS = ("record", "error")


@dataclass(frozen=True)
class AvroSchema:
    """A schema as fastavro has parsed it: every name in full."""

    parsed: Any
    named: Mapping[str, Any]
    """The named types in it, and those that it refers to."""

    def missing_field(self, path: Sequence[str]) -> list[str] | None:
        """None if a message can have a field at `path`; else the fields that there are where the path goes astray."""
        there = [self.parsed]
        for name in path:
            there = [branch for schema in there for branch in self._branches(schema)]
            fields = [field for schema in there for field in schema.get("fields", ())]
            below = [field["type"] for field in fields if field["name"] == name]
            below += [schema["values"] for schema in there if schema.get("type") == "map"]
            if not below:
                return [field["name"] for field in fields]
            there = below
        return None

    def _branches(self, schema: Any) -> list[dict[str, Any]]:
        """The definitions that a schema stands for: of a union, those of its branches."""
        if isinstance(schema, list):
            return [definition for branch in schema for definition in self._branches(branch)]
        if isinstance(schema, str):
            schema = self.named.get(schema)
        if isinstance(schema, dict) and isinstance(schema["type"], list | dict):
            return self._branches(schema["type"])
        return [schema] if isinstance(schema, dict) else []

    def fingerprint(self) -> bytes:
        """CRC-64-AVRO of its canonical form, as it is written at the start of a single object."""
        from fastavro.schema import fingerprint, to_parsing_canonical_form

        return bytes.fromhex(fingerprint(to_parsing_canonical_form(self.parsed), "CRC-64-AVRO"))


def read_avro_schema(text: str, referred_to: Sequence[str] = ()) -> AvroSchema:
    """The schema in `text`; `referred_to` holds the schemas of types that it names, each after those that it needs.

    Raises `ValueError` with one line that says what is wrong.
    """
    import fastavro

    named: dict[str, Any] = {}
    try:
        for each in dict.fromkeys(referred_to):
            fastavro.parse_schema(json.loads(each), named)
        parsed = fastavro.parse_schema(json.loads(text), named)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from None
    # fastavro walks into whatever the JSON is, and raises what comes of it.
    except Exception as error:
        told = " ".join(str(error).split()) or "nothing more is known"
        raise ValueError(f"is no Avro schema: {type(error).__name__}: {told[:200]}") from None
    return AvroSchema(parsed, named)
