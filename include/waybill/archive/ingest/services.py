"""The services that a run works with: Kafka or Kinesis, S3 and ZooKeeper, connected once for all streams of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waybill.base.errors import ConfigError, expected
from waybill.config.connections import Connection, KafkaEndpoint, KinesisEndpoint, find_connection
from waybill.config.models import Config, Stream

if TYPE_CHECKING:
    from waybill.archive.ingest.slot_source import SlotSource
    from waybill.services.coordination import Coordinator, ZooKeeperSession
    from waybill.services.kafka.kafka import KafkaSource, StreamTopics
    from waybill.services.store import Store

logger = logging.getLogger(__name__)

FindConnection = Callable[[str], Connection]


@dataclass(frozen=True, slots=True)
class IngestServices:
    """The three services of one stream, connected."""

    source: KafkaSource | SlotSource
    """Either answers what planning and reports ask. See `kafka` and `slots` for the rest."""
    store: Store
    coordinator: Coordinator

    @property
    def kafka(self) -> KafkaSource:
        """Return the source of a stream of Kafka. Raises `ConfigError` for a stream of Kinesis."""
        return as_kafka(self.source)

    @property
    def slots(self) -> SlotSource | None:
        """Return the source of a stream of Kinesis, else None."""
        return None if _is_kafka(self.source) else self.source  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Sources:
    """Kafka or Kinesis, and ZooKeeper, connected for several streams, which is what planning needs."""

    session: ZooKeeperSession
    kafka: KafkaSource | None
    """None if no stream reads Kafka."""
    by_stream: dict[str, KafkaSource | SlotSource]
    """With the settings of each stream. Those of Kafka use the connections of `kafka`."""
    coordinators: dict[str, Coordinator]
    store: Store | None = None
    """S3, connected if a stream reads Kinesis."""

    def describe_streams(self, streams: Mapping[str, Stream], *, assigns: bool = False) -> dict[str, StreamTopics]:
        """Return the current topics of several streams: those of Kafka with one request.

        `assigns`: give slots to new shards of Kinesis.

        A stream of Kinesis that does not answer is refused alone. Raises `KafkaUnavailable` when no broker answers.
        """
        from waybill.services.kafka.kafka import StreamTopics

        of_kafka = {name: stream for name, stream in streams.items() if not stream.is_kinesis}
        found = self.kafka.describe_streams(of_kafka) if self.kafka is not None and of_kafka else {}
        for name, stream in streams.items():
            if stream.is_kinesis:
                try:
                    # Of Kafka, the same method has no such argument.
                    found |= self.by_stream[name].describe_streams({name: stream}, assigns=assigns)  # type: ignore[call-arg]
                except Exception as error:
                    failure = expected(name, error)
                    if failure is not error:
                        logger.exception("the stack trace of the problem of stream %s", name)
                    found[name] = StreamTopics({}, (), {name: failure})
        return {name: found[name] for name in streams}


@contextmanager
def connect(config: Config, stream_name: str, find: FindConnection = find_connection) -> Iterator[IngestServices]:
    """Connect a stream's services. `find` returns a connection by its id.

    Raises `ConfigError`, `KafkaUnavailable` or `CoordinationUnavailable`.
    """
    with connect_all(config, [stream_name], find) as services:
        yield services[stream_name]


@contextmanager
def connect_all(
    config: Config, stream_names: Collection[str], find: FindConnection = find_connection
) -> Iterator[dict[str, IngestServices]]:
    """Connect the services of several streams, by stream, with one connection to each. Raises the errors of `connect`.

    Use them from one thread.
    """
    from waybill.services.store import Store

    with ExitStack() as stack:
        sources = stack.enter_context(connect_sources(config, stream_names, find))
        store = sources.store or stack.enter_context(Store.of(config.storage, find))
        yield {
            name: IngestServices(sources.by_stream[name], store, sources.coordinators[name]) for name in stream_names
        }


@contextmanager
def connect_source(
    config: Config, stream_name: str, find: FindConnection = find_connection
) -> Iterator[tuple[KafkaSource | SlotSource, Coordinator]]:
    """Connect the source and the coordinator of one stream. Raises the errors of `connect`."""
    with connect_sources(config, [stream_name], find) as sources:
        yield sources.by_stream[stream_name], sources.coordinators[stream_name]


@contextmanager
def connect_sources(
    config: Config, stream_names: Collection[str], find: FindConnection = find_connection
) -> Iterator[Sources]:
    """Connect the sources of several streams, and ZooKeeper. Raises the errors of `connect`.

    For streams of Kinesis, S3 is connected, too: their slots are recorded in the archive.
    """
    from waybill.services.coordination import Coordinator, ZooKeeperSession

    streams = {name: config.stream(name) for name in stream_names}
    # All connections are looked up before one is opened, so that a missing one is reported at once.
    zookeeper = ZooKeeperSession.of(config, find)
    of_kafka = [name for name, stream in streams.items() if not stream.is_kinesis]
    endpoint = KafkaEndpoint.of(find(config.kafka.connection)) if of_kafka or not streams else None
    endpoints = {
        name: KinesisEndpoint.of(find(each.kinesis.connection)) for name, each in streams.items() if each.is_kinesis
    }
    with ExitStack() as stack:
        session = stack.enter_context(zookeeper)
        coordinators = {name: Coordinator.sharing(session, config, name) for name in stream_names}
        by_stream: dict[str, KafkaSource | SlotSource] = {}
        kafka = None
        if endpoint is not None:
            kafka = _connect_kafka(stack, endpoint)
            for name in of_kafka:
                options = _fetch_options(int(streams[name].ingest.rate_limit))
                by_stream[name] = kafka.with_settings(streams[name].isolation_level, **options)
        store = None
        if endpoints:
            store = _connect_store(stack, config, find)
            by_stream |= _connect_kinesis(stack, streams, endpoints, coordinators, store)
        yield Sources(session, kafka, by_stream, coordinators, store)


def _connect_kafka(stack: ExitStack, endpoint: KafkaEndpoint) -> KafkaSource:
    from waybill.services.kafka.kafka import KafkaSource

    return stack.enter_context(KafkaSource(endpoint))


def _connect_store(stack: ExitStack, config: Config, find: FindConnection) -> Store:
    from waybill.services.store import Store

    return stack.enter_context(Store.of(config.storage, find))


def _connect_kinesis(
    stack: ExitStack,
    streams: Mapping[str, Stream],
    endpoints: Mapping[str, KinesisEndpoint],
    coordinators: Mapping[str, Coordinator],
    store: Store,
) -> dict[str, SlotSource]:
    from waybill.archive.ingest.slot_source import SlotSource
    from waybill.services.kinesis.client import KinesisSource

    clients: dict[KinesisEndpoint, KinesisSource] = {}
    for endpoint in endpoints.values():
        if endpoint not in clients:
            clients[endpoint] = stack.enter_context(KinesisSource(endpoint))
    return {
        name: SlotSource(clients[endpoint], streams[name], store, coordinators[name])
        for name, endpoint in endpoints.items()
    }


def as_kafka(source: KafkaSource | SlotSource) -> KafkaSource:
    """Return a source of Kafka. Raises `ConfigError` for one of Kinesis."""
    if not _is_kafka(source):
        raise ConfigError("this works for streams of Kafka, and the stream has `source: kinesis`")
    return source  # type: ignore[return-value]


def _is_kafka(source: KafkaSource | SlotSource) -> bool:
    # By an attribute, since importing either module takes long, and most runs need only one of them.
    return source.is_kafka


def _fetch_options(bytes_per_second: int) -> dict[str, Any]:
    """Under a rate limit, fetch no more than a second's bytes at once, and nothing that is not paid for yet."""
    from waybill.services.kafka.kafka import FETCH_BYTES

    return {"fetch_bytes": min(FETCH_BYTES, bytes_per_second), "fetch_ahead": False} if bytes_per_second else {}
