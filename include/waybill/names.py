"""The names of everything stored: S3 keys, table names, ZooKeeper paths. Only this module builds or parses them.

The name of a backup object holds the offset at which its range *starts*, never the end: the first task that creates a
name wins (docs/protocol.md). Offsets are zero-padded, so a listing returns a chain in order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from waybill.errors import ConfigError

__all__ = [
    "MAX_OFFSET",
    "OFFSET_DIGITS",
    "BackupName",
    "Extension",
    "FileExtension",
    "FileName",
    "GapName",
    "Period",
    "Stage",
    "TopicPartition",
    "archive_prefix",
    "audit_key",
    "backfill_branch",
    "backfill_built_key",
    "backfill_cut_key",
    "backfill_diff_key",
    "backfill_event_key",
    "backfill_plan_id",
    "backfill_prefix",
    "backfill_request_key",
    "backfill_tag",
    "backfill_task_key",
    "backfills_prefix",
    "backup_prefix",
    "chain_of_key",
    "chain_prefix",
    "chain_start_key",
    "check_backfill_id",
    "check_stream_name",
    "check_topic",
    "data_docs_key",
    "decision_key",
    "duplicates_table_name",
    "gap_prefix",
    "gaps_prefix",
    "generation_change_key",
    "generation_of_ref",
    "generation_ref",
    "group_results_key",
    "history_name",
    "index_key",
    "index_prefix",
    "indexes_prefix",
    "is_topic",
    "join_segments",
    "key_index_filter_key",
    "key_index_manifest_key",
    "key_index_manifests_prefix",
    "key_index_prefix",
    "key_index_run_key",
    "key_index_version_of",
    "key_indexes_prefix",
    "name_with_generation",
    "offset_prefix",
    "period_of_key",
    "plan_key",
    "plan_of_audit",
    "plans_prefix",
    "quarantine_table_name",
    "rebuild_ref",
    "retries_prefix",
    "retry_key",
    "retry_offsets_key",
    "run_ref",
    "sink_root",
    "staged_key",
    "success_key",
    "sweep_marks_key",
    "sweep_plan_key",
    "sweeps_of_stream_prefix",
    "sweeps_prefix",
    "unique_table_name",
]

OFFSET_DIGITS = 20
"""Digits of a zero-padded offset in a key."""
MAX_OFFSET = (1 << 63) - 1
"""Kafka's largest offset."""


class Stage(StrEnum):
    """A part of a stream's scheduled work that can be paused alone."""

    INGEST = "ingest"
    PARTITION = "partition"
    DEDUP = "dedup"
    MAINTENANCE = "maintenance"


class Extension(StrEnum):
    """The extension of a backup object's key, which implies the format. All objects of a chain have the same one."""

    KAFKA = "kafka"
    """Kafka's own record batches."""
    SEQUENCEFILE = "seq"
    """Hadoop's SequenceFile."""
    TEXT = "txt"
    """Messages, each followed by a delimiter."""
    TEXT_GZIP = "txt.gz"
    """Messages, each followed by a delimiter, in one gzip stream."""

    @property
    def is_indexed(self) -> bool:
        """Whether an object needs an index object beside it, which holds what the format cannot hold."""
        return self is not Extension.KAFKA


class FileExtension(StrEnum):
    """The extension of a file of the `files` sink, which implies the format."""

    PARQUET = "parquet"
    SEQUENCEFILE = "seq"
    TEXT = "txt"
    TEXT_GZIP = "txt.gz"


