"""What a table gained between two snapshots: a real table of PyIceberg's, on the local disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table

from waybill.dedup.gained import NOTHING_SWEPT, Gained, Point, find_gained
from waybill.errors import SweepHistoryLost

PLENTY = 1 << 40


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    catalog = InMemoryCatalog("tests", warehouse=tmp_path.as_uri())
    catalog.create_namespace("tests")
    yield catalog.create_table("tests.flights", pa.schema([("offset", pa.int64())]))
    catalog.close()


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


def gained(table: Table, start: Point = NOTHING_SWEPT, run_bytes: int = PLENTY, until_ms: int | None = None) -> Gained:
    found = find_gained(table, start, run_bytes=run_bytes, until_ms=until_ms)
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
