"""State is read from the newest snapshot in the history that has it."""

from __future__ import annotations

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from waybill.errors import ProgressLost
from waybill.tables import read_progress, read_retries, state_of
from waybill.tables.state import newest_property


def history(*properties: dict[str, str], current: int | None = None) -> TableMetadata:
    """A table of these snapshots, each on top of the one before."""
    snapshots = [
        Snapshot(
            snapshot_id=n,
            parent_snapshot_id=n - 1 if n > 1 else None,
            sequence_number=n,
            timestamp_ms=n,
            manifest_list="s3://none",
            summary=Summary(operation=Operation.APPEND, **found),
            schema_id=0,
        )
        for n, found in enumerate(properties, 1)
    ]
    head = current or len(snapshots)
    return TableMetadataV2(
        location="s3://none",
        last_sequence_number=len(snapshots),
        last_updated_ms=0,
        last_column_id=0,
        schemas=[Schema()],
        current_schema_id=0,
        partition_specs=[UNPARTITIONED_PARTITION_SPEC],
        default_spec_id=0,
        last_partition_id=999,
        properties={},
        snapshots=snapshots,
        current_snapshot_id=head,
        refs={"main": SnapshotRef(snapshot_id=head, snapshot_ref_type=SnapshotRefType.BRANCH)},
    )


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
