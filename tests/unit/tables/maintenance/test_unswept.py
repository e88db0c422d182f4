"""The snapshots of a main table that no dedup sweep has processed yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from table_history import table_of

from waybill.tables.iceberg import SweepPosition
from waybill.tables.maintenance.table import UnsweptSnapshots, find_unswept_snapshots

START = datetime(2026, 3, 1, tzinfo=UTC)


def at(hour: int) -> datetime:
    return START + timedelta(hours=hour)


def table(*hours: int, parents: dict[int, int | None] | None = None, current: int | None = None) -> TableMetadata:
    """Return a table with snapshots 101, 102, … committed at these hours. Their sequence numbers are 1, 2, …"""
    snapshots = [
        Snapshot(
            snapshot_id=100 + n,
            parent_snapshot_id=(parents or {}).get(n, 99 + n if n > 1 else None),
            sequence_number=n,
            timestamp_ms=int(at(hour).timestamp() * 1000),
            manifest_list="s3://none",
            summary=Summary(operation=Operation.APPEND),
            schema_id=0,
        )
        for n, hour in enumerate(hours, 1)
    ]
    return table_of(snapshots, current or 100 + len(snapshots))


def test_snapshots_after_the_last_sweep_are_unswept() -> None:
    found = find_unswept_snapshots(table(0, 1, 2, 3), SweepPosition("u", 102, 2))
    assert found == UnsweptSnapshots((at(2), at(3)))
    assert found.since == at(2)
    assert [found.before(at(hour)) for hour in (2, 3, 9)] == [0, 1, 2]


def test_no_snapshot_is_unswept_after_the_last_one_was_swept() -> None:
    assert find_unswept_snapshots(table(0, 1), SweepPosition("u", 102, 2)) is None
    assert find_unswept_snapshots(table(), None) is None


def test_all_snapshots_are_unswept_before_the_first_sweep() -> None:
    assert find_unswept_snapshots(table(0, 1), None) == UnsweptSnapshots((at(0), at(1)))


def test_oldest_unswept_snapshot_is_the_one_with_the_earliest_time() -> None:
    found = find_unswept_snapshots(table(0, 5, 4), SweepPosition("u", 101, 1))
    assert found is not None
    assert found.since == at(4)


def test_snapshots_that_were_rolled_back_are_not_unswept() -> None:
    rolled_back = table(0, 1, 2, 3, parents={4: 102})
    assert find_unswept_snapshots(rolled_back, SweepPosition("u", 102, 2)) == UnsweptSnapshots((at(3),))
