"""The model of the page of one stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from waybill.config.models.promises import PromiseName
from waybill.config.models.quantities import counted
from waybill.interfaces.operations.declaration import OperationName
from waybill.interfaces.web.chain_bar import Trend, trend_of
from waybill.interfaces.web.figures import (
    Figure,
    Tone,
    age_text,
    bytes_text,
    count_text,
    duration_text,
    promise_figure,
    time_text,
)
from waybill.interfaces.web.forms import ActionForm, form_of
from waybill.interfaces.web.frame import Links, Viewer
from waybill.interfaces.web.streams_page import (
    IncidentRow,
    PromiseRow,
    RunRow,
    clear_figure,
    health_of,
    incident_row,
    lag_figure,
    old_text,
    promise_row,
    rate_figures,
    run_rows,
)
from waybill.interfaces.web.topic_partition_rows import TopicPartitionFilter, TopicPartitionRows, choose_rows
from waybill.tables.backfill.states import POSSIBLE_IN
from waybill.watch.incidents.finding import Verdict
from waybill.watch.promises.status import (
    BackfillStatus,
    HoldStatus,
    QuarantineStatus,
    StopStatus,
    StreamDetails,
    StreamStatus,
    WatchStatus,
    WindowStatus,
)

_MOST_LISTED = 50
"""The number of stops and gaps that are listed; the command lists all."""
_TABLES_OLD_MS = 15 * 60_000


@dataclass(frozen=True, slots=True)
class PartState:
    """The age of a part of the page that is read with the tables."""

    is_known: bool
    age: str
    """'' if it is unknown."""
    problem: str
    """Why the part is unknown or old; '' if there is no problem."""


@dataclass(frozen=True, slots=True)
class StopRow:
    """A topic-partition that is stopped."""

    name: str
    error: str
    message: str
    since: str
    lost_at_most: Figure
    accept: ActionForm | None
    """None: accepting a gap does not end this kind of stop."""
    command: str


@dataclass(frozen=True, slots=True)
class GapRow:
    """An accepted gap."""

    name: str
    first: str
    last: str
    kind: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class PauseRow:
    """Stages that one decision paused."""

    stages: str
    by: str
    since: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExampleRow:
    """A message in quarantine."""

    name: str
    """`topic/partition@offset`."""
    href: str
    """The page that traces it."""
    reason: str
    """Why it could not be parsed: the whole text."""
    command: str


@dataclass(frozen=True, slots=True)
class LedgerTerm:
    """A number of the ledger."""

    text: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """Messages in quarantine for one kind of reason."""

    reason: str
    parser: str
    topic: str
    rows: Figure
    examples: tuple[ExampleRow, ...]
    first: str
    last: str
    retry: ActionForm


@dataclass(frozen=True, slots=True)
class WindowGauge:
    """The gauge of the dedup window. Shares are from 0 to 1."""

    effective: Figure
    promised: str
    floor: str
    share: float
    """The share of the promised window."""
    floor_share: float
    budget_share: float | None
    """The share of the index budget; None: there is no usable index."""
    index: Figure
    budget: str
    alert: str


@dataclass(frozen=True, slots=True)
class AuditRow:
    """The audit of a run."""

    plan: str
    at: str
    age: str
    checks: int
    failed: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    """Check, severity, what was observed, and examples."""
    tone: Tone
    command: str


@dataclass(frozen=True, slots=True)
class HoldRow:
    """A held run."""

    since: str
    failed: tuple[str, ...]
    release: ActionForm
    reject: ActionForm
    command: str


@dataclass(frozen=True, slots=True)
class BackfillRow:
    """A backfill."""

    backfill: BackfillStatus
    kind: str
    offsets: Figure
    requested: str
    forms: tuple[ActionForm, ...]
    """Of what is possible in its state."""
    command: str


@dataclass(frozen=True, slots=True)
class StreamPage:
    """The page."""

    name: str
    table: str
    generation: int
    live_generation: int | None
    source: str
    health: Tone
    health_text: str
    lag: Figure
    trend: Trend
    behind: Figure
    table_lag: Figure
    produced: Figure
    archived: Figure
    clear: Figure
    runway: Figure
    late: Figure
    rows: tuple[tuple[str, Figure], ...]
    """Rows by table."""
    promises: tuple[PromiseRow, ...]
    incidents: tuple[IncidentRow, ...]
    topic_partitions: TopicPartitionRows
    stops: tuple[StopRow, ...]
    more_stops: int
    """How many stops are not listed."""
    gaps: tuple[GapRow, ...]
    more_gaps: int
    pauses: tuple[PauseRow, ...]
    runs: tuple[RunRow, ...]
    run_at_work: str
    """When the running partition run was planned; '' if none is running."""
    run_at_work_href: str
    """Its DAG run, or the DAG if the run is unknown."""
    quarantine: tuple[QuarantineRow, ...]
    window: WindowGauge | None
    dedup_command: str
    audits: tuple[AuditRow, ...]
    hold: HoldRow | None
    backfills: tuple[BackfillRow, ...]
    ledger: Figure
    ledger_age: str
    ledger_terms: tuple[LedgerTerm, ...]
    imbalances: tuple[str, ...]
    ledger_command: str
    dags: tuple[tuple[str, str, str], ...]
    """Stage, DAG, and its address in Airflow's UI."""
    pause: ActionForm | None
    resume: ActionForm | None
    logs_age: str
    """How old the offsets are."""
    logs_old: str
    """The age of the offsets if the last watch could not read them; else ''."""
    tables_age: str
    tables_old: str
    """The age of the tables' state if it is older than it should be; else ''."""
    parts: Mapping[str, PartState]
    """How old each part is: audits, gaps, backfills, dedup, quarantine, generation."""


