"""The archive to a table: Waybill's partition job beside two Spark jobs as people write them, and beside its own parts.

    python bench/partition.py [--section SECTION] [--json FILE] [--repeats N] [--running BUCKET]

Sections, each a table; without `--section` all of them:

- `rivals`: the same messages, zstd record batches in several topic-partitions, to committed files on `local[2]`, from
  `spark-submit` to its end. `waybill` is the hourly job over its backup objects. `spark-kafka` reads the topic with
  Spark's Kafka source and `from_json`, to the same columns; `spark-kafka-all` to a column for every field.
  `binary-files` decodes the backup objects with kafka-python in an RDD; it is given `--sample` messages, and its rates
  are taken from those. The rivals write Parquet to S3 by s3a, which is no table and no commit: a reader sees half of it
  before the end, and a run again repeats it all.
- `parts`: what a task does, each step alone over the same messages, and the task as a whole; one thread, one core.
- `memory`: one task over objects of several sizes: the peak follows `partition.memory`.
- `data`: the whole job over 1, 4 and 16 times as much.
- `objects`: the whole job over the same messages in 10, 100, 1,000 and 10,000 backup objects.

CPU seconds and memory are those of all processes of a run, JVMs included; not of Kafka and S3. Without `--running` the
script starts Kafka, ZooKeeper and S3; with it, connections come from the environment and BUCKET must exist.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from _report import Row, argument_parser, in_fresh_process, peak_rss_bytes, write_json
from decode import MESSAGE_BYTES
from ingest import BUCKET, RUN, bootstrap_servers, services
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from waybill.config import Config
    from waybill.log.framing import Frame
    from waybill.partition.plan import Task
    from waybill.partition.run import Execute
    from waybill.partition.task import Job, TaskResult
    from waybill.store import Store

BENCH = Path(__file__).parent
BIN = Path(sys.executable).parent
SECTIONS = ("rivals", "parts", "memory", "data", "objects")
PARTITIONS = 4
_MIB = 1 << 20
ONE_TASK = {"task_bytes": "16GiB"}
_BATCH = 140  # messages of a batch: 64 KB, as bench/ingest.py produces them

# pyspark has the rest of what these need. The connector and hadoop-aws have to fit pyspark's Spark and Hadoop.
RIVAL_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
    "org.apache.hadoop:hadoop-aws:3.4.2",
)
_NEEDED_JARS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2", "hadoop-aws", "bundle")


class Measured(NamedTuple):
    """One run of a case. `bytes`: what was read."""

    messages: int
    bytes: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    extra: Mapping[str, float | str] = {}


@dataclass(frozen=True)
class Case:
    """One row of a section. `prepare` returns what is run and measured, `--repeats` times or once."""

    section: str
    name: str
    case: str
    prepare: Callable[[argparse.Namespace], Callable[[], Measured]]
    once: bool = False


# --- streams and archives ---------------------------------------------------------------------------------------------


def topic_of(what: str) -> str:
    return f"bench-{os.environ[RUN]}-{what}"


def config(what: str, **partition: object) -> Config:
    """A stream over the archive of topic `what`, with a table of its own: each call partitions from the start."""
    from waybill.config import Config

    stream: dict[str, object] = {
        "topics": [topic_of(what)],
        "upload": {"max_age": "0s"},
        "ingest": {"budget": "10m"},
        "parser": {
            "name": "json",
            "event_time": {"field": "event_time", "format": "epoch_ms"},
            "message_id": "event_id",
        },
        "partition": partition,
        "table": f"bench.t{uuid.uuid4().hex[:12]}",
    }
    once = f"bench-{os.environ[RUN]}"
    return Config.model_validate(
        {
            "version": 1,
            "storage": {"bucket": os.environ[BUCKET], "prefix": once},
            "zookeeper": {"root": once},
            "streams": {what: stream},
        }
    )


def store_of(stream: Config) -> Store:
    from waybill.store import Store

    return Store.of(stream.storage)


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
    for first in range(0, count, _BATCH):
        for row in values(first, min(_BATCH, count - first)):
            while True:
                try:
                    producer.produce(topic, value=row.tobytes(), partition=first // _BATCH % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
    producer.flush(60)
    shares = tuple(LaneShare(topic=topic, partition=number, estimated_bytes=0) for number in range(PARTITIONS))
    report = run_lane(config("rivals"), "rivals", Lane(number=0, shares=shares))
    if report.messages != count:
        raise RuntimeError(f"not all was archived: {report}")


def put(what: str, *, messages: int, objects: int, partitions: int = PARTITIONS, per_batch: int = _BATCH) -> int:
    """Backup objects that never were in Kafka, with their committed offsets; their bytes."""
    from _events import put_archive

    from waybill.coordination import Committed, Coordinator
    from waybill.names import TopicPartition

    stream = config(what)
    with store_of(stream) as store, Coordinator.of(stream, what) as coordinator:
        size, ends = put_archive(
            store, topic_of(what), messages=messages, objects=objects, partitions=partitions, per_batch=per_batch
        )
        for partition, end in enumerate(ends):
            coordinator.write_committed(TopicPartition(topic_of(what), partition), Committed(end, start_offset=0), -1)
    return size


def remove(prefix: str) -> None:
    """The objects below a prefix of the bucket: what a run has written is of no use to the next."""
    with store_of(config("rivals")) as store:
        keys = [{"Key": key} for key in store.keys(prefix)]
        for start in range(0, len(keys), 1000):
            store.client.delete_objects(Bucket=store.bucket, Delete={"Objects": keys[start : start + 1000]})


def table_prefix(stream: Config, what: str) -> str:
    """Where the files of a stream's table are."""
    from waybill.connections import CatalogEndpoint, S3Endpoint, connection
    from waybill.tables import ensure_tables, open_catalog

    endpoint = CatalogEndpoint.of(connection(stream.catalog.connection))
    catalog = open_catalog(endpoint, S3Endpoint.of(connection(stream.storage.connection)))
    location = ensure_tables(catalog, stream.streams[what]).main.location()
    catalog.close()
    return location.split("/", 3)[3] + "/"


