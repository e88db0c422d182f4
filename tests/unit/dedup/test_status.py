"""What the snapshots of three tables say about a stream's dedup."""

from __future__ import annotations

import pytest
from table_history import history

from waybill.dedup.status import Behind, final_snapshot
from waybill.tables.dedup import SweepState, Swept, swept_text
from waybill.tables.state import SWEPT_PROPERTY


def state(sequence: int) -> SweepState:
    return SweepState(Swept("main", sequence, sequence))


@pytest.mark.parametrize(
    ("swept", "behind"),
    [(None, Behind(2, 30)), (1, Behind(1, 20)), (2, Behind(1, 20)), (3, Behind(0, 0)), (4, Behind(0, 0))],
)
def test_behind_is_what_was_added_since(swept: int | None, behind: Behind) -> None:
    main = history({"added-records": "10"}, {}, {"added-records": "20"}, {"added-records": "0"})
    assert Behind.of(main, SweepState() if swept is None else state(swept)) == behind


def test_nothing_is_behind_without_a_table() -> None:
    assert Behind.of(None, SweepState()) == Behind(0, 0)


@pytest.mark.parametrize(("swept", "final"), [(None, None), (4, None), (5, 2), (8, 2), (9, 4)])
def test_duplicates_count_once_the_unique_rows_are_there(swept: int | None, final: int | None) -> None:
    def sweep(sequence: int) -> dict[str, str]:
        return {SWEPT_PROPERTY: swept_text(Swept("main", sequence, sequence))}

    duplicates = history(sweep(5), {}, sweep(9), {})
    found = final_snapshot(duplicates, "duplicates", SweepState() if swept is None else state(swept))
    assert (found.snapshot_id if found else None) == final


def test_before_the_first_duplicate_there_is_no_snapshot() -> None:
    assert final_snapshot(history(), "duplicates", state(1)) is None
