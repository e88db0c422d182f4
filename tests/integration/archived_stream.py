"""A stream of a test's own on the shared stack: a topic, a config file, a prefix, a ZooKeeper root and tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog import Catalog

from waybill.config import Config, Stream, load_config
from waybill.connections import CatalogEndpoint, S3Endpoint, ZooKeeperEndpoint, connection
from waybill.coordination import Coordinator
from waybill.ingest import LaneReport, plan_lanes, run_lane
from waybill.names import TopicPartition, ZkPaths
from waybill.partition.plan import Task
from waybill.partition.run import run_partition
from waybill.partition.task import Job, TaskResult, run_task
from waybill.store import Store
from waybill.tables import StreamTables, load_tables, open_catalog

WAYBILL = str(Path(sys.executable).with_name("waybill"))

_CONFIG = """\
version: 1
storage: {{bucket: waybill, prefix: {unique}}}
zookeeper: {{root: {unique}}}
streams:
  events:
    topics: [{topic}]
    isolation_level: {isolation_level}
    upload: {{max_bytes: {max_bytes}, max_age: 0s}}
    ingest: {{lanes: 2}}
    parser:
      event_time: {{field: time}}
      message_id: id
    table: {table}.events
    partition_by: day
"""


@dataclass(frozen=True)
class Ran:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class ArchivedStream:
    """The stream `events` over one topic. Everything it does is done by the code that a user runs."""

    name = "events"

    def __init__(
        self,
        directory: Path,
        topic: str,
        *,
        partitions: int = 2,
        max_bytes: str = "1MiB",
        isolation_level: str = "read_committed",
        topic_config: dict[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self.servers = json.loads(os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"])["extra"]["bootstrap.servers"]
        self.file = directory / "streams.yaml"
        text = _CONFIG.format(
            unique=topic,
            topic=topic,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            table="t_" + topic.rpartition("-")[2],
        )
        self.file.write_text(text)
        settings = {"retention.ms": "-1", **(topic_config or {})}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([new])[topic].result(timeout=30)

    @property
    def config(self) -> Config:
        return load_config(self.file)

    @property
    def stream(self) -> Stream:
        return self.config.stream(self.name)

    def tp(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def producer(self, **settings: Any) -> Producer:
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 5, "log_level": 2, **settings})

    def produce_events(self, count: int, *, partition: int = 0, first: int = 0) -> None:
        """JSON events with an id and a time, one day after the other."""
        producer = self.producer()
        for i in range(first, first + count):
            value = {"id": f"e{i}", "time": f"2026-01-{1 + i % 5:02d}T00:00:{i % 60:02d}Z"}
            producer.produce(self.topic, json.dumps(value).encode(), f"k{i}".encode(), partition)
            producer.poll(0)
        assert producer.flush(30) == 0

    def ingest(self) -> list[LaneReport]:
        reports = [run_lane(self.config, self.name, lane) for lane in plan_lanes(self.config, self.name)]
        assert not any(report.failures for report in reports), reports
        return reports

    def partition(self) -> None:
        run_partition(self.config, self.name, _here)

    @contextmanager
    def store(self) -> Iterator[Store]:
        config = self.config
        endpoint = S3Endpoint.of(connection(config.storage.connection))
        with Store(endpoint, config.storage.bucket, config.storage.prefix) as store:
            yield store

    @contextmanager
    def coordinator(self) -> Iterator[Coordinator]:
        config = self.config
        paths = ZkPaths(config.zookeeper.root, self.name, self.stream.generation)
        with Coordinator(ZooKeeperEndpoint.of(connection(config.zookeeper.connection)), paths) as coordinator:
            yield coordinator

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        config = self.config
        endpoint = CatalogEndpoint.of(connection(config.catalog.connection))
        with closing(open_catalog(endpoint, S3Endpoint.of(connection(config.storage.connection)))) as catalog:
            yield catalog

    @contextmanager
    def tables(self) -> Iterator[StreamTables]:
        with self.catalog() as catalog:
            tables = load_tables(catalog, self.stream)
            assert tables is not None
            yield tables

    def object_keys(self, partition: int = 0) -> list[str]:
        with self.store() as store:
            return [found.key for found in store.list_chain(self.topic, self.stream.generation, partition)]

    def waybill(self, *arguments: str, **environment: str | None) -> Ran:
        """Run the command line, as a user would from a shell."""
        return waybill(*arguments, WAYBILL_CONFIG=str(self.file), **environment)


def waybill(*arguments: str, **environment: str | None) -> Ran:
    """Run the command line; an environment variable of None is taken away."""
    variables = {**os.environ, "COLUMNS": "80", **environment}
    ran = subprocess.run(
        [WAYBILL, *arguments],
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def _here(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
    """A partition run's tasks, one after the other in this process; what Spark does besides is tested elsewhere."""
    return [run_task(job, task) for task in tasks]
