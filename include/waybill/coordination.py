"""ZooKeeper: locks, committed offsets, the journal of named stops.

What the protocol relies on: a node's version grows with each write, and ZooKeeper refuses a write that names an older
version. Locks only save work: they keep two lanes from fetching the same data, but without them nothing would be lost
or archived twice. The committed offset is a fast copy of the end of the chain; if it is missing, ingest reads the chain
(docs/protocol.md).

What it survives: a session that expires while a lane sleeps or works. From then on this coordinator writes nothing and
raises `CoordinationUnavailable` instead. What a rival committed in the meantime stays, since every write names the
version that was read.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    LockTimeout,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from waybill.clients.zookeeper import ZooKeeperClient
from waybill.connections import Connection, ZooKeeperEndpoint, find_connection
from waybill.documents import read_document
from waybill.errors import (
    CommitConflict,
    ConfigError,
    CoordinationUnavailable,
    DocumentDamaged,
    DocumentTooNew,
    IngestStopped,
    LockHeld,
)
from waybill.names import Extension, TopicPartition, ZkPaths, check_topic

if TYPE_CHECKING:
    from waybill.config import Config

__all__ = ["CommittedOffset", "Coordinator", "Stop"]

logger = logging.getLogger(__name__)

_VERSION = 1
_DEFAULT_SESSION_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a topic-partition, and facts that were known when it was written."""

    committed_offset: int
    """The offset that the next backup object will start at."""
    topic_id: str = ""
    """The topic's id at that time; '' if Kafka did not return one."""
    leader_epoch: int = -1
    """The leader epoch of the last archived batch; -1 if Kafka did not return one."""
    object_bytes: int = 0
    """Size of the last object. With `object_messages` it gives the mean message size, which plans of lanes use."""
    object_messages: int = 0
    """Number of messages in the last object."""
    committed_at_ms: int = 0
    """When it was written. Epoch ms."""
    start_offset: int | None = None
    """Offset at which the chain starts; None if an older Waybill started it, or if it is no longer known."""
    last_object_offset: int | None = None
    """Offset at which the last object starts (it ends at the committed offset); None if missing or unknown."""
    set_by_hand: str = ""
    """Who set the committed offset by hand, when and why; '' if it was never set by hand."""
    extension: Extension = Extension.KAFKA
    """Extension of the chain's objects, which implies their format. All objects of a generation share it."""
    version: int = -1
    """The node's version in ZooKeeper; -1 if there is no node. Not part of the document."""

    def to_document(self) -> bytes:
        """Return the JSON document of the ZooKeeper node."""
        return _document(
            committed_offset=self.committed_offset,
            topic_id=self.topic_id,
            leader_epoch=self.leader_epoch,
            object_bytes=self.object_bytes,
            object_messages=self.object_messages,
            committed_at=self.committed_at_ms,
            start_offset=self.start_offset,
            last_object_offset=self.last_object_offset,
            set_by_hand=self.set_by_hand,
            format=self.extension,
        )

    @classmethod
    def from_document(cls, data: bytes, version: int, where: str) -> CommittedOffset:
        """Return the committed offset in the node `where`, whose version is `version`.

        Raises `DocumentTooNew` for a document of a newer version, `DocumentDamaged` for one that cannot be parsed.
        """
        fields = _parsed(data, where)
        try:
            return cls(
                committed_offset=int(fields["committed_offset"]),
                topic_id=str(fields["topic_id"]),
                leader_epoch=int(fields["leader_epoch"]),
                object_bytes=int(fields["object_bytes"]),
                object_messages=int(fields["object_messages"]),
                committed_at_ms=int(fields["committed_at"]),
                start_offset=_offset_or_none(fields.get("start_offset")),
                last_object_offset=_offset_or_none(fields.get("last_object_offset")),
                set_by_hand=str(fields.get("set_by_hand", "")),
                extension=Extension(fields.get("format", Extension.KAFKA)),
                version=version,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(where, error) from None


@dataclass(frozen=True, slots=True)
class Stop:
    """A named stop in the journal: which topic-partition is stopped, why, and since when."""

    tp: TopicPartition
    error: str
    """The name of the named stop, which is the name of its error class."""
    message: str
    figures: dict[str, Any]
    """The error's attributes that are numbers or strings."""
    stopped_at_ms: int
    """Epoch ms."""


class Coordinator:
    """One ZooKeeper session for the nodes of one stream and generation. A context manager, which connects on entry.

    Every method raises `CoordinationUnavailable` when ZooKeeper does not answer or the session is gone, and
    `ConfigError` when ZooKeeper refuses the credentials.
    """

    def __init__(
        self,
        endpoint: ZooKeeperEndpoint,
        paths: ZkPaths,
        session_timeout: timedelta = _DEFAULT_SESSION_TIMEOUT,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.paths = paths
        self._clock = clock
        self._hosts = endpoint.where
        self._remedy = endpoint.remedy
        self._chroot = f"/{endpoint.chroot}" if endpoint.chroot else ""
        self._timeout = session_timeout.total_seconds()
        self._lost = False
        self._client = ZooKeeperClient(endpoint, self._timeout)
        self._client.add_listener(self._watch_session)

    @classmethod
    def of(cls, config: Config, stream: str, find: Callable[[str], Connection] = find_connection) -> Self:
        """Return a coordinator, not connected yet, for a stream of the config. `find` looks up connections."""
        endpoint = ZooKeeperEndpoint.of(find(config.zookeeper.connection))
        paths = ZkPaths(config.zookeeper.root, stream, config.stream(stream).generation)
        return cls(endpoint, paths, config.zookeeper.session_timeout)

    def __enter__(self) -> Self:
        self._client.connect()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(KazooException):
            self._client.stop()
        self._client.close()

    def _watch_session(self, state: str) -> None:
        if state == KazooState.LOST:
            # Final: kazoo would start a new session, but the locks of this one are gone.
            self._lost = True

    def check_session(self) -> None:
        """Raise `CoordinationUnavailable` if the session has ended, and every lock with it."""
        if self._lost:
            raise CoordinationUnavailable(
                f"the ZooKeeper session at {self._hosts} has ended, and its locks with it: nothing more is committed"
            )

    # --- locks ---

    @contextmanager
    def lock(self, tp: TopicPartition) -> Iterator[None]:
        """Hold the lock of a topic-partition. Raises `LockHeld` at once if another lane has it."""
        with self._translate_errors(f"lock {tp}"):
            lock = self._try_lock(self._path(self.paths.lock(tp)))
            if lock is None:
                raise LockHeld(f"{tp}: another lane holds the lock")
        try:
            yield
        finally:
            # A session that has ended has released the lock already.
            with suppress(KazooException, KazooTimeoutError):
                lock.release()

    def _try_lock(self, path: str) -> Any | None:
        """Return the acquired lock of that path, or None if another session has it."""
        lock = self._client.Lock(path)
        # The parent node of a lock stays after its first use. Without this flag kazoo would check it at each lock: a
        # sixth of the calls that a lane makes to ZooKeeper.
        lock.assured_path = True
        try:
            return lock if lock.acquire(blocking=False) else None
        except NoNodeError:
            lock = self._client.Lock(path)
            return lock if lock.acquire(blocking=False) else None

    # --- committed offsets ---

    def read_committed(self, tp: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset, or None if there is no node.

        Raises `DocumentTooNew` or `DocumentDamaged` as `CommittedOffset.from_document` does.
        """
        path = self.paths.committed_offset(tp)
        node = self._get(path)
        return None if node is None else CommittedOffset.from_document(*node, path)

    def read_all_committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of those topic-partitions that have one. The calls run in parallel.

        A node that cannot be parsed is skipped with a warning: it concerns only its own topic-partition, whose lane
        gets the error from `read_committed`.
        """
        pending = [(tp, self._client.get_async(self._path(self.paths.committed_offset(tp)))) for tp in tps]
        committed = {}
        for tp, answer in pending:
            path = self.paths.committed_offset(tp)
            with self._translate_errors(f"read {path}", passing=(NoNodeError,)), suppress(NoNodeError):
                data, stat = answer.get(timeout=self._timeout)
                try:
                    committed[tp] = CommittedOffset.from_document(bytes(data), int(stat.version), path)
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
            self._write(path, _document(partitions=count), version=-1)
        except NodeExistsError:
            node = self._get(path)
            fields = _parsed(node[0], path) if node and node[0] else {}
            return int(fields.get("partitions", 0))
        return count

    def write_committed(self, tp: TopicPartition, committed: CommittedOffset, version: int) -> CommittedOffset:
        """Replace the version of the node that was read; -1 means that there was no node.

        Return the committed offset with the node's new version. Raises `CommitConflict` if another lane has written
        since: read the node again and start over. If ZooKeeper's answer is lost, this reads the node to find out
        whether the write succeeded, so the outcome is never in doubt.
        """
        data = committed.to_document()
        try:
            new_version = self._write(self.paths.committed_offset(tp), data, version)
        except (BadVersionError, NodeExistsError, NoNodeError):
            # ZooKeeper refuses a retried write whose first try succeeded although its answer was lost.
            now = self._get(self.paths.committed_offset(tp))
            if now is None or now[0] != data or now[1] != version + 1:
                raise CommitConflict(
                    f"{tp}: the committed offset was moved by another lane since version {version} was read"
                ) from None
            new_version = now[1]
        return CommittedOffset.from_document(data, new_version, self.paths.committed_offset(tp))

    def _write(self, path: str, data: bytes, version: int) -> int:
        """Write a node over `version` (-1: create it) and return its new version.

        Raises kazoo's `BadVersionError`, `NodeExistsError` or `NoNodeError` if the node has another version.
        """
        path = self._path(path)
        with self._translate_errors(f"write {path}", passing=(BadVersionError, NodeExistsError, NoNodeError)):
            if version < 0:
                self._client.retry(self._client.create, path, data, makepath=True)
                return 0
            return int(self._client.retry(self._client.set, path, data, version=version).version)

    # --- chores: work that any lane does from time to time ---

    def claim_chore(self, name: str, every: timedelta) -> bool:
        """Return whether the caller must do a chore that was not claimed for `every`. Only one caller gets True."""
        path, now_ms = self.paths.chore(name), int(self._clock() * 1000)
        node = self._get(path)
        if node is not None:
            last_ms = int(_parsed(node[0], path).get("claimed_at", 0))
            if 0 <= now_ms - last_ms < every.total_seconds() * 1000:
                return False
        try:
            self._write(path, _document(claimed_at=now_ms), -1 if node is None else node[1])
        except (BadVersionError, NodeExistsError, NoNodeError):
            return False
        return True

    # --- the journal of stops ---

    def record_stop(self, tp: TopicPartition, error: IngestStopped) -> None:
        """Write a named stop to the journal, unless the journal holds the same message already."""
        path = self.paths.stop(tp)
        before = self._get(path)
        if before is not None and _parsed(before[0], path).get("message") == str(error):
            return
        data = _document(
            error=error.stop_name, message=str(error), figures=error.figures, stopped_at=int(self._clock() * 1000)
        )
        full = self._path(path)
        with self._translate_errors(f"journal the stop of {tp}"):
            self._client.ensure_path(full)
            self._client.retry(self._client.set, full, data)

    def clear_stop(self, tp: TopicPartition) -> bool:
        """Remove a stop from the journal, since its reason is gone. Return whether there was one."""
        path = self._path(self.paths.stop(tp))
        with self._translate_errors(f"clear the stop of {tp}", passing=(NoNodeError,)), suppress(NoNodeError):
            self._client.retry(self._client.delete, path)
            return True
        return False

    def list_stops(self) -> list[Stop]:
        """Return the journal, sorted by topic-partition."""
        parent = f"{self.paths.base}/stops"
        stops = []
        for tp in self._topic_partitions(parent):
            node = self._get(self.paths.stop(tp))
            if node is not None:
                stops.append(_stop(tp, node[0], self.paths.stop(tp)))
        return sorted(stops, key=lambda stop: stop.tp)

    # --- ZooKeeper ---

    def _path(self, path: str) -> str:
        return self._chroot + path

    def _get(self, path: str) -> tuple[bytes, int] | None:
        """Return a node's content and version, or None if there is no node."""
        with self._translate_errors(f"read {path}", passing=(NoNodeError,)), suppress(NoNodeError):
            data, stat = self._client.retry(self._client.get, self._path(path))
            return bytes(data), int(stat.version)
        return None

    def _topic_partitions(self, parent: str) -> Iterator[TopicPartition]:
        """Yield the topic-partitions that have nodes below `parent`. Nodes with other names are logged and skipped."""
        for topic in self._children(parent):
            for partition in self._children(f"{parent}/{topic}"):
                try:
                    yield TopicPartition.parse(f"{topic}/{partition}")
                except ValueError as error:
                    logger.warning("ZooKeeper node below %s: %s; ignored", parent, error)

    def _children(self, path: str) -> list[str]:
        with self._translate_errors(f"list {path}", passing=(NoNodeError,)), suppress(NoNodeError):
            return sorted(self._client.retry(self._client.get_children, self._path(path)))
        return []

    @contextmanager
    def _translate_errors(self, what: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Raise Waybill's errors instead of kazoo's, except those in `passing`. `what` completes "could not …"."""
        self.check_session()
        try:
            yield
        except passing:
            raise
        except (NoAuthError, AuthFailedError) as error:
            raise ConfigError(
                f"ZooKeeper at {self._hosts}: not allowed to {what}: the node's ACL does not include this login. Check "
                f"login and password of {self._remedy}"
            ) from error
        except (
            ConnectionClosedError,
            ConnectionLoss,
            KazooException,
            KazooTimeoutError,
            LockTimeout,
            SessionExpiredError,
        ) as error:
            raise CoordinationUnavailable(
                f"ZooKeeper at {self._hosts}: could not {what} ({type(error).__name__}): nothing was committed"
            ) from error


def _document(**fields: Any) -> bytes:
    return json.dumps({"v": _VERSION, **fields}, separators=(",", ":")).encode()


def _parsed(data: bytes, where: str) -> dict[str, Any]:
    remedy = "Upgrade this installation, or stop the other one"
    try:
        return read_document(data, _VERSION, f"ZooKeeper node {where}", remedy=remedy)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(where, error) from None


def _damaged(where: str, error: Exception) -> DocumentDamaged:
    return DocumentDamaged(
        f"ZooKeeper node {where} does not hold a document of Waybill's ({type(error).__name__}: {error}). Delete the "
        f"node: its content is rebuilt from the archive"
    )


def _offset_or_none(value: Any) -> int | None:
    return None if value is None else int(value)


def _stop(tp: TopicPartition, data: bytes, where: str) -> Stop:
    fields = _parsed(data, where)
    try:
        return Stop(tp, fields["error"], fields["message"], dict(fields["figures"]), int(fields["stopped_at"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(where, error) from None
