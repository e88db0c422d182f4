"""Backup objects of Kinesis slots: what they hold, and what readers of record batches see of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.ingest.kinesis.slot_object import SlotObject
from waybill.base.documents import Document
from waybill.base.errors import CorruptBatch, DocumentTooNew
from waybill.config.names import BackupName
from waybill.records.batches import framing
from waybill.records.batches.decode import decode, decode_offsets
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.shards.checkpoint import Checkpoint, ShardPosition
from waybill.records.shards.checkpoint_batch import CoveredShard, SlotState, checkpoint_batch, read_checkpoint_batch

START = ShardPosition.trim_horizon()


class Upload:
    def __init__(self) -> None:
        self.data = b""
        self.is_complete = False

    def write(self, data: Any) -> None:
        self.data += bytes(data)

    def complete(self) -> None:
        self.is_complete = True

    def abort(self) -> None: ...


class Store:
    prefix = "archive"

    def __init__(self) -> None:
        self.upload = Upload()
        self.metadata: dict[str, str] = {}

    def upload_if_absent(self, _key: str, metadata: dict[str, str]) -> Upload:
        self.metadata = metadata
        return self.upload


def begin(first_offset: int, before: Checkpoint, **metadata: str) -> tuple[SlotObject, Upload]:
    store = Store()
    name = BackupName("clicks", 1, 3, first_offset)
    return SlotObject(store, name, "id", before, metadata), store.upload  # type: ignore[arg-type]


def batch(*keys: bytes) -> bytes:
    return encode_batch([Record(number, 1000 + number, key, b"v") for number, key in enumerate(keys)], leader_epoch=-1)


def frames_of(data: bytes) -> list[framing.Frame]:
    found = list(framing.frames(data, where="object"))
    for frame in found:
        framing.check_crc(frame, "object")
    return found


def test_batches_get_the_offsets_of_the_object_and_a_checkpoint_batch_ends_it() -> None:
    before = Checkpoint({"a": START.after("4")})
    writing, upload = begin(100, before)
    writing.append(batch(b"x", b"y"))
    writing.append(batch(b"z"))
    writing.checkpoint = before.moved("a", START.after("9")).moved("b", START.after("2"))
    writing.complete()
    frames = frames_of(upload.data)
    assert upload.is_complete
    assert [(each.header.base_offset, each.header.next_offset) for each in frames] == [
        (100, 102),
        (102, 103),
        (103, 104),
    ]
    state = read_checkpoint_batch(frames[-1], "object")
    assert state == SlotState(writing.checkpoint, {"a": CoveredShard("4", "9"), "b": CoveredShard("", "2")})
    assert (writing.next_offset, writing.messages, writing.control_offsets) == (104, 3, 1)
    assert writing.size_bytes == len(upload.data)
    assert writing.oldest_ms == 1000


def test_readers_of_record_batches_skip_the_checkpoint_batch() -> None:
    writing, upload = begin(0, Checkpoint())
    writing.append(batch(b"x", b"y"))
    writing.complete()
    keys = [key for part in decode(upload.data, where="object") for key in part.column("key").to_pylist()]
    assert keys == [b"x", b"y"]
    assert [int(n) for part in decode_offsets(upload.data, where="object") for n in part] == [0, 1]


def test_an_object_without_a_record_holds_the_end_of_a_shard() -> None:
    before = Checkpoint({"a": START.after("4")})
    writing, upload = begin(7, before)
    assert not writing.has_ended_shards
    writing.checkpoint = before.moved("a", START.after("4").at_shard_end())
    assert writing.has_ended_shards
    writing.complete()
    (frame,) = frames_of(upload.data)
    state = read_checkpoint_batch(frame, "object")
    assert state is not None
    assert state.covered == {"a": CoveredShard("4", "")}
    assert (frame.header.base_offset, frame.header.next_offset) == (7, 8)


def test_a_shard_that_ended_in_an_earlier_object_does_not_end_again() -> None:
    writing, _ = begin(7, Checkpoint({"a": START.after("4").at_shard_end()}))
    assert not writing.has_ended_shards


@given(
    st.dictionaries(
        st.text(max_size=20), st.integers(0, 2**128 - 1).map(lambda each: START.after(str(each))), max_size=9
    ),
    st.integers(0, 2**62),
)
def test_a_checkpoint_batch_returns_what_was_written(positions: dict[str, ShardPosition], offset: int) -> None:
    state = SlotState.between(Checkpoint(), Checkpoint(positions))
    (frame,) = frames_of(checkpoint_batch(offset, state))
    assert read_checkpoint_batch(frame, "object") == state
    assert frame.header.next_offset == offset + 1


@pytest.mark.parametrize(
    "data", [batch(b"x"), framing.empty_batch(4, 9, leader_epoch=2)], ids=["with records", "without records"]
)
def test_another_batch_is_no_checkpoint_batch(data: bytes) -> None:
    (frame,) = frames_of(data)
    assert read_checkpoint_batch(frame, "object") is None


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08\x00broken", b"not gzip"])
def test_a_damaged_checkpoint_batch_is_named(content: bytes) -> None:
    good = frames_of(checkpoint_batch(4, SlotState(Checkpoint(), {})))[0]
    (frame,) = frames_of(framing.pack_batch(good.header, content or b"\x00"))
    with pytest.raises(CorruptBatch, match="checkpoint batch"):
        read_checkpoint_batch(frame, "object")


def test_a_checkpoint_batch_of_a_newer_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.records.shards.checkpoint_batch._DOCUMENT", Document(version=2))
    (frame,) = frames_of(checkpoint_batch(4, SlotState(Checkpoint(), {})))
    monkeypatch.undo()
    with pytest.raises(DocumentTooNew, match="object"):
        read_checkpoint_batch(frame, "object")
