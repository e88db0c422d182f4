"""Kafka as a source of ingest: the steps of the commit protocol that differ between sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from waybill.archive.chain.gaps import Gap
from waybill.archive.chain.object_reader import ObjectSummary
from waybill.archive.ingest.kafka.backlog import estimate_bytes
from waybill.archive.ingest.kafka.fetching import ObjectFetch, must_wait_for_more
from waybill.archive.ingest.kafka.log_check import configured_start, raise_if_log_differs
from waybill.archive.ingest.lane_report import Outcome
from waybill.archive.ingest.position import Position
from waybill.archive.ingest.target import ArchiveTarget
from waybill.base.errors import RetentionGap
from waybill.config.models import Stream
from waybill.config.names import BackupName, TopicPartition
from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import FETCH_BYTES, KafkaSource, LogRange, PartitionState, StreamTopics


class TopicSource(KafkaSource):
    """The topics of a stream in Kafka. Implements `waybill.archive.ingest.target.Source`."""

    first_checkpoint = None

    def for_stream(self, stream: Stream) -> Self:
        """Return a source with the settings of a stream that uses the connections of this one. Close only this one."""
        bytes_per_second = int(stream.ingest.rate_limit)
        if not bytes_per_second:
            return self.with_settings(stream.isolation_level)
        # With a rate limit, fetch at most the bytes of one second at once, and do not fetch ahead.
        fetch_bytes = min(FETCH_BYTES, bytes_per_second)
        return self.with_settings(stream.isolation_level, fetch_bytes=fetch_bytes, fetch_ahead=False)

    @property
    def kafka(self) -> KafkaSource:
        return self

    @property
    def connection(self) -> object:
        return self.cluster

    def describe_streams(
        self,
        streams: Mapping[str, Stream],
        *,
        assigns: bool = False,  # noqa: ARG002 - for slots
    ) -> dict[str, StreamTopics]:
        return super().describe_streams(streams)

    def estimate_bytes(self, log_range: LogRange | None, committed: CommittedOffset | None) -> int:
        return 0 if log_range is None else estimate_bytes(log_range, committed)

    # --- the commit protocol ---

    def describe(self, tp: TopicPartition) -> PartitionState:
        log_range = self.offsets([tp])[tp]
        return PartitionState(self.topic(tp.topic), log_range)

    def end_offset(self, described: PartitionState) -> int:
        return described.log_range.end

    def first_offset(self, target: ArchiveTarget, described: PartitionState) -> int:
        return configured_start(self, target, described)

    def check_rebuilt(self, tp: TopicPartition, committed: CommittedOffset) -> None:
        """Do nothing: the chain's last object holds all fields of a committed offset of Kafka."""

    def check_log(self, target: ArchiveTarget, position: Position) -> None:
        """Raise the errors of `raise_if_log_differs`."""
        raise_if_log_differs(self, target.tp, position)

    def put_gap_marker(
        self,
        target: ArchiveTarget,
        position: Position,
        gap: Gap,
        stop: RetentionGap,  # noqa: ARG002 - for slots
    ) -> tuple[BackupName, str]:
        return target.put_gap_marker(position.topic_id, gap)

    def outcome_without_fetch(self, target: ArchiveTarget, position: Position) -> Outcome | None:
        offset, end = position.committed.committed_offset, position.log_range.end
        if offset >= end:
            # After an accepted truncation, the new log may not have reached the committed offset yet.
            return Outcome.WAITING if position.skips_epoch_check and offset > end else Outcome.UP_TO_DATE
        return Outcome.WAITING if must_wait_for_more(target, position) else None

    def open_fetch(self, target: ArchiveTarget, position: Position) -> ObjectFetch:
        return ObjectFetch(target, position)

    def adopted_checkpoint(self, tp: TopicPartition, name: BackupName, summary: ObjectSummary) -> None:
        """Return None: an object of Kafka has no checkpoint."""
