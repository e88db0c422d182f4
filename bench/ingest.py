"""Archive one topic-partition to S3: a Waybill lane, two Kafka consumers that only read, and the least possible work.

    python bench/ingest.py [--messages N] [--case CODEC_OR_NAME] [--repeats N] [--running BUCKET] [--json FILE]

- `waybill`: one lane, from the lock to the committed offset: every byte in completed S3 objects, every CRC checked.
- `waybill-recompress`, `waybill-sequencefile`, `waybill-text`: the same lane, for a stream with `recompress: zstd`, or
  with another `format` (block-compressed with zstd; text with gzip).
- `waybill-2-lanes`: the messages in two topic-partitions, with a lane in a process of its own for each.
- `waybill-cold`: the same in a new process, start-up included: interpreter, imports, connecting.
- `kafka-python`, `confluent-kafka`: their consumers' loop over the messages. They store nothing.
- `limit`: receive the same bytes from a socket, checksum them and send them to another socket.

CPU seconds are those of the measured process, not of the servers. Without `--running` the script starts Kafka,
ZooKeeper and S3; with it, connections come from the environment (AIRFLOW_CONN_…), and BUCKET must exist.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from events import MESSAGE_BYTES, messages
from measurement import (
    Case,
    Sample,
    Work,
    argument_parser,
    cpu_seconds,
    peak_rss_bytes,
    print_rates,
    run_cases,
    run_only_case,
    write_json,
)
from services import (
    bootstrap_servers,
    consume_with_confluent_kafka,
    create_topic,
    produce,
    running_services,
    stream_config,
    topic_name,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from waybill.archive.ingest import Lane, LaneReport
    from waybill.config.models import Config

CODECS = ("none", "lz4", "zstd")
SETTINGS = {
    "waybill": {},
    "waybill-recompress": {"recompress": "zstd"},
    "waybill-sequencefile": {"format": {"name": "sequencefile", "compression": "zstd"}},
    "waybill-text": {"format": {"name": "text", "compression": "gzip"}},
}
"""Of the stream, by the name of the case."""

_DISTINCT = 20_000
_PIECE_BYTES = 1 << 20


def produce_topics(codec: str, count: int) -> None:
    """Produce the messages to a topic with one topic-partition, and to one with two."""
    values = messages(_DISTINCT)
    for topic, partitions in ((topic_name(codec), 1), (topic_name(f"{codec}-2"), 2)):
        create_topic(topic, partitions)
        cycle = itertools.islice(itertools.cycle(values), count)
        records = ((b"%08d" % (n % 5000), value, n % partitions) for n, value in enumerate(cycle))
        produce(topic, records, compression_type=codec, linger_ms=50)


# --- waybill ----------------------------------------------------------------------------------------------------------


def one_lane(settings: dict[str, object], codec: str, arguments: argparse.Namespace) -> Work:
    topic = topic_name(codec)
    drain = connected_lane(stream_config(topic, **settings))
    return lambda: checked(drain(stream_config(topic, **settings), lane_of(topic)), arguments.messages)


def connected_lane(stream: Config) -> Callable[[Config, Lane], LaneReport]:
    """Return a function that drains lanes and stays connected; each call has its own S3 prefix and ZooKeeper root."""
    from waybill.archive.ingest import connect, drain_lane
    from waybill.services.coordination import ZkPaths

    cleanup = ExitStack()
    atexit.register(cleanup.close)
    services = cleanup.enter_context(connect(stream, "bench"))

    def drain(new_stream: Config, lane: Lane) -> LaneReport:
        services.store.prefix = new_stream.storage.prefix
        services.coordinator.paths = ZkPaths(new_stream.zookeeper.root, "bench", 1)
        return drain_lane({"bench": services}, new_stream, lane)

    return drain


def lane_of(topic: str, partition: int = 0) -> Lane:
    from waybill.archive.ingest import Lane, LaneShare

    return Lane(
        number=partition, shares=(LaneShare(stream="bench", topic=topic, partition=partition, estimated_bytes=0),)
    )


def checked(report: LaneReport, count: int) -> Sample:
    (partition,) = report.partitions
    if partition.failure or partition.messages != count:
        raise RuntimeError(f"{partition.messages} of {count} messages were archived: {partition}")
    return Sample(count, partition.size_bytes, {"objects": len(partition.objects)})


def two_lanes(codec: str, arguments: argparse.Namespace) -> Work:
    topic = topic_name(f"{codec}-2")
    pipes = [start_process(serve_lane, topic, partition) for partition in range(2)]

    def work() -> Sample:
        cpu = cpu_seconds()
        document = stream_config(topic).model_dump_json()
        for pipe in pipes:
            pipe.send(document)
        counts, sizes, cpu_of_lanes, peaks = zip(*(pipe.recv() for pipe in pipes), strict=True)
        if sum(counts) != arguments.messages:
            raise RuntimeError(f"{sum(counts)} of {arguments.messages} messages were archived")
        cpu = cpu_seconds() - cpu + sum(cpu_of_lanes)
        return Sample(sum(counts), sum(sizes), cpu_seconds=cpu, peak_rss_bytes=sum(peaks))

    return work


def start_process(target: Callable[..., None], *parameters: object) -> Connection:
    """Call `target(pipe, *parameters)` in a new process that ends with this one; return the other end of the pipe."""
    from multiprocessing import get_context  # here, since `waybill-cold` measures imports

    spawn = get_context("spawn")
    pipe, child_pipe = spawn.Pipe()
    spawn.Process(target=target, args=(child_pipe, *parameters), daemon=True).start()
    return pipe


def serve_lane(pipe: Connection, topic: str, partition: int) -> None:
    """Drain a lane for each config that arrives, and answer messages, bytes, CPU seconds and peak memory."""
    from waybill.config.models import Config

    drain = connected_lane(stream_config(topic))
    while True:
        try:
            document = pipe.recv()
        except EOFError:  # the measured process has ended
            return
        stream = Config.model_validate_json(document)
        cpu = time.process_time()
        report = drain(stream, lane_of(topic, partition))
        pipe.send((report.messages, report.size_bytes, time.process_time() - cpu, peak_rss_bytes()))


def cold_lane(codec: str, arguments: argparse.Namespace) -> Work:
    command = [sys.executable, __file__, "--cold", codec, "--messages", str(arguments.messages)]

    def work() -> Sample:
        process = subprocess.run(command, check=True, capture_output=True, text=True)
        return Sample(arguments.messages, int(process.stdout))

    return work


def run_cold(codec: str, count: int) -> None:
    """Run one lane in this new process, and print the bytes."""
    from waybill.archive.ingest import run_lane

    topic = topic_name(codec)
    print(checked(run_lane(stream_config(topic), lane_of(topic)), count).bytes)


# --- alternatives -----------------------------------------------------------------------------------------------------


def kafka_python(codec: str, arguments: argparse.Namespace) -> Work:
    from kafka import KafkaConsumer, TopicPartition

    def work() -> Sample:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers(), isolation_level="read_committed")
        consumer.assign([TopicPartition(topic_name(codec), 0)])
        consumer.seek_to_beginning()
        size = sum(len(record.value) for record in itertools.islice(consumer, arguments.messages))
        consumer.close()
        return Sample(arguments.messages, size)

    return work


def confluent_kafka(codec: str, arguments: argparse.Namespace) -> Work:
    count = arguments.messages
    return lambda: Sample(count, consume_with_confluent_kafka(topic_name(codec), 1, count, timeout_seconds=1.0))


def limit(codec: str, arguments: argparse.Namespace) -> Work:
    """One thread and one buffer between two sockets, whose other ends are processes that are not measured."""
    import crc32c

    pipes = [start_process(send_topic, topic_name(codec)), start_process(discard)]
    ports = [pipe.recv() for pipe in pipes]

    def work() -> Sample:
        size, crc = 0, 0
        buffer = memoryview(bytearray(_PIECE_BYTES))
        source, sink = (socket.create_connection(("127.0.0.1", port), timeout=60) for port in ports)
        with source, sink:
            while count := source.recv_into(buffer):
                crc = crc32c.crc32c(buffer[:count], crc)
                sink.sendall(buffer[:count])
                size += count
        return Sample(arguments.messages, size)

    return work


def send_topic(pipe: Connection, topic: str) -> None:
    """Hold the record batches of a topic in memory, and send them to each connection."""
    from waybill.config.connections import KafkaEndpoint, find_connection
    from waybill.config.names import TopicPartition
    from waybill.services.kafka.kafka import KafkaSource

    tp = TopicPartition(topic, 0)
    with KafkaSource(KafkaEndpoint.of(find_connection("kafka_default"))) as source:
        chunks = source.read(tp, 0, source.offsets([tp])[tp].end)
        batches = b"".join(bytes(chunk.data[: chunk.size_bytes]) for chunk in chunks)
    for connection in connections(pipe):
        connection.sendall(batches)


def discard(pipe: Connection) -> None:
    """Receive and drop what each connection sends."""
    buffer = bytearray(_PIECE_BYTES)
    for connection in connections(pipe):
        while connection.recv_into(buffer):
            pass


def connections(pipe: Connection) -> Iterator[socket.socket]:
    """Listen on a free port, send its number through the pipe, and yield each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            with connection:
                yield connection


