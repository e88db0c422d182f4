"""The model of the page of one stream."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from waybill.config.promises import PromiseName
from waybill.config.quantities import counted
from waybill.incidents.finding import Verdict
from waybill.watch.status import (
    BackfillStatus,
    HoldStatus,
    QuarantineStatus,
    Status,
    StopStatus,
    StreamDetails,
    StreamStatus,
    TopicPartitionStatus,
    WindowStatus,
)
from waybill.web.chain_bar import ChainBar, Trend, end_of_chain, trend_of, whole_chain
from waybill.web.figures import (
    Figure,
    Tone,
    age_text,
    bytes_text,
    count_text,
    duration_text,
    promise_figure,
    time_text,
)
from waybill.web.forms import ActionForm, ActionName, form_of
from waybill.web.frame import Links, Viewer
from waybill.web.streams_page import (
    IncidentRow,
    PromiseRow,
    RunRow,
    clear_figure,
    health_of,
    incident_row,
    promise_row,
    rate_figures,
    run_rows,
)

__all__ = [
    "AuditRow",
    "BackfillRow",
    "GapRow",
    "Hold",
    "PauseRow",
    "QuarantineRow",
    "StopRow",
    "StreamPage",
    "TopicPartitionRow",
    "Window",
    "stream_page",
]

_MOST_DRAWN = 200
"""So many chains are drawn; of a stream with more topic-partitions, those with the most lag."""


@dataclass(frozen=True, slots=True)
class TopicPartitionRow:
    """A topic-partition: offsets in Kafka, S3 and the tables."""

    name: str
    """`topic/partition`."""
    earliest: Figure
    committed: Figure
    end: Figure
    lag: Figure
    lag_seconds: Figure
    published: Figure
    swept: Figure
    archived_messages: Figure
    stop: str
    gaps: int
    whole: ChainBar | None
    """None: not drawn, since the stream has too many topic-partitions."""
    tail: ChainBar | None
    """The end of the chain, enlarged."""
    trace_href: str
    """The page that traces the newest archived message."""


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
class QuarantineRow:
    """Messages in quarantine for one kind of reason."""

    reason: str
    parser: str
    topic: str
    rows: Figure
    example: str
    """`topic/partition@offset`."""
    example_href: str
    """The page that traces it."""
    example_command: str
    first: str
    last: str
    retry: ActionForm


@dataclass(frozen=True, slots=True)
class Window:
    """The gauge of the dedup window. Shares are from 0 to 1."""

    effective: Figure
    promised: str
    floor: str
    share: float
    """Of the promised window."""
    floor_share: float
    budget_share: float | None
    """Of the index budget; None: there is no usable index."""
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
class Hold:
    """A held run."""

    since: str
    failed: tuple[str, ...]
    release: ActionForm
    reject: ActionForm
    command: str


@dataclass(frozen=True, slots=True)
class BackfillRow:
    """A backfill."""

    id: str
    state: str
    kind: str
    tasks: str
    offsets: Figure
    by: str
    reason: str
    requested: str
    diff: tuple[str, ...]
    promote: ActionForm | None
    undo: ActionForm | None
    cancel: ActionForm | None
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
    topic_partitions: tuple[TopicPartitionRow, ...]
    """The ones with the most lag first."""
    stops: tuple[StopRow, ...]
    gaps: tuple[GapRow, ...]
    pauses: tuple[PauseRow, ...]
    runs: tuple[RunRow, ...]
    run_at_work: str
    """Since when a partition run is at work; '' if none is."""
    quarantine: tuple[QuarantineRow, ...]
    window: Window | None
    audits: tuple[AuditRow, ...]
    hold: Hold | None
    backfills: tuple[BackfillRow, ...]
    ledger: Figure
    ledger_age: str
    imbalances: tuple[str, ...]
    ledger_command: str
    dags: tuple[tuple[str, str, str], ...]
    """Stage, DAG, and its address in Airflow's UI."""
    pause: ActionForm | None
    resume: ActionForm | None
    logs_age: str
    """How old the offsets are."""
    tables_age: str
    details_age: str
    errors: tuple[str, ...]
    """What could not be read with the tables, and why."""


