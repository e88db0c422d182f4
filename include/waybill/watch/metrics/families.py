"""The metrics of all streams, from one measurement of the watch.

Names, units and suffixes follow Prometheus: base units, `_total` for counters, `_ratio` for shares. Labels are bounded
by the config: streams, services, promises and their deadlines. No label is a topic-partition, an offset or an id.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from waybill.base.errors import UnexpectedFailure
from waybill.config.models.promises import PromiseName
from waybill.services.coordination import DailyUsage
from waybill.watch.incidents.finding import REACHABLE, Finding, Verdict
from waybill.watch.incidents.incident import Incident
from waybill.watch.promises.log_figures import Logs
from waybill.watch.promises.measure import Measured
from waybill.watch.promises.table_figures import TableState

logger = logging.getLogger(__name__)

_BY_PROMISE: Mapping[str, tuple[str, str]] = {
    PromiseName.ARCHIVE_LAG: ("archive_lag_seconds", "Age of the oldest message in Kafka that is not archived."),
    PromiseName.RETENTION_RUNWAY: (
        "retention_runway_seconds",
        "Time until Kafka deletes messages that are not archived. No value: no loss in sight.",
    ),
    PromiseName.TABLE_LAG: ("table_lag_seconds", "Age of the oldest archived message that is not published."),
    PromiseName.RUN_DURATION: ("run_age_seconds", "Time since the unfinished partition run was planned."),
    PromiseName.QUARANTINE_SHARE: ("quarantine_ratio", "Share of the last hour's messages that are in quarantine."),
    PromiseName.DUPLICATE_SHARE: ("duplicate_ratio", "Share of the rows swept in the last hour that are duplicates."),
    PromiseName.DEDUP_WINDOW: ("dedup_window_shortened", "1 while sweeps compare less than the whole window."),
    PromiseName.NAMED_STOP: ("stopped_topic_partitions", "Topic-partitions that wait for a person's decision."),
    PromiseName.HELD_PUBLICATION: ("held_runs", "Partition runs whose publication waits for a person's decision."),
    PromiseName.PARSER_FAILED: (
        "parser_failed_messages",
        "Messages of the last hour's runs at which a built-in parser raised.",
    ),
    PromiseName.PAUSED: ("paused_seconds", "How long the stream, or a stage of it, is paused."),
}
_PREFIX = "waybill_"


def metric_families(
    measured: Measured,
    incidents: Iterable[Incident] | None,
    measured_seconds: float,
    now_ms: int,
    usage: Sequence[DailyUsage] | None = None,
) -> Iterator[Metric]:
    """Yield the metrics of a measurement, which took `measured_seconds`.

    `incidents`: the open incidents. `usage`: the usage of today. None: it cannot be read. If one part of the metrics
    cannot be made, `waybill_figures_up` is 0 for it, and the other parts are yielded.
    """
    logs, states, findings = measured.logs, measured.states, measured.findings
    parts: dict[str, Callable[[], Iterable[Metric]] | None] = {
        "promises": lambda: _of_promises(findings),
        "services": lambda: _of_services(findings),
        "logs": lambda: () if logs is None else _of_logs(logs),
        "tables": lambda: [_rows(states), *(() if logs is None else [_table_lag(logs, states)])],
        "incidents": None if incidents is None else lambda: [_incidents(incidents)],
        "usage": None if usage is None else lambda: _of_usage(usage, now_ms),
    }
    up = GaugeMetricFamily(
        _PREFIX + "figures_up",
        "1 if these figures could be read, 0 if not: the log of `waybill metrics` has the reason.",
        labels=["part"],
    )
    for part, make in parts.items():
        made = _made(part, make)
        up.add_metric([part], int(made is not None))
        yield from made or ()
    yield up
    yield _gauge("measurement_duration_seconds", "How long the measurement of all streams took.", measured_seconds)
    yield _gauge(
        "measurement_timestamp_seconds", "When all streams were measured, in seconds since 1970.", now_ms / 1000
    )


def _made(part: str, make: Callable[[], Iterable[Metric]] | None) -> list[Metric] | None:
    if make is None:
        return None
    try:
        return list(make())
    except Exception as error:
        logger.exception("%s", UnexpectedFailure(f"the metrics of the {part}", error))
        return None


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _of_promises(findings: Sequence[Finding]) -> Iterator[Metric]:
    kept = GaugeMetricFamily(
        _PREFIX + "promise_kept",
        "1 if the promise is kept, 0 if it is broken. No value: it could not be measured.",
        labels=["stream", "promise", "subject"],
    )
    by_promise = {
        promise: GaugeMetricFamily(_PREFIX + name, text, labels=["stream"])
        for promise, (name, text) in _BY_PROMISE.items()
    }
    incomplete = GaugeMetricFamily(
        _PREFIX + "incomplete_topic_partitions",
        "Topic-partitions that are incomplete for the last hour or day that is due.",
        labels=["stream", "deadline"],
    )
    for finding in findings:
        if not finding.stream or finding.verdict is Verdict.UNKNOWN:
            continue
        kept.add_metric([finding.stream, finding.promise, finding.subject], int(finding.verdict is Verdict.KEPT))
        if finding.value is None:
            continue
        if finding.promise in by_promise:
            by_promise[finding.promise].add_metric([finding.stream], finding.value)
        elif finding.promise == PromiseName.COMPLETE_BY:
            incomplete.add_metric([finding.stream, finding.subject], finding.value)
    yield from (kept, *by_promise.values(), incomplete)


def _of_services(findings: Sequence[Finding]) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        _PREFIX + "service_up",
        "1 if the service answers, 0 if it does not. No value: it was not asked.",
        labels=["service"],
    )
    for finding in findings:
        if finding.promise == REACHABLE and finding.verdict is not Verdict.UNKNOWN:
            up.add_metric([finding.subject], int(finding.verdict is Verdict.KEPT))
    yield up


def _of_logs(logs: Logs) -> Iterator[Metric]:
    lag: Counter[str] = Counter()
    archived: Counter[str] = Counter()
    for (stream, _), offsets in logs.offsets.items():
        lag[stream] += max(0, offsets.end - max(offsets.committed, offsets.start))
    for (stream, _), messages in logs.archived_messages.items():
        archived[stream] += messages
    yield _by_stream(
        GaugeMetricFamily(
            _PREFIX + "archive_lag_messages",
            "Offsets in Kafka that are not archived; an upper bound of the messages.",
            labels=["stream"],
        ),
        lag,
    )
    yield _by_stream(
        CounterMetricFamily(
            _PREFIX + "archived_messages",
            "Messages in the archive, in the chains of the stream's generation.",
            labels=["stream"],
        ),
        archived,
    )


def _table_lag(logs: Logs, states: Mapping[str, TableState]) -> Metric:
    lag: Counter[str] = Counter()
    for key, offsets in logs.offsets.items():
        stream = key[0]
        if stream in states:
            lag[stream] += max(0, offsets.committed - states[stream].published_offset(key, logs))
    text = "Archived offsets that are neither in the table nor in quarantine; an upper bound of the messages."
    return _by_stream(GaugeMetricFamily(_PREFIX + "table_lag_messages", text, labels=["stream"]), lag)


def _rows(states: Mapping[str, TableState]) -> Metric:
    # A gauge: an undo, a rejection or a person's DELETE makes it smaller.
    rows = GaugeMetricFamily(
        _PREFIX + "rows", "Rows that readers see: main, quarantine, unique, duplicates.", labels=["stream", "table"]
    )
    for stream, state in states.items():
        for table, count in state.rows.items():
            rows.add_metric([stream, table], count)
    return rows


def _of_usage(usage: Iterable[DailyUsage], now_ms: int) -> Iterator[Metric]:
    # The counters begin at zero each day: their creation timestamp is the start of the day.
    day = datetime.fromtimestamp(now_ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    requests, sent, received, seconds = (defaultdict[tuple[str, ...], float](float) for _ in range(4))
    for each in usage:
        sent[each.stream,] += each.tally.sent_bytes
        received[each.stream,] += each.tally.received_bytes
        for operation, count in each.tally.requests.items():
            requests[each.stream, operation] += count
        for step, used in each.tally.cpu_seconds.items():
            seconds[each.stream, step] += used
    text = " since midnight UTC, of processes that have ended. Stream '': of all streams."
    families = (
        ("s3_requests", "Requests to S3", ["stream", "operation"], requests),
        ("s3_sent_bytes", "Bytes sent to S3", ["stream"], sent),
        ("s3_received_bytes", "Bytes received from S3", ["stream"], received),
        ("cpu_seconds", "CPU seconds", ["stream", "step"], seconds),
    )
    for name, what, labels, values in families:
        family = CounterMetricFamily(_PREFIX + name, what + text, labels=labels)
        for key, value in sorted(values.items()):
            family.add_metric(list(key), value, created=day)
        yield family


def _incidents(incidents: Iterable[Incident]) -> Metric:
    found = Counter((incident.promise, str(incident.severity)) for incident in incidents)
    family = GaugeMetricFamily(_PREFIX + "open_incidents", "Open incidents.", labels=["promise", "severity"])
    for labels, count in sorted(found.items()):
        family.add_metric(list(labels), count)
    return family


def _by_stream(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, int]) -> Metric:
    for stream, value in values.items():
        family.add_metric([stream], value)
    return family
