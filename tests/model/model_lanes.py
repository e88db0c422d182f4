"""The model check's world: S3, ZooKeeper and Kafka in memory, and lanes that run the real code on them, step by step.

A lane is a greenlet that runs `waybill.ingest.run_lane`, with the real `PartitionRun`, `Store`, `Coordinator` and
`KafkaSource`; only botocore's client, kazoo's client and the Kafka cluster below them are doubles. Before each of its
calls to one of these, and at each failpoint, it stops: whoever drives the world decides who goes on, and how the call
ends. After each step the world checks what must always hold.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import pytest
from greenlet import GreenletExit, getcurrent, greenlet

from waybill import coordination, failpoints, ingest
from waybill.archive import gaps
from waybill.config import Config
from waybill.connections import Connection
from waybill.errors import WaybillError
from waybill.ingest import Clock, Outcome, PartitionReport
from waybill.ingest import gap_acceptance as acceptance
from waybill.names import BackupName, GapName, TopicPartition
from waybill.records.framing import frames
from waybill.sources import kafka
from waybill.store import Store, calls, upload

if TYPE_CHECKING:
    from model_kafka import Log
    from model_zookeeper import ModelZooKeeper

__all__ = [
    "Begun",
    "Faults",
    "Lane",
    "LaneSetup",
    "Late",
    "Node",
    "Scenario",
    "Stored",
    "World",
    "arrive",
    "end",
    "lane",
    "model_services",
    "new_world",
    "run_quietly",
    "shown",
    "shown_document",
]

STREAM = "model"
COMMITTED = f"/model/streams/{STREAM}/1/offsets/t/0"
_TP = TopicPartition("t", 0)
_WALL_SECONDS = 2_000_000_000.0

Faults = Mapping[str, Callable[[], Any]]
"""What else may become of a call: what a person reads about it, and what happens."""


@dataclass(frozen=True)
class LaneSetup:
    """One lane and its settings. Two that differ in `max_bytes` cut their objects at different offsets."""

    name: str
    max_bytes: str = "1KiB"
    """Less than two batches of the log's."""
    runs: int = 1
    accepts: bool = False
    """No lane, but a person who accepts the gap that retention has made, if there is one."""


@dataclass(frozen=True)
class Scenario:
    """Where an exploration begins, and what may happen in it."""

    log: str = "ddd"
    """The log, as `model_kafka.Log` reads it."""
    lanes: tuple[LaneSetup, ...] = (LaneSetup("A"), LaneSetup("B"))
    visible: int | None = None
    """How many letters of the log are visible at first. One more comes with each look at its end."""
    part_bytes: int = 1 << 16
    """With 400, every object goes in parts; with the default none does."""
    fetch_bytes: int = 1
    """By default each fetch brings one batch."""
    start: str = "earliest"
    call_faults: bool = False
    crashes: bool = False
    expiries: bool = False
    wipes: bool = False
    retention: bool = False
    has_locks: bool = True
    s3_is_conditional: bool = True
    zookeeper_is_versioned: bool = True


@dataclass(frozen=True)
class Node:
    """A node of ZooKeeper's."""

    data: bytes
    version: int

    def __str__(self) -> str:
        return f"{shown_document(self.data)}, version {self.version}"


def shown_document(data: bytes) -> str:
    """The first figure of a document of Waybill's, which is what matters of it here."""
    fields = json.loads(data or b"{}")
    return next((f"{key} {value}" for key, value in fields.items() if key != "v"), "nothing")


@dataclass(frozen=True)
class Stored:
    """An object of S3's."""

    data: bytes
    metadata: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{len(self.data)} bytes"


@dataclass
class Begun:
    """An upload in parts that is not completed."""

    metadata: tuple[tuple[str, str], ...]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Late:
    """A call that its lane has given up, and that arrives all the same."""

    what: str
    arrive: Callable[[], Any]


