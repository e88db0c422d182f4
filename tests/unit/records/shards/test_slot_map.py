"""The slot map: which slot takes a shard, when it may start, what was lost, what may be forgotten."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import ConfigError, ShardNotOwned
from waybill.records.shards.checkpoint import Checkpoint, ShardPosition
from waybill.records.shards.lineage import Shard, by_id
from waybill.records.shards.slot_map import (
    Assignment,
    RetentionLoss,
    SlotMap,
    StreamOrigin,
    assignable,
    check_owned,
    check_slot_count,
    choose_slot,
    gaps,
    garbage,
    plan_assignments,
)

HORIZON = ShardPosition.trim_horizon()
READ = HORIZON.after("5")
ENDED = READ.at_shard_end()


def shard(shard_id: str, *parents: str) -> Shard:
    return Shard(shard_id, 0, 9, "1", "", *parents)


def a_map(initial: str = "", **slots: int) -> SlotMap:
    """A map whose keywords are the slots of shards. The parents of `ab_x` are a and b."""
    origin = StreamOrigin("arn", 77, frozenset(initial), HORIZON.caught_up(77))
    made = [
        Assignment(name, slot, HORIZON, tuple(name.partition("_")[0]) if "_" in name else ())
        for name, slot in slots.items()
    ]
    return SlotMap(origin, {each.shard_id: each for each in made})


def checkpoints(**positions: tuple[int, ShardPosition]) -> dict[int, Checkpoint]:
    found = dict.fromkeys(range(6), Checkpoint())
    for name, (slot, position) in positions.items():
        found[slot] = found[slot].moved(name, position)
    return found


def test_the_slot_of_a_parent_is_taken_among_free_ones_else_the_lowest() -> None:
    slot_map, ended = a_map(a=0, b=1, c=2), checkpoints(a=(0, ENDED), c=(2, ENDED))
    assert choose_slot((), 4, slot_map, ended) == 0
    assert choose_slot(("c",), 4, slot_map, ended) == 2
    assert choose_slot(("b",), 4, slot_map, ended) == 0, "its slot is not free"


def test_without_a_free_slot_the_one_with_the_fewest_open_shards_is_taken() -> None:
    slot_map = a_map(a=0, b=0, c=1, d=2, e=2)
    assert choose_slot((), 3, slot_map, checkpoints()) == 1
    assert choose_slot((), 3, slot_map, checkpoints(d=(2, ENDED))) == 1
    assert choose_slot((), 3, slot_map, checkpoints(d=(2, ENDED), a=(0, READ))) == 1


def test_a_slot_of_unknown_state_is_not_free() -> None:
    assert choose_slot((), 2, a_map(a=0), {}) == 1


@pytest.mark.parametrize(
    ("a", "b", "starts"), [(ENDED, ENDED, True), (ENDED, READ, False), (READ, ENDED, False), (ENDED, None, False)]
)
def test_a_merge_starts_when_both_parents_have_ended(a: ShardPosition, b: ShardPosition | None, starts: bool) -> None:
    listed = by_id([shard("a"), shard("b"), shard("c", "a", "b")])
    known = checkpoints(a=(0, a), **({} if b is None else {"b": (1, b)}))
    assert [each.shard_id for each in assignable(listed, a_map("ab", a=0, b=1), known)] == (["c"] if starts else [])


def test_a_parent_that_was_gone_at_the_origin_counts_as_ended() -> None:
    listed = by_id([shard("c", "a", "b")])
    assert [each.shard_id for each in assignable(listed, a_map("c"), {})] == ["c"]


def test_a_shard_removed_while_it_waited_gets_a_slot_that_shows_the_loss() -> None:
    listed = by_id([shard("c", "b")])  # b came after the origin, waited for a, and was removed
    slot_map = a_map("a", a=0)
    planned = plan_assignments(listed, slot_map, checkpoints(a=(0, READ)), slots=2, now_ms=5)
    assert [(each.shard_id, each.slot) for each in planned] == [("b", 1)]
    slot_map = slot_map.extended(planned)
    known = checkpoints(a=(0, READ))
    assert gaps(listed, slot_map, known) == (
        RetentionLoss("a", 0, is_removed=True),
        RetentionLoss("b", 1, is_removed=True),
    )
    assert plan_assignments(listed, slot_map, known, slots=2, now_ms=6) == []
    accepted = checkpoints(a=(0, READ), b=(1, HORIZON.at_shard_end()))
    assert [each.shard_id for each in plan_assignments(listed, slot_map, accepted, slots=2, now_ms=6)] == ["c"]


def test_a_slot_of_unknown_state_shows_no_loss() -> None:
    assert gaps({}, a_map("a", a=0), {}) == ()


def test_a_shard_that_the_trim_horizon_passed_before_its_first_read_is_a_loss() -> None:
    listed, slot_map = by_id([shard("a"), shard("b")]), a_map(a=0, b=1)
    cut = ("a", "b")
    assert gaps(listed, slot_map, checkpoints(b=(1, READ)), cut) == (RetentionLoss("a", 0, is_removed=False),)
    assert gaps(listed, slot_map, checkpoints(b=(1, READ), a=(0, HORIZON.caught_up(9))), cut) == (), "accepted"


def test_a_checkpoint_forgets_an_ended_shard_only_when_a_child_is_assigned() -> None:
    checkpoint, listed = Checkpoint({"a": ENDED}), by_id([shard("z", "y")])
    assert garbage(listed, a_map(a=0), checkpoint) == frozenset()
    slot_map = a_map(a=0, a_x=1)
    assert garbage(listed, slot_map, checkpoint) == {"a"}
    assert garbage(by_id([shard("a")]), slot_map, checkpoint) == frozenset()
    assert garbage(by_id([shard("x", "a")]), slot_map, checkpoint) == frozenset()
    assert slot_map.has_ended("a", {0: Checkpoint()}), "a forgotten shard has still ended"
    assert slot_map.open_shards(0, Checkpoint()) == ()
    assert [each.shard_id for each in slot_map.open_shards(1, Checkpoint())] == ["a_x"]


def test_the_config_must_have_the_slots_of_open_shards() -> None:
    slot_map = a_map(a=0, b=4)
    check_slot_count("t", 5, slot_map, checkpoints())
    check_slot_count("t", 1, slot_map, checkpoints(b=(4, ENDED)))
    with pytest.raises(ConfigError, match=r"t: 2 slots are configured, but slot 4 holds b.*at least 5 slots"):
        check_slot_count("t", 2, slot_map, checkpoints())
    with pytest.raises(ConfigError, match="at least 1"):
        check_slot_count("t", 0, slot_map, {})


def test_a_checkpoint_with_a_shard_of_another_slot_is_refused() -> None:
    check_owned(a_map(a=0), "t", 0, Checkpoint({"a": READ}))
    with pytest.raises(ShardNotOwned, match="slot 1 names a, which is assigned to slot 0"):
        check_owned(a_map(a=0), "t", 1, Checkpoint({"a": READ}))
    with pytest.raises(ShardNotOwned, match="assigned to no slot"):
        check_owned(a_map(a=0), "t", 0, Checkpoint({"a": READ, "b": READ}))


STARTS = st.sampled_from([HORIZON, HORIZON.caught_up(9), ShardPosition.at_timestamp(8).caught_up(8)])
NAMES = st.text(min_size=1, max_size=9)
ORIGINS = st.builds(StreamOrigin, st.text(max_size=9), st.integers(0, 2**42), st.frozensets(NAMES, max_size=4), STARTS)
ASSIGNMENTS = st.builds(
    Assignment, NAMES, st.integers(0, 99), STARTS, st.lists(NAMES, max_size=2).map(tuple), NAMES, st.integers(0, 2**42)
)


@given(ORIGINS, st.lists(ASSIGNMENTS, max_size=5))
def test_a_map_survives_json(origin: StreamOrigin, made: list[Assignment]) -> None:
    slot_map = SlotMap(origin).extended(made)
    assert SlotMap.of_fields(json.loads(json.dumps(slot_map.to_fields()))) == slot_map


def test_an_assignment_stays_when_a_map_is_extended() -> None:
    assert a_map(a=0).extended([Assignment("a", 3, HORIZON)]).assignments["a"].slot == 0


@pytest.mark.parametrize("start", [{"at": "shard_end"}, {"at": "after_sequence", "sequence": "4"}])
def test_a_stream_cannot_start_behind_the_first_records_of_its_shards(start: dict[str, str]) -> None:
    fields = {**StreamOrigin("arn", 77, frozenset("a"), HORIZON).to_fields(), "initial_start": start}
    with pytest.raises(ValueError, match="cannot start at"):
        StreamOrigin.of_fields(fields)
