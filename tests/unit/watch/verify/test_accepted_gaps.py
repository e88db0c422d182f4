"""Accepted gaps compared with a chain: those that match are listed, all others are faults or notes."""

from __future__ import annotations

import pytest

from waybill.archive.chain.gaps import Gap, GapKind
from waybill.config.names import TopicPartition
from waybill.watch.verify.archive import SoundObject, check_accepted_gaps
from waybill.watch.verify.verify_report import VerifyReport

TP = TopicPartition("t", 0)


def gap(first: int, following: int, kind: GapKind = GapKind.RETENTION) -> Gap:
    return Gap(TP, 1, first, following, kind, "why", "ann", 1)


def stored(first: int, following: int, messages: int = 1, *, is_marker: bool = False) -> SoundObject:
    return SoundObject(f"o{first}", first, following, messages, is_marker)


CHAIN = [stored(0, 10), stored(10, 25, 0, is_marker=True), stored(25, 30)]


@pytest.mark.parametrize(
    ("objects", "accepted", "ranges", "faults"),
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
        ([stored(10, 25, 3, is_marker=True)], [gap(10, 25)], [], [(10, 25), (10, 25)]),
        ([stored(10, 25, 0)], [gap(10, 25)], [], [(10, 25)]),
        ([], [], [], []),
    ],
)
def test_accepted_gaps_are_faults_unless_they_match_what_the_chain_lacks(
    objects: list[SoundObject], accepted: list[Gap], ranges: list[tuple[int, int]], faults: list[tuple[int, int]]
) -> None:
    report = VerifyReport("s", 1)
    end = objects[-1].next_offset if objects else None
    assert check_accepted_gaps(TP, objects, end, accepted, "p", report) == ranges
    assert [(fault.first_offset, fault.next_offset) for fault in report.faults] == faults
    assert {str(fault.kind) for fault in report.faults} <= {"gap"}
    assert len(report.accepted) + len({fault.where for fault in report.faults if "gaps/" in fault.where}) == len(
        accepted
    )


@pytest.mark.parametrize(("end", "notes"), [(10, 1), (None, 1), (30, 0)])
def test_accepted_gap_is_a_note_until_ingest_has_created_its_marker(end: int | None, notes: int) -> None:
    report = VerifyReport("s", 1)
    assert check_accepted_gaps(TP, [stored(0, 10)], end, [gap(10, 25)], "p", report) == []
    assert (len(report.notes), report.faults, report.accepted) == (notes, [], [])


@pytest.mark.parametrize(("missing", "faults"), [([(10, 25)], 0), ([], 1), ([(11, 25)], 1)])
def test_truncation_is_no_further_fault_when_the_object_after_it_is_missing(
    missing: list[tuple[int, int]], faults: int
) -> None:
    report = VerifyReport("s", 1)
    truncation = gap(5, 10, GapKind.TRUNCATED)
    check_accepted_gaps(TP, [stored(0, 10), stored(25, 30)], 30, [truncation], "p", report, missing=missing)
    assert len(report.faults) == faults
