"""One task of a partition run, on an executor: read, check, decode, parse, write. Everything stays Arrow.

Endpoints and secrets come from the executor's environment, by the connections' names.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pyiceberg.manifest import DataFile

from waybill import failpoints
from waybill.config import Reading, Storage
from waybill.connections import CatalogEndpoint, S3Endpoint, connection
from waybill.parsers import build_parser
from waybill.partition.files import PartitionedWriter, TableLayout, Uploads
from waybill.partition.observed import Observed, Observer
from waybill.partition.plan import ArchiveFault, Span, Task
from waybill.partition.reading import UNREADABLE, fault_of, read_span
from waybill.partition.rows import QUARANTINE_ROWS, TABLE_ROWS, RowBuilder, table_rows
from waybill.store import Store
from waybill.tables import file_io

__all__ = ["Job", "StageSeconds", "TaskResult", "run_task"]


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a run share. It goes to executors and into logs: names of connections, no secrets."""

    plan_id: str
    run_id: str
    generation: int
    planned_at: datetime
    reading: Reading
    storage: Storage
    catalog_connection: str
    table: TableLayout
    quarantine: TableLayout
    memory_bytes: int
    """Of rows that a task holds before it writes them out; see `waybill.partition.files`."""


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Wall-clock seconds that a task spent in each stage."""

    read_and_decode: float
    parse: float
    write: float
    """Encoding Parquet, and waiting for uploads."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task staged. Nothing of it counts before the commit."""

    table_files: list[DataFile]
    quarantine_files: list[DataFile]
    messages: int
    quarantined: int
    seconds: StageSeconds
    cpu_seconds: float
    """Of the executor's process, all threads."""
    peak_memory_bytes: int
    """The most that the executor's process ever held resident."""
    observed: Observed


def run_task(job: Job, task: Task) -> TaskResult | ArchiveFault:
    """Carry out one task. If it fails, or meets a fault of the archive, it takes back what it staged.

    Raises `StoreUnavailable` when S3 does not answer, `ParserBroken` when a class of the user's does not keep to the
    parser protocol.
    """
    s3 = S3Endpoint.of(connection(job.storage.connection))
    io = file_io(CatalogEndpoint.of(connection(job.catalog_connection)), s3, job.table.data_location)
    with (
        Store(s3, job.storage.bucket, job.storage.prefix) as store,
        tempfile.TemporaryDirectory(prefix="waybill-", dir=_scratch()) as scratch,
        closing(Uploads(io)) as uploads,
    ):
        run = _Run(job, Path(scratch), uploads)
        try:
            return run.carry_out(store, task)
        except BaseException as error:
            run.abandon()
            uploads.discard()
            if isinstance(error, _Unreadable):
                return error.fault
            raise


@dataclass(slots=True)
class _Stopwatch:
    """Seconds by stage; `lap` charges the time since the last lap."""

    seconds: dict[str, float] = field(default_factory=lambda: {"read_and_decode": 0.0, "parse": 0.0, "write": 0.0})
    since: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self.since
        self.since = now


class _Run:
    def __init__(self, job: Job, scratch: Path, uploads: Uploads) -> None:
        columns = job.reading.columns
        rows = _as_in_table(table_rows(columns), job.table)
        self._builder = RowBuilder(
            build_parser(job.reading.parser, columns),
            job.generation,
            job.planned_at,
            job.reading.event_time_bounds,
            rows,
        )
        self._observer = Observer(job.planned_at)
        self._uploads = uploads
        self._watch = _Stopwatch()
        self._cpu_before = time.process_time()
        self._table, self._quarantine = (
            PartitionedWriter(
                layout, rows, memory_bytes=job.memory_bytes, scratch=scratch, uploads=uploads, name=job.plan_id
            )
            for layout, rows in ((job.table, rows), (job.quarantine, QUARANTINE_ROWS))
        )

    def carry_out(self, store: Store, task: Task) -> TaskResult:
        for span in task:
            for messages in _read(store, span):
                self._watch.lap("read_and_decode")
                rows = self._builder.build(span.tp, messages)
                self._observer.see(span.tp, messages, rows)
                self._watch.lap("parse")
                self._table.add(rows.table)
                self._quarantine.add(rows.quarantine)
                self._watch.lap("write")
            self._watch.lap("read_and_decode")
            failpoints.reach("partition.span_read")
        table_files, quarantine_files = self._table.finish(), self._quarantine.finish()
        self._uploads.wait()
        self._watch.lap("write")
        return TaskResult(
            table_files,
            quarantine_files,
            messages=self._table.rows + self._quarantine.rows,
            quarantined=self._quarantine.rows,
            seconds=StageSeconds(**self._watch.seconds),
            cpu_seconds=time.process_time() - self._cpu_before,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            observed=self._observer.result(),
        )

    def abandon(self) -> None:
        self._table.abandon()
        self._quarantine.abandon()


class _Unreadable(Exception):
    """A span cannot be read, and trying again would not help."""

    def __init__(self, fault: ArchiveFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def _read(store: Store, span: Span) -> Iterator[pa.RecordBatch]:
    try:
        yield from read_span(store, span)
    except UNREADABLE as error:
        raise _Unreadable(fault_of(span, error)) from error


def _as_in_table(rows: pa.Schema, table: TableLayout) -> pa.Schema:
    """`rows` with the types that the table has by now for its typed columns: wider ones than the plan's, maybe."""
    found = table.arrow_schema(rows)
    return pa.schema([*TABLE_ROWS, *list(found)[len(TABLE_ROWS) :]])


def _scratch() -> str:
    """Where Spark lets its executors put temporary files, else the system's place."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
