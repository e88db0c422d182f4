"""Execute a plan of topics.

After a crash, the next `waybill kafka apply` finds everything that this one left. Kafka goes on copying, and the next
plan waits for the copies. The records of throttles name the topics whose throttle the next plan removes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from waybill.base import failpoints
from waybill.base.errors import ConfigError, KafkaUnavailable
from waybill.config.models.kafka_topics import DeclaredTopic
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster import Cluster
from waybill.services.kafka.cluster_state import fetch_cluster_state
from waybill.services.kafka.log_directories import fetch_leader_sizes
from waybill.services.kafka.topic_changes import (
    Resource,
    add_partitions,
    change_configs,
    create_topic,
    elect_preferred_leaders,
    fetch_reassignments,
    reassign,
)
from waybill.services.kafka.topic_configs import fetch_effective_configs
from waybill.services.store import Store
from waybill.watch.kafka_cluster.plan_text import describe
from waybill.watch.kafka_cluster.throttle import Throttle, throttled_topics
from waybill.watch.kafka_cluster.topics_plan import (
    AddPartitions,
    AlterConfigs,
    CreateTopic,
    ElectPreferredLeaders,
    Inputs,
    Reassign,
    RemoveThrottle,
    RiskyConfigs,
    Step,
    TopicPlan,
    WaitForReassignment,
    make_plan,
)

logger = logging.getLogger(__name__)

_MOST_MOVES = 50
"""The most topic-partitions that are copied at once: the more copies share the throttle, the later each of them
ends."""
_PAUSE_SECONDS = 0.5
_MOST_ROUNDS = 5

ReadInputs = Callable[[], Inputs]
Report = Callable[[str], None]


def read_plan_inputs(cluster: Cluster, store: Store, declared: Mapping[str, DeclaredTopic]) -> Inputs:
    """Read the inputs of a plan. Raises `KafkaUnavailable`, `StoreUnavailable` or `ConfigError`."""
    state = fetch_cluster_state(cluster)
    missing = declared.keys() - state.topic_ids.keys()
    # A full list leaves out topics that the user is not allowed to describe. A request by name returns an error for
    # them.
    refused = fetch_cluster_state(cluster, sorted(missing)).refused if missing else frozenset()
    existing = sorted(declared.keys() & state.topic_ids.keys())
    leaders = {tp: each.leader for tp, each in state.partitions.items() if tp.topic in existing and each.has_leader}
    return Inputs(
        declared=declared,
        state=replace(state, refused=state.refused | refused),
        configs=fetch_effective_configs(cluster, existing, None) if existing else {},
        reassigning=fetch_reassignments(cluster),
        throttled=throttled_topics(store),
        sizes=_fetch_sizes(cluster, leaders),
    )


def _fetch_sizes(cluster: Cluster, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
    """Return the bytes of topic-partitions; None if the user is not allowed to read them."""
    try:
        return fetch_leader_sizes(cluster, leaders)
    except ConfigError as error:
        logger.info("the bytes to copy are not known: %s", error)
        return None


def apply_plan(
    cluster: Cluster,
    read_inputs: ReadInputs,
    approved: TopicPlan,
    throttle: Throttle,
    *,
    allow_loss: bool,
    timeout_seconds: float,
    report: Report,
) -> TopicPlan:
    """Execute a plan, and return a plan of the steps that are left.

    `approved`: the plan that a person approved. Copies, new topic-partitions and risky changes are executed only if
    this plan contains them, and risky changes only with `allow_loss`. `timeout_seconds`: for the copies of one topic.

    Raises `KafkaUnavailable` at the timeout: Kafka goes on copying, and the next apply resumes. Raises `ConfigError`
    for a missing ACL, which it names.
    """
    plan, before = approved, list[Step]()
    for _ in range(_MOST_ROUNDS):
        steps = [step for step in plan.steps if _is_agreed(step, approved, allow_loss=allow_loss)]
        if not steps:
            break
        if steps == before:
            time.sleep(_PAUSE_SECONDS)  # a broker may see the last change a moment later than the controller
        for step in steps:
            report(describe(step))
            _carry_out(cluster, step, throttle, timeout_seconds, report)
            failpoints.reach("topics.changed")
        plan, before = make_plan(read_inputs()), steps
    return plan


def _is_agreed(step: Step, approved: TopicPlan, *, allow_loss: bool) -> bool:
    """Return whether a step needs no approval, or is in the plan that a person approved."""
    match step:
        case Reassign():
            agreed = {
                move.tp: move.after for each in approved.steps if isinstance(each, Reassign) for move in each.moves
            }
            return all(agreed.get(move.tp) == move.after for move in step.moves)
        case AddPartitions():
            return any(
                isinstance(each, AddPartitions)
                and (each.topic, each.existing, len(each.replicas)) == (step.topic, step.existing, len(step.replicas))
                for each in approved.steps
            )
        case RiskyConfigs():
            agreed_to = [
                each.changes for each in approved.steps if isinstance(each, RiskyConfigs) and each.topic == step.topic
            ]
            return allow_loss and any(step.changes.items() <= changes.items() for changes in agreed_to)
        case _:
            return True


def _carry_out(cluster: Cluster, step: Step, throttle: Throttle, timeout_seconds: float, report: Report) -> None:
    match step:
        case CreateTopic():
            create_topic(cluster, step.topic, step.replicas, step.configs)
            _wait_until_known(cluster, step.topic, len(step.replicas))
        case AlterConfigs() | RiskyConfigs():
            changes = {name: change.after for name, change in step.changes.items()}
            change_configs(cluster, Resource.TOPIC, step.topic, changes)
        case AddPartitions():
            add_partitions(cluster, step.topic, step.existing, step.replicas)
            _wait_until_known(cluster, step.topic, step.existing + len(step.replicas))
        case Reassign():
            _copy(cluster, step, throttle, timeout_seconds, report)
        case WaitForReassignment():
            throttle.adjust(step.topic)
            tps = [TopicPartition(step.topic, number) for number in step.partitions]
            _wait_for_copies(cluster, tps, time.monotonic() + timeout_seconds, report)
            throttle.remove(step.topic)
        case RemoveThrottle():
            throttle.remove(step.topic)
        case ElectPreferredLeaders():
            elect_preferred_leaders(cluster, [TopicPartition(step.topic, number) for number in step.partitions])


def _wait_until_known(cluster: Cluster, topic: str, partitions: int) -> None:
    """Wait until every topic-partition has a leader, so that the next plan does not find it missing."""
    for _ in cluster.attempts(f"topic {topic} was changed, but not all its topic-partitions have leaders"):
        found = fetch_cluster_state(cluster, [topic]).topic_partitions(topic)
        if len(found) >= partitions and all(each.has_leader for each in found.values()):
            return


# --- copies -----------------------------------------------------------------------------------------------------------


def _copy(cluster: Cluster, step: Reassign, throttle: Throttle, timeout_seconds: float, report: Report) -> None:
    """Copy topic-partitions to their new replicas, and wait until these are in sync."""
    deadline = time.monotonic() + timeout_seconds
    for start in range(0, len(step.moves), _MOST_MOVES):
        moves = step.moves[start : start + _MOST_MOVES]
        throttle.limit(step.topic, moves)
        reassign(cluster, {move.tp: move.after for move in moves})
        failpoints.reach("topics.reassigned")
        _wait_for_copies(cluster, [move.tp for move in moves], deadline, report)
    failpoints.reach("topics.copied")
    throttle.remove(step.topic)


def _wait_for_copies(cluster: Cluster, tps: Sequence[TopicPartition], deadline: float, report: Report) -> None:
    """Wait until topic-partitions are copied. `deadline`: by `time.monotonic`; after it raises `KafkaUnavailable`."""
    remaining = set(tps)
    while True:
        copying = fetch_reassignments(cluster)
        if copying is None:
            raise ConfigError("the end of the copies is not known: give the user the ACL Describe on the cluster")
        left = remaining & copying.keys()
        if len(left) < len(remaining):
            report(f"  {len(tps) - len(left)} of {len(tps)} topic-partitions are copied")
        remaining = left
        if not remaining:
            return
        if time.monotonic() > deadline:
            more = f" and {len(remaining) - 1} more" if len(remaining) > 1 else ""
            raise KafkaUnavailable(
                f"{sorted(remaining)[0]}{more} are still being copied at the end of --timeout. Kafka goes on. To wait "
                f"for the rest, run `waybill kafka apply` again with a larger --timeout. With a larger --throttle, "
                f"the copies become faster"
            )
        time.sleep(_PAUSE_SECONDS)
