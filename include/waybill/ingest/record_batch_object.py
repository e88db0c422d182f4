"""A backup object in Kafka's own format: the record batches as they are."""

from __future__ import annotations

from collections.abc import Mapping

from waybill.ingest.backup_object import BackupObject
from waybill.log import framing
from waybill.names import BackupName
from waybill.store import Store

__all__ = ["RecordBatchObject"]

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