_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_STREAM = re.compile(r"[a-z][a-z0-9_]{0,99}")
_TOKEN = re.compile(r"[0-9a-f]{32}")
_BACKFILL = re.compile(r"[0-9]{8}_[0-9a-f]{4}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")  # canonical: each number has one spelling, so each object has one name
_OFFSET = rf"[0-9]{{{OFFSET_DIGITS}}}"
_EXTENSIONS = "|".join(re.escape(extension) for extension in Extension)
_BACKUP = re.compile(rf"({_NUMBER.pattern})_({_NUMBER.pattern})_({_OFFSET})\.({_EXTENSIONS})")
_IN_CHAIN = re.compile(rf"({_NUMBER.pattern})_({_NUMBER.pattern})_{_OFFSET}\.[0-9a-z.]+")
_GAP = re.compile(rf"({_NUMBER.pattern})_({_NUMBER.pattern})_({_OFFSET})(?:_({_OFFSET}))?\.json")
_MANIFEST = re.compile(rf"/manifests/({_OFFSET})\.json\Z")
_PERIOD_OBJECT = re.compile(r"([a-zA-Z0-9._-]{1,249})/dt=([0-9]{4}-[0-9]{2}-[0-9]{2})/(?:hr=([0-9]{2})/)?([^/]+)")
_FILE_EXTENSIONS = "|".join(re.escape(extension) for extension in FileExtension)
_FILE = re.compile(rf"({_NUMBER.pattern})_({_NUMBER.pattern})_({_OFFSET})\.({_FILE_EXTENSIONS})")
_SUCCESS = "_SUCCESS"
_GENERATION_REF = "generation_"


# --- topics and streams -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A topic-partition, written `topic/partition` in messages and documents."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """Return the topic-partition that `str()` gives as `text`. Raises `ValueError` for any other text."""
        topic, separator, partition = text.rpartition("/")
        if not separator or not is_topic(topic) or not _NUMBER.fullmatch(partition):
            raise ValueError(f"{text!r} is not of the form topic/partition")
        return cls(topic, int(partition))


def is_topic(topic: str) -> bool:
    """Return whether Kafka allows a topic of that name."""
    return _TOPIC.fullmatch(topic) is not None and topic not in {".", ".."}


def check_topic(topic: str) -> str:
    """Return `topic` if Kafka allows it; such a name is also safe as one segment of a key or path.

    Raises `ConfigError` otherwise. Kafka's rule: 1 to 249 characters of `[a-zA-Z0-9._-]`, neither `.` nor `..`.
    """
    if not is_topic(topic):
        raise ConfigError(
            f"topic {topic!r} is not a legal Kafka topic name: 1 to 249 characters of [a-zA-Z0-9._-], not '.' or '..'"
        )
    return topic


def check_stream_name(stream: str) -> str:
    """Return `stream` if it can be part of a DAG id, a path and a key. Raises `ConfigError` otherwise."""
    if not _STREAM.fullmatch(stream):
        raise ConfigError(
            f"stream name {stream!r} is not usable: it starts with a lower-case letter and goes on with up to 99 "
            f"characters of [a-z0-9_]"
        )
    return stream


# --- the archive: backup objects, index objects, chain starts, accepted gaps ------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class BackupName:
    """The name of a backup object: its chain, and the offset at which its range starts."""

    topic: str
    generation: int
    partition: int
    first_offset: int
    extension: Extension = Extension.KAFKA

    def key(self, prefix: str) -> str:
        """Return the key `<prefix>/backup/<topic>/<generation>_<partition>_<first_offset>.<extension>`.

        Raises `ValueError` for an offset that Kafka cannot have.
        """
        start = offset_prefix(prefix, self.topic, self.generation, self.partition, self.first_offset)
        return f"{start}.{self.extension}"

    @classmethod
    def parse(cls, key: str) -> BackupName:
        """Return the name that the key holds. Raises `ValueError` if it is not the key of a backup object."""
        parts = key.split("/")
        match = _BACKUP.fullmatch(parts[-1])
        if match is None or len(parts) < 3 or parts[-3] != "backup" or not is_topic(parts[-2]):
            raise ValueError(f"{key!r} is not the name of a backup object")
        generation, partition, first_offset = (int(number) for number in match.groups()[:3])
        if first_offset > MAX_OFFSET:
            raise ValueError(f"{key!r} is not the name of a backup object: there is no such offset")
        return cls(parts[-2], generation, partition, first_offset, Extension(match[4]))


def archive_prefix(prefix: str) -> str:
    """Return the prefix of all backup objects."""
    return join_segments(prefix, "backup", "")


