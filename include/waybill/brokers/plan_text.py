"""A plan of topics in words, and as a document."""

from __future__ import annotations

from typing import Any

from waybill.brokers.plan import (
    AddPartitions,
    AlterConfigs,
    CreateTopic,
    ElectPreferredLeaders,
    Reassign,
    RemoveThrottle,
    Step,
    TopicPlan,
    WaitForReassignment,
)
from waybill.config.quantities import counted

__all__ = ["describe", "plan_document"]


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
            changes = ", ".join(
                f"{name} from {'not set' if before is None else before} to {after}"
                for name, (before, after) in step.changes.items()
            )
            return f"{step.topic}: change {changes}"
        case AddPartitions():
            total = step.existing + len(step.replicas)
            return (
                f"{step.topic}: raise the topic-partitions from {step.existing} to {total}; messages with a key then "
                f"go to other topic-partitions than before"
            )
        case Reassign():
            moved = "; ".join(
                f"{move.tp.partition}: {_ids(move.before)} → {_ids(move.after)}" for move in step.moves[:5]
            )
            more = f" and {len(step.moves) - 5} more" if len(step.moves) > 5 else ""
            size = "a size that is not known" if step.size_bytes is None else f"{step.size_bytes:,} bytes"
            return f"{step.topic}: copy {counted(len(step.moves), 'topic-partition')} ({size}): {moved}{more}"
        case WaitForReassignment():
            return f"{step.topic}: wait for {counted(len(step.partitions), 'topic-partition')} that Kafka is copying"
        case RemoveThrottle():
            return f"{step.topic}: remove the throttle of a copy that has ended"
        case ElectPreferredLeaders():
            return f"{step.topic}: elect the preferred leaders of {counted(len(step.partitions), 'topic-partition')}"


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
            changes = {name: {"before": before, "after": after} for name, (before, after) in step.changes.items()}
            return {"step": "alter", **common, "changes": changes}
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
