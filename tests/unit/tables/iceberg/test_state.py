"""Table state is read from the newest snapshot in the history that has the property."""

from __future__ import annotations

import pytest
from table_history import history

from waybill.base.errors import ProgressLost
from waybill.tables.iceberg import read_progress, read_retries, state_of
from waybill.tables.iceberg.state import newest_property

P1, P2 = ({"waybill.progress": f'{{"v":1,"offsets":{{"t/0":{n}}}}}', "waybill.plan": f"p{n}"} for n in (1, 2))


def test_state_is_found_below_snapshots_of_other_programs() -> None:
    table = history(P1, {"waybill.retries": "3"}, {"waybill.watermarks": "w"}, P2, {"somebody": "else"})
    assert state_of(table) == {**P2, "waybill.retries": "3", "waybill.watermarks": "w"}
    assert read_retries(table, "t") == 3


def test_companion_properties_are_read_from_the_snapshot_of_the_progress_only() -> None:
    table = history({**P1, "waybill.left_out": "1"}, {"waybill.progress": P2["waybill.progress"]})
    assert state_of(table) == {"waybill.progress": P2["waybill.progress"]}


def test_snapshot_with_a_copy_of_the_state_replaces_the_history() -> None:
    table = history(P1, {"waybill.retries": "1"}, P2, {})
    carried = history(state_of(table))
    assert state_of(carried) == state_of(table)
    assert read_progress(carried, "t") == read_progress(table, "t")


def test_table_that_is_rolled_back_returns_to_its_earlier_state() -> None:
    table = history(P1, {"waybill.retries": "1"}, current=1)
    assert state_of(table) == P1
    assert read_retries(table, "t") == 0


def test_new_table_has_no_state() -> None:
    assert newest_property(history({}), "waybill.progress") is None
    assert state_of(history({})) == {}
    assert read_retries(history({}), "t") == 0


def test_number_of_retries_that_is_no_number_is_refused() -> None:
    with pytest.raises(ProgressLost, match=r"waybill\.retries is 'many'"):
        read_retries(history({"waybill.retries": "many"}), "t")
