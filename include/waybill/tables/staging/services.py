"""S3, the catalog and ZooKeeper, opened once for all streams of a process.

An application that works on many streams would spend a part of each stream's time on connections, if each opened its
own (docs/decisions/0017).
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from pyiceberg.catalog import Catalog

from waybill.base.errors import ConnectionMissing, CoordinationUnavailable, WaybillError
from waybill.base.metering import meter
from waybill.config.models import Config, Stream
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset, Coordinator, UsageStore, ZooKeeperSession
from waybill.services.store import Store
from waybill.tables.iceberg import catalog_of

logger = logging.getLogger(__name__)


class StagingServices:
    """The open store and catalog, and data that is read at the start of each stream's run. Thread-safe."""

    def __init__(self, config: Config, store: Store, catalog: Catalog, stack: ExitStack) -> None:
        """`stack`: closes the services that are opened later."""
        self.store = store
        self.catalog = catalog
        self._config = config
        self._stack = stack
        self._lock = threading.Lock()
        self._session: ZooKeeperSession | None = None

    def committed_offsets(self, stream: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets, or none if ZooKeeper does not answer: then the chains themselves are read."""
        try:
            return Coordinator.sharing(self._open_session(), self._config, stream).list_committed()
        except (CoordinationUnavailable, ConnectionMissing) as error:
            logger.warning("%s: continuing without the committed offsets: %s", stream, error)
            return {}

    def store_usage(self, step: str, streams: Collection[str]) -> None:
        """Add the usage of this process since the last call to the usage of its streams. An error is logged."""
        tallies = meter.take(step, streams, "driver")
        if not tallies:
            return
        try:
            UsageStore(self._open_session(), self._config.zookeeper.root).add(step, tallies)
        except WaybillError as error:
            logger.warning("the usage of this process is not stored: %s", error)

    def archived_topics(self, stream: Stream) -> list[str]:
        """Return the topics of a stream that have backup objects. The archive is listed once; later topics are missing.

        Raises `StoreUnavailable`.
        """
        with self._lock:
            topics = self._topics
        return [topic for topic in topics if stream.matches(topic)]

    @functools.cached_property
    def _topics(self) -> list[str]:
        return self.store.topics()

    def _open_session(self) -> ZooKeeperSession:
        """Return the session of the process; a new one if it has ended."""
        with self._lock:
            if self._session is None or self._session.lost:
                self._session = self._stack.enter_context(ZooKeeperSession.of(self._config))
            return self._session


@contextmanager
def services_of(config: Config, shared: StagingServices | None = None) -> Iterator[StagingServices]:
    """Yield the services of the config: `shared`, or else new ones, which are closed at the end of the block.

    Raises `ConfigError`, or the retriable `CatalogUnavailable`.
    """
    if shared is not None:
        yield shared
        return
    with ExitStack() as stack:
        store = stack.enter_context(Store.of(config.storage))
        yield StagingServices(config, store, stack.enter_context(catalog_of(config)), stack)
