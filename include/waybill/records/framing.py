"""Kafka's record batches, format v2, as frames: where each starts and ends and what its header says.

The format is that of Kafka's documentation, "Implementation, Message Format, Record Batch" (KIP-98; delete horizon:
KIP-534). A record batch is a header of 61 bytes, big-endian, then its records, compressed as a whole or not:

    baseOffset int64 | batchLength int32 | partitionLeaderEpoch int32 | magic int8 | crc uint32 | attributes int16 |
    lastOffsetDelta int32 | baseTimestamp int64 | maxTimestamp int64 | producerId int64 | producerEpoch int16 |
    baseSequence int32 | recordCount int32

`batchLength` counts what follows it. `crc` is the CRC-32C of all bytes from `attributes` to the end of the batch:
`baseOffset`, `batchLength` and `partitionLeaderEpoch` are outside of it, since brokers set them. What protects those
are the checks here: lengths that fit, and offsets that grow from batch to batch.

Nothing here looks at records, so the cost is that of a header: about two microseconds a batch. The module
imports neither numpy nor numba: ingest lanes start every minute.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import crc32c

from waybill.errors import CorruptBatch, UnsupportedBatch

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "BATCH_MAGIC",
    "DEFAULT_MAX_BATCH_BYTES",
    "HEADER_BYTES",
    "MAX_OFFSETS_IN_BATCH",
    "BatchHeader",
    "Codec",
    "ControlType",
    "Frame",
    "Frames",
    "TimestampType",
    "check_crc",
    "control_type",
    "empty_batch",
    "frames",
    "is_abort_marker",
    "pack_batch",
    "read_frames",
    "read_header",
]

BATCH_MAGIC = 2
"""The `magic` of format v2, the only one that is read and written here."""

HEADER_BYTES = 61
"""Size of a batch's header, and so of a batch without records."""

MAX_OFFSETS_IN_BATCH = 1 << 31
"""The last offset of a batch is an int32 distance from its first."""

DEFAULT_MAX_BATCH_BYTES = 256 << 20
"""A batch longer than this is taken for a damaged length. Kafka's own default for `max.message.bytes` is 1 MiB."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_OFFSET, _MAGIC_OFFSET, _CRC_OFFSET, _CRC_START = 8, 16, 17, 21
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_CONTROL_KEY = struct.Struct(">hh")
_LOG_OVERHEAD = 12
_MIN_RECORD_BYTES = 7  # a length, attributes, two deltas, two null lengths and a header count of one byte each
_MAX_OFFSET = (1 << 63) - 2  # one below the largest int64, so that the next offset is one, too
_CODEC_MASK, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40


class Codec(IntEnum):
    """Compression of a batch's records, as in the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Who set the timestamps: the producer, each record its own, or the broker, one for the whole batch."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlType(IntEnum):
    """What a control record says (Kafka's `ControlRecordType`). Consumers never see control records."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class BatchHeader(NamedTuple):
    """The 61 bytes that a record batch starts with. Immutable. Times are milliseconds since 1970 UTC, -1 for none."""

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
        """The offset after the batch's last. Compaction keeps it, also when it removes the last records."""
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

        Record timestamps are relative to `base_timestamp_ms` all the same: the cleaner rewrites their deltas.
        """
        return bool(self.attributes & _DELETE_HORIZON)

    @property
    def is_dense(self) -> bool:
        """Whether the batch holds a record for every offset from its first to its last."""
        return self.record_count == self.last_offset_delta + 1


class Frame(NamedTuple):
    """One record batch and where it was found."""

    position: int
    """Byte position in the object, or in whatever `where` names."""
    header: BatchHeader
    data: memoryview
    """The whole batch, header included."""


class ByteStream(Protocol):
    """What can be read like a file: a file, `io.BytesIO`, the body of an S3 object."""

    def read(self, size: int, /) -> bytes: ...


def read_header(buffer: Buffer, position: int, where: str, *, base_position: int = 0) -> BatchHeader:
    """Read and check the header of the batch that starts at `position` of `buffer`.

    `base_position` is where `buffer` itself starts in `where`; errors name the sum. The records and the CRC are not
    looked at; whether the batch ends within `buffer` is not either.

    Raises `CorruptBatch` when the bytes cannot be a batch's header, and its subclass `UnsupportedBatch` when they can
    be one of another format version or an unknown codec.
    """
    view = memoryview(buffer)
    at = base_position + position
    if not 0 <= position <= len(view) - HEADER_BYTES:
        _check_magic_and_length(view, position, where, at)
        raise CorruptBatch(where, at, f"cut short: {len(view) - position} bytes where a header takes {HEADER_BYTES}")
    header = BatchHeader._make(_HEADER.unpack_from(view, position))
    if header.magic != BATCH_MAGIC or header.batch_length < HEADER_BYTES - _LOG_OVERHEAD:
        _check_magic_and_length(view, position, where, at)
    reason = _fault(header)
    if reason is not None:
        raise CorruptBatch(where, at, reason)
    if header.attributes & _CODEC_MASK > Codec.ZSTD:
        raise UnsupportedBatch(where, at, f"codec {header.attributes & _CODEC_MASK} is unknown")
    return header


def _check_magic_and_length(view: memoryview, position: int, where: str, at: int) -> None:
    """Name a wrong magic or length, if there are enough bytes to tell."""
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
        raise UnsupportedBatch(where, at, f"magic {magic} is no known message format; only v2 is read")
    if length < HEADER_BYTES - _LOG_OVERHEAD:
        raise CorruptBatch(where, at, f"batch length {length} is less than a header ({HEADER_BYTES - _LOG_OVERHEAD})")


def _fault(header: BatchHeader) -> str | None:
    """What is wrong with a v2 header's figures, or None."""
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
        """The lowest base offset that the next batch may have: the next offset of the last batch seen."""
        self.stopped_at = 0
        """Bytes of the buffer taken by the whole batches seen so far; at the end, where a partial batch starts."""
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
            # Before the yield: whoever stops in between finds this frame counted as seen.
            self.next_offset, self.stopped_at = header.next_offset, stop
            yield Frame(base + position, header, view[position:stop])
            position = stop


