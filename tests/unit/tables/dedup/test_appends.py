"""Files appended between two snapshots of a table: a real table of PyIceberg, on the local disk."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import ManageSnapshots

from waybill.base.errors import ConfigError, SweepHistoryLost
from waybill.tables.dedup.appends import TABLE_START, AppendedFiles, TablePosition, has_no_appends, scan_appends
from waybill.tables.iceberg.state import BACKFILL_PROPERTY

PLENTY = 1 << 40


def append(table: Table, *offsets: int) -> TablePosition:
    table.append(pa.table({"offset": pa.array(offsets, pa.int64())}))
    return current(table)


def current(table: Table) -> TablePosition:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return TablePosition(snapshot.snapshot_id, snapshot.sequence_number or 0)


def compact(table: Table) -> TablePosition:
    """Replace all files by one, like Spark's `rewrite_data_files`; but PyIceberg calls it an overwrite."""
    rows, old = table.scan().to_arrow(), [task.file for task in table.scan().plan_files()]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as replace:
        for file in old:
            replace.delete_data_file(file)
        for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
            replace.append_data_file(file)
    return current(table)


def expire(table: Table, point: TablePosition) -> None:
    """Expire a snapshot as Iceberg's Java library does; PyIceberg also removes it from its child."""
    left = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id != point.snapshot_id]
    table.metadata = table.metadata.model_copy(update={"snapshots": left})


def set_commit_times(table: Table, *times_ms: int) -> None:
    """Set the commit times of the snapshots, oldest first."""
    made = [
        snapshot.model_copy(update={"timestamp_ms": at})
        for snapshot, at in zip(table.metadata.snapshots, times_ms, strict=True)
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": made})


def scan(
    table: Table,
    start: TablePosition = TABLE_START,
    run_bytes: int = PLENTY,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> AppendedFiles:
    found = scan_appends(table, start, run_bytes=run_bytes, since_ms=since_ms, until_ms=until_ms)
    assert found is not None
    return found


def records(appended: AppendedFiles) -> list[int]:
    return [file.records for file in appended.files]


def test_table_without_snapshots_has_no_appends(table: Table) -> None:
    assert scan_appends(table, TABLE_START, run_bytes=PLENTY) is None


def test_scan_returns_appends_since_the_start_in_commit_order(table: Table) -> None:
    first = append(table, 1)
    append(table, 2, 3)
    last = append(table, 4, 5, 6)
    assert records(scan(table)) == [1, 2, 3]
    assert scan(table).end == last
    assert records(scan(table, first)) == [2, 3]
    assert scan_appends(table, last, run_bytes=PLENTY) is None


def test_files_that_were_compacted_later_are_returned_as_appended(table: Table) -> None:
    first = append(table, 1)
    append(table, 2, 3)
    added = scan(table, first)
    end = compact(table)
    assert len(list(table.scan().plan_files())) == 1
    after = scan(table, first)
    assert after.files == added.files
    assert after.end == end


def test_compaction_alone_appends_no_files(table: Table) -> None:
    append(table, 1)
    start = append(table, 2, 3)
    end = compact(table)
    assert scan(table, start) == AppendedFiles(end, (), more=False)


def test_deletion_removes_no_appended_file_and_appends_none(table: Table) -> None:
    first = append(table, 1)
    append(table, 2, 3)
    table.delete("offset = 2")
    assert [row["offset"] for row in table.scan().to_arrow().sort_by("offset").to_pylist()] == [1, 3]
    append(table, 4, 5, 6)
    assert records(scan(table, first)) == [2, 3]


def test_append_with_a_merged_manifest_returns_only_its_own_files(table: Table) -> None:
    first = append(table, 1)
    append(table, 2, 3)
    with table.transaction() as transaction:
        transaction.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "1"})
    append(table, 4, 5, 6)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) == 1, "the manifests were not merged"
    assert records(scan(table, first)) == [2, 3]


def test_scan_takes_whole_snapshots_up_to_a_size_and_at_least_one(table: Table) -> None:
    first = append(table, 1)
    second = append(table, 2)
    append(table, 3)
    size = scan(table).files[0].size_bytes
    assert scan(table, run_bytes=1) == AppendedFiles(first, scan(table).files[:1], more=True)
    assert scan(table, run_bytes=2 * size).end == second
    assert not scan(table, second, run_bytes=1).more


