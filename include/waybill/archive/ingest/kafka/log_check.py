"""Steps 2 and 3 of the commit protocol for Kafka: where a chain starts, and whether the log continues where it ends."""

from __future__ import annotations

from datetime import datetime

from waybill.archive.chain.chain import find_chain_start
from waybill.archive.ingest.position import Position
from waybill.archive.ingest.target import ArchiveTarget
from waybill.base.errors import LogTruncated, RetentionGap, TopicRecreated
from waybill.config.models.enums import StartPosition
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import KafkaSource, LogRange, PartitionState


def configured_start(source: KafkaSource, target: ArchiveTarget, described: PartitionState) -> int:
    """Return the offset that the config's `start` stands for.

    A partition that was added to a topic after its first chain started begins with its first message, independent of
    the config.
    """
    start, log_range = target.stream.start, described.log_range
    is_added = _is_added_partition(target, described)
    if is_added or (isinstance(start, StartPosition) and start.is_earliest):
        return log_range.earliest
    if isinstance(start, datetime):
        offset = source.offset_at(target.tp, int(start.timestamp() * 1000))
        return log_range.end if offset is None else offset
    return log_range.end


def _is_added_partition(target: ArchiveTarget, described: PartitionState) -> bool:
    """Return whether the topic got this partition after its first chain started."""
    tp, services = target.tp, target.services
    count = services.coordinator.first_partition_count(tp.topic, len(described.topic.partitions))
    # ZooKeeper may have lost its data and recorded a later count, so also use the count at the start of partition 0.
    first = find_chain_start(services.store, target.stream.generation, TopicPartition(tp.topic, 0))
    return tp.partition >= (count if first is None else min(count, first.partitions))


def raise_if_log_differs(source: KafkaSource, tp: TopicPartition, position: Position) -> None:
    """Raise a named stop unless the log holds the committed offset and is the log that was archived.

    Raises `TopicRecreated`, `RetentionGap`, or `LogTruncated` with the offset at which the log left the archived one.
    Raises `KafkaUnavailable` when no broker returns the end of the leader epoch.
    """
    committed, log_range = position.committed, position.log_range
    offset = committed.committed_offset
    if committed.topic_id and position.topic_id and committed.topic_id != position.topic_id:
        raise TopicRecreated(tp.topic, tp.partition, committed.topic_id, position.topic_id)
    if log_range.earliest > offset:
        raise RetentionGap(tp.topic, tp.partition, offset, log_range.earliest)
    _raise_if_truncated(source, tp, committed, log_range)


def _raise_if_truncated(source: KafkaSource, tp: TopicPartition, committed: CommittedOffset, log: LogRange) -> None:
    offset, epoch = committed.committed_offset, committed.leader_epoch
    if epoch < 0:  # Kafka did not report the epoch of the last archived batch
        if log.end < offset:
            raise LogTruncated(tp.topic, tp.partition, offset, log.end, epoch)
        return
    end = source.epoch_end(tp, epoch)
    if end.end_offset < offset or end.leader_epoch < epoch:
        end_offset = log.end if end.end_offset < 0 else end.end_offset
        raise LogTruncated(tp.topic, tp.partition, offset, min(end_offset, offset), epoch)
