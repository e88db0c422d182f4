"""The parameters of the operations. Each text is defined here once, for the command line and for the forms."""

from __future__ import annotations

from waybill.interfaces.operations.declaration import Kind, OperationName, Parameter

# --- of several operations --------------------------------------------------------------------------------------------

STREAM = Parameter(
    name="stream", title="Stream", help="The stream", form_help="", kind=Kind.STREAM, is_required=True, field="stream"
)
REASON = Parameter(
    name="reason", title="Reason", help="Why; it is stored with the decision", is_required=True, option="--reason"
)
REQUEST_REASON = REASON.but(help="Why; it is stored with the request")
PLAN_REASON = REASON.but(help="Why; it is stored with the plan")
PAUSE_REASON = REASON.but(help="Why; recorded with the decision")
INCIDENT_REASON = REASON.but(help="What you do about it; it is stored")
OFFSETS = Parameter(
    name="offsets",
    title="Offsets",
    help="flights/0@100-199",
    form_help="Not with the topic-partitions and times below: TOPIC/PARTITION@FIRST-LAST, such as flights/0@100-199",
    kind=Kind.TEXTS,
    option="--offsets",
    metavar="TOPIC/PARTITION@FIRST-LAST",
)
TOPIC_PARTITIONS = Parameter(
    name="topic_partitions",
    title="Topic-partitions",
    help="Only these",
    form_help="Only these, such as flights/0",
    if_empty="all of the stream",
    kind=Kind.TEXTS,
    option="--topic-partition",
    metavar="TOPIC/PARTITION",
)
GENERATION = Parameter(name="generation", title="Generation", kind=Kind.NUMBER, option="--generation")

# --- holds ------------------------------------------------------------------------------------------------------------

PLAN = Parameter(
    name="plan",
    title="Plan",
    help="The plan that you have looked at: refuse if another one is held",
    form_help="The plan that you have looked at: the decision is refused if another one is held",
    if_empty="the one that is held",
    option="--plan",
    field="plan",
    is_seen=True,
)
DECISION = Parameter(
    name="decision",
    title="Decision",
    is_required=True,
    choices=(OperationName.RELEASE.value, OperationName.REJECT.value),
)

# --- the quarantine ---------------------------------------------------------------------------------------------------

REASONS = Parameter(
    name="reasons",
    title="Kinds of reason",
    help="Only this reason, such as not_json",
    form_help="Only messages with one of these reasons, such as not_json",
    if_empty="all reasons",
    kind=Kind.TEXTS,
    option="--reason",
    metavar="KIND",
    field="kind",
)
TARGETS = TOPIC_PARTITIONS.but(
    title="Topics or topic-partitions",
    form_help="Only messages of these, such as flights or flights/3",
    if_empty="all",
    metavar="TOPIC[/PARTITION]",
    field="topic",
)
FIRST_OFFSET = Parameter(
    name="first_offset", title="From offset", help="The first offset", kind=Kind.NUMBER, at_least=0, option="--from"
)
LAST_OFFSET = Parameter(
    name="last_offset",
    title="To offset",
    help="The last offset",
    form_help="Included",
    kind=Kind.NUMBER,
    at_least=0,
    option="--to",
)
ACCEPTED_BECAUSE = Parameter(
    name="accept_failed_checks",
    title="Move the messages although critical checks fail, because",
    help="Move messages although critical checks of their rows fail; the reason is stored",
    form_help="The reason; it is stored with your name",
    if_empty="if a critical check fails, nothing is moved",
    option="--accept-failed-checks",
    metavar="REASON",
)
DRY_RUN = Parameter(
    name="dry_run",
    title="Dry run",
    help="Only print what would be moved",
    form_help="Only report what a retry would move",
    kind=Kind.FLAG,
    option="--dry-run",
)

# --- backfills --------------------------------------------------------------------------------------------------------

