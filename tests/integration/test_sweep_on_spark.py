"""The dedup job on real Spark, together with the partition job and Iceberg's own compaction."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from maintenance_scenes import ByPyIceberg, MaintenanceRunner
from oracle import Row
from partition_scenes import DAY_MS, Scene, event
from pyspark.sql import SparkSession
from sweep_scenes import SweptScene

from waybill.base.errors import ConnectionMissing
from waybill.config.names import TopicPartition
from waybill.tables.dedup.sweep_plan import epoch_ms
from waybill.tables.iceberg.commit import copy_state_to_new_snapshot
from waybill.tables.spark.execute import SparkSweep
from waybill.tables.staging.driver import RunOutcome

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]
TPS = [TopicPartition("flights", partition) for partition in range(2)]
WINDOW_MS = 30 * DAY_MS
ROWS = 2000


@pytest.fixture
def swept(make_scene: MakeScene) -> SweptScene:
    """A stream with days of messages; each offset has the same id in both topic-partitions."""
    scene = make_scene(dedup={"window": "30d", "buckets": 2}, partition={"task_bytes": "1MiB", "memory": "16MiB"})
    return SweptScene(scene, ("message_id",), WINDOW_MS, now_ms=2 * WINDOW_MS)


def archive_and_partition(swept: SweptScene, tp: TopicPartition, offsets: range) -> None:
    """Put messages into the archive, and by the partition job into the table."""
    rng = random.Random(offsets.start)
    swept.scene.put(tp, [event(offset, rng.randrange(12 * DAY_MS)) for offset in offsets])
    known = {(m[0], m[1], m[2]) for m in swept.scene.sent[: -len(offsets)]}
    assert swept.scene.run().rows == len(offsets)
    for row in swept.scene.table.scan().to_arrow().to_pylist():
        if (row["topic"], row["partition"], row["offset"]) not in known:
            at = [epoch_ms(row[name]) for name in ("kafka_timestamp", "event_time")]
            swept.waiting.append(
                Row(TopicPartition(row["topic"], row["partition"]), row["offset"], *at, (row["message_id"],))
            )


@pytest.mark.deep
def test_sweeps_before_and_after_a_compaction_by_spark_match_the_oracle(swept: SweptScene, spark: SparkSession) -> None:
    execute = SparkSweep(lambda: spark.sparkContext)
    archive_and_partition(swept, TPS[0], range(ROWS))
    report = swept.sweep(execute, slots=2)
    assert (report.rows, report.duplicates) == (ROWS, 0)
    assert report.peak_memory_bytes > 0
    archive_and_partition(swept, TPS[1], range(ROWS // 2))
    table = swept.scene.stream.table
    procedures = MaintenanceRunner.on(spark).procedures(lambda: datetime.now(UTC))
    assert procedures.rewrite_data_files(table, sort=True, target_file_bytes=1 << 30, min_input_files=2).files_after
    report = swept.sweep(execute, slots=4)  # more ranges of the hash than buckets
    assert (report.rows, report.duplicates) == (0, ROWS // 2)
    swept.check()

    archive_and_partition(swept, TPS[1], range(ROWS // 2, ROWS // 2 + 100))
    archive_and_partition(swept, TPS[0], range(ROWS, ROWS + 200))
    for key in list(swept.scene.store.keys(swept.index)):
        if key.endswith(".parquet"):  # the manifest lists them, so a task finds one missing
            swept.scene.store.remove(key)
    assert swept.sweep(execute, slots=2).duplicates == 100
    swept.check()
    assert swept.sweep(execute, rebuild_index=True).outcome is RunOutcome.NOTHING_NEW

    check_first_sweep_of_last_snapshot(swept, execute)


def check_first_sweep_of_last_snapshot(swept: SweptScene, execute: SparkSweep) -> None:
    """Drop the swept tables and expire all snapshots but the last; a first sweep then reads Spark's files."""
    scene = swept.scene
    rows = [*(kept.row for kept in swept.kept), *(duplicate.row for duplicate in swept.duplicates)]
    for table in (swept.tables.unique, swept.tables.duplicates):
        scene.catalog.drop_table(table.name())
    copy_state_to_new_snapshot(swept.main)
    ByPyIceberg(scene.catalog).expire_snapshots(
        ".".join(swept.main.name()), older_than=datetime.now(UTC) + timedelta(days=1), keep_last=1
    )
    assert len(swept.main.metadata.snapshots) == 1
    restarted = SweptScene(scene, swept.key, swept.window_ms, swept.now_ms, rows)
    assert restarted.sweep(execute, slots=2).rows == ROWS + 200
    restarted.check()


def test_job_sweeps_and_writes_its_report(
    swept: SweptScene, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    del spark  # the job finds its context
    job = _load("dedup")
    config, figures = tmp_path / "streams.yaml", tmp_path / "report.json"
    config.write_text(yaml.safe_dump(swept.scene.config.model_dump(mode="json")))
    archive_and_partition(swept, TPS[0], range(10))
    archive_and_partition(swept, TPS[1], range(5))
    arguments = ["--stream", "flights", "--config", str(config), "--report", str(figures)]
    with caplog.at_level("INFO"):
        assert job.main([*arguments, "--since", "1980-01-31T00:00:00Z", "--until", "1990-01-31T00:00:00Z"]) == 0
        assert job.main([*arguments, "--rebuild-index"]) == 0
    [document] = json.loads(figures.read_text())
    assert (document["outcome"], document["rows"], document["duplicates"]) == ("committed", 10, 5)
    assert document["task_seconds"].keys() == {"scan", "judge", "write"}
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("swept flights: ")]
    assert [line[:26] for line in lines] == ["swept flights: nothing new", "swept flights: 10 rows kep"]
    swept.take_plan_of_other_process()
    swept.sweep_by_oracle()
    swept.check()
    assert job.main(["--stream", "nothing", "--config", str(config)]) == 1
    assert "no stream 'nothing'; known streams: flights" in caplog.text
    times = ("yesterday", "2026-01-31T00:00:00")
    after_until = ["--since", "2026-01-31T00:00:01Z", "--until", "2026-01-31T00:00:00Z"]
    for wrong in (
        *(["--until", at] for at in times),
        ["--since", times[0]],
        ["--since", "9000-01-01T00:00Z"],
        after_until,
    ):
        with pytest.raises(SystemExit):
            job.main([*arguments, *wrong])


def test_error_of_a_task_is_raised_by_the_driver_with_its_type(swept: SweptScene, spark: SparkSession) -> None:
    archive_and_partition(swept, TPS[0], range(10))

    class Elsewhere(SparkSweep):
        def match(self, job, tasks):  # type: ignore[no-untyped-def]
            return super().match(replace(job, catalog_connection="nowhere"), tasks)

        def write(self, job, tasks, duplicate_lists):  # type: ignore[no-untyped-def]
            return super().write(replace(job, catalog_connection="nowhere"), tasks, duplicate_lists)

    with pytest.raises(ConnectionMissing, match="nowhere"):
        swept.sweep(Elsewhere(lambda: spark.sparkContext))


def _load(job: str) -> ModuleType:
    path = Path(__file__).parents[2] / "spark_jobs" / f"{job}.py"
    spec = importlib.util.spec_from_file_location(f"spark_job_{job}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
