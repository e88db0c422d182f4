"""Measure the promises of all streams.

Offsets are read for all streams at once, each minute. Loading the tables of a stream takes some 30 ms of CPU, importing
Iceberg more than a second, and promises about tables are of hours. So the state of all tables is read every five
minutes, and that of a stream's tables whenever a promise about them would be broken, or was broken at the last watch.
In between, the stored state is measured against the present time and offsets.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import orjson

from waybill.archive.topic_settings import TopicSettings, record_topic_settings
from waybill.brokers.forecast_inputs import connect_cluster
from waybill.brokers.health import unknown_findings
from waybill.brokers.readings import Readings
from waybill.config import Config
from waybill.config.promises import PromiseName, PromiseSeverity
from waybill.coordination import DayMark, ZooKeeperSession
from waybill.documents import read_document
from waybill.errors import (
    CatalogUnavailable,
    CoordinationUnavailable,
    DocumentTooNew,
    KafkaUnavailable,
    KinesisUnavailable,
    StoreUnavailable,
    WaybillError,
    expected,
)
from waybill.incidents.failures import Failures, measured_finding
from waybill.incidents.finding import NO_ANSWER, REACHABLE, READABLE, Finding, Verdict
from waybill.ingest.services import FindConnection, Sources, connect_sources
from waybill.names import day_mark_key, day_of, kafka_memory_key, samples_key, table_states_key, volumes_key
from waybill.store import Store
from waybill.watch import airflow_figures, log_figures
from waybill.watch.airflow_figures import AIRFLOW
from waybill.watch.kafka_figures import KafkaMemory, measure_kafka
from waybill.watch.log_figures import Logs, joined, observe, without_verdicts
from waybill.watch.samples import Samples
from waybill.watch.table_figures import TableState, table_promises
from waybill.watch.volumes import Volumes, volume_finding

if TYPE_CHECKING:
    from waybill.sources.cluster import Cluster
    from waybill.staging.services import Services

__all__ = ["Measured", "WatchServices", "measure"]

logger = logging.getLogger(__name__)

_SERVICES: dict[type[BaseException], str] = {
    KafkaUnavailable: "Kafka",
    CoordinationUnavailable: "ZooKeeper",
    StoreUnavailable: "S3",
    CatalogUnavailable: "the catalog",
}
_KAFKA, _WATCH = "Kafka", "the watch"
"""What all streams share, and the watch itself, as subjects of the promise that all is measured."""
_THREADS = 8
"""Streams whose tables are loaded at the same time: a watch waits for the catalog and S3."""
_READ_AGAIN_MINUTES = 5
_MINUTE_MS = 60_000
_VERSION = 2
_TABLE_PROMISES = (
    PromiseName.TABLE_LAG,
    PromiseName.COMPLETE_BY,
    PromiseName.RUN_DURATION,
    PromiseName.QUARANTINE_SHARE,
    PromiseName.PARSER_FAILED,
    PromiseName.DUPLICATE_SHARE,
    PromiseName.LATE_SHARE,
    PromiseName.DEDUP_WINDOW,
    PromiseName.HELD_PUBLICATION,
    PromiseName.LEDGER_BALANCE,
)
_LOG_PROMISES = (
    PromiseName.ARCHIVE_LAG,
    PromiseName.RETENTION_RUNWAY,
    PromiseName.NAMED_STOP,
    PromiseName.PAUSED,
    PromiseName.VOLUME,
)


# --- services ---------------------------------------------------------------------------------------------------------


class WatchServices:
    """The services, each of which may be away. Findings about them are collected in `findings`."""

    def __init__(self, config: Config, find: FindConnection) -> None:
        self.findings: dict[str, Finding] = {}
        self.session: ZooKeeperSession | None = None
        self.sources: Sources | None = None
        self.cluster: Cluster | None = None
        """The Kafka cluster, also while ZooKeeper is away. None: it does not answer, or no stream reads Kafka."""
        self.store: Store | None = None
        self.find = find
        self.failures: dict[str, Failures] = {_KAFKA: Failures(), AIRFLOW: Failures(), _WATCH: Failures()}
        """Exceptions that no code expects, by what all streams share. Those of streams are findings of their own."""
        self._config = config
        self._stack = ExitStack()

    def __enter__(self) -> WatchServices:
        config, streams = self._config, list(self._config.streams)
        with self.needed("Kafka"):
            self.sources = self._stack.enter_context(connect_sources(config, streams, self.find))
            self.session = self.sources.session
        if self.sources is not None:
            self.findings["ZooKeeper"] = _reachable("ZooKeeper", Verdict.KEPT)
            self.cluster = None if self.sources.kafka is None else self.sources.kafka.cluster
        elif "ZooKeeper" not in self.findings:  # Kafka is away
            with self.needed("ZooKeeper"):
                self.session = self._stack.enter_context(ZooKeeperSession.of(config, self.find))
        if self.findings["Kafka"].verdict is Verdict.UNKNOWN and config.reads_kafka:
            # ZooKeeper is away. The promises about the Kafka cluster do not need it.
            del self.findings["Kafka"]
            with self.needed("Kafka"):
                self.cluster = self._stack.enter_context(connect_cluster(config, self.find))
        with self.needed("S3"):
            store = self._stack.enter_context(Store.of(config.storage, self.find))
            store.exists(samples_key(store.prefix))
            self.store = store
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def needed(self, service: str) -> _Needed:
        """Return a block that is left when the service does not answer, with a finding about that."""
        return _Needed(self.findings, service, self.failures.get(service, self.failures[_WATCH]))


@dataclass(frozen=True, slots=True)
class _Needed:
    findings: dict[str, Finding]
    service: str
    failures: Failures

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self.findings.setdefault(self.service, _reachable(self.service, Verdict.KEPT))
            return False
        if not isinstance(error, Exception):  # an interrupt
            return False
        if not isinstance(error, WaybillError):
            self.failures.caught(f"what the watch reads from {self.service}", error)
            self.findings.setdefault(self.service, _reachable(self.service, Verdict.UNKNOWN))
            return True
        if not error.retriable:
            # A connection that is missing or refused: the other services are watched, and the alert leaves.
            figure = f"cannot be used: {type(error).__name__}"
            self.findings[self.service] = replace(_reachable(self.service, Verdict.BROKEN, str(error)), figure=figure)
            return True
        # What needs Kafka needs ZooKeeper, too: the error says which of them is away.
        away = _SERVICES.get(type(error), self.service)
        if away != self.service:
            self.findings[self.service] = _reachable(self.service, Verdict.UNKNOWN)
        self.findings[away] = _reachable(away, Verdict.BROKEN, str(error))
        return True


def _reachable(service: str, verdict: Verdict, detail: str = "") -> Finding:
    return Finding(
        stream="",
        promise=REACHABLE,
        subject=service,
        verdict=verdict,
        severity=PromiseSeverity.CRITICAL,
        figure=NO_ANSWER if verdict is Verdict.BROKEN else "it answers",
        limit="it answers",
        detail=detail,
        command="waybill watch --dry-run",
    )


def _readable(name: str, error: str = "") -> Finding:
    return Finding(
        stream=name,
        promise=READABLE,
        verdict=Verdict.BROKEN if error else Verdict.KEPT,
        severity=PromiseSeverity.CRITICAL,
        figure="cannot be read" if error else "can be read",
        limit="can be read",
        detail=error,
        command=f"waybill verify {name}",
    )


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """What a watch measured."""

    findings: Sequence[Finding]
    logs: Logs | None
    """None if Kafka or ZooKeeper did not answer."""
    states: Mapping[str, TableState]
    """Of the streams whose tables were read, by this watch or within the last five minutes."""
    samples: Samples = field(default_factory=Samples)
    """The offsets that this watch and earlier ones saw."""
    cluster: Readings | None = None
    """The Kafka cluster; None: it did not answer, or no stream reads Kafka."""


def measure(config: Config, services: WatchServices, now_ms: int, *, stores: bool) -> Measured:
    """Return the findings about all promises of all streams, and about the services, with what they follow from.

    `stores`: the offsets and table states are stored for the next watch.
    """
    names = list(config.streams)
    logs: Logs | None = None
    failed = {name: Failures() for name in names}
    samples, states, volumes = Samples(), dict[str, TableState](), Volumes()
    if services.store is not None:
        with services.needed("S3"):
            samples = Samples.parse(services.store.read_if_exists(samples_key(services.store.prefix)))
            volumes = Volumes.parse(services.store.read_if_exists(volumes_key(services.store.prefix)))
            states = _parse_states(services.store.read_if_exists(table_states_key(services.store.prefix)))
    if services.sources is not None:
        with services.needed("Kafka"):
            logs = _observe(config, services.sources, names, failed)
            samples = samples.with_sample(now_ms, logs.offsets)
    kafka = _measure_kafka(config, services, now_ms)
    if stores and services.store is not None and kafka.memory is not None:
        with services.needed("S3"):
            services.store.replace(kafka_memory_key(services.store.prefix), kafka.memory.content())
    stored_volumes = volumes
    if logs is not None:
        observed = [name for name in names if name in logs.stops]
        volumes = volumes.noted(now_ms, {name: logs.end_offsets(name) for name in observed})
    found: list[Finding] = kafka.findings
    for name in names:
        found += _log_findings(config, name, logs, samples, volumes, now_ms, failed[name])
    found += _table_findings(config, services, names, logs, samples, states, now_ms, failed)
    if config.airflow.connection is not None:
        found = _with_airflow(config, services, found, now_ms)
    if stores and services.store is not None and logs is not None:
        with services.needed("S3"):
            if samples.is_first_of_day:
                _store_topic_settings(services, logs, now_ms)
                _store_day_mark(config, services.store, logs, now_ms)
            if volumes is not stored_volumes:
                services.store.replace(volumes_key(services.store.prefix), volumes.content())
            services.store.replace(samples_key(services.store.prefix), samples.content())
            services.store.replace(table_states_key(services.store.prefix), _states_content(states))
    found += [measured_finding(name, failures.texts) for name, failures in failed.items()]
    found += [measured_finding("", each.texts, subject=subject) for subject, each in services.failures.items()]
    return Measured([*found, *services.findings.values()], logs, states, samples, kafka.readings)


@dataclass(frozen=True, slots=True)
class _Kafka:
    """The findings about the Kafka cluster, and what to remember; None: it was not read."""

    findings: list[Finding]
    memory: KafkaMemory | None = None
    readings: Readings | None = None


def _measure_kafka(config: Config, services: WatchServices, now_ms: int) -> _Kafka:
    """Return the findings about the Kafka cluster: unknown ones if it does not answer, none without a stream of it."""
    if not config.reads_kafka:
        return _Kafka([])
    memory = KafkaMemory()
    if services.store is not None:
        with services.needed("S3"):
            memory = KafkaMemory.parse(services.store.read_if_exists(kafka_memory_key(services.store.prefix)))
    if services.cluster is not None:
        with services.needed("Kafka"):
            measured = measure_kafka(config, services.cluster, memory, now_ms, services.failures[_KAFKA])
            services.findings["Kafka"] = _reachable("Kafka", Verdict.KEPT)
            return _Kafka(measured.findings, measured.memory, measured.readings)
    return _Kafka(unknown_findings(config.kafka.promises, memory.commits))


def _store_day_mark(config: Config, store: Store, logs: Logs, now_ms: int) -> None:
    """Store the committed offsets for `waybill ledger --by day`, unless another watch has done so."""
    committed = {(name, config.stream(name).generation): offsets for name, offsets in logs.committed.items()}
    store.create_or_read_existing(day_mark_key(store.prefix, day_of(now_ms)), DayMark.of(now_ms, committed).content())


def _store_topic_settings(services: WatchServices, logs: Logs, now_ms: int) -> None:
    """Store the settings of topics that have changed, so that a restore can create a topic again."""
    if services.sources is None or services.sources.kafka is None or services.store is None:
        return
    with services.needed("Kafka"):
        for name, config in services.sources.kafka.own_configs(sorted(logs.topics)).items():
            topic = logs.topics[name]
            settings = TopicSettings(name, topic.topic_id, len(topic.partitions), config)
            record_topic_settings(services.store, settings, now_ms)


def _observe(config: Config, sources: Sources, names: Sequence[str], failed: Mapping[str, Failures]) -> Logs:
    """Return the logs of the streams, without those that end the observation: their failures are noted.

    All are observed with a few requests. If that fails for another reason than a service that does not answer, each
    half is observed alone, so one stream costs a few requests more. Raises the retriable errors.
    """
    try:
        return observe(config, sources, names)
    except Exception as error:
        if isinstance(error, WaybillError) and error.retriable:
            raise
        if len(names) == 1:
            failed[names[0]].caught(f"the logs of stream {names[0]}", error)
            return Logs({}, {}, {}, unread={names[0]: str(expected(f"the logs of stream {names[0]}", error))})
    if not names:
        return Logs({}, {}, {})
    half = len(names) // 2
    return joined([_observe(config, sources, each, failed) for each in (names[:half], names[half:])])


def _log_findings(
    config: Config,
    name: str,
    logs: Logs | None,
    samples: Samples,
    volumes: Volumes,
    now_ms: int,
    failures: Failures,
) -> list[Finding]:
    stream = config.stream(name)
    if logs is None or name not in logs.stops:  # not observed
        return _unknown(config, name, _LOG_PROMISES)
    ways = {
        PromiseName.ARCHIVE_LAG: lambda: log_figures.archive_lag(name, stream, logs, samples, now_ms),
        PromiseName.RETENTION_RUNWAY: lambda: log_figures.retention_runway(name, stream, logs, samples, now_ms),
        PromiseName.NAMED_STOP: lambda: log_figures.named_stops(name, stream, logs),
        PromiseName.PAUSED: lambda: log_figures.pauses(name, stream, logs, now_ms),
        PromiseName.VOLUME: lambda: volume_finding(name, stream, volumes, now_ms),
    }
    found = []
    for promise, read in ways.items():
        found += _of_promise(config, name, promise, lambda read=read: [read()], failures)  # type: ignore[misc]
    if stream.is_kinesis and name in logs.unread:
        failures.caught(f"the shards of stream {name}", KinesisUnavailable(logs.unread[name]))
    return without_verdicts(found, logs.unread.get(name, ""))


def _of_promise(
    config: Config, name: str, promise: PromiseName, read: Callable[[], list[Finding]], failures: Failures
) -> list[Finding]:
    """Return the findings about one promise; unknown ones, with a note, if an exception is raised at it."""

    def unknown(why: str) -> list[Finding]:
        return [replace(each, detail=why) for each in _unknown(config, name, [promise])]

    return failures.measure(f"{name}: promise {promise}", read, unknown)


def _table_findings(
    config: Config,
    services: WatchServices,
    names: Sequence[str],
    logs: Logs | None,
    samples: Samples,
    states: dict[str, TableState],
    now_ms: int,
    failed: Mapping[str, Failures],
) -> list[Finding]:
    """Return the findings about the tables of all streams, and bring `states` up to date."""
    services.findings.setdefault("the catalog", _reachable("the catalog", Verdict.UNKNOWN))
    if logs is None or services.store is None:
        return [finding for name in names for finding in _unknown(config, name, (*_TABLE_PROMISES, READABLE))]

    found: dict[str, list[Finding]] = {}
    due = []
    for name in names:
        ignored = Failures()
        if name in states and not _is_due(states[name], now_ms):
            found[name] = _figures(config, name, states[name], logs, samples, now_ms, ignored)
        # A state at which an exception is raised is read again: then the exception is reported, if it stays.
        if ignored.texts or _is_broken_or_missing(found.get(name)):
            due.append(name)
    found |= {name: _unknown(config, name, (*_TABLE_PROMISES, READABLE)) for name in due}
    if due:
        from waybill.staging.services import services_of

        del services.findings["the catalog"]
        away: WaybillError | None = None
        with services.needed("the catalog"), services_of(config, None) as opened:
            for name, read in _read_all(config, due, opened, now_ms):
                if isinstance(read, TableState):
                    states[name] = read
                    found[name] = _figures(config, name, read, logs, samples, now_ms, failed[name])
                elif read.retriable:
                    away = away or read
                else:
                    states.pop(name, None)
                    found[name] = [_readable(name, str(read)), *_unknown(config, name, _TABLE_PROMISES)]
            if away is not None:  # the other streams have been read all the same
                raise away
    return [finding for name in names for finding in found[name]]


def _figures(
    config: Config, name: str, state: TableState, logs: Logs, samples: Samples, now_ms: int, failures: Failures
) -> list[Finding]:
    """Return the findings about the tables of a stream whose state is known."""
    found = [_readable(name)]
    for promise, read in table_promises(name, config.stream(name), state, logs, samples, now_ms).items():
        found += _of_promise(config, name, promise, read, failures)
    return without_verdicts(found, logs.unread.get(name, ""))


def _with_airflow(config: Config, services: WatchServices, found: list[Finding], now_ms: int) -> list[Finding]:
    """Return the findings with those about Airflow's tasks, and note whether Airflow works."""
    state = None
    with services.needed(AIRFLOW):
        state = airflow_figures.ask_airflow(config, services.find, now_ms, services.failures[AIRFLOW])
    if state is None:
        return [*airflow_figures.without_effects(found), *airflow_figures.unknown_task_findings(config)]
    services.findings[AIRFLOW] = airflow_figures.airflow_finding(state)
    if "scheduler" in state.unhealthy:
        found = airflow_figures.without_effects(found)
    return [*found, *airflow_figures.task_findings(config, state, found, now_ms)]


