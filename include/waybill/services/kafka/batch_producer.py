"""Send record batches to the leaders of topic-partitions, exactly once.

A batch is sent unchanged, with the producer id, epoch and sequence number in its header (KIP-98). The leader appends a
batch only if its sequence number follows the last one of this producer id in the topic-partition. If a batch is one of
the last five that it has, it answers with the offset of the first append, and refuses every other batch as out of
sequence.

The sequence number is the position of the message among all sent messages, so the leader applies the same rule to
retries, zombies and rivals with the same producer id: the first batch for a position is appended
(docs/decisions/0026-restore.md).

The leader forgets a producer id that has sent nothing for `producer.id.expiration.ms` (default: a day), and then
accepts any sequence number. So a process that was frozen or suspended for hours must read the end of the log again
before it sends: `BatchProducer.begin` states when the end was read, and a batch that is sent more than `_KNOWN_SECONDS`
after that time and after the last acknowledgement raises `OutOfSequence`. A target whose `producer.id.expiration.ms` is
less has no such protection against a frozen process.

All work is done in the caller's thread, within the calls of `BatchProducer`.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafka import errors as kafka_errors
from kafka.protocol.producer import InitProducerIdRequest

from waybill.base.errors import RestoreStopped
from waybill.config.names import TopicPartition
from waybill.records.batches.produced import Producer
from waybill.services.kafka.cluster import CLIENT_ID, Cluster
from waybill.services.kafka.leader_connection import LeaderConnection
from waybill.services.kafka.produce_request import PartitionRequests, ProduceAnswer

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000
_PATIENCE_SECONDS = 60.0
_IN_FLIGHT = 5
"""The batches of one topic-partition that are sent and not acknowledged: the leader recognizes as many as repeated."""
_NO_TRANSACTION_TIMEOUT = 2_147_483_647  # as Kafka's producer sends it without a transactional id
_QUEUED_BYTES = 1 << 20
"""How many bytes a topic-partition may hold in memory before `wait_for_room` waits."""
_KNOWN_SECONDS = 6 * 3600
"""How long the leader certainly remembers the producer id, after an acknowledgement or a read of the log's end."""
_REFUSALS = (
    kafka_errors.InvalidRecordError,
    kafka_errors.InvalidTimestampError,
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.UnsupportedCompressionTypeError,
    kafka_errors.UnsupportedForMessageFormatError,
)
_LOOK_SECONDS, _LOOK_SOON_SECONDS = 1.0, 0.02
"""The interval in which every connection is checked: for timeouts, and while a connection is made or delayed."""


class OutOfSequence(Exception):
    """The leader has other batches of this producer id: another process sends them, or the log was truncated."""


