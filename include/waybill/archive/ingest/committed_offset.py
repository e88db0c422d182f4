"""Step 2 of the commit protocol: the committed offset, from ZooKeeper, from the chain, or of a new chain."""

from __future__ import annotations

import logging

from waybill.archive.chain.chain import ChainStart, committed_from_chain, record_chain_start
from waybill.archive.ingest.target import ArchiveTarget
from waybill.base.errors import GenerationConflict
from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import PartitionState

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
    if committed is not None:
        target.source.check_rebuilt(tp, committed)
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
    first_offset = target.source.first_offset(target, described)
    wanted = ChainStart(first_offset, topic.topic_id, len(topic.partitions), target.stream.format.extension)
    start = record_chain_start(target.services.store, target.stream.generation, target.tp, wanted)
    logger.info("%s: a new chain starts at offset %d", target.tp, start.offset)
    return CommittedOffset(
        start.offset,
        topic_id=start.topic_id,
        committed_at_ms=target.clock.now_ms(),
        start_offset=start.offset,
        extension=start.extension,
        checkpoint=target.source.first_checkpoint,
    )


def _check_source(target: ArchiveTarget, committed: CommittedOffset) -> None:
    """Raise `GenerationConflict` if the chain was written from the other kind of source."""
    if (committed.checkpoint is None) is not (target.source.first_checkpoint is None):
        raise GenerationConflict(
            f"{target.tp}: the chain of generation {target.stream.generation} was archived from "
            f"{'Kafka' if committed.checkpoint is None else 'Kinesis'}, and the config has source "
            f"{target.stream.source}. Raise the stream's generation, or set the source back"
        )


def is_consistent(committed: CommittedOffset, described: PartitionState) -> bool:
    """Return whether the description agrees with the committed offset: the same topic, and an offset of its log."""
    topic_id, log_range = described.topic.topic_id, described.log_range
    same_topic = not committed.topic_id or not topic_id or committed.topic_id == topic_id
    return same_topic and log_range.earliest <= committed.committed_offset <= log_range.end
