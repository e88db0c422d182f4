"""Create the files of the `files` sink: each once, even if several runs execute a plan, and never in a final directory.

A file's name follows from the plan, so a retry and a rival write the same name, and S3 decides who creates it. The run
that S3 refuses compares the objects. It adopts an object with the same bytes. An object of an earlier plan that ended
without a commit is replaced. Any other object is an error that a person has to resolve.

`_SUCCESS` marks a directory as final. It is removed before a file is created, and again after it, in case the finalizer
created it in between (docs/protocol.md, "Files").
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from waybill.base import failpoints
from waybill.base.errors import CommitConflict, ObjectExists, ObjectMissing, OutputDiffers
from waybill.config.models.sink import FilesFormat
from waybill.config.names import FileName, success_key
from waybill.services.store import Store
from waybill.tables.staging.uploads import BoundedUploader

_THREADS = 2
_QUEUE_LENGTH = 4
_READ_BYTES = 4 << 20
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Origin:
    """The plan that wrote a file.

    It is stored in the object's metadata, with the numbers that order the plans in time.
    """

    inventory: str
    """UUID of the table that lists the files, the file inventory."""
    sequence: int
    """The inventory's last sequence number when the plan's execution began: later plans have a higher one."""
    plan: str
    planned_at: datetime

    def metadata(self) -> dict[str, str]:
        """Return the user metadata of the object."""
        return {
            "ledger": self.inventory,
            "sequence": str(self.sequence),
            "plan": self.plan,
            "planned-at": self.planned_at.isoformat(),
        }

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Origin | None:
        """Parse an object's user metadata; None if Waybill did not write the object."""
        try:
            return cls(
                metadata["ledger"],
                int(metadata["sequence"]),
                metadata["plan"],
                datetime.fromisoformat(metadata["planned-at"]),
            )
        except (KeyError, ValueError):
            return None

    def is_same_plan(self, other: Origin) -> bool:
        """Return whether both name the same plan."""
        return (self.inventory, self.plan, self.planned_at) == (other.inventory, other.plan, other.planned_at)

    def follows(self, other: Origin) -> bool:
        """Return whether this plan was made after the other one had ended."""
        return (self.sequence, self.planned_at) > (other.sequence, other.planned_at)


@dataclass(frozen=True, slots=True)
class FilesLayout:
    """The data with which a task writes the files of a run.

    It is small enough to send to every task, and holds no secrets.
    """

    root: str
    """Prefix of all object keys."""
    by_hour: bool
    format: FilesFormat
    origin: Origin


class HourFileUploads:
    """Uploads finished files from the scratch directory, a few at a time. `close` it after use."""

    def __init__(self, store: Store, layout: FilesLayout) -> None:
        self._store = store
        self._layout = layout
        self._uploader = BoundedUploader(threads=_THREADS, queue_length=_QUEUE_LENGTH, thread_name="waybill-file")

    def send(self, local: Path, name: FileName, sha256: str, extra: Mapping[str, str]) -> None:
        """Upload a file and delete the local one. Blocks while too many wait. `wait` raises its errors.

        `extra` is added to the object's metadata.
        """
        metadata = {**self._layout.origin.metadata(), "sha256": sha256, **extra}
        self._uploader.submit(lambda: self._upload_and_unlink(local, name, metadata))

    def wait(self) -> None:
        """Wait for all uploads. Raise the error of the first that failed."""
        self._uploader.wait()

    def close(self) -> None:
        """Stop the threads. Uploaded files are kept, since another attempt may have adopted them."""
        self._uploader.close()

    def _upload_and_unlink(self, local: Path, name: FileName, metadata: dict[str, str]) -> None:
        self._upload(local, name, metadata)
        local.unlink()

    def _upload(self, local: Path, name: FileName, metadata: dict[str, str]) -> None:
        marker = success_key(self._layout.root, name.period)
        self._store.remove_if_exists(marker)
        self._create(local, name.key(self._layout.root), metadata)
        failpoints.reach("partition.hour_file_created")
        self._store.remove_if_exists(marker)

    def _create(self, local: Path, key: str, metadata: dict[str, str]) -> None:
        for _ in range(_TRIES):
            try:
                with local.open("rb") as source, self._store.upload_if_absent(key, metadata) as upload:
                    while chunk := source.read(_READ_BYTES):
                        upload.write(chunk)
                    upload.complete()
                return
            except ObjectExists:
                if self._is_adopted(key, metadata["sha256"]):
                    return
        raise CommitConflict(f"{key}: other runs create and remove this object again and again; run again")

    def _is_adopted(self, key: str, sha256: str) -> bool:
        """Return whether the existing object has the expected bytes. If it may be replaced, delete it and return False.

        Raises `OutputDiffers` if a person has to decide, `CommitConflict` if a later plan wrote the object.
        """
        try:
            found = self._store.describe(key)
        except ObjectMissing:
            return False
        ours, theirs = self._layout.origin, Origin.of(found.metadata)
        if theirs is None or theirs.inventory != ours.inventory:
            writer = f"for a table with the uuid {theirs.inventory}" if theirs else "by another program"
            raise OutputDiffers(
                key,
                f"it was written {writer}, and not for the table that lists this stream's files. If that was dropped, "
                f"remove the files that it listed, or raise the stream's generation",
            )
        if theirs.is_same_plan(ours):
            if found.metadata.get("sha256") == sha256:
                return True
            raise OutputDiffers(
                key,
                f"plan {ours.plan} wrote it before, with another version of Waybill, of a library or of a parser's "
                f"class. Let that version finish the plan; or, when no run of it is left, remove the plan's object, "
                f"and run again: a new plan replaces what this one wrote",
            )
        if not ours.follows(theirs):
            raise CommitConflict(f"{key} belongs to plan {theirs.plan}, which has replaced plan {ours.plan}; run again")
        # Delete it even if the bytes are the same: the finalizer removes files of plans that ended without a commit.
        self._store.remove(key, etag=found.etag)
        return False


def file_sha256(local: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with local.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
