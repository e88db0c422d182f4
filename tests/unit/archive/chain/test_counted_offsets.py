"""What a backup object counts while it is written: messages, and offsets that it leaves out."""

from __future__ import annotations

from typing import Any, cast

import pytest

from waybill.archive.chain.backup_object import RecordBatchObject
from waybill.config.names import BackupName
from waybill.records.batches import framing
from waybill.records.batches.encode import Record, control_batch, encode_batch
from waybill.records.batches.framing import ControlType
from waybill.services.store import Store


class Nowhere:
    """A store that forgets what is uploaded."""

    prefix = "p"

    def upload_if_absent(self, *_: object) -> Any:
        return self

    def write(self, _: object) -> None:
        """Take a part."""


def batch(*offsets: int, next_offset: int | None = None) -> bytes:
    return encode_batch([Record(offset, 1, None, b"v") for offset in offsets], next_offset=next_offset)


def taken(first_offset: int, *batches: tuple[bytes, bool]) -> RecordBatchObject:
    """Return an object that took these batches, each archived or not."""
    made = RecordBatchObject(cast("Store", Nowhere()), BackupName("t", 1, 0, first_offset), "id")
    for data, archived in batches:
        made.begin_chunk(memoryview(data))
        for frame in framing.frames(memoryview(data), where="t/0"):
            made.take(frame, archived)
    return made


@pytest.mark.parametrize(
    ("first", "messages"), [((10, 11, 12, 13), 2), ((10, 12, 13), 2), ((10, 11, 13), 1), ((10, 11), 0), ((13,), 1)]
)
def test_messages_before_the_object_s_start_do_not_count(first: tuple[int, ...], messages: int) -> None:
    made = taken(12, (batch(*first, next_offset=14), True), (batch(14, 15), True))
    assert made.messages == messages + 2
    assert (made.control_offsets, made.aborted_offsets) == (0, 0)


def test_offsets_that_are_left_out_are_counted_by_reason() -> None:
    marker = control_batch(17, ControlType.ABORT, timestamp_ms=0, producer_id=7, producer_epoch=0)
    made = taken(12, (batch(10, 14, next_offset=15), False), (batch(15, 16), True), (marker, False))
    assert (made.messages, made.aborted_offsets, made.control_offsets) == (2, 3, 1)
    assert made.next_offset == 18
