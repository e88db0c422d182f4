"""Carrying out a plan of topics, with a throttle on what is copied.

A crash leaves nothing that the next run does not find. Copies go on in Kafka, and the next plan waits for them. A
throttle is named in the topic's own configuration, and the next plan removes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from waybill import failpoints
from waybill.brokers.plan import (
    THROTTLED,
    AddPartitions,
    AlterConfigs,
    CreateTopic,
    ElectPreferredLeaders,
    Inputs,
    Move,
    Reassign,
    RemoveThrottle,
    Step,
    TopicPlan,
    WaitForReassignment,
    make_plan,
)
from waybill.brokers.plan_text import describe
from waybill.config.kafka_topics import KafkaTopic
from waybill.errors import ConfigError, KafkaUnavailable
from waybill.names import TopicPartition
from waybill.sources.cluster import Cluster
from waybill.sources.cluster_state import fetch_cluster_state
from waybill.sources.log_directories import fetch_leader_sizes
from waybill.sources.topic_changes import (
    Resource,
    add_partitions,
    change_configs,
    create_topic,
    elect_preferred_leaders,
    fetch_broker_configs,
    fetch_reassignments,
    reassign,
)
from waybill.sources.topic_configs import fetch_effective_configs

__all__ = ["apply_plan", "read_plan_inputs"]

logger = logging.getLogger(__name__)

_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_MOST_MOVES = 50
"""So many topic-partitions are copied at once, so that an election does not wait for many copies."""
_PAUSE_SECONDS = 0.5
_MOST_ROUNDS = 5

ReadInputs = Callable[[], Inputs]
Report = Callable[[str], None]


def read_plan_inputs(cluster: Cluster, declared: Mapping[str, KafkaTopic]) -> Inputs:
    """Read what a plan starts from. Raises `KafkaUnavailable` or `ConfigError`."""
    state = fetch_cluster_state(cluster)
    missing = declared.keys() - state.topic_ids.keys()
    # A full list leaves out topics that the user may not describe. Asked by name, Kafka says that it refuses them.
    refused = fetch_cluster_state(cluster, sorted(missing)).refused if missing else frozenset()
    existing = sorted(declared.keys() & state.topic_ids.keys())
    leaders = {tp: each.leader for tp, each in state.partitions.items() if tp.topic in existing and each.has_leader}
    return Inputs(
        declared=declared,
        state=replace(state, refused=state.refused | refused),
        configs=fetch_effective_configs(cluster, existing, None) if existing else {},
        reassigning=fetch_reassignments(cluster) or frozenset(),
        sizes=_fetch_sizes(cluster, leaders),
    )


def _fetch_sizes(cluster: Cluster, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
    """Return the bytes of topic-partitions; None if the user may not ask."""
    try:
        return fetch_leader_sizes(cluster, leaders)
    except ConfigError as error:
        logger.info("the bytes to copy are not known: %s", error)
        return None


def apply_plan(
    cluster: Cluster,
    read_inputs: ReadInputs,
    approved: TopicPlan,
    *,
    throttle_bytes: int | None,
    timeout_seconds: float,
    report: Report,
) -> TopicPlan:
    """Carry out a plan, and return the plan of what is left: without steps, unless something changed meanwhile.

    `approved`: what a person agreed to. Data is copied only as it says. `throttle_bytes`: bytes per second that each
    broker sends and receives for copies; None: without a limit. `timeout_seconds`: for the copies of one topic.

    Raises `KafkaUnavailable` at the timeout: Kafka goes on copying, and to apply again resumes. Raises `ConfigError`
    for a missing ACL, which it names.
    """
    moves = {move.tp: move.after for step in approved.steps if isinstance(step, Reassign) for move in step.moves}
    plan = approved
    for _ in range(_MOST_ROUNDS):
        steps = [step for step in plan.steps if _is_approved(step, moves)]
        if not steps:
            break
        for step in steps:
            report(describe(step))
            _carry_out(cluster, step, throttle_bytes, timeout_seconds, report)
            failpoints.reach("topics.changed")
        plan = make_plan(read_inputs())
    return plan


def _is_approved(step: Step, moves: Mapping[TopicPartition, tuple[int, ...]]) -> bool:
    return not isinstance(step, Reassign) or all(moves.get(move.tp) == move.after for move in step.moves)


def _carry_out(
    cluster: Cluster, step: Step, throttle_bytes: int | None, timeout_seconds: float, report: Report
) -> None:
    match step:
        case CreateTopic():
            create_topic(cluster, step.topic, step.replicas, step.configs)
            _wait_until_known(cluster, step.topic, len(step.replicas))
        case AlterConfigs():
            changes = {name: value for name, (_, value) in step.changes.items()}
            change_configs(cluster, Resource.TOPIC, step.topic, changes)
        case AddPartitions():
            add_partitions(cluster, step.topic, step.existing, step.replicas)
            _wait_until_known(cluster, step.topic, step.existing + len(step.replicas))
        case Reassign():
            for start in range(0, len(step.moves), _MOST_MOVES):
                moves = step.moves[start : start + _MOST_MOVES]
                _copy(cluster, step.topic, moves, throttle_bytes, timeout_seconds, report)
        case WaitForReassignment():
            tps = [TopicPartition(step.topic, number) for number in step.partitions]
            _wait_for_copies(cluster, tps, timeout_seconds, report)
            _remove_throttle(cluster, step.topic)
        case RemoveThrottle():
            _remove_throttle(cluster, step.topic)
        case ElectPreferredLeaders():
            elect_preferred_leaders(cluster, [TopicPartition(step.topic, number) for number in step.partitions])


def _wait_until_known(cluster: Cluster, topic: str, partitions: int) -> None:
    """Wait until every topic-partition has a leader, so that the next plan does not find it missing."""
    for _ in cluster.attempts(f"topic {topic} was changed, but not all its topic-partitions have leaders"):
        found = fetch_cluster_state(cluster, [topic]).topic_partitions(topic)
        if len(found) >= partitions and all(each.has_leader for each in found.values()):
            return


# --- copies -----------------------------------------------------------------------------------------------------------


def _copy(
    cluster: Cluster,
    topic: str,
    moves: Sequence[Move],
    throttle_bytes: int | None,
    timeout_seconds: float,
    report: Report,
) -> None:
    """Copy topic-partitions to their new replicas, and wait until these are in sync."""
    if throttle_bytes is not None:
        _set_throttle(cluster, topic, moves, throttle_bytes)
        failpoints.reach("topics.throttled")
    reassign(cluster, {move.tp: move.after for move in moves})
    failpoints.reach("topics.reassigned")
    _wait_for_copies(cluster, [move.tp for move in moves], timeout_seconds, report)
    failpoints.reach("topics.copied")
    if throttle_bytes is not None:
        _remove_throttle(cluster, topic)


def _set_throttle(cluster: Cluster, topic: str, moves: Sequence[Move], throttle_bytes: int) -> None:
    """Limit what the brokers send and receive for these copies, and for nothing else.

    The topic comes first: its configuration is what the next run finds after a crash.
    """
    leader, follower = THROTTLED
    sending = [f"{move.tp.partition}:{node_id}" for move in moves for node_id in move.before]
    receiving = [f"{move.tp.partition}:{node_id}" for move in moves for node_id in move.added]
    change_configs(cluster, Resource.TOPIC, topic, {leader: ",".join(sending), follower: ",".join(receiving)})
    brokers = sorted({node_id for move in moves for node_id in (*move.before, *move.added)})
    limited = fetch_broker_configs(cluster, brokers, _RATES)
    for node_id in brokers:
        if limited.get(node_id):
            logger.warning("broker %s has a replication throttle already, which stays: %s", node_id, limited[node_id])
            continue
        change_configs(cluster, Resource.BROKER, str(node_id), dict.fromkeys(_RATES, str(throttle_bytes)))


def _remove_throttle(cluster: Cluster, topic: str) -> None:
    """Remove a topic's throttle; and the limits of the brokers, unless another topic is being copied."""
    if not fetch_reassignments(cluster):
        brokers = fetch_cluster_state(cluster, []).brokers
        for node_id, limits in fetch_broker_configs(cluster, sorted(brokers), _RATES).items():
            if limits:
                change_configs(cluster, Resource.BROKER, str(node_id), dict.fromkeys(limits))
    # The topic last: its configuration is what the next run finds after a crash.
    change_configs(cluster, Resource.TOPIC, topic, dict.fromkeys(THROTTLED))


def _wait_for_copies(cluster: Cluster, tps: Sequence[TopicPartition], timeout_seconds: float, report: Report) -> None:
    """Wait until topic-partitions are copied. Raises `KafkaUnavailable` at the timeout."""
    deadline = time.monotonic() + timeout_seconds
    remaining = set(tps)
    while True:
        copying = fetch_reassignments(cluster)
        left = remaining & (copying or frozenset())
        if len(left) < len(remaining):
            report(f"  {len(tps) - len(left)} of {len(tps)} topic-partitions are copied")
        remaining = left
        if not remaining:
            return
        if time.monotonic() > deadline:
            raise KafkaUnavailable(
                f"{sorted(remaining)[0]} and {len(remaining) - 1} more are still being copied after "
                f"{timeout_seconds:g} s. Kafka goes on; to wait for the rest, run `waybill kafka apply` again, with a "
                f"larger --timeout or --throttle"
            )
        time.sleep(_PAUSE_SECONDS)
