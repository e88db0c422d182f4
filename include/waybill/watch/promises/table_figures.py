"""Figures of the tables: lag, deadlines, runs, shares of quarantine and duplicates, the dedup window, and holds.

This module imports no Iceberg: most watches use the state that an earlier one has read
(`waybill.watch.promises.table_reader`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from waybill.config.models import Stream
from waybill.config.models.promises import Deadline, PromiseName, ShareOfRuns
from waybill.config.models.quantities import counted, rough_duration, share_beside
from waybill.config.names import TopicPartition
from waybill.watch.incidents.finding import Finding, duration_finding, measured
from waybill.watch.promises.log_figures import Logs
from waybill.watch.promises.samples import Key, Samples

RECENT_MS = 3_600_000
"""Shares are those of the last hour."""


@dataclass(frozen=True, slots=True)
class Published:
    """Rows that one commit has published."""

    at_ms: int
    rows: int = 0
    quarantined: int = 0
    unique: int = 0
    """Rows that a sweep found for the first time."""
    duplicates: int = 0
    late: int = 0
    """Rows with a lateness above `promises.late_share.late_after`."""
    parser_failed: int = 0
    """Messages at which a built-in parser raised."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a stream's tables, and of the documents of its next run, when they were read."""

    read_ms: int
    progress: Mapping[TopicPartition, int]
    watermarks: Mapping[TopicPartition, int]
    published: tuple[Published, ...] = ()
    """The commits of the last hour."""
    planned_ms: int | None = None
    """When the run that is not finished was planned; None if there is none."""
    held: tuple[str, ...] = ()
    """The failed checks of a held run."""
    held_plan: str = ""
    """The id of its plan."""
    window_alert: str = ""
    """Why sweeps compare keys over less than the configured window."""
    ledger_ms: int | None = None
    """When the newest recorded ledger was read; None without one."""
    imbalances: tuple[str, ...] = ()
    """The imbalances in the newest recorded ledger."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """The number of rows by table: main, quarantine, unique, duplicates. Without dedup, the first two."""
    ledger_counts: Mapping[str, int] = field(default_factory=dict)
    """What the newest recorded ledger counted."""

    def published_offset(self, key: Key, logs: Logs) -> int:
        """Return the offset up to which a topic-partition is in the table or in quarantine."""
        return self.progress.get(key[1], logs.archived_from(key))

    def recent(self, now_ms: int) -> Published:
        """Return the sum of what was published in the last hour."""
        recent = [each for each in self.published if each.at_ms >= now_ms - RECENT_MS]
        return Published(
            now_ms,
            sum(each.rows for each in recent),
            sum(each.quarantined for each in recent),
            sum(each.unique for each in recent),
            sum(each.duplicates for each in recent),
            sum(each.late for each in recent),
            sum(each.parser_failed for each in recent),
        )

    def document(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        return {
            "read": self.read_ms,
            "progress": {str(tp): offset for tp, offset in self.progress.items()},
            "watermarks": {str(tp): time for tp, time in self.watermarks.items()},
            "published": [dataclasses.astuple(each) for each in self.published],
            "planned": self.planned_ms,
            "held": self.held,
            "held_plan": self.held_plan,
            "window_alert": self.window_alert,
            "ledger": self.ledger_ms,
            "imbalances": self.imbalances,
            "rows": dict(self.rows),
            "ledger_counts": dict(self.ledger_counts),
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> TableState:
        """Return the state of a JSON object. Raises `KeyError`, `TypeError` or `ValueError`."""
        return cls(
            document["read"],
            {TopicPartition.parse(tp): offset for tp, offset in document["progress"].items()},
            {TopicPartition.parse(tp): time for tp, time in document["watermarks"].items()},
            tuple(Published(*each) for each in document["published"]),
            document["planned"],
            tuple(document["held"]),
            document.get("held_plan", ""),
            document["window_alert"],
            document["ledger"],
            tuple(document["imbalances"]),
            document["rows"],
            document.get("ledger_counts", {}),
        )


# --- findings ---------------------------------------------------------------------------------------------------------


def table_findings(
    name: str, stream: Stream, state: TableState, logs: Logs, samples: Samples, now_ms: int
) -> list[Finding]:
    """Return the findings about the tables of a stream."""
    ways = table_promises(name, stream, state, logs, samples, now_ms)
    return [finding for read in ways.values() for finding in read()]


def table_promises(
    name: str, stream: Stream, state: TableState, logs: Logs, samples: Samples, now_ms: int
) -> dict[PromiseName, Callable[[], list[Finding]]]:
    """Return a function for each promise about a stream's tables, so that an exception of one hides no other."""
    of_state = {
        PromiseName.RUN_DURATION: _run_duration,
        PromiseName.QUARANTINE_SHARE: _quarantine_share,
        PromiseName.PARSER_FAILED: _parser_failed,
        PromiseName.DUPLICATE_SHARE: _duplicate_share,
        PromiseName.LATE_SHARE: _late_share,
        PromiseName.DEDUP_WINDOW: _dedup_window,
        PromiseName.HELD_PUBLICATION: _held,
    }

    def read(measure: Callable[[str, Stream, TableState, int], Finding]) -> Callable[[], list[Finding]]:
        return lambda: [measure(name, stream, state, now_ms)]

    return {
        PromiseName.TABLE_LAG: lambda: [_table_lag(name, stream, state, logs, samples, now_ms)],
        PromiseName.COMPLETE_BY: lambda: [
            _complete_by(name, stream, each, state, logs, samples, now_ms)
            for each in stream.promises.complete_by.deadlines
        ],
        **{promise: read(measure) for promise, measure in of_state.items()},
        PromiseName.LEDGER_BALANCE: lambda: [_ledger_balance(name, stream, state)],
    }


