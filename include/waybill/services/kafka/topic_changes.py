"""Changes of topics through Kafka's admin protocol: create, configure, add topic-partitions, copy, elect.

Every function may be called again after a crash. Brokers forward the requests to the controller (KRaft; Kafka 2.8 and
later). kafka-python's `KafkaAdminClient` has the same requests, but its own connections and errors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum

from kafka import errors as kafka_errors
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
)

from waybill.base.errors import KafkaUnavailable
from waybill.config.names import TopicPartition
from waybill.services.kafka.admin_calls import ask, by_topic, check
from waybill.services.kafka.cluster import Cluster

_TIMEOUT_MS = 30_000
_SET, _DELETE = 0, 1
_PREFERRED = 0
_DYNAMIC_BROKER_CONFIG = 2


class Resource(IntEnum):
    """The kinds of resources of configs, with Kafka's numbers (`ConfigResource.Type`)."""

    TOPIC = 2
    BROKER = 4


def create_topic(cluster: Cluster, topic: str, replicas: Sequence[Sequence[int]], configs: Mapping[str, str]) -> None:
    """Create a topic with these replicas of each topic-partition, unless it exists."""
    creatable = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            creatable(
                name=topic,
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    creatable.CreatableReplicaAssignment(partition_index=number, broker_ids=list(brokers))
                    for number, brokers in enumerate(replicas)
                ],
                configs=[creatable.CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
            )
        ],
        timeout_ms=_TIMEOUT_MS,
        validate_only=False,
        min_version=4,
    )
    action, acl = f"could not create topic {topic}", f"Create on the cluster, or on topic {topic!r}"
    (answer,) = ask(cluster, action, request, acl).topics
    check(cluster, action, answer, acl, unless=(kafka_errors.TopicAlreadyExistsError,))


def add_partitions(cluster: Cluster, topic: str, existing: int, replicas: Sequence[Sequence[int]]) -> None:
    """Add topic-partitions with these replicas after the `existing` ones. A topic that has more already is refused."""
    of_topic = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(
        topics=[
            of_topic(
                name=topic,
                count=existing + len(replicas),
                assignments=[of_topic.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in replicas],
            )
        ],
        timeout_ms=_TIMEOUT_MS,
        validate_only=False,
    )
    action, acl = f"could not add topic-partitions to {topic}", f"Alter on topic {topic!r}"
    (answer,) = ask(cluster, action, request, acl).results
    check(cluster, action, answer, acl)


def change_configs(cluster: Cluster, kind: Resource, name: str, changes: Mapping[str, str | None]) -> None:
    """Set configs of a topic or a broker; None removes one, so that the default applies."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in changes.items()
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=name, configs=configs)], validate_only=False
    )
    action = f"could not change the config of {kind.name.lower()} {name}"
    acl = f"AlterConfigs on topic {name!r}" if kind is Resource.TOPIC else "AlterConfigs on the cluster"
    # A broker accepts changes of its own config only.
    response = ask(cluster, action, request, acl, node_id=int(name) if kind is Resource.BROKER else None)
    if response is None:
        raise KafkaUnavailable(f"Kafka at {cluster.servers}: {action}: the broker does not answer")
    (answer,) = response.responses
    check(cluster, action, answer, acl)


def reassign(cluster: Cluster, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
    """Start to copy topic-partitions to these replicas. Returns when the controller has accepted the request."""
    of_topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=_TIMEOUT_MS,
        topics=[
            of_topic(
                name=topic,
                partitions=[
                    of_topic.ReassignablePartition(partition_index=tp.partition, replicas=list(replicas[tp]))
                    for tp in tps
                ],
            )
            for topic, tps in by_topic(replicas).items()
        ],
    )
    action, acl = "could not reassign replicas", "Alter on the cluster"
    response = ask(cluster, action, request, acl)
    check(cluster, action, response, acl)
    for topic in response.responses:
        for answer in topic.partitions:
            check(cluster, f"{action} of {topic.name}/{answer.partition_index}", answer, acl)


def fetch_reassignments(cluster: Cluster) -> dict[TopicPartition, tuple[int, ...]] | None:
    """Return the topic-partitions that are being copied, with the replicas that each has afterwards.

    Until then, Kafka's metadata list old and new replicas. Returns None if the user lacks the ACL Describe on the
    cluster.
    """
    request = ListPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=None)
    action, acl = "could not list reassignments", "Describe on the cluster"
    response = ask(cluster, action, request, acl)
    if issubclass(kafka_errors.for_code(response.error_code), kafka_errors.AuthorizationError):
        return None
    check(cluster, action, response, acl)
    return {
        TopicPartition(topic.name, each.partition_index): tuple(
            node_id for node_id in each.replicas if node_id not in each.removing_replicas
        )
        for topic in response.topics
        for each in topic.partitions
    }


def elect_preferred_leaders(cluster: Cluster, tps: Iterable[TopicPartition]) -> None:
    """Elect the first replica of each topic-partition as leader, if it is in sync."""
    request = ElectLeadersRequest(
        election_type=_PREFERRED,
        topic_partitions=[
            ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[tp.partition for tp in tps])
            for topic, tps in by_topic(tps).items()
        ],
        timeout_ms=_TIMEOUT_MS,
        min_version=1,
    )
    action, acl = "could not elect preferred leaders", "Alter on the cluster"
    response = ask(cluster, action, request, acl)
    check(cluster, action, response, acl)
    harmless = (kafka_errors.ElectionNotNeededError, kafka_errors.PreferredLeaderNotAvailableError)
    for topic in response.replica_election_results:
        for answer in topic.partition_result:
            check(cluster, f"{action} of {topic.topic}/{answer.partition_id}", answer, acl, unless=harmless)


def fetch_broker_configs(cluster: Cluster, brokers: Iterable[int], names: Collection[str]) -> dict[int, dict[str, str]]:
    """Return the configs that are set for single brokers at run time, by node id, without brokers that do not answer.

    Raises `ConfigError` without the ACL.
    """
    resource = DescribeConfigsRequest.DescribeConfigsResource
    action, acl = "could not describe the configuration of brokers", "DescribeConfigs on the cluster"
    found = {}
    for node_id in brokers:
        # A broker returns its own configs only.
        request = DescribeConfigsRequest(
            resources=[
                resource(resource_type=Resource.BROKER, resource_name=str(node_id), configuration_keys=list(names))
            ],
            max_version=4,
        )
        response = ask(cluster, action, request, acl, node_id=node_id)
        if response is None:
            continue
        (answer,) = response.results
        check(cluster, action, answer, acl)
        found[node_id] = {
            each.name: each.value
            for each in answer.configs
            if each.config_source == _DYNAMIC_BROKER_CONFIG and each.value is not None
        }
    return found
