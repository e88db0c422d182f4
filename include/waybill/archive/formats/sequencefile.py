"""Hadoop's SequenceFile, version 6: messages as keys and values (`org.apache.hadoop.io.SequenceFile`).

With the key format `legacy`, the key is the offset as a `LongWritable`. With `msgpack`, the key is a `BytesWritable`
that holds a MessagePack map: 1 -> the offset as int64, 2 -> the Kafka key, absent if the message has none. The value is
a `BytesWritable`; a null value becomes an empty one. Uncompressed files hold single records, compressed files hold
blocks of about a mebibyte.

Importing this module imports numba and pyarrow.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa

from waybill.archive.formats import _kernels as kernels
from waybill.archive.formats.columns import BinaryColumn, binary_column, message_batch
from waybill.base.errors import DamagedObject
from waybill.config.models.enums import Compression, SequenceFileKey
from waybill.records.batches.framing import ByteStream
from waybill.services.store.objects import read_exactly

BLOCK_BYTES = 1 << 20
"""Size of the keys and values of a block before compression: Hadoop's own default."""

_MAGIC = b"SEQ\x06"
_BYTES_WRITABLE = "org.apache.hadoop.io.BytesWritable"
_KEY_CLASSES = {SequenceFileKey.LEGACY: "org.apache.hadoop.io.LongWritable", SequenceFileKey.MSGPACK: _BYTES_WRITABLE}
_CODECS = {
    Compression.GZIP: "org.apache.hadoop.io.compress.GzipCodec",
    Compression.SNAPPY: "org.apache.hadoop.io.compress.SnappyCodec",
    Compression.ZSTD: "org.apache.hadoop.io.compress.ZStandardCodec",
}
_ESCAPE = b"\xff\xff\xff\xff"
_SYNC_INTERVAL = 100 << 10
_SNAPPY_CHUNK_BYTES = 192 << 10
"""Hadoop's decompressor has a buffer of 256 KiB for compressed bytes too, and snappy may add a sixth to its input."""
_GZIP_LEVEL = 4
_ZSTD_LEVEL = 1
_INT = struct.Struct(">i")
_MAX_BUFFER_BYTES = 1 << 30
_MAX_TEXT_BYTES = 1 << 16
_READ_BYTES = 4 << 20
_ROWS = 1 << 16
_REASONS = {
    kernels.SequenceFileFault.RECORD_LENGTH: "a record is shorter than a key and a value",
    kernels.SequenceFileFault.KEY: "a key is malformed",
    kernels.SequenceFileFault.VALUE: "a value does not fill its record",
    kernels.SequenceFileFault.SYNC: "a sync mark differs from the one in the file's header",
    kernels.SequenceFileFault.LENGTHS: "the lengths in a block do not match its content",
}


# --- writing ----------------------------------------------------------------------------------------------------------


