"""Kafka to S3: a Waybill lane beside two Kafka consumers that only read, and beside the least that must be done.

    python bench/ingest.py [--json FILE] [--messages N] [--running BUCKET]

- `waybill`: one lane, from the lock to the committed offset: every byte in completed S3 objects, every CRC checked.
- `waybill-cold`: the same in a process of its own, with start-up: interpreter, imports, connecting.
- `kafka-python`, `confluent-kafka`: their consumers' loop over the messages. They store nothing.
- `limit`: the same bytes received from a socket, checksummed and sent to another socket.

CPU seconds are those of the process that is measured, not of the servers. Without `--running` the script starts Kafka,
ZooKeeper and S3; with it, connections come from the environment (AIRFLOW_CONN_…), and BUCKET must exist.
"""

from __future__ import annotations

import argparse
import atexit
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from _report import Case, Done, Work, argument_parser, main
from decode import MESSAGE_BYTES, message

if TYPE_CHECKING:
    from waybill.config import Config
    from waybill.ingest import Lane, LaneReport

CODECS = ("none", "lz4", "zstd")
_DISTINCT = 20_000
_BATCH_BYTES = 64 << 10
_BUCKET, _RUN = "WAYBILL_BENCH_BUCKET", "WAYBILL_BENCH_RUN"


def topic_of(codec: str) -> str:
    return f"bench-{os.environ[_RUN]}-{codec}"


def bootstrap_servers() -> list[str]:
    from waybill.connections import KafkaEndpoint, connection

    return list(KafkaEndpoint.of(connection("kafka_default")).bootstrap_servers)


def produce(codec: str, count: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    servers = {"bootstrap.servers": ",".join(bootstrap_servers())}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(topic_of(codec), 1, 1)])[topic_of(codec)].result(30)
    chance = random.Random(7)
    messages = [message(number, chance) for number in range(_DISTINCT)]
    producer = Producer({**servers, "compression.type": codec, "linger.ms": 50, "batch.size": _BATCH_BYTES})
    for number in range(count):
        while True:
            try:
                producer.produce(topic_of(codec), key=b"%08d" % (number % 5000), value=messages[number % _DISTINCT])
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)


# --- what is measured -------------------------------------------------------------------------------------------------


def config(codec: str) -> Config:
    """A stream of one topic, with a prefix and a ZooKeeper root of its own: each call archives from the start."""
    from waybill.config import Config

    once = f"bench-{uuid.uuid4().hex[:12]}"
    stream = {
        "topics": [topic_of(codec)],
        "upload": {"max_age": "0s"},
        "ingest": {"budget": "10m"},
        "parser": {"name": "json", "event_time": {"field": "event_time", "format": "epoch_ms"}},
        "table": "bench.messages",
    }
    storage = {"bucket": os.environ[_BUCKET], "prefix": once}
    return Config.model_validate(
        {"version": 1, "storage": storage, "zookeeper": {"root": once}, "streams": {"bench": stream}}
    )


def the_lane(codec: str) -> Lane:
    from waybill.ingest import Lane, LaneShare

    return Lane(number=0, shares=(LaneShare(topic=topic_of(codec), partition=0, estimated_bytes=0),))


def checked(report: LaneReport, count: int) -> Done:
    (partition,) = report.partitions
    if partition.failure or partition.messages != count:
        raise RuntimeError(f"not all was archived: {partition}")
    return Done(partition.messages, partition.size_bytes, {"objects": len(partition.objects)})


def with_waybill(codec: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        from waybill.ingest import connect, drain_lane
        from waybill.names import ZkPaths

        kept = ExitStack()
        atexit.register(kept.close)
        services = kept.enter_context(connect(config(codec), "bench"))

        def work() -> Done:
            fresh = config(codec)
            services.store.prefix = fresh.storage.prefix
            services.coordinator.paths = ZkPaths(fresh.zookeeper.root, "bench", 1)
            return checked(drain_lane(services, fresh, "bench", the_lane(codec)), arguments.messages)

        return work

    return Case("waybill", codec, prepare)


def with_waybill_cold(codec: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        command = [sys.executable, __file__, "--cold", codec, "--messages", str(arguments.messages)]

        def work() -> Done:
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            return Done(arguments.messages, int(done.stdout))

        return work

    return Case("waybill-cold", codec, prepare)


def run_cold(codec: str, count: int) -> None:
    from waybill.ingest import run_lane

    print(checked(run_lane(config(codec), "bench", the_lane(codec)), count).bytes)


def with_kafka_python(codec: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        from kafka import KafkaConsumer, TopicPartition

        def work() -> Done:
            consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers(), isolation_level="read_committed")
            consumer.assign([TopicPartition(topic_of(codec), 0)])
            consumer.seek_to_beginning()
            messages = size = 0
            for record in consumer:
                messages += 1
                size += len(record.value)
                if messages == arguments.messages:
                    break
            consumer.close()
            return Done(messages, size)

        return work

    return Case("kafka-python", codec, prepare)


def with_confluent_kafka(codec: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        from confluent_kafka import Consumer, TopicPartition

        def work() -> Done:
            servers = ",".join(bootstrap_servers())
            consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
            consumer.assign([TopicPartition(topic_of(codec), 0, 0)])
            messages = size = 0
            while messages < arguments.messages:
                for record in consumer.consume(10_000, timeout=1.0):
                    messages += 1
                    size += len(record.value())
            consumer.close()
            return Done(messages, size)

        return work

    return Case("confluent-kafka", codec, prepare)


def with_limit(codec: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        from _limit import Limit

        limit = Limit(topic_of(codec))
        return lambda: Done(arguments.messages, limit.run())

    return Case("limit", codec, prepare)


# --- the run ----------------------------------------------------------------------------------------------------------


@contextmanager
def services(bucket: str | None) -> Iterator[None]:
    """The services in the environment: those that run, or a stack that is started here."""
    if bucket:
        os.environ[_BUCKET] = bucket
        yield
        return
    from devstack import Stack

    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        print("starting Kafka, ZooKeeper and S3 …", file=sys.stderr)
        stack = Stack.start(Path(folder) / "stack")
        try:
            os.environ.update(stack.environment())
            os.environ[_BUCKET] = stack.bucket
            yield
        finally:
            stack.stop(grace_seconds=0.0)


def run() -> None:
    parser = argument_parser("Kafka to S3: messages/s and CPU seconds")
    parser.set_defaults(repeats=3)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    parser.add_argument("--cold", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    makers = (with_waybill, with_waybill_cold, with_kafka_python, with_confluent_kafka, with_limit)
    cases = [make(codec) for codec in CODECS for make in makers]
    title = f"Kafka to S3: {arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, one topic-partition"
    if arguments.cold:
        run_cold(arguments.cold, arguments.messages)
    elif arguments.only:
        main(title, cases, arguments, baseline="kafka-python")
    else:
        os.environ[_RUN] = f"{int(time.time())}"
        with services(arguments.running):
            for codec in sorted(set(arguments.case or ()) & set(CODECS)) or CODECS:
                print(f"producing {arguments.messages:,} messages, {codec} …", file=sys.stderr)
                produce(codec, arguments.messages)
            main(title, cases, arguments, baseline="kafka-python")


if __name__ == "__main__":
    run()
