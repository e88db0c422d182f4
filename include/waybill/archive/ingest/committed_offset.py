"""Steps 2 and 3 of the commit protocol: the committed offset, and whether Kafka's log continues from it."""

from __future__ import annotations

import logging
from datetime import datetime

from waybill.archive.chain.chain import ChainStart, committed_from_chain, find_chain_start, record_chain_start
from waybill.archive.ingest.target import ArchiveTarget, Position
from waybill.base.errors import ChainBroken, GenerationConflict, LogTruncated, RetentionGap, TopicRecreated
from waybill.config.models.enums import StartPosition
from waybill.config.names import TopicPartition
from waybill.records.shards.checkpoint import Checkpoint
from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import KafkaSource, LogRange, PartitionState

logger = logging.getLogger(__name__)


def find_committed_offset(target: ArchiveTarget, described: PartitionState) -> CommittedOffset:
    """Return the committed offset from ZooKeeper; without one, rebuild it from the chain, else start a chain.

    A rebuilt or new committed offset is written to ZooKeeper. `described` is the last known state of the log, which
    decides where a new chain starts. Raises `ChainBroken` when the chain's end cannot be read, and `CommitConflict`
    when a rival wrote the committed offset first.
    """
    tp, services, generation = target.tp, target.services, target.stream.generation
    committed = services.coordinator.read_committed(tp)
    if committed is not None:
        _check_source(target, committed)
        return committed
    committed = committed_from_chain(services.store, generation, tp, target.clock.now_ms())
    if committed is not None and target.slots is not None and committed.checkpoint is None:
        raise checkpoint_missing(tp, committed.last_object_offset)
    if committed is not None:
        logger.warning("%s: committed offset %d rebuilt from the chain", tp, committed.committed_offset)
    else:
        committed = _start_chain(target, described)
    return services.coordinator.write_committed(tp, committed, version=-1)


def _start_chain(target: ArchiveTarget, described: PartitionState) -> CommittedOffset:
    """Return the committed offset of a new chain: at the recorded start, else at the configured one.

    The start is recorded first. The configured start may be another offset each time: `latest` moves, and so does the
    first offset that retention leaves.
    """
    topic = described.topic
    # Where a shard begins is recorded for each shard, and the offsets of a slot begin at 0.
    first_offset = _configured_start(target, described) if target.slots is None else 0
    wanted = ChainStart(first_offset, topic.topic_id, len(topic.partitions), target.stream.format.extension)
    start = record_chain_start(target.services.store, target.stream.generation, target.tp, wanted)
    logger.info("%s: a new chain starts at offset %d", target.tp, start.offset)
    return CommittedOffset(
        start.offset,
        topic_id=start.topic_id,
        committed_at_ms=target.clock.now_ms(),
        start_offset=start.offset,
        extension=start.extension,
        checkpoint=None if target.slots is None else Checkpoint(),
    )


def _configured_start(target: ArchiveTarget, described: PartitionState) -> int:
    """Return the offset that the config's `start` stands for.

    A partition that was added to a topic after its first chain started begins with its first message, whatever is
    configured.
    """
    start, log_range = target.stream.start, described.log_range
    is_added = _is_added_partition(target, described)
    if is_added or (isinstance(start, StartPosition) and start.is_earliest):
        return log_range.earliest
    if isinstance(start, datetime):
        offset = target.services.kafka.offset_at(target.tp, int(start.timestamp() * 1000))
        return log_range.end if offset is None else offset
    return log_range.end


def _is_added_partition(target: ArchiveTarget, described: PartitionState) -> bool:
    """Return whether the topic got this partition after its first chain started."""
    tp, services = target.tp, target.services
    count = services.coordinator.first_partition_count(tp.topic, len(described.topic.partitions))
    # ZooKeeper may have lost its data and recorded a later count, so also use the count at the start of partition 0.
    first = find_chain_start(services.store, target.stream.generation, TopicPartition(tp.topic, 0))
    return tp.partition >= (count if first is None else min(count, first.partitions))


def _check_source(target: ArchiveTarget, committed: CommittedOffset) -> None:
    """Raise `GenerationConflict` if the chain was written from the other kind of source."""
    if (committed.checkpoint is None) is not (target.slots is None):
        raise GenerationConflict(
            f"{target.tp}: the chain of generation {target.stream.generation} was archived from "
            f"{'Kafka' if committed.checkpoint is None else 'Kinesis'}, and the config has source "
            f"{target.stream.source}. Raise the stream's generation, or set the source back"
        )


def checkpoint_missing(tp: TopicPartition, first_offset: int | None) -> ChainBroken:
    """Return the error for a last object of a slot that holds no checkpoint."""
    return ChainBroken(
        f"{tp}: the last object of the chain begins at offset {first_offset} and has no checkpoint batch, so it does "
        f"not state up to where its shards are archived. Waybill did not write it for this stream. If the stream read "
        f"Kafka before, raise its generation; else move the object away by hand, and run again",
        first_offset,
    )


def is_consistent(committed: CommittedOffset, described: PartitionState) -> bool:
    """Return whether Kafka's description agrees with the committed offset: the same topic, and an offset of its log."""
    topic_id, log_range = described.topic.topic_id, described.log_range
    same_topic = not committed.topic_id or not topic_id or committed.topic_id == topic_id
    return same_topic and log_range.earliest <= committed.committed_offset <= log_range.end


def raise_if_log_differs(source: KafkaSource, tp: TopicPartition, position: Position) -> None:
    """Raise a named stop unless the log holds the committed offset and is the log that was archived.

    Raises `TopicRecreated`, `RetentionGap`, or `LogTruncated` with the offset at which the log left the archived one.
    Raises `KafkaUnavailable` when no broker knows where the leader epoch ends.
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
