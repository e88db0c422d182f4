"""The only code that builds or takes apart an object name, a table name or a ZooKeeper path.

Object names carry what a unit's *start* is, never its end: the first writer of a name wins (docs/protocol.md), and with
zero-padded offsets a listing walks a chain in order.
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
    "BackupName",
    "Extension",
    "FileExtension",
    "FileName",
    "GapName",
    "Period",
    "TopicPartition",
    "ZkPaths",
    "archive_prefix",
    "backup_prefix",
    "chain_of",
    "chain_prefix",
    "check_stream_name",
    "check_topic",
    "duplicates_table_name",
    "gap_prefix",
    "gaps_prefix",
    "index_key",
    "index_prefix",
    "indexes_prefix",
    "is_topic",
    "key_index_filter_key",
    "key_index_manifest_key",
    "key_index_manifests_prefix",
    "key_index_prefix",
    "key_index_run_key",
    "key_index_version_of",
    "offset_prefix",
    "period_of",
    "plan_key",
    "plans_prefix",
    "quarantine_table_name",
    "retries_prefix",
    "retry_key",
    "retry_offsets_key",
    "sink_root",
    "staged_key",
    "start_key",
    "success_key",
    "sweep_marks_key",
    "sweep_plan_key",
    "sweeps_prefix",
    "table_name",
    "unique_table_name",
]

OFFSET_DIGITS = 20

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_STREAM = re.compile(r"[a-z][a-z0-9_]{0,99}")
_TOKEN = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")  # canonical: one number, one name
_OF_CHAIN = re.compile(rf"({_NUMBER.pattern})_({_NUMBER.pattern})_[0-9]{{{OFFSET_DIGITS}}}\.[0-9a-z.]+")
_GAP = re.compile(
    rf"({_NUMBER.pattern})_({_NUMBER.pattern})_([0-9]{{{OFFSET_DIGITS}}})(?:_([0-9]{{{OFFSET_DIGITS}}}))?\.json"
)
_MANIFEST = re.compile(rf"/manifests/([0-9]{{{OFFSET_DIGITS}}})\.json\Z")
MAX_OFFSET = (1 << 63) - 1


class Extension(StrEnum):
    """How a backup object's name ends: what format its bytes are. All objects of a chain have the same."""

    KAFKA = "kafka"
    """Kafka's own record batches."""
    SEQUENCEFILE = "seq"
    """Hadoop's SequenceFile."""
    TEXT = "txt"
    """Messages, each ended by a delimiter."""
    TEXT_GZIP = "txt.gz"
    """The same, in one gzip stream."""

    @property
    def is_indexed(self) -> bool:
        """Whether an object needs an index object beside it, which says what its own bytes cannot."""
        return self is not Extension.KAFKA


_EXTENSIONS = "|".join(re.escape(extension) for extension in Extension)
_BACKUP = re.compile(rf"({_NUMBER.pattern})_({_NUMBER.pattern})_([0-9]{{{OFFSET_DIGITS}}})\.({_EXTENSIONS})")


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A topic-partition, written `topic/partition` wherever a person or a document sees it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """The inverse of `str()`. Raises `ValueError` on anything else."""
        topic, separator, partition = text.rpartition("/")
        if not separator or not is_topic(topic) or not _NUMBER.fullmatch(partition):
            raise ValueError(f"{text!r} is not of the form topic/partition")
        return cls(topic, int(partition))


def is_topic(topic: str) -> bool:
    """Whether Kafka allows a topic of that name."""
    return _TOPIC.fullmatch(topic) is not None and topic not in {".", ".."}


def check_topic(topic: str) -> str:
    """`topic` itself, if Kafka allows it and it is safe as one segment of an object name or a path.

    Raises `ConfigError` otherwise. Kafka's rule: 1 to 249 characters of `[a-zA-Z0-9._-]`, neither `.` nor `..`.
    """
    if not is_topic(topic):
        raise ConfigError(
            f"topic {topic!r} is not a legal Kafka topic name: 1 to 249 characters of [a-zA-Z0-9._-], not '.' or '..'"
        )
    return topic


