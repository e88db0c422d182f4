"""Framing of Kafka's record batches, format v2: where each batch starts and ends, its header and its CRC.

The format is that of Kafka's documentation, "Implementation, Message Format, Record Batch" (KIP-98; delete horizon:
KIP-534). A record batch is a header of 61 bytes, big-endian, then its records, compressed as a whole or not:

    baseOffset int64 | batchLength int32 | partitionLeaderEpoch int32 | magic int8 | crc uint32 | attributes int16 |
    lastOffsetDelta int32 | baseTimestamp int64 | maxTimestamp int64 | producerId int64 | producerEpoch int16 |
    baseSequence int32 | recordCount int32

`batchLength` is the number of bytes after it. `crc` is the CRC-32C of all bytes from `attributes` to the end of the
batch. It does not cover `baseOffset`, `batchLength` and `partitionLeaderEpoch`, since brokers set them. The checks of
this module protect these fields: lengths must fit, and offsets must grow from batch to batch.

This module does not read records, so a batch takes about two microseconds, for its header. The module imports neither
numpy nor numba: ingest lanes start every minute.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import crc32c

from waybill.base.errors import CorruptBatch, UnsupportedBatch

if TYPE_CHECKING:
    from typing_extensions import Buffer

BATCH_MAGIC = 2
"""The `magic` of format v2, the only version that Waybill reads and writes."""

HEADER_BYTES = 61
"""Size of a batch's header, which is also the size of a batch without records."""

MAX_OFFSETS_IN_BATCH = 1 << 31
"""A batch stores its last offset as an int32 distance from its first offset."""

DEFAULT_MAX_BATCH_BYTES = 1 << 31
"""The longest possible batch, since its length is an int32. Kafka's default `max.message.bytes` is 1 MiB; topics may
have any."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_OFFSET, _MAGIC_OFFSET, _CRC_OFFSET, _CRC_START = 8, 16, 17, 21
_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_CONTROL_KEY = struct.Struct(">hh")
_LOG_OVERHEAD = 12
_MIN_RECORD_BYTES = 7  # a length, attributes, two deltas, two null lengths and a header count of one byte each
_MAX_OFFSET = (1 << 63) - 2  # one below the largest int64, so that the next offset also fits
_CODEC_MASK, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40


class Codec(IntEnum):
    """Compression of a batch's records: the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Who set the timestamps: the producer, one for each record, or the broker, one for the whole batch."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """The type of a control record (Kafka's `ControlRecordType`). Consumers never see control records."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class BatchHeader(NamedTuple):
    """The fields of a record batch's header, with Kafka's names. Times are milliseconds since 1970 UTC, -1 for none."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return _LOG_OVERHEAD + self.batch_length

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last one. Compaction does not change it, even if it removes the last records."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & _CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & _LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp_ms` is the delete horizon that the log cleaner set (KIP-534).

        The record timestamps are then relative to it too, since the cleaner rewrites their deltas.
        """
        return bool(self.attributes & _DELETE_HORIZON)

    @property
    def is_dense(self) -> bool:
        """Whether the batch holds a record for every offset from its first to its last."""
        return self.record_count == self.last_offset_delta + 1


class Frame(NamedTuple):
    """One record batch and its position."""

    position: int
    """Byte position in the object or response that the batch was read from."""
    header: BatchHeader
    data: memoryview
    """The whole batch, header included."""


class ByteStream(Protocol):
    """A source that is read like a file: a file, `io.BytesIO`, the body of an S3 object."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; b'' at the end."""


