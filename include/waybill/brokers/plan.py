"""The steps from the topics as they are to the topics as declared. A pure function of the cluster's state.

A plan never deletes and never shrinks: a difference that only that would remove is reported as refused. A step that is
done is no difference any more, so to plan again after a crash is to resume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from waybill.brokers.placement import alternate_racks, complete, has_rack_fault, place
from waybill.config.kafka_topics import KafkaTopic
from waybill.names import TopicPartition
from waybill.sources.cluster_state import ClusterState

__all__ = [
    "AddPartitions",
    "AlterConfigs",
    "CreateTopic",
    "Difference",
    "ElectPreferredLeaders",
    "Inputs",
    "Move",
    "Reassign",
    "RemoveThrottle",
    "Step",
    "TopicPlan",
    "WaitForReassignment",
    "make_plan",
]

THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""The configs of a topic that name the replicas under a throttle."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic that does not exist."""

    topic: str
    replicas: Sequence[tuple[int, ...]]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """Change configs of a topic."""

    topic: str
    changes: Mapping[str, tuple[str | None, str]]
    """By name: the value as it is (None: not set), and as declared."""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add topic-partitions to a topic."""

    topic: str
    existing: int
    replicas: Sequence[tuple[int, ...]]
    """Of the new topic-partitions."""


@dataclass(frozen=True, slots=True)
class Move:
    """The replicas of a topic-partition, as they are and as they are to be."""

    tp: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int | None
    """What the new replicas copy. None: not known."""

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(node_id for node_id in self.after if node_id not in self.before)


@dataclass(frozen=True, slots=True)
class Reassign:
    """Copy topic-partitions to other brokers, under a throttle."""

    topic: str
    moves: Sequence[Move]

    @property
    def size_bytes(self) -> int | None:
        """Return the bytes that are copied; None if that is not known."""
        sizes = [move.size_bytes for move in self.moves]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True, slots=True)
class WaitForReassignment:
    """Wait for topic-partitions that are being copied already."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoveThrottle:
    """Remove the throttle of a copy that has ended."""

    topic: str


@dataclass(frozen=True, slots=True)
class ElectPreferredLeaders:
    """Let the first replica of topic-partitions lead again."""

    topic: str
    partitions: tuple[int, ...]


