"""Avro schemas: read and checked when the config is loaded, and again where messages are read by them.

Protobuf's descriptor sets: read and checked when the config is loaded, and again where messages are read by them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

__all__ = ["AvroSchema", "find_message", "missing_field", "read_avro_schema"]

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


_SHOWN = 20


def find_message(descriptor_set: bytes, name: str) -> Descriptor:
    """The message type of that full name in what `protoc --include_imports --descriptor_set_out` has written.

    Raises `ValueError` with one line that says what is wrong; a `KeyError` of the names that there are, if the type is
    not among them.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
    except DecodeError as error:
        raise ValueError(f"is no descriptor set (protoc --include_imports --descriptor_set_out=…): {error}") from None
    if not files.file:
        raise ValueError("is no descriptor set (protoc --include_imports --descriptor_set_out=…): it holds no files")
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        try:
            pool.Add(file)
        except (TypeError, ValueError) as error:
            told = " ".join(str(error).split())
            raise ValueError(f"cannot be used, was it made with --include_imports? {file.name}: {told}") from None
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        there = [found for file in files.file for found in _messages(file.package, file.message_type)]
        raise KeyError(_nearest_first(name, there)) from None


def missing_field(message: Descriptor, path: tuple[str, ...]) -> list[str] | None:
    """None if a message can have a field at `path`; else the fields that there are where the path goes astray."""
    within: Descriptor | None = message
    for name in path:
        if within is None:
            return []
        if _is_map_of_texts(within):
            within = within.fields_by_name["value"].message_type
            continue
        field = within.fields_by_name.get(name)
        if field is None:
            return [each.name for each in within.fields]
        # Into a list no path leads; into a map, by the key's text.
        within = field.message_type if not field.is_repeated or _is_map_of_texts(field.message_type) else None
    return None


def _is_map_of_texts(message: Any) -> bool:
    if message is None or not message.GetOptions().map_entry:
        return False
    key = message.fields_by_name["key"]
    return bool(key.type == key.TYPE_STRING)


def _messages(scope: str, messages: Any) -> list[str]:
    found = []
    for message in messages:
        name = f"{scope}.{message.name}" if scope else message.name
        if not message.options.map_entry:
            found += [name, *_messages(name, message.nested_type)]
    return found


def _nearest_first(name: str, there: list[str]) -> str:
    near = difflib.get_close_matches(name, there, n=_SHOWN, cutoff=0.6)
    listed = list(dict.fromkeys([*near, *there]))
    return ", ".join(listed[:_SHOWN]) + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")
