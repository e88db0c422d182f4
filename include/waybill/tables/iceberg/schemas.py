"""The main table and the quarantine of a stream: their schemas, and creating, checking and loading them.

The main table holds the parsed messages. For a stream with `sink: files` it is the file inventory instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    UNPARTITIONED_PARTITION_SPEC,
    PartitionField,
    PartitionSpec,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
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

from waybill.base.errors import ConfigError
from waybill.config import names
from waybill.config.models import Columns, ColumnTransform, PartitionBy, Stream, TimeUnit, TransformKind
from waybill.tables.iceberg.adoption import adopt_table, find_table
from waybill.tables.iceberg.catalog import translate_catalog_errors
from waybill.tables.iceberg.columns import column_fields, evolve_columns
from waybill.tables.iceberg.commit import commit_transaction, commit_with_retry, ensure_property
from waybill.tables.iceberg.file_inventory import (
    INVENTORY_SCHEMA,
    check_file_layout,
    file_layout_text,
    find_file_layout,
    layout_property,
)
from waybill.tables.iceberg.publish import is_live, target_of
from waybill.tables.iceberg.state import LIVE_GENERATION_PROPERTY, metadata_at, read_retries

logger = logging.getLogger(__name__)

_LOAD_ATTEMPTS = 3

EVENT_TIME_ID = 8
"""The field id of `event_time` in `TABLE_SCHEMA`."""

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
    # Lower and upper bounds of whole messages prune no files, and would be most of a small file's manifest entry.
    "write.metadata.metrics.column.value": "counts",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

_TIME_TRANSFORMS: dict[TimeUnit, Transform[Any, Any]] = {
    TimeUnit.DAY: DayTransform(),
    TimeUnit.HOUR: HourTransform(),
}


def table_schema(columns: Columns) -> Schema:
    """Return the schema of a stream's main table. The catalog replaces the field ids with its own."""
    return Schema(*TABLE_SCHEMA.fields, *column_fields(columns, _FIRST_COLUMN_ID))


@dataclass(frozen=True, slots=True)
class StreamTables:
    """The main table and the quarantine of a stream."""

    main: Table
    quarantine: Table


