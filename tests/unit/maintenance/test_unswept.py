"""Which snapshots of a stream's table dedup has not taken in yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from table_history import table_of

from waybill.maintenance.snapshots_in_use import Unswept, find_unswept
from waybill.tables import Swept

START = datetime(2026, 3, 1, tzinfo=UTC)


def at(hour: int) -> datetime:
    return START + timedelta(hours=hour)


def table(*hours: int, parents: dict[int, int | None] | None = None, current: int | None = None) -> TableMetadata:
    """Snapshots 101, 102, … with sequence numbers 1, 2, …, committed at these hours, each on top of the one before."""
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


def test_what_comes_after_the_last_sweep_is_not_swept() -> None:
    found = find_unswept(table(0, 1, 2, 3), Swept("u", 102, 2))
    assert found == Unswept((at(2), at(3)))
    assert found.since == at(2)
    assert [found.before(at(hour)) for hour in (2, 3, 9)] == [0, 1, 2]


def test_there_may_be_nothing() -> None:
    assert find_unswept(table(0, 1), Swept("u", 102, 2)) is None
    assert find_unswept(table(), None) is None


def test_before_the_first_sweep_nothing_is_swept() -> None:
    assert find_unswept(table(0, 1), None) == Unswept((at(0), at(1)))


def test_the_oldest_is_by_its_time_as_clocks_differ() -> None:
    found = find_unswept(table(0, 5, 4), Swept("u", 101, 1))
    assert found is not None
    assert found.since == at(4)


def test_what_was_rolled_back_is_not_waited_for() -> None:
    rolled_back = table(0, 1, 2, 3, parents={4: 102})
    assert find_unswept(rolled_back, Swept("u", 102, 2)) == Unswept((at(3),))
