"""What every step of the commit protocol takes: the topic-partition with its services, and the position in its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from waybill.archive.chain.backup_object import BackupObject, new_backup_object
from waybill.archive.chain.slot_object import SlotObject
from waybill.archive.ingest.lane_report import ReportDraft
from waybill.archive.ingest.services import IngestServices
from waybill.archive.ingest.time_slice import Clock, RateLimit, TimeSlice
from waybill.base.errors import GenerationConflict
from waybill.config.models import Stream
from waybill.config.names import BackupName, Extension, TopicPartition
from waybill.records.batches.compression import Recompressor
from waybill.records.batches.limits import Limits
from waybill.records.shards.checkpoint import Checkpoint
from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import LogRange, PartitionState

if TYPE_CHECKING:
    from waybill.archive.ingest.slot_source import SlotSource


@dataclass(frozen=True, slots=True)
class ArchiveTarget:
    """One topic-partition that a lane archives, and what the lane archives it with."""

    services: IngestServices
    stream: Stream
    tp: TopicPartition
    clock: Clock = field(default_factory=Clock)
    time_slice: TimeSlice = field(default_factory=TimeSlice)
    rate_limit: RateLimit | None = None
    """The limit of the whole lane."""
    recompressor: Recompressor | None = None
    """None: batches are archived unchanged."""
    described: PartitionState | None = None
    """Kafka's description from the start of the lane, when the lane asked for all of its topic-partitions at once."""
    conflict: GenerationConflict | None = None
    """Why nothing may be archived: another stream writes the same chain."""
    may_have_stop: bool = True
    """Whether the journal may hold a named stop of this topic-partition."""
    draft: ReportDraft = field(default_factory=ReportDraft)

    @property
    def slots(self) -> SlotSource | None:
        """The stream's slots; None for a stream of Kafka."""
        return self.services.slots

    def describe(self) -> PartitionState:
        """Ask the source for the current state of the topic-partition."""
        if self.slots is not None:
            return self.slots.describe(self.tp)
        log_range = self.services.source.offsets([self.tp])[self.tp]
        return PartitionState(self.services.source.topic(self.tp.topic), log_range)

    def new_object(self, first_offset: int, topic_id: str, metadata: Mapping[str, str] | None = None) -> BackupObject:
        """Begin the backup object that starts at `first_offset`."""
        kind = self.stream.format
        name = BackupName(self.tp.topic, self.stream.generation, self.tp.partition, first_offset, kind.extension)
        limits = Limits(*self.stream.message_limits.both)
        return new_backup_object(self.services.store, name, topic_id, kind, metadata, limits)

    def new_slot_object(
        self, first_offset: int, topic_id: str, before: Checkpoint, metadata: Mapping[str, str] | None = None
    ) -> SlotObject:
        """Begin the backup object of a Kinesis slot that starts at `first_offset` and at a checkpoint."""
        name = BackupName(self.tp.topic, self.stream.generation, self.tp.partition, first_offset)
        return SlotObject(self.services.store, name, topic_id, before, metadata)

    def wait_for_rate_limit(self) -> bool:
        """Wait until the lane may fetch. Return False if the time slice ends before."""
        if self.rate_limit is None:
            return True
        return self.rate_limit.wait(self.time_slice.deadline, self.services.coordinator.check_session)

    def spend_rate_limit(self, size_bytes: int) -> None:
        """Count fetched bytes towards the lane's limit."""
        if self.rate_limit is not None:
            self.rate_limit.spend(size_bytes)

    def check_format(self, extension: Extension) -> None:
        """Raise `GenerationConflict` if the chain has objects of another format than the stream's.

        In a chain of two formats, two objects with the same start have different names, and S3 would create both.
        """
        wanted = self.stream.format
        if extension is not wanted.extension:
            raise GenerationConflict(
                f"{self.tp}: the chain of generation {self.stream.generation} holds .{extension} objects, but the "
                f"config has format {wanted.name} (.{wanted.extension}). Raise the stream's generation to archive in "
                f"another format, or set the format back"
            )


@dataclass(frozen=True, slots=True)
class Position:
    """Where the protocol stands in a topic-partition. Each step takes a position and returns the next one."""

    committed: CommittedOffset
    log_range: LogRange
    """The range that the log had when Kafka was asked last."""
    topic_id: str
    """The topic's id at that time; '' if Kafka did not report one."""
    skips_epoch_check: bool = False
    """True after an accepted truncation, until the first object of the new log: fetches do not name the leader epoch of
    the last archived batch, which belongs to the old log."""
