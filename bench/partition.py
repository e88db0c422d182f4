"""Turn the archive into table rows: Waybill's partition job, Spark jobs as people write them, and the job's own steps.

    python bench/partition.py [--section SECTION] [--messages N] [--repeats N] [--running BUCKET] [--json FILE]

Each section prints a table; without `--section` all of them run:

- `rivals`: the same messages, zstd record batches in several topic-partitions, to committed files on `local[2]`, from
  the start of `spark-submit` to its end. `waybill` is the hourly job over its backup objects. `spark-kafka` reads the
  topic with Spark's Kafka source and `from_json`, to the same columns; `spark-kafka-all` to a column for every field.
  `binary-files` decodes the backup objects with kafka-python in an RDD, and gets only `--sample` messages. The
  alternatives write Parquet files to S3 by s3a, without a table or an atomic commit.
- `parts`: each step of a task alone over the same messages, and the whole task; one thread, one core.
- `memory`: one task over objects of several sizes: the peak follows `partition.memory`.
- `data`: the whole job over 1, 4 and 16 times as many messages.
- `objects`: the whole job over the same messages in 10, 100, 1,000 and 10,000 backup objects.

CPU seconds and memory are those of all processes of a job, JVMs included, but not of Kafka and S3. Without `--running`
the script starts Kafka, ZooKeeper and S3; with it, connections come from the environment (AIRFLOW_CONN_…), and BUCKET
must exist.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from events import BATCH_MESSAGES, MESSAGE_BYTES, event_values, put_archive
from measurement import (
    MIB,
    Case,
    Row,
    Sample,
    Work,
    argument_parser,
    peak_rss_bytes,
    print_rates,
    print_table,
    run_cases,
    run_command,
    run_only_case,
    write_json,
)
from services import (
    BUCKET,
    bootstrap_servers,
    create_topic,
    produce,
    run_name,
    running_services,
    stream_config,
    topic_name,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from waybill.config.models import Config
    from waybill.records.batches.framing import Frame
    from waybill.services.store import Store
    from waybill.tables.partition.execute import Execute
    from waybill.tables.partition.partition_plan import Task
    from waybill.tables.partition.tasks import Job, TaskResult

PARTITIONS = 4
MEMORY_SIZES = ((16, 256), (64, 256), (256, 256), (256, 64))
"""MiB of a backup object, and of `partition.memory`."""

_MEMORY_INPUT_BYTES = 256 * MIB
_ARCHIVED_MESSAGE_BYTES = 104
_ONE_TASK = {"task_bytes": "16GiB"}
_ROOT = Path(__file__).parents[1]
_SPARK_SUBMIT = (str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]")
# The connector and hadoop-aws have to fit the versions of Spark and Hadoop; pyspark has the other jars.
_JARS = ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0", "org.apache.hadoop:hadoop-aws:3.4.2")
_JAR_FILES = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2", "hadoop-aws", "bundle")


# --- archives ---------------------------------------------------------------------------------------------------------


def config_of(name: str, **partition: object) -> Config:
    """Return the config of stream `name` over the archive of its topic; each call has a new, empty table."""
    table = f"bench.t{uuid.uuid4().hex[:12]}"
    return stream_config(topic_name(name), stream=name, prefix=run_name(), table=table, partition=partition)


def open_store() -> Store:
    from waybill.services.store import Store

    return Store.of(config_of("store").storage)


def create_archive(
    name: str, *, messages: int, objects: int, partitions: int = PARTITIONS, per_batch: int = BATCH_MESSAGES
) -> None:
    """Create the backup objects of stream `name` and its committed offsets, without Kafka."""
    from waybill.config.names import TopicPartition
    from waybill.services.coordination import CommittedOffset, Coordinator

    stream, topic = config_of(name), topic_name(name)
    with open_store() as store, Coordinator.of(stream, name) as coordinator:
        _, ends = put_archive(
            store, topic, messages=messages, objects=objects, partitions=partitions, per_batch=per_batch
        )
        for partition, end in enumerate(ends):
            coordinator.write_committed(TopicPartition(topic, partition), CommittedOffset(end, start_offset=0), -1)


def backup_keys(name: str) -> list[str]:
    from waybill.config import names

    with open_store() as store:
        return list(store.keys(names.backup_prefix(store.prefix, topic_name(name))))


def remove(prefix: str) -> None:
    """Remove the objects below a prefix of the bucket, which no later repeat needs."""
    with open_store() as store:
        keys = [{"Key": key} for key in store.keys(prefix)]
        for start in range(0, len(keys), 1000):
            store.client.delete_objects(Bucket=store.bucket, Delete={"Objects": keys[start : start + 1000]})


def table_prefix(stream: Config, name: str) -> str:
    """Return the prefix of the files of the stream's table."""
    from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
    from waybill.tables.iceberg import ensure_tables, open_catalog

    endpoint = CatalogEndpoint.of(find_connection(stream.catalog.connection))
    catalog = open_catalog(endpoint, S3Endpoint.of(find_connection(stream.storage.connection)))
    location = ensure_tables(catalog, stream.streams[name]).main.location()
    catalog.close()
    return location.split("/", 3)[3] + "/"


