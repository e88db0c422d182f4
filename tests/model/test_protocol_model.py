"""The commit protocol under every schedule within bounds, and under many beyond them (docs/protocol.md).

Each schedule runs the real code on a model in memory (model_lanes.py). Lanes take turns, die, and lose their session
without noticing. Calls are lost, refused, late, or succeed with their answer lost. After every step:

- the chain holds each message that belongs into the archive exactly once, and no message of an aborted transaction;
- the objects are contiguous, and none is ever overwritten;
- the committed offset is the end of an object of the chain, and moves back only if ZooKeeper lost its data.

No lane ends with a named stop or any other error that needs a person, and none fails without a fault. At the end, one
undisturbed run archives the rest.

`WAYBILL_MODEL_CHECK=1` explores one preemption and one fault more than CI does, and hypothesis gets ten times its
examples: this takes about half an hour. `-k` picks scenarios.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import model_guards as guards
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_explorer import Counterexample, Explored, explore, run_schedule
from model_lanes import LaneSetup, Scenario

from waybill.base import failpoints

DEEPER = int(os.environ.get("WAYBILL_MODEL_CHECK", "0"))
pytestmark = pytest.mark.timeout(0 if DEEPER else 900)

IN_PARTS = 400
"""The size of a part in bytes. Every object of the model is larger."""

# Two lanes that cut at different offsets, so that their objects of one name differ.
SHORT_THEN_LONG = (LaneSetup("A", "1KiB"), LaneSetup("B", "2KiB"))
LONG_THEN_SHORT = (LaneSetup("A", "2KiB"), LaneSetup("B", "1KiB"))


@dataclass(frozen=True)
class Bounds:
    """A scenario, and the bounds within which CI explores it."""

    scenario: Scenario
    preemptions: int
    faults: int

    def explore(self, deeper: int = 0) -> Explored:
        faults = self.faults + deeper if self.faults else 0
        return explore(self.scenario, preemptions=self.preemptions + deeper, faults=faults)


EXPLORED = {
    "two lanes without a lock": Bounds(Scenario(lanes=LONG_THEN_SHORT, has_locks=False), 2, 0),
    "three lanes without a lock": Bounds(
        Scenario("d", lanes=(*SHORT_THEN_LONG, LaneSetup("C")), has_locks=False), 2, 0
    ),
    "the log grows": Bounds(Scenario("dad", lanes=SHORT_THEN_LONG, visible=1, has_locks=False), 2, 0),
    "a lane is killed": Bounds(Scenario("did", lanes=SHORT_THEN_LONG, crashes=True), 2, 1),
    "two lanes are killed": Bounds(Scenario("dc", lanes=LONG_THEN_SHORT, part_bytes=IN_PARTS, crashes=True), 1, 2),
    "a session ends": Bounds(Scenario("dd", lanes=SHORT_THEN_LONG, expiries=True), 2, 1),
    "ZooKeeper is wiped": Bounds(Scenario("hd", lanes=LONG_THEN_SHORT, wipes=True), 2, 1),
    "ZooKeeper is wiped and a lane killed": Bounds(
        Scenario("d", lanes=LONG_THEN_SHORT, wipes=True, crashes=True), 1, 2
    ),
    "a call of an upload in parts goes wrong": Bounds(
        Scenario("d", lanes=LONG_THEN_SHORT, part_bytes=IN_PARTS, call_faults=True, has_locks=False), 1, 1
    ),
    "two calls go wrong": Bounds(Scenario("d", lanes=(LaneSetup("A"),), call_faults=True), 0, 2),
    "a chain begins at the latest offset, and ZooKeeper is wiped": Bounds(
        Scenario("ddd", lanes=SHORT_THEN_LONG, visible=1, start="latest", wipes=True), 1, 2
    ),
    "a gap is accepted while a lane sleeps": Bounds(
        Scenario("dd", lanes=(LaneSetup("A"), LaneSetup("P", accepts=True)), retention=True, has_locks=False), 1, 1
    ),
    "retention": Bounds(Scenario("dd", lanes=SHORT_THEN_LONG, retention=True, crashes=True), 1, 1),
}

WITHOUT_LOCKS = Bounds(
    Scenario("dd", lanes=LONG_THEN_SHORT, has_locks=False, crashes=True, expiries=True, wipes=True, call_faults=True),
    1,
    1,
)


class Seen(set[tuple[str, str]]):
    """The events of all explorations of this module, and the number of explorations."""

    explorations = 0

    def add_all(self, explored: Explored) -> None:
        self.update(explored.seen)
        self.explorations += 1


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.mark.parametrize("name", EXPLORED)
def test_no_schedule_breaks_a_promise(name: str, seen: Seen, report_explored: Callable[[Explored], None]) -> None:
    explored = EXPLORED[name].explore(DEEPER)
    report_explored(explored)
    seen.add_all(explored)
    assert explored.schedules > 50


def test_locks_carry_no_correctness(seen: Seen, report_explored: Callable[[Explored], None]) -> None:
    """With every kind of fault and without locks there is no counterexample."""
    explored = WITHOUT_LOCKS.explore(DEEPER)
    report_explored(explored)
    seen.add_all(explored)


def test_explorations_reach_every_failpoint_and_every_fault(seen: Seen) -> None:
    """After the explorations: each failpoint of ingest was reached, and each kind of call had each kind of fault."""
    if seen.explorations <= len(EXPLORED):  # there is one more, without locks
        pytest.skip("not all explorations were run")
    assert {what for what, _ in seen} >= {f"at {name}" for name in failpoints.INGEST}
    lost = "done, the answer lost"
    for call in ("s3: put", "s3: complete", "zookeeper: create", "zookeeper: set"):
        assert {(call, lost), (call, "timed out, and still on its way")} <= seen
    for call in ("s3: put", "s3: complete"):
        assert {(call, "answered with 409"), (call, "answered with 500, not done")} <= seen
        assert (call, f"{lost}, and sent again by the client") in seen
    assert ("zookeeper: get", "answered from before the last write") in seen


# --- beyond the bounds ---

LANES = st.lists(st.tuples(st.sampled_from(["1KiB", "2KiB", "4KiB"]), st.integers(1, 2)), min_size=2, max_size=3).map(
    lambda found: tuple(LaneSetup(name, *how) for name, how in zip("ABC", found, strict=False))
)

SCENARIOS = st.builds(
    Scenario,
    log=st.text("dcaih", min_size=1, max_size=4),
    lanes=LANES,
    visible=st.none() | st.integers(0, 2),
    part_bytes=st.sampled_from([IN_PARTS, 1 << 16]),
    fetch_bytes=st.sampled_from([1, 1400, 1 << 20]),
    has_locks=st.booleans(),
    retention=st.booleans(),
    call_faults=st.just(True),
    crashes=st.just(True),
    expiries=st.just(True),
    wipes=st.just(True),
).map(lambda scenario: replace(scenario, visible=_within(scenario)))

DEVIATIONS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 15)), max_size=12)
"""Each deviation: the number of usual steps before it, and which of the other options is taken."""


def _within(scenario: Scenario) -> int | None:
    return None if scenario.visible is None else min(scenario.visible, len(scenario.log))


@settings(
    max_examples=200 * 10**DEEPER,
    deadline=None,
    derandomize=not DEEPER,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(SCENARIOS, DEVIATIONS)
def test_no_random_schedule_breaks_a_promise(scenario: Scenario, deviations: list[tuple[int, int]]) -> None:
    def picks() -> Iterator[int]:
        for usual, other in deviations:
            yield from [0] * usual
            yield other
        while True:
            yield 0

    pick = picks()
    run_schedule(scenario, lambda options: next(pick) % options if options > 1 else 0)


# --- the check finds counterexamples ---

HARMFUL: dict[str, tuple[Callable[[], AbstractContextManager[None]], Bounds, str]] = {
    "objects are created unconditionally": (
        nullcontext,
        Bounds(Scenario(lanes=SHORT_THEN_LONG, expiries=True, s3_is_conditional=False), 2, 1),
        "was overwritten",
    ),
    "committed offsets are set whatever their version": (
        nullcontext,
        Bounds(Scenario(lanes=SHORT_THEN_LONG, expiries=True, zookeeper_is_versioned=False), 2, 1),
        "the committed offset went back",
    ),
    "the offset is committed before the object exists": (
        guards.commit_before_completing,
        Bounds(Scenario(lanes=SHORT_THEN_LONG, crashes=True), 0, 1),
        "the committed offset is 2, the chain ends at 0",
    ),
    "a refused lane adopts with its own end": (
        guards.adopt_with_own_end,
        Bounds(Scenario(lanes=SHORT_THEN_LONG, expiries=True), 2, 1),
        "the committed offset is",
    ),
    "a refused lane takes the existing object for its own": (
        guards.take_refusal_for_success,
        Bounds(Scenario(lanes=SHORT_THEN_LONG, part_bytes=IN_PARTS, expiries=True), 2, 1),
        "the committed offset is",
    ),
    "the chain start is lost with ZooKeeper's data": (
        guards.forget_chain_start,
        Bounds(Scenario("dddd", lanes=SHORT_THEN_LONG, visible=1, start="latest", wipes=True), 1, 1),
        "the committed offset is",
    ),
}


@pytest.mark.parametrize("guard", HARMFUL)
def test_check_finds_a_counterexample_when_a_guard_is_off(guard: str) -> None:
    turned_off, bounds, reason = HARMFUL[guard]
    with turned_off(), pytest.raises(Counterexample) as found:
        bounds.explore()
    assert reason in found.value.reason
    assert "s3: " in str(found.value), "the error prints the schedule"


def test_lane_that_forgets_the_chain_adopts_it_object_by_object() -> None:
    """Ignoring the listing costs work, and nothing else: the lane is refused at each existing object, and adopts it."""
    with guards.forget_chain():
        explore(Scenario("dd", lanes=LONG_THEN_SHORT, wipes=True, crashes=True), preemptions=1, faults=1)
