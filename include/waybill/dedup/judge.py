"""The runs of one bucket as one: of each key that is asked for, the latest entry there is.

Marks: which rows of a sweep's files are duplicates, and of what. From the tasks that judge to those that write.

An object of Parquet beside the plan for each task that judges, sorted by file and row, in small row groups: a task
that writes reads only those of its files.

A task that judges: of all rows whose keys are in one range of the hash, which are kept.

The kept keys become runs of the index, and the other rows are marked, in an object that the tasks that write read.
Neither counts before the sweep says so: what it is of use for is written down with the rows (`waybill.dedup.staged`).
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from waybill import failpoints
from waybill.connections import S3Endpoint, connection
from waybill.dedup.candidates import Candidates
from waybill.dedup.duplicates import Seen, judge, one_of_each_key
from waybill.dedup.index.merge import MergePolicy, by_departure, few_keys
from waybill.dedup.index.reads import QuickReads
from waybill.dedup.index.runs import Array, Matches, Reads, Run, RunKeys, lookup, write_run
from waybill.dedup.scan import judge_of
from waybill.dedup.tasks import Judged, Scanned, SweepJob, UnknownTopicPartitions
from waybill.names import TopicPartition, sweep_marks_key
from waybill.staging.timing import Stopwatch
from waybill.store import Store

__all__ = ["BucketIndex", "MarkedRows", "Marks", "judge_range", "marks_of_files", "write_marks"]

_THREADS = 8
"""On Amazon's S3 a read is 20 to 30 ms of waiting, and each run takes two or three. More would take more memory."""


class BucketIndex:
    """What the index knows of the keys of one bucket."""

    def __init__(self, files: Reads, runs: Sequence[Run], topic_partitions: list[TopicPartition]) -> None:
        """`runs`: those of the bucket. `topic_partitions`: what the numbers in answers mean; it grows by those that
        entries have and it does not."""
        self._files = files
        self._runs = runs
        self._topic_partitions = topic_partitions

    def lookup(self, hi: Array, lo: Array, horizon_ms: int) -> Seen:
        """Of each key the latest entry that arrived at or after the horizon; keys may be asked for more than once.

        Runs that are below the horizon are not touched; of the others a filter, and what may hold a key that it lets
        through. Raises `IndexDamaged` when a file of the index is gone or not what was written, `StoreUnavailable`
        when S3 does not answer.
        """
        runs = [run for run in self._runs if run.max_arrived_ms >= horizon_ms]
        if not runs or not len(hi):
            return Seen.nothing()
        # One run's filter and row groups in memory for each thread, and no more.
        with ThreadPoolExecutor(min(_THREADS, len(runs))) as pool:
            found = list(pool.map(lambda run: lookup(self._files, run, hi, lo), runs))
        return self._latest([matches for matches in found if len(matches)], horizon_ms)

    def _latest(self, found: Sequence[Matches], horizon_ms: int) -> Seen:
        if not found:
            return Seen.nothing()
        index = np.concatenate([matches.index for matches in found])
        arrived = np.concatenate([matches.arrived_ms for matches in found])
        offset = np.concatenate([matches.offset for matches in found])
        tp = np.concatenate([self._codes(matches.topic_partitions)[matches.tp] for matches in found])
        # No two kept rows of a key arrived at the same time: of two the second would have repeated the first.
        order = np.lexsort((arrived, index))
        order = order[arrived[order] >= horizon_ms]
        last = np.ones(len(order), np.bool_)
        last[:-1] = index[order[1:]] != index[order[:-1]]
        order = order[last]
        return Seen(index[order], arrived[order], tp[order], offset[order])

    def _codes(self, topic_partitions: Sequence[TopicPartition]) -> Array:
        """What numbers the topic-partitions of a run have here."""
        known = {tp: code for code, tp in enumerate(self._topic_partitions)}
        for tp in topic_partitions:
            if tp not in known:
                known[tp] = len(known)
                self._topic_partitions.append(tp)
        return np.array([known[tp] for tp in topic_partitions], np.int32)


