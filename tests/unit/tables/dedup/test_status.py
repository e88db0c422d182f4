"""The status of a stream's dedup, read from the snapshots of three tables."""

from __future__ import annotations

import pytest
from table_history import history

from waybill.tables.dedup.status import Backlog, final_snapshot
from waybill.tables.iceberg.dedup import SweepPosition, SweepState, sweep_position_text
from waybill.tables.iceberg.state import SWEPT_PROPERTY


def state(sequence: int) -> SweepState:
    return SweepState(SweepPosition("main", sequence, sequence))


@pytest.mark.parametrize(
    ("swept", "behind"),
    [(None, Backlog(2, 30)), (1, Backlog(1, 20)), (2, Backlog(1, 20)), (3, Backlog(0, 0)), (4, Backlog(0, 0))],
)
def test_backlog_counts_rows_appended_since_the_last_sweep(swept: int | None, behind: Backlog) -> None:
    main = history({"added-records": "10"}, {}, {"added-records": "20"}, {"added-records": "0"})
    assert Backlog.of(main, SweepState() if swept is None else state(swept)) == behind


def test_backlog_is_empty_without_a_table() -> None:
    assert Backlog.of(None, SweepState()) == Backlog(0, 0)


@pytest.mark.parametrize(("swept", "final"), [(None, None), (4, None), (5, 2), (8, 2), (9, 4)])
def test_final_snapshot_of_duplicates_is_the_last_whose_unique_rows_are_committed(
    swept: int | None, final: int | None
) -> None:
    def sweep(sequence: int) -> dict[str, str]:
        return {SWEPT_PROPERTY: sweep_position_text(SweepPosition("main", sequence, sequence))}

    duplicates = history(sweep(5), {}, sweep(9), {})
    found = final_snapshot(duplicates, "duplicates", SweepState() if swept is None else state(swept))
    assert (found.snapshot_id if found else None) == final


def test_final_snapshot_is_none_before_the_first_duplicate() -> None:
    assert final_snapshot(history(), "duplicates", state(1)) is None
