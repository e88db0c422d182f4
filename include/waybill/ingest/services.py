"""The services that a run works with: Kafka, S3 and ZooKeeper, connected once for all streams of the run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waybill.config import Config
from waybill.connections import Connection, KafkaEndpoint, find_connection

if TYPE_CHECKING:
    from waybill.coordination import Coordinator, ZooKeeperSession
    from waybill.sources.kafka import KafkaSource
    from waybill.store import Store

__all__ = ["FindConnection", "Services", "Sources", "connect", "connect_all", "connect_source", "connect_sources"]

FindConnection = Callable[[str], Connection]


@dataclass(frozen=True, slots=True)
class Services:
    """The three services of one stream, connected."""

    source: KafkaSource
    store: Store
    coordinator: Coordinator


@dataclass(frozen=True, slots=True)
class Sources:
    """Kafka and ZooKeeper, connected for several streams, which is what planning needs."""

    session: ZooKeeperSession
    kafka: KafkaSource
    by_stream: dict[str, KafkaSource]
    """With the settings of each stream, on the connections of `kafka`."""
    coordinators: dict[str, Coordinator]


@contextmanager
def connect(config: Config, stream_name: str, find: FindConnection = find_connection) -> Iterator[Services]:
    """Connect a stream's services. `find` returns a connection by its id.

    Raises `ConfigError`, `KafkaUnavailable` or `CoordinationUnavailable`.
    """
    with connect_all(config, [stream_name], find) as services:
        yield services[stream_name]


@contextmanager
def connect_all(
    config: Config, stream_names: Collection[str], find: FindConnection = find_connection
) -> Iterator[dict[str, Services]]:
    """Connect the services of several streams, by stream, with one connection to each. Raises the errors of `connect`.

    Use them from one thread.
    """
    from waybill.store import Store

    with ExitStack() as stack:
        sources = stack.enter_context(connect_sources(config, stream_names, find))
        store = stack.enter_context(Store.of(config.storage, find))
        yield {name: Services(sources.by_stream[name], store, sources.coordinators[name]) for name in stream_names}


@contextmanager
def connect_source(
    config: Config, stream_name: str, find: FindConnection = find_connection
) -> Iterator[tuple[KafkaSource, Coordinator]]:
    """Connect the source and the coordinator of one stream. Raises the errors of `connect`."""
    with connect_sources(config, [stream_name], find) as sources:
        yield sources.by_stream[stream_name], sources.coordinators[stream_name]


@contextmanager
def connect_sources(
    config: Config, stream_names: Collection[str], find: FindConnection = find_connection
) -> Iterator[Sources]:
    """Connect Kafka and ZooKeeper for several streams. Raises the errors of `connect`."""
    from waybill.coordination import Coordinator, ZooKeeperSession
    from waybill.sources.kafka import KafkaSource

    streams = {name: config.stream(name) for name in stream_names}
    # Both connections are looked up before either is opened, so that a missing one is reported at once.
    zookeeper = ZooKeeperSession.of(config, find)
    endpoint = KafkaEndpoint.of(find(config.kafka.connection))
    with zookeeper as session, KafkaSource(endpoint) as kafka:
        yield Sources(
            session,
            kafka,
            {
                name: kafka.with_settings(stream.isolation_level, **_fetch_options(int(stream.ingest.rate_limit)))
                for name, stream in streams.items()
            },
            {name: Coordinator.sharing(session, config, name) for name in stream_names},
        )


def _fetch_options(bytes_per_second: int) -> dict[str, Any]:
    """Under a rate limit, fetch no more than a second's bytes at once, and nothing that is not paid for yet."""
    from waybill.sources.kafka import FETCH_BYTES

    return {"fetch_bytes": min(FETCH_BYTES, bytes_per_second), "fetch_ahead": False} if bytes_per_second else {}