_ROW_GROUP_ROWS = 64 << 10

_SCHEMA = pa.schema(
    [
        pa.field("file", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("first_topic", pa.string(), nullable=False),
        pa.field("first_partition", pa.int32(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("first_arrived_ms", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Marks:
    """Rows that are duplicates: file, by its ordinal in the plan, row in it, and where its key was first seen."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @classmethod
    def of(
        cls,
        *,
        file: Array,
        row: Array,
        first_tp: Array,
        first_offset: Array,
        first_arrived_ms: Array,
        topic_partitions: Sequence[TopicPartition],
    ) -> Marks:
        """Columns of one length; `first_tp`: ordinals in `topic_partitions`."""
        topics = pa.array([tp.topic for tp in topic_partitions], pa.string())
        partitions = pa.array([tp.partition for tp in topic_partitions], pa.int32())
        ordinals = pa.array(first_tp)
        columns = [
            pa.array(file, pa.int32()),
            pa.array(row, pa.int64()),
            topics.take(ordinals),
            partitions.take(ordinals),
            pa.array(first_offset, pa.int64()),
            pa.array(first_arrived_ms, pa.int64()),
        ]
        return cls(pa.Table.from_arrays(columns, schema=_SCHEMA))

    @staticmethod
    def concat(parts: Sequence[Marks]) -> Marks:
        """All of them, in order of file and row."""
        table = pa.concat_tables([_SCHEMA.empty_table(), *(part.table for part in parts)])
        return Marks(table.sort_by([("file", "ascending"), ("row", "ascending")]))

    def of_rows(self, file: int, first_row: int, rows: int) -> MarkedRows:
        """Those of `rows` rows of a file from `first_row` on; the table must be in order, and of one chunk."""
        files = self.table.column("file").to_numpy()
        begin, end = np.searchsorted(files, [file, file + 1])
        of_file = self.table.column("row").to_numpy()[begin:end]
        first, last = np.searchsorted(of_file, [first_row, first_row + rows])
        found = self.table.slice(begin + first, last - first)
        return MarkedRows(of_file[first:last] - first_row, found)


@dataclass(frozen=True, slots=True)
class MarkedRows:
    """Which of some rows are duplicates."""

    at: Array
    """Their places among these rows, ascending."""
    marks: pa.Table
    """What is said of each."""


def write_marks(store: Store, plan: str, marks: Marks) -> str:
    """Create an object that says it, beside the plan of that key. Returns the object's key."""
    key = sweep_marks_key(plan, uuid.uuid4().hex)
    sink = io.BytesIO()
    pq.write_table(marks.table, sink, row_group_size=_ROW_GROUP_ROWS, compression="zstd", write_page_checksum=True)
    with store.upload_if_absent(key) as upload:
        upload.write(sink.getbuffer())
        upload.complete()
    return key


def marks_of_files(files_io: FileIO, locations: Sequence[str], files: Sequence[int]) -> Marks:
    """What the objects at these locations say of some files of the plan, in order."""
    wanted = pa.array(sorted(set(files)), pa.int32())

    def read(location: str) -> Marks:
        with files_io.new_input(location).open() as source:
            table = pq.read_table(source, filters=pc.field("file").isin(wanted), page_checksum_verification=True)
        return Marks(table.cast(_SCHEMA))

    with ThreadPoolExecutor(_THREADS) as pool:
        found = Marks.concat(list(pool.map(read, locations)))
    return Marks(found.table.combine_chunks())


def judge_range(
    job: SweepJob, number: int, sent: Iterable[bytes | Scanned | UnknownTopicPartitions]
) -> Judged | UnknownTopicPartitions:
    """Judge the rows of range `number`, as `waybill.dedup.scan` sent them.

    Raises `IndexDamaged` when a file of the index is gone or not what was written, `StoreUnavailable` when S3 does not
    answer.
    """
    watch = Stopwatch.start()
    received = _receive(sent)
    if isinstance(received, UnknownTopicPartitions):
        return received
    candidates, scanned = received
    runs: list[Run] = []
    marks: list[Marks] = []
    with Store.of(job.storage) as store:
        reads = QuickReads(store, S3Endpoint.of(connection(job.storage.connection)))
        for bucket, of_bucket in _by_bucket(job, number, candidates):
            of_kept, repeated = _judge_bucket(store, reads, job, bucket, of_bucket)
            runs += of_kept
            marks.append(repeated)
        failpoints.reach("sweep.run_written")
        together = Marks.concat(marks)
        key = write_marks(store, job.plan.key, together) if len(together) else None
    return Judged(
        candidates=len(candidates),
        kept=sum(run.keys for run in runs),
        runs=tuple(runs),
        marks=key,
        index_read_bytes=reads.read_bytes,
        scanned=tuple(scanned),
        usage=watch.usage(),
    )


def _receive(
    sent: Iterable[bytes | Scanned | UnknownTopicPartitions],
) -> tuple[Candidates, list[Scanned]] | UnknownTopicPartitions:
    """All candidates in one piece; those that they came in are let go of."""
    parts: list[Candidates] = []
    scanned: list[Scanned] = []
    for found in sent:
        if isinstance(found, UnknownTopicPartitions):
            return found
        if isinstance(found, Scanned):
            scanned.append(found)
        else:
            parts.append(Candidates.from_bytes(found))
    return Candidates.concat(parts), scanned


def _by_bucket(job: SweepJob, number: int, candidates: Candidates) -> Iterable[tuple[int, Candidates]]:
    buckets = job.buckets_of(number)
    if len(buckets) == 1:
        yield buckets[0], candidates
        return
    found = judge_of(candidates.hi, job.plan.buckets)
    for bucket in buckets:
        yield bucket, candidates.take(np.flatnonzero(found == bucket))


def _seen(index: BucketIndex, candidates: Candidates, horizon_ms: int) -> Seen:
    """What the index knows of the candidates' keys: asked once for each, however often it came."""
    asked = one_of_each_key(candidates)
    if asked is None:
        return index.lookup(candidates.hi, candidates.lo, horizon_ms)
    seen = index.lookup(candidates.hi[asked], candidates.lo[asked], horizon_ms)
    return replace(seen, candidate=asked[seen.candidate])


def _judge_bucket(
    store: Store, reads: QuickReads, job: SweepJob, bucket: int, candidates: Candidates
) -> tuple[list[Run], Marks]:
    plan = job.plan
    topic_partitions = list(job.topic_partitions)  # those of the index come behind them
    index = BucketIndex(reads, [run for run in job.runs if run.bucket == bucket], topic_partitions)
    seen = _seen(index, candidates, plan.horizon_ms)
    verdicts = judge(candidates, seen, plan.window_ms, plan.horizon_ms)
    kept = candidates.take(np.flatnonzero(verdicts.kept))
    repeats = np.flatnonzero(~verdicts.kept)
    marks = Marks.of(
        file=candidates.file[repeats],
        row=candidates.row[repeats],
        first_tp=verdicts.first_tp[repeats],
        first_offset=verdicts.first_offset[repeats],
        first_arrived_ms=verdicts.first_arrived_ms[repeats],
        topic_partitions=topic_partitions,
    )
    if not len(kept):
        return [], marks
    kept = kept.take(np.lexsort((kept.lo, kept.hi)))
    keys = RunKeys(kept.hi, kept.lo, kept.arrived_ms, kept.tp, kept.offset, job.topic_partitions)
    # Which snapshot these will be of is known only once it is committed: the manifest says it.
    sequences = (job.covers + 1, job.covers + 1)
    few = few_keys(job.budget_bytes, plan.buckets)
    parts = by_departure(keys, MergePolicy.of(plan.window_ms, job.memory_bytes), few)
    return [write_run(store, job.index, bucket, sequences, part) for part in parts], marks