def backup_prefix(prefix: str, topic: str) -> str:
    """Return the prefix of all backup objects of a topic."""
    return join_segments(prefix, "backup", check_topic(topic), "")


def chain_prefix(prefix: str, topic: str, generation: int, partition: int) -> str:
    """Return the prefix of all objects of a chain. The offset follows it, so listings are in order."""
    if generation < 0 or partition < 0:
        raise ValueError(f"generation {generation} and partition {partition} must not be negative")
    return f"{backup_prefix(prefix, topic)}{generation}_{partition}_"


def offset_prefix(prefix: str, topic: str, generation: int, partition: int, first_offset: int) -> str:
    """Return the key, without its extension, of the object that starts at an offset.

    Raises `ValueError` for an offset that Kafka cannot have.
    """
    return f"{chain_prefix(prefix, topic, generation, partition)}{_padded_offset(first_offset)}"


def chain_of_key(key: str) -> tuple[TopicPartition, int] | None:
    """Return the topic-partition and generation of a backup object or index object; None for any other key."""
    parts = key.split("/")
    match = _IN_CHAIN.fullmatch(parts[-1])
    if match is None or len(parts) < 3 or parts[-3] not in {"backup", "index"} or not is_topic(parts[-2]):
        return None
    return TopicPartition(parts[-2], int(match[2])), int(match[1])


def indexes_prefix(prefix: str) -> str:
    """Return the prefix of all index objects."""
    return join_segments(prefix, "index", "")


def index_prefix(backup_key: str) -> str:
    """Return the prefix of the index objects of one backup object. Each upload of the object writes one of its own.

    Their keys are `<prefix>/index/<topic>/<generation>_<partition>_<first_offset>.<token>.parquet`. Raises `ValueError`
    if `backup_key` is not the key of a backup object.
    """
    name = BackupName.parse(backup_key)
    prefix = "/".join(backup_key.split("/")[:-3])
    start = f"{name.generation}_{name.partition}_{name.first_offset:0{OFFSET_DIGITS}d}."
    return join_segments(prefix, "index", name.topic, start)


def index_key(backup_key: str, token: str) -> str:
    """Return the key of the index object that one upload writes, identified by its `token`.

    Raises `ValueError` if `backup_key` or `token` is malformed.
    """
    return f"{index_prefix(backup_key)}{_check_token(token)}.parquet"


def chain_start_key(prefix: str, topic: str, generation: int, partition: int) -> str:
    """Return the key of a chain start: `<prefix>/starts/<topic>/<generation>_<partition>.json`."""
    return join_segments(prefix, "starts", check_topic(topic), f"{generation}_{partition}.json")


@dataclass(frozen=True, slots=True, order=True)
class GapName:
    """The name of an accepted gap: its chain, and the offset at which it starts.

    A truncation removes archived offsets from Kafka's log, and can happen several times at the same offset. So its name
    also holds the offset at which the chain resumes, which makes the names of two truncations differ.
    """

    topic: str
    generation: int
    partition: int
    first_offset: int
    resume_offset: int | None = None

    def key(self, prefix: str) -> str:
        """Return the key `<prefix>/gaps/<topic>/<generation>_<partition>_<first_offset>[_<resume_offset>].json`."""
        resume = "" if self.resume_offset is None else f"_{self.resume_offset:0{OFFSET_DIGITS}d}"
        return (
            gap_prefix(prefix, self.topic, self.generation, self.partition)
            + f"{self.first_offset:0{OFFSET_DIGITS}d}{resume}.json"
        )

    @classmethod
    def parse(cls, key: str) -> GapName:
        """Return the name that the key holds. Raises `ValueError` if it is not the key of an accepted gap."""
        parts = key.split("/")
        match = _GAP.fullmatch(parts[-1])
        if match is None or len(parts) < 3 or parts[-3] != "gaps" or not is_topic(parts[-2]):
            raise ValueError(f"{key!r} is not the name of an accepted gap")
        generation, partition, first_offset, resume = match.groups()
        resume_offset = None if resume is None else int(resume)
        return cls(parts[-2], int(generation), int(partition), int(first_offset), resume_offset)


