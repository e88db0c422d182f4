"""The services that a watch needs. If one does not answer, a finding reports it, and the others are still read."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from waybill.archive.ingest.services import FindConnection, Sources, connect_sources
from waybill.base.errors import (
    CatalogUnavailable,
    CoordinationUnavailable,
    KafkaUnavailable,
    StoreUnavailable,
    WaybillError,
)
from waybill.config.models import Config
from waybill.config.models.promises import PromiseSeverity
from waybill.config.names import samples_key
from waybill.services.coordination import ZooKeeperSession
from waybill.services.store import Store
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import NO_ANSWER, REACHABLE, Finding, Verdict
from waybill.watch.kafka_cluster.forecast_inputs import connect_cluster
from waybill.watch.promises.airflow_figures import AIRFLOW

if TYPE_CHECKING:
    from waybill.services.kafka.cluster import Cluster

_SERVICES: dict[type[BaseException], str] = {
    KafkaUnavailable: "Kafka",
    CoordinationUnavailable: "ZooKeeper",
    StoreUnavailable: "S3",
    CatalogUnavailable: "the catalog",
}
KAFKA, WATCH = "Kafka", "the watch"
"""Subjects of the promise that everything is measured: the parts that all streams share, and the watch itself."""


class WatchServices:
    """The services, each of which may not answer. Findings about them are collected in `findings`."""

    def __init__(self, config: Config, find: FindConnection) -> None:
        self.findings: dict[str, Finding] = {}
        self.session: ZooKeeperSession | None = None
        self.sources: Sources | None = None
        self.cluster: Cluster | None = None
        """The Kafka cluster, also while ZooKeeper is away. None: it does not answer, or no stream reads Kafka."""
        self.store: Store | None = None
        self.find = find
        self.failures: dict[str, Failures] = {KAFKA: Failures(), AIRFLOW: Failures(), WATCH: Failures()}
        """Exceptions that no code expects, by what all streams share. Those of streams are findings of their own."""
        self._config = config
        self._stack = ExitStack()

    def __enter__(self) -> WatchServices:
        config, streams = self._config, list(self._config.streams)
        with self.needed("Kafka"):
            self.sources = self._stack.enter_context(connect_sources(config, streams, self.find))
            self.session = self.sources.session
        if self.sources is not None:
            self.findings["ZooKeeper"] = reachable("ZooKeeper", Verdict.KEPT)
            self.cluster = None if self.sources.kafka is None else self.sources.kafka.cluster
        elif "ZooKeeper" not in self.findings:  # Kafka does not answer
            with self.needed("ZooKeeper"):
                self.session = self._stack.enter_context(ZooKeeperSession.of(config, self.find))
        if self.findings["Kafka"].verdict is Verdict.UNKNOWN and config.reads_kafka:
            # ZooKeeper does not answer. The promises about the Kafka cluster do not need it.
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
        """Return a context manager: if the service does not answer, it ends the block and adds a finding."""
        return _Needed(self.findings, service, self.failures.get(service, self.failures[WATCH]))


@dataclass(frozen=True, slots=True)
class _Needed:
    findings: dict[str, Finding]
    service: str
    failures: Failures

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self.findings.setdefault(self.service, reachable(self.service, Verdict.KEPT))
            return False
        if not isinstance(error, Exception):  # an interrupt
            return False
        if not isinstance(error, WaybillError):
            self.failures.caught(f"what the watch reads from {self.service}", error)
            self.findings.setdefault(self.service, reachable(self.service, Verdict.UNKNOWN))
            return True
        if not error.retriable:
            # The connection is missing or refused: the other services are still watched, and the alert is sent.
            figure = f"cannot be used: {type(error).__name__}"
            self.findings[self.service] = replace(reachable(self.service, Verdict.BROKEN, str(error)), figure=figure)
            return True
        # This block needs Kafka and ZooKeeper: the error names the one that does not answer.
        away = _SERVICES.get(type(error), self.service)
        if away != self.service:
            self.findings[self.service] = reachable(self.service, Verdict.UNKNOWN)
        self.findings[away] = reachable(away, Verdict.BROKEN, str(error))
        return True


def reachable(service: str, verdict: Verdict, detail: str = "") -> Finding:
    """Return a finding that states whether a service answers."""
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