# --- the whole job ----------------------------------------------------------------------------------------------------


def whole_job(name: str, *_: object) -> Work:
    """Waybill's hourly job over the archive of stream `name`, from the start of spark-submit to its end."""
    from waybill.tables.spark.job import with_brief_jvm

    def work() -> Sample:
        stream = config_of(name)
        with tempfile.TemporaryDirectory() as folder:
            config, report_file = Path(folder) / "streams.yaml", Path(folder) / "report.json"
            config.write_text(stream.model_dump_json())  # JSON is YAML
            job = [str(_ROOT / "spark_jobs/partition.py"), "--stream", name]
            files = ["--config", str(config), "--report", str(report_file)]
            cost = run_command([*_SPARK_SUBMIT, *job, *files], env=with_brief_jvm(os.environ))
            (report,) = json.loads(report_file.read_text())
        remove(table_prefix(stream, name))
        if report["quarantined"] or report["faults"]:
            raise RuntimeError(f"some messages did not become rows: {report}")
        extra = {f"{step}_seconds": seconds for step, seconds in report["seconds"].items()}
        extra |= {f"{stage}_task_seconds": seconds for stage, seconds in report["task_seconds"].items()}
        extra |= {figure: report[figure] for figure in ("task_cpu_seconds", "tasks", "files", "file_bytes")}
        return Sample(report["rows"], report["backup_bytes"], extra, *cost)

    return work


def print_jobs(title: str, rows: Sequence[Row]) -> None:
    columns = {
        "case": lambda row: row.case,
        "messages": lambda row: f"{row.messages:,}",
        "backup MB": lambda row: f"{row.bytes / 1e6:,.0f}",
        "seconds": lambda row: f"{row.seconds:.1f}",
        "CPU s": lambda row: f"{row.cpu_seconds:.1f}",
        "peak MiB": lambda row: f"{row.peak_rss_bytes / MIB:,.0f}",
        "start s": lambda row: f"{row.seconds - row.extra['total_seconds']:.1f}",
        "plan s": lambda row: f"{row.extra['plan_seconds']:.2f}",
        "tasks s": lambda row: f"{row.extra['tasks_seconds']:.2f}",
        "commit s": lambda row: f"{row.extra['commit_seconds']:.2f}",
        "tasks": lambda row: f"{row.extra['tasks']:.0f}",
        "files": lambda row: f"{row.extra['files']:.0f}",
    }
    print_table(f"{title}: the whole job, local[2]; its seconds by step", rows, columns)


# --- rivals -----------------------------------------------------------------------------------------------------------


