"""Compression: round trips, and the two errors, which the installed cramjam distinguishes only by their text."""

from __future__ import annotations

import struct

import pytest
from record_strategies import CODECS

from waybill.records.batches import Codec
from waybill.records.batches.compression import BadCompression, OutputTooSmall, compress, decompress_into

DATA = b"some bytes that repeat, some bytes that repeat, " * 5000


def output(size: int) -> memoryview:
    return memoryview(bytearray(size))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [DATA, b"x", b"", bytearray(DATA), memoryview(DATA)[7:]])
def test_round_trip_into_an_output_of_the_exact_size(codec: Codec, data: bytes | bytearray | memoryview) -> None:
    room = output(len(data))
    assert decompress_into(codec, memoryview(compress(codec, data)), room) == len(data)
    assert room == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("missing", [1, len(DATA) // 2, len(DATA)])
def test_a_too_small_output_raises_output_too_small(codec: Codec, missing: int) -> None:
    with pytest.raises(OutputTooSmall):
        decompress_into(codec, memoryview(compress(codec, DATA)), output(len(DATA) - missing))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_truncated_input_raises_bad_compression(codec: Codec) -> None:
    compressed = memoryview(compress(codec, DATA))
    with pytest.raises(BadCompression):
        decompress_into(codec, compressed[:-5], output(2 * len(DATA)))


def test_lz4_blocks_are_independent_as_kafkas_java_client_requires() -> None:
    flags = compress(Codec.LZ4, DATA)[4]
    assert flags & 0b0010_0000  # bit 5 of a frame's FLG byte
    assert flags >> 6 == 1  # its version


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 0])
def test_xerial_blocks_with_wrong_lengths_raise_bad_compression(length: int) -> None:
    damaged = bytearray(compress(Codec.SNAPPY, DATA))
    struct.pack_into(">i", damaged, 16, length)
    with pytest.raises(BadCompression):
        decompress_into(Codec.SNAPPY, memoryview(damaged), output(2 * len(DATA)))
