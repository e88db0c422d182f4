"""A task that judges: of all rows whose keys are in one range of the hash, which are kept.

The kept keys become runs of the index, and the other rows are marked, in an object that the tasks that write read.
Neither counts before the sweep says so: what it is of use for is written down with the rows (`waybill.dedup.staged`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from waybill import failpoints
from waybill.connections import S3Endpoint, connection
from waybill.dedup.candidates import Candidates
from waybill.dedup.index.bucket import BucketIndex
from waybill.dedup.index.merge import MergePolicy, by_departure, few_keys
from waybill.dedup.index.reads import QuickReads
from waybill.dedup.index.runs import Run, RunKeys, write_run
from waybill.dedup.marks import Marks, write_marks
from waybill.dedup.order import Seen, judge, one_of_each_key
from waybill.dedup.scan import judge_of
from waybill.dedup.task import Judged, Scanned, SweepJob, UnknownTopicPartitions
from waybill.dedup.usage import Stopwatch
from waybill.store import Store

__all__ = ["judge_range"]


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
