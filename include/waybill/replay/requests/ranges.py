"""The ranges of a request: the topic-partitions that can hold its keys, and their offsets.

**Partitions.** Producers with Kafka's default partitioner put a key into partition `murmur2(key) mod n` of a topic with
`n` partitions. A topic may have had fewer partitions earlier, so each number of partitions at the start of a chain is
used too. A sample of the topic's messages is compared with that rule, because the config cannot know every producer: if
one key is in another partition, or the config states another partitioner (`key_partitioner: other`), all partitions are
read.

**Offsets.** A range begins where the archive begins, and ends at the end of the log at the time of the request's first
claim. Kafka's time index shows the first offset whose message can have a timestamp of the request; earlier offsets that
Kafka still has are left out. Kafka's time index cannot show more: a message with an early timestamp may follow later
ones, so no offsets are left out after the end of the time range. For archived messages, the replay index is exact
(`replay.archived`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from kafka.partitioner.default import murmur2

from waybill.archive.chain.chain import find_chain_start
from waybill.base.errors import KinesisUnavailable
from waybill.config.models import KeyPartitioner, Stream
from waybill.config.names import TopicPartition
from waybill.records.batches.decode import decode
from waybill.records.batches.framing import BatchHeader
from waybill.replay.requests.cursor import OffsetRange
from waybill.replay.requests.matching import WantedMessages
from waybill.services.coordination import CommittedOffset, Coordinator
from waybill.services.kafka.cluster import Topic
from waybill.services.kafka.kafka import KafkaSource, LogRange
from waybill.services.store import Store

if TYPE_CHECKING:
    from waybill.archive.ingest.kinesis.slot_source import SlotSource

logger = logging.getLogger(__name__)

_SAMPLED_PARTITIONS = 4
_SAMPLED_OFFSETS = 100


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of a key as Kafka's default partitioner chooses it (`BuiltInPartitioner` in Java)."""
    return int((murmur2(key) & 0x7FFFFFFF) % partition_count)


def find_ranges(
    stream: Stream, wanted: WantedMessages, store: Store, kafka: KafkaSource, coordinator: Coordinator
) -> list[OffsetRange]:
    """Return the ranges of a request, in order. Raises `KafkaUnavailable`, `StoreUnavailable` and their like."""
    described = kafka.describe_streams({"": stream})[""]
    if described.refused:
        raise next(iter(described.refused.values()))
    in_kafka = set(described.tps)
    committed = coordinator.list_committed()
    topics = sorted({tp.topic for tp in in_kafka} | {tp.topic for tp in committed if stream.matches(tp.topic)})
    ranges: list[OffsetRange] = []
    for topic in topics:
        tps = sorted(tp for tp in in_kafka | committed.keys() if tp.topic == topic)
        starts = _chain_starts(store, stream.generation, [tp for tp in tps if tp in committed])
        counts = {len(tps)} | {count for _, count in starts.values() if count}
        chosen = _partitions(stream, wanted, kafka, tps, in_kafka, counts)
        log_ranges = kafka.offsets([tp for tp in chosen if tp in in_kafka])
        for tp in chosen:
            log_range, archived = log_ranges.get(tp), None
            if tp in committed:
                archived = (starts[tp][0], committed[tp].committed_offset)
                if not _is_same_topic(committed[tp], described.topics.get(topic)):
                    logger.warning("%s was created again since it was archived: only the archive is read", tp)
                    log_range = None
            ranges += _offsets(tp, wanted, kafka, archived, log_range)
    return ranges


def find_slot_ranges(
    stream: Stream, wanted: WantedMessages, store: Store, slots: SlotSource, coordinator: Coordinator
) -> list[OffsetRange]:
    """Return the ranges of a request for a Kinesis stream: the chains of all its slots.

    Only the archive is read. Raises `KinesisUnavailable`, which is retriable, until everything that arrived before the
    end of the request is archived.
    """
    archived_to_ms = slots.archived_to_ms()
    if archived_to_ms is None or archived_to_ms < wanted.to_ms:
        raise KinesisUnavailable(
            "what arrived in Kinesis before the end of the request is not archived yet. The request waits for ingest"
        )
    committed = {tp: each for tp, each in coordinator.list_committed().items() if stream.matches(tp.topic)}
    starts = _chain_starts(store, stream.generation, list(committed))
    ranges = [OffsetRange(tp, starts[tp][0], each.committed_offset) for tp, each in sorted(committed.items())]
    return [each for each in ranges if each.first_offset < each.next_offset]


