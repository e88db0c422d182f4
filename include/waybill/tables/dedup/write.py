"""The writing task: write whole rows of some files to the unique table, and the duplicates to the duplicates table."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow

from waybill.base.errors import StoreUnavailable
from waybill.config.models.dedup import ARRIVED_AT
from waybill.config.names import TopicPartition
from waybill.records.batches._kernels import Array
from waybill.tables.dedup.keys import key_text, values_as_text
from waybill.tables.dedup.match import DuplicatesOfBatch, read_duplicate_lists
from waybill.tables.dedup.rows import Arrivals, RowBatch, read_rows
from waybill.tables.dedup.tasks import SweepJob, SweepTask, WrittenFiles
from waybill.tables.iceberg import task_io
from waybill.tables.iceberg.dedup import ARRIVED_AT_FIELD, DUPLICATES_ROWS
from waybill.tables.staging.file_writer import PartitionedWriter
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.timing import Stopwatch
from waybill.tables.staging.uploads import Uploads, scratch_directory

_US_PER_MS = 1000
_NO_ARRIVAL = np.iinfo(np.int64).min


def write(job: SweepJob, task: SweepTask, duplicate_lists: tuple[str, ...]) -> WrittenFiles:
    """Write the rows of a task. `duplicate_lists`: locations of all lists. A task that fails deletes its files.

    Raises `StoreUnavailable` when S3 does not answer, `ScratchUnusable` when the disk is full, `PlanUnusable` when a
    file does not exist any more, `DamagedFile`.
    """
    file_io = task_io(job.storage, job.catalog_connection, job.unique.data_location)
    with (
        scratch_directory() as scratch,
        closing(Uploads(file_io)) as uploads,
    ):
        writer = _RowWriter(job, task, file_io, scratch, uploads)
        try:
            return writer.write(duplicate_lists)
        except BaseException as error:
            writer.abandon()
            uploads.discard()
            if isinstance(error, OSError) and error.errno is None:  # raised by Arrow's S3 client
                raise StoreUnavailable(f"a task of plan {job.plan.id} could not write its files: {error}") from error
            raise


class _RowWriter:
    """Splits the rows of a task between the two tables."""

    def __init__(self, job: SweepJob, task: SweepTask, file_io: FileIO, scratch: Path, uploads: Uploads) -> None:
        self._watch = Stopwatch.start()
        self._job, self._task, self._io, self._uploads = job, task, file_io, uploads
        main_columns = _column_names(job.main)
        self._columns = [name for name in _column_names(job.unique) if name != ARRIVED_AT and name in main_columns]
        self._arrivals = Arrivals.of(job)
        self._latest_ms = np.full(len(job.topic_partitions), _NO_ARRIVAL)
        self._unique_rows = job.unique.arrow_schema(
            pa.schema([(name, pa.null()) for name in (*self._columns, ARRIVED_AT)])
        )

        def writer(layout: TableLayout, rows: pa.Schema) -> PartitionedWriter:
            return PartitionedWriter(
                layout, rows, memory_bytes=job.memory_bytes, scratch=scratch, uploads=uploads, name=job.plan.id
            )

        self._unique = writer(job.unique, self._unique_rows)
        self._duplicates = writer(job.duplicates, DUPLICATES_ROWS)

    def write(self, duplicate_lists: tuple[str, ...]) -> WrittenFiles:
        duplicates = read_duplicate_lists(self._io, duplicate_lists, [part.file for part in self._task])
        for part in self._task:
            for rows in read_rows(self._io, self._job, part, self._columns):
                self._add(rows, duplicates.of_batch(rows.file, rows.first_row, rows.batch.num_rows))
        unique_files = self._unique.finish()
        duplicate_files = self._duplicates.finish()
        self._uploads.wait()
        return WrittenFiles(
            unique_files,
            duplicate_files,
            rows=self._unique.rows,
            duplicates=self._duplicates.rows,
            arrived_ms=self._latest_arrivals(),
            usage=self._watch.usage(),
        )

    def abandon(self) -> None:
        """Stop both writers after a failure."""
        self._unique.abandon()
        self._duplicates.abandon()

    def _add(self, rows: RowBatch, duplicates: DuplicatesOfBatch) -> None:
        numbers = self._arrivals.numbers_of(rows.batch)
        arrived_ms = self._arrivals.ms_of(rows.batch, numbers)
        np.maximum.at(self._latest_ms, numbers, arrived_ms)
        if not len(duplicates.at):
            self._unique.add(self._as_unique_rows(rows.batch, arrived_ms))
            return
        keep = np.ones(rows.batch.num_rows, np.bool_)
        keep[duplicates.at] = False
        self._unique.add(self._as_unique_rows(rows.batch.filter(pa.array(keep)), arrived_ms[keep]))
        repeated = rows.batch.take(pa.array(duplicates.at))
        self._duplicates.add(_as_duplicate_rows(self._job, repeated, arrived_ms[duplicates.at], duplicates.table))

    def _as_unique_rows(self, batch: pa.RecordBatch, arrived_ms: Array) -> pa.RecordBatch:
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, self._unique_rows, strict=False)  # its last field is `arrived_at`
        ]
        return pa.RecordBatch.from_arrays([*columns, _as_timestamps(arrived_ms)], schema=self._unique_rows)

    def _latest_arrivals(self) -> dict[TopicPartition, int]:
        seen = np.flatnonzero(self._latest_ms > _NO_ARRIVAL)
        return {self._job.topic_partitions[number]: int(self._latest_ms[number]) for number in seen}


def _as_duplicate_rows(
    job: SweepJob, batch: pa.RecordBatch, arrived_ms: Array, duplicate_list: pa.Table
) -> pa.RecordBatch:
    """Return rows of the duplicates table. `duplicate_list`: the rows' part of the list, in the same order."""
    source = job.plan.source
    first = duplicate_list.combine_chunks()
    computed = {
        ARRIVED_AT: _as_timestamps(arrived_ms),
        "key": key_text(batch, job.plan.key_columns),
        "source": pa.nulls(batch.num_rows, pa.string()) if source is None else values_as_text(batch.column(source)),
        "first_arrived_at": _as_timestamps(first.column("first_arrived_ms").to_numpy()),
        **{name: _as_one_chunk(first.column(name)) for name in ("first_topic", "first_partition", "first_offset")},
    }
    columns = [computed.get(field.name) for field in DUPLICATES_ROWS]
    columns = [
        batch.column(field.name) if column is None else column
        for column, field in zip(columns, DUPLICATES_ROWS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DUPLICATES_ROWS)


def _as_one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _as_timestamps(ms: Array) -> pa.Array:
    return pc.cast(pa.array(ms * _US_PER_MS), ARRIVED_AT_FIELD.type)


def _column_names(layout: TableLayout) -> list[str]:
    return [field.name for field in schema_to_pyarrow(layout.schema)]