def read_header(buffer: Buffer, position: int, where: str, *, base_position: int = 0) -> BatchHeader:
    """Read and check the header of the batch that starts at `position` of `buffer`.

    `where` names the object or topic-partition in errors. `base_position` is the byte of it at which `buffer` starts:
    errors contain the sum of both positions. This reads neither the records nor the CRC, and the batch need not end
    within `buffer`.

    Raises `CorruptBatch` when the bytes cannot be the header of a batch, and its subclass `UnsupportedBatch` when they
    belong to another format version or an unknown codec.
    """
    view = memoryview(buffer)
    at = base_position + position
    if not 0 <= position <= len(view) - HEADER_BYTES:
        _check_magic_and_length(view, position, where, at)
        raise CorruptBatch(where, at, f"cut short: {len(view) - position} bytes, but a header takes {HEADER_BYTES}")
    header = BatchHeader._make(_HEADER.unpack_from(view, position))
    if header.magic != BATCH_MAGIC or header.batch_length < HEADER_BYTES - _LOG_OVERHEAD:
        _check_magic_and_length(view, position, where, at)
    reason = _find_header_fault(header)
    if reason is not None:
        raise CorruptBatch(where, at, reason)
    if header.attributes & _CODEC_MASK > Codec.ZSTD:
        raise UnsupportedBatch(where, at, f"codec {header.attributes & _CODEC_MASK} is unknown")
    return header


def _check_magic_and_length(view: memoryview, position: int, where: str, at: int) -> None:
    """Raise for a wrong magic or length, if there are enough bytes to read them."""
    if position < 0 or len(view) - position <= _MAGIC_OFFSET:
        return
    length = _LENGTH.unpack_from(view, position + _LENGTH_OFFSET)[0]
    magic = view[position + _MAGIC_OFFSET]
    if length < 0:
        raise CorruptBatch(where, at, f"batch length {length} is negative")
    if magic in (0, 1):
        raise UnsupportedBatch(
            where,
            at,
            f"message format v{magic} (Kafka before 0.11); only v2 is read. Rewrite the topic with Kafka ≥ 0.11",
        )
    if magic != BATCH_MAGIC:
        raise UnsupportedBatch(where, at, f"magic {magic} is an unknown message format; only v2 is read")
    if length < HEADER_BYTES - _LOG_OVERHEAD:
        raise CorruptBatch(where, at, f"batch length {length} is less than a header ({HEADER_BYTES - _LOG_OVERHEAD})")


def _find_header_fault(header: BatchHeader) -> str | None:
    """Return which fields of a v2 header contradict each other; None if they do not."""
    count, delta = header.record_count, header.last_offset_delta
    if header.base_offset < 0 or delta < 0 or header.base_offset + delta > _MAX_OFFSET:
        return f"offsets are impossible: base offset {header.base_offset}, last offset delta {delta}"
    if not 0 <= count <= delta + 1:
        return f"record count {count} does not fit {delta + 1} offsets"
    body = header.batch_length - (HEADER_BYTES - _LOG_OVERHEAD)
    if not header.attributes & _CODEC_MASK and count * _MIN_RECORD_BYTES > body:
        return f"record count {count} does not fit {body} bytes of records"
    return None


class Frames(Iterator[Frame]):
    """The record batches of a buffer, in order; see `frames`."""

    def __init__(
        self, buffer: Buffer, where: str, *, base_position: int, allow_partial: bool, first_base_offset: int
    ) -> None:
        view = memoryview(buffer)
        self._view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        self._where = where
        self._base_position = base_position
        self._allow_partial = allow_partial
        self.next_offset = first_base_offset
        """The next offset of the last batch that was yielded: the lowest base offset that the next batch may have."""
        self.stopped_at = 0
        """The number of bytes in the batches that were yielded: at the end, where a partial batch starts."""
        self._frames = self._scan()

    def __iter__(self) -> Iterator[Frame]:
        return self._frames

    def __next__(self) -> Frame:
        return next(self._frames)

    def _scan(self) -> Iterator[Frame]:
        view, end, where, base = self._view, len(self._view), self._where, self._base_position
        position = 0
        while position < end:
            if self._allow_partial and end - position < HEADER_BYTES:
                _check_magic_and_length(view, position, where, base + position)
                return
            header = read_header(view, position, where, base_position=base)
            stop = position + header.size_bytes
            if stop > end:
                if self._allow_partial:
                    return
                raise CorruptBatch(
                    where, base + position, f"cut short: {end - position:,} bytes of a batch of {header.size_bytes:,}"
                )
            if header.base_offset < self.next_offset:
                raise CorruptBatch(
                    where, base + position, f"base offset {header.base_offset} after offset {self.next_offset - 1}"
                )
            # Count the frame before the yield, so that it is also counted if the caller stops the iteration.
            self.next_offset, self.stopped_at = header.next_offset, stop
            yield Frame(base + position, header, view[position:stop])
            position = stop


