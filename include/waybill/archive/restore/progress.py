"""The progress of a restore, from the target's log."""

from __future__ import annotations

from waybill.archive.restore.restore_plan import PartitionPlan, RestorePlan
from waybill.base.errors import RestoreStopped
from waybill.services.kafka.target import TargetCluster


def check_target(target: TargetCluster, plan: RestorePlan) -> None:
    """Raise `RestoreStopped` unless the target has the topics that the restore began with."""
    for name, topic_id in plan.topic_ids.items():
        topic = target.find_topic(name)
        if topic is None or (topic_id and topic.topic_id != topic_id):
            state = "deleted" if topic is None else "deleted and created again"
            raise RestoreStopped(
                f"restore {plan.id}: topic {name!r} at {target.where} was {state} since the restore began. Plan "
                f"another restore: waybill restore run {plan.stream} …"
            )


def read_progress(target: TargetCluster, plan: RestorePlan, partition: PartitionPlan) -> int:
    """Return the end of the target's log: the offset of the next message of the restore.

    Raises `RestoreStopped` when the log holds anything else than messages of this restore at its end, or has lost
    messages at its start.
    """
    tp = partition.target
    log_range = target.log.offsets([tp])[tp]
    if log_range.earliest > partition.target_offset:
        raise RestoreStopped(
            f"{tp}: the target has deleted the restored messages before offset {log_range.earliest}. Its retention is "
            f"too short: raise retention.ms and retention.bytes, delete the topic, and restore it again"
        )
    if log_range.end < partition.target_offset:
        raise RestoreStopped(
            f"{tp}: the target's log ends at offset {log_range.end}, before {partition.target_offset}, where it ended "
            f"when the restore was planned. Delete the topic, and restore it again"
        )
    if log_range.end == partition.target_offset:
        return log_range.end
    last = target.last_batch(tp, log_range.end)
    index = log_range.end - partition.target_offset
    is_ours = (
        last is not None
        and last.producer_id == plan.producer_id
        and last.producer_epoch == plan.producer_epoch
        and last.base_sequence == plan.producer.sequence(index - last.record_count)
    )
    if not is_ours:
        raise RestoreStopped(
            f"{tp}: the last message of the target, at offset {log_range.end - 1}, is not from restore {plan.id}: "
            f"another producer writes to the topic. Stop it, delete the topic, and restore it again"
        )
    return log_range.end