def _table_lag(name: str, stream: Stream, state: TableState, logs: Logs, samples: Samples, now_ms: int) -> Finding:
    """Return the age of the oldest archived message that is neither in the table nor in quarantine."""
    promise = stream.promises.table_lag
    lags: dict[TopicPartition, float] = {}
    for tp, offsets in logs.of_stream(name).items():
        published = state.published_offset((name, tp), logs)
        if offsets.committed > published:
            since = samples.beyond_since((name, tp), published, of_archive=True)
            lags[tp] = 0.0 if since is None else (now_ms - since) / 1000
    worst = max(lags, key=lambda tp: lags[tp], default=None)
    late = sum(lag > promise.limit.total_seconds() for lag in lags.values())
    return duration_finding(
        name,
        PromiseName.TABLE_LAG,
        promise,
        0.0 if worst is None else lags[worst],
        now_ms,
        detail=f"{counted(late, 'topic-partition')}; the oldest message is in {worst}",
        command=f"waybill quality show {name}" if state.held else f"waybill verify {name}",
    )


def _complete_by(
    name: str, stream: Stream, deadline: Deadline, state: TableState, logs: Logs, samples: Samples, now_ms: int
) -> Finding:
    """Return whether the newest hour or day that is due is complete.

    A topic-partition is complete up to a time if the table has a message of it with a later Kafka timestamp, or all
    messages that its log had at the first watch after that time.
    """
    end, due = deadline.last_due(datetime.fromtimestamp(now_ms / 1000, UTC))
    end_ms = int(end.timestamp() * 1000)
    missing = []
    for tp, offsets in logs.of_stream(name).items():
        published = state.published_offset((name, tp), logs)
        seen = samples.first_since((name, tp), end_ms) or offsets
        if state.watermarks.get(tp, -1) < end_ms and published < min(seen.end, offsets.end):
            missing.append(tp)
    return measured(
        name,
        PromiseName.COMPLETE_BY,
        stream.promises.complete_by,
        is_broken=bool(missing),
        figure=f"{counted(len(missing), 'topic-partition')} incomplete",
        limit=str(deadline),
        detail=f"messages from before {end:%Y-%m-%d %H:%M} UTC are missing, such as of {min(missing, default='')}",
        command=f"waybill offsets --stream {name}",
        since_ms=int(due.timestamp() * 1000),
        subject=str(deadline),
        value=len(missing),
    )


def _run_duration(name: str, stream: Stream, state: TableState, now_ms: int) -> Finding:
    # A held run waits for a person, and another promise reports it.
    planned_ms = None if state.held else state.planned_ms
    return duration_finding(
        name,
        PromiseName.RUN_DURATION,
        stream.promises.run_duration,
        0.0 if planned_ms is None else (now_ms - planned_ms) / 1000,
        now_ms,
        detail="the partition run was planned, and is not finished: its application failed, or is stuck",
        command=f"waybill verify {name}",
    )