BACKFILL = Parameter(
    name="backfill",
    title="Backfill",
    help="The backfill, as `waybill backfill status` shows it",
    form_help="Its id, such as 20261122_7f3a",
    is_required=True,
    pattern="^[0-9]{8}_[0-9a-f]{4}$",
    metavar="ID",
    field="backfill",
)
BACKFILL_ACTION = Parameter(
    name="action",
    title="Action",
    form_help="plan: a dry run. run: build a range on a branch, audit and compare it. promote: replace the table's "
    "rows by it. cancel: give it up. The DAG backfill_undo restores the rows from before",
    is_required=True,
    default="plan",
    choices=("plan", "run", "promote", "cancel"),
)
CONTINUED_BACKFILL = BACKFILL.but(
    help="Continue this backfill instead", is_required=False, option="--id", metavar=None, field=""
)
SOURCE = Parameter(
    name="source",
    title="Source",
    help="`archive`, or `kafka`: archive again, into a generation that is not live",
    default="archive",
    choices=("archive", "kafka"),
    option="--source",
)
BACKFILL_GENERATION = GENERATION.but(
    help="Another generation of the table than the stream's; one that is not live is built",
    form_help="One that is not live is built on its branch, up to the end of the range; a promotion then shows it "
    "instead of the live one",
    if_empty="that of the stream",
    at_least=0,
)
TO_GENERATION = GENERATION.but(help="The generation; default: the one of the config", at_least=1, option="--to")
SINCE = Parameter(
    name="since",
    title="Since",
    help="Messages by Kafka's timestamp: 2026-11-22T10:00:00Z",
    form_help="Messages with a Kafka timestamp from this time on",
    kind=Kind.TIME,
    option="--since",
    metavar="TIME",
)
UNTIL = Parameter(
    name="until",
    title="Until",
    help="Not included",
    form_help="Messages with a Kafka timestamp before this time",
    kind=Kind.TIME,
    option="--until",
    metavar="TIME",
)
EVERYTHING = Parameter(
    name="everything",
    title="Everything",
    help="Everything that the table has",
    form_help="The whole table is built again",
    kind=Kind.FLAG,
    option="--all",
)
PARALLEL = Parameter(
    name="parallel", title="Parallel tasks", if_empty="all slots of Spark", kind=Kind.NUMBER, at_least=1
)
RATE = Parameter(
    name="rate",
    title="Rate limit",
    help="At most so much of the archive a second: 10MiB",
    if_empty="no limit",
    option="--rate",
    metavar="SIZE",
)
ACCEPT_FAILED_CHECKS = Parameter(
    name="accept_failed_checks",
    title="Accept failed checks",
    help="Promote even though a critical check has failed",
    kind=Kind.FLAG,
    option="--accept-failed-checks",
)

# --- gaps, pauses, incidents ------------------------------------------------------------------------------------------

TOPIC = Parameter(name="topic", title="Topic", help="The topic", is_required=True, field="topic")
PARTITION = Parameter(
    name="partition",
    title="Partition",
    help="Its partition",
    kind=Kind.NUMBER,
    is_required=True,
    at_least=0,
    at_most=2**31 - 1,
    field="partition",
)
STREAM_OF_TOPIC = STREAM.but(help="The stream, if several archive the topic", option="--stream")
FIRST_LOST = FIRST_OFFSET.but(help="The first lost offset of a broken chain")
LAST_LOST = LAST_OFFSET.but(help="The last lost offset")
WITHIN = Parameter(
    name="within",
    title="Lost offsets",
    help="Refuse if offsets outside of these would be lost",
    option="--within",
    metavar="FIRST-LAST",
    field="within",
    is_seen=True,
)
STAGES = Parameter(
    name="stages",
    title="Stages",
    help="Only this stage; may be repeated. Without it, all stages of the stream",
    option="--stage",
)
INCIDENT = Parameter(
    name="incident",
    title="Incident",
    help="The id, as `waybill incidents ls` prints it",
    is_required=True,
    field="incident",
)

# --- restores ---------------------------------------------------------------------------------------------------------

