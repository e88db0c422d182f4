"""The two tables that dedup sweeps fill, the unique table and the duplicates table, and the state of the sweeps.

The state of the sweeps is kept in properties of the unique table's snapshots, so rows and state are committed together
(`waybill.tables.iceberg.state`). A sweep commits the duplicates table first, with the same position: duplicates beyond
the unique table's position are not final.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, ClassVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from waybill.base.documents import DAMAGES, As, Document, Stored
from waybill.base.errors import ConfigError, ProgressLost, SweepHistoryLost
from waybill.config import names
from waybill.config.models import Stream
from waybill.config.models.dedup import ARRIVED_AT
from waybill.config.names import TopicPartition, offsets_of_json, offsets_to_json
from waybill.tables.iceberg.adoption import find_table
from waybill.tables.iceberg.catalog import translate_catalog_errors
from waybill.tables.iceberg.columns import copy_columns
from waybill.tables.iceberg.histories import TableHistory, shown_history
from waybill.tables.iceberg.schemas import TABLE_SCHEMA, check_table, ensure_spec, ensure_table
from waybill.tables.iceberg.state import (
    SWEEP_BEGINNING_PROPERTY,
    SWEEP_HORIZON_PROPERTY,
    SWEEP_WATERMARKS_PROPERTY,
    SWEPT_PROPERTY,
    newest_properties_with,
)

ROWS_PROPERTY = "waybill.rows"
"""A snapshot property: the number of rows that a sweep kept."""
DUPLICATES_PROPERTY = "waybill.duplicates"
"""A snapshot property: the number of rows that a sweep found to be duplicates."""

NO_HORIZON_MS = -(1 << 63)
"""A horizon before every arrival time: a sweep compares with all keys of the index."""

_UNREADABLE = (
    "table {where}: the sweep state in its snapshots cannot be read ({kind}: {error}): another program wrote it. Roll "
    "back to an older snapshot"
)
_BY_TP = As("", offsets_of_json, offsets_to_json)
_WATERMARKS = Document(name=f"{SWEEP_WATERMARKS_PROPERTY} of table {{where}}")
_ARRIVED_AT_ID = 6
_LOAD_ATTEMPTS = 3

_ARRIVED = NestedField(
    0,
    ARRIVED_AT,
    TimestamptzType(),
    required=True,
    doc="When the row came, as dedup counts it: Kafka's timestamp within bounds, or else the event time.",
)

DUPLICATES_SCHEMA = Schema(
    NestedField(1, "topic", StringType(), required=True, doc="Kafka's topic."),
    NestedField(2, "partition", IntegerType(), required=True, doc="Kafka's partition."),
    NestedField(3, "offset", LongType(), required=True, doc="Kafka's offset in topic and partition."),
    NestedField(4, "kafka_timestamp", TimestamptzType(), required=False, doc="As in the main table."),
    NestedField(5, "event_time", TimestamptzType(), required=True, doc="As in the main table."),
    _ARRIVED.model_copy(update={"field_id": _ARRIVED_AT_ID}),
    NestedField(7, "message_id", StringType(), required=True, doc="As in the main table."),
    NestedField(8, "key", StringType(), required=True, doc="The values of the key's columns as text: a JSON list."),
    NestedField(9, "source", StringType(), required=False, doc="The value of `dedup.source` as text."),
    NestedField(10, "first_topic", StringType(), required=True, doc="Where its key was first seen: topic,"),
    NestedField(11, "first_partition", IntegerType(), required=True, doc="partition"),
    NestedField(12, "first_offset", LongType(), required=True, doc="and offset of the row that was kept,"),
    NestedField(13, "first_arrived_at", TimestamptzType(), required=True, doc="and when that came."),
    NestedField(14, "generation", IntegerType(), required=True, doc="The generation of the chain it came from."),
)

_DUPLICATES_SPEC = PartitionSpec(
    PartitionField(_ARRIVED_AT_ID, PARTITION_FIELD_ID_START, DayTransform(), f"{ARRIVED_AT}_day")
)
_DUPLICATES_ORDER = SortOrder(
    SortField(_ARRIVED_AT_ID, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1
)

_TIME = pa.timestamp("us", tz="UTC")

ARRIVED_AT_FIELD = pa.field(ARRIVED_AT, _TIME, nullable=False)
"""The Arrow field that the unique table has after the columns of `waybill.tables.partition.rows.table_rows`."""

DUPLICATES_ROWS = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("kafka_timestamp", _TIME),
        pa.field("event_time", _TIME, nullable=False),
        ARRIVED_AT_FIELD,
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("first_topic", pa.string(), nullable=False),
        pa.field("first_partition", pa.int32(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("first_arrived_at", _TIME, nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
    ]
)
"""The columns of `DUPLICATES_SCHEMA` as an Arrow schema."""


@dataclass(frozen=True, slots=True)
class DedupTables:
    """The unique table and the duplicates table of a stream, at the same history."""

    unique: TableHistory
    duplicates: TableHistory

    def at(self, history: str | None) -> DedupTables:
        """Return the loaded tables at another history."""
        return DedupTables(TableHistory(self.unique, history), TableHistory(self.duplicates, history))


@dataclass(frozen=True, slots=True)
class SweepPosition(Stored):
    """The last snapshot of the main table that sweeps have processed. Its ancestors are swept too."""

    DOCUMENT: ClassVar = Document(
        _UNREADABLE, name=f"{SWEPT_PROPERTY} of table {{where}}", converts=True, error=ProgressLost
    )

    main: str
    """The main table's uuid."""
    snapshot: int
    """The snapshot's id."""
    sequence: int
    """That snapshot's sequence number."""


