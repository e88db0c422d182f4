"""Measure the promises of all streams.

Offsets are read for all streams at once, each minute. The tables of a stream are read less often
(`waybill.watch.promises.table_states`). Promises that all streams share, and each service, are measured once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from waybill.archive.chain.topic_settings import TopicSettings, record_topic_settings
from waybill.archive.ingest.services import Sources
from waybill.base.errors import KinesisUnavailable, WaybillError, expected
from waybill.config.models import Config
from waybill.config.models.promises import PromiseName
from waybill.config.names import day_mark_key, day_of, kafka_memory_key, samples_key, table_states_key, volumes_key
from waybill.services.coordination import DayMark
from waybill.services.store import Store
from waybill.watch.incidents.failures import Failures, measured_finding
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.kafka_cluster.health import unknown_findings
from waybill.watch.kafka_cluster.readings import Readings
from waybill.watch.promises import airflow_figures, log_figures
from waybill.watch.promises.airflow_figures import AIRFLOW
from waybill.watch.promises.kafka_figures import KafkaMemory, measure_kafka
from waybill.watch.promises.log_figures import Logs, joined, observe, without_verdicts
from waybill.watch.promises.promise_findings import of_promise, unknown
from waybill.watch.promises.samples import Samples
from waybill.watch.promises.services import KAFKA, WatchServices, reachable
from waybill.watch.promises.table_figures import TableState
from waybill.watch.promises.table_states import parse_states, states_content, table_findings
from waybill.watch.promises.volumes import Volumes, volume_finding

_LOG_PROMISES = (
    PromiseName.ARCHIVE_LAG,
    PromiseName.RETENTION_RUNWAY,
    PromiseName.NAMED_STOP,
    PromiseName.PAUSED,
    PromiseName.VOLUME,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a watch's measurement."""

    findings: Sequence[Finding]
    logs: Logs | None
    """None if Kafka or ZooKeeper did not answer."""
    states: Mapping[str, TableState]
    """The states of tables that were read by this watch or within the last five minutes."""
    samples: Samples = field(default_factory=Samples)
    """The offsets that this watch and earlier watches read."""
    cluster: Readings | None = None
    """The Kafka cluster; None: it did not answer, or no stream reads Kafka."""


def measure(config: Config, services: WatchServices, now_ms: int, *, stores: bool) -> Measured:
    """Return the findings about all promises of all streams, and about the services, with their inputs.

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
            states = parse_states(services.store.read_if_exists(table_states_key(services.store.prefix)))
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
    found += table_findings(config, services, names, logs, samples, states, now_ms, failed)
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
            services.store.replace(table_states_key(services.store.prefix), states_content(states))
    found += [measured_finding(name, failures.texts) for name, failures in failed.items()]
    found += [measured_finding("", each.texts, subject=subject) for subject, each in services.failures.items()]
    return Measured([*found, *services.findings.values()], logs, states, samples, kafka.readings)


@dataclass(frozen=True, slots=True)
class _Kafka:
    """The findings about the Kafka cluster, and the readings to store; None: the cluster was not read."""

    findings: list[Finding]
    memory: KafkaMemory | None = None
    readings: Readings | None = None


def _measure_kafka(config: Config, services: WatchServices, now_ms: int) -> _Kafka:
    """Return the findings about the Kafka cluster: unknown if it does not answer, none if no stream reads Kafka."""
    if not config.reads_kafka:
        return _Kafka([])
    memory = KafkaMemory()
    if services.store is not None:
        with services.needed("S3"):
            memory = KafkaMemory.parse(services.store.read_if_exists(kafka_memory_key(services.store.prefix)))
    if services.cluster is not None:
        with services.needed("Kafka"):
            measured = measure_kafka(config, services.cluster, memory, now_ms, services.failures[KAFKA])
            services.findings["Kafka"] = reachable("Kafka", Verdict.KEPT)
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
    """Return the logs of the streams. A stream whose logs raise an exception is left out, and its failure is recorded.

    All streams are read with a few requests. If this fails although the services answer, each half is read alone, so
    one failing stream costs a few more requests. Raises the retriable errors.
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
    if logs is None or name not in logs.stops:  # no logs of these streams
        return unknown(config, name, _LOG_PROMISES)
    ways = {
        PromiseName.ARCHIVE_LAG: lambda: log_figures.archive_lag(name, stream, logs, samples, now_ms),
        PromiseName.RETENTION_RUNWAY: lambda: log_figures.retention_runway(name, stream, logs, samples, now_ms),
        PromiseName.NAMED_STOP: lambda: log_figures.named_stops(name, stream, logs),
        PromiseName.PAUSED: lambda: log_figures.pauses(name, stream, logs, now_ms),
        PromiseName.VOLUME: lambda: volume_finding(name, stream, volumes, now_ms),
    }
    found = []
    for promise, read in ways.items():
        found += of_promise(config, name, promise, lambda read=read: [read()], failures)  # type: ignore[misc]
    if stream.is_kinesis and name in logs.unread:
        failures.caught(f"the shards of stream {name}", KinesisUnavailable(logs.unread[name]))
    return without_verdicts(found, logs.unread.get(name, ""))


def _with_airflow(config: Config, services: WatchServices, found: list[Finding], now_ms: int) -> list[Finding]:
    """Add the findings about Airflow's tasks, and record whether Airflow works."""
    state = None
    with services.needed(AIRFLOW):
        state = airflow_figures.ask_airflow(config, services.find, now_ms, services.failures[AIRFLOW])
    if state is None:
        return [*airflow_figures.without_effects(found), *airflow_figures.unknown_task_findings(config)]
    services.findings[AIRFLOW] = airflow_figures.airflow_finding(state)
    if "scheduler" in state.unhealthy:
        found = airflow_figures.without_effects(found)
    return [*found, *airflow_figures.task_findings(config, state, found, now_ms)]
