"""The quarantine's files, read in bounded memory whoever wrote them: a run of ours, or a compaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.table import FileScanTask, Table

from waybill.errors import CommitConflict, StoreUnavailable
from waybill.partition.rows import QUARANTINE_ROWS
from waybill.tables import damage_named

__all__ = ["plan_files", "reachable", "read_file", "row_schema"]

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 8192
_BUFFER_BYTES = 1 << 20


@contextmanager
def reachable(table: Table) -> Iterator[None]:
    """PyIceberg reads and writes S3 by itself, and says `OSError` where it does not answer."""
    try:
        yield
    except FileNotFoundError as error:
        raise CommitConflict(
            f"a file of table {'.'.join(table.name())} is gone ({error}): a snapshot expired since it was looked at. "
            f"Run again; if it happens again, `waybill verify` says what is missing"
        ) from error
    except OSError as error:
        raise StoreUnavailable(f"the files of table {'.'.join(table.name())} cannot be reached: {error}") from error


def plan_files(table: Table, condition: str | BooleanExpression) -> list[FileScanTask]:
    """The files of the table, as it is loaded, that may hold rows of a condition."""
    return [] if table.current_snapshot() is None else list(table.scan(row_filter=condition).plan_files())


def row_schema(table: Table) -> pa.Schema:
    """The table's rows in Arrow: our columns as we write them, and whatever somebody has added."""
    ours = {field.name: field for field in QUARANTINE_ROWS}
    others = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([ours.get(field.name, field) for field in others])


def read_file(table: Table, file: FileScanTask, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a file, a few megabytes at a time; `columns`: only these.

    Raises `FileNotFoundError` when the file is gone, `DamagedFile` when it is damaged, another `OSError` when S3 does
    not answer.
    """
    schema = row_schema(table)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    found = _with_deletes(table, file, schema.names) if file.delete_files else _plain(table, file, schema.names)
    batches = (
        pa.RecordBatch.from_arrays([_column(batch, field) for field in schema], schema=schema) for batch in found
    )
    with damage_named(".".join(table.name()), file.file.file_path):
        yield from batches


def _plain(table: Table, file: FileScanTask, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with table.io.new_input(file.file.file_path).open() as source:
        parquet = pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        present = [name for name in names if name in parquet.schema_arrow.names]
        for number in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(number)
            row_bytes = max(group.total_byte_size // max(group.num_rows, 1), 1)
            batch_rows = min(max(_BATCH_BYTES // row_bytes, 1), _BATCH_ROWS)
            yield from parquet.iter_batches(batch_rows, row_groups=[number], columns=present, use_threads=False)


def _with_deletes(table: Table, file: FileScanTask, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Somebody deleted rows by a file of positions, which Waybill never does: PyIceberg reads the file as a whole."""
    scan = table.scan(selected_fields=tuple(names))
    yield from ArrowScan(scan.table_metadata, scan.io, scan.projection(), AlwaysTrue()).to_record_batches([file])


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A file that is older than a column does not have it."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    return column if column.type == field.type else column.cast(field.type)
