"""A backup object in the making: whole record batches in, one immutable S3 object out, in whatever format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from waybill import __version__
from waybill.log import framing
from waybill.names import BackupName
from waybill.store import Store

__all__ = ["BackupObject"]

_FORMAT_VERSION = "1"


class BackupObject(ABC):
    """The object that starts at `name.first_offset`. Unless `complete` returns, nothing is left of it.

    Its range ends with the last batch that was taken, archived or left out.
    """

    def __init__(
        self, store: Store, name: BackupName, topic_id: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.key = name.key(store.prefix)
        self.next_offset = name.first_offset
        """Where the range ends so far."""
        self.messages = 0
        self.leader_epoch = -1
        """That of the last batch taken."""
        self.oldest_ms: int | None = None
        """Timestamp of the oldest message taken (milliseconds since 1970 UTC, -1: it has none); None: no message."""
        self.size_bytes = 0
        self._upload = store.upload_if_absent(self.key, {**_metadata(name, topic_id), **(metadata or {})})

    @property
    def is_begun(self) -> bool:
        """Whether any batch was taken."""
        return self.next_offset > self.name.first_offset

    def take(self, frame: framing.Frame, archived: bool) -> None:
        """Take a checked batch, the next one in the log; with `archived` false only its offsets."""
        header = frame.header
        self.next_offset = header.next_offset
        self.leader_epoch = header.leader_epoch
        if header.record_count:
            stamp = _oldest_ms(header)
            if self.oldest_ms is None or stamp < self.oldest_ms:
                self.oldest_ms = stamp
        if archived:
            self._append(frame)

    @abstractmethod
    def is_full(self, frame: framing.Frame, max_bytes: int) -> bool:
        """Whether the object should be completed before it takes this batch, to stay at about `max_bytes`."""

    @abstractmethod
    def begin_chunk(self, data: memoryview) -> None:
        """The frames that are taken from now on lie in `data`. Write out those before."""

    @abstractmethod
    def _append(self, frame: framing.Frame) -> None:
        """Take a batch that is archived."""

    @abstractmethod
    def flush(self) -> None:
        """Hand the batches taken so far to the upload. Raises `StoreUnavailable` if a part could not be sent."""

    @abstractmethod
    def complete(self) -> None:
        """Create the object. Raises `ObjectAlreadyThere` or `StoreUnavailable`, as `Upload.complete` says."""

    def abort(self) -> None:
        """Forget it. Does nothing after `complete`."""
        self._upload.abort()


def _oldest_ms(header: framing.BatchHeader) -> int:
    """When a batch's oldest message came, as far as its header says."""
    if header.has_delete_horizon or header.timestamp_type is framing.TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp_ms
    return header.base_timestamp_ms


def _metadata(name: BackupName, topic_id: str) -> dict[str, str]:
    """For people and for an inventory; no correctness depends on it."""
    return {
        "waybill-format": _FORMAT_VERSION,
        "waybill-version": __version__,
        "topic-id": topic_id,
        "generation": str(name.generation),
        "first-offset": str(name.first_offset),
    }
