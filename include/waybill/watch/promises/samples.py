"""The offsets that earlier watches read: they show since when a log is beyond an offset, and how fast it grows.

Unless messages are read, Kafka shows neither when a message arrived nor how fast a log grows. So each watch stores the
offsets that it reads. Old samples are thinned out: the older they are, the farther apart they may be.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from waybill.base.documents import Document, gzipped
from waybill.config.names import TopicPartition, day_of

_DOCUMENT = Document(
    "the watch begins without samples: those stored cannot be read: {error}",
    name="the watch's samples",
    dump=gzipped,
    unpack=gzip.decompress,
)
_KEPT_MS = 36 * 3_600_000
_ALL_KEPT_MS = 30 * 60_000
"""All younger samples are kept, so limits of minutes are exact to the minute."""
_DROPS_KEPT_MS = 90 * 24 * 3_600_000
_MOST_DROPS = 10_000
_SPACING = 8
"""Older samples, of age `a`, are at most `a / 8` apart. So the error of an old time is at most an eighth of its age."""


@dataclass(frozen=True, slots=True)
class OffsetSample:
    """The offsets of one topic-partition of a stream, as a watch read them."""

    start: int
    """Kafka's log start offset."""
    end: int
    """Kafka's log end offset."""
    committed: int
    """The committed offset; the start of the log before the first commit."""


Key = tuple[str, TopicPartition]
"""Stream and topic-partition."""


