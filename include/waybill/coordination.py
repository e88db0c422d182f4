"""ZooKeeper: locks, committed offsets, the journal of named stops.

What the protocol relies on: a node's version grows with each write, and a write that names an older version is refused.
Locks only save work: they keep two lanes from fetching the same data, and nothing is lost or repeated without them.
The committed offset is a fast copy of what the chain says; without it the chain is asked (docs/protocol.md).

What it survives: a session that expires while a lane sleeps or works. From then on nothing is written any more through
this coordinator; `CoordinationUnavailable` is raised instead. What a rival committed in the meantime stays, since every
write names the version that was read.
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
from waybill.connections import Connection, ZooKeeperEndpoint, connection
from waybill.documents import read_document
from waybill.errors import (
    CommitConflict,
    ConfigError,
    CoordinationUnavailable,
    GenerationConflict,
    IngestStopped,
    LockHeld,
)
from waybill.names import Extension, TopicPartition, ZkPaths, check_topic

if TYPE_CHECKING:
    from waybill.config import Config

__all__ = ["Committed", "Coordinator", "Stop"]

logger = logging.getLogger(__name__)

_VERSION = 1
_DEFAULT_SESSION_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a topic-partition and what was known when it was written."""

    committed_offset: int
    """The offset that the next backup object will start at."""
    topic_id: str = ""
    """The topic's id at that time; '' if Kafka did not say."""
    leader_epoch: int = -1
    """The leader epoch of the last archived batch; -1 if Kafka did not say."""
    object_bytes: int = 0
    """Size of the last object: with `object_messages` the mean size that lanes are planned by."""
    object_messages: int = 0
    committed_at_ms: int = 0
    """Milliseconds since 1970 UTC."""
    start_offset: int | None = None
    """Where the chain began; None if it was begun before that was written down, or nobody knows any more."""
    last_object_offset: int | None = None
    """Where the last object starts, which ends at the committed offset; None if there is none, or it is not known."""
    set_by_hand: str = ""
    """Who set the committed offset by hand, when and why; '' if nobody ever did."""
    extension: Extension = Extension.KAFKA
    """How the chain's objects are called, and so what their format is: the same for all of a generation."""
    version: int = -1
    """The node's version in ZooKeeper; -1: there is no node. Not part of the document."""

    def to_document(self) -> bytes:
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
    def from_document(cls, data: bytes, version: int, where: str) -> Committed:
        """Raises `GenerationConflict` for a document of a newer version, `ConfigError` for one that is damaged."""
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
    """A named stop as journaled: which topic-partition stands still, why, and since when."""

    tp: TopicPartition
    error: str
    """The name of the error's class."""
    message: str
    figures: dict[str, Any]
    stopped_at_ms: int
    """Milliseconds since 1970 UTC."""


