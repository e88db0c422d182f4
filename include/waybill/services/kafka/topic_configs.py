"""The configs of topics, and the retention that follows from them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kafka import errors as kafka_errors

from waybill.services.kafka.cluster import Cluster

logger = logging.getLogger(__name__)

_TOPIC = 2
_KEYS = ("cleanup.policy", "retention.ms", "retention.bytes")
_TIMEOUT_SECONDS = 5.0
_SET_FOR_THE_TOPIC = 1  # config source DYNAMIC_TOPIC_CONFIG


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """When Kafka deletes messages of a topic. None: never for this reason."""

    retention_ms: int | None
    retention_bytes: int | None
    """The limit of each topic-partition's size."""


def fetch_retention(cluster: Cluster, topics: Collection[str]) -> dict[str, TopicRetention]:
    """Return the retention of topics, in one request, without topics whose configs the user is not allowed to describe.

    Raises `KafkaUnavailable` when no broker answers within 5 seconds.
    """
    found = {}
    for topic, configs in _describe(cluster, topics, list(_KEYS)).items():
        values = {config.name: config.value for config in configs}
        deletes = "delete" in values.get("cleanup.policy", "delete")
        found[topic] = TopicRetention(
            _limit(values.get("retention.ms")) if deletes else None,
            _limit(values.get("retention.bytes")) if deletes else None,
        )
    return found


def fetch_own_configs(cluster: Cluster, topics: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the configs that are set for the topics themselves, without those of brokers and Kafka's defaults.

    Topics whose configs the user is not allowed to describe are left out. Raises `KafkaUnavailable` as
    `fetch_retention`.
    """
    return {
        topic: {each.name: each.value for each in configs if each.config_source == _SET_FOR_THE_TOPIC and each.value}
        for topic, configs in _describe(cluster, topics, None).items()
    }


def fetch_effective_configs(
    cluster: Cluster, topics: Collection[str], keys: Collection[str] | None
) -> dict[str, dict[str, str]]:
    """Return the effective configs of topics, with those that come from brokers and from Kafka's defaults.

    `keys`: only these; None: all. Topics whose configs the user is not allowed to describe are left out. Raises
    `KafkaUnavailable` as `fetch_retention`.
    """
    return {
        topic: {each.name: each.value for each in configs if each.value is not None}
        for topic, configs in _describe(cluster, topics, None if keys is None else list(keys)).items()
    }


def _describe(cluster: Cluster, topics: Collection[str], keys: list[str] | None) -> dict[str, Any]:
    """Return the described configs of topics; `keys` None stands for all."""
    # Imported here, since lanes import this module too, and do not need the admin protocol.
    from kafka.protocol.admin import DescribeConfigsRequest

    action = "could not describe the configuration of topics"
    if not topics:
        return {}
    resource = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=keys) for topic in sorted(topics)
    ]
    response: Any = None
    for _ in cluster.attempts(action, _TIMEOUT_SECONDS):
        try:
            response = cluster.wait(cluster.send(None, DescribeConfigsRequest(resources=resources, max_version=4)))
        except kafka_errors.RetriableError as error:
            logger.debug("%s: %s", action, error)
            continue
        except kafka_errors.KafkaError as error:
            raise cluster.translate(action, error) from error
        break
    found = {}
    for result in response.results:
        if result.error_code:
            refusal = kafka_errors.for_code(result.error_code)
            logger.info("the configuration of topic %s is not known: %s", result.resource_name, refusal.__name__)
            continue
        found[result.resource_name] = result.configs
    return found


def _limit(text: str | None) -> int | None:
    """Return the value of a limit; None for -1, which Kafka uses for none."""
    return None if text is None or int(text) < 0 else int(text)
