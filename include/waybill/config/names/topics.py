"""The names of topics, topic-partitions and streams, and the stages of a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from waybill.base.errors import ConfigError
from waybill.config.names.segments import MAX_OFFSET, NUMBER

MAX_PARTITION = (1 << 31) - 1
LAST_OFFSET = MAX_OFFSET - 1
"""The greatest offset of a message, so that the next offset is also valid."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OFFSETS = re.compile(r"(?P<tp>.+)@(?P<first>[0-9]*)-(?P<last>[0-9]*)")
_STREAM = re.compile(r"[a-z][a-z0-9_]{0,99}")


class Stage(StrEnum):
    """A part of a stream's scheduled work that can be paused alone."""

    INGEST = "ingest"
    PARTITION = "partition"
    DEDUP = "dedup"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A topic-partition, written `topic/partition` in messages and documents."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """Parse the text of `str(topic_partition)`. Raises `ValueError` for any other text."""
        topic, separator, partition = text.rpartition("/")
        if not separator or not is_topic(topic) or not NUMBER.fullmatch(partition):
            raise ValueError(f"{text!r} is not of the form topic/partition")
        if len(partition) > len(str(MAX_PARTITION)) or int(partition) > MAX_PARTITION:
            raise ValueError(f"{text!r}: Kafka's partitions end at {MAX_PARTITION:,}")
        return cls(topic, int(partition))


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Return offsets, or times, by topic-partition for a stored document: sorted, by `topic/partition`."""
    return {str(tp): offset for tp, offset in sorted(offsets.items())}


def offsets_of_json(offsets: Mapping[str, int]) -> dict[TopicPartition, int]:
    """Parse the result of `offsets_to_json`. Raises one of `waybill.base.documents.DAMAGES` for other values."""
    return {TopicPartition.parse(tp): int(offset) for tp, offset in offsets.items()}


def parse_offsets(text: str) -> tuple[TopicPartition, tuple[int | None, int | None]]:
    """Return the topic-partition, the first and the next offset of `flights/0@100-199`.

    None stands for the start or the end: `flights/0@100-`. Raises `ValueError` for any other text, and for an empty or
    reversed range.
    """
    match = _OFFSETS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not of the form TOPIC/PARTITION@FIRST-LAST, such as flights/0@100-199")
    first, last = _offset(match["first"]), _offset(match["last"])
    if first is not None and last is not None and last < first:
        raise ValueError(f"{text!r} is empty or reversed: the last offset is {last}, the first {first}")
    return TopicPartition.parse(match["tp"]), (first, None if last is None else last + 1)


def _offset(text: str) -> int | None:
    digits = text.lstrip("0")
    if len(digits) > len(str(LAST_OFFSET)) or int(digits or "0") > LAST_OFFSET:
        raise ValueError(f"offset {text[:40]} is too large: Kafka's offsets end at {LAST_OFFSET:,}")
    return int(digits or "0") if text else None


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
