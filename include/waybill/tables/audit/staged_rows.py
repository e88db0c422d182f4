"""Read the staged rows for expectations: each file once, only the columns that they need, in parts of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.tables.iceberg import translate_damage_errors

_PLACE_COLUMNS = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a message is in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive rows of one file."""

    path: str
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Some of the staged rows."""

    rows: pa.Table
    pieces: tuple[_Piece, ...]

    def find(self, row: int) -> tuple[str, int]:
        """Return the path of the file that has the row with this number in the part, and its number in the file."""
        for piece in self.pieces:
            if row < piece.rows:
                return piece.path, piece.first_row + row
            row -= piece.rows
        raise IndexError(row)


class StagedRows:
    """The rows of data files of a table; the files need not be in a snapshot."""

    def __init__(self, table: Table, files: Sequence[DataFile]) -> None:
        self._table = table
        self._files = files
        self._name = ".".join(table.name())
        types = {field.name: field.type for field in schema_to_pyarrow(table.schema())}
        self.schema = pa.schema(types.items())
        """The columns of the table."""

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(file.record_count for file in self._files)

    def parts(self, columns: Iterable[str], part_bytes: int) -> Iterator[RowsPart]:
        """Yield the rows with these columns, in parts of about `part_bytes` in Arrow's format, at least one row group.

        Raises `OSError` when a file cannot be read, `DamagedFile` when it is not valid Parquet.
        """
        schema = pa.schema([self.schema.field(name) for name in columns])
        tables: list[pa.Table] = []
        pieces: list[_Piece] = []
        size = 0
        for table, piece in self._row_groups(schema):
            if size and size + table.nbytes > part_bytes:
                yield RowsPart(pa.concat_tables(tables), tuple(pieces))
                tables, pieces, size = [], [], 0
            tables.append(table)
            pieces.append(piece)
            size += table.nbytes
        if tables:
            yield RowsPart(pa.concat_tables(tables), tuple(pieces))

    def places(self, rows: Sequence[tuple[str, int]]) -> list[RowPlace]:
        """Return where the messages of these rows are in Kafka; a row is a file's path and a number in it."""
        numbers: dict[str, list[int]] = {}
        for path, number in rows:
            numbers.setdefault(path, []).append(number)
        found: dict[tuple[str, int], RowPlace] = {}
        for path, wanted in numbers.items():
            with translate_damage_errors(self._name, path), self._open(path) as file:
                taken = file.read(columns=list(_PLACE_COLUMNS)).take(wanted)
            for number, row in zip(wanted, taken.to_pylist(), strict=True):
                found[path, number] = RowPlace(row["topic"], row["partition"], row["offset"])
        return [found[row] for row in rows]

    def _row_groups(self, schema: pa.Schema) -> Iterator[tuple[pa.Table, _Piece]]:
        for entry in self._files:
            path, first = entry.file_path, 0
            with translate_damage_errors(self._name, path), self._open(path) as file:
                present = [name for name in schema.names if name in file.schema_arrow.names]
                for number in range(file.num_row_groups):
                    rows = file.metadata.row_group(number).num_rows
                    table = file.read_row_group(number, columns=present)
                    yield _with_columns(table, schema, rows), _Piece(path, first, rows)
                    first += rows

    def _open(self, path: str) -> pq.ParquetFile:
        return pq.ParquetFile(self._table.io.new_input(path).open(), pre_buffer=True)


def _with_columns(table: pa.Table, schema: pa.Schema, rows: int) -> pa.Table:
    """Return the table with the columns of `schema`; a column that is newer than the file is null."""
    names = set(table.schema.names)
    columns = [
        table.column(field.name).cast(field.type) if field.name in names else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema([(field.name, field.type) for field in schema]))


def rows_without_columns(count: int) -> pa.Table:
    """Return a table that only has a number of rows."""
    return pa.table({"": pa.nulls(count)}).select([])
