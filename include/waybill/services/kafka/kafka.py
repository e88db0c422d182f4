"""Kafka as a source: the offsets of topic-partitions, and their record batches byte for byte.

What this relies on: brokers return only offsets below the high watermark (or the last stable offset), so messages that
were read do not change unless an unclean leader election takes them back. Every fetch checks this: it names the topic's
id (KIP-516), the leader epoch (KIP-320) and the epoch of the batch before. A broker with another log refuses the fetch,
and the caller gets `TopicRecreated` or `LogTruncated` instead of data.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Self

from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from waybill.base.errors import ConfigError, KafkaUnavailable, WaybillError
from waybill.config.connections import KafkaEndpoint
from waybill.config.models import IsolationLevel, Stream
from waybill.config.names import TopicPartition
from waybill.services.kafka import consumer_groups
from waybill.services.kafka.cluster import Cluster, Topic
from waybill.services.kafka.partition_reader import Chunk, FetchSettings, PartitionReader
from waybill.services.kafka.topic_configs import TopicRetention, fetch_own_configs, fetch_retention

logger = logging.getLogger(__name__)

FETCH_BYTES = 8 << 20
"""The size of a fetch response. Kafka returns the first batch even if it is larger."""

_REQUEST_TIMEOUT = timedelta(seconds=10)
_RETRY_TIMEOUT = timedelta(seconds=30)
_CONSUMER = -1  # as replica id: this client is not a broker
_UNKNOWN = -1


class _OffsetSpec(IntEnum):
    """Kafka's timestamps with a special meaning in ListOffsets requests."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets that the log of a topic-partition holds: `[earliest, end)`."""

    earliest: int
    end: int
    """The last stable offset under `read_committed`, else the high watermark."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A topic-partition as Kafka described it at one moment."""

    topic: Topic
    log_range: LogRange


@dataclass(frozen=True, slots=True)
class StreamTopics:
    """The topics of one stream, as Kafka described them at one moment."""

    topics: Mapping[str, Topic]
    missing: tuple[str, ...]
    """Topics that the config lists and Kafka does not have."""
    refused: Mapping[str, WaybillError]
    """Topics that the user is not allowed to describe, or Kinesis streams that do not answer, and the error of each."""

    @property
    def tps(self) -> list[TopicPartition]:
        """Return the topic-partitions, sorted."""
        return [TopicPartition(name, number) for name in sorted(self.topics) for number in self.topics[name].partitions]


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The end of a leader epoch's log. `end_offset` is -1 if Kafka does not know the epoch."""

    leader_epoch: int
    end_offset: int


