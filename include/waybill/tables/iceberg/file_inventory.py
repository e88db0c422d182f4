"""The file inventory: the main table of a stream with `sink: files`, with one row for each file.

A file is part of the data only if the inventory lists it. The inventory's rows and the progress are committed in one
snapshot, as a table's rows are, so all files of a plan become part of the data at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV1
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from waybill.base.documents import Document
from waybill.base.errors import ConfigError
from waybill.config.models import Stream
from waybill.config.models.enums import FileFormat
from waybill.config.names import SinkPeriod, TopicPartition

SINK_PROPERTY = "waybill.sink"
"""A table property: the layout of the files (`file_layout_text`), which must not change within a generation."""

_LAYOUT = Document()

INVENTORY_SCHEMA = Schema(
    NestedField(1, "period_start", TimestamptzType(), required=True, doc="Where the file's hour, or day, starts."),
    NestedField(2, "topic", StringType(), required=True, doc="Kafka's topic."),
    NestedField(3, "partition", IntegerType(), required=True, doc="Kafka's partition."),
    NestedField(4, "first_offset", LongType(), required=True, doc="Where the range starts that the file was made of."),
    NestedField(
        5, "next_offset", LongType(), required=True, doc="Where that range ends; files of several hours share it."
    ),
    NestedField(6, "path", StringType(), required=True, doc="The file: s3://bucket/key."),
    NestedField(7, "rows", LongType(), required=True, doc="How many rows it holds."),
    NestedField(8, "size_bytes", LongType(), required=True, doc="Its size."),
    NestedField(9, "sha256", StringType(), required=True, doc="Of its bytes, in hex."),
    NestedField(10, "plan", StringType(), required=True, doc="The plan that was carried out."),
)

INVENTORY_ARROW_SCHEMA = pa.schema(
    [
        pa.field("period_start", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("next_offset", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("plan", pa.string(), nullable=False),
    ]
)
"""The columns of `INVENTORY_SCHEMA` as an Arrow schema."""


@dataclass(frozen=True, slots=True, order=True)
class InventoryEntry:
    """One file of the sink, which is one row of the inventory. The fields are the columns."""

    period_start: datetime
    topic: str
    partition: int
    first_offset: int
    next_offset: int
    path: str
    rows: int
    size_bytes: int
    sha256: str
    plan: str

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def period(self, *, by_hour: bool) -> SinkPeriod:
        """Return the hour or day whose directory holds the file."""
        return SinkPeriod(self.topic, self.period_start, by_hour)


def inventory_batch(entries: Iterable[InventoryEntry]) -> pa.RecordBatch:
    """Return the sorted entries as a batch with the schema `INVENTORY_ARROW_SCHEMA`."""
    columns = list(zip(*(astuple(entry) for entry in sorted(entries)), strict=True)) or [()] * len(
        INVENTORY_ARROW_SCHEMA
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, INVENTORY_ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=INVENTORY_ARROW_SCHEMA)


def read_inventory(table: Table) -> list[InventoryEntry]:
    """Return all entries of the inventory's loaded snapshot, sorted."""
    return _entries(table.scan(selected_fields=tuple(INVENTORY_ARROW_SCHEMA.names)).to_arrow())


def read_inventory_file(io: FileIO, path: str) -> list[InventoryEntry]:
    """Return the sorted entries in one data file of the inventory."""
    with io.new_input(path).open() as source:
        return _entries(pq.read_table(source, columns=INVENTORY_ARROW_SCHEMA.names))


def _entries(rows: pa.Table) -> list[InventoryEntry]:
    columns = [rows.column(name).to_pylist() for name in INVENTORY_ARROW_SCHEMA.names]
    return sorted(InventoryEntry(*fields) for fields in zip(*columns, strict=True))


def last_sequence_number(table: Table) -> int:
    """Return the table's last sequence number. Each new snapshot raises it, and a rollback does not lower it."""
    return 0 if isinstance(table.metadata, TableMetadataV1) else table.metadata.last_sequence_number


def file_layout_text(stream: Stream) -> str:
    """Return the layout of a stream's files as JSON: period, prefix and format, which readers rely on.

    Compression is not part of the layout.
    """
    kind = stream.sink.format
    further = {FileFormat.SEQUENCEFILE: f" {kind.key}", FileFormat.TEXT: f" {kind.delimiter!r}"}.get(kind.name, "")
    fields = {
        "by": str(stream.partition_by.time),
        "prefix": stream.sink.prefix,
        "format": f"{kind.name}{further}",
    }
    return _LAYOUT.write(fields).decode()


def layout_property(generation: int) -> str:
    """Return the table property with the file layout of a generation."""
    return f"{SINK_PROPERTY}.{generation}"


def find_file_layout(table: Table, generation: int) -> str | None:
    """Return the layout of a generation's files; None if the table does not record one."""
    found = table.properties.get(layout_property(generation))
    if found is None and not any(name.startswith(f"{SINK_PROPERTY}.") for name in table.properties):
        return table.properties.get(SINK_PROPERTY)  # of the only generation of a table of an earlier version of Waybill
    return found


def check_file_layout(table: Table, stream: Stream) -> None:
    """Raise `ConfigError` if the config's file layout differs from the one that the generation began with.

    All files of a generation have the same layout.
    """
    found, wanted = find_file_layout(table, stream.generation), file_layout_text(stream)
    if found != wanted:
        raise ConfigError(
            f"table {'.'.join(table.name())} lists files with the layout {found}, and the config has {wanted}: restore "
            f"partition_by, sink.prefix and sink.format, or raise the stream's generation"
        )
