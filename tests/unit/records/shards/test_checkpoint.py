import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.records.shards.checkpoint import Checkpoint, PositionKind, ShardPosition

SEQUENCES = st.integers(0, 2**128 - 1).map(str)
STARTS = st.just(ShardPosition.trim_horizon()) | st.integers(0, 2**42).map(ShardPosition.at_timestamp)
READ = st.builds(lambda start, sequence: start.after(sequence), STARTS, SEQUENCES)
POSITIONS = st.builds(
    lambda position, caught_up: position if caught_up is None else position.caught_up(caught_up),
    STARTS | READ | st.builds(lambda position: position.at_shard_end(), STARTS | READ),
    st.none() | st.integers(0, 2**42),
)


@given(st.dictionaries(st.text(min_size=1, max_size=20), POSITIONS, max_size=5))
def test_a_checkpoint_survives_json(positions: dict[str, ShardPosition]) -> None:
    checkpoint = Checkpoint(positions)
    assert Checkpoint.of_fields(json.loads(json.dumps(checkpoint.to_fields()))) == checkpoint


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"at": "latest"},
        {"at": "after_sequence"},
        {"at": "after_sequence", "sequence": "x"},
        {"at": "at_timestamp"},
        {"at": "trim_horizon", "timestamp_ms": 5},
    ],
)
def test_a_position_that_states_too_little_or_too_much_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        ShardPosition.of_fields(fields)


def test_sequence_numbers_are_compared_as_numbers() -> None:
    start = ShardPosition.trim_horizon()
    assert start.after("9").is_behind(start.after("10"))
    assert not start.after("10").is_behind(start.after("9"))
    assert start.is_behind(start.after("0"))


def test_the_end_of_a_shard_is_ahead_of_its_last_record() -> None:
    last = ShardPosition.trim_horizon().after("10")
    assert last.is_behind(last.at_shard_end())
    assert last.at_shard_end().sequence == "10"
    assert last.at_shard_end().kind is PositionKind.SHARD_END


def test_the_time_up_to_which_a_shard_is_archived_never_goes_back() -> None:
    position = ShardPosition.trim_horizon().caught_up(9)
    assert position.caught_up(5).caught_up_ms == 9
    assert position.after("1").caught_up_ms == 9
    assert position.at_shard_end().caught_up_ms == 9


def test_an_ended_shard_can_be_left_out() -> None:
    end = ShardPosition.trim_horizon().at_shard_end()
    assert Checkpoint({"a": end, "b": end}).without(["a"]) == Checkpoint({"b": end})
