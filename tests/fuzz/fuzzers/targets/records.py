"""Record batches: their framing, and decoding them, compared with a plain reader of Kafka's format."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge, varint
from waybill.base.errors import CorruptBatch, DocumentTooNew
from waybill.records.batches import Codec, read_header
from waybill.records.batches.compression import compress
from waybill.records.batches.decode import decode, decode_offsets
from waybill.records.batches.encode import Record, control_batch, encode_batch, to_records
from waybill.records.batches.framing import (
    HEADER_BYTES,
    BatchHeader,
    ControlType,
    TimestampType,
    check_crc,
    control_type,
    empty_batch,
    frames,
    is_abort_marker,
    pack_batch,
    read_frames,
)
from waybill.records.batches.message_rows import MESSAGE_SCHEMA
from waybill.records.shards.checkpoint import Checkpoint
from waybill.records.shards.checkpoint_batch import SlotState, checkpoint_batch, read_checkpoint_batch

_WHERE = "fuzz"
_MAX_BATCH_BYTES = 1 << 22
_CONTROL = [
    control_batch(7, kind, timestamp_ms=5, producer_id=3, producer_epoch=0)
    for kind in (ControlType.COMMIT, ControlType.ABORT, ControlType.LEADER_CHANGE)
]
_CHECKPOINT = checkpoint_batch(
    30, SlotState(Checkpoint.of_fields({"shard-0": {"at": "after_sequence", "sequence": "5"}}), {})
)


def _records(chance: random.Random) -> list[Record]:
    offset = chance.choice([0, 5, 1 << 40])
    found = []
    for _ in range(chance.randrange(1, 5)):
        headers = [(chance.choice(["", "a", "größe"]), _bytes(chance)) for _ in range(chance.choice([0, 0, 1, 3]))]
        time = chance.choice([-1, 0, 1_700_000_000_000, 9_223_372_036_854_775, 1 << 60])
        found.append(Record(offset, time, _bytes(chance), _bytes(chance), tuple(headers)))
        offset += chance.choice([1, 1, 2, 100])
    return found


def _bytes(chance: random.Random) -> bytes | None:
    return chance.choice([None, b"", b"k", b"v" * chance.randrange(1, 70), chance.randbytes(chance.randrange(40))])


def at_offset(batch: bytes, base_offset: int) -> bytes:
    """Return a batch with another base offset, which its CRC does not cover."""
    return struct.pack(">q", base_offset) + batch[8:]


# --- framing ----------------------------------------------------------------------------------------------------------


def _make_frames(chance: random.Random) -> bytes:
    pieces, offset = [], chance.choice([0, 10, (1 << 63) - 4])
    for _ in range(chance.randrange(1, 4)):
        batch = chance.choice([
            encode_batch(_records(chance), codec=chance.choice(list(Codec))),
            empty_batch(0, chance.choice([1, 5, 1 << 31]), leader_epoch=1),
            chance.choice(_CONTROL), _CHECKPOINT,
        ])  # fmt: skip
        pieces.append(at_offset(batch, min(offset, (1 << 63) - 1)))
        offset += chance.choice([0, 1, 5, 200, 1 << 31])
    data = bytearray(b"".join(pieces))
    for _ in range(chance.choice([0, 1, 1, 2])):
        at = chance.randrange(len(data))
        at = chance.choice([at, at % HEADER_BYTES])
        width = chance.choice([1, 2, 4, 8])
        new = (edge(chance) & ((1 << 8 * width) - 1)).to_bytes(width, "big")
        data[at : at + width] = chance.choice([new, new, bytes(data[at : at + width])[::-1], b""])
    return bytes(data) if chance.random() < 0.8 else bytes(data[: chance.randrange(len(data) + 1)])


def _read(step: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return the result of a step, or the text of its documented error."""
    try:
        return step(), None
    except CorruptBatch as error:
        return None, str(error)


