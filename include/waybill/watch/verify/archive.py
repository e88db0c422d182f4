"""Check the chains: contiguous objects that are sound and hold what their names promise, up to the committed offset.

The committed offset is read before the chain is listed, so the listing contains every object below it. Ingest may go on
during the check: objects that it creates after the listing are not checked.

Each accepted gap must have its gap marker in the chain, and each gap marker its accepted gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from waybill.archive.chain.chain import find_chain_start
from waybill.archive.chain.gaps import Gap
from waybill.archive.chain.object_reader import read_offsets
from waybill.archive.chain.object_scan import ObjectScan, scan_object
from waybill.base.errors import WaybillError
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.records.shards.checkpoint_batch import SlotState
from waybill.services.coordination import CommittedOffset
from waybill.services.store import Store, StoredObject
from waybill.watch.verify.verify_report import FaultKind, Listener, VerifyFault, VerifyReport

if TYPE_CHECKING:
    Int64s = np.ndarray[Any, np.dtype[np.int64]]

_T = TypeVar("_T")

ReadCommitted = Callable[[TopicPartition], CommittedOffset | None]
"""Reads the committed offset of a topic-partition at the time of the call; None if there is none."""

READERS = 3
"""Objects that are read at the same time. Each reader needs memory for a chunk and one record batch."""


@dataclass(frozen=True, slots=True)
class CheckedObject:
    """A backup object after the check of its content."""

    key: str
    first_offset: int
    next_offset: int
    """The end of its last batch. For a damaged object: the start of the next object, or the committed offset."""
    messages: int
    ranges: Int64s | None
    """The offsets of its messages, as rows `[first, next)`; None if there are too many to keep, or it is damaged."""
    damaged: bool = False
    is_gap_marker: bool = False
    slot_state: SlotState | None = None
    """What its checkpoint batch states, for an object of a Kinesis slot."""


@dataclass(frozen=True, slots=True)
class CheckedChain:
    """The chain of a topic-partition after the check: at least one object, in order."""

    tp: TopicPartition
    objects: tuple[CheckedObject, ...]
    unknown_ranges: tuple[tuple[int, int], ...]
    """Ranges of offsets whose messages are unknown: missing and damaged objects, and accepted gaps."""
    first_offset: int
    """The chain's start, which is below the first object's if that one is missing."""

    @property
    def next_offset(self) -> int:
        """The end of the last object."""
        return self.objects[-1].next_offset


CheckedArchive = dict[TopicPartition, CheckedChain]


def check_archive(
    store: Store,
    generation: int,
    tps: Sequence[TopicPartition],
    read_committed: ReadCommitted,
    list_gaps: Callable[[], Sequence[Gap]],
    report: VerifyReport,
    listener: Listener,
) -> CheckedArchive:
    """Read every object of the chains of `tps`, add figures, faults and notes to `report`, and return the chains.

    `list_gaps` reads the accepted gaps at the time of the call. A topic-partition without objects is not in the result,
    nor is one whose check an unexpected exception ended: this is a fault.
    """
    committed = _for_each(tps, read_committed, report)
    starts = _for_each(committed, lambda tp: _find_start(store, generation, tp, committed[tp]), report)
    listed = _for_each(starts, lambda tp: list(store.list_chain(tp.topic, generation, tp.partition)), report)
    # After the listing: a gap is recorded before its gap marker is created, so the gap of every listed marker is here.
    accepted_gaps = list_gaps()
    stored_objects = [stored for objects in listed.values() for stored in objects]
    report.figures.chains = sum(1 for objects in listed.values() if objects)
    report.figures.objects = len(stored_objects)
    report.figures.bytes = sum(stored.size_bytes for stored in stored_objects)
    listener.begin("reading the archive", report.figures.bytes)
    with ThreadPoolExecutor(READERS, thread_name_prefix="waybill-verify") as pool:
        scans = {tp: deque(pool.submit(scan_object, store, each) for each in objects) for tp, objects in listed.items()}

        def check(tp: TopicPartition) -> CheckedChain | None:
            expected = _Expected(
                committed[tp],
                partial(read_committed, tp),
                starts[tp],
                [gap for gap in accepted_gaps if gap.tp == tp],
                store.prefix,
            )
            checker = _ChainChecker(tp, listed[tp], expected, report)
            return checker.check(_advancing(listed[tp], scans.pop(tp), listener))

        try:
            archive = {tp: chain for tp, chain in _for_each(listed, check, report).items() if chain is not None}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return archive


def _for_each(
    tps: Iterable[TopicPartition], work: Callable[[TopicPartition], _T], report: VerifyReport
) -> dict[TopicPartition, _T]:
    """Return the result of each topic-partition. An unexpected exception becomes a fault of its topic-partition.

    Raises the errors of Waybill, such as a service that does not answer.
    """
    done = {}
    for tp in tps:
        try:
            done[tp] = work(tp)
        except WaybillError:
            raise
        except Exception as error:
            report.add_unexpected(f"the check of {tp}", error, tp)
    return done


def read_offset_ranges(store: Store, found: CheckedObject, first_offset: int, next_offset: int) -> Iterator[Int64s]:
    """Yield the offsets of an object's messages in `[first_offset, next_offset)`, as rows `[first, next)`."""
    if found.ranges is not None:
        clipped = np.clip(found.ranges, first_offset, next_offset)
        yield clipped[clipped[:, 0] < clipped[:, 1]]
        return
    for offsets in read_offsets(
        store, found.key, first_offset=max(first_offset, found.first_offset), next_offset=next_offset
    ):
        yield np.stack([offsets, offsets + 1], axis=1)


