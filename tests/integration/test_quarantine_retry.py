"""A retry of the quarantine moves readable messages to the table exactly once, despite crashes and rivals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from partition_scenes import Scene, event, in_this_process, junk, messages_in, mostly_deep
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

from waybill.base import failpoints
from waybill.base.errors import CommitConflict, ConfigError, PlanUnusable
from waybill.tables.iceberg import load_tables, read_progress
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.quarantine.offset_sets import OffsetSet
from waybill.tables.quarantine.quarantine_report import RetryReport
from waybill.tables.quarantine.retry import finish_retries
from waybill.tables.quarantine.row_filter import RowFilter

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

STEPS = [name.removeprefix("retry.") for name in failpoints.RETRY]

MakeScene = Callable[..., Scene]


class Killed(BaseException):
    """Raised by a test to end the process at a step."""


@pytest.fixture(autouse=True)
def _no_failpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", {})


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Call a function the first time that a retry reaches a step."""

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
    """A scene with all messages but a tombstone in quarantine, and a parser that can read most of them."""
    made = make_scene()
    fill_quarantine(made)
    return made


def test_readable_messages_move_to_the_table_and_the_others_stay_unchanged(scene: Scene) -> None:
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


def test_moved_rows_equal_those_of_a_partition_run(scene: Scene, make_scene: MakeScene) -> None:
    retry(scene)
    other = make_scene(parser=MENDED)
    put_messages(other)
    other.run()
    keys = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    assert scene.table.scan().to_arrow().sort_by(keys) == other.table.scan().to_arrow().sort_by(keys)


def test_only_selected_rows_move(scene: Scene) -> None:
    assert retry(scene, RowFilter.parse(targets=["flights-extra"])).moved == 1
    assert retry(scene, RowFilter.parse(targets=["flights/1"], first_offset=105, last_offset=109)).moved == 5
    assert retry(scene, RowFilter.parse(targets=["flights/0@3", "flights/0@50"])).moved == 2
    assert retry(scene, RowFilter.parse(reasons=["not_json"])).moved == 0
    check_done(scene, 75 - 8)
    assert retry(scene, RowFilter.parse(reasons=["not_json", "event_time_missing"])).moved == 65
    check_done(scene, 2)
    assert retries(scene) == (4, 4)


def test_a_dry_run_changes_nothing(scene: Scene) -> None:
    before = scene.table.metadata_location, scene.quarantine.metadata_location, scene.data_files()
    report = retry(scene, dry_run=True)
    assert (report.moved, report.stayed_messages, report.retries) == (73, 2, [])
    assert before == (scene.table.metadata_location, scene.quarantine.metadata_location, scene.data_files())
    assert scene.keys("retries/") == []
    assert "would move 73" in report.lines()[0]


def test_more_messages_than_one_retry_moves_take_several_retries(scene: Scene) -> None:
    report = retry(scene, max_messages=30)
    assert report.moved == 73
    assert len(report.retries) > 1
    check_done(scene, 2)


def test_a_retry_without_tables_or_rows_does_nothing(make_scene: MakeScene) -> None:
    scene = make_scene()
    assert retry(scene).moved == 0
    scene.put(TP0, [event(0, 0)])
    scene.run()
    assert retry(scene).moved == 0
    assert retry(scene, dry_run=True).moved == 0
    check_done(scene, 0)


@pytest.mark.parametrize("step", mostly_deep(STEPS, "recorded", "committed"))
def test_the_next_retry_continues_after_one_died_at_any_step(
    scene: Scene, step: str, at_step: Callable[..., None]
) -> None:
    at_step(step, die)
    with pytest.raises(Killed):
        retry(scene)
    is_committed = step in {"committed", "rewritten", "dropped"}
    check_sound(scene, 2 if is_committed else 75)
    # Meanwhile the stream gets messages, and the parser is broken again.
    scene.config = scene.with_stream(parser=BROKEN)
    scene.put(TP0, [event(54, 0)])
    scene.run()
    check_sound(scene, 3 if is_committed else 76)
    report = retry(scene)
    is_recorded = step not in {"rows_read", "staged", "audited"}
    assert report.finished == ([0] if is_recorded and step != "dropped" else [])
    assert (report.moved, report.stayed_messages) == (0, 3 if is_recorded else 76)
    # Files that were staged and not recorded, or rewritten and not committed, are orphans, which maintenance removes.
    check_done(scene, 3 if is_recorded else 76, left_over=step in {"staged", "audited", "rewritten"})


