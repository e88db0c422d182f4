"""Kafka, ZooKeeper and S3 for the scripts of bench/, and what they set up there: topics, messages, streams."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waybill.config.models import Config

BUCKET, CATALOG_FILE, S3_PID = "WAYBILL_BENCH_BUCKET", "WAYBILL_BENCH_CATALOG", "WAYBILL_BENCH_S3_PID"
"""Environment variables, which the processes of the cases inherit."""
_RUN = "WAYBILL_BENCH_RUN"
_S3_START_SECONDS = 30


@contextmanager
def running_services(bucket: str | None = None) -> Iterator[None]:
    """Put connections to Kafka, ZooKeeper and S3 into the environment; start a local stack unless `bucket` is given."""
    os.environ[_RUN] = f"{int(time.time())}"
    if bucket:
        os.environ[BUCKET] = bucket
        yield
        return
    from devstack import Stack

    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        print("starting Kafka, ZooKeeper and S3 …", file=sys.stderr)
        stack = Stack.start(Path(folder) / "stack")
        try:
            os.environ.update(stack.environment())
            os.environ[BUCKET] = stack.bucket
            yield
        finally:
            stack.stop(grace_seconds=0.0)


@contextmanager
def s3_server(folder: Path) -> Iterator[None]:
    """Run only an S3 server and a SQLite catalog in `folder`, and put the connections to both into the environment.

    The environment also gets the settings of Arrow's allocator that the sweep's job has.
    """
    from devstack.s3 import REGION, S3Server, choose_server
    from waybill.tables.spark.job import with_kept_memory

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = S3Server(choose_server(), folder, port, "bench", uuid.uuid4().hex, "bench")
    (spec,) = server.specs(folder)
    with spec.log.open("wb") as log:
        process = subprocess.Popen(spec.command, env=os.environ | spec.environment, cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _S3_START_SECONDS
        while (reason := server.why_not_ready()) is not None:
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"the S3 server does not answer: {reason}")
            time.sleep(0.1)
        catalog = folder / "catalog.db"
        extra = {"endpoint_url": server.endpoint_url, "region_name": REGION}
        aws = {"conn_type": "aws", "login": server.access_key, "password": server.secret_key, "extra": extra}
        sql = {"type": "sql", "warehouse": f"s3://{server.bucket}/warehouse"}
        iceberg = {"conn_type": "iceberg", "host": f"sqlite:///{catalog}", "extra": sql}
        os.environ |= with_kept_memory(os.environ) | {
            "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(aws),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(iceberg),
            BUCKET: server.bucket,
            CATALOG_FILE: str(catalog),
            S3_PID: str(process.pid),
        }
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def run_name() -> str:
    """Return a name that all processes of this run share, for prefixes and topics."""
    return f"bench-{os.environ[_RUN]}"


def topic_name(suffix: object) -> str:
    return f"{run_name()}-{suffix}"


def stream_config(topic: str, *, stream: str = "bench", prefix: str | None = None, **settings: object) -> Config:
    """Return the config of one stream, whose lanes archive all there is.

    Without `prefix` every call gets an S3 prefix and a ZooKeeper root of its own, so ingest starts at the first offset.
    """
    from waybill.config.models import Config

    prefix = prefix or f"bench-{uuid.uuid4().hex[:12]}"
    parser = {"name": "json", "event_time": {"field": "event_time", "format": "epoch_ms"}, "message_id": "event_id"}
    defaults = {
        "topics": [topic],
        "upload": {"max_age": "0s"},
        "ingest": {"budget": "10m"},
        "parser": parser,
        "table": "bench.messages",
    }
    document = {
        "version": 1,
        "storage": {"bucket": os.environ[BUCKET], "prefix": prefix},
        "zookeeper": {"root": prefix},
        "streams": {stream: {**defaults, **settings}},
    }
    return Config.model_validate(document)


# --- Kafka ------------------------------------------------------------------------------------------------------------


def bootstrap_servers() -> list[str]:
    from waybill.config.connections import KafkaEndpoint, find_connection

    return list(KafkaEndpoint.of(find_connection("kafka_default")).bootstrap_servers)


def create_topic(topic: str, partitions: int, **config: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": ",".join(bootstrap_servers())})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(60)


def produce(topic: str, records: Iterable[tuple[bytes | None, bytes, int]], **settings: object) -> None:
    """Produce (key, value, partition) in batches of at most 64 KB; `_` in the name of a setting stands for a dot."""
    from confluent_kafka import Producer

    servers = {"bootstrap.servers": ",".join(bootstrap_servers()), "batch.size": 64 << 10}
    producer = Producer({**servers, **{name.replace("_", "."): value for name, value in settings.items()}})
    for key, value, partition in records:
        while True:
            try:
                producer.produce(topic, key=key, value=value, partition=partition)
                break
            except BufferError:  # the producer's queue is full
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError(f"Kafka did not accept all messages of {topic}")


def consume_with_confluent_kafka(topic: str, partitions: int, count: int, timeout_seconds: float) -> int:
    """Read `count` messages with confluent-kafka's consumer; return the bytes of their values."""
    from confluent_kafka import Consumer, TopicPartition

    servers = ",".join(bootstrap_servers())
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    messages = size = 0
    while messages < count:
        for record in consumer.consume(10_000, timeout=timeout_seconds):
            messages += 1
            size += len(record.value())
    consumer.close()
    return size
