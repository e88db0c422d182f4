"""One request of Kafka's admin protocol: its retries, and the translation of its errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kafka import errors as kafka_errors

from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster import Cluster

logger = logging.getLogger(__name__)

_BRIEF_SECONDS, _LEAST_WAIT_SECONDS = 3.0, 0.5


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Return topic-partitions, sorted, by topic."""
    found: dict[str, list[TopicPartition]] = {}
    for tp in sorted(tps):
        found.setdefault(tp.topic, []).append(tp)
    return found


def ask(
    cluster: Cluster,
    action: str,
    request: Any,
    acl: str,
    *,
    node_id: int | None = None,
    timeout_seconds: float | None = None,
) -> Any:
    """Return the answer of any broker. With `node_id`, return the answer of this broker, or None if it does not answer.

    `timeout_seconds`: of all attempts; None: the cluster's. Raises `KafkaUnavailable` when no broker answers, and
    `ConfigError` when Kafka refuses the user.
    """
    for _ in cluster.attempts(action, timeout_seconds):
        try:
            return cluster.wait(cluster.send(node_id, request))
        except kafka_errors.RetriableError as error:
            logger.debug("%s: %s", action, error)
            if node_id is not None:
                return None
        except kafka_errors.KafkaError as error:
            raise cluster.translate(action, error, acl) from error
    raise AssertionError("unreachable")


def ask_each(
    cluster: Cluster, action: str, requests: Mapping[int, Any], acl: str, timeout_seconds: float = _BRIEF_SECONDS
) -> dict[int, Any]:
    """Return the answer of each broker, without those of brokers that do not answer within the timeout.

    `requests`: by node id. All are sent at once, so a hanging broker does not delay the others. Raises `ConfigError`
    when Kafka refuses the user.
    """
    found = {}
    deadline = time.monotonic() + timeout_seconds
    asked = [(node_id, cluster.send(node_id, request)) for node_id, request in requests.items()]
    for node_id, future in asked:
        try:
            found[node_id] = cluster.wait(future, max(_LEAST_WAIT_SECONDS, deadline - time.monotonic()))
        except kafka_errors.RetriableError as error:
            logger.info("%s: broker %s: %s", action, node_id, error)
        except kafka_errors.KafkaError as error:
            raise cluster.translate(action, error, acl) from error
    return found


def check(
    cluster: Cluster, action: str, answer: Any, acl: str, *, unless: tuple[type[kafka_errors.KafkaError], ...] = ()
) -> None:
    """Raise Waybill's error if an answer has an error code, unless it is one of `unless`."""
    error = kafka_errors.for_code(answer.error_code)
    if error is kafka_errors.NoError or issubclass(error, unless):
        return
    raise cluster.translate(action, error(getattr(answer, "error_message", None) or error.__name__), acl)
