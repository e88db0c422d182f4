"""Batches that are much larger than their bytes, and messages beyond the limits: in bounded memory, without a stop."""

from __future__ import annotations

import resource
import tracemalloc
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from record_strategies import CODECS, record_lists, records_in

from waybill.base.errors import CorruptBatch
from waybill.records.batches import Codec, read_header
from waybill.records.batches import large_batch as large_batch_module
from waybill.records.batches.compression import BadCompression, DecompressedStream, compress
from waybill.records.batches.decode import decode, decode_offsets
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import HEADER_BYTES, pack_batch
from waybill.records.batches.limits import SET_ASIDE, Limits
from waybill.records.batches.message_rows import NO_TIMESTAMP_US

WHERE = "backup/flights/1_0_00000000000000000000.kafka"
SMALL = Limits(max_bytes=300, max_headers=3)


def rows(data: bytes, **options: Any) -> list[dict[str, Any]]:
    """Return what `decode` yields, with the reason of each message."""
    found = []
    for batch in decode(data, where=WHERE, set_aside=True, **options):
        batch.validate(full=True)
        found += [{SET_ASIDE: None, **row} for row in batch.to_pylist()]
    return found


def varint(value: int) -> bytes:
    """Return a zigzag varint."""
    rest, found = value << 1 if value >= 0 else (-value << 1) - 1, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def batch_of(codec: Codec, section: bytes, count: int, last_delta: int | None = None) -> bytes:
    """Return a batch of a records section that is compressed already."""
    header = read_header(encode_batch([Record(0, 5, None, None)]), 0, WHERE)
    last = count - 1 if last_delta is None else last_delta
    return pack_batch(
        header._replace(attributes=int(codec), record_count=count, last_offset_delta=last, max_timestamp_ms=9), section
    )


