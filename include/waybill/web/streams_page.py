"""The model of the page Streams: where all streams are, what is broken, and what waits for a person."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from waybill.config.promises import PromiseName
from waybill.config.quantities import counted
from waybill.incidents.finding import Verdict
from waybill.watch.status import IncidentStatus, PromiseStatus, RunStatus, Status, StreamStatus
from waybill.web.chain_bar import Trend, trend_of
from waybill.web.figures import (
    Figure,
    Tone,
    age_text,
    count_text,
    duration_text,
    promise_figure,
    rate_text,
    time_text,
    tone_of,
    worst,
)
from waybill.web.forms import ActionForm, ActionName, form_of
from waybill.web.frame import Links, Viewer

__all__ = [
    "IncidentRow",
    "PromiseRow",
    "RunRow",
    "StreamRow",
    "StreamsPage",
    "Waiting",
    "clear_figure",
    "health_of",
    "incident_row",
    "promise_row",
    "rate_figures",
    "run_rows",
    "streams_page",
    "waiting_of",
]

_MOST_RUNS = 3


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """A promise."""

    name: str
    subject: str
    figure: Figure
    limit: str
    detail: str
    since: str
    """How long it is broken: `23 min ago`; '' while it is kept."""
    command: str
    href: str


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident."""

    id: str
    stream: str
    stream_href: str
    promise: str
    subject: str
    tone: Tone
    figure: Figure
    limit: str
    detail: str
    since: str
    since_time: str
    command: str
    """The one command to run."""
    href: str
    """The DAG run that it is about; '' if none."""
    runbook: str
    state: str
    """`open`, `acknowledged by …` or `resolved …`."""
    is_open: bool
    outcome: str
    acknowledge: ActionForm | None
    """None if it is acknowledged or resolved."""


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
    """The DAG in Airflow's UI."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that waits for a person."""

    stream: str
    text: str
    tone: Tone
    href: str
    """The page, or the part of a page, on which it can be decided."""
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
    age: str
    """How old its figures of Kafka are."""


@dataclass(frozen=True, slots=True)
class StreamsPage:
    """The page."""

    rows: tuple[StreamRow, ...]
    totals: tuple[tuple[Tone, int], ...]
    """How many streams are in each health, the worst first."""
    waiting: tuple[Waiting, ...]
    shared: tuple[PromiseRow, ...]
    """Broken promises that belong to no stream."""
    services: tuple[tuple[str, Figure], ...]
    broken_config: tuple[tuple[str, str], ...]
    """Streams that are left out, with the errors of their config."""
    produced: Figure
    archived: Figure


def streams_page(status: Status, links: Links, viewer: Viewer, now_ms: int) -> StreamsPage:
    """Return the page. Streams in a worse health come first, then by name."""
    incidents: dict[str, list[IncidentStatus]] = {}
    for each in status.incidents:
        if each.resolved_ms is None:
            incidents.setdefault(each.stream, []).append(each)
    rows = [_row(each, incidents.get(each.name, []), links, viewer, now_ms) for each in status.streams]
    order = list(Tone)
    rows.sort(key=lambda row: (-order.index(row.health), row.name))
    counts = Counter(row.health for row in rows)
    return StreamsPage(
        rows=tuple(rows),
        totals=tuple((tone, counts[tone]) for tone in reversed(order) if counts[tone]),
        waiting=tuple(each for stream in status.streams for each in waiting_of(stream, links, now_ms)),
        shared=tuple(promise_row(each, now_ms) for each in status.shared if each.verdict is Verdict.BROKEN),
        services=tuple(
            (
                each.name,
                Figure(
                    each.figure,
                    {Verdict.KEPT: Tone.OK, Verdict.BROKEN: Tone.CRITICAL}.get(each.verdict, Tone.UNKNOWN),
                    command="waybill watch --dry-run",
                    title=each.detail or f"answered {age_text(each.answered_ms, now_ms)}",
                ),
            )
            for each in status.services
        ),
        broken_config=tuple(sorted(status.broken.items())),
        produced=Figure(rate_text(_sum([each.produced_per_second for each in status.streams]))),
        archived=Figure(rate_text(_sum([each.archived_per_second for each in status.streams]))),
    )


