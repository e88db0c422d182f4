"""Turns within a lane and over successive runs, by a clock that only work moves on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.config import Config
from waybill.coordination import Committed
from waybill.errors import KafkaUnavailable
from waybill.ingest import Clock, Lane, LaneShare, Outcome, PartitionReport, Turn, drain_lane
from waybill.ingest import lane as lane_module
from waybill.ingest.plan import _overdue, _pack
from waybill.names import TopicPartition
from waybill.sources.cluster import Topic
from waybill.sources.kafka import LogRange, Sight

OVERHEAD_SECONDS = 0.05
BYTES_PER_SECOND = 1000
OBJECT_BYTES = 200


@dataclass
class World:
    """Topic-partitions with a backlog in bytes, and runs over them that take time."""

    backlog: dict[TopicPartition, int]
    leaderless: set[TopicPartition] = field(default_factory=set)
    now: float = 1_000.0
    committed: dict[TopicPartition, Committed] = field(default_factory=dict)
    turns: list[TopicPartition] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        return Clock(wall=lambda: self.now, monotonic=lambda: self.now)

    def look(self, tps: list[TopicPartition]) -> dict[TopicPartition, Sight]:
        return {tp: Sight(Topic(tp.topic, "", (0,)), LogRange(0, 1)) for tp in tps if tp not in self.leaderless}

    def run(self, _services: object, _stream: object, tp: TopicPartition, *, turn: Turn, clock: Clock) -> Any:
        assert clock.monotonic() == self.now
        return SimpleNamespace(run=lambda: self._take_turn(tp, turn))

    def _take_turn(self, tp: TopicPartition, turn: Turn) -> PartitionReport:
        """As `PartitionRun` does: object by object, until the turn is over."""
        self.turns.append(tp)
        if tp in self.leaderless:
            self.now += 30.0
            return PartitionReport(topic=tp.topic, partition=0, outcome=Outcome.FAILED)
        self.now += OVERHEAD_SECONDS
        while self.backlog[tp]:
            taken = min(OBJECT_BYTES, self.backlog[tp])
            self.now += taken / BYTES_PER_SECOND
            self.backlog[tp] -= taken
            self.committed[tp] = Committed(0, committed_at_ms=int(self.now * 1000), version=0)
            if self.now >= min(turn.yields_at, turn.deadline):
                break
        outcome = Outcome.OUT_OF_TIME if self.backlog[tp] else Outcome.UP_TO_DATE
        return PartitionReport(topic=tp.topic, partition=0, outcome=outcome)

    def plan(self, config: Config, lanes: int = 1) -> list[Lane]:
        shares = [LaneShare(topic=tp.topic, partition=0, estimated_bytes=size) for tp, size in self.backlog.items()]
        waiting = [share for share in shares if share.estimated_bytes or share.tp in self.leaderless]
        overdue = _overdue(waiting, self.committed, int(self.now * 1000), config.stream("s").ingest.budget)
        return _pack(waiting, lanes, overdue)

    def one_run(self, config: Config, lanes: int = 1) -> list[PartitionReport]:
        """A run of the DAG: its lanes side by side, then the rest of the minute."""
        started, ended, reports = self.now, [self.now], []
        for lane in self.plan(config, lanes):
            self.now = started
            services: Any = SimpleNamespace(source=self, coordinator=SimpleNamespace(list_stops=list), store=None)
            reports += drain_lane(services, config, "s", lane, clock=self.clock).partitions
            ended.append(self.now)
        self.now = max(*ended, started + 60)
        return reports


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], World]:
    def install(world: World) -> World:
        monkeypatch.setattr(lane_module, "PartitionRun", world.run)
        monkeypatch.setattr(lane_module, "sweep", lambda *_: None)
        return world

    return install


def config(budget: str) -> Config:
    stream = {
        "topics": {"regex": ".*"},
        "ingest": {"budget": budget},
        "parser": {"name": "json", "event_time": {"field": "time"}},
        "table": "a.b",
    }
    return Config.model_validate({"version": 1, "storage": {"bucket": "abc"}, "streams": {"s": stream}})


def tp(name: str) -> TopicPartition:
    return TopicPartition(name, 0)


def test_a_backlog_of_ten_budgets_drains_beside_small_topics(drained: Callable[[World], World]) -> None:
    """Each run archives all that is in the small ones, and each large one gets on in each run."""
    large = {tp(f"large{number}"): 50_000 for number in range(2)}  # 50 s each, for a budget of 10 s
    small = [tp(f"small{number}") for number in range(20)]
    world = drained(World(large | dict.fromkeys(small, 0)))
    runs = 0
    while any(world.backlog[one] for one in large):
        runs += 1
        before = dict(world.backlog)
        world.backlog |= dict.fromkeys(small, 50)
        world.one_run(config("10s"))
        assert all(world.backlog[one] == 0 for one in small)
        assert all(world.backlog[one] < before[one] or not before[one] for one in large)
    assert runs <= 16, "what the small ones leave of the budget is used"


def test_a_large_one_goes_on_when_the_others_are_done(drained: Callable[[World], World]) -> None:
    world = drained(World({tp("large"): 6_000, tp("other"): 3_000, tp("small"): 10}))
    reports = world.one_run(config("10s"))
    assert [report.outcome for report in reports] == [Outcome.UP_TO_DATE] * 3
    assert world.turns == [tp("small"), tp("other"), tp("large")]
    world.backlog |= {tp("large"): 9_000, tp("other"): 8_000}
    world.turns.clear()
    reports = world.one_run(config("10s"))
    assert world.turns[:2] == [tp("other"), tp("large")]
    assert world.now <= 1_120 + OBJECT_BYTES / BYTES_PER_SECOND
    assert {report.outcome for report in reports} == {Outcome.OUT_OF_TIME}


def test_whoever_has_no_leader_is_asked_last(drained: Callable[[World], World]) -> None:
    names = [tp(f"t{number}") for number in range(5)]
    world = drained(World(dict.fromkeys(names, 100), leaderless={names[0], names[3]}))
    world.one_run(config("45s"))
    assert world.turns == [names[1], names[2], names[4], names[0], names[3]]


def test_a_look_that_fails_is_no_failure_of_the_lane(drained: Callable[[World], World]) -> None:
    class Away(World):
        def look(self, tps: list[TopicPartition]) -> dict[TopicPartition, Sight]:
            raise KafkaUnavailable(f"away: {len(tps)} are not answered for")

    world = drained(Away({tp("a"): 100, tp("b"): 100}))
    assert {report.outcome for report in world.one_run(config("10s"))} == {Outcome.UP_TO_DATE}


@given(
    backlog=st.lists(st.sampled_from([0, 50, 300, 5_000, 100_000]), min_size=1, max_size=25),
    inflow=st.sampled_from([0, 50, 400]),
    lanes=st.integers(1, 3),
)
@settings(max_examples=20, deadline=None)
def test_nobody_starves_whatever_the_others_have(backlog: list[int], inflow: int, lanes: int) -> None:
    """All have something new in each run, a budget has time for some of them only: each gets on again and again."""
    with pytest.MonkeyPatch.context() as patch:
        world = World({tp(f"t{number}"): size for number, size in enumerate(backlog)})
        patch.setattr(lane_module, "PartitionRun", world.run)
        patch.setattr(lane_module, "sweep", lambda *_: None)
        settings_ = config("2s")
        # A budget of 2 s has time for 3 topic-partitions at least: a turn of 0.2 s and what is left of its last object.
        runs_for_all = math.ceil(len(backlog) / (3 * lanes)) + 1
        threshold_runs = 4  # two minutes and twice the budget
        for _ in range(2):
            world.turns.clear()
            for _ in range(runs_for_all + threshold_runs):
                world.backlog = {one: size + inflow + 1 for one, size in world.backlog.items()}
                world.one_run(settings_, lanes)
            assert set(world.turns) == set(world.backlog)
