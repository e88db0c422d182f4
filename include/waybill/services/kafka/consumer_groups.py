"""Committed offsets of Kafka consumer groups without members: to show a lane's progress, and to import offsets.

Kafka accepts such a commit from every client with the ACL, as long as no consumer is a member of the group: generation
-1 and no member id, as Kafka's own `kafka-consumer-groups.sh --reset-offsets` sends it.

kafka-python's `KafkaAdminClient` has the same two requests, but it reads offsets without `require_stable`, so it would
return the old offset while a transaction of the group is open. And it caches a group's coordinator for ever, so a retry
would not find the new coordinator after a broker has died.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from waybill.base.errors import KafkaUnavailable
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster import Cluster

logger = logging.getLogger(__name__)

_COORDINATOR_OF_GROUP = 0
_NO_GENERATION = -1
_COMMIT_TIMEOUT_SECONDS = 5.0


def commit_group_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit the offsets to the group, in one request.

    Raises `KafkaUnavailable` when no coordinator accepts the commit for 5 seconds, when the group has members, or when
    one of the offsets is refused; `ConfigError` when Kafka does not allow it.
    """
    if not offsets:
        return
    action = f"could not commit to consumer group {group!r}"
    for _ in cluster.attempts(action, _COMMIT_TIMEOUT_SECONDS):
        try:
            response = cluster.wait(cluster.send(_find_coordinator(cluster, group), _commit_request(group, offsets)))
            for error in _commit_errors(response):
                raise error()
        except kafka_errors.UnknownMemberIdError as error:
            raise KafkaUnavailable(
                f"{action}: it has members. Stop them, or name another group in ingest.consumer_group"
            ) from error
        except kafka_errors.RetriableError as error:  # on a new cluster, Kafka first creates the topic of the offsets
            logger.debug("%s: %s", action, error)
            continue
        except kafka_errors.KafkaError as error:
            raise cluster.translate(action, error) from error
        return


def fetch_group_offsets(
    cluster: Cluster, group: str, tps: Collection[TopicPartition] | None, timeout_seconds: float | None = None
) -> dict[TopicPartition, int]:
    """Return the committed offsets of a consumer group, without the topic-partitions that have none.

    `tps` None stands for all. `timeout_seconds`: of all attempts; None: the cluster's.

    Raises `KafkaUnavailable` when no coordinator answers, `ConfigError` when Kafka does not allow it.
    """
    action = f"could not read the offsets of consumer group {group!r}"
    for _ in cluster.attempts(action, timeout_seconds):
        try:
            response = cluster.wait(cluster.send(_find_coordinator(cluster, group), _fetch_request(group, tps)))
            return dict(_read_offsets(response))
        except kafka_errors.RetriableError as error:
            logger.debug("%s: %s", action, error)
        except kafka_errors.KafkaError as error:
            raise cluster.translate(action, error) from error
    raise AssertionError("unreachable")


def fetch_all_group_offsets(
    cluster: Cluster, group: str, timeout_seconds: float | None = None
) -> dict[TopicPartition, int]:
    """Return the committed offsets of a consumer group in all topics that the user is allowed to describe.

    Raises the errors of `fetch_group_offsets`.
    """
    return fetch_group_offsets(cluster, group, None, timeout_seconds)


@dataclass(frozen=True, slots=True)
class GroupList:
    """The consumer groups that brokers listed. A broker lists the groups that it coordinates."""

    states: Mapping[str, str]
    """The state of each group that the user is allowed to describe, in Kafka's words: `Stable`, `Empty`, …"""
    silent: tuple[int, ...]
    """The brokers that did not list their groups: they did not answer, or were still loading the groups."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The type of each group, in Kafka's words in lower case: `classic`, `consumer`, `share`, `streams`. Groups of
    brokers before Kafka 3.8 are missing, since these do not state the type: they are classic."""


def list_groups(cluster: Cluster, brokers: Iterable[int]) -> GroupList:
    """Return the consumer groups that the user is allowed to describe. Kafka leaves out other groups without an error.

    Raises `ConfigError` when Kafka refuses the user.
    """
    # Imported here, since lanes import this module too, and do not need the admin protocol.
    from kafka.protocol.admin import ListGroupsRequest

    from waybill.services.kafka.admin_calls import ask_each, check

    found, types = dict[str, str](), dict[str, str]()
    action, acl = "could not list consumer groups", "Describe on the groups"
    requests = {node_id: ListGroupsRequest(states_filter=[], types_filter=[], max_version=5) for node_id in brokers}
    answers = ask_each(cluster, action, requests, acl)
    for response in answers.values():
        check(cluster, action, response, acl, unless=(kafka_errors.RetriableError,))
        if not response.error_code:
            found |= {each.group_id: each.group_state or "" for each in response.groups}
            types |= {each.group_id: each.group_type.lower() for each in response.groups if each.group_type}
    silent = (node_id for node_id in requests if node_id not in answers or answers[node_id].error_code)
    return GroupList(found, tuple(silent), types)


def _find_coordinator(cluster: Cluster, group: str) -> int:
    request = FindCoordinatorRequest(key=group, key_type=_COORDINATOR_OF_GROUP, max_version=3)
    response = cluster.wait(cluster.send(None, request))
    error = kafka_errors.for_code(response.error_code)
    if error is not kafka_errors.NoError:
        raise error(response.error_message)
    return int(response.node_id)


def _commit_request(group: str, offsets: Mapping[TopicPartition, int]) -> Any:
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


def _commit_errors(response: Any) -> Iterator[type[kafka_errors.KafkaError]]:
    for topic in response.topics:
        for partition in topic.partitions:
            error = kafka_errors.for_code(partition.error_code)
            if error is not kafka_errors.NoError:
                yield error


def _fetch_request(group: str, tps: Collection[TopicPartition] | None) -> Any:
    topics: dict[str, list[int]] = {}
    for tp in tps or ():
        topics.setdefault(tp.topic, []).append(tp.partition)
    topic_type = OffsetFetchRequest.OffsetFetchRequestTopic
    return OffsetFetchRequest(
        group_id=group,
        topics=None
        if tps is None
        else [topic_type(name=name, partition_indexes=partitions) for name, partitions in topics.items()],
        require_stable=True,  # while a transaction of the group is open, Kafka answers with a retriable error
        max_version=7,
    )


def _read_offsets(response: Any) -> Iterator[tuple[TopicPartition, int]]:
    for code in (response.error_code, *(p.error_code for topic in response.topics for p in topic.partitions)):
        error = kafka_errors.for_code(code)
        if error is not kafka_errors.NoError:
            raise error()
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.committed_offset >= 0:
                yield TopicPartition(topic.name, partition.partition_index), partition.committed_offset
