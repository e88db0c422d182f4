"""One random schedule of producers, runs, rivals, kills, faults and finalizers over a `files` sink, with its checks.

The schedule sets the time instead of waiting. Some topic-partitions are behind for hours while others continue, rows
arrive just before and just after they count as late, and finalizers run often: otherwise few hours become final.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO

import pyarrow.parquet as pq
import pytest
from files_scenes import at, check_files_exactly_once, finalize_at, inventory, key_of, markers, moment, root
from partition_scenes import Scene, in_this_process

from waybill.base import failpoints
from waybill.base.errors import CommitConflict
from waybill.config.names import TopicPartition, period_of_key, plan_key, staged_key
from waybill.records.batches.encode import Record
from waybill.services.store import Store
from waybill.tables.iceberg import read_blocked_partitions, read_progress
from waybill.tables.partition import partition_run as run_module
from waybill.tables.partition.files_sink import upload
from waybill.tables.partition.files_sink.finalize import FinalizeReport
from waybill.tables.partition.files_sink.hour_state import SuccessMarker
from waybill.tables.partition.partition_plan import Plan, make_plan
from waybill.tables.partition.partition_run import run_to_the_end
from waybill.tables.staging.driver import RunOutcome

TPS = [TopicPartition("flights", partition) for partition in range(3)]
LATENESS_HOURS = 0.5
ROUNDS = 10
_FILE_CREATED, _MARKED = "partition.hour_file_created", "finalize.marked"
IN_RUNS = ("planned", "span_read", "hour_file_created", "executed", "staged", "committed")
IN_FINALIZERS = ("listed", "marked")
_MANY = {"span_read", "hour_file_created", "marked"}
"""Failpoints that one process reaches several times."""


@dataclass(frozen=True)
class Mix:
    """The frequencies of events in a schedule."""

    acts: tuple[str, ...] = ("die", "die", "run", "finalize", "late_and_run", "compact", "compact_and_finalize")
    """What interrupts runs and finalizers."""
    in_runs: tuple[str, ...] = IN_RUNS
    lateness: tuple[float, ...] = (0.0, 0.0, 0.1, 0.3, 0.45, 0.9, 1.6)
    """Hours between an event and its sending."""
    behind: float = 0.15
    """Probability that a topic-partition falls behind."""
    damage: float = 0.15
    give_up: float = 0.3
    """Probability that the plan of a killed run is abandoned."""


MIXES = {
    "any": Mix(),
    "behind": Mix(("late_and_run",), behind=0.3, damage=0.0),
    "late": Mix(lateness=(0.0, 0.3, 0.45, 0.9, 1.6, 2.5), damage=0.0),
    "given up": Mix(("die",), ("hour_file_created", "executed"), (0.0, 0.3, 0.9, 1.6, 2.5), damage=0.3, give_up=1.0),
    "upkeep": Mix(("compact_and_finalize",), ("hour_file_created", "executed", "staged")),
}


class Unsound(AssertionError):
    """A property that readers rely on does not hold."""


class Killed(BaseException):
    """Raised by a schedule to end a process."""


@dataclass
class Directory:
    """The content of an hour's directory."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the files in bytes, by key."""
    etags: dict[str, str] = field(default_factory=dict)
    marker: str | None = None