class SequenceFileWriter:
    """Encodes messages of `MESSAGE_SCHEMA` as the bytes of one file: `begin`, any number of `write`, `finish`."""

    def __init__(
        self,
        key: SequenceFileKey,
        compression: Compression,
        metadata: Mapping[str, str],
        sync: bytes | None = None,
    ) -> None:
        self._packed = int(key is SequenceFileKey.MSGPACK)
        self._key = key
        self._compression = compression
        self._metadata = metadata
        # A reader that starts in the middle of the file searches for the sync bytes. They are random, so that no
        # producer can send a message that contains them.
        self._sync = os.urandom(kernels.SYNC_BYTES) if sync is None else sync
        self._since_sync = 0

    def begin(self) -> bytes:
        """Return the file's header."""
        codec = _CODECS.get(self._compression)
        parts = [_MAGIC, _text(_KEY_CLASSES[self._key]), _text(_BYTES_WRITABLE)]
        parts += [b"\x01\x01", _text(codec)] if codec else [b"\x00\x00"]
        parts.append(_INT.pack(len(self._metadata)))
        parts += [_text(key) + _text(value) for key, value in sorted(self._metadata.items())]
        return b"".join([*parts, self._sync])

    def rejections(self, messages: pa.RecordBatch) -> pa.Array | None:  # noqa: ARG002
        """Return None: a SequenceFile can hold every message."""
        return None

    def write(self, messages: pa.RecordBatch) -> Iterator[memoryview | bytes]:
        """Yield the next bytes of the file."""
        offsets = messages.column("offset").to_numpy()
        keys, values = (
            BinaryColumn.from_array(messages.column("key")),
            BinaryColumn.from_array(messages.column("value")),
        )
        if self._compression is Compression.NONE:
            yield self._records(offsets, keys, values)
            return
        for start, stop in _blocks(keys, values):
            yield from self._block(offsets[start:stop], _slice(keys, start, stop), _slice(values, start, stop))

    def finish(self) -> bytes:
        """Return the last bytes of the file: none."""
        return b""

    def _records(self, offsets: Any, keys: BinaryColumn, values: BinaryColumn) -> memoryview:
        room = len(offsets) * (12 + kernels.MAX_KEY_BYTES) + keys.size_bytes + values.size_bytes
        target = np.empty(room + (room // _SYNC_INTERVAL + 2) * kernels.SYNC_MARK_BYTES, np.uint8)
        sync = np.frombuffer(self._sync, np.uint8)
        size, self._since_sync = kernels.write_records(
            *(self._packed, offsets, keys.data, keys.starts, keys.nulls, values.data, values.starts),
            *(sync, self._since_sync, _SYNC_INTERVAL, target),
        )
        return target[:size].data

    def _block(self, offsets: Any, keys: BinaryColumn, values: BinaryColumn) -> Iterator[bytes]:
        count = len(offsets)
        lengths = count * kernels.MAX_VINT_BYTES
        rooms = (lengths, count * kernels.MAX_KEY_BYTES + keys.size_bytes, lengths, 4 * count + values.size_bytes)
        buffers = [np.empty(room, np.uint8) for room in rooms]
        sizes = np.empty(4, np.int64)
        kernels.write_block(
            *(self._packed, offsets, keys.data, keys.starts, keys.nulls, values.data, values.starts),
            *(buffers[0], buffers[1], buffers[2], buffers[3], sizes),
        )
        yield _ESCAPE + self._sync + _vint(count)
        for buffer, size in zip(buffers, sizes, strict=True):
            compressed = _compress(self._compression, buffer[:size].data)
            yield _vint(len(compressed))
            yield compressed


def _blocks(keys: BinaryColumn, values: BinaryColumn) -> Iterator[tuple[int, int]]:
    """Yield the rows `[start, stop)` of blocks of about equal size.

    A block is not much larger than `BLOCK_BYTES` unless one message is.
    """
    count = len(values.starts) - 1
    ends = values.starts[1:].astype(np.int64) + keys.starts[1:] + 16 * np.arange(1, count + 1)
    ends -= np.int64(values.starts[0]) + keys.starts[0]
    blocks = max(1, -(-int(ends[-1]) // BLOCK_BYTES))
    cuts = np.searchsorted(ends, np.arange(1, blocks) * (int(ends[-1]) / blocks), side="left")
    edges = [0, *(int(cut) for cut in cuts), count]
    for start, stop in pairwise(edges):
        if start < stop:
            yield start, stop


def _slice(column: BinaryColumn, start: int, stop: int) -> BinaryColumn:
    nulls = column.nulls[start:stop] if column.nulls.size else column.nulls
    return BinaryColumn(column.data, column.starts[start : stop + 1], nulls)


def _compress(compression: Compression, data: memoryview) -> bytes:
    if compression is Compression.GZIP:
        return bytes(cramjam.gzip.compress(data, _GZIP_LEVEL))
    if compression is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL))
    # The format of Hadoop's `BlockCompressorStream`: the uncompressed length, then each chunk after its compressed
    # length.
    pieces = [_INT.pack(len(data))]
    for start in range(0, len(data), _SNAPPY_CHUNK_BYTES):
        chunk = bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_CHUNK_BYTES]))
        pieces += (_INT.pack(len(chunk)), chunk)
    return b"".join(pieces)


