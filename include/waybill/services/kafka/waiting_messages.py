"""Count the messages after a committed offset, if the difference of offsets is small enough to read them.

A commit or abort marker of a transaction has an offset, but is not a message: no consumer sees it. So a consumer of a
transactional topic that has read everything may have a committed offset that is one before the end of the log, for as
long as nothing is written. For a consumer that reads committed messages, messages of aborted transactions do not count
either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from waybill.config.names import TopicPartition
from waybill.records.batches.framing import ControlType, Frame, control_type

if TYPE_CHECKING:
    from waybill.services.kafka.kafka import KafkaSource

MOST_OFFSETS = 100
"""The most offsets that are read: if there are more, they are hardly ever all markers, and reading them would be
expensive."""


def count_waiting(source: KafkaSource, tp: TopicPartition, committed: int, end: int) -> int:
    """Return the most messages from the committed offset `committed` to `end` that a consumer has not read.

    Reads the record batches in between, and decodes no message. `source` must read uncommitted messages. Raises
    `KafkaUnavailable`, `ConfigError` without the ACL Read on the topic, and the errors of `KafkaSource.read`.
    """
    frames = (frame for chunk in source.read(tp, committed, end) for frame in chunk.frames)
    return waiting_in(frames, committed, end, str(tp))


def waiting_in(frames: Iterable[Frame], committed: int, end: int, where: str) -> int:
    """Return how many records of the batches lie in `[committed, end)` and are neither markers nor known as aborted.

    Raises `CorruptBatch` for a marker that cannot be read.
    """
    waiting = 0
    undecided: dict[int, int] = {}
    """By producer id: the messages of a transaction whose marker did not come yet."""
    for frame in frames:
        header = frame.header
        if header.base_offset >= end:
            break
        if header.is_control:
            messages = undecided.pop(header.producer_id, 0)
            waiting += 0 if control_type(frame, where) is ControlType.ABORT else messages
            continue
        span = min(header.next_offset, end) - max(header.base_offset, committed)
        messages = max(0, min(span, header.record_count))
        if header.is_transactional:
            undecided[header.producer_id] = undecided.get(header.producer_id, 0) + messages
        else:
            waiting += messages
    return waiting + sum(undecided.values())
