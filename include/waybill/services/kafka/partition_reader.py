"""Read one topic-partition: send fetch requests to its leader, and return the record batches as bytes.

The batches of a response are framed by their headers, and no record is decoded. The next fetch is in flight while the
caller works on the last one (`FetchSettings.ahead`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from kafka import errors as kafka_errors
from kafka.protocol.consumer import FetchRequest

from waybill.base.errors import LogTruncated, RetentionGap, TopicRecreated
from waybill.config.names import TopicPartition
from waybill.records.batches import framing
from waybill.services.kafka.cluster import Cluster

logger = logging.getLogger(__name__)

_MAX_WAIT_MS = 500
_CONSUMER = -1  # as replica id: this client is not a broker
_UNKNOWN = -1
_NO_SESSION_EPOCH = -1
_FETCH_VERSIONS = (12, 17)  # 12: epochs of the fetched batches (Kafka 2.7); from 13 on: topic ids
_MAX_EMPTY_RESPONSES = 3
"""After this number of empty responses in a row, each after `_MAX_WAIT_MS`, the reader checks why there is no batch."""


@dataclass(frozen=True, slots=True, order=True)
class AbortedTransaction:
    """An aborted transaction: the transactional batches of a producer id from an offset to its abort marker."""

    first_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The whole record batches of one fetch response, in order. Their bytes are not copied, and no CRC is checked."""

    where: str
    """The topic-partition, for errors."""
    data: memoryview
    """The response's record batches; `Frame.position` is a position in it."""
    frames: list[framing.Frame]
    aborted: tuple[AbortedTransaction, ...]
    """The aborted transactions that overlap this chunk, by first offset; empty under `read_uncommitted`."""
    next_offset: int
    """The offset at which the next chunk starts."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The settings for fetches."""

    isolation_level: int
    """Kafka's number: 1 for `read_committed`, 0 for `read_uncommitted`."""
    max_bytes: int
    """The size of a response. Kafka returns the first batch even if it is larger."""
    ahead: bool
    """Whether the next request is sent before the caller has taken the last response."""


class LogBounds(Protocol):
    """The first offset of a log, and its end."""

    @property
    def earliest(self) -> int: ...

    @property
    def end(self) -> int: ...