def _check_frames(inputs: Sequence[bytes]) -> None:
    """Oracle: the fields by their positions in Kafka's documentation. The stream reader and the scan must agree."""
    for data in inputs:
        one, error = _read(
            lambda data=data: [(f.position, f.header, bytes(f.data)) for f in frames(data, where=_WHERE)]
        )
        for chunk in (7, 64, 1 << 20):
            streamed, other = _read(lambda chunk=chunk, data=data: [
                (f.position, f.header, bytes(f.data))
                for f in read_frames(io.BytesIO(data), _WHERE, chunk_bytes=chunk, max_batch_bytes=_MAX_BATCH_BYTES)
            ])  # fmt: skip
            assert (error is None) == (other is None), (error, other)
            assert one == streamed
        partial, _ = _read(lambda data=data: _partial(data))
        if one is not None:
            assert partial == len(data)
            _check_fields(data)


def _partial(data: bytes) -> int:
    found = frames(data, where=_WHERE, allow_partial=True)
    for frame in found:
        _read(lambda frame=frame: check_crc(frame, _WHERE))
        _read(lambda frame=frame: (control_type(frame, _WHERE), is_abort_marker(frame, _WHERE)))
        try:
            _read(lambda frame=frame: read_checkpoint_batch(frame, _WHERE))
        except DocumentTooNew:
            pass
    return found.stopped_at


def _check_fields(data: bytes) -> None:
    last = -1
    for frame in frames(data, where=_WHERE):
        base, length = struct.unpack_from(">qi", data, frame.position)
        delta, count = (
            struct.unpack_from(">i", data, frame.position + 23)[0],
            struct.unpack_from(">i", data, frame.position + 57)[0],
        )
        assert (base, length + 12, delta, count) == (
            frame.header.base_offset, len(frame.data), frame.header.last_offset_delta, frame.header.record_count,
        )  # fmt: skip
        assert data[frame.position + 16] == 2
        assert last < base <= base + delta < (1 << 63) - 1
        assert 0 <= count <= delta + 1
        last = base + delta


# --- decode -----------------------------------------------------------------------------------------------------------

_section = Mutator([b"\0"], [varint(n) for n in (0, 1, 2, 3, 127, 128, (1 << 31) - 1, 1 << 31, (1 << 64) - 1)])


def _make_batch(chance: random.Random) -> bytes:
    """Return a header, whose codec is set, and records that are not compressed: `_batch` makes the batch of them."""
    records = _records(chance)
    data = encode_batch(records, next_offset=records[-1].offset + chance.choice([1, 1, 9]))
    header, section = read_header(data, 0, _WHERE), data[HEADER_BYTES:]
    header = header._replace(
        attributes=int(chance.choice(list(Codec))) | chance.choice([0, 0, 8, 16, 64]),
        record_count=chance.choice([header.record_count] * 8 + [0, 1, 2, 5, 50]),
        base_timestamp_ms=chance.choice([header.base_timestamp_ms] * 5 + [(1 << 63) - 1, -(1 << 63)]),
    )
    damage = chance.choice([0] * 9 + [chance.randrange(1, 256)])
    return bytes([damage]) + pack_batch(header, b"") + _section.changed(section, chance)


def _batch(given: bytes) -> bytes | None:
    """Return the batch of an input, with a valid CRC; None if its header is none."""
    if len(given) <= HEADER_BYTES:
        return None
    header, error = _read(lambda: read_header(given[1:], 0, _WHERE))
    if error is not None:
        return None
    section = bytearray(compress(header.codec, given[1 + HEADER_BYTES :]))
    if given[0] and section:
        section[given[0] % len(section)] ^= given[0]
    return pack_batch(header, section)


