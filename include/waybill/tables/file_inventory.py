"""The ledger: what a stream's main table is where its rows go to files. A row for each file.

A file counts when the ledger lists it. Its rows and the progress move in one snapshot, as a table's rows do, so that
the files of a plan come to count all at once.
"""

from __future__ import annotations

import json
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

from waybill.config import Stream
from waybill.config.enums import FileFormat
from waybill.errors import ConfigError
from waybill.names import Period, TopicPartition

__all__ = [
    "LEDGER_ROWS",
    "LEDGER_SCHEMA",
    "SINK_PROPERTY",
    "LedgerEntry",
    "check_sink",
    "ledger_batch",
    "read_entries",
    "read_ledger",
    "sequence_of",
    "sink_text",
]

SINK_PROPERTY = "waybill.sink"
"""Of the table: how its files lie, which must not change within a generation."""
_VERSION = 1

LEDGER_SCHEMA = Schema(
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

LEDGER_ROWS = pa.schema(
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
"""Columns of `LEDGER_SCHEMA`, in Arrow."""


@dataclass(frozen=True, slots=True, order=True)
class LedgerEntry:
    """One file. The fields are the columns."""

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

    def period(self, *, by_hour: bool) -> Period:
        """Which directory it is in."""
        return Period(self.topic, self.period_start, by_hour)


def ledger_batch(entries: Iterable[LedgerEntry]) -> pa.RecordBatch:
    """Rows of the ledger, in order."""
    columns = list(zip(*(astuple(entry) for entry in sorted(entries)), strict=True)) or [()] * len(LEDGER_ROWS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LEDGER_ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LEDGER_ROWS)


def read_ledger(table: Table) -> list[LedgerEntry]:
    """All files that the table lists, as it is loaded, sorted."""
    return _entries(table.scan(selected_fields=tuple(LEDGER_ROWS.names)).to_arrow())


def read_entries(io: FileIO, path: str) -> list[LedgerEntry]:
    """The files that one data file of the ledger lists."""
    with io.new_input(path).open() as source:
        return _entries(pq.read_table(source, columns=LEDGER_ROWS.names))


def _entries(rows: pa.Table) -> list[LedgerEntry]:
    columns = [rows.column(name).to_pylist() for name in LEDGER_ROWS.names]
    return sorted(LedgerEntry(*fields) for fields in zip(*columns, strict=True))


def sequence_of(table: Table) -> int:
    """The number of the table's newest snapshot: each has a higher one than all before it, whatever is rolled back."""
    return 0 if isinstance(table.metadata, TableMetadataV1) else table.metadata.last_sequence_number


def sink_text(stream: Stream) -> str:
    """How the files of a stream lie: what readers rely on. Compression is not part of it."""
    kind = stream.sink.format
    further = {FileFormat.SEQUENCEFILE: f" {kind.key}", FileFormat.TEXT: f" {kind.delimiter!r}"}.get(kind.name, "")
    document = {
        "v": _VERSION,
        "by": str(stream.partition_by.time),
        "prefix": stream.sink.prefix,
        "format": f"{kind.name}{further}",
    }
    return json.dumps(document, separators=(",", ":"))


def check_sink(table: Table, stream: Stream) -> None:
    """The files of a generation all lie in one way. Raises `ConfigError` where the config has another one by now."""
    found, wanted = table.properties.get(SINK_PROPERTY), sink_text(stream)
    if found != wanted:
        raise ConfigError(
            f"table {'.'.join(table.name())} lists files that lie as {found}, the config says {wanted}: set "
            f"partition_by, sink.prefix and sink.format back, or raise the stream's generation"
        )
