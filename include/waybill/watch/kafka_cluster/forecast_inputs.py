"""Read the inputs of a forecast: the cluster's state and rules, the streams, and the offsets that are not archived."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from waybill.archive.ingest.services import FindConnection
from waybill.base.errors import ConfigError, CoordinationUnavailable, KafkaUnavailable
from waybill.config.connections import KafkaEndpoint, find_connection
from waybill.config.models import Config, IsolationLevel
from waybill.config.names import TopicPartition
from waybill.services.coordination import Coordinator, ZooKeeperSession, read_ingest_states
from waybill.services.kafka.cluster import Cluster
from waybill.services.kafka.cluster_state import ClusterState, fetch_cluster_state
from waybill.services.kafka.controllers import Quorum, fetch_eligible_leaders, fetch_quorum
from waybill.services.kafka.kafka import KafkaSource, LogRange
from waybill.services.kafka.topic_configs import fetch_effective_configs
from waybill.watch.kafka_cluster.what_if import ClusterRules, TopicRules, Unarchived

logger = logging.getLogger(__name__)

_MIN_IN_SYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
_REQUEST_TIMEOUT = timedelta(seconds=5)
_RETRY_TIMEOUT = timedelta(seconds=30)
_AWAY_MS = 10_000
"""A controller that has not caught up for this time has failed. Kafka's fetch timeout is 2 s."""


class SeenLog(NamedTuple):
    """The log of a topic-partition when a watch last read it."""

    at_ms: int
    first_offset: int
    next_offset: int


FindSeenLog = Callable[[str, TopicPartition], SeenLog | None]
"""Returns the log of a topic-partition when a watch last read it; None if no watch has stored it."""


@dataclass(frozen=True, slots=True)
class ForecastInputs:
    """The inputs of a forecast."""

    state: ClusterState
    rules: ClusterRules
    streams: Mapping[str, list[TopicPartition]]
    """The topic-partitions of each stream of Kafka, sorted."""
    unarchived: Mapping[str, Mapping[TopicPartition, Unarchived]]
    """Offsets in Kafka that are not archived, by stream. Topic-partitions for which they are unknown are missing."""
    unknown_topics: tuple[str, ...]
    """Topics whose configs the user is not allowed to describe: the forecast assumes Kafka's defaults for them."""
    quorum_error: str = ""
    """Why the controllers are unknown; the forecast then assumes that they survive. '' if they are known."""


@contextmanager
def connect_cluster(config: Config, find: FindConnection = find_connection) -> Iterator[Cluster]:
    """Connect to the Kafka cluster of the config. Raises `ConfigError` or `KafkaUnavailable`."""
    endpoint = KafkaEndpoint.of(find(config.kafka.connection))
    with Cluster(endpoint, request_timeout=_REQUEST_TIMEOUT, retry_timeout=_RETRY_TIMEOUT) as cluster:
        yield cluster


def read_inputs(
    config: Config,
    cluster: Cluster,
    find: FindConnection = find_connection,
    *,
    seen: FindSeenLog = lambda *_: None,
) -> ForecastInputs:
    """Read the state of the cluster, with a few requests. `seen` is called for logs whose leaders do not answer.

    Raises `KafkaUnavailable` or `ConfigError`.
    """
    state = fetch_cluster_state(cluster)
    topics = {tp.topic for tp in state.partitions}
    configs = fetch_effective_configs(cluster, topics, (_MIN_IN_SYNC, _UNCLEAN))
    quorum, has_quorum, quorum_error = _fetch_quorum(cluster)
    rules = ClusterRules(
        topics={topic: _rules(values) for topic, values in configs.items()},
        eligible=fetch_eligible_leaders(cluster, topics),
        voters=frozenset() if quorum is None else quorum.voters,
        away=frozenset() if quorum is None else voters_away(quorum, state),
        has_quorum=has_quorum,
    )
    streams = _topic_partitions(config, state)
    unarchived = _count_unarchived(config, cluster, streams, find, seen)
    return ForecastInputs(state, rules, streams, unarchived, tuple(sorted(topics - configs.keys())), quorum_error)


def _rules(values: Mapping[str, str]) -> TopicRules:
    return TopicRules(int(values.get(_MIN_IN_SYNC, "1")), values.get(_UNCLEAN, "false") == "true")


def _fetch_quorum(cluster: Cluster) -> tuple[Quorum | None, bool, str]:
    """Return the controllers (None if unknown), whether one of them leads, and why they are unknown."""
    try:
        return fetch_quorum(cluster), True, ""
    except ConfigError as error:
        return None, True, str(error)
    except KafkaUnavailable as error:
        logger.warning("the forecast takes the controllers to have no majority now: %s", error)
        return None, False, ""


def voters_away(quorum: Quorum, state: ClusterState) -> frozenset[int]:
    """Return the controllers that have failed: for brokers the metadata show this, for the others their lag.

    Metadata do not list controllers that are not brokers. The leading controller knows when each of them last had the
    whole log.
    """
    brokers = {node_id for partition in state.partitions.values() for node_id in partition.replicas}
    newest_ms = max(quorum.caught_up_ms.values(), default=-1)
    return frozenset(
        node_id
        for node_id, caught_up_ms in quorum.caught_up_ms.items()
        if (node_id in brokers and node_id not in state.brokers)
        or (node_id != quorum.leader and 0 <= caught_up_ms < newest_ms - _AWAY_MS)
    )


def _topic_partitions(config: Config, state: ClusterState) -> dict[str, list[TopicPartition]]:
    matching = {
        name: {topic for topic in state.topic_ids if stream.matches(topic)}
        for name, stream in config.streams.items()
        if not stream.is_kinesis
    }
    return {name: sorted(tp for tp in state.partitions if tp.topic in topics) for name, topics in matching.items()}


def _count_unarchived(
    config: Config,
    cluster: Cluster,
    streams: Mapping[str, Iterable[TopicPartition]],
    find: FindConnection,
    seen: FindSeenLog,
) -> dict[str, dict[TopicPartition, Unarchived]]:
    """Return the offsets that are not archived, by stream; empty if ZooKeeper does not answer."""
    try:
        with ZooKeeperSession.of(config, find) as session:
            coordinators = {name: Coordinator.sharing(session, config, name) for name in streams}
            states = read_ingest_states(session, coordinators, streams)
    except CoordinationUnavailable as error:
        logger.warning("what is not archived is not known: %s", error)
        return {}
    source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
    logs = source.offsets_briefly({tp for tps in streams.values() for tp in tps})
    unarchived: dict[str, dict[TopicPartition, Unarchived]] = {}
    for name, tps in streams.items():
        committed = {tp: each.committed_offset for tp, each in states[name].committed.items()}
        counted = {tp: _unarchived(logs.get(tp), committed.get(tp), partial(seen, name, tp)) for tp in tps}
        unarchived[name] = {tp: each for tp, each in counted.items() if each is not None}
    return unarchived


def _unarchived(
    log: LogRange | None, committed_offset: int | None, seen: Callable[[], SeenLog | None]
) -> Unarchived | None:
    """Return the offsets of a topic-partition that are not archived. `log`: None if the leader or an ACL is missing."""
    if log is not None:
        return Unarchived(max(0, log.end - (log.earliest if committed_offset is None else committed_offset)))
    last = seen()
    if last is None:
        return None
    return Unarchived(
        max(0, last.next_offset - (last.first_offset if committed_offset is None else committed_offset)), last.at_ms
    )
