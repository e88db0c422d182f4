"""The four codecs of Kafka's record batches, through cramjam: compress, and decompress into memory that is there.

What each codec's bytes are in Kafka (`org.apache.kafka.common.compress`): gzip with any number of members; snappy in
xerial's framing (Java clients) or raw (librdkafka); lz4 frames; zstd frames.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import cramjam

from waybill.log.framing import Codec

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BadCompression", "OutputTooSmall", "compress", "compress_zstd", "decompress_into"]

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10
_BLOCK_LENGTH = struct.Struct(">i")
_MODULES: dict[Codec, Any] = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}
# cramjam tells its errors apart by text only; the unit tests hold these against the installed version.
_TOO_SMALL = ("failed to write whole buffer", "output buffer")


class OutputTooSmall(Exception):
    """What was compressed does not fit into the output; how large it is, is not known."""


class BadCompression(Exception):
    """The bytes are not what the codec writes."""


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

    Raises `OutputTooSmall` or `BadCompression`; what was written to `output` by then is of no meaning.
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
    """Kafka's Java client refuses lz4 frames of blocks that depend on each other, which is cramjam's default."""
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
    """Raw snappy cannot start as xerial's header does: 0x82 'S' would be a length that 'N' then contradicts."""
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return int(cramjam.snappy.decompress_raw_into(data, output))
    # The version fields that follow the magic are ignored, as everybody does: Redpanda writes them little-endian.
    position, written = len(_XERIAL_HEADER), 0
    while position < len(data):
        start = position + _BLOCK_LENGTH.size
        length = _BLOCK_LENGTH.unpack_from(data, position)[0] if start <= len(data) else -1
        position = start + length
        if length < 0 or position > len(data):
            raise BadCompression("a snappy block is cut short")
        written += int(cramjam.snappy.decompress_raw_into(data[start:position], output[written:]))
    return written
