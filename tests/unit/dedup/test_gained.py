"""What a table gained between two snapshots: a real table of PyIceberg's, on the local disk."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table

from waybill.dedup.appends import NOTHING_SWEPT, Gained, Point, find_gained, gains_nothing
from waybill.errors import ConfigError, SweepHistoryLost

PLENTY = 1 << 40


def append(table: Table, *offsets: int) -> Point:
    table.append(pa.table({"offset": pa.array(offsets, pa.int64())}))
    return here(table)


def here(table: Table) -> Point:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return Point(snapshot.snapshot_id, snapshot.sequence_number or 0)


def compact(table: Table) -> Point:
    """All files replaced by one; as Spark's `rewrite_data_files` does it, but that PyIceberg calls it an overwrite."""
    rows, old = table.scan().to_arrow(), [task.file for task in table.scan().plan_files()]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as replace:
        for file in old:
            replace.delete_data_file(file)
        for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
            replace.append_data_file(file)
    return here(table)


def forget(table: Table, point: Point) -> None:
    """Expire a snapshot as Iceberg's library does; PyIceberg takes its name out of the next one as well."""
    left = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id != point.snapshot_id]
    table.metadata = table.metadata.model_copy(update={"snapshots": left})


def committed_at(table: Table, *times_ms: int) -> None:
    """The snapshots, oldest first, were committed at these times."""
    made = [
        snapshot.model_copy(update={"timestamp_ms": at})
        for snapshot, at in zip(table.metadata.snapshots, times_ms, strict=True)
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": made})


def gained(
    table: Table,
    start: Point = NOTHING_SWEPT,
    run_bytes: int = PLENTY,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Gained:
    found = find_gained(table, start, run_bytes=run_bytes, since_ms=since_ms, until_ms=until_ms)
    assert found is not None
    return found


def records(found: Gained) -> list[int]:
    return [file.records for file in found.files]


def test_a_table_without_snapshots_has_gained_nothing(table: Table) -> None:
    assert find_gained(table, NOTHING_SWEPT, run_bytes=PLENTY) is None


def test_each_append_since_the_start_in_the_order_of_commits(table: Table) -> None:
    first = append(table, 1)
    append(table, 2, 3)
    last = append(table, 4, 5, 6)
    assert records(gained(table)) == [1, 2, 3]
    assert gained(table).end == last
    assert records(gained(table, first)) == [2, 3]
    assert find_gained(table, last, run_bytes=PLENTY) is None


def test_what_a_compaction_has_replaced_since_is_read_as_it_was_added(table: Table) -> None:
    first = append(table, 1)
    append(table, 2, 3)
    added = gained(table, first)
    end = compact(table)
    assert len(list(table.scan().plan_files())) == 1
    after = gained(table, first)
    assert after.files == added.files
    assert after.end == end


def test_a_compaction_alone_adds_nothing_and_is_passed_over(table: Table) -> None:
    append(table, 1)
    start = append(table, 2, 3)
    end = compact(table)
    assert gained(table, start) == Gained(end, (), more=False)


def test_a_deletion_takes_nothing_back_and_what_it_writes_anew_adds_nothing(table: Table) -> None:
    first = append(table, 1)
    append(table, 2, 3)
    table.delete("offset = 2")
    assert [row["offset"] for row in table.scan().to_arrow().sort_by("offset").to_pylist()] == [1, 3]
    append(table, 4, 5, 6)
    assert records(gained(table, first)) == [2, 3]


def test_an_append_whose_manifest_was_merged_with_older_ones_counts_its_own_files(table: Table) -> None:
    first = append(table, 1)
    append(table, 2, 3)
    with table.transaction() as transaction:
        transaction.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "1"})
    append(table, 4, 5, 6)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) == 1, "the case that is meant"
    assert records(gained(table, first)) == [2, 3]


def test_whole_snapshots_up_to_a_size_and_at_least_one(table: Table) -> None:
    first = append(table, 1)
    second = append(table, 2)
    append(table, 3)
    size = gained(table).files[0].size_bytes
    assert gained(table, run_bytes=1) == Gained(first, gained(table).files[:1], more=True)
    assert gained(table, run_bytes=2 * size).end == second
    assert not gained(table, second, run_bytes=1).more


def test_the_size_is_of_files_and_what_adds_none_comes_along(table: Table) -> None:
    append(table, 1)
    end = compact(table)
    append(table, 2)
    assert gained(table, run_bytes=1).end == end


def test_only_what_was_committed_by_a_time(table: Table) -> None:
    first = append(table, 1)
    append(table, 2)
    snapshot = table.snapshot_by_id(first.snapshot_id or 0)
    assert snapshot is not None
    in_time = [
        s for s in table.metadata.snapshots if s.timestamp_ms <= snapshot.timestamp_ms
    ]  # both, on a fast machine
    assert len(gained(table, until_ms=snapshot.timestamp_ms).files) == len(in_time)
    assert find_gained(table, NOTHING_SWEPT, run_bytes=PLENTY, until_ms=snapshot.timestamp_ms - 1) is None