class World:
    """What all lanes share. `broken` says which promise does not hold any more."""

    kafka_partitions = 1

    def __init__(self, scenario: Scenario, log: Log) -> None:
        self.scenario, self.log = scenario, log
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Begun] = {}
        self.nodes: dict[str, Node] = {}
        self.nodes_before: dict[str, Node | None] = {}
        self.locks: dict[str, str] = {}
        self.late: list[Late] = []
        self.earliest = 0
        self.has_locks = scenario.has_locks
        self.s3_is_conditional = scenario.s3_is_conditional
        self.zookeeper_is_versioned = scenario.zookeeper_is_versioned
        self.kafka_changes = scenario.visible is not None or scenario.retention
        self._visible = len(scenario.log) if scenario.visible is None else scenario.visible
        self._highest: int | None = None
        self._begun: int | None = None
        self.wiped = self.disturbed = self.is_over = False
        self.broken = ""
        self.steps: list[tuple[str, str, Any]] = []
        """Who, what, and how it ended: what a counterexample prints."""

    # --- Kafka ---

    @property
    def end(self) -> int:
        return self.log.ends[self._visible - 1] if self._visible else 0

    def ask_end(self) -> int:
        end = self.end
        self._visible = min(self._visible + 1, len(self.log.ends))
        return end

    def delete_first_letter(self) -> None:
        """Retention deletes the oldest that is left."""
        self.earliest = next((end for end in self.log.ends if end > self.earliest), self.earliest)

    # --- S3 ---

    def create(self, key: str, stored: Stored) -> None:
        if key in self.objects:
            self.broken = f"{key} was overwritten"
        self.objects[key] = stored
        self._check()

    def remove(self, key: str) -> None:
        if key.startswith("backup/"):
            self.broken = f"{key} was removed"
        self.objects.pop(key, None)

    # --- ZooKeeper ---

    def write(self, path: str, node: Node | None) -> None:
        self.nodes_before[path] = self.nodes.get(path)
        if node is None:
            self.nodes.pop(path, None)
        else:
            self.nodes[path] = node
        if path == COMMITTED:
            self._check()

    def end_session(self, owner: str) -> None:
        for path in [path for path, holder in self.locks.items() if holder == owner]:
            del self.locks[path]

    def wipe(self) -> None:
        """ZooKeeper loses its data."""
        self.nodes.clear()
        self.nodes_before.clear()
        self.locks.clear()
        self.wiped = True

    # --- what must hold ---

    @property
    def committed(self) -> int | None:
        node = self.nodes.get(COMMITTED)
        return None if node is None else int(json.loads(node.data)["committed_offset"])

    def chain(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Each object's first offset, next offset and its messages' offsets, in order of their names."""
        found = []
        for key, stored in self.objects.items():
            if key.startswith("backup/"):
                first = BackupName.parse(key).first_offset
                following, messages = _contents(self.log.word, stored.data)
                found.append((first, following, messages or self._lost(stored, first, following)))
        return sorted(found)

    def _lost(self, stored: Stored, first: int, following: int) -> tuple[int, ...]:
        """The messages that an object stands for that says of a gap that it was accepted: Kafka must not have them."""
        if gaps.MARK not in dict(stored.metadata):
            return ()
        return tuple(offset for offset in self.log.wanted if first <= offset < following and offset < self.earliest)

    def _holes(self) -> set[int]:
        """Where an object starts that stands for an accepted gap."""
        marked = (key for key, stored in self.objects.items() if gaps.MARK in dict(stored.metadata))
        return {BackupName.parse(key).first_offset for key in marked}

    def _accepted(self) -> set[int]:
        """Where a gap starts that was accepted."""
        return {GapName.parse(key).first_offset for key in self.objects if key.startswith("gaps/")}

    def _check(self) -> None:
        self.broken = self.broken or self._fault() or ""

    def _fault(self) -> str | None:
        chain = self.chain()
        if self._begun is None:
            self._begun = self.committed
        start = end = self._begun
        archived: list[int] = []
        for first, following, messages in chain:
            if first != end:
                return f"the chain is torn: an object starts at {first}, the one before it ends at {end}"
            archived += [offset for offset in messages if first <= offset < following]
            end = following
        if start is not None and end is not None:
            wanted = [offset for offset in self.log.wanted if start <= offset < end]
            if archived != wanted:
                return f"archived are the messages {archived}, Kafka holds {wanted} in [{start}, {end})"
        if self.committed is None:
            return None
        if self.committed not in {start, *(following for _, following, _ in chain)}:
            return f"the committed offset is {self.committed}, the chain ends at {end}"
        if self._highest is not None and self.committed < self._highest and not self.wiped:
            return f"the committed offset went back from {self._highest} to {self.committed}"
        self._highest = self.committed
        return None

    def finished(self, name: str, report: PartitionReport) -> None:
        """A lane has ended its run: nothing that was injected is a reason for a named stop."""
        failure = report.failure
        self.steps.append((name, "ends", f"{report.outcome}, committed {report.committed_offset}"))
        if failure is None:
            return
        if not failure.retriable and not (failure.error == "RetentionGap" and self.earliest):
            self.broken = self.broken or f"lane {name} ended with {failure.error}: {failure.message}"
        if not self.disturbed:
            self.broken = self.broken or f"lane {name} failed undisturbed with {failure.error}: {failure.message}"

    def check_completed(self, report: PartitionReport) -> None:
        """After all is quiet, one undisturbed run must have archived all there is."""
        self._check()
        if self.broken or (self.earliest and report.outcome is Outcome.STOPPED):
            return
        if not self._holes() <= self._accepted():  # the converse may be: a lane that slept put the messages there
            self.broken = f"holes at {self._holes()}, but accepted are only those at {self._accepted()}"
        chain = self.chain()
        ends = {report.committed_offset, self.committed, self.log.end, chain[-1][1] if chain else self._begun}
        if report.outcome is not Outcome.UP_TO_DATE or len(ends) > 1:
            self.broken = f"a quiet run ends {report.outcome} at {ends}: {report.failure}"

    def key(self) -> tuple[Any, ...]:
        """All there is to know about it: two worlds of the same key go on alike."""
        return (
            frozenset(self.objects.items()),
            frozenset((upload, frozenset(begun.parts)) for upload, begun in self.uploads.items()),
            frozenset(self.nodes.items()),
            frozenset(self.nodes_before.items()),
            frozenset(self.locks.items()),
            tuple(late.what for late in self.late),
            (self.earliest, self._visible, self._highest, self._begun, self.wiped, self.disturbed),
        )


@cache
def _contents(word: str, data: bytes) -> tuple[int, tuple[int, ...]]:
    """Where an object ends, and its messages: batches are looked up by their bytes, since they must be verbatim."""
    known = _log(word).messages
    messages: list[int] = []
    following = -1
    for frame in frames(data, where="object"):
        following = frame.header.next_offset
        if frame.header.record_count:
            messages += known.get(bytes(frame.data), (-1,))  # -1 is in no log: it shows in the comparison
    return following, tuple(messages)


@cache
def _log(word: str) -> Log:
    from model_kafka import Log

    return Log(word)


class Lane(greenlet):
    """One lane, which runs until its next call and waits there: see `pending`."""

    def __init__(self, world: World, setup: LaneSetup) -> None:
        super().__init__(self._runs)
        self.world, self.setup, self.name = world, setup, setup.name
        self.session: ModelZooKeeper | None = None
        self.pending, self.faults, self.is_shared = "", cast(Faults, {}), True
        self.calls = 0
        self.history = 0
        """What it has seen so far, as one number: two lanes of the same history are in the same state."""
        self.reports: list[PartitionReport] = []

    def call(self, what: str, apply: Callable[[], Any], faults: Faults | None = None, *, shared: bool = True) -> Any:
        """Wait for one's turn, and make a call. Not `shared`: neither seen by other lanes nor changed by them."""
        if self.world.is_over:
            raise GreenletExit
        self.calls += 1
        self.pending, self.faults, self.is_shared = what, faults or {}, shared
        verdict = self.parent.switch()
        if self.world.is_over:
            raise GreenletExit
        try:
            result = (apply if verdict is None else self.faults[verdict])()
        except Exception as error:
            result = _described(error)
            raise
        finally:
            self.history = hash((self.history, what, verdict, result))
            self.world.steps.append((self.name, what, verdict or result))
        return result

    def _runs(self) -> None:
        if self.setup.accepts:
            self._accept()
            return
        for _ in range(self.setup.runs):
            share = ingest.LaneShare(topic="t", partition=0, estimated_bytes=0)
            config = _config(self.setup.max_bytes, self.world.scenario.start)
            report = ingest.run_lane(config, STREAM, ingest.Lane(number=0, shares=(share,)), find=_find, clock=_CLOCK)
            self.reports.append(report.partitions[0])
            self.world.finished(self.name, report.partitions[0])

    def _accept(self) -> None:
        config = _config(self.setup.max_bytes, self.world.scenario.start)
        with ingest.connect(config, STREAM, _find) as services:
            try:
                decision = gaps.Decision("model", "model")
                found = acceptance.accept(services, config.stream(STREAM), _TP, decision, clock=_CLOCK)
                said = f"accepted {', '.join(map(str, found.gaps))}"
            except WaybillError as error:
                said = f"{type(error).__name__}: {error}"
        self.world.steps.append((self.name, "ends", said))


def lane() -> Lane:
    """The lane whose code is running."""
    found = getcurrent()
    assert isinstance(found, Lane)
    return found


def new_world(scenario: Scenario) -> tuple[World, list[Lane]]:
    """A world and its lanes, each waiting before its first call."""
    world = World(scenario, _log(scenario.log))
    lanes = [Lane(world, setup) for setup in scenario.lanes]
    for each in lanes:
        each.switch()
    return world, lanes


def run_quietly(world: World, lanes: list[Lane]) -> None:
    """When all lanes have ended: what is on its way arrives, then one more lane runs undisturbed."""
    for late in world.late:
        arrive(world, late)
    world.late.clear()
    world.locks.clear()
    world._visible = len(world.log.ends)
    quiet = Lane(world, LaneSetup("quiet"))
    quiet.switch()
    while not quiet.dead and not world.broken:
        quiet.switch(None)
    if not world.broken:
        world.check_completed(quiet.reports[-1])
    end(world, [*lanes, quiet])


def arrive(world: World, late: Late) -> None:
    try:
        late.arrive()
        said = "done"
    except Exception as error:
        said = _described(error)
    world.steps.append(("", f"what was on its way arrives: {late.what}", said))


def end(world: World, lanes: list[Lane]) -> None:
    """Take the lanes apart that have not ended. Nothing they still do has an effect."""
    world.is_over = True
    for each in lanes:
        if not each.dead:
            each.throw(GreenletExit)


def _described(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response["Error"]["Code"]) if response else type(error).__name__


def shown(result: Any) -> str:
    """A result, short enough for a line of a schedule."""
    if result is None:
        return "done"
    if isinstance(result, bytes):
        return f"{len(result)} bytes"
    if isinstance(result, tuple):
        return f"({', '.join(shown(each) for each in result)})"
    return str(result)


# --- the real services on the doubles ---


_CLOCK = Clock(wall=lambda: _WALL_SECONDS, monotonic=lambda: 0.0)


@cache
def _config(max_bytes: str, start: str) -> Config:
    stream = {
        "topics": ["t"],
        "start": start,
        "upload": {"max_age": "0s", "max_bytes": max_bytes},
        "parser": {"name": "json", "event_time": {"field": "time"}},
        "table": "model.messages",
    }
    return Config.model_validate(
        {"version": 1, "storage": {"bucket": "model"}, "zookeeper": {"root": "model"}, "streams": {STREAM: stream}}
    )


@cache
def _find(conn_id: str) -> Connection:
    kafka_extra = {"bootstrap.servers": "model:1"} if "kafka" in conn_id else {}
    return Connection(conn_id=conn_id, conn_type=conn_id.partition("_")[0], host="model", port=1, extra=kafka_extra)


@contextmanager
def model_services(scenario: Scenario) -> Iterator[None]:
    """The clients below the real services are doubles, and failpoints are steps, until the end."""
    from model_kafka import ModelCluster
    from model_s3 import Inline, ModelS3
    from model_zookeeper import ModelZooKeeper

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "client_of", lambda *_, **__: ModelS3())
        patch.setattr(upload, "ThreadPoolExecutor", Inline)
        patch.setattr(calls, "_CONFLICT_PAUSE_SECONDS", 0)
        patch.setitem(Store.__init__.__kwdefaults__, "part_bytes", scenario.part_bytes)
        patch.setattr(coordination, "ZooKeeperClient", ModelZooKeeper)
        patch.setattr(kafka, "Cluster", ModelCluster)
        patch.setattr("waybill.ingest.lane.sweep", lambda *_: None, raising=False)  # of uploads a day old: no step
        patch.setattr(failpoints, "reach", lambda name: lane().call(f"at {name}", lambda: None, shared=False))
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
