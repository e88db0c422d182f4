"""A Kafka cluster as the target of a restore or a replay: its topics, the user's rights on them, and its logs.

Only Kafka's own protocol is needed. Topics are created and changed through any broker, which forwards the request to
the controller (KRaft; Kafka 2.8 and later).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Self

from kafka import errors as kafka_errors
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.metadata import MetadataRequest

from waybill.base.errors import KafkaUnavailable
from waybill.config.connections import KafkaEndpoint
from waybill.config.models import IsolationLevel
from waybill.config.names import TopicPartition
from waybill.records.batches.framing import BatchHeader
from waybill.services.kafka.batch_producer import BatchProducer
from waybill.services.kafka.cluster import Cluster
from waybill.services.kafka.kafka import KafkaSource

logger = logging.getLogger(__name__)

_REQUEST_TIMEOUT = timedelta(seconds=30)
_RETRY_TIMEOUT = timedelta(minutes=2)
_TOPIC = 2
_SET, _DELETE = 0, 1
_CREATE_TIMEOUT_MS = 30_000
_OWN_CONFIG_SOURCES = (1,)  # DYNAMIC_TOPIC_CONFIG: set for the topic itself
_QUOTA_KEY = "producer_byte_rate"
_MATCH_ANY = 2


class AclOperation(IntEnum):
    """Kafka's operations (`AclOperation`) that a restore needs."""

    READ = 3
    WRITE = 4
    CREATE = 5
    ALTER_CONFIGS = 11


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target, as the cluster describes it."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]
    """Every config and its value, also those of brokers and defaults."""
    own_config: Mapping[str, str]
    """The configs that are set for the topic itself."""
    allowed: frozenset[int]
    """The operations that the user is allowed on the topic (`AclOperation`)."""
    in_sync: int | None = None
    """The number of in-sync replicas of the partition that has the fewest; None: unknown."""
    replicas: int | None = None
    """The number of replicas of that partition."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """The answer of a cluster to the request to validate a new topic."""

    refusal: str = ""
    """Why the cluster would refuse the topic, in its own words; '' if it would create it."""
    is_config_refused: bool = False
    """Whether the cluster refuses one of the configs."""
    is_forbidden: bool = False
    """Whether the user is not allowed to create the topic."""
    replicas: int | None = None
    """How many replicas the topic would have; None: the cluster did not state it."""
    config: Mapping[str, str] | None = None
    """Every config that the topic would have, also those of brokers and defaults; None: the cluster did not state
    them."""


class TargetCluster:
    """A connection to a target cluster. A context manager: it connects on entry. Use it from one thread.

    Every method raises `KafkaUnavailable` when it gets no usable answer, and `ConfigError` when Kafka refuses access.
    """

    def __init__(self, endpoint: KafkaEndpoint) -> None:
        self._cluster = Cluster(
            endpoint,
            request_timeout=_REQUEST_TIMEOUT,
            retry_timeout=_RETRY_TIMEOUT,
        )
        self.where = endpoint.where
        self.producer = BatchProducer(self._cluster)
        self.log = KafkaSource.sharing(self._cluster, IsolationLevel.READ_UNCOMMITTED)
        """Reads the target's logs up to the high watermark."""

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.close()
        self._cluster.close()

    def find_topic(self, name: str) -> TargetTopic | None:
        """Return a topic; None if there is none. Its `allowed` is empty if the broker does not state it."""
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=True,
            min_version=8,
            max_version=12,
        )
        described = self._cluster.describe_topics([name]).get(name)
        if described is None:
            return None
        (metadata,) = self._ask(f"could not describe topic {name}", request).topics
        config = self._configs(name)
        in_sync, replicas = min(
            ((len(each.isr_nodes), len(each.replica_nodes)) for each in metadata.partitions), default=(None, None)
        )
        return TargetTopic(
            name=name,
            topic_id=described.topic_id,
            partitions=len(described.partitions),
            config={key: value for key, value, _ in config},
            own_config={key: value for key, value, source in config if source in _OWN_CONFIG_SOURCES},
            allowed=frozenset(int(operation) for operation in metadata.authorized_operations or ()),
            in_sync=in_sync,
            replicas=replicas,
        )

    def check_new_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> NewTopic:
        """Return whether the cluster would create a topic, and which configs it would have. Nothing is created."""
        request = _create_request(name, partitions, replication_factor, config, validate_only=True)
        (answer,) = self._ask(f"could not ask whether topic {name} can be created", request).topics
        error = kafka_errors.for_code(answer.error_code)
        if error is not kafka_errors.NoError:
            return NewTopic(
                refusal=f"{error.__name__}: {answer.error_message}" if answer.error_message else error.__name__,
                is_config_refused=error is kafka_errors.InvalidConfigurationError,
                is_forbidden=issubclass(error, kafka_errors.AuthorizationError),
            )
        if not answer.configs:  # before Kafka 2.4, and without the ACL DescribeConfigs
            return NewTopic()
        known = {each.name: each.value for each in answer.configs if each.value is not None}
        return NewTopic(replicas=answer.replication_factor, config=known)

    def create_topic(self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]) -> None:
        """Create a topic, unless it exists. `replication_factor` -1 stands for the brokers' default."""
        request = _create_request(name, partitions, replication_factor, config, validate_only=False)
        action = f"could not create topic {name}"
        (answer,) = self._ask(action, request).topics
        error = kafka_errors.for_code(answer.error_code)
        if error not in (kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError):
            acl = f"Create on topic {name}"
            raise self._cluster.translate(action, error(answer.error_message or name), acl)
        self._wait_for_leaders(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Does nothing if there is none."""
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=_CREATE_TIMEOUT_MS, min_version=4, max_version=5)
        action = f"could not delete topic {name}"
        (answer,) = self._ask(action, request).responses
        error = kafka_errors.for_code(answer.error_code)
        if error not in (kafka_errors.NoError, kafka_errors.UnknownTopicOrPartitionError):
            raise self._cluster.translate(action, error(name))

    def change_config(self, name: str, config: Mapping[str, str | None]) -> None:
        """Set configs of a topic; None removes one, so that the brokers' default applies."""
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        changes = [
            resource.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
            for key, value in config.items()
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=_TOPIC, resource_name=name, configs=changes)], validate_only=False
        )
        action = f"could not change the config of topic {name}"
        (answer,) = self._ask(action, request).responses
        error = kafka_errors.for_code(answer.error_code)
        if error is not kafka_errors.NoError:
            acl = f"AlterConfigs on topic {name}"
            raise self._cluster.translate(action, error(answer.error_message or name), acl)

    def producer_quotas(self) -> dict[str, float]:
        """Return the quotas of producers in bytes/s, by the limited entity, such as `user=alice`.

        Empty if there are none, or the user is not allowed to list them.
        """
        component = DescribeClientQuotasRequest.ComponentData
        found: dict[str, float] = {}
        for kind in ("user", "client-id"):
            request = DescribeClientQuotasRequest(
                components=[component(entity_type=kind, match_type=_MATCH_ANY, match=None)], strict=False
            )
            response = self._ask("could not list quotas", request)
            if response.error_code:
                error = kafka_errors.for_code(response.error_code)
                logger.info("the target's quotas are not known: %s", error.__name__)
                return {}
            for entry in response.entries or ():
                who = ", ".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in entry.entity)
                for value in entry.values:
                    if value.key == _QUOTA_KEY:
                        found[who] = value.value
        return found

    def last_batch(self, tp: TopicPartition, end: int) -> BatchHeader | None:
        """Return the header of the batch that ends at the log's end `end`; None if the log holds none there."""
        chunks = self.log.read(tp, end - 1, end, first_batch_only=True)
        chunk = next(chunks, None)
        chunks.close()
        return None if chunk is None else chunk.frames[-1].header

    def _configs(self, name: str) -> list[tuple[str, str, int]]:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=name, configuration_keys=None
        )
        action = f"could not describe the config of topic {name}"
        (answer,) = self._ask(action, DescribeConfigsRequest(resources=[resource], max_version=4)).results
        error = kafka_errors.for_code(answer.error_code)
        if error is not kafka_errors.NoError:
            raise self._cluster.translate(action, error(answer.error_message or name))
        return [(each.name, each.value, each.config_source) for each in answer.configs if each.value is not None]

    def _wait_for_leaders(self, name: str, partitions: int) -> None:
        for _ in self._cluster.attempts(f"topic {name} was created, but has no leaders"):
            topic = self._cluster.describe_topics([name]).get(name)
            tps = [TopicPartition(name, number) for number in range(partitions)]
            if topic is not None and all(self._cluster.leader(tp) is not None for tp in tps):
                return

    def _ask(self, action: str, request: Any) -> Any:
        for _ in self._cluster.attempts(action):
            try:
                return self._cluster.wait(self._cluster.send(None, request))
            except kafka_errors.RetriableError as error:
                logger.debug("%s: %s", action, error)
            except kafka_errors.KafkaError as error:
                raise self._cluster.translate(action, error) from error
        raise KafkaUnavailable(action)


def _create_request(
    name: str, partitions: int, replication_factor: int, config: Mapping[str, str], *, validate_only: bool
) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[
            topic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=[],
                configs=[topic.CreatableTopicConfig(name=key, value=value) for key, value in config.items()],
            )
        ],
        timeout_ms=_CREATE_TIMEOUT_MS,
        validate_only=validate_only,
        min_version=4,
    )
