"""How producers write to a topic, from the headers of its record batches. No record is decoded.

A header names the producer id, epoch and sequence number of an idempotent producer (KIP-98), the codec, the timestamps
and the sizes. Producers without idempotence have no id, so one row stands for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from waybill.config.names import TopicPartition
from waybill.records.batches.framing import BatchHeader, Codec, TimestampType

NO_PRODUCER_ID = -1
_SEQUENCES = 1 << 31
"""After 2³¹ - 1, sequence numbers start again at 0."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Sizes of batches."""

    median_messages: float
    largest_messages: int
    median_bytes: float
    largest_bytes: int


@dataclass(slots=True)
class ProducerFigures:
    """The batches that one producer id wrote. `NO_PRODUCER_ID` stands for all producers without idempotence."""

    producer_id: int
    epochs: set[int] = field(default_factory=set)
    is_transactional: bool = False
    batches: int = 0
    messages: int = 0
    size_bytes: int = 0
    codecs: Counter[Codec] = field(default_factory=Counter)
    """Batches by codec."""
    repeated: int = 0
    """Messages whose sequence number the topic-partition has already: the broker appended them twice."""
    missing: int = 0
    """Sequence numbers that were left out: an unclean election took messages back, or compaction removed batches."""
    behind_ms: int = 0
    """How far a timestamp is at most behind an earlier one in the log, because clocks differ or messages were sent
    late."""
    ahead_ms: int = 0
    """How far a timestamp is at most ahead of the clock of the machine that reads."""
    message_counts: list[int] = field(default_factory=list)
    batch_bytes: list[int] = field(default_factory=list)

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    @property
    def sizes(self) -> BatchSizes:
        """Return the sizes of the batches, of which there is at least one."""
        counts, sizes = self.message_counts, self.batch_bytes
        return BatchSizes(float(median(counts)), max(counts), float(median(sizes)), max(sizes))


class ProducerStatistics:
    """Collects the headers of batches, in the order of their offsets in each topic-partition."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._producers: dict[int, ProducerFigures] = {}
        self._next_sequence: dict[tuple[TopicPartition, int, int], int] = {}
        self._newest_ms: dict[TopicPartition, int] = {}
        self.control_batches = 0
        """Ends of transactions, which the brokers wrote."""
        self.log_append_batches = 0
        """Batches with the broker's time, which say nothing about the clocks of producers."""

    @property
    def producers(self) -> Sequence[ProducerFigures]:
        """Return the figures of each producer, the one with the most bytes first."""
        return sorted(self._producers.values(), key=lambda each: (-each.size_bytes, each.producer_id))

    def add(self, tp: TopicPartition, header: BatchHeader) -> None:
        """Count a batch."""
        if header.is_control:
            self.control_batches += 1
            return
        figures = self._producers.setdefault(header.producer_id, ProducerFigures(header.producer_id))
        figures.batches += 1
        figures.messages += header.record_count
        figures.size_bytes += header.size_bytes
        figures.codecs[header.codec] += 1
        figures.is_transactional |= header.is_transactional
        figures.message_counts.append(header.record_count)
        figures.batch_bytes.append(header.size_bytes)
        self._compare_times(figures, tp, header)
        if header.producer_id != NO_PRODUCER_ID:
            figures.epochs.add(header.producer_epoch)
            self._compare_sequence(figures, tp, header)

    def _compare_times(self, figures: ProducerFigures, tp: TopicPartition, header: BatchHeader) -> None:
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            self.log_append_batches += 1
            return
        newest = self._newest_ms.get(tp, header.max_timestamp_ms)
        figures.behind_ms = max(figures.behind_ms, newest - header.max_timestamp_ms)
        figures.ahead_ms = max(figures.ahead_ms, header.max_timestamp_ms - self._now_ms)
        self._newest_ms[tp] = max(newest, header.max_timestamp_ms)

    def _compare_sequence(self, figures: ProducerFigures, tp: TopicPartition, header: BatchHeader) -> None:
        key = tp, header.producer_id, header.producer_epoch
        expected = self._next_sequence.get(key)
        # The numbers wrap around: less than half of the range ahead is a jump, everything else is a repetition.
        jump = 0 if expected is None else (header.base_sequence - expected) % _SEQUENCES
        length = header.last_offset_delta + 1
        if jump < _SEQUENCES // 2:
            figures.missing += jump
            self._next_sequence[key] = (header.base_sequence + length) % _SEQUENCES
        else:
            figures.repeated += min(length, _SEQUENCES - jump)
