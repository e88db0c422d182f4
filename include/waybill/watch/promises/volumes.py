"""The messages of each hour: what producers wrote to the topics of a stream, for five weeks.

The first watch of an hour stores the sum of each stream's log end offsets. The difference from one hour to the next is
the number of messages that producers wrote, independent of ingest; control records of transactions count as messages.
If the first watch of an hour runs more than five minutes late, it stores nothing, and this hour and the previous one
are unknown. An hour is also unknown if the number of topic-partitions changed: a topic-partition whose leader does not
answer is not in the sum, and a topic that a pattern matches from now on adds all its earlier messages.
"""

from __future__ import annotations

import gzip
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any, Self

from waybill.base.documents import Document, gzipped
from waybill.config.models import Stream
from waybill.config.models.promises import PromiseName, StreamVolume, time_zone
from waybill.config.models.quantities import counted, share_beside
from waybill.watch.incidents.finding import Finding, Verdict, measured

_DOCUMENT = Document(
    "the watch begins to count messages again: the stored volumes cannot be read: {error}",
    name="the watch's volumes",
    dump=gzipped,
    unpack=gzip.decompress,
)
_HOUR_SECONDS = 3600
_HOUR_MS = _HOUR_SECONDS * 1000
_LATE_MS = 5 * 60_000
_WEEKS = 4
_KEPT_HOURS = (_WEEKS + 1) * 7 * 24