def _sum(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _row(stream: StreamStatus, incidents: list[IncidentStatus], links: Links, viewer: Viewer, now_ms: int) -> StreamRow:
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
        lag=promise_figure(lag, None if lag is None or lag.value is None else f"{lag.value:,.0f} s"),
        trend=trend_of(stream.trend),
        behind=Figure(
            count_text(sum(each.lag for each in stream.topic_partitions)),
            href=f"{links.stream(stream.name)}#topic-partitions",
            command=f"waybill offsets ls --stream {stream.name}",
            title="offsets in Kafka that are not archived: an upper bound of the messages",
        ),
        table_lag=promise_figure(stream.promise(PromiseName.TABLE_LAG)),
        produced=produced,
        archived=archived,
        clear=clear_figure(stream),
        broken=tuple(promise_row(each, now_ms) for each in stream.promises if each.verdict is Verdict.BROKEN),
        runs=run_rows(stream, links, now_ms)[:_MOST_RUNS],
        incidents=tuple(incident_row(each, links, viewer, now_ms) for each in incidents),
        topic_partitions=len(stream.topic_partitions),
        is_paused=paused,
        pause=None if paused else form_of(ActionName.PAUSE, links, viewer, fields),
        resume=form_of(ActionName.RESUME, links, viewer, fields) if paused else None,
        age=age_text(stream.logs_ms, now_ms),
    )


def health_of(stream: StreamStatus) -> tuple[Tone, str]:
    """Return the health of a stream, with its cause in a few words."""
    broken = [each for each in stream.promises if each.verdict is Verdict.BROKEN]
    tone = worst([tone_of(each.verdict, each.severity) for each in broken])
    if broken:
        first = max(broken, key=lambda each: list(Tone).index(tone_of(each.verdict, each.severity)))
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        return tone, f"{first.promise}: {first.figure}{more}"
    if stream.pauses:
        return Tone.PAUSED, f"paused: {', '.join(sorted(each.stage for each in stream.pauses))}"
    unknown = [each for each in stream.promises if each.verdict is Verdict.UNKNOWN]
    known = [each for each in stream.promises if each.verdict is Verdict.KEPT]
    if not known:
        return Tone.UNKNOWN, "could not be measured"
    if len(unknown) > len(known):
        return Tone.UNKNOWN, f"{counted(len(unknown), 'promise')} could not be measured"
    return Tone.OK, "all promises are kept"


def rate_figures(stream: StreamStatus) -> tuple[Figure, Figure]:
    """Return what producers write and what is archived, in messages a second."""
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
    """Return the time until the backlog is archived, if both rates stay as they are."""
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
        name=promise.promise,
        subject=promise.subject,
        figure=promise_figure(promise),
        limit=promise.limit,
        detail=promise.detail,
        since=age_text(promise.since_ms, now_ms) if is_broken and promise.since_ms is not None else "",
        command=promise.command,
        href=promise.link,
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
    # Addresses come from the config or from findings, but a page must never link to a script.
    return IncidentRow(
        id=incident.id,
        stream=incident.stream,
        stream_href=links.stream(incident.stream) if incident.stream else "",
        promise=incident.promise,
        subject=incident.subject,
        tone=tone,
        figure=Figure(incident.figure, tone, safe_url(incident.link), incident.command, incident.limit),
        limit=incident.limit,
        detail=incident.detail,
        since=age_text(incident.since_ms, now_ms),
        since_time=time_text(incident.since_ms),
        command=incident.command,
        href=safe_url(incident.link),
        runbook=safe_url(incident.runbook),
        state=state,
        is_open=is_open,
        outcome=incident.outcome,
        acknowledge=form_of(ActionName.ACKNOWLEDGE, links, viewer, {"incident": incident.id})
        if can_acknowledge
        else None,
    )


def safe_url(url: str) -> str:
    """Return the address if it is one of the web; else ''."""
    return url if url.startswith(("https://", "http://")) else ""


def run_rows(stream: StreamStatus, links: Links, now_ms: int) -> tuple[RunRow, ...]:
    """Return the runs that published, the newest first."""
    return tuple(_run_row(stream, each, links, now_ms) for each in stream.runs)


def _run_row(stream: StreamStatus, run: RunStatus, links: Links, now_ms: int) -> RunRow:
    href = links.dag(stream.dags.get(run.stage, ""))
    name = stream.name
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
    )


def waiting_of(stream: StreamStatus, links: Links, now_ms: int) -> list[Waiting]:
    """Return what waits for a person, of one stream."""
    page, name = links.stream(stream.name), stream.name
    found = [
        Waiting(
            name,
            f"{each.topic}/{each.partition} is stopped: {each.error}",
            Tone.CRITICAL,
            f"{page}#stops",
            age_text(each.stopped_ms, now_ms),
        )
        for each in stream.stops
    ]
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
