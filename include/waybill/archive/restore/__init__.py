"""Restore: the archive back into a Kafka topic, byte for byte and exactly once.

- `request`: a person's request, and its ranges of the archive.
- `preflight`: problems that would make the restore fail or lose messages, found before it begins. `creation`: how a
  missing topic is created. `figures`: times and sizes of the messages to restore. `topic_checks`: compares the target's
  configs with them.
- `restore_plan`: the stored plan, which every process executes in the same way.
- `archived`: the record batches of a range, checked, as a client may send them.
- `restore_run`: the main path: batches from the archive to the target. `progress`: the restored part of the range.
  `refusal`: why the target refused a batch.
- `offset_map`: where each archived message is in the target. `groups`: consumer groups continue there.
- `comparison`: the proof that both sides are equal.
- `rehearsal`: a random range, restored, compared and deleted again.
- `service`: the operations that the command line and the DAG call.

docs/decisions/0026-restore.md has the reasons.
"""

from waybill.archive.restore.comparison import NOT_CHECKED, PartitionComparison
from waybill.archive.restore.groups import GroupMove, MoveState
from waybill.archive.restore.problem import RestoreProblem
from waybill.archive.restore.rehearsal import Rehearsed, rehearse
from waybill.archive.restore.request import RestoreRequest, SourceRange
from waybill.archive.restore.restore_plan import PartitionPlan, RestorePlan, find_plan, list_plans
from waybill.archive.restore.restore_run import PartitionResult
from waybill.archive.restore.service import (
    Preview,
    RestoreStatus,
    begin_restore,
    compare_restore,
    move_groups,
    preview_restore,
    read_status,
    run_restore,
)

__all__ = [
    "NOT_CHECKED",
    "GroupMove",
    "MoveState",
    "PartitionComparison",
    "PartitionPlan",
    "PartitionResult",
    "Preview",
    "Rehearsed",
    "RestorePlan",
    "RestoreProblem",
    "RestoreRequest",
    "RestoreStatus",
    "SourceRange",
    "begin_restore",
    "compare_restore",
    "find_plan",
    "list_plans",
    "move_groups",
    "preview_restore",
    "read_status",
    "rehearse",
    "run_restore",
]