# --- the script -------------------------------------------------------------------------------------------------------


def cases_of(codec: str) -> list[Case]:
    lanes = [Case(name, codec, partial(one_lane, settings)) for name, settings in SETTINGS.items()]
    return [
        *(case for case in lanes if case.name != "waybill-recompress" or codec == "none"),
        Case("waybill-2-lanes", codec, two_lanes),
        Case("waybill-cold", codec, cold_lane),
        Case("kafka-python", codec, kafka_python),
        Case("confluent-kafka", codec, confluent_kafka),
        Case("limit", codec, limit),
    ]


def main() -> None:
    parser = argument_parser(__doc__, repeats=3)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    parser.add_argument("--cold", metavar="CODEC", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = [case for codec in CODECS for case in cases_of(codec)]
    if arguments.cold:
        run_cold(arguments.cold, arguments.messages)
        return
    if arguments.only:
        run_only_case(cases, arguments)
        return
    with running_services(arguments.running):
        for codec in sorted(set(arguments.case or ()) & set(CODECS)) or CODECS:
            print(f"producing {arguments.messages:,} messages, {codec} …", file=sys.stderr)
            produce_topics(codec, arguments.messages)
        rows = run_cases(cases, arguments)
    title = f"Kafka to S3: {arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, one topic-partition"
    print_rates(title, rows, baseline="kafka-python")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
