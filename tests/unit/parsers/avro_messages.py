"""An Avro schema with a field of every type, and messages that fastavro has encoded."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "Everything",
    "namespace": "tests",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "id", "type": ["null", "string", "long"]},
        {"name": "yes", "type": "boolean"},
        {"name": "int", "type": "int"},
        {"name": "float", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "bytes", "type": "bytes"},
        {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}},
        {"name": "array", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "map", "type": {"type": "map", "values": "string"}},
        {"name": "below", "type": ["null", {"type": "record", "name": "Below", "fields": [
            {"name": "tier", "type": "string"}, {"name": "again", "type": ["null", "Below"]},
            {"name": "e", "type": "E"}]}]},
        {"name": "date", "type": {"type": "int", "logicalType": "date"}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "decimal", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}  # fmt: skip


def encoded(schema: Any, datum: Any) -> bytes:
    """Return an encoded datum without framing."""
    target = io.BytesIO()
    fastavro.schemaless_writer(target, json.loads(json.dumps(schema)), datum)
    return target.getvalue()
