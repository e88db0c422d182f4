"""Preflight: everything that would make a restore fail or lose messages, found before it produces anything.

Each problem names what was found, its value, and the remedy. A warning does not refuse the restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from waybill.archive.topic_settings import find_topic_settings
from waybill.config import Config
from waybill.config.quantities import format_duration
from waybill.names import TopicPartition
from waybill.records.limits import LARGEST
from waybill.restore.request import Request, SourceRange
from waybill.sources.target import KafkaTarget, Operation, TargetTopic
from waybill.store import Store

__all__ = ["SUSPENDED", "Problem", "examine", "examine_schemas"]

SUSPENDED = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
"""The configs of a target that keeps everything while a restore runs."""

_APPEND_TIME = "LogAppendTime"
_OPERATIONS = (Operation.WRITE, Operation.READ)
_SOON = timedelta(hours=1)
"""Messages that the target would delete within this time are refused, too: the restore itself takes time."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a preflight found."""

    what: str
    remedy: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}"


def examine(
    config: Config, store: Store, target: KafkaTarget, request: Request, ranges: Sequence[SourceRange], now: datetime
) -> list[Problem]:
    """Return the problems of a restore into the target as it is now."""
    problems: list[Problem] = []
    for topic in sorted({each.tp.topic for each in ranges}):
        name = request.target_of(topic)
        own = [each for each in ranges if each.tp.topic == topic]
        problems.extend(_would_be_archived_again(config, request, name))
        found = target.find_topic(name)
        if found is None and not request.create:
            problems.append(
                Problem(
                    f"topic {name!r} does not exist at {target.where}",
                    f"Create it with at least {_partitions(own)} partitions, or give --create",
                )
            )
            continue
        problems.extend(_of_topic(store, target, request, found or _to_be_created(store, topic, name, own), own, now))
    problems.extend(_two_topics_into_one(request, ranges))
    problems.extend(_quotas(target, ranges))
    return problems


def _to_be_created(store: Store, topic: str, name: str, ranges: Sequence[SourceRange]) -> TargetTopic:
    """Return a target topic as it would be created: with the archived topic's own configs."""
    settings = find_topic_settings(store, topic)
    config = {} if settings is None else settings.config
    partitions = max(_partitions(ranges), 0 if settings is None else settings.partitions)
    return TargetTopic(name, "", partitions, config, config, frozenset())


def _partitions(ranges: Sequence[SourceRange]) -> int:
    return max(each.tp.partition for each in ranges) + 1


def _of_topic(
    store: Store,
    target: KafkaTarget,
    request: Request,
    topic: TargetTopic,
    ranges: Sequence[SourceRange],
    now: datetime,
) -> Iterator[Problem]:
    name, config = topic.name, topic.config
    if topic.partitions < _partitions(ranges):
        yield Problem(
            f"topic {name!r} has {topic.partitions} partitions, and the archive needs {_partitions(ranges)}",
            "Add partitions, or restore into another topic: keys stay in their partitions",
        )
    if config.get("message.timestamp.type") == _APPEND_TIME:
        yield Problem(
            f"topic {name!r} has message.timestamp.type={_APPEND_TIME}, which replaces the archived timestamps",
            "Set it to CreateTime",
        )
    if "compact" in config.get("cleanup.policy", "") and not request.suspend_cleanup:
        yield Problem(
            f"topic {name!r} is compacted (cleanup.policy={config['cleanup.policy']}): restored messages would vanish "
            f"while the restore runs",
            "Give --suspend-cleanup, which sets cleanup.policy=delete until the restore is complete",
        )
    if not request.suspend_cleanup:
        yield from _retention(store, topic, ranges, now)
    yield from _too_old(store, topic, ranges, now)
    missing = [operation for operation in _operations(request) if topic.allowed and operation not in topic.allowed]
    if missing:
        yield Problem(
            f"the user of {request.connection!r} may not {', '.join(each.name for each in missing)} topic {name!r}",
            f"Give it the ACLs {', '.join(each.name for each in missing)} on the topic",
        )
    elif topic.topic_id:
        yield from _not_empty(target, topic, ranges)


def _operations(request: Request) -> tuple[Operation, ...]:
    return (*_OPERATIONS, Operation.ALTER_CONFIGS) if request.suspend_cleanup else _OPERATIONS


def _not_empty(target: KafkaTarget, topic: TargetTopic, ranges: Sequence[SourceRange]) -> Iterator[Problem]:
    tps = [TopicPartition(topic.name, each.tp.partition) for each in ranges if each.tp.partition < topic.partitions]
    for tp, log_range in sorted(target.log.offsets(tps).items()):
        if log_range.end > log_range.earliest:
            yield Problem(
                f"{tp} of the target is not empty: it has offsets {log_range.earliest}–{log_range.end - 1}",
                "Restore into another topic (--to-topic), or delete this one. To continue a restore, give its --id",
            )


