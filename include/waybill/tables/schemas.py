"""The two tables of a stream: what was parsed, and the quarantine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    UNPARTITIONED_PARTITION_SPEC,
    PartitionField,
    PartitionSpec,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
)
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from sqlalchemy.exc import IntegrityError

from waybill import names
from waybill.config import Columns, ColumnTransform, PartitionBy, Stream, TimeUnit, TransformKind
from waybill.errors import ConfigError
from waybill.tables.catalog import available
from waybill.tables.columns import column_fields, fit_columns
from waybill.tables.file_inventory import LEDGER_SCHEMA, SINK_PROPERTY, check_sink, sink_text
from waybill.tables.state import read_retries

__all__ = [
    "EVENT_TIME_ID",
    "QUARANTINE_SCHEMA",
    "TABLE_SCHEMA",
    "StreamTables",
    "check_table",
    "ensure_table",
    "ensure_tables",
    "load_tables",
    "table_schema",
]

logger = logging.getLogger(__name__)

_LOADS = 3

EVENT_TIME_ID = 8

_HEADERS = ListType(
    element_id=11,
    element_type=StructType(
        NestedField(12, "key", StringType(), required=True),
        NestedField(13, "value", BinaryType(), required=False),
    ),
    element_required=True,
)

_ORIGIN = (
    NestedField(1, "topic", StringType(), required=True, doc="Kafka's topic."),
    NestedField(2, "partition", IntegerType(), required=True, doc="Kafka's partition."),
    NestedField(3, "offset", LongType(), required=True, doc="Kafka's offset in topic and partition."),
    NestedField(
        4,
        "kafka_timestamp",
        TimestamptzType(),
        required=False,
        doc="The producer's or the broker's timestamp; null: none, or not between the years 1 and 9999.",
    ),
    NestedField(5, "key", BinaryType(), required=False, doc="The message's key."),
    NestedField(6, "headers", _HEADERS, required=True, doc="The message's headers, in order, repeated keys included."),
    NestedField(7, "value", BinaryType(), required=False, doc="The message as it was sent; null: a tombstone."),
)

TABLE_SCHEMA = Schema(
    *_ORIGIN,
    NestedField(
        EVENT_TIME_ID, "event_time", TimestamptzType(), required=True, doc="From the message; a tombstone's is Kafka's."
    ),
    NestedField(
        9, "message_id", StringType(), required=True, doc="From the message, or assigned: topic/partition@offset."
    ),
    NestedField(10, "generation", IntegerType(), required=True, doc="The generation of the chain it came from."),
)

_FIRST_COLUMN_ID = 15

QUARANTINE_SCHEMA = Schema(
    *_ORIGIN,
    NestedField(8, "reason", StringType(), required=True, doc="Why: a word, a colon, and what was found."),
    NestedField(9, "parser", StringType(), required=True, doc="The parser that refused it."),
    NestedField(14, "quarantined_at", TimestamptzType(), required=True, doc="When the run that found it was planned."),
    NestedField(10, "generation", IntegerType(), required=True, doc="The generation of the chain it came from."),
)

_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # Bounds of whole messages prune nothing, and would be most of a small file's manifest entry.
    "write.metadata.metrics.column.value": "counts",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

_TIME_TRANSFORMS: dict[TimeUnit, Transform[Any, Any]] = {
    TimeUnit.DAY: DayTransform(),
    TimeUnit.HOUR: HourTransform(),
}


def table_schema(columns: Columns) -> Schema:
    """The schema of a stream's table. The catalog gives the fields ids of its own."""
    return Schema(*TABLE_SCHEMA.fields, *column_fields(columns, _FIRST_COLUMN_ID))


@dataclass(frozen=True, slots=True)
class StreamTables:
    """The table of a stream's generation and its quarantine."""

    main: Table
    quarantine: Table


def partition_spec(partition_by: PartitionBy, schema: Schema = TABLE_SCHEMA) -> PartitionSpec:
    """The partitioning of a table that has this schema, named as Spark names it."""
    time = PartitionField(
        EVENT_TIME_ID, PARTITION_FIELD_ID_START, _TIME_TRANSFORMS[partition_by.time], partition_by.time_field_name
    )
    return PartitionSpec(
        time,
        *(
            PartitionField(schema.find_field(c.column).field_id, field_id, _transform(c), c.field_name)
            for field_id, c in enumerate(partition_by.columns, PARTITION_FIELD_ID_START + 1)
        ),
    )


def _transform(by: ColumnTransform) -> Transform[Any, Any]:
    match by.kind:
        case TransformKind.IDENTITY:
            return IdentityTransform()
        case TransformKind.BUCKET:
            return BucketTransform(by.figure)
        case TransformKind.TRUNCATE:
            return TruncateTransform(by.figure)


