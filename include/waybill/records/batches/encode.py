"""Encode messages as record batches of format v2, with any codec. For tests, benchmarks and restores.

It writes what Kafka's Java producer, broker and log cleaner write. This includes features that no producer writes
itself: missing offsets, LogAppendTime, control records, a delete horizon.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from waybill.records.batches.compression import compress
from waybill.records.batches.framing import (
    BATCH_MAGIC,
    MAX_OFFSETS_IN_BATCH,
    BatchHeader,
    Codec,
    ControlType,
    TimestampType,
    pack_batch,
)

if TYPE_CHECKING:
    import pyarrow as pa

_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")
_UINT64 = (1 << 64) - 1


class Record(NamedTuple):
    """One message. `timestamp_ms`: milliseconds since 1970 UTC, -1 for none. Null and empty bytes differ."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int | None = None,
    next_offset: int | None = None,
    leader_epoch: int = 0,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    transactional: bool = False,
    control: bool = False,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Return one record batch of these messages, which must be in order of offset.

    `base_offset` and `next_offset` default to the offset of the first record and the offset after the last one; after
    compaction the range can be wider. Readers see `log_append_time_ms` in place of the records' timestamps.
    `delete_horizon_ms` takes the place of the base timestamp (KIP-534), and timestamps are relative to it.

    Raises `ValueError` without a record (see `waybill.records.batches.empty_batch`), or if the offsets do not grow
    within the range.
    """
    base, following = _offset_range(records, base_offset, next_offset)
    timestamps = [record.timestamp_ms for record in records]
    base_timestamp_ms = timestamps[0] if delete_horizon_ms is None else delete_horizon_ms
    append_time = TimestampType.CREATE_TIME if log_append_time_ms is None else TimestampType.LOG_APPEND_TIME
    header = BatchHeader(
        base_offset=base,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=BATCH_MAGIC,
        crc=0,
        attributes=codec | append_time << 3 | transactional << 4 | control << 5 | (delete_horizon_ms is not None) << 6,
        last_offset_delta=following - base - 1,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max(timestamps) if log_append_time_ms is None else log_append_time_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    body = bytearray()
    for record in records:
        _append_record(body, record, base, base_timestamp_ms)
    return pack_batch(header, compress(codec, body))


def control_batch(
    offset: int, kind: ControlType, *, timestamp_ms: int, producer_id: int, producer_epoch: int, leader_epoch: int = 0
) -> bytes:
    """Return the marker with which a transaction coordinator ends a transaction: one control record."""
    record = Record(offset, timestamp_ms, _CONTROL_KEY.pack(0, kind), _CONTROL_VALUE.pack(0, 0))
    return encode_batch(
        [record],
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def to_records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the rows of an Arrow RecordBatch of `MESSAGE_SCHEMA` as records. Too slow for a hot path."""
    # Use integers, since Python's datetime ends with the year 9999.
    timestamps_us = batch.column("timestamp").cast("int64")
    columns = [batch.column(name) for name in ("offset", "key", "value", "headers")]
    for row, timestamp_us in enumerate(timestamps_us.to_pylist()):
        offset, key, value, headers = (column[row].as_py() for column in columns)
        yield Record(offset, timestamp_us // 1000, key, value, [(pair["key"], pair["value"]) for pair in headers])


def _offset_range(records: Sequence[Record], base_offset: int | None, next_offset: int | None) -> tuple[int, int]:
    if not records:
        raise ValueError("a batch needs a record; use empty_batch() for a batch without records")
    base = records[0].offset if base_offset is None else base_offset
    following = records[-1].offset + 1 if next_offset is None else next_offset
    offsets = [base - 1, *(record.offset for record in records), following]
    if base < 0 or following - base > MAX_OFFSETS_IN_BATCH or any(b <= a for a, b in pairwise(offsets)):
        raise ValueError(f"the records' offsets do not grow within [{base}, {following})")
    return base, following


def _append_record(body: bytearray, record: Record, base_offset: int, base_timestamp_ms: int) -> None:
    fields = bytearray(1)  # attributes: unused
    _append_varint(fields, record.timestamp_ms - base_timestamp_ms)
    _append_varint(fields, record.offset - base_offset)
    _append_bytes(fields, record.key)
    _append_bytes(fields, record.value)
    _append_varint(fields, len(record.headers))
    for key, value in record.headers:
        _append_bytes(fields, key.encode())
        _append_bytes(fields, value)
    _append_varint(body, len(fields))
    body += fields


def _append_bytes(target: bytearray, value: bytes | None) -> None:
    _append_varint(target, -1 if value is None else len(value))
    if value is not None:
        target += value


def _append_varint(target: bytearray, value: int) -> None:
    """Append a zigzag varint (Protocol Buffers' sint64): seven bits a byte, lowest first. Wraps at 64 bits as Java."""
    rest = ((value << 1) ^ (value >> 63)) & _UINT64
    while rest > 0x7F:
        target.append(rest & 0x7F | 0x80)
        rest >>= 7
    target.append(rest)
