"""Ranges of offsets: which rows lie inside, and what the column bounds of a file tell."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import IntegerType, LongType, StringType

from waybill.base.errors import BackfillRefused
from waybill.config.names import TopicPartition
from waybill.tables.backfill.choice import RangeChoice, resolve
from waybill.tables.backfill.ranges import OffsetRanges, Placement
from waybill.tables.iceberg.schemas import TABLE_SCHEMA

TOPICS = ("a", "b", "a-topic-with-a-name-longer-than-bounds-1", "a-topic-with-a-name-longer-than-bounds-2")
TPS = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 2))
SPANS = st.tuples(st.integers(0, 20), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
RANGES = st.dictionaries(TPS, SPANS, min_size=1, max_size=5).map(OffsetRanges)
MESSAGES = st.lists(st.tuples(TPS, st.integers(0, 45)), min_size=1, max_size=30)


def rows_of(messages: list[tuple[TopicPartition, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([tp.topic for tp, _ in messages], pa.string()),
            pa.array([tp.partition for tp, _ in messages], pa.int32()),
            pa.array([offset for _, offset in messages], pa.int64()),
        ],
        names=["topic", "partition", "offset"],
    )


def file_of(messages: list[tuple[TopicPartition, int]]) -> DataFile:
    """Return the manifest entry of a file, with the bounds that Iceberg keeps: 16 characters of a text."""
    topics = [tp.topic for tp, _ in messages]
    low, high = min(topics)[:16], max(topics)
    if len(high) > 16:
        high = high[:15] + chr(ord(high[15]) + 1)
    partitions, offsets = [tp.partition for tp, _ in messages], [offset for _, offset in messages]
    return DataFile.from_args(
        lower_bounds={
            1: to_bytes(StringType(), low),
            2: to_bytes(IntegerType(), min(partitions)),
            3: to_bytes(LongType(), min(offsets)),
        },
        upper_bounds={
            1: to_bytes(StringType(), high),
            2: to_bytes(IntegerType(), max(partitions)),
            3: to_bytes(LongType(), max(offsets)),
        },
    )


@given(RANGES, MESSAGES)
def test_the_mask_has_exactly_the_rows_inside(ranges: OffsetRanges, messages: list[tuple[TopicPartition, int]]) -> None:
    inside = [tp in ranges.by_tp and ranges.by_tp[tp][0] <= o < ranges.by_tp[tp][1] for tp, o in messages]
    assert ranges.mask(rows_of(messages)).tolist() == inside


@given(RANGES, MESSAGES)
def test_bounds_never_place_a_file_where_its_rows_are_not(
    ranges: OffsetRanges, messages: list[tuple[TopicPartition, int]]
) -> None:
    inside = ranges.mask(rows_of(messages))
    placement = ranges.place(file_of(messages), TABLE_SCHEMA)
    if placement is Placement.INSIDE:
        assert inside.all()
    elif placement is Placement.OUTSIDE:
        assert not inside.any()
    else:
        assert placement is Placement.UNKNOWN


def test_a_file_of_one_topic_partition_within_the_range_need_not_be_read() -> None:
    ranges = OffsetRanges({TopicPartition("a", 0): (10, 20), TopicPartition("a", 1): (5, 30)})
    both = [(TopicPartition("a", 0), 12), (TopicPartition("a", 1), 19)]
    assert ranges.place(file_of(both[:1]), TABLE_SCHEMA) is Placement.INSIDE
    assert ranges.place(file_of(both), TABLE_SCHEMA) is Placement.INSIDE
    assert ranges.place(file_of([(TopicPartition("a", 0), 20)]), TABLE_SCHEMA) is Placement.OUTSIDE
    assert ranges.place(DataFile.from_args(lower_bounds=None, upper_bounds=None), TABLE_SCHEMA) is Placement.UNKNOWN


@given(RANGES, RANGES)
def test_overlap_is_symmetric_and_survives_a_document(one: OffsetRanges, other: OffsetRanges) -> None:
    assert one.overlap(other).by_tp == other.overlap(one).by_tp
    parsed = OffsetRanges.parse({tp: (first, end) for tp, (first, end) in one.document().items()})
    assert parsed.by_tp == one.by_tp


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing is chosen"),
        ({"offsets": ["flights/0"]}, "TOPIC/PARTITION@FIRST-LAST"),
        ({"offsets": ["flights@1-2"]}, "topic/partition"),
        ({"offsets": ["flights/0@20-10"]}, "reversed"),
        ({"offsets": ["flights/0@1-2"], "everything": True}, "not several"),
        ({"topic_partitions": ["flights/0"], "everything": True}, "one of them"),
        ({"since": "yesterday"}, "no time such as"),
        ({"since": "2026-01-02", "until": "2026-01-01"}, "reversed"),
    ],
)
def test_choices_that_cannot_be_granted_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BackfillRefused, match=message):
        RangeChoice.parse(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ("flights/7@0-1", r"nothing of flights/7 to build again; available: flights/0@100-199, flights/1@0-9"),
        ("flights/0@0-150", r"outside of what can be built again: 100–199"),
        ("flights/0@150-200", r"outside of .*: 100–199"),
        ("flights/1@10-", r"empty; available: 0–9"),
    ],
)
def test_ranges_outside_of_what_there_is_are_refused_with_the_valid_values(offsets: str, message: str) -> None:
    available = OffsetRanges({TopicPartition("flights", 0): (100, 200), TopicPartition("flights", 1): (0, 10)})
    with pytest.raises(BackfillRefused, match=message):
        resolve(RangeChoice.parse(offsets=[offsets]), available, tables=None)  # type: ignore[arg-type]


def test_open_ends_and_whole_topic_partitions_reach_to_the_bounds() -> None:
    available = OffsetRanges({TopicPartition("flights", 0): (100, 200), TopicPartition("flights", 1): (0, 10)})

    def resolved(**options: object) -> dict[str, list[int]]:
        return resolve(RangeChoice.parse(**options), available, tables=None).document()  # type: ignore[arg-type]

    assert resolved(offsets=["flights/0@150-", "flights/1@-4"]) == {"flights/0": [150, 200], "flights/1": [0, 5]}
    assert resolved(topic_partitions=["flights/1"]) == {"flights/1": [0, 10]}
    assert resolved(everything=True) == {"flights/0": [100, 200], "flights/1": [0, 10]}