def zeros(codec: Codec, front: bytes, count: int, back: bytes = b"") -> bytes:
    """Return a compressed section: `front`, that many zero bytes, `back`; without having them all in memory."""
    if codec is not Codec.ZSTD:
        return compress(codec, front + bytes(count) + back)
    # Frames of zstd may follow each other, as members of gzip.
    frames, piece = [bytes(cramjam.zstd.compress(front))], 64 << 20
    whole = bytes(cramjam.zstd.compress(bytes(piece)))
    frames += [whole] * (count // piece)
    frames += [bytes(cramjam.zstd.compress(bytes(count % piece) + back))]
    return b"".join(frames)


def record_front(value_bytes: int, delta: int = 0, key: bytes | None = b"k") -> bytes:
    """Return a record up to its value, which is followed by a header count of one byte."""
    key_field = varint(-1) if key is None else varint(len(key)) + key
    body = b"\0" + varint(0) + varint(delta) + key_field + varint(value_bytes)
    return varint(len(body) + value_bytes + 1) + body


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists(), whole=st.integers(1, 4000))
@example(records=[Record(0, 1, b"k" * 70_000, b"v" * 300_000, (("a", b"x" * 9_000),))], whole=1)
@example(records=[Record(n, n, None, b"v" * 999, (("a", None),) * (n % 6)) for n in range(0, 900, 3)], whole=1)
def test_pieces_give_what_a_whole_batch_gives(codec: Codec, records: list[Record], whole: int) -> None:
    data = encode_batch(records, codec=codec)
    assert rows(data, whole_batch_bytes=whole) == rows(data)
    assert rows(data, whole_batch_bytes=whole, limits=SMALL) == rows(data, limits=SMALL)
    assert records_in(decode(data, where=WHERE, whole_batch_bytes=whole, max_bytes=700)) == records
    first, following = records[len(records) // 3].offset, records[-1].offset
    part = {"first_offset": first, "next_offset": following}
    assert rows(data, whole_batch_bytes=whole, **part) == rows(data, **part)
    offsets = [offset for found in decode_offsets(data, where=WHERE, whole_batch_bytes=whole) for offset in found]
    assert offsets == [record.offset for record in records]


def is_within(record: Record, limits: Limits) -> bool:
    body = encode_batch([record._replace(offset=0)])[HEADER_BYTES:]
    length_bytes = 1 if body[0] < 0x80 else 2 if body[1] < 0x80 else 3
    return len(body) - length_bytes <= limits.max_bytes and len(record.headers) <= limits.max_headers


@given(records=record_lists())
def test_limits_leave_out_the_messages_beyond_them_and_no_other(records: list[Record]) -> None:
    # Offset and timestamp deltas of 0 take the same bytes in the test's own measure.
    records = [record._replace(offset=number, timestamp_ms=5) for number, record in enumerate(records[:60])]
    found = rows(encode_batch(records, codec=Codec.ZSTD), limits=SMALL)
    complete = rows(encode_batch(records, codec=Codec.ZSTD))
    assert [row["offset"] for row in found] == [record.offset for record in records]
    for row, whole, record in zip(found, complete, records, strict=True):
        if is_within(record, SMALL):
            assert row == whole
        else:
            assert row[SET_ASIDE].startswith("message_too_large: ")
            assert (row["value"], row["headers"]) == (None, [])
            assert (row["key"], row["timestamp"]) == (whole["key"], whole["timestamp"])


@pytest.mark.parametrize("codec", CODECS)
def test_message_that_is_too_large_goes_alone(codec: Codec) -> None:
    records = [Record(0, 7, b"a", b"before"), Record(1, 8, b"b", bytes(40 << 20)), Record(2, 9, b"c", b"after")]
    data = encode_batch(records, codec=codec)
    one, large, two = rows(data, limits=Limits(1 << 20, 100))
    assert (one["value"], two["value"]) == (b"before", b"after")
    assert (large["offset"], large["key"], large["value"]) == (1, b"b", None)
    assert large[SET_ASIDE].startswith("message_too_large: 41,943,0")
    assert "message_limits.max_bytes allows 1,048,576" in large[SET_ASIDE]
    assert [row["value"] for row in rows(data)] == [record.value for record in records]


def test_caller_that_does_not_ask_for_incomplete_messages_gets_an_error() -> None:
    data = encode_batch([Record(6, 0, None, b"x"), Record(7, 0, None, bytes(500))])
    with pytest.raises(CorruptBatch, match=r"offset 7: message_too_large: .*max_bytes allows 300"):
        list(decode(data, where=WHERE, limits=SMALL))


def test_300_megabytes_in_9_kilobytes_are_passed_over_in_little_memory() -> None:
    value = 300_000_000
    body = zeros(Codec.ZSTD, record_front(value), value, b"\0" + record_front(5, delta=1) + b"later\0")
    data = batch_of(Codec.ZSTD, body, 2)
    assert len(data) < 40_000
    tracemalloc.start()
    try:
        large, later = rows(data, limits=Limits(256 << 20, 10_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert large[SET_ASIDE].startswith("message_too_large: 300,000,0")
    assert later["value"] == b"later"
    assert peak < 100 << 20


def test_100_million_headers_in_17_kilobytes_take_the_memory_of_the_limit() -> None:
    headers = 100_000_000
    body = b"\0" + varint(0) + varint(0) + varint(1) + b"k" + varint(1) + b"v" + varint(headers)
    front = varint(len(body) + 2 * headers) + body
    data = batch_of(Codec.ZSTD, zeros(Codec.ZSTD, front, 2 * headers), 1)
    assert len(data) < 40_000
    list(decode(encode_batch([Record(0, 0, None, b"x")]), where=WHERE))  # compiled, and the arena allocated
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (row,) = rows(data, limits=Limits(256 << 20, 10_000))
    assert row[SET_ASIDE].startswith("message_too_large: 100,000,000 headers")
    (row,) = rows(data, limits=Limits(64 << 20, 10_000))
    assert row[SET_ASIDE].startswith("message_too_large: 200,000,01")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 800 << 10, "in KiB"


def test_many_headers_and_a_long_key_are_left_out() -> None:
    headers = tuple((f"h{n}", b"x") for n in range(5))
    data = encode_batch([Record(0, 1, b"k" * 70_000, b"v", headers), Record(1, 1, b"k", b"v", headers[:3])])
    one, two = rows(data, limits=Limits(1 << 20, 3))
    assert "5 headers, and message_limits.max_headers allows 3" in one[SET_ASIDE]
    assert (one["key"], one["headers"]) == (None, [])
    assert len(two["headers"]) == 3


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("whole", [1, 1 << 20])
@pytest.mark.parametrize(
    ("section", "count", "last_delta", "reason"),
    [
        (record_front(5) + b"value\0", 2, 1, "does not end within the batch|does not fit"),
        (record_front(5) + b"value\0", 1 << 30, (1 << 31) - 1, "does not end within the batch|does not fit"),
        (record_front(5) + b"value\0", 1, None, None),
        (record_front(5) + b"value\0rest", 1, None, "bytes are left after the last record"),
        (record_front(500) + bytes(500) + b"\0rest", 1, None, "bytes are left after the last record"),
        (record_front(500) + bytes(300), 1, None, "does not end within the batch"),
        (varint((1 << 31) - 1) + bytes(400), 1, None, "does not end within|fields do not fit|does not fit"),
        (varint(-5) + bytes(400), 1, None, "does not end within the batch"),
        (b"\xff" * 400, 1, None, "does not end within the batch"),
        (record_front(400, delta=9) + bytes(401), 1, 0, "offset is not between"),
        (record_front(400, delta=-1) + bytes(401), 1, 0, "offset is not between"),
        (2 * (record_front(400, delta=0) + bytes(401)), 2, 1, "offset is not between"),
        (varint(400) + b"\0" + b"\xff" * 399, 1, None, "fields do not fit"),
        (varint(400) + b"\0" + varint(0) + varint(0) + varint(10**9) + bytes(392), 1, None, "fields do not fit"),
    ],
)
def test_lengths_counts_and_offsets_that_lie_are_found(
    codec: Codec, whole: int, section: bytes, count: int, last_delta: int | None, reason: str | None
) -> None:
    data = batch_of(codec, compress(codec, section), count, last_delta)
    limits = {"limits": SMALL, "whole_batch_bytes": whole}
    if reason is None:
        assert len(rows(data, **limits)) == 1
        return
    with pytest.raises(CorruptBatch, match=reason):
        rows(data, **limits)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_damaged_compression_of_a_large_batch_is_named(codec: Codec) -> None:
    section = compress(codec, record_front(100_000) + np.random.default_rng(1).bytes(100_000) + b"\0")
    for damaged in (section[: len(section) // 2], section[:-30], b"\xff" * 50):
        with pytest.raises(CorruptBatch, match=r"cannot be decompressed|does not end within"):
            rows(batch_of(codec, damaged, 1), whole_batch_bytes=1)


def test_length_of_a_snappy_block_is_not_believed() -> None:
    lying = b"\xff\xff\xff\xff\x0f" + bytes(20)
    with pytest.raises(BadCompression):
        DecompressedStream(Codec.SNAPPY, memoryview(lying)).read_into(memoryview(bytearray(10)))


def test_rest_of_an_enormous_batch_is_left_out_by_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_batch_module, "MOST_BATCH_BYTES", 1 << 20)
    records = [Record(number, 5, b"k", bytes(200_000)) for number in range(10, 20)]
    data = encode_batch(records, codec=Codec.ZSTD)
    found = rows(data, whole_batch_bytes=1, next_offset=19)
    assert found == rows(data, whole_batch_bytes=1 << 20, next_offset=19), "whatever the window is"
    assert [row["offset"] for row in found] == list(range(10, 19))
    beyond = [row for row in found if row[SET_ASIDE]]
    assert len(beyond) == 3, "six of 200,000 bytes begin within a mebibyte"
    assert found[-len(beyond) :] == beyond
    assert {row[SET_ASIDE].split(":")[0] for row in beyond} == {"message_too_large"}
    sparse = encode_batch([record._replace(offset=2 * record.offset) for record in records], codec=Codec.ZSTD)
    with pytest.raises(CorruptBatch, match="lacks offsets"):
        rows(sparse, whole_batch_bytes=1)


@pytest.mark.parametrize("whole", [1, 1 << 25])
def test_timestamps_of_messages_beyond_the_limits(whole: int) -> None:
    options: dict[str, Any] = {"limits": SMALL, "whole_batch_bytes": whole}
    records = [Record(0, -1, None, bytes(500)), Record(1, 2**62, None, bytes(500)), Record(2, 3, None, None)]
    batches = list(decode(encode_batch(records), where=WHERE, set_aside=True, **options))
    times = [time for batch in batches for time in batch.column("timestamp").cast(pa.int64()).to_pylist()]
    assert times == [NO_TIMESTAMP_US, (2**63 - 1) // 1000 * 1000, 3000]
    data = encode_batch(records, log_append_time_ms=77)
    batches = list(decode(data, where=WHERE, set_aside=True, **options))
    times = [time for batch in batches for time in batch.column("timestamp").cast(pa.int64()).to_pylist()]
    assert times == [77_000] * 3


@pytest.mark.parametrize("limits", [Limits(0, 1), Limits(1 << 31, 1), Limits(1, -1), Limits(1, 1 << 21)])
def test_limits_that_no_reader_can_hold_are_refused(limits: Limits) -> None:
    with pytest.raises(ValueError, match="at most"):
        rows(b"", limits=limits)
