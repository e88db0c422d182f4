"""The tables that dedup sweeps fill, compared with the main table: each kind of damage is found, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from archived_stream import remove_rows
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from waybill.config.connections import CatalogEndpoint, S3Endpoint
from waybill.config.models import Stream
from waybill.config.names import TopicPartition
from waybill.tables.iceberg import (
    FirstSweepStart,
    SweepPosition,
    SweepState,
    commit_snapshot,
    ensure_dedup_tables,
    ensure_tables,
    open_catalog,
    sweep_position_text,
    sweep_properties,
)
from waybill.tables.iceberg.dedup import ARRIVED_AT_FIELD, DUPLICATES_ROWS
from waybill.tables.partition.rows import TABLE_ROWS
from waybill.tables.staging.file_writer import PartitionedWriter
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.uploads import Uploads
from waybill.watch.verify.unique import check_unique
from waybill.watch.verify.verify_report import FaultKind, VerifyFault, VerifyReport

pytestmark = pytest.mark.integration

STREAM = Stream.model_validate(
    {
        "topics": ["flights"],
        "parser": {"event_time": {"field": "t"}, "message_id": "id"},
        "table": "x.flights",
        "partition_by": "day",
        "dedup": {},
    }
)
A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
START = datetime(2026, 1, 1, tzinfo=UTC)
UNIQUE_ROWS = TABLE_ROWS.append(ARRIVED_AT_FIELD)
Place = tuple[TopicPartition, int]


class Silent:
    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, steps: int) -> None:
        pass


def of_main(tp: TopicPartition, offset: int) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": offset,
        "kafka_timestamp": None,
        "key": None,
        "headers": [],
        "value": b"{}",
        "event_time": START + timedelta(hours=offset),
        "message_id": f"id-{offset}",
        "generation": 1,
    }


def of_duplicates(tp: TopicPartition, offset: int) -> dict[str, Any]:
    row = of_main(tp, offset)
    first = {"first_topic": "flights", "first_partition": 0, "first_offset": 0, "first_arrived_at": START}
    made = {**row, "arrived_at": row["event_time"], "key": f'["id-{offset}"]', "source": None, **first}
    return {name: made[name] for name in DUPLICATES_ROWS.names}


@dataclass
class HandFilledTables:
    """The main table and the two tables of dedup, in a catalog of their own, filled by hand."""

    directory: Path
    catalog: Catalog
    ranges: dict[TopicPartition, tuple[int, int]] = field(default_factory=lambda: {A: (0, 100), B: (0, 50)})

    def __post_init__(self) -> None:
        self.main = ensure_tables(self.catalog, STREAM).main
        tables = ensure_dedup_tables(self.catalog, STREAM, self.main)
        self.unique, self.duplicates = tables.unique, tables.duplicates

    def put(self, table: Table, rows: list[dict[str, Any]], schema: pa.Schema, properties: dict[str, str]) -> None:
        uploads = Uploads(table.io)
        scratch = self.directory / uuid.uuid4().hex
        scratch.mkdir()
        writer = PartitionedWriter(
            TableLayout.of(table), schema, memory_bytes=1 << 20, scratch=scratch, uploads=uploads, name="p"
        )
        writer.add(pa.RecordBatch.from_pylist(rows, schema=schema))
        files = writer.finish()
        uploads.wait()
        uploads.close()
        table.refresh()
        assert commit_snapshot(table, properties, added=files)
        table.refresh()

    def partition(self, places: Iterable[Place]) -> None:
        self.put(self.main, [of_main(*place) for place in places], TABLE_ROWS, {})

    @property
    def swept(self) -> SweepPosition:
        snapshot = self.main.current_snapshot()
        assert snapshot is not None
        return SweepPosition(str(self.main.metadata.table_uuid), snapshot.snapshot_id, snapshot.sequence_number or 0)

    def sweep(self, unique: Iterable[Place], duplicates: Iterable[Place], swept: SweepPosition | None = None) -> None:
        swept = swept or self.swept
        self.find(duplicates, swept)
        self.keep(unique, swept)

    def find(self, places: Iterable[Place], swept: SweepPosition) -> None:
        rows = [of_duplicates(*place) for place in places]
        self.put(self.duplicates, rows, DUPLICATES_ROWS, {"waybill.swept": sweep_position_text(swept)})

    def keep(self, places: Iterable[Place], swept: SweepPosition, beginning: FirstSweepStart | None = None) -> None:
        rows = [{**of_main(*place), "arrived_at": START} for place in places]
        self.put(self.unique, rows, UNIQUE_ROWS, sweep_properties(SweepState(swept, {A: 1}, 0, beginning)))

    def expire(self, table: Table) -> None:
        """Expire all snapshots except the current one."""
        older = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != table.metadata.current_snapshot_id]
        table.maintenance.expire_snapshots().by_ids(older).commit()
        table.refresh()

    def check(self, window_offsets: int = 1 << 20) -> VerifyReport:
        report = VerifyReport("flights", 1)
        tables = ensure_dedup_tables(self.catalog, STREAM, self.main)
        listener = Silent()
        check_unique(
            self.catalog.load_table("x.flights"),
            tables,
            self.ranges,
            report,
            listener,
            window_offsets=window_offsets,
        )
        return report

    def faults(self, window_offsets: int = 1 << 20) -> set[tuple[str, str, int]]:
        """Return kind, topic-partition and offset of each fault."""
        return {
            (str(fault.kind), str(fault.tp), offset)
            for fault in self.check(window_offsets).faults
            for offset in range(fault.first_offset or 0, fault.next_offset or 1)
        }


def at(tp: TopicPartition, *offsets: int) -> list[Place]:
    return [(tp, offset) for offset in offsets]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[HandFilledTables]:
    """150 rows in three snapshots, swept in two sweeps. Every tenth row is a duplicate."""
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    endpoint = CatalogEndpoint(properties={"type": "sql", "uri": uri, "warehouse": warehouse})
    with open_catalog(endpoint, S3Endpoint()) as catalog:
        made = HandFilledTables(tmp_path, catalog)
        made.partition(at(A, *range(40)))
        made.sweep(at(A, *(n for n in range(40) if n % 10)), at(A, *range(0, 40, 10)))
        made.partition(at(A, *range(40, 100)))
        made.partition(at(B, *range(50)))
        made.sweep(
            at(A, *(n for n in range(40, 100) if n % 10)) + at(B, *(n for n in range(50) if n % 10)),
            at(A, *range(40, 100, 10)) + at(B, *range(0, 50, 10)),
        )
        yield made


@pytest.mark.parametrize("window_offsets", [1 << 20, 64, 20])
def test_sound_tables_have_no_faults(made: HandFilledTables, window_offsets: int) -> None:
    report = made.check(window_offsets)
    assert (report.faults, report.notes, report.unique_checked) == ([], [], True)
    figures = report.figures
    assert (figures.unique, figures.duplicates, figures.unswept) == (135, 15, 0)
    assert (figures.lost, figures.repeated, figures.foreign) == (0, 0, 0)


def test_rows_after_the_last_sweep_are_unswept_and_no_fault(made: HandFilledTables) -> None:
    made.ranges[A] = (0, 110)
    made.partition(at(A, *range(100, 110)))
    report = made.check()
    assert report.faults == []
    assert report.figures.unswept == 10


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[HandFilledTables]:
    """52 rows. The first sweep left out 40. Two of the others have offsets below the progress at which it started."""
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    endpoint = CatalogEndpoint(properties={"type": "sql", "uri": uri, "warehouse": warehouse})
    with open_catalog(endpoint, S3Endpoint()) as catalog:
        made = HandFilledTables(tmp_path, catalog, {A: (0, 52)})
        made.partition(at(A, *range(20), *range(22, 42)))
        first = made.swept
        made.partition(at(A, 20, 21, *range(42, 52)))
        beginning = FirstSweepStart(2_000, first.snapshot, first.sequence, 1_000, 40, {A: 42})
        made.keep(at(A, 20, 21, *range(42, 52)), made.swept, beginning)
        yield made


@pytest.mark.parametrize("window_offsets", [1 << 20, 7])
def test_rows_that_the_first_sweep_left_out_are_not_lost(begun: HandFilledTables, window_offsets: int) -> None:
    begun.expire(begun.main)
    report = begun.check(window_offsets)
    assert report.faults == []
    assert (report.figures.left_out, report.figures.lost, report.figures.unique) == (40, 0, 12)
    assert report.notes == ["dedup is complete since 1970-01-01T00:00:02Z: the first sweep left out 40 rows"]


@pytest.mark.parametrize("window_offsets", [1 << 20, 7])
def test_rows_that_the_first_sweep_did_not_leave_out_are_lost_if_they_are_missing(
    begun: HandFilledTables, window_offsets: int
) -> None:
    remove_rows(begun.unique, 0, 21, 22)
    remove_rows(begun.unique, 0, 42, 44)
    report = begun.check(window_offsets)
    assert report.figures.lost == 3
    at_offsets, counted = report.faults
    assert (at_offsets.first_offset, at_offsets.next_offset) == (42, 44)
    assert counted.what == (
        "41 rows from before the first sweep's start are in neither table, but it left out only 40: 1 too many"
    )


def test_row_with_a_unique_row_and_a_duplicate_is_repeated_even_below_the_first_sweeps_start(
    begun: HandFilledTables,
) -> None:
    begun.find(at(A, 21), begun.swept)
    assert begun.faults() == {("repeated", "flights/0", 21)}


@pytest.mark.parametrize("window_offsets", [1 << 20, 40])
def test_row_that_is_missing_in_both_tables_is_lost(made: HandFilledTables, window_offsets: int) -> None:
    remove_rows(made.unique, 0, 41, 43)
    remove_rows(made.duplicates, 1, 20, 21)
    found = made.faults(window_offsets)
    assert found == {("lost", "flights/0", 41), ("lost", "flights/0", 42), ("lost", "flights/1", 20)}
    assert made.check(window_offsets).figures.lost == 3


@pytest.mark.parametrize("window_offsets", [1 << 20, 40])
def test_row_that_is_twice_in_one_table_or_in_both_together_is_repeated(
    made: HandFilledTables, window_offsets: int
) -> None:
    again = made.swept
    made.keep(at(A, 41, 41, 42), again)
    made.find(at(A, 50), again)
    made.keep(at(B, 10), again)  # its duplicate is in the other table
    assert made.faults(window_offsets) == {
        ("repeated", "flights/0", 41),
        ("repeated", "flights/0", 42),
        ("repeated", "flights/0", 50),
        ("repeated", "flights/1", 10),
    }
    assert made.check(window_offsets).figures.repeated == 5


def test_row_with_the_offset_of_another_one_is_found_although_the_totals_are_equal(made: HandFilledTables) -> None:
    remove_rows(made.unique, 0, 41, 42)
    made.keep(at(A, 42), made.swept)
    assert made.faults() == {("lost", "flights/0", 41), ("repeated", "flights/0", 42)}


def test_row_that_was_not_swept_is_foreign(made: HandFilledTables) -> None:
    made.ranges[A] = (0, 110)
    swept = made.swept
    made.partition(at(A, *range(100, 110)))
    made.keep(at(A, 105), swept)
    made.keep([(TopicPartition("strange", 0), 7), (A, 999)], swept)
    assert made.faults() == {
        ("foreign", "flights/0", 105),
        ("foreign", "flights/0", 999),
        ("foreign", "strange/0", 7),
    }
    assert made.check().figures.foreign == 3


def test_rows_of_a_missing_backup_object_are_effects_of_that_fault(made: HandFilledTables) -> None:
    report = VerifyReport("flights", 1)
    report.add_fault(VerifyFault(FaultKind.MISSING, "key", A, 90, 100, "no backup object holds these offsets"))
    tables = ensure_dedup_tables(made.catalog, STREAM, made.main)
    ranges = {A: (0, 90), B: (0, 50)}
    progress = {A: 100, B: 50}
    check_unique(made.main, tables, ranges, report, Silent(), window_offsets=1 << 20, progress=progress)
    (fault,) = report.faults
    assert [(effect.where, effect.rows) for effect in fault.affects] == [
        ("x.flights_unique", 9),
        ("x.flights_duplicates", 1),
    ]
    assert (report.figures.unique, report.figures.duplicates, report.figures.foreign) == (135, 15, 0)


def test_duplicates_of_a_half_committed_sweep_are_no_fault(made: HandFilledTables) -> None:
    made.ranges[A] = (0, 110)
    made.partition(at(A, *range(100, 110)))
    made.find(at(A, 100, 105), made.swept)
    report = made.check()
    assert report.faults == []
    assert (report.figures.duplicates, report.figures.unswept) == (15, 10)
    made.keep(at(A, 101, 102, 103, 104, 106, 107, 108, 109), made.swept)
    report = made.check()
    assert report.faults == []
    assert (report.figures.duplicates, report.figures.unswept) == (17, 0)


def test_swept_rows_are_found_in_the_next_snapshot_after_the_swept_one_has_expired(made: HandFilledTables) -> None:
    swept = made.swept
    made.ranges[A] = (0, 110)
    made.partition(at(A, *range(100, 110)))
    made.expire(made.main)
    assert made.main.metadata.snapshot_by_id(swept.snapshot) is None
    report = made.check()
    assert report.faults == []
    assert report.figures.unswept == 10
    remove_rows(made.unique, 0, 41, 42)
    assert made.faults() == {("lost", "flights/0", 41)}


def test_history_without_the_swept_snapshot_and_the_next_one_is_a_fault(made: HandFilledTables) -> None:
    made.partition(at(A, 100))
    made.partition(at(A, 101))
    made.expire(made.main)
    (fault,) = made.check().faults
    assert fault.kind is FaultKind.PROGRESS
    assert "through which dedup has swept it, is not in the history of its current snapshot" in fault.what


def test_main_table_that_was_dropped_and_created_again_is_a_fault(made: HandFilledTables) -> None:
    tables = ensure_dedup_tables(made.catalog, STREAM, made.main)
    made.catalog.drop_table("x.flights")
    main = ensure_tables(made.catalog, STREAM).main
    report = VerifyReport("flights", 1)
    check_unique(main, tables, {}, report, Silent(), window_offsets=10)
    (fault,) = report.faults
    assert "and x.flights has another one: it is a new table" in fault.what
    assert not report.unique_checked


def test_missing_file_is_a_fault_and_its_rows_are_not_reported_as_lost(made: HandFilledTables) -> None:
    gone = next(iter(made.unique.scan(row_filter="partition = 1").plan_files())).file.file_path
    Path(gone.removeprefix("file://")).unlink()
    assert {kind for kind, *_ in made.faults()} == {"unreadable"}


def test_tables_before_the_first_sweep_have_a_note_and_no_fault(tmp_path: Path) -> None:
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    endpoint = CatalogEndpoint(properties={"type": "sql", "uri": uri, "warehouse": warehouse})
    with open_catalog(endpoint, S3Endpoint()) as catalog:
        report = HandFilledTables(tmp_path, catalog).check()
    assert (report.faults, report.notes) == ([], ["there was no dedup sweep yet"])