def _quarantine_share(name: str, stream: Stream, state: TableState, now_ms: int) -> Finding:
    recent = state.recent(now_ms)
    return _share(
        name,
        PromiseName.QUARANTINE_SHARE,
        stream.promises.quarantine_share,
        recent.quarantined,
        recent.rows + recent.quarantined,
        now_ms,
        of="messages of the last hour's runs",
        command=f"waybill quarantine ls {name}",
    )


def _parser_failed(name: str, stream: Stream, state: TableState, now_ms: int) -> Finding:
    number = state.recent(now_ms).parser_failed
    return measured(
        name,
        PromiseName.PARSER_FAILED,
        stream.promises.parser_failed,
        is_broken=bool(number),
        figure=counted(number, "message"),
        limit="none",
        detail="the parser raised at them: the reason in the quarantine names the exception and its place",
        command=f"waybill quarantine ls {name}",
        since_ms=now_ms,
        value=number,
    )


def _duplicate_share(name: str, stream: Stream, state: TableState, now_ms: int) -> Finding:
    recent = state.recent(now_ms)
    return _share(
        name,
        PromiseName.DUPLICATE_SHARE,
        stream.promises.duplicate_share,
        recent.duplicates,
        recent.unique + recent.duplicates,
        now_ms,
        of="rows that were swept in the last hour",
        command=f"waybill dedup status {name}",
    )


def _late_share(name: str, stream: Stream, state: TableState, now_ms: int) -> Finding:
    recent, promise = state.recent(now_ms), stream.promises.late_share
    return _share(
        name,
        PromiseName.LATE_SHARE,
        promise,
        recent.late,
        recent.rows,
        now_ms,
        of=f"rows of the last hour's runs, later than {rough_duration(promise.late_after.total_seconds())}",
        command=f"waybill lateness {name}",
    )


def _share(
    name: str, promise: PromiseName, settings: ShareOfRuns, part: int, whole: int, now_ms: int, *, of: str, command: str
) -> Finding:
    share = part / whole if whole else 0.0
    counts = whole >= settings.min_messages
    return measured(
        name,
        promise,
        settings,
        is_broken=counts and part > settings.limit * whole,
        figure=share_beside(share, float(settings.limit), decimals=1),
        limit=f"at most {settings.limit:.1%}"
        if counts
        else f"none below {counted(settings.min_messages, 'message')}; the last hour had {whole:,}",
        detail=f"{part:,} of {whole:,} {of}",
        command=command,
        since_ms=now_ms,
        value=share,
    )


def _dedup_window(name: str, stream: Stream, state: TableState, now_ms: int) -> Finding:
    return measured(
        name,
        PromiseName.DEDUP_WINDOW,
        stream.promises.dedup_window,
        is_broken=bool(state.window_alert),
        figure="shorter" if state.window_alert else "whole",
        limit="the whole window",
        detail=state.window_alert,
        command=f"waybill dedup status {name}",
        since_ms=now_ms,
        value=int(bool(state.window_alert)),
    )


def _held(name: str, stream: Stream, state: TableState, now_ms: int) -> Finding:
    held = state.held
    return measured(
        name,
        PromiseName.HELD_PUBLICATION,
        stream.promises.held_publication,
        is_broken=bool(held),
        figure="a run is held" if held else "none",
        limit="none",
        detail="; ".join(held),
        command=f"waybill quality show {name}",
        since_ms=now_ms,
        value=int(bool(held)),
    )


def _ledger_balance(name: str, stream: Stream, state: TableState) -> Finding:
    """Return whether the newest recorded ledger balances."""
    number = len(state.imbalances)
    rest = "" if number < 2 else f"; and {number - 1} more"
    return measured(
        name,
        PromiseName.LEDGER_BALANCE,
        stream.promises.ledger_balance,
        is_broken=bool(number),
        figure=counted(number, "imbalance"),
        limit="none",
        detail=f"{state.imbalances[0]}{rest}" if number else "",
        command=f"waybill verify {name}",
        since_ms=state.ledger_ms,
        value=number,
    )