def partition_spec(partition_by: PartitionBy, schema: Schema = TABLE_SCHEMA) -> PartitionSpec:
    """Return the partition spec of a table that has this schema, with the field names that Spark would choose."""
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
    """Return the order of rows in a data file: ascending event time. Compaction sorts by it too."""
    return SortOrder(
        SortField(EVENT_TIME_ID, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1
    )


def ensure_tables(catalog: Catalog, stream: Stream) -> StreamTables:
    """Return the tables of a stream. Creates those that do not exist and adds the columns that are new in the config.

    Several drivers may call this at the same time: one creates a table, the others load it.

    Raises `ConfigError` when an existing table of that name does not fit the stream, `CommitConflict` when every
    attempt to add columns was refused, `CatalogUnavailable` when the catalog does not answer.
    """
    with translate_catalog_errors("create the tables"):
        main = _ensure_inventory(catalog, stream) if stream.sink.is_files else _ensure_main(catalog, stream)
        quarantine = ensure_table(
            catalog,
            names.quarantine_table_name(stream.table),
            stream.generation,
            QUARANTINE_SCHEMA,
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
        )
    check_table(quarantine, QUARANTINE_SCHEMA, UNPARTITIONED_PARTITION_SPEC)
    if stream.sink.is_files:
        check_table(main, INVENTORY_SCHEMA, UNPARTITIONED_PARTITION_SPEC)
        if find_file_layout(main, stream.generation) is None:
            ensure_property(main, layout_property(stream.generation), file_layout_text(stream))
        check_file_layout(main, stream)
    else:
        check_table(main, TABLE_SCHEMA, main.spec())  # check this before a table that does not fit is changed
        evolve_columns(main, stream.columns)
        spec = partition_spec(stream.partition_by, main.schema())  # with the field ids of the table
        ensure_spec(main, spec, may_be_new=not is_live(main.metadata, stream.generation))
        check_table(main, TABLE_SCHEMA, spec)
    return StreamTables(main, quarantine)


def load_tables(catalog: Catalog, stream: Stream) -> StreamTables | None:
    """Return the tables of a stream, or None before its first partition run.

    The current snapshot of each table is that of the stream's generation: on `main` if it is live, else on its branch.
    A `refresh` of a table returns to `main`.

    The two loaded versions are consistent with each other, whichever commits come in between. A partition run commits
    the quarantine first, and the main table is loaded first: so no loaded state of the main table lacks its state of
    the quarantine. A retry of the quarantine commits in the opposite order, so its number is compared, and both tables
    are loaded again if the quarantine has a retry that the main table lacks.
    """
    with translate_catalog_errors("load the tables"):
        for _ in range(_LOAD_ATTEMPTS):
            main = find_table(catalog, stream.table, stream.generation)
            quarantine = find_table(catalog, names.quarantine_table_name(stream.table), stream.generation)
            if main is None or quarantine is None:
                return None
            tables = StreamTables(_as_of(main, stream.generation), _as_of(quarantine, stream.generation))
            if _retries(quarantine) <= _retries(main):
                break
            # A retry committed between the two loads. If the main table was rolled back, loading again does not
            # help, so the number of attempts is limited.
    return tables


def _as_of(table: Table, generation: int) -> Table:
    target = target_of(table.metadata, generation)
    if target != MAIN_BRANCH:
        table.metadata = metadata_at(table.metadata, target)
    return table


def _retries(table: Table) -> int:
    return read_retries(table.metadata, ".".join(table.name()))


def _ensure_main(catalog: Catalog, stream: Stream) -> Table:
    return ensure_table(
        catalog,
        stream.table,
        stream.generation,
        table_schema(stream.columns),
        partition_spec(stream.partition_by, table_schema(stream.columns)),
        sort_order(),
    )


def _ensure_inventory(catalog: Catalog, stream: Stream) -> Table:
    return ensure_table(
        catalog,
        stream.table,
        stream.generation,
        INVENTORY_SCHEMA,
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        {layout_property(stream.generation): file_layout_text(stream)},
    )


def _ensure_namespace(catalog: Catalog, namespace: str) -> None:
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except (NamespaceAlreadyExistsError, IntegrityError):
        logger.debug("another process has created namespace %s at the same time", namespace)


def ensure_table(
    catalog: Catalog,
    name: str,
    generation: int,
    schema: Schema,
    spec: PartitionSpec,
    order: SortOrder,
    further_properties: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """Return the table `name`, and create it if it does not exist. Another driver may create it at the same time.

    A new table gets `generation` as its live generation, and so does a table of an earlier version of Waybill that did
    not record it.
    """
    table = adopt_table(catalog, name, generation)
    if table is None:
        _ensure_namespace(catalog, name.split(".")[0])
        live = {LIVE_GENERATION_PROPERTY: str(generation)}
        properties = {**_PROPERTIES, **live, **further_properties}
        try:
            return catalog.create_table(name, schema, partition_spec=spec, sort_order=order, properties=properties)
        except TableAlreadyExistsError:
            table = catalog.load_table(name)
    ensure_property(table, LIVE_GENERATION_PROPERTY, str(generation))
    return table


def ensure_spec(table: Table, wanted: PartitionSpec, *, may_be_new: bool) -> None:
    """Let new files of `table` be partitioned by `wanted`, if the table had this spec before, or if it `may_be_new`.

    Files that exist keep their partitioning: Iceberg plans scans by the spec of each file.

    Raises `CommitConflict` when every attempt was refused, `CatalogUnavailable` when the catalog does not answer.
    """
    fields = _spec_fields(wanted)

    def attempt() -> bool | None:
        known = [_spec_fields(spec) for spec in table.specs().values()]
        if _spec_fields(table.spec()) == fields or not (may_be_new or fields in known):
            return True
        return True if commit_transaction(table, evolve) else None

    def evolve(transaction: Transaction) -> None:
        with transaction.update_spec() as update:
            for field in table.spec().fields:
                if (field.name, str(field.transform)) not in fields:
                    update.remove_field(field.name)
            kept = _spec_fields(table.spec())
            for field in wanted.fields:
                if (field.name, str(field.transform)) not in kept:
                    source = table.schema().find_column_name(field.source_id)
                    assert source is not None
                    update.add_field(source, field.transform, field.name)

    if _spec_fields(table.spec()) != fields:
        commit_with_retry(table, attempt, "changes of the partitioning")


def _spec_fields(spec: PartitionSpec) -> list[tuple[str, str]]:
    return [(field.name, str(field.transform)) for field in spec.fields]


def check_table(table: Table, wanted: Schema, spec: PartitionSpec) -> None:
    """Raise `ConfigError` unless the table has the columns of `wanted` and the configured partitioning.

    The data files that Waybill writes must match both.
    """
    name = ".".join(table.name())
    found = {field.name: field.field_type for field in table.schema().fields}
    for field in wanted.fields:
        if str(found.get(field.name)) != str(field.field_type) and not _same_but_for_ids(found.get(field.name), field):
            raise ConfigError(
                f"table {name} has {found.get(field.name, 'no column')} for {field.name!r} where {field.field_type} is "
                f"needed: name another table"
            )
    if _spec_fields(table.spec()) != _spec_fields(spec):
        raise ConfigError(
            f"table {name} is partitioned by {table.spec().fields or 'nothing'}, and the config has {spec.fields}: "
            f"restore partition_by, or raise the stream's generation"
        )


def _same_but_for_ids(found: object, field: NestedField) -> bool:
    """Return whether two lists of structs are equal without field ids. Catalogs number nested fields differently."""
    return (
        isinstance(found, ListType)
        and isinstance(field.field_type, ListType)
        and isinstance(found.element_type, StructType)
        and isinstance(field.field_type.element_type, StructType)
        and [(f.name, f.field_type) for f in found.element_type.fields]
        == [(f.name, f.field_type) for f in field.field_type.element_type.fields]
    )
