"""The steps that change the existing topics to the declared ones. A pure function of the cluster's state.

No step removes a topic, a topic-partition or a replica: if the declared topic needs such a step, the plan lists the
difference as refused. Changes of configs that can lose messages are a separate step (`RiskyConfigs`). A plan holds only
steps that are still needed, so the next plan after a crash holds the remaining steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from waybill.config.models.kafka_topics import DeclaredTopic
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import ClusterState
from waybill.watch.kafka_cluster.config_changes import ConfigChange, split_by_risk
from waybill.watch.kafka_cluster.placement import alternate_racks, complete, has_rack_fault, place

_MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic that does not exist."""

    topic: str
    replicas: Sequence[tuple[int, ...]]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """Change configs of a topic, without the loss of a message."""

    topic: str
    changes: Mapping[str, ConfigChange]


@dataclass(frozen=True, slots=True)
class RiskyConfigs:
    """Change configs such that Kafka deletes messages, or that acknowledged messages can be lost with a broker."""

    topic: str
    changes: Mapping[str, ConfigChange]
    """The changes, each with its risk."""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add topic-partitions to a topic. Kafka cannot remove them again."""

    topic: str
    existing: int
    replicas: Sequence[tuple[int, ...]]
    """The replicas of each new topic-partition."""


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """The current and the intended replicas of a topic-partition."""

    tp: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int | None
    """The bytes that the new replicas copy. None: unknown."""

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(node_id for node_id in self.after if node_id not in self.before)


@dataclass(frozen=True, slots=True)
class Reassign:
    """Copy topic-partitions to other brokers, under a throttle."""

    topic: str
    moves: Sequence[ReplicaMove]

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
    """Remove a throttle that Waybill set for a copy that has ended."""

    topic: str


@dataclass(frozen=True, slots=True)
class ElectPreferredLeaders:
    """Elect the first replica of topic-partitions as leader again."""

    topic: str
    partitions: tuple[int, ...]


Step = (
    CreateTopic
    | AlterConfigs
    | RiskyConfigs
    | AddPartitions
    | Reassign
    | WaitForReassignment
    | RemoveThrottle
    | ElectPreferredLeaders
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference that no step removes."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a plan."""

    declared: Mapping[str, DeclaredTopic]
    state: ClusterState
    configs: Mapping[str, Mapping[str, str]]
    """The configs of each existing declared topic. Topics that the user is not allowed to describe are missing."""
    reassigning: Mapping[TopicPartition, tuple[int, ...]] | None = field(default_factory=dict)
    """The replicas that topic-partitions will have after a running copy. None: the user is not allowed to list
    copies."""
    throttled: frozenset[str] = frozenset()
    """Topics for whose copies Waybill has set a throttle that it has not removed."""
    sizes: Mapping[TopicPartition, int] | None = None
    """Bytes of a topic-partition on its leader. None: not known."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The steps in their order, and the differences that no step removes."""

    steps: Sequence[Step] = ()
    refused: Sequence[Difference] = ()

    @property
    def moves_data(self) -> bool:
        return any(isinstance(step, Reassign) for step in self.steps)

    @property
    def adds_partitions(self) -> bool:
        return any(isinstance(step, AddPartitions) for step in self.steps)

    @property
    def risks_messages(self) -> bool:
        return any(isinstance(step, RiskyConfigs) for step in self.steps)


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
            # Copies come first: Kafka requires that new topic-partitions have as many replicas as the others, and a
            # broker before Kafka 3.9 refuses writes if min.insync.replicas is larger than the number of replicas.
            copies = list(_replicas(topic, declared, inputs, load, refused))
            factors = _factors(topic, inputs, copies)
            steps += copies
            steps += _partitions(topic, declared, inputs, leaders, factors[0], refused)
            steps += _configs(topic, declared, inputs, min(factors.values()), refused)
            steps += _leaders(topic, inputs)
    copied = {step.topic for step in steps if isinstance(step, Reassign)} | {
        tp.topic for tp in inputs.reassigning or ()
    }
    if inputs.reassigning is not None:
        steps += [RemoveThrottle(topic) for topic in sorted(inputs.throttled - copied)]
    return TopicPlan(steps, refused)


def _preferred_leaders(state: ClusterState) -> Counter[int]:
    return Counter(partition.replicas[0] for partition in state.partitions.values() if partition.replicas)


def _replica_load(state: ClusterState) -> Counter[int]:
    return Counter(node_id for partition in state.partitions.values() for node_id in partition.replicas)


