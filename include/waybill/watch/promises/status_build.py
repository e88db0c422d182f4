"""Make a status document from the measurements of a watch, and from the previous document."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from waybill.config.models import Config, Stream
from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseName
from waybill.config.names import Stage, TopicPartition
from waybill.watch.incidents.finding import REACHABLE, Finding, Verdict
from waybill.watch.incidents.incident import Incident
from waybill.watch.kafka_cluster.readings import Readings
from waybill.watch.notify.meanings import MEANINGS
from waybill.watch.promises.log_figures import Logs
from waybill.watch.promises.measure import Measured
from waybill.watch.promises.samples import Key, OffsetSample, Samples
from waybill.watch.promises.status import (
    BrokerStatus,
    HoldStatus,
    IncidentStatus,
    LedgerStatus,
    PauseStatus,
    PromiseStatus,
    RunStatus,
    ServiceStatus,
    StopStatus,
    StreamDetails,
    StreamStatus,
    TopicPartitionStatus,
    TrendPoint,
)
from waybill.watch.promises.table_figures import Published, TableState

_RATE_MS = 10 * 60_000
"""Rates are those of the last ten minutes."""
_TREND_POINTS = 120
_MOST_RUNS = 24
_RESOLVED_MS = 24 * 3_600_000


def stream_statuses(
    config: Config,
    measured: Measured,
    before: Mapping[str, StreamStatus],
    details: Mapping[str, StreamDetails],
    before_ms: int,
    now_ms: int,
) -> tuple[StreamStatus, ...]:
    """Return the status of each stream. Parts that could not be read are copied from `before`, with their times.

    `before_ms`: when the watch of `before` measured.
    """
    findings: dict[str, list[Finding]] = defaultdict(list)
    for finding in measured.findings:
        findings[finding.stream].append(finding)
    by_stream: dict[str, list[TopicPartition]] = defaultdict(list)
    for name, tp in () if measured.logs is None else measured.logs.offsets:
        by_stream[name].append(tp)
    reference = _reference(measured.samples)
    return tuple(
        _StreamBuilder(
            name,
            config.stream(name),
            measured,
            promise_statuses(findings[name], () if name not in before else before[name].promises, before_ms),
            by_stream[name],
            before.get(name),
            details.get(name),
            reference,
            now_ms,
        ).build()
        for name in config.streams
    )


class _StreamBuilder:
    """Builds the status of one stream."""

    def __init__(
        self,
        name: str,
        stream: Stream,
        measured: Measured,
        promises: tuple[PromiseStatus, ...],
        tps: list[TopicPartition],
        before: StreamStatus | None,
        details: StreamDetails | None,
        reference: tuple[float, Mapping[Key, OffsetSample], Mapping[Key, OffsetSample]] | None,
        now_ms: int,
    ) -> None:
        self.name = name
        self.stream = stream
        self.logs = measured.logs
        self.samples = measured.samples
        self.state = measured.states.get(name)
        self.promises = promises
        self.tps = sorted(tps)
        self.before = before or StreamStatus(name, stream.table, stream.generation, "", {})
        self.tps_before = {TopicPartition(each.topic, each.partition): each for each in self.before.topic_partitions}
        self.details = details or self.before.details
        self.reference = reference
        self.now_ms = now_ms

    def build(self) -> StreamStatus:
        logs, state, before = self.logs, self.state, self.before
        tps = before.topic_partitions
        if logs is not None:
            stops = {stop.tp: stop.error for stop in logs.stops.get(self.name, ())}
            tps = tuple(self._tp(logs, tp, stops.get(tp, "")) for tp in self.tps)
        rates = (before.produced_per_second, before.archived_per_second)
        return StreamStatus(
            name=self.name,
            table=self.stream.table,
            generation=self.stream.generation,
            source="kinesis" if self.stream.is_kinesis else "kafka",
            dags=_dags(self.name, self.stream),
            promises=self.promises,
            topic_partitions=tps,
            logs_ms=before.logs_ms if logs is None else self.now_ms,
            tables_ms=before.tables_ms if state is None else state.read_ms,
            trend=self._trend(tps),
            produced_per_second=rates[0] if logs is None else self._rate(of_archive=False),
            archived_per_second=rates[1] if logs is None else self._rate(of_archive=True),
            stops=before.stops if logs is None else _stops(logs, self.name),
            pauses=before.pauses if logs is None else _pauses(logs, self.name),
            rows=before.rows if state is None else dict(state.rows),
            runs=before.runs if state is None else _runs(state, before),
            planned_ms=before.planned_ms if state is None else state.planned_ms,
            planned_run=before.planned_run if state is None or state.planned_ms == before.planned_ms else "",
            hold=before.hold if state is None else _hold(state),
            ledger=before.ledger if state is None else _ledger(state),
            window_alert=before.window_alert if state is None else state.window_alert,
            details=self.details,
        )

    def _tp(self, logs: Logs, tp: TopicPartition, stop: str) -> TopicPartitionStatus:
        key = (self.name, tp)
        before = self.tps_before.get(tp)
        offsets = logs.offsets[key]
        lag_seconds = 0.0
        if key in logs.archived_to_ms:
            lag_seconds = max(0.0, (self.now_ms - logs.archived_to_ms[key]) / 1000)
        elif offsets.end > offsets.committed:
            since = self.samples.beyond_since(key, offsets.committed)
            lag_seconds = 0.0 if since is None else max(0.0, (self.now_ms - since) / 1000)
        details = self.details
        return TopicPartitionStatus(
            topic=tp.topic,
            partition=tp.partition,
            earliest=offsets.start,
            end=offsets.end,
            committed=offsets.committed,
            archived_from=logs.archived_from(key),
            published=(None if before is None else before.published)
            if self.state is None
            else self.state.published_offset(key, logs),
            swept=None if details is None else details.swept.get(str(tp)),
            archived_messages=logs.archived_messages.get(key),
            lag_seconds=round(lag_seconds, 1),
            gaps=() if details is None else details.gaps.get(str(tp), ()),
            stop=stop,
        )

    def _rate(self, *, of_archive: bool) -> float | None:
        """Return by how many offsets per second the logs or the archive grew; None without an earlier sample."""
        if self.reference is None:
            return None
        seconds, earlier, newest = self.reference
        keys = [key for tp in self.tps if (key := (self.name, tp)) in earlier and key in newest]
        if not keys or seconds <= 0:
            return None
        grown = sum(
            max(0, _reached(newest[key], of_archive=of_archive) - _reached(earlier[key], of_archive=of_archive))
            for key in keys
        )
        return round(grown / seconds, 3)

    def _trend(self, tps: Iterable[TopicPartitionStatus]) -> tuple[TrendPoint, ...]:
        values = {each.promise: each.value for each in self.promises if each.verdict is not Verdict.UNKNOWN}
        point = TrendPoint(
            self.now_ms,
            values.get(PromiseName.ARCHIVE_LAG),
            values.get(PromiseName.TABLE_LAG),
            sum(each.lag for each in tps),
        )
        return (*self.before.trend, point)[-_TREND_POINTS:]


def _reached(offsets: OffsetSample, *, of_archive: bool) -> int:
    return offsets.committed if of_archive else offsets.end


def _reference(samples: Samples) -> tuple[float, Mapping[Key, OffsetSample], Mapping[Key, OffsetSample]] | None:
    """Return the newest sample, a sample from ten minutes earlier, and the seconds between them.

    Without a sample of that age, the oldest sample is used. None if there are fewer than two samples.
    """
    if len(samples.samples) < 2:
        return None
    newest_ms, newest = samples.samples[-1]
    at_ms, earlier = next(
        (each for each in reversed(samples.samples) if newest_ms - each[0] >= _RATE_MS), samples.samples[0]
    )
    return (newest_ms - at_ms) / 1000, earlier, newest


def _dags(name: str, stream: Stream) -> dict[str, str]:
    sections = {stage: stream.section(stage) for stage in Stage}
    return {str(stage): section.dag_id(stage, name) for stage, section in sections.items() if section is not None}


def broker_statuses(readings: Readings) -> tuple[BrokerStatus, ...]:
    """Return the brokers that are alive, and those that do not answer although they should hold replicas."""
    state, leads = readings.state, Counter[int]()
    replicas, out_of_sync = Counter[int](), Counter[int]()
    for partition in state.partitions.values():
        if partition.has_leader:
            leads[partition.leader] += 1
        replicas.update(partition.replicas)
        out_of_sync.update(set(partition.replicas) - set(partition.in_sync))
    disks: dict[int, float] = {}
    for each in readings.slow.directories:
        if each.total_bytes > 0:
            used = 1 - each.usable_bytes / each.total_bytes
            disks[each.broker] = max(used, disks.get(each.broker, 0.0))
    voters = frozenset[int]() if readings.quorum is None else readings.quorum.voters
    return tuple(
        BrokerStatus(
            node_id,
            (state.brokers[node_id].rack or "") if node_id in state.brokers else "",
            node_id in state.brokers,
            leads[node_id],
            replicas[node_id],
            out_of_sync[node_id],
            round(disks[node_id], 4) if node_id in disks else None,
            node_id in voters,
        )
        for node_id in sorted({*state.brokers, *replicas})
    )


def _stops(logs: Logs, name: str) -> tuple[StopStatus, ...]:
    return tuple(
        StopStatus(
            stop.tp.topic,
            stop.tp.partition,
            stop.error,
            stop.message,
            stop.stopped_at_ms,
            found if isinstance(found := stop.figures.get("messages_at_most"), int) else None,
        )
        for stop in sorted(logs.stops.get(name, ()), key=lambda stop: stop.tp)
    )


def _pauses(logs: Logs, name: str) -> tuple[PauseStatus, ...]:
    if name not in logs.pauses:
        return ()
    return tuple(
        PauseStatus(str(stage), pause.by, pause.at_ms, pause.reason)
        for stage, pause in sorted(logs.pauses[name].active().items())
    )


def _runs(state: TableState, before: StreamStatus) -> tuple[RunStatus, ...]:
    """Return the runs that published, from the tables and from earlier documents."""
    found = {(each.stage, each.at_ms): each for each in before.runs}
    for stage, at_ms, runs in _by_commit(state.published):
        found[stage, at_ms] = RunStatus(
            stage,
            at_ms,
            sum(each.rows + each.unique for each in runs),
            sum(each.quarantined for each in runs),
            sum(each.duplicates for each in runs),
            sum(each.late for each in runs),
            found[stage, at_ms].run if (stage, at_ms) in found else "",
        )
    return tuple(sorted(found.values(), key=lambda run: -run.at_ms)[:_MOST_RUNS])


def _by_commit(published: Iterable[Published]) -> Iterable[tuple[str, int, list[Published]]]:
    """Yield the commits.

    A sweep commits to two tables within seconds, so commits within one minute count as one run.
    """
    runs: dict[tuple[str, int], list[Published]] = defaultdict(list)
    for each in published:
        if each.unique or each.duplicates:
            runs["dedup", each.at_ms // 60_000 * 60_000].append(each)
        else:
            runs["partition", each.at_ms].append(each)
    return [(stage, at_ms, found) for (stage, at_ms), found in runs.items()]


def _hold(state: TableState) -> HoldStatus | None:
    return HoldStatus(state.planned_ms or state.read_ms, state.held, state.held_plan) if state.held else None


def _ledger(state: TableState) -> LedgerStatus | None:
    return (
        None if state.ledger_ms is None else LedgerStatus(state.ledger_ms, state.imbalances, dict(state.ledger_counts))
    )


# --- what all streams share -------------------------------------------------------------------------------------------


def promise_statuses(
    findings: Iterable[Finding], before: Sequence[PromiseStatus], before_ms: int
) -> tuple[PromiseStatus, ...]:
    """Return the status of promises.

    A promise that could not be measured keeps the figure of `before`, with its time.
    """
    known = {(each.promise, each.subject): each for each in before}
    found = []
    for finding in findings:
        status, last = _promise_status(finding), known.get((finding.promise, finding.subject))
        if status.verdict is Verdict.UNKNOWN and not status.figure and last is not None and last.figure:
            status = replace(
                last,
                verdict=Verdict.UNKNOWN,
                measured_ms=last.measured_ms or before_ms,
                known_verdict=last.known_verdict or last.verdict,
            )
        found.append(status)
    return tuple(found)


def _promise_status(finding: Finding) -> PromiseStatus:
    return PromiseStatus(
        finding.stream,
        finding.promise,
        finding.subject,
        finding.verdict,
        finding.severity,
        finding.figure,
        finding.limit,
        finding.detail,
        finding.command,
        finding.since_ms,
        finding.value,
        finding.link,
    )


def service_statuses(
    findings: Iterable[Finding], before: Mapping[str, ServiceStatus], now_ms: int
) -> tuple[ServiceStatus, ...]:
    """Return whether each service answers, and when it last answered."""
    found = []
    for finding in findings:
        if finding.promise != REACHABLE:
            continue
        known = before.get(finding.subject)
        answered_ms = now_ms if finding.verdict is Verdict.KEPT else None if known is None else known.answered_ms
        found.append(ServiceStatus(finding.subject, finding.verdict, finding.figure, finding.detail, answered_ms))
    return tuple(sorted(found, key=lambda each: each.name))


def incident_statuses(incidents: Iterable[Incident], alerts: Alerts, now_ms: int) -> tuple[IncidentStatus, ...]:
    """Return the incidents that are open, or were resolved within the last day."""
    return tuple(
        _incident(each, alerts)
        for each in incidents
        if each.resolved_ms is None or now_ms - each.resolved_ms < _RESOLVED_MS
    )


def _incident(incident: Incident, alerts: Alerts) -> IncidentStatus:
    ack = incident.acknowledged
    meaning = MEANINGS.get(incident.promise)
    runbook = f"{alerts.runbooks_url}/{meaning.runbook}" if alerts.runbooks_url and meaning is not None else ""
    return IncidentStatus(
        incident.id,
        incident.stream,
        incident.promise,
        incident.subject,
        incident.severity,
        incident.opened_ms,
        incident.since_ms,
        incident.figure,
        incident.limit,
        incident.detail,
        incident.command,
        incident.link,
        incident.resolved_ms,
        incident.outcome,
        "" if ack is None else ack.by,
        None if ack is None else ack.at_ms,
        "" if ack is None else ack.reason,
        runbook,
    )
