"""Step 2 of the protocol: the committed offset, or where a chain goes on or begins that ZooKeeper knows nothing of.

Step 3 of the protocol: is it the log that was archived, and does it still hold the next offset?
"""

from __future__ import annotations

import logging
from datetime import datetime

from waybill.archive.chain import ChainStart, committed_from_chain, find_start, record_start
from waybill.config import Stream
from waybill.config.enums import StartPosition
from waybill.coordination import Committed
from waybill.errors import LogTruncated, RetentionGap, TopicRecreated
from waybill.ingest.services import Services
from waybill.ingest.turn import Clock
from waybill.names import TopicPartition
from waybill.sources.cluster import Topic
from waybill.sources.kafka import KafkaSource, LogRange

__all__ = ["check_log", "find_committed"]

logger = logging.getLogger(__name__)


def find_committed(
    services: Services, stream: Stream, tp: TopicPartition, held: LogRange, topic: Topic, clock: Clock
) -> Committed:
    """The committed offset. Where there is none it is taken from the chain, else from the start, and written.

    `held` and `topic` are the log as it was last seen. Raises `ChainBroken` when the chain's end cannot be read, and
    `CommitConflict` when a rival wrote the committed offset first.
    """
    found = services.coordinator.read_committed(tp)
    if found is not None:
        return found
    found = committed_from_chain(services.store, stream.generation, tp, clock.now_ms())
    if found is not None:
        logger.warning("%s: committed offset %d rebuilt from the chain", tp, found.committed_offset)
    else:
        found = _begin(services, stream, tp, held, topic, clock)
    return services.coordinator.write_committed(tp, found, version=-1)


def _begin(
    services: Services, stream: Stream, tp: TopicPartition, held: LogRange, topic: Topic, clock: Clock
) -> Committed:
    """At the configured start, or the one that was written down: `latest` and what retention leaves move on."""
    offset = _start_offset(services, stream, tp, held, topic)
    wanted = ChainStart(offset, topic.topic_id, len(topic.partitions), stream.format.extension)
    begun = record_start(services.store, stream.generation, tp, wanted)
    logger.info("%s: a new chain starts at offset %d", tp, begun.offset)
    return Committed(
        begun.offset,
        topic_id=begun.topic_id,
        committed_at_ms=clock.now_ms(),
        start_offset=begun.offset,
        extension=begun.extension,
    )


def _start_offset(services: Services, stream: Stream, tp: TopicPartition, held: LogRange, topic: Topic) -> int:
    """What the config says, as an offset.

    A partition that was added to a topic that we archive starts with its first message, whatever is configured.
    """
    added = _is_added(services, stream, tp, topic)
    if stream.start is StartPosition.EARLIEST or added:
        return held.earliest
    if isinstance(stream.start, datetime):
        at = services.source.offset_at(tp, int(stream.start.timestamp() * 1000))
        return held.end if at is None else at
    return held.end


def _is_added(services: Services, stream: Stream, tp: TopicPartition, topic: Topic) -> bool:
    """Whether the partition came after we began with its topic. ZooKeeper may have forgotten when that was."""
    known = services.coordinator.first_partitions(tp.topic, len(topic.partitions))
    first = find_start(services.store, stream.generation, TopicPartition(tp.topic, 0))
    return tp.partition >= (known if first is None else min(known, first.partitions))


def check_log(source: KafkaSource, tp: TopicPartition, committed: Committed, held: LogRange, topic_id: str) -> None:
    """Hold the log as it is now, `held` and `topic_id`, against the committed offset.

    Raises `TopicRecreated`, `RetentionGap`, or `LogTruncated` with the offset at which the log left the one that was
    archived. Raises `KafkaUnavailable` when nobody can say where a leader epoch ends.
    """
    offset = committed.committed_offset
    if committed.topic_id and topic_id and committed.topic_id != topic_id:
        raise TopicRecreated(tp.topic, tp.partition, committed.topic_id, topic_id)
    if held.earliest > offset:
        raise RetentionGap(tp.topic, tp.partition, offset, held.earliest)
    if committed.leader_epoch < 0:
        if held.end < offset:
            raise LogTruncated(tp.topic, tp.partition, offset, held.end, committed.leader_epoch)
        return
    end = source.epoch_end(tp, committed.leader_epoch)
    if end.end_offset < offset or end.leader_epoch < committed.leader_epoch:
        known = held.end if end.end_offset < 0 else end.end_offset
        raise LogTruncated(tp.topic, tp.partition, offset, min(known, offset), committed.leader_epoch)