def _is_same_topic(committed: CommittedOffset, topic: Topic | None) -> bool:
    return topic is None or not committed.topic_id or committed.topic_id == topic.topic_id


def _chain_starts(
    store: Store, generation: int, tps: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return where each chain begins, and the number of partitions that the topic had at that time; 0: unknown."""
    found = {}
    for tp in tps:
        start = find_chain_start(store, generation, tp)
        if start is not None:
            found[tp] = (start.offset, start.partitions)
            continue
        first = next(store.list_chain(tp.topic, generation, tp.partition), None)
        found[tp] = (0 if first is None else first.name.first_offset, 0)
    return found


def _offsets(
    tp: TopicPartition,
    wanted: WantedMessages,
    kafka: KafkaSource,
    archived: tuple[int, int] | None,
    log_range: LogRange | None,
) -> Iterator[OffsetRange]:
    if log_range is None:  # Kafka does not have the topic any more
        if archived is not None and archived[0] < archived[1]:
            yield OffsetRange(tp, *archived)
        return
    first = log_range.earliest if archived is None else archived[0]
    end = log_range.end if archived is None else max(log_range.end, archived[1])
    at_time = kafka.offset_at(tp, wanted.from_ms)
    begin = log_range.end if at_time is None else at_time
    # Kafka has no times for deleted messages.
    if first < log_range.earliest:
        yield OffsetRange(tp, first, min(log_range.earliest, end))
    begin = max(begin, first, log_range.earliest)
    if begin < end:
        yield OffsetRange(tp, begin, end)


# --- partitions -------------------------------------------------------------------------------------------------------


def _partitions(
    stream: Stream,
    wanted: WantedMessages,
    kafka: KafkaSource,
    tps: list[TopicPartition],
    in_kafka: Collection[TopicPartition],
    counts: Collection[int],
) -> list[TopicPartition]:
    """Return the topic-partitions of one topic that can hold a wanted key."""
    if stream.key_partitioner is KeyPartitioner.OTHER:
        return tps
    numbers = {partition_of(key, count) for key in wanted.keys for count in counts}
    chosen = [tp for tp in tps if tp.partition in numbers]
    if len(chosen) == len(tps):
        return tps
    sampled = [tp for tp in tps if tp in in_kafka]
    for tp in sampled[:: max(1, len(sampled) // _SAMPLED_PARTITIONS)]:
        key = _misplaced_key(kafka, tp, counts)
        if key is not None:
            logger.warning(
                "%s holds the key %r, which Kafka's default partitioner puts elsewhere: all partitions of %s are read. "
                "If producers use another partitioner, set `key_partitioner: other` for the stream",
                tp,
                key[:80],
                tp.topic,
            )
            return tps
    return chosen


def _misplaced_key(kafka: KafkaSource, tp: TopicPartition, counts: Collection[int]) -> bytes | None:
    """Return a key near the log's end that is not in the partition of the rule; None if there is none."""
    log_range = kafka.offsets([tp])[tp]
    if log_range.end <= log_range.earliest:
        return None
    near_end = max(log_range.earliest, log_range.end - _SAMPLED_OFFSETS)
    with closing(kafka.read(tp, near_end, log_range.end, first_batch_only=True)) as chunks:
        chunk = next(chunks, None)
    if chunk is None:
        return None
    frames = [frame for frame in chunk.frames if _is_readable(frame.header)]
    for batch in decode(frames, where=chunk.where, set_aside=True):
        for key in batch.column("key").unique().to_pylist():
            if key is not None and all(partition_of(key, count) != tp.partition for count in counts):
                return bytes(key)
    return None


def _is_readable(header: BatchHeader) -> bool:
    return not header.is_control and header.record_count > 0
