"""A backup object in the making: whole record batches in, one immutable S3 object out, in whatever format.

A backup object in Kafka's own format: the record batches as they are.

The backup object of a stream's format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from waybill import __version__
from waybill.config import Format
from waybill.config.enums import BackupFormat
from waybill.names import BackupName
from waybill.records import framing
from waybill.store import Store

__all__ = ["BackupObject", "RecordBatchObject", "new_backup_object"]

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


_RUN_BYTES = 256 << 10  # checked and copied in turn: what was checked is still in the processor's cache


class RecordBatchObject(BackupObject):
    """The batches as they are: the format `kafka`.

    The data alone must say where the range ends, since S3 fixes an upload's metadata before its end is known: where the
    last batches were left out, an empty batch stands for them (docs/decisions/0001).
    """

    def __init__(
        self, store: Store, name: BackupName, topic_id: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(store, name, topic_id, metadata)
        self._written_to = name.first_offset
        self._data = memoryview(b"")
        self._run_start = self._run_stop = 0

    def is_full(self, frame: framing.Frame, max_bytes: int) -> bool:
        return self.size_bytes + len(frame.data) > max_bytes and self.messages > 0

    def begin_chunk(self, data: memoryview) -> None:
        self.flush()
        self._data = data

    def _append(self, frame: framing.Frame) -> None:
        if frame.data.obj is not self._data.obj:  # it was recompressed, and lies elsewhere
            self.flush()
            self._upload.write(frame.data)
        else:
            # Batches that follow each other are copied at one go.
            if frame.position != self._run_stop or self._run_stop - self._run_start >= _RUN_BYTES:
                self.flush()
                self._run_start = frame.position
            self._run_stop = frame.position + len(frame.data)
        self._written_to = frame.header.next_offset
        self.messages += frame.header.record_count
        self.size_bytes += len(frame.data)

    def flush(self) -> None:
        if self._run_stop > self._run_start:
            self._upload.write(self._data[self._run_start : self._run_stop])
        self._run_start = self._run_stop = 0

    def complete(self) -> None:
        self.flush()
        while self._written_to < self.next_offset:
            reach = min(self.next_offset, self._written_to + framing.MAX_OFFSETS_IN_BATCH)
            marker = framing.empty_batch(self._written_to, reach, leader_epoch=self.leader_epoch)
            self._upload.write(marker)
            self.size_bytes += len(marker)
            self._written_to = reach
        self._upload.complete()


def new_backup_object(
    store: Store, name: BackupName, topic_id: str, kind: Format, metadata: Mapping[str, str] | None = None
) -> BackupObject:
    """Begin the object that starts at `name.first_offset`; `metadata` goes to its user metadata."""
    if kind.name is BackupFormat.KAFKA:
        return RecordBatchObject(store, name, topic_id, metadata)
    # numba and pyarrow take a second to import, and a lane starts every minute.
    from waybill.archive.indexed_object import IndexedObject

    return IndexedObject(store, name, topic_id, kind, metadata)
