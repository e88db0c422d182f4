"""Every error that Waybill raises on purpose.

One class for each thing that can go wrong and that somebody decides about. `retriable` says whether the same call may
succeed later without anybody doing anything; retry policies read it. Messages name the thing, the value and the remedy.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "CatalogUnavailable",
    "ChainBroken",
    "ChainGap",
    "CommitConflict",
    "CompactionUnsound",
    "ConfigError",
    "ConnectionMissing",
    "CoordinationUnavailable",
    "CorruptBatch",
    "DamagedFile",
    "DamagedObject",
    "GapRefused",
    "GenerationConflict",
    "HoursBlocked",
    "IndexDamaged",
    "IngestIncomplete",
    "IngestStopped",
    "KafkaUnavailable",
    "LockHeld",
    "LogTruncated",
    "ObjectAlreadyThere",
    "ObjectMissing",
    "OutputDiffers",
    "ParserBroken",
    "PlanUnusable",
    "ProcedureFailed",
    "ProgressLost",
    "QuarantineRateExceeded",
    "RegistryRefused",
    "RegistryUnavailable",
    "RetentionGap",
    "ScratchUnusable",
    "StackError",
    "StoreUnavailable",
    "SweepHistoryLost",
    "SweepUnsound",
    "TopicRecreated",
    "UnsupportedBatch",
    "WaybillError",
    "WindowShrunk",
]


class WaybillError(Exception):
    """Base of all."""

    retriable: ClassVar[bool] = False


class ConfigError(WaybillError):
    """The YAML, a run parameter or an environment variable holds a value that cannot be used."""


class ConnectionMissing(ConfigError):
    """A connection that the config names is defined nowhere."""


class StackError(WaybillError):
    """The local stack could not be started, found or stopped."""


# --- the log ----------------------------------------------------------------------------------------------------------


class CorruptBatch(WaybillError):
    """Bytes that should be record batches are not: cut short, or a checksum or a length is wrong.

    `where` names the object (or topic-partition) and `position_bytes` the byte at which the faulty batch starts.
    """

    def __init__(self, where: str, position_bytes: int, reason: str) -> None:
        super().__init__(f"{where}, byte {position_bytes:,}: {reason}")
        self.where = where
        self.position_bytes = position_bytes
        self.reason = reason

    def __reduce__(self) -> tuple[type[CorruptBatch], tuple[str, int, str]]:
        # Spark and Airflow carry exceptions between processes by pickle.
        return type(self), (self.where, self.position_bytes, self.reason)


class DamagedObject(CorruptBatch):
    """A backup object of another format than Kafka's, or its index, is not what was written."""


class UnsupportedBatch(CorruptBatch):
    """A sound batch of a kind that Waybill does not read: message format v0 or v1, or an unknown codec."""


# --- services ---------------------------------------------------------------------------------------------------------


class KafkaUnavailable(WaybillError):
    """Kafka did not answer, or refused, for longer than the lane may wait."""

    retriable = True


class StoreUnavailable(WaybillError):
    """S3 did not answer, or its answer leaves the outcome unknown. Calling again gives the same outcome."""

    retriable = True


class ObjectAlreadyThere(WaybillError):
    """Create-if-absent found an object of that name: a rival or an earlier try was first."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} exists already")
        self.key = key

    def __reduce__(self) -> tuple[type[ObjectAlreadyThere], tuple[str]]:
        return type(self), (self.key,)


class ObjectMissing(WaybillError):
    """An object that should be there is not."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} does not exist")
        self.key = key

    def __reduce__(self) -> tuple[type[ObjectMissing], tuple[str]]:
        return type(self), (self.key,)


class CatalogUnavailable(WaybillError):
    """The Iceberg catalog did not answer, or its database stayed locked. Calling again gives the same outcome."""

    retriable = True


class RegistryUnavailable(WaybillError):
    """The schema registry did not answer. Nothing of the run is committed, and nothing is dropped."""

    retriable = True

    def __init__(self, url: str, what: str, remedy: str) -> None:
        super().__init__(f"the schema registry at {url} does not answer ({what}). Check {remedy}")
        self.url, self.what, self.remedy = url, what, remedy

    def __reduce__(self) -> tuple[type[RegistryUnavailable], tuple[str, str, str]]:
        return type(self), (self.url, self.what, self.remedy)


class RegistryRefused(WaybillError):
    """The schema registry does not let us in, or what answers is no schema registry."""

    def __init__(self, url: str, what: str, remedy: str) -> None:
        super().__init__(f"{url} refuses to say which schema it is ({what}): nothing is committed. Check {remedy}")
        self.url, self.what, self.remedy = url, what, remedy

    def __reduce__(self) -> tuple[type[RegistryRefused], tuple[str, str, str]]:
        return type(self), (self.url, self.what, self.remedy)


