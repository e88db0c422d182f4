"""What stands before a message's content: where it lies, and which schema it is by."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from waybill.parsers.documents import Unreadable
from waybill.parsers.protocol import Reason
from waybill.records._kernels import Array

__all__ = ["CONFLUENT_BYTES", "Values", "not_confluent", "schema_ids", "values_of"]

CONFLUENT_BYTES = 5
"""Confluent's wire format: a byte 0, then the schema's id in four bytes, big-endian."""


class Values(NamedTuple):
    """Messages that lie in one buffer: message i is `data[starts[i]:ends[i]]`."""

    data: Array
    starts: Array
    ends: Array

    def of(self, rows: Array, skipped_bytes: int = 0) -> Values:
        """Some of the messages, without the bytes that each begins with."""
        return Values(self.data, self.starts[rows] + skipped_bytes, self.ends[rows])

    def begin_with(self, prefix: bytes) -> Array:
        """Which messages begin so, as booleans."""
        fits = self.ends - self.starts >= len(prefix)
        for position, byte in enumerate(prefix):
            fits[fits] = self.data[self.starts[fits] + position] == byte
        return fits


def values_of(column: pa.BinaryArray) -> Values:
    """The messages in an Arrow array without nulls; nothing is copied."""
    _, offsets, content = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(0, np.uint8)
    return Values(data, bounds[:-1], bounds[1:])


def schema_ids(values: Values) -> Array:
    """The schema id of each message in Confluent's wire format; -1 for what is in another."""
    ids = np.full(len(values.starts), -1, np.int64)
    framed = values.begin_with(b"\0") & (values.ends - values.starts >= CONFLUENT_BYTES)
    at = values.starts[framed]
    found = np.zeros(len(at), np.int64)
    for position in range(1, CONFLUENT_BYTES):
        found = (found << 8) | values.data[at + position]
    ids[framed] = found
    return ids


def not_confluent(values: Values, row: int, kind: Reason) -> Unreadable:
    """Why there is no schema id in a message."""
    size = int(values.ends[row] - values.starts[row])
    if size < CONFLUENT_BYTES:
        return Unreadable(kind, f"{size} bytes are fewer than a magic byte and a schema id")
    return Unreadable(kind, f"starts with 0x{values.data[values.starts[row]]:02x}, not with the magic byte 0x00")
