"""`rivals`: Waybill's job beside Spark jobs as people write them, over the same messages."""

from __future__ import annotations

import argparse
import io
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence

from _report import Row
from decode import MESSAGE_BYTES
from ingest import BUCKET, bootstrap_servers

from _partition.archive import BATCH, PARTITIONS, config, put, remove, store_of, topic_of
from _partition.job import BENCH, SUBMIT, waybill_job
from _partition.section import MIB, Case, Measured, Section, show

__all__ = ["RIVALS"]

# pyspark has the rest of what these need. The connector and hadoop-aws have to fit pyspark's Spark and Hadoop.
RIVAL_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
    "org.apache.hadoop:hadoop-aws:3.4.2",
)
_NEEDED_JARS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2", "hadoop-aws", "bundle")


def produce(count: int) -> None:
    """The events to Kafka, in turns to the topic's partitions, and from there to backup objects."""
    from _events import values
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from waybill.ingest import Lane, LaneShare, run_lane

    servers = {"bootstrap.servers": ",".join(bootstrap_servers())}
    topic = topic_of("rivals")
    new = NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin = AdminClient(servers)
    admin.create_topics([new])[topic].result(30)
    settings = {"compression.type": "zstd", "linger.ms": 500, "batch.size": 64 << 10}
    producer = Producer({**servers, **settings, "queue.buffering.max.messages": 100_000})
    for first in range(0, count, BATCH):
        for row in values(first, min(BATCH, count - first)):
            while True:
                try:
                    producer.produce(topic, value=row.tobytes(), partition=first // BATCH % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
    producer.flush(60)
    shares = tuple(LaneShare(topic=topic, partition=number, estimated_bytes=0) for number in range(PARTITIONS))
    report = run_lane(config("rivals"), "rivals", Lane(number=0, shares=shares))
    if report.messages != count:
        raise RuntimeError(f"not all was archived: {report}")


def spark_job(name: str, script: str, source: Callable[[], list[str]], *options: str) -> Case:
    """A rival's job from `source` to Parquet in S3."""

    def prepare(arguments: argparse.Namespace) -> Callable[[], Measured]:
        from _tree import run_tree

        settings = [part for pair in spark_settings().items() for part in ("--conf", "=".join(pair))]
        command = [*SUBMIT, "--jars", arguments.jars, *settings]

        def run() -> Measured:
            target = f"rival-{uuid.uuid4().hex[:12]}"
            path = f"s3a://{os.environ[BUCKET]}/{target}"
            tree = run_tree([*command, str(BENCH / script), *source(), path, *options])
            rows, size, files = count_rows(target)
            remove(target)
            extra = {"files": files, "file_bytes": size}
            return Measured(rows, rows * MESSAGE_BYTES, tree.seconds, tree.cpu_seconds, tree.peak_bytes, extra)

        return run

    return Case(name, "", prepare)


def kafka_topic() -> list[str]:
    return [",".join(bootstrap_servers()), topic_of("rivals")]


def sampled_objects() -> list[str]:
    from waybill import names

    stream = config("sample")
    return [f"s3a://{stream.storage.bucket}/{names.backup_prefix(stream.storage.prefix, topic_of('sample'))}*"]


def spark_settings() -> dict[str, str]:
    """What a rival's session is told: S3, zstd, memory, and the cheapest commit that these jars know."""
    from waybill.connections import S3Endpoint, find_connection

    s3 = S3Endpoint.of(find_connection("aws_default"))
    return {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.fs.s3a.endpoint": str(s3.endpoint_url),
        "spark.hadoop.fs.s3a.endpoint.region": s3.region or "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": str(s3.access_key),
        "spark.hadoop.fs.s3a.secret.key": str(s3.secret_key),
    }


def count_rows(prefix: str) -> tuple[int, int, int]:
    """Rows, bytes and files of the Parquet below a prefix, by the footers."""
    import pyarrow.parquet as pq

    with store_of(config("rivals")) as store:
        files = [store.read(key) for key in store.keys(prefix) if key.endswith(".parquet")]
    return sum(pq.read_metadata(io.BytesIO(f)).num_rows for f in files), sum(map(len, files)), len(files)


def rival_jars() -> str:
    """The jars that the rivals need and pyspark does not have, downloaded once into the stack's cache."""
    from devstack import jars, preflight

    wanted = jars.JarSet("spark-kafka-s3", RIVAL_JARS, 700)
    folder = jars.resolve(wanted, preflight.find_java(), lambda line: print(line, file=sys.stderr))
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(_NEEDED_JARS))


def show_rivals(rows: Sequence[Row]) -> None:
    ours = next((row for row in rows if row.name == "waybill"), None)
    headings = ("name", "messages", "seconds", "messages/s", "CPU s per 1 M", "peak MiB", "files")
    show(
        f"rivals: {PARTITIONS} topic-partitions, zstd, to committed files, local[2]",
        (*headings, "waybill: × messages/s", "× less CPU"),
        [
            (
                row.name,
                f"{row.messages:,}",
                f"{row.seconds:.1f}",
                f"{row.messages / row.seconds:,.0f}",
                f"{row.cpu_seconds / row.messages * 1e6:.1f}",
                f"{row.peak_rss_bytes / MIB:,.0f}",
                f"{row.extra['files']:.0f}",
                f"{ours.messages / ours.seconds / (row.messages / row.seconds):.1f}" if ours else "",
                f"{row.cpu_seconds / row.messages / (ours.cpu_seconds / ours.messages):.1f}" if ours else "",
            )
            for row in rows
        ],
    )


def _cases(_: argparse.Namespace) -> Iterator[Case]:
    yield waybill_job("rivals", "")
    yield spark_job("spark-kafka", "_spark_kafka.py", kafka_topic)
    yield spark_job("spark-kafka-all", "_spark_kafka.py", kafka_topic, "--all-fields")
    yield spark_job("binary-files", "_binary_files.py", sampled_objects)


def _make_input(arguments: argparse.Namespace) -> None:
    produce(arguments.messages)
    put("sample", messages=arguments.sample, objects=PARTITIONS)


RIVALS = Section("rivals", _cases, _make_input, show_rivals, passed_on=lambda: ("--jars", rival_jars()))
