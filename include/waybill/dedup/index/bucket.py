"""The runs of one bucket as one: of each key that is asked for, the latest entry there is."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from waybill.dedup.index.runs import Array, Matches, Reads, Run, lookup
from waybill.dedup.order import Seen
from waybill.names import TopicPartition

__all__ = ["BucketIndex"]

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
