"""The guarantees of the partition job, on a real archive and catalog; its tasks run in this process."""

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
from partition_scenes import DAY_MS, Scene, event, in_this_process, junk, mostly_deep
from pyiceberg.expressions import GreaterThan

from waybill.archive.chain.spans import ArchiveFault
from waybill.base.errors import ConfigError, PlanUnusable, ProgressLost, ScratchUnusable
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.encode import Record, control_batch, encode_batch
from waybill.records.batches.framing import Codec, ControlType, empty_batch
from waybill.tables.iceberg import read_progress
from waybill.tables.partition.execute import Execute
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.partition_report import PartitionReport
from waybill.tables.partition.partition_run import run_to_the_end
from waybill.tables.partition.tasks import Job, TaskResult
from waybill.tables.staging.driver import RunOutcome

STEPS = [
    "planned",
    "executed",
    "staged",
    "quarantine_branched",
    "branched",
    "audited",
    "quarantine_published",
    "committed",
]

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
OTHER = TopicPartition("flights-extra", 0)
MakeScene = Callable[..., Scene]


class Killed(BaseException):
    """Raised by a test to end the driver at a step."""


def die_at(step: str) -> Callable[[str], None]:
    def done(reached: str) -> None:
        if reached == step:
            raise Killed(step)

    return done


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """An archive with two topics, late data, a tombstone and junk."""
    made = make_scene()
    made.put(TP0, [event(n, n * DAY_MS // 10) for n in range(50)])
    made.put(TP0, [event(50, 5 * DAY_MS), junk(51), Record(52, 7000, b"key", None), event(53, -DAY_MS)])
    made.put(TP1, [event(n, 3 * DAY_MS, key=None, headers=[("h", b"1"), ("h", None)]) for n in range(100, 120)])
    made.put(OTHER, [junk(0), event(1, 0)])
    return made


def test_every_message_is_in_table_or_quarantine_exactly_once(scene: Scene) -> None:
    report = scene.run()
    assert (report.outcome, report.rows, report.quarantined) == (RunOutcome.COMMITTED, 74, 2)
    assert report.end == {"flights-extra/0": 2, "flights/0": 54, "flights/1": 120}
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()
    assert len(list(scene.table.scan(GreaterThan("event_time", "1970-01-06T00:00:00+00:00")).plan_files())) == 0
    assert [row["reason"].partition(":")[0] for row in scene.quarantine.scan().to_arrow().to_pylist()] == [
        "not_json"
    ] * 2


def test_rows_and_progress_are_committed_in_one_snapshot(scene: Scene) -> None:
    report = scene.run()
    assert scene.published_plans(scene.table) == [report.plan]
    snapshot = scene.table.metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    properties = snapshot.summary.additional_properties
    assert properties["added-records"] == "74"
    assert properties["waybill.plan"] == report.plan
    assert read_progress(scene.table.metadata, "t") == {TP0: 54, TP1: 120, OTHER: 2}


def test_a_run_without_new_input_makes_no_snapshot(scene: Scene) -> None:
    scene.run()
    before = scene.table.metadata_location

    def refuse(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        raise AssertionError("no task to execute")

    assert scene.run(refuse).outcome is RunOutcome.NOTHING_NEW
    assert scene.table.metadata_location == before


def test_a_run_on_an_empty_archive_creates_empty_tables(make_scene: MakeScene) -> None:
    empty = make_scene()
    assert str(empty.run()).startswith("partitioned flights: nothing new")
    assert empty.table.metadata.snapshots == []


def test_runs_start_where_the_last_one_ended_and_late_rows_go_to_their_own_hour(make_scene: MakeScene) -> None:
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


def test_transactions_control_batches_and_compacted_batches_are_read(make_scene: MakeScene) -> None:
    """Batches as ingest writes them for a transactional and for a compacted topic."""
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


def test_progress_is_committed_when_all_messages_go_to_quarantine(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.put(TP0, [junk(n) for n in range(5)])
    assert (scene.run().rows, scene.run().outcome) == (0, RunOutcome.NOTHING_NEW)
    scene.put(TP0, [event(5, 0)])
    assert scene.run().rows == 1
    scene.check_exactly_once()


def test_messages_outside_the_range_of_an_object_are_not_read_from_it(make_scene: MakeScene) -> None:
    """Ingest stores a batch whole even if it begins before its object does."""
    scene = make_scene()
    records = [event(n, n) for n in range(10)]
    scene.put_bytes(TP0, 4, encode_batch(records), records[4:])
    scene.put(TP0, [event(10, 10)])
    assert scene.run().rows == 7
    scene.check_exactly_once()


@pytest.mark.parametrize("step", mostly_deep(STEPS, "planned", "staged", "branched", "quarantine_published"))
def test_the_next_run_continues_after_a_driver_died_at_any_step(scene: Scene, step: str) -> None:
    with pytest.raises(Killed):
        scene.run(on_step=die_at(step))
    # Meanwhile the archive grows, and the parser is changed, so that messages parse differently.
    scene.put(TP0, [event(54, 0)])
    scene.config = scene.with_stream(
        parser={"name": "json", "event_time": {"field": "other", "format": "epoch_s"}, "message_id": "at"}
    )
    first = scene.run()
    assert first.rows + first.quarantined == (1 if step == "committed" else 76)
    if step == "committed":
        assert first.quarantined == 1, "the new plan is parsed by the new parser"
    else:
        assert first.quarantined == 2, "the old plan is parsed by the old parser"
        assert scene.run().quarantined == 1
    scene.check_exactly_once()
    assert scene.run().outcome is RunOutcome.NOTHING_NEW


@pytest.mark.deep
def test_the_next_run_continues_after_a_driver_was_killed_between_the_commits(scene: Scene, tmp_path: Path) -> None:
    """Kills a real process by SIGKILL, so that no cleanup runs."""
    config = tmp_path / "config.json"
    config.write_text(scene.config.model_dump_json())
    script = """
import os, signal, sys
from pathlib import Path
from partition_scenes import in_this_process
from waybill.config.models import Config
from waybill.tables.partition.partition_run import run_partition

def die(step):
    if step == "quarantine_published":
        os.kill(os.getpid(), signal.SIGKILL)

run_partition(Config.model_validate_json(Path(sys.argv[1]).read_text()), "flights", in_this_process, on_step=die)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    killed = subprocess.run([sys.executable, "-c", script, config], env=environment, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert scene.published_plans(scene.table) == []
    assert len(scene.published_plans(scene.quarantine)) == 1
    assert scene.run().outcome is RunOutcome.COMMITTED
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()


def test_recorded_files_are_committed_without_executing_tasks_again(scene: Scene) -> None:
    with pytest.raises(Killed):
        scene.run(on_step=die_at("quarantine_published"))

    def refuse(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        raise AssertionError("the tasks were executed before")

    report = scene.run(refuse)
    assert (report.outcome, report.rows, report.quarantined) == (RunOutcome.COMMITTED, 74, 2)
    assert len(scene.published_plans(scene.quarantine)) == 1
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()


def test_an_earlier_plan_is_executed_first_and_then_the_later_input(scene: Scene) -> None:
    with pytest.raises(Killed):
        scene.run(on_step=die_at("planned"))
    scene.put(TP0, [event(54, 0), event(55, 0)])
    earlier, since = run_to_the_end(scene.config, "flights", in_this_process)
    assert (earlier.resumed, earlier.rows, earlier.end["flights/0"]) == (True, 74, 54)
    assert (since.resumed, since.rows, since.end["flights/0"]) == (False, 2, 56)
    scene.check_exactly_once()


def test_a_missing_staged_file_is_named(scene: Scene) -> None:
    with pytest.raises(Killed):
        scene.run(on_step=die_at("staged"))
    victim = min(scene.data_files())
    scene.table.io.delete(victim)
    with pytest.raises(PlanUnusable, match=r"staged\.json lists a data file that no longer exists"):
        scene.run()


def test_staged_files_of_another_plan_are_not_committed(scene: Scene) -> None:
    """Two plans with one key exist only after objects were removed by hand."""
    with pytest.raises(Killed):
        scene.run(on_step=die_at("staged"))
    scene.put(TP0, [event(54, 0)])
    (key,) = [key for key in scene.keys("plans/") if "staged" not in key]
    scene.store.client.delete_object(Bucket=scene.store.bucket, Key=key)
    with pytest.raises(PlanUnusable, match=r"belongs to another plan"):
        scene.run()


def test_of_two_drivers_one_commits_and_the_other_adopts(scene: Scene) -> None:
    barrier = threading.Barrier(2, timeout=60)
    reports: list[PartitionReport] = []

    def meet(step: str) -> None:
        if step in {"planned", "executed", "staged"}:
            barrier.wait()

    def drive() -> None:
        reports.append(scene.run(on_step=meet))

    drivers = [threading.Thread(target=drive) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(timeout=120)
    assert sorted(report.outcome for report in reports) == [RunOutcome.ADOPTED, RunOutcome.COMMITTED]
    assert len(scene.published_plans(scene.table)) == len(scene.published_plans(scene.quarantine)) == 1
    assert set(scene.table.metadata.refs) == set(scene.quarantine.metadata.refs) == {"main"}
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()


@pytest.mark.parametrize("step", mostly_deep(STEPS[:-1], "executed", "staged", "audited"))
def test_a_driver_that_resumes_after_later_runs_changes_nothing(scene: Scene, step: str) -> None:
    def oversleep(reached: str) -> None:
        if reached == step:
            scene.run()
            scene.put(TP0, [event(54, 0), junk(55)])
            scene.run()

    assert scene.run(on_step=oversleep).outcome is RunOutcome.ADOPTED
    scene.check_exactly_once()
    assert scene.run().outcome is RunOutcome.NOTHING_NEW
    scene.check_no_file_is_left_over()


def test_an_unwritable_scratch_directory_is_named_and_a_later_run_succeeds(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", "/proc")
        with pytest.raises(ScratchUnusable, match="scratch directory /proc cannot be written"):
            scene.run()
    assert scene.run().outcome is RunOutcome.COMMITTED
    scene.check_exactly_once()


def test_a_compaction_between_staging_and_commit_is_no_conflict(scene: Scene) -> None:
    scene.run()
    scene.put(TP0, [event(54, 0)])

    def rewrite(step: str) -> None:
        if step == "staged":
            scene.rewrite()

    assert scene.run(on_step=rewrite).outcome is RunOutcome.COMMITTED
    scene.check_exactly_once()
    assert read_progress(scene.table.metadata, "t")[TP0] == 55


@pytest.mark.deep
def test_rows_are_written_again_after_a_rollback_of_the_table(scene: Scene) -> None:
    scene.run()
    first = scene.table.metadata.current_snapshot_id
    scene.put(TP0, [event(54, 0)])
    scene.run()
    scene.table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert read_progress(scene.table.metadata, "t")[TP0] == 54
    assert scene.run().rows == 1
    scene.check_exactly_once()


def test_a_table_with_rows_but_without_progress_is_refused(scene: Scene) -> None:
    scene.run()
    rows = scene.table.scan().to_arrow()
    stranger = scene.catalog.create_table(f"{scene.stream.table}_x", scene.table.schema())
    stranger.append(rows)
    with pytest.raises(ProgressLost, match=r"holds rows, but no snapshot"):
        read_progress(stranger.metadata, "x")


@pytest.mark.deep
def test_a_dropped_table_is_filled_again_by_the_present_parser(scene: Scene) -> None:
    scene.run()
    for table in (scene.table, scene.quarantine):
        scene.catalog.drop_table(table.name())
    scene.config = scene.with_stream(parser={"name": "json", "event_time": {"field": "at", "format": "epoch_s"}})
    assert scene.run().rows == 74
    scene.check_exactly_once()
    assert "flights/0@0" in scene.table.scan().to_arrow().column("message_id").to_pylist()


def test_a_missing_object_stops_its_topic_partition_until_it_is_restored(scene: Scene) -> None:
    key = BackupName("flights", 1, 0, 50).key(scene.store.prefix)
    content = scene.store.read(key)
    scene.store.client.delete_object(Bucket=scene.store.bucket, Key=key)
    scene.put(TP0, [event(54, 0)])
    report = scene.run()
    assert report.end == {"flights-extra/0": 2, "flights/0": 50, "flights/1": 120}
    (fault,) = report.faults
    assert re.search(r"ends at offset 50, but the chain goes on at 54", fault)
    scene.check_no_file_is_left_over()
    again = scene.run()
    assert (again.outcome, again.faults) == (RunOutcome.NOTHING_NEW, report.faults)
    scene.store.create_if_absent(key, content)
    scene.run()
    scene.check_exactly_once()
    assert scene.run().faults == ()


def test_a_damaged_object_is_named_and_stops_only_its_topic_partition(scene: Scene) -> None:
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
    """The plan that met the fault is kept, and the next plan has another attempt number."""
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


@pytest.mark.parametrize("step", mostly_deep(STEPS[:-1], "executed", "staged", "audited"))
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

    assert scene.run(on_step=oversleep).outcome is RunOutcome.ADOPTED
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
        if step == "executed":
            scene.store.client.put_object(Bucket=scene.store.bucket, Key=key, Body=b"x" + sound[1:])
            assert scene.run().end["flights/0"] == 54
            scene.store.client.put_object(Bucket=scene.store.bucket, Key=key, Body=sound)

    report = scene.run(on_step=oversleep)
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
    """Return an `execute` that asserts that the tasks read exactly these topic-partitions."""

    def execute(job: Job, tasks: Sequence[Task]) -> list[TaskResult | ArchiveFault]:
        assert {span.tp for task in tasks for span in task} == set(expected)
        return in_this_process(job, tasks)

    return execute


@pytest.mark.deep
def test_a_backlog_is_committed_in_plans_of_the_configured_size(make_scene: MakeScene) -> None:
    scene = make_scene(partition={"run_bytes": "1MiB"})
    for n in range(6):
        record = event(n, n, value=b'{"at": 5, "x": "%s"}' % (b"x" * 400_000))
        scene.put(TP0, [record], codec=Codec.NONE)
    reports = list(run_to_the_end(scene.config, "flights", in_this_process))
    assert [(report.rows, report.more) for report in reports] == [(2, True), (2, True), (2, False)]
    scene.check_exactly_once()


def test_a_chain_that_does_not_begin_at_the_progress_stops_only_its_topic_partition(scene: Scene) -> None:
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


def test_another_generation_has_its_own_chains_and_a_branch_that_readers_do_not_see(scene: Scene) -> None:
    scene.run()
    first = scene.table.metadata.current_snapshot_id
    scene.config = scene.with_stream(generation=2)
    scene.put(TP0, [event(0, 0)])
    scene.sent.pop()
    assert scene.run().end == {"flights/0": 1}
    assert scene.run().outcome is RunOutcome.NOTHING_NEW
    scene.check_exactly_once()
    table = scene.table
    assert table.metadata.current_snapshot_id == first
    assert set(table.metadata.refs) == {"main", "generation_2"}
    branch = table.scan(snapshot_id=table.metadata.refs["generation_2"].snapshot_id).to_arrow()
    assert branch.column("generation").to_pylist() == [2]


def test_a_table_with_another_partition_spec_is_refused(scene: Scene) -> None:
    scene.run()
    scene.config = scene.with_stream(partition_by="hour")
    with pytest.raises(ConfigError, match=r"restore partition_by, or raise the stream's generation"):
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
    assert report.files == 4, "each task writes one file for the only partition value"