def _is_broken_or_missing(found: Sequence[Finding] | None) -> bool:
    return found is None or any(each.verdict is Verdict.BROKEN for each in found)


def _is_due(state: TableState, now_ms: int) -> bool:
    """Return whether the state is to be read again: for all streams in the same minute, so that others import less."""
    minute = now_ms // _MINUTE_MS
    return minute % _READ_AGAIN_MINUTES == 0 or minute - state.read_ms // _MINUTE_MS >= _READ_AGAIN_MINUTES


def _read_all(
    config: Config, names: Sequence[str], services: Services, now_ms: int
) -> list[tuple[str, TableState | WaybillError]]:
    """Return the state of the tables of each stream, or why it cannot be read."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(zip(names, pool.map(lambda name: _read(config, name, services, now_ms), names), strict=True))


def _read(config: Config, name: str, services: Services, now_ms: int) -> TableState | WaybillError:
    """Return the state of a stream's tables, or why it cannot be read."""
    from waybill.watch.table_reader import read_table_state

    try:
        return read_table_state(name, config.stream(name), services, now_ms)
    except Exception as error:
        failure = expected(f"the tables of stream {name}", error)
        if failure is not error:
            logger.exception("the tables of stream %s cannot be read", name)
        return failure


def _parse_states(content: bytes | None) -> dict[str, TableState]:
    """Return the stored table states; none if they cannot be read: then all are read again."""
    if content is None:
        return {}
    try:
        fields = read_document(gzip.decompress(content), _VERSION, "the watch's table states")
        return {name: TableState.parse(document) for name, document in fields["states"].items()}
    except (DocumentTooNew, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        logger.warning("all tables are read again: the stored states cannot be read: %s", error)
        return {}


def _states_content(states: Mapping[str, TableState]) -> bytes:
    documents = {name: state.document() for name, state in states.items()}
    return gzip.compress(orjson.dumps({"v": _VERSION, "states": documents}), compresslevel=1)


def _unknown(config: Config, name: str, promises: Sequence[str]) -> list[Finding]:
    """Return findings about promises that cannot be measured now."""
    deadlines = [str(deadline) for deadline in config.stream(name).promises.complete_by.deadlines]
    return [
        Finding(name, promise, Verdict.UNKNOWN, PromiseSeverity.WARNING, subject=subject)
        for promise in promises
        for subject in (deadlines if promise == PromiseName.COMPLETE_BY else [""])
    ]
