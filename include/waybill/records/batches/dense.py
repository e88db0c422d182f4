"""Fast encoding of messages that are not from Kafka, as record batches v2 without missing offsets.

`encode.encode_batch` writes everything that Kafka can write, field by field. Here the offsets follow from the order,
headers come encoded, and the varints of lengths are looked up, so a message takes about a microsecond, without numba.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from waybill.records.batches.compression import compress
from waybill.records.batches.framing import BATCH_MAGIC, BatchHeader, Codec, pack_batch

MAX_BODY_BYTES = 960 << 10
"""The most bytes of records in a batch before compression, unless it has only one message. Kafka's default limit is 1
MiB."""

_UINT64 = (1 << 64) - 1
_TABLE_SIZE = 1 << 13


DenseMessage: TypeAlias = tuple[int, bytes | None, bytes | None, bytes]
"""A message without an offset: timestamp in ms, key, value, and headers from `encode_headers`."""


class Encoded(NamedTuple):
    """Concatenated record batches."""

    data: bytes
    messages: int


def varint(value: int) -> bytes:
    """Return a zigzag varint (Protocol Buffers' sint64): seven bits a byte, lowest first. Wraps at 64 bits as Java."""
    rest = ((value << 1) ^ (value >> 63)) & _UINT64
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


_VARINTS = tuple(map(varint, range(_TABLE_SIZE)))
_NULL = varint(-1)


def encode_headers(headers: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the encoded headers of a record: their number, then names and values."""
    return varint(len(headers)) + b"".join(_field(name.encode()) + _field(value) for name, value in headers)


def _field(value: bytes) -> bytes:
    return varint(len(value)) + value


def encode_dense(messages: Iterable[DenseMessage], base_offset: int, *, codec: Codec = Codec.NONE) -> Encoded:
    """Return batches of all messages, whose contiguous offsets begin with `base_offset`.

    B'' if there are no messages.
    """
    batches, count = [], 0
    for batch, batch_messages in _batches(messages, base_offset, codec):
        batches.append(batch)
        count += batch_messages
    return Encoded(b"".join(batches), count)


def _batches(messages: Iterable[DenseMessage], base_offset: int, codec: Codec) -> Iterator[tuple[bytes, int]]:
    parts: list[bytes] = []
    count, size, base_ms, highest_ms = 0, 0, 0, 0
    for timestamp_ms, key, value, headers in messages:
        if size >= MAX_BODY_BYTES or (count and size + len(value or b"") + len(headers) > MAX_BODY_BYTES):
            yield _pack(parts, count, base_offset, base_ms, highest_ms, codec), count
            base_offset += count
            parts, count, size = [], 0, 0
        if not count:
            base_ms = highest_ms = timestamp_ms
        elif timestamp_ms > highest_ms:
            highest_ms = timestamp_ms
        record = b"".join(
            (
                b"\0",  # attributes: unused
                length(timestamp_ms - base_ms),
                length(count),
                _NULL if key is None else length(len(key)),
                key or b"",
                _NULL if value is None else length(len(value)),
                value or b"",
                headers,
            )
        )
        front = length(len(record))
        parts += (front, record)
        size += len(front) + len(record)
        count += 1
    if count:
        yield _pack(parts, count, base_offset, base_ms, highest_ms, codec), count


def length(value: int) -> bytes:
    """Return the same as `varint`, from a table for small numbers."""
    return _VARINTS[value] if 0 <= value < _TABLE_SIZE else varint(value)


def _pack(parts: list[bytes], count: int, base_offset: int, base_ms: int, highest_ms: int, codec: Codec) -> bytes:
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=0,
        magic=BATCH_MAGIC,
        crc=0,
        attributes=int(codec),
        last_offset_delta=count - 1,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=highest_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )
    return pack_batch(header, compress(codec, b"".join(parts)))
