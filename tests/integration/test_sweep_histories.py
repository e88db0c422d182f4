"""Sweeps of tables that were rolled back or dropped, and of drivers that sleep for long: cases from a review."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from oracle import Row
from partition_scenes import Scene
from pyiceberg.table import Table
from sweep_scenes import START_MS, SweptScene

from waybill.base.errors import PlanUnusable, SweepHistoryLost
from waybill.config.names import TopicPartition, staged_key, sweep_plan_key
from waybill.tables.staging.driver import RunOutcome

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]
A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
WINDOW_MS = 3_600_000


@pytest.fixture
def swept(make_scene: MakeScene) -> SweptScene:
    settings = {"window": f"{WINDOW_MS // 1000}s", "floor": "1s", "buckets": 2}
    return SweptScene(make_scene(dedup=settings, columns={"device": "string"}), ("message_id",), WINDOW_MS)


def row(tp: TopicPartition, offset: int, key: str, at_ms: int = 0) -> Row:
    return Row(tp, offset, START_MS - 600_000 + at_ms, START_MS, (key,))


def plan_key(swept: SweptScene, sequence: int) -> str:
    """Return the key of the plan that starts at this sequence number."""
    unique = str(swept.tables.unique.metadata.table_uuid)
    return sweep_plan_key(swept.scene.store.prefix, "flights", swept.scene.stream.generation, unique, sequence)


def sequence_of(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.sequence_number or 0


def roll_back(table: Table, snapshots: int = 1) -> None:
    for _ in range(snapshots):
        current = table.current_snapshot()
        assert current is not None
        assert current.parent_snapshot_id is not None
        table.manage_snapshots().rollback_to_snapshot(current.parent_snapshot_id).commit()


def remove_plan(swept: SweptScene, sequence: int) -> None:
    """Remove a plan, as maintenance does a week after its commit, or a person."""
    key = plan_key(swept, sequence)
    for gone in (key, staged_key(key)):
        if swept.scene.store.read_if_exists(gone) is not None:
            swept.scene.store.remove(gone)


def offsets(table: Table) -> list[tuple[int, int]]:
    rows = table.scan().to_arrow()
    return sorted(zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True))


@pytest.mark.parametrize("step", ["planned", "matched", "executed", "staged"])
def test_sweep_that_slept_until_its_plan_was_removed_commits_nothing(swept: SweptScene, step: str) -> None:
    """The index has the plan's rows by then: each of them would be found to repeat itself."""
    swept.append([row(A, 0, "a"), row(A, 1, "b")])
    swept.sweep()
    swept.append([row(A, 2, "c"), row(B, 0, "d")])
    start = swept.found_state.swept
    assert start is not None
    slept = []

    def sleep(done: str) -> None:
        if done == step and not slept:
            slept.append(done)
            assert swept.sweep().outcome is RunOutcome.COMMITTED
            remove_plan(swept, start.sequence)

    assert swept.sweep(on_step=sleep).outcome is RunOutcome.ADOPTED
    swept.check()
    swept.append([row(A, 3, "c"), row(A, 4, "e")])
    swept.sweep_until_current()
    swept.check()
    assert len(swept.duplicates) == 1


def test_index_of_rolled_back_rows_is_rebuilt(swept: SweptScene) -> None:
    """Roll back further than needed, so that a sweep commits staged files without a look at the index."""
    swept.append([row(B, 0, "quiet: it holds the horizon where it is")])
    swept.sweep()
    for offset in range(2):
        swept.append([row(A, offset, f"id-{offset}", 1000 + offset)])
        swept.sweep()
    assert offsets(swept.tables.unique) == [(0, 0), (0, 1), (1, 0)]
    roll_back(swept.main)
    roll_back(swept.tables.unique, 2)
    assert offsets(swept.tables.unique) == [(1, 0)]
    swept.append([row(A, 1, "id-1", 1001)])  # partitioned again
    swept.sweep()
    start = swept.found_state.swept
    assert start is not None
    with pytest.raises(PlanUnusable, match="Remove the object"):
        swept.sweep()
    remove_plan(swept, start.sequence)
    swept.sweep_until_current()
    assert offsets(swept.tables.unique) == [(0, 0), (0, 1), (1, 0)]


def test_duplicates_of_a_removed_plan_do_not_become_final(swept: SweptScene) -> None:
    """A sweep is killed between its two commits, and the rows that it swept are rolled back."""
    swept.append([row(A, 0, "a")])
    swept.sweep()
    swept.append([row(A, 1, "a", 1)])
    assert swept.sweep_killed("duplicates_committed")
    start = swept.found_state.swept
    assert start is not None
    roll_back(swept.main)
    swept.planned = None
    swept.append([row(A, 1, "b", 1), row(A, 2, "c", 2)])  # after a fix of the parser
    with pytest.raises(PlanUnusable, match="Remove the object"):
        swept.sweep()
    remove_plan(swept, start.sequence)
    with pytest.raises(SweepHistoryLost, match=rf"Roll .*_duplicates back .* number of {start.sequence} or less"):
        swept.sweep()
    swept.scene.catalog.drop_table(swept.tables.duplicates.name())  # it has no earlier snapshot
    swept.sweep_until_current()
    swept.check()
    assert len(swept.kept) == 3


def test_dropped_unique_table_with_existing_duplicates_is_refused(swept: SweptScene) -> None:
    rows = [row(A, 0, "a"), row(A, 1, "a", 1)]
    swept.append(rows)
    swept.sweep()
    swept.scene.catalog.drop_table(swept.tables.unique.name())
    with pytest.raises(SweepHistoryLost, match="rolled back or dropped"):
        swept.sweep()
    swept.scene.catalog.drop_table(swept.tables.duplicates.name())
    restarted = SweptScene(swept.scene, swept.key, WINDOW_MS, swept.now_ms, rows)
    restarted.sweep()
    restarted.check()


def test_rolled_back_unique_table_gets_the_staged_files_again(swept: SweptScene) -> None:
    """The duplicates of the same runs are committed already, and their files are still recorded."""
    for first in range(0, 6, 2):
        swept.append([row(A, first, f"id-{first}", first), row(A, first + 1, f"id-{max(first - 2, 0)}", first + 1)])
        swept.sweep()
    swept.check()
    roll_back(swept.tables.unique, 2)
    again: list[Any] = []
    while not again or again[-1].resumed:
        again.append(swept.sweep())
    assert [report.outcome for report in again] == [RunOutcome.COMMITTED] * 2 + [RunOutcome.NOTHING_NEW]
    swept.check()
    swept.append([row(A, 6, "id-4", 6), row(A, 7, "id-7", 7)])
    swept.sweep()
    swept.check()
