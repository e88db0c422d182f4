"""Read a whole backup object for `waybill verify`: check every byte, and compare the offsets with the name.

Unlike `waybill.archive.chain.object_reader.inspect_object` this decodes records too. It returns which offsets hold
messages, and returns a fault instead of raising, so that verification goes on with the next object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from waybill.archive.chain.gaps import GAP_METADATA_KEY
from waybill.archive.chain.indexed_reader import IndexedReader
from waybill.base.errors import CorruptBatch, ObjectMissing
from waybill.records.batches import framing
from waybill.records.batches.decode import decode_offsets
from waybill.records.shards.checkpoint_batch import SlotState, read_checkpoint_batch
from waybill.services.store import Store, StoredObject

if TYPE_CHECKING:
    Int64s = np.ndarray[Any, np.dtype[np.int64]]

MAX_RANGES = 4096
"""The most offset ranges that are kept for an object (64 KB). Objects of compacted topics can have more."""


@dataclass(frozen=True, slots=True)
class ObjectScan:
    """The content of an object, and its fault."""

    next_offset: int
    """Where the object ends; for an object that cannot be read, the offset in its name."""
    messages: int
    ranges: Int64s | None
    """The offsets of the messages, as rows `[first, next)`; None if there are more than `MAX_RANGES`, or if there is a
    fault."""
    fault: str | None
    """Why the object cannot be trusted; None if it is sound."""
    is_gap_marker: bool = False
    """Whether the object stands for an accepted gap."""
    slot_state: SlotState | None = None
    """The content of its checkpoint batch, for an object of a Kinesis slot."""


def scan_object(store: Store, stored: StoredObject) -> ObjectScan:
    """Read and check a whole object, in little memory."""
    try:
        return _scan_indexed(store, stored) if stored.name.extension.is_indexed else _scan_batches(store, stored)
    except (CorruptBatch, ObjectMissing) as error:
        return ObjectScan(stored.name.first_offset, 0, None, str(error).removeprefix(f"{stored.key}, "))


def collect_ranges(arrays: Iterable[Int64s]) -> tuple[Int64s | None, int]:
    """Merge ascending offsets into ranges of consecutive offsets; also return the number of offsets.

    The ranges are the rows `[first, next)` of an int64 array of shape (n, 2); None if there are more than `MAX_RANGES`.
    """
    firsts: list[Int64s] = []
    nexts: list[Int64s] = []
    count = kept = 0
    for offsets in arrays:
        count += len(offsets)
        if kept > MAX_RANGES:
            continue
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        first, following = offsets[np.r_[0, breaks + 1]], offsets[np.r_[breaks, len(offsets) - 1]] + 1
        if nexts and nexts[-1][-1] == first[0]:
            nexts[-1][-1] = following[0]
            first, following = first[1:], following[1:]
        if len(first):
            firsts.append(first)
            nexts.append(following)
            kept += len(first)
    if kept > MAX_RANGES:
        return None, count
    if not firsts:
        return np.empty((0, 2), np.int64), count
    return np.stack([np.concatenate(firsts), np.concatenate(nexts)], axis=1), count


def _scan_batches(store: Store, stored: StoredObject) -> ObjectScan:
    checker = _BatchChecker(stored.key)
    with store.open(stored.key) as stream:
        is_gap_marker = GAP_METADATA_KEY in stream.metadata
        frames = checker.check(framing.read_frames(stream, stored.key))
        # The checker has verified the CRCs.
        arrays = decode_offsets(frames, where=stored.key, first_offset=stored.name.first_offset, verify_crc=False)
        ranges, messages = collect_ranges(arrays)
    fault = checker.find_fault(stored)
    return ObjectScan(checker.next_offset, messages, ranges, fault, is_gap_marker, checker.slot_state)


def _scan_indexed(store: Store, stored: StoredObject) -> ObjectScan:
    """Compare the bytes with the index's SHA-256 and the messages with its rows; a SequenceFile also has offsets."""
    first_offset = stored.name.first_offset
    with IndexedReader(store, stored.key) as reader:
        ranges, messages = collect_ranges(batch.column("offset").to_numpy() for batch in reader.messages())
        next_offset, is_gap_marker = reader.figures.next_offset, GAP_METADATA_KEY in reader.metadata
        bounds = [int(offsets[i]) for offsets in reader.offsets() for i in (0, -1)]
    fault = None
    if next_offset <= first_offset or (bounds and (bounds[0] < first_offset or bounds[-1] >= next_offset)):
        fault = f"the object's name starts at offset {first_offset}, but its index holds other offsets"
    return ObjectScan(next_offset, messages, ranges, fault, is_gap_marker)


class _BatchChecker:
    """Checks the record batches of an object on their way to the decoder."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._first: framing.BatchHeader | None = None
        self.next_offset = 0
        self.slot_state: SlotState | None = None

    def check(self, frames: Iterable[framing.Frame]) -> Iterator[framing.Frame]:
        for frame in frames:
            # Check it here, because the decoder skips batches outside of the object's range.
            framing.check_crc(frame, self._key)
            if self._first is None:
                self._first = frame.header
            self.next_offset = frame.header.next_offset
            self.slot_state = read_checkpoint_batch(frame, self._key)
            yield frame

    def find_fault(self, stored: StoredObject) -> str | None:
        """Return how the batches contradict the object's name; None if they do not."""
        first_offset = stored.name.first_offset
        if self._first is None:
            return "the object holds no record batch"
        if self.next_offset <= first_offset:
            return (
                f"the object's name starts at offset {first_offset}, but it only holds offsets below {self.next_offset}"
            )
        if self._first.next_offset <= first_offset:
            # The first batch may begin before the range, but it must reach into it.
            return f"the object's name starts at offset {first_offset}, but its first batch ends before that offset"
        return None
