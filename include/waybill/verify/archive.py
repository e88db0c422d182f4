"""The chains: contiguous, every CRC right, every object what its name says, the committed offset at the end.

What this relies on: the committed offset is read before the listing, so the listing shows every object that it counts.
Ingest may go on meanwhile; what is archived after the listing is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from waybill.archive.chain import find_start
from waybill.archive.gaps import MARK, Gap
from waybill.archive.indexed_reader import IndexedReader
from waybill.coordination import Committed
from waybill.errors import CorruptBatch, ObjectMissing
from waybill.names import BackupName, TopicPartition
from waybill.records import decode as decoding
from waybill.records import framing
from waybill.store import Store, StoredObject
from waybill.verify.gaps import Extent, check_accepted
from waybill.verify.report import Fault, FaultKind, Listener, Report

if TYPE_CHECKING:
    Runs = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Archive", "Chain", "CheckedObject", "ReadCommitted", "check_archive", "object_runs"]

ReadCommitted = Callable[[TopicPartition], Committed | None]

READERS = 3
"""Objects that are read at the same time. Each holds a chunk and one record batch."""

MAX_RUNS = 4096
"""Runs of offsets that are kept of an object (64 KB); of one with more, a compacted one, they are read again."""


@dataclass(frozen=True, slots=True)
class CheckedObject:
    """A backup object as it was found."""

    key: str
    first_offset: int
    next_offset: int
    """Where its own last batch ends; for a damaged one, where the next object starts or the committed offset is."""
    messages: int
    runs: Runs | None
    """The offsets of its messages, as rows `[first, next)`; None if there are too many to keep, or it is damaged."""
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """The objects of a topic-partition, in order. `holes` are the offsets that no sound object accounts for."""

    tp: TopicPartition
    objects: tuple[CheckedObject, ...]
    holes: tuple[tuple[int, int], ...]
    first_offset: int
    """Where it began, as far as anybody knows: its first object may be missing."""

    @property
    def next_offset(self) -> int:
        return self.objects[-1].next_offset


Archive = dict[TopicPartition, Chain]


@dataclass(frozen=True, slots=True)
class _Content:
    """What reading an object gave. `fault` is why it cannot be trusted, or None."""

    next_offset: int
    messages: int
    runs: Runs | None
    fault: str | None
    is_hole: bool = False
    """Whether the object stands for an accepted gap."""


def check_archive(
    store: Store,
    generation: int,
    tps: Sequence[TopicPartition],
    committed: ReadCommitted,
    accepted: Callable[[], Sequence[Gap]],
    report: Report,
    listener: Listener,
) -> Archive:
    """Read every object of the chains of `tps`; figures, faults and notes go to `report`.

    `committed` reads the committed offset of a topic-partition, now; None if there is none. `accepted` reads the
    gaps that somebody accepted, now.
    """
    before = {tp: committed(tp) for tp in tps}
    starts = {tp: _start(store, generation, tp, before[tp]) for tp in tps}
    listed = {tp: list(store.list_chain(tp.topic, generation, tp.partition)) for tp in tps}
    # After the listing: a gap is recorded before an object stands for it.
    decided = accepted()
    every = [stored for objects in listed.values() for stored in objects]
    report.figures.chains = sum(1 for objects in listed.values() if objects)
    report.figures.objects = len(every)
    report.figures.bytes = sum(stored.size_bytes for stored in every)
    listener.begin("reading the archive", report.figures.bytes)
    archive: Archive = {}
    with ThreadPoolExecutor(READERS, thread_name_prefix="waybill-verify") as pool:
        contents = pool.map(lambda stored: _read(store, stored), every)
        try:
            for tp, objects in listed.items():
                gaps = [gap for gap in decided if gap.tp == tp]
                facts = _Facts(before[tp], partial(committed, tp), starts[tp], gaps, store.prefix)
                checker = _ChainChecker(tp, objects, facts, report)
                chain = checker.check(_listened(objects, contents, listener))
                if chain is not None:
                    archive[tp] = chain
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return archive


def _start(store: Store, generation: int, tp: TopicPartition, committed: Committed | None) -> int | None:
    """Where a chain began: as ZooKeeper says, or as was written down in S3; None if nobody knows any more."""
    if committed is not None and committed.start_offset is not None:
        return committed.start_offset
    found = find_start(store, generation, tp)
    return None if found is None else found.offset


def _listened(objects: Sequence[StoredObject], contents: Iterator[_Content], listener: Listener) -> Iterator[_Content]:
    for stored in objects:
        content = next(contents)
        listener.advance(stored.size_bytes)
        yield content


def _read(store: Store, stored: StoredObject) -> _Content:
    """Read an object whole, in small memory."""
    if stored.name.extension.is_indexed:
        return _read_indexed(store, stored)
    scan = _Scan(stored.key)
    try:
        with store.open(stored.key) as stream:
            is_hole = MARK in stream.metadata
            runs, messages = _runs(scan.frames(framing.read_frames(stream, stored.key)), stored)
    except (CorruptBatch, ObjectMissing) as error:
        return _Content(stored.name.first_offset, 0, None, str(error).removeprefix(f"{stored.key}, "))
    return _Content(scan.next_offset, messages, runs, scan.fault(stored), is_hole)


def _read_indexed(store: Store, stored: StoredObject) -> _Content:
    """Are its bytes those that its index speaks of, and do they hold its messages, in a SequenceFile at their keys?"""
    first_offset = stored.name.first_offset
    try:
        with IndexedReader(store, stored.key) as reader:
            runs, messages = _collect(batch.column("offset").to_numpy() for batch in reader.messages())
            next_offset, is_hole = reader.figures.next_offset, MARK in reader.metadata
            bounds = [int(offsets[i]) for offsets in reader.offsets() for i in (0, -1)]
    except (CorruptBatch, ObjectMissing) as error:
        return _Content(first_offset, 0, None, str(error).removeprefix(f"{stored.key}, "))
    fault = None
    if next_offset <= first_offset or (bounds and (bounds[0] < first_offset or bounds[-1] >= next_offset)):
        fault = f"the object starts at {first_offset} by its name, and its index speaks of other offsets"
    return _Content(next_offset, messages, runs, fault, is_hole)


class _Scan:
    """Looks at the frames of an object on their way to the decoder."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._first: framing.BatchHeader | None = None
        self.next_offset = 0

    def frames(self, frames: Iterable[framing.Frame]) -> Iterator[framing.Frame]:
        for frame in frames:
            # Here, and not by the decoder, which leaves out batches that are out of range.
            framing.check_crc(frame, self._key)
            if self._first is None:
                self._first = frame.header
            self.next_offset = frame.header.next_offset
            yield frame

    def fault(self, stored: StoredObject) -> str | None:
        first_offset = stored.name.first_offset
        if self._first is None:
            return "the object holds no record batch"
        if self.next_offset <= first_offset:
            return f"the object starts at {first_offset} by its name, and holds offsets below {self.next_offset} only"
        if self._first.next_offset <= first_offset:
            # A batch may straddle the start of the range, but none lies before it.
            return f"the object starts at {first_offset} by its name, but with a batch that ends before"
        return None