def stream_page(
    status: WatchStatus,
    stream: StreamStatus,
    links: Links,
    viewer: Viewer,
    now_ms: int,
    choice: TopicPartitionFilter | None = None,
) -> StreamPage:
    """Return the page of a stream. `choice`: which topic-partitions it shows."""
    name, details = stream.name, stream.details or StreamDetails(0)
    health, health_text = health_of(stream)
    gaps = [(tp, gap) for tp, found in details.gaps.items() for gap in found]
    partition_dag = stream.dags.get("partition", "")
    produced, archived = rate_figures(stream)
    fields = {"stream": name}
    return StreamPage(
        name=name,
        table=stream.table,
        generation=stream.generation,
        live_generation=details.live_generation,
        source=stream.source,
        health=health,
        health_text=health_text,
        lag=lag_figure(stream.promise(PromiseName.ARCHIVE_LAG), now_ms),
        trend=trend_of(stream.trend),
        behind=Figure(
            count_text(sum(each.lag for each in stream.topic_partitions)),
            href=f"{links.stream(name)}#topic-partitions",
            command=f"waybill offsets ls --stream {name}",
        ),
        table_lag=promise_figure(stream.promise(PromiseName.TABLE_LAG), now_ms),
        produced=produced,
        archived=archived,
        clear=clear_figure(stream),
        runway=promise_figure(stream.promise(PromiseName.RETENTION_RUNWAY), now_ms),
        late=promise_figure(stream.promise(PromiseName.LATE_SHARE), now_ms),
        rows=tuple(
            (_TABLES.get(table, table), Figure(count_text(rows), command=f"waybill verify {name}"))
            for table, rows in stream.rows.items()
        ),
        promises=tuple(promise_row(each, now_ms) for each in sorted(stream.promises, key=lambda each: each.verdict)),
        incidents=tuple(
            incident_row(each, links, viewer, now_ms)
            for each in status.incidents
            if each.stream == name and each.resolved_ms is None
        ),
        topic_partitions=choose_rows(stream, choice or TopicPartitionFilter(), links),
        stops=tuple(_stop_row(stream, each, links, viewer, now_ms) for each in stream.stops[:_MOST_LISTED]),
        more_stops=max(0, len(stream.stops) - _MOST_LISTED),
        gaps=tuple(
            GapRow(tp, count_text(gap.first), count_text(gap.next - 1), gap.kind, gap.by, gap.reason)
            for tp, gap in gaps[:_MOST_LISTED]
        ),
        more_gaps=max(0, len(gaps) - _MOST_LISTED),
        pauses=_pause_rows(stream, now_ms),
        runs=run_rows(stream, links, now_ms),
        run_at_work=age_text(stream.planned_ms, now_ms) if stream.planned_ms is not None else "",
        run_at_work_href=links.run(partition_dag, stream.planned_run)
        if partition_dag and stream.planned_run
        else links.dag(partition_dag),
        quarantine=tuple(_quarantine_row(name, each, links, viewer) for each in details.quarantine),
        window=_window(stream, details.window),
        dedup_command=f"waybill dedup status {name}",
        audits=tuple(
            AuditRow(
                each.plan,
                time_text(each.at_ms),
                age_text(each.at_ms, now_ms),
                each.checks,
                tuple((check.check, check.severity, check.observed, check.examples) for check in each.failed),
                _audit_tone([check.severity for check in each.failed]),
                f"waybill quality show {name} --plan {each.plan}",
            )
            for each in details.audits
        ),
        hold=_hold(name, stream.hold, links, viewer, now_ms),
        backfills=tuple(_backfill_row(name, each, links, viewer) for each in details.backfills),
        ledger=_ledger(stream, name),
        ledger_age="never" if stream.ledger is None else age_text(stream.ledger.made_ms, now_ms),
        ledger_terms=_ledger_terms(stream, name),
        imbalances=() if stream.ledger is None else stream.ledger.imbalances,
        ledger_command=f"waybill ledger {name}",
        dags=tuple((stage, dag, links.dag(dag)) for stage, dag in stream.dags.items()),
        pause=None if stream.pauses else form_of(OperationName.PAUSE, links, viewer, fields),
        resume=form_of(OperationName.RESUME, links, viewer, fields) if stream.pauses else None,
        logs_age=age_text(stream.logs_ms, now_ms),
        logs_old=old_text(stream.logs_ms, status.at_ms, now_ms),
        tables_age=age_text(stream.tables_ms, now_ms),
        tables_old=old_text(stream.tables_ms, status.at_ms - _TABLES_OLD_MS, now_ms),
        parts={part: _part_state(stream.details, part, now_ms) for part in _PARTS},
    )