# --- jobs: spark-submit to its end ------------------------------------------------------------------------------------


def waybill_job(section: str, what: str, case: str, *, once: bool = False) -> Case:
    """The hourly job over the archive of topic `what`."""

    def prepare(arguments: argparse.Namespace) -> Callable[[], Measured]:  # noqa: ARG001
        from _tree import run_tree

        from waybill.spark.jvm import with_brief_jvm

        def run() -> Measured:
            stream = config(what)
            with tempfile.TemporaryDirectory() as folder:
                path, report = Path(folder) / "streams.yaml", Path(folder) / "report.json"
                path.write_text(stream.model_dump_json())  # JSON is YAML
                job = [str(BENCH.parent / "spark_jobs/partition.py"), "--stream", what]
                command = [str(BIN / "spark-submit"), "--master", "local[2]", *job]
                tree = run_tree(
                    [*command, "--config", str(path), "--report", str(report)], env=with_brief_jvm(os.environ)
                )
                (done,) = json.loads(report.read_text())
            remove(table_prefix(stream, what))
            if done["quarantined"] or done["faults"]:
                raise RuntimeError(f"not all became rows: {done}")
            extra = {f"{step}_seconds": spent for step, spent in done["seconds"].items()}
            extra |= {f"{stage}_task_seconds": spent for stage, spent in done["task_seconds"].items()}
            extra |= {name: done[name] for name in ("task_cpu_seconds", "tasks", "files", "file_bytes")}
            return Measured(done["rows"], done["backup_bytes"], tree.seconds, tree.cpu_seconds, tree.peak_bytes, extra)

        return run

    return Case(section, "waybill", case, prepare, once)


