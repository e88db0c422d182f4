"""The matching task: find the duplicates among all candidates of one range of the hash space.

`find_duplicates` is the definition of a duplicate.

The kept keys become sorted runs of the index. The duplicates are listed in an object that the writing tasks read: a
Parquet file beside the plan, sorted by file and row, in small row groups, so that a writing task reads only those of
its files. Neither has an effect before the sweep records what it staged (`waybill.tables.dedup.commit`).
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

from waybill.base import failpoints
from waybill.config.connections import S3Endpoint, find_connection
from waybill.config.names import TopicPartition, sweep_marks_key
from waybill.services.store import Store
from waybill.tables.dedup._kernels import find_repeated, latest_arrivals, latest_entries, may_repeat, number_keys
from waybill.tables.dedup.candidates import Candidates
from waybill.tables.dedup.index.lookup import BucketIndex, EarlierRows, QuickReads
from waybill.tables.dedup.index.merge import MergePolicy, least_run_keys, split_by_expiry
from waybill.tables.dedup.index.run_file import Array, IndexEntries, tail_of
from waybill.tables.dedup.index.sorted_runs import SortedRun, write_run
from waybill.tables.dedup.keys import hash_range_of
from waybill.tables.dedup.tasks import MatchedRange, ScannedFiles, SweepJob, UnplannedPartitions
from waybill.tables.staging.timing import Stopwatch


@dataclass(frozen=True, slots=True, eq=False)
class MatchResult:
    """For each candidate: whether it is kept, and for a duplicate the row that it repeats."""

    kept: Array
    """bool"""
    first_tp: Array
    """Topic-partition of the repeated row, int32. Valid where `kept` is false, like the next two."""
    first_offset: Array
    """Kafka offset of the repeated row, int64."""
    first_arrived_ms: Array
    """Arrival of the repeated row, epoch ms, int64."""

    def _set_duplicates(self, at: Array, tp: Array, offset: Array, arrived_ms: Array) -> None:
        """Record that the candidates at these indices repeat these rows."""
        self.kept[at] = False
        self.first_tp[at], self.first_offset[at], self.first_arrived_ms[at] = tp, offset, arrived_ms


def find_duplicates(candidates: Candidates, earlier: EarlierRows, window_ms: int, horizon_ms: int) -> MatchResult:
    """Return which candidates are kept, and which rows the others repeat. All candidates of a key must be in the batch.

    A row is a duplicate if a kept row of the same key arrived both at most `window_ms` before it and at or after
    `horizon_ms`: a row of the index (`earlier`), or a candidate that precedes it in the order of comparison. It repeats
    the latest of these rows. Two kept rows of a key cannot have the same arrival: the second would be a duplicate.

    The order of comparison, for the rows of a key: along each topic-partition by offset, whatever the timestamps;
    across topic-partitions by arrival, where a row never counts as earlier than the previous rows of its key in its own
    topic-partition; then by topic-partition.

    A key that occurs once costs about 20 ns, little more if the index has it. Only keys that occur several times in
    the batch are sorted.
    """
    n = len(candidates)
    result = MatchResult(np.ones(n, np.bool_), np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n, np.int64))
    several = _occurs_several_times(candidates.hi)
    of_several = several[earlier.candidate]
    _match_single(candidates, earlier.take(~of_several), window_ms, horizon_ms, result)
    _match_several(candidates, np.flatnonzero(several), earlier.take(of_several), window_ms, horizon_ms, result)
    return result


def one_of_each_key(candidates: Candidates) -> Array | None:
    """Return the indices of one candidate for each key, in no defined order; None if every key occurs once.

    An index lookup of one candidate of a key suffices for all of them: see `EarlierRows`.
    """
    c, several = candidates, _occurs_several_times(candidates.hi)
    rows = np.flatnonzero(several)
    if not len(rows):
        return None
    rows = rows[np.lexsort((c.lo[rows], c.hi[rows]))]
    keys = number_keys(rows, c.hi, c.lo)
    return np.concatenate((np.flatnonzero(~several), rows[np.flatnonzero(np.diff(keys, prepend=-1))]))


def _occurs_several_times(hi: Array) -> Array:
    """Return for each `hi` whether it occurs more than once, bool."""
    # Sorting all of them would take five times as long as this loop: 0.1 s for a million.
    slots = np.zeros(1 << (4 * len(hi)).bit_length(), np.uint8)
    few = np.flatnonzero(may_repeat(hi, slots))
    few = few[np.argsort(hi[few])]
    alike = hi[few[1:]] == hi[few[:-1]]
    several = np.zeros(len(hi), np.bool_)
    several[few[1:][alike]] = True
    several[few[:-1][alike]] = True
    return several


def _match_single(
    candidates: Candidates, earlier: EarlierRows, window_ms: int, horizon_ms: int, result: MatchResult
) -> None:
    """Match the candidates whose key occurs once in the batch with their rows in the index."""
    since_ms = np.maximum(candidates.arrived_ms[earlier.candidate] - window_ms, horizon_ms)
    first = earlier.take(earlier.arrived_ms >= since_ms)
    result._set_duplicates(first.candidate, first.tp, first.offset, first.arrived_ms)


def _match_several(
    candidates: Candidates, rows: Array, earlier: EarlierRows, window_ms: int, horizon_ms: int, result: MatchResult
) -> None:
    """Match candidates (their indices) whose keys occur several times with each other and with the index."""
    c = candidates
    rows = rows[np.lexsort((c.offset[rows], c.tp[rows], c.lo[rows], c.hi[rows]))]
    keys = number_keys(rows, c.hi, c.lo)
    # The sort is stable: rows with the same arrival stay in order of topic-partition and offset.
    order = np.lexsort((latest_arrivals(rows, keys, c.tp, c.arrived_ms), keys))
    rows = rows[order]  # `keys` is sorted already
    entries = _latest_entry_of_each_key(c, rows, keys, earlier)
    repeated = find_repeated(
        rows, keys, c.arrived_ms, entries, earlier.arrived_ms, np.int64(window_ms), np.int64(horizon_ms)
    )
    in_batch = np.flatnonzero(repeated >= 0)
    first = rows[repeated[in_batch]]
    result._set_duplicates(rows[in_batch], c.tp[first], c.offset[first], c.arrived_ms[first])
    in_index = np.flatnonzero(repeated < -1)
    entry = earlier.take(-2 - repeated[in_index])
    result._set_duplicates(rows[in_index], entry.tp, entry.offset, entry.arrived_ms)


def _latest_entry_of_each_key(candidates: Candidates, rows: Array, keys: Array, earlier: EarlierRows) -> Array:
    """Return for each key its latest index entry, -1 without one; an empty array if no key has an entry."""
    if not len(earlier.candidate):
        return np.empty(0, np.int64)
    entry_of = np.full(len(candidates), -1)
    entry_of[earlier.candidate] = np.arange(len(earlier.candidate))
    return latest_entries(rows, keys, entry_of, earlier.arrived_ms, earlier.tp, earlier.offset)


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
    """Find the duplicates of a hash range among the candidates that `waybill.tables.dedup.candidates.scan` sent.

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
    topic_partitions = list(job.topic_partitions)  # the lookup appends the topic-partitions of the index
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
    kept = kept.take(_order_by_key(kept.hi, kept.lo))
    entries = IndexEntries(kept.hi, tail_of(kept.lo), kept.arrived_ms, kept.tp, kept.offset, job.topic_partitions)
    # The sweep's sequence number is known only after its commit: the index manifest then records the final one.
    sequences = (job.covers + 1, job.covers + 1)
    least_keys = least_run_keys(job.budget_bytes, plan.buckets)
    parts = split_by_expiry(entries, MergePolicy.of(plan.window_ms, job.memory_bytes), least_keys)
    return [write_run(store, job.index, bucket, sequences, part) for part in parts], duplicates


def _order_by_key(hi: Array, lo: Array) -> Array:
    """Return the indices that sort keys by (hi, lo)."""
    order = np.argsort(hi)
    by_hi = hi[order]
    # Different keys practically never have the same `hi`, and a sort by both halves takes three times as long.
    return np.lexsort((lo, hi)) if (by_hi[1:] == by_hi[:-1]).any() else order


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
