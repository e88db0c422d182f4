"""Maintenance of dedup's tables and objects, and what it keeps while a sweep may need it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from maintenance_scenes import MaintenanceRunner, figures
from oracle import Row
from partition_scenes import Scene
from sweep_scenes import START_MS, SweptScene, compact

from waybill.config import names
from waybill.config.names import TopicPartition
from waybill.tables.iceberg import SweepPosition
from waybill.tables.maintenance.maintenance_run import run_maintenance
from waybill.tables.maintenance.orphans import KEPT_MANIFESTS, find_ended_histories, find_unneeded_index_files
from waybill.tables.maintenance.plans import find_sweep_plans
from waybill.tables.maintenance.procedures import MaintenanceReport
from waybill.tables.spark.iceberg import SparkProcedures

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]
A = TopicPartition("flights", 0)
WINDOW_MS = 3_600_000
DAY = timedelta(days=1)


@pytest.fixture
def swept(make_scene: MakeScene) -> SweptScene:
    settings = {"key": "message_id", "window": f"{WINDOW_MS // 1000}s", "floor": "1s", "buckets": 1}
    return SweptScene(make_scene(dedup=settings, columns={"device": "string"}), ("message_id",), WINDOW_MS)


@pytest.fixture
def quick(swept: SweptScene) -> MaintenanceRunner:
    return MaintenanceRunner.without_spark(swept.scene.catalog)


def rows(first: int, count: int = 4) -> list[Row]:
    """Return rows of which the last one repeats the first."""
    keys = [f"id-{first + n}" for n in range(count - 1)] + [f"id-{first}"]
    return [Row(A, first + n, START_MS - 60_000 + first + n, START_MS, (key,)) for n, key in enumerate(keys)]


def store_step(report: MaintenanceReport, name: str) -> dict[str, int]:
    return dict(next(step.figures for step in report.store if step.name == name))


def no_spark() -> SparkProcedures:
    raise AssertionError("Spark is not needed")


def test_no_snapshot_expires_before_it_is_swept(
    swept: SweptScene, quick: MaintenanceRunner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "waybill.tables.maintenance")
    for n in range(3):
        swept.append(rows(10 * n))
    quick.later = 5 * DAY + timedelta(minutes=1)
    report = quick.run(swept.scene, keep_last=1)
    assert figures(report.tables[0], "expire_snapshots") == {"snapshots_not_swept": 3}, "there was no sweep at all yet"
    assert "that are kept because no dedup sweep has processed them: 3, the oldest from" in caplog.text
    assert report.warnings == (), "a day of delay needs no warning"

    swept.sweep_until_current()
    for n in range(3, 6):
        swept.append(rows(10 * n))
    compact(swept.main)  # the files of the rows that wait for a sweep are replaced
    swept.append(rows(60))
    quick.later = 30 * DAY
    report = quick.run(swept.scene, keep_last=1)
    main = report.tables[0]
    assert figures(main, "expire_snapshots").items() >= {"snapshots_not_swept": 5, "snapshots_after": 5}.items()
    (warning,) = report.warnings
    assert "no dedup sweep has processed them: " in warning
    assert " UTC. Let dedup run for flights, or remove `dedup` from" in warning

    swept.now_ms += 1000
    swept.sweep_until_current()
    swept.check()
    report = quick.run(swept.scene, keep_last=1)
    assert [table.after.snapshots for table in report.tables] == [1, 0, 1, 1]
    assert report.warnings == ()
    swept.append(rows(70))
    swept.sweep_until_current()
    swept.check()


@pytest.mark.deep
def test_icebergs_procedures_keep_snapshots_that_are_not_swept(
    swept: SweptScene, maintenance: MaintenanceRunner
) -> None:
    """Maintenance of dedup's tables as well; what is not swept stays, though compacted since, and the sweep goes on."""
    for n in range(2):
        swept.append(rows(10 * n))
        swept.sweep_until_current()
    swept.append(rows(20))
    swept.append(rows(30))
    maintenance.later = 30 * DAY
    report = maintenance.run(swept.scene, keep_last=1, min_input_files=2, orphans_after="3650d")
    main, _, unique, duplicates = report.tables
    assert unique.table.endswith("_unique")
    assert duplicates.table.endswith("_duplicates")
    assert (main.before.data_files, main.after.data_files) == (4, 1)
    expired = figures(main, "expire_snapshots")
    assert expired["snapshots_not_swept"] >= 2
    assert expired["snapshots_before"] + 1 - expired["snapshots_after"] == 2, (
        "those that were swept; state is carried on"
    )
    assert expired["data_files_removed"] == 0, "the others have them all"
    for table, count in ((unique, 6), (duplicates, 2)):
        assert (table.before.data_files, table.after.data_files, table.after.rows) == (2, 1, count)
        assert (table.after.manifests, table.after.snapshots) == (1, 1)
    swept.now_ms += 1000
    swept.sweep_until_current()
    swept.check()


