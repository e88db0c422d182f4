"""Produce events to a topic from several producers, each with another compression, as in a large company."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from devstack.flights import FlightEvent
from waybill.base.errors import StackError

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

_EVENTS_IN_A_ROW = 5_000
"""So many events go to one producer: enough for full batches, few enough that each partition gets all compressions."""

_FLUSH_SECONDS = 60.0

# The acknowledgements report the outcome of each message, so librdkafka's messages about retries are not needed.
_silent = logging.getLogger("devstack.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def create_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Create the topic with three replicas, if it does not exist.

    It has no retention: the events have old timestamps, and a broker deletes a message that is older than the retention
    minutes after it was produced. Raises `StackError` if it exists with another number of partitions.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=_silent)
    config = {"retention.ms": "-1", "min.insync.replicas": "2"}
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=3, config=config)
    try:
        admin.create_topics([wanted], operation_timeout=30)[topic].result(timeout=60)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise StackError(f"topic {topic!r} cannot be created: {error.args[0].str()}") from None
        existing = admin.describe_topics(TopicCollection([topic]))[topic].result(timeout=60)
        if len(existing.partitions) != partitions:
            raise StackError(
                f"topic {topic!r} exists already, with {len(existing.partitions)} partitions instead of {partitions}"
            ) from None


def produce(
    bootstrap_servers: str, topic: str, events: Iterable[FlightEvent], on_progress: Callable[[int], None]
) -> int:
    """Produce all events, idempotently and acknowledged by all replicas, and return their number.

    `on_progress` is called now and then with the number of events given to producers so far. Raises `StackError` if an
    event is not acknowledged.
    """
    outcomes: Counter[str] = Counter()

    def delivered(error: KafkaError | None, _: Message) -> None:
        outcomes["acknowledged" if error is None else error.str()] += 1

    producers = [_producer(bootstrap_servers, compression) for compression in COMPRESSIONS]
    events = iter(events)
    produced = 0
    for producer in itertools.cycle(producers):
        chunk = list(itertools.islice(events, _EVENTS_IN_A_ROW))
        if not chunk:
            break
        for event in chunk:
            _produce(producer, topic, event, delivered)
        producer.poll(0)
        produced += len(chunk)
        on_progress(produced)
    for producer in producers:
        producer.flush(_FLUSH_SECONDS)
    acknowledged = outcomes.pop("acknowledged", 0)
    if outcomes or acknowledged != produced:
        raise StackError(f"Kafka acknowledged {acknowledged:,} of {produced:,} messages; refused: {dict(outcomes)}")
    return acknowledged


def _producer(bootstrap_servers: str, compression: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "compression.type": compression,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 256 << 10,
            "queue.buffering.max.messages": 1_000_000,
        },
        logger=_silent,
    )


def _produce(
    producer: Producer, topic: str, event: FlightEvent, delivered: Callable[[KafkaError | None, Message], None]
) -> None:
    while True:
        try:
            producer.produce(
                topic,
                key=event.key,
                value=event.value,
                timestamp=event.timestamp_ms,
                headers=list(event.headers),
                on_delivery=delivered,
            )
        except BufferError:  # the producer's queue is full: wait until it has sent some messages
            producer.poll(0.1)
        else:
            return
