"""All operations, and the forms of the DAGs that execute them."""

from __future__ import annotations

from collections.abc import Mapping

from waybill.interfaces.operations import parameters as p
from waybill.interfaces.operations.declaration import DagForm, DagRun, Operation, OperationName, Role

# --- holds and the quarantine -----------------------------------------------------------------------------------------

RELEASE = Operation(
    name=OperationName.RELEASE,
    title="Release",
    explanation="The held rows are published as they are.",
    role=Role.OPERATOR,
    command=("quality", "release"),
    parameters=(p.STREAM, p.PLAN),
    reason=p.REASON,
    runs=DagRun("quality_decision", ("decision", OperationName.RELEASE.value)),
    is_grave=True,
    is_on_pages=True,
)
REJECT = Operation(
    name=OperationName.REJECT,
    title="Reject",
    explanation="The held rows are dropped; the next run parses the same messages again.",
    role=Role.OPERATOR,
    command=("quality", "reject"),
    parameters=(p.STREAM, p.PLAN),
    reason=p.REASON,
    runs=DagRun("quality_decision", ("decision", OperationName.REJECT.value)),
    is_grave=True,
    is_on_pages=True,
)
RETRY = Operation(
    name=OperationName.RETRY,
    title="Retry",
    explanation="The messages are parsed again; those that can be parsed move to the table.",
    role=Role.OPERATOR,
    command=("quarantine", "retry"),
    parameters=(
        p.STREAM,
        p.REASONS,
        p.TARGETS,
        p.FIRST_OFFSET,
        p.LAST_OFFSET,
        p.ACCEPTED_BECAUSE,
        p.DRY_RUN,
    ),
    reason=None,  # the option --reason selects messages
    runs=DagRun("quarantine_retry"),
    is_on_pages=True,
)

# --- incidents, pauses, gaps ------------------------------------------------------------------------------------------

ACKNOWLEDGE = Operation(
    name=OperationName.ACKNOWLEDGE,
    title="Acknowledge",
    explanation="Reminders and escalation end; its end is still told.",
    role=Role.OPERATOR,
    command=("incidents", "ack"),
    parameters=(p.INCIDENT,),
    reason=p.INCIDENT_REASON,
    is_on_pages=True,
)
PAUSE = Operation(
    name=OperationName.PAUSE,
    title="Pause",
    explanation="The stream is left out of scheduled runs until it is resumed.",
    role=Role.OPERATOR,
    command=("pause",),
    parameters=(p.STREAM, p.STAGES),
    reason=p.PAUSE_REASON,
    is_grave=True,
    is_on_pages=True,
)
RESUME = Operation(
    name=OperationName.RESUME,
    title="Resume",
    explanation="The stream takes part in scheduled runs again.",
    role=Role.OPERATOR,
    command=("resume",),
    parameters=PAUSE.parameters,
    reason=PAUSE.reason,
    is_on_pages=True,
)
ACCEPT_GAP = Operation(
    name=OperationName.ACCEPT_GAP,
    title="Accept the gap",
    explanation="The offsets are recorded as lost, and ingest resumes after them.",
    role=Role.ADMIN,
    command=("gaps", "accept"),
    parameters=(
        p.STREAM_OF_TOPIC,
        p.TOPIC,
        p.PARTITION,
        p.FIRST_LOST,
        p.LAST_LOST,
        p.WITHIN,
    ),
    reason=p.REASON,
    is_grave=True,
    is_on_pages=True,
)

# --- backfills and generations ----------------------------------------------------------------------------------------

