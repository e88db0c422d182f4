"""ZooKeeper for the model check: the double of kazoo's client below the real `Coordinator`.

It has versioned writes, create-if-absent, and locks that end with their session. Retries are kazoo's own. A follower
that lags behind may answer a read. A session that ends releases its lock, and the lane notices at once, later or never.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kazoo.exceptions import BadVersionError, ConnectionLoss, NodeExistsError, NoNodeError, SessionExpiredError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from model_lanes import Faults, Late, Node, lane, shown_document


class ModelZooKeeper:
    """The methods of `ZooKeeperClient` that `Coordinator` calls. One client is one session."""

    def __init__(self, *_: object) -> None:
        self._retry = KazooRetry(max_tries=3, ignore_expire=False, sleep_func=lambda _: None)  # as `ZooKeeperClient`
        self._listeners: list[Callable[[str], None]] = []
        lane().session = self

    def retry(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._retry.copy()(call, *args, **kwargs)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def notify_lost(self) -> None:
        """Notify the lane that its session has ended."""
        for listener in self._listeners:
            listener(KazooState.LOST)

    def connect(self) -> None:
        pass

    def stop(self) -> None:
        world = lane().world
        lane().call("zookeeper: close the session", lambda: world.end_session(lane().name))

    def close(self) -> None:
        pass

    # --- locks ---

    def Lock(self, path: str) -> SimpleNamespace:  # noqa: N802
        world, owner = lane().world, lane().name

        def acquire() -> bool:
            return not world.has_locks or world.locks.setdefault(path, owner) == owner

        def release() -> None:
            if world.locks.get(path) == owner:
                del world.locks[path]

        return SimpleNamespace(
            acquire=lambda **_: lane().call(f"zookeeper: lock {path}", acquire),
            release=lambda: lane().call(f"zookeeper: unlock {path}", release),
        )

    # --- nodes ---

    def create(self, path: str, value: bytes = b"", **_: object) -> str:
        world = lane().world

        def apply() -> None:
            if path in world.nodes and world.zookeeper_is_versioned:
                raise NodeExistsError
            world.write(path, Node(value, 0))

        lane().call(f"zookeeper: create {path} {shown_document(value)}", apply, _write_faults(apply))
        return path

    def set(self, path: str, value: bytes, version: int = -1) -> SimpleNamespace:
        world = lane().world

        def apply() -> int:
            before = world.nodes.get(path)
            if before is None:
                raise NoNodeError
            if version not in (-1, before.version) and world.zookeeper_is_versioned:
                raise BadVersionError
            world.write(path, Node(value, before.version + 1))
            return before.version + 1

        what = f"zookeeper: set {path} {shown_document(value)}" + (f" over version {version}" if version >= 0 else "")
        return SimpleNamespace(version=lane().call(what, apply, _write_faults(apply)))

    def delete(self, path: str, **_: object) -> None:
        world = lane().world

        def apply() -> None:
            if path not in world.nodes:
                raise NoNodeError
            world.write(path, None)

        lane().call(f"zookeeper: delete {path}", apply, _write_faults(apply))

    def ensure_path(self, path: str) -> None:
        world = lane().world

        def apply() -> None:
            if path not in world.nodes:
                world.write(path, Node(b"", 0))

        lane().call(f"zookeeper: ensure {path}", apply, _FAIL)

    def get(self, path: str) -> tuple[bytes, SimpleNamespace]:
        world = lane().world

        def stale() -> Node | str:
            return world.nodes_before.get(path) or "nothing"

        faults: Faults = _FAIL
        if world.nodes_before.get(path, world.nodes.get(path)) != world.nodes.get(path):
            faults = {"answered from before the last write": stale, **_FAIL}
        node = lane().call(f"zookeeper: get {path}", lambda: world.nodes.get(path, "nothing"), faults)
        if not isinstance(node, Node):
            raise NoNodeError
        return node.data, SimpleNamespace(version=node.version)

    def get_children(self, path: str) -> list[str]:
        world, start = lane().world, path + "/"

        def apply() -> tuple[str, ...]:
            return tuple(sorted({p.removeprefix(start).split("/")[0] for p in world.nodes if p.startswith(start)}))

        return list(lane().call(f"zookeeper: children of {path}", apply, _FAIL))

    def exists(self, path: str) -> SimpleNamespace | None:
        try:
            return self.get(path)[1]
        except NoNodeError:
            return None

    def get_async(self, path: str) -> SimpleNamespace:
        return SimpleNamespace(get=lambda **_: self.get(path))


# --- faults ---


def _fail() -> Any:
    raise SessionExpiredError


_FAIL: Faults = {"not done, the session has expired": _fail}


def _write_faults(apply: Callable[[], Any]) -> Faults:
    def answer_lost() -> None:
        apply()
        raise ConnectionLoss

    def answer_lost_for_good() -> None:
        apply()
        raise SessionExpiredError

    def late() -> None:
        lane().world.late.append(Late(lane().pending, apply))
        raise SessionExpiredError

    return {
        "done, the answer lost": answer_lost,
        "done, the answer lost, and the session expired": answer_lost_for_good,
        "timed out, and still on its way": late,
        **_FAIL,
    }
