"""Sweeps of tables whose history somebody has changed, and of drivers that sleep for long: found in a review."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from oracle import Row
from partition_scenes import Scene
from pyiceberg.table import Table
from sweep_scenes import START_MS, SweptScene

from waybill.errors import PlanUnusable, SweepHistoryLost
from waybill.names import TopicPartition, staged_key, sweep_plan_key
from waybill.partition.report import RunOutcome

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
    """Of the plan that starts where so much was swept."""
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
    """As maintenance removes plans that the table has passed a week later; or a person."""
    key = plan_key(swept, sequence)
    for gone in (key, staged_key(key)):
        if swept.scene.store.read_if_there(gone) is not None:
            swept.scene.store.remove(gone)


def offsets(table: Table) -> list[tuple[int, int]]:
    rows = table.scan().to_arrow()
    return sorted(zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True))


@pytest.mark.parametrize("step", ["planned", "judged", "carried_out", "staged"])
def test_one_that_slept_until_maintenance_has_removed_its_plan_writes_nothing(swept: SweptScene, step: str) -> None:
    """The index knows the plan's rows by then: each of them would be found to repeat itself."""
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

    assert swept.sweep(done=sleep).outcome is RunOutcome.ADOPTED
    swept.check()
    swept.append([row(A, 3, "c"), row(A, 4, "e")])
    swept.sweep_to_the_end()
    swept.check()
    assert len(swept.duplicates) == 1


def test_an_index_of_what_was_rolled_back_is_not_gone_on_with(swept: SweptScene) -> None:
    """Further back than needed, so that a sweep commits what was staged without having looked at the index."""
    swept.append([row(B, 0, "quiet: it holds the horizon where it is")])
    swept.sweep()
    for offset in range(2):
        swept.append([row(A, offset, f"id-{offset}", 1000 + offset)])
        swept.sweep()
    assert offsets(swept.tables.unique) == [(0, 0), (0, 1), (1, 0)]
    roll_back(swept.main)
    with pytest.raises(SweepHistoryLost, match="Roll the unique table"):
        swept.sweep()
    roll_back(swept.tables.unique, 2)
    assert offsets(swept.tables.unique) == [(1, 0)]
    swept.append([row(A, 1, "id-1", 1001)])  # partitioned anew
    swept.sweep()
    start = swept.found_state.swept
    assert start is not None
    with pytest.raises(PlanUnusable, match="Remove the object"):
        swept.sweep()
    remove_plan(swept, start.sequence)
    swept.sweep_to_the_end()
    assert offsets(swept.tables.unique) == [(0, 0), (0, 1), (1, 0)]


def test_duplicates_of_a_plan_that_is_gone_do_not_become_final(swept: SweptScene) -> None:
    """A sweep dies between its two commits, and the rows that it swept are rolled back."""
    swept.append([row(A, 0, "a")])
    swept.sweep()
    swept.append([row(A, 1, "a", 1)])
    assert swept.sweep_killed("duplicates_committed")
    start = swept.found_state.swept
    assert start is not None
    roll_back(swept.main)
    swept.planned = None
    swept.append([row(A, 1, "b", 1), row(A, 2, "c", 2)])  # the parser was mended
    with pytest.raises(PlanUnusable, match="Remove the object"):
        swept.sweep()
    remove_plan(swept, start.sequence)
    with pytest.raises(SweepHistoryLost, match=rf"Roll .*_duplicates_g1 back .* number of {start.sequence} or less"):
        swept.sweep()
    swept.scene.catalog.drop_table(swept.tables.duplicates.name())  # it has no snapshot before
    swept.sweep_to_the_end()
    swept.check()
    assert len(swept.kept) == 3


def test_a_unique_table_that_was_dropped_alone_is_named(swept: SweptScene) -> None:
    rows = [row(A, 0, "a"), row(A, 1, "a", 1)]
    swept.append(rows)
    swept.sweep()
    swept.scene.catalog.drop_table(swept.tables.unique.name())
    with pytest.raises(SweepHistoryLost, match="rolled back or dropped"):
        swept.sweep()
    swept.scene.catalog.drop_table(swept.tables.duplicates.name())
    anew = SweptScene(swept.scene, swept.key, WINDOW_MS, swept.now_ms, rows)
    anew.sweep()
    anew.check()


def test_a_unique_table_that_was_rolled_back_alone_takes_up_what_was_staged(swept: SweptScene) -> None:
    """The duplicates are there: committed by the same runs, as they are staged still."""
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
