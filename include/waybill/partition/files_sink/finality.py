"""When an hour is final: decisions, without any call of a service; `finalize`, beside it, carries them out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from waybill.documents import read_document
from waybill.names import Period, TopicPartition
from waybill.store import ListedObject
from waybill.tables.file_inventory import LedgerEntry

__all__ = [
    "Finding",
    "LogView",
    "Marker",
    "Standing",
    "State",
    "final_before",
    "judge",
    "reached_by_all",
    "standings",
]

_VERSION = 1
_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LogView:
    """What Kafka and ZooKeeper say of a stream's topic-partitions."""

    asked_at: datetime
    """From before they were asked: what was produced until then is below the ends."""
    ends: Mapping[TopicPartition, int]
    """Where the logs end, as far as that is known; of a topic that Kafka no longer has, where its chains do."""
    empty: frozenset[TopicPartition] = frozenset()
    """Logs that hold no message now."""
    stopped: frozenset[TopicPartition] = frozenset()
    """Named stops: how far these are behind is not known."""
    problem: str = ""
    """Why nothing is known."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the time of a topic-partition has come: up to there, all its messages are in files or in quarantine."""

    tp: TopicPartition
    reached: datetime | None
    """None: nothing is known."""
    caught_up: bool

    def __str__(self) -> str:
        if self.reached is None:
            return f"{self.tp}: nothing of it is partitioned"
        how = "all that Kafka has is partitioned" if self.caught_up else "its newest message that is partitioned"
        return f"{self.tp} at {self.reached:%Y-%m-%dT%H:%M:%SZ} ({how})"


def standings(
    tps: Iterable[TopicPartition],
    progress: Mapping[TopicPartition, int],
    watermarks: Mapping[TopicPartition, int],
    view: LogView,
) -> list[Standing]:
    """How far each topic-partition is, the one that is furthest behind first.

    `progress`: with where the chain begins, for those of which nothing is partitioned; read after `view` was.
    `watermarks` in epoch milliseconds.
    """
    return sorted(
        (_standing(tp, progress.get(tp), watermarks.get(tp), view) for tp in sorted({*tps})),
        key=lambda standing: (standing.reached is not None, standing.reached or _EARLIEST, standing.tp),
    )


def _standing(tp: TopicPartition, progress: int | None, watermark: int | None, view: LogView) -> Standing:
    end = view.ends.get(tp)
    # Without progress there is no chain: nothing of it was ever archived, and nothing is to be if its log is empty.
    at_end = tp in view.empty if progress is None else end is not None and progress >= end
    caught_up = at_end and tp not in view.stopped
    reached = None if watermark is None else datetime.fromtimestamp(watermark / 1000, UTC)
    if caught_up and (reached is None or view.asked_at > reached):
        return Standing(tp, view.asked_at, True)
    return Standing(tp, reached, False)


def reached_by_all(found: Sequence[Standing]) -> datetime | None:
    """The time that every topic-partition has come to. None: there are none, or nothing is known of one."""
    reached = [standing.reached for standing in found]
    return min((time for time in reached if time is not None), default=None) if None not in reached else None


@dataclass(frozen=True, slots=True)
class Marker:
    """What `_SUCCESS` says. Its figures are those of the files that the ledger lists in the directory."""

    files: int
    rows: int
    size_bytes: int
    revision: int
    """How many partition runs have added files: late rows give a final hour another revision."""

    @classmethod
    def of(cls, entries: Sequence[LedgerEntry]) -> Marker:
        """What the marker of a directory has to say."""
        return cls(
            len(entries),
            sum(entry.rows for entry in entries),
            sum(entry.size_bytes for entry in entries),
            len({entry.plan for entry in entries}),
        )

    def to_json(self) -> bytes:
        """The object's content. It follows from the figures alone, so that a listing tells what a marker says."""
        figures = {"files": self.files, "rows": self.rows, "bytes": self.size_bytes, "revision": self.revision}
        return json.dumps({"v": _VERSION, **figures}).encode()

    def is_in(self, listed: ListedObject) -> bool:
        """Whether the object that is listed there says just this. False: it says something else, or it must be read.

        An ETag that is no MD5 (SSE-KMS, a copy made in parts) never is that of the content.
        """
        return listed.etag == hashlib.md5(self.to_json(), usedforsecurity=False).hexdigest()

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Marker | None:
        """The inverse; None for what is no such document. Raises `GenerationConflict` for that of a newer Waybill."""
        try:
            fields = read_document(data, _VERSION, key)
            return cls(int(fields["files"]), int(fields["rows"]), int(fields["bytes"]), int(fields["revision"]))
        except (ValueError, KeyError, TypeError):
            return None


class State(StrEnum):
    """Of an hour."""

    OPEN = "open"
    """Some topic-partition may still have messages that are on time."""
    FINAL = "final"
    """It has its marker."""
    READY = "ready"
    """It should have its marker, and has none, or one of before late rows."""
    BLOCKED = "blocked"
    """What is there is not what the ledger lists."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What an hour is, and what it should be."""

    period: Period
    state: State
    wanted: Marker
    is_marked: bool
    missing: tuple[str, ...] = ()
    """Keys of files that the ledger lists and that are not there as it says."""
    strays: tuple[str, ...] = ()
    """Keys of objects that are there and that the ledger does not list."""

    @property
    def must_lose_marker(self) -> bool:
        """Whether what is said by the marker is not, or no longer, so."""
        return self.is_marked and self.state is not State.FINAL


def judge(
    period: Period,
    entries: Sequence[LedgerEntry],
    listed: Sequence[ListedObject],
    marker: Marker | None,
    *,
    is_marked: bool,
    final_before: datetime | None,
) -> Finding:
    """What an hour is. `listed`: what its directory holds, without what readers pass over (`_…`, `.…`).

    `marker`: what the marker that is there says, None if that cannot be read. `final_before`: hours that end then or
    before are final; None: none is.
    """
    wanted = Marker.of(entries)
    sizes = {entry.path.split("/", 3)[3]: entry.size_bytes for entry in entries}
    found = {there.key: there.size_bytes for there in listed}
    missing = tuple(sorted(key for key, size in sizes.items() if found.get(key) != size))
    strays = tuple(sorted(found.keys() - sizes.keys()))
    is_over = final_before is not None and period.end <= final_before
    if missing or strays:
        state = State.BLOCKED
    elif is_marked and marker == wanted:
        state = State.FINAL
    else:
        state = State.READY if is_over and entries else State.OPEN
    return Finding(period, state, wanted, is_marked, missing, strays)


def final_before(reached: datetime | None, lateness: timedelta) -> datetime | None:
    """Hours that end then or before are final."""
    if reached is None:
        return None
    try:
        return reached - lateness
    except OverflowError:
        return None
