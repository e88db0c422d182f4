"""One task of a partition run, on an executor: read, check, decode, parse, write. Everything stays Arrow.

Endpoints and secrets come from the executor's environment, by the connections' names.

Carrying out a plan's tasks, and going around what the archive cannot give.

A backup object that is damaged, or gone, stops its topic-partition and no other. What a task says about it is an
`ArchiveFault`: from that offset on the topic-partition is left out. The tasks that would have read beyond it are
carried out again without that part; the others' results stay. So the price of a fault is the tasks behind it.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pyiceberg.manifest import DataFile

from waybill import failpoints
from waybill.archive.read_ahead import ReadAhead
from waybill.archive.spans import UNREADABLE, ArchiveFault, fault_of, is_indexed, read_span
from waybill.config import Reading, Storage
from waybill.errors import StoreUnavailable
from waybill.names import TopicPartition
from waybill.parsers import build_parser
from waybill.partition.batching import gathered
from waybill.partition.files_sink.delivery import FilesLayout
from waybill.partition.files_sink.encoders import Sieve
from waybill.partition.files_sink.writer import HourFiles
from waybill.partition.observed import Observed, Observer
from waybill.partition.plan import Task
from waybill.partition.rows import QUARANTINE_ROWS, TABLE_ROWS, RowBuilder, table_rows
from waybill.records.decode import DecodeBuffers
from waybill.staging.file_writer import PartitionedWriter
from waybill.staging.table_layout import TableLayout
from waybill.staging.uploads import Uploads, scratch_directory
from waybill.store import Store
from waybill.tables import task_io
from waybill.tables.file_inventory import LedgerEntry

__all__ = [
    "CarriedOut",
    "Execute",
    "Job",
    "StageSeconds",
    "TaskResult",
    "carry_out",
    "carry_out_whole",
    "row_builder",
    "rows_in_table",
    "run_task",
    "trim",
]


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
    """Of rows that a task holds before it writes them out; see `waybill.staging.file_writer`."""
    files: FilesLayout | None = None
    """Where rows go if they go to files; `table` is then their ledger."""


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
    entries: tuple[LedgerEntry, ...] = ()
    """Files of the `files` sink."""


def run_task(job: Job, task: Task) -> TaskResult | ArchiveFault:
    """Carry out one task. If it fails, or meets a fault of the archive, it takes back what it staged.

    Raises `StoreUnavailable` when S3 does not answer, `ScratchUnusable` when the disk is full, `ParserBroken` when a
    class of the user's does not keep to the parser protocol.
    """
    io = task_io(job.storage, job.catalog_connection, job.table.data_location)
    with (
        Store.of(job.storage) as store,
        scratch_directory() as scratch,
        closing(Uploads(io)) as uploads,
    ):
        run = _Run(job, task, store, scratch, uploads)
        try:
            return run.carry_out()
        except BaseException as error:
            run.abandon()
            uploads.discard()
            if isinstance(error, _Unreadable):
                return error.fault
            if isinstance(error, OSError) and error.errno is None:  # what Arrow's client for S3 raises
                raise StoreUnavailable(f"a task of plan {job.plan_id} could not write its files: {error}") from error
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
    def __init__(self, job: Job, task: Task, store: Store, scratch: Path, uploads: Uploads) -> None:
        rows = table_rows(job.reading.columns) if job.files else rows_in_table(job.reading, job.table)
        self._task, self._store = task, store
        self._builder = row_builder(job.reading, job.generation, job.planned_at, rows)
        self._observer = Observer(job.planned_at)
        self._uploads = uploads
        self._watch = _Stopwatch()
        self._cpu_before = time.process_time()

        def writer(layout: TableLayout, rows: pa.Schema) -> PartitionedWriter:
            return PartitionedWriter(
                layout, rows, memory_bytes=job.memory_bytes, scratch=scratch, uploads=uploads, name=job.plan_id
            )

        self._quarantine = writer(job.quarantine, QUARANTINE_ROWS)
        self._table = (
            writer(job.table, rows)
            if job.files is None
            else HourFiles(job.files, task, job.generation, store, memory_bytes=job.memory_bytes, scratch=scratch)
        )
        self._sieve = Sieve(job.files.format, job.planned_at) if job.files else None

    def carry_out(self) -> TaskResult:
        with ReadAhead(self._store, [span for span in self._task if not is_indexed(span)]) as ahead:
            self._read_and_add(ahead)
        entries: list[LedgerEntry] = []
        table_files: list[DataFile] = []
        if isinstance(self._table, HourFiles):
            entries = self._table.finish()
        else:
            table_files = self._table.finish()
        quarantine_files = self._quarantine.finish()
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
            entries=tuple(entries),
        )

    def _read_and_add(self, ahead: ReadAhead) -> None:
        for tp, messages in gathered(self._read(ahead)):
            self._watch.lap("read_and_decode")
            rows = self._builder.build(tp, messages)
            if self._sieve is not None:
                rows = self._sieve.sift(rows)
            self._observer.see(tp, messages, rows)
            self._watch.lap("parse")
            self._table.add(rows.table)
            self._quarantine.add(rows.quarantine)
            self._watch.lap("write")
        self._watch.lap("read_and_decode")

    def _read(self, ahead: ReadAhead) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        buffers = DecodeBuffers()
        for span in self._task:
            try:
                for messages in read_span(self._store, span, ahead=ahead, buffers=buffers):
                    yield span.tp, messages
            except UNREADABLE as error:
                raise _Unreadable(fault_of(span, error)) from error
            failpoints.reach("partition.span_read")

    def abandon(self) -> None:
        self._table.abandon()
        self._quarantine.abandon()


class _Unreadable(Exception):
    """A span cannot be read, and trying again would not help."""

    def __init__(self, fault: ArchiveFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def row_builder(reading: Reading, generation: int, planned_at: datetime, rows: pa.Schema) -> RowBuilder:
    """What makes `rows` of messages, as `reading` says."""
    parser = build_parser(reading.parser, reading.columns)
    return RowBuilder(parser, generation, planned_at, reading.event_time_bounds, rows)


def rows_in_table(reading: Reading, table: TableLayout) -> pa.Schema:
    """The rows of a reading, with the types that the table has by now for its columns: wider ones than that, maybe."""
    found = table.arrow_schema(table_rows(reading.columns))
    return pa.schema([*TABLE_ROWS, *list(found)[len(TABLE_ROWS) :]])


logger = logging.getLogger(__name__)

Execute = Callable[[Job, Sequence[Task]], Iterable[TaskResult | ArchiveFault]]
"""Carries out tasks, anywhere, and gives what they staged, or what stopped them, in the order of the tasks."""


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """What came of a plan's tasks."""

    results: list[TaskResult]
    end: dict[TopicPartition, int]
    """Where each topic-partition that was read ends."""
    faults: dict[TopicPartition, ArchiveFault]
    """Why some end before the plan does."""


