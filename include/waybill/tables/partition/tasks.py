"""One task of a partition run, on an executor: read, check, decode, parse, write. The messages stay Arrow throughout.

Endpoints and secrets come from the executor's environment, by the names of the connections.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pyiceberg.manifest import DataFile

from waybill.archive.chain.read_ahead import ReadAhead
from waybill.archive.chain.spans import ArchiveFault, fault_from_error, is_archive_fault, is_indexed, read_span
from waybill.base import failpoints
from waybill.base.errors import StoreUnavailable
from waybill.config.models import ParseSettings, Storage
from waybill.config.names import TopicPartition
from waybill.records.batches.decode import DecodeBuffers
from waybill.records.batches.limits import Limits
from waybill.services.store import Store
from waybill.tables.iceberg import task_io
from waybill.tables.iceberg.file_inventory import InventoryEntry
from waybill.tables.partition.files_sink.encoders import FormatFilter
from waybill.tables.partition.files_sink.upload import FilesLayout
from waybill.tables.partition.files_sink.writer import HourFileWriter
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.rows import QUARANTINE_ROWS, build_row_builder, rows_in_table, table_rows
from waybill.tables.partition.statistics import RunStatistics, StatisticsBuilder
from waybill.tables.staging.file_writer import PartitionedWriter
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.timing import Stopwatch
from waybill.tables.staging.uploads import Uploads, scratch_directory

LARGE_BATCH_ROWS = 8192
LARGE_BATCH_BYTES = 2 << 20
"""A batch with at least this number of rows or bytes is not merged with others."""

MAX_WAITING_BYTES = 16 << 20
"""The largest total size of batches that wait to be merged, over all topic-partitions."""

_Batches = Iterable[tuple[TopicPartition, pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Job:
    """The input that all tasks of a run share. It is sent to executors and logged: names of connections, no secrets."""

    plan_id: str
    run_id: str
    generation: int
    planned_at: datetime
    parse_settings: ParseSettings
    storage: Storage
    catalog_connection: str
    table: TableLayout
    quarantine: TableLayout
    memory_bytes: int
    """Size of the rows that a task buffers before it writes them; see `waybill.tables.staging.file_writer`."""
    files: FilesLayout | None = None
    """Where the rows go if the sink is `files`; `table` is then the file inventory."""
    objects_in_part: frozenset[str] = frozenset()
    """Keys of backup objects that extend beyond the spans of the tasks."""


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Wall-clock seconds that a task spent in each stage."""

    read_and_decode: float
    parse: float
    write: float
    """Encoding Parquet, and waiting for uploads."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The files that a task wrote. No table references them before the commit."""

    table_files: list[DataFile]
    quarantine_files: list[DataFile]
    messages: int
    quarantined: int
    seconds: StageSeconds
    cpu_seconds: float
    """CPU seconds of the executor's process, all threads."""
    peak_memory_bytes: int
    """Largest resident size of the executor's process since it started."""
    statistics: RunStatistics
    inventory: tuple[InventoryEntry, ...] = ()
    """Files of the `files` sink."""


def run_task(job: Job, task: Task) -> TaskResult | ArchiveFault:
    """Run one task. Return an `ArchiveFault` if a backup object cannot be read.

    If the task fails, or meets a fault of the archive, it deletes the data files that it wrote.

    Raises `StoreUnavailable` when S3 does not answer, `ScratchUnusable` when the disk is full, `ParserBroken` when a
    user's parser class violates the parser protocol.
    """
    io = task_io(job.storage, job.catalog_connection, job.table.data_location)
    with (
        Store.of(job.storage) as store,
        scratch_directory() as scratch,
        closing(Uploads(io)) as uploads,
    ):
        run = _TaskRun(job, task, store, scratch, uploads)
        try:
            return run.execute()
        except BaseException as error:
            run.abandon()
            uploads.discard()
            if isinstance(error, _UnreadableSpan):
                return error.fault
            if isinstance(error, OSError) and error.errno is None:  # raised by Arrow's S3 client
                raise StoreUnavailable(f"a task of plan {job.plan_id} could not write its files: {error}") from error
            raise


