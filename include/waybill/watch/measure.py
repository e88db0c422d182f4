"""Measure the promises of all streams.

Offsets are read for all streams at once, each minute. Loading the tables of a stream takes some 30 ms of CPU, importing
Iceberg more than a second, and promises about tables are of hours. So the state of all tables is read every five
minutes, and that of a stream's tables whenever a promise about them would be broken, or was broken at the last watch.
In between, the stored state is measured against the present time and offsets.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
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
    StoreUnavailable,
    WaybillError,
)
from waybill.incidents.finding import NO_ANSWER, REACHABLE, READABLE, Finding, Verdict
from waybill.ingest.services import FindConnection, Sources, connect_sources
from waybill.names import day_mark_key, day_of, kafka_memory_key, samples_key, table_states_key, volumes_key
from waybill.store import Store
from waybill.watch import airflow_figures, log_figures
from waybill.watch.kafka_figures import KafkaMemory, measure_kafka
from waybill.watch.log_figures import Logs, observe
from waybill.watch.samples import Samples
from waybill.watch.table_figures import TableState, table_findings
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
        return _Needed(self.findings, service)


@dataclass(frozen=True, slots=True)
class _Needed:
    findings: dict[str, Finding]
    service: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self.findings.setdefault(self.service, _reachable(self.service, Verdict.KEPT))
            return False
        if not isinstance(error, WaybillError) or not error.retriable:
            return False
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
    samples, states, volumes = Samples(), dict[str, TableState](), Volumes()
    if services.store is not None:
        with services.needed("S3"):
            samples = Samples.parse(services.store.read_if_exists(samples_key(services.store.prefix)))
            volumes = Volumes.parse(services.store.read_if_exists(volumes_key(services.store.prefix)))
            states = _parse_states(services.store.read_if_exists(table_states_key(services.store.prefix)))
    if services.sources is not None:
        with services.needed("Kafka"):
            logs = observe(config, services.sources, names)
            samples = samples.with_sample(now_ms, logs.offsets)
    kafka = _measure_kafka(config, services, now_ms)
    if stores and services.store is not None and kafka.memory is not None:
        with services.needed("S3"):
            services.store.replace(kafka_memory_key(services.store.prefix), kafka.memory.content())
    stored_volumes = volumes
    if logs is not None:
        volumes = volumes.noted(now_ms, {name: logs.end_offsets(name) for name in names})
    found: list[Finding] = kafka.findings
    for name in names:
        found += _log_findings(config, name, logs, samples, volumes, now_ms)
    found += _table_findings(config, services, names, logs, samples, states, now_ms)
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
            measured = measure_kafka(config, services.cluster, memory, now_ms)
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


def _log_findings(
    config: Config, name: str, logs: Logs | None, samples: Samples, volumes: Volumes, now_ms: int
) -> list[Finding]:
    stream = config.stream(name)
    if logs is None:
        return _unknown(config, name, _LOG_PROMISES)
    return [
        log_figures.archive_lag(name, stream, logs, samples, now_ms),
        log_figures.retention_runway(name, stream, logs, samples, now_ms),
        log_figures.named_stops(name, stream, logs),
        log_figures.pauses(name, stream, logs, now_ms),
        volume_finding(name, stream, volumes, now_ms),
    ]


def _table_findings(
    config: Config,
    services: WatchServices,
    names: Sequence[str],
    logs: Logs | None,
    samples: Samples,
    states: dict[str, TableState],
    now_ms: int,
) -> list[Finding]:
    """Return the findings about the tables of all streams, and bring `states` up to date."""
    if logs is None or services.store is None:
        services.findings.setdefault("the catalog", _reachable("the catalog", Verdict.UNKNOWN))
        return [finding for name in names for finding in _unknown(config, name, (*_TABLE_PROMISES, READABLE))]
    found: dict[str, list[Finding]] = {}
    due = []
    for name in names:
        state = states.get(name)
        if state is not None and not _is_due(state, now_ms):
            found[name] = [_readable(name), *table_findings(name, config.stream(name), state, logs, samples, now_ms)]
        if name not in found or any(finding.verdict is Verdict.BROKEN for finding in found[name]):
            due.append(name)
    found |= {name: _unknown(config, name, (*_TABLE_PROMISES, READABLE)) for name in due}
    services.findings.setdefault("the catalog", _reachable("the catalog", Verdict.UNKNOWN))
    if due:
        from waybill.staging.services import services_of

        del services.findings["the catalog"]
        with services.needed("the catalog"), services_of(config, None) as opened, ThreadPoolExecutor(_THREADS) as pool:
            for name, read in zip(due, pool.map(lambda name: _read(config, name, opened, now_ms), due), strict=True):
                if isinstance(read, TableState):
                    states[name] = read
                    findings = table_findings(name, config.stream(name), read, logs, samples, now_ms)
                    found[name] = [_readable(name), *findings]
                else:
                    states.pop(name, None)
                    found[name] = [_readable(name, str(read)), *_unknown(config, name, _TABLE_PROMISES)]
    return [finding for name in names for finding in found[name]]


def _with_airflow(config: Config, services: WatchServices, found: list[Finding], now_ms: int) -> list[Finding]:
    """Return the findings with those about Airflow's tasks, and note whether Airflow works."""
    state = None
    with services.needed(airflow_figures.AIRFLOW):
        state = airflow_figures.ask_airflow(config, services.find, now_ms)
    if state is None:
        return [*airflow_figures.without_effects(found), *airflow_figures.unknown_task_findings(config)]
    services.findings[airflow_figures.AIRFLOW] = airflow_figures.airflow_finding(state)
    if "scheduler" in state.unhealthy:
        found = airflow_figures.without_effects(found)
    return [*found, *airflow_figures.task_findings(config, state, found, now_ms)]


def _is_due(state: TableState, now_ms: int) -> bool:
    """Return whether the state is to be read again: for all streams in the same minute, so that others import less."""
    minute = now_ms // _MINUTE_MS
    return minute % _READ_AGAIN_MINUTES == 0 or minute - state.read_ms // _MINUTE_MS >= _READ_AGAIN_MINUTES


def _read(config: Config, name: str, services: Services, now_ms: int) -> TableState | WaybillError:
    """Return the state of a stream's tables, or why it cannot be read. Raises the retriable errors."""
    from waybill.watch.table_reader import read_table_state

    try:
        return read_table_state(name, config.stream(name), services, now_ms)
    except WaybillError as error:
        if error.retriable:
            raise
        return error


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
