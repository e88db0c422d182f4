"""Candidates: the rows of a sweep that have a key, as plain numbers; and the tasks that scan files for them.

Only candidates go through Spark's shuffle: 48 bytes a row, without the key's text and the message.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from waybill.records.batches._kernels import Array
from waybill.tables.dedup.keys import exclude_assigned_ids, hash_keys, hash_range_of
from waybill.tables.dedup.rows import ARRIVAL_COLUMNS, Arrivals, RowBatch, UnplannedPartitionsFound, read_rows
from waybill.tables.dedup.tasks import CANDIDATE_BYTES, ScannedFiles, SweepJob, SweepTask, UnplannedPartitions
from waybill.tables.iceberg import task_io
from waybill.tables.staging.timing import Stopwatch

_SCHEMA = pa.schema(
    [
        pa.field("hi", pa.uint64(), nullable=False),
        pa.field("lo", pa.uint64(), nullable=False),
        pa.field("arrived_ms", pa.int64(), nullable=False),
        pa.field("tp", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("file", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Rows with a key, column by column: numpy arrays of one length, never modified."""

    hi: Array
    """First half of the key's hash, uint64."""
    lo: Array
    """Second half, uint64."""
    arrived_ms: Array
    """Arrival, epoch ms, int64."""
    tp: Array
    """Topic-partition: position in the job's sorted list, int32."""
    offset: Array
    """Kafka offset, int64."""
    file: Array
    """Position in the plan's list of files, int32."""
    row: Array
    """Position of the row in that file, from 0, int64."""

    def __len__(self) -> int:
        return len(self.hi)

    @classmethod
    def empty(cls) -> Candidates:
        """Return no row."""
        return cls(*(np.empty(0, field.type.to_pandas_dtype()) for field in _SCHEMA))

    def take(self, indices: Array) -> Candidates:
        """Return the rows at these indices in their order, or where this mask is true."""
        return Candidates(*(column[indices] for column in self._columns()))

    def between(self, start: int, end: int) -> Candidates:
        """Return the rows from `start` to before `end` without a copy."""
        return Candidates(*(column[start:end] for column in self._columns()))

    @staticmethod
    def concat(parts: Sequence[Candidates]) -> Candidates:
        """Return the rows of all parts, in order."""
        if not parts:
            return Candidates.empty()
        return Candidates(*(np.concatenate(columns) for columns in zip(*(p._columns() for p in parts), strict=True)))

    def to_bytes(self) -> bytes:
        """Return an Arrow IPC stream of one record batch, uncompressed: 48 bytes a row."""
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in self._columns()], schema=_SCHEMA)
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, _SCHEMA) as stream:
            stream.write_batch(batch)
        return sink.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Candidates:
        """Return what `to_bytes` wrote, without a copy: the arrays are read-only views of `data`."""
        with pa.ipc.open_stream(data) as stream:
            batch = stream.read_next_batch()
        return Candidates(*(column.to_numpy() for column in batch.columns))

    def _columns(self) -> tuple[Array, ...]:
        return self.hi, self.lo, self.arrived_ms, self.tp, self.offset, self.file, self.row


# --- scanning task ---

Sent = tuple[int, bytes | ScannedFiles | UnplannedPartitions]
"""The hash range that receives it, and `Candidates.to_bytes` or a result of the task."""


def scan(job: SweepJob, task: SweepTask) -> Iterator[Sent]:
    """Read the key columns of a task's rows and yield the candidates by hash range, then the task's figures.

    If rows have topic-partitions that the job does not list, the last thing yielded is `UnplannedPartitions`.

    Raises `StoreUnavailable` when S3 does not answer, `PlanUnusable` when a file does not exist any more,
    `DamagedFile`.
    """
    watch = Stopwatch.start()
    file_io = task_io(job.storage, job.catalog_connection, job.main.data_location)
    columns = list(dict.fromkeys((*ARRIVAL_COLUMNS, *job.plan.key_columns)))
    arrivals = Arrivals.of(job)
    buffer = _SendBuffer(job)
    rows = 0
    try:
        for part in task:
            for found in read_rows(file_io, job, part, columns):
                rows += found.batch.num_rows
                yield from buffer.add(_candidates_of(job, arrivals, found))
        yield from buffer.flush()
    except UnplannedPartitionsFound as error:
        yield 0, error.unplanned
        return
    first = task[0]
    yield (first.file + first.part) % job.hash_ranges, ScannedFiles(rows, rows - buffer.candidates, watch.usage())


def _candidates_of(job: SweepJob, arrivals: Arrivals, rows: RowBatch) -> Candidates:
    """Return the rows that have a key."""
    batch, n = rows.batch, rows.batch.num_rows
    tp = arrivals.numbers_of(batch)
    key = [batch.column(name) for name in job.plan.key_columns]
    hashes = exclude_assigned_ids(hash_keys(key, job.secret), job.plan.key_columns, batch)
    all_rows = Candidates(
        hi=hashes.hi,
        lo=hashes.lo,
        arrived_ms=arrivals.ms_of(batch, tp),
        tp=tp,
        offset=batch.column("offset").to_numpy(),
        file=np.full(n, rows.file, np.int32),
        row=np.arange(rows.first_row, rows.first_row + n),
    )
    return all_rows if hashes.present.all() else all_rows.take(np.flatnonzero(hashes.present))


class _SendBuffer:
    """Collects candidates up to the memory limit, so that each hash range receives few large pieces."""

    def __init__(self, job: SweepJob) -> None:
        self.candidates = 0
        self._hash_ranges = job.hash_ranges
        self._most_rows = max(job.memory_bytes // CANDIDATE_BYTES, 1)
        self._parts: list[Candidates] = []
        self._rows = 0

    def add(self, found: Candidates) -> Iterator[Sent]:
        self.candidates += len(found)
        self._parts.append(found)
        self._rows += len(found)
        if self._rows >= self._most_rows:
            yield from self.flush()

    def flush(self) -> Iterator[Sent]:
        together = Candidates.concat(self._parts)
        self._parts, self._rows = [], 0
        if len(together):
            yield from _by_hash_range(together, self._hash_ranges)


def _by_hash_range(candidates: Candidates, hash_ranges: int) -> Iterator[Sent]:
    range_of = hash_range_of(candidates.hi, hash_ranges)
    order = np.argsort(range_of, kind="stable")  # numpy sorts 16-bit numbers in linear time
    candidates = candidates.take(order)
    bounds = np.searchsorted(range_of[order], np.arange(hash_ranges + 1, dtype=np.uint32))
    for number in range(hash_ranges):
        if bounds[number] < bounds[number + 1]:
            yield number, candidates.between(int(bounds[number]), int(bounds[number + 1])).to_bytes()
