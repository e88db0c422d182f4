"""Iceberg's own procedures run while something waits for a decision: held runs, backfills, half a rebuild.

`maintain` lets Waybill's maintenance run as if a week had passed. `procedures_by_hand` calls the procedures as a person
would who knows nothing of Waybill: on all files, with every snapshot expired but the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

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
    die_at,
    promote,
    put,
    request,
    seen,
    undo,
    use,
    with_second,
)
from maintenance_scenes import MaintenanceRunner
from partition_scenes import Scene
from pyiceberg.table import Table
from quarantine_scenes import verified
from test_rebuild import WINDOW_MS, Replaced, swept_and_promoted

from waybill.base.errors import BackfillRefused, PlanUnusable, ProgressLost, PublicationHeld, WaybillError
from waybill.config.names import backfill_branch, backfill_tag
from waybill.tables.audit import DecisionKind
from waybill.tables.backfill.kinds import run_backfill
from waybill.tables.backfill.states import BackfillAction
from waybill.tables.partition.holds import decide_hold

pytestmark = [pytest.mark.deep, pytest.mark.integration, pytest.mark.matrix]

MakeScene = Callable[..., Scene]

CRITICAL = {"checks": {"quarantine_share": {"severity": "critical", "max_share": "1%"}}}
RANGE = ("flights/0@5-16", "flights/1@104-")
SPANS = [(TP0, 5, 17), (TP1, 104, 110)]
WEEK = timedelta(days=6)  # within the 7 days in which a promotion can be undone


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """A table that the first parser filled, in two runs, with small files."""
    made = make_scene(parser=FIRST, quarantine={"min_messages": 1})
    put(made, TP0, 0, 12)
    put(made, TP1, 100, 107)
    made.run()
    put(made, TP0, 12, 21)
    put(made, TP1, 107, 110)
    made.run()
    return made


def maintain(scene: Scene, runner: MaintenanceRunner) -> None:
    runner.later = WEEK
    runner.run(scene, min_input_files=2, keep_last=1)


def procedures_by_hand(tables: list[Table], runner: MaintenanceRunner) -> None:
    now = datetime.now(UTC)
    procedures = runner.procedures(lambda: now)
    for name in (".".join(table.name()) for table in tables):
        procedures.rewrite_data_files(name, sort=False, target_file_bytes=1 << 20, min_input_files=2)
        procedures.rewrite_manifests(name)
        procedures.expire_snapshots(name, older_than=now + timedelta(minutes=1), keep_last=1)


def both(scene: Scene, runner: MaintenanceRunner) -> None:
    maintain(scene, runner)
    procedures_by_hand([scene.table, scene.quarantine], runner)
    maintain(scene, runner)


def hold(scene: Scene) -> None:
    scene.config = scene.with_stream(quality=CRITICAL)
    put(scene, TP0, 21, 30)
    with pytest.raises(PublicationHeld):
        scene.run()


def check_waiting(scene: Scene, expected: dict[Key, str]) -> None:
    """Assert that readers see what they saw before the held run."""
    rows, quarantine = seen(scene)
    assert set(rows) | {key for key in quarantine if key in expected} == set(expected)
    assert [str(fault) for fault in verified(scene).faults if fault.kind != "committed"] == []


@pytest.mark.parametrize("kind", list(DecisionKind))
def test_a_held_run_can_be_decided_after_maintenance(
    scene: Scene, maintenance: MaintenanceRunner, kind: DecisionKind
) -> None:
    before = all_first(scene)
    hold(scene)
    both(scene, maintenance)
    check_waiting(scene, before)
    with pytest.raises(PublicationHeld):
        scene.run()
    decide_hold(scene.config, "flights", kind, by="ann", reason="as agreed")
    if kind is DecisionKind.RELEASED:
        check(scene, all_first(scene))
        return
    both(scene, maintenance)
    scene.config = scene.with_stream(parser=SECOND, quality={})
    scene.run()
    check(scene, with_second(all_first(scene), [(TP0, 21, 30)]))


def test_a_backfill_can_be_promoted_and_undone_after_maintenance(scene: Scene, maintenance: MaintenanceRunner) -> None:
    before = all_first(scene)
    use(scene, SECOND)
    backfill = build(scene, *RANGE)
    both(scene, maintenance)
    check(scene, before)
    assert promote(scene, backfill)
    after = with_second(before, SPANS)
    check(scene, after)
    both(scene, maintenance)
    check(scene, after)
    assert undo(scene, backfill)
    check(scene, before)
    both(scene, maintenance)
    # Its files were compacted while it was promoted, and the expiry has removed the originals.
    with pytest.raises(PlanUnusable, match=r"no longer exists .* Cancel the backfill, and request it again"):
        promote(scene, backfill)
    check(scene, before)
    change(scene, backfill, BackfillAction.CANCEL)
    assert promote(scene, build(scene, *RANGE))
    check(scene, after)


@pytest.mark.parametrize("action", [BackfillAction.PROMOTE, BackfillAction.UNDO])
@pytest.mark.parametrize("step", ["claimed", "decided", "quarantine_moved"])
def test_a_killed_change_is_ended_by_maintenance_before_its_files_expire(
    scene: Scene, maintenance: MaintenanceRunner, action: BackfillAction, step: str
) -> None:
    before = all_first(scene)
    use(scene, SECOND)
    backfill = build(scene, *RANGE)
    if action is BackfillAction.UNDO:
        assert promote(scene, backfill)
    with pytest.raises(Killed):
        change(scene, backfill, action, on_step=die_at(step))
    after = with_second(before, SPANS) if action is BackfillAction.PROMOTE else before
    both(scene, maintenance)
    check(scene, after)
    assert not change(scene, backfill, action), "it is done"
    check(scene, after)


def test_an_expiry_after_the_age_of_the_tag_ends_the_undo_and_nothing_else(
    scene: Scene, maintenance: MaintenanceRunner
) -> None:
    """Iceberg drops references by its own clock: the test shortens the tag's age instead of waiting a week."""
    before = all_first(scene)
    use(scene, SECOND)
    backfill = build(scene, *RANGE)
    promote(scene, backfill)
    for table in (scene.table, scene.quarantine):
        tag = table.metadata.refs[backfill_tag(backfill.id)]
        with table.manage_snapshots() as manage:
            manage.remove_tag(backfill_tag(backfill.id))
        table.refresh()
        table.manage_snapshots().create_tag(tag.snapshot_id, backfill_tag(backfill.id), max_ref_age_ms=1).commit()
    both(scene, maintenance)
    assert backfill_tag(backfill.id) not in scene.table.metadata.refs
    with pytest.raises(BackfillRefused, match="can no longer be undone"):
        undo(scene, backfill)
    check(scene, with_second(before, SPANS))


