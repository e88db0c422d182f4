"""`encode_dense` writes the same bytes as `encode_batch`, which was tested against Kafka."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.records.batches import Codec
from waybill.records.batches.dense import encode_dense, encode_headers, length, varint
from waybill.records.batches.encode import Record, encode_batch

HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=9), st.binary(max_size=9)), max_size=4)
MESSAGES = st.lists(
    st.tuples(
        st.integers(-1, 1 << 50), st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=90), HEADERS
    ),
    min_size=1,
    max_size=20,
)


@given(MESSAGES, st.integers(0, 1 << 60), st.sampled_from([Codec.NONE, Codec.ZSTD]))
def test_the_bytes_are_those_of_encode_batch(
    messages: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]], base_offset: int, codec: Codec
) -> None:
    dense = [(at, key, value, encode_headers(headers)) for at, key, value, headers in messages]
    records = [Record(base_offset + index, *message) for index, message in enumerate(messages)]
    encoded = encode_dense(dense, base_offset, codec=codec)
    assert encoded.messages == len(messages)
    assert encoded.data == encode_batch(records, codec=codec)


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, 8191, 8192, 1 << 31, -(1 << 40)])
def test_the_table_has_the_same_varints(value: int) -> None:
    assert length(value) == varint(value)


def test_a_long_sequence_is_cut_into_batches() -> None:
    value = bytes(100_000)
    encoded = encode_dense(((0, None, value, b"\0") for _ in range(25)), 3)
    assert encoded.messages == 25
    assert len(encoded.data) > 25 * len(value)