def _find_start(store: Store, generation: int, tp: TopicPartition, committed: CommittedOffset | None) -> int | None:
    """Return the chain's start from ZooKeeper, or else from its record in S3; None if neither has it."""
    if committed is not None and committed.start_offset is not None:
        return committed.start_offset
    start = find_chain_start(store, generation, tp)
    return None if start is None else start.offset


def _advancing(
    objects: Sequence[StoredObject], scans: deque[Future[ObjectScan]], listener: Listener
) -> Iterator[ObjectScan]:
    """Yield the scans of a chain in order. Release each scan after use, since it may hold many ranges of offsets."""
    for stored in objects:
        scan = scans.popleft().result()
        listener.advance(stored.size_bytes)
        yield scan


def _committed_offset(committed: CommittedOffset | None) -> int | None:
    return None if committed is None else committed.committed_offset


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a chain is compared with."""

    committed: CommittedOffset | None
    """As it was before the chain was listed."""
    read_committed_again: Callable[[], CommittedOffset | None]
    start_offset: int | None
    gaps: Sequence[Gap]
    prefix: str
    """The archive's prefix."""


class _ChainChecker:
    """Compares the objects of one chain with each other and with the committed offset."""

    def __init__(
        self,
        tp: TopicPartition,
        objects: Sequence[StoredObject],
        expected: _Expected,
        report: VerifyReport,
    ) -> None:
        self._tp = tp
        self._objects = objects
        self._expected = expected
        self._committed = expected.committed
        self._committed_offset = _committed_offset(expected.committed)
        self._report = report
        self._sound: list[SoundObject] = []
        self._unknown_ranges: list[tuple[int, int]] = []

    def check(self, scans: Iterable[ObjectScan]) -> CheckedChain | None:
        """Return the checked chain; None if it has no object."""
        if not self._objects:
            self._check_chain_without_objects()
            self._check_accepted_gaps(self._committed_offset)
            return None
        self._check_formats()
        next_starts = [stored.name.first_offset for stored in self._objects[1:]] + [None]
        checked = [
            self._check_object(stored, scan, next_start)
            for stored, scan, next_start in zip(self._objects, scans, next_starts, strict=True)
        ]
        first_offset = self._check_start(checked[0].first_offset)
        self._check_committed_offset(checked[-1])
        self._check_accepted_gaps(checked[-1].next_offset)
        self._report.figures.messages += sum(found.messages for found in checked)
        return CheckedChain(self._tp, tuple(checked), tuple(self._unknown_ranges), first_offset)

    def _check_formats(self) -> None:
        """Add a fault for the first object whose format differs from the chain's."""
        extension = self._objects[0].name.extension if self._committed is None else self._committed.extension
        other = next((stored for stored in self._objects if stored.name.extension is not extension), None)
        if other is not None:
            first, what = other.name.first_offset, f"a .{other.name.extension} object in a chain of .{extension}"
            self._fault(FaultKind.FORMAT, other.key, first, None, what)

    def _check_start(self, first_offset: int) -> int:
        """Return the chain's start: its first object's offset, or a lower one if the first object is missing."""
        start = self._expected.start_offset
        if start is None or start >= first_offset:
            return first_offset
        self._missing(self._objects[0].key, start, first_offset, f"the chain began at {start}")
        return start

    def _check_accepted_gaps(self, end_offset: int | None) -> None:
        self._unknown_ranges += check_accepted_gaps(
            self._tp,
            self._sound,
            end_offset,
            self._expected.gaps,
            self._expected.prefix,
            self._report,
            missing=tuple(self._unknown_ranges),
        )

    def _check_object(self, stored: StoredObject, scan: ObjectScan, next_start: int | None) -> CheckedObject:
        """Check one object. `next_start` is the first offset of the object after it; None for the last one."""
        first = stored.name.first_offset
        if scan.fault is not None:
            end = next_start if next_start is not None else max(first + 1, self._committed_offset or 0)
            self._fault(FaultKind.DAMAGED, stored.key, first, end, scan.fault)
            self._unknown_ranges.append((first, end))
            return CheckedObject(stored.key, first, end, 0, None, damaged=True)
        end = scan.next_offset
        if next_start is not None and end < next_start:
            self._missing(stored.key, end, next_start, "the chain is broken after this object")
        elif next_start is not None and end > next_start:
            self._fault(FaultKind.OVERLAP, stored.key, next_start, end, "the next object holds these offsets as well")
            end = next_start
        self._sound.append(SoundObject(stored.key, first, end, scan.messages, scan.is_gap_marker))
        return CheckedObject(
            stored.key,
            first,
            end,
            scan.messages,
            scan.ranges,
            is_gap_marker=scan.is_gap_marker,
            slot_state=scan.slot_state,
        )

    def _check_chain_without_objects(self) -> None:
        # Before its first object, a chain has a committed offset without the size of a last object.
        committed = self._committed
        if committed is None:
            return
        start, offset = self._expected.start_offset, committed.committed_offset
        if committed.object_bytes or (start is not None and start < offset):
            what = f"the committed offset is {offset}, and the chain has no object"
            self._fault(FaultKind.MISSING, "ZooKeeper", start, None if start is None else offset, what)

    def _check_committed_offset(self, last: CheckedObject) -> None:
        committed, end = self._committed_offset, last.next_offset
        if committed == end or last.damaged:
            return
        if committed is None or committed == last.first_offset:
            # A lane may be between creating the object and committing its offset right now, or has died there.
            committed = _committed_offset(self._expected.read_committed_again())
        if committed is not None and committed > end:
            if committed == self._committed_offset:
                self._missing(last.key, end, committed, f"the committed offset is {committed}: the chain's end is gone")
            return
        if committed == end:
            return
        if committed is None:
            self._note(f"ZooKeeper has no committed offset; the next ingest takes {end} from the chain")
        elif committed == last.first_offset:
            self._note(f"the last object is not committed yet; the next ingest adopts it and continues at {end}")
        else:
            what = f"the committed offset is {committed}, the chain ends at {end}"
            self._fault(FaultKind.COMMITTED, "ZooKeeper", committed, end, what)

    def _missing(self, where: str, first: int, end: int, detail: str) -> None:
        what = f"no backup object holds {_these_offsets(end - first)}; {detail}"
        self._fault(FaultKind.MISSING, where, first, end, what)
        self._unknown_ranges.append((first, end))

    def _fault(self, kind: FaultKind, where: str, first: int | None, end: int | None, what: str) -> None:
        self._report.add_fault(VerifyFault(kind, where, self._tp, first, end, what))

    def _note(self, text: str) -> None:
        self._report.notes.append(f"{self._tp}: {text}")


