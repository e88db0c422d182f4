"""A lane is frozen (SIGSTOP) until its session has ended and another lane has run, and continues (SIGCONT)."""

from __future__ import annotations

from collections import Counter

import pytest
from chaos.scenario import FREEZE_AT, LaneAction, LaneFault, Scenario
from chaos.scene import SceneResult
from scenarios import Play, small

pytestmark = [pytest.mark.faults, pytest.mark.integration]

_SEEN = ("lost", "broken", "changed", "verify")
"""The faults that must be found: two by the checker, one by the watcher of objects, and one by Waybill's own
command."""


def zombie(failpoint: str, *, guard: bool = True) -> Scenario:
    """The frozen lane's object is shorter than the one that another lane creates under the same name."""
    freeze = LaneFault(failpoint, LaneAction.FREEZE)
    return small(lane_faults=(freeze,), max_bytes=(1 << 20,), guard=guard)


@pytest.fixture(scope="module")
def zombies(play: Play) -> dict[str, SceneResult]:
    """Scenarios with the guard at each place, and without it where nothing else protects the archive from the
    zombie."""
    scenarios = {name: zombie(name) for name in FREEZE_AT}
    return play({**scenarios, "unguarded": zombie("ingest.object_cut", guard=False)})


@pytest.mark.parametrize("failpoint", FREEZE_AT)
def test_zombie_loses_and_repeats_nothing(zombies: dict[str, SceneResult], failpoint: str) -> None:
    result = zombies[failpoint]
    assert result.injected[f"SIGSTOP, SIGCONT at {failpoint}, others went on"] == 1
    assert not result.faults


def test_without_the_conditional_create_the_harness_finds_what_the_zombie_does(
    zombies: dict[str, SceneResult],
) -> None:
    """The zombie overwrites the longer object, after which the chain continues, with its shorter one."""
    result = zombies["unguarded"]
    assert result.injected["SIGSTOP, SIGCONT at ingest.object_cut, others went on"] == 1
    found = Counter(dict.fromkeys(_SEEN, 0))
    for fault in result.faults:
        found[fault.kind] += fault.count
    assert all(found[kind] > 0 for kind in _SEEN), result.faults
