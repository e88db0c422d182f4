"""A backup object while it is written: whole record batches go in, and one immutable S3 object comes out.

`RecordBatchObject` stores record batches unchanged, `waybill.archive.chain.indexed_object.IndexedObject` writes
SequenceFile or text. `waybill.archive.chain.new_object` chooses the class for a stream's format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from waybill import __version__
from waybill.archive.chain.message_count import count_messages
from waybill.config.names import BackupName
from waybill.records.batches import framing
from waybill.records.shards.checkpoint import Checkpoint
from waybill.services.store import Store

_FORMAT_VERSION = "1"

_WRITE_BYTES = 256 << 10
"""Contiguous batches are copied in pieces of about this size, so that checked bytes are still in the CPU's cache."""


class BackupObject(ABC):
    """The object that starts at `name.first_offset`. Unless `complete` returns, there is no object in S3.

    Its range ends after the last batch that was taken, also if that batch was left out.
    """

    def __init__(
        self, store: Store, name: BackupName, topic_id: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.key = name.key(store.prefix)
        self.next_offset = name.first_offset
        """The end of the range so far."""
        self.messages = 0
        self.control_offsets = 0
        """Offsets of the range that belong to control batches, which are left out."""
        self.aborted_offsets = 0
        """Offsets of the range that belong to other batches that were left out: those of aborted transactions."""
        self.leader_epoch = -1
        """The leader epoch of the last batch that was taken."""
        self.oldest_ms: int | None = None
        """Timestamp of the oldest message taken, in milliseconds since 1970 UTC: -1 if that message has no timestamp,
        None if no message was taken."""
        self.size_bytes = 0
        self.checkpoint: Checkpoint | None = None
        """How far the shards of a slot are archived at the object's end; None for a topic-partition of Kafka."""
        self._upload = store.upload_if_absent(self.key, {**_user_metadata(name, topic_id), **(metadata or {})})

    @property
    def is_begun(self) -> bool:
        """Whether any batch was taken."""
        return self.next_offset > self.name.first_offset

    def take(self, frame: framing.Frame, archived: bool) -> None:
        """Take a checked batch, the next one of the log. With `archived` false, take only its offsets."""
        header = frame.header
        self.next_offset = header.next_offset
        self.leader_epoch = header.leader_epoch
        if header.record_count:
            timestamp_ms = _oldest_timestamp_ms(header)
            if self.oldest_ms is None:
                self.oldest_ms = timestamp_ms
                if archived and header.base_offset < self.name.first_offset:
                    self._skip_before_start(frame)
            elif timestamp_ms < self.oldest_ms:
                self.oldest_ms = timestamp_ms
        if archived:
            self._append(frame)
        else:
            offsets = header.next_offset - max(header.base_offset, self.name.first_offset)
            if header.is_control:
                self.control_offsets += offsets
            else:
                self.aborted_offsets += offsets

    @abstractmethod
    def _skip_before_start(self, frame: framing.Frame) -> None:
        """Do not count messages before the object's range, which only the first batch can have."""

    @abstractmethod
    def is_full(self, frame: framing.Frame, max_bytes: int) -> bool:
        """Return whether to complete the object before it takes this batch, so that it stays at about `max_bytes`."""

    @abstractmethod
    def begin_chunk(self, data: memoryview) -> None:
        """Pass all batches so far to the upload. The frames that are taken from now on are slices of `data`."""

    @abstractmethod
    def _append(self, frame: framing.Frame) -> None:
        """Append a batch that is archived."""

    @abstractmethod
    def flush(self) -> None:
        """Pass all batches so far to the upload. Raises `StoreUnavailable` if a part could not be sent."""

    @abstractmethod
    def complete(self) -> None:
        """Create the object. Raises `ObjectExists` or `StoreUnavailable`, as `Upload.complete` does."""

    def abort(self) -> None:
        """Abort the upload. Does nothing after `complete`."""
        self._upload.abort()


class RecordBatchObject(BackupObject):
    """An object of the format `kafka`: the record batches, unchanged.

    The data alone must show where the range ends, since S3 fixes an upload's metadata before its end is known. So when
    the last batches of the range were left out, an empty batch takes their place
    (docs/decisions/0001-objects-describe-themselves.md).
    """

    def __init__(
        self, store: Store, name: BackupName, topic_id: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(store, name, topic_id, metadata)
        self._written_to = name.first_offset
        self._data = memoryview(b"")
        self._pending_start = self._pending_stop = 0
        """The contiguous batches in `_data` that are not handed to the upload yet."""

    def _skip_before_start(self, frame: framing.Frame) -> None:
        self.messages -= frame.header.record_count - count_messages(frame, self.name.first_offset, self.key)

    def is_full(self, frame: framing.Frame, max_bytes: int) -> bool:
        return self.size_bytes + len(frame.data) > max_bytes and self.messages > 0

    def begin_chunk(self, data: memoryview) -> None:
        self.flush()
        self._data = data

    def _append(self, frame: framing.Frame) -> None:
        if frame.data.obj is not self._data.obj:  # a recompressed batch is in separate memory
            self.flush()
            self._upload.write(frame.data)
        else:
            # Contiguous batches are copied together.
            if frame.position != self._pending_stop or self._pending_stop - self._pending_start >= _WRITE_BYTES:
                self.flush()
                self._pending_start = frame.position
            self._pending_stop = frame.position + len(frame.data)
        self._written_to = frame.header.next_offset
        self.messages += frame.header.record_count
        self.size_bytes += len(frame.data)

    def flush(self) -> None:
        if self._pending_stop > self._pending_start:
            self._upload.write(self._data[self._pending_start : self._pending_stop])
        self._pending_start = self._pending_stop = 0

    def complete(self) -> None:
        self.flush()
        while self._written_to < self.next_offset:
            batch_end = min(self.next_offset, self._written_to + framing.MAX_OFFSETS_IN_BATCH)
            empty = framing.empty_batch(self._written_to, batch_end, leader_epoch=self.leader_epoch)
            self._upload.write(empty)
            self.size_bytes += len(empty)
            self._written_to = batch_end
        self._upload.complete()


def _oldest_timestamp_ms(header: framing.BatchHeader) -> int:
    """Return the timestamp of a batch's oldest message, as the header shows it."""
    if header.has_delete_horizon or header.timestamp_type is framing.TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp_ms
    return header.base_timestamp_ms


def _user_metadata(name: BackupName, topic_id: str) -> dict[str, str]:
    """Return the user metadata of every backup object. It is for people and inventories: no reader depends on it."""
    return {
        "waybill-format": _FORMAT_VERSION,
        "waybill-version": __version__,
        "topic-id": topic_id,
        "generation": str(name.generation),
        "first-offset": str(name.first_offset),
    }