class ScratchUnusable(WaybillError):
    """The disk that files are made on, before they are sent to S3, is full or cannot be written."""

    retriable = True

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(
            f"scratch directory {directory} cannot be written: {reason}. Nothing is committed. Make room there, or "
            f"name another disk in SPARK_LOCAL_DIRS (on executors) or TMPDIR"
        )
        self.directory, self.reason = directory, reason

    def __reduce__(self) -> tuple[type[ScratchUnusable], tuple[str, str]]:
        return type(self), (self.directory, self.reason)


class CoordinationUnavailable(WaybillError):
    """ZooKeeper did not answer, or the session is gone: nothing can be committed."""

    retriable = True


class LockHeld(WaybillError):
    """Another lane works on the topic-partition: leave it to that one."""

    retriable = True


class CommitConflict(WaybillError):
    """The committed offset, or the table's progress, was moved by somebody else since it was read."""

    retriable = True


# --- named stops: one topic-partition stands still until somebody decides ---------------------------------------------


class IngestStopped(WaybillError):
    """Base of the named stops. Each stops only its topic-partition.

    Their attributes that are numbers and strings are the figures that the journal keeps.
    """

    @property
    def figures(self) -> dict[str, int | str]:
        return {key: value for key, value in vars(self).items() if isinstance(value, int | str)}


def _accept(topic: str, partition: int) -> str:
    return f'waybill gaps accept {topic} {partition} --reason "…"'


class RetentionGap(IngestStopped):
    """Kafka's retention deleted offsets before they were archived."""

    def __init__(self, topic: str, partition: int, committed_offset: int, earliest_offset: int) -> None:
        lost = earliest_offset - committed_offset
        super().__init__(
            f"{topic}/{partition}: offsets {committed_offset}–{earliest_offset - 1} are gone from Kafka (retention) "
            f"before they were archived: up to {lost:,} messages lost. Ingest of this topic-partition is stopped. "
            f"Record the gap and go on at {earliest_offset} with: {_accept(topic, partition)}; "
            f"or raise the stream's generation to start a new chain with what Kafka still has."
        )
        self.topic, self.partition = topic, partition
        self.committed_offset, self.earliest_offset = committed_offset, earliest_offset
        self.messages_at_most = lost

    def __reduce__(self) -> tuple[type[RetentionGap], tuple[str, int, int, int]]:
        return type(self), (self.topic, self.partition, self.committed_offset, self.earliest_offset)


class TopicRecreated(IngestStopped):
    """The topic was deleted and created again: its offsets mean other messages than the chain's."""

    def __init__(self, topic: str, partition: int, recorded_id: str, found_id: str) -> None:
        super().__init__(
            f"{topic}/{partition}: the topic was recreated (its id was {recorded_id}, now it is {found_id}). Ingest of "
            f"this topic-partition is stopped. Raise the stream's generation to archive the new topic in a new chain: "
            f"one chain cannot hold the offsets of two topics."
        )
        self.topic, self.partition = topic, partition
        self.recorded_id, self.found_id = recorded_id, found_id

    def __reduce__(self) -> tuple[type[TopicRecreated], tuple[str, int, str, str]]:
        return type(self), (self.topic, self.partition, self.recorded_id, self.found_id)


class LogTruncated(IngestStopped):
    """The log ends before the committed offset, or under another leader epoch: an unclean leader election."""

    def __init__(self, topic: str, partition: int, committed_offset: int, end_offset: int, leader_epoch: int) -> None:
        taken_back = committed_offset - end_offset
        super().__init__(
            f"{topic}/{partition}: the log of leader epoch {leader_epoch} ends at {end_offset}, before the committed "
            f"offset {committed_offset}: an unclean leader election took back {taken_back:,} "
            f"archived offsets. Ingest of this topic-partition is stopped. Keep what is archived and go on at "
            f"{committed_offset} once the new log is that long, without the up to {taken_back:,} messages that it "
            f"holds before, with: {_accept(topic, partition)}; or raise the stream's generation to archive the log as "
            f"it is now in a new chain."
        )
        self.topic, self.partition = topic, partition
        self.committed_offset, self.end_offset, self.leader_epoch = committed_offset, end_offset, leader_epoch
        self.messages_at_most = taken_back

    def __reduce__(self) -> tuple[type[LogTruncated], tuple[str, int, int, int, int]]:
        figures = (self.committed_offset, self.end_offset, self.leader_epoch)
        return type(self), (self.topic, self.partition, *figures)