def check_stream_name(stream: str) -> str:
    """`stream` itself, if it can be part of a DAG id, a path and an object name. Raises `ConfigError` otherwise."""
    if not _STREAM.fullmatch(stream):
        raise ConfigError(
            f"stream name {stream!r} is not usable: it starts with a lower-case letter and goes on with up to 99 "
            f"characters of [a-z0-9_]"
        )
    return stream


def _join(prefix: str, *segments: str) -> str:
    return "/".join([*(p for p in prefix.split("/") if p), *segments])


@dataclass(frozen=True, slots=True, order=True)
class BackupName:
    """What a backup object's name says: its chain and where its range starts."""

    topic: str
    generation: int
    partition: int
    first_offset: int
    extension: Extension = Extension.KAFKA

    def key(self, prefix: str) -> str:
        """The S3 key below `prefix`: `<prefix>/backup/<topic>/<generation>_<partition>_<first_offset>.<extension>`.

        Raises `ValueError` for an offset that Kafka cannot have.
        """
        start = offset_prefix(prefix, self.topic, self.generation, self.partition, self.first_offset)
        return f"{start}.{self.extension}"

    @classmethod
    def parse(cls, key: str) -> BackupName:
        """The name behind an S3 key. Raises `ValueError` if the key is not that of a backup object."""
        parts = key.split("/")
        match = _BACKUP.fullmatch(parts[-1])
        if match is None or len(parts) < 3 or parts[-3] != "backup" or not is_topic(parts[-2]):
            raise ValueError(f"{key!r} is not the name of a backup object")
        generation, partition, first_offset = (int(number) for number in match.groups()[:3])
        if first_offset > MAX_OFFSET:
            raise ValueError(f"{key!r} is not the name of a backup object: there is no such offset")
        return cls(parts[-2], generation, partition, first_offset, Extension(match[4]))


def archive_prefix(prefix: str) -> str:
    """What all backup objects start with."""
    return _join(prefix, "backup", "")


def backup_prefix(prefix: str, topic: str) -> str:
    """What all backup objects of a topic start with."""
    return _join(prefix, "backup", check_topic(topic), "")


def chain_prefix(prefix: str, topic: str, generation: int, partition: int) -> str:
    """What all objects of one chain start with; what follows is the offset, so listings are in order."""
    if generation < 0 or partition < 0:
        raise ValueError(f"generation {generation} and partition {partition} must not be negative")
    return f"{backup_prefix(prefix, topic)}{generation}_{partition}_"


def offset_prefix(prefix: str, topic: str, generation: int, partition: int, first_offset: int) -> str:
    """What the object that starts at an offset is called, whatever its extension.

    Raises `ValueError` for an offset that Kafka cannot have.
    """
    if not 0 <= first_offset <= MAX_OFFSET:
        raise ValueError(f"{first_offset} is no offset: 0 to {MAX_OFFSET}")
    return f"{chain_prefix(prefix, topic, generation, partition)}{first_offset:0{OFFSET_DIGITS}d}"


def index_prefix(backup_key: str) -> str:
    """What the index objects for a backup object of that key start with: one for each upload that was tried.

    They lie beside the backup: `<prefix>/index/<topic>/<generation>_<partition>_<first_offset>.<token>.parquet`.
    Raises `ValueError` if the key is not that of a backup object.
    """
    name = BackupName.parse(backup_key)
    prefix = "/".join(backup_key.split("/")[:-3])
    start = f"{name.generation}_{name.partition}_{name.first_offset:0{OFFSET_DIGITS}d}."
    return _join(prefix, "index", name.topic, start)


def indexes_prefix(prefix: str) -> str:
    """What all index objects start with."""
    return _join(prefix, "index", "")


def chain_of(key: str) -> tuple[TopicPartition, int] | None:
    """The topic-partition and generation that a backup object or its index belongs to; None for any other key."""
    parts = key.split("/")
    match = _OF_CHAIN.fullmatch(parts[-1])
    if match is None or len(parts) < 3 or parts[-3] not in {"backup", "index"} or not is_topic(parts[-2]):
        return None
    return TopicPartition(parts[-2], int(match[2])), int(match[1])


def index_key(backup_key: str, token: str) -> str:
    """The index object of one upload, which its `token` names. Raises `ValueError` for what is no key or token."""
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not a token: 32 hexadecimal digits")
    return f"{index_prefix(backup_key)}{token}.parquet"


