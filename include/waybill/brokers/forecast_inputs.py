"""Reading what a forecast starts from: the cluster's state and rules, the streams, and what is not archived."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from waybill.brokers.what_if import ClusterRules, TopicRules
from waybill.config import Config, IsolationLevel
from waybill.connections import KafkaEndpoint, find_connection
from waybill.coordination import Coordinator, ZooKeeperSession, read_ingest_states
from waybill.errors import ConfigError, CoordinationUnavailable, KafkaUnavailable
from waybill.ingest.services import FindConnection
from waybill.names import TopicPartition
from waybill.sources.cluster import Cluster
from waybill.sources.cluster_state import ClusterState, fetch_cluster_state
from waybill.sources.controllers import fetch_eligible_leaders, fetch_quorum
from waybill.sources.kafka import KafkaSource
from waybill.sources.topic_configs import fetch_effective_configs

__all__ = ["ForecastInputs", "connect_cluster", "read_inputs"]

logger = logging.getLogger(__name__)

_MIN_IN_SYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
_REQUEST_TIMEOUT = timedelta(seconds=5)
_RETRY_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class ForecastInputs:
    """All that a forecast needs."""

    state: ClusterState
    rules: ClusterRules
    streams: Mapping[str, list[TopicPartition]]
    """The topic-partitions of each stream of Kafka, sorted."""
    unarchived: Mapping[str, Mapping[TopicPartition, int]] | None
    """Offsets that are in Kafka and not in the archive. None: ZooKeeper does not answer, so this is not known."""
    unknown_topics: tuple[str, ...]
    """Topics whose configuration the user may not describe: the forecast takes Kafka's defaults for them."""


@contextmanager
def connect_cluster(config: Config, find: FindConnection = find_connection) -> Iterator[Cluster]:
    """Connect to the Kafka cluster of the config. Raises `ConfigError` or `KafkaUnavailable`."""
    endpoint = KafkaEndpoint.of(find(config.kafka.connection))
    with Cluster(endpoint, request_timeout=_REQUEST_TIMEOUT, retry_timeout=_RETRY_TIMEOUT) as cluster:
        yield cluster


def read_inputs(config: Config, cluster: Cluster, find: FindConnection = find_connection) -> ForecastInputs:
    """Read the state of the cluster, with a few requests. Raises `KafkaUnavailable` or `ConfigError`."""
    state = fetch_cluster_state(cluster)
    topics = {tp.topic for tp in state.partitions}
    configs = fetch_effective_configs(cluster, topics, (_MIN_IN_SYNC, _UNCLEAN))
    rules = ClusterRules(
        topics={topic: _rules(values) for topic, values in configs.items()},
        eligible=fetch_eligible_leaders(cluster, topics),
        voters=_fetch_voters(cluster),
    )
    streams = _topic_partitions(config, state)
    unarchived = _count_unarchived(config, cluster, streams, find)
    return ForecastInputs(state, rules, streams, unarchived, tuple(sorted(topics - configs.keys())))


def _rules(values: Mapping[str, str]) -> TopicRules:
    return TopicRules(int(values.get(_MIN_IN_SYNC, "1")), values.get(_UNCLEAN, "false") == "true")


def _fetch_voters(cluster: Cluster) -> frozenset[int]:
    """Return the controllers; none if that is not known."""
    try:
        quorum = fetch_quorum(cluster)
    except (ConfigError, KafkaUnavailable) as error:
        logger.warning("the forecast takes the controllers to survive: %s", error)
        return frozenset()
    return frozenset() if quorum is None else quorum.voters


def _topic_partitions(config: Config, state: ClusterState) -> dict[str, list[TopicPartition]]:
    matching = {
        name: {topic for topic in state.topic_ids if stream.matches(topic)}
        for name, stream in config.streams.items()
        if not stream.is_kinesis
    }
    return {name: sorted(tp for tp in state.partitions if tp.topic in topics) for name, topics in matching.items()}


def _count_unarchived(
    config: Config, cluster: Cluster, streams: Mapping[str, Iterable[TopicPartition]], find: FindConnection
) -> dict[str, dict[TopicPartition, int]] | None:
    """Return how many offsets of each topic-partition are not archived; None if ZooKeeper does not answer."""
    try:
        with ZooKeeperSession.of(config, find) as session:
            coordinators = {name: Coordinator.sharing(session, config, name) for name in streams}
            states = read_ingest_states(session, coordinators, streams)
    except CoordinationUnavailable as error:
        logger.warning("what is not archived is not known: %s", error)
        return None
    source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
    logs = source.offsets_briefly({tp for tps in streams.values() for tp in tps})
    unarchived: dict[str, dict[TopicPartition, int]] = {}
    for name, tps in streams.items():
        committed = states[name].committed
        unarchived[name] = {
            tp: max(0, logs[tp].end - (committed[tp].committed_offset if tp in committed else logs[tp].earliest))
            for tp in tps
            if tp in logs
        }
    return unarchived
