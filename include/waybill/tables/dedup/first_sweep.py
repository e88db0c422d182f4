"""The start of a table's first sweep, if it has to leave out rows that the table already has.

`since` is compared with the commit times of snapshots, as `until` is: a snapshot that was committed before it is left
out, with all rows that it added. Rows of later snapshots are swept, whatever their timestamps.

Rows that are left out are never swept later: the plan records them, then the state in the unique table. So a later
sweep cannot leave out more rows, nor sweep those that were left out. Such a sweep is refused, instead of doing a part
of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill.base.errors import ConfigError, DocumentTooNew, ProgressLost
from waybill.tables.iceberg.dedup import FirstSweepStart
from waybill.tables.iceberg.progress import Progress, read_progress
from waybill.tables.iceberg.state import metadata_as_of

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXAMPLE = "write 2026-01-31T00:00:00Z"
_START_AGAIN = "drop the unique table and the duplicates table, and sweep with that time again"


# --- the requested range ---


def parse_instant(name: str, text: str) -> datetime:
    """Return a time that has a time zone, in UTC; `name` is used in errors. Raises `ConfigError` for other text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r} is not a time: {_EXAMPLE}") from error
    if found.tzinfo is None:
        raise ConfigError(f"{name}: {text!r} has no time zone: {_EXAMPLE}")
    return found.astimezone(UTC)


def format_instant(at_ms: int) -> str:
    """Return epoch milliseconds as text, in UTC."""
    return _format(_EPOCH + timedelta(milliseconds=at_ms))


def check_range(since: datetime | None, until: datetime | None, now: datetime) -> None:
    """Raise `ConfigError` if a sweep of this range is impossible.

    `since` must not be later than `now`: it is unknown which rows will be committed before a future time.
    """
    if since is None:
        return
    if since > now:
        raise ConfigError(
            f"since {_format(since)} is in the future: it is {_format(now)}. Rows may still be appended before that "
            f"time: give a time that has passed"
        )
    if until is not None and since > until:
        raise ConfigError(
            f"since {_format(since)} is after until {_format(until)}: the range is empty. Give an until that is "
            f"later, or none"
        )


def _format(moment: datetime) -> str:
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds" if utc.microsecond else "seconds") + "Z"


# --- the first sweep ---


def snapshots_before(snapshots: Sequence[Snapshot], time_ms: int) -> list[Snapshot]:
    """Return the snapshots (oldest first) that precede the first one committed at or after a time, epoch ms.

    The clocks of writers differ: after that first one there may be snapshots with an earlier time.
    """
    return list(takewhile(lambda snapshot: snapshot.timestamp_ms < time_ms, snapshots))


def find_first_sweep_start(table: Table, history: Sequence[Snapshot], since_ms: int) -> FirstSweepStart | None:
    """Return which of the table's snapshots (oldest first) the first sweep leaves out; None: no snapshot.

    Raises `ConfigError` if this is unknown: the oldest snapshot is not older than `since_ms`, but has rows of snapshots
    that have expired.
    """
    left_out = snapshots_before(history, since_ms)
    if not left_out:
        _check_no_older_rows(table, history, since_ms)
        return None
    last = left_out[-1]
    return FirstSweepStart(
        since_ms=since_ms,
        snapshot=last.snapshot_id,
        sequence=last.sequence_number or 0,
        committed_ms=last.timestamp_ms,
        rows=_summary_figure(last, "total-records"),
        progress=_first_progress(table.metadata, history[len(left_out) - 1 :], ".".join(table.name())),
    )


def format_first_sweep_start(beginning: FirstSweepStart) -> str:
    """Return a text that states which rows are left out."""
    before = format_instant(beginning.since_ms)
    return f"{beginning.rows:,} rows that were appended to the table before {before} are left out for good"


def _check_no_older_rows(table: Table, history: Sequence[Snapshot], since_ms: int) -> None:
    if not history or not _has_older_rows(history[0]):
        return
    oldest = format_instant(history[0].timestamp_ms)
    raise ConfigError(
        f"since {format_instant(since_ms)}: the oldest snapshot that table {'.'.join(table.name())} still has is of "
        f"{oldest}, and holds rows of older ones, which have expired: it is unknown which of them were appended before "
        f"that time. Give a time after {oldest}, and all rows of that snapshot are left out; or none, and all are swept"
    )


def _has_older_rows(snapshot: Snapshot) -> bool:
    """Return whether a snapshot has rows that it did not add itself."""
    operation = snapshot.summary.operation if snapshot.summary else None
    added = _summary_figure(snapshot, "added-records") if operation is Operation.APPEND else 0
    return _summary_figure(snapshot, "total-records") > added


def _first_progress(metadata: TableMetadata, snapshots: Sequence[Snapshot], name: str) -> Progress:
    """Return the progress at the first of these snapshots, or, if its record has expired, at the next that has one."""
    return next(_readable_progress(metadata, snapshots, name), {})


def _readable_progress(metadata: TableMetadata, snapshots: Sequence[Snapshot], name: str) -> Iterator[Progress]:
    for snapshot in snapshots:
        try:
            yield read_progress(metadata_as_of(metadata, snapshot), name)
        except (DocumentTooNew, ProgressLost):
            continue


def _summary_figure(snapshot: Snapshot, name: str) -> int:
    return int(snapshot.summary.additional_properties.get(name, "0")) if snapshot.summary else 0


# --- later sweeps ---


def check_since(
    table: Table,
    since_ms: int,
    beginning: FirstSweepStart | None,
    unswept: Sequence[Snapshot],
    *,
    planned: bool = False,
) -> None:
    """Raise `ConfigError` if a sweep that is not the first cannot respect `since_ms`.

    Log it if `since_ms` has no effect.

    `beginning`: start of the first sweep. `unswept`: the snapshots after the last sweep, oldest first. `planned`: the
    first sweep is planned but not committed, so `beginning` comes from its plan.
    """
    name, since = ".".join(table.name()), f"since {format_instant(since_ms)}"
    if beginning is not None and beginning.since_ms == since_ms:
        return
    reason = "an earlier run has planned the first sweep" if planned else "dedup has swept the table before"
    if beginning is not None and since_ms <= beginning.committed_ms:
        raise ConfigError(
            f"{since}: {reason}, and left out the rows appended to {name} before {format_instant(beginning.since_ms)} "
            f"({beginning.rows:,} rows), for good: those appended between the two times cannot be swept any more. "
            f"Sweep without since; or, to begin at {format_instant(since_ms)}, {_START_AGAIN}"
        )
    excluded = snapshots_before(unswept, since_ms)
    if excluded:
        oldest = format_instant(excluded[0].timestamp_ms)
        raise ConfigError(
            f"{since}: {reason}, and only the first sweep can leave rows out. {len(excluded):,} snapshots of {name} "
            f"from before that time, the oldest of {oldest}, would be missing from the unique table. Sweep without "
            f"since; or, to begin at {format_instant(since_ms)}, {_START_AGAIN}"
        )
    logger.info("table %s: %s leaves nothing out: all rows from before it are swept or planned to be", name, since)