_PARTS = ("audits", "gaps", "backfills", "dedup", "quarantine", "generation")


def _part_state(details: StreamDetails | None, part: str, now_ms: int) -> PartState:
    if details is None:
        return PartState(False, "", "no watch has read it yet")
    unread = details.unread.get(part)
    if unread is None:
        return PartState(True, age_text(details.read_ms, now_ms), "")
    age = "" if unread.read_ms is None else age_text(unread.read_ms, now_ms)
    return PartState(unread.read_ms is not None, age, f"the last watch could not read it: {unread.error}")


_ACCEPTABLE = frozenset({"RetentionGap", "LogTruncated"})
"""Stops that an accepted gap ends without further input. For a broken chain, a person must give the lost offsets."""


def _stop_row(stream: StreamStatus, stop: StopStatus, links: Links, viewer: Viewer, now_ms: int) -> StopRow:
    fields = {"stream": stream.name, "topic": stop.topic, "partition": str(stop.partition)}
    lost = _lost_offsets(stream, stop)
    if lost is not None:
        fields["within"] = f"{lost[0]}-{lost[1] - 1}"
    return StopRow(
        name=f"{stop.topic}/{stop.partition}",
        error=stop.error,
        message=stop.message,
        since=age_text(stop.stopped_ms, now_ms),
        lost_at_most=Figure(
            count_text(stop.messages_at_most if lost is None else lost[1] - lost[0]),
            Tone.CRITICAL,
            command=f"waybill gaps ls --stream {stream.name}",
        ),
        accept=form_of(OperationName.ACCEPT_GAP, links, viewer, fields) if lost is not None else None,
        command=f"waybill gaps ls --stream {stream.name}",
    )


def _lost_offsets(stream: StreamStatus, stop: StopStatus) -> tuple[int, int] | None:
    """Return the range of offsets that an accepted gap would lose now, the end excluded; None: unknown.

    The stop states the loss when it was recorded; since then, retention may have deleted more.
    """
    found = [each for each in stream.topic_partitions if (each.topic, each.partition) == (stop.topic, stop.partition)]
    if stop.error not in _ACCEPTABLE or not found:
        return None
    [tp] = found
    first, end = (tp.committed, tp.earliest) if stop.error == "RetentionGap" else (tp.end, tp.committed)
    return (first, end) if first < end else None


def _pause_rows(stream: StreamStatus, now_ms: int) -> tuple[PauseRow, ...]:
    ordered = sorted(stream.pauses, key=lambda each: (each.at_ms, each.by, each.reason, each.stage))
    return tuple(
        PauseRow(", ".join(each.stage for each in pauses), by, age_text(at_ms, now_ms), reason)
        for (at_ms, by, reason), pauses in groupby(ordered, key=lambda each: (each.at_ms, each.by, each.reason))
    )


