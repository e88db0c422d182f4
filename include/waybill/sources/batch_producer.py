"""Sending record batches to the leaders of topic-partitions, exactly once.

A batch is sent as it is, with the producer id, epoch and sequence number in its header (KIP-98). The leader appends a
batch only if its sequence number follows the last one of this producer id in the topic-partition. It answers a batch
that it has among the last five with the offset of the first append, and refuses every other batch as out of sequence.

The sequence number is the position of the message in what is sent, so the leader decides for retries, zombies and
rivals with the same producer id alike: the first one to send a position wins (docs/decisions/0026-restore.md).

Limits: the leader forgets a producer id that has sent nothing for `producer.id.expiration.ms` (default: a day), and
then accepts any sequence number. A process that was frozen for longer must not continue on a connection that it opened
before; Kafka closes idle connections after ten minutes (`connections.max.idle.ms`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from kafka import errors as kafka_errors
from kafka.protocol.producer import InitProducerIdRequest

from waybill.errors import KafkaUnavailable, RestoreStopped
from waybill.names import TopicPartition
from waybill.records.produced import Producer
from waybill.sources.cluster import Cluster
from waybill.sources.produce_request import PartitionRequests, ProduceAnswer

__all__ = ["BatchProducer", "Batches", "OutOfSequence"]

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000
_PATIENCE_SECONDS = 60.0
_IN_FLIGHT = 5
"""The batches of one topic-partition that are sent and not acknowledged: the leader recognizes as many as repeated."""
_NO_TRANSACTION_TIMEOUT = 2_147_483_647  # as Kafka's producer sends it without a transactional id
_QUEUED_BYTES = 8 << 20
"""How many bytes a topic-partition may hold in memory before `send` waits."""


class OutOfSequence(Exception):
    """The leader has other batches of this producer id: another process sends them, or the log was truncated."""


class Batches(NamedTuple):
    """Batches that follow each other, and the target offset at which the leader must append the first."""

    first_offset: int
    """With `shares_topics`, the position of the first message among those that are sent."""
    data: Sequence[tuple[bytes, int]]
    """Each batch, and its number of messages."""

    @property
    def size_bytes(self) -> int:
        return sum(len(batch) for batch, _ in self.data)


class BatchProducer:
    """Sends record batches to a cluster. Use it from one thread.

    The cluster's connections must allow many requests in flight, since those of all topic-partitions share them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.shares_topics = False
        """Whether others write to the topics, so that the offsets of appended batches cannot be known."""
        self._changed = threading.Condition()
        self._partitions: dict[TopicPartition, _PartitionQueue] = {}

    def new_producer(self) -> Producer:
        """Return a producer id that nobody has, and its epoch.

        Raises `KafkaUnavailable`, or `ConfigError` when the user may not write to any topic.
        """
        action = "could not get a producer id"
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT,
            producer_id=-1,
            producer_epoch=-1,
            max_version=4,
        )
        for _ in self._cluster.attempts(action):
            try:
                response = self._cluster.wait(self._cluster.send(None, request))
            except kafka_errors.RetriableError as error:
                logger.debug("%s: %s", action, error)
                continue
            except kafka_errors.KafkaError as error:
                raise self._cluster.translate(action, error) from error
            refusal = kafka_errors.for_code(response.error_code)
            if refusal is kafka_errors.NoError:
                return Producer(int(response.producer_id), int(response.producer_epoch))
            if not issubclass(refusal, kafka_errors.RetriableError):
                raise self._cluster.translate(action, refusal())
        raise AssertionError("unreachable")

    def send(self, tp: TopicPartition, batches: Batches) -> None:
        """Queue batches after those of earlier calls, and return at once. Call `wait_for_room` before the next call."""
        queue = self._partitions.get(tp)
        if queue is None:
            queue = self._partitions[tp] = _PartitionQueue(
                self._cluster, tp, self._changed, shares_topic=self.shares_topics
            )
        queue.offer(batches)

    def acknowledged(self, tp: TopicPartition) -> int | None:
        """Return the target offset up to which all in-sync replicas have what was sent; None if nothing was."""
        queue = self._partitions.get(tp)
        return None if queue is None else queue.acknowledged

    def wait_for_room(self, tps: Collection[TopicPartition]) -> TopicPartition:
        """Wait until one of the topic-partitions has room for more batches, and return it.

        A topic-partition that has failed is returned, too: `check` raises its error.
        """
        queues = {tp: self._partitions.get(tp) for tp in tps}
        found: list[TopicPartition] = []

        def has_room() -> bool:
            found[:] = [tp for tp, queue in queues.items() if queue is None or queue.has_news(_QUEUED_BYTES)]
            return bool(found)

        with self._changed:
            if not self._changed.wait_for(has_room, _PATIENCE_SECONDS):
                return next(iter(tps))
        return found[0]

    def check(self, tp: TopicPartition, *, flush: bool = False) -> None:
        """Send again what failed and may succeed now. With `flush`, wait until everything sent is acknowledged.

        Raises `OutOfSequence`; `RestoreStopped` when the leader appended a batch at another offset, so somebody else
        writes to the topic, and when it refuses a batch; `KafkaUnavailable` after the retry timeout; `ConfigError`.
        """
        queue = self._partitions.get(tp)
        if queue is not None:
            queue.wait_for_room(0 if flush else _QUEUED_BYTES)

    def forget(self, tp: TopicPartition) -> None:
        """Drop what is queued for a topic-partition, after an error. What is in flight may still be appended."""
        self._partitions.pop(tp, None)


