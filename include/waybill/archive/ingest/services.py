"""The services of a run: Kafka or Kinesis, S3 and ZooKeeper, connected once for all streams of the run.

Only `connect_sources` distinguishes between streams of Kafka and of Kinesis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from waybill.archive.ingest.kafka.topic_source import TopicSource
from waybill.archive.ingest.target import IngestServices, Source
from waybill.config.connections import Connection, KafkaEndpoint, KinesisEndpoint, find_connection
from waybill.config.models import Config, Stream
from waybill.services.coordination import Coordinator, ZooKeeperSession
from waybill.services.kafka.kafka import KafkaSource, StreamTopics
from waybill.services.store import Store

FindConnection = Callable[[str], Connection]


@dataclass(frozen=True, slots=True)
class Sources:
    """Kafka or Kinesis, and ZooKeeper, connected for several streams, for planning."""

    session: ZooKeeperSession
    kafka: KafkaSource | None
    """None if no stream reads Kafka."""
    by_stream: dict[str, Source]
    """The source of each stream, with the stream's settings. Kafka sources use the connections of `kafka`."""
    coordinators: dict[str, Coordinator]
    store: Store | None = None
    """S3, connected if a stream reads Kinesis."""

    def describe_streams(self, streams: Mapping[str, Stream], *, assigns: bool = False) -> dict[str, StreamTopics]:
        """Return the current topics of several streams: those of Kafka with one request.

        `assigns`: assign slots to new shards of Kinesis.

        If a Kinesis stream does not answer, only this stream is refused. Raises `KafkaUnavailable` when no broker
        answers.
        """
        together: dict[object, dict[str, Stream]] = defaultdict(dict)
        for name, stream in streams.items():
            together[self.by_stream[name].connection][name] = stream
        found: dict[str, StreamTopics] = {}
        for each in together.values():
            found |= self.by_stream[next(iter(each))].describe_streams(each, assigns=assigns)
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
    with ExitStack() as stack:
        sources = stack.enter_context(connect_sources(config, stream_names, find))
        store = sources.store or stack.enter_context(Store.of(config.storage, find))
        yield {
            name: IngestServices(sources.by_stream[name], store, sources.coordinators[name]) for name in stream_names
        }


@contextmanager
def connect_source(
    config: Config, stream_name: str, find: FindConnection = find_connection
) -> Iterator[tuple[Source, Coordinator]]:
    """Connect the source and the coordinator of one stream. Raises the errors of `connect`."""
    with connect_sources(config, [stream_name], find) as sources:
        yield sources.by_stream[stream_name], sources.coordinators[stream_name]


@contextmanager
def connect_sources(
    config: Config, stream_names: Collection[str], find: FindConnection = find_connection
) -> Iterator[Sources]:
    """Connect the sources of several streams, and ZooKeeper. Raises the errors of `connect`.

    For Kinesis streams, S3 is connected too, since their slots are recorded in the archive.
    """
    streams = {name: config.stream(name) for name in stream_names}
    of_kinesis = {name: stream for name, stream in streams.items() if stream.is_kinesis}
    of_kafka = {name: stream for name, stream in streams.items() if name not in of_kinesis}
    # Look up all connections before one is opened, so that a missing one is reported at once.
    zookeeper = ZooKeeperSession.of(config, find)
    endpoint = KafkaEndpoint.of(find(config.kafka.connection)) if of_kafka or not streams else None
    endpoints = {name: KinesisEndpoint.of(find(stream.kinesis.connection)) for name, stream in of_kinesis.items()}
    with ExitStack() as stack:
        session = stack.enter_context(zookeeper)
        coordinators = {name: Coordinator.sharing(session, config, name) for name in stream_names}
        by_stream: dict[str, Source] = {}
        kafka = store = None
        if endpoint is not None:
            kafka = stack.enter_context(TopicSource(endpoint))
            by_stream |= {name: kafka.for_stream(stream) for name, stream in of_kafka.items()}
        if endpoints:
            # Its import takes long, and most runs do not need it.
            from waybill.archive.ingest.kinesis.slot_source import connect_slots

            store = stack.enter_context(Store.of(config.storage, find))
            by_stream |= connect_slots(stack, of_kinesis, endpoints, store, coordinators)
        yield Sources(session, kafka, by_stream, coordinators, store)
