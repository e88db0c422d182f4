"""A retry of the quarantine moves what can be read now to the table exactly once, whatever comes between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from partition_scenes import Scene, event, in_this_process, junk, messages_in
from quarantine_scenes import (
    BROKEN,
    MENDED,
    TP0,
    check_done,
    check_sound,
    fill_quarantine,
    put_messages,
    retries,
    retry,
    rewrite_quarantine,
    uncommitted_files,
    verified,
)

from waybill import failpoints
from waybill.errors import CommitConflict, ConfigError, PlanUnusable
from waybill.partition.run import run_partition
from waybill.quarantine import Choice, Offsets, RetryReport, finish_retries
from waybill.tables import load_tables, read_progress

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]


class Killed(BaseException):
    """What a test raises where the process is to die."""


@pytest.fixture(autouse=True)
def _no_failpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", {})


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Do something the first time that a retry reaches a step."""

    def arm(step: str, act: Callable[[], object]) -> None:
        left = [act]

        def reach(name: str) -> None:
            if name == f"retry.{step}" and left:
                left.pop()()

        monkeypatch.setattr(failpoints, "reach", reach)

    return arm


def die() -> None:
    raise Killed


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """All but a tombstone is in quarantine, and the parser is mended."""
    made = make_scene()
    fill_quarantine(made)
    return made


def test_what_can_be_read_now_moves_and_the_rest_stays_as_it_was(scene: Scene) -> None:
    before = {(r["topic"], r["offset"]): r for r in scene.quarantine.scan().to_arrow().to_pylist()}
    report = retry(scene)
    assert (report.moved, report.retries, report.finished) == (73, [0], [])
    (stayed,) = report.stayed
    assert (stayed.reason, stayed.messages) == ("not_json", 2)
    assert stayed.example.startswith("flights")
    check_done(scene, 2)
    left = scene.quarantine.scan().to_arrow().to_pylist()
    assert left == [before[row["topic"], row["offset"]] for row in left]
    assert "73 messages to the table, 2 stay in quarantine" in "\n".join(report.lines())
    again = retry(scene)
    assert (again.moved, again.retries, again.stayed_messages) == (0, [], 2)
    assert retries(scene) == (1, 1), "a retry that moves nothing leaves no trace"


def test_the_rows_are_those_that_a_run_would_have_made(scene: Scene, make_scene: MakeScene) -> None:
    retry(scene)
    other = make_scene(parser=MENDED)
    put_messages(other)
    other.run()
    keys = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    assert scene.table.scan().to_arrow().sort_by(keys) == other.table.scan().to_arrow().sort_by(keys)


def test_only_what_was_chosen_moves(scene: Scene) -> None:
    assert retry(scene, Choice.parse(targets=["flights-extra"])).moved == 1
    assert retry(scene, Choice.parse(targets=["flights/1"], first_offset=105, last_offset=109)).moved == 5
    assert retry(scene, Choice.parse(targets=["flights/0@3", "flights/0@50"])).moved == 2
    assert retry(scene, Choice.parse(reasons=["not_json"])).moved == 0
    check_done(scene, 75 - 8)
    assert retry(scene, Choice.parse(reasons=["not_json", "event_time_missing"])).moved == 65
    check_done(scene, 2)
    assert retries(scene) == (4, 4)


def test_a_dry_run_changes_nothing(scene: Scene) -> None:
    before = scene.table.metadata_location, scene.quarantine.metadata_location, scene.data_files()
    report = retry(scene, dry_run=True)
    assert (report.moved, report.stayed_messages, report.retries) == (73, 2, [])
    assert before == (scene.table.metadata_location, scene.quarantine.metadata_location, scene.data_files())
    assert scene.keys("retries/") == []
    assert "would move 73" in report.lines()[0]


def test_a_retry_of_more_than_one_may_move_goes_on_with_the_next(scene: Scene) -> None:
    report = retry(scene, max_messages=30)
    assert report.moved == 73
    assert len(report.retries) > 1
    check_done(scene, 2)


def test_a_stream_without_tables_and_without_rows(make_scene: MakeScene) -> None:
    scene = make_scene()
    assert retry(scene).moved == 0
    scene.put(TP0, [event(0, 0)])
    scene.run()
    assert retry(scene).moved == 0
    assert retry(scene, dry_run=True).moved == 0
    check_done(scene, 0)


