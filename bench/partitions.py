"""What a topic-partition costs: the same messages in 1, 10, 100 and 1000 of them, planned and drained by one lane.

    python bench/partitions.py [--json FILE] [--messages N] [--running BUCKET]

- `waybill`: plan the run, then one lane drains all. `first` is the run that begins the chains; the other figures are
  the medians of the runs after it, each with as many new messages, as every run but the first finds them.
- `confluent-kafka`: a consumer's loop over the same messages. It stores nothing, and commits nothing.

CPU seconds are those of the process that is measured. Without `--running` the script starts the servers, as
bench/ingest.py does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from _report import Row, argument_parser, in_fresh_process, peak_rss_bytes, write_json
from decode import MESSAGE_BYTES, message
from ingest import BUCKET, RUN, bootstrap_servers, services
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from waybill.config import Config

COUNTS = (1, 10, 100, 1000)
_DISTINCT = 5_000


def topic_of(partitions: int) -> str:
    return f"bench-{os.environ[RUN]}-{partitions}"


def create(partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": ",".join(bootstrap_servers())})
    admin.create_topics([NewTopic(topic_of(partitions), partitions, 1)])[topic_of(partitions)].result(60)


def produce(partitions: int, count: int) -> None:
    """`count` messages, the same number in each topic-partition, in batches of at most 64 KB."""
    from confluent_kafka import Producer

    chance = random.Random(7)
    messages = [message(number, chance) for number in range(_DISTINCT)]
    settings = {"compression.type": "zstd", "linger.ms": 500, "batch.size": 64 << 10}
    producer = Producer({"bootstrap.servers": ",".join(bootstrap_servers()), **settings})
    for number in range(count):
        while True:
            try:
                producer.produce(topic_of(partitions), messages[number % _DISTINCT], partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("Kafka did not take all messages")


# --- what is measured -------------------------------------------------------------------------------------------------


def config(partitions: int) -> Config:
    """A stream of one topic, with a prefix and a ZooKeeper root of its own."""
    from waybill.config import Config

    once = f"bench-{uuid.uuid4().hex[:12]}"
    stream = {
        "topics": [topic_of(partitions)],
        "upload": {"max_age": "0s"},
        "ingest": {"budget": "10m", "lanes": 1},
        "parser": {"name": "json", "event_time": {"field": "event_time", "format": "epoch_ms"}},
        "table": "bench.messages",
    }
    storage = {"bucket": os.environ[BUCKET], "prefix": once}
    return Config.model_validate(
        {"version": 1, "storage": storage, "zookeeper": {"root": once}, "streams": {"bench": stream}}
    )


def with_waybill(partitions: int, count: int, repeats: int) -> Row:
    from waybill.ingest import connect, drain_lane, plan_lanes

    stream = config(partitions)
    runs, size = [], 0
    with connect(stream, "bench") as connected:
        for number in range(repeats + 1):
            if number:
                more = [sys.executable, __file__, "--produce", str(partitions), "--messages", str(count)]
                subprocess.run(more, check=True)
            start, cpu = time.perf_counter(), time.process_time()
            (lane,) = plan_lanes(stream, "bench")
            planned = time.perf_counter()
            report = drain_lane(connected, stream, "bench", lane)
            runs.append((planned - start, time.perf_counter() - planned, time.process_time() - cpu))
            if report.failures or report.messages != count:
                raise RuntimeError(f"not all was archived: {report.messages} of {count}; {report.failures[:1]}")
            size = report.size_bytes
    plan, lane_seconds, cpu = (statistics.median(figures) for figures in zip(*runs[1:], strict=True))
    extra = {"plan_seconds": plan, "lane_seconds": lane_seconds, "first_lane_seconds": runs[0][1]}
    return Row("waybill", str(partitions), count, size, plan + lane_seconds, cpu, peak_rss_bytes(), extra)


def with_confluent_kafka(partitions: int, count: int, repeats: int) -> Row:
    from confluent_kafka import Consumer, TopicPartition

    runs, size = [], 0
    for _ in range(repeats + 1):
        start, cpu, messages, size = time.perf_counter(), time.process_time(), 0, 0
        servers = ",".join(bootstrap_servers())
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic_of(partitions), number, 0) for number in range(partitions)])
        while messages < count:
            for record in consumer.consume(10_000, timeout=0.2):
                messages += 1
                size += len(record.value())
        consumer.close()
        runs.append((time.perf_counter() - start, time.process_time() - cpu))
    seconds, cpu = (statistics.median(figures) for figures in zip(*runs[1:], strict=True))
    return Row("confluent-kafka", str(partitions), count, size, seconds, cpu, peak_rss_bytes())


NAMES = {"confluent-kafka": with_confluent_kafka, "waybill": with_waybill}


# --- the run ----------------------------------------------------------------------------------------------------------


def show(rows: list[Row]) -> None:
    """The table. A topic-partition's cost is what it adds to the same messages in one."""
    table = Table(title="The same messages in more topic-partitions", title_justify="left")
    headings = ("topic-partitions", "name", "plan ms", "seconds", "first", "CPU s", "peak MiB")
    for heading in (*headings, "ms each", "CPU ms each", "× confluent-kafka"):
        table.add_column(heading, justify="left" if heading == "name" else "right")
    for row in rows:
        count, least = int(row.case), next(r for r in rows if r.name == row.name)
        rival = next((r for r in rows if r.case == row.case and r.name == "confluent-kafka" and r is not row), None)
        more = max(count - int(least.case), 1)
        table.add_row(
            row.case,
            row.name,
            f"{float(row.extra['plan_seconds']) * 1e3:,.0f}" if "plan_seconds" in row.extra else "",
            f"{row.seconds:.2f}",
            f"{float(row.extra['first_lane_seconds']):.2f}" if "first_lane_seconds" in row.extra else "",
            f"{row.cpu_seconds:.2f}",
            f"{row.peak_rss_bytes / (1 << 20):,.0f}",
            f"{(row.seconds - least.seconds) / more * 1e3:.2f}" if row is not least else "",
            f"{(row.cpu_seconds - least.cpu_seconds) / more * 1e3:.2f}" if row is not least else "",
            f"{row.seconds / rival.seconds:.1f}" if rival else "",
        )
    Console(width=max(120, Console().width)).print(table)


def rows_of(arguments: argparse.Namespace) -> Iterator[Row]:
    for partitions in arguments.partitions or COUNTS:
        create(partitions)
        produce(partitions, arguments.messages)
        for name in NAMES:
            print(f"{name} {partitions} …", file=sys.stderr, flush=True)
            yield in_fresh_process(name, str(partitions), sys.argv[1:])


def run() -> None:
    parser = argument_parser("the cost of a topic-partition")
    parser.set_defaults(repeats=3)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--partitions", type=int, action="append", help="instead of 1, 10, 100, 1000; may be repeated")
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    parser.add_argument("--produce", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.produce:
        produce(arguments.produce, arguments.messages)
    elif arguments.only:
        name, case = arguments.only
        print(json.dumps(dataclasses.asdict(NAMES[name](int(case), arguments.messages, arguments.repeats))))
    else:
        os.environ[RUN] = f"{int(time.time())}"
        with services(arguments.running):
            rows = list(rows_of(arguments))
        print(f"{arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, zstd")
        show(rows)
        if arguments.json:
            write_json(rows, arguments.json)


if __name__ == "__main__":
    run()
