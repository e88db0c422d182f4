"""A stream for one test on the shared stack, with its own topic, config file, S3 prefix, ZooKeeper root and tables."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from waybill.archive.ingest import LaneReport, plan_lanes, run_lane
from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.config.models import Config, Stream, load_config
from waybill.config.names import TopicPartition
from waybill.interfaces import cli
from waybill.services.coordination import CommittedOffset, Coordinator, ZkPaths, ZooKeeperSession
from waybill.services.store import Store
from waybill.tables.iceberg import StreamTables, load_tables, open_catalog
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.partition.tasks import Job, TaskResult, run_task

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
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class ArchivedStream:
    """The stream `events` of one topic. Its methods call the same code that a user's commands and tasks call."""

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
        """Produce JSON events with an id and a time on one of five days, in turn."""
        producer = self.producer()
        for i in range(first, first + count):
            value = {"id": f"e{i}", "time": f"2026-01-{1 + i % 5:02d}T00:00:{i % 60:02d}Z"}
            producer.produce(self.topic, json.dumps(value).encode(), f"k{i}".encode(), partition)
            producer.poll(0)
        assert producer.flush(30) == 0

    def ingest(self) -> list[LaneReport]:
        reports = [run_lane(self.config, lane) for lane in plan_lanes(self.config, self.name)]
        assert not any(report.failures for report in reports), reports
        return reports

    def partition(self) -> None:
        run_partition(self.config, self.name, _run_tasks_locally)

    @contextmanager
    def store(self) -> Iterator[Store]:
        config = self.config
        endpoint = S3Endpoint.of(find_connection(config.storage.connection))
        with Store(endpoint, config.storage.bucket, config.storage.prefix) as store:
            yield store

    @contextmanager
    def coordinator(self) -> Iterator[Coordinator]:
        config = self.config
        paths = ZkPaths(config.zookeeper.root, self.name, self.stream.generation)
        with Coordinator(ZooKeeperSession.of(config), paths) as coordinator:
            yield coordinator

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        config = self.config
        endpoint = CatalogEndpoint.of(find_connection(config.catalog.connection))
        with closing(open_catalog(endpoint, S3Endpoint.of(find_connection(config.storage.connection)))) as catalog:
            yield catalog

    @contextmanager
    def tables(self) -> Iterator[StreamTables]:
        with self.catalog() as catalog:
            tables = load_tables(catalog, self.stream)
            assert tables is not None
            yield tables

    def object_keys(self, partition: int = 0) -> list[str]:
        with self.store() as store:
            return [stored.key for stored in store.list_chain(self.topic, self.stream.generation, partition)]

    def waybill(self, *arguments: str, **environment: str | None) -> Ran:
        """Run the command line with this stream's config."""
        return waybill(*arguments, WAYBILL_CONFIG=str(self.file), **environment)


@dataclass(frozen=True)
class Checkpoint:
    """The present state of an archived stream, without Kafka, to restore it after a test has damaged it."""

    stream: ArchivedStream
    objects: dict[str, bytes]
    committed: dict[TopicPartition, CommittedOffset]
    tables: dict[str, str]
    """The metadata location of each table."""

    @classmethod
    def of(cls, stream: ArchivedStream, partitions: int) -> Checkpoint:
        with stream.store() as store, stream.coordinator() as coordinator, stream.tables() as tables:
            keys = [key for partition in range(partitions) for key in stream.object_keys(partition)]
            return cls(
                stream,
                {key: store.read(key) for key in keys},
                coordinator.list_committed(),
                {".".join(table.name()): table.metadata_location for table in (tables.main, tables.quarantine)},
            )

    def restore(self) -> None:
        """Restore the backup objects, the committed offsets and the tables."""
        with self.stream.store() as store:
            for chain in store.chains(self.stream.topic):
                for key in self.stream.object_keys(chain.tp.partition):
                    if key not in self.objects:
                        store.client.delete_object(Bucket=store.bucket, Key=key)
            for key, data in self.objects.items():
                store.client.put_object(Bucket=store.bucket, Key=key, Body=data)
        with self.stream.coordinator() as coordinator:
            for tp, committed in self.committed.items():
                found = coordinator.read_committed(tp)
                coordinator.write_committed(tp, committed, found.version if found else -1)
        with self.stream.catalog() as catalog:
            for name, location in self.tables.items():
                catalog.drop_table(name)
                catalog.register_table(name, location)


def waybill(*arguments: str, **environment: str | None) -> Ran:
    """Run the command line in this process. An environment variable of None is removed.

    This saves the seconds that `waybill_process` spends on imports.
    """
    before = os.environ.copy()
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    os.environ.update({name: value for name, value in environment.items() if value is not None})
    for name in (name for name, value in environment.items() if value is None):
        os.environ.pop(name, None)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.run(arguments)
    except SystemExit as ended:
        return Ran(int(ended.code or 0), *(stream.buffer.getvalue().decode() for stream in (out, err)))
    finally:
        os.environ.clear()
        os.environ.update(before)


def waybill_process(*arguments: str, **environment: str | None) -> Ran:
    """Run the command line in a new process, as from a shell."""
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


def add_rows(table: Table, rows: pa.Table) -> None:
    """Add rows of one day to a table, as another writer could. PyIceberg's append would need another package."""
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    with table.io.new_output(path).create() as target:
        # Without the field ids of PyIceberg's schema, which files for `add_files` must not have.
        plain = [pa.field(f.name, _plain(f.type), f.nullable) for f in rows.schema]
        pq.write_table(rows.cast(pa.schema(plain)), target)
    table.add_files([path], check_duplicate_files=False)


def remove_rows(table: Table, partition: int, first_offset: int, next_offset: int) -> None:
    """Remove the rows of a range from a table by rewriting the files that hold them."""
    wanted = f"partition = {partition} and offset >= {first_offset} and offset < {next_offset}"
    files = {task.file.file_path: task.file for task in table.scan(row_filter=wanted).plan_files()}
    for path, file in files.items():
        with table.io.new_input(path).open() as source:
            rows = pq.read_table(source)
        offset, in_partition = pc.field("offset"), pc.field("partition") == partition
        kept = rows.filter(~(in_partition & (offset >= first_offset) & (offset < next_offset)))
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            overwrite.delete_data_file(file)
        if kept.num_rows:
            add_rows(table, kept)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without the metadata of its fields."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type), kind.value_field.nullable))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type), f.nullable) for f in kind])
    return kind


def _run_tasks_locally(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
    """Run the tasks of a partition run in this process, without Spark."""
    return [run_task(job, task) for task in tasks]