@dataclass(frozen=True, slots=True)
class FirstSweepStart(Stored):
    """The start of the first sweep, if it left out rows that the main table already had. No later sweep takes them."""

    DOCUMENT: ClassVar = Document(name=f"{SWEEP_BEGINNING_PROPERTY} of table {{where}}", converts=True)

    since_ms: int
    """The requested start, epoch ms. Every snapshot committed at or after it is swept."""
    snapshot: int
    """The id of the last snapshot of the main table that was left out."""
    sequence: int
    """That snapshot's sequence number."""
    committed_ms: int
    """That snapshot's commit time, epoch ms, before `since_ms`."""
    rows: int
    """The number of rows that the main table had in that snapshot."""
    progress: Annotated[Mapping[TopicPartition, int], _BY_TP]
    """The main table's progress in that snapshot. Every row that was left out has an offset below it."""


@dataclass(frozen=True, slots=True)
class SweepState:
    """The state that the sweeps so far have stored for the next one."""

    swept: SweepPosition | None = None
    """None before the first sweep."""
    watermarks: Mapping[TopicPartition, int] = field(default_factory=lambda: MappingProxyType({}))
    """The latest arrival time of each topic-partition's rows, epoch ms. A topic-partition without rows is missing."""
    horizon_ms: int = NO_HORIZON_MS
    """Epoch ms. Keys of rows that arrived before it are no longer compared."""
    beginning: FirstSweepStart | None = None
    """None if the first sweep took all rows that the main table had."""


def ensure_dedup_tables(catalog: Catalog, stream: Stream, main: Table) -> DedupTables:
    """Return the tables that sweeps of `main` fill, as `load_dedup_tables` does. Creates those that do not exist.

    The unique table has the columns, partitioning and sort order of `main`, and the column `arrived_at`. Columns that
    are new in `main` are added, and new files get its partitioning. Several drivers may call this at the same time.

    Raises `ConfigError` when an existing table of that name does not fit, `SweepHistoryLost` when its rows come from
    another main table, `ProgressLost` as `read_sweep_state` does, `CommitConflict` when every attempt to add columns
    was refused, `CatalogUnavailable` when the catalog does not answer.
    """
    spec = _spec_of_stream(main, stream)
    with translate_catalog_errors("create the tables of dedup"):
        unique = ensure_table(
            catalog,
            names.unique_table_name(stream.table),
            stream.generation,
            _unique_schema(main),
            spec,
            main.sort_order(),
        )
        duplicates = ensure_table(
            catalog,
            names.duplicates_table_name(stream.table),
            stream.generation,
            DUPLICATES_SCHEMA,
            _DUPLICATES_SPEC,
            _DUPLICATES_ORDER,
        )
    # Check this before a table that does not fit is changed.
    check_table(unique, Schema(*TABLE_SCHEMA.fields, _arrived_at_field(TABLE_SCHEMA)), unique.spec())
    check_table(duplicates, DUPLICATES_SCHEMA, _DUPLICATES_SPEC)
    for table in (duplicates, unique):
        _check_same_main(table, main)
    copy_columns(unique, main)
    ensure_spec(unique, _for_unique(spec, unique, main), may_be_new=True)
    return _at_the_same_history(unique, duplicates)


def load_dedup_tables(catalog: Catalog, stream: Stream) -> DedupTables | None:
    """Return the tables that a stream's sweeps fill, or None before the first sweep.

    Both show the history that `main` of the unique table shows. A rebuild is published in the unique table first; until
    the duplicates table follows, its duplicates are those of the rebuild's branch.

    The duplicates table is loaded last and a sweep commits it first. So the loaded versions are consistent: the
    duplicates of every sweep in the unique table are there.
    """
    with translate_catalog_errors("load the tables of dedup"):
        unique = find_table(catalog, names.unique_table_name(stream.table), stream.generation)
        duplicates = find_table(catalog, names.duplicates_table_name(stream.table), stream.generation)
    if unique is None or duplicates is None:
        return None
    with translate_catalog_errors("load the tables of dedup"):
        return _at_the_same_history(unique, duplicates)


def _at_the_same_history(unique: Table, duplicates: Table) -> DedupTables:
    """Return both tables at the history that `main` of the unique table shows."""
    for _ in range(_LOAD_ATTEMPTS):
        history = shown_history(unique.metadata)
        tables = DedupTables(TableHistory(unique, history), TableHistory(duplicates, history))
        if tables.duplicates.ref is not None:
            break
        # A rebuild was published between the two loads. If one of the tables was rolled back to before a rebuild,
        # loading again does not help, so the number of attempts is limited.
        unique.refresh()
        duplicates.refresh()
    return tables