class _TaskRun:
    def __init__(self, job: Job, task: Task, store: Store, scratch: Path, uploads: Uploads) -> None:
        settings = job.parse_settings
        rows = table_rows(settings.columns) if job.files else rows_in_table(settings, job.table)
        self._task, self._store = task, store
        self._objects_in_part = job.objects_in_part
        self._limits = Limits(*settings.message_limits.both)
        self._builder = build_row_builder(settings, job.generation, job.planned_at, rows)
        self._statistics = StatisticsBuilder(job.planned_at)
        self._uploads = uploads
        self._stages = _StageTimer()
        self._stopwatch = Stopwatch.start()

        def writer(layout: TableLayout, rows: pa.Schema) -> PartitionedWriter:
            return PartitionedWriter(
                layout, rows, memory_bytes=job.memory_bytes, scratch=scratch, uploads=uploads, name=job.plan_id
            )

        self._quarantine = writer(job.quarantine, QUARANTINE_ROWS)
        self._table = (
            writer(job.table, rows)
            if job.files is None
            else HourFileWriter(job.files, task, job.generation, store, memory_bytes=job.memory_bytes, scratch=scratch)
        )
        self._format_filter = FormatFilter(job.files.format, job.planned_at) if job.files else None

    def execute(self) -> TaskResult:
        with ReadAhead(self._store, [span for span in self._task if not is_indexed(span)]) as ahead:
            self._write_rows(merge_small_batches(self._read_spans(ahead)))
        inventory: list[InventoryEntry] = []
        table_files: list[DataFile] = []
        if isinstance(self._table, HourFileWriter):
            inventory = self._table.finish()
        else:
            table_files = self._table.finish()
        quarantine_files = self._quarantine.finish()
        self._uploads.wait()
        self._stages.lap("write")
        usage = self._stopwatch.usage()
        return TaskResult(
            table_files,
            quarantine_files,
            messages=self._table.rows + self._quarantine.rows,
            quarantined=self._quarantine.rows,
            seconds=StageSeconds(**self._stages.seconds),
            cpu_seconds=usage.cpu_seconds,
            peak_memory_bytes=usage.peak_memory_bytes,
            statistics=self._statistics.result(),
            inventory=tuple(inventory),
        )

    def _read_spans(self, ahead: ReadAhead) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        buffers = DecodeBuffers()
        for span in self._task:
            try:
                in_part = span.key in self._objects_in_part
                for messages in read_span(
                    self._store, span, in_part=in_part, ahead=ahead, buffers=buffers, limits=self._limits
                ):
                    yield span.tp, messages
            except Exception as error:
                if not is_archive_fault(error):
                    raise
                raise _UnreadableSpan(fault_from_error(span, error)) from error
            failpoints.reach("partition.span_read")

    def _write_rows(self, batches: _Batches) -> None:
        for tp, messages in batches:
            self._stages.lap("read_and_decode")
            rows = self._builder.build(tp, messages)
            if self._format_filter is not None:
                rows = self._format_filter.apply(rows)
            self._statistics.add(tp, messages, rows)
            self._stages.lap("parse")
            self._table.add(rows.table)
            self._quarantine.add(rows.quarantine)
            self._stages.lap("write")
        self._stages.lap("read_and_decode")

    def abandon(self) -> None:
        self._table.abandon()
        self._quarantine.abandon()


@dataclass(slots=True)
class _StageTimer:
    """Adds up seconds by stage; `lap` adds the time since the last lap to a stage."""

    seconds: dict[str, float] = field(default_factory=lambda: {"read_and_decode": 0.0, "parse": 0.0, "write": 0.0})
    since: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self.since
        self.since = now


class _UnreadableSpan(Exception):
    """A backup object cannot be read, and another try would not help."""

    def __init__(self, fault: ArchiveFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


# --- small batches ---


def merge_small_batches(batches: _Batches) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield the same messages in fewer batches; those of one topic-partition stay in order.

    An archive whose objects are cut often has objects of a few messages. Parsing and buffering rows takes some fifty
    calls of Arrow for each batch, whatever its size (docs/decisions/0011). A task reads its topic-partitions in turns,
    so batches of several topic-partitions wait at a time.

    If `batches` raises, the waiting messages are dropped.
    """
    waiting: dict[TopicPartition, _WaitingBatches] = {}
    waiting_bytes = 0
    for tp, batch in batches:
        group = waiting.get(tp)
        if group is not None and not group.accepts(batch):
            waiting_bytes -= group.size_bytes
            yield tp, waiting.pop(tp).merged()
        group = waiting.setdefault(tp, _WaitingBatches())
        group.add(batch)
        waiting_bytes += batch.nbytes
        if group.is_large:
            waiting_bytes -= group.size_bytes
            yield tp, waiting.pop(tp).merged()
        elif waiting_bytes > MAX_WAITING_BYTES:
            yield from _merge_all(waiting)
            waiting_bytes = 0
    yield from _merge_all(waiting)


def _merge_all(waiting: dict[TopicPartition, _WaitingBatches]) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    while waiting:
        tp, group = waiting.popitem()
        yield tp, group.merged()


class _WaitingBatches:
    """Batches of one topic-partition with the same schema, in order."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self.size_bytes = 0

    def accepts(self, batch: pa.RecordBatch) -> bool:
        """Return whether the batch has the same columns and the merged batch would not be too large."""
        if self._rows + batch.num_rows > LARGE_BATCH_ROWS or self.size_bytes + batch.nbytes > LARGE_BATCH_BYTES:
            return False
        return bool(batch.schema.equals(self._batches[0].schema))

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self.size_bytes += batch.nbytes

    @property
    def is_large(self) -> bool:
        return self._rows >= LARGE_BATCH_ROWS or self.size_bytes >= LARGE_BATCH_BYTES

    def merged(self) -> pa.RecordBatch:
        return self._batches[0] if len(self._batches) == 1 else pa.concat_batches(self._batches)
