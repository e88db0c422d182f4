"""State is read from the newest snapshot in the history that has it."""

from __future__ import annotations

import pytest
from table_history import history

from waybill.errors import ProgressLost
from waybill.tables import read_progress, read_retries, state_of
from waybill.tables.state import newest_property

P1, P2 = ({"waybill.progress": f'{{"v":1,"offsets":{{"t/0":{n}}}}}', "waybill.plan": f"p{n}"} for n in (1, 2))


def test_what_others_commit_hides_no_state() -> None:
    table = history(P1, {"waybill.retries": "3"}, {"waybill.watermarks": "w"}, P2, {"somebody": "else"})
    assert state_of(table) == {**P2, "waybill.retries": "3", "waybill.watermarks": "w"}
    assert read_retries(table, "t") == 3


def test_what_belongs_to_a_progress_goes_with_it_alone() -> None:
    table = history({**P1, "waybill.left_out": "1"}, {"waybill.progress": P2["waybill.progress"]})
    assert state_of(table) == {"waybill.progress": P2["waybill.progress"]}


def test_a_snapshot_of_the_state_says_all_that_the_history_said() -> None:
    table = history(P1, {"waybill.retries": "1"}, P2, {})
    carried = history(state_of(table))
    assert state_of(carried) == state_of(table)
    assert read_progress(carried, "t") == read_progress(table, "t")


def test_a_table_that_is_rolled_back_is_in_the_state_of_that_time() -> None:
    table = history(P1, {"waybill.retries": "1"}, current=1)
    assert state_of(table) == P1
    assert read_retries(table, "t") == 0


def test_a_new_table_has_no_state() -> None:
    assert newest_property(history({}), "waybill.progress") is None
    assert state_of(history({})) == {}
    assert read_retries(history({}), "t") == 0


def test_retries_that_are_no_number_are_refused() -> None:
    with pytest.raises(ProgressLost, match=r"waybill\.retries is 'many'"):
        read_retries(history({"waybill.retries": "many"}), "t")