BUILD = Operation(
    name=OperationName.BUILD,
    title="Build",
    explanation="A range is built again on a branch of the table; readers see nothing of it.",
    role=Role.OPERATOR,
    command=("backfill", "run"),
    parameters=(
        p.STREAM,
        p.OFFSETS,
        p.TOPIC_PARTITIONS,
        p.SINCE,
        p.UNTIL,
        p.EVERYTHING,
        p.BACKFILL_GENERATION,
        p.SOURCE,
        p.CONTINUED_BACKFILL,
        p.RATE,
    ),
    reason=p.REQUEST_REASON,
    runs=DagRun("backfill", ("action", "run")),
)
PROMOTE = Operation(
    name=OperationName.PROMOTE,
    title="Promote",
    explanation="The table's rows of the range are replaced by those of the backfill.",
    role=Role.OPERATOR,
    command=("backfill", "promote"),
    parameters=(p.STREAM, p.BACKFILL, p.ACCEPT_FAILED_CHECKS),
    reason=p.REASON,
    runs=DagRun("backfill", ("action", OperationName.PROMOTE.value)),
    is_grave=True,
    is_on_pages=True,
)
UNDO = Operation(
    name=OperationName.UNDO,
    title="Undo",
    explanation="The rows that the promotion replaced are restored.",
    role=Role.ADMIN,
    command=("backfill", "undo"),
    parameters=(p.STREAM, p.BACKFILL),
    reason=p.REASON,
    # A separate DAG: Airflow grants rights by DAG, and fewer people should have the right to remove published rows.
    runs=DagRun("backfill_undo"),
    is_grave=True,
    is_on_pages=True,
)
CANCEL = Operation(
    name=OperationName.CANCEL,
    title="Cancel",
    explanation="The backfill is given up, and its branches are removed.",
    role=Role.OPERATOR,
    command=("backfill", "cancel"),
    parameters=(p.STREAM, p.BACKFILL),
    reason=p.REASON,
    runs=DagRun("backfill", ("action", OperationName.CANCEL.value)),
    is_grave=True,
    is_on_pages=True,
)
PROMOTE_GENERATION = Operation(
    name=OperationName.PROMOTE_GENERATION,
    title="Promote a generation",
    explanation="Readers see the rows of this generation.",
    role=Role.ADMIN,
    command=("generation", "promote"),
    parameters=(
        p.STREAM,
        p.TO_GENERATION,
    ),
    reason=p.REASON,
)

# --- restores and replays ---------------------------------------------------------------------------------------------

RESTORE = Operation(
    name=OperationName.RESTORE,
    title="Restore",
    explanation="Archived messages are put into a Kafka topic, each once.",
    role=Role.ADMIN,
    command=("restore", "run"),
    parameters=(
        p.STREAM.but(help="The stream; not with --id", metavar="STREAM"),
        p.TO,
        p.TO_TOPIC,
        p.OFFSETS,
        p.TOPIC_PARTITIONS,
        p.UP_TO,
        p.CREATE,
        p.REPLICATION_FACTOR,
        p.SUSPEND_CLEANUP,
        p.REGISTRY,
        p.RESTORE,
    ),
    reason=p.PLAN_REASON,
    runs=DagRun("restore", ("action", "run")),
)
REPLAY = Operation(
    name=OperationName.REPLAY,
    title="Replay",
    explanation="The messages of some keys between two times are delivered again.",
    role=Role.OPERATOR,
    command=("replay", "create"),
    parameters=(p.STREAM, p.FROM_TIME, p.TO_TIME, p.KEYS, p.URL, p.COMPRESSION, p.PRIORITY),
    reason=None,
    runs=DagRun("replay_request"),
)
CANCEL_REPLAY = Operation(
    name=OperationName.CANCEL_REPLAY,
    title="Cancel a replay",
    explanation="The request is given up; what was delivered stays delivered.",
    role=Role.OPERATOR,
    command=("replay", "cancel"),
    parameters=(p.REPLAY,),
    reason=p.REASON,
)

# --- offsets and Kafka ------------------------------------------------------------------------------------------------

SET_OFFSET = Operation(
    name=OperationName.SET_OFFSET,
    title="Set an offset",
    explanation="A new chain starts at this offset.",
    role=Role.ADMIN,
    command=("offsets", "set"),
    parameters=(p.STREAM, p.TOPIC_PARTITION, p.OFFSET),
    reason=p.REASON,
)
REBUILD_OFFSETS = Operation(
    name=OperationName.REBUILD_OFFSETS,
    title="Rebuild offsets",
    explanation="Committed offsets are written again, from the ends of the chains.",
    role=Role.ADMIN,
    command=("offsets", "rebuild"),
    parameters=(
        p.STREAM.but(help="Only this stream", is_required=False, option="--stream"),
        p.TOPIC.but(help="Only this topic", is_required=False, option="--topic", field=""),
    ),
    reason=None,
)
IMPORT_OFFSETS = Operation(
    name=OperationName.IMPORT_OFFSETS,
    title="Import offsets",
    explanation="Chains start where another tool stopped reading.",
    role=Role.ADMIN,
    command=("offsets", "import"),
    parameters=(p.STREAM,),
    reason=None,
)
REPUBLISH = Operation(
    name=OperationName.REPUBLISH,
    title="Republish",
    explanation="Archived messages that an election took back are published again, each once.",
    role=Role.ADMIN,
    command=("kafka", "republish"),
    parameters=(
        p.STREAM,
        p.TOPIC.but(option="--topic", field=""),
        p.PARTITION.but(help="The number of its partition", option="--partition", field=""),
        p.OTHER_GENERATION,
    ),
    reason=p.REASON,
)
ABANDON = Operation(
    name=OperationName.ABANDON,
    title="Abandon a publication",
    explanation="The publication stays unfinished for good.",
    role=Role.ADMIN,
    command=("kafka", "republish"),
    parameters=(*REPUBLISH.parameters, p.PUBLICATION),
    reason=p.REASON,
)
APPLY_TOPICS = Operation(
    name=OperationName.APPLY_TOPICS,
    title="Apply topics",
    explanation="Kafka gets the topics of the config.",
    role=Role.ADMIN,
    command=("kafka", "apply"),
    parameters=(),
    reason=p.REASON.but(help="Why; it is stored with the steps"),
)

