"""Why a target refused a batch: the archived message, the leader's error, and the config to change.

A restore stops there. Earlier messages are in the target, and the next run continues with the refused batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import NamedTuple

from kafka import errors as kafka_errors

from waybill.archive.restore.archived import message_runs, objects_of_range, read_batches
from waybill.archive.restore.figures import time_text
from waybill.archive.restore.offset_map import RestorePlace, find_place
from waybill.archive.restore.restore_plan import PartitionPlan, RestorePlan
from waybill.base.errors import RestoreStopped, WaybillError
from waybill.records.batches.framing import Codec, read_header
from waybill.services.kafka.batch_producer import BatchRefused
from waybill.services.kafka.target import TargetCluster
from waybill.services.store import Store

logger = logging.getLogger(__name__)

_AFTER, _BEFORE = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"


class _Message(NamedTuple):
    """The refused message, or the first message of a batch that is refused as a whole."""

    position: int
    """The position of the message in the batch."""
    timestamp_ms: int


def explain(
    store: Store,
    target: TargetCluster,
    plan: RestorePlan,
    partition: PartitionPlan,
    refused: BatchRefused,
    clock: Callable[[], float] = time.time,
) -> RestoreStopped:
    """Return the error that ends the restore of a topic-partition.

    If the archive or the target does not answer, the error has fewer details.
    """
    now_ms = int(clock() * 1000)
    config = _config(target, partition.target_topic)
    message = _refused_message(refused, config, now_ms)
    offset = _archived_offset(store, plan, partition, refused.offset + message.position)
    named = f"the message at archived offset {offset}" if offset is not None else "a message"
    what = (
        f"{partition.target}: the target refuses {named} of {partition.source}, timestamp "
        f"{time_text(message.timestamp_ms)} ({message.timestamp_ms}), in a batch of {refused.messages:,} messages and "
        f"{len(refused.batch):,} bytes: {refused.reason}"
    )
    remedy = _remedy(refused, message, config, now_ms)
    return RestoreStopped(
        f"{what}. {remedy}, then continue with: waybill restore run --id {plan.id}. Everything before this batch is in "
        f"the target"
    )


def _refused_message(refused: BatchRefused, config: Mapping[str, str], now_ms: int) -> _Message:
    from waybill.records.batches.decode import decode

    times: list[int] = []
    for messages in decode(memoryview(refused.batch), where=str(refused.tp), verify_crc=False, set_aside=True):
        times += [each // 1000 for each in messages.column("timestamp").cast("int64").to_pylist()]
    index = refused.refused_record
    if index is None and refused.error is kafka_errors.InvalidTimestampError:
        index = max(range(len(times)), key=lambda each: _excess_ms(times[each], config, now_ms))
    index = 0 if index is None or not 0 <= index < len(times) else index
    return _Message(index, times[index])


def _excess_ms(timestamp_ms: int, config: Mapping[str, str], now_ms: int) -> int:
    """Return by how much a timestamp exceeds the topic's limits; negative if it is within them.

    The brokers' clocks may differ.
    """
    after_ms, before_ms = int(config.get(_AFTER, 0)), int(config.get(_BEFORE, 0))
    return max(timestamp_ms - now_ms - after_ms, now_ms - timestamp_ms - before_ms)


def _archived_offset(store: Store, plan: RestorePlan, partition: PartitionPlan, target_offset: int) -> int | None:
    """Return the archived offset of the message that goes to an offset of the target; None if it cannot be read.

    This reads the archive from the last part of the offset map before it.
    """
    start = RestorePlace(partition.first_offset, partition.target_offset)
    try:
        place = find_place(store, plan.id, partition.source, target_offset, start)
        objects = objects_of_range(store, plan.generation, partition.source, place.offset, partition.next_offset)
        at, first = place.target_offset, place.offset
        with closing(read_batches(store, partition.source, objects, first, partition.next_offset)) as batches:  # type: ignore[type-var]
            for batch in batches:
                count = 0 if batch.frame is None else batch.frame.header.record_count
                if at + count > target_offset:
                    for offset, messages in message_runs(batch, first, partition.next_offset):
                        if at + messages > target_offset:
                            return offset + target_offset - at
                        at += messages
                at, first = at + count, batch.next_offset
    except WaybillError as error:
        logger.warning("%s: the archived offset of a refused message is not known: %s", partition.target, error)
    return None


def _config(target: TargetCluster, topic: str) -> Mapping[str, str]:
    """Return the topic's configs; empty if the target does not answer."""
    try:
        found = target.find_topic(topic)
    except WaybillError as error:
        logger.warning("the configs of topic %s are not known: %s", topic, error)
        return {}
    return {} if found is None else found.config


def _remedy(refused: BatchRefused, message: _Message, config: Mapping[str, str], now_ms: int) -> str:
    """Return the remedy, without a full stop."""
    error = refused.error
    if error is kafka_errors.InvalidTimestampError:
        ahead_ms = message.timestamp_ms - now_ms
        key = _AFTER if ahead_ms > 0 else _BEFORE
        return _raise(config, key, f"more than {abs(ahead_ms)}")
    if error is kafka_errors.InvalidRecordError and "compact" in config.get("cleanup.policy", ""):
        return (
            f"A compacted topic takes no message without a key. Set cleanup.policy=delete of the topic (it is "
            f"{config['cleanup.policy']})"
        )
    if error is kafka_errors.MessageSizeTooLargeError:
        return _raise(config, "max.message.bytes", f"{len(refused.batch)} or more{_after_compression(config)}")
    if error is kafka_errors.RecordListTooLargeError:
        return _raise(config, "segment.bytes", f"{len(refused.batch)} or more{_after_compression(config)}")
    if error in (kafka_errors.UnsupportedCompressionTypeError, kafka_errors.UnsupportedForMessageFormatError):
        codec = Codec(read_header(refused.batch, 0, str(refused.tp)).codec).name.lower()
        return (
            f"The batch has codec {codec} and message format v2. Raise message.format.version of the topic, or the "
            f"brokers' version, to one that takes both (zstd: 2.1)"
        )
    return "Change the config of the topic that refuses it"


def _raise(config: Mapping[str, str], key: str, value: str) -> str:
    present = f" (it is {config[key]})" if key in config else ""
    return f"Set {key} of the topic to {value}{present}"


def _after_compression(config: Mapping[str, str]) -> str:
    kind = config.get("compression.type", "producer")
    if kind == "producer":
        return ""
    return f", since the topic's compression.type={kind} makes a batch larger; or set compression.type=producer"
