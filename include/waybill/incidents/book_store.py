"""Where the incidents are stored: in a node of ZooKeeper, with a copy in S3, and one on this machine.

The node has a version. A watch writes it only over the version that it has read, so of two watches that find the same,
one opens the incident and sends the message, and the other one finds it opened. While ZooKeeper does not answer, the
copy in S3 takes its place, and while neither answers, a file of this machine. Copies have no versions: two watches may
then send a message each. Each document has a number that grows by one. The highest is the newest, so what happened in
the meantime is not lost when ZooKeeper is back.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waybill.coordination import ZooKeeperSession
from waybill.coordination.paths import watch_path
from waybill.coordination.session import NodeConflict
from waybill.documents import read_document
from waybill.errors import CoordinationUnavailable, DocumentDamaged, StoreUnavailable
from waybill.incidents.incident import IncidentBook
from waybill.names import incidents_key
from waybill.store import Store

__all__ = ["BookConflict", "BookStore"]

logger = logging.getLogger(__name__)

_VERSION = 1
_ATTEMPTS = 10


class BookConflict(Exception):
    """Other watches changed the incidents each time."""


@dataclass(slots=True)
class _Loaded:
    book: IncidentBook
    number: int
    node_version: int | None
    """None: ZooKeeper did not answer. -1: there is no node."""


class BookStore:
    """The stored incidents. `session` and `store` are None while the service does not answer."""

    def __init__(
        self, root: str, session: ZooKeeperSession | None, store: Store | None, directory: Path | None = None
    ) -> None:
        """`root`: of ZooKeeper's nodes. `directory`: of the copy on this machine."""
        self._path = watch_path(root)
        self._session = session
        self._store = store
        name = f"waybill-incidents-{root.replace('/', '-')}.json"
        self._file = (directory or Path(tempfile.gettempdir())) / name

    def load(self) -> IncidentBook:
        """Return the newest book of those that can be read; an empty one if there is none.

        Raises `DocumentTooNew` or `DocumentDamaged`.
        """
        return self._load().book

    def change(self, change: Callable[[IncidentBook], IncidentBook]) -> IncidentBook:
        """Store what `change` makes of the newest book, and return it. `change` may be called several times.

        Raises `DocumentTooNew`, `DocumentDamaged`, or `BookConflict` after many attempts.
        """
        for _ in range(_ATTEMPTS):
            loaded = self._load()
            changed = change(loaded.book)
            if changed == loaded.book and loaded.number:
                return changed
            try:
                self._save(changed, loaded)
            except NodeConflict:
                continue
            return changed
        raise BookConflict(f"the incidents in ZooKeeper node {self._path} changed {_ATTEMPTS} times; run again")

    def _load(self) -> _Loaded:
        found = [_Loaded(IncidentBook(), 0, None)]
        version = None
        if self._session is not None:
            try:
                node = self._session.get(self._path)
                version = -1 if node is None else node[1]
                if node is not None:
                    found.append(_parse(node[0], f"ZooKeeper node {self._path}"))
            except CoordinationUnavailable as error:
                logger.warning("reading the copy of the incidents: %s", error)
        if version is None or version < 0:
            found += self._copies()
        newest = max(found, key=lambda each: each.number)
        newest.node_version = version
        return newest

    def _copies(self) -> list[_Loaded]:
        found = []
        if self._store is not None:
            key = incidents_key(self._store.prefix)
            try:
                content = self._store.read_if_exists(key)
                found += [] if content is None else [_parse(content, key)]
            except StoreUnavailable as error:
                logger.warning("reading this machine's copy of the incidents: %s", error)
        if self._file.exists():
            found.append(_parse(self._file.read_bytes(), str(self._file)))
        return found

    def _save(self, book: IncidentBook, loaded: _Loaded) -> None:
        """Store a book in ZooKeeper, and its copies. Raises `NodeConflict` if another watch was first."""
        content = json.dumps({"v": _VERSION, "number": loaded.number + 1, **book.document()}).encode()
        if self._session is not None and loaded.node_version is not None:
            with _may_fail("ZooKeeper"):
                self._session.write(self._path, content, loaded.node_version)
        if self._store is not None:
            with _may_fail("S3"):
                self._store.replace(incidents_key(self._store.prefix), content, "application/json")
        with _may_fail("this machine"):
            self._file.write_bytes(content)


@contextmanager
def _may_fail(place: str) -> Iterator[None]:
    """Go on after a block that cannot store the incidents in one of their places: the two others have them."""
    try:
        yield
    except (CoordinationUnavailable, StoreUnavailable, OSError) as error:
        logger.warning("the incidents are not stored in %s: %s", place, error)


def _parse(content: bytes, where: str) -> _Loaded:
    try:
        document: dict[str, Any] = read_document(content, _VERSION, where)
        return _Loaded(IncidentBook.parse(document), int(document["number"]), None)
    except (KeyError, TypeError, ValueError) as error:
        raise DocumentDamaged(
            f"{where} does not hold Waybill's incidents ({type(error).__name__}: {error}). Delete it: the next watch "
            f"finds what is broken again, and sends it again"
        ) from None
