"""The nodes of one stream and generation: locks, committed offsets, chores, and the journal of named stops."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from kazoo.exceptions import NodeExistsError

from waybill.base.errors import (
    CommitConflict,
    DocumentDamaged,
    DocumentTooNew,
    IngestStopped,
    LockHeld,
    UnexpectedFailure,
)
from waybill.config.connections import Connection, find_connection
from waybill.config.names import TopicPartition, check_topic
from waybill.services.coordination.nodes import NODE, CommittedOffset, SlotRead, Stop
from waybill.services.coordination.paths import ZkPaths
from waybill.services.coordination.session import NodeConflict, ZooKeeperSession

if TYPE_CHECKING:
    from waybill.config.models import Config

logger = logging.getLogger(__name__)


class Coordinator:
    """The nodes of one stream and generation, read and written in one session.

    As a context manager it connects the session on entry and ends it on exit. The coordinators of several streams can
    share a session; then the owner of the session connects it.

    Every method raises `CoordinationUnavailable` when ZooKeeper does not answer or the session is gone, and
    `ConfigError` when ZooKeeper refuses the credentials.
    """

    def __init__(self, session: ZooKeeperSession, paths: ZkPaths, *, clock: Callable[[], float] = time.time) -> None:
        self.session = session
        self.paths = paths
        self._clock = clock

    @classmethod
    def of(cls, config: Config, stream: str, find: Callable[[str], Connection] = find_connection) -> Self:
        """Return a coordinator with a new session, which is not connected yet. `find` looks up connections."""
        return cls.sharing(ZooKeeperSession.of(config, find), config, stream)

    @classmethod
    def sharing(cls, session: ZooKeeperSession, config: Config, stream: str) -> Self:
        """Return the coordinator of a stream that uses `session`."""
        return cls(session, ZkPaths(config.zookeeper.root, stream, config.stream(stream).generation))

    def __enter__(self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.session.__exit__(*error)

    def check_session(self) -> None:
        """Raise `CoordinationUnavailable` if the session has ended, and every lock with it."""
        self.session.check()

    @contextmanager
    def lock(self, tp: TopicPartition) -> Iterator[None]:
        """Hold the lock of a topic-partition. Raises `LockHeld` at once if another lane has it."""
        with self.session.lock(self.paths.lock(tp), str(tp)) as acquired:
            if not acquired:
                raise LockHeld(f"{tp}: another lane holds the lock")
            yield

    # --- committed offsets ---

    def read_committed(self, tp: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset, or None if there is no node.

        Raises `DocumentTooNew` or `DocumentDamaged` as `CommittedOffset.from_document` does.
        """
        path = self.paths.committed_offset(tp)
        node = self.session.get(path)
        return None if node is None else CommittedOffset.from_document(*node, path)

    def read_all_committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of those topic-partitions that have one. The calls run in parallel.

        A node that cannot be parsed is skipped with a warning: it concerns only its own topic-partition, whose lane
        gets the error from `read_committed`.
        """
        tps = list(tps)
        nodes = self.session.get_all(self.paths.committed_offset(tp) for tp in tps)
        return self._parse_committed(tps, nodes)

    def _parse_committed(
        self, tps: Iterable[TopicPartition], nodes: Mapping[str, tuple[bytes, int]]
    ) -> dict[TopicPartition, CommittedOffset]:
        committed = {}
        for tp in tps:
            path = self.paths.committed_offset(tp)
            if path in nodes:
                try:
                    committed[tp] = CommittedOffset.from_document(*nodes[path], path)
                except (DocumentDamaged, DocumentTooNew) as error:
                    logger.warning("%s", error)
        return committed

    def list_committed(self) -> dict[TopicPartition, CommittedOffset]:
        """Return every committed offset of the stream and generation."""
        return self.read_all_committed(self._topic_partitions(self.paths.offsets))

    def first_partition_count(self, topic: str, count: int) -> int:
        """Return how many partitions the topic had when its first chain was started. It has `count` now.

        The first call of any lane records `count`. Return 0 if chains exist but the number was not recorded.
        """
        path = f"{self.paths.offsets}/{check_topic(topic)}"
        try:
            self.session.write(path, NODE.write({"partitions": count}), version=-1)
        except NodeExistsError:
            node = self.session.get(path)
            fields = NODE.parse(path, node[0], dict) if node and node[0] else {}
            return int(fields.get("partitions", 0))
        return count

    def write_committed(self, tp: TopicPartition, committed: CommittedOffset, version: int) -> CommittedOffset:
        """Replace the version of the node that was read; -1 means that there was no node.

        Return the committed offset with the node's new version. Raises `CommitConflict` if another lane has written
        since: read the node again and start over. If ZooKeeper's answer is lost, this reads the node to find out
        whether the write succeeded, so the outcome is never in doubt.
        """
        data, path = committed.to_document(), self.paths.committed_offset(tp)
        try:
            new_version = self.session.write(path, data, version)
        except NodeConflict:
            # ZooKeeper refuses a retried write whose first try succeeded although its answer was lost.
            now = self.session.get(path)
            if now is None or now[0] != data or now[1] != version + 1:
                raise CommitConflict(
                    f"{tp}: the committed offset was moved by another lane since version {version} was read"
                ) from None
            new_version = now[1]
        return CommittedOffset.from_document(data, new_version, path)

    # --- how far slots of Kinesis are read ---

    def record_slot_read(self, tp: TopicPartition, read: SlotRead) -> None:
        """Store how far a slot is read. What is committed does not depend on it."""
        node = NODE.write({"archived_to_ms": read.archived_to_ms, "shards": read.shards})
        self.session.put(self.paths.slot_read(tp), node, f"store how far {tp} is read")

    def read_slot_reads(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, SlotRead]:
        """Return the time up to which slots are read.

        Slots that no lane has read since ZooKeeper lost its data are missing.
        """
        paths = {tp: self.paths.slot_read(tp) for tp in tps}
        nodes = self.session.get_all(paths.values())
        found = {}
        for tp, path in paths.items():
            if path in nodes:
                try:
                    node = NODE.parse(path, nodes[path][0], dict)
                    found[tp] = SlotRead(int(node.get("archived_to_ms", 0)), int(node.get("shards", 0)))
                except (DocumentDamaged, DocumentTooNew, TypeError, ValueError) as error:
                    # Treat the slot as if no lane had read it: it counts as late, and its lane writes the node again.
                    logger.warning("how far %s is read is not known: %s", tp, error)
        return found

    # --- chores: work that any lane does from time to time ---

    def claim_chore(self, name: str, every: timedelta) -> bool:
        """Return whether the caller must do a chore that was not claimed for `every`. Only one caller gets True."""
        path, now_ms = self.paths.chore(name), int(self._clock() * 1000)
        node = self.session.get(path)
        if node is not None:
            last_ms = int(NODE.parse(path, node[0], dict).get("claimed_at", 0))
            if 0 <= now_ms - last_ms < every.total_seconds() * 1000:
                return False
        try:
            self.session.write(path, NODE.write({"claimed_at": now_ms}), -1 if node is None else node[1])
        except NodeConflict:
            return False
        return True

    # --- the journal of stops ---

    def record_stop(self, tp: TopicPartition, error: IngestStopped | UnexpectedFailure) -> None:
        """Write a named stop, or an unexpected failure, to the journal, unless the journal holds the same message."""
        path = self.paths.stop(tp)
        before = self.session.get(path)
        if before is not None and _fields_of_stop(before[0], path).get("message") == str(error):
            return
        stop = Stop(tp, error.stop_name, str(error), error.figures, int(self._clock() * 1000))
        self.session.put(path, stop.to_document(), f"journal the stop of {tp}")

    def clear_stop(self, tp: TopicPartition, *, named: bool = True, unexpected: bool = True) -> bool:
        """Remove a stop from the journal, since its reason is gone. Return whether there was one.

        `named`, `unexpected`: whether named stops and unexpected failures are removed.
        """
        path = self.paths.stop(tp)
        if not (named and unexpected):
            if (node := self.session.get(path)) is None:
                return False
            is_unexpected = _fields_of_stop(node[0], path).get("error") == UnexpectedFailure.stop_name
            if not (unexpected if is_unexpected else named):
                return False
        return self.session.delete(path, f"clear the stop of {tp}")

    def list_stops(self) -> list[Stop]:
        """Return the journal, sorted by topic-partition.

        A node that cannot be parsed is a stop of its own topic-partition, with the name of the error: it does not hide
        the others, and does not stop other topic-partitions.
        """
        stops = []
        for tp in self._topic_partitions(self.paths.stops):
            path = self.paths.stop(tp)
            node = self.session.get(path)
            if node is None:
                continue
            try:
                stops.append(Stop.from_document(tp, node[0], path))
            except (DocumentDamaged, DocumentTooNew) as error:
                logger.warning("%s", error)
                stops.append(Stop(tp, type(error).__name__, str(error), {}, int(self._clock() * 1000)))
        return sorted(stops, key=lambda stop: stop.tp)

    def _topic_partitions(self, parent: str) -> Iterator[TopicPartition]:
        """Yield the topic-partitions that have nodes below `parent`. Nodes with other names are logged and skipped."""
        for topic in self.session.children(parent):
            for partition in self.session.children(f"{parent}/{topic}"):
                try:
                    yield TopicPartition.parse(f"{topic}/{partition}")
                except ValueError as error:
                    logger.warning("ZooKeeper node below %s: %s; ignored", parent, error)


@dataclass(frozen=True, slots=True)
class IngestState:
    """The state of one stream's ingest in ZooKeeper."""

    committed: Mapping[TopicPartition, CommittedOffset]
    stops: tuple[Stop, ...]


