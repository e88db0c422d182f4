"""The finalizer on a real S3 and catalog marks an hour as soon as it is final, and never earlier."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from archived_stream import ArchivedStream, waybill
from files_scenes import (
    at,
    check_files_exactly_once,
    data_keys,
    finalize_at,
    inventory,
    markers,
    moment,
    objects,
    root,
)
from partition_scenes import Scene, in_this_process, junk
from test_holds import refuse_more_than_half

from waybill.archive.chain.span import Span
from waybill.base.errors import ConfigError, PublicationHeld
from waybill.config.names import TopicPartition
from waybill.services.store import ObjectStream, Store
from waybill.tables.audit import DecisionKind
from waybill.tables.partition import publication
from waybill.tables.partition.files_sink.hour_state import HourState
from waybill.tables.partition.holds import decide_hold
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.tasks import Job, TaskResult, run_task

pytestmark = pytest.mark.integration

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
H0, H1, H2 = (f"flights/dt=2023-12-25/hr=0{hour}" for hour in range(3))
MakeScene = Callable[..., Scene]


class Killed(BaseException):
    """Raised by a test to end the driver at a step."""


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """A scene with the partitioned messages of two topic-partitions over three hours."""
    made = make_scene(partition_by="hour", sink={"name": "files", "lateness": "30m"})
    for tp in (TP0, TP1):
        made.put(tp, [moment(n, n / 10) for n in range(28)])
    made.run()
    return made


def content(scene: Scene, hour: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(scene.store.read(f"{root(scene)}/{hour}/_SUCCESS"))
    return found


def test_an_hour_is_final_when_every_topic_partition_is_past_its_end_by_the_lateness(scene: Scene) -> None:
    """Both are at 2.7 hours: the second hour ended 0.7 before that, the third has not."""
    found = finalize_at(scene, 100)
    assert markers(scene) == {H0, H1}
    assert found.final_before == at(2.2)
    assert content(scene, H0) == {
        "v": 1,
        "files": 2,
        "rows": 20,
        "bytes": sum(e.size_bytes for e in inventory(scene) if e.period_start == at(0)),
        "revision": 1,
    }
    assert [hour.state for hour in found.hours] == [HourState.FINAL, HourState.FINAL, HourState.OPEN]
    assert "2 hours marked" in str(found)
    assert "no server answers" in found.notes[0]
    before = objects(scene)
    assert finalize_at(scene, 101).marked == ()
    assert objects(scene) == before


@pytest.mark.deep
def test_a_topic_partition_that_is_behind_holds_all_hours_open(scene: Scene) -> None:
    scene.put(TopicPartition("flights", 2), [moment(0, 0.1), moment(1, 1.2)])
    found = finalize_at(scene, 100)
    assert markers(scene) == set()
    assert str(found.behind[0]) == "flights/2: nothing of it is partitioned"
    scene.run()
    finalize_at(scene, 100)
    assert markers(scene) == set()
    scene.put(TopicPartition("flights", 2), [moment(2, 1.6)])
    scene.run()
    finalize_at(scene, 100)
    assert markers(scene) == {H0}


def test_an_idle_topic_partition_delays_no_hour_once_it_is_fully_partitioned(scene: Scene) -> None:
    found = finalize_at(scene, 3.4, {TP0: 28, TP1: 29})
    assert markers(scene) == {H0, H1}
    assert (found.behind[0].tp, found.behind[0].caught_up) == (TP1, False)
    finalize_at(scene, 3.4, {TP0: 28, TP1: 28})
    assert markers(scene) == {H0, H1}, "the third hour ended less than half an hour ago"
    finalize_at(scene, 3.5, {TP0: 28, TP1: 28})
    assert markers(scene) == {H0, H1, H2}


def test_hours_wait_for_a_topic_partition_that_is_not_archived_yet(scene: Scene) -> None:
    finalize_at(scene, 100, {TP0: 28, TP1: 28, TopicPartition("flights", 2): 5})
    assert markers(scene) == set()


def test_late_rows_give_a_final_hour_another_revision(scene: Scene) -> None:
    finalize_at(scene, 100)
    scene.put(TP0, [moment(28, 0.3, 2.8)])
    seen: list[set[str]] = []

    def look(step: str) -> None:
        seen.append(markers(scene))

    scene.run(on_step=look)
    assert seen[0] == {H0, H1}
    assert seen[1] == {H1}, "before its file comes, the marker goes"
    assert markers(scene) == {H1}
    found = finalize_at(scene, 100)
    assert [str(period) for period in found.marked] == [H0]
    assert (content(scene, H0)["revision"], content(scene, H0)["rows"]) == (2, 21)
    assert content(scene, H1)["revision"] == 1
    check_files_exactly_once(scene)


def test_nothing_is_marked_while_a_plan_is_open(scene: Scene) -> None:
    scene.put(TP0, [moment(28, 0.3, 2.8)])

    def die(step: str) -> None:
        if step == "executed":
            raise Killed

    with pytest.raises(Killed):
        scene.run(on_step=die)
    found = finalize_at(scene, 100)
    assert markers(scene) == set()
    assert "under way" in found.notes[-1]
    scene.run()
    finalize_at(scene, 100)
    assert markers(scene) == {H0, H1}


@pytest.mark.deep
def test_a_marker_created_while_a_late_file_is_written_is_removed(scene: Scene) -> None:
    """The finalizer checks before the plan exists, and creates the marker at the worst moments."""
    scene.put(TP0, [moment(28, 0.3, 2.8)])
    marker = f"{root(scene)}/{H0}/_SUCCESS"

    def marked_before(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        create = scene.store.create_if_absent
        create(marker, b"{}")
        results = in_this_process(job, tasks)
        assert markers(scene) == set()
        return results

    scene.run(marked_before)
    scene.put(TP0, [moment(29, 0.3, 2.8)])

    def marked_after(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        in_this_process(job, tasks)  # the file is there, and its writer died before it looked again
        scene.store.create_if_absent(marker, b"{}")
        return in_this_process(job, tasks)

    scene.run(marked_after)
    assert markers(scene) == set()
    finalize_at(scene, 100)
    assert content(scene, H0)["revision"] == 3


def test_a_marker_with_other_content_is_replaced(scene: Scene) -> None:
    scene.store.create_if_absent(f"{root(scene)}/{H0}/_SUCCESS", b"")
    scene.store.create_if_absent(f"{root(scene)}/{H2}/_SUCCESS", b"{}")
    found = finalize_at(scene, 100)
    assert markers(scene) == {H0, H1}
    assert content(scene, H0)["files"] == 2
    assert [str(period) for period in found.unmarked] == [H0, H2]


def test_a_marker_is_read_only_if_its_etag_differs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    finalize_at(scene, 100)
    opened: list[str] = []
    opens = Store.open

    def note(store: Store, key: str) -> ObjectStream:
        if key.endswith("_SUCCESS"):
            opened.append(key)
        return opens(store, key)

    monkeypatch.setattr(Store, "open", note)
    assert [hour.state for hour in finalize_at(scene, 100).hours] == [HourState.FINAL, HourState.FINAL, HourState.OPEN]
    assert opened == []
    with_its_time = json.dumps({**content(scene, H0), "at": "2023-12-29T04:00:00+00:00"})
    for hour, now_in_it in ((H0, with_its_time), (H1, "{}")):
        scene.store.remove(f"{root(scene)}/{hour}/_SUCCESS")
        scene.store.create_if_absent(f"{root(scene)}/{hour}/_SUCCESS", now_in_it.encode())
    opened.clear()
    assert [str(period) for period in finalize_at(scene, 100).marked] == [H1], "the other has the right figures"
    assert opened == [f"{root(scene)}/{hour}/_SUCCESS" for hour in (H0, H1)]


def test_an_unlisted_object_blocks_only_its_hour(scene: Scene) -> None:
    finalize_at(scene, 100)
    stray = f"{root(scene)}/{H0}/by-hand.parquet"
    scene.store.create_if_absent(stray, b"x")
    scene.store.create_if_absent(f"{root(scene)}/{H1}/_temporary", b"readers pass it over")
    found = finalize_at(scene, 100)
    assert markers(scene) == {H1}
    assert [(str(hour.period), hour.strays) for hour in found.blocked] == [(H0, (stray,))]
    assert scene.store.exists(stray), "it was not ours to remove"
    scene.store.remove(stray)
    finalize_at(scene, 100)
    assert markers(scene) == {H0, H1}


def test_a_missing_file_blocks_its_hour(scene: Scene) -> None:
    finalize_at(scene, 100)
    gone = inventory(scene)[0].path.split("/", 3)[3]
    scene.store.remove(gone)
    found = finalize_at(scene, 100)
    assert markers(scene) == {H1}
    assert [hour.missing for hour in found.blocked] == [(gone,)]


@pytest.mark.deep
def test_files_of_a_plan_that_ended_without_a_commit_are_removed(scene: Scene) -> None:
    """A driver resumes long after its plan has ended, and writes a file that no other run writes."""
    scene.put(TP0, [moment(28, 0.3, 2.8)])
    jobs: list[Job] = []

    def remember(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        jobs.append(job)
        return in_this_process(job, tasks)

    scene.run(remember)
    scene.put(TP1, [moment(28, 3)])
    scene.run()
    finalize_at(scene, 100)
    run_task(jobs[0], _first_half(scene))
    strays = set(objects(scene)) - {e.path.split("/", 3)[3].removeprefix(f"{root(scene)}/") for e in inventory(scene)}
    assert any(key.endswith("_0_00000000000000000014.parquet") for key in strays)
    dry = finalize_at(scene, 100, dry_run=True)
    assert dry.blocked
    found = finalize_at(scene, 100)
    assert len(found.removed) == 2
    assert not found.blocked
    assert markers(scene) == {H0, H1}
    check_files_exactly_once(scene)


def _first_half(scene: Scene) -> Task:
    """Return a task that no plan of the scene contains: half of an object."""
    (key, *_) = scene.keys("backup/flights/1_0_")
    return (Span(TP0, key, 14, 28, 1),)


def test_a_dry_run_changes_nothing(scene: Scene) -> None:
    before = objects(scene)
    found = finalize_at(scene, 100, dry_run=True)
    assert objects(scene) == before
    assert [hour.state for hour in found.hours] == [HourState.READY, HourState.READY, HourState.OPEN]


def test_a_stream_with_an_iceberg_table_is_refused(make_scene: MakeScene) -> None:
    scene = make_scene()
    with pytest.raises(ConfigError, match="only files are marked as final"):
        finalize_at(scene, 0)


def test_a_finalizer_before_the_first_run_reports_that_no_table_exists(make_scene: MakeScene) -> None:
    scene = make_scene(sink="files")
    assert finalize_at(scene, 0).notes[-1] == "there is no table yet"


@pytest.mark.deep
def test_the_command_finalizes_with_the_log_ends_of_kafka(stack: object, tmp_path: Path, topic_name: str) -> None:
    """Ingest, partition and finalize as a user does it."""
    stream = ArchivedStream(tmp_path, topic_name)
    text = stream.file.read_text()
    stream.file.write_text(text.rstrip() + "\n    sink: {name: files, lateness: 1h}\n")
    stream.produce_events(20)
    stream.ingest()
    stream.produce_events(1, partition=1)
    stream.partition()
    ran = stream.waybill("finalize", "events", "--dry-run")
    assert ran.code == 0, ran.err
    assert f"waits for {topic_name}/1: nothing of it is partitioned" in ran.out
    stream.ingest()
    stream.partition()
    ran = stream.waybill("finalize", "events", "--json")
    assert ran.code == 0, ran.err
    assert len(ran.document["marked"]) == 5
    assert "5 are final" in stream.waybill("finalize", "events").out
    assert waybill("verify", "--no-table", WAYBILL_CONFIG=str(stream.file)).code == 0


@pytest.mark.deep
def test_a_held_run_marks_nothing_and_files_of_a_rejected_one_are_removed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the held run are in the directories; the file inventory, which says what counts, lists none."""
    finalize_at(scene, 100)
    monkeypatch.setattr(publication, "run_audit", refuse_more_than_half)
    before = data_keys(scene)
    scene.put(TP0, [moment(28, 2.3), *(junk(n) for n in range(29, 32))])
    with pytest.raises(PublicationHeld):
        scene.run()
    held = set(data_keys(scene)) - set(before)
    assert len(held) == 1
    assert "held" in finalize_at(scene, 200).notes[-1]
    assert not markers(scene) & {key.rsplit("/", 1)[0] for key in held}
    decide_hold(scene.config, "flights", DecisionKind.REJECTED, by="ann", reason="wrong parser")
    report = finalize_at(scene, 200)
    assert {key.removeprefix(f"{root(scene)}/") for key in report.removed} == held
    assert set(data_keys(scene)) == set(before)
    monkeypatch.undo()
    scene.run()
    assert set(data_keys(scene)) == {*before, *held}, "names follow from the offsets"