@dataclass(frozen=True, slots=True)
class LogDrop:
    """A log that became shorter: an unclean election took messages back, or the topic was created again."""

    key: Key
    at_ms: int
    """When a watch last read the longer log."""
    end: int
    """The log end offset at that time."""
    committed: int
    """The committed offset at that time."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples, oldest first, each with its time (epoch ms)."""

    samples: tuple[tuple[int, Mapping[Key, OffsetSample]], ...] = ()
    drops: tuple[LogDrop, ...] = ()
    """Oldest first. They are kept longer than samples, since Kafka does not store where a lost log ended."""
    absent: Mapping[Key, tuple[int, OffsetSample]] = field(default_factory=dict)
    """Topic-partitions that are missing in the newest sample: when a watch last read each of them, and its offsets
    then.

    A topic-partition has no leader, and so no offsets, before most unclean elections.
    """

    @classmethod
    def parse(cls, content: bytes | None) -> Self:
        """Return the stored samples; none if they cannot be read, since figures are then only less exact."""
        return _DOCUMENT.remembered(content, cls._of_fields, cls)

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(
            tuple(
                (
                    int(each["at"]),
                    {
                        (stream, TopicPartition.parse(tp)): OffsetSample(*offsets)
                        for stream, tps in each["offsets"].items()
                        for tp, offsets in tps.items()
                    },
                )
                for each in fields["samples"]
            ),
            tuple(
                LogDrop((stream, TopicPartition.parse(tp)), int(at), int(end), int(committed))
                for stream, tp, at, end, committed in fields.get("drops", ())
            ),
            {
                (stream, TopicPartition.parse(tp)): (int(at), OffsetSample(*offsets))
                for stream, tp, at, offsets in fields.get("absent", ())
            },
        )

    def content(self) -> bytes:
        """Return the document that `parse` reads."""
        samples = []
        for at, sample in self.samples:
            offsets: dict[str, dict[str, tuple[int, int, int]]] = {}
            for (stream, tp), each in sample.items():
                offsets.setdefault(stream, {})[str(tp)] = (each.start, each.end, each.committed)
            samples.append({"at": at, "offsets": offsets})
        drops = [[each.key[0], str(each.key[1]), each.at_ms, each.end, each.committed] for each in self.drops]
        absent = [
            [stream, str(tp), at, (each.start, each.end, each.committed)]
            for (stream, tp), (at, each) in self.absent.items()
        ]
        return _DOCUMENT.write({"samples": samples, "drops": drops, "absent": absent})

    @property
    def is_first_of_day(self) -> bool:
        """Return whether the newest sample is the only one of its day (UTC)."""
        days = [day_of(at) for at, _ in self.samples[-2:]]
        return len(set(days)) == len(days)

    def with_sample(self, now_ms: int, sample: Mapping[Key, OffsetSample]) -> Self:
        """Add a sample, and remove samples that are too old or too close to each other."""
        known = [each for each in self.samples if 0 < now_ms - each[0] <= _KEPT_MS]
        kept: list[tuple[int, Mapping[Key, OffsetSample]]] = []
        for number, (at, each) in enumerate(known):
            after = known[number + 1][0] if number + 1 < len(known) else now_ms
            age_ms = now_ms - at
            # If this sample is removed, its neighbours are still close enough to each other.
            is_spare = kept and age_ms > _ALL_KEPT_MS and after - kept[-1][0] <= age_ms // _SPACING
            if not is_spare:
                kept.append((at, each))
        return type(self)(
            (*kept, (now_ms, sample)), self._drops_until(now_ms, sample), self._absent_from(now_ms, sample)
        )

    def beyond_since(self, key: Key, offset: int, *, of_archive: bool = False) -> int | None:
        """Return since when the log, or the archive, of a topic-partition is known to be beyond an offset (epoch ms).

        None: in the newest sample, the log is not beyond the offset. The true time is between the returned time and the
        previous sample's.
        """
        since = None
        for at, sample in reversed(self.samples):
            found = sample.get(key)
            if found is None or (found.committed if of_archive else found.end) <= offset:
                break
            since = at
        return since

    def latest_before(self, key: Key, offset: int) -> int | None:
        """Return the last time at which a watch read that the log was not yet beyond an offset (epoch ms).

        The message at the offset is younger. Without such a sample, return the time of the oldest sample; None if there
        are no samples.
        """
        found = None
        for at, sample in reversed(self.samples):
            if key not in sample:
                break
            found = at
            if sample[key].end <= offset:
                break
        return found

    def first_since(self, key: Key, time_ms: int) -> OffsetSample | None:
        """Return the oldest sample of a topic-partition at or after that time; None if there is none."""
        found = None
        for at, sample in reversed(self.samples):
            if at < time_ms or key not in sample:
                break
            found = sample[key]
        return found

    def at_least_ago(self, key: Key, ago_ms: int) -> tuple[int, OffsetSample] | None:
        """Return the newest sample of a topic-partition with at least this age, else the oldest, else None."""
        found = None
        newest_ms = self.samples[-1][0] if self.samples else 0
        for at, sample in reversed(self.samples):
            if key not in sample:
                break
            found = at, sample[key]
            if newest_ms - at >= ago_ms:
                break
        return found

    def _last_seen(self) -> dict[Key, tuple[int, OffsetSample]]:
        """Return when a watch last read each topic-partition, and its offsets then."""
        at, newest = self.samples[-1] if self.samples else (0, {})
        return {**self.absent, **{key: (at, each) for key, each in newest.items()}}

    def _drops_until(self, now_ms: int, sample: Mapping[Key, OffsetSample]) -> tuple[LogDrop, ...]:
        """Return the drops that are still kept, and the drops that a new sample shows."""
        seen = self._last_seen()
        new = [
            LogDrop(key, seen[key][0], seen[key][1].end, seen[key][1].committed)
            for key, each in sample.items()
            if key in seen and each.end < seen[key][1].end
        ]
        kept = [each for each in self.drops if now_ms - each.at_ms <= _DROPS_KEPT_MS]
        return tuple([*kept, *new][-_MOST_DROPS:])

    def _absent_from(self, now_ms: int, sample: Mapping[Key, OffsetSample]) -> dict[Key, tuple[int, OffsetSample]]:
        """Return the topic-partitions that were in earlier samples and are missing in a new one."""
        return {
            key: (at, each)
            for key, (at, each) in self._last_seen().items()
            if key not in sample and now_ms - at <= _DROPS_KEPT_MS
        }
