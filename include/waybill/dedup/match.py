"""The matching task: find the duplicates among all candidates of one range of the hash space.

The kept keys become sorted runs of the index. The duplicates are listed in an object that the writing tasks read: a
Parquet file beside the plan, sorted by file and row, in small row groups, so that a writing task reads only those of
its files. Neither has an effect before the sweep records what it staged (`waybill.dedup.commit`).
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
from waybill.connections import S3Endpoint, find_connection
from waybill.dedup.candidates import Candidates
from waybill.dedup.duplicates import find_duplicates, one_of_each_key
from waybill.dedup.index.lookup import BucketIndex, EarlierRows, QuickReads
from waybill.dedup.index.merge import MergePolicy, least_run_keys, split_by_expiry
from waybill.dedup.index.sorted_runs import Array, IndexEntries, SortedRun, write_run
from waybill.dedup.keys import hash_range_of
from waybill.dedup.tasks import MatchedRange, ScannedFiles, SweepJob, UnplannedPartitions
from waybill.names import TopicPartition, sweep_marks_key
from waybill.staging.timing import Stopwatch
from waybill.store import Store

__all__ = ["DuplicateList", "DuplicatesOfBatch", "match_range", "read_duplicate_lists", "write_duplicate_list"]

_THREADS = 8  # reads of duplicate lists at a time; a read of Amazon's S3 waits 20 to 30 ms
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


# --- the task ---


def match_range(
    job: SweepJob, hash_range: int, sent: Iterable[bytes | ScannedFiles | UnplannedPartitions]
) -> MatchedRange | UnplannedPartitions:
    """Find the duplicates of a hash range among the candidates that `waybill.dedup.candidates.scan` sent.

    Raises `IndexDamaged` when a file of the index is missing or its content changed, `StoreUnavailable` when S3 does
    not answer.
    """
    watch = Stopwatch.start()
    received = _receive(sent)
    if isinstance(received, UnplannedPartitions):
        return received
    candidates, scanned = received
    runs: list[SortedRun] = []
    duplicates: list[DuplicateList] = []
    with Store.of(job.storage) as store:
        reads = QuickReads(store, S3Endpoint.of(find_connection(job.storage.connection)))
        for bucket, of_bucket in _by_bucket(job, hash_range, candidates):
            kept_runs, repeated = _match_bucket(store, reads, job, bucket, of_bucket)
            runs += kept_runs
            duplicates.append(repeated)
        failpoints.reach("sweep.run_written")
        together = DuplicateList.concat(duplicates)
        key = write_duplicate_list(store, job.plan.key, together) if len(together) else None
    return MatchedRange(
        candidates=len(candidates),
        kept=sum(run.keys for run in runs),
        runs=tuple(runs),
        duplicate_list=key,
        index_read_bytes=reads.read_bytes,
        scanned=tuple(scanned),
        usage=watch.usage(),
    )


def _receive(
    sent: Iterable[bytes | ScannedFiles | UnplannedPartitions],
) -> tuple[Candidates, list[ScannedFiles]] | UnplannedPartitions:
    """Return all candidates in one piece; the pieces they arrived in are freed."""
    parts: list[Candidates] = []
    scanned: list[ScannedFiles] = []
    for found in sent:
        if isinstance(found, UnplannedPartitions):
            return found
        if isinstance(found, ScannedFiles):
            scanned.append(found)
        else:
            parts.append(Candidates.from_bytes(found))
    return Candidates.concat(parts), scanned


def _by_bucket(job: SweepJob, hash_range: int, candidates: Candidates) -> Iterable[tuple[int, Candidates]]:
    buckets = job.buckets_of(hash_range)
    if len(buckets) == 1:
        yield buckets[0], candidates
        return
    found = hash_range_of(candidates.hi, job.plan.buckets)
    for bucket in buckets:
        yield bucket, candidates.take(np.flatnonzero(found == bucket))


def _match_bucket(
    store: Store, reads: QuickReads, job: SweepJob, bucket: int, candidates: Candidates
) -> tuple[list[SortedRun], DuplicateList]:
    """Write the sorted runs of a bucket's kept keys; return them and the duplicates."""
    plan = job.plan
    topic_partitions = list(job.topic_partitions)  # the lookup appends those of the index
    index = BucketIndex(reads, [run for run in job.runs if run.bucket == bucket], topic_partitions)
    earlier = _earlier_rows(index, candidates, plan.horizon_ms)
    result = find_duplicates(candidates, earlier, plan.window_ms, plan.horizon_ms)
    kept = candidates.take(np.flatnonzero(result.kept))
    repeats = np.flatnonzero(~result.kept)
    duplicates = DuplicateList.of(
        file=candidates.file[repeats],
        row=candidates.row[repeats],
        first_tp=result.first_tp[repeats],
        first_offset=result.first_offset[repeats],
        first_arrived_ms=result.first_arrived_ms[repeats],
        topic_partitions=topic_partitions,
    )
    if not len(kept):
        return [], duplicates
    kept = kept.take(np.lexsort((kept.lo, kept.hi)))
    entries = IndexEntries(kept.hi, kept.lo, kept.arrived_ms, kept.tp, kept.offset, job.topic_partitions)
    # The sweep's sequence number is known only after its commit: the index manifest then records the final one.
    sequences = (job.covers + 1, job.covers + 1)
    least_keys = least_run_keys(job.budget_bytes, plan.buckets)
    parts = split_by_expiry(entries, MergePolicy.of(plan.window_ms, job.memory_bytes), least_keys)
    return [write_run(store, job.index, bucket, sequences, part) for part in parts], duplicates