class BatchRefused(RestoreStopped):
    """The leader refuses a batch because of its content: its size, its codec, a timestamp, a message without a key.

    A retry does not help, but a change of the topic's configs does.
    """

    def __init__(self, tp: TopicPartition, error: type[Exception], answer: ProduceAnswer, sent: _Sent) -> None:
        self.tp = tp
        self.error = error
        """kafka-python's class for the leader's error code."""
        self.leader_message = answer.error_message or ""
        """What the leader says; '' if it says nothing."""
        self.offset = sent.offset
        """As in `Batches.first_offset`: where the batch's first message was to go."""
        self.batch = sent.batch
        self.messages = sent.messages
        self.refused_record = answer.refused_record
        """The position in the batch of the message that the leader refused; None if it named none."""
        super().__init__(f"{tp}: the target refuses a batch of {len(sent.batch):,} bytes: {self.reason}")

    @property
    def reason(self) -> str:
        """The error's name, and the leader's message."""
        return f"{self.error.__name__}: {self.leader_message}" if self.leader_message else self.error.__name__


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
    """Sends record batches to a cluster. Use it from one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.shares_topics = False
        """Whether others write to the topics, so that the offsets of appended batches cannot be known."""
        self._connections = _Connections(cluster)
        self._partitions: dict[TopicPartition, _PartitionQueue] = {}

    def new_producer(self) -> Producer:
        """Return a new producer id, and its epoch.

        Raises `KafkaUnavailable`, or `ConfigError` when the user is not allowed to write to any topic.
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

    def close(self) -> None:
        """Close the connections. Batches in flight may still be appended."""
        self._connections.close()
        self._partitions.clear()

    def begin(self, tp: TopicPartition) -> None:
        """Drop the queue of a topic-partition, before the caller reads the end of its log."""
        self._partitions[tp] = _PartitionQueue(self._cluster, self._connections, tp, shares_topic=self.shares_topics)

    def send(self, tp: TopicPartition, batches: Batches) -> None:
        """Queue batches after those of earlier calls, and return at once. Call `wait_for_room` before the next call."""
        if tp not in self._partitions:
            self.begin(tp)
        self._partitions[tp].offer(batches)

    def acknowledged(self, tp: TopicPartition) -> int | None:
        """Return the target offset up to which all in-sync replicas have the batches; None if none was sent."""
        queue = self._partitions.get(tp)
        return None if queue is None else queue.acknowledged

    def wait_for_room(self, tps: Collection[TopicPartition]) -> TopicPartition:
        """Wait until one of the topic-partitions has room for more batches, and return it.

        A topic-partition that has failed is returned too: `check` raises its error.
        """
        queues = {tp: self._partitions.get(tp) for tp in tps}
        deadline = time.monotonic() + _PATIENCE_SECONDS
        self._connections.exchange(0)
        while True:
            for tp, queue in queues.items():
                if queue is None or queue.has_news(_QUEUED_BYTES):
                    return tp
            if time.monotonic() > deadline:
                return next(iter(tps))
            self._connections.exchange(_LOOK_SECONDS)

    def check(self, tp: TopicPartition, *, flush: bool = False) -> None:
        """Send failed batches again if they may succeed now. With `flush`, wait until everything sent is acknowledged.

        Raises `OutOfSequence`; `RestoreStopped` when the leader appended a batch at another offset, so another producer
        writes to the topic; its subclass `BatchRefused`; `KafkaUnavailable` after the retry timeout; `ConfigError`.
        """
        queue = self._partitions.get(tp)
        if queue is not None:
            queue.wait_for_room(0 if flush else _QUEUED_BYTES)

    def forget(self, tp: TopicPartition) -> None:
        """Drop the queue of a topic-partition, after an error. Batches in flight may still be appended."""
        self._partitions.pop(tp, None)


