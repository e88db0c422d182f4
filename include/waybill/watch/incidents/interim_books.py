"""Where a book of incidents is kept while ZooKeeper does not answer: in S3, else in a private directory.

Each of these interim books is a separate object or file, which is created and never changed. Its name is its number. So
if two watches have read the same book, one of them creates the next number, and the other finds that it exists. When
ZooKeeper answers again, these books are merged into its book, and removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import stat
from pathlib import Path
from typing import Protocol

from waybill.base.errors import ObjectMissing
from waybill.config.names import incidents_key, interim_incidents_key, interim_incidents_prefix
from waybill.services.store import Store
from waybill.watch.incidents.book_document import StoredBook

logger = logging.getLogger(__name__)


class InterimExists(Exception):
    """Another watch has created the book of this number."""


class InterimBooks(Protocol):
    """A place for books. Each method may raise `StoreUnavailable`, `ConfigError` or `OSError`."""

    where: str

    def read_copy(self) -> bytes | None:
        """Return the copy of ZooKeeper's book, or None if there is none."""

    def write_copy(self, stored: StoredBook) -> None:
        """Replace the copy of ZooKeeper's book."""

    def read_all(self) -> dict[str, bytes]:
        """Return the interim books by name, in the order of their numbers."""

    def create(self, stored: StoredBook) -> None:
        """Create an interim book. Raises `InterimExists` if there is one with its number."""

    def remove(self, name: str) -> None:
        """Remove an interim book, if it exists."""


class BooksInS3:
    """Books in the archive's bucket."""

    def __init__(self, store: Store) -> None:
        self.where = "S3"
        self._store = store

    def read_copy(self) -> bytes | None:
        """Return the copy of ZooKeeper's book, or None if there is none."""
        return self._store.read_if_exists(incidents_key(self._store.prefix))

    def write_copy(self, stored: StoredBook) -> None:
        """Replace the copy of ZooKeeper's book."""
        self._store.replace(incidents_key(self._store.prefix), stored.content(), "application/json")

    def read_all(self) -> dict[str, bytes]:
        """Return the interim books by key, in the order of their numbers."""
        found = {}
        for key in list(self._store.keys(interim_incidents_prefix(self._store.prefix))):
            try:
                found[key] = self._store.read(key)
            except ObjectMissing:
                logger.info("%s was merged by another watch meanwhile", key)
        return found

    def create(self, stored: StoredBook) -> None:
        """Create an interim book. Raises `InterimExists` if there is one with its number."""
        # The random bytes distinguish this book from an equal one of another watch, if the answer of S3 was lost.
        content = stored.packed(mark=secrets.randbits(31))
        key = interim_incidents_key(self._store.prefix, stored.number)
        existing = self._store.create_or_read_existing(key, content)
        if existing is not None and existing != content:
            raise InterimExists(stored.number)

    def remove(self, name: str) -> None:
        """Remove an interim book, if it exists."""
        self._store.remove(name)


class BooksOfMachine:
    """Books in a directory that only this user can enter."""

    def __init__(self, directory: Path) -> None:
        self.where = str(directory)
        self._directory = directory

    def read_copy(self) -> bytes | None:
        """Return the copy of ZooKeeper's book, or None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self._checked() / "incidents.json").read_bytes()
        return None

    def write_copy(self, stored: StoredBook) -> None:
        """Replace the copy of ZooKeeper's book."""
        self._written(stored.content()).replace(self._directory / "incidents.json")

    def read_all(self) -> dict[str, bytes]:
        """Return the interim books by file name, in the order of their numbers."""
        found = {}
        for path in sorted(self._checked().glob("interim-*.json.gz")):
            with contextlib.suppress(FileNotFoundError):  # another process has merged it
                found[path.name] = path.read_bytes()
        return found

    def create(self, stored: StoredBook) -> None:
        """Create an interim book. Raises `InterimExists` if there is one with its number."""
        written = self._written(stored.packed())
        try:
            # Unlike a rename, a link does not replace an existing file.
            os.link(written, self._directory / f"interim-{stored.number:012d}.json.gz")
        except FileExistsError:
            raise InterimExists(stored.number) from None
        finally:
            written.unlink()

    def remove(self, name: str) -> None:
        """Remove an interim book, if it exists."""
        (self._checked() / name).unlink(missing_ok=True)

    def _written(self, content: bytes) -> Path:
        """Write this content to a new file, flush the file to the disk, and return its path."""
        path = self._checked() / f".{secrets.token_hex(8)}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _checked(self) -> Path:
        """Return the directory, which is created if it is missing.

        Raises `PermissionError` if another user owns it, or may write to it.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self._directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(
                f"{self._directory} is not a directory that only user {os.geteuid()} can enter: remove it, or set its "
                f"mode to 0700; XDG_STATE_HOME names another place"
            )
        return self._directory


def state_directory(root: str, base: Path | None = None) -> Path:
    """Return the directory of this machine's books.

    `root`: the root of Waybill's znodes. `base`: used instead of the user's state directory.

    Raises `OSError` if this user has no home directory.
    """
    try:
        base = base or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError as error:
        raise OSError(f"{error}: set XDG_STATE_HOME") from None
    return base / "waybill" / f"incidents-{hashlib.sha256(root.encode()).hexdigest()[:16]}"
