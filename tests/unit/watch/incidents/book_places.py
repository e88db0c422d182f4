"""ZooKeeper and S3 in memory for the book of incidents. Each can be away, and a process can die at any call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError

from waybill.base.errors import CoordinationUnavailable, ObjectMissing, StoreUnavailable

MOST_NODE_BYTES = 1_048_575


class Died(BaseException):
    """The process was killed at this call."""


class Place:
    """What both have in common: calls that fail, and calls at which the process dies."""

    unavailable: type[Exception]

    def __init__(self) -> None:
        self.is_away = False
        self.calls_until_death: int | None = None
        self.loses_answers = False
        """Whether what is written is stored, and its answer lost."""

    def call(self) -> None:
        if self.calls_until_death is not None:
            self.calls_until_death -= 1
            if self.calls_until_death < 0:
                raise Died
        if self.is_away:
            raise self.unavailable("away")

    def answer(self) -> None:
        if self.loses_answers:
            raise self.unavailable("the answer was lost")


class MemoryZooKeeper(Place):
    """The methods of `ZooKeeperSession` that the book needs."""

    unavailable = CoordinationUnavailable

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, tuple[bytes, int]] = {}

    def get(self, path: str) -> tuple[bytes, int] | None:
        self.call()
        return self.nodes.get(path)

    def get_all(self, paths: Iterable[str]) -> dict[str, tuple[bytes, int]]:
        self.call()
        return {path: self.nodes[path] for path in paths if path in self.nodes}

    def children(self, path: str) -> list[str]:
        self.call()
        return sorted(name.removeprefix(f"{path}/") for name in self.nodes if name.startswith(f"{path}/"))

    def write(self, path: str, data: bytes, version: int) -> int:
        self.call()
        if len(data) > MOST_NODE_BYTES:
            raise CoordinationUnavailable("ZooKeeper closes the connection")
        found = self.nodes.get(path)
        if version < 0 and found is not None:
            raise NodeExistsError
        if version >= 0 and (found is None or found[1] != version):
            raise BadVersionError
        self.nodes[path] = (data, version + 1)
        self.answer()
        return version + 1

    def delete(self, path: str, _what: str) -> bool:
        self.call()
        return self.nodes.pop(path, None) is not None


class MemoryS3(Place):
    """The methods of `Store` that the book needs."""

    unavailable = StoreUnavailable
    prefix = "p"

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}

    def read(self, key: str) -> bytes:
        self.call()
        if key not in self.objects:
            raise ObjectMissing(key)
        return self.objects[key]

    def read_if_exists(self, key: str) -> bytes | None:
        self.call()
        return self.objects.get(key)

    def keys(self, prefix: str) -> Iterator[str]:
        self.call()
        return iter(sorted(key for key in self.objects if key.startswith(prefix)))

    def replace(self, key: str, data: bytes, _content_type: Any = None) -> None:
        self.call()
        self.objects[key] = bytes(data)
        self.answer()

    def create_or_read_existing(self, key: str, data: bytes) -> bytes | None:
        self.call()
        if key in self.objects:
            return self.objects[key]
        self.objects[key] = bytes(data)
        self.answer()
        return None

    def remove(self, key: str) -> None:
        self.call()
        self.objects.pop(key, None)