def spark_job(name: str, script: str, source: Callable[[], list[str]], *options: str) -> Case:
    """A rival's job from `source` to Parquet in S3."""

    def prepare(arguments: argparse.Namespace) -> Callable[[], Measured]:
        from _tree import run_tree

        settings = [part for pair in spark_settings().items() for part in ("--conf", "=".join(pair))]
        command = [str(BIN / "spark-submit"), "--master", "local[2]", "--jars", arguments.jars, *settings]

        def run() -> Measured:
            target = f"rival-{uuid.uuid4().hex[:12]}"
            path = f"s3a://{os.environ[BUCKET]}/{target}"
            tree = run_tree([*command, str(BENCH / script), *source(), path, *options])
            rows, size, files = count_rows(target)
            remove(target)
            extra = {"files": files, "file_bytes": size}
            return Measured(rows, rows * MESSAGE_BYTES, tree.seconds, tree.cpu_seconds, tree.peak_bytes, extra)

        return run

    return Case("rivals", name, "", prepare)


def kafka_topic() -> list[str]:
    return [",".join(bootstrap_servers()), topic_of("rivals")]


def sampled_objects() -> list[str]:
    from waybill import names

    stream = config("sample")
    return [f"s3a://{stream.storage.bucket}/{names.backup_prefix(stream.storage.prefix, topic_of('sample'))}*"]


def spark_settings() -> dict[str, str]:
    """What a rival's session is told: S3, zstd, memory, and the cheapest commit that these jars know."""
    from waybill.connections import S3Endpoint, connection

    s3 = S3Endpoint.of(connection("aws_default"))
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


# --- parts of a task, on one core -------------------------------------------------------------------------------------


def part(name: str, prepare_part: Callable[[str], Callable[[], tuple[int, int]]]) -> Case:
    """One step. What is prepared gives messages and bytes."""

    def prepare(arguments: argparse.Namespace) -> Callable[[], Measured]:  # noqa: ARG001
        import pyarrow as pa

        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        work = prepare_part("parts")
        work()  # compiled, imported, connected

        def run() -> Measured:
            cpu, wall = time.process_time(), time.perf_counter()
            messages, size = work()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            return Measured(messages, size, wall, cpu, peak_rss_bytes())

        return run

    return Case("parts", name, "", prepare)


def the_keys(what: str) -> list[str]:
    from waybill import names

    stream = config(what)
    with store_of(stream) as store:
        return list(store.keys(names.backup_prefix(stream.storage.prefix, topic_of(what))))


def read_part(what: str) -> Callable[[], tuple[int, int]]:
    """The objects from S3, a megabyte at a time, and nothing done with them."""
    store, keys = store_of(config(what)), the_keys(what)

    def work() -> tuple[int, int]:
        size = 0
        for key in keys:
            with store.open(key) as stream:
                while piece := stream.read(_MIB):
                    size += len(piece)
        return 0, size

    return work


def frames_of(what: str) -> Iterator[Frame]:
    from waybill.log.framing import frames

    with store_of(config(what)) as store:
        for key in the_keys(what):
            yield from frames(store.read(key), where=key)


def decompress_part(what: str) -> Callable[[], tuple[int, int]]:
    """Every batch's records section, by cramjam, into memory that is there."""
    from waybill.log import HEADER_BYTES
    from waybill.log.compression import decompress_into

    found, room = list(frames_of(what)), memoryview(bytearray(4 * _MIB))

    def work() -> tuple[int, int]:
        messages = size = 0
        for frame in found:
            messages += frame.header.record_count
            size += decompress_into(frame.header.codec, frame.data[HEADER_BYTES:], room)
        return messages, size

    return work


def decode_part(what: str) -> Callable[[], tuple[int, int]]:
    """The same batches uncompressed: CRC, walk the records, copy them into Arrow."""
    from waybill.log import HEADER_BYTES, Codec
    from waybill.log.compression import decompress_into
    from waybill.log.decode import decode
    from waybill.log.framing import pack_batch

    room, batches = memoryview(bytearray(4 * _MIB)), []
    for frame in frames_of(what):
        size = decompress_into(frame.header.codec, frame.data[HEADER_BYTES:], room)
        batches.append(pack_batch(frame.header._replace(attributes=int(Codec.NONE)), bytes(room[:size])))
    content = b"".join(batches)

    def work() -> tuple[int, int]:
        return sum(rows.num_rows for rows in decode(content, where="parts")), len(content)

    return work


