"""Decode: record batches of any producer become Arrow batches with the same messages."""

from __future__ import annotations

import gzip
import io
import struct
from itertools import pairwise

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from record_strategies import (
    CODECS,
    batch_sequences,
    read_with_kafka_python,
    record_lists,
    records_in,
    write_with_kafka_python,
)

from waybill.base.errors import CorruptBatch
from waybill.records.batches import (
    HEADER_BYTES,
    Codec,
    ControlType,
    Frame,
    TimestampType,
    empty_batch,
    frames,
    read_frames,
    read_header,
)
from waybill.records.batches.decode import DecodeBuffers, decode, decode_offsets
from waybill.records.batches.encode import Record, control_batch, encode_batch
from waybill.records.batches.framing import pack_batch
from waybill.records.batches.message_rows import MESSAGE_SCHEMA, NO_TIMESTAMP_US

WHERE = "backup/flights/1_0_00000000000000000000.kafka"

AWKWARD = [
    Record(0, 1_700_000_000_000, None, None),
    Record(1, 1_700_000_000_001, b"", b""),
    Record(2, 0, b"key", None, (("a", b"1"), ("a", None), ("a", b""), ("", b"x"))),
    Record(3, -1, None, b"value", (("größe", b"\xff\x00"),)),
    Record(4, 1_700_000_000_002, b"k" * 70_000, b"v" * 70_000),
]


def with_body(records: list[Record], codec: Codec, body: bytes) -> bytes:
    """Return the batch of these records with a records section that another library compressed."""
    header = read_header(encode_batch(records), 0, WHERE)
    return pack_batch(header._replace(attributes=int(codec)), body)


def records_section(records: list[Record]) -> bytes:
    return encode_batch(records)[HEADER_BYTES:]


def timestamps_us(data: bytes) -> list[int]:
    return [t for batch in decode(data, where=WHERE) for t in batch.column("timestamp").cast("int64").to_pylist()]


@pytest.mark.parametrize("codec", CODECS)
def test_null_values_empty_values_and_repeated_headers_are_decoded(codec: Codec) -> None:
    data = encode_batch(AWKWARD, codec=codec)
    (batch,) = decode(data, where=WHERE)
    batch.validate(full=True)
    assert batch.schema.equals(MESSAGE_SCHEMA)
    assert records_in([batch]) == AWKWARD
    assert read_with_kafka_python(data) == AWKWARD


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists())
def test_encoded_records_are_decoded(codec: Codec, records: list[Record]) -> None:
    data = encode_batch(records, codec=codec)
    batches = list(decode(data, where=WHERE))
    for batch in batches:
        batch.validate(full=True)
    assert records_in(batches) == records


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists())
def test_kafka_python_reads_encoded_records(codec: Codec, records: list[Record]) -> None:
    assert read_with_kafka_python(encode_batch(records, codec=codec)) == records


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists())
def test_batches_of_kafka_python_are_decoded(codec: Codec, records: list[Record]) -> None:
    consecutive = [record._replace(offset=records[0].offset + i) for i, record in enumerate(records)]
    data = write_with_kafka_python(consecutive, codec)
    assert records_in(decode(data, where=WHERE)) == read_with_kafka_python(data) == consecutive


@given(sequence=batch_sequences())
def test_batches_of_different_codecs_are_decoded_from_any_kind_of_source(sequence: tuple[bytes, list[Record]]) -> None:
    data, messages = sequence
    assert records_in(decode(data, where=WHERE)) == messages
    assert records_in(decode(memoryview(bytearray(data)), where=WHERE)) == messages
    assert records_in(decode(pa.py_buffer(data), where=WHERE)) == messages
    assert records_in(decode(read_frames(io.BytesIO(data), WHERE, chunk_bytes=50), where=WHERE)) == messages