Step = (
    CreateTopic | AlterConfigs | AddPartitions | Reassign | WaitForReassignment | RemoveThrottle | ElectPreferredLeaders
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference that no step removes."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a plan starts from."""

    declared: Mapping[str, KafkaTopic]
    state: ClusterState
    configs: Mapping[str, Mapping[str, str]]
    """Of each declared topic that exists: the configs that apply. Topics that may not be described are missing."""
    reassigning: frozenset[TopicPartition] = frozenset()
    sizes: Mapping[TopicPartition, int] | None = None
    """Bytes of a topic-partition on its leader. None: not known."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What is to be done, in this order, and what is not done."""

    steps: Sequence[Step] = ()
    refused: Sequence[Difference] = ()

    @property
    def moves_data(self) -> bool:
        return any(isinstance(step, Reassign) for step in self.steps)


def make_plan(inputs: Inputs) -> TopicPlan:
    """Return the steps to the declared topics, by topic in the order of names."""
    steps: list[Step] = []
    refused: list[Difference] = []
    leaders, load = _preferred_leaders(inputs.state), _replica_load(inputs.state)
    existing = {tp.topic for tp in inputs.state.partitions}
    for topic, declared in sorted(inputs.declared.items()):
        if topic in inputs.state.refused:
            refused.append(Difference(topic, "Kafka does not let the user describe it: give the ACL Describe on it"))
        elif topic not in existing:
            _create(topic, declared, inputs, leaders, steps, refused)
        else:
            # Copies come first: Kafka wants new topic-partitions to have as many replicas as the others, and a broker
            # before Kafka 3.9 refuses writes if min.insync.replicas is more than there are replicas.
            copies = list(_replicas(topic, declared, inputs, load, refused))
            steps += copies
            steps += _partitions(topic, declared, inputs, leaders, _factor(topic, inputs, copies), refused)
            steps += _configs(topic, declared, inputs, refused)
            steps += _leaders(topic, inputs)
    return TopicPlan(steps, refused)


def _preferred_leaders(state: ClusterState) -> Counter[int]:
    return Counter(partition.replicas[0] for partition in state.partitions.values() if partition.replicas)


def _replica_load(state: ClusterState) -> Counter[int]:
    return Counter(node_id for partition in state.partitions.values() for node_id in partition.replicas)


def _create(
    topic: str,
    declared: KafkaTopic,
    inputs: Inputs,
    leaders: Counter[int],
    steps: list[Step],
    refused: list[Difference],
) -> None:
    brokers = inputs.state.brokers
    if declared.replication_factor > len(brokers):
        refused.append(Difference(topic, _too_few(declared.replication_factor, len(brokers))))
        return
    replicas = _place(inputs, leaders, declared.partitions, declared.replication_factor)
    steps.append(CreateTopic(topic, replicas, declared.topic_configs()))


def _place(inputs: Inputs, leaders: Counter[int], partitions: int, factor: int) -> list[tuple[int, ...]]:
    """Place topic-partitions, starting with the broker that leads the fewest, and count their leaders."""
    order = alternate_racks(inputs.state.brokers.values())
    start = min(range(len(order)), key=lambda i: (leaders[order[i]], i))
    replicas = place(inputs.state.brokers, partitions, factor, start=start)
    leaders.update(each[0] for each in replicas)
    return replicas


def _too_few(factor: int, live: int) -> str:
    return f"it needs {factor} replicas, and {live} brokers are alive: start brokers, or lower replication_factor"


def _configs(topic: str, declared: KafkaTopic, inputs: Inputs, refused: list[Difference]) -> Iterator[Step]:
    actual = inputs.configs.get(topic)
    if actual is None:
        refused.append(
            Difference(topic, "its configuration is not known: give the user the ACL DescribeConfigs on the topic")
        )
        return
    wanted = declared.topic_configs()
    changes = {
        name: (actual.get(name), value)
        for name, value in sorted(wanted.items())
        if _normal(actual.get(name)) != _normal(value)
    }
    if changes:
        yield AlterConfigs(topic, changes)


def _normal(value: str | None) -> str | None:
    """Return a value such that lists compare by their members: Kafka prints `delete,compact` and `compact,delete`."""
    return None if value is None else ",".join(sorted(value.split(",")))


def _factor(topic: str, inputs: Inputs, copies: Sequence[Step]) -> int:
    """Return how many replicas the first topic-partition of a topic has after the copies."""
    first = TopicPartition(topic, 0)
    for step in copies:
        if isinstance(step, Reassign):
            for move in step.moves:
                if move.tp == first:
                    return len(move.after)
    return len(inputs.state.partitions[first].replicas)


def _partitions(
    topic: str, declared: KafkaTopic, inputs: Inputs, leaders: Counter[int], factor: int, refused: list[Difference]
) -> Iterator[Step]:
    existing = len(inputs.state.topic_partitions(topic))
    if existing > declared.partitions:
        refused.append(
            Difference(
                topic,
                f"it has {existing} topic-partitions, and {declared.partitions} are declared: Kafka cannot remove any. "
                f"Declare {existing}",
            )
        )
    elif existing < declared.partitions:
        if factor > len(inputs.state.brokers):
            refused.append(Difference(topic, _too_few(factor, len(inputs.state.brokers))))
            return
        added = _place(inputs, leaders, declared.partitions - existing, factor)
        yield AddPartitions(topic, existing, added)


def _replicas(
    topic: str, declared: KafkaTopic, inputs: Inputs, load: Counter[int], refused: list[Difference]
) -> Iterator[Step]:
    """Yield the copies of a topic. What is being copied is waited for, and compared when that has ended."""
    partitions = sorted(inputs.state.topic_partitions(topic).items())
    moving = tuple(number for number, _ in partitions if TopicPartition(topic, number) in inputs.reassigning)
    if moving:
        yield WaitForReassignment(topic, moving)
    resting = {TopicPartition(topic, n): each.replicas for n, each in partitions if n not in moving}
    _refuse_replicas(topic, declared, inputs, resting.values(), refused)
    moves = []
    for tp, before in resting.items():
        is_complete = len(before) == declared.replication_factor and not has_rack_fault(before, inputs.state.brokers)
        if is_complete or len(before) > declared.replication_factor:
            continue
        try:
            after = complete(before, declared.replication_factor, inputs.state.brokers, load)
        except ValueError as error:
            refused.append(Difference(topic, f"partition {tp.partition}: {error}"))
            continue
        move = Move(tp, before, after, _copied_bytes(tp, before, after, inputs.sizes))
        load.update(move.added)
        moves.append(move)
    if moves:
        yield Reassign(topic, moves)
    elif not moving and any(inputs.configs.get(topic, {}).get(key) for key in THROTTLED):
        yield RemoveThrottle(topic)


def _refuse_replicas(
    topic: str,
    declared: KafkaTopic,
    inputs: Inputs,
    replicas: Collection[tuple[int, ...]],
    refused: list[Difference],
) -> None:
    """Report replicas that are too many, or on brokers that are away."""
    if any(len(each) > declared.replication_factor for each in replicas):
        refused.append(
            Difference(
                topic,
                f"it has more replicas than the {declared.replication_factor} that are declared: Waybill removes no "
                f"replica. Raise replication_factor, or use kafka-reassign-partitions.sh",
            )
        )
    away = {node_id for each in replicas for node_id in each} - inputs.state.brokers.keys()
    if away:
        names = ", ".join(map(str, sorted(away)))
        refused.append(
            Difference(
                topic,
                f"it has replicas on brokers that are not alive ({names}): Waybill moves none of them. Start the "
                f"brokers, or move their replicas with kafka-reassign-partitions.sh",
            )
        )


def _copied_bytes(
    tp: TopicPartition, before: tuple[int, ...], after: tuple[int, ...], sizes: Mapping[TopicPartition, int] | None
) -> int | None:
    if sizes is None or tp not in sizes:
        return None
    return sizes[tp] * len(set(after) - set(before))


def _leaders(topic: str, inputs: Inputs) -> Iterator[Step]:
    numbers = tuple(
        number
        for number, partition in sorted(inputs.state.topic_partitions(topic).items())
        if partition.has_leader
        and partition.leader != partition.replicas[0]
        and partition.replicas[0] in partition.in_sync
        and TopicPartition(topic, number) not in inputs.reassigning
    )
    if numbers:
        yield ElectPreferredLeaders(topic, numbers)
