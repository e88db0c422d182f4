"""Helpers of the ingest tests: topics, producers, the config of one stream, and two independent readers.

`Cluster.messages` reads Kafka with confluent-kafka. `Archive.messages` decodes the backup objects with
`waybill.records.batches.decode`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, IsolationLevel, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from devstack import Stack
from waybill.archive import ingest
from waybill.archive.chain.chain import ChainObject, walk_chain
from waybill.config.connections import S3Endpoint
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, to_records
from waybill.records.batches.framing import read_frames
from waybill.services.coordination import CommittedOffset
from waybill.services.store import Store

STREAM = "drill"
_SECONDS = 20.0


@dataclass(frozen=True)
class Cluster:
    """The Kafka cluster: topics, producers and consumers."""

    bootstrap_servers: str

    def create(self, topic: str, partitions: int = 1, **settings: object) -> None:
        """Create a topic. Settings have Kafka's names, with `_` for `.`."""
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
        """Delete the records before an offset, as retention does."""
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                return self._done(self._admin.delete_records([ConfluentPartition(tp.topic, tp.partition, before)]))
            except KafkaException as error:  # on a busy machine, this client does not know the leader yet
                if "No leaders found" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def producer(self, **settings: object) -> Producer:
        """Return a producer. Settings have librdkafka's names, with `_` for `.`."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5, **config})

    def produce(
        self, tp: TopicPartition, messages: Iterable[tuple[bytes | None, bytes | None] | Record], **settings: object
    ) -> None:
        """Send pairs of key and value, or whole records without their offsets, and wait until all are acknowledged."""
        producer = self.producer(**settings)
        for message in messages:
            key, value = (message.key, message.value) if isinstance(message, Record) else message
            extra: dict[str, Any] = {}
            if isinstance(message, Record):
                extra = {"timestamp": message.timestamp_ms, "headers": list(message.headers)}
            producer.produce(tp.topic, value=value, key=key, partition=tp.partition, **extra)
        assert producer.flush(_SECONDS) == 0

    def messages(self, tp: TopicPartition, isolation_level: str = "read_committed") -> list[Record]:
        """Return every message that a consumer reads, from the start of the log to its end."""
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
        records: list[Record] = []
        try:
            consumer.assign([ConfluentPartition(tp.topic, tp.partition, 0)])
            deadline = time.monotonic() + _SECONDS
            while time.monotonic() < deadline:
                for message in consumer.consume(1000, timeout=0.2):
                    if message.error() is not None:
                        return records
                    records.append(_record(message))
        finally:
            consumer.close()
        raise AssertionError(f"{tp}: the consumer did not reach the end in {_SECONDS} s")

    def wait_for_markers(self, tp: TopicPartition) -> None:
        """Wait until no transaction is open: the broker writes markers after a commit or an abort has returned."""

        def end_offset(level: IsolationLevel) -> int:
            wanted = {ConfluentPartition(tp.topic, tp.partition): OffsetSpec.latest()}
            (future,) = self._admin.list_offsets(wanted, isolation_level=level).values()
            return int(future.result(timeout=_SECONDS).offset)

        deadline = time.monotonic() + _SECONDS
        while end_offset(IsolationLevel.READ_COMMITTED) < end_offset(IsolationLevel.READ_UNCOMMITTED):
            assert time.monotonic() < deadline, f"{tp}: a transaction is still open"
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
            current = self._admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
            if len(current) == partitions and all(p.leader > 0 for p in current.values()):
                return
            time.sleep(0.05)
        raise AssertionError(f"{topic} has no leaders after {_SECONDS} s")


def _record(message: Any) -> Record:
    kind, timestamp_ms = message.timestamp()
    assert kind in (1, TIMESTAMP_LOG_APPEND_TIME)
    return Record(message.offset(), timestamp_ms, message.key(), message.value(), list(message.headers() or []))


@dataclass(frozen=True)
class Archive:
    """The archive of one stream with its own S3 prefix and ZooKeeper root."""

    stack: Stack
    name: str
    """The S3 prefix and the ZooKeeper root, unique to a test."""
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

    def services(self) -> AbstractContextManager[ingest.IngestServices]:
        return ingest.connect(self.config, STREAM)

    def plan(self) -> list[ingest.Lane]:
        return ingest.plan_lanes(self.config, STREAM)

    def run(self) -> ingest.StreamReport:
        """Plan the lanes, run them one after the other, and return their reports as one."""
        lanes = [ingest.run_lane(self.config, lane) for lane in self.plan()]
        return one_report(lanes)

    def run_one(
        self, services: ingest.IngestServices, tp: TopicPartition, **kwargs: Any
    ) -> ingest.TopicPartitionReport:
        """Archive one topic-partition, planned or not, with services that the test may have changed."""
        share = ingest.LaneShare(stream=STREAM, topic=tp.topic, partition=tp.partition, estimated_bytes=0)
        report = ingest.drain_lane({STREAM: services}, self.config, ingest.Lane(number=0, shares=(share,)), **kwargs)
        return report.partitions[0]

    def store(self) -> Store:
        endpoint = S3Endpoint(
            endpoint_url=self.stack.s3_endpoint_url,
            access_key=self.stack.s3_access_key,
            secret_key=self.stack.s3_secret_key,
        )
        return Store(endpoint, self.stack.bucket, self.name)

    def chain(self, tp: TopicPartition) -> list[ChainObject]:
        """Return the objects of a chain, from S3 alone."""
        with self.store() as store:
            return list(walk_chain(store, 1, tp))

    def ranges(self, tp: TopicPartition) -> list[tuple[int, int]]:
        return [(each.name.first_offset, each.next_offset) for each in self.chain(tp)]

    def messages(self, tp: TopicPartition) -> list[Record]:
        """Return every message of a chain, decoded from the backup objects and clipped to their ranges."""
        records: list[Record] = []
        with self.store() as store:
            for backup in walk_chain(store, 1, tp):
                with store.open(backup.key) as stream:
                    frames = read_frames(stream, backup.key)
                    limits = {"first_offset": backup.name.first_offset, "next_offset": backup.next_offset}
                    for batch in decode(frames, where=backup.key, **limits):
                        records += to_records(batch)
        return records

    def committed(self, tp: TopicPartition) -> CommittedOffset | None:
        with self.services() as services:
            return services.coordinator.read_committed(tp)


def one_report(lanes: Iterable[ingest.LaneReport]) -> ingest.StreamReport:
    """Return the reports of the lanes of one stream as one, sorted by topic-partition."""
    reports = sorted((report for lane in lanes for report in lane.partitions), key=lambda report: report.tp)
    return ingest.StreamReport(stream=STREAM, partitions=tuple(reports))
