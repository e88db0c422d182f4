"""The `files` sink on a real archive, a real S3 and a real catalog. Here its tasks run in this process."""

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
    ledger,
    moment,
    objects,
    root,
)
from partition_scenes import Scene, in_this_process, junk

from waybill.config.enums import Compression
from waybill.config.sink import FilesFormat
from waybill.errors import ConfigError, OutputDiffers
from waybill.names import BackupName, TopicPartition
from waybill.partition.plan import Task
from waybill.partition.report import Report, RunOutcome
from waybill.partition.run import run_to_the_end
from waybill.partition.tasks import Job, TaskResult
from waybill.records.encode import Record

pytestmark = pytest.mark.integration

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
MakeScene = Callable[..., Scene]


class Killed(BaseException):
    """What a test raises where the driver is to die."""


def die_at(step: str) -> Callable[[str], None]:
    def done(reached: str) -> None:
        if reached == step:
            raise Killed(step)

    return done


def fill(scene: Scene) -> Scene:
    """Two topic-partitions, three hours, late rows, a tombstone, junk."""
    scene.put(TP0, [moment(n, n / 10) for n in range(25)])
    scene.put(TP0, [moment(25, 0.5, 2.5), junk(26), Record(27, int(moment(0, 2.6).timestamp_ms), b"key", None)])
    scene.put(TP1, [moment(n, 1.5, 1.5) for n in range(100, 120)])
    return scene


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    return fill(make_scene(partition_by="hour", sink="files"))


def test_every_message_is_once_in_a_file_or_in_quarantine(scene: Scene) -> None:
    report = scene.run()
    assert (report.outcome, report.rows, report.quarantined, report.files) == (RunOutcome.COMMITTED, 47, 1, 4)
    assert report.file_bytes == sum(entry.size_bytes for entry in ledger(scene))
    assert data_keys(scene) == [
        "flights/dt=2023-12-25/hr=00/1_0_00000000000000000000.parquet",
        "flights/dt=2023-12-25/hr=01/1_0_00000000000000000000.parquet",
        "flights/dt=2023-12-25/hr=01/1_1_00000000000000000100.parquet",
        "flights/dt=2023-12-25/hr=02/1_0_00000000000000000000.parquet",
    ]
    check_files_exactly_once(scene)
    assert {(e.tp, e.first_offset, e.next_offset, e.plan) for e in ledger(scene)} == {
        (TP0, 0, 28, report.plan),
        (TP1, 100, 120, report.plan),
    }
    assert "partitioned flights: 47 rows" in str(report)
    assert ", 1 in quarantine, 4 files " in str(report)


def test_runs_go_on_and_late_rows_go_to_their_own_hour(scene: Scene) -> None:
    scene.run()
    before = objects(scene)
    scene.put(TP0, [moment(28, 0.2, 3), moment(29, 3)])
    assert scene.run().files == 2
    assert {key: found for key, found in objects(scene).items() if key in before} == before
    check_files_exactly_once(scene)
    assert scene.run().outcome is RunOutcome.NOTHING_NEW


def test_days_have_no_hours(make_scene: MakeScene) -> None:
    scene = fill(make_scene(partition_by="day", sink="files"))
    scene.run()
    assert data_keys(scene) == [
        "flights/dt=2023-12-25/1_0_00000000000000000000.parquet",
        "flights/dt=2023-12-25/1_1_00000000000000000100.parquet",
    ]
    check_files_exactly_once(scene)


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
def test_formats(make_scene: MakeScene, format_: Any) -> None:
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


def test_a_rerun_writes_the_same_objects(make_scene: MakeScene) -> None:
    """The tasks again, with so little memory that they spill: nothing but the plan says what a file is."""
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
        assert [r.entries for r in first] == [r.entries for r in second]
        return second

    report = scene.run(twice)
    assert (report.tasks, report.files) == (2, 10)
    assert seen[0] == seen[1]
    check_files_exactly_once(scene)


def _large(rng: random.Random, offset: int) -> Record:
    """A message of 3 kB."""
    small = moment(offset, rng.random() * 5, 5)
    assert small.value is not None
    return small._replace(value=small.value[:-1] + b', "pad": "%s"}' % rng.randbytes(1500).hex().encode())


@pytest.mark.parametrize("step", ["planned", "carried_out", "staged", "quarantine_committed", "committed"])
def test_a_driver_that_dies_after_any_step_is_made_good_by_the_next(scene: Scene, step: str) -> None:
    with pytest.raises(Killed):
        scene.run(done=die_at(step))
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
    reports: list[Report] = []

    def meet(step: str) -> None:
        if step in {"planned", "carried_out", "staged"}:
            barrier.wait()

    drivers = [threading.Thread(target=lambda: reports.append(scene.run(done=meet))) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(timeout=120)
    assert sorted(report.outcome for report in reports) == [RunOutcome.ADOPTED, RunOutcome.COMMITTED]
    assert [(report.rows, report.files) for report in reports] == [(47, 4)] * 2
    assert len(ledger(scene)) == 4
    check_files_exactly_once(scene)


def test_a_zombie_whose_plan_was_committed_long_ago_changes_nothing(scene: Scene) -> None:
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


def test_what_another_version_wrote_is_named_and_the_remedy_works(scene: Scene) -> None:
    def wrote_otherwise(job: Job, tasks: Sequence[Task]) -> Sequence[TaskResult]:
        assert job.files is not None
        other = replace(job.files, format=FilesFormat(compression=Compression.NONE))
        in_this_process(replace(job, files=other), tasks)
        raise Killed

    with pytest.raises(Killed):
        scene.run(wrote_otherwise)
    with pytest.raises(OutputDiffers, match=r"hr=00/1_0_0{20}\.parquet is there with other content .* remove the plan"):
        scene.run()
    (key,) = [key for key in scene.keys("plans/") if "staged" not in key]
    scene.store.remove(key)
    assert scene.run().rows == 47
    check_files_exactly_once(scene)


def test_files_of_a_ledger_that_was_dropped_are_in_the_way(scene: Scene) -> None:
    scene.run()
    for table in (scene.table, scene.quarantine):
        scene.catalog.drop_table(table.name())
    with pytest.raises(OutputDiffers, match=r"was written for a table with the uuid .* raise the stream's generation"):
        scene.run()
    for key in data_keys(scene):
        scene.store.remove(f"{root(scene)}/{key}")
    scene.run()
    check_files_exactly_once(scene)


def test_a_damaged_object_stops_its_topic_partition_and_what_came_of_the_plan_is_replaced(
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


def test_how_files_lie_must_not_change_within_a_generation(scene: Scene) -> None:
    scene.run()
    as_made = scene.config
    for changes in ({"partition_by": "day"}, {"sink": {"name": "files", "format": "text"}}, {"sink": "iceberg"}):
        scene.config = scene.with_stream(**changes)
        with pytest.raises(ConfigError, match=r"raise the stream's generation"):
            scene.run()
        scene.config = as_made
    scene.config = scene.with_stream(sink={"name": "files", "format": {"name": "parquet", "compression": "gzip"}})
    assert scene.run().outcome is RunOutcome.NOTHING_NEW
    scene.config = scene.with_stream(generation=2, sink="files", partition_by="day")
    scene.sent.clear()
    scene.put(TP0, [moment(0, 0)])
    scene.run()
    check_files_exactly_once(scene)
