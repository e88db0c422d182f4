"""Text: messages survive a round trip, unsuitable messages are rejected with a reason, and damage is detected."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.formats.text import CONTAINS_DELIMITER, TOMBSTONE, TextWriter, read_values
from waybill.base.errors import DamagedObject
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch

DELIMITERS = st.sampled_from([b"\n", b"|", b"\r\n", b"aa", b"aba", b"\x1e\n"])
VALUES = st.lists(st.none() | st.binary(max_size=30) | st.text("ab\n|", max_size=8).map(str.encode), min_size=1)


def messages_of(values: Sequence[bytes | None]) -> pa.RecordBatch:
    (batch,) = decode(encode_batch([Record(i, -1, None, value) for i, value in enumerate(values)]), where="test")
    return batch


def write(values: Sequence[bytes | None], delimiter: bytes, *, compressed: bool = False) -> tuple[bytes, list[str]]:
    """Return the bytes, and for each message the reason why it was rejected, or ''."""
    writer, messages = TextWriter(delimiter, compressed=compressed), messages_of(values)
    rejections = writer.rejections(messages)
    if rejections is not None:
        messages = messages.filter(rejections.is_null())
    data = b"".join([writer.begin(), *writer.write(messages), writer.finish()])
    return data, [""] * len(values) if rejections is None else [reason or "" for reason in rejections.to_pylist()]


def read(data: bytes, delimiter: bytes, *, compressed: bool = False) -> list[bytes]:
    return [
        value.as_py()
        for array in read_values(io.BytesIO(data), "test", delimiter, compressed=compressed)
        for value in array
    ]


@given(VALUES, DELIMITERS, st.booleans())
def test_messages_survive_a_round_trip_or_are_rejected_with_a_reason(
    values: list[bytes | None], delimiter: bytes, compressed: bool
) -> None:
    data, rejections = write(values, delimiter, compressed=compressed)
    plain = gzip.decompress(data) if compressed else data
    kept = [value for value, reason in zip(values, rejections, strict=True) if not reason]
    assert read(data, delimiter, compressed=compressed) == kept
    assert plain.split(delimiter) == [*kept, b""], "splitting at the delimiter yields the messages"
    for value, reason in zip(values, rejections, strict=True):
        if value is None:
            assert reason == TOMBSTONE
        else:
            cut = (value + delimiter).split(delimiter, 1)[0] != value
            assert reason == (CONTAINS_DELIMITER if cut else "")


def test_empty_messages_become_empty_lines() -> None:
    assert write([b"", b"a", b""], b"\n") == (b"\na\n\n", ["", "", ""])
    assert read(b"\na\n\n", b"\n") == [b"", b"a", b""]


def test_a_slice_of_a_batch_is_written() -> None:
    writer, messages = TextWriter(b"\n", compressed=False), messages_of([b"x\n", b"a", b"b\n", b"c", b"\n"]).slice(1, 3)
    rejections = writer.rejections(messages)
    assert rejections is not None
    assert rejections.to_pylist() == [None, CONTAINS_DELIMITER, None]
    assert b"".join(writer.write(messages.filter(rejections.is_null()))) == b"a\nc\n"


@pytest.mark.parametrize("delimiter", [b"\n", b"\r\n"])
def test_messages_larger_than_one_read_are_read_whole(delimiter: bytes) -> None:
    values = [b"a" * 9_000_000, b"", b"b" * 5_000_000]
    data, _ = write(values, delimiter, compressed=True)
    assert read(data, delimiter, compressed=True) == values


def test_an_object_that_ends_within_a_message_raises() -> None:
    with pytest.raises(DamagedObject, match="byte 2: is cut short"):
        read(b"a\nb", b"\n")


@pytest.mark.parametrize("position", [0, 12, -1])
def test_a_damaged_gzip_stream_raises(position: int) -> None:
    data, _ = write([b"some", b"messages"], b"\n", compressed=True)
    damaged = bytearray(data)
    damaged[position] ^= 0x55
    with pytest.raises(DamagedObject, match="its gzip stream is damaged"):
        read(bytes(damaged), b"\n", compressed=True)
    with pytest.raises(DamagedObject, match="its gzip stream is damaged"):
        read(data[:-3], b"\n", compressed=True)
