"""Merging small batches: the same messages, in order, within bounds of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import CorruptBatch
from waybill.config.names import TopicPartition
from waybill.tables.partition.tasks import LARGE_BATCH_BYTES, LARGE_BATCH_ROWS, MAX_WAITING_BYTES, merge_small_batches

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def batch(first: int, count: int, size: int = 1, *, extra: bool = False) -> pa.RecordBatch:
    columns = {"offset": pa.array(range(first, first + count), pa.int64()), "value": pa.array([b"x" * size] * count)}
    if extra:
        columns["set_aside"] = pa.nulls(count, pa.string())
    return pa.RecordBatch.from_pydict(columns)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 7, 3000, 9000]), st.booleans()), max_size=30))
def test_every_message_is_passed_on_once_and_in_order(drawn: list[tuple[int, int, bool]]) -> None:
    following: dict[TopicPartition, int] = defaultdict(int)
    given_batches = []
    for partition, count, extra in drawn:
        tp = TopicPartition("t", partition)
        given_batches.append((tp, batch(following[tp], count, extra=extra)))
        following[tp] += count
    with_extra = sum(found.num_rows for _, found in given_batches if found.num_columns == 3)
    offsets: dict[TopicPartition, list[int]] = defaultdict(list)
    merged = list(merge_small_batches(given_batches))
    for tp, found in merged:
        offsets[tp] += found.column("offset").to_pylist()
    assert offsets == {tp: list(range(end)) for tp, end in following.items()}
    assert sum(found.num_rows for _, found in merged if found.num_columns == 3) == with_extra
    assert all(found.num_rows <= max(LARGE_BATCH_ROWS, 9000) for _, found in merged)


def test_batches_of_alternating_topic_partitions_are_merged_separately() -> None:
    turns = [(tp, batch(n, 1)) for n in range(100) for tp in (A, B)]
    assert sorted((tp, found.num_rows) for tp, found in merge_small_batches(turns)) == [(A, 100), (B, 100)]


def test_a_large_batch_is_passed_on_without_a_copy() -> None:
    large = batch(0, LARGE_BATCH_ROWS)
    ((_, found),) = merge_small_batches([(A, large)])
    assert found is large


def test_waiting_batches_of_all_topic_partitions_together_are_bounded() -> None:
    """No topic-partition alone has a large batch."""
    one = LARGE_BATCH_BYTES // 2
    taken = 0

    def source() -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        nonlocal taken
        for number in range(40):
            taken += 1
            yield TopicPartition("t", number), batch(0, 1, one)

    next(iter(merge_small_batches(source())))
    assert taken * one <= MAX_WAITING_BYTES + one


def test_waiting_batches_are_dropped_when_the_source_raises() -> None:
    def source() -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        yield A, batch(0, 1)
        raise CorruptBatch("object", 0, "damaged")

    with pytest.raises(CorruptBatch):
        next(merge_small_batches(source()))
