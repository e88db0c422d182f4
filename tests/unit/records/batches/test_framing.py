"""Framing: where batches start and end, the fields of their headers, and malformed batches."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import ControlRecord
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from record_strategies import write_with_kafka_python

from waybill.base.errors import CorruptBatch, UnsupportedBatch
from waybill.records.batches import (
    HEADER_BYTES,
    Codec,
    ControlType,
    TimestampType,
    check_crc,
    control_type,
    empty_batch,
    frames,
    is_abort_marker,
    read_frames,
    read_header,
)
from waybill.records.batches.encode import Record, control_batch, encode_batch
from waybill.records.batches.framing import pack_batch

WHERE = "backup/flights/1_0_00000000000000000000.kafka"


def batch(first: int, n: int = 3, **options: object) -> bytes:
    records = [Record(first + i, 1_700_000_000_000 + i, b"key", b"value %d" % i) for i in range(n)]
    return encode_batch(records, **options)  # type: ignore[arg-type]


def three_batches() -> bytes:
    return batch(0) + batch(3, codec=Codec.ZSTD) + batch(10)


def patched(data: bytes, position: int, layout: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    return bytes(changed)


def test_header_fields_are_those_that_kafka_python_reads() -> None:
    data = encode_batch(
        [Record(7, 1000, b"k", b"v"), Record(9, 3000, b"k", b"v")],
        codec=Codec.GZIP,
        leader_epoch=5,
        transactional=True,
        producer_id=42,
        producer_epoch=3,
        base_sequence=11,
        log_append_time_ms=9000,
    )
    header, theirs = read_header(data, 0, WHERE), MemoryRecords(data).next_batch()
    assert theirs.validate_crc()
    assert (header.base_offset, header.next_offset) == (theirs.base_offset, theirs.next_offset) == (7, 10)
    assert header.size_bytes == theirs.size_in_bytes == len(data)
    assert (header.leader_epoch, header.crc) == (theirs.leader_epoch, theirs.crc)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (42, 3, 11)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (42, 3, 11)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (theirs.first_timestamp, theirs.max_timestamp)
    assert header.record_count == theirs.records_count == 2
    assert header.codec is Codec.GZIP
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_delete_horizon
    assert not header.is_dense


def test_frames_have_their_position_in_the_object() -> None:
    data = three_batches()
    found = list(frames(data, where=WHERE, base_position=1000))
    assert [frame.header.base_offset for frame in found] == [0, 3, 10]
    assert found[0].position == 1000
    assert all(bytes(frame.data) == data[frame.position - 1000 :][: len(frame.data)] for frame in found)
    assert b"".join(frame.data for frame in found) == data


def test_empty_input_yields_no_frames() -> None:
    assert list(frames(b"", where=WHERE)) == []
    assert list(read_frames(io.BytesIO(b""), WHERE)) == []


def test_a_partial_last_batch_is_not_yielded_and_its_position_is_known() -> None:
    data = batch(0) + batch(3)
    whole = len(batch(0))
    for cut in range(whole, len(data)):
        scan = frames(data[:cut], where=WHERE, allow_partial=True)
        assert [frame.header.base_offset for frame in scan] == [0]
        assert scan.stopped_at == whole
        assert scan.next_offset == 3


def test_a_truncated_object_raises_with_the_position_of_the_cut_batch() -> None:
    data = batch(0) + batch(3)
    whole = len(batch(0))
    for cut in range(whole + 1, len(data)):
        with pytest.raises(CorruptBatch, match="cut short") as caught:
            list(frames(data[:cut], where=WHERE))
        assert (caught.value.where, caught.value.position_bytes) == (WHERE, whole)
        with pytest.raises(CorruptBatch, match="cut short"):
            list(read_frames(io.BytesIO(data[:cut]), WHERE))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("allow_partial", [False, True])
def test_old_message_formats_raise_with_their_version(magic: int, allow_partial: bool) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    builder.append(0, timestamp=1, key=b"k", value=b"v")
    with pytest.raises(UnsupportedBatch, match=f"message format v{magic}"):
        list(frames(builder.build(), where=WHERE, allow_partial=allow_partial))


@pytest.mark.parametrize(
    ("position", "layout", "value", "reason"),
    [
        (8, ">i", -1, "negative"),
        (8, ">i", -(2**31), "negative"),
        (8, ">i", 0, "less than a header"),
        (8, ">i", 48, "less than a header"),
        (8, ">i", 2**31 - 1, "cut short"),
        (16, ">b", 3, "magic 3"),
        (16, ">b", -1, "magic 255"),
        (0, ">q", -1, "offsets are impossible"),
        (0, ">q", 2**63 - 1, "offsets are impossible"),
        (23, ">i", -1, "offsets are impossible"),
        (57, ">i", -1, "record count -1"),
        (57, ">i", 4, "record count 4 does not fit 3 offsets"),
        (57, ">i", 2**31 - 1, "does not fit 3 offsets"),
        (21, ">h", 5, "codec 5"),
        (21, ">h", 7, "codec 7"),
    ],
)
def test_impossible_headers_raise(position: int, layout: str, value: int, reason: str) -> None:
    damaged = patched(batch(0), position, layout, value)
    with pytest.raises(CorruptBatch, match=reason) as caught:
        list(frames(batch(100) + damaged, where=WHERE))
    assert caught.value.position_bytes == len(batch(100))


def test_a_record_count_too_large_for_the_uncompressed_bytes_raises() -> None:
    damaged = patched(patched(batch(0), 23, ">i", 2**31 - 1), 57, ">i", 2**30)
    with pytest.raises(CorruptBatch, match="bytes of records"):
        list(frames(damaged, where=WHERE))


def test_offsets_must_grow_from_batch_to_batch() -> None:
    with pytest.raises(CorruptBatch, match="base offset 2 after offset 2"):
        list(frames(batch(0) + batch(2), where=WHERE))
    with pytest.raises(CorruptBatch, match="base offset 2 after offset 2"):
        list(read_frames(io.BytesIO(batch(0) + batch(2)), WHERE, chunk_bytes=16))
    assert len(list(frames(batch(0) + batch(7), where=WHERE))) == 2


def test_every_flipped_bit_under_the_crc_raises() -> None:
    data = batch(0, n=1)
    for bit in range(17 * 8, len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            [check_crc(frame, WHERE) for frame in frames(damaged, where=WHERE)]


def test_crc_error_contains_the_offset_and_both_checksums() -> None:
    damaged = patched(batch(5), 17, ">I", 0xDEADBEEF)
    with pytest.raises(CorruptBatch, match=r"offset 5 is 0x[0-9a-f]{8}, its header has 0xdeadbeef"):
        check_crc(next(frames(damaged, where=WHERE)), WHERE)


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT, ControlType.LEADER_CHANGE])
def test_control_type_is_the_one_that_kafka_python_reads(kind: ControlType) -> None:
    data = control_batch(9, kind, timestamp_ms=5, producer_id=1, producer_epoch=0)
    frame = next(frames(data, where=WHERE))
    theirs = next(iter(MemoryRecords(data).next_batch()))
    assert isinstance(theirs, ControlRecord)
    assert control_type(frame, WHERE) is kind
    assert is_abort_marker(frame, WHERE) is theirs.abort is (kind is ControlType.ABORT)


def test_control_type_is_unknown_for_future_types_and_none_for_data() -> None:
    key = struct.pack(">hh", 0, 99)
    later = encode_batch([Record(0, 0, key, b"")], control=True)
    assert control_type(next(frames(later, where=WHERE)), WHERE) is ControlType.UNKNOWN
    assert control_type(next(frames(batch(0), where=WHERE)), WHERE) is None
    assert not is_abort_marker(next(frames(empty_batch(0, 1, leader_epoch=0), where=WHERE)), WHERE)


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00"])
def test_a_control_record_without_a_whole_key_raises(key: bytes | None) -> None:
    data = encode_batch([Record(0, 0, key, b"")], control=True)
    with pytest.raises(CorruptBatch, match="control record is malformed"):
        control_type(next(frames(data, where=WHERE)), WHERE)


@given(st.binary(max_size=12))
def test_a_control_batch_of_random_bytes_has_a_type_or_raises(body: bytes) -> None:
    header = read_header(control_batch(0, ControlType.ABORT, timestamp_ms=0, producer_id=1, producer_epoch=0), 0, WHERE)
    frame = next(frames(pack_batch(header, body + bytes(7)), where=WHERE))
    try:
        assert control_type(frame, WHERE) in set(ControlType)
    except CorruptBatch as error:
        assert error.position_bytes == 0  # noqa: PT017


def test_an_empty_batch_equals_the_one_that_the_log_cleaner_writes() -> None:
    """Each field has the value that `DefaultRecordBatch.writeEmptyHeader` sets."""
    data = empty_batch(1000, 1010, leader_epoch=7, max_timestamp_ms=1234)
    assert len(data) == HEADER_BYTES
    assert data[:17] == struct.pack(">qiib", 1000, 49, 7, 2)
    assert data[21:] == struct.pack(">hiqqqhii", 0, 9, -1, 1234, -1, -1, -1, 0)
    theirs = MemoryRecords(data).next_batch()
    assert theirs.validate_crc()
    assert list(theirs) == []
    assert theirs.next_offset == 1010
    check_crc(next(frames(data, where=WHERE)), WHERE)


@pytest.mark.parametrize(("base", "following"), [(5, 5), (5, 4), (-1, 4), (0, 2**31 + 1), (0, 2**63)])
def test_an_empty_batch_of_an_impossible_range_is_rejected(base: int, following: int) -> None:
    with pytest.raises(ValueError, match="not a range for one batch"):
        empty_batch(base, following, leader_epoch=0)


def test_an_empty_batch_covers_up_to_two_to_the_31_offsets() -> None:
    header = read_header(empty_batch(3, 3 + 2**31, leader_epoch=0), 0, WHERE)
    assert header.next_offset == 3 + 2**31


@given(st.integers(1, 400), st.integers(1, 5))
def test_a_stream_yields_the_same_frames_for_any_chunk_size(chunk_bytes: int, at_a_time: int) -> None:
    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or -1, at_a_time * 37))

    data = three_batches()
    found = list(read_frames(Dribble(data), WHERE, chunk_bytes=chunk_bytes))
    assert found == list(frames(data, where=WHERE))


def test_reading_a_stream_keeps_one_chunk_in_memory() -> None:
    one = batch(0, n=2000)
    step = read_header(one, 0, WHERE).next_offset

    class Endless:
        """64 MiB of batches, created while they are read."""

        def __init__(self) -> None:
            self.made, self.rest = 0, b""

        def read(self, size: int, /) -> bytes:
            while len(self.rest) < size and self.made < (64 << 20) // len(one):
                self.rest += (self.made * step).to_bytes(8, "big") + one[8:]
                self.made += 1
            piece, self.rest = self.rest[:size], self.rest[size:]
            return piece

    tracemalloc.start()
    try:
        count = sum(1 for _ in read_frames(Endless(), WHERE, chunk_bytes=1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == (64 << 20) // len(one)
    assert peak < 8 << 20


def test_a_stream_with_an_absurd_batch_length_raises_before_the_next_read() -> None:
    damaged = patched(batch(0), 8, ">i", 2**31 - 1)
    stream = io.BytesIO(damaged + bytes(1 << 20))
    with pytest.raises(CorruptBatch, match="probably damaged"):
        list(read_frames(stream, WHERE, chunk_bytes=len(damaged)))
    assert stream.tell() <= 2 * len(damaged)


def test_batches_of_kafka_python_are_framed() -> None:
    # Long enough to shrink: kafka-python does not compress a batch that compression would lengthen.
    records = [Record(50 + i, 1000 + i, b"k", b"v" * 200) for i in range(4)]
    for codec in Codec:
        header = read_header(write_with_kafka_python(records, codec), 0, WHERE)
        assert (header.base_offset, header.next_offset, header.record_count) == (50, 54, 4)
        assert (header.codec, header.is_dense) == (codec, True)


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(UnsupportedBatch(WHERE, 12, "codec 5 is unknown")))
    assert (type(error), error.where, error.position_bytes) == (UnsupportedBatch, WHERE, 12)


def test_importing_records_imports_no_heavy_library() -> None:
    script = "import sys, waybill.records.batches; print({'numba', 'numpy', 'pyarrow', 'cramjam'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()"
