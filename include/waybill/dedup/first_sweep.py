"""Where the first sweep of a table begins, if it is asked to leave out what the table had gained before a time.

The time is held against when snapshots were committed, as `until` is: a snapshot that was committed before it is left
out, with all rows that it added. What comes from `since` on is swept, whatever its timestamps say.

What is left out is left out for good: the plan says so, then the state in the unique table. So a later sweep cannot be
asked to leave out more, or to take in what was left out; it is refused rather than done in part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill.errors import ConfigError, ProgressLost
from waybill.tables.dedup import Beginning
from waybill.tables.progress import Progress, read_progress
from waybill.tables.state import as_of

__all__ = [
    "begin_since",
    "beginning_text",
    "check_range",
    "check_since",
    "committed_before",
    "instant_text",
    "parse_instant",
]

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXAMPLE = "write 2026-01-31T00:00:00Z"
_ANEW = "drop the tables of unique rows and of duplicates, and sweep with that time again"


def parse_instant(name: str, text: str) -> datetime:
    """A time with its time zone, in UTC; `name` is what it is of. Raises `ConfigError` for anything else."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r} is no time: {_EXAMPLE}") from error
    if found.tzinfo is None:
        raise ConfigError(f"{name}: {text!r} has no time zone: {_EXAMPLE}")
    return found.astimezone(UTC)


def check_range(since: datetime | None, until: datetime | None, now: datetime) -> None:
    """Raise `ConfigError` if a sweep cannot be asked for this range.

    What the table gains before a time that is yet to come cannot be known, so `since` may not be later than `now`.
    """
    if since is None:
        return
    if since > now:
        raise ConfigError(
            f"since {_text(since)} is in the future: it is {_text(now)}. What the table had gained before that time "
            f"is not known yet: give a time that has passed"
        )
    if until is not None and since > until:
        raise ConfigError(
            f"since {_text(since)} is after until {_text(until)}: nothing lies between the two. Give an until that is "
            f"later, or none"
        )


def committed_before(snapshots: Sequence[Snapshot], time_ms: int) -> list[Snapshot]:
    """The snapshots of a history, oldest first, that come before the first one of that time or later, epoch ms.

    Clocks of those who commit differ: behind that first one there may be some with an earlier time.
    """
    return list(takewhile(lambda snapshot: snapshot.timestamp_ms < time_ms, snapshots))


def begin_since(table: Table, history: Sequence[Snapshot], since_ms: int) -> Beginning | None:
    """What the first sweep of a table leaves out, of all its snapshots, oldest first; None: nothing.

    Raises `ConfigError` where that cannot be told: the oldest snapshot that there is still is no older than `since_ms`,
    and holds rows of others that have expired.
    """
    out = committed_before(history, since_ms)
    if not out:
        _check_whole(table, history, since_ms)
        return None
    last = out[-1]
    return Beginning(
        since_ms=since_ms,
        snapshot=last.snapshot_id,
        sequence=last.sequence_number or 0,
        committed_ms=last.timestamp_ms,
        rows=_figure(last, "total-records"),
        progress=_progress_at(table.metadata, history[len(out) - 1 :], ".".join(table.name())),
    )


def check_since(
    table: Table, since_ms: int, beginning: Beginning | None, unswept: Sequence[Snapshot], *, planned: bool = False
) -> None:
    """Raise `ConfigError` if a sweep that goes on cannot keep to `since_ms`, and log it if there is nothing to keep to.

    `beginning`: where the sweeps began. `unswept`: the snapshots that they have not taken in, oldest first. `planned`:
    it is not the state that says so, but the plan of a first sweep that is not committed yet.
    """
    name, since = ".".join(table.name()), f"since {instant_text(since_ms)}"
    if beginning is not None and beginning.since_ms == since_ms:
        return
    begun = "an earlier run has planned the first sweep" if planned else "dedup has swept the table before"
    if beginning is not None and since_ms <= beginning.committed_ms:
        raise ConfigError(
            f"{since}: {begun}, and left out what {name} had gained before {instant_text(beginning.since_ms)} "
            f"({beginning.rows:,} rows), for good: what came between the two times is not taken in any more. Sweep "
            f"without since; or, to begin at {instant_text(since_ms)}, {_ANEW}"
        )
    out = committed_before(unswept, since_ms)
    if out:
        oldest = instant_text(out[0].timestamp_ms)
        raise ConfigError(
            f"{since}: {begun}, and only the first sweep can leave rows out. {len(out):,} snapshots of {name} from "
            f"before that time, the oldest of {oldest}, would be missing from the unique rows. Sweep without since; "
            f"or, to begin at {instant_text(since_ms)}, {_ANEW}"
        )
    logger.info("table %s: %s leaves nothing out: all from before that time is swept, or planned to be", name, since)


def beginning_text(beginning: Beginning) -> str:
    """What is left out, for people."""
    before = instant_text(beginning.since_ms)
    return f"{beginning.rows:,} rows that the table had gained before {before} are left out for good"


def instant_text(at_ms: int) -> str:
    """Epoch milliseconds for people, in UTC."""
    return _text(_EPOCH + timedelta(milliseconds=at_ms))


def _text(moment: datetime) -> str:
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds" if utc.microsecond else "seconds") + "Z"


def _check_whole(table: Table, history: Sequence[Snapshot], since_ms: int) -> None:
    if not history or not _holds_older(history[0]):
        return
    oldest = instant_text(history[0].timestamp_ms)
    raise ConfigError(
        f"since {instant_text(since_ms)}: the oldest snapshot that table {'.'.join(table.name())} still has is of "
        f"{oldest}, and holds rows of older ones, which have expired: which of them came before that time cannot be "
        f"told. Give a time after {oldest}, and all rows that it holds are left out; or none, and all are swept"
    )


def _holds_older(snapshot: Snapshot) -> bool:
    """Whether a snapshot has rows that it did not add itself."""
    operation = snapshot.summary.operation if snapshot.summary else None
    added = _figure(snapshot, "added-records") if operation is Operation.APPEND else 0
    return _figure(snapshot, "total-records") > added


def _progress_at(metadata: TableMetadata, snapshots: Sequence[Snapshot], name: str) -> Progress:
    """The progress at the first of these snapshots, or, where what said it has expired, at the next that knows."""
    for found in _progress_of(metadata, snapshots, name):
        return found
    return {}


def _progress_of(metadata: TableMetadata, snapshots: Sequence[Snapshot], name: str) -> Iterator[Progress]:
    for snapshot in snapshots:
        try:
            yield read_progress(as_of(metadata, snapshot), name)
        except ProgressLost:
            continue


def _figure(snapshot: Snapshot, name: str) -> int:
    return int(snapshot.summary.additional_properties.get(name, "0")) if snapshot.summary else 0