def gaps_prefix(prefix: str) -> str:
    """Return the prefix of all accepted gaps."""
    return join_segments(prefix, "gaps", "")


def gap_prefix(prefix: str, topic: str, generation: int, partition: int) -> str:
    """Return the prefix of the accepted gaps of one chain."""
    return join_segments(prefix, "gaps", check_topic(topic), f"{generation}_{partition}_")


# --- partition runs ---------------------------------------------------------------------------------------------------


def plans_prefix(prefix: str, stream: str, generation: int, table_uuid: str) -> str:
    """Return the prefix of all plans of a stream's generation, and of the documents of their staged files."""
    return join_segments(prefix, "plans", check_stream_name(stream), str(generation), table_uuid, "")


def plan_key(
    prefix: str,
    stream: str,
    generation: int,
    table_uuid: str,
    progress: Mapping[TopicPartition, int],
    attempt: int = 0,
) -> str:
    """Return the key of the plan of the partition run that starts from `progress`. The same start gives the same key.

    The key contains the table's uuid: a table that was dropped and created again starts from nothing too, but must not
    execute the plans of its predecessor. `attempt` counts the plans from this start that moved no progress.
    """
    canonical = json.dumps(sorted((str(tp), offset) for tp, offset in progress.items()))
    if attempt:
        canonical += str(attempt)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:32]
    return f"{plans_prefix(prefix, stream, generation, table_uuid)}{digest}.json"


def staged_key(plan: str) -> str:
    """Return the key of the document that lists the staged files of the plan with the key `plan`."""
    return plan.removesuffix(".json") + ".staged.json"


def audit_key(plan: str) -> str:
    """Return the key of the result of the audit of the plan with the key `plan`."""
    return plan.removesuffix(".json") + ".audit.json"


def plan_of_audit(key: str) -> str | None:
    """Return the key of the plan whose audit has the key `key`; None if this is no key of an audit."""
    return key.removesuffix(".audit.json") + ".json" if key.endswith(".audit.json") else None


def decision_key(plan: str) -> str:
    """Return the key of a person's decision about the held plan with the key `plan`."""
    return plan.removesuffix(".json") + ".decision.json"


def data_docs_key(prefix: str, stream: str, plan: str) -> str:
    """Return the key of the page about the audit of a plan, given by its id."""
    return join_segments(prefix, "quality", check_stream_name(stream), f"{plan}.html")


# --- the files sink ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """An hour or a day of a topic's event time, which is one directory of the `files` sink."""

    topic: str
    start: datetime
    """In UTC, a whole hour or day."""
    by_hour: bool

    @property
    def end(self) -> datetime:
        """The start of the next period. The last period that a `datetime` can hold ends at its own start."""
        length = timedelta(hours=1) if self.by_hour else timedelta(days=1)
        return min(self.start, datetime.max.replace(tzinfo=UTC) - length) + length

    @property
    def path(self) -> str:
        """The directory `<topic>/dt=YYYY-MM-DD/hr=HH/`, as Hive names partitions; without `hr` for a day."""
        hour = f"hr={self.start:%H}/" if self.by_hour else ""
        return f"{check_topic(self.topic)}/dt={self.start.date().isoformat()}/{hour}"

    def prefix(self, root: str) -> str:
        """Return the prefix of all objects of the period below the sink's `root`."""
        return join_segments(root, self.path)

    def __str__(self) -> str:
        return self.path.rstrip("/")


@dataclass(frozen=True, slots=True, order=True)
class FileName:
    """The name of a file of the `files` sink: its topic-partition, its period, and the first offset of its range.

    The range is what one task reads of the topic-partition, so the plan determines the name.
    """

    period: Period
    generation: int
    partition: int
    first_offset: int
    extension: FileExtension

    def key(self, root: str) -> str:
        """Return the key `<root>/<topic>/dt=…/hr=…/<generation>_<partition>_<first_offset>.<extension>`."""
        offset = _padded_offset(self.first_offset)
        return f"{self.period.prefix(root)}{self.generation}_{self.partition}_{offset}.{self.extension}"

    @classmethod
    def parse(cls, root: str, key: str) -> FileName:
        """Return the name that the key holds. Raises `ValueError` if it is not the key of such a file."""
        period = period_of_key(root, key)
        match = _FILE.fullmatch(key.rsplit("/", 1)[-1])
        if period is None or match is None or int(match[3]) > MAX_OFFSET:
            raise ValueError(f"{key!r} is not the name of a file below {root!r}")
        return cls(period, int(match[1]), int(match[2]), int(match[3]), FileExtension(match[4]))


