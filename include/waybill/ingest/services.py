"""The services that a lane works with, connected for one stream: Kafka, S3 and ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waybill.config import Config
from waybill.connections import Connection, KafkaEndpoint, find_connection

if TYPE_CHECKING:
    from waybill.coordination import Coordinator
    from waybill.sources.kafka import KafkaSource
    from waybill.store import Store

__all__ = ["FindConnection", "Services", "connect", "connect_source"]

FindConnection = Callable[[str], Connection]


@dataclass(frozen=True, slots=True)
class Services:
    """The three services of a lane, connected."""

    source: KafkaSource
    store: Store
    coordinator: Coordinator


@contextmanager
def connect(config: Config, stream_name: str, find: FindConnection = find_connection) -> Iterator[Services]:
    """Connect a stream's services. `find` returns a connection by its id.

    Raises `ConfigError`, `KafkaUnavailable` or `CoordinationUnavailable`.
    """
    from waybill.store import Store

    with ExitStack() as stack:
        source, coordinator = stack.enter_context(connect_source(config, stream_name, find))
        store = stack.enter_context(Store.of(config.storage, find))
        yield Services(source, store, coordinator)


@contextmanager
def connect_source(
    config: Config, stream_name: str, find: FindConnection = find_connection
) -> Iterator[tuple[KafkaSource, Coordinator]]:
    """Connect the stream's source and coordinator, which is what planning needs. Raises the errors of `connect`."""
    from waybill.coordination import Coordinator
    from waybill.sources.kafka import KafkaSource

    stream = config.stream(stream_name)
    # Both connections are looked up before either is opened, so that a missing one is reported at once.
    zookeeper = Coordinator.of(config, stream_name, find)
    kafka = KafkaEndpoint.of(find(config.kafka.connection))
    with (
        zookeeper as coordinator,
        KafkaSource(kafka, stream.isolation_level, **_fetch_options(int(stream.ingest.rate_limit))) as source,
    ):
        yield source, coordinator


def _fetch_options(bytes_per_second: int) -> dict[str, Any]:
    """Under a rate limit, fetch no more than a second's bytes at once, and nothing that is not paid for yet."""
    from waybill.sources.kafka import FETCH_BYTES

    return {"fetch_bytes": min(FETCH_BYTES, bytes_per_second), "fetch_ahead": False} if bytes_per_second else {}
