"""Random schedules over a `files` sink find no fault, and find one when a guard of the protocol is removed.

WAYBILL_SCHEDULES=25 plays 25 of each mix, and 25 for each removed guard. By default one of each mix is played, and for
each removed guard as many as needed to find a fault.
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

from waybill.base import failpoints
from waybill.config.names import FileName
from waybill.tables.partition.files_sink import finalize, hour_state, upload
from waybill.tables.partition.files_sink.hour_state import TimeReached

pytestmark = [pytest.mark.deep, pytest.mark.integration, pytest.mark.matrix]

SEEDS = int(os.environ.get("WAYBILL_SCHEDULES", "1"))
TRIES = max(SEEDS, 5)
MakeScene = Callable[..., Scene]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_reader_sees_a_wrong_marker_or_file(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, mix: str, seed: int
) -> None:
    schedule = Schedule.begin(make_scene, monkeypatch, seed, MIXES[mix])
    schedule.play()
    assert schedule.oracle.marked_looks, "no hour was ever final: nothing could go wrong"


def _fastest(patch: pytest.MonkeyPatch) -> None:
    """Remove the guard that hours wait for the topic-partition that is furthest behind."""

    def reached_by_one(found: Sequence[TimeReached]) -> datetime | None:
        return max((standing.reached for standing in found if standing.reached), default=None)

    patch.setattr(finalize, "earliest_time", reached_by_one)


def _no_lateness(patch: pytest.MonkeyPatch) -> None:
    def at_once(reached: datetime | None, lateness: timedelta) -> datetime | None:
        return reached

    patch.setattr(finalize, "final_before", at_once)


def _marker_stays(patch: pytest.MonkeyPatch) -> None:
    """Remove the guard that a marker is removed before a late file is created."""

    def deliver(self: upload.HourFileUploads, local: Path, name: FileName, metadata: dict[str, str]) -> None:
        self._create(local, name.key(self._layout.root), metadata)
        failpoints.reach("partition.hour_file_created")

    patch.setattr(upload.HourFileUploads, "_upload", deliver)


def _strays_unseen(patch: pytest.MonkeyPatch) -> None:
    """Remove the guard that an unlisted object blocks its hour."""

    def classify(period: Any, entries: Any, listed: Any, marker: Any, **rest: Any) -> hour_state.HourStatus:
        counted = {entry.path.split("/", 3)[3] for entry in entries}
        return hour_state.classify_hour(
            period, entries, [there for there in listed if there.key in counted], marker, **rest
        )

    patch.setattr(finalize, "classify_hour", classify)


def _plan_unseen(patch: pytest.MonkeyPatch) -> None:
    """Remove the guard that nothing is marked while a plan is open."""
    patch.setattr(finalize._Finalizer, "_has_open_plan", lambda *_: False)


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
def test_the_schedules_find_a_removed_guard(
    make_scene: MakeScene, take_away: Callable[[pytest.MonkeyPatch], None], mix: str, first: int
) -> None:
    """`first`: the first seed, chosen so that few schedules are needed."""
    found = []
    for seed in range(first, first + TRIES):
        with pytest.MonkeyPatch.context() as patch:
            schedule = Schedule.begin(make_scene, patch, seed, MIXES[mix])
            take_away(patch)
            try:
                schedule.play()
            except Unsound:
                found.append(seed)
        if found and SEEDS == 1:
            break
    print(f"{take_away.__name__}: found by {len(found)} of {seed - first + 1}")
    assert found
