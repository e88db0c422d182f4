"""Every error that Waybill raises on purpose.

The indentation is the class hierarchy. `(retriable)` marks a class whose `retriable` is true: the same call may succeed
later without any change. Retry policies, Airflow's among them, read that property.

    WaybillError
      ConfigError                   the config, a parameter or an environment variable
        ConnectionMissing
      StackError                    the local stack of services

      CorruptBatch                  bytes of record batches
        DamagedObject               ... of backup objects in other formats, and their index objects
        UnsupportedBatch
      DocumentDamaged               small JSON documents of S3 and ZooKeeper

      KafkaUnavailable              (retriable)
      KinesisUnavailable            (retriable)
      StoreUnavailable              (retriable) S3
      CatalogUnavailable            (retriable) the Iceberg catalog
      CoordinationUnavailable       (retriable) ZooKeeper
        SessionReplaced             (retriable) ... began another session without a word
      NodeTooLarge                  a document for a node of ZooKeeper
      RegistryUnavailable           (retriable) the schema registry
      AirflowUnavailable            (retriable) Airflow's API
      RegistryRefused
      ScratchUnusable               (retriable) the local disk
      StoreUnfit                    S3 lacks an ability that Waybill relies on
      ObjectExists                  the outcome of a conditional create in S3
      ObjectMissing
      LockHeld                      (retriable) another task is at work
      CommitConflict                (retriable)

      IngestStopped                 the named stops: each stops one topic-partition until a person decides
        RetentionGap
          RecordsExpired            ... of Kinesis
        TopicRecreated
        StreamRecreated
        ShardNotOwned
        LogTruncated
        ChainBroken
          ChainGap
        GenerationConflict
          MixedFormats
          DocumentTooNew
      GapRefused                    decisions about gaps, committed offsets and pauses
      PauseRefused
      IngestIncomplete

      ProgressLost                  tables
      DamagedFile
      ParserBroken
      AlertsRaised
      PublicationHeld               an audit refused a run; a person decides
      PublicationRejected           (retriable)
      RetryRefused                  an audit refused a retry of the quarantine
      DecisionRefused
      BackfillRefused               a request or a decision about a backfill that cannot be granted
      BackfillUnderWay              a promotion or an undo of a backfill has not ended
      RestoreRefused                a restore that cannot be planned or begun
      RestoreStopped
      ReplayRefused                 a replay request, or a change of one, that cannot be granted
        ReplayQuotaReached          (retriable)
      ReplayClaimLost               another worker serves the request, or it has ended
      ReplayUnavailable             (retriable) the database of the replay requests
      PlanUnusable                  plans of partition runs, sweeps and quarantine retries
      HoursBlocked                  the files sink
      OutputDiffers

      SweepHistoryLost              deduplication
      SweepUnsound
      IndexDamaged
      WindowShrunk

      ProcedureFailed               (retriable) table maintenance
      CompactionUnsound

      WatchIncomplete               a watch of which an unexpected exception ended a part
      AirflowCleanupFailed          (retriable) maintenance of Airflow's own database

      UnexpectedFailure             any other exception, of one element of a loop; the loop went on

A message names the thing, the value and the remedy. The same fault raises the same class wherever it is found.
"""

from __future__ import annotations

import copyreg
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from waybill.base.printable import printable


class WaybillError(Exception):
    """Base of all errors that Waybill raises on purpose."""

    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later without any change."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark and Airflow carry exceptions between processes by pickle. Exception's own __reduce__ calls the class
        # with the message alone, which fails where __init__ takes other arguments. This one restores the message and
        # the attributes without a call of __init__.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        # JSON and environment variables can hold half of a surrogate pair, which no log, mail or answer can encode.
        return super().__str__().encode(errors="backslashreplace").decode()


class ConfigError(WaybillError):
    """The config, a run parameter or an environment variable holds a value that cannot be used. Correct it first."""


class ConnectionMissing(ConfigError):
    """The config names a connection that is not defined anywhere."""


