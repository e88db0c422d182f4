"""Compression of record batches: Kafka's four codecs, and zstd for batches that producers sent uncompressed.

The bytes of each codec are those of Kafka (`org.apache.kafka.common.compress`): gzip with any number of members; snappy
in xerial's framing (Java clients) or raw (librdkafka); lz4 frames; zstd frames. cramjam implements all of them.

Recompression does not decode records. A compressed batch is the same 61-byte header before the same records section,
compressed as a whole (KIP-98). So compressing a batch rewrites four things: the codec in its attributes, the records
section, the length and the CRC-32C. All other fields stay unchanged: offsets, leader epoch, timestamps, producer id and
sequence, the transactional bit, the delete horizon. A reader cannot distinguish such a batch from one that the producer
compressed.

Recompression does not change batches that are compressed already, control batches (Kafka never compresses those),
batches without records, and batches that zstd would not make smaller.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import cramjam

from waybill.records.batches.framing import HEADER_BYTES, Codec, Frame, pack_batch, read_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10
_BLOCK_LENGTH = struct.Struct(">i")
_SNAPPY_RATIO = 24
"""Snappy's shortest copy takes 3 bytes for 64: no block holds more than 22 times its own bytes."""
_ARROW_NAMES = {Codec.GZIP: "gzip", Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}
_MODULES: dict[Codec, Any] = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}
# cramjam's errors differ only in their text; unit tests check these texts against the installed version.
_TOO_SMALL = ("failed to write whole buffer", "output buffer")

_THREADS = 2
_GROUP_BYTES = 256 << 10  # compressed in one task: passing a batch to a thread costs as much as compressing a small one
_GROUPS_AHEAD = 2 * _THREADS

Batch = tuple[Frame, bool]
"""A record batch, and whether it is archived."""


class OutputTooSmall(Exception):
    """The decompressed bytes do not fit into the output. Their size is unknown."""


class BadCompression(Exception):
    """The bytes are not valid for the codec."""


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress a records section as Kafka's Java client does, at the codec's default level."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec is Codec.LZ4:
        return _compress_lz4(data)
    return bytes(_MODULES[codec].compress(data))


def compress_zstd(data: Buffer, level: int) -> bytes:
    """Compress with zstd at a level from 1 (fast) to 22. The GIL is released."""
    return bytes(cramjam.zstd.compress(data, level))


def decompress_into(codec: Codec, data: memoryview, output: memoryview) -> int:
    """Decompress a records section into `output` and return how many bytes of it were written.

    Raises `OutputTooSmall` or `BadCompression`; the content of `output` is then undefined.
    """
    try:
        if codec is Codec.NONE:
            return _copy(data, output)
        if codec is Codec.SNAPPY:
            return _decompress_snappy(data, output)
        return int(_MODULES[codec].decompress_into(data, output))
    except cramjam.DecompressionError as error:
        if any(text in str(error) for text in _TOO_SMALL):
            raise OutputTooSmall from None
        raise BadCompression(str(error)) from None


def _copy(data: memoryview, output: memoryview) -> int:
    if len(data) > len(output):
        raise OutputTooSmall
    output[: len(data)] = data
    return len(data)


def _compress_lz4(data: Buffer) -> bytes:
    """Write independent blocks: Kafka's Java client refuses linked blocks, which are cramjam's default."""
    compressor = cramjam.lz4.Compressor(block_linked=False, content_checksum=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _compress_xerial(data: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        pieces += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(pieces)


def _decompress_snappy(data: memoryview, output: memoryview) -> int:
    """Decompress xerial's framing or raw snappy.

    Raw snappy cannot start with xerial's magic: 0x82 'S' would be a length that the next byte 'N' contradicts.
    """
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return int(cramjam.snappy.decompress_raw_into(data, output))
    # As in other clients, the version fields after the magic are not checked: Redpanda writes them little-endian.
    written = 0
    for block in _xerial_blocks(data):
        written += int(cramjam.snappy.decompress_raw_into(block, output[written:]))
    return written


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + _BLOCK_LENGTH.size
        length = _BLOCK_LENGTH.unpack_from(data, position)[0] if start <= len(data) else -1
        position = start + length
        if length < 0 or position > len(data):
            raise BadCompression("a snappy block is cut short")
        yield data[start:position]


class DecompressedStream:
    """A records section, decompressed piece by piece: the memory does not depend on its size.

    Only a block of snappy is decompressed as a whole: at most `_SNAPPY_RATIO` times its own bytes.
    """

    def __init__(self, codec: Codec, data: memoryview) -> None:
        self._source = _opened(codec, data)

    def read_into(self, target: memoryview) -> int:
        """Read up to the size of `target`, or to the end of the section, and return the number of bytes.

        Raises `BadCompression`.
        """
        filled = 0
        try:
            while filled < len(target) and (read := self._source.readinto(target[filled:])):
                filled += read
        except (OSError, cramjam.DecompressionError) as error:
            raise BadCompression(str(error)) from None
        return filled


def _opened(codec: Codec, data: memoryview) -> Any:
    """Return an object with `readinto`."""
    import pyarrow as pa  # lanes decompress nothing, and start every minute

    if codec is Codec.SNAPPY:
        return _SnappyBlocks(_xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else iter([data]))
    source = pa.BufferReader(pa.py_buffer(data))
    return source if codec is Codec.NONE else pa.CompressedInputStream(source, _ARROW_NAMES[codec])


class _SnappyBlocks:
    """Reads raw blocks of snappy one after the other."""

    def __init__(self, blocks: Iterator[memoryview]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readinto(self, target: memoryview) -> int:
        while not len(self._rest):
            block = next(self._blocks, None)
            if block is None:
                return 0
            # At most the size that a sound block can hold, since the length at its start may be damaged.
            size = min(_SNAPPY_RATIO * len(block), cramjam.snappy.decompress_raw_len(block))
            self._rest = memoryview(bytearray(size))
            self._rest = self._rest[: int(cramjam.snappy.decompress_raw_into(block, self._rest))]
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def recompress(frame: Frame, level: int) -> Frame:
    """Return the batch compressed with zstd, or `frame` itself if it cannot be compressed or would not get smaller.

    `frame` must have been checked (`check_crc`): a damaged batch would get a new CRC that hides the damage. A rewritten
    frame keeps the position of the original, and its data is in separate memory.
    """
    header = frame.header
    if header.codec is not Codec.NONE or header.is_control or not header.record_count:
        return frame
    records = compress_zstd(frame.data[HEADER_BYTES:], level)
    if HEADER_BYTES + len(records) >= len(frame.data):
        return frame
    data = pack_batch(header._replace(attributes=header.attributes | Codec.ZSTD), records)
    return Frame(frame.position, read_header(data, 0, "a recompressed batch"), memoryview(data))


class Recompressor:
    """Compresses batches in threads while the caller continues: zstd releases the GIL. A context manager."""

    def __init__(self, level: int, *, threads: int = _THREADS) -> None:
        self.level = level
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="waybill-recompress")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def batches(self, checked: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the same batches in the same order; archived ones (see `Batch`) are recompressed.

        Takes some batches from `checked` before it yields the first. Errors of `checked` are raised here.
        """
        ahead: deque[Future[list[Batch]]] = deque()
        try:
            for group in _groups(checked):
                ahead.append(self._pool.submit(self._compress, group))
                if len(ahead) > _GROUPS_AHEAD:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()

    def _compress(self, group: list[Batch]) -> list[Batch]:
        return [(recompress(frame, self.level) if archived else frame, archived) for frame, archived in group]


def _groups(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    group: list[Batch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += len(batch[0].data)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
