"""Requests to the controllers of a KRaft cluster: their quorum, and eligible leader replicas."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.admin import DescribeQuorumRequest, DescribeTopicPartitionsRequest

from waybill.base.errors import ConfigError
from waybill.config.names import TopicPartition
from waybill.services.kafka.admin_calls import ask, check
from waybill.services.kafka.cluster import Cluster

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0
_METADATA_TOPIC = "__cluster_metadata"
_MOST_PARTITIONS = 2000
_UNKNOWN_REQUEST = (kafka_errors.IncompatibleBrokerVersion, kafka_errors.UnsupportedVersionError)


@dataclass(frozen=True, slots=True)
class Quorum:
    """The voting controllers, as their leader sees them."""

    leader: int
    caught_up_ms: Mapping[int, int]
    """For each voter's node id, when it last had the leader's whole log, in epoch ms; -1 if the leader does not know
    it."""

    @property
    def voters(self) -> frozenset[int]:
        return frozenset(self.caught_up_ms)


def fetch_quorum(cluster: Cluster) -> Quorum | None:
    """Return the quorum of controllers, with one request. None if ZooKeeper keeps the cluster's metadata.

    Raises `KafkaUnavailable` when no controller leads within 5 seconds, and `ConfigError` if the user lacks the ACL
    Describe on the cluster.
    """
    topic = DescribeQuorumRequest.TopicData
    partition = topic.PartitionData(partition_index=0)
    request = DescribeQuorumRequest(topics=[topic(topic_name=_METADATA_TOPIC, partitions=[partition])], max_version=2)
    action, acl = "could not describe the quorum of controllers", "Describe on the cluster"
    try:
        response = ask(cluster, action, request, acl, timeout_seconds=_TIMEOUT_SECONDS)
    except ConfigError as error:
        if isinstance(error.__cause__, _UNKNOWN_REQUEST):
            return None
        raise
    check(cluster, action, response, acl)
    (described,) = (each for found in response.topics for each in found.partitions)
    check(cluster, action, described, acl)
    return Quorum(
        described.leader_id,
        {
            voter.replica_id: -1 if voter.last_caught_up_timestamp is None else voter.last_caught_up_timestamp
            for voter in described.current_voters
        },
    )


def fetch_eligible_leaders(cluster: Cluster, topics: Collection[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the eligible leader replicas (KIP-966) of the topic-partitions that have some.

    Brokers before Kafka 4.0 have none, and topics that the user is not allowed to describe are left out. Raises
    `KafkaUnavailable` when no broker answers within 5 seconds.
    """
    found: dict[TopicPartition, tuple[int, ...]] = {}
    cursor: Any = None
    action, acl = "could not describe the eligible leaders of topics", "Describe on the topics"
    while topics:
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in sorted(topics)],
            response_partition_limit=_MOST_PARTITIONS,
            cursor=cursor,
        )
        try:
            response = ask(cluster, action, request, acl, timeout_seconds=_TIMEOUT_SECONDS)
        except ConfigError as error:
            logger.info("%s", error)
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
