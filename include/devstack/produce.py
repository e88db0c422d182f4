"""Puts events on a topic the way a busy company does: from several producers, each with a compression of its own."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from devstack.flights import FlightEvent
from waybill.errors import StackError

__all__ = ["COMPRESSIONS", "create_topic", "produce"]

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

_RUN_OF_EVENTS = 5_000
"""How many events in a row one producer gets: enough for full batches, few enough for all codecs on each partition."""

_FLUSH_SECONDS = 60.0

# What becomes of a message is known from its acknowledgement; librdkafka's account of each retry would only alarm.
_silent = logging.getLogger("devstack.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def create_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Create the topic, three times replicated, if it is not there yet.

    Retention is without limit: the events carry timestamps of long ago, and a broker deletes what is older than its
    retention minutes after it was produced.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=_silent)
    config = {"retention.ms": "-1", "min.insync.replicas": "2"}
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=3, config=config)
    try:
        admin.create_topics([wanted], operation_timeout=30)[topic].result(timeout=60)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise StackError(f"topic {topic!r} cannot be created: {error.args[0].str()}") from None
        found = admin.describe_topics(TopicCollection([topic]))[topic].result(timeout=60)
        if len(found.partitions) != partitions:
            raise StackError(
                f"topic {topic!r} is there already, with {len(found.partitions)} partitions instead of {partitions}"
            ) from None


def produce(
    bootstrap_servers: str, topic: str, events: Iterable[FlightEvent], on_progress: Callable[[int], None]
) -> int:
    """Produce all events, idempotently and acknowledged by all replicas; returns how many were acknowledged.

    `on_progress` gets the number handed over so far, now and then. Raises `StackError` if any was refused.
    """
    outcomes: Counter[str] = Counter()

    def delivered(error: KafkaError | None, _: Message) -> None:
        outcomes["acknowledged" if error is None else error.str()] += 1

    producers = [_producer(bootstrap_servers, compression) for compression in COMPRESSIONS]
    events = iter(events)
    handed_over = 0
    for producer in itertools.cycle(producers):
        run = list(itertools.islice(events, _RUN_OF_EVENTS))
        if not run:
            break
        for event in run:
            _produce(producer, topic, event, delivered)
        producer.poll(0)
        handed_over += len(run)
        on_progress(handed_over)
    for producer in producers:
        producer.flush(_FLUSH_SECONDS)
    acknowledged = outcomes.pop("acknowledged", 0)
    if outcomes or acknowledged != handed_over:
        raise StackError(f"Kafka acknowledged {acknowledged:,} of {handed_over:,} messages; refused: {dict(outcomes)}")
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
        except BufferError:  # the producer's queue is full: let it send
            producer.poll(0.1)
        else:
            return