def prepare_rivals(arguments: argparse.Namespace) -> None:
    """Produce the events to Kafka, in turns to the topic-partitions, and archive them with one lane."""
    from waybill.archive.ingest import Lane, LaneShare, run_lane

    topic, count = topic_name("rivals"), arguments.messages
    create_topic(topic, PARTITIONS, **{"retention.ms": "-1"})
    records = (
        (None, row.tobytes(), first // BATCH_MESSAGES % PARTITIONS)
        for first in range(0, count, BATCH_MESSAGES)
        for row in event_values(first, min(BATCH_MESSAGES, count - first))
    )
    produce(topic, records, compression_type="zstd", linger_ms=500)
    shares = tuple(
        LaneShare(stream="rivals", topic=topic, partition=number, estimated_bytes=0) for number in range(PARTITIONS)
    )
    report = run_lane(config_of("rivals"), Lane(number=0, shares=shares))
    if report.messages != count:
        raise RuntimeError(f"{report.messages} of {count} messages were archived: {report}")
    create_archive("sample", messages=arguments.sample, objects=PARTITIONS)


def spark_job(job: str, options: Sequence[str], *_: object) -> Work:
    """A job of partition_spark_jobs.py, from the topic or the sample's backup objects to Parquet files in S3."""
    from waybill.config import names

    source = {
        "spark-kafka": [",".join(bootstrap_servers()), topic_name("rivals")],
        "binary-files": [f"s3a://{os.environ[BUCKET]}/{names.backup_prefix(run_name(), topic_name('sample'))}*"],
    }[job]
    settings = [part for setting in spark_settings() for part in ("--conf", setting)]
    command = [*_SPARK_SUBMIT, "--jars", connector_jars(), *settings, str(_ROOT / "bench/partition_spark_jobs.py"), job]

    def work() -> Sample:
        target = f"rival-{uuid.uuid4().hex[:12]}"
        cost = run_command([*command, *source, f"s3a://{os.environ[BUCKET]}/{target}", *options])
        rows, size, files = count_rows(target)
        remove(target)
        return Sample(rows, rows * MESSAGE_BYTES, {"files": files, "file_bytes": size}, *cost)

    return work


def spark_settings() -> list[str]:
    """S3, zstd, memory, and the cheapest committer that these jars have."""
    from waybill.config.connections import S3Endpoint, find_connection

    s3 = S3Endpoint.of(find_connection("aws_default"))
    return [
        "spark.driver.memory=2g",
        "spark.ui.enabled=false",
        "spark.log.level=WARN",
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.sql.session.timeZone=UTC",
        "spark.sql.parquet.compression.codec=zstd",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version=2",
        f"spark.hadoop.fs.s3a.endpoint={s3.endpoint_url}",
        f"spark.hadoop.fs.s3a.endpoint.region={s3.region or 'us-east-1'}",
        "spark.hadoop.fs.s3a.path.style.access=true",
        f"spark.hadoop.fs.s3a.access.key={s3.access_key}",
        f"spark.hadoop.fs.s3a.secret.key={s3.secret_key}",
    ]


def connector_jars() -> str:
    """Return the paths of the jars that the alternatives need, downloaded once into the stack's cache."""
    from devstack import jars, preflight

    jar_set = jars.JarSet("spark-kafka-s3", _JARS, 700)
    folder = jars.resolve(jar_set, preflight.find_java(), lambda line: print(line, file=sys.stderr))
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(_JAR_FILES))


def count_rows(prefix: str) -> tuple[int, int, int]:
    """Return rows, bytes and files of the Parquet files below a prefix, by their footers."""
    import pyarrow.parquet as pq

    with open_store() as store:
        files = [store.read(key) for key in store.keys(prefix) if key.endswith(".parquet")]
    return sum(pq.read_metadata(io.BytesIO(f)).num_rows for f in files), sum(map(len, files)), len(files)


def rival_cases(_: argparse.Namespace) -> Iterator[Case]:
    yield Case("waybill", "", partial(whole_job, "rivals"), warm_up=False)
    yield Case("spark-kafka", "", partial(spark_job, "spark-kafka", ()), warm_up=False)
    yield Case("spark-kafka-all", "", partial(spark_job, "spark-kafka", ("--all-fields",)), warm_up=False)
    yield Case("binary-files", "", partial(spark_job, "binary-files", ()), warm_up=False)


