"""The log directories of brokers: how full their disks are, and how large topic-partitions are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka import errors as kafka_errors
from kafka.protocol.admin import DescribeLogDirsRequest

from waybill.config.names import TopicPartition
from waybill.services.kafka.admin_calls import ask, ask_each, by_topic
from waybill.services.kafka.cluster import Cluster

_ACTION, _ACL = "could not describe log directories", "Describe on the cluster"


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A log directory of a broker."""

    broker: int
    path: str
    error: str
    """'' if it works; else Kafka's error, such as `KafkaStorageError`."""
    total_bytes: int
    """Of the disk; -1 before Kafka 3.3."""
    usable_bytes: int


def fetch_log_directories(cluster: Cluster, brokers: Iterable[int]) -> list[LogDirectory]:
    """Return the log directories of brokers, without those of brokers that do not answer within seconds.

    Raises `ConfigError` if the user lacks the ACL Describe on the cluster.
    """
    found = []
    requests = {node_id: DescribeLogDirsRequest(topics=[]) for node_id in brokers}
    for node_id, response in ask_each(cluster, _ACTION, requests, _ACL).items():
        _raise_if_refused(cluster, response.error_code)
        found += [
            LogDirectory(
                node_id,
                each.log_dir,
                kafka_errors.for_code(each.error_code).__name__ if each.error_code else "",
                -1 if each.total_bytes is None else each.total_bytes,
                -1 if each.usable_bytes is None else each.usable_bytes,
            )
            for each in response.results
        ]
    return found


def fetch_leader_sizes(cluster: Cluster, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the bytes of topic-partitions on their leaders' disks. `leaders`: the node id of each leader.

    Topic-partitions of a broker that does not answer are left out. Raises `ConfigError` if the user lacks the ACL
    Describe on the cluster.
    """
    found: dict[TopicPartition, int] = {}
    by_broker: dict[int, list[TopicPartition]] = {}
    for tp, node_id in leaders.items():
        by_broker.setdefault(node_id, []).append(tp)
    for node_id, tps in by_broker.items():
        topics = [
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[tp.partition for tp in of_topic])
            for topic, of_topic in by_topic(tps).items()
        ]
        response = ask(cluster, _ACTION, DescribeLogDirsRequest(topics=topics), _ACL, node_id=node_id)
        if response is None:
            continue
        _raise_if_refused(cluster, response.error_code)
        for directory in response.results:
            for topic in directory.topics or ():
                for each in topic.partitions:
                    found[TopicPartition(topic.name, each.partition_index)] = each.partition_size
    return found


def _raise_if_refused(cluster: Cluster, code: int | None) -> None:
    error = kafka_errors.for_code(code or 0)
    if issubclass(error, kafka_errors.AuthorizationError):
        raise cluster.translate(_ACTION, error(error.__name__), _ACL)
