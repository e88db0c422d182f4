"""Small batches put together: the same messages, in order, within bounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.errors import CorruptBatch
from waybill.names import TopicPartition
from waybill.partition.batching import ENOUGH_BYTES, ENOUGH_ROWS, MOST_HELD_BYTES, gathered

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def batch(first: int, count: int, size: int = 1, *, extra: bool = False) -> pa.RecordBatch:
    columns = {"offset": pa.array(range(first, first + count), pa.int64()), "value": pa.array([b"x" * size] * count)}
    if extra:
        columns["set_aside"] = pa.nulls(count, pa.string())
    return pa.RecordBatch.from_pydict(columns)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 7, 3000, 9000]), st.booleans()), max_size=30))
def test_every_message_comes_once_and_in_order(drawn: list[tuple[int, int, bool]]) -> None:
    following: dict[TopicPartition, int] = defaultdict(int)
    given_batches = []
    for partition, count, extra in drawn:
        tp = TopicPartition("t", partition)
        given_batches.append((tp, batch(following[tp], count, extra=extra)))
        following[tp] += count
    with_extra = sum(found.num_rows for _, found in given_batches if found.num_columns == 3)
    seen: dict[TopicPartition, list[int]] = defaultdict(list)
    passed_on = list(gathered(given_batches))
    for tp, found in passed_on:
        seen[tp] += found.column("offset").to_pylist()
    assert seen == {tp: list(range(end)) for tp, end in following.items()}
    assert sum(found.num_rows for _, found in passed_on if found.num_columns == 3) == with_extra
    assert all(found.num_rows <= max(ENOUGH_ROWS, 9000) for _, found in passed_on)


def test_topic_partitions_in_turns_are_gathered_each_by_itself() -> None:
    turns = [(tp, batch(n, 1)) for n in range(100) for tp in (A, B)]
    assert sorted((tp, found.num_rows) for tp, found in gathered(turns)) == [(A, 100), (B, 100)]


def test_a_large_batch_is_passed_on_as_it_is() -> None:
    large = batch(0, ENOUGH_ROWS)
    ((_, found),) = gathered([(A, large)])
    assert found is large


def test_what_waits_is_bounded_for_all_topic_partitions_together() -> None:
    """Of each less than enough."""
    one = ENOUGH_BYTES // 2
    taken = 0

    def coming() -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        nonlocal taken
        for number in range(40):
            taken += 1
            yield TopicPartition("t", number), batch(0, 1, one)

    next(iter(gathered(coming())))
    assert taken * one <= MOST_HELD_BYTES + one


def test_what_waits_behind_a_fault_is_not_passed_on() -> None:
    def coming() -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        yield A, batch(0, 1)
        raise CorruptBatch("object", 0, "damaged")

    with pytest.raises(CorruptBatch):
        next(gathered(coming()))
