"""The `files` sink on a real archive, a real S3 and a real catalog. Here its tasks run in this process."""

from __future__ import annotations

import random
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

from waybill.log.encode import Record
from waybill.names import TopicPartition
from waybill.partition.plan import Task
from waybill.partition.report import RunOutcome
from waybill.partition.task import Job, TaskResult

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
    assert str(report).startswith("partitioned flights: 47 rows, 1 in quarantine, 4 files")


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
