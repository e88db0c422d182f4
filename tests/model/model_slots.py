"""A Kinesis stream, S3, ZooKeeper and lanes in memory, below the real `extend_map`. Plans run step by step.

Each call of a plan to a server is one step: `Planner.step` runs the plan up to its next call. The world checks the
promises at each creation of an assignment, at each commit of a lane, and at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet
from kazoo.exceptions import BadVersionError, NodeExistsError

from waybill.archive.ingest.kinesis.slot_assignment import (
    ExtendedMap,
    ShardListing,
    StreamStart,
    check_checkpoint,
    extend_map,
)
from waybill.config import names
from waybill.records.shards.checkpoint import Checkpoint, PositionKind, ShardPosition
from waybill.records.shards.lineage import Shard
from waybill.records.shards.slot_map import Assignment, SlotMap, garbage
from waybill.services.coordination import ZkPaths

TOPIC = "clicks"
GENERATION = 1


@dataclass
class ModelShard:
    """A shard of the model stream: its parents, and its records by their arrival times."""

    shard_id: str
    parents: tuple[str, ...] = ()
    arrivals: list[int] = field(default_factory=list)
    is_closed: bool = False
    is_removed: bool = False

    def listed(self) -> Shard:
        parents = (*self.parents, "", "")
        return Shard(self.shard_id, 0, 9, "0", "9" if self.is_closed else "", parents[0], parents[1])


@dataclass
class Pass:
    """One pass of a lane over a slot: what it has read and not committed yet."""

    slot: int
    version: int
    checkpoint: Checkpoint
    records: list[tuple[str, int]]


class World:
    """The servers, and the oracle."""

    def __init__(self, *, slots: int, shards: int, start: StreamStart | None = None, records: int = 1) -> None:
        self.slots, self.start = slots, start or StreamStart()
        self.now = 1_000
        self.shards: dict[str, ModelShard] = {}
        self.objects: dict[str, bytes] = {}
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self.checkpoints: dict[int, tuple[Checkpoint, int]] = {}
        self.archived: dict[str, list[int]] = {}
        self.assigned: dict[str, Assignment] = {}
        self._ends: set[str] = set()
        self._removed_at_origin: set[str] = set()
        self.origin_ids: frozenset[str] | None = None
        self.origin_ms = 0
        self.maps: dict[int, SlotMap] = {}
        """The map that the lanes of a slot have."""
        for _ in range(shards):
            self._new(())
        for shard_id in list(self.shards):
            for _ in range(records):
                self.put(shard_id)

    # --- the stream ---

    def _new(self, parents: tuple[str, ...]) -> str:
        shard_id = f"shardId-{len(self.shards):012}"
        self.shards[shard_id] = ModelShard(shard_id, parents)
        return shard_id

    @property
    def open_ids(self) -> list[str]:
        return [each.shard_id for each in self.shards.values() if not each.is_closed]

    def put(self, shard_id: str) -> None:
        self.now += 1
        self.shards[shard_id].arrivals.append(self.now)

    def split(self, shard_id: str) -> tuple[str, str]:
        self.shards[shard_id].is_closed = True
        return self._new((shard_id,)), self._new((shard_id,))

    def merge(self, one: str, other: str) -> str:
        self.shards[one].is_closed = self.shards[other].is_closed = True
        return self._new((one, other))

    def may_expire(self, shard_id: str) -> bool:
        """Retention removes a closed shard after its parents."""
        shard = self.shards[shard_id]
        return shard.is_closed and not shard.is_removed and all(self.shards[each].is_removed for each in shard.parents)

    def expire(self, shard_id: str) -> None:
        self.shards[shard_id].is_removed = True

    def listing(self) -> ShardListing:
        shards = {each.shard_id: each.listed() for each in self.shards.values() if not each.is_removed}
        return ShardListing(shards, "arn/1", timedelta(days=1))

    # --- lanes ---

    def ended(self, shard_id: str) -> bool:
        """Return whether the end of the shard was committed, by the oracle (garbage collection does not change
        that)."""
        shard = self.shards[shard_id]
        return shard.is_closed and shard_id in self._ends

    def begin_pass(self, slot: int, most: int = 10) -> Pass | None:
        """Read up to `most` records of each open shard of a slot."""
        slot_map = self.maps.get(slot)
        if slot_map is None:
            return None
        checkpoint, version = self.checkpoints.get(slot, (Checkpoint(), 0))
        slot_map = check_checkpoint(self.store(), slot_map, TOPIC, GENERATION, slot, checkpoint)
        done = Pass(slot, version, checkpoint, [])
        for each in slot_map.open_shards(slot, checkpoint):
            shard = self.shards[each.shard_id]
            if shard.is_removed:
                continue  # the lane would raise RetentionGap
            position = checkpoint.position(each.shard_id) or each.start
            first = int(position.sequence) + 1 if position.sequence else 0
            wanted = [
                number
                for number in range(first, len(shard.arrivals))
                if position.kind is not PositionKind.AT_TIMESTAMP or shard.arrivals[number] >= position.timestamp_ms
            ][:most]
            done.records += [(each.shard_id, number) for number in wanted]
            if wanted:
                position = position.after(str(wanted[-1]))
            at_end = not wanted or wanted[-1] == len(shard.arrivals) - 1
            if shard.is_closed and at_end:
                position = position.at_shard_end()
            done.checkpoint = done.checkpoint.moved(each.shard_id, position)
        done.checkpoint = done.checkpoint.without(garbage(self.listing().shards, slot_map, done.checkpoint))
        return done

    def commit(self, done: Pass) -> bool:
        """Create the backup object of a pass, unless another pass was first."""
        before, version = self.checkpoints.get(done.slot, (Checkpoint(), 0))
        if version != done.version:
            return False
        if done.checkpoint == before:
            return True
        for shard_id, number in done.records:
            assert self.assigned[shard_id].slot == done.slot, f"{shard_id} is read by slot {done.slot}"
            self.archived.setdefault(shard_id, []).append(number)
            for parent in self.shards[shard_id].parents:
                assert self._is_over(parent), f"{shard_id} is read before {parent} has ended"
        self.checkpoints[done.slot] = (done.checkpoint, done.version + 1)
        self._ends.update(each for each, position in done.checkpoint.positions.items() if position.is_ended)
        return True

    def run_lanes(self) -> None:
        for slot in range(self.slots):
            done = self.begin_pass(slot)
            assert done is None or self.commit(done)

    def _is_over(self, shard_id: str) -> bool:
        """Whether children may start, by what the stream did and the lanes committed."""
        assert self.origin_ids is not None
        removed_before = shard_id not in self.origin_ids and shard_id in self._removed_at_origin
        return self.ended(shard_id) or removed_before

    # --- servers ---

    def store(self, step: Callable[[str], None] = lambda _: None) -> Any:
        """A double of `Store`. `step` is called before each request."""

        def create(key: str, data: bytes) -> bytes | None:
            step(f"create {key}")
            if key not in self.objects:
                self.objects[key] = data
                self._created(key)
                return None
            return self.objects[key]

        def read(key: str) -> bytes | None:
            step(f"read {key}")
            return self.objects.get(key)

        def listed(prefix: str) -> list[Any]:
            step(f"list {prefix}")
            return [SimpleNamespace(key=key) for key in sorted(self.objects) if key.startswith(prefix)]

        return SimpleNamespace(
            prefix="p",
            create_or_read_existing=create,
            read_if_exists=read,
            read=lambda key: self.objects[key],  # objects never change, so no step
            list_objects=listed,
        )

    def coordinator(self, step: Callable[[str], None] = lambda _: None) -> Any:
        """A double of `Coordinator` with its session."""

        def get(path: str) -> tuple[bytes, int] | None:
            step(f"get {path}")
            return self.nodes.get(path)

        def write(path: str, data: bytes, version: int) -> int:
            step(f"write {path}")
            if version < 0 and path in self.nodes:
                raise NodeExistsError
            if version >= 0 and (path not in self.nodes or self.nodes[path][1] != version):
                raise BadVersionError
            self.nodes[path] = (data, version + 1)
            return version + 1

        return SimpleNamespace(session=SimpleNamespace(get=get, write=write), paths=ZkPaths("w", "clicks", GENERATION))

    def view(self, request: str = "") -> int:
        """A number that differs if anything differs that a request returns; with '', that any request returns."""
        kind, _, name = request.partition(" ")
        shards = tuple((each.is_closed, each.is_removed) for each in self.shards.values())
        checkpoints = tuple(sorted((slot, version) for slot, (_, version) in self.checkpoints.items()))
        if request == "list shards":
            return hash(shards)
        if request == "read checkpoints":
            return hash(checkpoints)
        if kind in {"get", "write"}:
            return hash(self.nodes.get(name))
        objects = tuple(sorted(each for each in self.objects.items() if each[0].startswith(name)))
        return hash(objects) if request else hash((objects, tuple(sorted(self.nodes.items())), shards, checkpoints))

    def wipe(self) -> None:
        self.nodes.clear()

    def _created(self, key: str) -> None:
        fields = json.loads(self.objects[key])
        if key == names.stream_origin_key("p", TOPIC, GENERATION):
            self.origin_ids, self.origin_ms = frozenset(fields["initial_shards"]), fields["decided_at"]
            self._removed_at_origin = {each.shard_id for each in self.shards.values() if each.is_removed}
            return
        shard_id = fields["shard_id"]
        assert shard_id not in self.assigned, f"{shard_id} is assigned twice"
        assert 0 <= fields["slot"] < self.slots, f"slot {fields['slot']} of {self.slots}"
        if not self.shards[shard_id].is_removed:  # else nobody can read it: its slot shows the gap
            for parent in self.shards[shard_id].parents:
                assert self._is_over(parent), f"{shard_id} is assigned before {parent} has ended"
        self.assigned[shard_id] = Assignment.of_fields(shard_id, fields)

    # --- plans ---

    def plan(self, step: Callable[[str], None] = lambda _: None) -> ExtendedMap:
        """Run one plan, and pass its map to the lanes."""

        def list_shards() -> ShardListing:
            step("list shards")
            return self.listing()

        def read_checkpoints(slots: Collection[int]) -> dict[int, Checkpoint]:
            step("read checkpoints")
            return {slot: self.checkpoints.get(slot, (Checkpoint(), 0))[0] for slot in slots}

        done = extend_map(
            self.store(step),
            self.coordinator(step),
            TOPIC,
            self.slots,
            start=self.start,
            list_shards=list_shards,
            read_checkpoints=read_checkpoints,
            clock=lambda: self.now / 1000,
        )
        for slot in range(self.slots):
            self.maps[slot] = done.slot_map
        return done

    def free_slots(self) -> set[int]:
        """Return the free slots, from the oracle's data."""
        return set(range(self.slots)) - {
            each.slot for shard_id, each in self.assigned.items() if not self.ended(shard_id)
        }

    # --- the end ---

    def settle(self) -> SlotMap:
        """Run plans and lanes until nothing changes; then check that the archive is complete."""
        before = None
        while before != (now := (self.checkpoints.copy(), self.plan().slot_map)):
            before = now
            self.run_lanes()
        done = self.plan()
        assert not done.added
        assert not done.losses
        assert dict(done.slot_map.assignments) == self.assigned
        self.wipe()
        assert self.plan().slot_map == done.slot_map, "another map after a restart"
        assert self.origin_ids is not None
        for shard_id, shard in self.shards.items():
            if shard_id in self._removed_at_origin:
                assert shard_id not in self.archived
                continue
            from_ms = self.origin_ms if shard_id in self.origin_ids and self.start.kind == "at_timestamp" else 0
            expected = [number for number, at_ms in enumerate(shard.arrivals) if at_ms >= from_ms]
            assert self.archived.get(shard_id, []) == expected, f"{shard_id} is not archived exactly once"
        return done.slot_map

    def accept_gap(self, slot: int, shard_id: str) -> None:
        """Apply a person's acceptance of a removed shard."""
        checkpoint, version = self.checkpoints.get(slot, (Checkpoint(), 0))
        position = checkpoint.position(shard_id) or ShardPosition.trim_horizon()
        self.checkpoints[slot] = (checkpoint.moved(shard_id, position.at_shard_end()), version + 1)
        self._ends.add(shard_id)


class Planner:
    """One plan that runs step by step. It stops before each request to a server."""

    def __init__(self, world: World) -> None:
        self.history = 0
        self.is_done = False
        self.next = ""
        self._world = world
        self._main = getcurrent()
        self._let = greenlet(self._run)
        self._let.switch()

    def _run(self) -> None:
        self._world.plan(self._before)
        self.is_done = True

    def _before(self, what: str) -> None:
        self.next = what
        self._main.switch()

    def step(self) -> None:
        """Run to the next request."""
        self._let.parent = self._main = getcurrent()
        self.history = hash((self.history, self.next, self._world.view(self.next)))
        self._let.switch()

    def kill(self) -> None:
        """End the plan at its present step."""
        self._let.parent = getcurrent()
        self._let.throw(GreenletExit)
        self.is_done = True
