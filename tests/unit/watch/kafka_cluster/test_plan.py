"""Plans of topics: the steps lead to the declared topics, never shrink, and are none when they are done."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models.kafka_topics import DeclaredTopic
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import Broker, ClusterState, TopicPartitionReplicas
from waybill.watch.kafka_cluster.apply import _is_agreed
from waybill.watch.kafka_cluster.config_changes import ConfigChange
from waybill.watch.kafka_cluster.plan_text import describe, describe_left, plan_document
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

BROKERS = {node_id: Broker(node_id, "h", 1, f"r{node_id % 3}") for node_id in range(1, 5)}


def topic(**fields: object) -> DeclaredTopic:
    return DeclaredTopic.model_validate({"partitions": 2, "replication_factor": 2, "min_insync_replicas": 1, **fields})


def state(*replicas: tuple[int, ...], name: str = "t", leader: int | None = None) -> ClusterState:
    partitions = {
        TopicPartition(name, number): TopicPartitionReplicas(each[0] if leader is None else leader, 0, each, each, ())
        for number, each in enumerate(replicas)
    }
    return ClusterState("c", 1, BROKERS, partitions, {name: "id"} if replicas else {})


def inputs(declared: DeclaredTopic, found: ClusterState, **fields: object) -> Inputs:
    configs = {"t": declared.topic_configs()} if found.partitions else {}
    return replace(Inputs({"t": declared}, found, configs), **fields)  # type: ignore[arg-type]


def test_missing_topic_is_created_with_its_configs() -> None:
    declared = topic(
        retention="7d", retention_bytes="1GiB", cleanup_policy="compact,delete", configs={"segment.ms": "1"}
    )
    (step,) = make_plan(inputs(declared, state())).steps
    assert isinstance(step, CreateTopic)
    assert len(step.replicas) == 2
    assert step.configs == {
        "min.insync.replicas": "1",
        "cleanup.policy": "compact,delete",
        "unclean.leader.election.enable": "false",
        "segment.ms": "1",
        "retention.ms": "604800000",
        "retention.bytes": "1073741824",
    }


def test_topic_as_declared_needs_nothing() -> None:
    plan = make_plan(inputs(topic(), state((1, 2), (2, 3))))
    assert (plan.steps, plan.refused) == ([], [])


def test_only_configs_that_differ_are_changed() -> None:
    configs = {**topic().topic_configs(), "unclean.leader.election.enable": "true", "cleanup.policy": "delete"}
    (step,) = make_plan(inputs(topic(), state((1, 2), (2, 3)), configs={"t": configs})).steps
    assert isinstance(step, AlterConfigs)
    assert step.changes == {"unclean.leader.election.enable": ConfigChange("true", "false")}


def test_defaults_change_nothing_of_a_topic_that_exists_but_unclean_elections() -> None:
    declared = DeclaredTopic.model_validate({"partitions": 2})
    configs = {"min.insync.replicas": "3", "cleanup.policy": "compact", "retention.ms": "1"}
    clean = {**configs, "unclean.leader.election.enable": "false"}
    for replicas in ((1,), (1, 2, 3, 4)):
        plan = make_plan(inputs(declared, state(replicas, replicas), configs={"t": clean}))
        assert (plan.steps, plan.refused) == ([], [])
    unclean = {**configs, "unclean.leader.election.enable": "true"}
    (step,) = make_plan(inputs(declared, state((1,), (2,)), configs={"t": unclean})).steps
    assert isinstance(step, AlterConfigs)
    assert list(step.changes) == ["unclean.leader.election.enable"]
    (step,) = make_plan(inputs(declared, state())).steps
    assert isinstance(step, CreateTopic)
    assert (len(step.replicas[0]), step.configs["min.insync.replicas"]) == (3, "2")


def test_changes_that_can_cost_messages_are_a_step_of_their_own_after_the_others() -> None:
    declared = topic(retention="1d", cleanup_policy="compact,delete", configs={"max.message.bytes": "7"})
    configs = {**declared.topic_configs(), "cleanup.policy": "compact", "retention.ms": "1", "max.message.bytes": "6"}
    safe, risky = make_plan(inputs(declared, state((1, 2), (2, 3)), configs={"t": configs})).steps
    assert isinstance(safe, AlterConfigs)
    assert list(safe.changes) == ["max.message.bytes", "retention.ms"]
    assert isinstance(risky, RiskyConfigs)
    assert list(risky.changes) == ["cleanup.policy"]
    assert "[risk: Kafka deletes messages by age and size] (only with --allow-loss)" in describe(risky)


def test_min_isr_is_not_raised_above_the_replicas() -> None:
    declared = DeclaredTopic.model_validate({"partitions": 1, "min_insync_replicas": 2})
    configs = {**declared.topic_configs(), "min.insync.replicas": "1"}
    plan = make_plan(inputs(declared, state((1,)), configs={"t": configs}))
    assert not plan.steps
    assert "min.insync.replicas is not raised to 2, because it has 1 replicas" in plan.refused[0].reason
    both = DeclaredTopic.model_validate({"partitions": 1, "min_insync_replicas": 2, "replication_factor": 2})
    steps = make_plan(inputs(both, state((1,)), configs={"t": configs})).steps
    assert [type(step) for step in steps] == [Reassign, AlterConfigs]


def test_risky_changes_copies_and_new_topic_partitions_need_consent() -> None:
    def risky(after: str) -> RiskyConfigs:
        return RiskyConfigs("t", {"retention.ms": ConfigChange("9", after, "deletes")})

    add = AddPartitions("t", 2, [(1, 2)])
    approved = TopicPlan([risky("5"), add])
    assert _is_agreed(risky("5"), approved, allow_loss=True)
    assert not _is_agreed(risky("5"), approved, allow_loss=False)
    assert not _is_agreed(risky("4"), approved, allow_loss=True)
    assert _is_agreed(replace(add, replicas=[(2, 3)]), approved, allow_loss=False)
    assert not _is_agreed(replace(add, existing=3), approved, allow_loss=False)
    assert not _is_agreed(add, TopicPlan(), allow_loss=False)
    assert "Add --allow-loss" in describe_left(risky("5"), allow_loss=False)
    assert "still different" in describe_left(risky("5"), allow_loss=True)
    assert "run `waybill kafka apply` again" in describe_left(add, allow_loss=False)


def test_order_of_cleanup_policies_does_not_matter() -> None:
    declared = topic(cleanup_policy="compact,delete")
    configs = {**declared.topic_configs(), "cleanup.policy": "delete,compact"}
    assert not make_plan(inputs(declared, state((1, 2), (2, 3)), configs={"t": configs})).steps


def test_topic_partitions_are_added_and_never_removed() -> None:
    (step,) = make_plan(inputs(topic(partitions=3), state((1, 2), (2, 3)))).steps
    assert isinstance(step, AddPartitions)
    assert (step.existing, len(step.replicas)) == (2, 1)
    plan = make_plan(inputs(topic(partitions=1), state((1, 2), (2, 3))))
    assert not plan.steps
    assert "Kafka cannot remove any" in plan.refused[0].reason


def test_replicas_are_added_and_never_removed() -> None:
    plan = make_plan(inputs(topic(), state((1,), (2, 3)), sizes={TopicPartition("t", 0): 100}))
    (step,) = plan.steps
    assert isinstance(step, Reassign)
    assert (step.moves[0].before, len(step.moves[0].after), step.size_bytes) == ((1,), 2, 100)
    assert plan.moves_data
    plan = make_plan(inputs(topic(), state((1, 2, 3), (2, 3))))
    assert not plan.steps
    assert "Waybill removes no replica" in plan.refused[0].reason


def test_two_replicas_in_one_rack_are_moved_apart() -> None:
    (step,) = make_plan(inputs(topic(), state((1, 4), (2, 3)))).steps
    assert isinstance(step, Reassign)
    assert step.moves[0].after[0] == 1
    assert step.moves[0].after[1] in (2, 3)


def test_replica_on_a_broker_that_is_away_is_not_moved() -> None:
    plan = make_plan(inputs(topic(), state((1, 9), (2, 3))))
    assert not plan.steps
    assert "brokers that are not alive (9)" in plan.refused[0].reason


def test_copies_under_way_are_waited_for_and_their_throttle_is_removed() -> None:
    moving = {TopicPartition("t", 0): (1, 2)}
    throttled = frozenset({"t", "no-longer-declared"})
    waiting = make_plan(inputs(topic(), state((1,), (2, 3)), reassigning=moving, throttled=throttled))
    assert waiting.steps == [WaitForReassignment("t", (0,)), RemoveThrottle("no-longer-declared")]
    plan = make_plan(inputs(topic(), state((1, 2), (2, 3)), throttled=frozenset({"t"})))
    assert plan.steps == [RemoveThrottle("t")]
    operators = {**topic().topic_configs(), "leader.replication.throttled.replicas": "*"}
    assert not make_plan(inputs(topic(), state((1, 2), (2, 3)), configs={"t": operators})).steps


def test_topic_partitions_added_during_a_copy_have_as_many_replicas_as_it_leaves() -> None:
    declared = topic(partitions=3, replication_factor=3)
    found = state((1, 2, 3, 4), (2, 3, 4))
    wait, add = make_plan(inputs(declared, found, reassigning={TopicPartition("t", 0): (2, 3, 4)})).steps
    assert wait == WaitForReassignment("t", (0,))
    assert isinstance(add, AddPartitions)
    assert [len(each) for each in add.replicas] == [3]


def test_nothing_is_copied_or_added_if_copies_under_way_are_not_known() -> None:
    plan = make_plan(inputs(topic(partitions=5), state((1,), (2,)), reassigning=None))
    assert not plan.steps
    assert "ACL Describe on the cluster" in plan.refused[0].reason


def test_preferred_leader_is_elected_if_it_is_in_sync() -> None:
    assert make_plan(inputs(topic(), state((1, 2), (2, 1), leader=2))).steps == [ElectPreferredLeaders("t", (0,))]
    late = {TopicPartition("t", 0): TopicPartitionReplicas(2, 0, (1, 2), (2,), ())}
    found = replace(state((1, 2)), partitions=late)
    assert not make_plan(inputs(topic(partitions=1), found)).steps


def test_missing_acls_are_named() -> None:
    plan = make_plan(inputs(topic(), state((1, 2), (2, 3)), configs={}))
    assert "ACL DescribeConfigs" in plan.refused[0].reason
    hidden = replace(state(), refused=frozenset({"t"}))
    plan = make_plan(inputs(topic(), hidden))
    assert not plan.steps, "a topic that is hidden is not created"
    assert "ACL Describe" in plan.refused[0].reason


# --- a cluster that carries out the steps -----------------------------------------------------------------------------


def carry_out(  # noqa: C901 - a case for each step
    found: ClusterState, configs: dict[str, dict[str, str]], steps: list[Step]
) -> ClusterState:
    partitions, ids = dict(found.partitions), dict(found.topic_ids)

    def put(name: str, number: int, replicas: tuple[int, ...]) -> None:
        partitions[TopicPartition(name, number)] = TopicPartitionReplicas(replicas[0], 0, replicas, replicas, ())

    for step in steps:
        match step:
            case CreateTopic():
                ids[step.topic] = "id"
                configs[step.topic] = dict(step.configs)
                for number, replicas in enumerate(step.replicas):
                    put(step.topic, number, replicas)
            case AlterConfigs() | RiskyConfigs():
                configs[step.topic] |= {name: change.after for name, change in step.changes.items()}
            case AddPartitions():
                for number, replicas in enumerate(step.replicas):
                    put(step.topic, step.existing + number, replicas)
            case Reassign():
                for move in step.moves:
                    put(step.topic, move.tp.partition, move.after)
            case ElectPreferredLeaders():
                for number in step.partitions:
                    tp = TopicPartition(step.topic, number)
                    partitions[tp] = replace(partitions[tp], leader=partitions[tp].replicas[0])
            case _:
                raise AssertionError(step)
    return replace(found, partitions=partitions, topic_ids=ids)


REPLICAS = st.permutations(sorted(BROKERS)).flatmap(lambda ids: st.integers(1, 4).map(lambda n: tuple(ids[:n])))


@given(
    st.lists(REPLICAS, max_size=5),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([None, "1d", "forever"]),
    st.dictionaries(st.sampled_from(["retention.ms", "min.insync.replicas"]), st.sampled_from(["1", "-1"])),
)
def test_one_round_of_steps_leads_to_a_plan_without_steps(
    existing: list[tuple[int, ...]], partitions: int, factor: int, retention: str | None, configs: dict[str, str]
) -> None:
    declared = topic(partitions=partitions, replication_factor=factor, retention=retention)
    start = Inputs({"t": declared}, state(*existing), {"t": configs} if existing else {})
    plan = make_plan(start)
    assert all(describe(step) for step in plan.steps)
    assert len(plan_document(plan)["steps"]) == len(plan.steps)
    applied = {name: dict(values) for name, values in start.configs.items()}
    after = carry_out(start.state, applied, list(plan.steps))
    again = make_plan(Inputs({"t": declared}, after, applied))
    assert again.steps == []
    assert [each.reason for each in again.refused] == [each.reason for each in plan.refused]
    for tp, before in start.state.partitions.items():
        assert len(after.partitions[tp].replicas) >= len(before.replicas), "nothing shrinks"
    found = after.topic_partitions("t")
    assert len(found) == max(partitions, len(existing))
    assert all(len(each.replicas) >= factor for each in found.values())
