"""Accepted gaps against the chain: each is exactly what an object without messages stands for, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from waybill.archive.gaps import Gap
from waybill.names import TopicPartition
from waybill.verify.report import Fault, FaultKind, Report

__all__ = ["Extent", "check_accepted"]


@dataclass(frozen=True, slots=True)
class Extent:
    """What of a sound backup object counts here: its range, and whether it stands for a hole."""

    key: str
    first_offset: int
    next_offset: int
    messages: int
    is_hole: bool


def check_accepted(
    tp: TopicPartition,
    extents: Sequence[Extent],
    end_offset: int | None,
    accepted: Iterable[Gap],
    prefix: str,
    report: Report,
) -> list[tuple[int, int]]:
    """Hold the accepted gaps of a chain, which ends at `end_offset`, against its sound objects.

    `prefix` is the archive's. Gaps that are right go to the report's `accepted`. Returns the holes among them.
    """
    holes: list[tuple[int, int]] = []
    explained: set[str] = set()
    for gap in accepted:
        if not gap.is_hole:
            _check_truncation(gap, extents, end_offset, gap.name.key(prefix), report)
            continue
        standing = next((e for e in extents if _stands_for(e, gap)), None)
        if standing is not None:
            explained.add(standing.key)
            report.accepted.append(gap)
            holes.append((gap.first_offset, gap.next_offset))
        else:
            _check_open(gap, extents, end_offset, gap.name.key(prefix), report)
    for extent in extents:
        if extent.is_hole and extent.key not in explained:
            what = "in no message: the object stands for an accepted gap, and there is no record of its acceptance"
            report.faults.append(Fault(FaultKind.GAP, extent.key, tp, extent.first_offset, extent.next_offset, what))
    return holes


def _stands_for(extent: Extent, gap: Gap) -> bool:
    same = (extent.first_offset, extent.next_offset) == (gap.first_offset, gap.next_offset)
    return extent.is_hole and not extent.messages and same


def _check_open(gap: Gap, extents: Sequence[Extent], end_offset: int | None, key: str, report: Report) -> None:
    """A hole that no object stands for: either nobody went over it yet, or it is none."""
    within = [e for e in extents if e.first_offset < gap.next_offset and e.next_offset > gap.first_offset]
    for extent in within:
        first, following = max(extent.first_offset, gap.first_offset), min(extent.next_offset, gap.next_offset)
        what = f"accepted as a gap, but archived in {extent.key}: remove the record, and accept what is missing"
        report.faults.append(Fault(FaultKind.GAP, key, gap.tp, first, following, what))
    if not within and (end_offset is None or end_offset <= gap.first_offset):
        report.notes.append(f"{gap}: accepted; the next run goes over it")


def _check_truncation(gap: Gap, extents: Sequence[Extent], end_offset: int | None, key: str, report: Report) -> None:
    """The chain keeps what the old log held, and goes on with an object that starts where that ended."""
    bounds = {end_offset, *(extent.first_offset for extent in extents)}
    if gap.next_offset in bounds:
        report.accepted.append(gap)
        return
    what = f"accepted as a truncation after which the chain goes on at {gap.next_offset}, where it does not"
    report.faults.append(Fault(FaultKind.GAP, key, gap.tp, gap.first_offset, gap.next_offset, what))
