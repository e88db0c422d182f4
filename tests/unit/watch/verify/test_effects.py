"""One missing or damaged object is one fault, with its consequences in tables as effects."""

from __future__ import annotations

import numpy as np

from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.tables.iceberg import Progress
from waybill.watch.verify.effects import AffectedRows, check_progress
from waybill.watch.verify.verify_report import EffectKind, FaultKind, VerifyFault, VerifyReport

A, B = TopicPartition("flights", 3), TopicPartition("flights", 4)
MAIN, QUARANTINE = "lake.flights", "lake.flights_quarantine"


def report_of(*faults: VerifyFault) -> VerifyReport:
    return VerifyReport("flights", 1, faults=list(faults))


def missing(first: int | None, following: int | None, tp: TopicPartition = A) -> VerifyFault:
    return VerifyFault(FaultKind.MISSING, "key", tp, first, following, "no backup object holds these offsets")


def offsets(*bounds: tuple[int, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([np.arange(first, following, dtype=np.int64) for first, following in bounds])


def attach_rows(
    report: VerifyReport, progress: Progress, rows: dict[str, tuple[int, int]], tp: TopicPartition = A
) -> int:
    """Count rows of each table in a range of offsets, and return how many of them no fault affects."""
    affected = AffectedRows(report, progress)
    left = sum(int(np.count_nonzero(~affected.count(table, tp, offsets(found)))) for table, found in rows.items())
    affected.finish()
    return left


def test_deleted_last_object_is_one_fault_with_rows_and_progress_as_effects() -> None:
    report = report_of(missing(120_000, 131_072))
    check_progress(report, {A: 131_072}, {A: 120_000}, MAIN)
    assert attach_rows(report, {A: 131_072}, {MAIN: (120_000, 131_072)}) == 0
    (fault,) = report.faults
    assert [(effect.kind, effect.where, effect.rows) for effect in fault.affects] == [
        (EffectKind.PROGRESS, MAIN, None),
        (EffectKind.ROWS, MAIN, 11_072),
    ]
    assert str(fault) == (
        "missing: flights/3 offsets 120000–131071: no backup object holds these offsets (key)"
        "; affects: lake.flights has progress 131072, which has passed these offsets"
        "; affects: lake.flights has 11,072 rows of these offsets, which the archive no longer backs"
    )
    assert fault.document()["affects"] == [
        {
            "kind": "progress",
            "where": MAIN,
            "rows": None,
            "what": "has progress 131072, which has passed these offsets",
        },
        {
            "kind": "rows",
            "where": MAIN,
            "rows": 11_072,
            "what": "has 11,072 rows of these offsets, which the archive no longer backs",
        },
    ]


def test_fault_without_effects_has_an_empty_list_in_json() -> None:
    fault = missing(0, 10)
    assert fault.document()["affects"] == []
    assert "affects" not in str(fault)


def test_progress_that_has_not_reached_the_missing_offsets_is_no_effect() -> None:
    report = report_of(missing(100, 200))
    check_progress(report, {A: 100}, {A: 300}, MAIN)
    assert attach_rows(report, {A: 100}, {MAIN: (90, 110)}) == 20
    assert [fault.affects for fault in report.faults] == [[]]


def test_progress_within_the_missing_offsets_has_passed_some_of_them() -> None:
    report = report_of(missing(100, 200))
    check_progress(report, {A: 150}, {A: 300}, MAIN)
    assert attach_rows(report, {A: 150}, {MAIN: (100, 160)}) == 10, "rows beyond the progress are wrong by themselves"
    (fault,) = report.faults
    assert [effect.what for effect in fault.affects] == [
        "has progress 150, which has passed some of these offsets",
        "has 50 rows of these offsets, which the archive no longer backs",
    ]


def test_progress_beyond_the_chain_is_a_fault_while_nothing_is_missing() -> None:
    report = report_of()
    check_progress(report, {A: 300, B: 7}, {A: 200}, MAIN)
    assert [(f.kind, f.tp, f.first_offset, f.next_offset) for f in report.faults] == [
        (FaultKind.PROGRESS, A, 200, 300),
        (FaultKind.PROGRESS, B, None, None),
    ]
    assert report.faults[1].what == "the table's progress is 7, and there is no chain"
    assert attach_rows(report, {A: 300, B: 7}, {MAIN: (190, 310)}) == 20
    assert attach_rows(report, {A: 300, B: 7}, {MAIN: (0, 10)}, B) == 3
    assert [[effect.rows for effect in fault.affects] for fault in report.faults] == [[100], [7]]


def test_progress_beyond_the_missing_offsets_is_a_fault_of_its_own() -> None:
    report = report_of(missing(200, 250))
    check_progress(report, {A: 300}, {A: 200}, MAIN)
    assert [(f.kind, f.first_offset, f.next_offset) for f in report.faults] == [
        (FaultKind.MISSING, 200, 250),
        (FaultKind.PROGRESS, 250, 300),
    ]
    assert attach_rows(report, {A: 300}, {MAIN: (200, 300)}) == 0
    assert [[e.rows for e in fault.affects if e.rows] for fault in report.faults] == [[50], [50]]


def test_chain_without_objects_affects_all_rows_below_the_progress() -> None:
    report = report_of(missing(None, None))
    check_progress(report, {A: 300}, {}, MAIN)
    assert attach_rows(report, {A: 300}, {MAIN: (0, 310), QUARANTINE: (5, 6)}) == 10
    (fault,) = report.faults
    assert [(effect.where, effect.rows) for effect in fault.affects] == [
        (MAIN, None),
        (MAIN, 300),
        (QUARANTINE, 1),
    ]


def test_rows_of_other_topic_partitions_and_other_kinds_of_faults_are_not_affected() -> None:
    overlap = VerifyFault(FaultKind.OVERLAP, "key", A, 0, 100, "x")
    report = report_of(overlap, missing(0, 100, B))
    assert attach_rows(report, {A: 100, B: 100}, {MAIN: (0, 100)}) == 100
    assert overlap.affects == []


def test_two_missing_objects_have_effects_of_their_own() -> None:
    report = report_of(missing(0, 10), missing(20, 40))
    affected = AffectedRows(report, {A: 100})
    mask = affected.count(MAIN, A, offsets((5, 25), (39, 60)))
    affected.finish()
    assert mask.sum() == 5 + 5 + 1
    assert [[effect.rows for effect in fault.affects] for fault in report.faults] == [[5], [6]]


def test_files_without_offsets_are_affected_by_a_fault_in_their_range() -> None:
    report = report_of(missing(100, 200))
    affected = AffectedRows(report, {A: 300})
    assert not affected.count_in_range(MAIN, A, 0, 100, 90)
    assert affected.count_in_range(MAIN, A, 150, 300, 140)
    affected.finish()
    assert [effect.rows for effect in report.faults[0].affects] == [50], "not more than the ranges have in common"


def test_equal_fault_is_added_once() -> None:
    report = report_of()
    for _ in range(2):
        report.add_fault(VerifyFault(FaultKind.UNREADABLE, MAIN, None, None, None, "a file is missing"))
    assert len(report.faults) == 1


def test_number_of_things_has_the_singular_for_one() -> None:
    assert [counted(number, "accepted gap") for number in (0, 1, 2, 11_072)] == [
        "0 accepted gaps",
        "1 accepted gap",
        "2 accepted gaps",
        "11,072 accepted gaps",
    ]