def print_rivals(_: str, rows: Sequence[Row]) -> None:
    ours = next((row for row in rows if row.name == "waybill"), None)

    def speed_ratio(row: Row) -> str:
        return f"{ours.messages_per_second / row.messages_per_second:.1f}" if ours else ""

    def cpu_ratio(row: Row) -> str:
        return f"{ours.messages_per_cpu_second / row.messages_per_cpu_second:.1f}" if ours else ""

    columns = {
        "name": lambda row: row.name,
        "messages": lambda row: f"{row.messages:,}",
        "seconds": lambda row: f"{row.seconds:.1f}",
        "messages/s": lambda row: f"{row.messages_per_second:,.0f}",
        "CPU s per 1 M": lambda row: f"{row.cpu_seconds / row.messages * 1e6:.1f}",
        "peak MiB": lambda row: f"{row.peak_rss_bytes / MIB:,.0f}",
        "files": lambda row: f"{row.extra['files']:.0f}",
        "waybill: × messages/s": speed_ratio,
        "× less CPU": cpu_ratio,
    }
    print_table(f"rivals: {PARTITIONS} topic-partitions, zstd, to committed files, local[2]", rows, columns)


# --- one task, and its steps ------------------------------------------------------------------------------------------


def whole_task(name: str, settings: dict[str, object], one_core: bool, *_: object) -> Work:
    """One task over the whole archive of stream `name`, from S3 to S3, in this process."""
    if one_core:
        keep_to_one_core()

    def work() -> Sample:
        samples: list[Sample] = []
        remove(partition_here(config_of(name, **_ONE_TASK, **settings), name, samples))
        return samples[0]

    return work


def partition_here(stream: Config, name: str, samples: list[Sample]) -> str:
    """Run driver and tasks in this process; append the cost of the tasks, and return the prefix of the files."""
    from waybill.tables.partition.partition_run import run_partition
    from waybill.tables.partition.tasks import run_task

    def execute(job: Job, tasks: Sequence[Task]) -> Iterable[TaskResult]:
        cpu, start = time.process_time(), time.perf_counter()
        results = [run_task(job, task) for task in tasks]
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
        size = sum(span.size_bytes for task in tasks for span in task)
        messages = sum(result.messages for result in results)
        samples.append(Sample(messages, size, {}, seconds, cpu, peak_rss_bytes()))
        return results

    measured: Execute = execute
    run_partition(stream, name, measured)
    return table_prefix(stream, name)


def keep_to_one_core() -> None:
    import pyarrow as pa

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)


def part(step: Callable[[], Callable[[], tuple[int, int]]], *_: object) -> Work:
    """One step. `step` reads its input and returns a function that returns messages and bytes."""
    import pyarrow as pa

    keep_to_one_core()
    pa.set_io_thread_count(1)
    run = step()
    return lambda: Sample(*run())


def read_objects() -> Callable[[], tuple[int, int]]:
    """Read the objects from S3, a megabyte at a time, and drop the bytes."""
    store, keys = open_store(), backup_keys("parts")

    def run() -> tuple[int, int]:
        size = 0
        for key in keys:
            with store.open(key) as stream:
                while piece := stream.read(MIB):
                    size += len(piece)
        return 0, size

    return run


def decompress() -> Callable[[], tuple[int, int]]:
    """Decompress the records of every batch into a buffer that is allocated once."""
    from waybill.records.batches import HEADER_BYTES
    from waybill.records.batches.compression import decompress_into

    frames, buffer = list(archived_frames()), memoryview(bytearray(4 * MIB))

    def run() -> tuple[int, int]:
        sizes = [decompress_into(frame.header.codec, frame.data[HEADER_BYTES:], buffer) for frame in frames]
        return sum(frame.header.record_count for frame in frames), sum(sizes)

    return run


