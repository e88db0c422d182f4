"""Step 2 of the protocol: the committed offset, or where a chain goes on or begins that ZooKeeper knows nothing of."""

from __future__ import annotations

import logging
from datetime import datetime

from waybill.config import Stream
from waybill.config.enums import StartPosition
from waybill.coordination import Committed
from waybill.ingest.chain_end import committed_from_chain
from waybill.ingest.chain_start import ChainStart, find_start, record_start
from waybill.ingest.clock import Clock
from waybill.ingest.services import Services
from waybill.names import TopicPartition
from waybill.sources.cluster import Topic
from waybill.sources.kafka import LogRange

__all__ = ["find_committed"]

log = logging.getLogger(__name__)


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
        log.warning("%s: committed offset %d rebuilt from the chain", tp, found.committed_offset)
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
    log.info("%s: a new chain starts at offset %d", tp, begun.offset)
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