def _these_offsets(number: int) -> str:
    return "this offset" if number == 1 else f"these {counted(number, 'offset')}"


@dataclass(frozen=True, slots=True)
class SoundObject:
    """A backup object without faults: its range, its number of messages, and whether it is a gap marker."""

    key: str
    first_offset: int
    next_offset: int
    messages: int
    is_gap_marker: bool


def check_accepted_gaps(
    tp: TopicPartition,
    objects: Sequence[SoundObject],
    end_offset: int | None,
    accepted: Iterable[Gap],
    prefix: str,
    report: VerifyReport,
    *,
    missing: Iterable[tuple[int, int]] = (),
) -> list[tuple[int, int]]:
    """Compare the accepted gaps of a chain with its sound objects, and return the ranges of gaps that have a marker.

    The chain ends at `end_offset`, and `missing` are ranges whose objects are missing or damaged: faults already.
    `prefix` is the archive's. Gaps that match the chain go to the report's `accepted`, all others become faults or
    notes.
    """
    starts = {end_offset, *(found.first_offset for found in objects), *(first for first, _ in missing)}
    ranges: list[tuple[int, int]] = []
    explained: set[str] = set()
    for gap in accepted:
        if not gap.has_marker:
            _check_truncation(gap, starts, gap.name.key(prefix), report)
            continue
        marker = next((found for found in objects if _is_marker_of(found, gap)), None)
        if marker is not None:
            explained.add(marker.key)
            report.accepted.append(gap)
            ranges.append((gap.first_offset, gap.next_offset))
        else:
            _check_gap_without_marker(gap, objects, end_offset, gap.name.key(prefix), report)
    for found in objects:
        if found.is_gap_marker and found.key not in explained:
            what = "the object is a gap marker, and no record shows that this gap was accepted"
            report.add_fault(VerifyFault(FaultKind.GAP, found.key, tp, found.first_offset, found.next_offset, what))
    return ranges