class _Sent(NamedTuple):
    offset: int
    batch: bytes
    messages: int


class _PartitionQueue:
    """The batches of one topic-partition that are not acknowledged, in order.

    The methods whose names begin with `_on_io` run in kafka-python's IO thread; the others in the caller's. The lock of
    `changed`, which all topic-partitions share, guards all fields.
    """

    def __init__(
        self, cluster: Cluster, tp: TopicPartition, changed: threading.Condition, *, shares_topic: bool
    ) -> None:
        self._cluster, self._tp, self._shares_topic = cluster, tp, shares_topic
        self._requests = PartitionRequests(tp.topic, tp.partition, _TIMEOUT_MS)
        self._changed = changed
        self._waiting: deque[_Sent] = deque()
        self._in_flight: deque[_Sent] = deque()
        self._queued_bytes = 0
        self._attempt = 0
        """Answers to requests of an earlier attempt are ignored: their batches are sent again."""
        self._failure: Exception | None = None
        self._node_id: int | None = None
        self.acknowledged: int | None = None

    # --- in the caller's thread ---

    def offer(self, batches: Batches) -> None:
        offset = batches.first_offset
        with self._changed:
            for data, messages in batches.data:
                self._waiting.append(_Sent(offset, data, messages))
                self._queued_bytes += len(data)
                offset += messages
        self._continue()

    def has_news(self, limit_bytes: int) -> bool:
        """Return whether `wait_for_room` has something to do or nothing to wait for."""
        return self._failure is not None or self._queued_bytes <= limit_bytes

    def wait_for_room(self, limit_bytes: int) -> None:
        """Wait until at most `limit_bytes` are queued. Sends again after errors that a retry can remove."""
        attempts = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.has_news(limit_bytes), _PATIENCE_SECONDS)
                failure = self._failure
                if failure is None and self._queued_bytes <= limit_bytes:
                    return
                progress = self.acknowledged
            if failure is None:
                failure = kafka_errors.KafkaTimeoutError("no answer from kafka-python's IO thread")
            if not isinstance(failure, kafka_errors.RetriableError):
                raise self._translated(failure)
            logger.info("%s: %s; sending again", self._tp, failure)
            if attempts is None or progress != attempts[1]:
                attempts = self._cluster.attempts(f"{self._tp}: could not produce"), progress
                next(attempts[0])
            next(attempts[0])
            self._send_again()

    def _translated(self, failure: Exception) -> Exception:
        if isinstance(failure, kafka_errors.KafkaError):
            if isinstance(failure, kafka_errors.MessageSizeTooLargeError | kafka_errors.RecordListTooLargeError):
                largest = max(len(sent.batch) for sent in self._in_flight)
                return RestoreStopped(
                    f"{self._tp}: the target refuses a batch of {largest:,} bytes. Set max.message.bytes of the topic "
                    f"to {largest:,} or more, and run the restore again: it continues here"
                )
            return self._cluster.translate(f"{self._tp}: could not produce", failure)
        return failure

    def _send_again(self) -> None:
        """Put what is in flight back, in order, and send it to the current leader."""
        self._cluster.describe_topics([self._tp.topic])
        with self._changed:
            self._attempt += 1
            self._waiting.extendleft(reversed(self._in_flight))
            self._in_flight.clear()
            self._failure = None
            self._node_id = None
        self._continue()

    def _continue(self) -> None:
        if self._node_id is None:
            leader = self._cluster.leader(self._tp)
            if leader is None:
                self._cluster.describe_topics([self._tp.topic])
                leader = self._cluster.leader(self._tp)
            if leader is None:
                with self._changed:
                    self._failure = kafka_errors.LeaderNotAvailableError(str(self._tp))
                return
            self._node_id = leader.node_id
        self._cluster.run_soon(self._on_io_send)

    # --- in the IO thread ---

    def _on_io_send(self) -> None:
        with self._changed:
            while self._failure is None and self._waiting and len(self._in_flight) < _IN_FLIGHT:
                sent = self._waiting.popleft()
                self._in_flight.append(sent)
                attempt = self._attempt
                future = self._cluster.send_on_io(self._node_id, self._requests.request(sent.batch), _TIMEOUT_MS)
                future.add_callback(lambda response, sent=sent, attempt=attempt: self._on_io(sent, attempt, response))
                future.add_errback(lambda error, attempt=attempt: self._on_io_error(attempt, error))

    def _on_io(self, sent: _Sent, attempt: int, answer: ProduceAnswer) -> None:
        error = kafka_errors.for_code(answer.error_code)
        with self._changed:
            if attempt != self._attempt or self._failure is not None:
                return
            if error is kafka_errors.NoError and (self._shares_topic or answer.base_offset == sent.offset):
                self._in_flight.popleft()
                before = self._queued_bytes
                self._queued_bytes -= len(sent.batch)
                self.acknowledged = sent.offset + sent.messages
                # Waking the other thread costs more than the rest of this function, so only where it has news.
                if not self._queued_bytes or self._queued_bytes <= _QUEUED_BYTES < before:
                    self._changed.notify_all()
            else:
                self._failure = self._refusal(error, answer, sent)
                self._changed.notify_all()
        self._on_io_send()

    def _refusal(self, error: Any, answer: ProduceAnswer, sent: _Sent) -> Exception:
        if error is kafka_errors.NoError:
            return RestoreStopped(
                f"{self._tp}: the target appended a batch at offset {answer.base_offset}, not at {sent.offset}: "
                f"another producer writes to the topic. Stop it, delete the topic, and restore it again"
            )
        if error in (kafka_errors.OutOfOrderSequenceNumberError, kafka_errors.DuplicateSequenceNumberError):
            return OutOfSequence(
                f"{self._tp}: the target refuses the batch for offset {sent.offset} ({error.__name__})"
            )
        refusal: Exception = error(answer.error_message or f"{self._tp}")
        return refusal

    def _on_io_error(self, attempt: int, error: BaseException) -> None:
        with self._changed:
            if attempt == self._attempt and self._failure is None:
                self._failure = error if isinstance(error, Exception) else KafkaUnavailable(str(error))
                self._changed.notify_all()
