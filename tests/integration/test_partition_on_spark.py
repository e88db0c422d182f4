"""The partition job and the data source on real Spark; the tables read by tools that are not Waybill's."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import duckdb
import pytest
import yaml
from partition_scenes import DAY_MS, Scene, event, junk, messages_in
from pyspark.sql import SparkSession

from waybill.base.errors import ConnectionMissing
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import Codec
from waybill.tables.spark.execute import spark_execute
from waybill.tables.spark.source import WaybillBackup
from waybill.tables.staging.driver import RunOutcome

pytestmark = pytest.mark.integration

TPS = [TopicPartition("flights", partition) for partition in range(3)]
SPARK_JOBS = Path(__file__).parents[2] / "spark_jobs"
MakeScene = Callable[..., Scene]


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """An archive of 6,000 messages of every kind, with each codec, over 12 days, for several tasks."""
    columns = {"at": "long", "words": {"type": "string", "field": "text"}}
    made = make_scene(partition={"task_bytes": "1MiB", "memory": "16MiB"}, columns=columns)
    rng = random.Random(1)
    for tp, codec in zip(TPS, (Codec.ZSTD, Codec.LZ4, Codec.NONE), strict=True):
        for first in range(0, 2000, 500):
            made.put(tp, [_any(rng, tp.partition * 10_000 + first + n) for n in range(500)], codec=codec)
    return made


def _any(rng: random.Random, offset: int) -> Record:
    time_ms = rng.randrange(12 * DAY_MS)
    kind = rng.randrange(20)
    if kind == 0:
        return junk(offset, time_ms)
    if kind == 1:
        return Record(offset, time_ms, b"key-%d" % rng.randrange(100), None, (("deleted-by", None),))
    key = None if kind == 2 else b"key-%d" % rng.randrange(100)
    text = rng.randbytes(rng.randrange(1000)).hex()
    value = json.dumps({"id": f"id-{offset}", "at": time_ms, "text": text}).encode()
    return Record(offset, time_ms, key, value, (("source", b"test"), ("source", b""))[: rng.randrange(3)])


def test_pyiceberg_and_duckdb_read_tables_written_on_spark(scene: Scene, spark: SparkSession, tmp_path: Path) -> None:
    report = scene.run(spark_execute(lambda: spark.sparkContext))
    assert report.tasks > 2
    assert report.rows + report.quarantined == len(scene.sent) == 6_000
    assert report.quarantined == sum(message[-1] == b"\xff junk" for message in scene.sent)
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()
    assert scene.run(spark_execute(lambda: spark.sparkContext)).outcome is RunOutcome.NOTHING_NEW
    _check_with_duckdb(scene, tmp_path)


def _check_with_duckdb(scene: Scene, tmp_path: Path) -> None:
    """DuckDB reads the data files itself, without code of Waybill or PyIceberg."""
    io = scene.table.io
    for number, task in enumerate(scene.table.scan().plan_files()):
        with io.new_input(task.file.file_path).open() as source:
            (tmp_path / f"{number}.parquet").write_bytes(source.read())
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        rows = database.sql(f"SELECT * FROM read_parquet('{tmp_path}/*.parquet')").to_arrow_table()
        good = [message for message in scene.sent if message[-1] != b"\xff junk"]
        assert sorted(m[:3] for m in messages_in(rows)) == sorted(m[:3] for m in good)
        assert sorted(messages_in(rows), key=lambda m: m[:3]) == sorted(good, key=lambda m: m[:3])
        wrong = database.execute(
            f"""SELECT count(*) FROM read_parquet('{tmp_path}/*.parquet') WHERE epoch_ms(event_time) <>
            coalesce(CAST(decode(value) ->> '$.at' AS BIGINT), epoch_ms(kafka_timestamp))"""
        ).fetchone()
        assert wrong == (0,)
        ids = database.execute(
            f"""SELECT count(*), count(DISTINCT message_id), count(*) FILTER (message_id <>
            coalesce(decode(value) ->> '$.id', topic || '/' || partition || '@' || "offset"))
            FROM read_parquet('{tmp_path}/*.parquet')"""
        ).fetchone()
        assert ids == (len(good), len(good), 0)
        typed = database.execute(
            f"""SELECT count(*), count("at") FROM read_parquet('{tmp_path}/*.parquet') WHERE
            "at" IS NOT DISTINCT FROM CAST(decode(value) ->> '$.at' AS BIGINT) AND
            words IS NOT DISTINCT FROM (decode(value) ->> '$.text')"""
        ).fetchone()
        assert typed == (len(good), sum(message[-1] is not None for message in good))


def test_the_job_runs_by_spark_submit(
    scene: Scene, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = _load("partition")
    config, figures = tmp_path / "streams.yaml", tmp_path / "report.json"
    config.write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))
    arguments = ["--stream", "flights", "--config", str(config), "--report", str(figures)]
    with caplog.at_level("INFO"):
        assert job.main(arguments) == 0
    [document] = json.loads(figures.read_text())
    assert (document["outcome"], document["resumed"]) == ("committed", False)
    assert document["end"] == {f"flights/{p}": p * 10_000 + 2000 for p in range(3)}
    assert document["peak_memory_bytes"] > 0
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("partitioned flights: ")]
    assert f"{document['rows']:,} rows, {document['quarantined']:,} in quarantine, {document['files']} files" in line
    assert job.main(arguments) == 0
    assert [again["outcome"] for again in json.loads(figures.read_text())] == ["nothing_new"]
    assert job.main(["--stream", "nothing", "--config", str(config)]) == 1
    assert "no stream 'nothing'; known streams: flights" in caplog.text
    scene.check_exactly_once()


@pytest.mark.deep
def test_the_next_run_continues_after_a_submitted_job_was_killed_twice(scene: Scene, tmp_path: Path) -> None:
    """Kills the driver of a real `spark-submit` by SIGKILL, before the commits and then between them."""
    config = tmp_path / "streams.yaml"
    config.write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    command = [*submit, str(SPARK_JOBS / "partition.py"), "--stream", "flights", "--config", str(config)]
    for step in ("staged", "quarantine_published"):
        environment = os.environ | {"WAYBILL_FAILPOINTS": f"partition.{step}=kill"}
        killed = subprocess.run(command, env=environment, capture_output=True, timeout=280, check=False)
        assert killed.returncode == 128 + signal.SIGKILL, killed.stderr.decode()[-2000:]
        assert scene.published_plans(scene.table) == []
    assert len(scene.published_plans(scene.quarantine)) == 1
    assert scene.run().outcome is RunOutcome.COMMITTED
    scene.check_exactly_once()


def _load(job: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"spark_job_{job}", SPARK_JOBS / f"{job}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.deep
def test_a_damaged_object_stops_only_its_topic_partition(make_scene: MakeScene, spark: SparkSession) -> None:
    scene = make_scene()
    damaged = bytearray(encode_batch([event(0, 0)]))
    damaged[-1] ^= 1
    scene.put_bytes(TPS[0], 0, bytes(damaged), [])
    scene.put(TPS[0], [event(1, 0)])
    scene.put(TPS[1], [event(0, 0)])
    report = scene.run(spark_execute(lambda: spark.sparkContext))
    assert report.end == {"flights/1": 1}
    (fault,) = report.faults
    assert (
        f"{BackupName('flights', 1, 0, 0).key(scene.store.prefix)}, byte 0: CRC-32C of the batch at offset 0" in fault
    )


def test_an_error_of_a_task_is_raised_unchanged_by_the_driver(make_scene: MakeScene, spark: SparkSession) -> None:
    scene = make_scene()
    scene.put(TPS[0], [event(0, 0)])
    execute = spark_execute(lambda: spark.sparkContext)
    with pytest.raises(ConnectionMissing, match="nowhere"):
        scene.run(lambda job, tasks: execute(replace(job, catalog_connection="nowhere"), tasks))


@pytest.mark.deep
def test_the_data_source_reads_the_archived_messages(scene: Scene, spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(WaybillBackup)
    config = tmp_path / "streams.yaml"
    config.write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))
    reader = spark.read.format("waybill_backup").option("stream", "flights").option("config", str(config))
    everything = reader.load()
    assert everything.rdd.getNumPartitions() > 2
    assert sorted(messages_in(everything.toArrow()), key=lambda m: m[:3]) == sorted(scene.sent, key=lambda m: m[:3])
    part = reader.option("from", '{"flights/0": 500}').option("to", '{"flights/0": 1500, "flights/1": 0}').load()
    counts = {row["partition"]: row["count"] for row in part.groupBy("partition").count().collect()}
    assert counts == {0: 1000, 2: 2000}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the name of a stream"),
        ({"stream": "flights", "form": "1"}, "has no option 'form'"),
        ({"stream": "flights", "from": "5"}, 'give offsets as {"topic/partition": offset}'),
    ],
)
def test_wrong_options_of_the_data_source_are_named(
    stack: object, spark: SparkSession, options: dict[str, str], message: str
) -> None:
    spark.dataSource.register(WaybillBackup)
    with pytest.raises(Exception, match=message.replace("{", r"\{").replace("}", r"\}")):
        spark.read.format("waybill_backup").options(**options).load().count()
