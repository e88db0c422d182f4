"""An archive in memory, and a target cluster that takes and refuses batches as Kafka's `LogValidator` does."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from kafka import errors as kafka_errors

from waybill.archive.chain.topic_settings import TopicSettings, record_topic_settings
from waybill.archive.restore import RestoreRequest
from waybill.base.errors import ObjectExists, ObjectMissing
from waybill.config.models import Config
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import Frame, TimestampType, frames
from waybill.records.batches.produced import Producer
from waybill.services.kafka.batch_producer import Batches, BatchRefused
from waybill.services.kafka.kafka import LogRange
from waybill.services.kafka.produce_request import ProduceAnswer
from waybill.services.kafka.target import NewTopic, TargetTopic
from waybill.services.store import Store
from waybill.services.store.objects import ChainId, StoredObject

GENERATION = 1
TOPIC = "flights"
TP = TopicPartition(TOPIC, 0)
HOUR_MS = 3_600_000
DEFAULTS = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": str(HOUR_MS),
    "message.timestamp.before.max.ms": str((1 << 63) - 1),
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "min.insync.replicas": "1",
    "compression.type": "producer",
}


class Stream(io.BytesIO):
    metadata: Mapping[str, str] = {}


@dataclass
class MemoryStore:
    """The part of `waybill.services.store.Store` that a restore needs."""

    prefix: str = "archive"
    objects: dict[str, bytes] = field(default_factory=dict)

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self) -> list[str]:
        return [TOPIC]

    def chains(self, topic: str) -> list[ChainId]:
        return [ChainId(TopicPartition(topic, 0), GENERATION)]

    def list_chain(
        self, topic: str, generation: int, partition: int, start_after: int | None = None
    ) -> Iterator[StoredObject]:
        for key in self.keys(f"{self.prefix}/backup/{topic}/"):
            name = BackupName.parse(key)
            after = start_after is None or name.first_offset > start_after
            if after and (name.generation, name.partition) == (generation, partition):
                yield StoredObject(name, key, len(self.objects[key]), datetime.now(UTC))

    def keys(self, prefix: str) -> Iterator[str]:
        return iter(sorted(key for key in self.objects if key.startswith(prefix)))

    def exists(self, key: str) -> bool:
        return key in self.objects

    def open(self, key: str) -> Any:
        return Stream(self.read(key))

    def read(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(f"there is no object {key}")
        return self.objects[key]

    def read_if_exists(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def read_range(self, key: str, start: int, length_bytes: int) -> bytes:
        return self.read(key)[start : start + length_bytes]

    def create_if_absent(self, key: str, data: bytes, metadata: Any = None) -> None:
        del metadata
        if key in self.objects:
            raise ObjectExists(key)
        self.objects[key] = bytes(data)

    def create_or_read_existing(self, key: str, data: bytes) -> bytes | None:
        found = self.objects.get(key)
        self.objects.setdefault(key, bytes(data))
        return found

    def archive(self, first_offset: int, *batches: bytes) -> str:
        """Store a backup object, and return its key."""
        key = BackupName(TOPIC, GENERATION, 0, first_offset).key(self.prefix)
        self.objects[key] = b"".join(batches)
        return key

    def settings(self, config: Mapping[str, str]) -> None:
        """Store the settings of the archived topic."""
        record_topic_settings(cast("Store", self), TopicSettings(TOPIC, "id", 1, config), 1)


def batch(offset: int, times: list[int], *, key: bytes | None = b"k", **options: Any) -> bytes:
    """Return a batch with a message for each time, in epoch ms."""
    records = [Record(offset + number, each, key, b"value") for number, each in enumerate(times)]
    return encode_batch(records, **options)


class FakeLog:
    """One topic-partition of the target. Configs are read from its topic at each append, as a broker does."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes, TimestampType]] = []
        self.end = 0

    def append(self, data: bytes, count: int, kind: TimestampType) -> None:
        self.frames.append((self.end, data, kind))
        self.end += count