@dataclass(frozen=True, slots=True, order=True)
class GapName:
    """What the name of an accepted gap says: its chain and where it starts.

    A truncation takes back what is archived, as often as it happens: its name says as well at which offset the chain
    goes on, so that a later one that starts at the same offset has a name of its own.
    """

    topic: str
    generation: int
    partition: int
    first_offset: int
    goes_on_at: int | None = None

    def key(self, prefix: str) -> str:
        """The S3 key below `prefix`: `<prefix>/gaps/<topic>/<generation>_<partition>_<first_offset>.json`."""
        seam = "" if self.goes_on_at is None else f"_{self.goes_on_at:0{OFFSET_DIGITS}d}"
        return (
            gap_prefix(prefix, self.topic, self.generation, self.partition)
            + f"{self.first_offset:0{OFFSET_DIGITS}d}{seam}.json"
        )

    @classmethod
    def parse(cls, key: str) -> GapName:
        """The name behind an S3 key. Raises `ValueError` if the key is not that of an accepted gap."""
        parts = key.split("/")
        match = _GAP.fullmatch(parts[-1])
        if match is None or len(parts) < 3 or parts[-3] != "gaps" or not is_topic(parts[-2]):
            raise ValueError(f"{key!r} is not the name of an accepted gap")
        generation, partition, first_offset, goes_on_at = match.groups()
        seam = None if goes_on_at is None else int(goes_on_at)
        return cls(parts[-2], int(generation), int(partition), int(first_offset), seam)


def gaps_prefix(prefix: str) -> str:
    """What all accepted gaps start with."""
    return _join(prefix, "gaps", "")


def gap_prefix(prefix: str, topic: str, generation: int, partition: int) -> str:
    """What the accepted gaps of one chain start with."""
    return _join(prefix, "gaps", check_topic(topic), f"{generation}_{partition}_")


def start_key(prefix: str, topic: str, generation: int, partition: int) -> str:
    """Where it is kept at which offset a chain begins: `<prefix>/starts/<topic>/<generation>_<partition>.json`."""
    return _join(prefix, "starts", check_topic(topic), f"{generation}_{partition}.json")


def plan_key(
    prefix: str,
    stream: str,
    generation: int,
    table_uuid: str,
    progress: Mapping[TopicPartition, int],
    attempt: int = 0,
) -> str:
    """Where the partition run that starts from `progress` keeps its plan: the same start, the same name.

    With the table's uuid: a table that was dropped and made anew starts from nothing, but not with the old one's plans.
    `attempt`: how many plans from there have come to nothing.
    """
    canonical = json.dumps(sorted((str(tp), offset) for tp, offset in progress.items()))
    if attempt:
        canonical += str(attempt)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:32]
    return _join(prefix, "plans", check_stream_name(stream), str(generation), table_uuid, f"{digest}.json")


def plans_prefix(prefix: str, stream: str, generation: int, table_uuid: str) -> str:
    """What all plans of a stream's generation start with, and what was staged for them."""
    return _join(prefix, "plans", check_stream_name(stream), str(generation), table_uuid, "")


def staged_key(plan: str) -> str:
    """Where the run that carried out the plan of this name first says which files it staged."""
    return plan.removesuffix(".json") + ".staged.json"


class FileExtension(StrEnum):
    """How a file of the `files` sink ends: what its bytes are."""

    PARQUET = "parquet"
    SEQUENCEFILE = "seq"
    TEXT = "txt"
    TEXT_GZIP = "txt.gz"


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """An hour, or a day, of a topic's event time: a directory of the `files` sink."""

    topic: str
    start: datetime
    """In UTC, a whole hour or day."""
    by_hour: bool

    @property
    def end(self) -> datetime:
        """Where the next one starts. The last one that there is ends with itself."""
        length = timedelta(hours=1) if self.by_hour else timedelta(days=1)
        return min(self.start, datetime.max.replace(tzinfo=UTC) - length) + length

    @property
    def path(self) -> str:
        """`<topic>/dt=YYYY-MM-DD/hr=HH/`, as Hive names partitions; of a day without `hr`."""
        hour = f"hr={self.start:%H}/" if self.by_hour else ""
        return f"{check_topic(self.topic)}/dt={self.start.date().isoformat()}/{hour}"

    def prefix(self, root: str) -> str:
        """What the keys of all its objects start with; `root`: of the sink."""
        return _join(root, self.path)

    def __str__(self) -> str:
        return self.path.rstrip("/")