def sink_root(prefix: str, sink_prefix: str) -> str:
    """Return the prefix of all files of a sink, below the archive's `prefix`."""
    return join_segments(prefix, *(p for p in sink_prefix.split("/") if p))


def period_of_key(root: str, key: str) -> Period | None:
    """Return the period whose directory holds an object of the sink; None if no period's directory holds it."""
    prefix = join_segments(root, "")
    match = _PERIOD_OBJECT.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None or not is_topic(match[1]):
        return None
    try:
        start = datetime.combine(date.fromisoformat(match[2]), time(int(match[3] or 0)), UTC)
    except ValueError:
        return None
    return Period(match[1], start, match[3] is not None)


def success_key(root: str, period: Period) -> str:
    """Return the key of the `_SUCCESS` object that marks a period as final."""
    return period.prefix(root) + _SUCCESS


# --- quarantine retries -----------------------------------------------------------------------------------------------


def retries_prefix(prefix: str, stream: str, generation: int, table_uuid: str) -> str:
    """Return the prefix of everything about the retries of one table's quarantine."""
    return join_segments(prefix, "retries", check_stream_name(stream), str(generation), table_uuid, "")


def retry_key(prefix: str, stream: str, generation: int, table_uuid: str, number: int) -> str:
    """Return the key of the document of one retry: `<prefix>/retries/<stream>/<generation>/<uuid>/<number>.json`.

    Each table numbers its retries from 0. Raises `ValueError` for a negative number.
    """
    if number < 0:
        raise ValueError(f"{number} is no number of a retry")
    return f"{retries_prefix(prefix, stream, generation, table_uuid)}{number}.json"


def retry_offsets_key(retry: str, token: str) -> str:
    """Return the key of the list of messages that one attempt at the retry with the key `retry` has staged.

    Raises `ValueError` if `token` is malformed.
    """
    return f"{retry.removesuffix('.json')}.{_check_token(token)}.parquet"


# --- backfills --------------------------------------------------------------------------------------------------------


def backfills_prefix(prefix: str, stream: str) -> str:
    """Return the prefix of everything about the backfills of a stream."""
    return join_segments(prefix, "backfills", check_stream_name(stream), "")


def backfill_prefix(prefix: str, stream: str, backfill: str) -> str:
    """Return the prefix of everything about one backfill. Raises `ValueError` if `backfill` is no id of a backfill."""
    return f"{backfills_prefix(prefix, stream)}{check_backfill_id(backfill)}/"


def backfill_request_key(prefix: str, stream: str, backfill: str) -> str:
    """Return the key of a backfill's request. Its audit is beside it (`audit_key`)."""
    return f"{backfill_prefix(prefix, stream, backfill)}request.json"


def backfill_task_key(prefix: str, stream: str, backfill: str, task: int) -> str:
    """Return the key of the result of one task of a backfill."""
    return f"{backfill_prefix(prefix, stream, backfill)}tasks/{task:06d}.json"


def backfill_cut_key(prefix: str, stream: str, backfill: str, side: str, file: str, attempt: int = 0) -> str:
    """Return the key of the record of a data file that was cut: of its rows on one side of the backfill's range.

    `file`: what identifies the data file. `attempt` counts the records whose files no longer exist.
    """
    digest = hashlib.sha256(file.encode()).hexdigest()[:32]
    number = f".{attempt}" if attempt else ""
    return f"{backfill_prefix(prefix, stream, backfill)}cuts/{side}/{digest}{number}.json"