@pytest.mark.parametrize("step", ["executed", "staged", "duplicates_committed"])
def test_files_of_an_open_sweep_are_kept_at_any_age(swept: SweptScene, quick: MaintenanceRunner, step: str) -> None:
    swept.append(rows(0))
    swept.sweep_until_current()
    swept.append(rows(10))
    swept.now_ms += 1000
    assert swept.sweep_killed(step)
    before = data_files(swept)
    objects = set(swept.scene.keys("sweeps/")) | set(swept.scene.keys("dedup/"))
    quick.later = 400 * DAY
    report = quick.run(swept.scene, keep_last=1)
    assert before <= data_files(swept)
    assert store_step(report, "remove_sweeps")["plans_open"] == 1
    if step != "executed":  # else nothing references the runs, and they are written again
        gone = objects - set(swept.scene.keys("sweeps/")) - set(swept.scene.keys("dedup/"))
        assert all("/00000000000000000000." in key for key in gone), "of the first sweep, which is over"
    swept.sweep_until_current()
    swept.check()


def test_files_of_a_discarded_sweep_are_removed(swept: SweptScene, quick: MaintenanceRunner) -> None:
    swept.append(rows(0))
    assert swept.sweep_killed("executed")
    left = data_files(swept)
    assert len(left) == 2
    swept.sweep_until_current()
    runs = swept.scene.keys("dedup/")
    quick.later = 8 * DAY
    report = quick.run(swept.scene)
    assert not left & data_files(swept)
    assert store_step(report, "remove_sweeps") == {"objects_removed": 2, "bytes_removed": 0, "plans_open": 0} | {
        "bytes_removed": store_step(report, "remove_sweeps")["bytes_removed"]
    }
    assert swept.scene.keys("sweeps/") == []
    assert store_step(report, "remove_key_index_files")["objects_removed"] == 2, "a discarded run and its filter"
    assert len(swept.scene.keys("dedup/")) == len(runs) - 2
    swept.append(rows(10))
    assert swept.sweep().index_keys == 6, "the index is complete"
    swept.check()


def data_files(swept: SweptScene) -> set[str]:
    """Data files of dedup's tables, referenced or not."""
    store = swept.scene.store
    found: set[str] = set()
    for table in (swept.tables.unique, swept.tables.duplicates):
        prefix = table.location().removeprefix(f"s3://{store.bucket}/") + "/data/"
        found |= {f"s3://{store.bucket}/{key}" for key in store.keys(prefix)}
    return found


# --- by hand, without Spark ---