def test_a_promotion_whose_files_were_removed_is_refused_and_changes_nothing(
    scene: Scene, maintenance: MaintenanceRunner
) -> None:
    """By hand: the branch is dropped, and an expiry removes the files that only it referenced."""
    before = all_first(scene)
    use(scene, SECOND)
    backfill = build(scene, *RANGE)
    for table in (scene.table, scene.quarantine):
        with table.manage_snapshots() as manage:
            manage.remove_branch(backfill_branch(backfill.id))
    maintain(scene, maintenance)
    with pytest.raises(PlanUnusable, match="no longer exists"):
        promote(scene, backfill)
    check(scene, before)


def test_a_build_whose_task_files_were_removed_ends_with_their_names(
    scene: Scene, maintenance: MaintenanceRunner
) -> None:
    """By hand: every file that no snapshot references is removed as an orphan while a backfill is built."""
    before = all_first(scene)
    use(scene, SECOND)
    backfill = request(scene, *RANGE)
    with pytest.raises(Killed):
        run_backfill(scene.config, "flights", backfill.id, on_step=die_at("quarantine_branched"))
    for path in scene.data_files() - scene.referenced_files():
        scene.table.io.delete(path)
    with pytest.raises(WaybillError, match="no longer exist"):
        run_backfill(scene.config, "flights", backfill.id)
    check(scene, before)


def test_an_expiry_by_hand_that_leaves_only_a_compaction_loses_the_progress(
    scene: Scene, maintenance: MaintenanceRunner
) -> None:
    """Waybill's own maintenance copies the progress to the newest snapshot first."""
    expected = seen(scene)
    procedures_by_hand([scene.table], maintenance)
    with pytest.raises(ProgressLost, match="the snapshots that had it were expired"):
        scene.run()
    assert seen(scene) == expected


def test_half_a_rebuild_of_the_unique_table_is_continued_after_maintenance(
    make_scene: MakeScene, maintenance: MaintenanceRunner
) -> None:
    dedup = {"window": f"{WINDOW_MS // 1000}s", "floor": "1s", "buckets": 2}
    stream = swept_and_promoted(Replaced(make_scene(dedup=dedup, columns={"device": "string"}), bounded=True))
    shown = stream.found()
    assert not stream.sweep().published
    maintain(stream.scene, maintenance)
    assert stream.found() == shown, "readers see the rows from before until the rebuild is published"
    procedures_by_hand([stream.tables.unique, stream.tables.duplicates], maintenance)
    assert stream.found() == shown
    stream.sweep_until_current()
    stream.check()
    stream.append("xw")
    stream.sweep_until_current()
    stream.check()