def parse_part(what: str) -> Callable[[], tuple[int, int]]:
    """Event times and message ids out of decoded messages."""
    from waybill.log.decode import decode
    from waybill.parsers import build_parser

    parser = build_parser(config(what).streams[what].parser)
    batches = list(decode(frames_of(what), where="parts"))

    def work() -> tuple[int, int]:
        for rows in batches:
            if parser.parse(rows).error.null_count != rows.num_rows:
                raise RuntimeError("an event was refused")
        return sum(rows.num_rows for rows in batches), sum(rows.column("value").nbytes for rows in batches)

    return work


def parquet_part(what: str) -> Callable[[], tuple[int, int]]:
    """The rows of the task's own files, in the order and the row groups that they have there, encoded once more."""
    tables = written_files(what)

    def work() -> tuple[int, int]:
        with tempfile.TemporaryDirectory() as folder:
            size = sum(write_parquet(Path(folder) / f"{n}", *found) for n, found in enumerate(tables))
        return sum(table.num_rows for table, _ in tables), size

    return work


def written_files(what: str) -> list[tuple[pa.Table, pq.FileMetaData]]:
    """What a run over the whole archive of a topic writes, in memory."""
    import pyarrow.parquet as pq

    stream, found = config(what, **ONE_TASK), []
    prefix = partition_here(stream, what, run_task_measured([]))
    with store_of(stream) as store:
        for key in store.keys(prefix):
            if key.endswith(".parquet"):
                content = io.BytesIO(store.read(key))
                found.append((pq.read_table(content, partitioning=None), pq.read_metadata(content)))
    remove(prefix)
    return found


def write_parquet(path: Path, table: pa.Table, like: pq.FileMetaData) -> int:
    """With the codec, dictionaries and row groups of `like`."""
    import pyarrow.parquet as pq

    columns = [like.row_group(0).column(n) for n in range(like.num_columns)]
    dictionaries = [column.path_in_schema for column in columns if column.has_dictionary_page]
    with pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=dictionaries) as writer:
        for n in range(like.num_row_groups):
            rows = like.row_group(n).num_rows
            start = sum(like.row_group(i).num_rows for i in range(n))
            writer.write_table(table.slice(start, rows), row_group_size=rows)
    return path.stat().st_size


def run_task_measured(into: list[Measured]) -> Execute:
    """Carries out tasks in this process, and notes what they took."""
    from waybill.partition.task import run_task

    def execute(job: Job, tasks: Sequence[Task]) -> Iterable[TaskResult]:
        cpu, wall = time.process_time(), time.perf_counter()
        done = [run_task(job, task) for task in tasks]
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        size = sum(span.size_bytes for task in tasks for span in task)
        into.append(Measured(sum(d.messages for d in done), size, wall, cpu, peak_rss_bytes()))
        return done

    return execute


def partition_here(stream: Config, what: str, execute: Execute) -> str:
    """A run in this process; the prefix of the table's files."""
    from waybill.partition.run import run_partition

    run_partition(stream, what, execute)
    return table_prefix(stream, what)


def whole_task(section: str, what: str, name: str, case: str = "", **partition: object) -> Case:
    """One task over all of a topic's archive, in this process: everything between S3 and S3."""

    def prepare(arguments: argparse.Namespace) -> Callable[[], Measured]:  # noqa: ARG001
        import pyarrow as pa

        if section == "parts":
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            pa.set_cpu_count(1)

        def run() -> Measured:
            found: list[Measured] = []
            remove(partition_here(config(what, **ONE_TASK, **partition), what, run_task_measured(found)))
            return found[0]

        if section == "parts":
            run()
        return run

    return Case(section, name, case, prepare, once=section != "parts")


