"""Random schedules over a `files` sink are sound, and what a guard is there for is found where it is missing.

WAYBILL_SCHEDULES=25 carries out as many of each mix, and as many for each guard that is taken away; without it one of
each mix, and as many for each guard as it takes to find that it is gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from files_schedule import MIXES, Schedule, Unsound
from partition_scenes import Scene

from waybill import failpoints
from waybill.names import FileName
from waybill.partition.files_sink import delivery, finality, finalize
from waybill.partition.files_sink.finality import Standing

pytestmark = pytest.mark.integration

SEEDS = int(os.environ.get("WAYBILL_SCHEDULES", "1"))
TRIES = max(SEEDS, 5)
MakeScene = Callable[..., Scene]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_reader_is_told_what_is_not_so(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, mix: str, seed: int
) -> None:
    schedule = Schedule.begin(make_scene, monkeypatch, seed, MIXES[mix])
    schedule.carry_out()
    assert schedule.oracle.marked_looks, "no hour was ever final: nothing could go wrong"


def _fastest(patch: pytest.MonkeyPatch) -> None:
    """Hours wait for the topic-partition that is furthest ahead."""

    def reached_by_one(found: Sequence[Standing]) -> datetime | None:
        return max((standing.reached for standing in found if standing.reached), default=None)

    patch.setattr(finalize, "reached_by_all", reached_by_one)


def _no_lateness(patch: pytest.MonkeyPatch) -> None:
    def at_once(reached: datetime | None, lateness: timedelta) -> datetime | None:
        return reached

    patch.setattr(finalize, "final_before", at_once)


def _marker_stays(patch: pytest.MonkeyPatch) -> None:
    """A late file is written into a directory with its marker."""

    def deliver(self: delivery.Delivery, local: Path, name: FileName, metadata: dict[str, str]) -> None:
        self._create(local, name.key(self._layout.root), metadata)
        failpoints.reach("partition.hour_file_created")

    patch.setattr(delivery.Delivery, "_deliver", deliver)


def _strays_unseen(patch: pytest.MonkeyPatch) -> None:
    """What the ledger does not list is passed over."""

    def judge(period: Any, entries: Any, listed: Any, marker: Any, **rest: Any) -> finality.Finding:
        counted = {entry.path.split("/", 3)[3] for entry in entries}
        return finality.judge(period, entries, [there for there in listed if there.key in counted], marker, **rest)

    patch.setattr(finalize, "judge", judge)


def _plan_unseen(patch: pytest.MonkeyPatch) -> None:
    """The finalizer does as if no plan were in hand."""
    patch.setattr(finalize._Finalizer, "_plan_in_hand", lambda *_: False)


@pytest.mark.parametrize(
    ("take_away", "mix", "first"),
    [
        (_fastest, "behind", 2),
        (_no_lateness, "late", 0),
        (_marker_stays, "late", 1),
        (_strays_unseen, "given up", 1),
        (_plan_unseen, "upkeep", 1),
    ],
)
def test_a_guard_that_is_gone_is_missed(
    make_scene: MakeScene, take_away: Callable[[pytest.MonkeyPatch], None], mix: str, first: int
) -> None:
    """`first`: the seed to begin with, one that finds it soon."""
    found = []
    for seed in range(first, first + TRIES):
        with pytest.MonkeyPatch.context() as patch:
            schedule = Schedule.begin(make_scene, patch, seed, MIXES[mix])
            take_away(patch)
            try:
                schedule.carry_out()
            except Unsound:
                found.append(seed)
        if found and SEEDS == 1:
            break
    print(f"{take_away.__name__}: found by {len(found)} of {seed - first + 1}")
    assert found