def frames(
    buffer: Buffer, *, where: str, base_position: int = 0, allow_partial: bool = False, first_base_offset: int = 0
) -> Frames:
    """Iterate over the record batches in `buffer`, without copying, and without reading records or checksums.

    `where` names the object or topic-partition in errors, and `base_position` is the byte of it at which `buffer`
    starts. With `allow_partial` the last batch may be cut short, as in Kafka's fetch responses. It is not yielded, and
    `stopped_at` is then its position in `buffer`. A response with less than one whole batch yields no frame and has
    `stopped_at == 0`. `first_base_offset`: the lowest base offset allowed for the first batch.

    Raises `CorruptBatch` or `UnsupportedBatch` as `read_header` does; also when a batch does not end within the buffer,
    or starts before the end of the batch before it.
    """
    return Frames(
        buffer, where, base_position=base_position, allow_partial=allow_partial, first_base_offset=first_base_offset
    )


def read_frames(
    stream: ByteStream, where: str, *, chunk_bytes: int = 1 << 20, max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
) -> Iterator[Frame]:
    """Iterate over the record batches of a stream, with at most a chunk and one batch in memory.

    A frame's data stays valid as long as a reference to the frame exists, which also keeps its chunk in memory.

    Raises `CorruptBatch` or `UnsupportedBatch` as `frames` does; also for a batch longer than `max_batch_bytes`.
    """
    position, next_offset, rest = 0, 0, b""
    while True:
        buffer = rest + _read_at_least(stream, _missing(rest, position, where, max_batch_bytes), chunk_bytes)
        at_end = len(buffer) == len(rest)
        scan = frames(
            buffer, where=where, base_position=position, allow_partial=not at_end, first_base_offset=next_offset
        )
        yield from scan
        if at_end:
            return
        position, next_offset, rest = position + scan.stopped_at, scan.next_offset, buffer[scan.stopped_at :]


def _missing(rest: bytes, position: int, where: str, max_batch_bytes: int) -> int:
    """Return how many bytes of the batch at the start of `rest` are missing; 0 if its header is not complete yet."""
    if len(rest) < HEADER_BYTES:
        return 0
    size = read_header(rest, 0, where, base_position=position).size_bytes
    if size > max_batch_bytes:
        raise CorruptBatch(
            where,
            position,
            f"batch length {size - _LOG_OVERHEAD:,} exceeds {max_batch_bytes:,} bytes: the length is probably damaged",
        )
    return size - len(rest)


def _read_at_least(stream: ByteStream, wanted: int, chunk_bytes: int) -> bytes:
    """Read at least `wanted` bytes and at least one piece; fewer only at the end of the stream."""
    pieces: list[bytes] = []
    while not pieces or wanted > 0:
        # Read in steps of a chunk, so that a damaged length does not allocate a huge buffer.
        piece = stream.read(chunk_bytes)
        if not piece:
            break
        pieces.append(piece)
        wanted -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def check_crc(frame: Frame, where: str) -> None:
    """Raise `CorruptBatch` unless the CRC-32C of the batch's bytes is the one in its header.

    Batches of 32 KiB and more release the GIL, so that threads can check in parallel.
    """
    crc = crc32c.crc32c(frame.data[_CRC_START:])
    if crc != frame.header.crc:
        raise CorruptBatch(
            where,
            frame.position,
            f"CRC-32C of the batch at offset {frame.header.base_offset} is {crc:#010x}, its header has "
            f"{frame.header.crc:#010x}",
        )