def _runs(frames: Iterable[framing.Frame], stored: StoredObject) -> tuple[Runs | None, int]:
    """The offsets of the messages as runs, None if they are too many; and how many messages."""
    arrays = decoding.decode_offsets(frames, where=stored.key, first_offset=stored.name.first_offset, verify_crc=False)
    return _collect(arrays)


def _collect(arrays: Iterable[Runs]) -> tuple[Runs | None, int]:
    firsts: list[Runs] = []
    nexts: list[Runs] = []
    messages = kept = 0
    for offsets in arrays:
        messages += len(offsets)
        if kept > MAX_RUNS:
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
    if kept > MAX_RUNS:
        return None, messages
    if not firsts:
        return np.empty((0, 2), np.int64), messages
    return np.stack([np.concatenate(firsts), np.concatenate(nexts)], axis=1), messages


def object_runs(store: Store, found: CheckedObject, first_offset: int, next_offset: int) -> Iterator[Runs]:
    """The offsets of an object's messages within `[first_offset, next_offset)`, as rows `[first, next)`."""
    if found.runs is not None:
        clipped = np.clip(found.runs, first_offset, next_offset)
        yield clipped[clipped[:, 0] < clipped[:, 1]]
        return
    if BackupName.parse(found.key).extension.is_indexed:
        with IndexedReader(store, found.key) as reader:
            for offsets in reader.offsets(first_offset=first_offset, next_offset=next_offset):
                yield np.stack([offsets, offsets + 1], axis=1)
        return
    with store.open(found.key) as stream:
        arrays = decoding.decode_offsets(
            framing.read_frames(stream, found.key),
            where=found.key,
            first_offset=max(first_offset, found.first_offset),
            next_offset=next_offset,
            verify_crc=False,
        )
        for offsets in arrays:
            yield np.stack([offsets, offsets + 1], axis=1)


def _offset(committed: Committed | None) -> int | None:
    return None if committed is None else committed.committed_offset


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of a chain besides its objects."""

    committed: Committed | None
    """As it was before the chain was listed."""
    committed_now: Callable[[], Committed | None]
    start_offset: int | None
    accepted: Sequence[Gap]
    prefix: str
    """The archive's."""