class ChainBroken(IngestStopped):
    """A backup object is missing, overlaps its neighbour, or does not hold what its name says.

    The offsets concerned are `[first_offset, next_offset)`, where they are known.
    """

    def __init__(self, message: str, first_offset: int | None = None, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.first_offset, self.next_offset = first_offset, next_offset
        if first_offset is not None and next_offset is not None:
            self.messages_at_most = next_offset - first_offset

    def __reduce__(self) -> tuple[type[ChainBroken], tuple[str, int | None, int | None]]:
        return type(self), (str(self), self.first_offset, self.next_offset)


class ChainGap(ChainBroken):
    """A backup object ends before the one after it starts: between them an object is missing."""


class GenerationConflict(IngestStopped):
    """Two streams, or two versions of one, would write the same chain or table."""


class GapRefused(WaybillError):
    """A gap cannot be accepted as asked, or there is none; or the committed offset must not be set there."""


class IngestIncomplete(WaybillError):
    """A run archived what it could; some topic-partitions stopped or failed, and the message says which and why."""


# --- tables -----------------------------------------------------------------------------------------------------------


class ProgressLost(WaybillError):
    """The table holds rows, but no snapshot in its history says up to which offsets."""


class DamagedFile(WaybillError):
    """A data file of a table is not what was written."""

    def __init__(self, table: str, path: str, reason: str) -> None:
        super().__init__(
            f"table {table}: its file {path} is damaged: {reason}. Restore the object, for instance an earlier version "
            f"of it that the bucket keeps, and run again; the archive still has its messages"
        )
        self.table, self.path, self.reason = table, path, reason

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[str, str, str]]:
        return type(self), (self.table, self.path, self.reason)


class ParserBroken(WaybillError):
    """A parser named by its class raised, or its answer is not what the parser protocol asks for."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"parser {path} {what}: nothing of this run is committed; correct the class, or name another parser"
        )
        self.path, self.what = path, what

    def __reduce__(self) -> tuple[type[ParserBroken], tuple[str, str]]:
        return type(self), (self.path, self.what)


class QuarantineRateExceeded(WaybillError):
    """Runs were committed of which more went to quarantine than the config allows. The message says what and why."""


class PlanUnusable(WaybillError):
    """The plan of a partition run or a sweep, or what it has staged, cannot be read or is gone."""


class SweepHistoryLost(WaybillError):
    """What a stream's table gained since the last dedup sweep cannot be told: its snapshots do not lead back to it."""


# --- dedup ------------------------------------------------------------------------------------------------------------


class SweepUnsound(WaybillError):
    """A dedup sweep's tasks did not bring each row to one place. Nothing of it is committed."""

    def __init__(self, plan: str, records: int, rows: int, duplicates: int, marked: int) -> None:
        super().__init__(
            f"sweep {plan}: of the {records:,} rows that its plan has, {rows:,} were kept and {duplicates:,} written "
            f"as duplicates, and {marked:,} were found to be duplicates. Nothing of it is committed. A data file of "
            f"the stream's table that is not what its manifest says would be a reason: see `waybill verify`"
        )
        self.plan, self.records, self.rows = plan, records, rows
        self.duplicates, self.marked = duplicates, marked

    def __reduce__(self) -> tuple[type[SweepUnsound], tuple[str, int, int, int, int]]:
        return type(self), (self.plan, self.records, self.rows, self.duplicates, self.marked)


class IndexDamaged(WaybillError):
    """A file of the key index is gone, or is not what was written. The index is made again from the unique table."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}. The key index is made again from the unique table")
        self.key, self.reason = key, reason

    def __reduce__(self) -> tuple[type[IndexDamaged], tuple[str, str]]:
        return type(self), (self.key, self.reason)


class WindowShrunk(WaybillError):
    """Dedup sweeps see less far back than the config promises. The message says how far, why, and what to do."""


# --- maintenance ------------------------------------------------------------------------------------------------------


class ProcedureFailed(WaybillError):
    """One of Iceberg's procedures ended with an error. What it had committed stays; nothing else has changed."""

    retriable = True

    def __init__(self, procedure: str, table: str, reason: str) -> None:
        super().__init__(f"{procedure} of {table}: {reason}")
        self.procedure, self.table, self.reason = procedure, table, reason

    def __reduce__(self) -> tuple[type[ProcedureFailed], tuple[str, str, str]]:
        return type(self), (self.procedure, self.table, self.reason)


class CompactionUnsound(WaybillError):
    """A compaction put other rows in place of those it took."""

    def __init__(self, table: str, snapshot_id: int, rows_before: int, rows_after: int) -> None:
        super().__init__(
            f"table {table}: the compaction of snapshot {snapshot_id} made {rows_after:,} rows of {rows_before:,}. "
            f"Nothing was expired. Roll the table back to the snapshot before it, and pause maintenance of the stream"
        )
        self.table, self.snapshot_id = table, snapshot_id
        self.rows_before, self.rows_after = rows_before, rows_after

    def __reduce__(self) -> tuple[type[CompactionUnsound], tuple[str, int, int, int]]:
        return type(self), (self.table, self.snapshot_id, self.rows_before, self.rows_after)


class HoursBlocked(WaybillError):
    """A directory of the `files` sink does not hold just the files that the ledger lists: it cannot become final."""


class OutputDiffers(WaybillError):
    """A file of the `files` sink is there already, with other bytes than this run makes."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key} is there with other content than this run makes: {what}")
        self.key, self.what = key, what

    def __reduce__(self) -> tuple[type[OutputDiffers], tuple[str, str]]:
        return type(self), (self.key, self.what)
