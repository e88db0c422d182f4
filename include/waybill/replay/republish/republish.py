"""Publish lost messages again, each exactly once, to the topic-partition that lost them.

First a record is stored with the messages, the producer id, and the log end offset before the first message
(`records`). Then the messages are sent in order. By sequence number, the leader refuses messages that it already has,
and a later run reads from the log how far an earlier one came (`replay.delivery.kafka_topic`). So a run that was killed
is finished by the next.

Limits: another unclean election can take published messages back as well; a run then stops with an error. From an
election to the end of a run, Kafka must keep the log after the record's log end offset. When a run cannot go on, a
person can abandon its record (`records.abandon`); its messages are then published again only on a separate order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from waybill.base import failpoints
from waybill.base.decision import Decision
from waybill.base.errors import KafkaUnavailable, RestoreRefused
from waybill.config.names import TopicPartition
from waybill.replay.republish.messages import LostMessage, read_archived_messages
from waybill.replay.republish.records import (
    Republished,
    abandoned_runs,
    create_record,
    list_records,
    not_recorded,
    record_done,
)
from waybill.replay.republish.truncations import EpochRun
from waybill.replay.requests.delivery.kafka_topic import TopicDelivery, Wording
from waybill.replay.requests.delivery.outcome import TargetUnavailable
from waybill.replay.requests.message import ReplayedMessage
from waybill.services.kafka.target import TargetCluster
from waybill.services.store import Store

logger = logging.getLogger(__name__)

HEADER = "waybill-republished"
"""The header of a message that was published again. Its value is `topic/partition/epoch/offset` of the lost one."""

_MESSAGES = 1_000
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class RepublishResult:
    """A record whose messages a run has published."""

    record: Republished
    messages: int


def republish(
    store: Store,
    target: TargetCluster,
    generation: int,
    tp: TopicPartition,
    lost: Sequence[EpochRun],
    decision: Decision,
    *,
    again: bool = False,
    allow_compacted: bool = False,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> list[RepublishResult]:
    """Finish unfinished records of a topic-partition, then publish messages that are in no record. Return the results.

    `again`: also publish messages that are only in abandoned records, some of them for the second time.
    `allow_compacted`: publish to a compacted topic, where the old values become the newest of their keys.

    Raises `RestoreRefused` before anything is published when a message is too large for the topic, or the topic is
    compacted; `ReplayRefused` when the log has lost messages that it had, `ChainBroken` or `CorruptBatch` for the
    archive, `KafkaUnavailable`, `ConfigError`.
    """
    results = []
    while True:
        records = list_records(store, generation, tp)
        results += [_publish(store, target, each, clock_ms) for each in records if each.is_unfinished]
        left = not_recorded(lost, records)
        if again:
            left = sorted([*left, *abandoned_runs(lost, records)])
        if not left:
            return results
        if not allow_compacted:
            _refuse_compacted(target, tp)
        delivery = _delivery(target, tp, None, len(records))
        delivery.prepare()
        _check_sizes(store, delivery, generation, tp, left)
        if create_record(store, generation, tp, len(records), left, decision, clock_ms(), delivery.state) is None:
            logger.info("%s: somebody else ordered the same at the same time", tp)
        failpoints.reach("republish.recorded")


def _delivery(target: TargetCluster, tp: TopicPartition, state: Mapping[str, Any] | None, number: int) -> TopicDelivery:
    wording = Wording(
        "publication",
        f"abandon publication {number} (`waybill kafka republish` with --abandon {number}); some of its messages may "
        f"be published",
        "run the command again",
    )
    return TopicDelivery(target, tp.topic, state, only_partition=tp.partition, wording=wording)


def _refuse_compacted(target: TargetCluster, tp: TopicPartition) -> None:
    topic = target.find_topic(tp.topic)
    if topic is not None and "compact" in topic.config.get("cleanup.policy", ""):
        raise RestoreRefused(
            f"{tp}: topic {tp.topic!r} is compacted (cleanup.policy), so Kafka keeps the last message of each key. A "
            f"lost message that is published now is the last one of its key, and replaces a newer value. If that is "
            f"what you want, add --allow-compacted"
        )


def _check_sizes(
    store: Store, delivery: TopicDelivery, generation: int, tp: TopicPartition, runs: Sequence[EpochRun]
) -> None:
    for message in _messages(read_archived_messages(store, generation, tp, runs), tp):
        reason = delivery.refuses(message)
        if reason is not None:
            raise RestoreRefused(f"{tp}: the lost message at offset {message.offset} {reason}: raise it, and run again")


def _publish(store: Store, target: TargetCluster, record: Republished, clock_ms: Callable[[], int]) -> RepublishResult:
    """Publish those messages of a record that the log does not have yet."""
    attempt = 0
    while True:
        try:
            messages = _deliver(store, target, record)
            break
        except TargetUnavailable as error:
            attempt += 1
            if attempt == _ATTEMPTS:
                raise KafkaUnavailable(f"{record.tp}: {error}, {attempt} times: run the command again") from error
            time.sleep(error.wait_seconds)
    record_done(store, record, clock_ms(), messages)
    return RepublishResult(record, messages)


def _deliver(store: Store, target: TargetCluster, record: Republished) -> int:
    delivery = _delivery(target, record.tp, record.delivery, record.number)
    delivery.prepare()
    count = 0
    lost = read_archived_messages(store, record.generation, record.tp, record.runs)
    for messages in _batches(_messages(lost, record.tp)):
        rejected = delivery.deliver(messages)
        if rejected:  # its size was checked before, so the limit of the topic has not changed since
            raise RestoreRefused(f"{record.tp}: the lost message at offset {rejected[0].message.offset} is too large")
        count += len(messages)
        failpoints.reach("republish.delivered")
    return count


def _batches(messages: Iterable[ReplayedMessage]) -> Iterator[list[ReplayedMessage]]:
    left = iter(messages)
    while group := list(islice(left, _MESSAGES)):
        yield group


def _messages(lost: Iterable[LostMessage], tp: TopicPartition) -> Iterator[ReplayedMessage]:
    """Yield the archived messages, with a header that names the offset of the lost message."""
    for each in lost:
        record = each.record
        place = f"{tp.topic}/{tp.partition}/{each.leader_epoch}/{record.offset}"
        headers = (*((name, value) for name, value in record.headers), (HEADER, place.encode()))
        yield ReplayedMessage(tp, record.offset, record.timestamp_ms, record.key, record.value, headers)