def backfill_built_key(prefix: str, stream: str, backfill: str) -> str:
    """Return the key of the record that a backfill is built: both branches exist."""
    return f"{backfill_prefix(prefix, stream, backfill)}built.json"


def backfill_diff_key(prefix: str, stream: str, backfill: str, name: str) -> str:
    """Return the key of an object of a backfill's diff, such as `summary.json` or `000000.parquet`."""
    return f"{backfill_prefix(prefix, stream, backfill)}diff/{name}"


def backfill_event_key(prefix: str, stream: str, backfill: str, number: int) -> str:
    """Return the key of the record of a promotion, an undo or a cancellation; `number` is that of its claim."""
    return f"{backfill_prefix(prefix, stream, backfill)}events/{_padded(number)}.json"


def backfill_plan_id(backfill: str) -> str:
    """Return the id of a backfill as a plan, with which the names of its data files begin."""
    return f"backfill-{check_backfill_id(backfill)}"


def backfill_branch(backfill: str) -> str:
    """Return the branch that holds a table as it would be if the backfill were promoted."""
    return f"backfill_{check_backfill_id(backfill)}"


def backfill_tag(backfill: str) -> str:
    """Return the tag of a table's last snapshot before a backfill was promoted."""
    return f"before_backfill_{check_backfill_id(backfill)}"


def check_backfill_id(backfill: str) -> str:
    """Return the id of a backfill: its date and four hexadecimal digits, such as `20261122_7f3a`.

    Raises `ValueError` for any other text.
    """
    if not _BACKFILL.fullmatch(backfill):
        raise ValueError(f"{backfill!r} is no id of a backfill, such as 20261122_7f3a")
    return backfill


# --- sweeps and the key index -----------------------------------------------------------------------------------------


def sweeps_prefix(prefix: str, stream: str, generation: int, history: str) -> str:
    """Return the prefix of all sweep plans for one history of a unique table, of their staged files and marks.

    `history`: what `history_name` returns.
    """
    return f"{sweeps_of_stream_prefix(prefix, stream)}{generation}/{history}/"


def sweeps_of_stream_prefix(prefix: str, stream: str) -> str:
    """Return the prefix of all sweep plans of a stream."""
    return join_segments(prefix, "sweeps", check_stream_name(stream), "")


def history_name(unique_uuid: str, rebuild: str | None) -> str:
    """Return what the plans and the key index of a unique table are filed under: its uuid, and the id of a rebuild.

    `rebuild`: the one that made the table's history; None: the history with which the table began.
    """
    return unique_uuid if rebuild is None else f"{unique_uuid}-{rebuild}"


def sweep_plan_key(prefix: str, stream: str, generation: int, history: str, sequence: int) -> str:
    """Return the key of the plan of the sweep that starts after that sequence number of the stream's table.

    Raises `ValueError` if `sequence` is out of range.
    """
    return f"{sweeps_prefix(prefix, stream, generation, history)}{_padded(sequence)}.json"


def sweep_marks_key(plan: str, token: str) -> str:
    """Return the key under which one attempt of a sweep's task lists the duplicates that it found.

    `plan` is the key of the sweep's plan. Raises `ValueError` if `token` is malformed.
    """
    return f"{plan.removesuffix('.json')}.marks/{_check_token(token)}.parquet"


def key_index_prefix(prefix: str, stream: str, generation: int, history: str) -> str:
    """Return the prefix of the whole key index of one history of a unique table.

    `history`: what `history_name` returns.
    """
    return f"{key_indexes_prefix(prefix, stream)}{generation}/{history}/"


def key_indexes_prefix(prefix: str, stream: str) -> str:
    """Return the prefix of all key indexes of a stream."""
    return join_segments(prefix, "dedup", check_stream_name(stream), "")


def key_index_manifests_prefix(index: str) -> str:
    """Return the prefix of the index manifests. `index` is the prefix that `key_index_prefix` returns."""
    return f"{index}manifests/"


def key_index_manifest_key(index: str, version: int) -> str:
    """Return the key of an index manifest; a listing returns versions in order.

    Raises `ValueError` if `version` is out of range.
    """
    return f"{key_index_manifests_prefix(index)}{_padded(version)}.json"


