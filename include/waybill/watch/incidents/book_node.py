"""A book of incidents in ZooKeeper, whatever its size.

A book that fits is the content of one node. ZooKeeper refuses nodes of more than 1 MB, so a larger book is gzipped and
cut into parts, each a node that is never changed. The first node then lists the parts.

The first node alone decides: a watch writes it only over the version that it has read. Before that, the watch writes
the parts, with names that no other watch uses. After that, it removes the parts of the previous book. A watch that is
killed in between leaves parts that no book lists. The next watch that writes a book in parts removes them: it removes
all other parts whose number is not higher than that of its own book. A slower watch that still writes such parts cannot
write its book into the first node.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from dataclasses import replace

from kazoo.exceptions import NodeExistsError

from waybill.base.errors import CoordinationUnavailable, DocumentDamaged
from waybill.services.coordination import ZooKeeperSession
from waybill.services.coordination.paths import watch_parts_path, watch_path
from waybill.watch.incidents.book_document import StoredBook
from waybill.watch.incidents.incident import IncidentBook

logger = logging.getLogger(__name__)

_PART_BYTES = 512 * 1024
_PARTED = replace(StoredBook.DOCUMENT, version=2)
_READS = 20


class BookNode:
    """The book of incidents in ZooKeeper."""

    def __init__(self, root: str, session: ZooKeeperSession, part_bytes: int = _PART_BYTES) -> None:
        """`root`: the root of Waybill's znodes. `part_bytes`: the most bytes of a book in one node."""
        self.where = f"ZooKeeper node {watch_path(root)}"
        self._root = root
        self._path = watch_path(root)
        self._session = session
        self._part_bytes = part_bytes
        self._parts: tuple[str, ...] = ()
        """The parts of the book that was read or written last."""

    def read(self) -> tuple[StoredBook, int]:
        """Return the book, and the version of its node; an empty book and -1 if there is none.

        Raises `CoordinationUnavailable`, `DocumentTooNew` or `DocumentDamaged`.
        """
        for _ in range(_READS):
            node = self._session.get(self._path)
            self._parts = ()
            if node is None:
                return StoredBook(IncidentBook()), -1
            content, version = node
            self._parts = self._parts_of(content)
            if not self._parts:
                return StoredBook.parse(content, self.where), version
            paths = [watch_parts_path(self._root, name) for name in self._parts]
            found = self._session.get_all(paths)
            if len(found) == len(paths):
                return StoredBook.parse(b"".join(found[path][0] for path in paths), self.where), version
            # Another watch has written the next book in the meantime, and has removed these parts.
        raise DocumentDamaged(
            f"{self.where} lists parts of the incidents that do not exist. Delete it: the next watch takes the copy in "
            f"S3"
        )

    def write(self, stored: StoredBook, version: int) -> None:
        """Write a book over the version that was read. Raises one of `NodeConflict` if another watch was first.

        Raises `CoordinationUnavailable` if ZooKeeper does not answer; the book may be written nevertheless.
        """
        before = self._parts
        content = stored.content()
        parts: tuple[str, ...] = ()
        if len(content) > self._part_bytes:
            parts = self._write_parts(stored)
            content = _PARTED.write({"number": stored.number, "parts": parts})
        self._session.write(self._path, content, version)
        self._parts = parts
        if before or parts:
            self._remove_parts(stored.number)

    def _write_parts(self, stored: StoredBook) -> tuple[str, ...]:
        packed = stored.packed()
        token = secrets.token_hex(8)
        starts = range(0, len(packed), self._part_bytes)
        names = tuple(f"{stored.number:012d}-{token}-{index:04d}" for index in range(len(starts)))
        for name, start in zip(names, starts, strict=True):
            # The node exists if ZooKeeper's answer was lost: no other watch has the token.
            with suppress(NodeExistsError):
                self._session.write(
                    watch_parts_path(self._root, name), packed[start : start + self._part_bytes], version=-1
                )
        return names

    def _remove_parts(self, number: int) -> None:
        """Remove parts that no book lists. Parts that cannot be removed now are removed after the next write."""
        try:
            for name in self._session.children(watch_parts_path(self._root)):
                if name not in self._parts and int(name.partition("-")[0]) <= number:
                    self._session.delete(watch_parts_path(self._root, name), f"remove part {name} of the incidents")
        except CoordinationUnavailable as error:
            logger.warning("parts of an earlier book of incidents are not removed: %s", error)

    def _parts_of(self, content: bytes) -> tuple[str, ...]:
        """Return the names of the parts that a node lists; none if it holds the book itself."""
        return _PARTED.parse(
            self.where,
            content,
            lambda fields: tuple(str(name) for name in fields["parts"]) if fields["v"] == _PARTED.version else (),
        )
