"""Cut data files: write their rows on one side of a range to new files.

A file that lies across the bounds of a range cannot be removed from a table, nor be added to it, as a whole. Its rows
outside of the range are written to new files when the range is replaced, those inside when it is restored. A data file
never changes, so neither does what it is cut into: the new files are recorded in an object that is created if absent. A
retry, a rival, and an attempt on top of a newer snapshot find the record and write nothing.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from waybill.base import failpoints
from waybill.base.documents import Document
from waybill.config.models import Storage
from waybill.config.names import backfill_cut_key
from waybill.services.store import Store
from waybill.tables.backfill.ranges import OffsetRanges, Placement
from waybill.tables.backfill.work import TaskRunner
from waybill.tables.iceberg import remove_files, task_io, translate_damage_errors
from waybill.tables.staging.file_reader import fit_columns_of_batch, read_batches
from waybill.tables.staging.file_writer import PartitionedWriter
from waybill.tables.staging.table_layout import FileEntry, TableLayout, file_entries, load_data_files
from waybill.tables.staging.uploads import Uploads, scratch_directory

logger = logging.getLogger(__name__)

_DOCUMENT = Document()
_THREADS = 4
_BATCH_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 20
_MESSAGE_COLUMNS = ("topic", "partition", "offset")


class Side(StrEnum):
    """The rows of a file that a cut keeps."""

    INSIDE = "inside"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class CutJob:
    """The input that all cuts of one table share.

    It is sent to executors and logged: names of connections, no secrets.
    """

    storage: Storage
    catalog_connection: str
    stream: str
    backfill: str
    name: str
    """The names of the new files begin with it."""
    ranges: OffsetRanges
    memory_bytes: int
    table: TableLayout


@dataclass(frozen=True, slots=True)
class _Cut:
    """One file to cut: a task."""

    job: CutJob
    path: str
    deletes: tuple[str, ...]
    side: Side

    @property
    def identity(self) -> str:
        return "\n".join((self.path, *self.deletes))


# --- which files ---


def place_files(table: Table, snapshot_id: int, ranges: OffsetRanges) -> tuple[list[FileScanTask], list[FileScanTask]]:
    """Return the data files of a snapshot that lie inside the ranges, and those that lie across their bounds.

    Where the column bounds are not enough, the columns topic, partition and offset of the file are read. Raises
    `FileNotFoundError` when a file no longer exists, `DamagedFile`, or another `OSError` when S3 does not answer.
    """
    schema = table.schema()
    inside: list[FileScanTask] = []
    unknown: list[FileScanTask] = []
    for file in table.scan(row_filter=ranges.scan_filter, snapshot_id=snapshot_id).plan_files():
        placement = ranges.place(file.file, schema)
        if placement is Placement.INSIDE:
            inside.append(file)
        elif placement is Placement.UNKNOWN:
            unknown.append(file)
    layout = TableLayout.of(table)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda file: _placement(table.io, layout, file.file.file_path, ranges), unknown))
    placed = list(zip(unknown, found, strict=True))
    inside += [file for file, placement in placed if placement is Placement.INSIDE]
    return inside, [file for file, placement in placed if placement is Placement.ACROSS]


def _placement(io: FileIO, layout: TableLayout, path: str, ranges: OffsetRanges) -> Placement:
    some_inside = some_outside = False
    for _, batch in read_batches(io, layout, path, _MESSAGE_COLUMNS):
        mask = ranges.mask(batch)
        some_inside |= bool(mask.any())
        some_outside |= not mask.all()
        if some_inside and some_outside:
            return Placement.ACROSS
    return Placement.INSIDE if some_inside else Placement.OUTSIDE


# --- reading ---


def read_rows(table: Table, file: FileScanTask, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with these columns, a few megabytes at a time, without rows that a delete file removes.

    Raises `FileNotFoundError` when the file does not exist, `DamagedFile` when it is damaged, another `OSError` when S3
    does not answer.
    """
    layout = TableLayout.of(table)
    if not file.delete_files:
        yield from read_file(table.io, layout, file.file.file_path, columns)
        return
    # Waybill writes no delete files. PyIceberg applies those of other programs, and holds the whole file.
    wanted = layout.arrow_schema(pa.schema([(name, pa.null()) for name in columns]))
    scan = table.scan(selected_fields=tuple(columns))
    with translate_damage_errors(layout.name, file.file.file_path):
        for batch in ArrowScan(scan.table_metadata, scan.io, scan.projection(), AlwaysTrue()).to_record_batches([file]):
            names = [name if name in batch.schema.names else None for name in columns]
            yield fit_columns_of_batch(batch, names, wanted)


