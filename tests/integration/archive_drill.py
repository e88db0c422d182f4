"""What the tests of ingest share: topics, producers, a config for one stream, and two independent readers.

What Kafka holds is read by confluent-kafka; what the archive holds by `waybill.records.decode` from the backup objects.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, IsolationLevel, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from devstack import Stack
from waybill import ingest
from waybill.archive import chain
from waybill.config import Config
from waybill.connections import S3Endpoint
from waybill.coordination import Committed
from waybill.names import TopicPartition
from waybill.records.decode import decode
from waybill.records.encode import Record, records_of
from waybill.records.framing import read_frames
from waybill.store import Store

__all__ = ["STREAM", "Archive", "Cluster"]

STREAM = "drill"
_SECONDS = 20.0


@dataclass(frozen=True)
class Cluster:
    """Kafka, from a producer's and an administrator's side."""

    bootstrap_servers: str

    def create(self, topic: str, partitions: int = 1, **settings: object) -> None:
        """Create a topic; settings are Kafka's, with `_` for `.`."""
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        self._done(self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)]))
        self._wait_for_leaders(topic, partitions)

    def delete(self, topic: str) -> None:
        self._done(self._admin.delete_topics([topic]))
        deadline = time.monotonic() + _SECONDS
        while topic in self._admin.list_topics(timeout=_SECONDS).topics:
            assert time.monotonic() < deadline, f"{topic} is not deleted"
            time.sleep(0.05)

    def add_partitions(self, topic: str, total: int) -> None:
        self._done(self._admin.create_partitions([NewPartitions(topic, total)]))
        self._wait_for_leaders(topic, total)

    def delete_records(self, tp: TopicPartition, before: int) -> None:
        """Let the log start at offset `before`, as retention does."""
        self._done(self._admin.delete_records([ConfluentPartition(tp.topic, tp.partition, before)]))

    def producer(self, **settings: object) -> Producer:
        """A producer; settings are librdkafka's, with `_` for `.`."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5, **config})

    def produce(
        self, tp: TopicPartition, messages: Iterable[tuple[bytes | None, bytes | None] | Record], **settings: object
    ) -> None:
        """Send key and value, or whole records (whose offsets are not looked at), and wait until all are there."""
        producer = self.producer(**settings)
        for message in messages:
            key, value = (message.key, message.value) if isinstance(message, Record) else message
            extra: dict[str, Any] = {}
            if isinstance(message, Record):
                extra = {"timestamp": message.timestamp_ms, "headers": list(message.headers)}
            producer.produce(tp.topic, value=value, key=key, partition=tp.partition, **extra)
        assert producer.flush(_SECONDS) == 0

    def messages(self, tp: TopicPartition, isolation_level: str = "read_committed") -> list[Record]:
        """Every message that a consumer sees, from the log's start to its end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "drill",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation_level,
                "auto.offset.reset": "earliest",
            }
        )
        found: list[Record] = []
        try:
            consumer.assign([ConfluentPartition(tp.topic, tp.partition, 0)])
            deadline = time.monotonic() + _SECONDS
            while time.monotonic() < deadline:
                for message in consumer.consume(1000, timeout=0.2):
                    if message.error() is not None:
                        return found
                    found.append(_record(message))
        finally:
            consumer.close()
        raise AssertionError(f"{tp}: no end in {_SECONDS} s")

    def wait_for_markers(self, tp: TopicPartition) -> None:
        """Wait until no transaction is open: markers are written some time after a commit or an abort returns."""

        def end(level: IsolationLevel) -> int:
            wanted = {ConfluentPartition(tp.topic, tp.partition): OffsetSpec.latest()}
            (future,) = self._admin.list_offsets(wanted, isolation_level=level).values()
            return int(future.result(timeout=_SECONDS).offset)

        deadline = time.monotonic() + _SECONDS
        while end(IsolationLevel.READ_COMMITTED) < end(IsolationLevel.READ_UNCOMMITTED):
            assert time.monotonic() < deadline, f"{tp}: a transaction is open"
            time.sleep(0.02)

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers})

    def _done(self, futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(timeout=_SECONDS)

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            found = self._admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
            if len(found) == partitions and all(p.leader > 0 for p in found.values()):
                return
            time.sleep(0.05)
        raise AssertionError(f"{topic} has no leaders after {_SECONDS} s")


def _record(message: Any) -> Record:
    kind, timestamp_ms = message.timestamp()
    assert kind in (1, TIMESTAMP_LOG_APPEND_TIME)
    return Record(message.offset(), timestamp_ms, message.key(), message.value(), list(message.headers() or []))


@dataclass(frozen=True)
class Archive:
    """One stream with a prefix and a ZooKeeper root of its own."""

    stack: Stack
    name: str
    """What keeps this test's keys and nodes apart from others'."""
    topics: Sequence[str] | Mapping[str, str]
    stream: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        stream = {
            "topics": self.topics,
            "upload": {"max_age": "0s"},
            "parser": {"name": "json", "event_time": {"field": "time"}},
            "table": "drill.messages",
        }
        return Config.model_validate(
            {
                "version": 1,
                "storage": {"bucket": self.stack.bucket, "prefix": self.name},
                "zookeeper": {"root": self.name, "session_timeout": "4s"},
                "streams": {STREAM: stream | dict(self.stream)},
            }
        )

    def services(self) -> AbstractContextManager[ingest.Services]:
        return ingest.connect(self.config, STREAM)

    def plan(self) -> list[ingest.Lane]:
        return ingest.plan_lanes(self.config, STREAM)

    def run(self) -> ingest.IngestReport:
        """One run: plan, every lane in turn, report."""
        lanes = [ingest.run_lane(self.config, STREAM, lane) for lane in self.plan()]
        return ingest.merge_reports(STREAM, lanes)

    def run_one(self, services: ingest.Services, tp: TopicPartition, **kwargs: Any) -> ingest.PartitionReport:
        """One run over one topic-partition, planned or not, with services that the test may have changed."""
        share = ingest.LaneShare(topic=tp.topic, partition=tp.partition, estimated_bytes=0)
        report = ingest.drain_lane(services, self.config, STREAM, ingest.Lane(number=0, shares=(share,)), **kwargs)
        return report.partitions[0]

    def store(self) -> Store:
        endpoint = S3Endpoint(
            endpoint_url=self.stack.s3_endpoint_url,
            access_key=self.stack.s3_access_key,
            secret_key=self.stack.s3_secret_key,
        )
        return Store(endpoint, self.stack.bucket, self.name)

    def chain(self, tp: TopicPartition) -> list[chain.ChainObject]:
        """The objects of a topic-partition's chain, without asking ZooKeeper."""
        with self.store() as store:
            return list(chain.walk(store, 1, tp))

    def ranges(self, tp: TopicPartition) -> list[tuple[int, int]]:
        return [(found.name.first_offset, found.next_offset) for found in self.chain(tp)]

    def messages(self, tp: TopicPartition) -> list[Record]:
        """Every message of the archive, decoded from the backup objects and clipped to their ranges."""
        found: list[Record] = []
        with self.store() as store:
            for backup in chain.walk(store, 1, tp):
                with store.open(backup.key) as stream:
                    frames = read_frames(stream, backup.key)
                    limits = {"first_offset": backup.name.first_offset, "next_offset": backup.next_offset}
                    for batch in decode(frames, where=backup.key, **limits):
                        found += records_of(batch)
        return found

    def committed(self, tp: TopicPartition) -> Committed | None:
        with self.services() as services:
            return services.coordinator.read_committed(tp)
