"""The messages of a truncation: the archived messages, and the messages that now have their offsets in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from waybill.archive.restore.archived import objects_of_range
from waybill.config.names import TopicPartition
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, to_records
from waybill.records.batches.framing import Frame, read_frames
from waybill.replay.republish.truncations import EpochRun, Truncation
from waybill.services.kafka.kafka import KafkaSource
from waybill.services.store import Store


class LostMessage(NamedTuple):
    """A message of the archive that the log does not have any more."""

    leader_epoch: int
    record: Record
    object_key: str


class LoggedMessage(NamedTuple):
    """A message that has the offset of a lost one."""

    leader_epoch: int
    record: Record


def read_archived_messages(
    store: Store, generation: int, tp: TopicPartition, runs: Sequence[EpochRun]
) -> Iterator[LostMessage]:
    """Yield the archived messages of some offsets, in order. The archive holds no message of an aborted transaction.

    Raises `ChainBroken` or `CorruptBatch`, both of which name the object.
    """
    for run in runs:
        for each in objects_of_range(store, generation, tp, run.first_offset, run.next_offset):
            low = max(each.name.first_offset, run.first_offset)
            high = min(each.next_offset, run.next_offset)
            with store.open(each.key) as data:
                for frame in read_frames(data, each.key):
                    for record in _records(frame, each.key, low, high):
                        yield LostMessage(frame.header.leader_epoch, record, each.key)


def read_new_messages(source: KafkaSource, truncation: Truncation) -> Iterator[LoggedMessage]:
    """Yield the messages that are now in the log at the lost offsets, in order.

    Messages that Kafka's retention has deleted since then are left out. Raises `KafkaUnavailable`, and `RetentionGap`
    when Kafka deletes them while they are read.
    """
    tp = truncation.tp
    log = source.offsets([tp])[tp]
    first = max(truncation.first_offset, log.earliest)
    end = min(truncation.unknown[1], log.end)
    if first >= end:
        return
    for chunk in source.read(tp, first, end):
        for frame in chunk.frames:
            for record in _records(frame, str(tp), first, end):
                yield LoggedMessage(frame.header.leader_epoch, record)


def _records(frame: Frame, where: str, first_offset: int, next_offset: int) -> Iterator[Record]:
    header = frame.header
    if header.is_control or header.next_offset <= first_offset or header.base_offset >= next_offset:
        return
    for batch in decode([frame], where=where, first_offset=first_offset, next_offset=next_offset):
        yield from to_records(batch)
