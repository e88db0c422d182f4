"""Maintenance runs with Iceberg's own procedures on Spark, a real catalog and real S3."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from maintenance_scenes import MaintenanceRunner, figures
from partition_scenes import DAY_MS, Scene, event, junk
from quarantine_scenes import check_done, check_sound, fill_quarantine, retry, uncommitted_files

from waybill.archive.chain.indexed_reader import INDEX_TOKEN_KEY
from waybill.base import failpoints
from waybill.config import names
from waybill.config.names import BackupName, TopicPartition
from waybill.tables.iceberg import load_tables, read_progress
from waybill.tables.iceberg.commit import commit_snapshot, copy_state_to_new_snapshot
from waybill.tables.maintenance.maintenance_run import run_maintenance
from waybill.tables.maintenance.orphans import find_orphaned_indexes
from waybill.tables.maintenance.plans import Plans, find_open_retries
from waybill.tables.maintenance.procedures import MaintenanceReport
from waybill.tables.spark.iceberg import SparkProcedures
from waybill.tables.staging.driver import RunOutcome

pytestmark = pytest.mark.integration

TP = TopicPartition("flights", 0)
FILES = 6
MakeScene = Callable[..., Scene]


class Killed(BaseException):
    """Raised at the step where a test kills the driver."""


def die_at(step: str) -> Callable[[str], None]:
    def done(reached: str) -> None:
        if reached == step:
            raise Killed(step)

    return done


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """Rows of two days in many small files, and some messages in quarantine."""
    made = make_scene()
    for n in range(0, FILES * 10, 10):
        made.put(TP, [*(event(n + i, (i % 2) * DAY_MS + 1000 * (n + 20 - i)) for i in range(9)), junk(n + 9)])
        made.run()
    return made


def _neighbours(values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    return values.slice(1), values.slice(0, len(values) - 1)


def test_compaction_makes_few_files_and_neither_loses_nor_repeats_rows(
    scene: Scene, maintenance: MaintenanceRunner
) -> None:
    held = scene.table.current_snapshot()
    assert held is not None
    report = maintenance.run(scene)
    main, quarantine = report.tables
    assert figures(main, "compact").items() >= {"files_before": 2 * FILES, "files_after": 2}.items()
    assert figures(quarantine, "compact").items() >= {"files_before": FILES, "files_after": 1}.items()
    assert (main.before.rows, main.after.rows, main.after.data_files) == (9 * FILES, 9 * FILES, 2)
    assert 0 < figures(main, "compact")["bytes_after"] < figures(main, "compact")["bytes_before"]
    assert main.after.manifests < main.before.manifests
    check_sound(scene, FILES)
    for file in scene.table.inspect.files().column("file_path").to_pylist():
        times = pq.read_table(io.BytesIO(scene.table.io.new_input(file).open().read()), columns=["event_time"])
        assert pc.all(pc.greater_equal(*_neighbours(times.column(0).cast("int64")))).as_py(), "sorted by event time"
    assert scene.table.scan(snapshot_id=held.snapshot_id).to_arrow().num_rows == 9 * FILES, (
        "a reader of the old snapshot can go on"
    )
    scene.put(TP, [event(FILES * 10, 0)])
    assert scene.run().start == {"flights/0": FILES * 10}
    scene.check_exactly_once()


@pytest.mark.deep
def test_all_but_the_newest_snapshot_expire_between_staging_and_commit(
    scene: Scene, maintenance: MaintenanceRunner
) -> None:
    for table in (scene.table, scene.quarantine):  # a snapshot of another program, above those with the progress
        assert commit_snapshot(table, {})
    maintenance.later = timedelta(days=30)
    scene.put(TP, [event(FILES * 10, 0), junk(FILES * 10 + 1)])
    reports: list[MaintenanceReport] = []

    def maintain(step: str) -> None:
        if step == "staged":
            reports.append(maintenance.run(scene, keep_last=1))
            assert read_progress(scene.table.metadata, "t") == {TP: FILES * 10}
            assert read_progress(scene.quarantine.metadata, "q") == {TP: FILES * 10}

    assert scene.run(on_step=maintain).outcome is RunOutcome.COMMITTED
    (report,) = reports
    for done in report.tables:
        assert done.after.snapshots == 1
        assert figures(done, "expire_snapshots")["snapshots_after"] == 1
    assert figures(report.tables[0], "expire_snapshots")["data_files_removed"] == 2 * FILES
    removed = {step.name: step.figures for step in report.store}["remove_plans"]
    assert (removed["objects_removed"], removed["plans_open"]) == (3 * FILES, 1), "plans, staged files and audits"
    assert len(scene.keys("plans/")) == 3
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()
    scene.put(TP, [event(FILES * 10 + 2, 0)])
    assert scene.run().start == {"flights/0": FILES * 10 + 2}
    scene.check_exactly_once()


def test_orphan_files_are_removed_and_staged_files_of_open_plans_are_kept(
    make_scene: MakeScene, maintenance: MaintenanceRunner
) -> None:
    scene = make_scene()
    scene.put(TP, [event(i, i * DAY_MS) for i in range(3)])
    with pytest.raises(Killed):
        scene.run(on_step=die_at("executed"))
    assert len(scene.data_files() - scene.referenced_files()) == 3

    def rival_comes_first(step: str) -> None:
        if step == "executed":
            scene.run()
            raise Killed

    with pytest.raises(Killed):
        scene.run(on_step=rival_comes_first)
    of_the_losers = scene.data_files() - scene.referenced_files()
    assert len(of_the_losers) == 6

    # Files of a plan that is not committed yet: named in its list of staged files, or only by the plan's id.
    scene.put(TP, [event(3, 0), junk(4)])
    with pytest.raises(Killed):
        scene.run(on_step=die_at("executed"))
    with pytest.raises(Killed):
        scene.run(on_step=die_at("staged"))
    needed = scene.data_files() - scene.referenced_files() - of_the_losers
    assert len(needed) == 4

    maintenance.later = timedelta(days=2)
    assert _removed(maintenance.run(scene)) == 0, "younger than orphans_after"
    assert of_the_losers | needed <= scene.data_files()
    maintenance.later = timedelta(days=400)
    report = maintenance.run(scene)
    assert _removed(report) >= len(of_the_losers)
    assert scene.data_files() == needed | scene.referenced_files()
    assert {step.name: step.figures for step in report.store}["remove_plans"]["plans_open"] == 1
    assert scene.run().outcome is RunOutcome.COMMITTED
    scene.check_exactly_once()


def _removed(report: MaintenanceReport) -> int:
    """Return the number of removed files: data files, and metadata files of refused commits."""
    return sum(figures(table, "remove_orphans").get("files_removed", 0) for table in report.tables)


@pytest.mark.deep
def test_killed_retry_of_the_quarantine_is_finished_and_keeps_its_files(
    make_scene: MakeScene, maintenance: MaintenanceRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene()
    fill_quarantine(scene)

    def reach(step: str) -> None:
        if step == "retry.recorded":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        with pytest.raises(Killed):
            retry(scene)
    tables = load_tables(scene.catalog, scene.stream)
    assert tables is not None
    uuid = str(tables.main.metadata.table_uuid)
    prefix = names.retries_prefix(scene.store.prefix, "flights", scene.stream.generation, uuid)
    staged = uncommitted_files(scene, tables)
    needed = Plans(tuple(find_open_retries(scene.store, prefix, taken_part=0)), ())
    assert staged
    assert all(needed.protects(path) for path in staged)
    assert find_open_retries(scene.store, prefix, taken_part=1) == []

    maintenance.later = timedelta(days=400)
    maintenance.run(scene)
    assert set(staged) <= scene.referenced_files()
    check_done(scene, 2)


@pytest.mark.deep
def test_partition_runs_commit_during_a_compaction(scene: Scene, maintenance: MaintenanceRunner) -> None:
    committed: list[RunOutcome] = []
    over = threading.Event()

    def go_on() -> None:
        n = FILES * 10
        while not over.is_set():
            scene.put(TP, [event(n, n), junk(n + 1)])
            committed.append(scene.run().outcome)
            n += 2

    partition = threading.Thread(target=go_on)
    partition.start()
    try:
        report = maintenance.run(scene, min_input_files=2)
    finally:
        over.set()
        partition.join()
    assert set(committed) == {RunOutcome.COMMITTED}
    assert figures(report.tables[0], "compact")["files_before"] >= 2 * FILES
    scene.check_exactly_once()


def test_state_is_copied_to_a_new_snapshot_even_if_others_commit_in_between(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not copy_state_to_new_snapshot(scene.table), "the newest snapshot has it already"
    scene.rewrite()
    table = scene.table
    commit = type(table)._do_commit
    rivals = [scene.rewrite]

    def let_a_rival_commit_first(self: Any, **arguments: Any) -> None:
        if rivals:
            rivals.pop()()
        commit(self, **arguments)

    monkeypatch.setattr(type(table), "_do_commit", let_a_rival_commit_first)
    assert copy_state_to_new_snapshot(table)
    current = scene.table.current_snapshot()
    assert current is not None
    assert current.summary is not None
    assert f'"flights/0":{FILES * 10}' in current.summary.additional_properties["waybill.progress"]
    scene.check_exactly_once()


def test_stream_without_tables_or_rows_needs_no_spark(make_scene: MakeScene) -> None:
    def refuse() -> SparkProcedures:
        raise AssertionError("Spark is not needed")

    scene = make_scene()
    report = run_maintenance(scene.config, "flights", refuse)
    assert report.tables == ()
    scene.run()
    report = run_maintenance(scene.config, "flights", refuse)
    assert [table.after.data_files for table in report.tables] == [0, 0]


def test_index_objects_are_removed_if_their_backup_object_names_another_one(make_scene: MakeScene) -> None:
    scene = make_scene(format="text")
    store, topic = scene.store, "flights"
    tokens = [hashlib.md5(str(n).encode()).hexdigest() for n in range(5)]

    def put(first_offset: int, named: str | None, *indexes: str) -> list[str]:
        key = BackupName(topic, 1, 0, first_offset, names.Extension.TEXT).key(store.prefix)
        keys = [names.index_key(key, token) for token in indexes]
        for index in keys:
            store.create_if_absent(index, b"index")
        if named is not None:
            store.create_if_absent(key, b"", {INDEX_TOKEN_KEY: named})
        return keys

    kept = put(0, tokens[0], tokens[0])
    winner, *losers = put(10, tokens[1], tokens[1], tokens[2], tokens[3])
    still_uploading = put(20, None, tokens[0], tokens[1])
    lost_its_own = put(30, tokens[4], tokens[0], tokens[1])
    assert sorted(entry.key for entry in find_orphaned_indexes(store, [topic], 1)) == sorted(losers)

    def removed(later: timedelta) -> int:
        report = run_maintenance(scene.config, "flights", _no_spark, now=lambda: datetime.now(UTC) + later)
        return report.store[-1].figures["objects_removed"]

    assert removed(timedelta(days=1)) == 0
    assert removed(timedelta(days=8)) == 2
    assert sorted(scene.keys("index/")) == sorted([*kept, winner, *still_uploading, *lost_its_own])


def _no_spark() -> SparkProcedures:
    raise AssertionError("Spark is not needed")
