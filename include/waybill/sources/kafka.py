"""Kafka: record batches as they lie in the log, byte for byte.

A fetch response is taken as bytes: its batches are framed by their headers, and no record is looked at. The next fetch
is in flight while the caller works on the last one (`fetch_ahead`).

What this relies on: brokers hand out only what lies below the high watermark (or the last stable offset), so what was
read once does not change unless an unclean leader election takes it back. That is asked for with every fetch: it names
the topic's id (KIP-516), the leader epoch (KIP-320) and the epoch of the batch before; a broker whose log is another
one refuses it, and the caller gets `TopicRecreated` or `LogTruncated` instead of data.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, NoReturn, Self

from kafka import errors as kafka_errors
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest

from waybill.config import IsolationLevel, Stream
from waybill.connections import KafkaEndpoint
from waybill.errors import KafkaUnavailable, LogTruncated, RetentionGap, TopicRecreated
from waybill.names import TopicPartition
from waybill.records import framing
from waybill.sources import groups
from waybill.sources.cluster import Cluster, Topic

__all__ = ["FETCH_BYTES", "AbortedTransaction", "Chunk", "EpochEnd", "KafkaSource", "LogRange", "Sight"]

logger = logging.getLogger(__name__)

FETCH_BYTES = 8 << 20
"""How much one fetch asks for. A batch larger than this is fetched all the same."""

_MAX_WAIT_MS = 500
_REQUEST_TIMEOUT = timedelta(seconds=10)
_PATIENCE = timedelta(seconds=30)
_CONSUMER = -1  # as replica id: whoever asks is no broker
_NO_SESSION_EPOCH = -1
_FETCH_VERSIONS = (12, 17)  # 12: epochs of the batches fetched (Kafka 2.7); 13 and later: topic ids
_UNKNOWN = -1
_EMPTY_ANSWERS = 3
"""So many in a row, each after `_MAX_WAIT_MS`, until it is asked why there is nothing."""


class _OffsetSpec(IntEnum):
    LATEST = -1
    EARLIEST = -2
    EARLIEST_LOCAL = -4


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets that a topic-partition holds now: `[earliest, end)`."""

    earliest: int
    end: int
    """The last stable offset under `read_committed`, else the high watermark."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What Kafka said of a topic-partition at one moment."""

    topic: Topic
    held: LogRange


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where a leader epoch ends: `end_offset` is -1 if Kafka knows of no such epoch."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, order=True)
class AbortedTransaction:
    """A transaction that was aborted: the transactional batches of this producer id from this offset on."""

    first_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The whole batches of one fetch response, in order. Their bytes are not copied and not yet checked."""

    where: str
    """The topic-partition, for errors."""
    data: memoryview
    """The response's records; the frames' positions are positions in it."""
    frames: list[framing.Frame]
    aborted: tuple[AbortedTransaction, ...]
    """Those that overlap this chunk, by first offset; empty under `read_uncommitted`."""
    next_offset: int
    """Where the next chunk starts."""
    size_bytes: int


class KafkaSource:
    """Record batches out of a Kafka cluster. A context manager: it connects on entry. For one thread.

    Every method raises `KafkaUnavailable` when answers stay away for `patience`, and `ConfigError` when Kafka refuses
    access or is too old.
    """

    def __init__(
        self,
        endpoint: KafkaEndpoint,
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
        *,
        fetch_bytes: int = FETCH_BYTES,
        fetch_ahead: bool = True,
        request_timeout: timedelta = _REQUEST_TIMEOUT,
        patience: timedelta = _PATIENCE,
    ) -> None:
        self._isolation = 1 if isolation_level is IsolationLevel.READ_COMMITTED else 0
        self._fetch_bytes = fetch_bytes
        self._fetch_ahead = fetch_ahead
        self._cluster = Cluster(endpoint, request_timeout=request_timeout, patience=patience)

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    # --- what there is ---

    def topics(self) -> list[str]:
        """All topics, sorted, internal ones included."""
        return sorted(self._cluster.describe(None))

    def topic_partitions(self, stream: Stream) -> list[TopicPartition]:
        """The topic-partitions of a stream as they are now, sorted. A topic that does not exist is logged."""
        listed = stream.topics if isinstance(stream.topics, tuple) else None
        found = self._cluster.describe(listed)
        for topic in sorted(set(listed or ()) - found.keys()):
            logger.warning("topic %s does not exist in Kafka at %s", topic, self._cluster.servers)
        matching = (topic for name, topic in sorted(found.items()) if stream.matches(name))
        return [TopicPartition(topic.name, number) for topic in matching for number in topic.partitions]

    def topic(self, name: str) -> Topic:
        """A topic as it is now. Raises `KafkaUnavailable` if it does not exist."""
        found = self._cluster.describe([name]).get(name)
        if found is None:
            raise KafkaUnavailable(f"Kafka at {self._cluster.servers}: there is no topic {name!r}")
        return found

    def offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """What each topic-partition holds now."""
        tps = list(tps)
        # The end first: the earliest offset may grow in between, and must not be less than it is.
        ends = self._list_offsets(tps, _OffsetSpec.LATEST)
        earliest = self._list_offsets(tps, _OffsetSpec.EARLIEST)
        return {tp: LogRange(earliest[tp], max(ends[tp], earliest[tp])) for tp in tps}

    def offsets_briefly(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """`offsets`, without the topic-partitions whose leaders do not answer soon."""
        ends = self._list_offsets(list(tps), _OffsetSpec.LATEST, briefly=True)
        earliest = self._list_offsets(list(ends), _OffsetSpec.EARLIEST, briefly=True)
        return {tp: LogRange(start, max(ends[tp], start)) for tp, start in earliest.items()}

    def look(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, Sight]:
        """What there is to know of many topic-partitions, in a few requests; without those that do not answer soon."""
        topics = self._cluster.describe({tp.topic for tp in tps})
        led = [tp for tp in tps if tp.topic in topics and self._cluster.leader(tp) is not None]
        return {tp: Sight(topics[tp.topic], held) for tp, held in self.offsets_briefly(led).items()}

    def earliest_local(self, tp: TopicPartition) -> int:
        """The first offset on the leader's own disk; what lies before may be in tiered storage (KIP-405)."""
        return self._list_offsets([tp], _OffsetSpec.EARLIEST_LOCAL)[tp]

    def offset_at(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is that or later; None if there is none."""
        found = self._list_offsets([tp], timestamp_ms)[tp]
        return None if found < 0 else found

    def _list_offsets(
        self, tps: list[TopicPartition], timestamp: int, *, briefly: bool = False
    ) -> dict[TopicPartition, int]:
        def request(group: list[TopicPartition]) -> Any:
            partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
            topics = _by_topic(
                group,
                lambda tp: partition(
                    partition_index=tp.partition, current_leader_epoch=_UNKNOWN, timestamp=int(timestamp)
                ),
            )
            return ListOffsetsRequest(
                replica_id=_CONSUMER, isolation_level=self._isolation, topics=topics, min_version=4, max_version=8
            )

        def read(response: Any) -> Iterator[tuple[TopicPartition, int, int]]:
            for topic in response.topics:
                for answer in topic.partitions:
                    yield TopicPartition(topic.name, answer.partition_index), answer.error_code, answer.offset

        ask = self._cluster.ask_leaders_briefly if briefly else self._cluster.ask_leaders
        return ask("could not list offsets", tps, request, read)

    def epoch_end(self, tp: TopicPartition, leader_epoch: int) -> EpochEnd:
        """Where the log of that leader epoch (or of the last one before it) ends, as its leader knows it (KIP-320)."""

        def request(group: list[TopicPartition]) -> Any:
            partition = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition
            topics = _by_topic(
                group,
                lambda tp: partition(partition=tp.partition, current_leader_epoch=_UNKNOWN, leader_epoch=leader_epoch),
            )
            return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)

        def read(response: Any) -> Iterator[tuple[TopicPartition, int, EpochEnd]]:
            for topic in response.topics:
                for answer in topic.partitions:
                    yield (
                        TopicPartition(topic.topic, answer.partition),
                        answer.error_code,
                        EpochEnd(answer.leader_epoch, answer.end_offset),
                    )

        return self._cluster.ask_leaders("could not look up a leader epoch", [tp], request, read)[tp]

    def commit_to_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Show progress as a consumer group's offsets; see `groups.commit_offsets`."""
        groups.commit_offsets(self._cluster, group, offsets)

    def group_offsets(self, group: str, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of a consumer group, where it has some; see `groups.fetch_offsets`."""
        return groups.fetch_offsets(self._cluster, group, tps)

    # --- reading ---

    def read(
        self,
        tp: TopicPartition,
        from_offset: int,
        end_offset: int,
        *,
        leader_epoch: int = -1,
        topic_id: str = "",
        first_batch_only: bool = False,
    ) -> Generator[Chunk, None, None]:
        """The batches of `[from_offset, end_offset)`, response by response; the first batch may start earlier.

        `leader_epoch` is that of the batch before `from_offset`, `topic_id` the topic's: with them Kafka refuses to go
        on in a log that is not the same one. With `first_batch_only` a chunk of (nearly always) one batch is all.

        Raises `RetentionGap` or `LogTruncated` when the next offset is not in the log, `TopicRecreated` when the topic
        is another one.
        """
        yield from _Reader(self, tp, from_offset, end_offset, leader_epoch, topic_id, first_batch_only).chunks()

    def _fetch(self, reader: _Reader) -> Future[Any] | None:
        """Send a fetch request to the leader; None if there is none for now."""
        leader = self._cluster.leader(reader.tp)
        if leader is None:
            return None
        wanted = 1 if reader.first_batch_only else self._fetch_bytes
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=reader.tp.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=reader.position,
            last_fetched_epoch=reader.epoch,
            log_start_offset=_UNKNOWN,
            partition_max_bytes=wanted,
        )
        topic_id = reader.topic_id or self._cluster.topic_id(reader.tp.topic)
        topic = FetchRequest.FetchTopic(
            topic=reader.tp.topic,
            topic_id=uuid.UUID(topic_id) if topic_id else uuid.UUID(int=0),
            partitions=[partition],
        )
        request = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=wanted,
            isolation_level=self._isolation,
            session_id=0,
            session_epoch=_NO_SESSION_EPOCH,
            topics=[topic],
            forgotten_topics_data=[],
            rack_id="",
            min_version=_FETCH_VERSIONS[0],
            max_version=_FETCH_VERSIONS[1] if topic_id else _FETCH_VERSIONS[0],
        )
        return self._cluster.send(leader.node_id, request)

    # --- what went wrong ---

    def _refresh(self, reader: _Reader) -> None:
        """Look the leader up again. Raises `TopicRecreated` if the topic is another one by now."""
        found = self._cluster.describe([reader.tp.topic]).get(reader.tp.topic)
        if found and found.topic_id and reader.topic_id and found.topic_id != reader.topic_id:
            raise TopicRecreated(reader.tp.topic, reader.tp.partition, reader.topic_id, found.topic_id)

    def _raise_out_of_range(self, reader: _Reader) -> None:
        """The broker has no such offset: find out which end of the log it lies beyond. Returns if it lies within."""
        self._refresh(reader)
        held = self.offsets([reader.tp])[reader.tp]
        if held.earliest > reader.position:
            raise RetentionGap(reader.tp.topic, reader.tp.partition, reader.position, held.earliest)
        if held.end < reader.position:
            raise LogTruncated(reader.tp.topic, reader.tp.partition, reader.position, held.end, reader.epoch)

    def _raise_diverged(self, reader: _Reader, epoch: int, end_offset: int) -> NoReturn:
        end_offset = min(end_offset, reader.position)
        raise LogTruncated(reader.tp.topic, reader.tp.partition, reader.position, end_offset, epoch)


class _Reader:
    """One pass over a topic-partition: where it stands, and the one fetch that is in flight."""

    def __init__(
        self,
        source: KafkaSource,
        tp: TopicPartition,
        from_offset: int,
        end_offset: int,
        leader_epoch: int,
        topic_id: str,
        first_batch_only: bool,
    ) -> None:
        self.tp = tp
        self.position = from_offset
        self.epoch = leader_epoch
        self.topic_id = topic_id
        self.first_batch_only = first_batch_only
        self._source = source
        self._end = end_offset
        self._pending: Future[Any] | None = None
        self._empty_answers = 0
        self._where = str(tp)

    def chunks(self) -> Iterator[Chunk]:
        """See `KafkaSource.read`."""
        tries = self._tries()
        while self.position < self._end:
            chunk = self._chunk(self._answer())
            if chunk is None:
                if self._is_end_empty():
                    return
                next(tries)
                continue
            self.position = chunk.next_offset
            tries = self._tries()
            self.epoch = chunk.frames[-1].header.leader_epoch
            if self._source._fetch_ahead and not self.first_batch_only and self.position < self._end:
                self._pending = self._source._fetch(self)
            yield chunk
            if self.first_batch_only:
                return

    def _tries(self) -> Iterator[None]:
        return self._source._cluster.tries(f"{self._where}: could not fetch from offset {self.position}")

    def _answer(self) -> Any | None:
        """The partition's part of the next response; None if there is none of use."""
        pending, self._pending = self._pending or self._source._fetch(self), None
        if pending is None:
            self._source._refresh(self)
            return None
        try:
            response = self._source._cluster.response(pending)
        except kafka_errors.RetriableError as error:
            logger.info("%s: %s; asking for its leader again", self._where, error)
            self._source._refresh(self)
            return None
        except kafka_errors.KafkaError as error:
            raise self._source._cluster.failure(f"{self._where}: could not fetch", error) from error
        return self._checked(response)

    def _checked(self, response: Any) -> Any | None:
        code = response.error_code or (response.responses[0].partitions[0].error_code if response.responses else 0)
        error = kafka_errors.for_code(code)
        if error is kafka_errors.OffsetOutOfRangeError:
            self._source._raise_out_of_range(self)
            return None
        if error is not kafka_errors.NoError:
            if not issubclass(error, kafka_errors.RetriableError):
                raise self._source._cluster.failure(f"{self._where}: could not fetch", error())
            logger.info("%s: %s; asking for its leader again", self._where, error.__name__)
            self._source._refresh(self)
            return None
        if not response.responses:
            return None
        answer = response.responses[0].partitions[0]
        if answer.diverging_epoch is not None and answer.diverging_epoch.end_offset >= 0:
            self._source._raise_diverged(self, answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
        is_empty = not answer.records and not response.throttle_time_ms and self._is_visible_to_end(answer)
        self._empty_answers = self._empty_answers + 1 if is_empty else 0
        return answer

    def _is_visible_to_end(self, answer: Any) -> bool:
        """Whether nothing below the end is held back, by an open transaction or by replicas that lag."""
        stable = answer.last_stable_offset if self._source._isolation else _UNKNOWN
        return bool(min(answer.high_watermark, answer.high_watermark if stable < 0 else stable) >= self._end)

    def _is_end_empty(self) -> bool:
        """Whether the log holds no batch from the position on.

        The log cleaner removes the last batches of all but the active segment (tombstones, aborted transactions), and
        the active one can be empty, after a crash or a truncation: Kafka then answers with nothing below its own end,
        without an error (`LocalLog.read`), and so does every consumer's position stay. What is in tiered storage can
        come to nothing as well, when it is slow; so an answer counts only where the log is on the leader's own disk.

        Nothing is archived for these offsets: the next batch that comes is archived with them.
        """
        if self._empty_answers < _EMPTY_ANSWERS:
            return False
        self._empty_answers = 0
        if self._source.earliest_local(self.tp) > self.position:
            return False
        logger.info(
            "%s: the log holds no batch from offset %d on, up to its end %d", self._where, self.position, self._end
        )
        return True

    def _chunk(self, answer: Any | None) -> Chunk | None:
        """The whole batches of an answer; None if there is none."""
        if answer is None or not answer.records:
            return None
        kept: list[framing.Frame] = []
        for frame in framing.frames(answer.records, where=self._where, allow_partial=True):
            # A batch that ends before the position can come first; one from the end on is left for the next run.
            if frame.header.next_offset > self.position:
                if frame.header.base_offset >= self._end:
                    break
                kept.append(frame)
        if not kept:
            self._end_if_nothing_left(answer)
            return None
        aborted = sorted(AbortedTransaction(t.first_offset, t.producer_id) for t in answer.aborted_transactions or ())
        size = sum(len(frame.data) for frame in kept)
        return Chunk(self._where, memoryview(answer.records), kept, tuple(aborted), kept[-1].header.next_offset, size)

    def _end_if_nothing_left(self, answer: Any) -> None:
        """End if the next batch starts beyond the end: compaction left nothing in between."""
        frame = next(framing.frames(answer.records, where=self._where, allow_partial=True), None)
        if frame is not None and frame.header.base_offset >= self._end:
            self._end = self.position


def _by_topic(tps: list[TopicPartition], partition: Callable[[TopicPartition], Any]) -> list[tuple[str, list[Any]]]:
    topics: dict[str, list[Any]] = {}
    for tp in tps:
        topics.setdefault(tp.topic, []).append(partition(tp))
    return list(topics.items())