class StackError(WaybillError):
    """The local stack of services could not be started, found or stopped."""


# --- stored bytes -----------------------------------------------------------------------------------------------------


class CorruptBatch(WaybillError):
    """Bytes that should be record batches are not: they are cut short, or a checksum or a length is wrong.

    `where` names the object (or topic-partition) and `position_bytes` the byte at which the faulty batch starts.
    A retry reads the same bytes again. It helps only if the broker's new leader holds a sound copy.
    """

    def __init__(self, where: str, position_bytes: int, reason: str) -> None:
        super().__init__(f"{where}, byte {position_bytes:,}: {reason}")
        self.where = where
        self.position_bytes = position_bytes
        self.reason = reason


class DamagedObject(CorruptBatch):
    """A backup object in another format than Kafka's, or its index object, differs from what Waybill wrote."""


class UnsupportedBatch(CorruptBatch):
    """A sound batch of a kind that Waybill does not read: message format v0 or v1, or an unknown codec."""


class DocumentDamaged(WaybillError):
    """A JSON document in S3 or ZooKeeper cannot be parsed or lacks fields. The message names the remedy.

    A document of a newer version of Waybill raises `DocumentTooNew` instead, and a table's snapshot properties that
    cannot be parsed raise `ProgressLost`.
    """


# --- services ---------------------------------------------------------------------------------------------------------


class KafkaUnavailable(WaybillError):
    """Kafka did not answer, or refused, within the timeout. A later call may succeed."""

    retriable = True


class KinesisUnavailable(WaybillError):
    """Kinesis did not answer, throttled, or gave no usable answer in all tries of a call. A later call may succeed."""

    retriable = True


class StoreUnavailable(WaybillError):
    """S3 did not answer, or its answer leaves the outcome unknown. Repeating the call gives the same outcome."""

    retriable = True


class CatalogUnavailable(WaybillError):
    """The Iceberg catalog did not answer, or its database stayed locked. Repeating the call gives the same outcome."""

    retriable = True


class CoordinationUnavailable(WaybillError):
    """ZooKeeper did not answer, or the session has ended. No offset can be committed; a later run may succeed."""

    retriable = True


class SessionReplaced(CoordinationUnavailable):
    """A server of ZooKeeper's protocol answered a reconnect with another session: all locks of the old one are gone.

    ZooKeeper itself reports an expired session. ClickHouse Keeper was observed to start a new one instead.
    """

    def __init__(self, where: str, before: int, now: int) -> None:
        super().__init__(
            f"the ZooKeeper session {before:#x} at {where} was replaced by {now:#x} when the connection came back, and "
            f"its locks are gone: nothing more is committed. The next run begins a session of its own. If this "
            f"repeats, raise session_timeout in the config, or ask who runs the servers why they drop sessions"
        )


class RegistryUnavailable(WaybillError):
    """The schema registry did not answer. Nothing of the run is committed, and no message is dropped: run again."""

    retriable = True

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        super().__init__(f"the schema registry at {url} does not answer ({reason}). Check {remedy}")
        self.url, self.reason, self.remedy = url, reason, remedy


class AirflowUnavailable(WaybillError):
    """Airflow's API did not answer, or refused the request. Only the watch uses this API."""

    retriable = True

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        super().__init__(f"Airflow at {url} does not answer the watch: {reason}. Check {remedy}")
        self.url, self.reason, self.remedy = url, reason, remedy


class RegistryRefused(WaybillError):
    """The schema registry rejected the credentials, or the server at its address is no schema registry."""

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        super().__init__(f"{url} does not return the schema ({reason}): nothing is committed. Check {remedy}")
        self.url, self.reason, self.remedy = url, reason, remedy


class ScratchUnusable(WaybillError):
    """The local disk, where files are written before they are uploaded to S3, is full or not writable.

    A retry can succeed: another executor may have another disk, and other tasks free their space.
    """

    retriable = True

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(
            f"scratch directory {directory} cannot be written: {reason}. Nothing is committed. Make room there, or "
            f"name another disk in SPARK_LOCAL_DIRS (on executors) or TMPDIR"
        )
        self.directory, self.reason = directory, reason


