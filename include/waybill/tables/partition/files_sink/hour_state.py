"""Decide when an hour of a `files` sink is final. Pure functions; the module `finalize` calls the services."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar

from waybill.base.documents import As, Document, Stored, spaced
from waybill.base.errors import DocumentDamaged
from waybill.config.names import SinkPeriod, TopicPartition
from waybill.services.store import ListedObject
from waybill.tables.iceberg.file_inventory import InventoryEntry

_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LogEnds:
    """What Kafka and ZooKeeper report about a stream's topic-partitions."""

    asked_at: datetime
    """A time before the services were asked: messages produced until then have offsets below the ends."""
    ends: Mapping[TopicPartition, int]
    """The known log end offsets; for a topic that no longer exists in Kafka, the ends of its chains."""
    empty: frozenset[TopicPartition] = frozenset()
    """Topic-partitions whose log holds no message now."""
    stopped: frozenset[TopicPartition] = frozenset()
    """Topic-partitions with a named stop: how far they are behind is unknown."""
    problem: str = ""
    """Why the services could not be asked."""


@dataclass(frozen=True, slots=True)
class TimeReached:
    """The time up to which all messages of a topic-partition are in files or in quarantine."""

    tp: TopicPartition
    reached: datetime | None
    """None: unknown."""
    caught_up: bool
    """Whether all messages in Kafka are partitioned."""

    def __str__(self) -> str:
        if self.reached is None:
            return f"{self.tp}: nothing of it is partitioned"
        how = "all that Kafka has is partitioned" if self.caught_up else "its newest message that is partitioned"
        return f"{self.tp} at {self.reached:%Y-%m-%dT%H:%M:%SZ} ({how})"


def times_reached(
    tps: Iterable[TopicPartition],
    progress: Mapping[TopicPartition, int],
    watermarks: Mapping[TopicPartition, int],
    log_ends: LogEnds,
) -> list[TimeReached]:
    """Return the time that each topic-partition has reached, the earliest time first.

    `progress` includes the chain starts of topic-partitions without progress, and was read after `log_ends`.
    `watermarks`: the newest Kafka timestamp of the partitioned messages, in epoch milliseconds.
    """
    return sorted(
        (_time_reached(tp, progress.get(tp), watermarks.get(tp), log_ends) for tp in sorted({*tps})),
        key=lambda time: (time.reached is not None, time.reached or _EARLIEST, time.tp),
    )


def _time_reached(tp: TopicPartition, progress: int | None, watermark: int | None, log_ends: LogEnds) -> TimeReached:
    end = log_ends.ends.get(tp)
    # Without progress there is no chain: nothing was ever archived, and nothing has to be if the log is empty.
    at_end = tp in log_ends.empty if progress is None else end is not None and progress >= end
    caught_up = at_end and tp not in log_ends.stopped
    reached = None if watermark is None else datetime.fromtimestamp(watermark / 1000, UTC)
    if caught_up and (reached is None or log_ends.asked_at > reached):
        return TimeReached(tp, log_ends.asked_at, True)
    return TimeReached(tp, reached, False)


def earliest_time(times: Sequence[TimeReached]) -> datetime | None:
    """Return the time that every topic-partition has reached; None if there are none, or one is unknown."""
    reached = [time.reached for time in times]
    return min((time for time in reached if time is not None), default=None) if None not in reached else None


def final_before(reached: datetime | None, lateness: timedelta) -> datetime | None:
    """Return the time before which hours are final: an hour that ends then or earlier. None: no hour is final."""
    if reached is None:
        return None
    try:
        return reached - lateness
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class SuccessMarker(Stored):
    """The content of `_SUCCESS`: figures of the files that the inventory lists in the directory.

    It follows from the figures alone, so that its ETag identifies the figures.
    """

    DOCUMENT: ClassVar = Document("{where} is no marker ({error})", converts=True, dump=spaced)

    files: int
    rows: int
    size_bytes: Annotated[int, As("bytes")]
    revision: int
    """How many partition runs have added files: late rows give a final hour another revision."""

    @classmethod
    def of(cls, entries: Sequence[InventoryEntry]) -> SuccessMarker:
        """Return the marker that a directory with these files should have."""
        return cls(
            len(entries),
            sum(entry.rows for entry in entries),
            sum(entry.size_bytes for entry in entries),
            len({entry.plan for entry in entries}),
        )

    def matches_etag(self, listed: ListedObject) -> bool:
        """Return whether the listed object has this marker's content. If False, read the object to compare the content.

        An ETag that is not an MD5 (SSE-KMS, an object that was copied in parts) never matches.
        """
        return listed.etag == hashlib.md5(self.to_json(), usedforsecurity=False).hexdigest()

    @classmethod
    def parse(cls, key: str, data: bytes) -> SuccessMarker | None:
        """Parse an object's content; None if it is no marker. Raises `DocumentTooNew` if a newer Waybill wrote it."""
        try:
            return cls.from_json(key, data)
        except DocumentDamaged:
            return None


class HourState(StrEnum):
    """State of an hour."""

    OPEN = "open"
    """A topic-partition may still have messages of this hour that are not late."""
    FINAL = "final"
    """The hour has its marker."""
    READY = "ready"
    """The hour should have its marker, but has none, or an outdated one from before late rows arrived."""
    BLOCKED = "blocked"
    """The directory does not hold exactly the files that the inventory lists."""


@dataclass(frozen=True, slots=True)
class HourStatus:
    """The files of an hour, and the marker that it should have."""

    period: SinkPeriod
    state: HourState
    wanted: SuccessMarker
    is_marked: bool
    missing: tuple[str, ...] = ()
    """Keys of files that the inventory lists and that do not exist with the listed size."""
    strays: tuple[str, ...] = ()
    """Keys of objects that the inventory does not list."""

    @property
    def has_stale_marker(self) -> bool:
        """Whether the marker's content is wrong or outdated."""
        return self.is_marked and self.state is not HourState.FINAL


def classify_hour(
    period: SinkPeriod,
    entries: Sequence[InventoryEntry],
    listed: Sequence[ListedObject],
    marker: SuccessMarker | None,
    *,
    is_marked: bool,
    final_before: datetime | None,
) -> HourStatus:
    """Return the status of an hour.

    `listed`: the objects in its directory, without those that readers ignore (`_…`, `.…`). `marker`: the content of the
    existing marker, None if it cannot be read. `final_before`: hours that end then or earlier are final; None: no hour.
    """
    wanted = SuccessMarker.of(entries)
    expected = {entry.path.split("/", 3)[3]: entry.size_bytes for entry in entries}
    existing = {each.key: each.size_bytes for each in listed}
    missing = tuple(sorted(key for key, size in expected.items() if existing.get(key) != size))
    strays = tuple(sorted(existing.keys() - expected.keys()))
    is_over = final_before is not None and period.end <= final_before
    if missing or strays:
        state = HourState.BLOCKED
    elif is_marked and marker == wanted:
        state = HourState.FINAL
    else:
        state = HourState.READY if is_over and entries else HourState.OPEN
    return HourStatus(period, state, wanted, is_marked, missing, strays)
