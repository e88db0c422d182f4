"""Archives to restore, and what other clients read from the restored topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from archived_stream import ArchivedStream
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType


class Message(NamedTuple):
    """A message as librdkafka's consumer gives it."""

    partition: int
    offset: int
    timestamp: tuple[int, int]
    """Its type and its time in epoch ms."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def without_offset(self) -> tuple[Any, ...]:
        return self[:1] + self[2:]


def consume(servers: str, topic: str, *, isolation: str = "read_uncommitted") -> list[Message]:
    """Return every message of a topic, by partition and offset, as librdkafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"test-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    found: list[Message] = []
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        for number in sorted(partitions):
            start, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)
            consumer.assign([TopicPartition(topic, number, start)])
            found += _read_to_end(consumer, end)
    finally:
        consumer.close()
    return found


def _read_to_end(consumer: Consumer, end: int) -> Iterator[Message]:
    while end:
        message = consumer.poll(30)
        assert message is not None, "no message for 30 s"
        if message.error():
            assert message.error().name() == "_PARTITION_EOF", message.error()
            return
        yield Message(
            message.partition(),
            message.offset(),
            message.timestamp(),
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
        )


@contextmanager
def target_topic(stream: ArchivedStream, **config: str) -> Iterator[str]:
    """Create a topic for restores with as many partitions as the archived one, and delete it at the end."""
    name = f"restored-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": stream.servers})
    partitions = len(admin.list_topics(stream.topic, timeout=30).topics[stream.topic].partitions)
    create_topic(stream.servers, name, partitions, **config)
    yield name
    admin.delete_topics([name])[name].result(timeout=30)


def create_topic(servers: str, name: str, partitions: int, **config: str) -> None:
    """Create a topic; `retention_ms="-1"` stands for `retention.ms`."""
    settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
    admin = AdminClient({"bootstrap.servers": servers})
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
    admin.create_topics([topic])[name].result(timeout=30)


def alter_config(servers: str, topic: str, **config: str) -> None:
    """Set configs of a topic, and leave the others."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(timeout=30)


def config_of(servers: str, topic: str) -> dict[str, str]:
    """Return the configs of a topic."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": servers})
    found = admin.describe_configs([resource])[resource].result(timeout=30)
    return {name: entry.value for name, entry in found.items()}
