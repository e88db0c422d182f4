"""The model of the page Streams: the state of all streams, broken promises, and decisions that wait for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.config.models.quantities import counted
from waybill.interfaces.operations.declaration import OperationName
from waybill.interfaces.web.chain_bar import Trend, trend_of
from waybill.interfaces.web.figures import (
    Figure,
    Tone,
    age_text,
    count_text,
    duration_text,
    promise_figure,
    rate_text,
    safe_url,
    time_text,
    tone_of,
    worst,
)
from waybill.interfaces.web.forms import ActionForm, form_of
from waybill.interfaces.web.frame import Links, Viewer
from waybill.watch.incidents.finding import Verdict
from waybill.watch.promises.status import (
    IncidentStatus,
    PromiseStatus,
    RunStatus,
    ServiceStatus,
    StopStatus,
    StreamStatus,
    WatchStatus,
)

_MOST_RUNS = 3
_OLD_MS = 90_000
"""Offsets are read by each watch, tables every five minutes: see `old_text`."""


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """A promise."""

    promise: PromiseStatus
    figure: Figure
    since: str
    """How long it is broken: `23 min ago`; '' while it is kept."""
    tone: Tone


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident."""

    incident: IncidentStatus
    stream_href: str
    tone: Tone
    figure: Figure
    """It leads to the DAG run that the incident is about."""
    since: str
    runbook: str
    state: str
    """`open`, `acknowledged by …` or `resolved …`."""
    acknowledge: ActionForm | None
    """The form; None if the incident is acknowledged or resolved."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run that published."""

    stage: str
    at: str
    age: str
    rows: Figure
    quarantined: Figure
    duplicates: Figure
    late: Figure
    href: str
    """The DAG run in Airflow's UI, or the DAG if the run is not known; '' without a DAG."""
    what: str
    """The text of the link: `run …`, or `DAG …`."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that waits for a person."""

    stream: str
    text: str
    tone: Tone
    href: str
    """The page, or the part of a page, with the form for the decision."""
    age: str


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream in the list."""

    name: str
    href: str
    health: Tone
    health_text: str
    lag: Figure
    trend: Trend
    behind: Figure
    """Messages in Kafka that are not archived, at most."""
    table_lag: Figure
    produced: Figure
    archived: Figure
    clear: Figure
    """Time until the backlog is gone."""
    broken: tuple[PromiseRow, ...]
    runs: tuple[RunRow, ...]
    incidents: tuple[IncidentRow, ...]
    topic_partitions: int
    is_paused: bool
    pause: ActionForm | None
    resume: ActionForm | None
    old: str
    """The age of its offsets, if the last watch could not read them; else ''."""
    runs_href: str
    """The part of its page that lists all runs."""


@dataclass(frozen=True, slots=True)
class StreamsPage:
    """The page."""

    rows: tuple[StreamRow, ...]
    totals: tuple[tuple[Tone, int, str], ...]
    """How many streams are in each health, the worst first, and the address of the list of these."""
    waiting: tuple[Waiting, ...]
    shared: tuple[PromiseRow, ...]
    """Broken promises about parts that all streams use: Kafka, and tasks of Airflow."""
    services: tuple[tuple[str, Figure], ...]
    broken_config: tuple[tuple[str, str], ...]
    """Streams that are left out, with the errors of their config."""
    produced: Figure
    archived: Figure
    command: str
    """The command that prints the inputs of the totals."""


def streams_page(status: WatchStatus, links: Links, viewer: Viewer, now_ms: int) -> StreamsPage:
    """Return the page. Streams in a worse health come first, then by name."""
    incidents: dict[str, list[IncidentStatus]] = {}
    for each in status.incidents:
        if each.resolved_ms is None:
            incidents.setdefault(each.stream, []).append(each)
    rows = [_row(each, incidents.get(each.name, []), links, viewer, status.at_ms, now_ms) for each in status.streams]
    order = list(Tone)
    rows.sort(key=lambda row: (-order.index(row.health), row.name))
    counts = Counter(row.health for row in rows)
    return StreamsPage(
        rows=tuple(rows),
        totals=tuple((tone, counts[tone], links.page(f"/?health={tone}")) for tone in reversed(order) if counts[tone]),
        waiting=tuple(each for stream in status.streams for each in waiting_of(stream, links, now_ms)),
        shared=tuple(promise_row(each, now_ms) for each in status.shared if each.verdict is Verdict.BROKEN),
        services=service_figures(status.services, now_ms),
        broken_config=tuple(sorted(status.broken.items())),
        produced=Figure(rate_text(_sum([each.produced_per_second for each in status.streams]))),
        archived=Figure(rate_text(_sum([each.archived_per_second for each in status.streams]))),
        command="waybill offsets ls",
    )


def service_figures(services: Iterable[ServiceStatus], now_ms: int) -> tuple[tuple[str, Figure], ...]:
    """Return whether each service answers, with its name."""
    tones = {Verdict.KEPT: Tone.OK, Verdict.BROKEN: Tone.CRITICAL}
    return tuple(
        (
            each.name,
            Figure(
                "not asked" if each.verdict is Verdict.UNKNOWN else each.figure,
                tones.get(each.verdict, Tone.UNKNOWN),
                title=each.detail,
                note="" if each.verdict is Verdict.KEPT else f"last answer: {age_text(each.answered_ms, now_ms)}",
            ),
        )
        for each in services
    )


def _sum(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _row(
    stream: StreamStatus, incidents: list[IncidentStatus], links: Links, viewer: Viewer, at_ms: int, now_ms: int
) -> StreamRow:
    health, text = health_of(stream)
    lag = stream.promise(PromiseName.ARCHIVE_LAG)
    produced, archived = rate_figures(stream)
    fields = {"stream": stream.name}
    paused = bool(stream.pauses)
    return StreamRow(
        name=stream.name,
        href=links.stream(stream.name),
        health=health,
        health_text=text,
        lag=lag_figure(lag, now_ms),
        trend=trend_of(stream.trend),
        behind=Figure(
            count_text(sum(each.lag for each in stream.topic_partitions)),
            href=f"{links.stream(stream.name)}#topic-partitions",
            command=f"waybill offsets ls --stream {stream.name}",
            title="offsets in Kafka that are not archived: at most so many messages",
        ),
        table_lag=promise_figure(stream.promise(PromiseName.TABLE_LAG), now_ms),
        produced=produced,
        archived=archived,
        clear=clear_figure(stream),
        broken=tuple(
            promise_row(each, now_ms)
            for each in _worst_first(each for each in stream.promises if each.verdict is Verdict.BROKEN)
        ),
        runs=run_rows(stream, links, now_ms)[:_MOST_RUNS],
        incidents=tuple(incident_row(each, links, viewer, now_ms) for each in incidents),
        topic_partitions=len(stream.topic_partitions),
        is_paused=paused,
        pause=None if paused else form_of(OperationName.PAUSE, links, viewer, fields),
        resume=form_of(OperationName.RESUME, links, viewer, fields) if paused else None,
        old=old_text(stream.logs_ms, at_ms, now_ms),
        runs_href=f"{links.stream(stream.name)}#runs",
    )


def old_text(read_ms: int | None, at_ms: int, now_ms: int) -> str:
    """Return the age of a part of the state if the watch of `at_ms` could not read it; else ''."""
    return "" if read_ms is not None and read_ms >= at_ms - _OLD_MS else age_text(read_ms, now_ms)


def lag_figure(lag: PromiseStatus | None, now_ms: int) -> Figure:
    """Return the archive lag in seconds."""
    return promise_figure(lag, now_ms, None if lag is None or lag.value is None else f"{lag.value:,.0f} s")


def health_of(stream: StreamStatus) -> tuple[Tone, str]:
    """Return the health of a stream, with all its causes."""
    broken = [each for each in stream.promises if each.verdict is Verdict.BROKEN]
    tone = worst([tone_of(each.verdict, each.severity) for each in broken])
    if broken:
        return tone, "; ".join(f"{each.promise}: {each.figure}" for each in _worst_first(broken))
    if stream.pauses:
        return Tone.PAUSED, f"paused: {', '.join(sorted(each.stage for each in stream.pauses))}"
    unknown = [each for each in stream.promises if each.verdict is Verdict.UNKNOWN]
    known = [each for each in stream.promises if each.verdict is Verdict.KEPT]
    before = [f"{each.promise}: {each.figure}" for each in unknown if each.known_verdict is Verdict.BROKEN]
    rest = f"; broken when they were measured: {'; '.join(before)}" if before else ""
    if not known:
        return Tone.UNKNOWN, f"no promise could be measured{rest}"
    if before or len(unknown) > len(known):
        return Tone.UNKNOWN, f"{counted(len(unknown), 'promise')} could not be measured{rest}"
    return Tone.OK, "all promises are kept"


def _worst_first(broken: Iterable[PromiseStatus]) -> list[PromiseStatus]:
    return sorted(broken, key=lambda each: (each.severity is not PromiseSeverity.CRITICAL, each.promise, each.subject))


def rate_figures(stream: StreamStatus) -> tuple[Figure, Figure]:
    """Return the rates of producers and of archiving, in messages per second."""
    command = f"waybill offsets ls --stream {stream.name}"
    what = "by offsets, over the last ten minutes"
    produced = Figure(
        rate_text(stream.produced_per_second),
        command=command,
        title=f"written to Kafka, {what}",
        value=stream.produced_per_second,
    )
    archived = Figure(
        rate_text(stream.archived_per_second),
        command=command,
        title=f"archived, {what}",
        value=stream.archived_per_second,
    )
    return produced, archived


def clear_figure(stream: StreamStatus) -> Figure:
    """Return the time until the backlog is archived, if both rates stay the same."""
    behind = sum(each.lag for each in stream.topic_partitions)
    command = f"waybill offsets ls --stream {stream.name}"
    if not behind:
        return Figure("no backlog", Tone.OK, command=command)
    if stream.produced_per_second is None or stream.archived_per_second is None:
        return Figure("not known yet", Tone.UNKNOWN, command=command)
    gain = stream.archived_per_second - stream.produced_per_second
    if gain <= 0:
        return Figure("it grows", Tone.WARNING, command=command, title="producers write faster than ingest archives")
    return Figure(duration_text(behind / gain), command=command, title="if both rates stay", value=behind / gain)


def promise_row(promise: PromiseStatus, now_ms: int) -> PromiseRow:
    """Return the row of a promise."""
    is_broken = promise.verdict is Verdict.BROKEN
    return PromiseRow(
        promise,
        figure=promise_figure(promise, now_ms),
        since=age_text(promise.since_ms, now_ms) if is_broken and promise.since_ms is not None else "",
        tone=tone_of(promise.verdict, promise.severity),
    )


def incident_row(incident: IncidentStatus, links: Links, viewer: Viewer, now_ms: int) -> IncidentRow:
    """Return the row of an incident."""
    is_open = incident.resolved_ms is None
    state = "open"
    if not is_open:
        state = f"resolved {age_text(incident.resolved_ms, now_ms)}"
    elif incident.acknowledged_by:
        state = f"acknowledged by {incident.acknowledged_by}: {incident.acknowledged_reason}"
    tone = tone_of(Verdict.BROKEN, incident.severity) if is_open else Tone.OK
    can_acknowledge = is_open and not incident.acknowledged_by
    return IncidentRow(
        incident,
        stream_href=links.stream(incident.stream) if incident.stream else "",
        tone=tone,
        figure=Figure(incident.figure, tone, safe_url(incident.link)),
        since=age_text(incident.since_ms, now_ms),
        runbook=safe_url(incident.runbook),
        state=state,
        acknowledge=form_of(OperationName.ACKNOWLEDGE, links, viewer, {"incident": incident.id})
        if can_acknowledge
        else None,
    )


def run_rows(stream: StreamStatus, links: Links, now_ms: int) -> tuple[RunRow, ...]:
    """Return the runs that published, the newest first."""
    return tuple(_run_row(stream, each, links, now_ms) for each in stream.runs)


def _run_row(stream: StreamStatus, run: RunStatus, links: Links, now_ms: int) -> RunRow:
    dag, name = stream.dags.get(run.stage, ""), stream.name
    href = links.run(dag, run.run) if dag and run.run else links.dag(dag)
    return RunRow(
        stage=run.stage,
        at=time_text(run.at_ms),
        age=age_text(run.at_ms, now_ms),
        rows=Figure(count_text(run.rows), href=href),
        quarantined=Figure(
            count_text(run.quarantined),
            Tone.WARNING if run.quarantined else Tone.NONE,
            f"{links.stream(name)}#quarantine",
            f"waybill quarantine ls {name}",
        ),
        duplicates=Figure(count_text(run.duplicates), href=href, command=f"waybill dedup status {name}"),
        late=Figure(count_text(run.late), href=href, command=f"waybill lateness {name}"),
        href=href,
        what=f"run {run.run}" if run.run else f"DAG {dag}" if dag else "",
    )


def waiting_of(stream: StreamStatus, links: Links, now_ms: int) -> list[Waiting]:
    """Return the decisions of one stream that wait for a person."""
    page, name = links.stream(stream.name), stream.name
    found = []
    by_error: dict[str, list[StopStatus]] = {}
    for stop in stream.stops:
        by_error.setdefault(stop.error, []).append(stop)
    for error, stops in by_error.items():
        place = f"{stops[0].topic}/{stops[0].partition} is stopped"
        text = place if len(stops) == 1 else f"{counted(len(stops), 'topic-partition')} are stopped"
        age = age_text(min(each.stopped_ms for each in stops), now_ms)
        found.append(Waiting(name, f"{text}: {error}", Tone.CRITICAL, f"{page}#stops", age))
    if stream.hold is not None:
        checks = counted(len(stream.hold.failed), "critical check")
        text = f"a run is held: {checks} failed"
        found.append(Waiting(name, text, Tone.CRITICAL, f"{page}#audits", age_text(stream.hold.at_ms, now_ms)))
    found += [
        Waiting(name, f"paused by {each.by}: {each.reason}", Tone.PAUSED, page, age_text(each.at_ms, now_ms))
        for each in {(each.by, each.at_ms): each for each in stream.pauses}.values()
    ]
    for backfill in () if stream.details is None else stream.details.backfills:
        if backfill.state == "built":
            text = f"backfill {backfill.id} is built: promote or cancel it"
            age = age_text(backfill.requested_ms, now_ms)
            found.append(Waiting(name, text, Tone.UNKNOWN, f"{page}#backfills", age))
    return found
