"""Attach the consequences of an archive fault to that fault, so that one deleted object is reported as one fault.

When backup objects are missing or damaged, tables may still have rows of their offsets, and progress may have passed
them. Nothing is wrong with these rows: the archive no longer backs them, and that is all one can say. Each such
consequence becomes an `FaultEffect` of the fault.

Offsets at or beyond a table's progress are excluded. A row there is wrong whether or not an object is missing, so it
remains a separate fault.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.tables.iceberg import Progress
from waybill.watch.verify.offsets import LAST_OFFSET
from waybill.watch.verify.verify_report import EffectKind, FaultEffect, FaultKind, VerifyFault, VerifyReport

if TYPE_CHECKING:
    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Mask = np.ndarray[Any, np.dtype[np.bool_]]

_ARCHIVE_FAULTS = (FaultKind.MISSING, FaultKind.DAMAGED, FaultKind.UNEXPECTED)
"""If an unexpected exception ended the check of a topic-partition, the content of its archive is unknown."""


def check_progress(report: VerifyReport, progress: Progress, chain_ends: dict[TopicPartition, int], name: str) -> None:
    """Compare a table's progress with the chains, and attach it to the archive faults whose offsets it has passed.

    `chain_ends` has the end of each chain's last object. Progress beyond the end of a chain is a separate fault only
    for offsets that no archive fault covers. `name` is the table's.
    """
    for tp, offset in sorted(progress.items()):
        archive_faults = [fault for fault in report.faults if fault.tp == tp and fault.kind in _ARCHIVE_FAULTS]
        for fault in archive_faults:
            if offset > _first(fault):
                fault.affects.append(_progress_effect(fault, offset, name))
        ends = [_next(fault) for fault in archive_faults]
        if tp in chain_ends:
            ends.append(chain_ends[tp])
        if not ends:
            what = f"the table's progress is {offset}, and there is no chain"
            report.add_fault(VerifyFault(FaultKind.PROGRESS, name, tp, None, None, what))
        elif offset > max(ends):
            what = f"the table's progress is {offset}, beyond the chain's end at {max(ends)}"
            report.add_fault(VerifyFault(FaultKind.PROGRESS, name, tp, max(ends), offset, what))


class AffectedRows:
    """Counts rows of tables whose offsets lie in the ranges of faults, and attaches the numbers to these faults.

    The faults are those of the archive, and progress beyond a chain's end: create it after `check_progress`.
    """

    def __init__(self, report: VerifyReport, progress: Progress) -> None:
        self._ranges: dict[TopicPartition, list[tuple[int, int, VerifyFault]]] = {}
        self._rows: dict[int, tuple[VerifyFault, Counter[str]]] = {}
        for fault in report.faults:
            if fault.tp is None or fault.kind not in (*_ARCHIVE_FAULTS, FaultKind.PROGRESS):
                continue
            first, following = _first(fault), min(_next(fault), progress.get(fault.tp, 0))
            if first < following:
                self._ranges.setdefault(fault.tp, []).append((first, following, fault))

    def count(self, table: str, tp: TopicPartition, offsets: Int64s) -> Mask:
        """Count the rows of a table at `offsets`, which are sorted, and return which of them a fault affects."""
        affected = np.zeros(len(offsets), np.bool_)
        for first, following, fault in self._ranges.get(tp, ()):
            start, end = np.searchsorted(offsets, (first, following))
            affected[start:end] = True
            self._add(fault, table, int(end - start))
        return affected

    def count_in_range(self, table: str, tp: TopicPartition, first: int, following: int, rows: int) -> bool:
        """Count rows of which only the range is known, and return whether a fault affects the range.

        If the range is larger than the fault's, no more rows are counted than the two ranges have offsets in common.
        """
        overlaps = False
        for low, high, fault in self._ranges.get(tp, ()):
            common = min(high, following) - max(low, first)
            if common > 0:
                overlaps = True
                self._add(fault, table, min(rows, common))
        return overlaps

    def finish(self) -> None:
        """Attach the counted rows to the faults."""
        for fault, tables in self._rows.values():
            for table, rows in tables.items():
                is_known = fault.kind is not FaultKind.UNEXPECTED
                why = "which the archive no longer backs" if is_known else "which were not compared with the archive"
                what = f"has {counted(rows, 'row')} of these offsets, {why}"
                fault.affects.append(FaultEffect(EffectKind.ROWS, table, rows, what))

    def _add(self, fault: VerifyFault, table: str, rows: int) -> None:
        if rows:
            self._rows.setdefault(id(fault), (fault, Counter()))[1][table] += rows


def _progress_effect(fault: VerifyFault, offset: int, name: str) -> FaultEffect:
    extent = "these offsets" if offset >= _next(fault) or fault.next_offset is None else "some of these offsets"
    return FaultEffect(EffectKind.PROGRESS, name, None, f"has progress {offset}, which has passed {extent}")


def _first(fault: VerifyFault) -> int:
    """Return where the range of a fault starts. A fault without a range concerns the whole topic-partition."""
    return 0 if fault.first_offset is None else fault.first_offset


def _next(fault: VerifyFault) -> int:
    return LAST_OFFSET if fault.next_offset is None else fault.next_offset