class StoreUnfit(WaybillError):
    """The S3 store lacks an ability that Waybill relies on, so Waybill does not write to it.

    `lacks` names each ability with the behaviour of the store.
    """

    def __init__(self, where: str, lacks: Sequence[str], remedy: str) -> None:
        super().__init__(f"{where}: the store is not fit for Waybill: {'; '.join(lacks)}. {remedy}")
        self.where, self.lacks, self.remedy = where, tuple(lacks), remedy


class ObjectExists(WaybillError):
    """A conditional create (`If-None-Match: *`) found an object of that key: a rival or an earlier try was first."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} exists already")
        self.key = key


class ObjectMissing(WaybillError):
    """S3 has no object of that key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} does not exist")
        self.key = key


class NodeTooLarge(WaybillError):
    """A document does not fit into a node of ZooKeeper. Nothing was written."""

    def __init__(self, path: str, found_bytes: int, most_bytes: int) -> None:
        super().__init__(
            f"ZooKeeper node {path}: {found_bytes:,} bytes are more than the {most_bytes:,} that a node may hold. The "
            f"node is left as it was. Divide the streams between two configs with a `zookeeper.root` of their own, and "
            f"report it: no document of Waybill should grow so large"
        )
        self.path, self.found_bytes = path, found_bytes


class LockHeld(WaybillError):
    """Another lane holds the topic-partition's lock and archives it, so this one skips it."""

    retriable = True


class CommitConflict(WaybillError):
    """Another task moved the committed offset, or committed to the table, after this one had read it. Run again."""

    retriable = True


# --- named stops: ingest of one topic-partition stops until a person decides ------------------------------------------


class IngestStopped(WaybillError):
    """Base of the named stops. A named stop stops one topic-partition; the others of its stream go on.

    ZooKeeper keeps a journal of stops: the stop's name, the message, and the attributes that are numbers or strings.
    """

    @property
    def stop_name(self) -> str:
        """The name in the journal: the named stop itself, also for an error that is a subclass of it."""
        stops = [cls for cls in type(self).__mro__ if issubclass(cls, IngestStopped)]
        return stops[-2:][0].__name__

    @property
    def figures(self) -> dict[str, int | str]:
        """The attributes that are numbers or strings, by name."""
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


class RecordsExpired(RetentionGap):
    """Kinesis' retention deleted records before they were archived, or the checkpoint cannot prove that it did not."""

    def __init__(
        self, topic: str, slot: int, committed_offset: int, shards: Sequence[str], problem: str, checkpoint: Any = None
    ) -> None:
        IngestStopped.__init__(
            self,
            f"{topic}/{slot}: {problem}. Nobody can know how many records are lost. Ingest of this slot is stopped. "
            f"Record the gap and go on with what Kinesis still has: {_accept(topic, slot)}; or raise the stream's "
            f"generation to start new chains with what Kinesis still has.",
        )
        self.topic, self.partition = topic, slot
        self.committed_offset, self.earliest_offset = committed_offset, committed_offset + 1
        self.shards = ", ".join(shards)
        self.checkpoint = checkpoint
        """The `Checkpoint` at which ingest goes on when the gap is accepted."""


class TopicRecreated(IngestStopped):
    """The topic was deleted and created again: the same offsets now stand for other messages than in the chain."""

    def __init__(self, topic: str, partition: int, recorded_id: str, found_id: str) -> None:
        super().__init__(
            f"{topic}/{partition}: the topic was recreated (its id was {recorded_id}, now it is {found_id}). Ingest of "
            f"this topic-partition is stopped. Raise the stream's generation to archive the new topic in a new chain: "
            f"one chain cannot hold the offsets of two topics."
        )
        self.topic, self.partition = topic, partition
        self.recorded_id, self.found_id = recorded_id, found_id