@dataclass
class Oracle:
    """Checks the objects after each step, as a reader would."""

    scene: Scene
    marking: list[str | None] = field(default_factory=list)
    """For each running finalizer: the hour that it has marked and not checked again."""
    unchecked: set[str] = field(default_factory=set)
    """Hours marked by finalizers that died before their second check, which the next finalizer makes."""
    marked_looks: int = 0
    _rows: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)

    def look(self, on_time: Callable[[str], set[tuple[int, int]]]) -> None:
        """Raise `Unsound` unless each marked hour has all rows that were on time and exactly its marker's files."""
        found = self._directories()
        marked = {hour: there for hour, there in found.items() if there.marker}
        self.unchecked &= marked.keys()
        for hour, there in marked.items():
            assert there.marker is not None
            self.marked_looks += 1
            rows = [row for key in there.sizes for row in self._rows_of(key, there.etags[key])]
            if missing := on_time(hour) - set(rows):
                raise Unsound(f"{hour} is final too early: {sorted(missing)} are missing")
            if hour in self.unchecked or hour in self.marking:
                continue
            marker = SuccessMarker.parse(there.marker, self.scene.store.read(there.marker))
            figures = marker and (marker.files, marker.rows, marker.size_bytes)
            if figures != (len(there.sizes), len(rows), sum(there.sizes.values())):
                raise Unsound(f"{hour}: the marker has {marker}, and the directory has {sorted(there.sizes)}")
            if len(rows) != len(set(rows)):
                raise Unsound(f"{hour} holds rows twice")

    def check_inventory(self) -> None:
        """Raise `Unsound` unless every file of the inventory exists with its size."""
        sizes = {key: size for there in self._directories().values() for key, size in there.sizes.items()}
        for entry in inventory(self.scene):
            if sizes.get(key_of(entry)) != entry.size_bytes:
                raise Unsound(f"the inventory lists {key_of(entry)}, which does not exist")

    def marked(self, hour: str) -> None:
        """Note that a finalizer is about to create this hour's marker."""
        if self.marking:
            self.marking[-1] = hour

    @contextmanager
    def finalizer(self) -> Iterator[None]:
        """Note that a finalizer runs within the block."""
        self.marking.append(None)
        try:
            yield
        except Killed:
            if self.marking[-1]:
                self.unchecked.add(self.marking[-1])
            raise
        finally:
            self.marking.pop()

    def _directories(self) -> dict[str, Directory]:
        above = f"{root(self.scene)}/"
        pages = self.scene.store.client.get_paginator("list_objects_v2")
        found: dict[str, Directory] = defaultdict(Directory)
        for page in pages.paginate(Bucket=self.scene.store.bucket, Prefix=above):
            for there in page.get("Contents", []):
                hour, name = there["Key"].removeprefix(above).rsplit("/", 1)
                if name == "_SUCCESS":
                    found[hour].marker = there["Key"]
                else:
                    found[hour].sizes[there["Key"]] = there["Size"]
                    found[hour].etags[there["Key"]] = there["ETag"]
        return found

    def _rows_of(self, key: str, etag: str) -> list[tuple[int, int]]:
        if (key, etag) not in self._rows:
            rows = pq.read_table(BytesIO(self.scene.store.read(key)), columns=["partition", "offset"])
            columns = (rows.column(name).to_pylist() for name in ("partition", "offset"))
            self._rows[key, etag] = list(zip(*columns, strict=True))
        return self._rows[key, etag]


