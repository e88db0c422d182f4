"""The Spark job of backfills: tasks, cuts and the diff run on executors."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from backfill_scenes import (
    FIRST,
    SECOND,
    TP0,
    TP1,
    all_first,
    check,
    promote,
    put,
    request,
    small_tasks,
    undo,
    use,
    with_second,
)
from partition_scenes import Scene
from pyspark.sql import SparkSession

SPARK_JOB = Path(__file__).parents[2] / "spark_jobs" / "backfill.py"

pytestmark = [pytest.mark.deep, pytest.mark.integration]


def test_the_job_builds_a_backfill_by_spark_submit(
    make_scene: Callable[..., Scene],
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_tasks(monkeypatch)
    scene = make_scene(parser=FIRST)
    for first in range(0, 90, 30):
        put(scene, TP0, first, first + 30)
        put(scene, TP1, first, first + 30)
    scene.run()
    before = all_first(scene)
    use(scene, SECOND)
    backfill = request(scene, "flights/0@10-70", "flights/1@0-49")
    assert len(backfill.plan.tasks) == 5
    config, report = tmp_path / "streams.yaml", tmp_path / "report.json"
    config.write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))
    arguments = ["--stream", "flights", "--backfill", backfill.id, "--config", str(config), "--report", str(report)]
    job = _load()
    assert job.main([*arguments, "--parallel", "2"]) == 0
    document = json.loads(report.read_text())
    assert (document["state"], document["tasks_done"]) == ("built", len(backfill.plan.tasks))
    assert document["diff"]["messages"]["changed"] > 0
    assert job.main(arguments) == 0  # a retry finds it built
    promote(scene, backfill)
    check(scene, with_second(before, [(TP0, 10, 71), (TP1, 0, 50)]))
    undo(scene, backfill)
    check(scene, before)
    assert job.main(["--stream", "flights", "--backfill", "20260101_0000", "--config", str(config)]) == 1
    assert f"no backfill '20260101_0000'; its backfills: {backfill.id}" in caplog.text


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_job_backfill", SPARK_JOB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