def key_index_version_of(key: str) -> int | None:
    """Return the version of the index manifest with that key; None for any other key."""
    match = _MANIFEST.search(key)
    return None if match is None or int(match[1]) > MAX_OFFSET else int(match[1])


def key_index_run_key(index: str, bucket: int, first_sequence: int, last_sequence: int, token: str) -> str:
    """Return the key of a sorted run: `<index>runs/<bucket>/<first>-<last>-<token>.parquet`; each attempt has a token.

    Raises `ValueError` if a sequence number, the bucket or the token is out of range.
    """
    if bucket < 0:
        raise ValueError(f"{bucket} is no bucket")
    return f"{index}runs/{bucket}/{_padded(first_sequence)}-{_padded(last_sequence)}-{_check_token(token)}.parquet"


def key_index_filter_key(run: str) -> str:
    """Return the key of the filter of the sorted run with the key `run`."""
    return f"{run.removesuffix('.parquet')}.fuse16"


# --- groups -----------------------------------------------------------------------------------------------------------


def group_results_key(prefix: str, group: str, job: str) -> str:
    """Return the key of the results of a group's last Spark application: `<prefix>/groups/<group>/<job>.json`."""
    return join_segments(prefix, "groups", check_stream_name(group), f"{job}.json")


# --- tables -----------------------------------------------------------------------------------------------------------


def quarantine_table_name(table: str) -> str:
    """Return the name of the quarantine table of a stream's table."""
    return f"{table}_quarantine"


def unique_table_name(table: str) -> str:
    """Return the name of the unique table of a stream's table, which has each message key once."""
    return f"{table}_unique"


def duplicates_table_name(table: str) -> str:
    """Return the name of the duplicates table of a stream's table, which has what was sent again."""
    return f"{table}_duplicates"


def name_with_generation(name: str, generation: int) -> str:
    """Return a name with its generation: `analytics.flights` in generation 2 is `analytics.flights_g2`.

    The directories of the `files` sink have such names. Tables had them before all generations shared one table.
    """
    return f"{name}_g{generation}"


def generation_ref(generation: int) -> str:
    """Return the branch of a generation that is not live."""
    return f"{_GENERATION_REF}{generation}"


def generation_of_ref(ref: str) -> int | None:
    """Return the generation whose rows a branch holds; None for any other branch or tag."""
    number = ref.removeprefix(_GENERATION_REF)
    return int(number) if number != ref and number.isdecimal() else None


def generation_change_key(prefix: str, stream: str, at: datetime) -> str:
    """Return the key of the record of a change of the live generation, named after its time in UTC."""
    name = f"{at.astimezone(UTC):%Y%m%dT%H%M%S%f}Z.json"
    return join_segments(prefix, "generations", check_stream_name(stream), name)


def rebuild_ref(rebuild: str) -> str:
    """Return the branch that holds the rows of a rebuild of the unique table until they are published."""
    return f"rebuild_{rebuild}"


def run_ref(plan: str) -> str:
    """Return the branch that holds the rows of a plan until they are published: `run_` and 16 characters of its id."""
    return f"run_{plan[:16]}"


def join_segments(prefix: str, *segments: str) -> str:
    """Return the segments of `prefix` that are not empty, and the others, separated by slashes."""
    return "/".join([*(p for p in prefix.split("/") if p), *segments])


def _check_token(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not a token: 32 hexadecimal digits")
    return token


def _padded_offset(offset: int) -> str:
    if not 0 <= offset <= MAX_OFFSET:
        raise ValueError(f"{offset} is no offset: 0 to {MAX_OFFSET}")
    return _padded(offset)


def _padded(number: int) -> str:
    """Return a number with the digits of the largest one, so that a listing is in numeric order."""
    if not 0 <= number <= MAX_OFFSET:
        raise ValueError(f"{number} cannot be part of a name: 0 to {MAX_OFFSET}")
    return f"{number:0{OFFSET_DIGITS}d}"