def decode() -> Callable[[], tuple[int, int]]:
    """Decode uncompressed batches: check the CRC, walk the records, and copy them to Arrow."""
    from waybill.records.batches import HEADER_BYTES, Codec
    from waybill.records.batches.compression import decompress_into
    from waybill.records.batches.decode import decode
    from waybill.records.batches.framing import pack_batch

    buffer, batches = memoryview(bytearray(4 * MIB)), []
    for frame in archived_frames():
        size = decompress_into(frame.header.codec, frame.data[HEADER_BYTES:], buffer)
        batches.append(pack_batch(frame.header._replace(attributes=int(Codec.NONE)), bytes(buffer[:size])))
    content = b"".join(batches)
    return lambda: (sum(rows.num_rows for rows in decode(content, where="parts")), len(content))


def parse() -> Callable[[], tuple[int, int]]:
    """Read event times and message ids from decoded messages."""
    from waybill.parsers import build_parser
    from waybill.records.batches.decode import decode

    parser = build_parser(config_of("parts").streams["parts"].parser)
    batches = list(decode(archived_frames(), where="parts"))

    def run() -> tuple[int, int]:
        for rows in batches:
            if parser.parse(rows).error.null_count != rows.num_rows:
                raise RuntimeError("the parser refused an event")
        return sum(rows.num_rows for rows in batches), sum(rows.column("value").nbytes for rows in batches)

    return run


def encode_parquet() -> Callable[[], tuple[int, int]]:
    """Encode the rows of the task's own files again, in the same order and row groups."""
    tables = partitioned_tables()

    def run() -> tuple[int, int]:
        with tempfile.TemporaryDirectory() as folder:
            size = sum(write_parquet(Path(folder) / f"{n}", *table) for n, table in enumerate(tables))
        return sum(table.num_rows for table, _ in tables), size

    return run


def archived_frames() -> Iterator[Frame]:
    from waybill.records.batches.framing import frames

    with open_store() as store:
        for key in backup_keys("parts"):
            yield from frames(store.read(key), where=key)


def partitioned_tables() -> list[tuple[pa.Table, pq.FileMetaData]]:
    """Return the files that a partition run over the whole archive writes, as Arrow tables with their metadata."""
    import pyarrow.parquet as pq

    prefix = partition_here(config_of("parts", **_ONE_TASK), "parts", [])
    with open_store() as store:
        files = [io.BytesIO(store.read(key)) for key in store.keys(prefix) if key.endswith(".parquet")]
    remove(prefix)
    return [(pq.read_table(file, partitioning=None), pq.read_metadata(file)) for file in files]


def write_parquet(path: Path, table: pa.Table, like: pq.FileMetaData) -> int:
    """Write the table with the codec, dictionaries and row groups of `like`; return the bytes."""
    import pyarrow.parquet as pq

    columns = [like.row_group(0).column(n) for n in range(like.num_columns)]
    dictionaries = [column.path_in_schema for column in columns if column.has_dictionary_page]
    start = 0
    with pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=dictionaries) as writer:
        for n in range(like.num_row_groups):
            rows = like.row_group(n).num_rows
            writer.write_table(table.slice(start, rows), row_group_size=rows)
            start += rows
    return path.stat().st_size


STEPS = {
    "read from S3": read_objects,
    "decompress": decompress,
    "decode": decode,
    "parse": parse,
    "Parquet": encode_parquet,
}


def part_cases(_: argparse.Namespace) -> Iterator[Case]:
    for name, step in STEPS.items():
        yield Case(name, "", partial(part, step))
    yield Case("whole task", "", partial(whole_task, "parts", {}, True))


def print_parts(_: str, rows: Sequence[Row]) -> None:
    messages = max(row.messages for row in rows)
    steps = [row for row in rows if row.name in STEPS]
    seconds, cpu = sum(row.seconds for row in steps), sum(row.cpu_seconds for row in steps)
    total = Row("sum of the parts", "", messages, 0, seconds, cpu, 0)
    columns = {
        "name": lambda row: row.name,
        "seconds": lambda row: f"{row.seconds:.2f}",
        "CPU s": lambda row: f"{row.cpu_seconds:.2f}",
        "CPU µs a message": lambda row: f"{row.cpu_seconds / messages * 1e6:.2f}",
        "× sum, seconds": lambda row: f"{row.seconds / seconds:.2f}",
        "× sum, CPU": lambda row: f"{row.cpu_seconds / cpu:.2f}",
    }
    lines = [*steps, total, *(row for row in rows if row.name not in STEPS)]
    print_table(f"parts: {messages:,} messages, one thread, one core", lines, columns)


