"""Record batches: their framing, and decoding them, compared with kafka-python's pure Python reader."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kafka.record.memory_records import MemoryRecords

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge, varint
from waybill.archive.checkpoint_batch import SlotState, checkpoint_batch, read_checkpoint_batch
from waybill.errors import CorruptBatch, DocumentTooNew
from waybill.records import Codec, read_header
from waybill.records.compression import compress
from waybill.records.decode import MESSAGE_SCHEMA, decode, decode_offsets
from waybill.records.encode import Record, control_batch, encode_batch, to_records
from waybill.records.framing import (
    HEADER_BYTES,
    ControlType,
    check_crc,
    control_type,
    empty_batch,
    frames,
    is_abort_marker,
    pack_batch,
    read_frames,
)
from waybill.shards.checkpoint import Checkpoint

_WHERE = "fuzz"
_MAX_BATCH_BYTES = 1 << 22
_CONTROL = [
    control_batch(7, kind, timestamp_ms=5, producer_id=3, producer_epoch=0)
    for kind in (ControlType.COMMIT, ControlType.ABORT, ControlType.LEADER_CHANGE)
]
_CHECKPOINT = checkpoint_batch(30, SlotState(Checkpoint.of_fields({"shard-0": {"at": "after_sequence", "sequence": "5"}}), {}))


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


# --- framing ----------------------------------------------------------------------------------------------------------


def _make_frames(chance: random.Random) -> bytes:
    pieces, offset = [], chance.choice([0, 10, (1 << 63) - 4])
    for _ in range(chance.randrange(1, 4)):
        batch = chance.choice([
            encode_batch(_records(chance), codec=chance.choice(list(Codec))),
            empty_batch(0, chance.choice([1, 5, 1 << 31]), leader_epoch=1),
            chance.choice(_CONTROL), _CHECKPOINT,
        ])  # fmt: skip
        pieces.append(struct.pack(">q", min(offset, (1 << 63) - 1)) + batch[8:])
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
        one, error = _read(lambda data=data: [(f.position, f.header, bytes(f.data)) for f in frames(data, where=_WHERE)])
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
        delta, count = struct.unpack_from(">i", data, frame.position + 23)[0], struct.unpack_from(">i", data, frame.position + 57)[0]
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
    """Oracle: kafka-python's reader in pure Python. What Waybill decodes, it must decode to the same."""
    for given in inputs:
        data = _batch(given)
        if data is None:
            continue
        found, error = _read(lambda data=data: list(decode(data, where=_WHERE, max_batch_bytes=_MAX_BATCH_BYTES)))
        offsets, other = _read(lambda data=data: list(decode_offsets(data, where=_WHERE, max_batch_bytes=_MAX_BATCH_BYTES)))
        if error is not None:
            assert _kafka_python(data) is None or _is_stricter(data), f"refused ({error}), and kafka-python reads it"
            continue
        assert other is None, other
        for batch in found:
            assert batch.schema == MESSAGE_SCHEMA
            batch.validate(full=True)
        records = [record._replace(headers=tuple(record.headers)) for batch in found for record in to_records(batch)]
        rows = [record.offset for record in records]
        assert rows == np.concatenate([np.empty(0, np.int64), *offsets]).tolist()
        assert rows == sorted(set(rows))
        theirs = _kafka_python(data)
        if theirs is not None:
            ours, others = list(map(_comparable, records)), list(map(_comparable, theirs))
            assert ours == others, f"{ours}\n{others}"


_MAX_MS = (2**63 - 1) // 1000


def _comparable(record: Record) -> tuple[object, ...]:
    wrapped = (record.timestamp_ms + (1 << 63)) % (1 << 64) - (1 << 63)  # as Java's long; kafka-python has no limit
    time = max(-_MAX_MS, min(wrapped, _MAX_MS))
    return record.offset, time, record.key, record.value, tuple(record.headers)


def _kafka_python(data: bytes) -> list[Record] | None:
    """Return the messages that kafka-python reads; None if it refuses the batch, or may have misread it."""
    try:
        return [
            Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
            for batch in MemoryRecords(data)
            for record in batch
        ]
    except Exception:  # it raises whatever its slices and codecs raise
        return None


def _is_stricter(data: bytes) -> bool:
    """Whether Waybill refuses a batch for a reason that kafka-python does not look for.

    It accepts bytes behind the last record, offsets in any order, varints of more than ten bytes, batches of any size
    after decompression, and negative lengths other than -1, which Kafka's Java client refuses.
    """
    theirs = _kafka_python(data)
    header = read_header(data, 0, _WHERE)
    if theirs is None or header.record_count == 0:
        return True
    offsets = [each.offset for each in theirs]
    if offsets != sorted(set(offsets)) or offsets[0] < header.base_offset or offsets[-1] >= header.next_offset:
        return True
    again = encode_batch(
        theirs, base_offset=header.base_offset, next_offset=header.next_offset,
        delete_horizon_ms=header.base_timestamp_ms,
    )  # fmt: skip
    # Only a section that is written as Kafka writes it must be accepted.
    return bool(header.codec) or again[HEADER_BYTES:] != data[HEADER_BYTES:]


FRAMES = Target("framing", _make_frames, _check_frames)
BATCHES = Target("decode", _make_batch, _check_batches)
