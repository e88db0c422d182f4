"""Restore archived messages to Kafka: Waybill, and a script that decodes the objects and produces with librdkafka.

    python bench/restore.py [--messages N] [--partitions N] [--case CODEC_OR_NAME] [--repeats N] [--json FILE]

- `waybill`: `run_restore`, from the plan to the last acknowledgement: whole batches with new headers, every CRC and
  range checked, and the offset map written. Planning and the preflight are not measured.
- `confluent-kafka`: read the same objects with the same client, decode them with `waybill.records.batches.decode`, and
  call librdkafka's producer for each message (idempotent, acks=all, the same codec), until all is acknowledged.

Both write to a topic of their own for each run, with one replica. The messages were archived from batches of at most
64 KB. CPU seconds are those of the measured process, not of the servers.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import uuid
from typing import TYPE_CHECKING

from events import MESSAGE_BYTES, messages
from measurement import Case, Sample, Work, argument_parser, print_rates, run_cases, run_only_case, write_json
from services import bootstrap_servers, create_topic, produce, run_name, running_services, stream_config, topic_name

if TYPE_CHECKING:
    from waybill.config.models import Config

CODECS = ("none", "zstd")
_DISTINCT = 20_000
_CONNECTION = "kafka_default"


def config_of(codec: str) -> Config:
    return stream_config(topic_name(codec), prefix=f"{run_name()}-{codec}")


def archive(codec: str, count: int, partitions: int) -> None:
    """Produce the messages and archive them, in a prefix that all runs of a codec share."""
    from waybill.archive.ingest import plan_lanes, run_lane

    topic = topic_name(codec)
    create_topic(topic, partitions, **{"retention.ms": "-1"})
    cycle = itertools.islice(itertools.cycle(messages(_DISTINCT)), count)
    records = ((b"%08d" % (n % 5000), value, n % partitions) for n, value in enumerate(cycle))
    produce(topic, records, compression_type=codec, linger_ms=50)
    config = config_of(codec)
    for lane in plan_lanes(config, "bench"):
        run_lane(config, lane)


def new_target(codec: str, partitions: int) -> str:
    name = f"target-{codec}-{uuid.uuid4().hex[:8]}"
    create_topic(name, partitions, **{"retention.ms": "-1"})
    return name


def waybill(codec: str, arguments: argparse.Namespace) -> Work:
    from waybill.archive.restore import RestoreRequest, begin_restore, run_restore

    config = config_of(codec)
    plans = [
        begin_restore(
            config,
            RestoreRequest.parse("bench", _CONNECTION, to_topic=new_target(codec, arguments.partitions)),
            by="bench",
            reason="bench",
        )
        for _ in range(arguments.repeats + 1)
    ]

    def work() -> Sample:
        plan = plans.pop()
        results = run_restore(config, plan.id)
        count = sum(each.messages for each in results)
        if count != arguments.messages or not all(each.is_complete for each in results):
            raise RuntimeError(f"{count} of {arguments.messages} messages were restored: {results}")
        return Sample(count, plan.size_bytes, {"batches": sum(each.batches for each in results)})

    return work


def confluent_kafka(codec: str, arguments: argparse.Namespace) -> Work:
    from confluent_kafka import Producer

    from waybill.archive.chain.chain import walk_chain
    from waybill.archive.chain.spans import read_span, spans_from
    from waybill.config.names import TopicPartition
    from waybill.services.store import Store

    config = config_of(codec)
    topic = topic_name(codec)

    def work() -> Sample:
        target = new_target(codec, arguments.partitions)
        settings = {
            "bootstrap.servers": ",".join(bootstrap_servers()),
            "enable.idempotence": True,
            "compression.codec": codec,
            "linger.ms": 50,
            "batch.size": 64 << 10,
            "queue.buffering.max.messages": 200_000,
        }
        producer = Producer(settings)
        count, size = 0, 0
        with Store.of(config.storage) as store:
            for number in range(arguments.partitions):
                tp = TopicPartition(topic, number)
                for span in spans_from(tp, walk_chain(store, 1, tp), None):
                    size += span.size_bytes
                    for batch in read_span(store, span):
                        count += produce_batch(producer, target, number, batch)
        if producer.flush(120) or count != arguments.messages:
            raise RuntimeError(f"{count} of {arguments.messages} messages were restored")
        return Sample(count, size)

    return work


def produce_batch(producer: object, target: str, partition: int, batch: object) -> int:
    """Produce the messages of an Arrow RecordBatch, and return their number."""
    names = ("timestamp", "key", "value", "headers")
    columns = [batch.column(name) for name in names]  # type: ignore[attr-defined]
    times = columns[0].cast("int64").to_pylist()
    keys, values, headers = (column.to_pylist() for column in columns[1:])
    for at_us, key, value, pairs in zip(times, keys, values, headers, strict=True):
        while True:
            try:
                producer.produce(  # type: ignore[attr-defined]
                    target,
                    value,
                    key,
                    partition,
                    timestamp=at_us // 1000,
                    headers=[(pair["key"], pair["value"]) for pair in pairs],
                )
                break
            except BufferError:
                producer.poll(0.1)  # type: ignore[attr-defined]
    producer.poll(0)  # type: ignore[attr-defined]
    return len(times)


def main() -> None:
    parser = argument_parser(__doc__, repeats=3)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    arguments = parser.parse_args()
    cases = [
        Case(name, codec, work)
        for codec in CODECS
        for name, work in (("waybill", waybill), ("confluent-kafka", confluent_kafka))
    ]
    if arguments.only:
        run_only_case(cases, arguments)
        return
    with running_services(arguments.running):
        for codec in sorted(set(arguments.case or ()) & set(CODECS)) or CODECS:
            print(f"archiving {arguments.messages:,} messages, {codec} …", file=sys.stderr)
            archive(codec, arguments.messages, arguments.partitions)
        rows = run_cases(cases, arguments)
    title = (
        f"Archive to Kafka: {arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, "
        f"{arguments.partitions} topic-partitions"
    )
    print_rates(title, rows, baseline="confluent-kafka")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