def test_maintenance_finishes_an_unfinished_retry(scene: Scene, at_step: Callable[..., None]) -> None:
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


def test_two_concurrent_retries_move_each_row_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(2, timeout=60)
    met: set[int] = set()

    def meet(name: str) -> None:
        if name == "retry.staged" and threading.get_ident() not in met:
            met.add(threading.get_ident())
            barrier.wait()

    monkeypatch.setattr(failpoints, "reach", meet)
    reports: list[RetryReport] = []
    choices = [RowFilter(), RowFilter.parse(targets=["flights/0"])]
    threads = [threading.Thread(target=lambda c=c: reports.append(retry(scene, c))) for c in choices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(reports) == 2
    assert sum(report.moved for report in reports) == 73
    check_done(scene, 2, left_over=True)  # both may have finished the first one, each with files for the quarantine


@pytest.mark.parametrize("step", mostly_deep(STEPS[:-1], "recorded"))
def test_a_retry_that_resumes_after_another_finished_changes_nothing(
    scene: Scene, step: str, at_step: Callable[..., None]
) -> None:
    other: list[RetryReport] = []
    at_step(step, lambda: other.append(retry(scene)))
    report = retry(scene)
    is_recorded = step not in {"rows_read", "staged", "audited"}
    assert (other[0].finished, other[0].moved) == (([0], 0) if is_recorded else ([], 73))
    assert report.moved == (73 if is_recorded else 0)
    check_done(scene, 2, left_over=step == "rewritten")


@pytest.mark.parametrize("step", mostly_deep(("rows_read", "recorded", "committed", "rewritten"), "committed"))
def test_a_partition_run_during_a_retry_is_no_conflict(scene: Scene, step: str, at_step: Callable[..., None]) -> None:
    def run() -> None:
        scene.put(TP0, [event(54, 0), junk(55)])
        scene.run()

    at_step(step, run)
    assert retry(scene).moved == 73
    check_done(scene, 3)
    assert read_progress(scene.table.metadata, "t")[TP0] == 56


def test_a_retry_during_a_partition_run_ignores_rows_that_are_not_final(scene: Scene) -> None:
    """When the retry reads the quarantine, the run's rows exist and are not final."""
    scene.put(TP0, [event(54, 0), junk(55)])
    reports = []

    def between(reached: str) -> None:
        if reached == "quarantine_published":
            reports.append(retry(scene))
            assert verified(scene).figures.waiting == 2

    run_partition(scene.config, "flights", in_this_process, on_step=between)
    assert reports[0].moved == 73
    check_done(scene, 3)


@pytest.mark.parametrize("step", mostly_deep(("rows_read", "recorded", "committed", "rewritten"), "committed"))
def test_a_compaction_during_a_retry_is_no_conflict(scene: Scene, step: str, at_step: Callable[..., None]) -> None:
    def rewrite() -> None:
        scene.rewrite()
        rewrite_quarantine(scene)

    at_step(step, rewrite)
    assert retry(scene).moved == 73
    check_done(scene, 2, left_over=True)


def test_a_retry_is_committed_again_after_a_rollback_of_the_table(scene: Scene) -> None:
    before = scene.table.metadata.current_snapshot_id
    assert before is not None
    retry(scene)
    scene.table.manage_snapshots().rollback_to_snapshot(before).commit()
    assert retries(scene) == (0, 1)
    assert verified(scene).figures.lost == 73
    assert retry(scene).finished == [0]
    check_done(scene, 2)


def test_rows_are_dropped_again_after_a_rollback_of_the_quarantine(scene: Scene) -> None:
    before = scene.quarantine.metadata.current_snapshot_id
    assert before is not None
    retry(scene)
    scene.quarantine.manage_snapshots().rollback_to_snapshot(before).commit()
    check_sound(scene, 2)
    assert retry(scene).finished == [0]
    check_done(scene, 2, left_over=True)


def test_a_missing_staged_file_is_named(scene: Scene, at_step: Callable[..., None]) -> None:
    at_step("recorded", die)
    with pytest.raises(Killed):
        retry(scene)
    for path in scene.data_files() - scene.referenced_files():
        scene.table.io.delete(path)
    with pytest.raises(PlanUnusable, match=r"retries/flights/1/.*/0\.json lists a file that does not exist"):
        retry(scene)
    (key,) = [key for key in scene.keys("retries/") if key.endswith("/0.json")]
    scene.store.remove(key)
    assert retry(scene).moved == 73
    check_done(scene, 2)


def test_bounds_of_event_times_are_relative_to_the_time_of_the_retry(scene: Scene) -> None:
    assert retry(scene, now=lambda: datetime(2030, 1, 1, tzinfo=UTC)).moved == 73
    check_done(scene, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": ["a b"]}, "not a legal Kafka topic name"),
        ({"targets": ["flights/x"]}, "names no message"),
        ({"reasons": ["Not JSON"]}, "is no kind of reason"),
        ({"first_offset": 5, "last_offset": 4}, "--from 5 is behind --to 4"),
    ],
)
def test_a_filter_that_can_select_no_row_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RowFilter.parse(**given)