def _quarantine_row(name: str, group: QuarantineStatus, links: Links, viewer: Viewer) -> QuarantineRow:
    places = {(each.partition, each.offset): each.reason for each in group.examples}
    places = places or {(group.example_partition, group.example_offset): ""}
    return QuarantineRow(
        reason=group.reason,
        parser=group.parser,
        topic=group.topic,
        rows=Figure(
            count_text(group.rows), Tone.WARNING, command=f"waybill quarantine ls {name} --reason {group.reason}"
        ),
        examples=tuple(
            ExampleRow(
                place := f"{group.topic}/{partition}@{offset}",
                links.trace(name, group.topic, partition, offset),
                reason,
                f"waybill quarantine show {name} {place}",
            )
            for (partition, offset), reason in places.items()
        ),
        first=time_text(group.first_ms),
        last=time_text(group.last_ms),
        retry=form_of(OperationName.RETRY, links, viewer, {"stream": name, "kind": group.reason, "topic": group.topic}),
    )


def _window(stream: StreamStatus, window: WindowStatus | None) -> WindowGauge | None:
    if window is None:
        return None
    promised = max(1, window.promised_ms)
    return WindowGauge(
        effective=Figure(
            duration_text(window.effective_ms / 1000),
            Tone.WARNING if stream.window_alert else Tone.OK,
            command=f"waybill dedup status {stream.name}",
        ),
        promised=duration_text(window.promised_ms / 1000),
        floor=duration_text(window.floor_ms / 1000),
        share=min(1.0, window.effective_ms / promised),
        floor_share=min(1.0, window.floor_ms / promised),
        budget_share=None if window.index_bytes is None else window.index_bytes / max(1, window.budget_bytes),
        index=Figure(
            f"{count_text(window.index_keys)} keys in {bytes_text(window.index_bytes)}",
            command=f"waybill dedup status {stream.name}",
        ),
        budget=bytes_text(window.budget_bytes),
        alert=stream.window_alert,
    )


def _audit_tone(severities: list[str]) -> Tone:
    if "critical" in severities:
        return Tone.CRITICAL
    return Tone.WARNING if "warning" in severities else Tone.OK


def _hold(name: str, hold: HoldStatus | None, links: Links, viewer: Viewer, now_ms: int) -> HoldRow | None:
    if hold is None:
        return None
    fields = {"stream": name, "plan": hold.plan}
    return HoldRow(
        since=age_text(hold.at_ms, now_ms),
        failed=hold.failed,
        release=form_of(OperationName.RELEASE, links, viewer, fields),
        reject=form_of(OperationName.REJECT, links, viewer, fields),
        command=f"waybill quality show {name}",
    )


def _backfill_row(name: str, backfill: BackfillStatus, links: Links, viewer: Viewer) -> BackfillRow:
    fields = {"stream": name, "backfill": backfill.id}
    return BackfillRow(
        backfill,
        kind=backfill.kind if backfill.generation is None else f"{backfill.kind} {backfill.generation}",
        offsets=Figure(count_text(backfill.offsets), command=f"waybill backfill status {name} {backfill.id}"),
        requested=time_text(backfill.requested_ms),
        forms=tuple(
            form_of(OperationName(action), links, viewer, fields)
            for action, states in POSSIBLE_IN.items()
            if backfill.state in states
        ),
        command=f"waybill backfill diff {name} {backfill.id}",
    )


_TABLES = {
    "main": "rows in the table",
    "quarantine": "rows in quarantine",
    "unique": "unique rows",
    "duplicates": "duplicates",
}
_TERMS = {
    "not_archived": "offsets not archived yet",
    "archived_offsets": "archived offsets",
    "archived_messages": "archived messages",
    "accepted_gaps": "offsets in accepted gaps: lost",
    "rows": "rows in the table",
    "quarantine": "messages in quarantine",
    "held": "held messages",
    "waiting": "archived, not in the table yet",
    "unique": "unique rows",
    "duplicates": "duplicates",
    "unswept": "rows not swept yet",
}
"""The counts of `Ledger.counts`, in the order of a message's way."""


def _ledger_terms(stream: StreamStatus, name: str) -> tuple[LedgerTerm, ...]:
    counts = {} if stream.ledger is None else stream.ledger.counts
    return tuple(
        LedgerTerm(text, Figure(count_text(counts[term]), command=f"waybill ledger {name}"))
        for term, text in _TERMS.items()
        if term in counts
    )


def _ledger(stream: StreamStatus, name: str) -> Figure:
    command = f"waybill ledger {name}"
    if stream.ledger is None:
        return Figure("no recorded ledger", Tone.UNKNOWN, command=f"{command} --record")
    if stream.ledger.imbalances:
        return Figure(counted(len(stream.ledger.imbalances), "imbalance"), Tone.CRITICAL, command=command)
    promise = stream.promise(PromiseName.LEDGER_BALANCE)
    tone = Tone.OK if promise is None or promise.verdict is not Verdict.UNKNOWN else Tone.UNKNOWN
    return Figure("balances", tone, command=command)