def _spec_of_stream(main: Table, stream: Stream) -> PartitionSpec:
    """Return the partitioning of the stream's generation in `main`, whose present one may be another generation's.

    If `main` never had it, return the present one.
    """
    by = stream.partition_by
    configured = [by.time_field_name, *(column.field_name for column in by.columns)]
    of_generation = (spec for spec in main.specs().values() if [field.name for field in spec.fields] == configured)
    return next(of_generation, main.spec())


def _for_unique(spec: PartitionSpec, unique: Table, main: Table) -> PartitionSpec:
    """Return a partitioning of `main` for the unique table, whose columns have other field ids."""

    def source_id(field: PartitionField) -> int:
        column = main.schema().find_column_name(field.source_id)
        assert column is not None
        return unique.schema().find_field(column).field_id

    return PartitionSpec(*(PartitionField(source_id(f), f.field_id, f.transform, f.name) for f in spec.fields))


def _unique_schema(main: Table) -> Schema:
    if ARRIVED_AT in main.schema().column_names:
        raise ConfigError(
            f"table {'.'.join(main.name())} has a column {ARRIVED_AT!r}, which the unique table adds: "
            f"rename it in the table, or raise the stream's generation"
        )
    return Schema(*main.schema().fields, _arrived_at_field(main.schema()))


def _arrived_at_field(schema: Schema) -> NestedField:
    return _ARRIVED.model_copy(update={"field_id": schema.highest_field_id + 1})


def _check_same_main(table: Table, main: Table) -> None:
    name = ".".join(table.name())
    swept = read_sweep_position(table.metadata, name)
    if swept is not None and swept.main != str(main.metadata.table_uuid):
        raise SweepHistoryLost(
            f"table {name} holds rows of a table {'.'.join(main.name())} that had the uuid {swept.main}. That table "
            f"was dropped and created again since, with the uuid {main.metadata.table_uuid}. Drop the unique table and "
            f"the duplicates table, and the next sweep starts with all rows of the main table; or raise the stream's "
            f"generation"
        )


def read_sweep_state(metadata: TableMetadata, name: str) -> SweepState:
    """Return the sweep state that the history of a unique table, called `name` in errors, records.

    Raises `ProgressLost` when the table holds rows and no snapshot records a position, or the state is incomplete;
    `DocumentTooNew` for a state of a newer version of Waybill.
    """
    properties = _state_properties(metadata, name)
    if properties is None:
        return SweepState()
    beginning = properties.get(SWEEP_BEGINNING_PROPERTY)
    try:
        return SweepState(
            swept=SweepPosition.from_json(name, properties[SWEPT_PROPERTY]),
            watermarks=offsets_of_json(_WATERMARKS.read(properties[SWEEP_WATERMARKS_PROPERTY], name)["arrived_ms"]),
            horizon_ms=int(properties[SWEEP_HORIZON_PROPERTY]),
            beginning=None if beginning is None else FirstSweepStart.from_json(name, beginning),
        )
    except DAMAGES as error:
        SweepPosition.DOCUMENT.refuse(name, error)


def read_sweep_position(metadata: TableMetadata, name: str) -> SweepPosition | None:
    """Return the position that a unique or duplicates table, called `name` in errors, records; None before a sweep.

    Raises as `read_sweep_state` does.
    """
    properties = _state_properties(metadata, name)
    return None if properties is None else SweepPosition.from_json(name, properties[SWEPT_PROPERTY])


def sweep_properties(state: SweepState) -> dict[str, str]:
    """Return the properties of the unique table's next snapshot, which `read_sweep_state` reads.

    Raises `ValueError` for a state without a position.
    """
    if state.swept is None:
        raise ValueError("the state before the first sweep has no position to store")
    start = {} if state.beginning is None else {SWEEP_BEGINNING_PROPERTY: state.beginning.to_json().decode()}
    return {
        SWEPT_PROPERTY: sweep_position_text(state.swept),
        SWEEP_WATERMARKS_PROPERTY: _WATERMARKS.write({"arrived_ms": offsets_to_json(state.watermarks)}).decode(),
        SWEEP_HORIZON_PROPERTY: str(state.horizon_ms),
        **start,
    }


def sweep_position_text(swept: SweepPosition) -> str:
    """Return the JSON document that `read_sweep_position` reads, for the duplicates table's next snapshot."""
    return swept.to_json().decode()


def _state_properties(metadata: TableMetadata, name: str) -> Mapping[str, str] | None:
    properties = newest_properties_with(metadata, SWEPT_PROPERTY)
    if properties is not None:
        return properties
    current = metadata.current_snapshot()
    if current is None or (current.summary and current.summary.additional_properties.get("total-records") == "0"):
        return None
    raise ProgressLost(
        f"table {name} holds rows, but no snapshot in its history has the property {SWEPT_PROPERTY}: another "
        f"program wrote the table, or the snapshots that had it were expired. Roll back to a snapshot that has it, or "
        f"drop the unique table and the duplicates table, and the next sweep starts with all rows of the main table"
    )