class FakeTarget:
    """What `KafkaTarget` is for a restore. `now_ms` is the brokers' clock."""

    where = "kafka:9092"

    def __init__(self, now_ms: int, *, brokers: int = 3, unknown: Collection[str] = (), **defaults: str) -> None:
        self.now_ms, self.brokers, self.unknown = now_ms, brokers, set(unknown)
        self.defaults = {**DEFAULTS, **{key.replace("_", "."): value for key, value in defaults.items()}}
        self.topics: dict[str, TargetTopic] = {}
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.changes: list[tuple[str, dict[str, str | None]]] = []
        self.allowed: frozenset[int] = frozenset()
        self.may_create = True
        self.states_configs = True
        self.names_records = True
        self.producer = self.log = self
        self._queues: dict[TopicPartition, list[tuple[int, bytes, int]]] = {}
        self._ends: dict[TopicPartition, int] = {}

    def __enter__(self) -> FakeTarget:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    # --- topics ---

    def topic(self, name: str = TOPIC, **config: str) -> TargetTopic:
        """Create a topic; `retention_ms="-1"` stands for `retention.ms`."""
        own = {key.replace("_", "."): value for key, value in config.items()}
        self.create_topic(name, 1, -1, own)
        return self.topics[name]

    def find_topic(self, name: str) -> TargetTopic | None:
        return self.topics.get(name)

    def check_new_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> NewTopic:
        del name, partitions
        if not self.may_create:
            return NewTopic("TopicAuthorizationFailedError: no", is_forbidden=True)
        refused = sorted(set(config) & self.unknown)
        if refused:
            return NewTopic(f"InvalidConfigurationError: Unknown topic config name: {refused[0]}", True)
        replicas = min(3, self.brokers) if replication_factor < 0 else replication_factor
        if replicas > self.brokers:
            return NewTopic(f"InvalidReplicationFactorError: Unable to replicate the partition {replicas} times")
        if not self.states_configs:
            return NewTopic()
        return NewTopic(replicas=replicas, config={**self.defaults, **config})

    def create_topic(self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]) -> None:
        replicas = min(3, self.brokers) if replication_factor < 0 else replication_factor
        every = {**self.defaults, **config}
        self.topics[name] = TargetTopic(name, "an-id", partitions, every, config, self.allowed, replicas, replicas)
        for number in range(partitions):
            self.logs[TopicPartition(name, number)] = FakeLog()

    def change_config(self, name: str, config: Mapping[str, str | None]) -> None:
        self.changes.append((name, dict(config)))
        topic = self.topics[name]
        own = {**topic.own_config, **config}
        own = {key: value for key, value in own.items() if value is not None}
        self.topics[name] = replace(topic, own_config=own, config={**self.defaults, **own})

    def producer_quotas(self) -> dict[str, float]:
        return {}

    # --- the log ---

    def offsets(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        return {tp: LogRange(0, self.logs[tp].end) for tp in tps}

    def last_batch(self, tp: TopicPartition, end: int) -> Any:
        assert end == self.logs[tp].end
        return _frame(self.logs[tp].frames[-1][1]).header

    def times(self, name: str = TOPIC) -> list[int]:
        """Return the timestamps of a partition's messages."""
        return [each for _, data, _ in self.logs[TopicPartition(name, 0)].frames for each in _times(data)]

    # --- the producer ---

    def new_producer(self) -> Producer:
        return Producer(7, 0)

    def begin(self, tp: TopicPartition) -> None:
        self._queues[tp] = []

    def send(self, tp: TopicPartition, batches: Batches) -> None:
        offset = batches.first_offset
        for data, count in batches.data:
            self._queues[tp].append((offset, data, count))
            offset += count

    def wait_for_room(self, tps: Collection[TopicPartition]) -> TopicPartition:
        return next(iter(tps))

    def check(self, tp: TopicPartition, *, flush: bool = False) -> None:
        del flush
        queue = self._queues.get(tp, [])
        while queue:
            offset, data, count = queue[0]
            self._append(tp, offset, data, count)
            queue.pop(0)

    def forget(self, tp: TopicPartition) -> None:
        self._queues.pop(tp, None)

    def _append(self, tp: TopicPartition, offset: int, data: bytes, count: int) -> None:
        config, log = self.topics[tp.topic].config, self.logs[tp]
        assert offset == log.end, "a batch is missing, or comes twice"
        if len(data) > int(config["max.message.bytes"]):
            self._refuse(tp, kafka_errors.MessageSizeTooLargeError, offset, data, count, None, None)
        if "compact" in config["cleanup.policy"] and _has_no_key(data):
            self._refuse(tp, kafka_errors.InvalidRecordError, offset, data, count, 0, "no key")
        is_append_time = config["message.timestamp.type"] == "LogAppendTime"
        for number, each in enumerate(_times(data)):
            is_late = self.now_ms - each > int(config["message.timestamp.before.max.ms"])
            is_early = each - self.now_ms > int(config["message.timestamp.after.max.ms"])
            if not is_append_time and (is_late or is_early):
                named = number if self.names_records else None
                self._refuse(tp, kafka_errors.InvalidTimestampError, offset, data, count, named, "out of range")
        log.append(data, count, TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME)

    def _refuse(
        self,
        tp: TopicPartition,
        error: Any,
        offset: int,
        data: bytes,
        count: int,
        record: int | None,
        text: str | None,
    ) -> None:
        answer = ProduceAnswer(error.errno, -1, text, 0, record)
        raise BatchRefused(tp, error, answer, cast(Any, SimpleNamespace(offset=offset, batch=data, messages=count)))


def _frame(data: bytes) -> Frame:
    return next(iter(frames(data, where="the target")))


def _times(data: bytes) -> list[int]:
    found: list[int] = []
    for messages in decode(data, where="the target"):
        found += [each // 1000 for each in messages.column("timestamp").cast("int64").to_pylist()]
    return found


def _has_no_key(data: bytes) -> bool:
    return any(messages.column("key").null_count for messages in decode(data, where="the target"))


def config() -> Config:
    """Return the part of a config that a restore reads: one stream of one topic, archived from another cluster."""
    stream = SimpleNamespace(generation=GENERATION, matches=lambda name: name == TOPIC)
    return cast(
        "Config",
        SimpleNamespace(
            storage=None,
            kafka=SimpleNamespace(connection="kafka_default"),
            streams={"flights": stream},
            stream=lambda _: stream,
        ),
    )


def request(**options: Any) -> RestoreRequest:
    return RestoreRequest(stream="flights", connection="kafka_dr", **options)
