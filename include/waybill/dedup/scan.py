"""A task that scans: of a few columns of some rows it makes candidates, cut by ranges of the key's hash."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from waybill.dedup.candidates import Candidates
from waybill.dedup.hashing import hash_keys, without_assigned
from waybill.dedup.rows import ARRIVAL_COLUMNS, Arrivals, Rows, StrangeRows, read_rows
from waybill.dedup.tasks import CANDIDATE_BYTES, Scanned, SweepJob, SweepTask, UnknownTopicPartitions
from waybill.records._kernels import Array
from waybill.staging.timing import Stopwatch
from waybill.tables import task_io

__all__ = ["Sent", "judge_of", "scan"]

Sent = tuple[int, bytes | Scanned | UnknownTopicPartitions]
"""To which judge, and what: candidates as `Candidates.to_bytes` writes them, or what has to be said about the task."""


def scan(job: SweepJob, task: SweepTask) -> Iterator[Sent]:
    """The candidates among the rows of a task, for the judges; at the end its figures, for one of them.

    Rows of topic-partitions that the job does not know end it: the last that is sent then says so.

    Raises `StoreUnavailable` when S3 does not answer, `PlanUnusable` when a file is gone, `DamagedFile`.
    """
    watch = Stopwatch.start()
    io = task_io(job.storage, job.catalog_connection, job.main.data_location)
    columns = list(dict.fromkeys((*ARRIVAL_COLUMNS, *job.plan.key_columns)))
    arrivals = Arrivals.of(job)
    held = _Held(job)
    rows = 0
    try:
        for piece in task:
            for found in read_rows(io, job, piece, columns):
                rows += found.batch.num_rows
                yield from held.add(_candidates(job, arrivals, found))
        yield from held.send()
    except StrangeRows as strange:
        yield 0, strange.unknown
        return
    first = task[0]
    yield (first.file + first.part) % job.judges, Scanned(rows, rows - held.candidates, watch.usage())


def _candidates(job: SweepJob, arrivals: Arrivals, rows: Rows) -> Candidates:
    """Those of the rows that have a key."""
    batch, n = rows.batch, rows.batch.num_rows
    tp = arrivals.codes_of(batch)
    key = [batch.column(name) for name in job.plan.key_columns]
    hashes = without_assigned(hash_keys(key, job.secret), job.plan.key_columns, batch)
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


class _Held:
    """Candidates on their way: sent when there are many, so that a judge gets few large pieces."""

    def __init__(self, job: SweepJob) -> None:
        self.candidates = 0
        self._judges = job.judges
        self._most = max(job.memory_bytes // CANDIDATE_BYTES, 1)
        self._held: list[Candidates] = []
        self._rows = 0

    def add(self, found: Candidates) -> Iterator[Sent]:
        self.candidates += len(found)
        self._held.append(found)
        self._rows += len(found)
        if self._rows >= self._most:
            yield from self.send()

    def send(self) -> Iterator[Sent]:
        together = Candidates.concat(self._held)
        self._held, self._rows = [], 0
        if len(together):
            yield from _cut(together, self._judges)


def _cut(candidates: Candidates, judges: int) -> Iterator[Sent]:
    judge = judge_of(candidates.hi, judges)
    order = np.argsort(judge, kind="stable")  # of 16-bit numbers numpy makes it in linear time
    candidates = candidates.take(order)
    bounds = np.searchsorted(judge[order], np.arange(judges + 1, dtype=np.uint32))
    for number in range(judges):
        if bounds[number] < bounds[number + 1]:
            yield number, candidates.between(int(bounds[number]), int(bounds[number + 1])).to_bytes()


def judge_of(hi: Array, ranges: int) -> Array:
    """Which of so many equal ranges of the hash, a power of two, each is in: uint16."""
    bits = ranges.bit_length() - 1
    if not bits:
        return np.zeros(len(hi), np.uint16)
    return (hi >> np.uint64(64 - bits)).astype(np.uint16)
