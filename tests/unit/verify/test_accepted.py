"""Accepted gaps against a chain: what is right is listed, and everything else is a fault or a note."""

from __future__ import annotations

import pytest

from waybill.archive.gaps import Gap, GapKind
from waybill.names import TopicPartition
from waybill.verify.gaps import Extent, check_accepted
from waybill.verify.report import Report

TP = TopicPartition("t", 0)


def gap(first: int, following: int, kind: GapKind = GapKind.RETENTION) -> Gap:
    return Gap(TP, 1, first, following, kind, "why", "ann", 1)


def holds(first: int, following: int, messages: int = 1, *, hole: bool = False) -> Extent:
    return Extent(f"o{first}", first, following, messages, hole)


CHAIN = [holds(0, 10), holds(10, 25, 0, hole=True), holds(25, 30)]


@pytest.mark.parametrize(
    ("extents", "accepted", "holes", "faults"),
    [
        (CHAIN, [gap(10, 25)], [(10, 25)], []),
        (CHAIN, [gap(10, 25, GapKind.BROKEN)], [(10, 25)], []),
        (CHAIN, [gap(10, 25), gap(5, 10, GapKind.TRUNCATED)], [(10, 25)], []),
        (CHAIN, [gap(10, 25), gap(5, 30, GapKind.TRUNCATED)], [(10, 25)], []),
        (CHAIN, [], [], [(10, 25)]),
        (CHAIN, [gap(10, 24)], [], [(10, 24), (10, 25)]),
        (CHAIN, [gap(10, 26)], [], [(10, 25), (25, 26), (10, 25)]),
        (CHAIN, [gap(10, 25), gap(3, 4)], [(10, 25)], [(3, 4)]),
        (CHAIN, [gap(10, 25), gap(20, 24, GapKind.TRUNCATED)], [(10, 25)], [(20, 24)]),
        ([holds(10, 25, 3, hole=True)], [gap(10, 25)], [], [(10, 25), (10, 25)]),
        ([holds(10, 25, 0)], [gap(10, 25)], [], [(10, 25)]),
        ([], [], [], []),
    ],
)
def test_what_is_recorded_is_what_the_chain_lacks(
    extents: list[Extent], accepted: list[Gap], holes: list[tuple[int, int]], faults: list[tuple[int, int]]
) -> None:
    report = Report("s", 1)
    end = extents[-1].next_offset if extents else None
    assert check_accepted(TP, extents, end, accepted, "p", report) == holes
    assert [(fault.first_offset, fault.next_offset) for fault in report.faults] == faults
    assert {str(fault.kind) for fault in report.faults} <= {"gap"}
    assert len(report.accepted) + len({fault.where for fault in report.faults if "gaps/" in fault.where}) == len(
        accepted
    )


@pytest.mark.parametrize(("end", "notes"), [(10, 1), (None, 1), (30, 0)])
def test_a_decision_that_nobody_has_carried_out_yet_is_a_note(end: int | None, notes: int) -> None:
    report = Report("s", 1)
    assert check_accepted(TP, [holds(0, 10)], end, [gap(10, 25)], "p", report) == []
    assert (len(report.notes), report.faults, report.accepted) == (notes, [], [])