@dataclass(frozen=True, slots=True)
class HourlyVolumes:
    """The messages of a stream by hour. Hours are counted since 1970 UTC."""

    noted_hour: int
    """The hour whose first watch stored the sum of log end offsets."""
    noted_offsets: int | None
    """This sum; None if the watch was late."""
    noted_tps: int = 0
    """How many topic-partitions are in the sum."""
    messages: Mapping[int, int] = field(default_factory=dict)
    """The messages of each hour; unknown hours are missing."""

    def noted(self, hour: int, offsets: int | None, tps: int) -> Self:
        """Return the volumes after the first watch of an hour. `tps`: the topic-partitions in the sum `offsets`."""
        messages = {known: count for known, count in self.messages.items() if known > hour - _KEPT_HOURS}
        before = self.noted_offsets
        # A sum is smaller than before if a topic was deleted, or deleted and created again.
        follows = hour == self.noted_hour + 1 and tps == self.noted_tps
        if follows and before is not None and offsets is not None and offsets >= before:
            messages[self.noted_hour] = offsets - before
        return replace(self, noted_hour=hour, noted_offsets=offsets, noted_tps=tps, messages=messages)

    def same_hours(self, hour: int, zone: tzinfo) -> list[int]:
        """Return the messages of the same local hour in the last four weeks; unknown hours are left out."""
        earlier = (_weeks_before(hour, week, zone) for week in range(1, _WEEKS + 1))
        counts = (self.messages.get(each) for each in earlier if each is not None)
        return [count for count in counts if count is not None]

    def document(self) -> dict[str, Any]:
        """Return the volumes as a JSON object. The messages are a list that begins at the first known hour."""
        first = min(self.messages, default=self.noted_hour)
        return {
            "hour": self.noted_hour,
            "offsets": self.noted_offsets,
            "topic_partitions": self.noted_tps,
            "first": first,
            "messages": [self.messages.get(hour) for hour in range(first, max(self.messages, default=first - 1) + 1)],
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Return the volumes of a JSON object. Raises `KeyError`, `TypeError` or `ValueError`."""
        messages = {
            document["first"] + number: int(count)
            for number, count in enumerate(document["messages"])
            if count is not None
        }
        return cls(int(document["hour"]), document["offsets"], int(document["topic_partitions"]), messages)


@dataclass(frozen=True, slots=True)
class Volumes:
    """The messages of all streams by hour."""

    streams: Mapping[str, HourlyVolumes] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: bytes | None) -> Self:
        """Return the stored volumes; none if they cannot be read: then the watch begins to count again."""
        return _DOCUMENT.remembered(
            content,
            lambda fields: cls({name: HourlyVolumes.parse(each) for name, each in fields["streams"].items()}),
            cls,
        )

    def content(self) -> bytes:
        """Return the document that `parse` reads."""
        return _DOCUMENT.write({"streams": {name: each.document() for name, each in self.streams.items()}})

    def noted(self, now_ms: int, offsets: Mapping[str, tuple[int, int]]) -> Self:
        """Return the volumes after a watch.

        `offsets`: the sum of each stream's log end offsets, and the number of topic-partitions in it.

        Returns itself if this hour is stored already. Streams without offsets are not changed.
        """
        hour = now_ms // _HOUR_MS
        is_late = now_ms % _HOUR_MS > _LATE_MS
        new: dict[str, HourlyVolumes] = {}
        for name, (added_up, tps) in offsets.items():
            known = self.streams.get(name)
            if known is None:
                new[name] = HourlyVolumes(hour, None if is_late else added_up, tps)
            elif known.noted_hour < hour:
                new[name] = known.noted(hour, None if is_late else added_up, tps)
        return replace(self, streams={**self.streams, **new}) if new else self


def _weeks_before(hour: int, weeks: int, zone: tzinfo) -> int | None:
    """Return the hour with the same local time a number of weeks ago; None if clocks skipped it on that day.

    Hours are counted since 1970 UTC. If clocks repeated the hour on that day, the first one is returned.
    """
    local = datetime.fromtimestamp(hour * _HOUR_SECONDS, zone).replace(fold=0) - timedelta(weeks=weeks)
    before = local.astimezone(UTC)
    if before.astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        return None
    return int(before.timestamp()) // _HOUR_SECONDS


def volume_finding(name: str, stream: Stream, volumes: Volumes, now_ms: int) -> Finding:
    """Compare the messages of the last complete hour with the median of the same hour in earlier weeks.

    Hours are local hours in the promise's time zone, so that a daily peak is compared with the same peak after a clock
    change. An unknown hour gives an unknown finding.
    """
    promise, hour = stream.promises.volume, now_ms // _HOUR_MS - 1
    known = volumes.streams.get(name)
    earlier = [] if known is None else known.same_hours(hour, time_zone(promise.time_zone))
    usual = int(statistics.median(earlier)) if earlier else 0
    limit, command = f"{promise.at_least:.0%} to {promise.at_most:.0%} of usual", f"waybill offsets --stream {name}"
    if known is None or len(earlier) < promise.min_weeks or usual < promise.min_messages:
        return measured(
            name,
            PromiseName.VOLUME,
            promise,
            is_broken=False,
            figure="too little to compare",
            limit=_limit_without_verdict(promise, len(earlier), usual),
            detail="",
            command=command,
            since_ms=None,
        )
    messages = known.messages.get(hour)
    if messages is None:
        return Finding(name, PromiseName.VOLUME, Verdict.UNKNOWN, promise.severity)
    ratio = Decimal(messages) / usual
    return measured(
        name,
        PromiseName.VOLUME,
        promise,
        is_broken=not promise.at_least <= ratio <= promise.at_most,
        figure=f"{counted(messages, 'message')} in an hour, {_ratio_text(ratio, promise)} of usual",
        limit=limit,
        detail=f"usually {usual:,}: the median of this hour in {counted(len(earlier), 'earlier week')}",
        command=command,
        since_ms=hour * _HOUR_MS,
        value=float(ratio),
    )


def _limit_without_verdict(promise: StreamVolume, weeks: int, usual: int) -> str:
    """Return why the hour is not compared."""
    if weeks < promise.min_weeks:
        return f"none before {counted(promise.min_weeks, 'week')} are known; so far {weeks}"
    return f"none below {counted(promise.min_messages, 'message')} in an hour; usual are {usual:,}"


def _ratio_text(ratio: Decimal, promise: StreamVolume) -> str:
    limit = promise.at_least if ratio < 1 else promise.at_most
    return share_beside(float(ratio), float(limit))
