"""The `files` sink on a real archive, S3 and catalog; its tasks run in this process."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from files_scenes import (
    check_files_exactly_once,
    check_values_exactly_once,
    data_keys,
    inventory,
    moment,
    objects,
    root,
)
from partition_scenes import Scene, in_this_process, junk, mostly_deep

from waybill.base.errors import ConfigError, OutputDiffers
from waybill.config.models.enums import Compression
from waybill.config.models.sink import FilesFormat
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.encode import Record
from waybill.tables.partition.generations import promote_generation
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.partition_report import PartitionReport
from waybill.tables.partition.partition_run import run_to_the_end
from waybill.tables.partition.tasks import Job, TaskResult
from waybill.tables.staging.driver import RunOutcome

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
MakeScene = Callable[..., Scene]


class Killed(BaseException):
    """Raised by a test to end the driver at a step."""


def die_at(step: str) -> Callable[[str], None]:
    def done(reached: str) -> None:
        if reached == step:
            raise Killed(step)

    return done


def fill(scene: Scene) -> Scene:
    """A scene with two topic-partitions over three hours, late rows, a tombstone and junk."""
    scene.put(TP0, [moment(n, n / 10) for n in range(25)])
    scene.put(TP0, [moment(25, 0.5, 2.5), junk(26), Record(27, int(moment(0, 2.6).timestamp_ms), b"key", None)])
    scene.put(TP1, [moment(n, 1.5, 1.5) for n in range(100, 120)])
    return scene


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    return fill(make_scene(partition_by="hour", sink="files"))


def test_every_message_is_in_a_file_or_in_quarantine_exactly_once(scene: Scene) -> None:
    report = scene.run()
    assert (report.outcome, report.rows, report.quarantined, report.files) == (RunOutcome.COMMITTED, 47, 1, 4)
    assert report.file_bytes == sum(entry.size_bytes for entry in inventory(scene))
    assert data_keys(scene) == [
        "flights/dt=2023-12-25/hr=00/1_0_00000000000000000000.parquet",
        "flights/dt=2023-12-25/hr=01/1_0_00000000000000000000.parquet",
        "flights/dt=2023-12-25/hr=01/1_1_00000000000000000100.parquet",
        "flights/dt=2023-12-25/hr=02/1_0_00000000000000000000.parquet",
    ]
    check_files_exactly_once(scene)
    assert {(e.tp, e.first_offset, e.next_offset, e.plan) for e in inventory(scene)} == {
        (TP0, 0, 28, report.plan),
        (TP1, 100, 120, report.plan),
    }
    assert "partitioned flights: 47 rows" in str(report)
    assert ", 1 in quarantine, 4 files " in str(report)


def test_runs_start_where_the_last_one_ended_and_late_rows_go_to_their_own_hour(scene: Scene) -> None:
    scene.run()
    before = objects(scene)
    scene.put(TP0, [moment(28, 0.2, 3), moment(29, 3)])
    assert scene.run().files == 2
    assert {key: found for key, found in objects(scene).items() if key in before} == before
    check_files_exactly_once(scene)
    assert scene.run().outcome is RunOutcome.NOTHING_NEW


def test_a_stream_by_day_has_directories_of_days(make_scene: MakeScene) -> None:
    scene = fill(make_scene(partition_by="day", sink="files"))
    scene.run()
    assert data_keys(scene) == [
        "flights/dt=2023-12-25/1_0_00000000000000000000.parquet",
        "flights/dt=2023-12-25/1_1_00000000000000000100.parquet",
    ]
    check_files_exactly_once(scene)


@pytest.mark.deep
@pytest.mark.parametrize(
    "format_",
    [
        {"name": "parquet", "compression": "snappy"},
        {"name": "sequencefile", "key": "legacy"},
        {"name": "sequencefile", "compression": "zstd"},
        "text",
        {"name": "text", "compression": "gzip"},
    ],
    ids=str,
)
def test_every_format_holds_each_value_once(make_scene: MakeScene, format_: Any) -> None:
    scene = fill(make_scene(partition_by="hour", sink={"name": "files", "format": format_}))
    in_two_lines = b'{"at": 1703462400000,\n"id": "x"}'
    scene.put(TP1, [Record(120, 0, None, in_two_lines), moment(121, 1.6)])
    report = scene.run()
    is_text = "text" in str(format_)
    assert report.quarantined == (3 if is_text else 1)
    assert report.rows == 50 - report.quarantined
    check_values_exactly_once(scene)
    if is_text:
        reasons = {row["reason"].partition(":")[0] for row in scene.quarantine.scan().to_arrow().to_pylist()}
        assert reasons == {"not_json", "contains_delimiter", "tombstone"}


@pytest.mark.deep
def test_a_rerun_writes_the_same_objects(make_scene: MakeScene) -> None:
    """Executes the tasks again with so little memory that they spill: only the plan determines the files."""
    scene = make_scene(partition_by="hour", sink="files", partition={"memory": "1GiB", "task_bytes": "12MiB"})
    rng = random.Random(1)
    for first in range(0, 15_000, 3000):
        scene.put(TP0, [_large(rng, n) for n in range(first, first + 3000)], batch=500)
    seen: list[dict[str, Any]] = []

    def twice(job: Job, tasks: Sequence[Task]) -> Sequence[TaskResult]:
        first = in_this_process(job, tasks)
        seen.append(objects(scene))
        for key in list(seen[0])[::2]:
            scene.store.remove(f"{root(scene)}/{key}")
        second = in_this_process(replace(job, memory_bytes=16 << 20), tasks)
        seen.append(objects(scene))
        assert [r.inventory for r in first] == [r.inventory for r in second]
        return second

    report = scene.run(twice)
    assert (report.tasks, report.files) == (2, 10)
    assert seen[0] == seen[1]
    check_files_exactly_once(scene)


def _large(rng: random.Random, offset: int) -> Record:
    """Return a message of 3 kB."""
    small = moment(offset, rng.random() * 5, 5)
    assert small.value is not None
    return small._replace(value=small.value[:-1] + b', "pad": "%s"}' % rng.randbytes(1500).hex().encode())


@pytest.mark.parametrize(
    "step",
    mostly_deep(
        ("planned", "executed", "staged", "branched", "audited", "quarantine_published", "committed"),
        "staged",
        "quarantine_published",
    ),
)
def test_the_next_run_continues_after_a_driver_died_at_any_step(scene: Scene, step: str) -> None:
    with pytest.raises(Killed):
        scene.run(on_step=die_at(step))
    before = objects(scene)
    scene.put(TP0, [moment(28, 0.2, 3)])
    scene.config = scene.with_stream(parser={"name": "json", "event_time": {"field": "other"}})
    first = scene.run()
    assert first.rows + first.quarantined == (1 if step == "committed" else 48)
    assert {key: found for key, found in objects(scene).items() if key in before} == before
    scene.run()
    check_files_exactly_once(scene)
    assert scene.run().outcome is RunOutcome.NOTHING_NEW


def test_of_two_drivers_one_commits_and_the_other_adopts(scene: Scene) -> None:
    barrier = threading.Barrier(2, timeout=60)
    reports: list[PartitionReport] = []

    def meet(step: str) -> None:
        if step in {"planned", "executed", "staged"}:
            barrier.wait()

    drivers = [threading.Thread(target=lambda: reports.append(scene.run(on_step=meet))) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(timeout=120)
    assert sorted(report.outcome for report in reports) == [RunOutcome.ADOPTED, RunOutcome.COMMITTED]
    assert [(report.rows, report.files) for report in reports] == [(47, 4)] * 2
    assert len(inventory(scene)) == 4
    check_files_exactly_once(scene)


def test_a_driver_that_resumes_long_after_its_plan_was_committed_changes_nothing(scene: Scene) -> None:
    late: list[tuple[Job, Sequence[Task]]] = []

    def remember(job: Job, tasks: Sequence[Task]) -> Sequence[TaskResult]:
        late.append((job, tasks))
        return in_this_process(job, tasks)

    scene.run(remember)
    scene.put(TP0, [moment(28, 0.2, 3)])
    scene.run()
    before = objects(scene)
    in_this_process(*late[0])
    assert objects(scene) == before
    check_files_exactly_once(scene)


def test_a_file_with_other_bytes_is_named_and_the_remedy_works(scene: Scene) -> None:
    def wrote_otherwise(job: Job, tasks: Sequence[Task]) -> Sequence[TaskResult]:
        assert job.files is not None
        other = replace(job.files, format=FilesFormat(compression=Compression.NONE))
        in_this_process(replace(job, files=other), tasks)
        raise Killed

    with pytest.raises(Killed):
        scene.run(wrote_otherwise)
    with pytest.raises(OutputDiffers, match=r"hr=00/1_0_0{20}\.parquet exists with other content .* remove the plan"):
        scene.run()
    (key,) = [key for key in scene.keys("plans/") if "staged" not in key]
    scene.store.remove(key)
    assert scene.run().rows == 47
    check_files_exactly_once(scene)


def test_files_of_a_dropped_inventory_are_refused(scene: Scene) -> None:
    scene.run()
    for table in (scene.table, scene.quarantine):
        scene.catalog.drop_table(table.name())
    with pytest.raises(OutputDiffers, match=r"was written for a table with the uuid .* raise the stream's generation"):
        scene.run()
    for key in data_keys(scene):
        scene.store.remove(f"{root(scene)}/{key}")
    scene.run()
    check_files_exactly_once(scene)


def test_a_damaged_object_stops_its_topic_partition_and_files_of_the_ended_plan_are_replaced(
    make_scene: MakeScene,
) -> None:
    scene = make_scene(partition_by="hour", sink="files", partition={"task_bytes": "1MiB"})
    rng = random.Random(2)
    for first in range(0, 3000, 500):
        scene.put(TP0, [_large(rng, n) for n in range(first, first + 500)])
        scene.put(TP1, [_large(rng, n) for n in range(first, first + 500)])
    key = BackupName("flights", 1, 0, 1500).key(scene.store.prefix)
    sound = scene.store.read(key)
    scene.store.remove(key)
    scene.store.create_if_absent(key, sound[:-3] + bytes([sound[-3] ^ 1]) + sound[-2:])
    *earlier, last = run_to_the_end(scene.config, "flights", in_this_process)
    assert earlier[0].rows == 0, "a plan with a fault comes to nothing"
    assert (last.end, len(last.faults)) == ({"flights/0": 1500, "flights/1": 3000}, 1)
    check_files_exactly_once(scene)
    assert scene.run().outcome is RunOutcome.NOTHING_NEW
    scene.store.remove(key)
    scene.store.create_if_absent(key, sound)
    *_, last = run_to_the_end(scene.config, "flights", in_this_process)
    assert (last.end, last.faults) == ({"flights/0": 3000, "flights/1": 3000}, ())
    check_files_exactly_once(scene)


def test_the_layout_of_files_must_not_change_within_a_generation(scene: Scene) -> None:
    scene.run()
    as_made = scene.config
    for changes, remedy in (
        ({"partition_by": "day"}, "raise the stream's generation"),
        ({"sink": {"name": "files", "format": "text"}}, "raise the stream's generation"),
        ({"sink": "iceberg"}, "name another table"),
    ):
        scene.config = scene.with_stream(**changes)
        with pytest.raises(ConfigError, match=remedy):
            scene.run()
        scene.config = as_made
    scene.config = scene.with_stream(sink={"name": "files", "format": {"name": "parquet", "compression": "gzip"}})
    assert scene.run().outcome is RunOutcome.NOTHING_NEW
    scene.config = scene.with_stream(generation=2, sink="files", partition_by="day")
    scene.sent.clear()
    scene.put(TP0, [moment(0, 0)])
    scene.run()
    promote_generation(scene.config, "flights", 2, by="ann", reason="by day")
    check_files_exactly_once(scene)
