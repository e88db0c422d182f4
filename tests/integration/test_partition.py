"""What the partition job promises, on a real archive and a real catalog. Here its tasks run in this process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from partition_scenes import DAY_MS, Scene, event, in_this_process, junk
from pyiceberg.expressions import GreaterThan

from waybill.archive.spans import ArchiveFault
from waybill.errors import ConfigError, PlanUnusable, ProgressLost, ScratchUnusable
from waybill.names import BackupName, TopicPartition
from waybill.partition.plan import Task
from waybill.partition.report import Report, RunOutcome
from waybill.partition.run import run_to_the_end
from waybill.partition.tasks import Execute, Job, TaskResult
from waybill.records.encode import Record, control_batch, encode_batch
from waybill.records.framing import Codec, ControlType, empty_batch
from waybill.tables import read_progress

pytestmark = pytest.mark.integration

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
OTHER = TopicPartition("flights-extra", 0)
MakeScene = Callable[..., Scene]


class Killed(BaseException):
    """What a test raises where the driver is to die."""


def die_at(step: str) -> Callable[[str], None]:
    def done(reached: str) -> None:
        if reached == step:
            raise Killed(step)

    return done


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """An archive with something of everything: two topics, late data, tombstones, junk."""
    made = make_scene()
    made.put(TP0, [event(n, n * DAY_MS // 10) for n in range(50)])
    made.put(TP0, [event(50, 5 * DAY_MS), junk(51), Record(52, 7000, b"key", None), event(53, -DAY_MS)])
    made.put(TP1, [event(n, 3 * DAY_MS, key=None, headers=[("h", b"1"), ("h", None)]) for n in range(100, 120)])
    made.put(OTHER, [junk(0), event(1, 0)])
    return made


def test_every_message_of_the_archive_is_once_in_table_or_quarantine(scene: Scene) -> None:
    report = scene.run()
    assert (report.outcome, report.rows, report.quarantined) == (RunOutcome.COMMITTED, 74, 2)
    assert report.end == {"flights-extra/0": 2, "flights/0": 54, "flights/1": 120}
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()
    assert len(list(scene.table.scan(GreaterThan("event_time", "1970-01-06T00:00:00+00:00")).plan_files())) == 0
    assert [row["reason"].partition(":")[0] for row in scene.quarantine.scan().to_arrow().to_pylist()] == [
        "not_json"
    ] * 2


def test_rows_and_progress_are_one_snapshot(scene: Scene) -> None:
    report = scene.run()
    (snapshot,) = scene.table.metadata.snapshots
    assert snapshot.summary is not None
    properties = snapshot.summary.additional_properties
    assert properties["added-records"] == "74"
    assert properties["waybill.plan"] == report.plan
    assert read_progress(scene.table.metadata, "t") == {TP0: 54, TP1: 120, OTHER: 2}


def test_a_run_with_nothing_new_makes_no_snapshot(scene: Scene) -> None:
    scene.run()
    before = scene.table.metadata_location

    def refuse(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        raise AssertionError("there is nothing to do")

    assert scene.run(refuse).outcome is RunOutcome.NOTHING_NEW
    assert scene.table.metadata_location == before


def test_a_run_on_an_empty_archive(make_scene: MakeScene) -> None:
    empty = make_scene()
    assert str(empty.run()).startswith("partitioned flights: nothing new")
    assert empty.table.metadata.snapshots == []


def test_runs_go_on_where_the_last_one_ended_and_late_data_goes_to_its_own_hour(make_scene: MakeScene) -> None:
    scene = make_scene(partition_by="hour")
    scene.put(TP0, [event(n, 3_600_000 * 10 + n) for n in range(10)])
    assert scene.run().end == {"flights/0": 10}
    scene.put(TP0, [event(10, 3_600_000 * 11), event(11, 5)])
    scene.put(TP1, [event(0, 3_600_000 * 10)])
    assert scene.run().start == {"flights/0": 10}
    scene.check_exactly_once()
    hours = {file.file.partition[0]: file.file.record_count for file in scene.table.scan().plan_files()}
    assert hours == {0: 1, 10: 1, 11: 1} or hours == {0: 1, 10: 10, 11: 1}
    assert sum(f.file.record_count for f in scene.table.scan().plan_files()) == 13


def test_transactions_control_batches_and_compaction(make_scene: MakeScene) -> None:
    """What ingest writes for a transactional and for a compacted topic."""
    scene = make_scene()
    first, second = [event(n, n) for n in range(3)], [event(n, n) for n in (7, 9)]
    content = [
        encode_batch(first, transactional=True, producer_id=1, producer_epoch=0, codec=Codec.LZ4),
        control_batch(3, ControlType.COMMIT, timestamp_ms=3, producer_id=1, producer_epoch=0),
        empty_batch(4, 6, leader_epoch=0),  # an aborted transaction was here
        encode_batch(second, base_offset=6, next_offset=12, codec=Codec.GZIP),  # compacted
        empty_batch(12, 20, leader_epoch=0),
    ]
    scene.put_bytes(TP0, 0, b"".join(content), [*first, *second])
    assert scene.run().end == {"flights/0": 20}
    scene.check_exactly_once()
    scene.put_bytes(TP0, 20, empty_batch(20, 25, leader_epoch=0), [])
    report = scene.run()
    assert (report.outcome, report.rows, report.files, report.end) == (RunOutcome.COMMITTED, 0, 0, {"flights/0": 25})
    assert read_progress(scene.table.metadata, "t") == {TP0: 25}
    scene.check_exactly_once()


def test_all_in_quarantine(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.put(TP0, [junk(n) for n in range(5)])
    assert (scene.run().rows, scene.run().outcome) == (0, RunOutcome.NOTHING_NEW)
    scene.put(TP0, [event(5, 0)])
    assert scene.run().rows == 1
    scene.check_exactly_once()


def test_ranges_are_clipped_to_what_the_names_say(make_scene: MakeScene) -> None:
    """A batch that straddles the start of its object is kept whole by ingest."""
    scene = make_scene()
    records = [event(n, n) for n in range(10)]
    scene.put_bytes(TP0, 4, encode_batch(records), records[4:])
    scene.put(TP0, [event(10, 10)])
    assert scene.run().rows == 7
    scene.check_exactly_once()


@pytest.mark.parametrize("step", ["planned", "carried_out", "staged", "quarantine_committed", "committed"])
def test_a_driver_that_dies_after_any_step_is_made_good_by_the_next(scene: Scene, step: str) -> None:
    with pytest.raises(Killed):
        scene.run(done=die_at(step))
    # Meanwhile the archive grows, and somebody corrects the parser, so that what was junk could now be read.
    scene.put(TP0, [event(54, 0)])
    scene.config = scene.with_stream(
        parser={"name": "json", "event_time": {"field": "other", "format": "epoch_s"}, "message_id": "at"}
    )
    first = scene.run()
    assert first.rows + first.quarantined == (1 if step == "committed" else 76)
    if step == "committed":
        assert first.quarantined == 1, "the new plan is read by the new parser"
    else:
        assert first.quarantined == 2, "the old plan is read by the old parser"
        assert scene.run().quarantined == 1
    scene.check_exactly_once()
    assert scene.run().outcome is RunOutcome.NOTHING_NEW


def test_a_driver_that_is_killed_between_the_two_commits(scene: Scene, tmp_path: Path) -> None:
    """A real process, a real SIGKILL: nothing gets to clean up."""
    config = tmp_path / "config.json"
    config.write_text(scene.config.model_dump_json())
    script = """