RESTORE_ACTION = BACKFILL_ACTION.but(
    form_help="plan: a dry run with the preflight. run: restore, then compare. verify: compare again",
    choices=("plan", "run", "verify"),
)
TO = Parameter(
    name="to",
    title="To",
    help="The Airflow connection of the target cluster",
    is_required=True,
    default="kafka_default",
    option="--to",
    metavar="CONNECTION",
)
TO_TOPIC = Parameter(
    name="to_topic",
    title="Target topic",
    help="The target topic; {topic} stands for the archived topic",
    is_required=True,
    default="{topic}",
    pattern="^[a-zA-Z0-9._{}-]{1,249}$",
    option="--to-topic",
    metavar="TOPIC",
)
UP_TO = UNTIL.but(
    help="Up to the first message with this Kafka timestamp or a later one: 2026-11-22T10:00:00Z", form_help=None
)
CREATE = Parameter(
    name="create",
    title="Create",
    help="Create a missing topic with as many partitions as archived",
    kind=Kind.FLAG,
    option="--create",
)
REPLICATION_FACTOR = Parameter(
    name="replication_factor",
    title="Replication factor",
    help="Of a topic that is created; -1: the brokers' default",
    kind=Kind.NUMBER,
    default=-1,
    at_least=-1,
    option="--replication-factor",
)
SUSPEND_CLEANUP = Parameter(
    name="suspend_cleanup",
    title="Suspend cleanup",
    help="The target deletes and compacts nothing while the restore runs; then its own configs come back",
    kind=Kind.FLAG,
    option="--suspend-cleanup",
)
REGISTRY = Parameter(
    name="registry",
    title="Schema registry",
    help="Check that this schema registry knows the schema ids of all messages",
    form_help="The Airflow connection of a schema registry, which must know the schema ids of all messages",
    if_empty="no check",
    option="--registry",
    metavar="CONNECTION",
)
RESTORE = Parameter(
    name="restore",
    title="Restore",
    help="Continue this restore instead",
    form_help="To continue or verify: the id, such as 20261122_7f3a. The fields above do not count then",
    pattern=BACKFILL.pattern,
    option="--id",
)

# --- replays ----------------------------------------------------------------------------------------------------------

KEYS = Parameter(
    name="keys",
    title="Keys",
    help="A message key, as text",
    form_help="Message keys",
    kind=Kind.TEXTS,
    is_required=True,
    at_least=1,
    option="--key",
)
FROM_TIME = SINCE.but(
    name="from",
    title="From",
    form_help="The first Kafka timestamp, with a time zone: 2026-11-22T10:00:00Z",
    is_required=True,
    option="--from",
)
TO_TIME = UNTIL.but(name="to", title="To", is_required=True, option="--to", form_help=None)
TARGET = Parameter(
    name="target", title="Target", is_required=True, default="webhook", choices=("webhook", "kafka", "s3")
)
URL = Parameter(
    name="url",
    title="URL",
    help="Deliver to this URL",
    form_help="Of the webhook, such as https://bookings.example.com/missed",
    option="--webhook",
    metavar="URL",
)
CONNECTION = Parameter(name="connection", title="Connection", form_help="Of Kafka: one of replay.kafka.connections")
TARGET_TOPIC = Parameter(name="topic", title="Topic", form_help="Of Kafka")
COMPRESSION = Parameter(
    name="compression",
    title="Compression",
    help="Deliver to objects in S3: gzip, zstd or none",
    form_help="Of objects in S3",
    is_required=True,
    default="gzip",
    choices=("gzip", "zstd", "none"),
    option="--s3",
    metavar="COMPRESSION",
)
PRIORITY = Parameter(
    name="priority",
    title="Priority",
    help="0 to 9; higher ones are served first",
    kind=Kind.NUMBER,
    is_required=True,
    default=0,
    at_least=0,
    at_most=9,
    option="--priority",
)
REPLAY = Parameter(
    name="id",
    title="Request",
    help="The request, as `waybill replay ls` shows it",
    is_required=True,
    metavar="ID",
)

# --- offsets and Kafka ------------------------------------------------------------------------------------------------

TOPIC_PARTITION = Parameter(
    name="topic_partition",
    title="Topic-partition",
    help="The topic-partition",
    is_required=True,
    metavar="TOPIC/PARTITION",
)
OFFSET = Parameter(
    name="offset",
    title="Offset",
    help="Where the next backup object starts",
    kind=Kind.NUMBER,
    is_required=True,
    at_least=0,
)
OTHER_GENERATION = GENERATION.but(
    help="The generation that archived the lost messages; default: the config's", at_least=1
)
PUBLICATION = Parameter(
    name="abandon",
    title="Publication",
    help="Publish nothing: leave the publication of this number unfinished for good",
    kind=Kind.NUMBER,
    option="--abandon",
)
