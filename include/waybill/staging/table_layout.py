"""What data files of a table look like, where they go, and what a manifest says of them.

Data files that are written down before they are committed, and found again by whoever commits them.

A file's footer tells its statistics. What it does not tell is written down with its path: its partition, since a bucket
follows from no bounds, and whether it is in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from waybill.staging.grouping import Value

__all__ = ["Entry", "TableLayout", "entries_of", "look_up"]

_FIELD_ID = b"PARQUET:field_id"
_MOST_OF_A_FOLDER = 100  # characters; an S3 key has at most 1,024 bytes, and a value may be longer than that
_HALF_ESCAPED = re.compile(r"%.?\Z")


@dataclass(frozen=True)
class TableLayout:
    """What writing a table's data files takes. Small enough to go to every task; holds no secrets."""

    name: str
    data_location: str
    schema: Schema
    spec: PartitionSpec
    sort_order_id: int | None
    properties: dict[str, str]

    @classmethod
    def of(cls, table: Table) -> TableLayout:
        """The layout of a table as it is now."""
        provider = table.location_provider()
        return cls(
            ".".join(table.name()),
            provider.data_path,
            table.schema(),
            table.spec(),
            table.sort_order().order_id or None,
            dict(table.properties),
        )

    def arrow_schema(self, rows: pa.Schema) -> pa.Schema:
        """`rows` with the table's field ids, by which readers know a column."""
        columns = {f.name: _small(f) for f in schema_to_pyarrow(self.schema)}
        return pa.schema([columns[name] for name in rows.names])

    def data_file(
        self, path: str, size_bytes: int, metadata: pq.FileMetaData, *, partition: Value, is_sorted: bool
    ) -> DataFile:
        """The manifest entry of a file, with the bounds that engines prune by."""
        statistics = data_file_statistics_from_parquet_metadata(metadata, *self._statistics_plan)
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(*partition),
            file_size_in_bytes=size_bytes,
            sort_order_id=self.sort_order_id if is_sorted else None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        file.spec_id = self.spec.spec_id
        return file

    @cached_property
    def _statistics_plan(self) -> tuple[dict[int, StatisticsCollector], dict[str, int]]:
        """Which statistics there are to be, and of which columns: the same for thousands of files."""
        return compute_statistics_plan(self.schema, self.properties), parquet_path_to_id_mapping(self.schema)

    def new_path(self, partition: Value, name: str) -> str:
        """Where a file of a partition goes. `name` must be unique: folders are for people, and long ones are cut."""
        folders = self.spec.partition_to_path(Record(*partition), self.schema).split("/") if self.spec.fields else []
        return "/".join([self.data_location, *map(_cut_folder, folders), f"{name}.parquet"])


def _cut_folder(folder: str) -> str:
    return _HALF_ESCAPED.sub("", folder[:_MOST_OF_A_FOLDER])


def _small(found: pa.Field) -> pa.Field:
    """Without Arrow's 64-bit offsets, which nothing here needs, and with the field id alone as metadata."""
    metadata = {key: value for key, value in (found.metadata or {}).items() if key == _FIELD_ID}
    return pa.field(found.name, _small_type(found.type), found.nullable, metadata)


def _small_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_small(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_small(child) for child in kind])
    return kind


_THREADS = 8

Entry = Sequence[Any]
"""Path, partition and order of a file, as JSON has it."""


def entries_of(files: Iterable[DataFile]) -> list[Entry]:
    """What is to be written down of files."""
    return [
        [
            file.file_path,
            [_written(file.partition[at]) for at in range(len(file.partition))],
            file.sort_order_id is not None,
        ]
        for file in files
    ]


def look_up(table: Table, entries: Iterable[Entry]) -> list[DataFile]:
    """The manifest entries of files of `table`. Raises `FileNotFoundError` when one is gone."""
    layout = TableLayout.of(table)

    def read(entry: Entry) -> DataFile:
        path, values, is_sorted = entry
        file = table.io.new_input(path)
        with file.open() as stream:
            metadata = pq.read_metadata(stream)
        partition = tuple(map(_read, values))
        return layout.data_file(path, len(file), metadata, partition=partition, is_sorted=is_sorted)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, entries))


def _written(value: Any) -> Any:
    """A value of a partition in JSON: as it is, or under the name of a type that JSON does not have."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def _read(written: Any) -> Any:
    """The inverse of `_written`."""
    if not isinstance(written, dict):
        return written
    return bytes.fromhex(written["bytes"]) if "bytes" in written else Decimal(written["decimal"])
