"""The plan of a run: the estimated bytes of topic-partitions, and their assignment to lanes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.ingest import Lane, LaneShare
from waybill.archive.ingest.kafka.backlog import estimate_bytes
from waybill.archive.ingest.lane_plan import _assign_to_lanes, _count_lanes, _order
from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import LogRange


def shares(*sizes: int) -> list[LaneShare]:
    return [
        LaneShare(stream="s", topic="t", partition=number, estimated_bytes=size) for number, size in enumerate(sizes)
    ]


def test_estimate_is_lag_times_the_mean_size_of_the_last_object() -> None:
    log_range = LogRange(earliest=100, end=300)
    assert estimate_bytes(log_range, CommittedOffset(250, object_bytes=4_000, object_messages=10)) == 50 * 400
    assert estimate_bytes(log_range, CommittedOffset(300, object_bytes=4_000, object_messages=10)) == 0
    assert estimate_bytes(log_range, CommittedOffset(400)) == 0
    assert estimate_bytes(log_range, None) == 200 * 1024, "from the start, with an assumed size"


def test_largest_go_first_to_the_least_loaded_lane() -> None:
    lanes = _assign_to_lanes(shares(50, 10, 40, 30, 20), 2)
    assert [lane.estimated_bytes for lane in lanes] == [80, 70]
    assert sorted(share.partition for lane in lanes for share in lane.shares) == [0, 1, 2, 3, 4]


def test_small_topic_partitions_of_a_lane_come_first() -> None:
    (lane,) = _assign_to_lanes(_order(shares(50, 10, 1_000_000), {}), 1)
    assert [share.estimated_bytes for share in lane.shares] == [10, 50, 1_000_000]


def test_no_lane_is_empty() -> None:
    assert _assign_to_lanes([], 4) == []
    assert [len(lane.shares) for lane in _assign_to_lanes(shares(0, 0), 4)] == [1, 1]


@given(st.lists(st.integers(0, 1 << 40), max_size=40), st.integers(1, 12))
def test_assignment_keeps_everything_and_no_lane_is_twice_as_long_as_needed(sizes: list[int], count: int) -> None:
    lanes = _assign_to_lanes(shares(*sizes), count)
    assert len(lanes) <= count
    assert [lane.number for lane in lanes] == list(range(len(lanes)))
    packed = sorted(share.partition for lane in lanes for share in lane.shares)
    assert packed == list(range(len(sizes)))
    if lanes:
        longest = max(lane.estimated_bytes for lane in lanes)
        least = max(sum(sizes) / count, max(sizes))
        # `least` is at most the optimum. The planner counts one byte more for each topic-partition.
        assert longest <= 2 * least + len(sizes)


def test_lane_can_be_stored_as_json() -> None:
    (lane,) = _assign_to_lanes(shares(5, 7), 1)
    assert Lane.model_validate_json(lane.model_dump_json()) == lane


def test_stream_is_in_no_more_lanes_than_it_allows() -> None:
    many = [LaneShare(stream="many", topic="t", partition=number, estimated_bytes=1 << 30) for number in range(8)]
    few = [LaneShare(stream="few", topic="u", partition=number, estimated_bytes=1 << 30) for number in range(8)]
    lanes = _assign_to_lanes([*many, *few], 4, {"many": 4, "few": 1})
    assert len(lanes) == 4
    assert sum("few" in lane.streams for lane in lanes) == 1
    assert sum("many" in lane.streams for lane in lanes) == 3, "the lane of `few` has enough work"


def test_each_stream_has_one_lane_for_its_chores() -> None:
    lanes = _assign_to_lanes(
        [LaneShare(stream=f"s{n % 3}", topic="t", partition=n, estimated_bytes=1 << 30) for n in range(9)], 3
    )
    assert sorted(stream for lane in lanes for stream in lane.chores) == ["s0", "s1", "s2"]


def test_small_work_of_a_group_shares_one_lane_and_a_backlog_gets_all() -> None:
    assert _count_lanes(shares(*[1000] * 100), 4) == 1
    assert _count_lanes(shares(*[1000] * 500), 4) == 3
    assert _count_lanes(shares(10 << 30, 10 << 30), 4) == 4
    assert _count_lanes([], 4) == 1