@pytest.mark.parametrize("step", ["rows_read", "staged", "recorded", "committed", "rewritten", "dropped"])
def test_a_retry_that_dies_after_any_step_is_made_good_by_the_next(
    scene: Scene, step: str, at_step: Callable[..., None]
) -> None:
    at_step(step, die)
    with pytest.raises(Killed):
        retry(scene)
    is_committed = step in {"committed", "rewritten", "dropped"}
    check_sound(scene, 2 if is_committed else 75)
    # Meanwhile the stream goes on, and somebody breaks the parser again.
    scene.config = scene.with_stream(parser=BROKEN)
    scene.put(TP0, [event(54, 0)])
    scene.run()
    check_sound(scene, 3 if is_committed else 76)
    report = retry(scene)
    is_recorded = step not in {"rows_read", "staged"}
    assert report.finished == ([0] if is_recorded and step != "dropped" else [])
    assert (report.moved, report.stayed_messages) == (0, 3 if is_recorded else 76)
    # What was staged and never written down, or rewritten and never committed, is an orphan: maintenance removes it.
    check_done(scene, 3 if is_recorded else 76, left_over=step in {"staged", "rewritten"})


def test_maintenance_finishes_what_is_left(scene: Scene, at_step: Callable[..., None]) -> None:
    at_step("recorded", die)
    with pytest.raises(Killed):
        retry(scene)
    tables = load_tables(scene.catalog, scene.stream)
    assert tables is not None
    staged = uncommitted_files(scene, tables)
    assert set(staged) == scene.data_files() - scene.referenced_files()
    assert finish_retries(scene.store, scene.catalog, "flights", scene.stream) == [0]
    check_done(scene, 2)
    tables = load_tables(scene.catalog, scene.stream)
    assert tables is not None
    assert uncommitted_files(scene, tables) == []
    assert finish_retries(scene.store, scene.catalog, "flights", scene.stream) == []


def test_two_retries_at_once_move_each_row_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(2, timeout=60)
    met: set[int] = set()

    def meet(name: str) -> None:
        if name == "retry.staged" and threading.get_ident() not in met:
            met.add(threading.get_ident())
            barrier.wait()

    monkeypatch.setattr(failpoints, "reach", meet)
    reports: list[RetryReport] = []
    choices = [Choice(), Choice.parse(targets=["flights/0"])]
    threads = [threading.Thread(target=lambda c=c: reports.append(retry(scene, c))) for c in choices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(reports) == 2
    assert sum(report.moved for report in reports) == 73
    check_done(scene, 2, left_over=True)  # both may have finished the first one, each with files for the quarantine


@pytest.mark.parametrize("step", ["rows_read", "staged", "recorded", "committed", "rewritten"])
def test_a_retry_that_sleeps_while_another_does_it_all_changes_nothing(
    scene: Scene, step: str, at_step: Callable[..., None]
) -> None:
    other: list[RetryReport] = []
    at_step(step, lambda: other.append(retry(scene)))
    report = retry(scene)
    is_recorded = step in {"recorded", "committed", "rewritten"}
    assert (other[0].finished, other[0].moved) == (([0], 0) if is_recorded else ([], 73))
    assert report.moved == (73 if is_recorded else 0)
    check_done(scene, 2, left_over=step == "rewritten")


@pytest.mark.parametrize("step", ["rows_read", "recorded", "committed", "rewritten"])
def test_a_partition_run_beside_a_retry(scene: Scene, step: str, at_step: Callable[..., None]) -> None:
    def run() -> None:
        scene.put(TP0, [event(54, 0), junk(55)])
        scene.run()

    at_step(step, run)
    assert retry(scene).moved == 73
    check_done(scene, 3)
    assert read_progress(scene.table.metadata, "t")[TP0] == 56


def test_a_retry_beside_a_partition_run(scene: Scene) -> None:
    """The run's quarantine rows are there, and not final, when the retry looks."""
    scene.put(TP0, [event(54, 0), junk(55)])
    reports = []

    def between(reached: str) -> None:
        if reached == "quarantine_committed":
            reports.append(retry(scene))
            assert verified(scene).figures.waiting == 2

    run_partition(scene.config, "flights", in_this_process, done=between)
    assert reports[0].moved == 73
    check_done(scene, 3)


@pytest.mark.parametrize("step", ["rows_read", "recorded", "committed", "rewritten"])
def test_a_rewrite_of_both_tables_beside_a_retry(scene: Scene, step: str, at_step: Callable[..., None]) -> None:
    def rewrite() -> None:
        scene.rewrite()
        rewrite_quarantine(scene)

    at_step(step, rewrite)
    assert retry(scene).moved == 73
    check_done(scene, 2, left_over=True)


def test_a_table_that_is_rolled_back_gets_the_retry_again(scene: Scene) -> None:
    before = scene.table.metadata.current_snapshot_id
    assert before is not None
    retry(scene)
    scene.table.manage_snapshots().rollback_to_snapshot(before).commit()
    assert retries(scene) == (0, 1)
    assert verified(scene).figures.lost == 73
    assert retry(scene).finished == [0]
    check_done(scene, 2)


def test_a_quarantine_that_is_rolled_back_drops_the_rows_again(scene: Scene) -> None:
    before = scene.quarantine.metadata.current_snapshot_id
    assert before is not None
    retry(scene)
    scene.quarantine.manage_snapshots().rollback_to_snapshot(before).commit()
    check_sound(scene, 2)
    assert retry(scene).finished == [0]
    check_done(scene, 2, left_over=True)


def test_staged_files_that_are_gone_are_named(scene: Scene, at_step: Callable[..., None]) -> None:
    at_step("recorded", die)
    with pytest.raises(Killed):
        retry(scene)
    for path in scene.data_files() - scene.referenced_files():
        scene.table.io.delete(path)
    with pytest.raises(PlanUnusable, match=r"retries/flights/1/.*/0\.json names a file that is gone"):
        retry(scene)
    (key,) = [key for key in scene.keys("retries/") if key.endswith("/0.json")]
    scene.store.remove(key)
    assert retry(scene).moved == 73
    check_done(scene, 2)


def test_event_times_are_held_against_the_day_of_the_retry(scene: Scene) -> None:
    assert retry(scene, now=lambda: datetime(2030, 1, 1, tzinfo=UTC)).moved == 73
    check_done(scene, 2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"targets": ["a b"]}, "not a legal Kafka topic name"),
        ({"targets": ["flights/x"]}, "names no message"),
        ({"reasons": ["Not JSON"]}, "is no kind of reason"),
        ({"first_offset": 5, "last_offset": 4}, "--from 5 is behind --to 4"),
    ],
)
def test_a_choice_that_can_mean_nothing_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Choice.parse(**given)


