"""Offsets of a Kafka consumer group that has no members: for tools that show the lag of groups.

Kafka takes such a commit from anybody who is allowed to, as long as no consumer is a member of the group (`generation`
-1 and no member id, as Kafka's own `kafka-consumer-groups.sh --reset-offsets` sends it).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from waybill.errors import KafkaUnavailable
from waybill.names import TopicPartition
from waybill.sources.cluster import Cluster

__all__ = ["commit_offsets", "fetch_offsets"]

logger = logging.getLogger(__name__)

_GROUP = 0  # as the type of coordinator that is looked for
_NO_GENERATION = -1
_PATIENCE_SECONDS = 5.0


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit those offsets to the group, in one request.

    Raises `KafkaUnavailable` when no coordinator takes it soon, when the group has members, or when one of the offsets
    is refused; `ConfigError` when Kafka does not allow it.
    """
    if not offsets:
        return
    what = f"could not commit to consumer group {group!r}"
    for _ in cluster.tries(what, _PATIENCE_SECONDS):
        try:
            answer = cluster.response(cluster.send(_coordinator(cluster, group), _request(group, offsets)))
            for error in _errors(answer):
                raise error()
        except kafka_errors.UnknownMemberIdError as error:
            raise KafkaUnavailable(
                f"{what}: it has members. Stop them, or name another group in ingest.consumer_group"
            ) from error
        except kafka_errors.RetriableError as error:  # on a new cluster, the coordinators' topic has to be made first
            logger.debug("%s: %s", what, error)
            continue
        except kafka_errors.KafkaError as error:
            raise cluster.failure(what, error) from error
        return


def fetch_offsets(cluster: Cluster, group: str, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The committed offsets of a consumer group, whoever committed them; without the topic-partitions that have none.

    Raises `KafkaUnavailable` when no coordinator answers, `ConfigError` when Kafka does not allow it.
    """
    what = f"could not read the offsets of consumer group {group!r}"
    for _ in cluster.tries(what):
        try:
            answer = cluster.response(cluster.send(_coordinator(cluster, group), _fetch_request(group, tps)))
            return dict(_fetched(answer))
        except kafka_errors.RetriableError as error:
            logger.debug("%s: %s", what, error)
        except kafka_errors.KafkaError as error:
            raise cluster.failure(what, error) from error
    raise AssertionError("unreachable")


def _fetch_request(group: str, tps: Collection[TopicPartition]) -> Any:
    topics: dict[str, list[int]] = {}
    for tp in tps:
        topics.setdefault(tp.topic, []).append(tp.partition)
    topic_type = OffsetFetchRequest.OffsetFetchRequestTopic
    return OffsetFetchRequest(
        group_id=group,
        topics=[topic_type(name=name, partition_indexes=partitions) for name, partitions in topics.items()],
        require_stable=True,  # not while a transaction of the group is open
        max_version=7,
    )


def _fetched(answer: Any) -> Iterator[tuple[TopicPartition, int]]:
    for code in (answer.error_code, *(p.error_code for topic in answer.topics for p in topic.partitions)):
        error = kafka_errors.for_code(code)
        if error is not kafka_errors.NoError:
            raise error()
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.committed_offset >= 0:
                yield TopicPartition(topic.name, partition.partition_index), partition.committed_offset


def _coordinator(cluster: Cluster, group: str) -> int:
    answer = cluster.response(cluster.send(None, FindCoordinatorRequest(key=group, key_type=_GROUP, max_version=3)))
    error = kafka_errors.for_code(answer.error_code)
    if error is not kafka_errors.NoError:
        raise error(answer.error_message)
    return int(answer.node_id)


def _request(group: str, offsets: Mapping[TopicPartition, int]) -> Any:
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    topics: dict[str, list[Any]] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp.topic, []).append(
            topic_type.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata="waybill",
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=_NO_GENERATION,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[topic_type(name=name, partitions=partitions) for name, partitions in topics.items()],
        max_version=8,
    )


def _errors(answer: Any) -> Iterator[type[kafka_errors.KafkaError]]:
    for topic in answer.topics:
        for partition in topic.partitions:
            error = kafka_errors.for_code(partition.error_code)
            if error is not kafka_errors.NoError:
                yield error