def test_snapshot_without_files_does_not_count_towards_the_size(table: Table) -> None:
    append(table, 1)
    end = compact(table)
    append(table, 2)
    assert scan(table, run_bytes=1).end == end


def test_until_excludes_later_commits(table: Table) -> None:
    first = append(table, 1)
    append(table, 2)
    snapshot = table.snapshot_by_id(first.snapshot_id or 0)
    assert snapshot is not None
    in_time = [
        s for s in table.metadata.snapshots if s.timestamp_ms <= snapshot.timestamp_ms
    ]  # both, on a fast machine
    assert len(scan(table, until_ms=snapshot.timestamp_ms).files) == len(in_time)
    assert scan_appends(table, TABLE_START, run_bytes=PLENTY, until_ms=snapshot.timestamp_ms - 1) is None


def test_next_sequence_number_on_another_branch_is_not_the_successor(table: Table) -> None:
    """The swept snapshot was rolled back and has expired, and so has the parent of the new one."""
    first = append(table, 1)
    swept = append(table, 2)
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id or 0).commit()
    assert append(table, 2).sequence == swept.sequence + 1
    expire(table, first)
    expire(table, swept)
    with pytest.raises(SweepHistoryLost):
        scan_appends(table, swept, run_bytes=PLENTY)


def test_has_no_appends_between_two_positions(table: Table) -> None:
    first = append(table, 1)
    second = compact(table)
    third = append(table, 2)
    fourth = append(table, 3)
    assert has_no_appends(table, TABLE_START, first)
    assert has_no_appends(table, first, second)
    assert has_no_appends(table, first, third), "a compaction appends no rows"
    assert not has_no_appends(table, first, fourth)
    assert not has_no_appends(table, TABLE_START, third)
    table.manage_snapshots().rollback_to_snapshot(second.snapshot_id or 0).commit()
    assert not has_no_appends(table, third, append(table, 4)), "the end is on another branch"


def test_no_snapshot_is_skipped_when_the_clocks_of_writers_differ(table: Table) -> None:
    points = [append(table, *range(n)) for n in (1, 2, 3)]
    set_commit_times(table, 1000, 3000, 2000)
    assert scan(table, until_ms=2500).end == points[0]
    found = scan(table, since_ms=2500)
    assert (records(found), found.end) == ([2, 3], points[2])


@pytest.mark.parametrize(
    ("since_ms", "left_out", "swept"),
    [(1, 0, [1, 2, 3]), (1000, 0, [1, 2, 3]), (1001, 1, [2, 3]), (2000, 1, [2, 3]), (3000, 2, [3]), (3001, 3, [])],
)
def test_since_leaves_out_earlier_commits(table: Table, since_ms: int, left_out: int, swept: list[int]) -> None:
    points = [append(table, *range(n)) for n in (1, 2, 3)]
    set_commit_times(table, 1000, 2000, 3000)
    found = scan(table, since_ms=since_ms)
    assert (records(found), found.end) == (swept, points[2])
    if not left_out:
        assert found.beginning is None
        return
    assert found.beginning is not None
    assert (found.beginning.since_ms, found.beginning.committed_ms) == (since_ms, 1000 * left_out)
    assert TablePosition(found.beginning.snapshot, found.beginning.sequence) == points[left_out - 1]
    assert found.beginning.rows == sum(range(1, left_out + 1))


def test_scan_returns_the_start_of_the_first_sweep_even_without_later_appends(table: Table) -> None:
    """Otherwise the next sweep, which has no `since`, would sweep the rows that were left out."""
    first = append(table, 1)
    append(table, 2)
    set_commit_times(table, 1000, 2000)
    found = scan(table, since_ms=1500, until_ms=1500)
    assert (found.end, found.files, found.more) == (first, (), False)
    assert found.beginning is not None
    assert scan(table, first, since_ms=1500).beginning is None, "since applies to the first sweep only"


