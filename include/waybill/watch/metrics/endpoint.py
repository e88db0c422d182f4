"""An OpenMetrics endpoint that measures all streams for each scrape, and the same metrics once as text."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from waybill.base.errors import expected
from waybill.config.connections import find_connection
from waybill.config.models import Config
from waybill.services.coordination import DailyUsage, UsageStore
from waybill.watch.incidents.book_store import BookStore
from waybill.watch.incidents.incident import Incident
from waybill.watch.metrics.families import metric_families
from waybill.watch.notify.channels import FindConnection
from waybill.watch.promises.measure import measure
from waybill.watch.promises.services import WatchServices

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_FRESH_SECONDS = 10.0
"""Two scrapes within this time get the same figures."""


class WatchCollector(Collector):
    """Measures all streams, without storing anything.

    Ages begin when a scheduled watch, which stores its readings, first saw a message.
    """

    def __init__(
        self,
        load: Callable[[], Config],
        find: FindConnection = find_connection,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        """`load`: returns the present config. `find`: looks up connections."""
        self._load, self._find, self._now_ms = load, find, now_ms
        self._lock = threading.Lock()
        self._families: list[Metric] = []
        self._measured_at = float("-inf")

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. If the measurement fails, the only one is `waybill_up` with the value 0."""
        with self._lock:
            if time.monotonic() - self._measured_at > _FRESH_SECONDS:
                try:
                    self.measure()
                except Exception as error:  # also an unexpected exception: a scrape without an answer tells less
                    failure = expected("the measurement of all streams", error)
                    if failure is not error:
                        logger.exception("the stack trace of the failed measurement")
                    logger.error("the streams cannot be measured: %s: %s", type(failure).__name__, failure)
                    self._families = [_up(0)]
                    self._measured_at = time.monotonic()
            yield from self._families

    def measure(self) -> list[str]:
        """Measure now, for the next call of `collect`. Return the names of the parts that could not be measured.

        A service that does not answer is `waybill_service_up 0`, a part that cannot be made `waybill_figures_up 0`.

        Raises `ConfigError`.
        """
        config = self._load()
        began, now_ms = time.monotonic(), self._now_ms()
        with WatchServices(config, self._find) as services:
            measured = measure(config, services, now_ms, stores=False)
            incidents = _read("the open incidents", lambda: _open_incidents(config, services))
            usage = _read("the usage of today", lambda: _usage_of_today(config, services, now_ms))
        self._families = [*metric_families(measured, incidents, time.monotonic() - began, now_ms, usage), _up(1)]
        self._measured_at = time.monotonic()
        up = next(family for family in self._families if family.name == "waybill_figures_up")
        return [sample.labels["part"] for sample in up.samples if not sample.value]


def _read(what: str, read: Callable[[], _T]) -> _T | None:
    """Return the result of `read`; if it fails, write a log line and return None."""
    try:
        return read()
    except Exception as error:
        failure = expected(what, error)
        logger.error("%s cannot be read: %s", what, failure, exc_info=failure is not error)
        return None


def _open_incidents(config: Config, services: WatchServices) -> list[Incident]:
    book = BookStore(config.zookeeper.root, services.session, services.store).load()
    return [incident for incident in book.incidents if incident.is_open]


def _usage_of_today(config: Config, services: WatchServices, now_ms: int) -> list[DailyUsage]:
    """Return the usage of today; nothing if ZooKeeper does not answer, which `waybill_service_up` reports."""
    if services.session is None:
        return []
    return UsageStore(services.session, config.zookeeper.root, lambda: now_ms / 1000).today()


def _up(value: int) -> Metric:
    return GaugeMetricFamily("waybill_up", "1 if the streams could be measured.", value)


def metrics_text(collector: WatchCollector) -> tuple[str, list[str]]:
    """Return the metrics in the OpenMetrics text format, and the parts of them that could not be made.

    Raises what `WatchCollector.measure` raises.
    """
    failed = collector.measure()
    content: bytes = generate_latest(_registry(collector))  # type: ignore[no-untyped-call]
    return content.decode(), failed


def serve_metrics(collector: WatchCollector, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve the metrics until the process is interrupted. `on_ready` is called with their URL.

    Raises `OSError` if the address is taken, and what `WatchCollector.measure` raises at the first measurement.
    """
    collector.measure()
    server, thread = start_http_server(port, host, _registry(collector))
    try:
        on_ready(f"http://{host}:{server.server_port}/metrics")
        thread.join()
    finally:
        server.shutdown()
        server.server_close()


def _registry(collector: WatchCollector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry
