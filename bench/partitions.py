"""Archive the same messages from 1, 10, 100 and 1,000 topic-partitions, planned and drained by one lane.

    python bench/partitions.py [--messages N] [--partitions N] [--repeats N] [--running BUCKET] [--json FILE]

- `waybill`: plan the lanes, then one lane drains all topic-partitions. `first` is the run that starts the chains; the
  other figures are of the runs after it, each with as many new messages.
- `confluent-kafka`: a consumer's loop over the same messages. It stores and commits nothing.

CPU seconds are those of the measured process. Without `--running` the script starts Kafka, ZooKeeper and S3; with it,
connections come from the environment (AIRFLOW_CONN_…), and BUCKET must exist.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import multiprocessing
import time
from contextlib import ExitStack
from dataclasses import replace

from events import MESSAGE_BYTES, messages
from measurement import (
    MIB,
    Case,
    Row,
    Sample,
    Work,
    argument_parser,
    print_table,
    run_cases,
    run_only_case,
    write_json,
)
from services import consume_with_confluent_kafka, create_topic, produce, running_services, stream_config, topic_name

COUNTS = (1, 10, 100, 1000)
_DISTINCT = 5_000


def produce_evenly(partitions: int, count: int) -> None:
    values = itertools.islice(itertools.cycle(messages(_DISTINCT)), count)
    records = ((None, value, number % partitions) for number, value in enumerate(values))
    produce(topic_name(partitions), records, compression_type="zstd", linger_ms=500)


def waybill(case: str, arguments: argparse.Namespace) -> Work:
    from waybill.archive.ingest import connect, drain_lane, plan_lanes

    partitions, count = int(case), arguments.messages
    stream = stream_config(topic_name(case), ingest={"budget": "10m", "lanes": 1})
    cleanup = ExitStack()
    atexit.register(cleanup.close)
    connected = cleanup.enter_context(connect(stream, "bench"))

    def drain() -> Sample:
        start, cpu = time.perf_counter(), time.process_time()
        (lane,) = plan_lanes(stream, "bench")
        planned = time.perf_counter()
        report = drain_lane({"bench": connected}, stream, lane)
        end, cpu = time.perf_counter(), time.process_time() - cpu
        if report.failures or report.messages != count:
            raise RuntimeError(f"{report.messages} of {count} messages were archived; {report.failures[:1]}")
        extra = {"plan_seconds": planned - start, "lane_seconds": end - planned}
        return Sample(count, report.size_bytes, extra, seconds=end - start, cpu_seconds=cpu)

    first_seconds = drain().extra["lane_seconds"]

    def work() -> Sample:
        # In a process of its own: its CPU seconds are not the lane's.
        producer = multiprocessing.get_context("spawn").Process(target=produce_evenly, args=(partitions, count))
        producer.start()
        producer.join()
        sample = drain()
        return replace(sample, extra={**sample.extra, "first_lane_seconds": first_seconds})

    return work


def confluent_kafka(case: str, arguments: argparse.Namespace) -> Work:
    count = arguments.messages
    return lambda: Sample(count, consume_with_confluent_kafka(topic_name(case), int(case), count, timeout_seconds=0.2))


def print_costs(rows: list[Row]) -> None:
    """Print the table. The cost of a topic-partition is what it adds to the cost of the same messages in fewer."""
    fewest = {row.name: row for row in reversed(rows)}
    consumers = {row.case: row for row in rows if row.name == "confluent-kafka"}

    def milliseconds_each(row: Row, figure: str) -> str:
        least = fewest[row.name]
        if row is least:
            return ""
        return f"{(getattr(row, figure) - getattr(least, figure)) / (int(row.case) - int(least.case)) * 1e3:.2f}"

    def ratio(row: Row) -> str:
        consumer = consumers.get(row.case, row)
        return "" if consumer is row else f"{row.seconds / consumer.seconds:.1f}"

    columns = {
        "topic-partitions": lambda row: row.case,
        "name": lambda row: row.name,
        "plan ms": lambda row: f"{row.extra['plan_seconds'] * 1e3:,.0f}" if row.extra else "",
        "seconds": lambda row: f"{row.seconds:.2f}",
        "first": lambda row: f"{row.extra['first_lane_seconds']:.2f}" if row.extra else "",
        "CPU s": lambda row: f"{row.cpu_seconds:.2f}",
        "peak MiB": lambda row: f"{row.peak_rss_bytes / MIB:,.0f}",
        "ms each": lambda row: milliseconds_each(row, "seconds"),
        "CPU ms each": lambda row: milliseconds_each(row, "cpu_seconds"),
        "× confluent-kafka": ratio,
    }
    print_table("The same messages in more topic-partitions", rows, columns)


def main() -> None:
    parser = argument_parser(__doc__, repeats=3)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--partitions", type=int, action="append", help="instead of 1, 10, 100, 1000; may be repeated")
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    arguments = parser.parse_args()
    counts = arguments.partitions or COUNTS
    # The consumer comes first: Waybill's case adds messages to the topic.
    cases = {
        count: [
            Case("confluent-kafka", str(count), confluent_kafka),
            Case("waybill", str(count), waybill, warm_up=False),
        ]
        for count in counts
    }
    if arguments.only:
        run_only_case([case for pair in cases.values() for case in pair], arguments)
        return
    rows = []
    with running_services(arguments.running):
        for count in counts:
            create_topic(topic_name(count), count)
            produce_evenly(count, arguments.messages)
            rows += run_cases(cases[count], arguments)
    print(f"{arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, zstd")
    print_costs(rows)
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
