"""Messages as spans of one buffer, and the schema ids at the start of messages in Confluent's wire format."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from waybill.parsers.documents import UnreadableMessage
from waybill.parsers.protocol import Reason
from waybill.records.batches._kernels import Array

CONFLUENT_BYTES = 5
"""The length of the header in Confluent's wire format: a byte 0, then the schema's id in four bytes, big-endian."""


class MessageBuffer(NamedTuple):
    """Messages in one buffer: message i is `data[starts[i]:ends[i]]`."""

    data: Array
    starts: Array
    ends: Array

    def select(self, rows: Array, skipped_bytes: int = 0) -> MessageBuffer:
        """Return the messages of `rows`, without the first `skipped_bytes` of each."""
        return MessageBuffer(self.data, self.starts[rows] + skipped_bytes, self.ends[rows])

    def starts_with(self, prefix: bytes) -> Array:
        """Return, as booleans, which messages start with `prefix`."""
        fits = self.ends - self.starts >= len(prefix)
        for position, byte in enumerate(prefix):
            fits[fits] = self.data[self.starts[fits] + position] == byte
        return fits


def message_buffer(column: pa.BinaryArray) -> MessageBuffer:
    """Return the messages of an Arrow array without nulls. Their bytes are not copied."""
    _, offsets, content = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(0, np.uint8)
    return MessageBuffer(data, bounds[:-1], bounds[1:])


def schema_ids(values: MessageBuffer) -> Array:
    """Return the schema id of each message in Confluent's wire format; -1 for a message in another format."""
    ids = np.full(len(values.starts), -1, np.int64)
    framed = values.starts_with(b"\0") & (values.ends - values.starts >= CONFLUENT_BYTES)
    at = values.starts[framed]
    found = np.zeros(len(at), np.int64)
    for position in range(1, CONFLUENT_BYTES):
        found = (found << 8) | values.data[at + position]
    ids[framed] = found
    return ids


def framing_error(values: MessageBuffer, row: int, kind: Reason) -> UnreadableMessage:
    """Return the error of a message without a schema id; `kind`: the kind of reason for quarantine."""
    size = int(values.ends[row] - values.starts[row])
    if size < CONFLUENT_BYTES:
        return UnreadableMessage(kind, f"{size} bytes are fewer than a magic byte and a schema id")
    return UnreadableMessage(kind, f"starts with 0x{values.data[values.starts[row]]:02x}, not with the magic byte 0x00")