class Coordinator:
    """One ZooKeeper session, for the nodes of one stream and generation. A context manager: it connects on entry.

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
    def of(cls, config: Config, stream: str, find: Callable[[str], Connection] = connection) -> Self:
        """For the nodes of a stream's generation; `find` looks a connection up by name. To be entered."""
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
            # For good: kazoo would begin a new session, but the locks of this one are gone.
            self._lost = True

    def check_session(self) -> None:
        """Raise `CoordinationUnavailable` if the session has ended, and with it every lock."""
        if self._lost:
            raise CoordinationUnavailable(
                f"the ZooKeeper session at {self._hosts} has ended, and its locks with it: nothing more is committed"
            )

    # --- locks ---

    @contextmanager
    def lock(self, tp: TopicPartition) -> Iterator[None]:
        """Hold the lock of a topic-partition. Raises `LockHeld` at once if another has it."""
        with self._mapped(f"lock {tp}"):
            lock = self._acquired(self._path(self.paths.lock(tp)))
            if lock is None:
                raise LockHeld(f"{tp}: another lane holds the lock")
        try:
            yield
        finally:
            # A session that ended released it already.
            with suppress(KazooException, KazooTimeoutError):
                lock.release()

    def _acquired(self, path: str) -> Any | None:
        """The lock of that path, held; None if another has it."""
        lock = self._client.Lock(path)
        # A lock's parent node stays when it was ever taken; to look for it each time is a sixth of a lane's calls here.
        lock.assured_path = True
        try:
            return lock if lock.acquire(blocking=False) else None
        except NoNodeError:
            lock = self._client.Lock(path)
            return lock if lock.acquire(blocking=False) else None

    # --- committed offsets ---

    def read_committed(self, tp: TopicPartition) -> Committed | None:
        """The committed offset, or None if there is no node (yet, or any more)."""
        path = self.paths.committed_offset(tp)
        found = self._get(path)
        return None if found is None else Committed.from_document(found[0], found[1], path)

    def read_all_committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """The committed offsets of those topic-partitions that have one. The calls are in flight side by side.

        A node that cannot be read is left out, with a warning: it is the trouble of its topic-partition alone, and
        whoever reads it by itself is told.
        """
        answers = [(tp, self._client.get_async(self._path(self.paths.committed_offset(tp)))) for tp in tps]
        found = {}
        for tp, answer in answers:
            path = self.paths.committed_offset(tp)
            with self._mapped(f"read {path}", passing=(NoNodeError,)), suppress(NoNodeError):
                data, stat = answer.get(timeout=self._timeout)
                try:
                    found[tp] = Committed.from_document(bytes(data), int(stat.version), path)
                except (ConfigError, GenerationConflict) as error:
                    logger.warning("%s", error)
        return found

    def list_committed(self) -> dict[TopicPartition, Committed]:
        """Every committed offset of the stream and generation."""
        return self.read_all_committed(self._topic_partitions(self.paths.offsets))

    def first_partitions(self, topic: str, count: int) -> int:
        """How many partitions the topic had when a chain of it was first begun; it has `count` now.

        The first call writes that down, whoever makes it. 0 if chains were begun and nobody knows with how many.
        """
        path = f"{self.paths.offsets}/{check_topic(topic)}"
        try:
            self._write(path, _document(partitions=count), version=-1)
        except NodeExistsError:
            found = self._get(path)
            fields = _parsed(found[0], path) if found and found[0] else {}
            return int(fields.get("partitions", 0))
        return count

    def write_committed(self, tp: TopicPartition, committed: Committed, version: int) -> Committed:
        """Write the committed offset over the version that was read; -1: there was no node.

        Returns what was written, with its new version. Raises `CommitConflict` if somebody wrote since: drop what you
        know and begin again. An answer that is lost is found out by reading: the outcome is never in doubt.
        """
        data = committed.to_document()
        try:
            found = self._write(self.paths.committed_offset(tp), data, version)
        except (BadVersionError, NodeExistsError, NoNodeError):
            # A retried write is refused when its own first try went through with the answer lost.
            now = self._get(self.paths.committed_offset(tp))
            if now is None or now[0] != data or now[1] != version + 1:
                raise CommitConflict(
                    f"{tp}: the committed offset was moved by another lane since version {version} was read"
                ) from None
            found = now[1]
        return Committed.from_document(data, found, self.paths.committed_offset(tp))

    def _write(self, path: str, data: bytes, version: int) -> int:
        path = self._path(path)
        with self._mapped(f"write {path}", passing=(BadVersionError, NodeExistsError, NoNodeError)):
            if version < 0:
                self._client.retry(self._client.create, path, data, makepath=True)
                return 0
            return int(self._client.retry(self._client.set, path, data, version=version).version)

    # --- what is done from time to time, by whichever lane comes first ---

    def claim_chore(self, name: str, every: timedelta) -> bool:
        """Whether it is the caller's to do a chore, since it was not claimed for so long. One caller is told so."""
        path, now_ms = self.paths.chore(name), int(self._clock() * 1000)
        found = self._get(path)
        if found is not None:
            last_ms = int(_parsed(found[0], path).get("claimed_at", 0))
            if 0 <= now_ms - last_ms < every.total_seconds() * 1000:
                return False
        try:
            self._write(path, _document(claimed_at=now_ms), -1 if found is None else found[1])
        except (BadVersionError, NodeExistsError, NoNodeError):
            return False
        return True

    # --- the journal of stops ---

    def record_stop(self, tp: TopicPartition, error: IngestStopped) -> None:
        """Journal a named stop, unless the same one is there already."""
        path = self.paths.stop(tp)
        before = self._get(path)
        if before is not None and _parsed(before[0], path).get("message") == str(error):
            return
        data = _document(
            error=type(error).__name__, message=str(error), figures=error.figures, stopped_at=int(self._clock() * 1000)
        )
        full = self._path(path)
        with self._mapped(f"journal the stop of {tp}"):
            self._client.ensure_path(full)
            self._client.retry(self._client.set, full, data)

    def clear_stop(self, tp: TopicPartition) -> bool:
        """Take a stop out of the journal, now that its reason is gone. Whether there was one."""
        path = self._path(self.paths.stop(tp))
        with self._mapped(f"clear the stop of {tp}", passing=(NoNodeError,)), suppress(NoNodeError):
            self._client.retry(self._client.delete, path)
            return True
        return False

    def list_stops(self) -> list[Stop]:
        """The journal, sorted by topic-partition."""
        parent = f"{self.paths.base}/stops"
        found = []
        for tp in self._topic_partitions(parent):
            node = self._get(self.paths.stop(tp))
            if node is not None:
                found.append(_stop(tp, node[0], self.paths.stop(tp)))
        return sorted(found, key=lambda stop: stop.tp)

    # --- ZooKeeper ---

    def _path(self, path: str) -> str:
        return self._chroot + path

    def _get(self, path: str) -> tuple[bytes, int] | None:
        with self._mapped(f"read {path}", passing=(NoNodeError,)), suppress(NoNodeError):
            data, stat = self._client.retry(self._client.get, self._path(path))
            return bytes(data), int(stat.version)
        return None

    def _topic_partitions(self, parent: str) -> Iterator[TopicPartition]:
        """Those that have nodes below `parent`. What is named otherwise is not ours: it is logged and left out."""
        for topic in self._children(parent):
            for partition in self._children(f"{parent}/{topic}"):
                try:
                    yield TopicPartition.parse(f"{topic}/{partition}")
                except ValueError as error:
                    logger.warning("ZooKeeper node below %s: %s; ignored", parent, error)

    def _children(self, path: str) -> list[str]:
        with self._mapped(f"list {path}", passing=(NoNodeError,)), suppress(NoNodeError):
            return sorted(self._client.retry(self._client.get_children, self._path(path)))
        return []

    @contextmanager
    def _mapped(self, what: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Turn kazoo's errors into ours, but for those in `passing`."""
        self.check_session()
        try:
            yield
        except passing:
            raise
        except (NoAuthError, AuthFailedError) as error:
            raise ConfigError(
                f"ZooKeeper at {self._hosts}: not allowed to {what}: the node's ACL is for others. Check login and "
                f"password of {self._remedy}"
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


def _damaged(where: str, error: Exception) -> ConfigError:
    return ConfigError(
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
