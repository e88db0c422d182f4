"""Kafka to S3: a Waybill lane beside two Kafka consumers that only read, and beside the least that must be done.

    python bench/ingest.py [--json FILE] [--messages N] [--running BUCKET]

- `waybill`: one lane, from the lock to the committed offset: every byte in completed S3 objects, every CRC checked.
- `waybill-recompress`, `waybill-sequencefile`, `waybill-text`: the same lane, for a stream with `recompress: zstd`, or
  with another `format` (block-compressed with zstd; text with gzip).
- `waybill-2-lanes`: the messages in two topic-partitions, and a lane in a process of its own for each.
- `waybill-cold`: the same in a process of its own, with start-up: interpreter, imports, connecting.
- `kafka-python`, `confluent-kafka`: their consumers' loop over the messages. They store nothing.
- `limit`: the same bytes received from a socket, checksummed and sent to another socket.

CPU seconds are those of the process that is measured, not of the servers. Without `--running` the script starts Kafka,
ZooKeeper and S3; with it, connections come from the environment (AIRFLOW_CONN_…), and BUCKET must exist.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from _report import Case, Done, Work, argument_parser, main, peak_rss_bytes
from decode import MESSAGE_BYTES, message

if TYPE_CHECKING:
    from waybill.config import Config
    from waybill.ingest import Lane, LaneReport

CODECS = ("none", "lz4", "zstd")
_DISTINCT = 20_000
_BATCH_BYTES = 64 << 10
BUCKET, RUN = "WAYBILL_BENCH_BUCKET", "WAYBILL_BENCH_RUN"


def topic_of(codec: str, partitions: int = 1) -> str:
    return f"bench-{os.environ[RUN]}-{codec}" + (f"-{partitions}" if partitions > 1 else "")


def bootstrap_servers() -> list[str]:
    from waybill.connections import KafkaEndpoint, find_connection

    return list(KafkaEndpoint.of(find_connection("kafka_default")).bootstrap_servers)


def produce(codec: str, count: int, partitions: int = 1) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    servers = {"bootstrap.servers": ",".join(bootstrap_servers())}
    admin = AdminClient(servers)
    topic = topic_of(codec, partitions)
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    chance = random.Random(7)
    messages = [message(number, chance) for number in range(_DISTINCT)]
    producer = Producer({**servers, "compression.type": codec, "linger.ms": 50, "batch.size": _BATCH_BYTES})
    for number in range(count):
        key, value, partition = b"%08d" % (number % 5000), messages[number % _DISTINCT], number % partitions
        while True:
            try:
                producer.produce(topic, key=key, value=value, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)


# --- what is measured -------------------------------------------------------------------------------------------------


def config(codec: str, partitions: int = 1, **settings: object) -> Config:
    """A stream of one topic, with a prefix and a ZooKeeper root of its own: each call archives from the start."""
    from waybill.config import Config

    once = f"bench-{uuid.uuid4().hex[:12]}"
    stream = {
        **settings,
        "topics": [topic_of(codec, partitions)],
        "upload": {"max_age": "0s"},
        "ingest": {"budget": "10m"},
        "parser": {"name": "json", "event_time": {"field": "event_time", "format": "epoch_ms"}},
        "table": "bench.messages",
    }
    storage = {"bucket": os.environ[BUCKET], "prefix": once}
    return Config.model_validate(
        {"version": 1, "storage": storage, "zookeeper": {"root": once}, "streams": {"bench": stream}}
    )


def the_lane(codec: str, partitions: int = 1, number: int = 0) -> Lane:
    """The lane of one topic-partition."""
    from waybill.ingest import Lane, LaneShare

    share = LaneShare(topic=topic_of(codec, partitions), partition=number, estimated_bytes=0)
    return Lane(number=number, shares=(share,))


def checked(report: LaneReport, count: int) -> Done:
    (partition,) = report.partitions
    if partition.failure or partition.messages != count:
        raise RuntimeError(f"not all was archived: {partition}")
    return Done(partition.messages, partition.size_bytes, {"objects": len(partition.objects)})


def warm_lane(stream: Config) -> Callable[[Config, Lane], LaneReport]:
    """Lanes that run with services that stay connected, whatever prefix and root they have."""
    from waybill.ingest import connect, drain_lane
    from waybill.names import ZkPaths

    kept = ExitStack()
    atexit.register(kept.close)
    services = kept.enter_context(connect(stream, "bench"))

    def drain(fresh: Config, lane: Lane) -> LaneReport:
        services.store.prefix = fresh.storage.prefix
        services.coordinator.paths = ZkPaths(fresh.zookeeper.root, "bench", 1)
        return drain_lane(services, fresh, "bench", lane)

    return drain


def with_waybill(codec: str, name: str = "waybill", **settings: object) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        drain = warm_lane(config(codec, **settings))
        return lambda: checked(drain(config(codec, **settings), the_lane(codec)), arguments.messages)

    return Case(name, codec, prepare)


def with_recompress(codec: str) -> Case:
    return with_waybill(codec, "waybill-recompress", recompress="zstd")


def with_sequencefile(codec: str) -> Case:
    return with_waybill(codec, "waybill-sequencefile", format={"name": "sequencefile", "compression": "zstd"})


def with_text(codec: str) -> Case:
    return with_waybill(codec, "waybill-text", format={"name": "text", "compression": "gzip"})


def with_two_lanes(codec: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        lanes = [LaneProcess(codec, number) for number in range(2)]

        def work() -> Done:
            fresh = config(codec, partitions=2)
            for lane in lanes:
                lane.begin(fresh)
            done = [lane.end() for lane in lanes]
            if sum(d["messages"] for d in done) != arguments.messages:
                raise RuntimeError(f"not all was archived: {done}")
            totals = {figure: sum(d[figure] for d in done) for figure in done[0]}
            size, cpu, peak = int(totals["bytes"]), totals["cpu_seconds"], int(totals["peak_rss_bytes"])
            return Done(arguments.messages, size, {}, cpu, peak)

        return work

    return Case("waybill-2-lanes", codec, prepare)


class LaneProcess:
    """One of two lanes, in a process of its own that stays connected."""

    def __init__(self, codec: str, number: int) -> None:
        command = [sys.executable, __file__, "--lane", codec, str(number)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self, fresh: Config) -> None:
        assert self._process.stdin is not None
        print(fresh.model_dump_json(), file=self._process.stdin, flush=True)

    def end(self) -> dict[str, float]:
        assert self._process.stdout is not None
        figures: dict[str, float] = json.loads(self._process.stdout.readline())
        return figures


def run_lanes(codec: str, number: int) -> None:
    """The other side of `LaneProcess`: ends with its standard input."""
    from waybill.config import Config

    drain = warm_lane(config(codec, partitions=2))
    for line in sys.stdin:
        cpu = time.process_time()
        report = drain(Config.model_validate_json(line), the_lane(codec, 2, number))
        figures = {"messages": report.messages, "bytes": report.size_bytes, "peak_rss_bytes": peak_rss_bytes()}
        print(json.dumps({**figures, "cpu_seconds": time.process_time() - cpu}), flush=True)


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


def run() -> None:
    parser = argument_parser("Kafka to S3: messages/s and CPU seconds")
    parser.set_defaults(repeats=3)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    parser.add_argument("--cold", help=argparse.SUPPRESS)
    parser.add_argument("--lane", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    ours = (with_waybill, with_recompress, with_two_lanes, with_sequencefile, with_text, with_waybill_cold)
    makers = (*ours, with_kafka_python, with_confluent_kafka, with_limit)
    cases = [make(codec) for codec in CODECS for make in makers if make is not with_recompress or codec == "none"]
    title = f"Kafka to S3: {arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, one topic-partition"
    if arguments.lane:
        run_lanes(arguments.lane[0], int(arguments.lane[1]))
    elif arguments.cold:
        run_cold(arguments.cold, arguments.messages)
    elif arguments.only:
        main(title, cases, arguments, baseline="kafka-python")
    else:
        os.environ[RUN] = f"{int(time.time())}"
        with services(arguments.running):
            for codec in sorted(set(arguments.case or ()) & set(CODECS)) or CODECS:
                print(f"producing {arguments.messages:,} messages, {codec} …", file=sys.stderr)
                produce(codec, arguments.messages)
                produce(codec, arguments.messages, partitions=2)
            main(title, cases, arguments, baseline="kafka-python")


if __name__ == "__main__":
    run()