import os, signal, sys
from pathlib import Path
from partition_scenes import in_this_process
from waybill.config import Config
from waybill.partition.run import run_partition

def die(step):
    if step == "quarantine_committed":
        os.kill(os.getpid(), signal.SIGKILL)

run_partition(Config.model_validate_json(Path(sys.argv[1]).read_text()), "flights", in_this_process, done=die)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    killed = subprocess.run([sys.executable, "-c", script, config], env=environment, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert scene.table.metadata.snapshots == []
    assert len(scene.quarantine.metadata.snapshots) == 1
    assert scene.run().outcome is RunOutcome.COMMITTED
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()


def test_work_that_was_staged_is_not_done_twice(scene: Scene) -> None:
    with pytest.raises(Killed):
        scene.run(done=die_at("quarantine_committed"))

    def refuse(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        raise AssertionError("the work was done before")

    report = scene.run(refuse)
    assert (report.outcome, report.rows, report.quarantined) == (RunOutcome.COMMITTED, 74, 2)
    assert len(scene.quarantine.metadata.snapshots) == 1
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()


def test_an_earlier_plan_is_carried_out_and_then_what_came_since(scene: Scene) -> None:
    with pytest.raises(Killed):
        scene.run(done=die_at("planned"))
    scene.put(TP0, [event(54, 0), event(55, 0)])
    earlier, since = run_to_the_end(scene.config, "flights", in_this_process)
    assert (earlier.resumed, earlier.rows, earlier.end["flights/0"]) == (True, 74, 54)
    assert (since.resumed, since.rows, since.end["flights/0"]) == (False, 2, 56)
    scene.check_exactly_once()


def test_staged_files_that_are_gone_are_named(scene: Scene) -> None:
    with pytest.raises(Killed):
        scene.run(done=die_at("staged"))
    victim = min(scene.data_files())
    scene.table.io.delete(victim)
    with pytest.raises(PlanUnusable, match=r"staged\.json names a data file that is gone"):
        scene.run()


def test_staged_files_of_another_plan_are_not_committed(scene: Scene) -> None:
    """Two plans of one name could only come about by removing objects by hand."""
    with pytest.raises(Killed):
        scene.run(done=die_at("staged"))
    scene.put(TP0, [event(54, 0)])
    (key,) = [key for key in scene.keys("plans/") if "staged" not in key]
    scene.store.client.delete_object(Bucket=scene.store.bucket, Key=key)
    with pytest.raises(PlanUnusable, match=r"belongs to another plan"):
        scene.run()


def test_of_two_drivers_one_commits_and_the_other_adopts(scene: Scene) -> None:
    barrier = threading.Barrier(2, timeout=60)
    reports: list[Report] = []

    def meet(step: str) -> None:
        if step in {"planned", "carried_out", "staged"}:
            barrier.wait()

    def drive() -> None:
        reports.append(scene.run(done=meet))

    drivers = [threading.Thread(target=drive) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(timeout=120)
    assert sorted(report.outcome for report in reports) == [RunOutcome.ADOPTED, RunOutcome.COMMITTED]
    assert len(scene.table.metadata.snapshots) == len(scene.quarantine.metadata.snapshots) == 1
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()


@pytest.mark.parametrize("step", ["planned", "carried_out", "staged", "quarantine_committed"])
def test_a_zombie_that_wakes_after_a_longer_history_changes_nothing(scene: Scene, step: str) -> None:
    def oversleep(reached: str) -> None:
        if reached == step:
            scene.run()
            scene.put(TP0, [event(54, 0), junk(55)])
            scene.run()

    assert scene.run(done=oversleep).outcome is RunOutcome.ADOPTED
    scene.check_exactly_once()
    assert scene.run().outcome is RunOutcome.NOTHING_NEW
    scene.check_no_file_is_left_over()


def test_a_disk_that_cannot_be_written_is_named_and_a_later_run_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", "/proc")
        with pytest.raises(ScratchUnusable, match="scratch directory /proc cannot be written"):
            scene.run()
    assert scene.run().outcome is RunOutcome.COMMITTED
    scene.check_exactly_once()


def test_a_compaction_that_comes_between_is_no_conflict(scene: Scene) -> None:
    scene.run()
    scene.put(TP0, [event(54, 0)])

    def rewrite(step: str) -> None:
        if step == "staged":
            scene.rewrite()

    assert scene.run(done=rewrite).outcome is RunOutcome.COMMITTED
    scene.check_exactly_once()
    assert read_progress(scene.table.metadata, "t")[TP0] == 55


def test_a_rollback_takes_the_progress_back_and_the_rows_come_again(scene: Scene) -> None:
    scene.run()
    scene.put(TP0, [event(54, 0)])
    scene.run()
    first = scene.table.metadata.snapshots[0].snapshot_id
    scene.table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert read_progress(scene.table.metadata, "t")[TP0] == 54
    assert scene.run().rows == 1
    scene.check_exactly_once()


def test_rows_of_an_unknown_origin_stop_the_run(scene: Scene) -> None:
    scene.run()
    rows = scene.table.scan().to_arrow()
    stranger = scene.catalog.create_table(f"{scene.stream.table}_x", scene.table.schema())
    stranger.append(rows)
    with pytest.raises(ProgressLost, match=r"holds rows, but no snapshot"):
        read_progress(stranger.metadata, "x")


def test_a_table_made_anew_is_filled_anew_by_todays_parser(scene: Scene) -> None:
    scene.run()
    for table in (scene.table, scene.quarantine):
        scene.catalog.drop_table(table.name())
    scene.config = scene.with_stream(parser={"name": "json", "event_time": {"field": "at", "format": "epoch_s"}})
    assert scene.run().rows == 74
    scene.check_exactly_once()
    assert "flights/0@0" in scene.table.scan().to_arrow().column("message_id").to_pylist()


def test_an_object_that_is_gone_stops_its_topic_partition_until_it_is_back(scene: Scene) -> None:
    key = BackupName("flights", 1, 0, 50).key(scene.store.prefix)
    content = scene.store.read(key)
    scene.store.client.delete_object(Bucket=scene.store.bucket, Key=key)
    scene.put(TP0, [event(54, 0)])
    report = scene.run()
    assert report.end == {"flights-extra/0": 2, "flights/0": 50, "flights/1": 120}
    (fault,) = report.faults
    assert re.search(r"ends at offset 50, and the chain goes on at 54", fault)
    scene.check_no_file_is_left_over()
    again = scene.run()
    assert (again.outcome, again.faults) == (RunOutcome.NOTHING_NEW, report.faults)
    scene.store.create_if_absent(key, content)
    scene.run()
    scene.check_exactly_once()
    assert scene.run().faults == ()


def test_damage_names_the_object_and_stops_no_other_topic_partition(scene: Scene) -> None:
    records = [event(n, 0) for n in range(54, 60)]
    key = damage(scene, TP0, records)
    scene.put(TP0, [event(60, 0)])
    report = scene.run()
    assert report.end == {"flights-extra/0": 2, "flights/0": 54, "flights/1": 120}
    (fault,) = report.faults
    assert "1_0_00000000000000000054.kafka, byte 0: CRC-32C" in fault
    scene.check_no_file_is_left_over()
    scene.put(TP1, [event(120, 0)])
    next_one = scene.run(only_these(TP1))
    assert (next_one.rows, next_one.faults, next_one.end["flights/0"]) == (1, report.faults, 54)
    assert scene.run(only_these()).faults == report.faults, "remembered over a commit of others"
    mend(scene, key, records)
    assert scene.run().rows == 7
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()


def test_a_fault_at_the_very_start_does_not_hold_up_what_comes_for_others(make_scene: MakeScene) -> None:
    """The plan that met it is never taken back, and yet the next one is another."""
    scene = make_scene()
    records = [event(n, 0) for n in range(6)]
    key = damage(scene, TP0, records)
    scene.put(TP0, [event(6, 0)])  # else listing the chain reads the damaged object for its end
    first = scene.run()
    assert (first.outcome, first.rows, first.end, len(first.faults)) == (RunOutcome.COMMITTED, 0, {}, 1)
    assert (scene.run().outcome, scene.run().faults) == (RunOutcome.NOTHING_NEW, first.faults)
    scene.put(TP1, [event(0, 0)])
    assert (scene.run().rows, scene.run().faults) == (1, first.faults)
    mend(scene, key, records)
    assert scene.run().rows == 7
    scene.check_exactly_once()
    assert scene.run().faults == ()


@pytest.mark.parametrize("step", ["planned", "carried_out", "staged", "quarantine_committed"])
def test_a_zombie_that_met_the_fault_and_wakes_when_it_is_mended_changes_nothing(scene: Scene, step: str) -> None:
    """And the other way round: of two outcomes of one plan only one can be committed."""
    records = [event(n, 0) for n in range(54, 60)]
    key = damage(scene, TP0, records)
    scene.put(TP0, [event(60, 0)])
    seen: list[str] = []

    def oversleep(reached: str) -> None:
        seen.append(reached)
        if reached == step:
            mend(scene, key, records)
            while scene.run().outcome is not RunOutcome.NOTHING_NEW:
                pass

    assert scene.run(done=oversleep).outcome is RunOutcome.ADOPTED
    assert step in seen
    scene.check_exactly_once()
    assert scene.run().outcome is RunOutcome.NOTHING_NEW
    scene.check_no_file_is_left_over()


def test_a_zombie_with_a_sound_archive_adopts_what_was_staged_without_the_damaged_object(scene: Scene) -> None:
    records = [event(n, 0) for n in range(54, 60)]
    scene.put(TP0, records)
    scene.put(TP0, [event(60, 0)])
    key = BackupName("flights", 1, 0, 54).key(scene.store.prefix)
    sound = scene.store.read(key)

    def oversleep(step: str) -> None:
        if step == "carried_out":
            scene.store.client.put_object(Bucket=scene.store.bucket, Key=key, Body=b"x" + sound[1:])
            assert scene.run().end["flights/0"] == 54
            scene.store.client.put_object(Bucket=scene.store.bucket, Key=key, Body=sound)

    report = scene.run(done=oversleep)
    assert (report.outcome, report.end["flights/0"], len(report.faults)) == (RunOutcome.ADOPTED, 54, 1)
    assert scene.run().rows == 7
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()


def damage(scene: Scene, tp: TopicPartition, records: Sequence[Record]) -> str:
    """A backup object of these messages with one bit of it wrong. Returns its key."""
    content = bytearray(encode_batch(records))
    content[-3] ^= 1
    scene.put_bytes(tp, records[0].offset, bytes(content), records)
    return BackupName(tp.topic, 1, tp.partition, records[0].offset).key(scene.store.prefix)


def mend(scene: Scene, key: str, records: Sequence[Record]) -> None:
    scene.store.client.put_object(Bucket=scene.store.bucket, Key=key, Body=encode_batch(records))


def only_these(*expected: TopicPartition) -> Execute:
    """Tasks in this process, which read these topic-partitions and no others."""

    def execute(job: Job, tasks: Sequence[Task]) -> list[TaskResult | ArchiveFault]:
        assert {span.tp for task in tasks for span in task} == set(expected)
        return in_this_process(job, tasks)

    return execute


def test_a_backlog_is_committed_in_plans_of_the_configured_size(make_scene: MakeScene) -> None:
    scene = make_scene(partition={"run_bytes": "1MiB"})
    for n in range(6):
        record = event(n, n, value=b'{"at": 5, "x": "%s"}' % (b"x" * 400_000))
        scene.put(TP0, [record], codec=Codec.NONE)
    reports = list(run_to_the_end(scene.config, "flights", in_this_process))
    assert [(report.rows, report.more) for report in reports] == [(2, True), (2, True), (2, False)]
    scene.check_exactly_once()


def test_a_chain_that_does_not_begin_where_progress_is_leaves_the_others_alone(scene: Scene) -> None:
    scene.run()
    lost = [event(54, 0)]
    scene.put(TP0, lost)
    scene.put(TP0, [event(55, 0)])
    scene.put(TP1, [event(120, 0)])
    for first in (0, 50, 54):
        key = BackupName("flights", 1, 0, first).key(scene.store.prefix)
        scene.store.client.delete_object(Bucket=scene.store.bucket, Key=key)
    report = scene.run()
    assert (report.rows, report.end["flights/0"], report.end["flights/1"]) == (1, 54, 121)
    (fault,) = report.faults
    assert "flights/0" in fault
    assert "54" in fault


def test_another_generation_is_another_chain_and_another_table(scene: Scene) -> None:
    scene.run()
    scene.config = scene.with_stream(generation=2)
    scene.sent.clear()
    scene.put(TP0, [event(0, 0)])
    assert scene.run().end == {"flights/0": 1}
    scene.check_exactly_once()
    assert scene.table.name()[-1].endswith("_g2")


def test_a_table_that_is_partitioned_otherwise_is_refused(scene: Scene) -> None:
    scene.run()
    scene.config = scene.with_stream(partition_by="hour")
    with pytest.raises(ConfigError, match=r"set partition_by back, or raise the stream's generation"):
        scene.run()


def test_many_objects_become_tasks_of_the_configured_size(make_scene: MakeScene) -> None:
    scene = make_scene(partition={"task_bytes": "1MiB", "memory": "16MiB"})
    for n in range(20):
        records = [
            event(n * 10 + i, (n * 10 + i) * DAY_MS, value=b'{"at": %d, "x": "%s"}' % (i, b"x" * 9000))
            for i in range(10)
        ]
        scene.put(TP0, records, codec=Codec.NONE)
        scene.put(TP1, records, codec=Codec.NONE)
    chosen: list[int] = []

    def count(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        chosen.extend(sum(span.size_bytes for span in task) for task in tasks)
        return in_this_process(job, tasks)

    report = scene.run(count)
    assert report.tasks == len(chosen) == 4
    assert report.files == 4, "one value, one file a task"