def frames(
    buffer: Buffer, *, where: str, base_position: int = 0, allow_partial: bool = False, first_base_offset: int = 0
) -> Frames:
    """Iterate over the record batches in `buffer`, without copying and without looking at records or checksums.

    `where` names the object or topic-partition in errors, and `base_position` is the byte in it at which `buffer`
    starts. With `allow_partial` the last batch may be cut short, as in a fetch response of Kafka: it is left out, and
    `stopped_at` of what is returned says where it starts in `buffer`. A response that holds less than one whole batch
    gives no frame and `stopped_at == 0`. `first_base_offset`: the lowest base offset allowed for the first batch.

    Raises `CorruptBatch` or `UnsupportedBatch`, as `read_header`; also when a batch does not end within the buffer or
    does not start at or after the end of the one before it.
    """
    return Frames(
        buffer, where, base_position=base_position, allow_partial=allow_partial, first_base_offset=first_base_offset
    )


def read_frames(
    stream: ByteStream, where: str, *, chunk_bytes: int = 1 << 20, max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
) -> Iterator[Frame]:
    """Iterate over the record batches of a stream, holding at most a chunk and one batch.

    A frame's data stays valid for as long as the frame is kept; keeping frames keeps their chunks in memory.

    Raises `CorruptBatch` or `UnsupportedBatch`, as `frames`; also for a batch longer than `max_batch_bytes`.
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
    """How many bytes the batch that `rest` begins still lacks; 0 when there is no telling yet."""
    if len(rest) < HEADER_BYTES:
        return 0
    size = read_header(rest, 0, where, base_position=position).size_bytes
    if size > max_batch_bytes:
        raise CorruptBatch(
            where,
            position,
            f"batch length {size - _LOG_OVERHEAD:,} is beyond the limit of {max_batch_bytes:,} bytes a batch. "
            f"If the topic's max.message.bytes is that large, raise max_batch_bytes",
        )
    return size - len(rest)


def _read_at_least(stream: ByteStream, wanted: int, chunk_bytes: int) -> bytes:
    """Read `wanted` bytes, but at least something, in steps of a chunk; less only at the stream's end."""
    pieces: list[bytes] = []
    while not pieces or wanted > 0:
        # In steps: a damaged length must not make one huge allocation.
        piece = stream.read(chunk_bytes)
        if not piece:
            break
        pieces.append(piece)
        wanted -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def check_crc(frame: Frame, where: str) -> None:
    """Raise `CorruptBatch` unless the batch's bytes have the CRC-32C that its header says.

    The GIL is released for batches of 32 KiB and more, so that threads can check in parallel.
    """
    found = crc32c.crc32c(frame.data[_CRC_START:])
    if found != frame.header.crc:
        raise CorruptBatch(
            where,
            frame.position,
            f"CRC-32C of the batch at offset {frame.header.base_offset} is {found:#010x}, its header says "
            f"{frame.header.crc:#010x}",
        )


def control_type(frame: Frame, where: str) -> ControlType | None:
    """What the first record of a control batch says; None for a data batch and for a batch emptied by compaction.

    Raises `CorruptBatch` when the batch's record is not a control record.
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
    """Whether the batch ends an aborted transaction of its producer id."""
    return control_type(frame, where) is ControlType.ABORT


def _control_code(batch: memoryview) -> int:
    """The type in the key of a control batch's first record; the key is (version int16, type int16)."""
    position = _skip_varint(batch, HEADER_BYTES) + 1  # the record's length, then its attributes
    position = _skip_varint(batch, _skip_varint(batch, position))  # timestamp delta, offset delta
    if batch[position] < 2 * _CONTROL_KEY.size:  # the key's length, zigzag; one byte for any key that exists
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
    """A batch without records that covers `[base_offset, next_offset)`.

    Kafka's log cleaner leaves such batches behind (`DefaultRecordBatch.writeEmptyHeader`), so every reader of the
    format knows them. Ingest ends an object with one when the last offsets of its range are control or aborted
    batches: then the object's data alone says where its range ends.

    Raises `ValueError` unless `0 <= base_offset < next_offset` and at most `MAX_OFFSETS_IN_BATCH` offsets are covered.
    """
    if not 0 <= base_offset < next_offset <= _MAX_OFFSET + 1 or next_offset - base_offset > MAX_OFFSETS_IN_BATCH:
        raise ValueError(
            f"[{base_offset}, {next_offset}) is no range for one batch: it must hold between 1 and "
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


def pack_batch(header: BatchHeader, records: Buffer) -> bytes:
    """Put a header before a records section (compressed as the header's attributes say); length and CRC are set."""
    body = memoryview(records).cast("B")
    batch = bytearray(HEADER_BYTES + len(body))
    header = header._replace(batch_length=len(batch) - _LOG_OVERHEAD, crc=0)
    _HEADER.pack_into(batch, 0, *header)
    batch[HEADER_BYTES:] = body
    _CRC.pack_into(batch, _CRC_OFFSET, crc32c.crc32c(memoryview(batch)[_CRC_START:]))
    return bytes(batch)
