"""Slots of a Kinesis stream: every interleaving of a small case, and random histories, against an oracle."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_slots import Pass, Planner, World

from waybill.archive.ingest.kinesis.slot_assignment import StreamStart
from waybill.records.shards.checkpoint import PositionKind

LATEST = StreamStart(PositionKind.AT_TIMESTAMP)
STARTS = st.sampled_from([StreamStart(), LATEST])


# --- every interleaving of a small case -------------------------------------------------------------------------------


class SmallCase:
    """Two plans, a split and a merge while they run, lanes in between, one wipe, and one crash."""

    def __init__(self, start: StreamStart, *, begun: bool, faults: int) -> None:
        self.faults = faults
        self.world = World(slots=2, shards=2, start=start)
        if begun:
            self.world.plan()
            self.world.run_lanes()
        self.events: list[Callable[[], object]] = [self._split, self.world.run_lanes, self._merge, self.world.run_lanes]
        self.planners = [Planner(self.world), Planner(self.world)]
        self.has_wiped = self.has_crashed = False
        self.last = -1

    def _split(self) -> None:
        for child in self.world.split("shardId-000000000000"):
            self.world.put(child)

    def _merge(self) -> None:
        self.world.put(self.world.merge("shardId-000000000001", "shardId-000000000002"))

    def options(self) -> list[str]:
        found = [f"step {number}" for number, each in enumerate(self.planners) if not each.is_done]
        if not found:
            return []
        if f"step {self.last}" in found:  # the usual step comes first
            found.sort(key=lambda each: each != f"step {self.last}")
        found += ["event"] if self.events else []
        if self.faults:
            found += [] if self.has_wiped else ["wipe"]
            found += [] if self.has_crashed else [f"kill {each.split()[1]}" for each in found if "step" in each]
        return found

    def take(self, option: str) -> None:
        what, _, number = option.partition(" ")
        if what == "step":
            self.last = int(number)
            self.planners[self.last].step()
        elif what == "kill":
            self.planners[int(number)].kill()
            self.faults -= 1
            self.has_crashed = True
        elif what == "wipe":
            self.world.wipe()
            self.faults -= 1
            self.has_wiped = True
        else:
            self.events.pop(0)()

    def state(self) -> tuple[object, ...]:
        plans = tuple((each.history, each.is_done) for each in self.planners)
        return self.world.view(), plans, len(self.events), self.has_wiped, self.has_crashed, self._maps()

    def _maps(self) -> tuple[frozenset[str], ...]:
        return tuple(frozenset(each.assignments) for _, each in sorted(self.world.maps.items()))

    def finish(self) -> None:
        while self.events:
            self.events.pop(0)()
        self.world.settle()

    def close(self) -> None:
        for each in self.planners:
            if not each.is_done:
                each.kill()


def explore(make: Callable[[], SmallCase], preemptions: int) -> tuple[int, int]:
    """Run every schedule with this number of changes from one plan to the other. Return schedules and states."""
    left: list[tuple[list[str], int]] = [([], preemptions)]
    seen: dict[tuple[object, ...], int] = {}
    ended: set[tuple[object, ...]] = set()
    schedules = 0
    while left:
        taken, budget = left.pop()
        schedules += 1
        case = make()
        try:
            for option in taken:
                case.take(option)
            while options := case.options():
                state = case.state()
                if seen.get(state, -1) >= budget:
                    break
                seen[state] = budget
                usual = options[0]
                for other in options[1:]:
                    cost = int(other.startswith("step") and usual == f"step {case.last}")
                    if cost <= budget:
                        left.append(([*taken, other], budget - cost))
                case.take(usual)
                taken = [*taken, usual]
            else:
                if case.state() not in ended:
                    ended.add(case.state())
                    case.finish()
        except AssertionError as error:
            raise AssertionError(f"{error}\nafter {taken}") from error
        finally:
            case.close()
    return schedules, len(seen)


@pytest.mark.parametrize(("begun", "faults"), [pytest.param(True, 1, marks=pytest.mark.deep), (False, 0)])
def test_plans_side_by_side_keep_the_promises_in_every_schedule(begun: bool, faults: int) -> None:
    schedules, states = explore(lambda: SmallCase(LATEST, begun=begun, faults=faults), preemptions=1)
    assert states > 1000, (schedules, states)


@pytest.mark.deep
@pytest.mark.parametrize("start", [StreamStart(), LATEST])
def test_first_plans_side_by_side_keep_the_promises_with_a_wipe_or_a_crash(start: StreamStart) -> None:
    explore(lambda: SmallCase(start, begun=False, faults=1), preemptions=1)


@pytest.mark.deep
def test_plans_side_by_side_keep_the_promises_with_a_wipe_and_a_crash() -> None:
    explore(lambda: SmallCase(LATEST, begun=True, faults=2), preemptions=1)


# --- random histories -------------------------------------------------------------------------------------------------


class History:
    """Random steps of a stream, two plans that may freeze and die, and lanes that commit late."""

    def __init__(self, seed: int, slots: int, shards: int, start: StreamStart) -> None:
        self.random = random.Random(seed)
        self.world = World(slots=slots, shards=shards, start=start)
        self.planners: list[Planner] = []
        self.passes: list[Pass] = []

    def step(self) -> None:
        act = self.random.choices(
            [self._put, self._reshard, self._plan, self._lane, self._commit, self._expire, self._wipe, self._whole],
            [4, 2, 12, 4, 4, 2, 0.5, 1],
        )[0]
        act()

    def _put(self) -> None:
        self.world.put(self.random.choice(self.world.open_ids))

    def _reshard(self) -> None:
        if len(self.world.shards) > 25:
            return
        choice = self.random.sample(self.world.open_ids, k=min(2, len(self.world.open_ids)))
        if len(choice) == 2 and self.random.random() < 0.45:
            self.world.merge(*choice)
        else:
            self.world.split(choice[0])

    def _plan(self) -> None:
        self.planners = [each for each in self.planners if not each.is_done]
        if len(self.planners) < 2 and self.random.random() < 0.3:
            self.planners.append(Planner(self.world))
        elif self.planners:
            planner = self.random.choice(self.planners)
            if self.random.random() < 0.02:
                planner.kill()
            else:
                planner.step()

    def _whole(self) -> None:
        """Check that an undisturbed plan assigns free slots first."""
        self.world.plan()
        free, before = self.world.free_slots(), set(self.world.assigned)
        self.world.run_lanes()
        free = self.world.free_slots()
        added = [each for each in self.world.plan().added if each.shard_id not in before]
        used = [each.slot for each in added]
        assert len(set(used) & free) == min(len(free), len(used)), (free, used)

    def _lane(self) -> None:
        done = self.world.begin_pass(self.random.randrange(self.world.slots), most=self.random.choice([1, 2, 10]))
        if done is not None:
            self.passes.append(done)

    def _commit(self) -> None:
        if self.passes:
            self.world.commit(self.passes.pop(self.random.randrange(len(self.passes))))

    def _expire(self) -> None:
        """Retention removes what is archived, and before the first plan anything."""
        for shard_id in self.world.shards:
            is_archived = self.world.ended(shard_id) or not (self.world.origin_ids or self.planners)
            if is_archived and self.world.may_expire(shard_id):
                self.world.expire(shard_id)
                return

    def _wipe(self) -> None:
        self.world.wipe()

    def finish(self) -> None:
        for each in self.planners:
            while not each.is_done:
                each.step()
        for done in self.passes:
            self.world.commit(done)
        self.world.settle()


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 4), STARTS)
def test_every_record_is_read_by_one_slot_in_any_history(
    seed: int, slots: int, shards: int, start: StreamStart
) -> None:
    history = History(seed, slots, shards, start)
    for _ in range(120):
        history.step()
    history.finish()


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_shard_that_retention_removes_too_early_is_a_gap_and_its_children_wait(seed: int, slots: int) -> None:
    """Retention also removes shards that nobody has read, at any time after the first plan."""
    chance = random.Random(seed)
    history = History(seed, slots, 2, StreamStart())
    world = history.world
    world.plan()
    accepted: set[str] = set()
    for _ in range(60):
        chance.choice([history._put, history._reshard, world.plan, world.wipe, world.run_lanes])()
        expirable = [each for each in world.shards if world.may_expire(each)]
        if expirable and chance.random() < 0.3:
            world.expire(chance.choice(expirable))
    for _ in range(3 * len(world.shards) + 3):
        for loss in world.plan().losses:
            assert not world.ended(loss.shard_id)
            assert world.shards[loss.shard_id].is_removed
            accepted.add(loss.shard_id)
            world.accept_gap(loss.slot, loss.shard_id)
        world.run_lanes()
    assert not world.plan().losses
    parents = {parent for shard in world.shards.values() for parent in shard.parents}
    for shard_id, shard in world.shards.items():
        complete = world.archived.get(shard_id, []) == list(range(len(shard.arrivals)))
        if not complete:  # it, or a descendant that retention removed with it, was shown as a gap
            assert shard.is_removed
            assert shard_id in accepted or (shard_id in parents and _has_accepted_descendant(world, shard_id, accepted))


def _has_accepted_descendant(world: World, shard_id: str, accepted: set[str]) -> bool:
    children = [each.shard_id for each in world.shards.values() if shard_id in each.parents]
    return any(each in accepted or _has_accepted_descendant(world, each, accepted) for each in children)