def _is_marker_of(found: SoundObject, gap: Gap) -> bool:
    same = (found.first_offset, found.next_offset) == (gap.first_offset, gap.next_offset)
    return found.is_gap_marker and not found.messages and same


def _check_gap_without_marker(
    gap: Gap, objects: Sequence[SoundObject], end_offset: int | None, key: str, report: VerifyReport
) -> None:
    """Add a note if ingest still has to create the gap's marker, and a fault if objects hold the gap's offsets."""
    within = [
        found for found in objects if found.first_offset < gap.next_offset and found.next_offset > gap.first_offset
    ]
    for found in within:
        first, following = max(found.first_offset, gap.first_offset), min(found.next_offset, gap.next_offset)
        what = f"accepted as a gap, but archived in {found.key}: remove the record, and accept what is missing"
        report.add_fault(VerifyFault(FaultKind.GAP, key, gap.tp, first, following, what))
    if not within and (end_offset is None or end_offset <= gap.first_offset):
        report.notes.append(f"{gap}: accepted; the next ingest creates its gap marker")


def _check_truncation(gap: Gap, starts: Collection[int | None], key: str, report: VerifyReport) -> None:
    """Check that an object starts where the chain goes on after an accepted truncation.

    The chain keeps the messages of the log before the truncation, and the next object starts at the gap's end.
    `starts` are the offsets at which objects start, including the one that comes next.
    """
    if gap.next_offset in starts:
        report.accepted.append(gap)
        return
    what = f"accepted as a truncation after which the chain goes on at {gap.next_offset}, but no object starts there"
    report.add_fault(VerifyFault(FaultKind.GAP, key, gap.tp, gap.first_offset, gap.next_offset, what))
