"""Lookups of a sweep: for the keys of a batch, the latest row that an earlier sweep kept.

A sweep makes some hundred reads of the index, however many rows it has, so they use the cheapest S3 client.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import obstore
from obstore.exceptions import BaseError

from waybill.base.metering import meter
from waybill.config.connections import S3Endpoint
from waybill.config.names import TopicPartition
from waybill.services.clients.object_store import object_store
from waybill.services.store import COALESCE_BYTES, Store
from waybill.tables.dedup.index.run_file import Array, tail_of
from waybill.tables.dedup.index.sorted_runs import Content, FileReader, RunMatches, SortedRun, find_in_run

logger = logging.getLogger(__name__)

_THREADS = 8
"""Parallel reads. A read of Amazon's S3 waits 20 to 30 ms, and each run needs two or three; more threads would take
more memory."""


@dataclass(frozen=True, slots=True, eq=False)
class EarlierRows:
    """For keys of a batch, the latest row that an earlier sweep kept and that arrived at or after the horizon.

    Numpy arrays of one length, with at most one entry for each position of the batch. If a key occurs several times in
    the batch, an entry for one of its positions suffices.
    """

    candidate: Array
    """Position in the batch of a row with this key, int64."""
    arrived_ms: Array
    """Arrival of the kept row, epoch ms, int64."""
    tp: Array
    """Topic-partition of the kept row, int32: numbers of the batch's topic-partitions, or of older ones after these."""
    offset: Array
    """Kafka offset of the kept row, int64."""

    @classmethod
    def none(cls) -> EarlierRows:
        """Return no row: no key of the batch was kept before."""
        empty = np.empty(0, np.int64)
        return cls(empty, empty, np.empty(0, np.int32), empty)

    def take(self, mask: Array) -> EarlierRows:
        """Return the entries where this mask is true, or at these indices."""
        return EarlierRows(self.candidate[mask], self.arrived_ms[mask], self.tp[mask], self.offset[mask])


class BucketIndex:
    """All sorted runs of one bucket, as one index."""

    def __init__(self, files: FileReader, runs: Sequence[SortedRun], topic_partitions: list[TopicPartition]) -> None:
        """`runs`: all of the bucket.

        `topic_partitions`: the topic-partition of each number in results; topic-partitions of index entries that are
        missing in the list are appended to it.
        """
        self._files = files
        self._runs = runs
        self._topic_partitions = topic_partitions

    def lookup(self, hi: Array, lo: Array, horizon_ms: int) -> EarlierRows:
        """Return the latest entry of each key (both halves of its hash) that arrived at or after the horizon.

        Keys may repeat. Of the second half, the bits that the index has are compared. Reads nothing of runs below the
        horizon. Of each other run it reads the filter, and the row groups for keys that pass it. Raises `IndexDamaged`
        when a file of the index is missing or its content changed, `StoreUnavailable` when S3 does not answer.
        """
        runs = [run for run in self._runs if run.max_arrived_ms >= horizon_ms]
        if not runs or not len(hi):
            return EarlierRows.none()
        tail = tail_of(lo)
        # Each thread holds the filter and the row groups of one run in memory, not more.
        with ThreadPoolExecutor(min(_THREADS, len(runs))) as pool:
            found = list(pool.map(lambda run: find_in_run(self._files, run, hi, tail), runs))
        return self._latest([matches for matches in found if len(matches)], horizon_ms)

    def _latest(self, found: Sequence[RunMatches], horizon_ms: int) -> EarlierRows:
        if not found:
            return EarlierRows.none()
        index = np.concatenate([matches.index for matches in found])
        arrived = np.concatenate([matches.arrived_ms for matches in found])
        offset = np.concatenate([matches.offset for matches in found])
        tp = np.concatenate([self._numbers_of(matches.topic_partitions)[matches.tp] for matches in found])
        # No two kept rows of a key arrived at the same time: the second would have been a duplicate of the first.
        order = np.lexsort((arrived, index))
        order = order[arrived[order] >= horizon_ms]
        last = np.ones(len(order), np.bool_)
        last[:-1] = index[order[1:]] != index[order[:-1]]
        order = order[last]
        return EarlierRows(index[order], arrived[order], tp[order], offset[order])

    def _numbers_of(self, topic_partitions: Sequence[TopicPartition]) -> Array:
        """Return the number that each topic-partition of a run has in the results."""
        numbers = {tp: number for number, tp in enumerate(self._topic_partitions)}
        for tp in topic_partitions:
            if tp not in numbers:
                numbers[tp] = len(numbers)
                self._topic_partitions.append(tp)
        return np.array([numbers[tp] for tp in topic_partitions], np.int32)


class QuickReads:
    """Reads a store's objects by obstore, which takes a fraction of botocore's CPU. Thread-safe.

    A read that fails is repeated by the store, which retries and raises the errors that callers expect. The figures
    are in docs/decisions/0015.
    """

    coalesce_bytes = COALESCE_BYTES

    def __init__(self, store: Store, endpoint: S3Endpoint) -> None:
        """`endpoint`: the one that `store` was opened with."""
        self._store = store
        self._objects = object_store(endpoint, store.bucket)
        self._counting = Lock()
        self.read_bytes = 0
        """Bytes that were read so far."""

    def read(self, key: str) -> Content:
        """Return the bytes of an object. Raises as `Store.read` does."""
        return self._counted(self._read(key))

    def read_range(self, key: str, start: int, length_bytes: int) -> Content:
        """Return `length_bytes` (at least 1) from byte `start` on. Ends early and raises as `Store.read_range` does."""
        return self._counted(self._read_range(key, start, length_bytes))

    def _read(self, key: str) -> Content:
        try:
            return _metered(memoryview(obstore.get(self._objects, key).bytes()))
        except (BaseError, OSError, ValueError) as error:
            _log_retry(key, error)
            return self._store.read(key)

    def _read_range(self, key: str, start: int, length_bytes: int) -> Content:
        try:
            return _metered(memoryview(obstore.get_range(self._objects, key, start=start, length=length_bytes)))
        except (BaseError, OSError, ValueError) as error:
            _log_retry(key, error)
            return self._store.read_range(key, start, length_bytes)

    def _counted(self, content: Content) -> Content:
        with self._counting:
            self.read_bytes += len(content)
        return content


def _metered(content: memoryview) -> memoryview:
    # Count here, since obstore does not show its requests; a repeated request is counted once.
    meter.count_request("GetObject")
    meter.count_received(len(content))
    return content


def _log_retry(key: str, error: Exception) -> None:
    logger.warning("%s could not be read, trying again: %s", key, str(error).partition("\n")[0])
