"""A task that writes: whole rows of some files to the table of unique rows, and the marked ones to the duplicates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow

from waybill.config.dedup import ARRIVED_AT
from waybill.dedup.judge import MarkedRows, marks_of_files
from waybill.dedup.rows import Arrivals, Rows, read_rows
from waybill.dedup.tasks import SweepJob, SweepTask, Written
from waybill.errors import StoreUnavailable
from waybill.names import TopicPartition
from waybill.records._kernels import Array
from waybill.staging.file_writer import PartitionedWriter
from waybill.staging.table_layout import TableLayout
from waybill.staging.timing import Stopwatch
from waybill.staging.uploads import Uploads, scratch_directory
from waybill.tables import task_io
from waybill.tables.dedup import ARRIVED_AT_FIELD, DUPLICATES_ROWS

__all__ = ["key_text", "write"]

_US = 1000


def write(job: SweepJob, task: SweepTask, marks: tuple[str, ...]) -> Written:
    """Write the rows of a task; `marks`: the objects that say which are duplicates. If it fails, it takes all back.

    Raises `StoreUnavailable` when S3 does not answer, `ScratchUnusable` when the disk is full, `PlanUnusable` when a
    file is gone, `DamagedFile`.
    """
    io = task_io(job.storage, job.catalog_connection, job.unique.data_location)
    with (
        scratch_directory() as scratch,
        closing(Uploads(io)) as uploads,
    ):
        run = _Run(job, task, io, scratch, uploads)
        try:
            return run.carry_out(marks)
        except BaseException as error:
            run.abandon()
            uploads.discard()
            if isinstance(error, OSError) and error.errno is None:  # what Arrow's client for S3 raises
                raise StoreUnavailable(f"a task of plan {job.plan.id} could not write its files: {error}") from error
            raise


class _Run:
    def __init__(self, job: SweepJob, task: SweepTask, io: FileIO, scratch: Path, uploads: Uploads) -> None:
        self._watch = Stopwatch.start()
        self._job, self._task, self._io, self._uploads = job, task, io, uploads
        self._columns = [name for name in _names(job.unique) if name != ARRIVED_AT and name in _names(job.main)]
        self._arrivals = Arrivals.of(job)
        self._latest = np.full(len(job.topic_partitions), np.iinfo(np.int64).min)
        self._rows = job.unique.arrow_schema(_schema((*self._columns, ARRIVED_AT)))

        def writer(layout: TableLayout, rows: pa.Schema) -> PartitionedWriter:
            return PartitionedWriter(
                layout, rows, memory_bytes=job.memory_bytes, scratch=scratch, uploads=uploads, name=job.plan.id
            )

        self._unique = writer(job.unique, self._rows)
        self._duplicates = writer(job.duplicates, DUPLICATES_ROWS)

    def carry_out(self, locations: tuple[str, ...]) -> Written:
        marks = marks_of_files(self._io, locations, [piece.file for piece in self._task])
        for piece in self._task:
            for rows in read_rows(self._io, self._job, piece, self._columns):
                self._add(rows, marks.of_rows(rows.file, rows.first_row, rows.batch.num_rows))
        unique_files = self._unique.finish()
        duplicate_files = self._duplicates.finish()
        self._uploads.wait()
        return Written(
            unique_files,
            duplicate_files,
            rows=self._unique.rows,
            duplicates=self._duplicates.rows,
            arrived_ms=self._arrived(),
            usage=self._watch.usage(),
        )

    def _add(self, rows: Rows, marked: MarkedRows) -> None:
        codes = self._arrivals.codes_of(rows.batch)
        arrived_ms = self._arrivals.ms_of(rows.batch, codes)
        np.maximum.at(self._latest, codes, arrived_ms)
        if not len(marked.at):
            self._unique.add(self._unique_rows(rows.batch, arrived_ms))
            return
        keep = np.ones(rows.batch.num_rows, np.bool_)
        keep[marked.at] = False
        self._unique.add(self._unique_rows(rows.batch.filter(pa.array(keep)), arrived_ms[keep]))
        repeated = rows.batch.take(pa.array(marked.at))
        self._duplicates.add(_duplicate_rows(self._job, repeated, arrived_ms[marked.at], marked.marks))

    def _unique_rows(self, batch: pa.RecordBatch, arrived_ms: Array) -> pa.RecordBatch:
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, self._rows, strict=False)  # the last one comes now
        ]
        return pa.RecordBatch.from_arrays([*columns, _times(arrived_ms)], schema=self._rows)

    def _arrived(self) -> dict[TopicPartition, int]:
        seen = np.flatnonzero(self._latest > np.iinfo(np.int64).min)
        return {self._job.topic_partitions[code]: int(self._latest[code]) for code in seen}

    def abandon(self) -> None:
        self._unique.abandon()
        self._duplicates.abandon()


def _duplicate_rows(job: SweepJob, batch: pa.RecordBatch, arrived_ms: Array, marks: pa.Table) -> pa.RecordBatch:
    n, source = batch.num_rows, job.plan.source
    first = marks.combine_chunks()
    made = {
        ARRIVED_AT: _times(arrived_ms),
        "key": key_text(batch, job.plan.key_columns),
        "source": pa.nulls(n, pa.string()) if source is None else _text(batch.column(source)),
        "first_arrived_at": _times(first.column("first_arrived_ms").to_numpy()),
        **{name: _whole(first.column(name)) for name in ("first_topic", "first_partition", "first_offset")},
    }
    columns = [made.get(field.name) for field in DUPLICATES_ROWS]
    columns = [
        batch.column(field.name) if column is None else column
        for column, field in zip(columns, DUPLICATES_ROWS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DUPLICATES_ROWS)


def key_text(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """The values of the key's columns: a JSON list of text."""
    values = [_text(batch.column(name)).to_pylist() for name in names]
    return pa.array([json.dumps(row, ensure_ascii=False) for row in zip(*values, strict=True)], pa.string())


def _text(column: pa.Array) -> pa.Array:
    """As text; bytes that are not UTF-8 in hexadecimal digits, with `0x` before them."""
    if not pa.types.is_binary(column.type):
        return column.cast(pa.string())
    return pa.array([None if value is None else _bytes_text(value) for value in column.to_pylist()], pa.string())


def _bytes_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _times(ms: Array) -> pa.Array:
    return pc.cast(pa.array(ms * _US), ARRIVED_AT_FIELD.type)


def _names(layout: TableLayout) -> list[str]:
    return [field.name for field in schema_to_pyarrow(layout.schema)]


def _schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(name, pa.null()) for name in names])