_PERIOD_OBJECT = re.compile(r"([a-zA-Z0-9._-]{1,249})/dt=([0-9]{4}-[0-9]{2}-[0-9]{2})/(?:hr=([0-9]{2})/)?([^/]+)")
_FILE_EXTENSIONS = "|".join(re.escape(extension) for extension in FileExtension)
_FILE = re.compile(rf"({_NUMBER.pattern})_({_NUMBER.pattern})_([0-9]{{{OFFSET_DIGITS}}})\.({_FILE_EXTENSIONS})")
_SUCCESS = "_SUCCESS"


@dataclass(frozen=True, slots=True, order=True)
class FileName:
    """What the name of a file of the `files` sink says: whose messages, of which period, and where its range starts.

    The range is what one task reads of the topic-partition, so the name follows from the plan.
    """

    period: Period
    generation: int
    partition: int
    first_offset: int
    extension: FileExtension

    def key(self, root: str) -> str:
        """The S3 key: `<root>/<topic>/dt=…/hr=…/<generation>_<partition>_<first_offset>.<extension>`."""
        if not 0 <= self.first_offset <= MAX_OFFSET:
            raise ValueError(f"{self.first_offset} is no offset: 0 to {MAX_OFFSET}")
        name = f"{self.generation}_{self.partition}_{self.first_offset:0{OFFSET_DIGITS}d}.{self.extension}"
        return self.period.prefix(root) + name

    @classmethod
    def parse(cls, root: str, key: str) -> FileName:
        """The name behind an S3 key. Raises `ValueError` if the key is not that of such a file."""
        found = period_of(root, key)
        match = _FILE.fullmatch(key.rsplit("/", 1)[-1])
        if found is None or match is None or int(match[3]) > MAX_OFFSET:
            raise ValueError(f"{key!r} is not the name of a file below {root!r}")
        return cls(found, int(match[1]), int(match[2]), int(match[3]), FileExtension(match[4]))


def period_of(root: str, key: str) -> Period | None:
    """The period whose directory an object is in; None if it is in none."""
    prefix = _join(root, "")
    match = _PERIOD_OBJECT.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None or not is_topic(match[1]):
        return None
    try:
        day = datetime.combine(date.fromisoformat(match[2]), time(int(match[3] or 0)), UTC)
    except ValueError:
        return None
    return Period(match[1], day, match[3] is not None)


def sink_root(prefix: str, sink_prefix: str) -> str:
    """What the keys of all files of a sink start with; `prefix`: of the archive."""
    return _join(prefix, *(p for p in sink_prefix.split("/") if p))


def success_key(root: str, period: Period) -> str:
    """The marker of a period that is final."""
    return period.prefix(root) + _SUCCESS


def retries_prefix(prefix: str, stream: str, generation: int, table_uuid: str) -> str:
    """What everything about retries of the quarantine of one table starts with."""
    return _join(prefix, "retries", check_stream_name(stream), str(generation), table_uuid, "")


def retry_key(prefix: str, stream: str, generation: int, table_uuid: str, number: int) -> str:
    """Where the retry of that number says what it has staged: `<prefix>/retries/<stream>/<generation>/<uuid>/<n>.json`.

    Numbers count from 0, for each table of its own.
    """
    if number < 0:
        raise ValueError(f"{number} is no number of a retry")
    return f"{retries_prefix(prefix, stream, generation, table_uuid)}{number}.json"


def retry_offsets_key(retry: str, token: str) -> str:
    """Which messages one try at the retry of this name has staged. Raises `ValueError` for what is no token."""
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not a token: 32 hexadecimal digits")
    return f"{retry.removesuffix('.json')}.{token}.parquet"


def sweeps_prefix(prefix: str, stream: str, generation: int, unique_uuid: str) -> str:
    """What all plans of dedup sweeps into one unique table start with, and what was staged and marked for them."""
    return _join(prefix, "sweeps", check_stream_name(stream), str(generation), unique_uuid, "")


