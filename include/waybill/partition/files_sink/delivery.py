"""Creating the files of the `files` sink: each once, whoever carries out the plan, and never in a final directory.

A file's name follows from the plan, so a retry and a rival write the same name, and S3 decides who creates it. Who is
refused compares: the same bytes are adopted. Other bytes are either from a plan that came to nothing before this one,
and are replaced, or something is wrong that somebody has to decide about.

`_SUCCESS` says that a directory is final. It is removed before a file is created, and again after it, in case that the
finalizer set it in between (docs/protocol.md, "Files").
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import BoundedSemaphore

from waybill import failpoints
from waybill.config.sink import FilesFormat
from waybill.errors import CommitConflict, ObjectAlreadyThere, ObjectMissing, OutputDiffers
from waybill.names import FileName, success_key
from waybill.store import Store

__all__ = ["Delivery", "FilesLayout", "Origin", "digest"]

_THREADS = 2
_WAITING = 4
_READ_BYTES = 4 << 20
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Origin:
    """Which plan a file is of. It is in the object's metadata, and so is the order in which plans were made."""

    ledger: str
    """The uuid of the table that lists the files."""
    sequence: int
    """Of the ledger's newest snapshot when the plan was taken up: a plan that follows another has a higher one."""
    plan: str
    planned_at: datetime

    def metadata(self) -> dict[str, str]:
        """As S3 keeps it."""
        return {
            "ledger": self.ledger,
            "sequence": str(self.sequence),
            "plan": self.plan,
            "planned-at": self.planned_at.isoformat(),
        }

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Origin | None:
        """What an object's metadata say; None if it was not written by Waybill."""
        try:
            return cls(
                metadata["ledger"],
                int(metadata["sequence"]),
                metadata["plan"],
                datetime.fromisoformat(metadata["planned-at"]),
            )
        except (KeyError, ValueError):
            return None

    def is_of(self, other: Origin) -> bool:
        """Whether both are of one plan."""
        return (self.ledger, self.plan, self.planned_at) == (other.ledger, other.plan, other.planned_at)

    def follows(self, other: Origin) -> bool:
        """Whether this plan was made after the other had come to nothing."""
        return (self.sequence, self.planned_at) > (other.sequence, other.planned_at)


@dataclass(frozen=True, slots=True)
class FilesLayout:
    """What writing the files of a run takes. Small enough to go to every task; holds no secrets."""

    root: str
    """What all keys start with."""
    by_hour: bool
    format: FilesFormat
    origin: Origin


class Delivery:
    """Sends finished files from the scratch directory, a few at a time. Close it after use."""

    def __init__(self, store: Store, layout: FilesLayout) -> None:
        self._store = store
        self._layout = layout
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="waybill-file")
        self._room = BoundedSemaphore(_WAITING)
        self._sent: list[Future[None]] = []

    def send(self, local: Path, name: FileName, sha256: str, further: Mapping[str, str]) -> None:
        """Send a file and remove it here. Blocks while too many wait. Faults come out of `wait`."""
        self._room.acquire()
        metadata = {**self._layout.origin.metadata(), "sha256": sha256, **further}
        self._sent.append(self._pool.submit(self._deliver_and_go_on, local, name, metadata))

    def wait(self) -> None:
        """Return when everything has arrived. Raises what went wrong with the first that did not."""
        for arrival in self._sent:
            arrival.result()

    def close(self) -> None:
        """End the threads. Files that have arrived stay: another attempt may have adopted them."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _deliver_and_go_on(self, local: Path, name: FileName, metadata: dict[str, str]) -> None:
        try:
            self._deliver(local, name, metadata)
            local.unlink()
        finally:
            self._room.release()

    def _deliver(self, local: Path, name: FileName, metadata: dict[str, str]) -> None:
        marker = success_key(self._layout.root, name.period)
        self._store.remove_if_there(marker)
        self._create(local, name.key(self._layout.root), metadata)
        failpoints.reach("partition.hour_file_created")
        self._store.remove_if_there(marker)

    def _create(self, local: Path, key: str, metadata: dict[str, str]) -> None:
        for _ in range(_TRIES):
            try:
                with local.open("rb") as source, self._store.upload_if_absent(key, metadata) as upload:
                    while chunk := source.read(_READ_BYTES):
                        upload.write(chunk)
                    upload.complete()
                return
            except ObjectAlreadyThere:
                if self._is_adopted(key, metadata["sha256"]):
                    return
        raise CommitConflict(f"{key}: others create and remove it faster than it can be written; run again")

    def _is_adopted(self, key: str, sha256: str) -> bool:
        """Whether what is there is what should be. False: it was in the way, and is gone."""
        try:
            found = self._store.describe(key)
        except ObjectMissing:
            return False
        ours, theirs = self._layout.origin, Origin.of(found.metadata)
        if theirs is None or theirs.ledger != ours.ledger:
            whose = f"for a table with the uuid {theirs.ledger}" if theirs else "by another program"
            raise OutputDiffers(
                key,
                f"it was written {whose}, and not for the table that lists this stream's files. If that was dropped, "
                f"remove the files that it listed, or raise the stream's generation",
            )
        if theirs.is_of(ours):
            if found.metadata.get("sha256") == sha256:
                return True
            raise OutputDiffers(
                key,
                f"plan {ours.plan} wrote it before, with another version of Waybill, of a library or of a parser's "
                f"class. Let that version finish the plan; or, when no run of it is left, remove the plan's object, "
                f"and run again: a new plan replaces what this one wrote",
            )
        if not ours.follows(theirs):
            raise CommitConflict(f"{key} is of plan {theirs.plan}, which has taken the place of {ours.plan}; run again")
        # Even if the bytes are the same: what is of a plan that came to nothing, the finalizer removes.
        self._store.remove(key, etag=found.etag)
        return False


def digest(local: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with local.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
