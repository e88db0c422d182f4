"""Recompressed batches hold the same messages, keep their other header fields, and are valid for other readers."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import CODECS, batch_sequences, read_with_kafka_python, record_lists, records_in

from waybill.base.errors import CorruptBatch
from waybill.records.batches import ControlType, check_crc, empty_batch, frames
from waybill.records.batches.compression import Recompressor, recompress
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, control_batch, encode_batch
from waybill.records.batches.framing import Codec, Frame

LEVELS = st.sampled_from([1, 3, 19])
COMPRESSIBLE = [Record(7 + i, 1_700_000_000_000 + i, b"key", b"value " * 30) for i in range(20)]


def frame_of(batch: bytes) -> Frame:
    (frame,) = frames(batch, where="input")
    return frame


@given(batch_sequences(), LEVELS)
def test_recompressed_batches_hold_the_same_messages(sequence: tuple[bytes, list[Record]], level: int) -> None:
    data, messages = sequence
    rewritten = [recompress(frame, level) for frame in frames(data, where="input")]
    for frame in rewritten:
        check_crc(frame, "rewritten")
    stored = b"".join(frame.data for frame in rewritten)
    assert len(stored) <= len(data)
    assert records_in(decode(stored, where="rewritten")) == messages
    assert read_with_kafka_python(stored) == messages


@given(record_lists(), LEVELS, st.booleans(), st.integers(-1, 1 << 40), st.none() | st.integers(0, 1 << 40))
def test_recompression_changes_only_codec_length_and_crc(
    records: list[Record], level: int, transactional: bool, producer_id: int, append_time: int | None
) -> None:
    before = frame_of(
        encode_batch(
            [*records, Record(records[-1].offset + 1, 5, None, b"x" * 2000)],
            next_offset=records[-1].offset + 10,
            leader_epoch=11,
            log_append_time_ms=append_time,
            transactional=transactional,
            producer_id=producer_id,
            producer_epoch=3,
            base_sequence=17,
        )
    )
    after = recompress(before, level)
    assert after.header.codec is Codec.ZSTD
    assert len(after.data) < len(before.data)
    same = {"attributes": after.header.attributes & ~7, "batch_length": 0, "crc": 0}
    assert after.header._replace(**same) == before.header._replace(batch_length=0, crc=0)
    assert after.position == before.position


@pytest.mark.parametrize(
    "batch",
    [
        *(encode_batch(COMPRESSIBLE, codec=codec) for codec in CODECS if codec is not Codec.NONE),
        control_batch(7, ControlType.COMMIT, timestamp_ms=1, producer_id=5, producer_epoch=0),
        encode_batch(COMPRESSIBLE, control=True),
        empty_batch(7, 9, leader_epoch=0),
        encode_batch([Record(7, 1, None, os.urandom(40))]),
    ],
)
def test_batches_that_cannot_get_smaller_are_returned_unchanged(batch: bytes) -> None:
    frame = frame_of(batch)
    assert recompress(frame, 3) is frame


def test_recompressor_keeps_the_order_and_leaves_unarchived_batches_unchanged() -> None:
    """There are more batches than are compressed ahead, with sizes for groups of one batch and of many."""
    data = b"".join(
        encode_batch([Record(number, 1, None, b"%d" % number * (1 + (number % 7) * 20_000))]) for number in range(120)
    )
    given_ = [(frame, number % 3 != 0) for number, frame in enumerate(frames(data, where="input"))]
    with Recompressor(1) as recompressor:
        found = list(recompressor.batches(iter(given_)))
    assert [(f.header.base_offset, archived) for f, archived in found] == [(n, n % 3 != 0) for n in range(120)]
    assert all(f is frame for (f, archived), (frame, _) in zip(found, given_, strict=True) if not archived)
    assert sum(f.header.codec is Codec.ZSTD for f, _ in found) == sum(n % 3 != 0 and n % 7 != 0 for n in range(120))


def test_recompressor_raises_an_error_of_its_input() -> None:
    def damaged() -> object:
        yield frame_of(encode_batch(COMPRESSIBLE)), True
        raise CorruptBatch("input", 0, "damaged")

    with Recompressor(1) as recompressor, pytest.raises(CorruptBatch, match="damaged"):
        list(recompressor.batches(damaged()))  # type: ignore[arg-type]