@dataclass
class Schedule:
    """One schedule, determined by its seed."""

    scene: Scene
    rng: random.Random
    oracle: Oracle
    mix: Mix
    hours: float = 0.0
    log: dict[TopicPartition, list[tuple[Record, float, float]]] = field(default_factory=lambda: defaultdict(list))
    """The produced messages, with the hours of event and sending."""
    archived: dict[TopicPartition, int] = field(default_factory=lambda: defaultdict(int))
    behind: set[TopicPartition] = field(default_factory=set)
    """Topic-partitions that are not archived at present."""
    damaged: dict[str, bytes] = field(default_factory=dict)
    """Backup objects that are damaged or missing at present, with their original content."""
    act: Callable[[], None] | None = None
    place: str = ""
    passes: int = 0
    is_dead: bool = False
    history: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, seed: int, mix: Mix) -> Schedule:
        """A schedule over a stream of its own. It patches only the times at which events happen."""
        scene = make_scene(partition_by="hour", sink={"name": "files", "lateness": f"{int(LATENESS_HOURS * 60)}m"})
        schedule = cls(scene, random.Random(seed), Oracle(scene), mix)
        monkeypatch.setattr(failpoints, "reach", schedule.reach)
        monkeypatch.setattr(upload, "_THREADS", 1)  # so that a seed gives the same schedule each time
        create = Store.create_if_absent

        def watched(store: Store, key: str, *rest: object) -> None:
            if key.endswith("/_SUCCESS"):
                schedule.oracle.marked(key.removeprefix(f"{root(scene)}/").rsplit("/", 1)[0])
            create(store, key, *rest)  # type: ignore[arg-type]

        def cut_small(key: str, **options: object) -> Plan | None:
            """Make plans of one task for each object or one for all, over a part of the objects or all."""
            sizes = {"task_bytes": schedule.rng.choice((1, 1 << 20)), "run_bytes": schedule.rng.choice((500, 1 << 20))}
            return make_plan(key, **options | sizes)  # type: ignore[arg-type]

        monkeypatch.setattr(Store, "create_if_absent", watched)
        monkeypatch.setattr(run_module, "make_plan", cut_small)
        return schedule

    def play(self) -> None:
        """Play the schedule until every message is in a final hour. Raises `Unsound` at the first violated property."""
        for step in (self.produce, self.archive, self.run):
            self.step(step)
        for _ in range(ROUNDS):
            self.change()
            for step, odds in (
                (self.wait, 0.9),
                (self.produce, 0.8),
                (self.archive, 0.7),
                (self.run, 0.8),
                (self.produce, 0.3),
                (self.finalize, 0.8),
            ):
                if self.rng.random() < odds:
                    self.step(step)
        self.end()

    def end(self) -> None:
        """Repair and archive everything, and check that every hour becomes final."""
        self.hours += 10
        self.behind.clear()
        self.repair()
        self.archive()
        *_, last = run_to_the_end(self.scene.config, "flights", in_this_process)
        assert (last.outcome, last.faults) in {(RunOutcome.NOTHING_NEW, ()), (RunOutcome.COMMITTED, ())}
        found = self.finalize_knowing(self.ends())
        if found.blocked or markers(self.scene) != {str(hour.period) for hour in found.hours}:
            raise Unsound(f"not all is final in the end: {found.blocked}")
        self.look()
        check_files_exactly_once(self.scene)

    # --- events ---

    def change(self) -> None:
        """Change which topic-partitions are behind and which objects are damaged; both last for a while."""
        for tp in TPS:
            if self.rng.random() < (0.35 if tp in self.behind else self.mix.behind):
                self.behind ^= {tp}
                self.history.append(f"{self.hours}: behind are {sorted(tp.partition for tp in self.behind)}")
        if self.rng.random() < (0.5 if self.damaged else self.mix.damage):
            (self.repair if self.damaged else self.damage)()

    def produce(self) -> None:
        for tp in TPS:
            for _ in range(self.rng.choice((0, 1, 1, 2))):
                late = self.rng.choice(self.mix.lateness)
                offset = len(self.log[tp])
                event_hours = round(max(self.hours - late, 0.0), 3)
                self.log[tp].append((moment(offset, event_hours, self.hours), event_hours, self.hours))

    def archive(self) -> None:
        for tp in TPS:
            records = [record for record, *_ in self.log[tp][self.archived[tp] :]]
            if records and tp not in self.behind:
                half = len(records) // 2 if self.rng.random() < 0.5 else 0
                for some in (records[:half], records[half:]):
                    if some:
                        self.scene.put(tp, some)
                self.archived[tp] = len(self.log[tp])

    def wait(self) -> None:
        self.hours = round(self.hours + self.rng.choice((0.1, 0.2, 0.4, 0.7, 1.1)), 3)

    def run(self) -> None:
        self.scene.run(in_this_process, on_step=lambda step: failpoints.reach(f"partition.{step}"))

    def finalize(self) -> None:
        self.finalize_knowing(self.ends() if self.rng.random() < 0.7 else None)

    def finalize_knowing(self, ends: dict[TopicPartition, int] | None) -> FinalizeReport:
        with self.oracle.finalizer():
            found = finalize_at(self.scene, self.hours, ends)
        if "under way" not in "".join(found.notes):
            self.oracle.unchecked.clear()
        return found

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: len(self.log[tp]) for tp in TPS}

    def compact(self) -> None:
        """Another snapshot of the inventory, with the same rows and progress."""
        if self.scene.table.current_snapshot() is not None:
            self.scene.rewrite()

    def compact_and_finalize(self) -> None:
        self.compact()
        self.finalize()

    def damage(self) -> None:
        """An object that the next plan reads cannot be decoded: that plan comes to nothing."""
        keys = [key for tp in TPS for key in self.scene.keys(f"backup/flights/1_{tp.partition}_")[-2:]]
        if keys:
            key = self.rng.choice(keys)
            self.damaged[key] = self.scene.store.read(key)
            self.history.append(f"{self.hours}: damage {key}")
            self._replace(key, self.damaged[key][:-1] + bytes([self.damaged[key][-1] ^ 1]))

    def repair(self) -> None:
        for key, sound in self.damaged.items():
            self._replace(key, sound)
        self.history.append(f"{self.hours}: repair")
        self.damaged.clear()

    def _replace(self, key: str, content: bytes) -> None:
        metadata = self.scene.store.metadata(key)
        self.scene.store.remove(key)
        self.scene.store.create_if_absent(key, content, metadata)

    def give_up_plan(self) -> None:
        """Remove a plan that cannot be finished and that no run executes, as the error message tells an operator."""
        table = self.scene.table
        progress, attempt = read_progress(table.metadata, "t"), read_blocked_partitions(table.metadata).attempt
        key = plan_key(self.scene.store.prefix, "flights", 1, str(table.metadata.table_uuid), progress, attempt)
        for of_plan in (key, staged_key(key)):
            self.scene.store.remove_if_exists(of_plan)

    # --- execution ---

    def step(self, step: Callable[[], None]) -> None:
        """One step, into which another may break, or in which it dies."""
        name = step.__name__
        self.history.append(f"{self.hours}: {name}")
        if name in ("run", "finalize"):
            place = self.rng.choice(self.mix.in_runs if name == "run" else IN_FINALIZERS)
            self.place = f"partition.{place}" if name == "run" else f"finalize.{place}"
            self.passes = self.rng.choice((0, 0, 1, 2)) if place in _MANY else 0
            if self.rng.random() < 0.7:
                act = self.rng.choice(self.mix.acts)
                self.act = getattr(self, act)
                self.history[-1] += f", and at {self.place} (after {self.passes}) {act}"
        try:
            step()
        except Killed:
            self.history.append("killed")
            self._go_on_after_kill(name)
        except CommitConflict as conflict:
            self.history.append(f"conflict: {conflict}")
        self.act, self.is_dead = None, False
        self.look()
        if name in ("run", "finalize"):
            self.oracle.check_inventory()

    def _go_on_after_kill(self, name: str) -> None:
        if name == "run" and self.rng.random() < self.mix.give_up:
            self.history.append("give up the plan")
            self.give_up_plan()

    def reach(self, place: str) -> None:
        """Every failpoint that is passed."""
        if self.is_dead:
            raise Killed
        if place in (_FILE_CREATED, _MARKED):
            self.look()
        if self.act is None or place != self.place:
            return
        if self.passes:
            self.passes -= 1
            return
        act, self.act = self.act, None
        act()
        self.look()

    def die(self) -> None:
        self.is_dead = True
        raise Killed

    def late_and_run(self) -> None:
        self.produce()
        self.archive()
        self.run()

    # --- checks ---

    def look(self) -> None:
        try:
            self.oracle.look(self._on_time)
        except Unsound as error:
            error.add_note("\n".join(self.history))
            raise

    def _on_time(self, hour: str) -> set[tuple[int, int]]:
        """The rows that an hour with its marker must hold: those sent before its end and the lateness."""
        period = period_of_key(root(self.scene), f"{root(self.scene)}/{hour}/x")
        assert period is not None
        return {
            (tp.partition, record.offset)
            for tp, records in self.log.items()
            for record, event_hours, sent_hours in records
            if period.start <= at(event_hours) < period.end and at(sent_hours - LATENESS_HOURS) < period.end
        }
