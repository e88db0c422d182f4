"""Rows by topic-partition, from tables in a local catalog, compared with plain Python counters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from audited_table import catalog_in, stream_of
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from waybill.archive.chain.chain import ChainObject
from waybill.config.names import BackupName, TopicPartition
from waybill.services.store import Store
from waybill.tables.iceberg import StreamTables, commit_snapshot, ensure_tables
from waybill.tables.iceberg.state import live_files
from waybill.tables.partition.rows import table_rows
from waybill.tables.quarantine.offset_sets import OffsetSet
from waybill.tables.quarantine.view import View
from waybill.tables.staging.file_writer import write_data_files
from waybill.watch.ledger import differences
from waybill.watch.ledger.archived import Chain
from waybill.watch.ledger.differences import find_differences
from waybill.watch.ledger.rows import RowCounts, count_lost, count_main, rows_since

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
STREAM = stream_of()
TPS = [TopicPartition(topic, partition) for topic in ("flights", "flights.eu") for partition in range(3)]

Place = tuple[TopicPartition, int]


@pytest.fixture
def tables(tmp_path: Path) -> StreamTables:
    return ensure_tables(catalog_in(tmp_path), STREAM)


def write(table: Table, places: Sequence[Place], generation: int = 1) -> list[DataFile]:
    schema = table_rows(STREAM.columns)
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offset,
            "headers": [],
            "event_time": NOON,
            "message_id": f"{tp}@{offset}",
            "generation": generation,
        }
        for tp, offset in places
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema)
    return write_data_files(table, schema, [batch], memory_bytes=64 << 20, name="plan")


def append(table: Table, places: Sequence[Place], generation: int = 1) -> Snapshot:
    assert commit_snapshot(table, {}, added=write(table, places, generation))
    table.refresh()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot


def compact(table: Table, places: Sequence[Place]) -> None:
    """Replace all files by new ones with the same rows."""
    removed = list(live_files(table, table.current_snapshot()))
    assert commit_snapshot(table, {}, added=write(table, places), removed=removed)
    table.refresh()


def count(places: Sequence[Place]) -> Counter[TopicPartition]:
    return Counter(tp for tp, _ in places)


@pytest.mark.parametrize("seed", range(6))
def test_rows_and_those_since_any_snapshot_are_counted_across_compactions(tables: StreamTables, seed: int) -> None:
    drawn, main = random.Random(seed), tables.main
    places: list[Place] = []
    snapshots: list[tuple[Snapshot, int]] = []
    for _ in range(8):
        if places and drawn.random() < 0.4:
            compact(main, places)
            continue
        start = len(places)
        places += [(drawn.choice(TPS), start + n) for n in range(drawn.randrange(1, 30))]
        snapshots.append((append(main, places[start:]), len(places)))
    assert count_main(main, STREAM).rows == count(places)
    for snapshot, swept in snapshots:
        assert +rows_since(main, snapshot, (), RowCounts(1)).rows == count(places[swept:])


def test_files_that_a_snapshot_added_after_the_swept_rows_count_as_not_swept(tables: StreamTables) -> None:
    """The swept snapshot has expired: the next one stands for it, without the files that it added."""
    swept, later = [(TPS[0], 1)], [(TPS[1], 1), (TPS[1], 2)]
    append(tables.main, swept)
    before = {file.file_path for file in live_files(tables.main, tables.main.current_snapshot())}
    snapshot = append(tables.main, later)
    added = {file.file_path for file in live_files(tables.main, snapshot)} - before
    assert +rows_since(tables.main, snapshot, added, RowCounts(1)).rows == count(later)
    compact(tables.main, [*swept, *later])
    assert +rows_since(tables.main, snapshot, added, RowCounts(1)).rows == count(later)


def test_rows_of_another_generation_are_counted_apart(tables: StreamTables) -> None:
    append(tables.main, [(TPS[0], 1)])
    append(tables.main, [(TPS[0], 1), (TPS[1], 2)], generation=2)
    found = count_main(tables.main, STREAM)
    assert found.rows == {TPS[0]: 1}
    assert found.foreign == {(TPS[0], 2): 1, (TPS[1], 2): 1}


def test_a_table_without_a_snapshot_has_no_rows(tables: StreamTables) -> None:
    assert count_main(tables.main, STREAM) == RowCounts(1)


def test_rows_of_lost_objects_are_counted_by_their_offsets(tables: StreamTables) -> None:
    append(tables.main, [(tp, offset) for tp in TPS[:2] for offset in range(20)])
    view = View(tables, {TPS[0]: 15, TPS[1]: 20}, OffsetSet())
    assert count_lost(view, {TPS[0]: [(3, 6), (10, 20)]}) == {TPS[0]: 3 + 5}


def test_objects_whose_rows_are_not_as_many_are_named_neighbours_together(
    tables: StreamTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects of ten offsets; the third and the fourth lack rows, the sixth has one too many."""
    tp, end = TPS[0], 70
    objects = [ChainObject(BackupName(tp.topic, 1, tp.partition, n), f"o{n}", n + 10, 1) for n in range(0, end, 10)]
    monkeypatch.setattr(differences, "walk_chain", lambda *_, **__: iter(objects))
    monkeypatch.setattr(
        differences,
        "read_offsets_of_object",
        lambda _store, _key, *, first_offset, next_offset: iter([range(first_offset, next_offset)]),
    )
    missing = {21, 22, 35}
    append(tables.main, [(tp, offset) for offset in range(60) if offset not in missing] + [(tp, 55), (TPS[1], 21)])
    view = View(tables, {tp: 60}, OffsetSet())
    found = find_differences(Store.__new__(Store), 1, Chain(tp, 0, end, None, ()), view, 60)
    assert [str(difference) for difference in found] == [
        f"{tp} offsets 20–39: 20 messages were archived there, and the tables have 17: 3 missing",
        f"{tp} offsets 50–59: 10 messages were archived there, and the tables have 11: 1 too many",
    ]
