"""A backup object of a Kinesis slot while it is written: record batches, and a checkpoint batch at the end."""

from __future__ import annotations

from collections.abc import Mapping

from waybill.archive.chain.backup_object import RecordBatchObject
from waybill.archive.ingest.target import ArchiveTarget
from waybill.config.names import BackupName
from waybill.records.batches import framing
from waybill.records.shards.checkpoint import Checkpoint
from waybill.records.shards.checkpoint_batch import SlotState, checkpoint_batch
from waybill.services.store import Store


class SlotObject(RecordBatchObject):
    """The object that starts at `name.first_offset`. `before`: the checkpoint at its start."""

    def __init__(
        self,
        store: Store,
        name: BackupName,
        topic_id: str,
        before: Checkpoint,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(store, name, topic_id, metadata)
        self.before = before
        """The checkpoint at the object's beginning."""
        self.checkpoint: Checkpoint = before
        """Set it to the checkpoint behind the last batch that was taken."""

    @property
    def has_ended_shards(self) -> bool:
        """Return whether a shard has ended since the object's beginning."""
        for shard_id, position in self.checkpoint.positions.items():
            earlier = self.before.position(shard_id)
            if position.is_ended and (earlier is None or not earlier.is_ended):
                return True
        return False

    def append(self, batches: bytes) -> None:
        """Take batches that Waybill has encoded with offsets from 0 on.

        The method gives them the object's next offsets.
        """
        data = memoryview(framing.with_offsets_from(batches, self.next_offset))
        self.begin_chunk(data)
        for frame in framing.frames(data, where=self.key):
            self.take(frame, archived=True)
        self.flush()

    def complete(self) -> None:
        """Append the checkpoint batch, which takes one offset, and create the object. Raises as its base does."""
        if self.next_offset == self._written_to:
            batch = checkpoint_batch(self.next_offset, SlotState.between(self.before, self.checkpoint))
            self.flush()
            self._upload.write(batch)
            self.size_bytes += len(batch)
            self.next_offset += 1
            self._written_to = self.next_offset
            self.control_offsets += 1
        super().complete()


def new_slot_object(
    target: ArchiveTarget,
    first_offset: int,
    topic_id: str,
    before: Checkpoint,
    metadata: Mapping[str, str] | None = None,
) -> SlotObject:
    """Begin the backup object of a slot that starts at `first_offset` and at a checkpoint."""
    name = BackupName(target.tp.topic, target.stream.generation, target.tp.partition, first_offset)
    return SlotObject(target.services.store, name, topic_id, before, metadata)
