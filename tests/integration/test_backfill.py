"""Backfills on a real archive and catalog; tasks run in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq
import pytest
from backfill_scenes import (
    FIRST,
    SECOND,
    TP0,
    TP1,
    Key,
    Killed,
    all_first,
    build,
    change,
    check,
    check_verified,
    die_at,
    files_of_all_snapshots,
    parser_of,
    promote,
    put,
    request,
    seen,
    small_tasks,
    undo,
    use,
    with_second,
)
from partition_scenes import Scene, in_this_process, mostly_deep
from quarantine_scenes import rewrite_quarantine

from waybill.base.errors import BackfillRefused, BackfillUnderWay, ConfigError
from waybill.config.names import BackupName, TopicPartition, backfill_branch, backfill_tag
from waybill.tables.backfill.choice import RangeChoice
from waybill.tables.backfill.events import state_of
from waybill.tables.backfill.kinds import plan_backfill, report_backfills, run_backfill
from waybill.tables.backfill.planning import Trigger
from waybill.tables.backfill.report import report_backfill
from waybill.tables.backfill.request import find_request
from waybill.tables.backfill.states import BackfillAction, BackfillState
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.quarantine.retry import retry_quarantine
from waybill.tables.quarantine.row_filter import RowFilter

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

MakeScene = Callable[..., Scene]

RANGE = ("flights/0@5-16", "flights/1@104-")
BUILD_STEPS = ["quarantine_branched", "branched", "built", "audited", "diffed"]
CHANGE_STEPS = ["claimed", "decided", "quarantine_moved", "moved"]


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """A table that the first parser filled, in two runs; the second parser is configured now."""
    made = make_scene(parser=FIRST)
    put(made, TP0, 0, 12)
    put(made, TP1, 100, 107)
    made.run()
    put(made, TP0, 12, 21)
    put(made, TP1, 107, 110)
    made.run()
    use(made, SECOND)
    return made


def promoted(before: dict[Key, str]) -> dict[Key, str]:
    """Return the expectation after the promotion of `RANGE`."""
    return with_second(before, [(TP0, 5, 17), (TP1, 104, 110)])


def put_and_run(scene: Scene, expected: dict[Key, str], tp: TopicPartition, first: int, end: int) -> None:
    """Let a live run parse new messages, with the parser that is configured now."""
    put(scene, tp, first, end)
    scene.run()
    parser = parser_of(scene.stream)
    expected |= {(tp, offset): parser for offset in range(first, end)}


# --- the whole path ---------------------------------------------------------------------------------------------------


def test_main_stays_until_the_promotion_and_then_shows_the_range_parsed_again(scene: Scene) -> None:
    before = all_first(scene)
    backfill = build(scene, *RANGE)
    check(scene, before)
    after = promoted(before)
    ref = scene.table.metadata.refs[backfill_branch(backfill.id)]
    on_branch = scene.table.scan(snapshot_id=ref.snapshot_id).to_arrow()
    assert on_branch.num_rows == sum(offset % (7 if who == "first" else 5) > 0 for (_, offset), who in after.items())
    assert promote(scene, backfill)
    check(scene, after)
    assert not promote(scene, backfill)  # a retry finds it done
    assert undo(scene, backfill)
    check(scene, before)
    assert promote(scene, backfill)
    check(scene, after)
    assert [event.action for event in report_backfill(scene.store, backfill).events] == ["promote", "undo", "promote"]
    assert scene.data_files() == files_of_all_snapshots(scene)


@pytest.mark.deep
def test_a_snapshot_of_a_promotion_names_the_backfill_and_keeps_progress_and_tag(scene: Scene) -> None:
    heads = {table.name(): table.metadata.current_snapshot_id for table in (scene.table, scene.quarantine)}
    backfill = build(scene, *RANGE)
    promote(scene, backfill)
    for table in (scene.table, scene.quarantine):
        snapshot = table.metadata.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        properties = snapshot.summary.additional_properties
        assert (snapshot.summary.operation.value, properties["waybill.backfill"]) == ("overwrite", backfill.id)
        assert "waybill.progress" not in properties
        assert snapshot.parent_snapshot_id == heads[table.name()]
        tag = table.metadata.refs[backfill_tag(backfill.id)]
        assert tag.snapshot_id == heads[table.name()]
        age = timedelta(milliseconds=tag.max_ref_age_ms or 0)
        assert timedelta(days=7) <= age < timedelta(days=7, hours=1)
        assert backfill_branch(backfill.id) not in table.metadata.refs
    undo(scene, backfill)
    assert backfill_tag(backfill.id) not in scene.table.metadata.refs


def test_everything_and_a_time_range_can_be_chosen(scene: Scene) -> None:
    before = all_first(scene)
    hour = timedelta(hours=4)
    since, until = (datetime.fromtimestamp(0, UTC) + number * hour for number in (5, 9))
    choice = RangeChoice.parse(topic_partitions=["flights/0"], since=since.isoformat(), until=until.isoformat())
    request, figures = plan_backfill(scene.config, Trigger("flights", choice, "anna", ""))
    assert request.ranges.document() == {"flights/0": [5, 9]}
    assert (figures.objects, figures.messages, figures.tasks) == (1, 4, 1)
    assert not figures.is_measured
    assert report_backfills(scene.store, "flights") == []
    backfill = build(scene)
    promote(scene, backfill)
    check(scene, dict.fromkeys(before, "second"))
    _, figures = plan_backfill(scene.config, Trigger("flights", RangeChoice.parse(everything=True), "anna", ""))
    assert figures.is_measured
    assert figures.minutes > 0


def test_the_diff_shows_what_a_promotion_changes(scene: Scene) -> None:
    backfill = build(scene, *RANGE)
    report = report_backfill(scene.store, backfill)
    assert report.diff is not None
    chosen = [offset for first, end in ((5, 17), (104, 110)) for offset in range(first, end)]
    both = [offset for offset in chosen if offset % 7 and offset % 5]
    expected = {
        "changed": len(both),
        "enters_quarantine": len([o for o in chosen if o % 5 == 0 and o % 7]),
        "leaves_quarantine": len([o for o in chosen if o % 7 == 0 and o % 5]),
        "other_reason": 1,
    }
    found = report.diff.comparison
    assert dict(found.messages) == expected
    assert dict(found.columns) == {"event_time": len(both), "message_id": len(both), "reason": 1}
    assert found.examples["message_id"][0].endswith("first-6 → second-6")
    assert sum(sum(counts.values()) for counts in found.hours.values()) == sum(expected.values())
    keys = [key for key in scene.keys("backfills/") if key.endswith(".parquet")]
    tables = [pq.read_table(f"{scene.store.bucket}/{key}", filesystem=_filesystem(scene, key)) for key in keys]
    rows = [row for table in tables for row in table.to_pylist()]
    assert len(rows) == 2 * len(both) + expected["enters_quarantine"] + expected["leaves_quarantine"] + 1
    assert {row["change"] for row in rows} == set(expected)
    assert len({(row["topic"], row["partition"], row["offset"], row["column"]) for row in rows}) == len(rows)
    assert report.audit is not None


def _filesystem(scene: Scene, key: str) -> Any:
    return scene.table.io.new_input(f"s3://{scene.store.bucket}/{key}")._filesystem


def test_a_table_whose_quarantine_never_had_a_row_can_be_backfilled(make_scene: MakeScene) -> None:
    scene = make_scene(parser=FIRST)
    put(scene, TP0, 1, 7)
    scene.run()
    assert scene.quarantine.metadata.snapshots == []
    before = all_first(scene)
    use(scene, SECOND)
    backfill = build(scene, "flights/0@4-6")
    promote(scene, backfill)
    check(scene, with_second(before, [(TP0, 4, 7)]))
    undo(scene, backfill)
    check(scene, before)


def test_columns_of_the_present_config_are_filled_for_the_range(scene: Scene) -> None:
    scene.config = scene.with_stream(columns={"name": {"type": "string", "field": "name"}})
    backfill = build(scene, "flights/0@5-9")
    report = report_backfill(scene.store, backfill)
    assert report.diff is not None
    assert report.diff.comparison.columns["name"] == 3  # 5 enters quarantine, 7 leaves it
    promote(scene, backfill)
    rows = scene.table.scan().to_arrow().to_pylist()
    assert {r["offset"] for r in rows if r["name"] is not None} == {6, 7, 8, 9}
    check_verified(scene)


# --- live runs and others meanwhile -----------------------------------------------------------------------------------


@pytest.mark.deep
def test_what_others_publish_meanwhile_stays_after_promotion_and_undo(scene: Scene) -> None:
    expected = all_first(scene)
    backfill = build(scene, *RANGE)
    put_and_run(scene, expected, TP0, 21, 30)
    scene.rewrite()
    rewrite_quarantine(scene)
    put_and_run(scene, expected, TP1, 110, 115)
    promote(scene, backfill)
    check(scene, promoted(expected) | {key: who for key, who in expected.items() if who == "second"})
    put_and_run(scene, expected, TP0, 30, 33)
    scene.rewrite()
    rewrite_quarantine(scene)
    put_and_run(scene, expected, TP0, 33, 37)
    undo(scene, backfill)
    check(scene, expected)


@pytest.mark.deep
@pytest.mark.parametrize("action", [BackfillAction.PROMOTE, BackfillAction.UNDO])
@pytest.mark.parametrize("step", CHANGE_STEPS[:3])
def test_a_live_run_and_a_compaction_at_any_step_stay(scene: Scene, action: BackfillAction, step: str) -> None:
    expected = all_first(scene)
    backfill = build(scene, *RANGE)
    if action is BackfillAction.UNDO:
        promote(scene, backfill)

    def reached(name: str) -> None:
        if name == step:
            put_and_run(scene, expected, TP0, 21, 25)
            scene.rewrite()
            rewrite_quarantine(scene)
            put_and_run(scene, expected, TP1, 110, 113)
            check_verified(scene)

    change(scene, backfill, action, on_step=reached)
    is_promoted = action is BackfillAction.PROMOTE
    changed = with_second(expected, [(TP0, 5, 17), (TP1, 104, 110)]) if is_promoted else expected
    check(scene, changed)


@pytest.mark.deep
def test_a_held_publication_does_not_hinder_a_backfill(scene: Scene) -> None:
    """A plan that is staged on a branch is built again on top of the promotion."""
    expected = all_first(scene)
    put(scene, TP0, 21, 25)
    with pytest.raises(Killed):
        run_partition(scene.config, "flights", in_this_process, on_step=die_at("audited"))
    expected_later = {(TP0, offset): "second" for offset in range(21, 25)}
    backfill = build(scene, *RANGE)
    promote(scene, backfill)
    scene.run()
    check(scene, promoted(expected) | expected_later)


# --- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", mostly_deep(BUILD_STEPS, BUILD_STEPS[2]))
def test_a_backfill_killed_at_any_step_continues(scene: Scene, step: str) -> None:
    before = all_first(scene)
    backfill = request(scene, *RANGE)
    with pytest.raises(Killed):
        run_backfill(scene.config, "flights", backfill.id, on_step=die_at(step))
    check(scene, before)
    report = run_backfill(scene.config, "flights", backfill.id)
    assert report.state is BackfillState.BUILT
    promote(scene, backfill)
    check(scene, promoted(before))
    assert scene.data_files() == files_of_all_snapshots(scene)


@pytest.mark.deep
def test_each_task_counts_once_when_runs_die_between_tasks_and_race(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tasks(monkeypatch)
    scene = make_scene(parser=FIRST)
    for first in range(0, 60, 20):
        put(scene, TP0, first, first + 20)
    scene.run()
    before = all_first(scene)
    use(scene, SECOND)
    backfill = request(scene)
    assert len(backfill.plan.tasks) == 3
    executed = 0

    def one_only(work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        nonlocal executed
        work(tasks[0])
        executed += 1
        raise Killed("after one task")

    def with_rival(work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        run_backfill(scene.config, "flights", backfill.id)
        return [work(task) for task in tasks]

    with pytest.raises(Killed):
        run_backfill(scene.config, "flights", backfill.id, one_only)
    assert report_backfill(scene.store, backfill).tasks_done == executed == 1
    with pytest.raises(Killed):
        run_backfill(scene.config, "flights", backfill.id, one_only, parallel=1)
    report = run_backfill(scene.config, "flights", backfill.id, with_rival, bytes_per_second=1e9)
    assert report.tasks_done == 3
    promote(scene, backfill)
    check(scene, dict.fromkeys(before, "second"))
    assert scene.data_files() == files_of_all_snapshots(scene)  # the rival's files are deleted


@pytest.mark.parametrize("step", mostly_deep(CHANGE_STEPS, CHANGE_STEPS[2]))
def test_a_promotion_and_an_undo_killed_at_any_step_are_ended_by_the_next_call(scene: Scene, step: str) -> None:
    before = all_first(scene)
    after = promoted(before)
    backfill = build(scene, *RANGE)
    for action, result in ((BackfillAction.PROMOTE, after), (BackfillAction.UNDO, before)):
        with pytest.raises(Killed):
            change(scene, backfill, action, on_step=die_at(step))
        check_verified(scene)
        change(scene, backfill, action)
        check(scene, result)
    assert scene.data_files() == files_of_all_snapshots(scene)


@pytest.mark.deep
@pytest.mark.parametrize("step", CHANGE_STEPS)
def test_what_a_killed_process_began_is_ended_before_anything_else(scene: Scene, step: str) -> None:
    before = all_first(scene)
    first, second = build(scene, "flights/0@5-16"), build(scene, "flights/1@104-")
    with pytest.raises(Killed):
        promote(scene, first, on_step=die_at(step))
    promote(scene, second)
    check(scene, promoted(before))
    assert state_of(scene.store, first) is BackfillState.PROMOTED
    with pytest.raises(Killed):
        undo(scene, second, on_step=die_at(step))
    undo(scene, first)
    check(scene, before)


@pytest.mark.deep
@pytest.mark.parametrize("step", CHANGE_STEPS)
def test_rivals_at_any_step_do_it_once(scene: Scene, step: str) -> None:
    before = all_first(scene)
    after = promoted(before)
    backfill = build(scene, *RANGE)
    for action, result in ((BackfillAction.PROMOTE, after), (BackfillAction.UNDO, before)):

        def reached(name: str, action: BackfillAction = action) -> None:
            if name == step:
                change(scene, backfill, action)

        change(scene, backfill, action, on_step=reached)
        check(scene, result)
    assert len(report_backfill(scene.store, backfill).events) == 2


@pytest.mark.deep
def test_a_sleeper_that_wakes_after_the_undo_changes_nothing(scene: Scene) -> None:
    before = all_first(scene)
    backfill = build(scene, *RANGE)

    def sleep(name: str) -> None:
        if name == "decided":
            promote(scene, backfill)
            undo(scene, backfill)

    change(scene, backfill, BackfillAction.PROMOTE, on_step=sleep)
    check(scene, before)
    assert state_of(scene.store, backfill) is BackfillState.UNDONE


# --- retries of the quarantine ----------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_retry_waits_while_a_backfill_is_moved(scene: Scene) -> None:
    before = all_first(scene)
    backfill = build(scene, *RANGE)
    for step in ("claimed", "quarantine_moved"):
        with pytest.raises(Killed):
            promote(scene, backfill, on_step=die_at(step))
        with pytest.raises(BackfillUnderWay, match=f"backfill {backfill.id} is being changed"):
            retry_quarantine(scene.config, "flights", RowFilter())
        check_verified(scene)
    promote(scene, backfill)
    check(scene, promoted(before))
    use(scene, FIRST)
    assert retry_quarantine(scene.config, "flights", RowFilter()).moved == 3  # 5, 10 and 15; neither parser reads 105
    check_verified(scene)


@pytest.mark.deep
def test_a_retry_between_build_and_promotion_is_replaced_in_the_range_and_stays_outside(scene: Scene) -> None:
    use(scene, FIRST)
    put(scene, TP0, 21, 30)
    scene.run()
    use(scene, SECOND)
    backfill = build(scene, *RANGE)
    assert retry_quarantine(scene.config, "flights", RowFilter()).moved == 4  # 7, 14, 21 and 28
    promote(scene, backfill)
    check_verified(scene)
    rows, _ = seen(scene)
    assert {offset for (_, offset), who in rows.items() if who == "second"} == {
        21, 28, *(o for first, end in ((5, 17), (104, 110)) for o in range(first, end) if o % 5)
    }  # fmt: skip
    undo(scene, backfill)
    check_verified(scene)


@pytest.mark.deep
@pytest.mark.parametrize("step", ["staged", "recorded", "committed", "rewritten"])
def test_a_retry_that_was_killed_is_ended_before_a_promotion(
    scene: Scene, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backfill = build(scene, *RANGE)
    with monkeypatch.context() as patched:
        patched.setattr("waybill.base.failpoints.reach", lambda name: die_at(f"retry.{step}")(name))
        with pytest.raises(Killed):
            retry_quarantine(scene.config, "flights", RowFilter())
    promote(scene, backfill)
    check_verified(scene)
    rows, quarantine = seen(scene)
    assert {offset for (_, offset), who in rows.items() if who == "second"} >= {
        o for first, end in ((5, 17), (104, 110)) for o in range(first, end) if o % 5
    }
    assert {offset for (_, offset), who in quarantine.items() if who == "second"} == {5, 10, 15, 105}


@pytest.mark.deep
def test_a_retry_that_sleeps_over_a_promotion_moves_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = all_first(scene)
    backfill = build(scene, *RANGE)

    def reach(name: str) -> None:
        if name == "retry.staged":
            monkeypatch.undo()
            with pytest.raises(Killed):
                promote(scene, backfill, on_step=die_at("decided"))

    monkeypatch.setattr("waybill.base.failpoints.reach", reach)
    with pytest.raises(BackfillUnderWay):
        retry_quarantine(scene.config, "flights", RowFilter())
    promote(scene, backfill)
    check(scene, promoted(before))
    assert scene.data_files() == files_of_all_snapshots(scene)  # the retry has deleted its files


# --- several backfills ------------------------------------------------------------------------------------------------


def test_backfills_of_the_same_offsets_follow_each_other_and_are_undone_in_reverse(scene: Scene) -> None:
    before = all_first(scene)
    first = build(scene, *RANGE)
    with pytest.raises(BackfillRefused, match=rf"overlaps with backfill {first.id}, which anna .*flights/0 10–12"):
        request(scene, "flights/0@10-12")
    promote(scene, first)
    use(scene, FIRST)
    second = build(scene, "flights/0@10-18")
    promote(scene, second)
    after = promoted(before)
    both = {key: "first" if key[0] == TP0 and 10 <= key[1] <= 18 else who for key, who in after.items()}
    check(scene, both)
    with pytest.raises(BackfillRefused, match=f"undo {second.id} first"):
        undo(scene, first)
    undo(scene, second)
    check(scene, after)
    undo(scene, first)
    check(scene, before)


def test_a_cancelled_backfill_is_over_and_its_offsets_are_free(scene: Scene) -> None:
    before = all_first(scene)
    planned, built = request(scene, "flights/0@0-4"), build(scene, "flights/0@5-9")
    for backfill in (planned, built):
        assert change(scene, backfill, BackfillAction.CANCEL)
        assert not change(scene, backfill, BackfillAction.CANCEL)
        with pytest.raises(BackfillRefused, match="cancelled, which is final"):
            promote(scene, backfill)
        with pytest.raises(BackfillRefused, match="was cancelled"):
            run_backfill(scene.config, "flights", backfill.id)
    assert not any(ref.startswith("backfill") for ref in scene.table.metadata.refs)
    check(scene, before)
    promote(scene, build(scene, "flights/0@0-9"))
    check(scene, with_second(before, [(TP0, 0, 10)]))


# --- refused ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_granted_is_refused_and_nothing_is_stored(scene: Scene) -> None:
    def refused(match: str, error: type[Exception] = BackfillRefused, stream: str = "flights", **asked: Any) -> None:
        trigger = Trigger(stream, asked.pop("choice", RangeChoice.parse(everything=True)), "anna", "", **asked)
        with pytest.raises(error, match=match):
            plan_backfill(scene.config, trigger)

    refused("known streams: flights", ConfigError, stream="trains")
    refused("no generation 7 in the config; it has: 1", generation=7)
    refused("there is no source 'http'; the sources: archive, kafka", source="http")
    refused(r"generation 1 of stream flights is live, .* `table: tests\.flights_\w+`, .*--generation", source="kafka")
    put(scene, TP0, 21, 25)
    refused(r"outside of .*: 0–20", choice=RangeChoice.parse(offsets=["flights/0@15-22"]))
    refused(r"nothing of flights/9 .*; available: flights/0@0-20", choice=RangeChoice.parse(offsets=["flights/9@1-2"]))
    refused("no message of .* in the time range", choice=RangeChoice.parse(since="2026-01-01"))
    assert report_backfills(scene.store, "flights") == []
    with pytest.raises(BackfillRefused, match=r"no backfill '20260101_abcd'; its backfills: none"):
        find_request(scene.store, "flights", "20260101_abcd")


def test_actions_that_do_not_apply_are_refused(scene: Scene) -> None:
    planned = request(scene, *RANGE)
    with pytest.raises(
        BackfillRefused, match=f"its tasks are not done: `waybill backfill run flights --id {planned.id}"
    ):
        promote(scene, planned)
    with pytest.raises(BackfillRefused, match="its tasks are not done"):
        undo(scene, planned)
    run_backfill(scene.config, "flights", planned.id)
    with pytest.raises(BackfillRefused, match="it was not promoted"):
        undo(scene, planned)
    promote(scene, planned)
    with pytest.raises(BackfillRefused, match="it is promoted: `waybill backfill undo"):
        change(scene, planned, BackfillAction.CANCEL)
    undo(scene, planned)
    with pytest.raises(BackfillRefused, match="requested more than 30 days ago"):
        promote(scene, planned, now=lambda: datetime.now(UTC) + timedelta(days=31))


@pytest.mark.deep
def test_a_critical_failure_of_the_audit_holds_the_promotion(scene: Scene) -> None:
    lengths = {"column": "message_id", "max_value": 3}
    expectation = {"expect_column_value_lengths_to_be_between": lengths, "severity": "critical"}
    scene.config = scene.with_stream(quality={"expectations": [expectation]})
    before = all_first(scene)
    backfill = build(scene, *RANGE)
    with pytest.raises(BackfillRefused, match=r"the audit of backfill .* has failed: .*between"):
        promote(scene, backfill)
    check(scene, before)
    promote(scene, backfill, accept_failed_checks=True)
    check(scene, promoted(before))


def test_an_archive_fault_in_the_range_ends_the_build_with_its_message(scene: Scene) -> None:
    before = all_first(scene)
    backfill = request(scene, *RANGE)
    name = BackupName("flights", 1, 0, 12)
    content = scene.store.read(name.key(scene.store.prefix))
    scene.store.replace(name.key(scene.store.prefix), content[:-9])
    with pytest.raises(BackfillRefused, match="the archive cannot be read"):
        run_backfill(scene.config, "flights", backfill.id)
    scene.store.replace(name.key(scene.store.prefix), content)
    run_backfill(scene.config, "flights", backfill.id)
    promote(scene, backfill)
    check(scene, promoted(before))


@pytest.mark.deep
def test_a_table_rolled_back_below_the_range_is_not_changed(scene: Scene) -> None:
    backfill = build(scene, *RANGE)
    table = scene.table
    oldest = min(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    table.manage_snapshots().set_current_snapshot(oldest.snapshot_id).commit()
    with pytest.raises(BackfillRefused, match="reach beyond the progress of table"):
        promote(scene, backfill)