class LogOffsets(Protocol):
    """Requests of a reader about the log when a fetch returns no batch. `KafkaSource` implements it."""

    def offsets(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        """Return the current bounds of each topic-partition's log."""

    def earliest_local(self, tp: TopicPartition) -> int:
        """Return the first offset on the leader's own disk."""


class PartitionReader:
    """One pass over the offsets `[from_offset, end_offset)` of a topic-partition. See `KafkaSource.read`."""

    def __init__(
        self,
        log: LogOffsets,
        cluster: Cluster,
        settings: FetchSettings,
        tp: TopicPartition,
        from_offset: int,
        end_offset: int,
        *,
        leader_epoch: int,
        topic_id: str,
        first_batch_only: bool,
    ) -> None:
        self._log, self._cluster, self._settings = log, cluster, settings
        self._tp = tp
        self._position = from_offset
        self._end = end_offset
        self._epoch = leader_epoch
        """The leader epoch of the batch before the position."""
        self._topic_id = topic_id
        self._first_batch_only = first_batch_only
        self._pending: Future[Any] | None = None
        """The fetch request that is in flight."""
        self._empty_responses = 0
        self._where = str(tp)

    def chunks(self) -> Iterator[Chunk]:
        attempts = self._attempts()
        while self._position < self._end:
            chunk = self._to_chunk(self._next_response())
            if chunk is None:
                if self._has_no_batch_left():
                    return
                next(attempts)
                continue
            self._position = chunk.next_offset
            attempts = self._attempts()
            self._epoch = chunk.frames[-1].header.leader_epoch
            if self._settings.ahead and not self._first_batch_only and self._position < self._end:
                self._pending = self._send_fetch()
            yield chunk
            if self._first_batch_only:
                return

    def _attempts(self) -> Iterator[None]:
        return self._cluster.attempts(f"{self._where}: could not fetch from offset {self._position}")

    # --- requests and responses ---

    def _send_fetch(self) -> Future[Any] | None:
        """Send a fetch request to the leader. Return None if the topic-partition has no leader at the moment."""
        leader = self._cluster.leader(self._tp)
        if leader is None:
            return None
        max_bytes = 1 if self._first_batch_only else self._settings.max_bytes
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=self._tp.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=self._position,
            last_fetched_epoch=self._epoch,
            log_start_offset=_UNKNOWN,
            partition_max_bytes=max_bytes,
        )
        topic_id = self._topic_id or self._cluster.topic_id(self._tp.topic)
        topic = FetchRequest.FetchTopic(
            topic=self._tp.topic,
            topic_id=uuid.UUID(topic_id) if topic_id else uuid.UUID(int=0),
            partitions=[partition],
        )
        request = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=self._settings.isolation_level,
            session_id=0,
            session_epoch=_NO_SESSION_EPOCH,
            topics=[topic],
            forgotten_topics_data=[],
            rack_id="",
            min_version=_FETCH_VERSIONS[0],
            max_version=_FETCH_VERSIONS[1] if topic_id else _FETCH_VERSIONS[0],
        )
        return self._cluster.send(leader.node_id, request)

    def _next_response(self) -> Any | None:
        """Return the topic-partition's part of the next response; None if it cannot be used and a retry may help."""
        pending, self._pending = self._pending or self._send_fetch(), None
        if pending is None:
            self._refresh_leader()
            return None
        try:
            response = self._cluster.wait(pending)
        except kafka_errors.RetriableError as error:
            logger.info("%s: %s; looking up its leader again", self._where, error)
            self._refresh_leader()
            return None
        except kafka_errors.KafkaError as error:
            raise self._cluster.translate(f"{self._where}: could not fetch", error) from error
        return self._check_response(response)

    def _check_response(self, response: Any) -> Any | None:
        partitions = [partition for topic in response.responses for partition in topic.partitions]
        error = kafka_errors.for_code(response.error_code or (partitions[0].error_code if partitions else 0))
        if error is kafka_errors.OffsetOutOfRangeError:
            self._check_position_is_in_log()
            return None
        if error is not kafka_errors.NoError:
            if not issubclass(error, kafka_errors.RetriableError):
                raise self._cluster.translate(f"{self._where}: could not fetch", error())
            logger.info("%s: %s; looking up its leader again", self._where, error.__name__)
            self._refresh_leader()
            return None
        if not partitions:
            return None
        answer = partitions[0]
        diverging = answer.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            end_offset = min(diverging.end_offset, self._position)
            raise LogTruncated(self._tp.topic, self._tp.partition, self._position, end_offset, diverging.epoch)
        is_empty = not answer.records and not response.throttle_time_ms and self._is_visible_to_end(answer)
        self._empty_responses = self._empty_responses + 1 if is_empty else 0
        return answer

    def _to_chunk(self, answer: Any | None) -> Chunk | None:
        """Return the whole batches of a response; None if it holds none."""
        if answer is None or not answer.records:
            return None
        kept: list[framing.Frame] = []
        for frame in framing.frames(answer.records, where=self._where, allow_partial=True):
            # The first batch of a response may end before the position. A batch at or after the end is left to the next
            # pass.
            if frame.header.next_offset > self._position:
                if frame.header.base_offset >= self._end:
                    break
                kept.append(frame)
        if not kept:
            self._end_if_next_batch_is_beyond(answer)
            return None
        aborted = sorted(AbortedTransaction(t.first_offset, t.producer_id) for t in answer.aborted_transactions or ())
        size = sum(len(frame.data) for frame in kept)
        return Chunk(self._where, memoryview(answer.records), kept, tuple(aborted), kept[-1].header.next_offset, size)

    # --- errors ---

    def _refresh_leader(self) -> None:
        """Look up the leader again. Raises `TopicRecreated` if the topic has another id now."""
        topic = self._cluster.describe_topics([self._tp.topic]).get(self._tp.topic)
        if topic and topic.topic_id and self._topic_id and topic.topic_id != self._topic_id:
            raise TopicRecreated(self._tp.topic, self._tp.partition, self._topic_id, topic.topic_id)

    def _check_position_is_in_log(self) -> None:
        """Check why a broker does not have the position. Returns if the log has it now.

        Raises `RetentionGap` if it lies before the log, `LogTruncated` if it lies after the log.
        """
        self._refresh_leader()
        log_range = self._log.offsets([self._tp])[self._tp]
        if log_range.earliest > self._position:
            raise RetentionGap(self._tp.topic, self._tp.partition, self._position, log_range.earliest)
        if log_range.end < self._position:
            raise LogTruncated(self._tp.topic, self._tp.partition, self._position, log_range.end, self._epoch)

    # --- the end of the log without a batch ---

    def _is_visible_to_end(self, answer: Any) -> bool:
        """Return whether no open transaction and no lagging replica holds back offsets before the end."""
        stable = answer.last_stable_offset if self._settings.isolation_level else _UNKNOWN
        return bool(min(answer.high_watermark, answer.high_watermark if stable < 0 else stable) >= self._end)

    def _has_no_batch_left(self) -> bool:
        """Return whether the log holds no batch from the position on.

        The log cleaner removes the last batches of every segment but the active one (tombstones, aborted transactions),
        and the active segment can be empty, after a crash or a truncation. Kafka then answers with no batch and no
        error below the end of its log (`LocalLog.read`), and a consumer's position stays there, too. A response can
        also be empty because tiered storage is slow. Therefore an empty response is only a proof if the log is on the
        leader's own disk.

        No object is created for these offsets now: they become part of the object of the next batch.
        """
        if self._empty_responses < _MAX_EMPTY_RESPONSES:
            return False
        self._empty_responses = 0
        if self._log.earliest_local(self._tp) > self._position:
            return False
        logger.info(
            "%s: the log holds no batch from offset %d on, up to its end %d", self._where, self._position, self._end
        )
        return True

    def _end_if_next_batch_is_beyond(self, answer: Any) -> None:
        """End the pass if the next batch starts at or after the end: compaction removed everything before."""
        frame = next(framing.frames(answer.records, where=self._where, allow_partial=True), None)
        if frame is not None and frame.header.base_offset >= self._end:
            self._end = self._position
