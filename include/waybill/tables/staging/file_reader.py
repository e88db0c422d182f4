"""Read rows of a table's data files in bounded memory. Any program may have written the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from waybill.base.metering import meter
from waybill.tables.iceberg import translate_damage_errors
from waybill.tables.staging.table_layout import TableLayout

_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 64 << 10
_FIELD_ID = b"PARQUET:field_id"
_MERGED_DISTANCE_BYTES = 8 << 10
_MERGED_BYTES = 32 << 20
"""Arrow merges reads of one row group up to this distance and size (the defaults of its `CacheOptions`)."""


def read_batches(
    io: FileIO,
    layout: TableLayout,
    path: str,
    columns: Sequence[str],
    row_groups: Callable[[int], range] = range,
    *,
    batch_bytes: int = _BATCH_BYTES,
    batch_rows: int = _BATCH_ROWS,
    buffer_bytes: int = 0,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a data file in batches, each with the position of its first row in the file, from 0.

    Batches have the `columns` with the names and types that `layout`, the table's present schema, gives them; a column
    that the file does not have is null. A batch has at most `batch_rows` rows and about `batch_bytes` decoded.
    `row_groups` returns the row groups to read for the number of row groups in the file; by default, all. With
    `buffer_bytes` the file is read through a buffer of that size instead of a whole column chunk at a time.

    Raises `FileNotFoundError` when the file does not exist, `DamagedFile` when it is not valid Parquet, and another
    `OSError` when S3 cannot be reached.
    """
    with translate_damage_errors(layout.name, path):
        yield from _read_batches(io, layout, path, columns, row_groups, batch_bytes, batch_rows, buffer_bytes)


def _read_batches(
    io: FileIO,
    layout: TableLayout,
    path: str,
    columns: Sequence[str],
    row_groups: Callable[[int], range],
    batch_bytes: int,
    most_rows: int,
    buffer_bytes: int,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    wanted = layout.arrow_schema(pa.schema([(name, pa.null()) for name in columns]))
    with io.new_input(path).open() as source:
        parquet = pq.ParquetFile(source, buffer_size=buffer_bytes)
        names = _names_in_file(parquet.schema_arrow, wanted)
        present = [name for name in names if name is not None]
        groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        starts = np.concatenate(([0], np.cumsum([group.num_rows for group in groups], dtype=np.int64)))
        for number in row_groups(len(groups)):
            group, first = groups[number], int(starts[number])
            row_bytes = max(group.total_byte_size // max(group.num_rows, 1), 1)
            batch_rows = min(max(batch_bytes // row_bytes, 1), most_rows)
            _count_reads(group, set(present))
            for batch in parquet.iter_batches(batch_rows, row_groups=[number], columns=present, use_threads=False):
                yield first, fit_columns_of_batch(batch, names, wanted)
                first += batch.num_rows


def _count_reads(group: pq.RowGroupMetaData, columns: set[str]) -> None:
    """Count the requests for columns of a row group: Arrow merges column chunks that are close to each other."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    wanted = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns]
    requests = size_bytes = start = end = 0
    for first, size in sorted((_start_of(chunk), chunk.total_compressed_size) for chunk in wanted):
        if not requests or first - end > _MERGED_DISTANCE_BYTES or first + size - start > _MERGED_BYTES:
            requests, start, end = requests + 1, first, first
        size_bytes, end = size_bytes + first + size - end, first + size
    meter.count_request("GetObject", times=requests)
    meter.count_received(size_bytes)


def _start_of(chunk: pq.ColumnChunkMetaData) -> int:
    return int(chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset)


def _names_in_file(file: pa.Schema, wanted: pa.Schema) -> list[str | None]:
    """Return the file's name of each wanted column, None for a column that the file does not have.

    Iceberg identifies columns by field id. A file without ids was written by another program and added unchanged: its
    columns are identified by name.
    """
    by_id = {field.metadata[_FIELD_ID]: field.name for field in file if field.metadata and _FIELD_ID in field.metadata}
    if not by_id:
        return [field.name if field.name in file.names else None for field in wanted]
    return [by_id.get(field.metadata[_FIELD_ID]) for field in wanted]


def fit_columns_of_batch(batch: pa.RecordBatch, names: Sequence[str | None], wanted: pa.Schema) -> pa.RecordBatch:
    """Return `batch` with the columns of `wanted`: `names` are those in the batch, None for a column of nulls."""
    columns = []
    for name, field in zip(names, wanted, strict=True):
        column = pa.nulls(batch.num_rows, field.type) if name is None else batch.column(name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted.remove_metadata())