OPERATIONS: Mapping[OperationName, Operation] = {
    each.name: each
    for each in (
        *(ACKNOWLEDGE, RELEASE, REJECT, RETRY, PAUSE, RESUME, BUILD, PROMOTE, UNDO, CANCEL, ACCEPT_GAP),
        *(PROMOTE_GENERATION, RESTORE, REPLAY, CANCEL_REPLAY, SET_OFFSET, REBUILD_OFFSETS, IMPORT_OFFSETS),
        *(REPUBLISH, ABANDON, APPLY_TOPICS),
    )
}
PAGE_OPERATIONS: Mapping[OperationName, Operation] = {
    name: each for name, each in OPERATIONS.items() if each.is_on_pages
}


def dags_of(role: Role) -> tuple[str, ...]:
    """Return the DAGs that the pages trigger, and that need exactly this role."""
    runs = (each.runs for each in PAGE_OPERATIONS.values() if each.role == role)
    return tuple(dict.fromkeys(run.dag for run in runs if run is not None))


# --- the forms of DAGs ------------------------------------------------------------------------------------------------

_OPTIONAL_REASON = p.REASON.but(form_help="Why; needed for all but plan, and stored", is_required=False)
DECISION_FORM = DagForm("quality_decision", (p.STREAM, p.DECISION, p.PLAN, p.REASON))
RETRY_FORM = DagForm("quarantine_retry", RETRY.parameters)
BACKFILL_FORM = DagForm(
    "backfill",
    (
        p.BACKFILL_ACTION,
        p.STREAM,
        p.BACKFILL.but(
            form_help="To promote or cancel, and to continue a run: the id, such as 20261122_7f3a", is_required=False
        ),
        p.BACKFILL_GENERATION,
        p.SOURCE.but(
            form_help="kafka: archive the messages again, into a generation that is not live", is_required=True
        ),
        p.OFFSETS,
        p.TOPIC_PARTITIONS,
        p.SINCE,
        p.UNTIL,
        p.EVERYTHING,
        p.PARALLEL,
        p.RATE,
        p.ACCEPT_FAILED_CHECKS,
        _OPTIONAL_REASON,
    ),
)
UNDO_FORM = DagForm("backfill_undo", (p.STREAM, p.BACKFILL, p.REASON))
RESTORE_FORM = DagForm(
    "restore",
    (
        p.RESTORE_ACTION,
        p.STREAM,
        p.TO,
        p.TO_TOPIC,
        p.OFFSETS,
        p.TOPIC_PARTITIONS,
        p.UP_TO,
        p.CREATE,
        p.SUSPEND_CLEANUP,
        p.REGISTRY,
        p.RESTORE,
        p.REASON.but(form_help="Stored with the plan", is_required=False),
    ),
)
REHEARSAL_FORM = DagForm("rehearse", (p.STREAM.but(is_required=False, if_empty="a random one"),))
REPLAY_FORM = DagForm(
    "replay_request",
    (
        p.STREAM,
        p.KEYS,
        p.FROM_TIME,
        p.TO_TIME,
        p.TARGET,
        p.URL,
        p.CONNECTION,
        p.TARGET_TOPIC,
        p.COMPRESSION,
        p.PRIORITY,
    ),
)
FORMS = (DECISION_FORM, RETRY_FORM, BACKFILL_FORM, UNDO_FORM, RESTORE_FORM, REHEARSAL_FORM, REPLAY_FORM)
