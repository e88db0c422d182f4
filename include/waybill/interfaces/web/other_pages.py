"""The models of the pages Incidents, Kafka, Replays and Cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from waybill.config.connections.masking import without_urls
from waybill.interfaces.web.figures import Figure, Tone, age_text, bytes_text, count_text, time_text
from waybill.interfaces.web.frame import Links, Viewer
from waybill.interfaces.web.streams_page import IncidentRow, PromiseRow, incident_row, promise_row, service_figures
from waybill.watch.incidents.finding import REACHABLE, TASKS
from waybill.watch.promises.status import BrokerStatus, DecisionStatus, ReplayStatus, UsageStatus, WatchStatus

# --- incidents --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A recorded action."""

    decision: DecisionStatus
    age: str
    stream_href: str
    outcome: str
    """With the end of the DAG run that was ordered."""
    outcome_href: str
    """The page of the outcome, which asks Airflow how far an ordered DAG run is."""


@dataclass(frozen=True, slots=True)
class IncidentsPage:
    """The page."""

    open: tuple[IncidentRow, ...]
    """The oldest first."""
    resolved: tuple[IncidentRow, ...]
    """Incidents that were resolved in the last day, the newest first."""
    actions: tuple[DecisionRow, ...]
    """The newest first."""


def incidents_page(status: WatchStatus, links: Links, viewer: Viewer, now_ms: int) -> IncidentsPage:
    """Return the page."""
    ordered = sorted(status.incidents, key=lambda each: each.since_ms)
    resolved = sorted(
        (each for each in ordered if each.resolved_ms is not None), key=lambda each: -(each.resolved_ms or 0)
    )
    return IncidentsPage(
        tuple(incident_row(each, links, viewer, now_ms) for each in ordered if each.resolved_ms is None),
        tuple(incident_row(each, links, viewer, now_ms) for each in resolved),
        tuple(_decision_row(each, links, now_ms) for each in status.actions),
    )


_ENDS = {"success": "; it has succeeded", "failed": "; it has failed"}


def _decision_row(decision: DecisionStatus, links: Links, now_ms: int) -> DecisionRow:
    return DecisionRow(
        decision,
        age=age_text(decision.at_ms, now_ms),
        stream_href=links.stream(decision.stream) if decision.stream else "",
        outcome=f"{decision.outcome}{_ENDS.get(decision.run_state, '')}",
        outcome_href=links.page(f"/actions/taken/{decision.place}") if decision.place else "",
    )