@given(sequence=batch_sequences(), first=st.integers(0, 700), length=st.integers(0, 700))
def test_messages_are_clipped_to_the_range(sequence: tuple[bytes, list[Record]], first: int, length: int) -> None:
    data, messages = sequence
    wanted = [record for record in messages if first <= record.offset < first + length]
    found = list(decode(data, where=WHERE, first_offset=first, next_offset=first + length))
    assert records_in(found) == wanted
    assert all(batch.num_rows for batch in found)
    arrays = list(decode_offsets(data, where=WHERE, first_offset=first, next_offset=first + length))
    assert [offset for array in arrays for offset in array.tolist()] == [record.offset for record in wanted]
    assert all(array.size for array in arrays)


@given(sequence=batch_sequences(), max_bytes=st.integers(1, 2000))
@example(sequence=(encode_batch(AWKWARD), AWKWARD), max_bytes=1)
def test_an_arrow_batch_is_bounded_in_bytes(sequence: tuple[bytes, list[Record]], max_bytes: int) -> None:
    data, messages = sequence
    batches = list(decode(data, where=WHERE, max_bytes=max_bytes))
    assert records_in(batches) == messages
    for batch in batches:
        batch.validate(full=True)
        sizes = [
            len(r.key or b"") + len(r.value or b"") + sum(len(k.encode()) + len(v or b"") for k, v in r.headers)
            for r in records_in([batch])
        ]
        assert len(sizes) == 1 or sum(sizes) <= max_bytes


def test_an_arrow_batch_is_bounded_in_rows() -> None:
    data = encode_batch([Record(i, i, None, None) for i in range(70_000)], codec=Codec.ZSTD)
    batches = list(decode(data, where=WHERE))
    assert max(batch.num_rows for batch in batches) <= 65_536
    offsets = np.concatenate([batch.column("offset").to_numpy() for batch in batches])
    assert (offsets == np.arange(70_000)).all()


@pytest.mark.parametrize("codec", CODECS)
def test_messages_of_several_megabytes_are_decoded(codec: Codec) -> None:
    noise = np.random.default_rng(1).bytes(5 << 20)
    records = [Record(0, 1, b"k", noise[: 1 << 20]), Record(1, 2, b"k", b"z" * (1 << 20)), Record(2, 3, None, noise)]
    data = encode_batch(records[:1]) + encode_batch(records[1:], codec=codec)
    assert records_in(decode(data, where=WHERE)) == records


def test_log_append_time_becomes_the_timestamp_of_every_message() -> None:
    records = [Record(i, 1000 * i, b"k", b"v") for i in range(3)]
    data = encode_batch(records, log_append_time_ms=1_700_000_000_000)
    assert timestamps_us(data) == [1_700_000_000_000_000] * 3
    assert [record.timestamp_ms for record in read_with_kafka_python(data)] == [1_700_000_000_000] * 3


def test_no_timestamp_stays_minus_one_millisecond() -> None:
    data = encode_batch([Record(0, -1, b"k", b"v"), Record(1, 5, b"k", b"v")])
    assert timestamps_us(data) == [NO_TIMESTAMP_US, 5000]