def _text(text: str) -> bytes:
    data = text.encode()
    return _vint(len(data)) + data


def _vint(value: int) -> bytes:
    """Encode a non-negative number as Hadoop's VInt (`WritableUtils.writeVInt`)."""
    if value <= 127:
        return bytes([value])
    size = (value.bit_length() + 7) // 8
    return bytes([256 - 112 - size]) + value.to_bytes(size, "big")


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a file."""

    key: SequenceFileKey
    compression: Compression
    metadata: Mapping[str, str]
    sync: bytes
    size_bytes: int
    """Size of the header itself."""


def read_header(source: ByteStream, where: str) -> FileHeader:
    """Read the header of a file from the start of `source`.

    Raises `DamagedObject` when `SequenceFileWriter` does not write such a header; `where` names the object.
    """
    reader = _BlockReader(source, where)
    magic = reader.take(4)
    if magic != _MAGIC:
        raise DamagedObject(where, 0, f"is not a SequenceFile of version 6: it starts with {magic!r}")
    key_class, value_class = reader.text(), reader.text()
    compressed, in_blocks = reader.take(1) != b"\x00", reader.take(1) != b"\x00"
    codec = reader.text() if compressed else None
    metadata = {}
    for _ in range(_INT.unpack(reader.take(4))[0]):
        name = reader.text()
        metadata[name] = reader.text()
    key = next((key for key, name in _KEY_CLASSES.items() if name == key_class), None)
    compression = next((c for c, name in _CODECS.items() if name == codec), Compression.NONE)
    if key is None or value_class != _BYTES_WRITABLE:
        raise DamagedObject(where, 4, f"holds {key_class} and {value_class}, which Waybill does not write")
    if compressed and (compression is Compression.NONE or not in_blocks):
        raise DamagedObject(where, 4, f"is compressed {'by' if in_blocks else 'record by record, by'} {codec}")
    return FileHeader(key, compression, metadata, reader.take(kernels.SYNC_BYTES), reader.position)


def read_messages(source: ByteStream, where: str) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a file, in the order of the file.

    The batches are of `MESSAGE_SCHEMA`, without timestamps and headers; with the key format `legacy` the key is null. A
    RecordBatch holds a few megabytes, or one message.

    Raises `DamagedObject` when the bytes are not a sound file. Earlier batches may be wrong too, since a file has no
    checksums.
    """
    header = read_header(source, where)
    if header.compression is Compression.NONE:
        yield from _read_records(source, where, header)
    else:
        yield from _read_blocks(source, where, header)


def _read_records(source: ByteStream, where: str, header: FileHeader) -> Iterator[pa.RecordBatch]:
    packed, sync = int(header.key is SequenceFileKey.MSGPACK), np.frombuffer(header.sync, np.uint8)
    offsets, spans = np.empty(_ROWS, np.int64), np.empty((4, _ROWS), np.int64)
    position, pending = header.size_bytes, np.empty(0, np.uint8)
    while True:
        rows, scanned, fault = kernels.scan_records(packed, pending, pending.size, sync, offsets, spans)
        if rows:
            yield _batch(offsets[:rows].copy(), spans[:, :rows], pending, pending)
        position += scanned
        if fault:
            raise DamagedObject(where, position, _REASONS[kernels.SequenceFileFault(fault)])
        pending = pending[scanned:]
        if rows == _ROWS:
            continue
        more = source.read(max(_READ_BYTES, pending.size))
        if not more:
            break
        pending = np.concatenate([pending, np.frombuffer(more, np.uint8)])
    if pending.size:
        raise DamagedObject(where, position, "is cut short: the last record is not complete")


