"""One request of Kafka's admin protocol: its retries, and the errors of its answers in Waybill's words."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kafka import errors as kafka_errors

from waybill.names import TopicPartition
from waybill.sources.cluster import Cluster

__all__ = ["ask", "by_topic", "check"]

logger = logging.getLogger(__name__)


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
    """Return the answer of any broker, or of one broker: then None if it does not answer.

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


def check(
    cluster: Cluster, action: str, answer: Any, acl: str, *, unless: tuple[type[kafka_errors.KafkaError], ...] = ()
) -> None:
    """Raise Waybill's error if an answer has an error code, unless it is one of `unless`."""
    error = kafka_errors.for_code(answer.error_code)
    if error is kafka_errors.NoError or issubclass(error, unless):
        return
    raise cluster.translate(action, error(getattr(answer, "error_message", None) or error.__name__), acl)