def test_size_limit_and_since_apply_together(table: Table) -> None:
    points = [append(table, *range(n)) for n in (1, 2, 3)]
    set_commit_times(table, 1000, 2000, 3000)
    found = scan(table, since_ms=1500, run_bytes=1)
    assert (records(found), found.end, found.more) == ([2], points[1], True)
    assert found.beginning is not None


def test_since_before_expired_snapshots_is_refused(table: Table) -> None:
    points = [append(table, *range(n)) for n in (1, 2, 3)]
    set_commit_times(table, 1000, 2000, 3000)
    expire(table, points[0])
    with pytest.raises(ConfigError, match=r"since 1970-01-01T00:00:02Z: the oldest .* is of .*:02Z, and holds"):
        scan(table, since_ms=2000)
    found = scan(table, since_ms=2001)
    assert records(found) == [3]
    assert found.beginning is not None
    assert found.beginning.rows == 3


def test_since_is_refused_when_the_oldest_snapshot_is_a_compaction(table: Table) -> None:
    points = [append(table, 1), append(table, 2, 3), compact(table)]
    set_commit_times(table, 1000, 2000, 3000)
    for point in points[:2]:
        expire(table, point)
    with pytest.raises(ConfigError, match="which have expired"):
        scan(table, since_ms=2500)


def test_start_may_have_expired_but_not_its_successor(table: Table) -> None:
    first = append(table, 1)
    second = append(table, 2, 3)
    append(table, 4, 5, 6)
    expire(table, first)
    assert records(scan(table, first)) == [2, 3]
    expire(table, second)
    with pytest.raises(SweepHistoryLost, match=r"tests\.flights.* has expired.*drop both"):
        scan_appends(table, first, run_bytes=PLENTY)


def test_first_sweep_takes_all_files_of_the_oldest_snapshot(table: Table) -> None:
    first = append(table, 1)
    second = append(table, 2, 3)
    append(table, 4, 5, 6)
    for point in (first, second):
        expire(table, point)
    assert sorted(records(scan(table))) == [1, 2, 3]


def test_rollback_to_before_the_start_raises(table: Table) -> None:
    first = append(table, 1)
    second = append(table, 2)
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id or 0).commit()
    with pytest.raises(SweepHistoryLost, match=r"rolled back.*Roll the unique table"):
        scan_appends(table, second, run_bytes=PLENTY)


def backfill(table: Table, *offsets: int, name: str = "20260101_0000") -> TablePosition:
    """Replace all rows, as the promotion of a backfill of everything does."""
    old = [task.file for task in table.scan().plan_files()]
    rows = pa.table({"offset": pa.array(offsets, pa.int64())})
    with table.transaction() as transaction:
        update = transaction.update_snapshot({BACKFILL_PROPERTY: name})
        with update.overwrite() as replace:
            for file in old:
                replace.delete_data_file(file)
            for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
                replace.append_data_file(file)
    return current(table)


def test_first_sweep_begins_with_the_rows_that_the_last_backfill_left(table: Table) -> None:
    append(table, 1)
    backfill(table, 11)
    append(table, 2, 3)
    backfill(table, 11, 12, 13, name="20260102_0000")
    end = append(table, 4, 5)
    found = scan(table)
    assert (records(found), found.end) == ([3, 2], end)


def test_first_sweep_cannot_leave_out_rows_that_a_later_backfill_replaced(table: Table) -> None:
    append(table, 1)
    backfill(table, 11)
    append(table, 2, 3)
    set_commit_times(table, 1000, 2000, 3000)
    with pytest.raises(ConfigError, match="1970-01-01T00:00:02Z"):
        scan(table, since_ms=1500)
    assert records(scan(table, since_ms=2500)) == [2]


def test_snapshot_of_another_history_does_not_follow_a_start_that_exists(table: Table) -> None:
    """It has no parent, and the next sequence number, as a successor whose parent PyIceberg has expired."""
    first = append(table, 1)
    with table.transaction() as transaction:
        transaction.update_snapshot(branch="other").fast_append().commit()
    with table.transaction() as transaction, ManageSnapshots(transaction) as refs:
        refs.create_branch(table.refs()["other"].snapshot_id, "main")
    assert current(table).sequence == first.sequence + 1
    with pytest.raises(SweepHistoryLost):
        scan_appends(table, first, run_bytes=PLENTY)