def test_rows_moved_before_a_rollback_of_both_wait_for_the_partition_run(scene: Scene) -> None:
    """Back to before the run that found them: the retry has to wait for the run."""
    scene.put(TP0, [event(54, 0)])
    scene.config = scene.with_stream(parser=BROKEN)
    scene.run()
    before = scene.table.metadata.snapshots[0].snapshot_id
    scene.config = scene.with_stream(parser=MENDED)
    assert retry(scene).moved == 74
    scene.table.manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(CommitConflict, match=r"let a partition run bring it to where it was"):
        retry(scene)
    scene.run()
    assert retry(scene).finished == [0]
    check_done(scene, 2)


def test_exactly_what_was_sent_is_in_the_quarantine_that_was_rewritten(scene: Scene) -> None:
    retry(scene, Choice.parse(targets=["flights/1"]))
    found = messages_in(scene.quarantine.scan().to_arrow())
    sent = [m for m in scene.sent if m[:2] != ("flights", 1) and not (m[0] == "flights" and m[2] == 52)]
    assert sorted(found, key=lambda m: m[:3]) == sorted(sent, key=lambda m: m[:3])


def test_a_stream_that_writes_files_is_refused(scene: Scene) -> None:
    scene.config = scene.with_stream(sink={"name": "files"})
    with pytest.raises(ConfigError, match=r"stream flights writes files.*raise the stream's generation"):
        retry(scene)


def test_columns_that_the_config_has_by_now_are_filled(scene: Scene) -> None:
    scene.config = scene.with_stream(columns={"id": "string", "at": "long"})
    assert retry(scene).moved == 73
    check_done(scene, 2)
    rows = scene.table.scan().to_arrow().to_pylist()
    assert {row["id"] for row in rows if row["offset"] != 52} == {
        row["message_id"] for row in rows if row["offset"] != 52
    }


def test_partitions_that_follow_from_no_bounds(make_scene: MakeScene) -> None:
    scene = make_scene(partition_by=["hour", "bucket(4, message_id)"])
    fill_quarantine(scene)
    assert retry(scene).moved == 73
    check_done(scene, 2)
    assert len({task.file.partition[1] for task in scene.table.scan().plan_files()}) == 4


def test_what_the_count_is_for(scene: Scene, at_step: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not know of retries counts the rows of a killed one twice: `verify` can see that."""
    at_step("committed", die)
    with pytest.raises(Killed):
        retry(scene)
    check_sound(scene, 2)
    monkeypatch.setattr("waybill.verify.stream.moved_offsets", lambda *_: Offsets())
    assert verified(scene).figures.repeated == 73


def test_an_object_that_says_what_was_moved_is_missed_by_name(scene: Scene, at_step: Callable[..., None]) -> None:
    at_step("committed", die)
    with pytest.raises(Killed):
        retry(scene)
    for key in scene.keys("retries/"):
        scene.store.remove(key)
    with pytest.raises(PlanUnusable, match=r"retries/flights/1/.*/0\.json, which says what is missing, is gone"):
        retry(scene)
    (fault,) = [fault for fault in verified(scene).faults if fault.kind == "progress"]
    assert "nobody can say which rows of the quarantine these are" in fault.what
