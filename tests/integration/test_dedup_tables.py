"""The unique table and the duplicates table in a real catalog."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from waybill.base.errors import ConfigError, ProgressLost, SweepHistoryLost
from waybill.config.connections import CatalogEndpoint, S3Endpoint
from waybill.config.models import Stream
from waybill.config.names import TopicPartition
from waybill.tables.iceberg import (
    SweepPosition,
    SweepState,
    commit_snapshot,
    ensure_dedup_tables,
    ensure_tables,
    load_dedup_tables,
    open_catalog,
    read_sweep_state,
    sweep_position_text,
    sweep_properties,
)
from waybill.tables.iceberg.commit import copy_state_to_new_snapshot
from waybill.tables.iceberg.dedup import DUPLICATES_ROWS
from waybill.tables.staging.file_writer import PartitionedWriter
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.uploads import Uploads

pytestmark = pytest.mark.integration

COLUMNS = {"carrier": "string", "seats": "int", "legs": "list<int>"}


def stream(**changed: Any) -> Stream:
    given = {
        "topics": ["flights"],
        "parser": {"event_time": {"field": "t"}, "message_id": "id"},
        "table": "x.flights",
        "partition_by": ["day", "carrier", "bucket(4, message_id)"],
        "columns": COLUMNS,
        "dedup": {},
    }
    return Stream.model_validate({**given, **changed})


@pytest.fixture
def endpoint(tmp_path: Path) -> CatalogEndpoint:
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    return CatalogEndpoint(properties={"type": "sql", "uri": uri, "warehouse": warehouse})


@pytest.fixture
def catalog(endpoint: CatalogEndpoint) -> Iterator[Catalog]:
    with open_catalog(endpoint, S3Endpoint()) as opened:
        yield opened


def columns_of(table: Any) -> list[tuple[str, str, bool]]:
    # Nested fields have ids of their own.
    return [(f.name, str(f.field_type).split("<")[0], f.required) for f in table.schema().fields]


def test_unique_table_has_the_partitioning_of_the_main_table(catalog: Catalog) -> None:
    main = ensure_tables(catalog, stream()).main
    assert load_dedup_tables(catalog, stream()) is None
    tables = ensure_dedup_tables(catalog, stream(), main)
    assert tables.unique.name() == ("x", "flights_unique")
    assert tables.duplicates.name() == ("x", "flights_duplicates")
    assert columns_of(tables.unique) == [*columns_of(main), ("arrived_at", "timestamptz", True)]
    for table in (tables.unique, main):
        assert [(f.name, str(f.transform)) for f in table.spec().fields] == [
            ("event_time_day", "day"),
            ("carrier", "identity"),
            ("message_id_bucket", "bucket[4]"),
        ]
        assert [table.schema().find_column_name(f.source_id) for f in table.sort_order().fields] == ["event_time"]
    assert [(f.name, str(f.transform)) for f in tables.duplicates.spec().fields] == [("arrived_at_day", "day")]
    again = ensure_dedup_tables(catalog, stream(), main)
    found = load_dedup_tables(catalog, stream())
    assert found is not None
    for other in (again, found):
        assert other.unique.metadata.table_uuid == tables.unique.metadata.table_uuid
        assert other.duplicates.metadata.table_uuid == tables.duplicates.metadata.table_uuid


def test_unique_table_gets_columns_added_to_the_main_table(catalog: Catalog) -> None:
    ensure_dedup_tables(catalog, stream(), ensure_tables(catalog, stream()).main)
    # Columns removed from the config stay in the main table, so in the unique table too.
    grown = stream(columns={"carrier": "string", "seats": "long", "gate": "string", "tags": "list<string>"})
    main = ensure_tables(catalog, grown).main
    unique = ensure_dedup_tables(catalog, grown, main).unique
    assert sorted(columns_of(unique)) == sorted([*columns_of(main), ("arrived_at", "timestamptz", True)])
    assert {name for name, _, _ in columns_of(unique)} >= {"legs", "gate", "tags"}
    assert str(unique.schema().find_field("seats").field_type) == "long"
    narrow = ensure_dedup_tables(catalog, stream(), main).unique
    assert columns_of(narrow) == columns_of(unique), "no column is removed"


def test_concurrent_drivers_create_each_table_once(endpoint: CatalogEndpoint, catalog: Catalog) -> None:
    ensure_dedup_tables(catalog, stream(), ensure_tables(catalog, stream()).main)
    grown = stream(columns={**COLUMNS, "gate": "string"}, generation=2)
    main = ensure_tables(catalog, grown).main
    barrier = threading.Barrier(4, timeout=30)

    def drive(_: int) -> set[str]:
        with open_catalog(endpoint, S3Endpoint()) as own:
            barrier.wait()
            tables = ensure_dedup_tables(own, grown, main)
        return {str(table.metadata.table_uuid) for table in (tables.unique, tables.duplicates)}

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(drive, range(4)))
    assert len(set.union(*found)) == 2


def test_tables_with_another_schema_are_refused(catalog: Catalog) -> None:
    main = ensure_tables(catalog, stream()).main
    schema = Schema(NestedField(1, "topic", StringType()), NestedField(2, "partition", LongType()))
    catalog.create_table("x.flights_unique", schema)
    with pytest.raises(ConfigError, match=r"table x\.flights_unique has long for 'partition' where int is needed"):
        ensure_dedup_tables(catalog, stream(), main)
    catalog.drop_table("x.flights_unique")
    catalog.create_table("x.flights_unique", main.schema())
    with pytest.raises(ConfigError, match=r"x\.flights_unique has no column for 'arrived_at'"):
        ensure_dedup_tables(catalog, stream(), main)


def test_main_table_with_an_arrived_at_column_is_refused(catalog: Catalog) -> None:
    main = ensure_tables(catalog, stream()).main
    with main.update_schema() as update:
        update.add_column("arrived_at", TimestamptzType())
    with pytest.raises(ConfigError, match=r"x\.flights has a column 'arrived_at', which the unique table adds"):
        ensure_dedup_tables(catalog, stream(), main)


def test_table_with_rows_but_no_state_is_refused(catalog: Catalog) -> None:
    main = ensure_tables(catalog, stream()).main
    tables = ensure_dedup_tables(catalog, stream(), main)
    tables.duplicates.append(pa.Table.from_pylist([duplicate(0)], schema=DUPLICATES_ROWS))
    with pytest.raises(ProgressLost, match=r"x\.flights_duplicates holds rows, but no snapshot in its history"):
        ensure_dedup_tables(catalog, stream(), main)


def test_main_table_that_was_created_again_is_refused(catalog: Catalog) -> None:
    main = ensure_tables(catalog, stream()).main
    tables = ensure_dedup_tables(catalog, stream(), main)
    state = SweepState(SweepPosition(str(main.metadata.table_uuid), 1, 1), {TopicPartition("flights", 0): 5}, 7)
    assert state.swept is not None
    assert commit_snapshot(tables.duplicates, {"waybill.swept": sweep_position_text(state.swept)})
    assert commit_snapshot(tables.unique, sweep_properties(state))
    unique = ensure_dedup_tables(catalog, stream(), main).unique
    assert read_sweep_state(unique.metadata, "t") == state
    catalog.drop_table("x.flights")
    recreated = ensure_tables(catalog, stream()).main
    with pytest.raises(
        SweepHistoryLost, match=r"x\.flights that had the uuid .* was dropped and created again since, .* Drop"
    ):
        ensure_dedup_tables(catalog, stream(), recreated)


def test_state_survives_expiry_of_older_snapshots(catalog: Catalog) -> None:
    main = ensure_tables(catalog, stream()).main
    unique = ensure_dedup_tables(catalog, stream(), main).unique
    state = SweepState(SweepPosition(str(main.metadata.table_uuid), 1, 1), {TopicPartition("flights", 0): 5}, 7)
    assert commit_snapshot(unique, sweep_properties(state))
    unique.refresh()
    assert commit_snapshot(unique, {"somebody": "else"})
    assert copy_state_to_new_snapshot(unique) is True
    assert copy_state_to_new_snapshot(unique) is False
    older = [s.snapshot_id for s in unique.metadata.snapshots if s.snapshot_id != unique.metadata.current_snapshot_id]
    unique.maintenance.expire_snapshots().by_ids(older).commit()
    unique.refresh()
    assert len(unique.metadata.snapshots) == 1
    assert read_sweep_state(unique.metadata, "t") == state


def duplicate(offset: int, arrived_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> dict[str, Any]:
    return {
        "topic": "flights",
        "partition": 0,
        "offset": offset,
        "kafka_timestamp": None,
        "event_time": datetime(2013, 1, 1, tzinfo=UTC),
        "arrived_at": arrived_at,
        "message_id": f"id-{offset}",
        "key": f'["id-{offset}"]',
        "source": None,
        "first_topic": "flights",
        "first_partition": 0,
        "first_offset": 0,
        "first_arrived_at": arrived_at,
        "generation": 1,
    }


def test_duplicates_are_partitioned_by_day_of_arrival(catalog: Catalog, tmp_path: Path) -> None:
    table = ensure_dedup_tables(catalog, stream(), ensure_tables(catalog, stream()).main).duplicates
    start = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)
    rows = [duplicate(n, start + timedelta(hours=10 * (n % 5))) for n in range(50)]
    uploads = Uploads(table.io)
    writer = PartitionedWriter(
        TableLayout.of(table), DUPLICATES_ROWS, memory_bytes=1 << 20, scratch=tmp_path, uploads=uploads, name="sweep"
    )
    writer.add(pa.RecordBatch.from_pylist(rows, schema=DUPLICATES_ROWS))
    files = writer.finish()
    uploads.wait()
    uploads.close()
    assert [(file.partition[0], file.record_count) for file in files] == [
        (20454, 30),  # days since 1970
        (20455, 20),
    ]
    assert all(file.sort_order_id == 1 for file in files)
    assert commit_snapshot(table, {}, added=files)
    table.refresh()
    found = table.scan().to_arrow()
    assert sorted(found["offset"].to_pylist()) == list(range(50))
    one = table.scan(row_filter="arrived_at < '2026-01-01T01:00:00+00:00'")
    assert len(list(one.plan_files())) == 1
