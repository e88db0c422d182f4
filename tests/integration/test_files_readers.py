"""The files of a `files` sink read by Spark, DuckDB and Hadoop, without code of Waybill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from files_scenes import inventory, key_of, moment, root
from partition_scenes import Scene, messages_in
from pyspark.sql import SparkSession
from test_formats import read_by_hadoop

from devstack import Stack
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record

pytestmark = pytest.mark.integration

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
MakeScene = Callable[..., Scene]


def fill(scene: Scene) -> Scene:
    scene.put(TP0, [moment(n, n / 10) for n in range(25)])
    scene.put(TP0, [Record(25, int(moment(0, 26.6).timestamp_ms), b"key", None, (("h", None), ("h", b"1")))])
    scene.put(TP1, [moment(n, 1.5)._replace(key=None) for n in range(100, 120)])
    scene.run()
    return scene


def copy(scene: Scene, directory: Path) -> Path:
    """Download the sink's objects to a directory."""
    for found in scene.store.list_objects(f"{root(scene)}/"):
        local = directory / found.key.removeprefix(f"{root(scene)}/")
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(scene.store.read(found.key))
    return directory / "flights"


def test_spark_and_duckdb_read_partitions_and_rows(make_scene: MakeScene, spark: SparkSession, tmp_path: Path) -> None:
    scene = fill(make_scene(partition_by="hour", sink="files", columns={"at": {"field": "at", "type": "long"}}))
    flights = copy(scene, tmp_path)
    sent = sorted(scene.sent, key=lambda m: m[:3])
    hours = {("2023-12-25", 0): 10, ("2023-12-25", 1): 30, ("2023-12-25", 2): 5, ("2023-12-26", 2): 1}

    frame = spark.read.parquet(str(flights))
    counts = {(str(r["dt"]), int(r["hr"])): r["count"] for r in frame.groupBy("dt", "hr").count().collect()}
    assert counts == hours
    assert sorted(messages_in(frame.drop("dt", "hr").toArrow()), key=lambda m: m[:3]) == sent
    assert frame.where("dt = '2023-12-25' AND hr = 2").count() == 5
    wrong = (
        "date_format(event_time, 'yyyy-MM-dd HH') <> concat(dt, ' ', lpad(hr, 2, '0')) OR unix_millis(event_time) <> at"
    )
    assert frame.where(wrong).count() == 0

    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        rows = f"read_parquet('{flights}/**/*.parquet', hive_partitioning = true)"
        found = database.sql(f"SELECT dt, hr, count(*) FROM {rows} GROUP BY ALL").fetchall()
        assert {(str(dt), int(hr)): count for dt, hr, count in found} == hours
        everything = database.sql(f"SELECT * EXCLUDE (dt, hr) FROM {rows}").to_arrow_table()
        assert sorted(messages_in(everything), key=lambda m: m[:3]) == sent


@pytest.mark.deep
@pytest.mark.parametrize(("key", "compression"), [("legacy", "none"), ("msgpack", "snappy")])
def test_hadoop_reads_sequence_files(
    make_scene: MakeScene, stack: Stack, tmp_path: Path, key: str, compression: str
) -> None:
    scene = fill(
        make_scene(
            partition_by="hour",
            sink={"name": "files", "format": {"name": "sequencefile", "key": key, "compression": compression}},
        )
    )
    copy(scene, tmp_path)
    files = [tmp_path / key_of(entry).removeprefix(f"{root(scene)}/") for entry in inventory(scene)]
    dumps = read_by_hadoop(stack, files)
    values = Counter(value for _, records in dumps for _, value in records)
    assert values == Counter(m[-1] or b"" for m in scene.sent)
    for entry, (header, records) in zip(inventory(scene), dumps, strict=True):
        assert len(records) == entry.rows
        assert f"first_offset={entry.first_offset}" in header
        if key == "legacy":
            assert all(entry.first_offset <= int(offset) < entry.next_offset for offset, _ in records)


def test_text_files_have_one_line_for_each_message(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(partition_by="day", sink={"name": "files", "format": {"name": "text", "compression": "gzip"}})
    fill(scene)
    flights = copy(scene, tmp_path)
    with duckdb.connect() as database:
        columns = "{'id': 'VARCHAR', 'at': 'BIGINT'}"
        rows = f"read_ndjson('{flights}/*/*.txt.gz', columns = {columns}, hive_partitioning = true)"
        found = database.sql(f"SELECT dt, count(*), count(DISTINCT id) FROM {rows} GROUP BY ALL ORDER BY 1").fetchall()
    assert [(str(dt), *rest) for dt, *rest in found] == [("2023-12-25", 45, 45)]
    reasons = scene.quarantine.scan().to_arrow().column("reason").to_pylist()
    assert [reason.partition(":")[0] for reason in reasons] == ["tombstone"]
