"""Where the incidents are stored: in ZooKeeper, with a copy in S3 and one on this machine.

ZooKeeper's node has a version (`book_node`). A watch writes it only over the version that it has read, so if two
watches find the same broken promise, one of them opens the incident and sends the message, and the other finds the
incident.

While ZooKeeper does not answer, a changed book is stored as an interim book in S3; while neither answers, in a private
directory of this machine (`interim_books`). Interim books have numbers, and only one watch can create a number: so they
protect like ZooKeeper's versions, as long as both watches reach the same place. When ZooKeeper answers, each watch
merges the interim books that it finds into ZooKeeper's book (`merge`), and removes them after the merged book is
written. So no acknowledgement, new incident or sent message is lost, in whichever place it was stored.

If one of two watches reaches ZooKeeper and the other does not, both may find the same broken promise at the same time,
and each sends a message. The next watch or command of the same user on a machine merges the books that are stored on
that machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from waybill.base.errors import ConfigError, CoordinationUnavailable, DocumentDamaged, StoreUnavailable
from waybill.services.coordination import ZooKeeperSession
from waybill.services.coordination.session import NodeConflict
from waybill.services.store import Store
from waybill.watch.incidents.book_document import StoredBook
from waybill.watch.incidents.book_node import BookNode
from waybill.watch.incidents.incident import IncidentBook
from waybill.watch.incidents.interim_books import (
    BooksInS3,
    BooksOfMachine,
    InterimBooks,
    InterimExists,
    state_directory,
)
from waybill.watch.incidents.merge import merge

logger = logging.getLogger(__name__)

_ATTEMPTS = 50
_KEPT_INTERIM = 5
"""How many earlier interim books are kept, so that a slower watch still finds that its number is taken."""
_UNAVAILABLE = (CoordinationUnavailable, StoreUnavailable, ConfigError, OSError)
"""`ConfigError`: the service refuses the credentials. The watch goes on with the other places."""


class BookConflict(Exception):
    """Other watches changed the incidents at each attempt."""


@dataclass(slots=True)
class _Loaded:
    book: IncidentBook
    number: int
    """The highest number of all books that were read."""
    is_stored: bool
    """Whether the place that decides holds exactly this book."""
    node_version: int | None
    """None: ZooKeeper does not answer. -1: there is no node."""
    interim: dict[str, list[str]] = field(default_factory=dict)
    """The names of the interim books that are merged into this one, by place."""


class BookStore:
    """The stored incidents. `session` and `store` are None while the service does not answer."""

    def __init__(
        self,
        root: str,
        session: ZooKeeperSession | None,
        store: Store | None,
        directory: Path | None = None,
        *,
        part_bytes: int | None = None,
    ) -> None:
        """`root`: the root of Waybill's znodes.

        `directory`: the parent of this machine's books; by default the user's state directory.

        `part_bytes`: the most bytes of the book in one node of ZooKeeper.
        """
        sizes = {} if part_bytes is None else {"part_bytes": part_bytes}
        self._node = None if session is None else BookNode(root, session, **sizes)
        self._places: list[InterimBooks] = [] if store is None else [BooksInS3(store)]
        with _may_fail("this machine"):
            self._places.append(BooksOfMachine(state_directory(root, directory)))

    def load(self) -> IncidentBook:
        """Return the book of all places that can be read; an empty one if there is none.

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
            if changed == loaded.book and loaded.is_stored:
                return changed
            try:
                self._save(changed, loaded)
            except (*NodeConflict, InterimExists):
                continue
            return changed
        raise BookConflict(f"the incidents were changed by other watches {_ATTEMPTS} times; run again")

    # --- reading ---

    def _load(self) -> _Loaded:
        main, version = self._read_node()
        copies, interim = self._read_places(is_needed=version is None or version < 0)
        # A copy can have a higher number than ZooKeeper's book if ZooKeeper lost data, or if an earlier version of
        # Waybill stored it there while ZooKeeper did not answer. Copies with lower numbers are ancestors of the others.
        latest = max(copies, key=lambda each: each.number, default=main)
        found = [latest] if latest.number > main.number else []
        found += [each for books in interim.values() for each in books.values()]
        found = sorted([main, *found], key=lambda each: each.number)
        number = found[-1].number
        book = reduce(merge, (each.book for each in found))
        names = {place: list(books) for place, books in interim.items()}
        is_stored = number > 0 and (version is None or (book == main.book and not any(names.values())))
        return _Loaded(book, number, is_stored, version, names)

    def _read_node(self) -> tuple[StoredBook, int | None]:
        if self._node is not None:
            try:
                return self._node.read()
            except (CoordinationUnavailable, ConfigError) as error:
                logger.warning("reading the copies of the incidents: %s", error)
        return StoredBook(IncidentBook()), None

    def _read_places(self, *, is_needed: bool) -> tuple[list[StoredBook], dict[str, dict[str, StoredBook]]]:
        """Return the copies of ZooKeeper's book, and the interim books by place and name.

        `is_needed`: whether this machine's copy is read too.
        """
        copies: list[StoredBook] = []
        interim: dict[str, dict[str, StoredBook]] = {}
        for place in self._places:
            with _may_fail(place.where):
                if is_needed or isinstance(place, BooksInS3):
                    content = place.read_copy()
                    copies += [] if content is None else _readable(content, f"{place.where}: the copy of the incidents")
                interim[place.where] = {
                    name: stored
                    for name, content in place.read_all().items()
                    for stored in _readable(content, f"{place.where}: {name}")
                }
        return copies, interim

    # --- writing ---

    def _save(self, book: IncidentBook, loaded: _Loaded) -> None:
        """Store a book in the place that decides which watch is first, and then store its copies.

        Raises one of `NodeConflict`, or `InterimExists`, if another watch was first.
        """
        stored = StoredBook(book, loaded.number + 1)
        if self._node is not None and loaded.node_version is not None:
            with _may_fail("ZooKeeper"):
                self._node.write(stored, loaded.node_version)
                self._after_node(stored, loaded)
                return
        for place in self._places:
            with _may_fail(place.where):
                place.create(stored)
                self._after_interim(place, loaded)
                return
        logger.error("the incidents are stored nowhere: the next watch finds them again, and sends them again")

    def _after_node(self, stored: StoredBook, loaded: _Loaded) -> None:
        for place in self._places:
            with _may_fail(place.where):
                place.write_copy(stored)
                for name in loaded.interim.get(place.where, ()):
                    place.remove(name)

    def _after_interim(self, created: InterimBooks, loaded: _Loaded) -> None:
        """Remove the interim books that are merged into this one, except the latest one in the place that decides."""
        for place in self._places:
            names = loaded.interim.get(place.where, [])
            with _may_fail(place.where):
                for name in names[:-_KEPT_INTERIM] if place is created else names:
                    place.remove(name)


@contextmanager
def _may_fail(place: str) -> Iterator[None]:
    """Run a block, and go on if one place of the incidents does not answer: the other places have them."""
    try:
        yield
    except _UNAVAILABLE as error:
        logger.warning("%s has no answer about the incidents: %s", place, error)


def _readable(content: bytes, where: str) -> list[StoredBook]:
    """Return the book of a copy. A damaged copy is reported and not changed: ZooKeeper's book decides."""
    try:
        return [StoredBook.parse(content, where)]
    except DocumentDamaged as error:
        logger.error("%s", error)
        return []
