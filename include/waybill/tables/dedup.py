"""The two tables that dedup sweeps fill: unique rows, and what was sent again.

How far the main table has been swept is a property of the unique table's snapshots, so that it moves in the same atomic
commit as the rows (`waybill.tables.state`). The duplicates are committed first, with the same property: rows of
duplicates beyond the unique table's own are not final.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from waybill import names
from waybill.config import Stream
from waybill.config.dedup import ARRIVED_AT
from waybill.documents import read_document
from waybill.errors import ConfigError, ProgressLost, SweepHistoryLost
from waybill.names import TopicPartition
from waybill.tables.catalog import available
from waybill.tables.columns import follow_columns
from waybill.tables.schemas import TABLE_SCHEMA, check_table, ensure_table
from waybill.tables.state import (
    SWEEP_BEGINNING_PROPERTY,
    SWEEP_HORIZON_PROPERTY,
    SWEEP_WATERMARKS_PROPERTY,
    SWEPT_PROPERTY,
    newest_with,
)

__all__ = [
    "ARRIVED_AT_FIELD",
    "DUPLICATES_PROPERTY",
    "DUPLICATES_ROWS",
    "DUPLICATES_SCHEMA",
    "NO_HORIZON_MS",
    "ROWS_PROPERTY",
    "Beginning",
    "DedupTables",
    "SweepState",
    "Swept",
    "ensure_dedup_tables",
    "load_dedup_tables",
    "read_sweep_state",
    "read_swept",
    "sweep_properties",
    "swept_text",
]

ROWS_PROPERTY = "waybill.rows"
"""How many rows a sweep kept."""
DUPLICATES_PROPERTY = "waybill.duplicates"
"""How many rows a sweep found to be duplicates."""

NO_HORIZON_MS = -(1 << 63)
"""As a horizon: none, whatever is in the index counts."""

_VERSION = 1
_ARRIVED_AT_ID = 6

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
"""The column of `waybill.partition.rows.table_rows` that rows of the unique table have at their end, in Arrow."""

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
"""Columns of `DUPLICATES_SCHEMA`, in Arrow."""


@dataclass(frozen=True, slots=True)
class DedupTables:
    """The tables of a stream's generation that its sweeps fill."""

    unique: Table
    duplicates: Table