def _earlier_rows(index: BucketIndex, candidates: Candidates, horizon_ms: int) -> EarlierRows:
    """Look up each key of the candidates once, however often it occurs among them."""
    asked = one_of_each_key(candidates)
    if asked is None:
        return index.lookup(candidates.hi, candidates.lo, horizon_ms)
    earlier = index.lookup(candidates.hi[asked], candidates.lo[asked], horizon_ms)
    return replace(earlier, candidate=asked[earlier.candidate])


# --- the list of duplicates ---


@dataclass(frozen=True, slots=True)
class DuplicateList:
    """Rows that are duplicates: position of the file in the plan, row in the file, and the row that it repeats."""

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
    ) -> DuplicateList:
        """Build the list from arrays of one length. `first_tp`: positions in `topic_partitions`."""
        topics = pa.array([tp.topic for tp in topic_partitions], pa.string())
        partitions = pa.array([tp.partition for tp in topic_partitions], pa.int32())
        positions = pa.array(first_tp)
        columns = [
            pa.array(file, pa.int32()),
            pa.array(row, pa.int64()),
            topics.take(positions),
            partitions.take(positions),
            pa.array(first_offset, pa.int64()),
            pa.array(first_arrived_ms, pa.int64()),
        ]
        return cls(pa.Table.from_arrays(columns, schema=_SCHEMA))

    @staticmethod
    def concat(parts: Sequence[DuplicateList]) -> DuplicateList:
        """Return the rows of all parts, sorted by file and row."""
        table = pa.concat_tables([_SCHEMA.empty_table(), *(part.table for part in parts)])
        return DuplicateList(table.sort_by([("file", "ascending"), ("row", "ascending")]))

    def of_batch(self, file: int, first_row: int, rows: int) -> DuplicatesOfBatch:
        """Return the duplicates among `rows` rows of a file from `first_row` on. The table must be sorted, in one
        chunk."""
        files = self.table.column("file").to_numpy()
        begin, end = np.searchsorted(files, [file, file + 1])
        of_file = self.table.column("row").to_numpy()[begin:end]
        first, last = np.searchsorted(of_file, [first_row, first_row + rows])
        return DuplicatesOfBatch(of_file[first:last] - first_row, self.table.slice(begin + first, last - first))


@dataclass(frozen=True, slots=True)
class DuplicatesOfBatch:
    """The duplicates in a batch of rows."""

    at: Array
    """Their positions in the batch, ascending."""
    table: pa.Table
    """Their rows of the duplicate list."""


def write_duplicate_list(store: Store, plan: str, duplicates: DuplicateList) -> str:
    """Write the list to a new object beside the plan with that key. Returns the object's key."""
    key = sweep_marks_key(plan, uuid.uuid4().hex)
    sink = io.BytesIO()
    pq.write_table(duplicates.table, sink, row_group_size=_ROW_GROUP_ROWS, compression="zstd", write_page_checksum=True)
    with store.upload_if_absent(key) as upload:
        upload.write(sink.getbuffer())
        upload.complete()
    return key


def read_duplicate_lists(file_io: FileIO, locations: Sequence[str], files: Sequence[int]) -> DuplicateList:
    """Read the duplicates of some files of the plan from all lists, sorted, in one chunk."""
    wanted = pa.array(sorted(set(files)), pa.int32())

    def read(location: str) -> DuplicateList:
        with file_io.new_input(location).open() as source:
            table = pq.read_table(source, filters=pc.field("file").isin(wanted), page_checksum_verification=True)
        return DuplicateList(table.cast(_SCHEMA))

    with ThreadPoolExecutor(_THREADS) as pool:
        found = DuplicateList.concat(list(pool.map(read, locations)))
    return DuplicateList(found.table.combine_chunks())