class _ChainChecker:
    """Holds the objects of one chain against each other and against the committed offset."""

    def __init__(
        self,
        tp: TopicPartition,
        objects: Sequence[StoredObject],
        facts: _Facts,
        report: Report,
    ) -> None:
        self._tp = tp
        self._objects = objects
        self._facts = facts
        self._committed = facts.committed
        self._committed_offset = _offset(facts.committed)
        self._report = report
        self._extents: list[Extent] = []
        self._holes: list[tuple[int, int]] = []

    def check(self, contents: Iterable[_Content]) -> Chain | None:
        """None if there is no object at all."""
        if not self._objects:
            self._check_empty()
            self._check_accepted(self._committed_offset)
            return None
        self._check_formats()
        limits = [stored.name.first_offset for stored in self._objects[1:]] + [None]
        checked = [
            self._check_object(stored, content, limit)
            for stored, content, limit in zip(self._objects, contents, limits, strict=True)
        ]
        first_offset = self._check_start(checked[0].first_offset)
        self._check_committed(checked[-1])
        self._check_accepted(checked[-1].next_offset)
        self._report.figures.messages += sum(found.messages for found in checked)
        return Chain(self._tp, tuple(checked), tuple(self._holes), first_offset)

    def _check_formats(self) -> None:
        """A chain's objects are of one format; the first to be of another is named."""
        extension = self._objects[0].name.extension if self._committed is None else self._committed.extension
        other = next((stored for stored in self._objects if stored.name.extension is not extension), None)
        if other is not None:
            first, what = other.name.first_offset, f"a .{other.name.extension} object in a chain of .{extension}"
            self._fault(FaultKind.FORMAT, other.key, first, None, what)

    def _check_start(self, first_offset: int) -> int:
        """Where the chain began: at its first object, or at one that is missing now."""
        start = self._facts.start_offset
        if start is None or start >= first_offset:
            return first_offset
        what = f"in no object; the chain began at {start}"
        self._fault(FaultKind.MISSING, self._objects[0].key, start, first_offset, what)
        self._holes.append((start, first_offset))
        return start

    def _check_accepted(self, end_offset: int | None) -> None:
        self._holes += check_accepted(
            self._tp, self._extents, end_offset, self._facts.accepted, self._facts.prefix, self._report
        )

    def _check_object(self, stored: StoredObject, content: _Content, limit: int | None) -> CheckedObject:
        first = stored.name.first_offset
        if content.fault is not None:
            committed = self._committed_offset
            end = limit if limit is not None else max(first + 1, committed or 0)
            self._fault(FaultKind.DAMAGED, stored.key, first, end, content.fault)
            self._holes.append((first, end))
            return CheckedObject(stored.key, first, end, 0, None, damaged=True)
        end = content.next_offset
        if limit is not None and end < limit:
            self._fault(FaultKind.MISSING, stored.key, end, limit, "in no object; the chain is broken after this one")
            self._holes.append((end, limit))
        elif limit is not None and end > limit:
            self._fault(FaultKind.OVERLAP, stored.key, limit, end, "the next object holds these offsets as well")
            end = limit
        self._extents.append(Extent(stored.key, first, end, content.messages, content.is_hole))
        return CheckedObject(stored.key, first, end, content.messages, content.runs)

    def _check_empty(self) -> None:
        # A chain that starts has a committed offset before its first object; but not the size of a last object.
        committed = self._committed
        if committed is None:
            return
        start, offset = self._facts.start_offset, committed.committed_offset
        if committed.object_bytes or (start is not None and start < offset):
            what = f"the committed offset is {offset}, and there is no object"
            self._fault(FaultKind.MISSING, "ZooKeeper", start, None if start is None else offset, what)

    def _check_committed(self, last: CheckedObject) -> None:
        committed, end = self._committed_offset, last.next_offset
        if committed == end or last.damaged:
            return
        if committed is None or committed == last.first_offset:
            # A lane may be between its upload and its commit right now, or died there.
            committed = _offset(self._facts.committed_now())
        if committed is not None and committed > end:
            if committed == self._committed_offset:
                what = f"in no object, and the committed offset is {committed}: the chain's end is missing"
                self._fault(FaultKind.MISSING, last.key, end, committed, what)
            return
        if committed == end:
            return
        if committed is None:
            self._note(f"ZooKeeper has no committed offset; the next run takes {end} from the chain")
        elif committed == last.first_offset:
            self._note(f"the last object is not committed yet; the next run adopts it and goes on from {end}")
        else:
            what = f"the committed offset is {committed}, the chain ends at {end}"
            self._fault(FaultKind.COMMITTED, "ZooKeeper", committed, end, what)

    def _fault(self, kind: FaultKind, where: str, first: int | None, end: int | None, what: str) -> None:
        self._report.faults.append(Fault(kind, where, self._tp, first, end, what))

    def _note(self, text: str) -> None:
        self._report.notes.append(f"{self._tp}: {text}")