# --- sections ---------------------------------------------------------------------------------------------------------


def cases_of(arguments: argparse.Namespace) -> Iterator[Case]:
    yield waybill_job("rivals", "rivals", "")
    yield spark_job("spark-kafka", "_spark_kafka.py", kafka_topic)
    yield spark_job("spark-kafka-all", "_spark_kafka.py", kafka_topic, "--all-fields")
    yield spark_job("binary-files", "_binary_files.py", sampled_objects)
    for name, prepare in PARTS.items():
        yield part(name, prepare)
    yield whole_task("parts", "parts", "whole task")
    for size_mib, memory_mib in MEMORY:
        yield whole_task(
            "memory", f"memory_{size_mib}", "one task", f"{size_mib} MiB, {memory_mib}", memory=f"{memory_mib}MiB"
        )
    for times in arguments.times:
        yield waybill_job("data", f"data_{times}", f"{times} ×", once=True)
    for count in arguments.objects:
        yield waybill_job("objects", f"objects_{count}", f"{count:,}", once=True)


PARTS = {
    "read from S3": read_part,
    "decompress": decompress_part,
    "decode": decode_part,
    "parse": parse_part,
    "Parquet": parquet_part,
}
MEMORY = ((16, 256), (64, 256), (256, 256), (256, 64))
_BYTES_A_MESSAGE = 104  # of the archive


def prepare_section(section: str, arguments: argparse.Namespace) -> None:
    """The input of a section, in Kafka and S3."""
    print(f"making the input of {section} …", file=sys.stderr, flush=True)
    if section == "rivals":
        produce(arguments.messages)
        put("sample", messages=arguments.sample, objects=PARTITIONS)
    elif section == "parts":
        put("parts", messages=arguments.few, objects=PARTITIONS, partitions=1)
    elif section == "memory":
        for size in sorted({size for size, _ in MEMORY}):
            largest = max(size for size, _ in MEMORY)
            messages = largest * _MIB // _BYTES_A_MESSAGE
            put(f"memory_{size}", messages=messages, objects=largest // size, partitions=1)
    elif section == "data":
        for times in arguments.times:
            put(f"data_{times}", messages=times * arguments.few, objects=times * PARTITIONS)
    else:
        for count in arguments.objects:
            put(
                f"objects_{count}",
                messages=arguments.few,
                objects=count,
                per_batch=arguments.few // max(arguments.objects),
            )


def measure(case: Case, arguments: argparse.Namespace) -> Row:
    """Medians over the repeats."""
    run = case.prepare(arguments)
    runs = [run() for _ in range(1 if case.once else arguments.repeats)]
    extra = {name: statistics.median(r.extra[name] for r in runs) for name, found in runs[0].extra.items()}
    return Row(
        name=case.name,
        case=case.case,
        messages=runs[0].messages,
        bytes=runs[0].bytes,
        seconds=statistics.median(r.seconds for r in runs),
        cpu_seconds=statistics.median(r.cpu_seconds for r in runs),
        peak_rss_bytes=max(r.peak_bytes for r in runs),
        extra={"section": case.section, **extra},
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def show(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("name", "case") else "right")
    for line in lines:
        table.add_row(*line)
    Console(width=max(130, Console().width)).print(table)


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
                f"{row.peak_rss_bytes / _MIB:,.0f}",
                f"{row.extra['files']:.0f}",
                f"{ours.messages / ours.seconds / (row.messages / row.seconds):.1f}" if ours else "",
                f"{row.cpu_seconds / row.messages / (ours.cpu_seconds / ours.messages):.1f}" if ours else "",
            )
            for row in rows
        ],
    )