class StreamRecreated(IngestStopped):
    """The Kinesis stream was deleted and created again: the same shard ids now stand for other records."""

    def __init__(self, topic: str, recorded_id: str, found_id: str) -> None:
        super().__init__(
            f"{topic}: the Kinesis stream was recreated (it was {recorded_id}, now it is {found_id}). Ingest of the "
            f"stream is stopped. Raise the stream's generation to archive the new stream in new chains: the ids of its "
            f"shards are those of the old one."
        )
        self.topic, self.recorded_id, self.found_id = topic, recorded_id, found_id


class ShardNotOwned(IngestStopped):
    """A checkpoint names a shard that is not assigned to its slot. The checkpoint is not used, and nothing is written.

    `owner_slot` is the slot that the shard is assigned to; -1 if it is assigned to none.
    """

    def __init__(self, topic: str, slot: int, shard_id: str, owner_slot: int) -> None:
        owner = "no slot" if owner_slot < 0 else f"slot {owner_slot}"
        super().__init__(
            f"{topic}/{slot}: the checkpoint of slot {slot} names {shard_id}, which is assigned to {owner}. Ingest of "
            f"this topic-partition is stopped, and the checkpoint is not used. Look for the object that holds it with "
            f"`waybill verify --no-table`: another program, or an archive that was copied together, has written it. "
            f"Move that object away, and the next run continues from the object before it."
        )
        self.topic, self.partition, self.shard_id, self.owner_slot = topic, slot, shard_id, owner_slot


class LogTruncated(IngestStopped):
    """An unclean leader election removed archived offsets from the log."""

    def __init__(self, topic: str, partition: int, committed_offset: int, end_offset: int, leader_epoch: int) -> None:
        taken_back = committed_offset - end_offset
        super().__init__(
            f"{topic}/{partition}: the log of leader epoch {leader_epoch} ends at {end_offset}, before the committed "
            f"offset {committed_offset}: an unclean leader election took back {taken_back:,} "
            f"archived offsets. Ingest of this topic-partition is stopped. To keep the archived messages and go on at "
            f"{committed_offset} as soon as the new log reaches it, without the up to {taken_back:,} messages that the "
            f"new log holds before that offset: {_accept(topic, partition)}; or raise the stream's generation to "
            f"archive the log as it is now in a new chain."
        )
        self.topic, self.partition = topic, partition
        self.committed_offset, self.end_offset, self.leader_epoch = committed_offset, end_offset, leader_epoch
        self.messages_at_most = taken_back