def stream_page(status: Status, stream: StreamStatus, links: Links, viewer: Viewer, now_ms: int) -> StreamPage:
    """Return the page of a stream."""
    name, details = stream.name, stream.details or StreamDetails(0)
    health, health_text = health_of(stream)
    lag = stream.promise(PromiseName.ARCHIVE_LAG)
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
        lag=promise_figure(lag, None if lag is None or lag.value is None else f"{lag.value:,.0f} s"),
        trend=trend_of(stream.trend),
        behind=Figure(
            count_text(sum(each.lag for each in stream.topic_partitions)),
            href=f"{links.stream(name)}#topic-partitions",
            command=f"waybill offsets ls --stream {name}",
        ),
        table_lag=promise_figure(stream.promise(PromiseName.TABLE_LAG)),
        produced=produced,
        archived=archived,
        clear=clear_figure(stream),
        runway=promise_figure(stream.promise(PromiseName.RETENTION_RUNWAY)),
        late=promise_figure(stream.promise(PromiseName.LATE_SHARE)),
        rows=tuple(
            (table, Figure(count_text(rows), command=f"waybill verify {name}")) for table, rows in stream.rows.items()
        ),
        promises=tuple(promise_row(each, now_ms) for each in sorted(stream.promises, key=lambda each: each.verdict)),
        incidents=tuple(
            incident_row(each, links, viewer, now_ms)
            for each in status.incidents
            if each.stream == name and each.resolved_ms is None
        ),
        topic_partitions=_tp_rows(stream, links),
        stops=tuple(_stop_row(stream, each, links, viewer, now_ms) for each in stream.stops),
        gaps=tuple(
            GapRow(tp, count_text(gap.first), count_text(gap.next - 1), gap.kind, gap.by, gap.reason)
            for tp, gaps in details.gaps.items()
            for gap in gaps
        ),
        pauses=_pause_rows(stream, now_ms),
        runs=run_rows(stream, links, now_ms),
        run_at_work=age_text(stream.planned_ms, now_ms) if stream.planned_ms is not None else "",
        quarantine=tuple(_quarantine_row(name, each, links, viewer) for each in details.quarantine),
        window=_window(stream, details.window),
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
        imbalances=() if stream.ledger is None else stream.ledger.imbalances,
        ledger_command=f"waybill ledger {name}",
        dags=tuple((stage, dag, links.dag(dag)) for stage, dag in stream.dags.items()),
        pause=None if stream.pauses else form_of(ActionName.PAUSE, links, viewer, fields),
        resume=form_of(ActionName.RESUME, links, viewer, fields) if stream.pauses else None,
        logs_age=age_text(stream.logs_ms, now_ms),
        tables_age=age_text(stream.tables_ms, now_ms),
        details_age=age_text(details.read_ms or None, now_ms),
        errors=details.errors,
    )


def _tp_rows(stream: StreamStatus, links: Links) -> tuple[TopicPartitionRow, ...]:
    ordered = sorted(stream.topic_partitions, key=lambda tp: (not tp.stop, -tp.lag, tp.topic, tp.partition))
    return tuple(_tp_row(stream, tp, links, is_drawn=number < _MOST_DRAWN) for number, tp in enumerate(ordered))


def _tp_row(stream: StreamStatus, tp: TopicPartitionStatus, links: Links, *, is_drawn: bool) -> TopicPartitionRow:
    command = f"waybill offsets ls --stream {stream.name}"
    trace = links.trace(tp.topic, tp.partition, tp.committed - 1) if tp.committed > tp.archived_from else ""
    tone = Tone.CRITICAL if tp.stop else Tone.NONE
    return TopicPartitionRow(
        name=f"{tp.topic}/{tp.partition}",
        earliest=Figure(count_text(tp.earliest), command=command),
        committed=Figure(
            count_text(tp.committed), href=trace, command=f"waybill ls {stream.name} {tp.topic}/{tp.partition}"
        ),
        end=Figure(count_text(tp.end), command=command),
        lag=Figure(count_text(tp.lag), tone, command=command, value=tp.lag),
        lag_seconds=Figure(f"{tp.lag_seconds:,.0f} s" if tp.lag else "0 s", tone, command=command),
        published=Figure(
            count_text(tp.published),
            href=links.dag(stream.dags.get("partition", "")),
            title=_behind_title(tp.table_lag),
        ),
        swept=Figure(count_text(tp.swept), href=links.dag(stream.dags.get("dedup", ""))),
        archived_messages=Figure(count_text(tp.archived_messages), command=f"waybill verify {stream.name} --no-table"),
        stop=tp.stop,
        gaps=len(tp.gaps),
        whole=whole_chain(tp) if is_drawn else None,
        tail=end_of_chain(tp) if is_drawn else None,
        trace_href=trace,
    )