def test_timestamps_that_overflow_microseconds_become_the_limit() -> None:
    data = encode_batch([Record(0, 1_700_000_000_000_000_000, b"k", b"v"), Record(1, -(2**62), b"k", b"v")])
    assert timestamps_us(data) == [(2**63 - 1) // 1000 * 1000, -((2**63 - 1) // 1000 * 1000)]


def test_timestamps_of_a_batch_with_a_delete_horizon_are_relative_to_it() -> None:
    records = [Record(0, 1_700_000_000_000, b"k", None), Record(1, 1_700_000_000_500, b"k", b"v")]
    data = encode_batch(records, delete_horizon_ms=1_800_000_000_000)
    assert read_header(data, 0, WHERE).has_delete_horizon
    assert records_in(decode(data, where=WHERE)) == read_with_kafka_python(data) == records


def test_control_batches_and_empty_batches_yield_nothing() -> None:
    marker = control_batch(1, ControlType.COMMIT, timestamp_ms=0, producer_id=1, producer_epoch=0)
    first, last = Record(0, 0, b"k", b"v"), Record(9, 0, b"k", b"v")
    data = encode_batch([first]) + marker + empty_batch(2, 9, leader_epoch=0) + encode_batch([last])
    assert records_in(decode(data, where=WHERE)) == [first, last]
    assert np.concatenate(list(decode_offsets(data, where=WHERE))).tolist() == [0, 9]
    assert list(decode(marker + empty_batch(2, 9, leader_epoch=0), where=WHERE)) == []


def test_batches_without_their_first_and_last_records_are_decoded() -> None:
    record = Record(105, 7, b"k", b"v")
    data = encode_batch([record], base_offset=100, next_offset=200, codec=Codec.LZ4)
    assert records_in(decode(data, where=WHERE)) == [record]
    assert np.concatenate(list(decode_offsets(data, where=WHERE))).tolist() == [105]


def test_invalid_utf8_in_header_keys_becomes_replacement_characters() -> None:
    body = records_section([Record(0, 0, b"k", b"v", (("ab", b"1"), ("cd", b"2")))]).replace(b"ab", b"\xffb")
    (batch,) = decode(with_body([Record(0, 0, b"k", b"v")], Codec.NONE, body), where=WHERE)
    batch.validate(full=True)
    assert records_in([batch])[0].headers == (("\ufffdb", b"1"), ("cd", b"2"))


def test_gzip_of_several_members_is_decoded() -> None:
    body = records_section(AWKWARD)
    data = with_body(AWKWARD, Codec.GZIP, gzip.compress(body[:100]) + gzip.compress(body[100:]))
    assert records_in(decode(data, where=WHERE)) == AWKWARD


def test_zstd_and_lz4_of_several_frames_are_decoded() -> None:
    body = records_section(AWKWARD)
    for codec, module in ((Codec.ZSTD, cramjam.zstd), (Codec.LZ4, cramjam.lz4)):
        data = with_body(AWKWARD, codec, bytes(module.compress(body[:100])) + bytes(module.compress(body[100:])))
        assert records_in(decode(data, where=WHERE)) == AWKWARD


@pytest.mark.parametrize("versions", [struct.pack(">ii", 1, 1), struct.pack("<ii", 1, 1)])
def test_snappy_in_xerial_framing_is_decoded_with_either_byte_order(versions: bytes) -> None:
    body = records_section(AWKWARD)
    blocks = [bytes(cramjam.snappy.compress_raw(body[start : start + 32_768])) for start in range(0, len(body), 32_768)]
    stream = b"\x82SNAPPY\x00" + versions + b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    assert records_in(decode(with_body(AWKWARD, Codec.SNAPPY, stream), where=WHERE)) == AWKWARD


def test_raw_snappy_of_librdkafka_is_decoded() -> None:
    body = bytes(cramjam.snappy.compress_raw(records_section(AWKWARD)))
    assert records_in(decode(with_body(AWKWARD, Codec.SNAPPY, body), where=WHERE)) == AWKWARD


def test_a_record_count_that_exceeds_the_records_raises_before_memory_is_allocated() -> None:
    header = read_header(encode_batch([Record(0, 0, b"k", b"v")], codec=Codec.ZSTD), 0, WHERE)
    body = bytes(cramjam.zstd.compress(records_section([Record(0, 0, b"k", b"v")])))
    data = pack_batch(
        header._replace(attributes=int(Codec.ZSTD), last_offset_delta=2**31 - 1, record_count=2**31 - 1), body
    )
    for read in (decode, decode_offsets):
        with pytest.raises(CorruptBatch, match="record count 2147483647 does not fit"):
            list(read(data, where=WHERE))


def test_offsets_of_dense_batches_need_no_decompression() -> None:
    header = read_header(encode_batch([Record(i, 0, None, b"") for i in range(5, 9)]), 0, WHERE)
    data = pack_batch(header._replace(attributes=int(Codec.ZSTD)), b"not zstd")
    assert np.concatenate(list(decode_offsets(data, where=WHERE))).tolist() == [5, 6, 7, 8]


def test_batches_outside_of_the_range_are_not_checked() -> None:
    damaged = bytearray(encode_batch([Record(0, 0, None, b"value")]))
    damaged[-1] ^= 1
    wanted = Record(1, 0, None, b"value")
    data = bytes(damaged) + encode_batch([wanted])
    assert records_in(decode(data, where=WHERE, first_offset=1)) == [wanted]
    with pytest.raises(CorruptBatch, match="CRC"):
        list(decode(data, where=WHERE))


def test_batches_before_a_damaged_batch_are_yielded() -> None:
    """The batches are larger than the arena, so that it is flushed before the damaged batch."""
    batches = [encode_batch([Record(i, 0, None, bytes([i]) * (1 << 20))]) for i in range(8)]
    offsets: list[int] = []
    with pytest.raises(CorruptBatch) as caught:
        offsets.extend(
            offset
            for batch in decode(b"".join(batches[:-1]) + batches[-1][:-1], where=WHERE)
            for offset in batch.column("offset").to_pylist()
        )
    assert caught.value.position_bytes == sum(len(batch) for batch in batches[:-1])
    assert offsets == list(range(len(offsets)))
    assert 0 < len(offsets) < 8


def test_buffers_can_be_reused_for_many_objects() -> None:
    """This includes objects that follow a damaged one or one larger than the buffers."""
    small, large = [Record(0, 5, b"k", b"v")], [Record(n, 7, None, bytes([65 + n]) * (3 << 20)) for n in range(3)]
    damaged = bytearray(encode_batch(small))
    damaged[-1] ^= 1
    buffers = DecodeBuffers()
    for records in (small, large, small):
        data = encode_batch(records, codec=Codec.LZ4)
        assert records_in(decode(data, where=WHERE, buffers=buffers)) == records
        with pytest.raises(CorruptBatch):
            list(decode(bytes(damaged), where=WHERE, buffers=buffers))


def test_errors_contain_the_position_of_the_frame() -> None:
    data = encode_batch([Record(0, 0, None, b"value")])
    bad = bytearray(data)
    bad[-1] ^= 1
    frame = next(frames(bad, where=WHERE))
    with pytest.raises(CorruptBatch, match=r"flights.*byte 4,096") as caught:
        list(decode([Frame(4096, frame.header, frame.data)], where=WHERE))
    assert caught.value.position_bytes == 4096


@pytest.mark.parametrize("bounds", [{"max_bytes": 0}, {"max_bytes": 1 << 31}, {"whole_batch_bytes": 1 << 31}])
def test_limits_that_exceed_int32_positions_are_rejected(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be between"):
        list(decode(b"", where=WHERE, **bounds))  # type: ignore[arg-type]


def test_encode_rejects_offsets_that_do_not_grow() -> None:
    records = [Record(3, 0, None, None), Record(3, 0, None, None)]
    with pytest.raises(ValueError, match="do not grow"):
        encode_batch(records)
    with pytest.raises(ValueError, match="do not grow"):
        encode_batch(records[:1], base_offset=4)
    with pytest.raises(ValueError, match="needs a record"):
        encode_batch([])


def test_offsets_are_in_order_across_batches_and_flushes() -> None:
    data = b"".join(encode_batch([Record(i, 0, None, b"v" * 50_000)]) for i in range(200))
    offsets = [o for batch in decode(data, where=WHERE) for o in batch.column("offset").to_pylist()]
    assert offsets == list(range(200))
    assert all(a < b for a, b in pairwise(offsets))
    assert read_header(data, 0, WHERE).timestamp_type is TimestampType.CREATE_TIME