def _retention(store: Store, topic: TargetTopic, ranges: Sequence[SourceRange], now: datetime) -> Iterator[Problem]:
    retention_ms = _number(topic, "retention.ms")
    if retention_ms is None or "delete" not in topic.config.get("cleanup.policy", "delete"):
        return
    limit_ms = int((now + _SOON).timestamp() * 1000) - retention_ms
    oldest_ms = _oldest_ms(store, ranges)
    if oldest_ms is not None and oldest_ms < limit_ms:
        yield Problem(
            f"topic {topic.name!r} deletes messages after {_duration(retention_ms)} (retention.ms={retention_ms}), and "
            f"the oldest archived message is {_duration(int(now.timestamp() * 1000) - oldest_ms)} old: it would be "
            f"deleted on arrival",
            "Raise retention.ms for good, or give --suspend-cleanup: then the old value comes back when the restore is "
            "complete, and the target deletes what is too old",
        )


def _too_old(store: Store, topic: TargetTopic, ranges: Sequence[SourceRange], now: datetime) -> Iterator[Problem]:
    limit_ms = _number(topic, "message.timestamp.before.max.ms")
    oldest_ms = _oldest_ms(store, ranges)
    if limit_ms is None or oldest_ms is None:
        return
    age_ms = int(now.timestamp() * 1000) - oldest_ms
    if age_ms > limit_ms:
        yield Problem(
            f"topic {topic.name!r} refuses messages older than {_duration(limit_ms)} "
            f"(message.timestamp.before.max.ms={limit_ms}), and the oldest archived one is {_duration(age_ms)} old",
            "Raise message.timestamp.before.max.ms",
        )


def _oldest_ms(store: Store, ranges: Sequence[SourceRange]) -> int | None:
    """Return the timestamp of the oldest first batch. Later batches may hold older messages; this is an estimate."""
    headers = [each.first_header(store) for each in ranges]
    times = [header.base_timestamp_ms for header in headers if header is not None and header.base_timestamp_ms >= 0]
    return min(times, default=None)


def _would_be_archived_again(config: Config, request: Request, name: str) -> Iterator[Problem]:
    if request.connection != config.kafka.connection:
        return
    for stream in config.streams:
        if config.stream(stream).matches(name):
            yield Problem(
                f"stream {stream!r} archives topic {name!r} of this cluster: the restored messages would be archived "
                f"again",
                "Give --to-topic a name that no stream matches, or remove the topic from the stream first",
            )


def _two_topics_into_one(request: Request, ranges: Sequence[SourceRange]) -> Iterator[Problem]:
    topics = sorted({each.tp.topic for each in ranges})
    if len({request.target_of(topic) for topic in topics}) < len(topics):
        yield Problem(
            f"topics {', '.join(topics)} would all go to topic {request.to_topic!r}",
            "Let --to-topic contain {topic}, or choose the topic-partitions of one topic",
        )


def _quotas(target: KafkaTarget, ranges: Sequence[SourceRange]) -> Iterator[Problem]:
    size_bytes = sum(each.size_bytes for each in ranges)
    for who, bytes_per_second in sorted(target.producer_quotas().items()):
        if bytes_per_second > 0:
            takes = timedelta(seconds=round(size_bytes / bytes_per_second))
            yield Problem(
                f"the target limits producers of {who} to {bytes_per_second:,.0f} bytes/s for each broker",
                f"If that applies to {target.where}, the restore takes up to {takes} on one broker",
                is_warning=True,
            )


def examine_schemas(store: Store, ranges: Sequence[SourceRange], is_known: Callable[[int], bool]) -> Iterator[Problem]:
    """Yield a problem for each schema id in the values that the target's registry does not know.

    This reads and decodes the whole range. An id is the four bytes after a first byte of 0, Confluent's framing.
    """
    found: set[int] = set()
    for each in ranges:
        for schema_id in _schema_ids(store, each) - found:
            found.add(schema_id)
            if not is_known(schema_id):
                yield Problem(
                    f"{each.tp}: messages have schema id {schema_id}, which the target's registry does not know",
                    "Register the schemas there with the same ids (mode IMPORT) before the restore",
                )


def _schema_ids(store: Store, each: SourceRange) -> set[int]:
    import pyarrow.compute as pc

    from waybill.archive.spans import read_span, spans_from

    ids: set[int] = set()
    for span in spans_from(each.tp, each.objects, each.first_offset):
        for messages in read_span(store, span, in_part=True, limits=LARGEST):
            heads = pc.unique(pc.binary_slice(messages.column("value").drop_null(), 0, 5)).to_pylist()
            ids.update(int.from_bytes(head[1:], "big") for head in heads if len(head) == 5 and head[0] == 0)
    return ids


def _number(topic: TargetTopic, key: str) -> int | None:
    """Return a config as a number; None if it is missing or means no limit."""
    text = topic.config.get(key)
    value = None if text is None else int(text)
    return None if value is None or value < 0 or value > 1 << 61 else value


def _duration(milliseconds: int) -> str:
    return format_duration(timedelta(seconds=milliseconds // 1000))