def read_ingest_states(
    session: ZooKeeperSession,
    coordinators: Mapping[str, Coordinator],
    tps: Mapping[str, Iterable[TopicPartition]],
) -> dict[str, IngestState]:
    """Return the committed offsets and the named stops of several streams, by stream.

    All requests of one kind are sent together: for 200 streams, separate round trips would be most of a plan's time.
    Raises what the coordinators' methods raise.
    """
    wanted = {name: list(tps.get(name, ())) for name in coordinators}
    nodes = session.get_all(
        coordinators[name].paths.committed_offset(tp) for name, each in wanted.items() for tp in each
    )
    stopped_topics = session.children_of_all(coordinator.paths.stops for coordinator in coordinators.values())
    return {
        name: IngestState(
            committed=coordinator._parse_committed(wanted[name], nodes),
            stops=tuple(coordinator.list_stops()) if stopped_topics[coordinator.paths.stops] else (),
        )
        for name, coordinator in coordinators.items()
    }


def _fields_of_stop(data: bytes, path: str) -> dict[str, Any]:
    """Return the fields of a node of the journal.

    None if it cannot be parsed: such a node can be replaced and removed.
    """
    try:
        return NODE.parse(path, data, dict)
    except (DocumentDamaged, DocumentTooNew) as error:
        logger.warning("%s", error)
        return {}
