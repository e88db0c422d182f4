"""What the controllers of a KRaft cluster know beyond the metadata of topics: their quorum, and eligible leaders."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any

from kafka import errors as kafka_errors

from waybill.names import TopicPartition
from waybill.sources.cluster import Cluster

__all__ = ["fetch_eligible_leaders", "fetch_voters"]

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0
_METADATA_TOPIC = "__cluster_metadata"
_MOST_PARTITIONS = 2000
_NOT_ALLOWED = (
    kafka_errors.IncompatibleBrokerVersion,
    kafka_errors.UnsupportedVersionError,
    kafka_errors.AuthorizationError,
)


def fetch_voters(cluster: Cluster) -> frozenset[int] | None:
    """Return the node ids of the controllers that elect, with one request.

    None if the cluster does not say: the user has no ACL Describe on the cluster, or ZooKeeper keeps the metadata.
    Raises `KafkaUnavailable` when no broker answers within 5 seconds.
    """
    from kafka.protocol.admin import DescribeQuorumRequest

    topic = DescribeQuorumRequest.TopicData
    partition = topic.PartitionData(partition_index=0)
    request = DescribeQuorumRequest(topics=[topic(topic_name=_METADATA_TOPIC, partitions=[partition])], max_version=2)
    response = _ask(cluster, "could not describe the quorum of controllers", request)
    if response is None or response.error_code:
        return None
    return frozenset(
        voter.replica_id
        for topic in response.topics
        for partition in topic.partitions
        for voter in partition.current_voters
    )


def fetch_eligible_leaders(cluster: Cluster, topics: Collection[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the eligible leader replicas (KIP-966) of the topic-partitions that have some.

    Brokers before Kafka 4.0 have none, and topics that the user may not describe are left out. Raises
    `KafkaUnavailable` when no broker answers within 5 seconds.
    """
    from kafka.protocol.admin import DescribeTopicPartitionsRequest

    found: dict[TopicPartition, tuple[int, ...]] = {}
    cursor: Any = None
    while topics:
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in sorted(topics)],
            response_partition_limit=_MOST_PARTITIONS,
            cursor=cursor,
        )
        response = _ask(cluster, "could not describe the eligible leaders of topics", request)
        if response is None:
            return {}
        found |= dict(_read_eligible(response.topics))
        if response.next_cursor is None:
            return found
        last = response.next_cursor
        cursor = DescribeTopicPartitionsRequest.Cursor(topic_name=last.topic_name, partition_index=last.partition_index)
        topics = [name for name in topics if name >= last.topic_name]
    return found


def _read_eligible(topics: Iterable[Any]) -> Iterable[tuple[TopicPartition, tuple[int, ...]]]:
    for topic in topics:
        for each in topic.partitions or ():
            if each.eligible_leader_replicas:
                yield TopicPartition(topic.name, each.partition_index), tuple(each.eligible_leader_replicas)


def _ask(cluster: Cluster, action: str, request: Any) -> Any:
    """Return any broker's answer; None if the brokers do not know the request, or refuse it to the user."""
    for _ in cluster.attempts(action, _TIMEOUT_SECONDS):
        try:
            return cluster.wait(cluster.send(None, request))
        except _NOT_ALLOWED as error:
            logger.info("%s: %s", action, error)
            return None
        except kafka_errors.RetriableError as error:
            logger.debug("%s: %s", action, error)
        except kafka_errors.KafkaError as error:
            raise cluster.translate(action, error) from error
    raise AssertionError("unreachable")
