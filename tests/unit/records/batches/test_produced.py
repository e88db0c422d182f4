"""Batches that a restore sends: a broker accepts their header, and consumers see the archived messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import CODECS, read_with_kafka_python, record_lists, records_in

from waybill.base.errors import CorruptBatch
from waybill.records.batches import Codec, Frame, TimestampType, check_crc, frames
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import HEADER_BYTES
from waybill.records.batches.produced import Producer, is_sendable, renumber, stamp

PRODUCER = Producer(4711, 3)
EVERYTHING = (0, 1 << 62)


def frame_of(batch: bytes) -> Frame:
    (frame,) = frames(batch, where="input")
    return frame


def seen_by_consumers(records: list[Record], append_time_ms: int | None) -> list[Record]:
    """Return the records as a restored topic has them: offsets from 0, and the timestamps that consumers saw."""
    return [
        record._replace(offset=index, timestamp_ms=record.timestamp_ms if append_time_ms is None else append_time_ms)
        for index, record in enumerate(records)
    ]


@given(
    record_lists(),
    st.sampled_from(CODECS),
    st.none() | st.integers(0, 1 << 40),
    st.booleans(),
    st.none() | st.integers(0, 1 << 40),
    st.data(),
)
def test_renumbered_batch_holds_the_records_of_the_range_as_consumers_saw_them(
    records: list[Record],
    codec: Codec,
    append_time_ms: int | None,
    transactional: bool,
    delete_horizon_ms: int | None,
    data: st.DataObject,
) -> None:
    frame = frame_of(
        encode_batch(
            records,
            codec=codec,
            log_append_time_ms=append_time_ms,
            transactional=transactional,
            delete_horizon_ms=delete_horizon_ms,
            next_offset=records[-1].offset + 3,
        )
    )
    first = data.draw(st.integers(records[0].offset - 1, records[-1].offset + 1))
    following = data.draw(st.integers(first, records[-1].offset + 2))
    kept = [record for record in records if first <= record.offset < following]
    renumbered = renumber(frame, first, following, "input")
    if not kept:
        assert renumbered is None
        return
    assert renumbered is not None
    header = renumbered.header
    assert is_sendable(header._replace(base_offset=0), *EVERYTHING)
    assert header.codec is codec
    assert not header.is_transactional
    assert not header.has_delete_horizon
    sent = stamp(renumbered, PRODUCER, 0)
    check_crc(frame_of(sent), "sent")
    expected = seen_by_consumers(kept, append_time_ms)
    assert records_in(decode(sent, where="sent")) == expected
    assert read_with_kafka_python(sent) == expected
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in expected)


@given(record_lists(), st.sampled_from(CODECS), st.integers(0, 1 << 40))
def test_stamped_batch_changes_only_the_fields_of_broker_and_producer(
    records: list[Record], codec: Codec, index: int
) -> None:
    dense = [record._replace(offset=100 + number) for number, record in enumerate(records)]
    before = frame_of(
        encode_batch(
            dense, codec=codec, leader_epoch=9, transactional=True, producer_id=1, producer_epoch=1, base_sequence=5
        )
    )
    assert is_sendable(before.header, 100, 100 + len(dense))
    after = frame_of(stamp(before, PRODUCER, index))
    check_crc(after, "sent")
    assert after.data[HEADER_BYTES:] == before.data[HEADER_BYTES:]
    assert after.header == before.header._replace(
        base_offset=0,
        leader_epoch=-1,
        crc=after.header.crc,
        attributes=int(codec),
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.epoch,
        base_sequence=index % 2**31,
    )


def test_batch_at_an_edge_or_with_missing_offsets_or_append_time_cannot_be_sent_as_it_is() -> None:
    records = [Record(offset, 5, b"k", b"v") for offset in (10, 11, 12)]
    header = frame_of(encode_batch(records)).header
    assert is_sendable(header, 10, 13)
    assert not is_sendable(header, 11, 13)
    assert not is_sendable(header, 10, 12)
    assert not is_sendable(frame_of(encode_batch(records, next_offset=14)).header, *EVERYTHING)
    append_time = frame_of(encode_batch(records, log_append_time_ms=7)).header
    assert append_time.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert not is_sendable(append_time, *EVERYTHING)


def test_header_keys_that_are_not_text_are_restored_byte_for_byte() -> None:
    frame = frame_of(encode_batch([Record(3, 5, None, b"v", (("aa", b"h"),)), Record(9, 5, None, b"w")]))
    data = bytes(frame.data).replace(b"aa", b"\xff\xfe")
    renumbered = renumber(frame_of(data), *EVERYTHING, "input")
    assert renumbered is not None
    assert b"\xff\xfe" in bytes(renumbered.data)


def test_large_batch_that_compresses_well_is_renumbered() -> None:
    frame = frame_of(encode_batch([Record(1, 5, None, bytes(3_000_000)), Record(4, 6, b"k", b"v")], codec=Codec.ZSTD))
    renumbered = renumber(frame, *EVERYTHING, "input")
    assert renumbered is not None
    assert [len(record.value or b"") for record in records_in(decode(renumbered.data, where="sent"))] == [3_000_000, 1]
    with pytest.raises(CorruptBatch, match="holds more than 1,000,000 bytes of records"):
        renumber(frame, *EVERYTHING, "input", max_batch_bytes=1_000_000)


def test_malformed_records_are_reported_with_the_place_of_their_batch() -> None:
    frame = frame_of(encode_batch([Record(1, 5, b"key", b"value"), Record(2, 5, b"key", b"value")]))
    damaged = bytearray(frame.data)
    damaged[HEADER_BYTES] = 0x7E
    with pytest.raises(CorruptBatch, match="an object, byte 0: its records are malformed"):
        renumber(frame_of(bytes(damaged)), *EVERYTHING, "an object")