def _read_blocks(source: ByteStream, where: str, header: FileHeader) -> Iterator[pa.RecordBatch]:
    packed, reader = int(header.key is SequenceFileKey.MSGPACK), _BlockReader(source, where, header.size_bytes)
    while mark := source.read(1):
        begin = reader.position
        reader.position += 1
        mark += reader.take(kernels.SYNC_MARK_BYTES - 1)
        if mark != _ESCAPE + header.sync:
            raise DamagedObject(where, begin, _REASONS[kernels.SequenceFileFault.SYNC])
        rows = reader.vint()
        key_lengths, keys, value_lengths, values = (
            _decompress(header.compression, reader.take(reader.vint()), where, begin) for _ in range(4)
        )
        if not 0 < rows <= key_lengths.size:
            raise DamagedObject(where, begin, _REASONS[kernels.SequenceFileFault.LENGTHS])
        offsets, spans = np.empty(rows, np.int64), np.empty((4, rows), np.int64)
        fault = kernels.scan_block(packed, key_lengths, keys, value_lengths, values, offsets, spans)
        if fault:
            raise DamagedObject(where, begin, _REASONS[kernels.SequenceFileFault(fault)])
        yield _batch(offsets, spans, keys, values)


def _batch(offsets: Any, spans: Any, keys: Any, values: Any) -> pa.RecordBatch:
    return message_batch(
        pa.array(offsets), binary_column(keys, spans[0], spans[1]), binary_column(values, spans[2], spans[3])
    )


class _BlockReader:
    """Reads the fields of a header or a block, and keeps the position for errors."""

    def __init__(self, source: ByteStream, where: str, position: int = 0) -> None:
        self._source = source
        self._where = where
        self.position = position

    def take(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_BUFFER_BYTES:
            raise DamagedObject(self._where, self.position, f"a length of {size:,} bytes is impossible")
        data = read_exactly(self._source, size, self._where, self.position)
        self.position += size
        return data

    def vint(self) -> int:
        first = self.take(1)[0]
        if first <= 127:
            return first
        size = 144 - first
        if not 1 <= size <= 4:
            raise DamagedObject(self._where, self.position - 1, "a length is malformed")
        return int.from_bytes(self.take(size), "big")

    def text(self) -> str:
        begin, size = self.position, self.vint()
        if size > _MAX_TEXT_BYTES:
            raise DamagedObject(self._where, begin, f"a text of {size:,} bytes in a header is impossible")
        return self.take(size).decode("utf-8", errors="replace")


def _decompress(compression: Compression, data: bytes, where: str, position: int) -> Any:
    try:
        if compression is Compression.GZIP:
            content: Any = cramjam.gzip.decompress(data)
        elif compression is Compression.ZSTD:
            content = cramjam.zstd.decompress(data)
        else:
            return _decompress_snappy(memoryview(data))
    except (cramjam.DecompressionError, ValueError, struct.error) as error:
        raise DamagedObject(where, position, f"a block cannot be decompressed ({compression}: {error})") from None
    return np.frombuffer(content, np.uint8)


def _decompress_snappy(data: memoryview) -> Any:
    (size,) = _INT.unpack_from(data)
    if not 0 <= size <= _MAX_BUFFER_BYTES:
        raise ValueError(f"a size of {size:,} bytes is impossible")
    output = np.empty(size, np.uint8)
    position, written = _INT.size, 0
    while position < len(data):
        (length,) = _INT.unpack_from(data, position)
        position += _INT.size
        if not 0 < length <= len(data) - position:
            raise ValueError("a chunk is cut short")
        written += int(cramjam.snappy.decompress_raw_into(data[position : position + length], output[written:].data))
        position += length
    if written != size:
        raise ValueError(f"{written:,} bytes instead of {size:,}")
    return output
