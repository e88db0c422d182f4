"""SequenceFile: round trips, Hadoop's layout byte by byte, and damaged files.

Hadoop's own reader reads these files in tests/integration/test_formats.py.
"""

from __future__ import annotations

import gzip
import io
import struct
from contextlib import suppress

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import record_lists

from waybill.archive.formats.sequencefile import SequenceFileWriter, read_header, read_messages
from waybill.base.errors import DamagedObject
from waybill.config.models.enums import Compression, SequenceFileKey
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch, to_records
from waybill.records.batches.message_rows import MESSAGE_SCHEMA, NO_TIMESTAMP_US

KEYS, COMPRESSIONS = st.sampled_from(SequenceFileKey), st.sampled_from(Compression)


def messages_of(records: list[Record]) -> pa.RecordBatch:
    (batch,) = decode(encode_batch(records), where="test")
    return batch


def write(key: SequenceFileKey, compression: Compression, *batches: pa.RecordBatch, **metadata: str) -> bytes:
    writer = SequenceFileWriter(key, compression, metadata)
    assert all(writer.rejections(batch) is None for batch in batches)
    pieces = [piece for batch in batches for piece in writer.write(batch)]
    return b"".join([writer.begin(), *pieces, writer.finish()])


def read(data: bytes) -> list[Record]:
    return [record for batch in read_messages(io.BytesIO(data), "test") for record in to_records(batch)]


def as_stored(key: SequenceFileKey, records: list[Record]) -> list[Record]:
    """Return messages without the parts that the format cannot hold: timestamp, headers, null; for `legacy` the key."""
    return [
        Record(r.offset, -1, r.key if key is SequenceFileKey.MSGPACK else None, r.value or b"", []) for r in records
    ]


@given(record_lists(), record_lists(max_size=2, first_offset=1 << 41), KEYS, COMPRESSIONS)
def test_messages_survive_a_round_trip(
    first: list[Record], second: list[Record], key: SequenceFileKey, compression: Compression
) -> None:
    data = write(key, compression, messages_of(first), messages_of(second), topic="flights", größe="ü" * 90)
    assert read(data) == as_stored(key, [*first, *second])
    header = read_header(io.BytesIO(data), "test")
    assert (header.key, header.compression) == (key, compression)
    assert header.metadata == {"topic": "flights", "größe": "ü" * 90}


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 256, 65_535, 65_536, 3_000_000])
def test_keys_and_values_at_the_limits_of_length_encodings(size: int, compression: Compression) -> None:
    records = [Record(i, -1, b"k" * size, b"v" * size, []) for i in range(3)]
    data = write(SequenceFileKey.MSGPACK, compression, messages_of(records))
    assert read(data) == records


def test_a_slice_of_a_batch_is_written() -> None:
    records = [Record(i, -1, b"k%d" % i if i % 3 else None, b"v%d" % i, []) for i in range(10)]
    data = write(SequenceFileKey.MSGPACK, Compression.NONE, messages_of(records).slice(4, 3))
    assert read(data) == records[4:7]


def test_a_file_without_messages_is_read() -> None:
    for compression in Compression:
        assert read(write(SequenceFileKey.LEGACY, compression)) == []


def test_messages_are_read_without_a_timestamp() -> None:
    data = write(SequenceFileKey.LEGACY, Compression.NONE, messages_of([Record(5, 1_700_000_000_000, b"k", b"v", [])]))
    (batch,) = read_messages(io.BytesIO(data), "test")
    assert batch.schema == MESSAGE_SCHEMA
    assert batch.column("timestamp").cast("int64").to_pylist() == [NO_TIMESTAMP_US]


def test_layout_of_an_uncompressed_file_byte_by_byte() -> None:
    data = write(SequenceFileKey.LEGACY, Compression.NONE, messages_of([Record(258, -1, b"absent", b"abc", [])]), a="b")
    key, value = b"\x21org.apache.hadoop.io.LongWritable", b"\x22org.apache.hadoop.io.BytesWritable"
    header = b"SEQ\x06" + key + value + b"\0\0" + b"\0\0\0\x01" + b"\x01a" + b"\x01b"
    assert data[: len(header)] == header
    record = b"\0\0\0\x0f" + b"\0\0\0\x08" + b"\0\0\0\0\0\0\x01\x02" + b"\0\0\0\x03abc"
    assert data[len(header) + 16 :] == record


def test_layout_of_a_compressed_block_byte_by_byte() -> None:
    records = [Record(1, -1, None, b"x" * 200, []), Record(2, -1, b"k", None, [])]
    data = write(SequenceFileKey.MSGPACK, Compression.GZIP, messages_of(records))
    header = read_header(io.BytesIO(data), "test")
    block = io.BytesIO(data[header.size_bytes :])
    assert block.read(20) == b"\xff\xff\xff\xff" + header.sync
    assert block.read(1) == b"\x02"
    buffers = []
    for _ in range(4):
        (length,) = block.read(1)
        if length > 127:
            assert length == 256 - 113
            (length,) = block.read(1)
        buffers.append(gzip.decompress(block.read(length)))
    assert block.read() == b""
    key_lengths, keys, value_lengths, values = buffers
    assert key_lengths == b"\x0f\x13"
    assert keys[:4] + keys[15:19] == b"\0\0\0\x0b" + b"\0\0\0\x0f"
    assert msgspec.msgpack.decode(keys[4:15]) == {1: 1}
    assert msgspec.msgpack.decode(keys[19:]) == {1: 2, 2: b"k"}
    assert keys[4:8] == b"\x81\x01\xd3\0"
    assert value_lengths == b"\x8f\xcc\x04"
    assert values == struct.pack(">i", 200) + b"x" * 200 + struct.pack(">i", 0)


def test_sync_marks_are_a_hundred_kibibytes_apart() -> None:
    records = [Record(i, -1, None, b"v" * 1000, []) for i in range(1000)]
    data = write(SequenceFileKey.LEGACY, Compression.NONE, messages_of(records))
    sync = read_header(io.BytesIO(data), "test").sync
    assert data.count(b"\xff\xff\xff\xff" + sync) == 9
    assert read(data) == records


def test_blocks_have_about_a_mebibyte() -> None:
    records = [Record(i, -1, None, b"v" * 1000, []) for i in range(4000)]
    data = write(SequenceFileKey.LEGACY, Compression.ZSTD, *decode(encode_batch(records), where="test"))
    sync = read_header(io.BytesIO(data), "test").sync
    assert 4 <= data.count(b"\xff\xff\xff\xff" + sync) <= 7
    assert read(data) == records


@given(record_lists(max_size=5), KEYS, COMPRESSIONS, st.data())
def test_damage_raises_or_stays_within_a_message(
    records: list[Record], key: SequenceFileKey, compression: Compression, draw: st.DataObject
) -> None:
    """For any wrong byte and any truncation, the reader returns messages or raises `DamagedObject`."""
    data = bytearray(write(key, compression, messages_of(records)))
    position = draw.draw(st.integers(0, len(data) - 1))
    if draw.draw(st.booleans()):
        del data[position:]
    else:
        data[position] ^= draw.draw(st.integers(1, 255))
    found: list[Record] = []
    with suppress(DamagedObject):
        found = read(bytes(data))
    assert len(found) <= len(records)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PAR1" + b"x" * 100, "is not a SequenceFile of version 6"),
        (b"SEQ", "is cut short"),
        (b"SEQ\x06\x04Text\x04Text\0\0\0\0\0\0" + b"s" * 16, "holds Text and Text"),
    ],
)
def test_files_that_waybill_does_not_write_are_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedObject, match=reason):
        read(data)