def _behind_title(behind: int | None) -> str:
    return "" if behind is None else f"{counted(behind, 'archived offset')} not published"


_ACCEPTABLE = frozenset({"RetentionGap", "LogTruncated"})
"""Stops that an accepted gap ends without further input. That of a broken chain needs the lost offsets."""


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
        accept=form_of(ActionName.ACCEPT_GAP, links, viewer, fields) if lost is not None else None,
        command=f"waybill gaps ls --stream {stream.name}",
    )


def _lost_offsets(stream: StreamStatus, stop: StopStatus) -> tuple[int, int] | None:
    """Return the first offset that an accepted gap would lose now, and the one after the last; None: not known.

    The stop states what was lost when it was recorded; since then, retention may have deleted more.
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
    example = f"{group.topic}/{group.example_partition}@{group.example_offset}"
    return QuarantineRow(
        reason=group.reason,
        parser=group.parser,
        topic=group.topic,
        rows=Figure(
            count_text(group.rows), Tone.WARNING, command=f"waybill quarantine ls {name} --reason {group.reason}"
        ),
        example=example,
        example_href=links.trace(group.topic, group.example_partition, group.example_offset),
        example_command=f"waybill quarantine show {name} {example}",
        first=time_text(group.first_ms),
        last=time_text(group.last_ms),
        retry=form_of(ActionName.RETRY, links, viewer, {"stream": name, "kind": group.reason, "topic": group.topic}),
    )


def _window(stream: StreamStatus, window: WindowStatus | None) -> Window | None:
    if window is None:
        return None
    promised = max(1, window.promised_ms)
    return Window(
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


def _hold(name: str, hold: HoldStatus | None, links: Links, viewer: Viewer, now_ms: int) -> Hold | None:
    if hold is None:
        return None
    fields = {"stream": name, "plan": hold.plan}
    return Hold(
        since=age_text(hold.at_ms, now_ms),
        failed=hold.failed,
        release=form_of(ActionName.RELEASE, links, viewer, fields),
        reject=form_of(ActionName.REJECT, links, viewer, fields),
        command=f"waybill quality show {name}",
    )


_POSSIBLE = {
    ActionName.PROMOTE: frozenset({"built", "undone"}),
    ActionName.UNDO: frozenset({"promoted"}),
    ActionName.CANCEL: frozenset({"planned", "built", "undone"}),
}
"""The states in which each action is possible; `waybill.backfill.events` decides."""


def _backfill_row(name: str, backfill: BackfillStatus, links: Links, viewer: Viewer) -> BackfillRow:
    fields = {"stream": name, "backfill": backfill.id}
    forms = {
        action: form_of(action, links, viewer, fields) if backfill.state in states else None
        for action, states in _POSSIBLE.items()
    }
    return BackfillRow(
        id=backfill.id,
        state=backfill.state,
        kind=backfill.kind if backfill.generation is None else f"{backfill.kind} {backfill.generation}",
        tasks=backfill.tasks,
        offsets=Figure(count_text(backfill.offsets), command=f"waybill backfill status {name} {backfill.id}"),
        by=backfill.by,
        reason=backfill.reason,
        requested=time_text(backfill.requested_ms),
        diff=backfill.diff,
        promote=forms[ActionName.PROMOTE],
        undo=forms[ActionName.UNDO],
        cancel=forms[ActionName.CANCEL],
        command=f"waybill backfill diff {name} {backfill.id}",
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