def show_parts(rows: Sequence[Row]) -> None:
    messages = max(row.messages for row in rows)
    parts = [row for row in rows if row.name in PARTS]
    seconds, cpu = sum(row.seconds for row in parts), sum(row.cpu_seconds for row in parts)

    def line(name: str, spent: float, cpu_spent: float) -> tuple[str, ...]:
        each = f"{cpu_spent / messages * 1e6:.2f}"
        return name, f"{spent:.2f}", f"{cpu_spent:.2f}", each, f"{spent / seconds:.2f}", f"{cpu_spent / cpu:.2f}"

    lines = [line(row.name, row.seconds, row.cpu_seconds) for row in parts] + [line("sum of the parts", seconds, cpu)]
    lines += [line(row.name, row.seconds, row.cpu_seconds) for row in rows if row.name not in PARTS]
    headings = ("name", "seconds", "CPU s", "CPU µs a message", "× sum, seconds", "× sum, CPU")
    show(f"parts: {messages:,} messages, one thread, one core", headings, lines)


def show_memory(rows: Sequence[Row]) -> None:
    show(
        f"memory: one task over {max(size for size, _ in MEMORY)} MiB of backup",
        ("objects of MiB, partition.memory MiB", "messages", "CPU s", "peak MiB"),
        [
            (row.case, f"{row.messages:,}", f"{row.cpu_seconds:.1f}", f"{row.peak_rss_bytes / _MIB:,.0f}")
            for row in rows
        ],
    )


def show_jobs(rows: Sequence[Row]) -> None:
    steps = ("start", "plan", "tasks", "commit")
    headings = ("messages", "backup MB", "seconds", "CPU s", "peak MiB", *(f"{s} s" for s in steps), "tasks", "files")
    show(
        f"{rows[0].extra['section']}: the whole job, local[2]; its seconds by step",
        ("case", *headings),
        [
            (
                row.case,
                f"{row.messages:,}",
                f"{row.bytes / 1e6:,.0f}",
                f"{row.seconds:.1f}",
                f"{row.cpu_seconds:.1f}",
                f"{row.peak_rss_bytes / _MIB:,.0f}",
                f"{row.seconds - float(row.extra['total_seconds']):.1f}",
                *(f"{row.extra[f'{step}_seconds']:.2f}" for step in steps[1:]),
                f"{row.extra['tasks']:.0f}",
                f"{row.extra['files']:.0f}",
            )
            for row in rows
        ],
    )


SHOW = {"rivals": show_rivals, "parts": show_parts, "memory": show_memory, "data": show_jobs, "objects": show_jobs}


def run_section(section: str, arguments: argparse.Namespace) -> list[Row]:
    cases = [case for case in cases_of(arguments) if case.section == section]
    cases = [case for case in cases if not arguments.case or {case.name, case.case} & set(arguments.case)]
    prepare_section(section, arguments)
    rows = []
    for case in cases:
        print(f"{section}: {case.name} {case.case} …", file=sys.stderr, flush=True)
        options = [*sys.argv[1:], *(("--jars", rival_jars()) if section == "rivals" else ())]
        rows.append(in_fresh_process(f"{section}/{case.name}", case.case, options))
    SHOW[section](rows)
    return rows


def run() -> None:
    parser = argument_parser("the archive to a table: messages/s, CPU seconds and memory")
    parser.set_defaults(repeats=3)
    parser.add_argument("--section", action="append", choices=SECTIONS, help="only this one; may be repeated")
    parser.add_argument("--messages", type=int, default=2_000_000, help="of the rivals")
    parser.add_argument("--sample", type=int, default=200_000, help="messages of binary-files")
    parser.add_argument("--few", type=int, default=500_000, help="messages of parts and objects, and 1 × data")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16], help="of data")
    parser.add_argument("--objects", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    parser.add_argument("--jars", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        section, name = arguments.only[0].split("/")
        wanted = (section, name, arguments.only[1])
        (case,) = (case for case in cases_of(arguments) if (case.section, case.name, case.case) == wanted)
        print(json.dumps(dataclasses.asdict(measure(case, arguments))))
        return
    os.environ[RUN] = f"{int(time.time())}"
    with services(arguments.running):
        rows = [row for section in arguments.section or SECTIONS for row in run_section(section, arguments)]
    if arguments.json:
        write_json(rows, arguments.json)


if __name__ == "__main__":
    run()