def test_sweep_plans_are_open_until_the_table_has_passed_them(make_scene: MakeScene) -> None:
    store = make_scene().store
    prefix = names.sweeps_prefix(store.prefix, "flights", 1, "uuid")
    token = "0" * 32
    for sequence in (0, 3, 7, 12):
        plan = names.sweep_plan_key(store.prefix, "flights", 1, "uuid", sequence)
        staged = {"unique": [[f"s3://b/{sequence}.parquet", [], True]], "runs": [{"path": f"runs/{sequence}"}]}
        for key, text in (
            (plan, "{}"),
            (names.staged_key(plan), json.dumps(staged)),
            (names.sweep_marks_key(plan, token), "marks"),
        ):
            store.create_if_absent(key, text.encode())
    store.create_if_absent(f"{prefix}foreign", b"")

    def starts(swept: SweepPosition | None) -> tuple[list[int], list[int]]:
        found = find_sweep_plans(store, prefix, swept)
        return [int(plan.id) for plan in found.open], [int(plan.id) for plan in found.passed]

    assert starts(None) == ([0, 3, 7, 12], [])
    assert starts(SweepPosition("u", 1, 7)) == ([7, 12], [0, 3]), (
        "the plan that starts there is the next to be committed"
    )
    assert starts(SweepPosition("u", 1, 8)) == ([12], [0, 3, 7]), "a rolled back table may reach them again"
    found = find_sweep_plans(store, prefix, SweepPosition("u", 1, 7))
    assert found.protects("s3://b/7.parquet")
    assert found.protects(f"s3://b/t/data/day=1/{7:020d}-0123.parquet")
    assert not found.protects("s3://b/3.parquet")
    assert not found.protects(f"s3://b/t/data/{3:020d}-0123.parquet")
    assert [entry.key.rsplit(".", 2)[-2:] for entry in found.passed[0].objects] == [
        [f"marks/{token}", "parquet"],
        ["staged", "json"],
        [f"{found.passed[0].objects[2].key.removesuffix('.json')}", "json"],
    ], "the plan goes last"


def test_unneeded_index_files_are_old_and_not_referenced(make_scene: MakeScene) -> None:
    store = make_scene().store
    index = names.key_index_prefix(store.prefix, "flights", 1, "uuid")
    newest = KEPT_MANIFESTS + 3
    for version in range(1, newest + 1):
        manifest = {"v": 1, "index": {"runs": [[f"runs/0/{version}.parquet", f"runs/0/{version}.fuse16"]]}}
        store.create_if_absent(names.key_index_manifest_key(index, version), json.dumps(manifest).encode())
        for end in ("parquet", "fuse16"):
            store.create_if_absent(f"{index}runs/0/{version}.{end}", b"run")
    for name in ("staged", "of_nobody"):
        store.create_if_absent(f"{index}runs/0/{name}.parquet", b"run")
    other = names.key_index_prefix(store.prefix, "flights", 1, "another")
    store.create_if_absent(f"{other}runs/0/1.parquet", b"run")

    def unneeded(later: timedelta) -> set[str]:
        before = datetime.now(UTC) + later
        needed = {f"{index}runs/0/staged.parquet"}
        found = [*find_unneeded_index_files(store, index, before=before, needed=needed)]
        return {entry.key.removeprefix(index) for entry in found}

    assert unneeded(-DAY) == set(), "all of it is younger"
    old = {1, 2, 3}
    assert unneeded(DAY) == {
        *(f"manifests/{version:020d}.json" for version in old),
        *(f"runs/0/{version}.{end}" for version in old for end in ("parquet", "fuse16")),
        "runs/0/of_nobody.parquet",
    }
    below, before = names.key_indexes_prefix(store.prefix, "flights"), datetime.now(UTC) + DAY
    found = [entry.key for entry in find_ended_histories(store, below, histories=["uuid"], before=before)]
    assert found == [f"{other}runs/0/1.parquet"]


def test_maintenance_before_the_first_sweep_skips_dedup(swept: SweptScene) -> None:
    report = run_maintenance(swept.scene.config, "flights", no_spark)
    assert report.tables == ()
    swept.append(rows(0))
    report = run_maintenance(swept.scene.config, "flights", no_spark)
    assert [table.after.rows for table in report.tables] == [4, 0]
    assert [step.name for step in report.store] == ["remove_branches", "remove_plans", "remove_indexes"]