# --- Kafka ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KafkaTopicRow:
    """A topic that streams archive."""

    topic: str
    streams: tuple[tuple[str, str], ...]
    """Name and address of each."""
    partitions: Figure
    kept: Figure
    """Offsets that Kafka keeps."""
    behind: Figure


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker."""

    name: str
    rack: str
    state: Figure
    leads: Figure
    replicas: Figure
    out_of_sync: Figure
    disk: Figure
    is_controller: bool


@dataclass(frozen=True, slots=True)
class KafkaPage:
    """The page."""

    brokers: tuple[BrokerRow, ...]

    services: tuple[tuple[str, Figure], ...]
    """Kafka and ZooKeeper."""
    findings: tuple[PromiseRow, ...]
    """All findings about Kafka itself, the broken promises first."""
    topics: tuple[KafkaTopicRow, ...]
    commands: tuple[tuple[str, str], ...]
    """Commands with more details: text and command."""


def kafka_page(status: WatchStatus, links: Links, now_ms: int) -> KafkaPage:
    """Return the page."""
    own = [each for each in status.shared if each.promise not in (REACHABLE, TASKS)]
    own.sort(key=lambda each: (each.verdict, each.promise, each.subject))
    services = service_figures([each for each in status.services if each.name in ("Kafka", "ZooKeeper")], now_ms)
    return KafkaPage(
        tuple(_broker_row(each) for each in status.brokers),
        services,
        tuple(promise_row(each, now_ms) for each in own),
        _topic_rows(status, links),
        (
            ("The promises now, and since when replicas lacked", "waybill kafka health --history"),
            ("What the loss of a broker does", "waybill kafka what-if --broker 1"),
            ("What elections took back", "waybill kafka losses STREAM"),
            ("How producers write to a topic", "waybill kafka producers TOPIC"),
            ("Offsets of all streams", "waybill offsets ls"),
        ),
    )


def _broker_row(broker: BrokerStatus) -> BrokerRow:
    behind = Tone.WARNING if broker.out_of_sync else Tone.NONE
    disk = "–" if broker.disk_used is None else f"{broker.disk_used:.0%}"
    return BrokerRow(
        str(broker.id),
        broker.rack,
        Figure("alive", Tone.OK) if broker.is_alive else Figure("away", Tone.CRITICAL),
        Figure(count_text(broker.leads)),
        Figure(count_text(broker.replicas)),
        Figure(count_text(broker.out_of_sync), behind),
        Figure(disk),
        broker.votes,
    )


def _topic_rows(status: WatchStatus, links: Links) -> tuple[KafkaTopicRow, ...]:
    streams: dict[str, list[str]] = defaultdict(list)
    tps: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for stream in status.streams:
        if stream.source != "kafka":
            continue
        for tp in stream.topic_partitions:
            if stream.name not in streams[tp.topic]:
                streams[tp.topic].append(stream.name)
            behind = max(tp.lag, tps[tp.topic].get(tp.partition, (0, 0))[1])
            tps[tp.topic][tp.partition] = (max(0, tp.end - tp.earliest), behind)
    return tuple(
        KafkaTopicRow(
            topic,
            tuple((name, links.stream(name)) for name in streams[topic]),
            Figure(count_text(len(found)), href=f"{links.stream(streams[topic][0])}#topic-partitions"),
            Figure(count_text(sum(kept for kept, _ in found.values()))),
            Figure(
                count_text(sum(behind for _, behind in found.values())),
                href=f"{links.stream(streams[topic][0])}#topic-partitions",
            ),
        )
        for topic, found in sorted(tps.items())
    )


# --- replays ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """A replay request."""

    id: str
    stream: str
    stream_href: str
    target: str
    requester: str
    state: str
    tone: Tone
    reason: str
    share: float
    """From 0 to 1."""
    found: Figure
    delivered: Figure
    rejected: Figure
    created: str
    finished: str
    command: str


@dataclass(frozen=True, slots=True)
class ReplaysPage:
    """The page."""

    is_on: bool
    """Whether the config has a section `replay`, and its database was read."""
    age: str
    rows: tuple[ReplayRow, ...]
    command: str


_REPLAY_TONES = {"failed": Tone.CRITICAL, "cancelled": Tone.PAUSED, "completed": Tone.OK}


def replays_page(status: WatchStatus, links: Links, viewer: Viewer, now_ms: int) -> ReplaysPage:
    """Return the page, with the requests of this user, or with all of them if the user may see all."""
    rows = tuple(
        ReplayRow(
            id=each.id,
            stream=each.stream,
            stream_href=links.stream(each.stream),
            target=without_urls(each.target),
            requester=each.requester,
            state=each.state,
            tone=_REPLAY_TONES.get(each.state, Tone.NONE),
            reason=without_urls(each.reason),
            share=each.share,
            found=Figure(count_text(each.found)),
            delivered=Figure(count_text(each.delivered)),
            rejected=Figure(
                count_text(each.rejected),
                Tone.WARNING if each.rejected else Tone.NONE,
            ),
            created=time_text(each.created_ms),
            finished="" if each.finished_ms is None else time_text(each.finished_ms),
            command=f"waybill replay show {each.id}",
        )
        for each in seen_replays(status, viewer)
    )
    return ReplaysPage(status.replays_ms is not None, age_text(status.replays_ms, now_ms), rows, "waybill replay ls")


def seen_replays(status: WatchStatus, viewer: Viewer) -> tuple[ReplayStatus, ...]:
    """Return the replay requests that a user may see."""
    return tuple(each for each in status.replays if viewer.sees_all_replays or each.requester == viewer.name)


# --- cost -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CostRow:
    """The usage for one stream, or by one kind of process, since the oldest shown day."""

    name: str
    href: str
    requests: Figure
    writes: Figure
    """Requests that write or list: S3 asks more for them."""
    sent: Figure
    received: Figure
    cpu: Figure
    messages: Figure
    requests_per_million: Figure
    """S3 requests for each million of archived messages."""


@dataclass(frozen=True, slots=True)
class CostPage:
    """The page."""

    age: str
    first_day: str
    last_day: str
    streams: tuple[CostRow, ...]
    processes: tuple[CostRow, ...]
    days: tuple[CostRow, ...]
    """The newest first."""
    total: CostRow
    command: str


_READS = ("Get", "Head")


def cost_page(status: WatchStatus, links: Links, now_ms: int) -> CostPage:
    """Return the page."""
    days = sorted({each.day for each in status.usage})
    by_stream: dict[str, list[UsageStatus]] = defaultdict(list)
    by_process: dict[str, list[UsageStatus]] = defaultdict(list)
    by_day: dict[str, list[UsageStatus]] = defaultdict(list)
    for each in status.usage:
        by_stream[each.stream].append(each)
        by_process[each.process].append(each)
        by_day[each.day].append(each)
    return CostPage(
        age=age_text(status.usage_ms, now_ms),
        first_day=days[0] if days else "",
        last_day=days[-1] if days else "",
        streams=tuple(
            _cost_row(name or "for all streams together", links.stream(name) if name else "", used)
            for name, used in sorted(by_stream.items(), key=lambda item: -_requests(item[1]))
        ),
        processes=tuple(_cost_row(name, "", used) for name, used in sorted(by_process.items())),
        days=tuple(_cost_row(day, "", by_day[day]) for day in reversed(days)),
        total=_cost_row("total", "", status.usage),
        command="waybill cost STREAM",
    )


def _requests(used: Sequence[UsageStatus]) -> int:
    return sum(sum(each.requests.values()) for each in used)


def _cost_row(name: str, href: str, used: Sequence[UsageStatus]) -> CostRow:
    requests = _requests(used)
    reads = sum(number for each in used for operation, number in each.requests.items() if operation.startswith(_READS))
    messages = sum(each.messages for each in used)
    return CostRow(
        name=name,
        href=href,
        requests=Figure(count_text(requests)),
        writes=Figure(count_text(requests - reads)),
        sent=Figure(bytes_text(sum(each.sent_bytes for each in used))),
        received=Figure(bytes_text(sum(each.received_bytes for each in used))),
        cpu=Figure(f"{sum(each.cpu_seconds for each in used):,.0f} s"),
        messages=Figure(count_text(messages)),
        requests_per_million=Figure(count_text(requests * 1e6 / messages if messages else None)),
    )
