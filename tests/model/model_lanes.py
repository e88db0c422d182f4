"""The model: S3, ZooKeeper and Kafka in memory, and lanes that run the real code on them, step by step.

A lane is a greenlet that runs `waybill.archive.ingest.run_lane`, with the real commit protocol, `Store`, `Coordinator`
and `KafkaSource`. Only botocore's client, kazoo's client and the Kafka cluster below them are doubles. A lane pauses
before each call to one of these, and at each failpoint. The explorer then decides which lane continues, and how the
call ends. After each step the world checks its invariants.
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

from waybill.archive import ingest
from waybill.archive.chain import gaps
from waybill.archive.ingest import Clock, Outcome, TopicPartitionReport, gap_acceptance
from waybill.base import failpoints
from waybill.base.decision import Decision
from waybill.base.errors import WaybillError
from waybill.config.connections import Connection
from waybill.config.models import Config
from waybill.config.names import BackupName, GapName, TopicPartition
from waybill.records.batches.framing import frames
from waybill.services.coordination import session
from waybill.services.kafka import kafka
from waybill.services.store import Store, calls, upload

if TYPE_CHECKING:
    from model_kafka import Log
    from model_zookeeper import ModelZooKeeper

STREAM = "model"
COMMITTED = f"/model/streams/{STREAM}/1/offsets/t/0"
_TP = TopicPartition("t", 0)
_WALL_SECONDS = 2_000_000_000.0

Faults = Mapping[str, Callable[[], Any]]
"""The ways in which a call may fail: a description for people, and the function to call instead."""


@dataclass(frozen=True)
class LaneSetup:
    """One lane and its settings. Two that differ in `max_bytes` cut their objects at different offsets."""

    name: str
    max_bytes: str = "1KiB"
    """Less than two batches of the log's."""
    runs: int = 1
    accepts: bool = False
    """This is not a lane, but a person who accepts the gap that retention has made, if there is one."""


@dataclass(frozen=True)
class Scenario:
    """The beginning of an exploration, and the faults that may happen in it."""

    log: str = "ddd"
    """The log, as a word for `model_kafka.Log`."""
    lanes: tuple[LaneSetup, ...] = (LaneSetup("A"), LaneSetup("B"))
    visible: int | None = None
    """How many letters of the log are visible at first. Each request for its end makes one more visible."""
    part_bytes: int = 1 << 16
    """With 400, every object is a multipart upload; with the default none is."""
    fetch_bytes: int = 1
    """By default each fetch returns one batch."""
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
    """A znode."""

    data: bytes
    version: int

    def __str__(self) -> str:
        return f"{shown_document(self.data)}, version {self.version}"


def shown_document(data: bytes) -> str:
    """Return the first field of a document. The others do not matter here."""
    fields = json.loads(data or b"{}")
    return next((f"{key} {value}" for key, value in fields.items() if key != "v"), "nothing")


@dataclass(frozen=True)
class Stored:
    """An object in S3."""

    data: bytes
    metadata: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{len(self.data)} bytes"


@dataclass
class Begun:
    """A multipart upload that is not completed."""

    metadata: tuple[tuple[str, str], ...]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Late:
    """A call that arrives after its lane has given up waiting for the answer."""

    what: str
    arrive: Callable[[], Any]