def control_type(frame: Frame, where: str) -> ControlType | None:
    """Return the type of a control batch; None for a data batch and for a batch emptied by compaction.

    Raises `CorruptBatch` when the record of a control batch is not a control record.
    """
    header = frame.header
    if not header.is_control or not header.record_count:
        return None
    if header.codec is not Codec.NONE:
        raise UnsupportedBatch(where, frame.position, f"control batch compressed with {header.codec.name}")
    try:
        code = _control_code(frame.data)
    except (IndexError, struct.error):
        raise CorruptBatch(where, frame.position, "control record is malformed") from None
    return ControlType(code) if code in ControlType._value2member_map_ else ControlType.UNKNOWN


def is_abort_marker(frame: Frame, where: str) -> bool:
    """Return whether the batch ends an aborted transaction of its producer id."""
    return control_type(frame, where) is ControlType.ABORT


def _control_code(batch: memoryview) -> int:
    """Return the type in the key of a control batch's first record. The key is (version int16, type int16)."""
    position = _skip_varint(batch, HEADER_BYTES) + 1  # the record's length, then its attributes
    position = _skip_varint(batch, _skip_varint(batch, position))  # timestamp delta, offset delta
    if batch[position] < 2 * _CONTROL_KEY.size:  # the key's length, zigzag; one byte for any key that Kafka writes
        raise IndexError
    version, code = _CONTROL_KEY.unpack_from(batch, position + 1)
    return int(code) if version >= 0 else ControlType.UNKNOWN


def _skip_varint(batch: memoryview, position: int) -> int:
    while batch[position] & 0x80:
        position += 1
    return position + 1


def empty_batch(
    base_offset: int,
    next_offset: int,
    *,
    leader_epoch: int,
    max_timestamp_ms: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """Return a batch without records that covers `[base_offset, next_offset)`.

    Kafka's log cleaner writes such batches (`DefaultRecordBatch.writeEmptyHeader`), so every reader of the format
    accepts them. A backup object ends with one when the last offsets of its range are control or aborted batches. So
    the object's data alone shows where its range ends.

    Raises `ValueError` unless `0 <= base_offset < next_offset` and at most `MAX_OFFSETS_IN_BATCH` offsets are covered.
    """
    if not 0 <= base_offset < next_offset <= _MAX_OFFSET + 1 or next_offset - base_offset > MAX_OFFSETS_IN_BATCH:
        raise ValueError(
            f"[{base_offset}, {next_offset}) is not a range for one batch: it must hold between 1 and "
            f"{MAX_OFFSETS_IN_BATCH} offsets"
        )
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=BATCH_MAGIC,
        crc=0,
        attributes=_LOG_APPEND_TIME if timestamp_type is TimestampType.LOG_APPEND_TIME else 0,
        last_offset_delta=next_offset - base_offset - 1,
        base_timestamp_ms=-1,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=0,
    )
    return pack_batch(header, b"")


def with_offsets_from(batches: Buffer, first_offset: int) -> bytes:
    """Return batches, whose offsets begin with 0, with offsets from `first_offset` on.

    Only the base offsets change, on which neither the CRCs nor the records depend.
    """
    changed = bytearray(batches)
    for frame in frames(batches, where="new record batches"):
        _OFFSET.pack_into(changed, frame.position, frame.header.base_offset + first_offset)
    return bytes(changed)


def pack_batch(header: BatchHeader, records: Buffer) -> bytes:
    """Return a batch of a header and a records section, with the length and the CRC set.

    The records section must be compressed with the codec in the header's attributes.
    """
    body = memoryview(records).cast("B")
    batch = bytearray(HEADER_BYTES + len(body))
    header = header._replace(batch_length=len(batch) - _LOG_OVERHEAD, crc=0)
    _HEADER.pack_into(batch, 0, *header)
    batch[HEADER_BYTES:] = body
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c.crc32c(memoryview(batch)[_CRC_START:]))
    return bytes(batch)