@dataclass(frozen=True, slots=True)
class Swept:
    """Up to where the main table has been swept."""

    main: str
    """The main table's uuid."""
    snapshot: int
    """The id of its last snapshot whose rows were swept."""
    sequence: int
    """That snapshot's sequence number."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the first sweep began, if not with all that the main table held: rows before it are left out for good."""

    since_ms: int
    """What it was asked for, epoch ms: every snapshot that was committed since then is swept."""
    snapshot: int
    """The id of the main table's last snapshot that is left out."""
    sequence: int
    """That snapshot's sequence number."""
    committed_ms: int
    """When it was committed, epoch ms: before `since_ms`."""
    rows: int
    """How many rows the main table held then."""
    progress: Mapping[TopicPartition, int]
    """The main table's progress then: no row that is left out has an offset at or beyond its topic-partition's."""

    def document(self) -> dict[str, Any]:
        """For JSON; `from_document` is the inverse."""
        return {
            "v": _VERSION,
            "since_ms": self.since_ms,
            "snapshot": self.snapshot,
            "sequence": self.sequence,
            "committed_ms": self.committed_ms,
            "rows": self.rows,
            "progress": {str(tp): following for tp, following in sorted(self.progress.items())},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Beginning:
        """Raises `ValueError`, `KeyError`, `TypeError` or `AttributeError` for what is none."""
        return cls(
            since_ms=int(document["since_ms"]),
            snapshot=int(document["snapshot"]),
            sequence=int(document["sequence"]),
            committed_ms=int(document["committed_ms"]),
            rows=int(document["rows"]),
            progress={TopicPartition.parse(tp): int(following) for tp, following in document["progress"].items()},
        )


@dataclass(frozen=True, slots=True)
class SweepState:
    """What the sweeps so far have left for the next one."""

    swept: Swept | None = None
    """None: there was no sweep yet."""
    watermarks: Mapping[TopicPartition, int] = field(default_factory=lambda: MappingProxyType({}))
    """The latest arrival of each topic-partition, epoch ms. A topic-partition without rows is missing."""
    horizon_ms: int = NO_HORIZON_MS
    """Rows that arrived before it are not known again, epoch ms."""
    beginning: Beginning | None = None
    """None: the first sweep took all that the main table held."""


def ensure_dedup_tables(catalog: Catalog, stream: Stream, main: Table) -> DedupTables:
    """The tables that sweeps of `main` fill, created if they are not there.

    The unique table has main's columns, partitioning and order, and `arrived_at`; what columns main has by now, it is
    given. Any number of drivers may do so at the same time.

    Raises `ConfigError` when a table of that name is not as it must be, `SweepHistoryLost` when the rows in it are
    those of another main table, `ProgressLost` as `read_sweep_state` does, `CommitConflict` when others change it all
    the time, `CatalogUnavailable` when the catalog does not answer.
    """
    with available("create the tables of dedup"):
        unique = ensure_table(
            catalog,
            names.unique_table_name(stream.table, stream.generation),
            _unique_schema(main),
            main.spec(),
            main.sort_order(),
        )
        duplicates = ensure_table(
            catalog,
            names.duplicates_table_name(stream.table, stream.generation),
            DUPLICATES_SCHEMA,
            _DUPLICATES_SPEC,
            _DUPLICATES_ORDER,
        )
    check_table(unique, Schema(*TABLE_SCHEMA.fields, _arrived_after(TABLE_SCHEMA)), main.spec())
    check_table(duplicates, DUPLICATES_SCHEMA, _DUPLICATES_SPEC)
    for table in (duplicates, unique):
        _check_main(table, main)
    follow_columns(unique, main)
    return DedupTables(unique, duplicates)


def load_dedup_tables(catalog: Catalog, stream: Stream) -> DedupTables | None:
    """The tables that a stream's sweeps fill; None before the first of them.

    Whatever commits meanwhile, they fit together: a sweep commits the duplicates first, and those are loaded last.
    """
    with available("load the tables of dedup"):
        try:
            unique = catalog.load_table(names.unique_table_name(stream.table, stream.generation))
            duplicates = catalog.load_table(names.duplicates_table_name(stream.table, stream.generation))
        except NoSuchTableError:
            return None
    return DedupTables(unique, duplicates)


def _unique_schema(main: Table) -> Schema:
    if ARRIVED_AT in main.schema().column_names:
        raise ConfigError(
            f"table {'.'.join(main.name())} has a column {ARRIVED_AT!r}, which the table of unique rows adds: "
            f"rename it in the table, or raise the stream's generation"
        )
    return Schema(*main.schema().fields, _arrived_after(main.schema()))


def _arrived_after(schema: Schema) -> NestedField:
    return _ARRIVED.model_copy(update={"field_id": schema.highest_field_id + 1})


def _check_main(table: Table, main: Table) -> None:
    name = ".".join(table.name())
    swept = read_swept(table.metadata, name)
    if swept is not None and swept.main != str(main.metadata.table_uuid):
        raise SweepHistoryLost(
            f"table {name} holds rows of a table {'.'.join(main.name())} that had the uuid {swept.main}; the one that "
            f"is there now, {main.metadata.table_uuid}, was made anew since. Drop the tables of unique rows and of "
            f"duplicates, and the next sweep starts from what the main table holds; or raise the stream's generation"
        )


def read_sweep_state(metadata: TableMetadata, name: str) -> SweepState:
    """The state that the history of a unique table, called `name` in errors, records.

    Raises `ProgressLost` when the table holds rows and no snapshot says what was swept, or its state is not complete;
    `GenerationConflict` for a state of a newer Waybill.
    """
    properties = _state_properties(metadata, name)
    if properties is None:
        return SweepState()
    try:
        return SweepState(
            swept=_parse_swept(properties[SWEPT_PROPERTY], name),
            watermarks=_parse_watermarks(properties[SWEEP_WATERMARKS_PROPERTY], name),
            horizon_ms=int(properties[SWEEP_HORIZON_PROPERTY]),
            beginning=_parse_beginning(properties.get(SWEEP_BEGINNING_PROPERTY), name),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(name, error) from error


def read_swept(metadata: TableMetadata, name: str) -> Swept | None:
    """Up to where the main table was swept by what is in a table, called `name` in errors: unique or duplicates.

    Raises as `read_sweep_state` does.
    """
    properties = _state_properties(metadata, name)
    if properties is None:
        return None
    try:
        return _parse_swept(properties[SWEPT_PROPERTY], name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(name, error) from error


def sweep_properties(state: SweepState) -> dict[str, str]:
    """The properties of the unique table's next snapshot, which `read_sweep_state` reads."""
    if state.swept is None:
        raise ValueError("a state before the first sweep is none")
    newest = {str(tp): at for tp, at in sorted(state.watermarks.items())}
    begun = {} if state.beginning is None else {SWEEP_BEGINNING_PROPERTY: _text(state.beginning.document())}
    return {
        SWEPT_PROPERTY: swept_text(state.swept),
        SWEEP_WATERMARKS_PROPERTY: _text({"v": _VERSION, "arrived_ms": newest}),
        SWEEP_HORIZON_PROPERTY: str(state.horizon_ms),
        **begun,
    }


def swept_text(swept: Swept) -> str:
    """The document that `read_swept` reads: the property of the duplicates table's next snapshot."""
    return _text({"v": _VERSION, "main": swept.main, "snapshot": swept.snapshot, "sequence": swept.sequence})


def _state_properties(metadata: TableMetadata, name: str) -> Mapping[str, str] | None:
    properties = newest_with(metadata, SWEPT_PROPERTY)
    if properties is not None:
        return properties
    current = metadata.current_snapshot()
    if current is None or (current.summary and current.summary.additional_properties.get("total-records") == "0"):
        return None
    raise ProgressLost(
        f"table {name} holds rows, but no snapshot in its history has the property {SWEPT_PROPERTY}: it was written by "
        f"somebody else, or the snapshots that had it were expired. Roll back to a snapshot that has it, or drop the "
        f"tables of unique rows and of duplicates, and the next sweep starts from what the main table holds"
    )


def _parse_swept(text: str, name: str) -> Swept:
    document = read_document(text.encode(), _VERSION, f"{SWEPT_PROPERTY} of table {name}")
    return Swept(str(document["main"]), int(document["snapshot"]), int(document["sequence"]))


def _parse_watermarks(text: str, name: str) -> Mapping[TopicPartition, int]:
    document = read_document(text.encode(), _VERSION, f"{SWEEP_WATERMARKS_PROPERTY} of table {name}")
    return {TopicPartition.parse(tp): int(at) for tp, at in document["arrived_ms"].items()}


def _parse_beginning(text: str | None, name: str) -> Beginning | None:
    if text is None:
        return None
    return Beginning.from_document(
        read_document(text.encode(), _VERSION, f"{SWEEP_BEGINNING_PROPERTY} of table {name}")
    )


def _unreadable(name: str, error: Exception) -> ProgressLost:
    return ProgressLost(
        f"table {name}: what its snapshots say about the last sweep cannot be read ({type(error).__name__}: {error}): "
        f"somebody else wrote it. Roll back to a snapshot before it"
    )


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
