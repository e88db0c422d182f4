"""How many messages wait before a committed offset: markers and aborted messages are none."""

from __future__ import annotations

import pytest

from waybill.records.batches import framing
from waybill.records.batches.encode import Record, control_batch, encode_batch
from waybill.records.batches.framing import ControlType
from waybill.services.kafka.waiting_messages import waiting_in


def data(first: int, count: int, producer: int = -1) -> bytes:
    records = [Record(offset, 1_000, None, b"x") for offset in range(first, first + count)]
    return encode_batch(records, transactional=producer >= 0, producer_id=producer, producer_epoch=0)


def marker(offset: int, producer: int, kind: ControlType = ControlType.COMMIT) -> bytes:
    return control_batch(offset, kind, timestamp_ms=1_000, producer_id=producer, producer_epoch=0)


@pytest.mark.parametrize(
    ("batches", "committed", "end", "waiting"),
    [
        ([marker(10, 1)], 10, 11, 0),
        ([marker(10, 1), marker(11, 2, ControlType.ABORT)], 10, 12, 0),
        ([data(8, 2, 1), marker(10, 1)], 10, 11, 0),  # a batch that begins before the committed offset
        ([data(8, 4, 1), marker(12, 1)], 10, 13, 2),
        ([data(10, 3)], 10, 13, 3),
        ([data(10, 3)], 10, 12, 2),  # the log has grown since its end was read
        ([data(10, 3, 1), marker(13, 1)], 10, 14, 3),
        ([data(10, 3, 1), marker(13, 1, ControlType.ABORT)], 10, 14, 0),
        ([data(10, 3, 1), data(13, 2, 2), marker(15, 1, ControlType.ABORT), marker(16, 2)], 10, 17, 2),
        ([data(10, 3, 1)], 10, 13, 3),  # an open transaction: its messages wait
        ([], 10, 11, 0),  # compaction has removed the rest
    ],
)
def test_messages_are_counted_and_markers_are_not(batches: list[bytes], committed: int, end: int, waiting: int) -> None:
    found = framing.frames(b"".join(batches), where="flights/0")
    assert waiting_in(found, committed, end, "flights/0") == waiting