class World:
    """The services that all lanes share. `broken` describes the invariant that does not hold any more, or is ''."""

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
        """The steps that a counterexample prints: the lane, what it did, and the result."""

    # --- Kafka ---

    @property
    def end(self) -> int:
        return self.log.ends[self._visible - 1] if self._visible else 0

    def ask_end(self) -> int:
        end = self.end
        self._visible = min(self._visible + 1, len(self.log.ends))
        return end

    def delete_first_letter(self) -> None:
        """Delete the oldest letter that is left, as retention does."""
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

    # --- invariants ---

    @property
    def committed(self) -> int | None:
        node = self.nodes.get(COMMITTED)
        return None if node is None else int(json.loads(node.data)["committed_offset"])

    def chain(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return each object's first offset, next offset and messages' offsets, in order of the names."""
        found = []
        for key, stored in self.objects.items():
            if key.startswith("backup/"):
                first = BackupName.parse(key).first_offset
                following, messages = _contents(self.log.word, stored.data)
                found.append((first, following, messages or self._missing(stored, first, following)))
        return sorted(found)

    def _missing(self, stored: Stored, first: int, following: int) -> tuple[int, ...]:
        """Return the messages that a gap marker stands for. Kafka must not have them."""
        if gaps.GAP_METADATA_KEY not in dict(stored.metadata):
            return ()
        return tuple(offset for offset in self.log.wanted if first <= offset < following and offset < self.earliest)

    def _gap_markers(self) -> set[int]:
        """Return the first offsets of all gap markers."""
        marked = (key for key, stored in self.objects.items() if gaps.GAP_METADATA_KEY in dict(stored.metadata))
        return {BackupName.parse(key).first_offset for key in marked}

    def _accepted_gaps(self) -> set[int]:
        """Return the first offsets of all accepted gaps."""
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
        return self._counts_fault(chain)

    def _counts_fault(self, chain: list[tuple[int, int, tuple[int, ...]]]) -> str | None:
        """Return how the counts beside the committed offset contradict the objects and the log."""
        counts = json.loads(self.nodes[COMMITTED].data).get("counts")
        if counts is None:
            return None
        start, end, marked = counts.pop("from_offset"), self.committed or 0, self._gap_markers()
        counted = [found for found in chain if start <= found[0] < end]
        messages = [
            o for first, following, all_ in counted if first not in marked for o in all_ if first <= o < following
        ]
        expected = {
            "messages": len(messages),
            "gaps": sum(following - first for first, following, _ in counted if first in marked),
        }
        missing = sum(start <= offset < end for offset in self.log.missing)
        rest = end - start - sum(counts.values())
        # What is missing in an adopted object, or in a gap, is counted as such.
        if {name: counts[name] for name in expected} != expected or not 0 <= rest <= missing:
            return f"the counts of [{start}, {end}) are {counts} with a rest of {rest}: {expected}, {missing} missing"
        if not counts["unknown"] and not counts["gaps"] and rest != missing:
            return f"the counts of [{start}, {end}) are {counts} with a rest of {rest}: {missing} are missing"
        return None

    def finished(self, name: str, report: TopicPartitionReport) -> None:
        """Check a lane's report: no injected fault is a reason for a named stop."""
        failure = report.failure
        self.steps.append((name, "ends", f"{report.outcome}, committed {report.committed_offset}"))
        if failure is None:
            return
        if not failure.retriable and not (failure.error == "RetentionGap" and self.earliest):
            self.broken = self.broken or f"lane {name} ended with {failure.error}: {failure.message}"
        if not self.disturbed:
            self.broken = self.broken or f"lane {name} failed undisturbed with {failure.error}: {failure.message}"

    def check_completed(self, report: TopicPartitionReport) -> None:
        """Check that one undisturbed run at the end has archived the whole log."""
        self._check()
        if self.broken or (self.earliest and report.outcome is Outcome.STOPPED):
            return
        # An accepted gap without a marker is possible: a sleeping lane has archived messages after the decision.
        if not self._gap_markers() <= self._accepted_gaps():
            self.broken = f"gap markers at {self._gap_markers()}, but accepted gaps only at {self._accepted_gaps()}"
        chain = self.chain()
        ends = {report.committed_offset, self.committed, self.log.end, chain[-1][1] if chain else self._begun}
        if report.outcome is not Outcome.UP_TO_DATE or len(ends) > 1:
            self.broken = f"a quiet run ends {report.outcome} at {ends}: {report.failure}"

    def key(self) -> tuple[Any, ...]:
        """Return the whole state as one value: two worlds with the same key continue in the same way."""
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
    """Return where an object ends, and its messages. Batches are looked up by their bytes: they must be verbatim."""
    known = _log(word).messages
    messages: list[int] = []
    following = -1
    for frame in frames(data, where="object"):
        following = frame.header.next_offset
        if frame.header.record_count:
            messages += known.get(bytes(frame.data), (-1,))  # -1 is in no log, so the comparison fails
    return following, tuple(messages)


@cache
def _log(word: str) -> Log:
    from model_kafka import Log

    return Log(word)


class Lane(greenlet):
    """One lane. It runs until its next call, described by `pending`, and waits there."""

    def __init__(self, world: World, setup: LaneSetup) -> None:
        super().__init__(self._runs)
        self.world, self.setup, self.name = world, setup, setup.name
        self.session: ModelZooKeeper | None = None
        self.pending, self.faults, self.is_shared = "", cast(Faults, {}), True
        self.calls = 0
        self.history = 0
        """A hash of all results so far: two lanes with the same history are in the same state."""
        self.reports: list[TopicPartitionReport] = []

    def call(self, what: str, apply: Callable[[], Any], faults: Faults | None = None, *, shared: bool = True) -> Any:
        """Wait until the explorer continues this lane, then make the call.

        Other lanes can neither see nor change a call that is not `shared`.
        """
        if self.world.is_over:
            raise GreenletExit
        self.calls += 1
        self.pending, self.faults, self.is_shared = what, faults or {}, shared
        fault = self.parent.switch()
        if self.world.is_over:
            raise GreenletExit
        try:
            result = (apply if fault is None else self.faults[fault])()
        except Exception as error:
            result = _described(error)
            raise
        finally:
            self.history = hash((self.history, what, fault, result))
            self.world.steps.append((self.name, what, fault or result))
        return result

    def _runs(self) -> None:
        if self.setup.accepts:
            self._accept()
            return
        for _ in range(self.setup.runs):
            share = ingest.LaneShare(stream=STREAM, topic="t", partition=0, estimated_bytes=0)
            config = _config(self.setup.max_bytes, self.world.scenario.start)
            lane = ingest.Lane(number=0, shares=(share,))
            report = ingest.run_lane(config, lane, find=_find, clock=_CLOCK, stores_usage=False)
            self.reports.append(report.partitions[0])
            self.world.finished(self.name, report.partitions[0])

    def _accept(self) -> None:
        config = _config(self.setup.max_bytes, self.world.scenario.start)
        with ingest.connect(config, STREAM, _find) as services:
            try:
                decision = Decision("model", "model")
                found = gap_acceptance.accept_gap(services, config.stream(STREAM), _TP, decision, clock=_CLOCK)
                result = f"accepted {', '.join(map(str, found.gaps))}"
            except WaybillError as error:
                result = f"{type(error).__name__}: {error}"
        self.world.steps.append((self.name, "ends", result))


def lane() -> Lane:
    """Return the lane whose code is running."""
    found = getcurrent()
    assert isinstance(found, Lane)
    return found


def new_world(scenario: Scenario) -> tuple[World, list[Lane]]:
    """Return a world and its lanes, each waiting before its first call."""
    world = World(scenario, _log(scenario.log))
    lanes = [Lane(world, setup) for setup in scenario.lanes]
    for each in lanes:
        each.switch()
    return world, lanes


def run_quietly(world: World, lanes: list[Lane]) -> None:
    """After all lanes have ended: let the late calls arrive, then run one more lane undisturbed."""
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
        result = "done"
    except Exception as error:
        result = _described(error)
    world.steps.append(("", f"a late call arrives: {late.what}", result))


def end(world: World, lanes: list[Lane]) -> None:
    """End the lanes that still run. Nothing they still do has an effect."""
    world.is_over = True
    for each in lanes:
        if not each.dead:
            each.throw(GreenletExit)


def _described(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response["Error"]["Code"]) if response else type(error).__name__


def shown(result: Any) -> str:
    """Return a result as a short text for one line of a schedule."""
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
    """Replace the clients below the real services by doubles, and make failpoints steps."""
    from model_kafka import ModelCluster
    from model_s3 import Inline, ModelS3
    from model_zookeeper import ModelZooKeeper

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "store_client", lambda *_, **__: ModelS3())
        patch.setattr(upload, "ThreadPoolExecutor", Inline)
        patch.setattr(calls, "_CONFLICT_PAUSE_SECONDS", 0)
        # Whether the store is fit is no step of the protocol; and here it may be unfit on purpose.
        patch.setattr("waybill.services.store.store.ensure_fit", lambda *_: None)
        patch.setitem(Store.__init__.__kwdefaults__, "part_bytes", scenario.part_bytes)
        patch.setattr(session, "ZooKeeperClient", ModelZooKeeper)
        patch.setattr(kafka, "Cluster", ModelCluster)
        # It concerns uploads that are a day old, and is no step of the protocol.
        patch.setattr("waybill.archive.ingest.lane.abort_orphaned_uploads", lambda *_: None)
        patch.setattr(failpoints, "reach", lambda name: lane().call(f"at {name}", lambda: None, shared=False))
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