def _check_batches(inputs: Sequence[bytes]) -> None:
    """Oracle: a plain reader of the records, as Kafka's documentation describes them, in both directions.

    kafka-python is no oracle here: it reads the attributes of a record as a varint, and takes varints of any length.
    """
    for given in inputs:
        data = _batch(given)
        if data is None:
            continue
        found, error = _read(lambda data=data: list(decode(data, where=_WHERE)))
        offsets, other = _read(lambda data=data: list(decode_offsets(data, where=_WHERE)))
        header = read_header(data, 0, _WHERE)
        records = _rows(found) if error is None else None
        if not given[0] and header.record_count and not header.is_control:
            expected = _expected(header, given[1 + HEADER_BYTES :])
            assert records == expected, f"{error}\n{records}\n{expected}"
        if records is not None:
            rows = [record.offset for record in records]
            assert other is None, other
            assert rows == np.concatenate([np.empty(0, np.int64), *offsets]).tolist()
            assert rows == sorted(set(rows))


def accepted_batches(inputs: Sequence[bytes]) -> Iterator[tuple[bytes, list[Record]]]:
    """Yield each batch of inputs of the target `decode` that Waybill decodes, with its messages."""
    for data in filter(None, map(_batch, inputs)):
        found, error = _read(lambda data=data: list(decode(data, where=_WHERE)))
        if error is None:
            yield data, _rows(found)


def _rows(found: Sequence[pa.RecordBatch]) -> list[Record]:
    for batch in found:
        assert batch.schema == MESSAGE_SCHEMA
        batch.validate(full=True)
    return [
        record._replace(headers=tuple(record.headers), timestamp_ms=time // 1000)
        for batch in found
        for record, time in zip(to_records(batch), batch.column("timestamp").cast(pa.int64()).to_pylist(), strict=True)
    ]


class _Malformed(Exception):
    """Bytes that Kafka's format does not allow."""


class _Reader:
    """Reads the parts of records from a section."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self.at:
            raise _Malformed
        self.at += size
        return self._data[self.at - size : self.at]

    def varint(self, bits: int) -> int:
        """Return a zigzag varint, as Java's `ByteUtils.readVarint` and `readVarlong` do."""
        number = 0
        for shift in range(0, bits, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                number &= (1 << bits) - 1
                return (number >> 1) ^ -(number & 1)
        raise _Malformed

    def bytes_or_null(self) -> bytes | None:
        size = self.varint(32)
        return None if size < 0 else self.take(size)


def _expected(header: BatchHeader, section: bytes) -> list[Record] | None:
    """Return the messages of a batch; None if it must be refused."""
    reader, records, last = _Reader(section), [], header.base_offset - 1
    try:
        for _ in range(header.record_count):
            size = reader.varint(32)
            end = reader.at + size
            reader.take(1)
            time = _wrapped(header.base_timestamp_ms + reader.varint(64))
            if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
                time = header.max_timestamp_ms
            offset = header.base_offset + reader.varint(32)
            key, value = reader.bytes_or_null(), reader.bytes_or_null()
            headers = tuple(_header(reader) for _ in range(_count(reader)))
            if reader.at != end or not last < offset < header.next_offset:
                return None
            records.append(Record(offset, kept_ms(time), key, value, headers))
            last = offset
    except _Malformed:
        return None
    return records if reader.at == len(section) else None


def _header(reader: _Reader) -> tuple[str, bytes | None]:
    key = reader.bytes_or_null()
    if key is None:
        raise _Malformed
    return key.decode(errors="replace"), reader.bytes_or_null()


def _count(reader: _Reader) -> int:
    count = reader.varint(32)
    if count < 0:
        raise _Malformed
    return count


def kept_ms(time_ms: int) -> int:
    """Return a time as Waybill keeps it: in microseconds, so that times beyond their range are at its ends."""
    last_ms = (2**63 - 1) // 1000
    return max(-last_ms, min(time_ms, last_ms))


def _wrapped(number: int) -> int:
    """Return a sum as Java's long has it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


FRAMES = Target("framing", _make_frames, _check_frames)
BATCHES = Target("decode", _make_batch, _check_batches)