def test_a_snapshot_of_the_next_number_that_was_made_of_another_does_not_follow(table: Table) -> None:
    """What was swept was rolled back and has expired, and so has what was gone on from."""
    first = append(table, 1)
    swept = append(table, 2)
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id or 0).commit()
    assert append(table, 2).sequence == swept.sequence + 1
    forget(table, first)
    forget(table, swept)
    with pytest.raises(SweepHistoryLost):
        find_gained(table, swept, run_bytes=PLENTY)


def test_whether_rows_were_added_between_two_points(table: Table) -> None:
    first = append(table, 1)
    second = compact(table)
    third = append(table, 2)
    fourth = append(table, 3)
    assert gains_nothing(table, NOTHING_SWEPT, first)
    assert gains_nothing(table, first, second)
    assert gains_nothing(table, first, third), "a compaction adds nothing"
    assert not gains_nothing(table, first, fourth)
    assert not gains_nothing(table, NOTHING_SWEPT, third)
    table.manage_snapshots().rollback_to_snapshot(second.snapshot_id or 0).commit()
    assert not gains_nothing(table, third, append(table, 4)), "it is of another branch"


def test_nothing_is_passed_over_where_the_clocks_of_two_who_commit_differ(table: Table) -> None:
    points = [append(table, *range(n)) for n in (1, 2, 3)]
    committed_at(table, 1000, 3000, 2000)
    assert gained(table, until_ms=2500).end == points[0]
    found = gained(table, since_ms=2500)
    assert (records(found), found.end) == ([2, 3], points[2])


@pytest.mark.parametrize(
    ("since_ms", "left_out", "swept"),
    [(1, 0, [1, 2, 3]), (1000, 0, [1, 2, 3]), (1001, 1, [2, 3]), (2000, 1, [2, 3]), (3000, 2, [3]), (3001, 3, [])],
)
def test_what_was_committed_before_a_time_is_left_out(
    table: Table, since_ms: int, left_out: int, swept: list[int]
) -> None:
    points = [append(table, *range(n)) for n in (1, 2, 3)]
    committed_at(table, 1000, 2000, 3000)
    found = gained(table, since_ms=since_ms)
    assert (records(found), found.end) == (swept, points[2])
    if not left_out:
        assert found.beginning is None
        return
    assert found.beginning is not None
    assert (found.beginning.since_ms, found.beginning.committed_ms) == (since_ms, 1000 * left_out)
    assert Point(found.beginning.snapshot, found.beginning.sequence) == points[left_out - 1]
    assert found.beginning.rows == sum(range(1, left_out + 1))


def test_what_is_left_out_counts_as_gained_if_nothing_came_after_it(table: Table) -> None:
    """Or the next sweep, which is asked for no time, would take it."""
    first = append(table, 1)
    append(table, 2)
    committed_at(table, 1000, 2000)
    found = gained(table, since_ms=1500, until_ms=1500)
    assert (found.end, found.files, found.more) == (first, (), False)
    assert found.beginning is not None
    assert gained(table, first, since_ms=1500).beginning is None, "that is for the first sweep"


def test_a_bounded_plan_begins_where_it_was_asked_to(table: Table) -> None:
    points = [append(table, *range(n)) for n in (1, 2, 3)]
    committed_at(table, 1000, 2000, 3000)
    found = gained(table, since_ms=1500, run_bytes=1)
    assert (records(found), found.end, found.more) == ([2], points[1], True)
    assert found.beginning is not None


def test_a_time_before_what_has_expired_cannot_be_kept_to(table: Table) -> None:
    points = [append(table, *range(n)) for n in (1, 2, 3)]
    committed_at(table, 1000, 2000, 3000)
    forget(table, points[0])
    with pytest.raises(ConfigError, match=r"since 1970-01-01T00:00:02Z: the oldest .* is of .*:02Z, and holds"):
        gained(table, since_ms=2000)
    found = gained(table, since_ms=2001)
    assert records(found) == [3]
    assert found.beginning is not None
    assert found.beginning.rows == 3


def test_a_compaction_that_is_the_oldest_snapshot_holds_older_rows(table: Table) -> None:
    points = [append(table, 1), append(table, 2, 3), compact(table)]
    committed_at(table, 1000, 2000, 3000)
    for point in points[:2]:
        forget(table, point)
    with pytest.raises(ConfigError, match="which have expired"):
        gained(table, since_ms=2500)


def test_the_swept_snapshot_may_have_expired_but_not_the_one_behind_it(table: Table) -> None:
    first = append(table, 1)
    second = append(table, 2, 3)
    append(table, 4, 5, 6)
    forget(table, first)
    assert records(gained(table, first)) == [2, 3]
    forget(table, second)
    with pytest.raises(SweepHistoryLost, match=r"tests\.flights.* has expired.*drop both"):
        find_gained(table, first, run_bytes=PLENTY)


def test_a_first_sweep_takes_what_the_oldest_snapshot_holds(table: Table) -> None:
    first = append(table, 1)
    second = append(table, 2, 3)
    append(table, 4, 5, 6)
    for point in (first, second):
        forget(table, point)
    assert sorted(records(gained(table))) == [1, 2, 3]


def test_a_table_rolled_back_to_before_the_sweep_is_named(table: Table) -> None:
    first = append(table, 1)
    second = append(table, 2)
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id or 0).commit()
    with pytest.raises(SweepHistoryLost, match=r"rolled back.*Roll the unique table"):
        find_gained(table, second, run_bytes=PLENTY)