def test_a_retry_waits_for_the_partition_run_after_a_rollback_of_both_tables(scene: Scene) -> None:
    """Both tables are rolled back to before the run that wrote the rows."""
    scene.put(TP0, [event(54, 0)])
    scene.config = scene.with_stream(parser=BROKEN)
    scene.run()
    before = scene.table.metadata.snapshots[1].snapshot_id  # after the empty one
    scene.config = scene.with_stream(parser=MENDED)
    assert retry(scene).moved == 74
    scene.table.manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(CommitConflict, match=r"let a partition run bring it to where it was"):
        retry(scene)
    scene.run()
    assert retry(scene).finished == [0]
    check_done(scene, 2)


def test_a_rewritten_quarantine_keeps_the_other_rows_unchanged(scene: Scene) -> None:
    retry(scene, RowFilter.parse(targets=["flights/1"]))
    found = messages_in(scene.quarantine.scan().to_arrow())
    sent = [m for m in scene.sent if m[:2] != ("flights", 1) and not (m[0] == "flights" and m[2] == 52)]
    assert sorted(found, key=lambda m: m[:3]) == sorted(sent, key=lambda m: m[:3])


def test_a_stream_that_writes_files_is_refused(scene: Scene) -> None:
    scene.config = scene.with_stream(sink={"name": "files"})
    with pytest.raises(ConfigError, match=r"stream flights writes files.*raise the stream's generation"):
        retry(scene)


def test_columns_added_to_the_config_are_filled(scene: Scene) -> None:
    scene.config = scene.with_stream(columns={"id": "string", "at": "long"})
    assert retry(scene).moved == 73
    check_done(scene, 2)
    rows = scene.table.scan().to_arrow().to_pylist()
    assert {row["id"] for row in rows if row["offset"] != 52} == {
        row["message_id"] for row in rows if row["offset"] != 52
    }


def test_files_of_bucket_partitions_are_committed_by_their_recorded_partition(make_scene: MakeScene) -> None:
    scene = make_scene(partition_by=["hour", "bucket(4, message_id)"])
    fill_quarantine(scene)
    assert retry(scene).moved == 73
    check_done(scene, 2)
    assert len({task.file.partition[1] for task in scene.table.scan().plan_files()}) == 4


def test_verify_needs_the_number_of_retries_to_count_rows_once(
    scene: Scene, at_step: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that ignores the numbers of retries counts the rows of a killed retry twice, which `verify` detects."""
    at_step("committed", die)
    with pytest.raises(Killed):
        retry(scene)
    check_sound(scene, 2)
    monkeypatch.setattr("waybill.watch.verify.stream.moved_offsets", lambda *_: OffsetSet())
    assert verified(scene).figures.repeated == 73


def test_a_missing_record_of_a_retry_is_named(scene: Scene, at_step: Callable[..., None]) -> None:
    at_step("committed", die)
    with pytest.raises(Killed):
        retry(scene)
    for key in scene.keys("retries/"):
        scene.store.remove(key)
    with pytest.raises(
        PlanUnusable, match=r"retries/flights/1/.*/0\.json, which lists the missing changes, does not exist"
    ):
        retry(scene)
    (fault,) = [fault for fault in verified(scene).faults if fault.kind == "progress"]
    assert "only this object lists which rows of the quarantine these are" in fault.what