def sweep_plan_key(prefix: str, stream: str, generation: int, unique_uuid: str, sequence: int) -> str:
    """Where the sweep that goes on behind that sequence number of the main table keeps its plan.

    Raises `ValueError` for what is no sequence number.
    """
    return f"{sweeps_prefix(prefix, stream, generation, unique_uuid)}{_in_order(sequence)}.json"


def sweep_marks_key(plan: str, token: str) -> str:
    """Where a task of the sweep with that plan says which rows are duplicates; each try under a token of its own.

    Raises `ValueError` for what is no token.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not a token: 32 hexadecimal digits")
    return f"{plan.removesuffix('.json')}.marks/{token}.parquet"


def key_index_prefix(prefix: str, stream: str, generation: int, unique_uuid: str) -> str:
    """What everything of the key index of one unique table starts with."""
    return _join(prefix, "dedup", check_stream_name(stream), str(generation), unique_uuid, "")


def key_index_manifests_prefix(index: str) -> str:
    """What the manifests of a key index start with; `index`: as `key_index_prefix` has it."""
    return f"{index}manifests/"


def key_index_manifest_key(index: str, version: int) -> str:
    """The manifest of that version, so that a listing has them in order. Raises `ValueError` for what is no version."""
    return f"{key_index_manifests_prefix(index)}{_in_order(version)}.json"


def key_index_version_of(key: str) -> int | None:
    """The version of the manifest of that key; None for any other key."""
    match = _MANIFEST.search(key)
    return None if match is None or int(match[1]) > MAX_OFFSET else int(match[1])


def key_index_run_key(index: str, bucket: int, first_sequence: int, last_sequence: int, token: str) -> str:
    """A run of a bucket of the key index: `runs/<bucket>/<first>-<last>-<token>.parquet`; each try has its own token.

    Raises `ValueError` for what is no sequence number, bucket or token.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not a token: 32 hexadecimal digits")
    if bucket < 0:
        raise ValueError(f"{bucket} is no bucket")
    return f"{index}runs/{bucket}/{_in_order(first_sequence)}-{_in_order(last_sequence)}-{token}.parquet"


def key_index_filter_key(run: str) -> str:
    """The filter of the run of that key."""
    return f"{run.removesuffix('.parquet')}.fuse16"


def _in_order(number: int) -> str:
    """With as many digits as any has: a listing then has them in order."""
    if not 0 <= number <= MAX_OFFSET:
        raise ValueError(f"{number} cannot be part of a name: 0 to {MAX_OFFSET}")
    return f"{number:0{OFFSET_DIGITS}d}"


def table_name(table: str, generation: int) -> str:
    """A generation has tables of its own: `analytics.flights` in generation 2 is `analytics.flights_g2`."""
    return f"{table}_g{generation}"


def quarantine_table_name(table: str, generation: int) -> str:
    """The quarantine that belongs to a table of a generation."""
    return f"{table}_quarantine_g{generation}"


def unique_table_name(table: str, generation: int) -> str:
    """The rows of a table of a generation without those of messages that were sent again."""
    return f"{table}_unique_g{generation}"


def duplicates_table_name(table: str, generation: int) -> str:
    """What of a table of a generation was sent again, and where it was first seen."""
    return f"{table}_duplicates_g{generation}"


@dataclass(frozen=True, slots=True)
class ZkPaths:
    """The ZooKeeper nodes of one stream and generation, below `root`."""

    root: str
    stream: str
    generation: int

    @property
    def base(self) -> str:
        return f"/{_join(self.root, 'streams', check_stream_name(self.stream), str(self.generation))}"

    @property
    def offsets(self) -> str:
        """Parent of the committed offsets: children are topics, theirs are Kafka partitions."""
        return f"{self.base}/offsets"

    def committed_offset(self, tp: TopicPartition) -> str:
        return f"{self.offsets}/{check_topic(tp.topic)}/{tp.partition}"

    def lock(self, tp: TopicPartition) -> str:
        return f"{self.base}/locks/{check_topic(tp.topic)}/{tp.partition}"

    def chore(self, name: str) -> str:
        """Where it is kept when something that is done from time to time was done last."""
        return f"{self.base}/chores/{name}"

    def stop(self, tp: TopicPartition) -> str:
        """Where a named stop of a topic-partition is journaled."""
        return f"{self.base}/stops/{check_topic(tp.topic)}/{tp.partition}"