class ChainBroken(IngestStopped):
    """A backup object is missing, overlaps its neighbour, or does not hold the offsets that its name promises.

    The offsets concerned are `[first_offset, next_offset)`; both are None if they are unknown.
    """

    def __init__(self, message: str, first_offset: int | None = None, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.first_offset, self.next_offset = first_offset, next_offset
        if first_offset is not None and next_offset is not None:
            self.messages_at_most = next_offset - first_offset


class ChainGap(ChainBroken):
    """A backup object ends before the next one starts: an object between them is missing."""


class GenerationConflict(IngestStopped):
    """Two streams, two formats or two versions of Waybill would write the same chain or table.

    Correct the config, raise the stream's generation, or upgrade; the message states which.
    """


class MixedFormats(GenerationConflict):
    """One chain holds objects of more than one format, so two objects may start at the same offset."""


class DocumentTooNew(GenerationConflict):
    """A newer version of Waybill wrote a stored document, and this installation cannot read it: upgrade it."""


# --- decisions about gaps, committed offsets and pauses ---------------------------------------------------------------


class GapRefused(WaybillError):
    """The gap cannot be accepted as requested, or the committed offset cannot be set there."""


class PauseRefused(WaybillError):
    """The stream cannot be paused or resumed as requested."""


class IngestIncomplete(WaybillError):
    """A run archived some topic-partitions; others stopped or failed. The message lists them with the reasons."""


# --- tables -----------------------------------------------------------------------------------------------------------


class ProgressLost(WaybillError):
    """The table holds rows, but no snapshot in its history records up to which offsets, or the record is damaged."""


class DamagedFile(WaybillError):
    """A data file of a table differs from what Waybill wrote."""

    def __init__(self, table: str, path: str, reason: str) -> None:
        super().__init__(
            f"table {table}: its file {path} is damaged: {reason}. Restore the object, for instance an earlier version "
            f"of it that the bucket keeps, and run again; the archive still has its messages"
        )
        self.table, self.path, self.reason = table, path, reason


class ParserBroken(WaybillError):
    """A parser class from the config raised, or its return value violates the parser protocol."""

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(
            f"parser {path} {fault}: nothing of this run is committed; correct the class, or name another parser"
        )
        self.path, self.fault = path, fault


class AlertsRaised(WaybillError):
    """Runs are published, and need a person's attention: too many messages in quarantine, or warnings of an audit."""


class PublicationHeld(WaybillError):
    """An audit found a critical failure, so the rows of a run are not published until a person decides."""


class PublicationRejected(WaybillError):
    """A person rejected the plan while this run was executing it. The next run makes a new plan."""

    retriable = True


class RetryRefused(WaybillError):
    """An audit found a critical failure, so a retry of the quarantine moved nothing."""


class DecisionRefused(WaybillError):
    """A decision about a held run or a backfill cannot be made as requested."""


class BackfillRefused(WaybillError):
    """A backfill cannot be requested, built, promoted, undone or cancelled as requested. Nothing was changed."""


class BackfillUnderWay(WaybillError):
    """A backfill of the stream is being promoted or undone, and the requested action must wait for its end.

    Not retriable: if the process was killed, a person repeats the command, which then ends the work.
    """


class ReplayRefused(WaybillError):
    """A replay request cannot be created, shown or cancelled as requested. Nothing was changed.

    `field` is the field of the request at fault, or empty.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class ReplayQuotaReached(ReplayRefused):
    """There are as many replay requests as the config allows. The message states when a request is possible again."""

    retriable = True

    def __init__(self, message: str, wait_seconds: int) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds
        """After how many seconds to try again."""


class ReplayClaimLost(WaybillError):
    """A worker's claim of a replay request is no longer valid, so the worker must stop. Its write was refused."""


class ReplayUnavailable(WaybillError):
    """The database of the replay requests did not answer. Repeating the call gives the same outcome."""

    retriable = True


class RestoreRefused(WaybillError):
    """A restore cannot be planned or begun as requested. Nothing was produced."""


class RestoreStopped(WaybillError):
    """A restore has stopped. The messages that it has produced are correct, and the next run continues after them."""


class PlanUnusable(WaybillError):
    """The plan of a partition run, a sweep or a quarantine retry cannot be executed.

    An object that it names is gone or belongs to another plan. The message names the object to restore or remove.
    """


class HoursBlocked(WaybillError):
    """A directory of the `files` sink holds other files than the file inventory lists, so it cannot become final."""


class OutputDiffers(WaybillError):
    """A file of the `files` sink exists already, with other bytes than this run writes."""

    def __init__(self, key: str, difference: str) -> None:
        super().__init__(f"{key} exists with other content than this run writes: {difference}")
        self.key, self.difference = key, difference


# --- deduplication ----------------------------------------------------------------------------------------------------


class SweepHistoryLost(WaybillError):
    """The table's snapshots do not lead back to the last dedup sweep, so the rows appended since then are unknown."""


class SweepUnsound(WaybillError):
    """A sweep's tasks did not write each planned row exactly once. Nothing of the sweep is committed."""

    def __init__(self, plan: str, records: int, rows: int, duplicates: int, marked: int) -> None:
        super().__init__(
            f"sweep {plan}: of the {records:,} rows that its plan has, {rows:,} were kept and {duplicates:,} written "
            f"as duplicates, and {marked:,} were found to be duplicates. Nothing of it is committed. A data file of "
            f"the stream's table with another number of rows than its manifest records can be the reason: see "
            f"`waybill verify`"
        )
        self.plan, self.records, self.rows = plan, records, rows
        self.duplicates, self.marked = duplicates, marked


class IndexDamaged(WaybillError):
    """A file of the key index is missing, or differs from what Waybill wrote. The next sweep rebuilds the index."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}. The key index is rebuilt from the unique table")
        self.key, self.reason = key, reason


class WindowShrunk(WaybillError):
    """Sweeps compare keys less far back than the config promises. The message states how far, why, and the remedy."""


# --- maintenance ------------------------------------------------------------------------------------------------------


class ProcedureFailed(WaybillError):
    """One of Iceberg's Spark procedures failed. Its earlier commits stay; a retry continues from them."""

    retriable = True

    def __init__(self, procedure: str, table: str, reason: str) -> None:
        super().__init__(f"{procedure} of {table}: {reason}")
        self.procedure, self.table, self.reason = procedure, table, reason


class CompactionUnsound(WaybillError):
    """A compaction wrote another number of rows than it replaced."""

    def __init__(self, table: str, snapshot_id: int, rows_before: int, rows_after: int) -> None:
        super().__init__(
            f"table {table}: the compaction of snapshot {snapshot_id} made {rows_after:,} rows of {rows_before:,}. "
            f"Nothing was expired. Roll the table back to the snapshot before it, and pause maintenance of the stream"
        )
        self.table, self.snapshot_id = table, snapshot_id
        self.rows_before, self.rows_after = rows_before, rows_after


# --- Airflow ----------------------------------------------------------------------------------------------------------


class AirflowCleanupFailed(WaybillError):
    """`airflow db clean` ended with an error. The next run removes the remaining rows."""

    retriable = True


class WatchIncomplete(WaybillError):
    """An unexpected exception ended a part of a watch.

    The other parts were done, and the message names the failed parts.
    """


# --- faults of Waybill ------------------------------------------------------------------------------------------------

_PACKAGE = Path(__file__).parents[1]


class UnexpectedFailure(WaybillError):
    """An unexpected exception ended the work on one element of a loop, and the loop went on without it.

    The element is a topic-partition, a stream, a channel, a promise, a request. The exception shows a fault of Waybill,
    or an unknown kind of input, so a person must examine it. The code that catches it logs the stack trace, and the run
    counts as failed.
    """

    stop_name: ClassVar[str] = "UnexpectedFailure"
    """Its name in the journal of stops, if the element is a topic-partition."""

    def __init__(self, element: str, error: BaseException, mask: Callable[[str], str] = lambda text: text) -> None:
        """`mask` returns a text without the secrets that the exception may name."""
        self.element, self.kind, self.place = element, type(error).__name__, _place_of(error)
        shown = _shortened(mask(str(error)))
        super().__init__(
            f"{element}: unexpected {self.kind} at {self.place}: {shown}. This is a fault of Waybill, "
            f"or an input that it does not know: report it with the stack trace in the log"
        )

    @property
    def figures(self) -> dict[str, int | str]:
        """The figures that the journal stores besides the message."""
        return {"element": self.element, "kind": self.kind, "place": self.place}


def expected(element: str, error: Exception) -> WaybillError:
    """Return an error of Waybill unchanged, and any other exception as the `UnexpectedFailure` of this element."""
    return error if isinstance(error, WaybillError) else UnexpectedFailure(element, error)


def _place_of(error: BaseException) -> str:
    """Return the innermost line of Waybill in the stack trace, else the innermost line: `ingest/lane.py:129`."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    if ours:
        return f"{Path(ours[-1].filename).relative_to(_PACKAGE).as_posix()}:{ours[-1].lineno}"
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"


_MOST_CHARACTERS = 500


def _shortened(text: str) -> str:
    text = printable(text.replace("\n", " "))
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… ({len(text):,} characters)"
