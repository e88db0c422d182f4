"""Compare the accepted gaps with the chain: each must have its gap marker, and each gap marker its accepted gap."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from waybill.archive.gaps import Gap
from waybill.names import TopicPartition
from waybill.verify.report import Fault, FaultKind, Report

__all__ = ["SoundObject", "check_accepted_gaps"]


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
    report: Report,
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
            report.add_fault(Fault(FaultKind.GAP, found.key, tp, found.first_offset, found.next_offset, what))
    return ranges


def _is_marker_of(found: SoundObject, gap: Gap) -> bool:
    same = (found.first_offset, found.next_offset) == (gap.first_offset, gap.next_offset)
    return found.is_gap_marker and not found.messages and same


def _check_gap_without_marker(
    gap: Gap, objects: Sequence[SoundObject], end_offset: int | None, key: str, report: Report
) -> None:
    """Add a note if ingest still has to create the gap's marker, and a fault if objects hold the gap's offsets."""
    within = [
        found for found in objects if found.first_offset < gap.next_offset and found.next_offset > gap.first_offset
    ]
    for found in within:
        first, following = max(found.first_offset, gap.first_offset), min(found.next_offset, gap.next_offset)
        what = f"accepted as a gap, but archived in {found.key}: remove the record, and accept what is missing"
        report.add_fault(Fault(FaultKind.GAP, key, gap.tp, first, following, what))
    if not within and (end_offset is None or end_offset <= gap.first_offset):
        report.notes.append(f"{gap}: accepted; the next ingest creates its gap marker")


def _check_truncation(gap: Gap, starts: Collection[int | None], key: str, report: Report) -> None:
    """Check that an object starts where the chain goes on after an accepted truncation.

    The chain keeps the messages of the log before the truncation, and the next object starts at the gap's end.
    `starts` are the offsets at which objects start, including the one that comes next.
    """
    if gap.next_offset in starts:
        report.accepted.append(gap)
        return
    what = f"accepted as a truncation after which the chain goes on at {gap.next_offset}, but no object starts there"
    report.add_fault(Fault(FaultKind.GAP, key, gap.tp, gap.first_offset, gap.next_offset, what))
