"""The keys of the archive: backup objects, index objects, chain starts and accepted gaps.

The name of a backup object holds the offset at which its range *starts*, never the end: the first task that creates a
name wins (docs/protocol.md). Offsets are zero-padded, so a listing returns a chain in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from waybill.config.names.segments import (
    MAX_OFFSET,
    NUMBER,
    OFFSET_DIGITS,
    OFFSET_PATTERN,
    Folder,
    check_token,
    own_key,
    padded_offset,
)
from waybill.config.names.topics import TopicPartition, check_topic, is_topic


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
        """Whether an object needs an index object beside it, for the data that the format cannot hold."""
        return self is not Extension.KAFKA


_EXTENSIONS = "|".join(re.escape(extension) for extension in Extension)
_BACKUP = re.compile(rf"({NUMBER.pattern})_({NUMBER.pattern})_({OFFSET_PATTERN})\.({_EXTENSIONS})")
_IN_CHAIN = re.compile(rf"({NUMBER.pattern})_({NUMBER.pattern})_{OFFSET_PATTERN}\.[0-9a-z.]+")
_SHARD_ID = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_GAP = re.compile(rf"({NUMBER.pattern})_({NUMBER.pattern})_({OFFSET_PATTERN})(?:_({OFFSET_PATTERN}))?\.json")


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
    return own_key(prefix, Folder.BACKUP, "")


def backup_prefix(prefix: str, topic: str) -> str:
    """Return the prefix of all backup objects of a topic."""
    return own_key(prefix, Folder.BACKUP, check_topic(topic), "")


def chain_prefix(prefix: str, topic: str, generation: int, partition: int) -> str:
    """Return the prefix of all objects of a chain. The offset follows it, so listings are in order."""
    if generation < 0 or partition < 0:
        raise ValueError(f"generation {generation} and partition {partition} must not be negative")
    return f"{backup_prefix(prefix, topic)}{generation}_{partition}_"


def offset_prefix(prefix: str, topic: str, generation: int, partition: int, first_offset: int) -> str:
    """Return the key, without its extension, of the object that starts at an offset.

    Raises `ValueError` for an offset that Kafka cannot have.
    """
    return f"{chain_prefix(prefix, topic, generation, partition)}{padded_offset(first_offset)}"


def chain_of_key(key: str) -> tuple[TopicPartition, int] | None:
    """Return the topic-partition and generation of a backup object or index object; None for any other key."""
    parts = key.split("/")
    match = _IN_CHAIN.fullmatch(parts[-1])
    if match is None or len(parts) < 3 or parts[-3] not in {"backup", "index"} or not is_topic(parts[-2]):
        return None
    return TopicPartition(parts[-2], int(match[2])), int(match[1])


def indexes_prefix(prefix: str) -> str:
    """Return the prefix of all index objects."""
    return own_key(prefix, Folder.INDEX, "")


def index_prefix(backup_key: str) -> str:
    """Return the prefix of the index objects of one backup object. Each upload of the object writes one of its own.

    Their keys are `<prefix>/index/<topic>/<generation>_<partition>_<first_offset>.<token>.parquet`. Raises `ValueError`
    if `backup_key` is not the key of a backup object.
    """
    name = BackupName.parse(backup_key)
    prefix = "/".join(backup_key.split("/")[:-3])
    start = f"{name.generation}_{name.partition}_{name.first_offset:0{OFFSET_DIGITS}d}."
    return own_key(prefix, Folder.INDEX, name.topic, start)


def index_key(backup_key: str, token: str) -> str:
    """Return the key of the index object that one upload writes, identified by its `token`.

    Raises `ValueError` if `backup_key` or `token` is malformed.
    """
    return f"{index_prefix(backup_key)}{check_token(token)}.parquet"


def chain_start_key(prefix: str, topic: str, generation: int, partition: int) -> str:
    """Return the key of a chain start: `<prefix>/starts/<topic>/<generation>_<partition>.json`."""
    return own_key(prefix, Folder.STARTS, check_topic(topic), f"{generation}_{partition}.json")


def stream_origin_key(prefix: str, topic: str, generation: int) -> str:
    """Return the key of the origin of a Kinesis stream: `<prefix>/shards/<topic>/<generation>.json`."""
    return own_key(prefix, Folder.SHARDS, check_topic(topic), f"{generation}.json")


def shard_starts_prefix(prefix: str, topic: str, generation: int) -> str:
    """Return the prefix of the assignments of a Kinesis stream's shards."""
    return own_key(prefix, Folder.SHARDS, check_topic(topic), f"{generation}_")


def shard_start_key(prefix: str, topic: str, generation: int, shard_id: str) -> str:
    """Return the key of a shard's assignment: `<prefix>/shards/<topic>/<generation>_<shard id>.json`.

    Raises `ValueError` if Kinesis does not allow the id: 1 to 128 characters of `[a-zA-Z0-9_.-]`.
    """
    if not _SHARD_ID.fullmatch(shard_id):
        raise ValueError(f"{shard_id!r} is no id of a shard")
    return f"{shard_starts_prefix(prefix, topic, generation)}{shard_id}.json"


def shard_of_key(key: str) -> str | None:
    """Return the id of the shard whose assignment has this key; None if it is not such a key."""
    name = key.rpartition("/")[2]
    shard_id = name.partition("_")[2].removesuffix(".json")
    return shard_id if name.endswith(".json") and _SHARD_ID.fullmatch(shard_id) else None


def topic_settings_prefix(prefix: str, topic: str) -> str:
    """Return the prefix of the stored settings of a topic."""
    return own_key(prefix, Folder.TOPICS, check_topic(topic), "")


def topic_settings_key(prefix: str, topic: str, at_ms: int) -> str:
    """Return the key of a topic's settings as they were at a time: `<prefix>/topics/<topic>/<epoch ms>.json`."""
    return f"{topic_settings_prefix(prefix, topic)}{at_ms:0{OFFSET_DIGITS}d}.json"


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
    return own_key(prefix, Folder.GAPS, "")


def gap_prefix(prefix: str, topic: str, generation: int, partition: int) -> str:
    """Return the prefix of the accepted gaps of one chain."""
    return own_key(prefix, Folder.GAPS, check_topic(topic), f"{generation}_{partition}_")