def _create(
    topic: str,
    declared: DeclaredTopic,
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


def _configs(
    topic: str, declared: DeclaredTopic, inputs: Inputs, factor: int, refused: list[Difference]
) -> Iterator[Step]:
    """Yield the changes of configs. `factor`: the fewest replicas that a topic-partition has after the copies."""
    actual = inputs.configs.get(topic)
    if actual is None:
        refused.append(
            Difference(topic, "its configuration is not known: give the user the ACL DescribeConfigs on the topic")
        )
        return
    safe, risky = split_by_risk(actual, declared.managed_configs())
    if _MIN_ISR in safe and declared.min_insync_replicas > factor:
        del safe[_MIN_ISR]
        refused.append(
            Difference(
                topic,
                f"{_MIN_ISR} is not raised to {declared.min_insync_replicas}, because it has {factor} replicas: Kafka "
                f"would refuse every write with acks=all. Declare a replication_factor of at least "
                f"{declared.min_insync_replicas}",
            )
        )
    # Changes that make Kafka keep more messages come first: a longer `retention` before a cleanup policy that deletes.
    if safe:
        yield AlterConfigs(topic, safe)
    if risky:
        yield RiskyConfigs(topic, risky)


def _factors(topic: str, inputs: Inputs, copies: Sequence[Step]) -> dict[int, int]:
    """Return how many replicas each topic-partition of a topic has after the copies."""
    found = {number: len(each.replicas) for number, each in inputs.state.topic_partitions(topic).items()}
    for tp, replicas in (inputs.reassigning or {}).items():
        if tp.topic == topic:
            found[tp.partition] = len(replicas)
    for step in copies:
        if isinstance(step, Reassign):
            found |= {move.tp.partition: len(move.after) for move in step.moves}
    return found


def _partitions(
    topic: str, declared: DeclaredTopic, inputs: Inputs, leaders: Counter[int], factor: int, refused: list[Difference]
) -> Iterator[Step]:
    """Yield the new topic-partitions.

    `factor`: the number of replicas of topic-partition 0, which Kafka requires for new topic-partitions too.
    """
    existing = len(inputs.state.topic_partitions(topic))
    if existing > declared.partitions:
        refused.append(
            Difference(
                topic,
                f"it has {existing} topic-partitions, and {declared.partitions} are declared: Kafka cannot remove any. "
                f"Declare {existing}",
            )
        )
    elif existing < declared.partitions and inputs.reassigning is not None:
        if factor > len(inputs.state.brokers):
            refused.append(
                Difference(
                    topic,
                    f"new topic-partitions need {factor} replicas, as the existing ones have, and "
                    f"{len(inputs.state.brokers)} brokers are alive: start brokers",
                )
            )
            return
        added = _place(inputs, leaders, declared.partitions - existing, factor)
        yield AddPartitions(topic, existing, added)


def _replicas(
    topic: str, declared: DeclaredTopic, inputs: Inputs, load: Counter[int], refused: list[Difference]
) -> Iterator[Step]:
    """Yield the copies of a topic. Running copies are waited for first, and compared after their end."""
    if inputs.reassigning is None:
        refused.append(
            Difference(
                topic,
                "its replicas and the number of its topic-partitions are not changed, because Kafka does not let the "
                "user list the copies that are under way: give the user the ACL Describe on the cluster",
            )
        )
        return
    partitions = sorted(inputs.state.topic_partitions(topic).items())
    moving = tuple(number for number, _ in partitions if TopicPartition(topic, number) in inputs.reassigning)
    if moving:
        yield WaitForReassignment(topic, moving)
    resting = {TopicPartition(topic, n): each.replicas for n, each in partitions if n not in moving}
    _refuse_replicas(topic, declared, inputs, resting.values(), refused)
    moves = []
    for tp, before in resting.items():
        factor = declared.replication_factor if declared.is_written("replication_factor") else len(before)
        is_complete = len(before) == factor and not has_rack_fault(before, inputs.state.brokers)
        if is_complete or len(before) > factor:
            continue
        try:
            after = complete(before, factor, inputs.state.brokers, load)
        except ValueError as error:
            refused.append(Difference(topic, f"partition {tp.partition}: {error}"))
            continue
        move = ReplicaMove(tp, before, after, _copied_bytes(tp, before, after, inputs.sizes))
        load.update(move.added)
        moves.append(move)
    if moves:
        yield Reassign(topic, moves)


def _refuse_replicas(
    topic: str,
    declared: DeclaredTopic,
    inputs: Inputs,
    replicas: Collection[tuple[int, ...]],
    refused: list[Difference],
) -> None:
    """Report surplus replicas, and replicas on brokers that are not alive."""
    factor = declared.replication_factor
    if declared.is_written("replication_factor") and any(len(each) > factor for each in replicas):
        refused.append(
            Difference(
                topic,
                f"it has more replicas than the {factor} that are declared: Waybill removes no "
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
        and TopicPartition(topic, number) not in (inputs.reassigning or {})
    )
    if numbers:
        yield ElectPreferredLeaders(topic, numbers)