def carry_out(
    execute: Execute, job: Job, tasks: Sequence[Task], take_back: Callable[[Sequence[TaskResult]], None]
) -> CarriedOut:
    """Carry out the tasks, as far as the archive can be read. Raises what `execute` raises.

    `take_back` removes the files of results that do not count, since their tasks are carried out again.
    """
    faults: dict[TopicPartition, ArchiveFault] = {}
    results: dict[Task, TaskResult] = {}
    left = list(tasks)
    while left:
        for task, outcome in zip(left, list(execute(job, left)), strict=True):
            if isinstance(outcome, TaskResult):
                results[task] = outcome
            else:
                _note(faults, outcome)
        stopped = [task for task in left if task not in results]
        void = [task for task in results if trim(task, faults) != task]
        take_back([results.pop(task) for task in void])
        left = [rest for task in (*stopped, *void) if (rest := trim(task, faults))]
    return CarriedOut(list(results.values()), _ends(results), faults)


def carry_out_whole(
    execute: Execute, job: Job, tasks: Sequence[Task], take_back: Callable[[Sequence[TaskResult]], None]
) -> CarriedOut:
    """Carry out the tasks as they are, or none: if one cannot be, nothing comes of the plan but its faults.

    So it is where the names of files follow from the plan: a task that ends sooner would give other files under the
    same names, and a rival, or a retry after the archive was repaired, would not know of it. The next plan leaves out
    what is at fault.
    """
    faults: dict[TopicPartition, ArchiveFault] = {}
    results: list[TaskResult] = []
    for outcome in list(execute(job, tasks)):
        if isinstance(outcome, TaskResult):
            results.append(outcome)
        else:
            _note(faults, outcome)
    if faults:
        take_back(results)
        return CarriedOut([], {}, faults)
    return CarriedOut(results, _ends(tasks), {})


def _ends(tasks: Iterable[Task]) -> dict[TopicPartition, int]:
    """Where the tasks end, by topic-partition."""
    end: dict[TopicPartition, int] = {}
    for span in (span for task in tasks for span in task):
        end[span.tp] = max(end.get(span.tp, span.next_offset), span.next_offset)
    return end


def trim(task: Task, faults: Mapping[TopicPartition, ArchiveFault]) -> Task:
    """What is left of a task when nothing at or beyond the faults is read."""
    spans = []
    for span in task:
        fault = faults.get(span.tp)
        if fault is None or span.next_offset <= fault.offset:
            spans.append(span)
        elif span.first_offset < fault.offset:
            spans.append(replace(span, next_offset=fault.offset))
    return tuple(spans)


def _note(faults: dict[TopicPartition, ArchiveFault], found: ArchiveFault) -> None:
    """Of a topic-partition's faults the first one counts."""
    logger.error("left out from offset %d on: %s", found.offset, found.message)
    known = faults.get(found.tp)
    if known is None or found.offset < known.offset:
        faults[found.tp] = found
