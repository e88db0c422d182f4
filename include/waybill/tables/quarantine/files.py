"""Read the quarantine's data files in bounded memory, and rewrite them without the rows that a retry moved.

A rewrite takes every file that holds a moved row, and writes all its other rows to new files. One snapshot replaces the
old files by the new ones, and records that the quarantine has taken part in the retry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from waybill.base import failpoints
from waybill.base.errors import CommitConflict, StoreUnavailable
from waybill.tables.iceberg import (
    RETRIES_PROPERTY,
    commit_snapshot,
    commit_with_retry,
    read_retries,
    translate_damage_errors,
)
from waybill.tables.partition.rows import QUARANTINE_ROWS
from waybill.tables.quarantine.offset_sets import OffsetSet
from waybill.tables.quarantine.row_filter import RowFilter
from waybill.tables.staging.file_reader import fit_columns_of_batch, read_batches
from waybill.tables.staging.file_writer import write_data_files
from waybill.tables.staging.table_layout import TableLayout

# Small, since rows of the quarantine hold whole messages, and a retry holds the parsed rows as well.
_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 8192
_BUFFER_BYTES = 1 << 20
_MESSAGE_COLUMNS = ("topic", "partition", "offset")


# --- reading ---


@contextmanager
def translate_file_errors(table: Table) -> Iterator[None]:
    """Raise `StoreUnavailable` or `CommitConflict`, naming the table, for the `OSError` of PyIceberg's S3 client."""
    try:
        yield
    except FileNotFoundError as error:
        raise CommitConflict(
            f"a file of table {'.'.join(table.name())} no longer exists ({error}): its snapshot has expired since the "
            f"table was loaded. Run again; if it happens again, `waybill verify` lists what is missing"
        ) from error
    except OSError as error:
        raise StoreUnavailable(f"the files of table {'.'.join(table.name())} cannot be reached: {error}") from error


def plan_files(table: Table, condition: str | BooleanExpression) -> list[FileScanTask]:
    """Return the files of the loaded table that may hold rows that fulfil the condition."""
    return [] if table.current_snapshot() is None else list(table.scan(row_filter=condition).plan_files())


def read_file(table: Table, file: FileScanTask, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, a few megabytes at a time, with all columns of the table or only `columns`.

    Raises `FileNotFoundError` when the file does not exist, `DamagedFile` when it is damaged, another `OSError` when S3
    does not answer.
    """
    schema = _row_schema(table)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    read = _read_with_deletes if file.delete_files else _read
    with translate_damage_errors(".".join(table.name()), file.file.file_path):
        for batch in read(table, file, schema.names):
            names = [name if name in batch.schema.names else None for name in schema.names]
            yield fit_columns_of_batch(batch, names, schema)


def _row_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of the table's rows: Waybill's columns, and columns that users added."""
    ours = {field.name: field for field in QUARANTINE_ROWS}
    all_fields = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([ours.get(field.name, field) for field in all_fields])


def _read(table: Table, file: FileScanTask, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for _, batch in read_batches(
        table.io,
        TableLayout.of(table),
        file.file.file_path,
        names,
        batch_bytes=_BATCH_BYTES,
        batch_rows=_BATCH_ROWS,
        buffer_bytes=_BUFFER_BYTES,
    ):
        yield batch


def _read_with_deletes(table: Table, file: FileScanTask, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with position deletes, which Waybill never writes. PyIceberg holds the whole file."""
    scan = table.scan(selected_fields=tuple(names))
    yield from ArrowScan(scan.table_metadata, scan.io, scan.projection(), AlwaysTrue()).to_record_batches([file])


# --- rewriting ---


def drop_rows(
    quarantine: Table, moved: OffsetSet, number: int, properties: Mapping[str, str], *, memory_bytes: int
) -> bool:
    """Drop the rows that retry `number` moved. Return False if another process has done so.

    A partition run that commits at the same time is no conflict. A compaction moves the rows to other files: then these
    are rewritten.

    Raises `CommitConflict` when the quarantine is at another retry, or when every commit was refused.
    """
    name = ".".join(quarantine.name())
    rewritten: _Rewritten | None = None

    def attempt() -> bool | None:
        nonlocal rewritten
        if _is_done(quarantine, number, name):
            return False
        if rewritten is None or not rewritten.replaces_files_of(quarantine):
            # Keep files of a refused commit for maintenance to remove: if only its answer was lost, the table has them.
            rewritten = _rewrite(quarantine, moved, f"retry-{number}", memory_bytes)
        failpoints.reach("retry.rewritten")
        state = {RETRIES_PROPERTY: str(number + 1), **properties}
        committed = commit_snapshot(quarantine, state, added=rewritten.added, removed=rewritten.removed)
        return True if committed else None

    return commit_with_retry(quarantine, attempt)


@dataclass(frozen=True, slots=True)
class _Rewritten:
    removed: list[DataFile]
    added: list[DataFile]

    def replaces_files_of(self, table: Table) -> bool:
        """Return whether the loaded table has all removed files. Then no other file holds the rows."""
        existing = {file.file.file_path for file in plan_files(table, AlwaysTrue())}
        return existing.issuperset(file.file_path for file in self.removed)


def _is_done(quarantine: Table, number: int, name: str) -> bool:
    retries = read_retries(quarantine.metadata, name)
    if retries < number:
        raise CommitConflict(
            f"table {name} has taken part in {retries} retries, and retry {number} was to be next: the table was "
            f"rolled back meanwhile. Run again"
        )
    return retries > number


def _rewrite(quarantine: Table, moved: OffsetSet, name: str, memory_bytes: int) -> _Rewritten:
    """Write new files with all rows, except the moved ones, of the files that hold a moved row. Not committed."""
    ranges = moved.ranges.values()
    within = RowFilter(first_offset=min(a for a, _ in ranges), last_offset=max(b for _, b in ranges) - 1)
    removed = [file for file in plan_files(quarantine, within.scan_filter) if _holds_moved(quarantine, file, moved)]
    added = write_data_files(
        quarantine,
        _row_schema(quarantine),
        (rest for file in removed for rest in _rows_to_keep(quarantine, file, moved)),
        memory_bytes=memory_bytes,
        name=name,
    )
    return _Rewritten([file.file for file in removed], added)


def _holds_moved(quarantine: Table, file: FileScanTask, moved: OffsetSet) -> bool:
    return any(moved.mask(batch).any() for batch in read_file(quarantine, file, _MESSAGE_COLUMNS))


def _rows_to_keep(quarantine: Table, file: FileScanTask, moved: OffsetSet) -> Iterator[pa.RecordBatch]:
    for batch in read_file(quarantine, file):
        is_moved = moved.mask(batch)
        yield batch.filter(pa.array(~is_moved)) if is_moved.any() else batch
