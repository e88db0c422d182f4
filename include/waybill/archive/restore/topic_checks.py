"""Check a target topic's configs: find those that would refuse or delete a message of the restore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from waybill.archive.restore.creation import APPEND_TIME, CREATE_TIME, TIMESTAMP_TYPE
from waybill.archive.restore.figures import BatchFigures, time_text
from waybill.archive.restore.problem import RestoreProblem
from waybill.archive.restore.request import SourceRange
from waybill.config.models.quantities import format_duration
from waybill.records.batches.framing import Codec
from waybill.services.kafka.target import TargetTopic

_SOON_MS = 3_600_000
"""Messages that the target would delete or refuse within this time are refused too, since the restore itself takes
time."""
_MANY_SEGMENTS = 1_000
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"


def check_topic(
    topic: TargetTopic, figures: BatchFigures, ranges: Sequence[SourceRange], now: datetime
) -> Iterator[RestoreProblem]:
    """Yield the problems of a topic's configs, except those that delete messages (`check_retention`)."""
    if topic.config.get(TIMESTAMP_TYPE) == APPEND_TIME:
        yield RestoreProblem(
            f"topic {topic.name!r} has {TIMESTAMP_TYPE}={APPEND_TIME}, which replaces the archived timestamps",
            f"Set it to {CREATE_TIME}",
        )
    now_ms = int(now.timestamp() * 1000)
    yield from _too_old(topic, figures, now_ms)
    yield from _too_new(topic, figures, now_ms)
    yield from _too_large(topic, figures)
    yield from _in_sync(topic)
    yield from _compressed_again(topic, figures)
    yield from _many_segments(topic, figures, ranges)


def check_retention(
    topic: TargetTopic, figures: BatchFigures, ranges: Sequence[SourceRange], now: datetime
) -> Iterator[RestoreProblem]:
    """Yield a problem for each config with which the topic would delete restored messages."""
    if "delete" not in topic.config.get("cleanup.policy", "delete"):
        return
    retention_ms, now_ms = _number(topic, "retention.ms"), int(now.timestamp() * 1000)
    oldest_ms = figures.oldest_ms
    if retention_ms is not None and oldest_ms is not None and oldest_ms < now_ms + _SOON_MS - retention_ms:
        yield RestoreProblem(
            f"topic {topic.name!r} deletes messages after {_duration(retention_ms)} (retention.ms={retention_ms}), and "
            f"the oldest archived message is {_duration(now_ms - oldest_ms)} old: it would be deleted on arrival",
            "Raise retention.ms for good, or give --suspend-cleanup: then the old value comes back when the restore is "
            "complete, and the target deletes what is too old",
        )
    retention_bytes = _number(topic, "retention.bytes")
    largest = max(ranges, key=lambda each: each.size_bytes)
    if retention_bytes is not None and largest.size_bytes > retention_bytes:
        yield RestoreProblem(
            f"topic {topic.name!r} keeps {retention_bytes} bytes of each partition (retention.bytes), and the archive "
            f"has {largest.size_bytes} bytes of {largest.tp}: the first would be deleted while the last arrive",
            "Raise retention.bytes for good, or give --suspend-cleanup: then the old value comes back when the restore "
            "is complete, and the target deletes what is too much",
        )


def _too_old(topic: TargetTopic, figures: BatchFigures, now_ms: int) -> Iterator[RestoreProblem]:
    limit_ms = _number(topic, _BEFORE)
    if limit_ms is None or figures.oldest_ms is None:
        return
    age_ms = now_ms - figures.oldest_ms
    if age_ms + _SOON_MS > limit_ms:
        yield RestoreProblem(
            f"topic {topic.name!r} refuses messages older than {_duration(limit_ms)} ({_BEFORE}={limit_ms}), and the "
            f"oldest archived one is {_duration(age_ms)} old",
            f"{_set(topic, _BEFORE)} to {age_ms + _SOON_MS} or more; the restore itself takes time, too",
        )


