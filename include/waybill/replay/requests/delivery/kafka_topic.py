"""Delivery of each message exactly once to a Kafka topic, to which other producers may write too.

Each request has its own producer id, which is stored before the first message is sent. The sequence number of a message
is its position among the request's messages for its target partition. So the leader refuses messages that it already
has from a retry, a worker that seemed dead, or a rival (KIP-98).

After a restart, the target's log shows which messages it has: the state holds an offset after which batches of the
request may follow, and the headers of the log from there on show the last sequence number. Messages up to it are not
sent again. Assumption: the messages of a request come in the same order each time they are read, and go to the same
partitions.

Limits: the leader forgets a producer id that has sent nothing for `producer.id.expiration.ms` (default: a day), and
then accepts any sequence number. So a worker that was frozen sends nothing more when six hours have passed since its
last acknowledgement (`sources/batch_producer.py`): its turn ends, and the next turn reads the log's end first.
A topic with LogAppendTime gets the messages with new timestamps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from kafka.errors import InvalidTimestampError, MessageSizeTooLargeError, RecordListTooLargeError
from kafka.partitioner.default import murmur2

from waybill.base.errors import ReplayRefused
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.produced import Producer
from waybill.replay.requests.delivery.outcome import TargetUnavailable
from waybill.replay.requests.delivery.webhook import Rejection
from waybill.replay.requests.message import ReplayedMessage
from waybill.services.kafka.batch_producer import Batches, BatchRefused, OutOfSequence
from waybill.services.kafka.target import AclOperation, TargetCluster, TargetTopic

_BATCH_BYTES = 512 << 10
"""The bytes of keys and values in a batch, if the topic allows this size."""
_RIVAL_SECONDS = 5.0
_MAX_BATCH_CONFIG = "max.message.bytes"
_DEFAULT_MAX_BATCH_BYTES = 1 << 20
_SEQUENCES = 1 << 31


class Wording(NamedTuple):
    """The texts of errors: the name of the delivery, and what a person can do when it cannot go on."""

    name: str
    remedy: str
    retry: str
    """What a person does after the topic was changed back."""


_REQUEST = Wording("request", "request again", "request again")


class TopicDelivery:
    """The delivery of one request to one topic. Call `prepare` first, and store `state` before the first `deliver`."""

    def __init__(
        self,
        target: TargetCluster,
        topic: str,
        state: Mapping[str, Any] | None,
        *,
        keep_claim: Callable[[], None] = lambda: None,
        only_partition: int | None = None,
        wording: Wording = _REQUEST,
    ) -> None:
        """`state`: the state of the previous worker; None at first.

        `keep_claim` is called while the target's log is read, which can take long if others write a lot. With
        `only_partition`, all messages go to that partition, whatever their keys.
        """
        self._target, self._topic, self._keep_claim = target, topic, keep_claim
        self._only_partition, self._wording = only_partition, wording
        target.producer.shares_topics = True
        self._state: dict[str, Any] = {} if state is None else copy.deepcopy(dict(state))
        self._counts: list[int] = list(self._state.get("counts", ()))
        """For each target partition, how many messages of the request are delivered up to the cursor."""
        self._there: list[int] = list(self._state.get("there", ()))
        """For each target partition, how many the target is known to have; at least as many."""

    @property
    def state(self) -> dict[str, Any]:
        """The state for the next worker, as JSON."""
        return copy.deepcopy({**self._state, "counts": self._counts, "there": self._there})

    def prepare(self) -> None:
        """The first time, get a producer id and describe the topic; later, find the messages that the target has.

        Raises `ReplayRefused` if the topic does not exist, or is not the one that the request began with.
        """
        topic = self._target.find_topic(self._topic)
        if topic is None:
            raise ReplayRefused(
                f"topic {self._topic!r} does not exist at {self._target.where}: create it", "target.topic"
            )
        if topic.allowed and AclOperation.WRITE not in topic.allowed:
            raise ReplayRefused(
                f"the user of the connection may not write to {self._topic!r} at {self._target.where}: add an ACL "
                f"for the operation Write",
                "target.topic",
            )
        if not self._state:
            self._begin(topic)
        else:
            self._check_topic(topic)
        used = range(len(self._counts)) if self._only_partition is None else [self._only_partition]
        self._there = [self._count_there(number) if number in used else 0 for number in range(len(self._counts))]

    def refuses(self, message: ReplayedMessage) -> str | None:
        """Return why a message is too large for the topic; None if it is not. Call `prepare` before."""
        size_bytes, limit = len(_encoded([message], self._producer, 0)), self._state["max_batch_bytes"]
        if size_bytes <= limit:
            return None
        return f"has {size_bytes:,} bytes, and the topic took {limit:,} ({_MAX_BATCH_CONFIG}) at the beginning"

    def deliver(self, messages: Sequence[ReplayedMessage]) -> list[Rejection]:
        """Deliver the next messages, and return those that are too large for the topic.

        When this method returns, all in-sync replicas have the messages. Raises `TargetUnavailable`, `ReplayRefused`,
        `KafkaUnavailable` or `ConfigError`.
        """
        rejections: list[Rejection] = []
        waiting: dict[int, list[ReplayedMessage]] = {}
        for message in messages:
            reason = self.refuses(message)
            if reason is not None:
                rejections.append(Rejection(message, reason))
            else:
                waiting.setdefault(self._partition_of(message), []).append(message)
        counts, there = list(self._counts), list(self._there)
        try:
            for number, chosen in waiting.items():
                self._send(number, chosen)
            for number in waiting:
                self._flush(number)
        except BaseException:
            self._counts, self._there = counts, there  # the state after the previous messages
            for number in waiting:
                self._target.producer.forget(TopicPartition(self._topic, number))
            raise
        return rejections

    # --- the topic ---

    def _begin(self, topic: TargetTopic) -> None:
        producer = self._target.producer.new_producer()
        ends = self._ends(topic.partitions)
        self._state = {
            "topic_id": topic.topic_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "max_batch_bytes": int(topic.config.get(_MAX_BATCH_CONFIG, _DEFAULT_MAX_BATCH_BYTES)),
            "ends": ends,
            "before": [0] * topic.partitions,  # the number of the request's messages before each of `ends`
        }
        self._counts, self._there = [0] * topic.partitions, [0] * topic.partitions

    def _check_topic(self, topic: TargetTopic) -> None:
        if topic.topic_id != self._state["topic_id"]:
            raise ReplayRefused(
                f"topic {self._topic!r} was deleted and created again while it was delivered to: "
                f"{self._wording.remedy}",
                "target.topic",
            )
        # With `only_partition`, keys do not choose the partition, so added partitions change nothing.
        if topic.partitions != len(self._counts) and self._only_partition is None:
            raise ReplayRefused(
                f"topic {self._topic!r} has {topic.partitions} partitions now, and had {len(self._counts)}, so keys "
                f"would change their partition: {self._wording.remedy}",
                "target.topic",
            )

    def _ends(self, partitions: int) -> list[int]:
        tps = [TopicPartition(self._topic, number) for number in range(partitions)]
        found = self._target.log.offsets(tps)
        return [found[tp].end for tp in tps]

    def _count_there(self, number: int) -> int:
        """Return how many messages of the request a partition has, and store its current log end offset."""
        tp, count = TopicPartition(self._topic, number), max(self._counts[number], self._there[number])
        self._target.producer.begin(tp)
        log_range = self._target.log.offsets([tp])[tp]
        begin = self._state["ends"][number]
        if log_range.earliest > begin:
            raise ReplayRefused(
                f"{tp}: the target has deleted the messages before offset {log_range.earliest}, among them perhaps "
                f"some of this {self._wording.name}, so Waybill cannot know which ones are missing. Set a longer "
                f"retention.ms of the topic, and {self._wording.remedy}",
                "target.topic",
            )
        sequence = self._last_sequence(tp, begin, log_range.end)
        before = self._state["before"][number]
        # Sequence numbers begin again after 2^31 - 1. The last worker was ahead by less than half of this range.
        ahead = before - count if sequence is None else (sequence + 1 - count) % _SEQUENCES
        if log_range.end < begin or not 0 <= ahead < _SEQUENCES // 2:
            raise ReplayRefused(
                f"{tp}: the target had {count:,} messages of this {self._wording.name}, and its log has fewer now: an "
                f"unclean leader election took them back, or compaction removed them. To go on, {self._wording.remedy}",
                "target.topic",
            )
        self._state["ends"][number], self._state["before"][number] = log_range.end, count + ahead
        return count + ahead

    def _last_sequence(self, tp: TopicPartition, begin: int, end: int) -> int | None:
        """Return the sequence number of the request's last message in `[begin, end)` of a log; None without one."""
        found = None
        with closing(self._target.log.read(tp, begin, end)) as chunks:
            for chunk in chunks:
                self._keep_claim()
                for frame in chunk.frames:
                    header = frame.header
                    # The log cleaner keeps the last batch of each producer, if necessary without its messages.
                    if (header.producer_id, header.producer_epoch) == self._producer and not header.is_control:
                        found = (header.base_sequence + header.last_offset_delta) % _SEQUENCES
        return found

    # --- messages ---

    @property
    def _producer(self) -> Producer:
        return Producer(self._state["producer_id"], self._state["producer_epoch"])

    def _partition_of(self, message: ReplayedMessage) -> int:
        """Return the partition that Kafka's default partitioner chooses, so that a key keeps its order."""
        if self._only_partition is not None:
            return self._only_partition
        return int((murmur2(message.key or b"") & 0x7FFFFFFF) % len(self._counts))

    def _send(self, number: int, messages: Sequence[ReplayedMessage]) -> None:
        """Send those messages of a partition that the target does not have."""
        first = self._counts[number]
        self._counts[number] += len(messages)
        missing = messages[max(self._there[number] - first, 0) :]
        position = self._counts[number] - len(missing)
        tp, limit = TopicPartition(self._topic, number), min(_BATCH_BYTES, self._state["max_batch_bytes"])
        data: list[tuple[bytes, int]] = []
        at = position
        for group in _groups(missing, limit // 2):
            data.append((_encoded(group, self._producer, at), len(group)))
            at += len(group)
        if data:
            self._target.producer.send(tp, Batches(position, data))
            self._there[number] = at

    def _flush(self, number: int) -> None:
        tp = TopicPartition(self._topic, number)
        try:
            self._target.producer.check(tp, flush=True)
        except OutOfSequence as error:
            raise TargetUnavailable(
                f"another worker delivers this {self._wording.name} ({error})", _RIVAL_SECONDS
            ) from error
        except BatchRefused as error:
            if error.error is not MessageSizeTooLargeError:
                raise ReplayRefused(
                    f"{tp} refuses a batch: {error.reason}. Change the config of the topic that refuses it "
                    f"({_refusing_config(error)}), and {self._wording.retry}",
                    "target.topic",
                ) from error
            limit = self._state["max_batch_bytes"]
            raise ReplayRefused(
                f"{tp} refuses a batch: {_MAX_BATCH_CONFIG} was lowered from {limit:,} since the {self._wording.name} "
                f"began. Set it to {limit:,} again, and {self._wording.retry}",
                "target.topic",
            ) from error


def _refusing_config(refused: BatchRefused) -> str:
    if refused.error is InvalidTimestampError:
        return "message.timestamp.before.max.ms or message.timestamp.after.max.ms"
    if refused.error is RecordListTooLargeError:
        return "segment.bytes"
    return "cleanup.policy: a compacted topic takes no message without a key; or compression.type"


def _encoded(messages: Sequence[ReplayedMessage], producer: Producer, position: int) -> bytes:
    records = [
        Record(index, message.timestamp_ms, message.key, message.value, message.headers)
        for index, message in enumerate(messages)
    ]
    return encode_batch(
        records,
        leader_epoch=-1,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence(position),
    )


def _groups(messages: Sequence[ReplayedMessage], limit_bytes: int) -> list[list[ReplayedMessage]]:
    """Return the messages in groups of about the given size at most; a group has at least one message."""
    groups: list[list[ReplayedMessage]] = []
    size_bytes = 0
    for message in messages:
        own_bytes = 64 + len(message.key or b"") + len(message.value or b"")
        own_bytes += sum(16 + len(name.encode()) + len(value or b"") for name, value in message.headers)
        if not groups or size_bytes + own_bytes > limit_bytes:
            groups.append([])
            size_bytes = 0
        groups[-1].append(message)
        size_bytes += own_bytes
    return groups
