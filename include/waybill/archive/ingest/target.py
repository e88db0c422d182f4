"""The arguments of every step of the commit protocol: a topic-partition, its services, and the source of its messages.

A source is Kafka (`waybill.archive.ingest.kafka`) or Kinesis (`waybill.archive.ingest.kinesis`).
`waybill.archive.ingest.services` chooses it by the stream's config, once. Every other step calls the source.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from waybill.archive.chain import gaps
from waybill.archive.chain.backup_object import BackupObject
from waybill.archive.chain.gaps import Gap
from waybill.archive.chain.new_object import new_backup_object
from waybill.archive.chain.object_reader import ObjectSummary
from waybill.archive.ingest.cut_object import CutObject
from waybill.archive.ingest.lane_report import Outcome, ReportDraft
from waybill.archive.ingest.position import Position
from waybill.archive.ingest.time_slice import Clock, RateLimit, TimeSlice
from waybill.base.errors import GenerationConflict, ObjectExists, RetentionGap
from waybill.config.models import Stream
from waybill.config.names import BackupName, Extension, TopicPartition
from waybill.records.batches.compression import Recompressor
from waybill.records.batches.limits import Limits
from waybill.records.shards.checkpoint import Checkpoint
from waybill.services.coordination import CommittedOffset, Coordinator
from waybill.services.kafka.cluster import Topic
from waybill.services.kafka.kafka import KafkaSource, LogRange, PartitionState, StreamTopics
from waybill.services.store import Store


class Fetch(Protocol):
    """One pass from a position to the end of the log, or to the end of the time slice (steps 4 and 5)."""

    outcome: Outcome
    """The outcome, once `objects` has ended."""

    def objects(self) -> Generator[CutObject, None, None]:
        """Yield each object that is due. The caller completes it before it takes the next one.

        Ending the generator early (`close`) aborts the object that is being written.
        """


class Source(Protocol):
    """The source of the messages of one stream.

    Every method raises `KafkaUnavailable` or `KinesisUnavailable` when the service does not answer, and `ConfigError`
    when it refuses access.
    """

    @property
    def kafka(self) -> KafkaSource:
        """The client of Kafka. Raises `ConfigError` for a stream of Kinesis."""

    @property
    def connection(self) -> object:
        """An object that sources share if one request can describe all their streams."""

    @property
    def first_checkpoint(self) -> Checkpoint | None:
        """The checkpoint of a slot's new chain. None: chains of this source have no checkpoints."""

    # --- topics and the ends of their logs, for plans and reports ---

    def describe_streams(self, streams: Mapping[str, Stream], *, assigns: bool = False) -> dict[str, StreamTopics]:
        """Return the current topics of streams that share the connection. `assigns`: assign slots to new shards."""

    def topic_partitions(self, stream: Stream) -> list[TopicPartition]:
        """Return the current topic-partitions of the stream, sorted."""

    def topic(self, name: str) -> Topic:
        """Return the current description of a topic."""

    def offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the current range of each log. The range of a slot ends at its committed offset."""

    def offsets_briefly(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the ranges like `offsets`, without topic-partitions that do not answer within seconds."""

    def ends_briefly(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the known ends of logs, without topic-partitions that do not answer within seconds."""

    def describe_partitions(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, PartitionState]:
        """Return descriptions like `describe`, for those topic-partitions that a few common requests can describe."""

    def estimate_bytes(self, log_range: LogRange | None, committed: CommittedOffset | None) -> int:
        """Return the estimated bytes to archive. `log_range`: None if the end of the log is unknown."""

    # --- the steps of the commit protocol ---

    def describe(self, tp: TopicPartition) -> PartitionState:
        """Return the current state of a topic-partition."""

    def end_offset(self, described: PartitionState) -> int | None:
        """Return the end of the log; None if the source does not know it."""

    def first_offset(self, target: ArchiveTarget, described: PartitionState) -> int:
        """Return where a new chain starts, by the config."""

    def check_rebuilt(self, tp: TopicPartition, committed: CommittedOffset) -> None:
        """Raise `ChainBroken` if a committed offset that was rebuilt from a chain lacks fields of the source."""

    def check_log(self, target: ArchiveTarget, position: Position) -> None:
        """Raise a named stop unless the log holds the committed offset and is the log that was archived."""

    def put_gap_marker(
        self, target: ArchiveTarget, position: Position, gap: Gap, stop: RetentionGap
    ) -> tuple[BackupName, str]:
        """Create the marker of an accepted gap at the committed offset, unless an object of its name exists.

        `stop`: the error of `check_log`. Return the name and the key.
        """

    def outcome_without_fetch(self, target: ArchiveTarget, position: Position) -> Outcome | None:
        """Return the outcome if there is nothing to archive now, else None."""

    def open_fetch(self, target: ArchiveTarget, position: Position) -> Fetch:
        """Begin a pass from the committed offset."""

    def adopted_checkpoint(self, tp: TopicPartition, name: BackupName, summary: ObjectSummary) -> Checkpoint | None:
        """Return the checkpoint at the end of an object that another task created.

        Raises `ChainBroken` if it lacks one that it must have.
        """


@dataclass(frozen=True, slots=True)
class IngestServices:
    """The three services of one stream, connected."""

    source: Source
    store: Store
    coordinator: Coordinator

    @property
    def kafka(self) -> KafkaSource:
        """The client of Kafka. Raises `ConfigError` for a stream of Kinesis."""
        return self.source.kafka


@dataclass(frozen=True, slots=True)
class ArchiveTarget:
    """One topic-partition that a lane archives, with its services and settings."""

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
    """The source's description from the start of the lane, when one request described all topic-partitions."""
    conflict: GenerationConflict | None = None
    """Why the topic-partition must not be archived: another stream writes the same chain."""
    may_have_stop: bool = True
    """Whether the journal may hold a named stop of this topic-partition."""
    draft: ReportDraft = field(default_factory=ReportDraft)

    @property
    def source(self) -> Source:
        """The source of the stream."""
        return self.services.source

    def new_object(self, first_offset: int, topic_id: str, metadata: Mapping[str, str] | None = None) -> BackupObject:
        """Begin the backup object that starts at `first_offset`."""
        kind = self.stream.format
        name = BackupName(self.tp.topic, self.stream.generation, self.tp.partition, first_offset, kind.extension)
        limits = Limits(*self.stream.message_limits.both)
        return new_backup_object(self.services.store, name, topic_id, kind, metadata, limits)

    def put_gap_marker(self, topic_id: str, gap: Gap) -> tuple[BackupName, str]:
        """Create the marker of an accepted gap, unless an object of its name exists. Return the name and the key."""
        marker = self.new_object(gap.first_offset, topic_id, {gaps.GAP_METADATA_KEY: gap.kind})
        with suppress(ObjectExists):
            gaps.write_gap_marker(marker, gap)
        return marker.name, marker.key

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
