"""The sweep state in the snapshots of the tables that dedup sweeps fill."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from table_history import history

from waybill.base.errors import DocumentTooNew, ProgressLost
from waybill.config.names import TopicPartition
from waybill.tables.iceberg import (
    FirstSweepStart,
    SweepPosition,
    SweepState,
    read_sweep_position,
    read_sweep_state,
    state_of,
    sweep_position_text,
    sweep_properties,
)
from waybill.tables.iceberg.dedup import DUPLICATES_ROWS, DUPLICATES_SCHEMA, NO_HORIZON_MS

A, B = TopicPartition("flights", 0), TopicPartition("a.b-c", 12)
FIRST = SweepState(SweepPosition("0a0b", 77, 3), {A: 1_000, B: -5}, NO_HORIZON_MS)
BEGINNING = FirstSweepStart(
    since_ms=1_500, snapshot=66, sequence=2, committed_ms=1_499, rows=1_000, progress={A: 7, B: 8}
)
SECOND = SweepState(SweepPosition("0a0b", 9_007_199_254_740_993, 9), {A: 2_000, B: -5}, 12_345, BEGINNING)


@pytest.mark.parametrize("state", [FIRST, SECOND, SweepState(SweepPosition("u", 1, 0), {}, 0)])
def test_sweep_state_is_read_as_it_was_written(state: SweepState) -> None:
    table = history(sweep_properties(state))
    assert read_sweep_state(table, "t") == state
    assert read_sweep_position(table, "t") == state.swept


def test_sweep_state_is_empty_before_the_first_sweep() -> None:
    for table in (history({"total-records": "0"}), history()):
        assert read_sweep_state(table, "t") == SweepState(None, {}, NO_HORIZON_MS)
        assert read_sweep_position(table, "t") is None
    with pytest.raises(ValueError, match="before the first sweep"):
        sweep_properties(SweepState())


def test_sweep_state_survives_commits_of_others_and_the_expiry_of_snapshots() -> None:
    table = history(sweep_properties(FIRST), {**sweep_properties(SECOND), "waybill.plan": "p"}, {"somebody": "else"})
    assert read_sweep_state(table, "t") == SECOND
    assert state_of(table) == {**sweep_properties(SECOND), "waybill.plan": "p"}
    carried = history(state_of(table))
    assert read_sweep_state(carried, "t") == SECOND


def test_table_that_is_rolled_back_returns_to_its_earlier_sweep_state() -> None:
    table = history(sweep_properties(FIRST), sweep_properties(SECOND), current=1)
    assert read_sweep_state(table, "t") == FIRST


def test_duplicates_table_records_the_position_only() -> None:
    assert SECOND.swept is not None
    table = history({"waybill.swept": sweep_position_text(SECOND.swept)}, {})
    assert read_sweep_position(table, "t") == SECOND.swept
    assert state_of(table) == {"waybill.swept": sweep_position_text(SECOND.swept)}


@pytest.mark.parametrize("read", [read_sweep_state, read_sweep_position])
def test_rows_without_any_recorded_position_are_refused(read: object) -> None:
    with pytest.raises(
        ProgressLost, match=r"table t holds rows, but no snapshot .* property waybill\.swept: another program"
    ):
        read(history({"total-records": "7"}), "t")  # type: ignore[operator]


@pytest.mark.parametrize(
    "changed",
    [
        {"waybill.swept": "{}"},
        {"waybill.swept": "no JSON"},
        {"waybill.swept": '{"v":1,"main":"u","snapshot":"x","sequence":1}'},
        {"waybill.sweep.watermarks": '{"v":1,"arrived_ms":{"flights":1}}'},
        {"waybill.sweep.watermarks": None},
        {"waybill.sweep.horizon": None},
        {"waybill.sweep.horizon": "never"},
        {"waybill.sweep.beginning": '{"v":1,"since_ms":1}'},
    ],
)
def test_sweep_state_that_is_incomplete_is_refused(changed: dict[str, str | None]) -> None:
    properties = {name: text for name, text in {**sweep_properties(SECOND), **changed}.items() if text is not None}
    with pytest.raises(ProgressLost, match=r"table t: the sweep state in its snapshots cannot be read"):
        read_sweep_state(history(properties), "t")


@pytest.mark.parametrize("name", ["waybill.swept", "waybill.sweep.watermarks", "waybill.sweep.beginning"])
def test_sweep_state_of_a_newer_version_is_refused_by_name(name: str) -> None:
    properties = {**sweep_properties(SECOND), name: '{"v":2}'}
    with pytest.raises(DocumentTooNew, match=rf"{name} of table t was written by a newer Waybill"):
        read_sweep_state(history(properties), "t")


def test_arrow_schema_of_duplicates_matches_the_table() -> None:
    of_table = schema_to_pyarrow(DUPLICATES_SCHEMA)
    small = [pa.field(f.name, pa.string() if f.type == pa.large_string() else f.type, f.nullable) for f in of_table]
    assert pa.schema(small) == DUPLICATES_ROWS