def _too_new(topic: TargetTopic, figures: BatchFigures, now_ms: int) -> Iterator[RestoreProblem]:
    limit_ms = _number(topic, _AFTER)
    if limit_ms is None or figures.newest_ms is None:
        return
    ahead_ms = figures.newest_ms - now_ms
    if ahead_ms > limit_ms:
        yield RestoreProblem(
            f"topic {topic.name!r} refuses messages with a timestamp more than {_duration(limit_ms)} ahead "
            f"({_AFTER}={limit_ms}), and the batch with {figures.newest_in} holds one with timestamp "
            f"{time_text(figures.newest_ms)} ({figures.newest_ms}), {_duration(ahead_ms)} ahead",
            f"{_set(topic, _AFTER)} to {ahead_ms} or more for the time of the restore, or restore later than "
            f"{time_text(figures.newest_ms - limit_ms)}",
        )


def _too_large(topic: TargetTopic, figures: BatchFigures) -> Iterator[RestoreProblem]:
    for key in ("max.message.bytes", "segment.bytes"):
        limit = _number(topic, key)
        if limit is not None and figures.largest_bytes > limit:
            yield RestoreProblem(
                f"topic {topic.name!r} refuses batches of more than {limit} bytes ({key}), and the one with "
                f"{figures.largest_in} has {figures.largest_bytes}",
                f"{_set(topic, key)} to {figures.largest_bytes} or more",
            )


def _in_sync(topic: TargetTopic) -> Iterator[RestoreProblem]:
    wanted = _number(topic, "min.insync.replicas")
    if wanted is None or topic.in_sync is None or topic.replicas is None:
        return
    # If a topic has fewer replicas than min.insync.replicas, current brokers require all of its replicas.
    if topic.in_sync < min(wanted, topic.replicas):
        yield RestoreProblem(
            f"topic {topic.name!r} has min.insync.replicas={wanted}, and one of its partitions has {topic.in_sync} "
            f"in-sync replicas: the target would refuse every batch for it",
            "Wait until its brokers are back, or lower min.insync.replicas",
        )


def _compressed_again(topic: TargetTopic, figures: BatchFigures) -> Iterator[RestoreProblem]:
    kind = topic.config.get("compression.type", "producer")
    codecs = {Codec.NONE: "uncompressed"}
    other = sorted(name for each in figures.codecs if (name := codecs.get(each, each.name.lower())) != kind)
    if kind != "producer" and other:
        yield RestoreProblem(
            f"topic {topic.name!r} has compression.type={kind}, and the archive has {', '.join(other)} batches: the "
            f"target compresses them again. The messages stay as they are, but the batches are not those of the "
            f"archive byte for byte, and one may become larger than max.message.bytes",
            "Set compression.type=producer of the topic to keep them",
            is_warning=True,
        )


def _many_segments(
    topic: TargetTopic, figures: BatchFigures, ranges: Sequence[SourceRange]
) -> Iterator[RestoreProblem]:
    segment_ms = _number(topic, "segment.ms")
    if not segment_ms:
        return
    most_messages = max(each.next_offset - each.first_offset for each in ranges)
    segments = min(figures.longest_ms // segment_ms, most_messages)
    if segments > _MANY_SEGMENTS:
        yield RestoreProblem(
            f"topic {topic.name!r} begins a segment after {_duration(segment_ms)} of message time "
            f"(segment.ms={segment_ms}), so one partition may get up to {segments} segments, each with open files",
            f"{_set(topic, 'segment.ms')} to {figures.longest_ms // _MANY_SEGMENTS + 1} or more for the time of the "
            f"restore",
            is_warning=True,
        )


def _set(topic: TargetTopic, key: str) -> str:
    """Return the beginning of a remedy. A topic that does not exist yet cannot be changed."""
    return f"Set {key} of the topic" if topic.topic_id else f"Create the topic yourself, and set its {key}"


def _number(topic: TargetTopic, key: str) -> int | None:
    """Return a config as a number; None if it is missing or means no limit."""
    text = topic.config.get(key)
    value = None if text is None else int(text)
    return None if value is None or value < 0 or value > 1 << 61 else value


def _duration(milliseconds: int) -> str:
    """Return a time as `90s` or `2h`. It may be too large for `timedelta`, for example if the unit is wrong."""
    try:
        return format_duration(timedelta(seconds=milliseconds // 1000))
    except OverflowError:
        return f"{milliseconds // 1000}s"
