"""The time slices of a lane, and of one run after another. Only work advances the clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.archive.ingest import Clock, Lane, LaneShare, Outcome, TopicPartitionReport, drain_lane
from waybill.archive.ingest import lane as lane_module
from waybill.archive.ingest.lane_plan import _assign_to_lanes, _find_overdue, _order
from waybill.archive.ingest.target import ArchiveTarget
from waybill.base.errors import KafkaUnavailable
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.cluster import Topic
from waybill.services.kafka.kafka import LogRange, PartitionState

OVERHEAD_SECONDS = 0.05
BYTES_PER_SECOND = 1000
OBJECT_BYTES = 200


@dataclass
class World:
    """Topic-partitions with a backlog in bytes, and lanes for which archiving takes time."""

    backlog: dict[TopicPartition, int]
    leaderless: set[TopicPartition] = field(default_factory=set)
    now: float = 1_000.0
    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    slices: list[TopicPartition] = field(default_factory=list)
    """The topic-partitions in the order of their time slices."""

    connection = "kafka"

    @property
    def clock(self) -> Clock:
        return Clock(wall=lambda: self.now, monotonic=lambda: self.now)

    def describe_partitions(self, tps: list[TopicPartition]) -> dict[TopicPartition, PartitionState]:
        answering = [tp for tp in tps if tp not in self.leaderless]
        return {tp: PartitionState(Topic(tp.topic, "", (0,)), LogRange(0, 1)) for tp in answering}

    def archive(self, target: ArchiveTarget) -> TopicPartitionReport:
        """Do what `archive_topic_partition` does: create objects until the time slice is over."""
        assert target.clock.monotonic() == self.now
        tp, time_slice = target.tp, target.time_slice
        self.slices.append(tp)
        if tp in self.leaderless:
            self.now += 30.0
            return TopicPartitionReport(topic=tp.topic, partition=0, outcome=Outcome.FAILED)
        self.now += OVERHEAD_SECONDS
        while self.backlog[tp]:
            taken = min(OBJECT_BYTES, self.backlog[tp])
            self.now += taken / BYTES_PER_SECOND
            self.backlog[tp] -= taken
            self.committed[tp] = CommittedOffset(0, committed_at_ms=int(self.now * 1000), version=0)
            if self.now >= min(time_slice.yields_at, time_slice.deadline):
                break
        outcome = Outcome.OUT_OF_TIME if self.backlog[tp] else Outcome.UP_TO_DATE
        return TopicPartitionReport(topic=tp.topic, partition=0, outcome=outcome)

    def plan(self, config: Config, lanes: int = 1) -> list[Lane]:
        shares = [
            LaneShare(stream="s", topic=tp.topic, partition=0, estimated_bytes=size)
            for tp, size in self.backlog.items()
        ]
        waiting = [share for share in shares if share.estimated_bytes or share.tp in self.leaderless]
        overdue = _find_overdue(waiting, self.committed, int(self.now * 1000), config.stream("s"))
        return _assign_to_lanes(_order(waiting, overdue), lanes)

    def run_once(self, config: Config, lanes: int = 1) -> list[TopicPartitionReport]:
        """Do one run of the DAG: all lanes in parallel, then wait for the rest of the minute."""
        started, ended, reports = self.now, [self.now], []
        for lane in self.plan(config, lanes):
            self.now = started
            services: Any = SimpleNamespace(
                kafka=self, source=self, coordinator=SimpleNamespace(list_stops=list), store=None
            )
            reports += drain_lane({"s": services}, config, lane, clock=self.clock).partitions
            ended.append(self.now)
        self.now = max(*ended, started + 60)
        return reports


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], World]:
    """A function that lets lanes archive in a world."""

    def install(world: World) -> World:
        monkeypatch.setattr(lane_module, "archive_topic_partition", world.archive)
        monkeypatch.setattr(lane_module, "abort_orphaned_uploads", lambda *_: None)
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


def test_backlog_of_ten_budgets_is_archived_while_small_topics_stay_up_to_date(
    install: Callable[[World], World],
) -> None:
    """Each run archives the small topics to their end, and each large one advances in each run."""
    large = {tp(f"large{number}"): 50_000 for number in range(2)}  # 50 s each, for a budget of 10 s
    small = [tp(f"small{number}") for number in range(20)]
    world = install(World(large | dict.fromkeys(small, 0)))
    runs = 0
    while any(world.backlog[one] for one in large):
        runs += 1
        before = dict(world.backlog)
        world.backlog |= dict.fromkeys(small, 50)
        world.run_once(config("10s"))
        assert all(world.backlog[one] == 0 for one in small)
        assert all(world.backlog[one] < before[one] or not before[one] for one in large)
    assert runs <= 16, "the time that the small topics leave is used"


def test_large_topic_partition_continues_when_the_others_are_done(install: Callable[[World], World]) -> None:
    world = install(World({tp("large"): 6_000, tp("other"): 3_000, tp("small"): 10}))
    reports = world.run_once(config("10s"))
    assert [report.outcome for report in reports] == [Outcome.UP_TO_DATE] * 3
    assert world.slices == [tp("small"), tp("other"), tp("large")]
    world.backlog |= {tp("large"): 9_000, tp("other"): 8_000}
    world.slices.clear()
    reports = world.run_once(config("10s"))
    assert world.slices[:2] == [tp("other"), tp("large")]
    assert world.now <= 1_120 + OBJECT_BYTES / BYTES_PER_SECOND
    assert {report.outcome for report in reports} == {Outcome.OUT_OF_TIME}


def test_topic_partitions_without_a_leader_go_last(install: Callable[[World], World]) -> None:
    names = [tp(f"t{number}") for number in range(5)]
    world = install(World(dict.fromkeys(names, 100), leaderless={names[0], names[3]}))
    world.run_once(config("45s"))
    assert world.slices == [names[1], names[2], names[4], names[0], names[3]]


def test_lane_continues_when_kafka_does_not_describe_its_topic_partitions(install: Callable[[World], World]) -> None:
    class Silent(World):
        def describe_partitions(self, tps: list[TopicPartition]) -> dict[TopicPartition, PartitionState]:
            raise KafkaUnavailable(f"no answer for {len(tps)} topic-partitions")

    world = install(Silent({tp("a"): 100, tp("b"): 100}))
    assert {report.outcome for report in world.run_once(config("10s"))} == {Outcome.UP_TO_DATE}


@given(
    backlog=st.lists(st.sampled_from([0, 50, 300, 5_000, 100_000]), min_size=1, max_size=25),
    inflow=st.sampled_from([0, 50, 400]),
    lanes=st.integers(1, 3),
)
@settings(max_examples=20, deadline=None)
def test_every_topic_partition_advances_whatever_the_others_have(backlog: list[int], inflow: int, lanes: int) -> None:
    """All get new messages before each run, and the budget is too short for all: each advances again and again."""
    with pytest.MonkeyPatch.context() as patch:
        world = World({tp(f"t{number}"): size for number, size in enumerate(backlog)})
        patch.setattr(lane_module, "archive_topic_partition", world.archive)
        patch.setattr(lane_module, "abort_orphaned_uploads", lambda *_: None)
        settings_ = config("2s")
        # A budget of 2 s has time for 3 topic-partitions at least: a slice of 0.2 s and the rest of its last object.
        runs_for_all = math.ceil(len(backlog) / (3 * lanes)) + 1
        threshold_runs = 4  # two minutes and twice the budget
        for _ in range(2):
            world.slices.clear()
            for _ in range(runs_for_all + threshold_runs):
                world.backlog = {one: size + inflow + 1 for one, size in world.backlog.items()}
                world.run_once(settings_, lanes)
            assert set(world.slices) == set(world.backlog)
