"""A plan of topics as text, and as a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waybill.config.models.quantities import counted
from waybill.watch.kafka_cluster.config_changes import ConfigChange
from waybill.watch.kafka_cluster.topics_plan import (
    AddPartitions,
    AlterConfigs,
    CreateTopic,
    ElectPreferredLeaders,
    Reassign,
    RemoveThrottle,
    RiskyConfigs,
    Step,
    TopicPlan,
    WaitForReassignment,
)


def describe(step: Step) -> str:
    """Return what a step does, in one line."""
    match step:
        case CreateTopic():
            settings = ", ".join(f"{name}={value}" for name, value in step.configs.items())
            replicas = len(step.replicas[0])
            return (
                f"{step.topic}: create it with {counted(len(step.replicas), 'topic-partition')}, "
                f"{counted(replicas, 'replica')} each, {settings}"
            )
        case AlterConfigs():
            return f"{step.topic}: change {_changes(step.changes)}"
        case RiskyConfigs():
            return f"{step.topic}: change {_changes(step.changes)} (only with --allow-loss)"
        case AddPartitions():
            total = step.existing + len(step.replicas)
            return (
                f"{step.topic}: raise the number of topic-partitions from {step.existing} to {total}. That cannot be "
                f"undone: Kafka removes none, and producers then send most keys to another topic-partition than before"
            )
        case Reassign():
            moved = "; ".join(
                f"partition {move.tp.partition} from brokers {_ids(move.before)} to {_ids(move.after)}"
                for move in step.moves[:5]
            )
            more = f" and {len(step.moves) - 5} more" if len(step.moves) > 5 else ""
            size = "size not known" if step.size_bytes is None else f"{step.size_bytes:,} bytes"
            return f"{step.topic}: copy {counted(len(step.moves), 'topic-partition')} ({size}): {moved}{more}"
        case WaitForReassignment():
            return (
                f"{step.topic}: wait until Kafka has copied {counted(len(step.partitions), 'topic-partition')}. The "
                f"copies are under way already"
            )
        case RemoveThrottle():
            return f"{step.topic}: remove the throttle that Waybill set for a copy that has ended"
        case ElectPreferredLeaders():
            return f"{step.topic}: elect the preferred leaders of {counted(len(step.partitions), 'topic-partition')}"


def describe_left(step: Step, *, allow_loss: bool) -> str:
    """Describe a step that `apply` did not execute, or that is needed again, with the reason and the remedy."""
    what = describe(step)
    match step:
        case RiskyConfigs() if not allow_loss:
            return f"not done: {what}. Add --allow-loss to agree to it, or correct the config"
        case AlterConfigs() | RiskyConfigs():
            return (
                f"still different: {what}. Either something else changes it back, or Kafka prints the declared value "
                f"in another way: then declare the value that Kafka prints"
            )
        case Reassign() | AddPartitions():
            return (
                f"not done: {what}. It was not in the plan that you agreed to, because the cluster changed meanwhile: "
                f"run `waybill kafka apply` again"
            )
        case _:
            return f"still to do: {what}. The cluster changed meanwhile: run `waybill kafka apply` again"


def _changes(changes: Mapping[str, ConfigChange]) -> str:
    return ", ".join(
        f"{name} from {'not set' if change.before is None else change.before} to {change.after}"
        + (f" [risk: {change.risk}]" if change.risk else "")
        for name, change in changes.items()
    )


def _ids(replicas: tuple[int, ...]) -> str:
    return ",".join(map(str, replicas))


def plan_document(plan: TopicPlan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {
        "steps": [_step_document(step) for step in plan.steps],
        "refused": [{"topic": each.topic, "reason": each.reason} for each in plan.refused],
        "moves_data": plan.moves_data,
    }


def _step_document(step: Step) -> dict[str, Any]:
    common = {"topic": step.topic, "text": describe(step)}
    match step:
        case CreateTopic():
            return {
                "step": "create",
                **common,
                "replicas": [list(each) for each in step.replicas],
                "configs": dict(step.configs),
            }
        case AlterConfigs():
            changes = {name: {"before": each.before, "after": each.after} for name, each in step.changes.items()}
            return {"step": "alter", **common, "changes": changes}
        case RiskyConfigs():
            risky = {
                name: {"before": each.before, "after": each.after, "risk": each.risk}
                for name, each in step.changes.items()
            }
            return {"step": "alter_with_risk", **common, "changes": risky}
        case AddPartitions():
            replicas = [list(each) for each in step.replicas]
            return {"step": "add_partitions", **common, "existing": step.existing, "replicas": replicas}
        case Reassign():
            moves = [
                {"partition": move.tp.partition, "before": list(move.before), "after": list(move.after)}
                for move in step.moves
            ]
            return {"step": "reassign", **common, "bytes": step.size_bytes, "moves": moves}
        case WaitForReassignment():
            return {"step": "wait", **common, "partitions": list(step.partitions)}
        case RemoveThrottle():
            return {"step": "remove_throttle", **common}
        case ElectPreferredLeaders():
            return {"step": "elect", **common, "partitions": list(step.partitions)}
