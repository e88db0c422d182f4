"""Sets of messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.config.names import TopicPartition
from waybill.tables.quarantine.offset_sets import OffsetsBuilder, OffsetSet, by_topic_partition

MESSAGES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c.d"]), st.sampled_from([0, 1, 2**31 - 1]), st.integers(0, 2**62)),
    max_size=60,
)


def batch(messages: list[tuple[str, int, int]]) -> pa.RecordBatch:
    topic, partition, offset = ([m[i] for m in messages] for i in range(3))
    return pa.RecordBatch.from_arrays(
        [pa.array(topic, pa.string()), pa.array(partition, pa.int32()), pa.array(offset, pa.int64())],
        names=["topic", "partition", "offset"],
    )


def offsets_of(messages: list[tuple[str, int, int]]) -> OffsetSet:
    builder = OffsetsBuilder()
    builder.add_rows(batch(messages))
    return builder.result()


@settings(deadline=None)
@given(MESSAGES, MESSAGES)
def test_a_set_contains_exactly_the_added_messages(
    added: list[tuple[str, int, int]], asked: list[tuple[str, int, int]]
) -> None:
    found = offsets_of(added)
    assert len(found) == len(set(added))
    assert found.mask(batch([*asked, *added])).tolist() == [m in set(added) for m in [*asked, *added]]
    assert found.union(offsets_of(asked)).mask(batch([*asked, *added])).all()


@settings(deadline=None)
@given(MESSAGES)
def test_a_set_is_read_back_from_its_file(added: list[tuple[str, int, int]]) -> None:
    found = offsets_of(added)
    again = OffsetSet.from_parquet(found.to_parquet())
    assert again.ranges == found.ranges
    assert len(again) == len(found)
    assert again.mask(batch(added)).all()
    for tp, (first, following) in found.ranges.items():
        assert (found.of(tp)[0], found.of(tp)[-1] + 1) == (first, following)


@settings(deadline=None)
@given(MESSAGES)
def test_messages_that_were_added_twice_are_named(added: list[tuple[str, int, int]]) -> None:
    builder = OffsetsBuilder()
    for message in added:
        builder.add_rows(batch([message]))
    twice = {
        f"{topic}/{partition}@{offset}"
        for topic, partition, offset in added
        if added.count((topic, partition, offset)) > 1
    }
    found = builder.repeated()
    assert len(found) == len(twice)
    assert set(found) == twice


def test_rows_are_grouped_by_topic_and_partition() -> None:
    rows = batch([("a", 1, 5), ("b", 1, 5), ("a", 1, 3), ("a", 0, 9)])
    found = {tp: places.tolist() for tp, places in by_topic_partition(rows)}
    assert found == {TopicPartition("a", 0): [3], TopicPartition("a", 1): [0, 2], TopicPartition("b", 1): [1]}
    assert not np.any(OffsetSet().mask(rows))