def sort_order() -> SortOrder:
    """The order of rows in a file, which compaction keeps: by event time."""
    return SortOrder(
        SortField(EVENT_TIME_ID, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1
    )


def ensure_tables(catalog: Catalog, stream: Stream) -> StreamTables:
    """The tables of a stream, created if they are not there, and given the columns that the config has by now.

    Two drivers may do so at the same time: one creates, the other finds. Raises `ConfigError` when a table of that name
    is not as this stream needs it, `CommitConflict` when others change it all the time, `CatalogUnavailable` when the
    catalog does not answer.
    """
    with available("create the tables"):
        _ensure_namespace(catalog, stream.table.split(".")[0])
        main = _ensure_ledger(catalog, stream) if stream.sink.is_files else _ensure_main(catalog, stream)
        quarantine = ensure_table(
            catalog,
            names.quarantine_table_name(stream.table, stream.generation),
            QUARANTINE_SCHEMA,
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
        )
    check_table(quarantine, QUARANTINE_SCHEMA, UNPARTITIONED_PARTITION_SPEC)
    if stream.sink.is_files:
        check_table(main, LEDGER_SCHEMA, UNPARTITIONED_PARTITION_SPEC)
        check_sink(main, stream)
    else:
        check_table(main, TABLE_SCHEMA, partition_spec(stream.partition_by, table_schema(stream.columns)))
        fit_columns(main, stream.columns)
    return StreamTables(main, quarantine)


def load_tables(catalog: Catalog, stream: Stream) -> StreamTables | None:
    """The tables of a stream; None before its first partition run.

    Whatever commits meanwhile, they fit together: a run commits the quarantine first, a retry of the quarantine the
    table, and neither is loaded half done in the other order.
    """
    with available("load the tables"):
        try:
            for _ in range(_LOADS):
                main = catalog.load_table(names.table_name(stream.table, stream.generation))
                quarantine = catalog.load_table(names.quarantine_table_name(stream.table, stream.generation))
                if _retries(quarantine) <= _retries(main):
                    break  # else a retry came between; or the table was rolled back, and that stays so
        except NoSuchTableError:
            return None
    return StreamTables(main, quarantine)


def _retries(table: Table) -> int:
    return read_retries(table.metadata, ".".join(table.name()))


def _ensure_main(catalog: Catalog, stream: Stream) -> Table:
    return ensure_table(
        catalog,
        names.table_name(stream.table, stream.generation),
        table_schema(stream.columns),
        partition_spec(stream.partition_by, table_schema(stream.columns)),
        sort_order(),
    )


def _ensure_ledger(catalog: Catalog, stream: Stream) -> Table:
    return ensure_table(
        catalog,
        names.table_name(stream.table, stream.generation),
        LEDGER_SCHEMA,
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        {SINK_PROPERTY: sink_text(stream)},
    )


def _ensure_namespace(catalog: Catalog, namespace: str) -> None:
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except (NamespaceAlreadyExistsError, IntegrityError):
        logger.debug("namespace %s was created by another process just now", namespace)


def ensure_table(
    catalog: Catalog,
    name: str,
    schema: Schema,
    spec: PartitionSpec,
    order: SortOrder,
    further: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """The table of that name, created if it is not there: another driver may be quicker."""
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        pass
    try:
        return catalog.create_table(
            name, schema, partition_spec=spec, sort_order=order, properties={**_PROPERTIES, **further}
        )
    except TableAlreadyExistsError:
        return catalog.load_table(name)


def check_table(table: Table, wanted: Schema, spec: PartitionSpec) -> None:
    """The table must have our columns, and be partitioned as configured: data files are made to fit both.

    Raises `ConfigError` otherwise.
    """
    name = ".".join(table.name())
    found = {field.name: field.field_type for field in table.schema().fields}
    for field in wanted.fields:
        if str(found.get(field.name)) != str(field.field_type) and not _same_but_for_ids(found.get(field.name), field):
            raise ConfigError(
                f"table {name} has {found.get(field.name, 'no column')} for {field.name!r} where {field.field_type} is "
                f"needed: name another table, or raise the stream's generation"
            )
    if [(f.name, str(f.transform)) for f in table.spec().fields] != [(f.name, str(f.transform)) for f in spec.fields]:
        raise ConfigError(
            f"table {name} is partitioned by {table.spec().fields or 'nothing'}, the config says {spec.fields}: "
            f"set partition_by back, or raise the stream's generation"
        )


def _same_but_for_ids(found: object, field: NestedField) -> bool:
    """Catalogs number nested fields as they like."""
    return (
        isinstance(found, ListType)
        and isinstance(field.field_type, ListType)
        and isinstance(found.element_type, StructType)
        and isinstance(field.field_type.element_type, StructType)
        and [(f.name, f.field_type) for f in found.element_type.fields]
        == [(f.name, f.field_type) for f in field.field_type.element_type.fields]
    )
