"""One ZooKeeper session: reads, versioned writes and locks, with Waybill's errors.

A run opens one session for all its streams: a session costs the server a write at its start and at its end, and the
client two threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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

from waybill.base.errors import ConfigError, CoordinationUnavailable, NodeTooLarge, SessionReplaced
from waybill.config.connections import Connection, ZooKeeperEndpoint, find_connection
from waybill.services.clients.zookeeper import ZooKeeperClient

if TYPE_CHECKING:
    from waybill.config.models import Config

logger = logging.getLogger(__name__)

DEFAULT_SESSION_TIMEOUT = timedelta(seconds=10)

MOST_NODE_BYTES = 1_000_000
"""ZooKeeper's own limit for a request is 1,048,575 bytes (`jute.maxbuffer`), with the path and the request's header."""

NodeConflict = (BadVersionError, NodeExistsError, NoNodeError)
"""What `ZooKeeperSession.write` raises when the node has another version."""


class ZooKeeperSession:
    """A session with ZooKeeper. A context manager, which connects on entry.

    Paths are absolute, without the connection's chroot. Every method raises `CoordinationUnavailable` when ZooKeeper
    does not answer or the session has ended, and `ConfigError` when ZooKeeper refuses the credentials.
    """

    def __init__(self, endpoint: ZooKeeperEndpoint, session_timeout: timedelta = DEFAULT_SESSION_TIMEOUT) -> None:
        self.lost = False
        """Whether the session has ended, and every lock with it."""
        self._hosts = endpoint.where
        self._remedy = endpoint.remedy
        self._chroot = f"/{endpoint.chroot}" if endpoint.chroot else ""
        self._timeout = session_timeout.total_seconds()
        self._session_id: int | None = None
        self._replaced_by: int | None = None
        self.client = ZooKeeperClient(endpoint, self._timeout)
        self.client.add_listener(self._watch)

    @classmethod
    def of(cls, config: Config, find: Callable[[str], Connection] = find_connection) -> Self:
        """Return a session, not connected yet, with the config's ZooKeeper. `find` looks up connections."""
        return cls(ZooKeeperEndpoint.of(find(config.zookeeper.connection)), config.zookeeper.session_timeout)

    def __enter__(self) -> Self:
        self.client.connect()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(KazooException):
            self.client.stop()
        self.client.close()

    def _watch(self, state: str) -> None:
        if state == KazooState.LOST:
            # Final: kazoo would start a new session, but the locks of this one are gone.
            self.lost = True
        elif state == KazooState.CONNECTED:
            self._compare_sessions()

    def _compare_sessions(self) -> None:
        """Record whether a reconnect led to another session, which servers other than ZooKeeper may not report.

        kazoo takes over the id that the server answers, and reports a connection. The locks are ephemeral nodes of the
        old session: the server deletes them, and another lane gets them.
        """
        session_id, _ = self.client.client_id
        if self._session_id is None:
            self._session_id = session_id
        elif session_id != self._session_id and not self.lost:
            self._replaced_by, self.lost = session_id, True
            logger.warning("%s", SessionReplaced(self._hosts, self._session_id, session_id))

    def check(self) -> None:
        """Raise `CoordinationUnavailable` if the session has ended, and every lock with it."""
        if self._session_id is not None and self._replaced_by is not None:
            raise SessionReplaced(self._hosts, self._session_id, self._replaced_by)
        if self.lost:
            raise CoordinationUnavailable(
                f"the ZooKeeper session at {self._hosts} has ended, and its locks with it: nothing more is committed"
            )

    def full_path(self, path: str) -> str:
        """Return the path with the connection's chroot, for calls of `client`."""
        return self._chroot + path

    # --- locks ---

    @contextmanager
    def lock(self, path: str, what: str) -> Iterator[bool]:
        """Try to hold a lock, without waiting. Yield whether it was acquired; `what` names it in errors."""
        with self.translate_errors(f"lock {what}"):
            lock = self._try_lock(self.full_path(path))
        if lock is None:
            yield False
            return
        try:
            yield True
        finally:
            # A session that has ended has released the lock already.
            with suppress(KazooException, KazooTimeoutError):
                lock.release()

    def _try_lock(self, path: str) -> Any | None:
        """Return the acquired lock of that path, or None if another session has it."""
        lock = self.client.Lock(path)
        # The parent node of a lock stays after its first use. Without this flag kazoo would check it at each lock: a
        # sixth of the calls that a lane makes to ZooKeeper.
        lock.assured_path = True
        try:
            return lock if lock.acquire(blocking=False) else None
        except NoNodeError:
            lock = self.client.Lock(path)
            return lock if lock.acquire(blocking=False) else None

    # --- nodes ---

    def _retry(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call until the connection is back, but never in another session than the one that holds the locks."""

        def attempt() -> Any:
            self.check()
            return call(*arguments, **options)

        return self.client.retry(attempt)

    def get(self, path: str) -> tuple[bytes, int] | None:
        """Return a node's content and version, or None if there is no node."""
        with self.translate_errors(f"read {path}", passing=(NoNodeError,)), suppress(NoNodeError):
            data, stat = self._retry(self.client.get, self.full_path(path))
            return bytes(data), int(stat.version)
        return None

    def get_all(self, paths: Iterable[str]) -> dict[str, tuple[bytes, int]]:
        """Return content and version of those nodes that exist, by path. The requests go out without waiting."""
        with self.translate_errors("read nodes"):
            pending = [(path, self.client.get_async(self.full_path(path))) for path in paths]
        nodes = {}
        for path, answer in pending:
            with self.translate_errors(f"read {path}", passing=(NoNodeError,)), suppress(NoNodeError):
                data, stat = answer.get(timeout=self._timeout)
                nodes[path] = bytes(data), int(stat.version)
        return nodes

    def children(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted; none if there is no node."""
        with self.translate_errors(f"list {path}", passing=(NoNodeError,)), suppress(NoNodeError):
            return sorted(self._retry(self.client.get_children, self.full_path(path)))
        return []

    def children_of_all(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Return the sorted names of the children of each node. The requests go out without waiting."""
        with self.translate_errors("list nodes"):
            pending = [(path, self.client.get_children_async(self.full_path(path))) for path in paths]
        found: dict[str, list[str]] = {}
        for path, answer in pending:
            found[path] = []
            with self.translate_errors(f"list {path}", passing=(NoNodeError,)), suppress(NoNodeError):
                found[path] = sorted(answer.get(timeout=self._timeout))
        return found

    def write(self, path: str, data: bytes, version: int) -> int:
        """Write a node over `version` (-1: create it and its parents) and return its new version.

        Raises one of `NodeConflict` if the node has another version.
        """
        full = self.full_path(path)
        _check_size(path, data)
        with self.translate_errors(f"write {path}", passing=NodeConflict):
            if version < 0:
                self._retry(self.client.create, full, data, makepath=True)
                return 0
            return int(self._retry(self.client.set, full, data, version=version).version)

    def write_once(self, path: str, data: bytes, version: int) -> None:
        """Write a node as `write` does, but never again after an answer was lost: the write may have succeeded.

        Raises one of `NodeConflict` if the node has another version; then nothing was written.
        """
        full = self.full_path(path)
        _check_size(path, data)
        with self.translate_errors(f"write {path}", passing=NodeConflict):
            if version < 0:
                self.client.ensure_path(full.rpartition("/")[0])
                self.client.create(full, data)
            else:
                self.client.set(full, data, version=version)

    def put(self, path: str, data: bytes, what: str) -> None:
        """Write a node of any version; create it if it does not exist. `what` completes "could not …"."""
        full = self.full_path(path)
        _check_size(path, data)
        with self.translate_errors(what):
            self.client.ensure_path(full)
            self._retry(self.client.set, full, data)

    def delete(self, path: str, what: str) -> bool:
        """Delete a node. Return whether there was one. `what` completes "could not …"."""
        with self.translate_errors(what, passing=(NoNodeError,)), suppress(NoNodeError):
            self._retry(self.client.delete, self.full_path(path))
            return True
        return False

    @contextmanager
    def translate_errors(self, what: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Raise Waybill's errors instead of kazoo's, except those in `passing`. `what` completes "could not …"."""
        self.check()
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


def _check_size(path: str, data: bytes) -> None:
    """Raise `NodeTooLarge` if the content is too large: ZooKeeper would close the connection at each attempt."""
    if len(data) > MOST_NODE_BYTES:
        raise NodeTooLarge(path, len(data), MOST_NODE_BYTES)
