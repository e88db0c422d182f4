"""The state of a Kafka cluster: brokers, and leaders, replicas and in-sync replicas of all topic-partitions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.metadata import MetadataRequest

from waybill.config.names import TopicPartition
from waybill.services.kafka.admin_calls import ask_each
from waybill.services.kafka.cluster import Cluster

logger = logging.getLogger(__name__)

NO_LEADER = -1
_ACTION = "could not read the cluster's metadata"


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker, from the cluster's metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class TopicPartitionReplicas:
    """The replicas of a topic-partition. Brokers are node ids."""

    leader: int
    """-1 while there is none: the topic-partition is offline."""
    leader_epoch: int
    """-1 if Kafka did not state it."""
    replicas: tuple[int, ...]
    """In Kafka's order: the first is the preferred leader."""
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]
    """Replicas whose broker or log directory is offline."""

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The content of one metadata response."""

    cluster_id: str
    controller: int
    """The node id that Kafka names as the controller. With KRaft it is any live broker. -1 if there is none."""
    brokers: Mapping[int, Broker]
    """The live brokers, by node id."""
    partitions: Mapping[TopicPartition, TopicPartitionReplicas]
    """The topic-partitions of topics that the user is allowed to describe, with Kafka's internal topics."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """'' before Kafka 2.8."""
    internal: frozenset[str] = frozenset()
    """Topics that Kafka itself keeps, such as `__consumer_offsets`."""
    refused: frozenset[str] = frozenset()
    """Topics that the user is not allowed to describe, if they were requested by name. Kafka leaves them out of a full
    list."""

    def topic_partitions(self, topic: str) -> dict[int, TopicPartitionReplicas]:
        """Return the partitions of a topic by their number."""
        return {tp.partition: state for tp, state in self.partitions.items() if tp.topic == topic}


def fetch_cluster_state(cluster: Cluster, topics: Collection[str] | None = None) -> ClusterState:
    """Return the state of the cluster, with one request to any broker. `topics`: only these; None: all.

    Raises `KafkaUnavailable` when no broker answers, and `ConfigError` when Kafka refuses the user.
    """
    for _ in cluster.attempts(_ACTION):
        try:
            return read_cluster_state(cluster.wait(cluster.send(None, _request(topics))))
        except kafka_errors.RetriableError as error:
            logger.debug("%s: %s", _ACTION, error)
        except kafka_errors.KafkaError as error:
            raise cluster.translate(_ACTION, error) from error
    raise AssertionError("unreachable")


def fetch_states_of_all(cluster: Cluster, brokers: Iterable[int], topics: Collection[str]) -> list[ClusterState]:
    """Return the state of topics by the metadata of each broker, without brokers that do not answer within seconds.

    A broker sees a new topic some time after another broker has created it, so every broker is asked. Raises
    `ConfigError` when Kafka refuses the user.
    """
    requests = {node_id: _request(topics) for node_id in brokers}
    return [
        read_cluster_state(each) for each in ask_each(cluster, _ACTION, requests, "Describe on the topics").values()
    ]


def _request(topics: Collection[str] | None) -> MetadataRequest:
    return MetadataRequest(
        topics=None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def read_cluster_state(response: Any) -> ClusterState:
    """Return the state that a metadata response describes."""
    partitions: dict[TopicPartition, TopicPartitionReplicas] = {}
    topic_ids: dict[str, str] = {}
    refused, internal = set(), set()
    for topic in response.topics:
        error = kafka_errors.for_code(topic.error_code)
        if issubclass(error, kafka_errors.AuthorizationError):
            refused.add(topic.name)
            continue
        if error is not kafka_errors.NoError:
            logger.debug("topic %s: %s", topic.name, error.__name__)
            continue
        topic_ids[topic.name] = str(topic.topic_id) if topic.topic_id is not None and topic.topic_id.int else ""
        if topic.is_internal:
            internal.add(topic.name)
        for each in topic.partitions:
            partitions[TopicPartition(topic.name, each.partition_index)] = TopicPartitionReplicas(
                leader=each.leader_id,
                leader_epoch=-1 if each.leader_epoch is None else each.leader_epoch,
                replicas=tuple(each.replica_nodes),
                in_sync=tuple(each.isr_nodes),
                offline=tuple(each.offline_replicas or ()),
            )
    brokers = {each.node_id: Broker(each.node_id, each.host, each.port, each.rack) for each in response.brokers}
    return ClusterState(
        cluster_id=response.cluster_id or "",
        controller=response.controller_id,
        brokers=brokers,
        partitions=partitions,
        topic_ids=topic_ids,
        internal=frozenset(internal),
        refused=frozenset(refused),
    )