class _Connections:
    """The connections to the leaders."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_node: dict[int, LeaderConnection] = {}
        self._look_at = 0.0

    def to(self, node_id: int) -> LeaderConnection:
        """Return a connection to a broker, which may not be established yet."""
        found = self._by_node.get(node_id)
        if found is not None and found.is_idle:
            found.exchange()  # the broker may have closed it
        if found is None or found.error is not None:
            found = LeaderConnection(self._cluster.open_socket(node_id), _TIMEOUT_MS / 1000)
            self._by_node[node_id] = found
            self._look_at = 0.0
        return found

    def exchange(self, wait_seconds: float) -> None:
        """Wait until a broker answers or can take more bytes, `wait_seconds` at most; then receive and send."""
        sockets = select.poll()
        by_number: dict[int, LeaderConnection] = {}
        look_seconds = _LOOK_SECONDS
        for connection in self._by_node.values():
            if connection.is_delayed:
                look_seconds = _LOOK_SOON_SECONDS
            if connection.sock is not None:
                number = connection.sock.fileno()
                by_number[number] = connection
                sockets.register(number, select.POLLIN | (select.POLLOUT if connection.wants_to_send else 0))
        ready = sockets.poll(1000 * min(wait_seconds, look_seconds))
        chosen: Collection[LeaderConnection] = [by_number[number] for number, _ in ready]
        now = time.monotonic()
        if now >= min(self._look_at, now + look_seconds):
            self._look_at = now + look_seconds
            chosen = list(self._by_node.values())
        for connection in chosen:
            connection.exchange()
        if any(connection.error is not None for connection in chosen):
            self._by_node = {node_id: each for node_id, each in self._by_node.items() if each.error is None}

    def close(self) -> None:
        for connection in self._by_node.values():
            connection.end(kafka_errors.KafkaConnectionError("closed"))
        self._by_node.clear()


class _Sent(NamedTuple):
    offset: int
    batch: bytes
    messages: int


class _PartitionQueue:
    """The batches of one topic-partition that are not acknowledged, in order."""

    def __init__(self, cluster: Cluster, connections: _Connections, tp: TopicPartition, *, shares_topic: bool) -> None:
        self._cluster, self._connections, self._tp, self._shares_topic = cluster, connections, tp, shares_topic
        self._requests = PartitionRequests(tp.topic, tp.partition, _TIMEOUT_MS, CLIENT_ID)
        self._waiting: deque[_Sent] = deque()
        self._in_flight: deque[_Sent] = deque()
        self._queued_bytes = 0
        self._attempt = 0
        """Answers to requests of an earlier attempt are ignored: their batches are sent again."""
        self._failure: Exception | None = None
        self._node_id: int | None = None
        self._known_at = _time_since_boot()
        """When the leader was last known to know the producer id, or the end of the log was read."""
        self.acknowledged: int | None = None

    def offer(self, batches: Batches) -> None:
        offset = batches.first_offset
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
            while not self.has_news(limit_bytes):
                self._connections.exchange(_LOOK_SECONDS)
            failure, progress = self._failure, self.acknowledged
            if failure is None:
                return
            if not isinstance(failure, kafka_errors.RetriableError):
                raise self._translated(failure)
            logger.info("%s: %s; sending again", self._tp, failure)
            if attempts is None or progress != attempts[1]:
                attempts = self._cluster.attempts(f"{self._tp}: could not produce ({_named(failure)})"), progress
                next(attempts[0])
            next(attempts[0])
            self._send_again()

    def _translated(self, failure: Exception) -> Exception:
        if isinstance(failure, kafka_errors.KafkaError):
            return self._cluster.translate(f"{self._tp}: could not produce", failure)
        return failure

    def _send_again(self) -> None:
        """Put batches in flight back into the queue, in order, and send them to the current leader."""
        self._cluster.describe_topics([self._tp.topic])
        self._attempt += 1
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        self._failure = None
        self._node_id = None
        self._continue()

    def _continue(self) -> None:
        if self._failure is not None:
            return
        if self._node_id is None:
            leader = self._cluster.leader(self._tp)
            if leader is None:
                self._cluster.describe_topics([self._tp.topic])
                leader = self._cluster.leader(self._tp)
            if leader is None:
                self._failure = kafka_errors.LeaderNotAvailableError(str(self._tp))
                return
            self._node_id = leader.node_id
        connection = self._connections.to(self._node_id)
        self._give(connection)
        connection.exchange()

    def _give(self, connection: LeaderConnection) -> None:
        """Add as many batches to the connection as may be in flight."""
        while self._failure is None and self._waiting and len(self._in_flight) < _IN_FLIGHT:
            if _time_since_boot() - self._known_at > _KNOWN_SECONDS:
                self._failure = OutOfSequence(
                    f"{self._tp}: the target has acknowledged nothing for {_KNOWN_SECONDS // 3600} h, and may not know "
                    f"the producer id any more"
                )
                return
            sent = self._waiting.popleft()
            self._in_flight.append(sent)
            on_answer = partial(self._on_answer, connection, sent, self._attempt)
            connection.add(self._requests, sent.batch, on_answer, partial(self._on_error, self._attempt))

    def _on_answer(self, connection: LeaderConnection, sent: _Sent, attempt: int, answer: ProduceAnswer) -> None:
        if attempt != self._attempt or self._failure is not None:
            return
        if not answer.error_code and (self._shares_topic or answer.base_offset == sent.offset):
            self._in_flight.popleft()
            self._queued_bytes -= len(sent.batch)
            self.acknowledged = sent.offset + sent.messages
            self._known_at = _time_since_boot()
            self._give(connection)
        else:
            self._failure = self._refusal(kafka_errors.for_code(answer.error_code), answer, sent)

    def _on_error(self, attempt: int, error: Exception) -> None:
        if attempt == self._attempt and self._failure is None:
            self._failure = error

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
        if error in _REFUSALS:
            return BatchRefused(self._tp, error, answer, sent)
        refusal: Exception = error(answer.error_message or f"{self._tp}")
        return refusal


def _named(failure: Exception) -> str:
    """Return an error's name and its text; kafka-python's text may already begin with the name."""
    name, text = type(failure).__name__, str(failure)
    if isinstance(failure, kafka_errors.NotEnoughReplicasError | kafka_errors.NotEnoughReplicasAfterAppendError):
        return f"{name}: fewer replicas are in sync than the topic's min.insync.replicas"
    return text if text.startswith(name) or not text else f"{name}: {text}"


def _time_since_boot() -> float:
    """Return the seconds since boot.

    Unlike the monotonic clock, they include the time while the machine is suspended.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