class KafkaSource:
    """A connection to a Kafka cluster. A context manager: it connects on entry. Use it from one thread.

    Every method raises `KafkaUnavailable` when it gets no usable answer until `retry_timeout`, and `ConfigError` when
    Kafka refuses access or is too old.
    """

    def __init__(
        self,
        endpoint: KafkaEndpoint,
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
        *,
        fetch_bytes: int = FETCH_BYTES,
        fetch_ahead: bool = True,
        request_timeout: timedelta = _REQUEST_TIMEOUT,
        retry_timeout: timedelta = _RETRY_TIMEOUT,
    ) -> None:
        self._isolation_level = 1 if isolation_level is IsolationLevel.READ_COMMITTED else 0
        self._fetch_bytes = fetch_bytes
        self._fetch_ahead = fetch_ahead
        self._cluster = Cluster(endpoint, request_timeout=request_timeout, retry_timeout=retry_timeout)

    @classmethod
    def sharing(cls, cluster: Cluster, isolation_level: IsolationLevel) -> Self:
        """Return a source that uses the connections of `cluster`, which its owner closes."""
        source = cls.__new__(cls)
        source._isolation_level = 1 if isolation_level is IsolationLevel.READ_COMMITTED else 0
        source._fetch_bytes, source._fetch_ahead = FETCH_BYTES, True
        source._cluster = cluster
        return source

    def with_settings(
        self, isolation_level: IsolationLevel, *, fetch_bytes: int = FETCH_BYTES, fetch_ahead: bool = True
    ) -> Self:
        """Return a source with other settings that uses the connections of this one. Close only this one."""
        source = copy.copy(self)
        source._isolation_level = 1 if isolation_level is IsolationLevel.READ_COMMITTED else 0
        source._fetch_bytes, source._fetch_ahead = fetch_bytes, fetch_ahead
        return source

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    @property
    def cluster(self) -> Cluster:
        """The connections, for requests that this class does not have."""
        return self._cluster

    # --- topics and offsets ---

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted, including Kafka's internal ones."""
        return sorted(self._cluster.describe_topics(None))

    def topic_partitions(self, stream: Stream) -> list[TopicPartition]:
        """Return the current topic-partitions of a stream, sorted. Logs a warning for a topic that does not exist."""
        topics = self.describe_streams({"": stream})[""]
        if topics.refused:
            raise next(iter(topics.refused.values()))
        for topic in topics.missing:
            logger.warning("topic %s does not exist in Kafka at %s", topic, self._cluster.servers)
        return topics.tps

    def describe_streams(self, streams: Mapping[str, Stream]) -> dict[str, StreamTopics]:
        """Return the current topics of several streams, by stream, with one metadata request.

        Raises `KafkaUnavailable` when no broker answers.
        """
        wanted: set[str] | None = set()
        for stream in streams.values():
            wanted = None if wanted is None or not isinstance(stream.topics, tuple) else wanted | set(stream.topics)
        refused: dict[str, ConfigError] = {}
        existing = self._cluster.describe_topics(wanted, refused=refused)
        by_name = sorted(existing.items())
        found = {}
        for name, stream in streams.items():
            listed = stream.topics if isinstance(stream.topics, tuple) else ()
            matching = [(each, existing[each]) for each in sorted(listed) if each in existing] if listed else by_name
            found[name] = StreamTopics(
                topics={each: topic for each, topic in matching if stream.matches(each)},
                missing=tuple(sorted(set(listed) - existing.keys() - refused.keys())),
                refused={topic: error for topic, error in refused.items() if stream.matches(topic)},
            )
        return found

    def topic(self, name: str) -> Topic:
        """Return a topic's current description. Raises `KafkaUnavailable` if it does not exist."""
        topic = self._cluster.describe_topics([name]).get(name)
        if topic is None:
            raise KafkaUnavailable(f"Kafka at {self._cluster.servers}: there is no topic {name!r}")
        return topic

    def offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the current log range of each topic-partition."""
        tps = list(tps)
        # The end first: retention may raise the earliest offset between the requests, which must not be reported too
        # low.
        ends = self._list_offsets(tps, _OffsetSpec.LATEST)
        earliest = self._list_offsets(tps, _OffsetSpec.EARLIEST)
        return {tp: LogRange(earliest[tp], max(ends[tp], earliest[tp])) for tp in tps}

    def ends_briefly(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each topic-partition's log, without those whose leader does not answer within seconds."""
        return self._list_offsets(list(tps), _OffsetSpec.LATEST, briefly=True)

    def newest_timestamps_briefly(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the message with the largest timestamp of each topic-partition: its offset, and the time (epoch ms).

        Without topic-partitions that are empty, and those whose leader does not answer within seconds.
        """
        found = self._list_offsets_and_times(list(tps), _OffsetSpec.MAX_TIMESTAMP, briefly=True)
        return {tp: (offset, time_ms) for tp, (offset, time_ms) in found.items() if time_ms >= 0}

    def offsets_briefly(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the same as `offsets`, without topic-partitions whose leader does not answer within seconds."""
        ends = self._list_offsets(list(tps), _OffsetSpec.LATEST, briefly=True)
        earliest = self._list_offsets(list(ends), _OffsetSpec.EARLIEST, briefly=True)
        return {tp: LogRange(start, max(ends[tp], start)) for tp, start in earliest.items()}

    def describe_partitions(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, PartitionState]:
        """Return the state of many topic-partitions in a few requests, without those that do not answer soon."""
        topics = self._cluster.describe_topics({tp.topic for tp in tps})
        led = [tp for tp in tps if tp.topic in topics and self._cluster.leader(tp) is not None]
        return {tp: PartitionState(topics[tp.topic], log_range) for tp, log_range in self.offsets_briefly(led).items()}

    def earliest_local(self, tp: TopicPartition) -> int:
        """Return the first offset on the leader's own disk. Earlier ones may be in tiered storage (KIP-405)."""
        return self._list_offsets([tp], _OffsetSpec.EARLIEST_LOCAL)[tp]

    def offset_at(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the first offset with this timestamp (ms since 1970 UTC) or a later one; None if there is none."""
        offset = self._list_offsets([tp], timestamp_ms)[tp]
        return None if offset < 0 else offset

    def epoch_end(self, tp: TopicPartition, leader_epoch: int) -> EpochEnd:
        """Return where the log of a leader epoch (or of the last epoch before it) ends on the leader (KIP-320)."""

        def build_request(group: list[TopicPartition]) -> Any:
            partition = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition
            topics = _group_by_topic(
                group,
                lambda tp: partition(partition=tp.partition, current_leader_epoch=_UNKNOWN, leader_epoch=leader_epoch),
            )
            return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)

        def read_response(response: Any) -> Iterator[tuple[TopicPartition, int, EpochEnd]]:
            for topic in response.topics:
                for answer in topic.partitions:
                    tp = TopicPartition(topic.topic, answer.partition)
                    yield tp, answer.error_code, EpochEnd(answer.leader_epoch, answer.end_offset)

        return self._cluster.ask_leaders("could not look up a leader epoch", [tp], build_request, read_response)[tp]

    def _list_offsets(
        self, tps: list[TopicPartition], timestamp: int, *, briefly: bool = False
    ) -> dict[TopicPartition, int]:
        found = self._list_offsets_and_times(tps, timestamp, briefly=briefly)
        return {tp: offset for tp, (offset, _) in found.items()}

    def _list_offsets_and_times(
        self, tps: list[TopicPartition], timestamp: int, *, briefly: bool
    ) -> dict[TopicPartition, tuple[int, int]]:
        def build_request(group: list[TopicPartition]) -> Any:
            partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
            topics = _group_by_topic(
                group,
                lambda tp: partition(
                    partition_index=tp.partition, current_leader_epoch=_UNKNOWN, timestamp=int(timestamp)
                ),
            )
            return ListOffsetsRequest(
                replica_id=_CONSUMER, isolation_level=self._isolation_level, topics=topics, min_version=4, max_version=8
            )

        def read_response(response: Any) -> Iterator[tuple[TopicPartition, int, tuple[int, int]]]:
            for topic in response.topics:
                for answer in topic.partitions:
                    tp = TopicPartition(topic.name, answer.partition_index)
                    yield tp, answer.error_code, (answer.offset, answer.timestamp)

        ask = self._cluster.ask_leaders_briefly if briefly else self._cluster.ask_leaders
        return ask("could not list offsets", tps, build_request, read_response)

    def retention(self, topics: Collection[str]) -> dict[str, TopicRetention]:
        """Return when Kafka deletes messages of topics. See `topic_configs.fetch_retention`."""
        return fetch_retention(self._cluster, topics)

    def own_configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the configs that are set for the topics themselves. See `topic_configs.fetch_own_configs`."""
        return fetch_own_configs(self._cluster, topics)

    # --- consumer groups ---

    def commit_to_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets to a consumer group, to show progress. See `consumer_groups.commit_group_offsets`."""
        consumer_groups.commit_group_offsets(self._cluster, group, offsets)

    def group_offsets(self, group: str, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets of a consumer group. See `consumer_groups.fetch_group_offsets`."""
        return consumer_groups.fetch_group_offsets(self._cluster, group, tps)

    # --- record batches ---

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
        """Yield the batches of `[from_offset, end_offset)`, response by response. The first batch may start earlier.

        `leader_epoch` is the epoch of the batch before `from_offset`, and `topic_id` the topic's id: with them, Kafka
        refuses to continue in another log. With `first_batch_only` the only chunk holds (nearly always) one batch.

        Raises `RetentionGap` or `LogTruncated` when the log does not hold the next offset, and `TopicRecreated` when
        the topic has another id.
        """
        settings = FetchSettings(self._isolation_level, self._fetch_bytes, self._fetch_ahead)
        reader = PartitionReader(
            self,
            self._cluster,
            settings,
            tp,
            from_offset,
            end_offset,
            leader_epoch=leader_epoch,
            topic_id=topic_id,
            first_batch_only=first_batch_only,
        )
        yield from reader.chunks()


def _group_by_topic(
    tps: list[TopicPartition], partition: Callable[[TopicPartition], Any]
) -> list[tuple[str, list[Any]]]:
    topics: dict[str, list[Any]] = {}
    for tp in tps:
        topics.setdefault(tp.topic, []).append(partition(tp))
    return list(topics.items())
