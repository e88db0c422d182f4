"""The messages of a batch that belong to an object that starts within it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.chain.message_count import count_messages
from waybill.records.batches import framing
from waybill.records.batches.encode import Record, encode_batch


@given(st.sets(st.integers(10, 29), min_size=1), st.integers(0, 40))
def test_messages_from_an_offset_on_are_counted(offsets: set[int], first_offset: int) -> None:
    records = [Record(offset, 0, None, b"v") for offset in sorted(offsets)]
    (frame,) = framing.frames(encode_batch(records, base_offset=10, next_offset=30), where="t/0")
    assert count_messages(frame, first_offset, "t/0") == sum(offset >= first_offset for offset in offsets)


@pytest.mark.parametrize("first_offset", [0, 10, 15, 30])
def test_an_empty_batch_has_no_message(first_offset: int) -> None:
    (frame,) = framing.frames(framing.empty_batch(10, 30, leader_epoch=0), where="t/0")
    assert count_messages(frame, first_offset, "t/0") == 0