# --- memory, data and objects -----------------------------------------------------------------------------------------


def prepare_memory(_: argparse.Namespace) -> None:
    for size in {size for size, _ in MEMORY_SIZES}:
        messages, objects = _MEMORY_INPUT_BYTES // _ARCHIVED_MESSAGE_BYTES, _MEMORY_INPUT_BYTES // (size * MIB)
        create_archive(f"memory_{size}", messages=messages, objects=objects, partitions=1)


def memory_cases(_: argparse.Namespace) -> Iterator[Case]:
    for size, memory in MEMORY_SIZES:
        prepare = partial(whole_task, f"memory_{size}", {"memory": f"{memory}MiB"}, False)
        yield Case("one task", f"{size} MiB, {memory}", prepare, warm_up=False, repeats=1)


def print_memory(_: str, rows: Sequence[Row]) -> None:
    print_rates("memory: one task; MiB of a backup object, and of partition.memory", rows)


def prepare_data(arguments: argparse.Namespace) -> None:
    for times in arguments.times:
        create_archive(f"data_{times}", messages=times * arguments.few, objects=times * PARTITIONS)


def data_cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for times in arguments.times:
        yield Case("waybill", f"{times} ×", partial(whole_job, f"data_{times}"), warm_up=False, repeats=1)


def prepare_objects(arguments: argparse.Namespace) -> None:
    per_batch = arguments.few // max(arguments.objects)
    for count in arguments.objects:
        create_archive(f"objects_{count}", messages=arguments.few, objects=count, per_batch=per_batch)


def object_cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for count in arguments.objects:
        yield Case("waybill", f"{count:,}", partial(whole_job, f"objects_{count}"), warm_up=False, repeats=1)


# --- the script -------------------------------------------------------------------------------------------------------


class Section(NamedTuple):
    """One table: `prepare` writes the input to Kafka and S3, `cases` measure, `show` prints the rows."""

    prepare: Callable[[argparse.Namespace], None]
    cases: Callable[[argparse.Namespace], Iterator[Case]]
    show: Callable[[str, Sequence[Row]], None]


def prepare_parts(arguments: argparse.Namespace) -> None:
    create_archive("parts", messages=arguments.few, objects=PARTITIONS, partitions=1)


SECTIONS = {
    "rivals": Section(prepare_rivals, rival_cases, print_rivals),
    "parts": Section(prepare_parts, part_cases, print_parts),
    "memory": Section(prepare_memory, memory_cases, print_memory),
    "data": Section(prepare_data, data_cases, print_jobs),
    "objects": Section(prepare_objects, object_cases, print_jobs),
}


def run_section(name: str, arguments: argparse.Namespace) -> list[Row]:
    section = SECTIONS[name]
    print(f"preparing the input of {name} …", file=sys.stderr, flush=True)
    section.prepare(arguments)
    rows = run_cases(list(section.cases(arguments)), arguments, "--section", name)
    section.show(name, rows)
    return [replace(row, extra={"section": name, **row.extra}) for row in rows]


def main() -> None:
    parser = argument_parser(__doc__, repeats=3)
    parser.add_argument("--section", action="append", choices=SECTIONS, help="only this one; may be repeated")
    parser.add_argument("--messages", type=int, default=2_000_000, help="messages of rivals")
    parser.add_argument("--sample", type=int, default=200_000, help="messages of binary-files")
    parser.add_argument("--few", type=int, default=500_000, help="messages of parts and objects, and 1 × data")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16], help="factors of data")
    parser.add_argument("--objects", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    arguments = parser.parse_args()
    if arguments.only:
        run_only_case(list(SECTIONS[arguments.section[-1]].cases(arguments)), arguments)
        return
    with running_services(arguments.running):
        rows = [row for name in arguments.section or SECTIONS for row in run_section(name, arguments)]
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