def read_file(io: FileIO, layout: TableLayout, path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file without deletes, with these columns. Raises as `read_rows` does."""
    found = read_batches(io, layout, path, columns, batch_bytes=_BATCH_BYTES, buffer_bytes=_BUFFER_BYTES)
    return (batch for _, batch in found)


# --- cutting ---


def cut_files(
    store: Store, table: Table, job: CutJob, files: Sequence[FileScanTask], side: Side, for_each: TaskRunner
) -> list[DataFile]:
    """Return new data files with the rows of `files` on one side of the job's ranges; write those not recorded yet.

    No snapshot references the new files yet. Raises what `place_files` raises, and `ScratchUnusable`.
    """
    with_deletes = [file for file in files if file.delete_files]
    tasks = [_Cut(job, file.file.file_path, (), side) for file in files if not file.delete_files]
    found = [_find(store, table, task) for task in tasks]
    missing = [task for task, files_of_task in zip(tasks, found, strict=True) if files_of_task is None]
    if missing:
        logger.info("%s: cutting %d files at the bounds of the range", job.table.name, len(missing))
        for_each(_cut_and_record, missing)
        found = [_find(store, table, task) for task in tasks]
    for file in with_deletes:  # PyIceberg's reader needs the table, so it runs in the driver
        deletes = tuple(sorted(delete.file_path for delete in file.delete_files))
        task = _Cut(job, file.file.file_path, deletes, side)
        if _find(store, table, task) is None:
            _write_and_record(store, table.io, task, read_rows(table, file, _columns(job.table)))
        found.append(_find(store, table, task))
    return [file for files_of_task in found for file in files_of_task or ()]


def _find(store: Store, table: Table, task: _Cut) -> list[DataFile] | None:
    """Return the recorded files of a cut; None if none are recorded that still exist."""
    for entries in _records(store, task):
        try:
            return load_data_files(table, entries)
        except FileNotFoundError:
            # The files were removed when their snapshot expired after they had been replaced, or they were removed as
            # orphans.
            logger.info("%s: the recorded cut of %s no longer exists", task.job.table.name, task.path)
    return None


def _records(store: Store, task: _Cut) -> Iterator[list[FileEntry]]:
    attempt = 0
    while (found := store.read_if_exists(_key(store, task, attempt))) is not None:
        yield _DOCUMENT.read(found, _key(store, task, attempt))["files"]
        attempt += 1


def _key(store: Store, task: _Cut, attempt: int) -> str:
    job = task.job
    return backfill_cut_key(store.prefix, job.stream, job.backfill, task.side, task.identity, attempt)


def _cut_and_record(task: _Cut) -> None:
    """Cut one file, on an executor."""
    job = task.job
    io = task_io(job.storage, job.catalog_connection, job.table.data_location)
    with Store.of(job.storage) as store:
        _write_and_record(store, io, task, read_file(io, job.table, task.path, _columns(job.table)))


def _write_and_record(store: Store, io: FileIO, task: _Cut, rows: Iterator[pa.RecordBatch]) -> None:
    files = _write(io, task, rows)
    failpoints.reach("backfill.cut_written")
    run = uuid.uuid4().hex
    content = _DOCUMENT.write({"run": run, "file": task.path, "files": file_entries(files)})
    key = _key(store, task, sum(1 for _ in _records(store, task)))
    existing = store.create_or_read_existing(key, content)
    if existing is not None and json.loads(existing)["run"] != run:
        remove_files(io, [file.file_path for file in files])
    failpoints.reach("backfill.cut_recorded")


def _write(io: FileIO, task: _Cut, rows: Iterator[pa.RecordBatch]) -> list[DataFile]:
    job = task.job
    schema = job.table.arrow_schema(pa.schema([(name, pa.null()) for name in _columns(job.table)]))
    with scratch_directory() as scratch:
        uploads = Uploads(io)
        writer = PartitionedWriter(
            job.table, schema, memory_bytes=job.memory_bytes, scratch=scratch, uploads=uploads, name=job.name
        )
        try:
            for batch in rows:
                inside = job.ranges.mask(batch)
                kept = inside if task.side is Side.INSIDE else ~inside
                if kept.any():
                    writer.add(batch if kept.all() else batch.filter(pa.array(kept)))
            files = writer.finish()
            uploads.wait()
        except BaseException:
            writer.abandon()
            uploads.discard()
            raise
        finally:
            uploads.close()
    return files


def _columns(layout: TableLayout) -> list[str]:
    return [field.name for field in layout.schema.fields]
