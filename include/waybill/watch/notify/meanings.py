"""What a broken promise means, in words: the title of a message, and what consumers of the data see."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.config.models.kafka_promises import KafkaPromiseName
from waybill.config.models.promises import PromiseName
from waybill.watch.incidents.finding import CHANNEL, CONFIG, MEASURED, REACHABLE, READABLE, TASKS


@dataclass(frozen=True, slots=True)
class Meaning:
    """One promise in words."""

    title: str
    """Goes before the figure: `archive lag`."""
    consumers: str
    """What consumers see while it is broken."""

    @property
    def runbook(self) -> str:
        """The name of the runbook below `docs/runbooks/`."""
        return self.title.replace(" ", "-") + ".md"


MEANINGS: dict[str, Meaning] = {
    PromiseName.ARCHIVE_LAG: Meaning(
        "archive lag", "New messages reach neither the archive nor the table. Nothing is lost while Kafka keeps them."
    ),
    PromiseName.RETENTION_RUNWAY: Meaning(
        "retention runway", "Kafka deletes messages before they are archived. What it deletes is lost for good."
    ),
    PromiseName.TABLE_LAG: Meaning(
        "table lag", "The table shows older data than promised. The messages are safe in the archive."
    ),
    PromiseName.COMPLETE_BY: Meaning(
        "completeness", "Reports on this hour or day miss rows. The rows follow when the partition run succeeds."
    ),
    PromiseName.RUN_DURATION: Meaning(
        "run duration", "The table shows older data than promised: the partition run has not finished."
    ),
    PromiseName.QUARANTINE_SHARE: Meaning(
        "quarantine share", "Messages that could not be parsed are missing in the table. They are in its quarantine."
    ),
    PromiseName.DUPLICATE_SHARE: Meaning(
        "duplicate share", "A producer sends messages again. The unique table is right; the main table shows repeats."
    ),
    PromiseName.LATE_SHARE: Meaning(
        "late share", "Hours and days that reports have read already get more rows. No row is lost."
    ),
    PromiseName.DEDUP_WINDOW: Meaning(
        "dedup window", "A message that is sent again after a long time counts as new in the unique table."
    ),
    PromiseName.NAMED_STOP: Meaning(
        "named stop", "Some topic-partitions are not archived until a person decides how to continue."
    ),
    PromiseName.HELD_PUBLICATION: Meaning(
        "held publication", "The table shows nothing newer until a person releases or rejects the held run."
    ),
    PromiseName.PARSER_FAILED: Meaning(
        "parser failed", "Messages at which Waybill's parser raised are in quarantine. All others are in the table."
    ),
    PromiseName.LEDGER_BALANCE: Meaning(
        "ledger balance", "Rows are missing, or there too often, at the offsets that the alert names."
    ),
    PromiseName.VOLUME: Meaning(
        "volume", "Producers send far fewer messages than usual, or far more. What they send arrives."
    ),
    PromiseName.PAUSED: Meaning("pause", "A person has stopped the stream, and may have forgotten to resume it."),
    KafkaPromiseName.OFFLINE_PARTITIONS: Meaning(
        "kafka offline partitions",
        "These topic-partitions can be neither written nor archived. Producers fail.",
    ),
    KafkaPromiseName.UNDER_MIN_ISR: Meaning(
        "kafka under min isr", "Producers with acks=all are refused. What is in Kafka is still archived."
    ),
    KafkaPromiseName.SINGLE_IN_SYNC_REPLICA: Meaning(
        "kafka single in sync replica", "Nothing is missing yet. If one more broker fails, messages can be lost."
    ),
    KafkaPromiseName.UNDER_REPLICATED: Meaning(
        "kafka under replicated", "Nothing is missing. Kafka has fewer copies of new messages than it should have."
    ),
    KafkaPromiseName.LEADER_SKEW: Meaning(
        "kafka leader skew", "Nothing is missing. One broker does more of the work, so it is the first to be slow."
    ),
    KafkaPromiseName.REPLICA_SKEW: Meaning(
        "kafka replica skew",
        "Nothing is missing. One broker holds more data, so its disk is the first to be full.",
    ),
    KafkaPromiseName.BELOW_DECLARED: Meaning(
        "kafka below declared", "Nothing is missing. Topics are less safe than they are declared to be."
    ),
    KafkaPromiseName.UNCLEAN_ELECTION: Meaning(
        "kafka unclean election", "Nothing is missing. When brokers fail, Kafka may take acknowledged messages back."
    ),
    KafkaPromiseName.CONTROLLERS: Meaning(
        "kafka controllers", "Nothing is missing. Without a majority of controllers, Kafka elects no leaders."
    ),
    KafkaPromiseName.DISK_USED: Meaning(
        "kafka disk used", "Nothing is missing. A broker whose disk is full stops, and its topic-partitions move."
    ),
    KafkaPromiseName.CLOCK_SKEW: Meaning(
        "kafka clock skew", "Rows are in hours that have not come yet, and Kafka may keep messages for too long."
    ),
    KafkaPromiseName.UNMATCHED_TOPICS: Meaning(
        "kafka unmatched topics", "No stream archives these topics: when Kafka deletes their messages, they are gone."
    ),
    KafkaPromiseName.MISSING_TOPICS: Meaning(
        "kafka missing topics", "The stream has nothing to archive: its topic does not exist, or has another name."
    ),
    KafkaPromiseName.GROUP_LAG: Meaning(
        "kafka group lag", "The consumers of this group see old data. Archive and tables do not depend on them."
    ),
    KafkaPromiseName.ACCESS: Meaning(
        "kafka access", "Nothing is missing. Some promises about Kafka are not watched, for lack of ACLs."
    ),
    REACHABLE: Meaning("service", "Nothing that needs this service makes progress, for any stream."),
    READABLE: Meaning(
        "table state", "Partition runs of the stream fail, and the table shows nothing newer. The archive goes on."
    ),
    MEASURED: Meaning(
        "measurement", "What the promises that are named would report is not known. Archive and tables go on."
    ),
    CONFIG: Meaning("config", "Nothing is archived or published for what has the error, until it is corrected."),
    TASKS: Meaning(
        "tasks", "What the DAG does is not done: the data stays as it was before the run. No committed row is lost."
    ),
    CHANNEL: Meaning("alert channel", "Alerts do not get through on this channel. The other channels have them."),
}
