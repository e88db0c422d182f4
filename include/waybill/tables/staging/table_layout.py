"""The layout of a table's data files, their locations, and the manifest entries that describe them.

A run records its data files before it commits them, and the run that commits them makes the manifest entries again. The
statistics of a file are in its Parquet footer. A `FileEntry` records path, partition and whether the rows are sorted:
no statistics determine the partition if the spec has a bucket transform.
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

from waybill.tables.staging.column_bounds import shorten_upper_bounds
from waybill.tables.staging.grouping import PartitionValue

_THREADS = 8
_FIELD_ID = b"PARQUET:field_id"
_MAX_FOLDER_LENGTH = 100  # characters; an S3 key has at most 1,024 bytes, and a value may be longer
_HALF_ESCAPED = re.compile(r"%.?\Z")

FileEntry = Sequence[Any]
"""Path, partition values and whether the rows are sorted, as a JSON array."""


@dataclass(frozen=True)
class TableLayout:
    """The data with which a task writes data files of a table.

    It is small enough to send to every task, and holds no secrets.
    """

    name: str
    data_location: str
    schema: Schema
    spec: PartitionSpec
    sort_order_id: int | None
    properties: dict[str, str]

    @classmethod
    def of(cls, table: Table) -> TableLayout:
        """Return the layout of a loaded table."""
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
        """Return the schema `rows` with the table's field ids, by which Iceberg readers identify columns."""
        columns = {f.name: _with_32_bit_offsets(f) for f in schema_to_pyarrow(self.schema)}
        return pa.schema([columns[name] for name in rows.names])

    def data_file(
        self, path: str, size_bytes: int, metadata: pq.FileMetaData, *, partition: PartitionValue, is_sorted: bool
    ) -> DataFile:
        """Return the manifest entry of a file, with the column bounds that engines use for pruning."""
        statistics = data_file_statistics_from_parquet_metadata(metadata, *self._statistics_plan)
        shorten_upper_bounds(statistics)
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
        """Which statistics to collect, by column; computed once, since it is the same for thousands of files."""
        return compute_statistics_plan(self.schema, self.properties), parquet_path_to_id_mapping(self.schema)

    def new_path(self, partition: PartitionValue, name: str) -> str:
        """Return the path of a new file. `name` must be unique: folder names are for people, and long ones are cut."""
        folders = self.spec.partition_to_path(Record(*partition), self.schema).split("/") if self.spec.fields else []
        return "/".join([self.data_location, *map(_cut_folder, folders), f"{name}.parquet"])


def file_entries(files: Iterable[DataFile]) -> list[FileEntry]:
    """Return the entries to record for files."""
    return [
        [
            file.file_path,
            [_to_json(file.partition[at]) for at in range(len(file.partition))],
            file.sort_order_id is not None,
        ]
        for file in files
    ]


def load_data_files(table: Table, entries: Iterable[FileEntry]) -> list[DataFile]:
    """Read the footers of recorded files of `table` and return their manifest entries.

    Raises `FileNotFoundError` when a file no longer exists, another `OSError` when S3 cannot be reached.
    """
    layout = TableLayout.of(table)

    def read(entry: FileEntry) -> DataFile:
        path, values, is_sorted = entry
        file = table.io.new_input(path)
        with file.open() as stream:
            metadata = pq.read_metadata(stream)
        partition = tuple(map(_from_json, values))
        return layout.data_file(path, len(file), metadata, partition=partition, is_sorted=is_sorted)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, entries))


def _to_json(value: Any) -> Any:
    """Return a partition value for JSON: types that JSON lacks become an object with the type's name as key."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def _from_json(written: Any) -> Any:
    """Return the partition value that `_to_json` wrote."""
    if not isinstance(written, dict):
        return written
    return bytes.fromhex(written["bytes"]) if "bytes" in written else Decimal(written["decimal"])


def _cut_folder(folder: str) -> str:
    return _HALF_ESCAPED.sub("", folder[:_MAX_FOLDER_LENGTH])


def _with_32_bit_offsets(found: pa.Field) -> pa.Field:
    """Return a field without Arrow's 64-bit offsets, which no column needs, and with the field id as only metadata."""
    metadata = {key: value for key, value in (found.metadata or {}).items() if key == _FIELD_ID}
    return pa.field(found.name, _type_with_32_bit_offsets(found.type), found.nullable, metadata)


def _type_with_32_bit_offsets(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_with_32_bit_offsets(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_with_32_bit_offsets(child) for child in kind])
    return kind
