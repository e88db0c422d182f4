"""Random schedules of producers, runs, rivals, kills and finalizers over a `files` sink.

Whatever happens, an hour that has its `_SUCCESS` holds all rows that were on time: those of messages that were sent
before the hour's end and the lateness. Looked at after every step, and within runs and finalizers.
WAYBILL_SCHEDULES=100 runs more of them.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO

import pyarrow.parquet as pq
import pytest
from files_scenes import at, check_files_exactly_once, finalize_at, markers, moment, root
from partition_scenes import Scene, in_this_process

from waybill import failpoints
from waybill.errors import CommitConflict
from waybill.log.encode import Record
from waybill.names import TopicPartition, period_of
from waybill.partition.report import RunOutcome
from waybill.partition.run import run_to_the_end

pytestmark = pytest.mark.integration

TPS = [TopicPartition("flights", partition) for partition in range(3)]
LATENESS_HOURS = 0.5
STEPS = 16
SEEDS = int(os.environ.get("WAYBILL_SCHEDULES", "3"))
PLACES = (*failpoints.PARTITION, *failpoints.FILES)
MakeScene = Callable[..., Scene]


class FinalTooSoon(AssertionError):
    """An hour has its marker, and a row that was on time is not there."""


class Killed(BaseException):
    """What a schedule raises where a process is to die."""


@dataclass
class Schedule:
    """One schedule, as its seed says."""

    scene: Scene
    rng: random.Random
    hours: float = 0.0
    log: dict[TopicPartition, list[tuple[Record, float, float]]] = field(default_factory=lambda: defaultdict(list))
    """What was produced, with the hours of event and sending."""
    archived: dict[TopicPartition, int] = field(default_factory=lambda: defaultdict(int))
    act: Callable[[], None] | None = None
    place: str = ""
    passes: int = 0
    told: list[str] = field(default_factory=list)

    # --- what happens ---

    def produce(self) -> None:
        tp = self.rng.choice(TPS[: 2 + (self.hours > 1)])
        for _ in range(self.rng.randrange(1, 4)):
            late = self.rng.choice((0.0, 0.0, 0.1, 0.4, 1.2, 2.5))
            offset = len(self.log[tp])
            event_hours = max(self.hours - late, 0.0)
            self.log[tp].append((moment(offset, event_hours, self.hours), event_hours, self.hours))

    def archive(self) -> None:
        for tp in TPS:
            records = [record for record, *_ in self.log[tp][self.archived[tp] :]]
            if records and self.rng.random() < 0.4:  # so that some are behind
                self.scene.put(tp, records)
                self.archived[tp] = len(self.log[tp])

    def wait(self) -> None:
        self.hours = round(self.hours + self.rng.choice((0.4, 0.8, 1.1, 1.6)), 3)

    def run(self) -> None:
        self.scene.run(in_this_process, done=lambda step: failpoints.reach(f"partition.{step}"))

    def finalize(self) -> None:
        ends = {tp: len(records) for tp, records in self.log.items()}
        finalize_at(self.scene, self.hours, ends if self.rng.random() < 0.7 else None)

    # --- how ---

    def step(self) -> None:
        name = self.rng.choice(("produce", "produce", "archive", "wait", "wait", "run", "finalize", "finalize"))
        if name in ("run", "finalize"):
            self.place = self.rng.choice([p for p in PLACES if p.startswith("finalize") == (name == "finalize")])
            self.passes = self.rng.choice((0, 0, 1, 2))
            kind = self.rng.choice(("nothing", "kill", "kill", "run", "finalize", "late and run"))
            self.act = {
                "nothing": None,
                "kill": self._die,
                "run": self.run,
                "finalize": self.finalize,
                "late and run": self._late_and_run,
            }[kind]
            self.told.append(f"{self.hours}: {name}, and at {self.place} (after {self.passes}) {kind}")
        else:
            self.told.append(f"{self.hours}: {name}")
        try:
            getattr(self, name)()
        except Killed:
            self.told.append("killed")
        except CommitConflict as conflict:
            self.told.append(f"conflict: {conflict}")
        self.act = None
        self.check()

    def reach(self, place: str) -> None:
        """Every failpoint that is passed."""
        if self.act is None or place != self.place:
            return
        if self.passes:
            self.passes -= 1
            return
        act, self.act = self.act, None
        act()
        self.check()

    def _die(self) -> None:
        raise Killed

    def _late_and_run(self) -> None:
        self.produce()
        self.archive()
        self.run()

    # --- what must hold ---

    def check(self) -> None:
        for hour in markers(self.scene):
            self.check_hour(hour)

    def check_hour(self, hour: str) -> None:
        prefix = f"{root(self.scene)}/{hour}/"
        period = period_of(root(self.scene), prefix + "x")
        assert period is not None
        there: set[tuple[int, int]] = set()
        for found in list(self.scene.store.list_objects(prefix)):
            if found.key.endswith(".parquet"):
                rows = pq.read_table(BytesIO(self.scene.store.read(found.key)), columns=["partition", "offset"])
                there |= set(zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True))
        on_time = {
            (tp.partition, record.offset)
            for tp, records in self.log.items()
            for record, event_hours, sent_hours in records
            if period.start <= at(event_hours) < period.end and at(sent_hours - LATENESS_HOURS) < period.end
        }
        if not self.scene.store.exists(f"{prefix}_SUCCESS"):
            return  # it was taken back while we looked
        if not on_time <= there:
            raise FinalTooSoon(hour, sorted(on_time - there), self.told)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_hour_is_final_before_all_that_was_on_time_is_there(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    schedule = _carry_out(make_scene, monkeypatch, seed)
    scene = schedule.scene
    schedule.hours += 10
    for tp in TPS:
        records = [record for record, *_ in schedule.log[tp][schedule.archived[tp] :]]
        if records:
            scene.put(tp, records)
    *_, last = run_to_the_end(scene.config, "flights", in_this_process)
    assert (last.outcome, last.faults) in {(RunOutcome.NOTHING_NEW, ()), (RunOutcome.COMMITTED, ())}
    found = finalize_at(scene, schedule.hours, {tp: len(records) for tp, records in schedule.log.items()})
    assert not found.blocked, schedule.told
    assert markers(scene) == {str(hour.period) for hour in found.hours}
    schedule.check()
    check_files_exactly_once(scene)


def _carry_out(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, seed: int) -> Schedule:
    scene = make_scene(partition_by="hour", sink={"name": "files", "lateness": "30m"})
    schedule = Schedule(scene, random.Random(seed))
    monkeypatch.setattr(failpoints, "reach", schedule.reach)
    for _ in range(3):
        schedule.produce()
    schedule.archive()
    for _ in range(STEPS):
        schedule.step()
    return schedule
