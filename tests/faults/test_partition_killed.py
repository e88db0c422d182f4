"""A partition run is killed or frozen, meets a rival or loses a server at each of its steps; the next run continues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from chaos.s3_proxy import CallFault, Effect, S3Call
from chaos.world import World, open_world
from partition_chaos.__main__ import play
from partition_chaos.scenario import DRIVER_STEPS, Act, Kind, Meanwhile, Scenario, Wave, draw
from partition_chaos.scene import PRELOAD, PartitionSceneResult

from waybill.base import failpoints

if TYPE_CHECKING:
    from devstack import Stack

pytestmark = [pytest.mark.deep, pytest.mark.faults, pytest.mark.integration]

STAGED = "partition.staged"
RIVALS = (
    ("", ""),
    ("partition.planned=sleep:1.5", "partition.span_read=sleep:1"),
    ("partition.executed=sleep:1.5", "partition.quarantine_published=sleep:1"),
)
SEEDS = range(1, 5)
UNGUARDED = "unguarded"
RANDOM = "random"

Results = dict[str, PartitionSceneResult]

_AWAY = (
    Act(STAGED, meanwhile=Meanwhile.CATALOG_LOCKED),
    Act(calls=(CallFault(S3Call.GET_OBJECT, Effect.ERROR_503, nth=4, times=1000),)),
    Act(calls=(CallFault(S3Call.PUT_OBJECT, Effect.ERROR_503, nth=2, times=1000),)),
)
_APPLIED_BUT_FAILED = (Act(calls=(CallFault(S3Call.PUT_OBJECT, Effect.APPLIED_500, nth=2, times=1000),)),)
_DAMAGE = (
    Act("partition.planned", meanwhile=Meanwhile.DAMAGE),
    Act("partition.planned", meanwhile=Meanwhile.DAMAGE_AND_RIVAL),
    Act("partition.executed", meanwhile=Meanwhile.DAMAGE_AND_RIVAL),
    Act("partition.planned", meanwhile=Meanwhile.DELETE),
)
ACTS = {
    "kills": tuple(Act(step) for step in failpoints.PARTITION),
    "zombies": tuple(Act(step, meanwhile=Meanwhile.MORE_DATA) for step in DRIVER_STEPS),
    "rivals": tuple(Act(rival_delays=delays) for delays in RIVALS),
    "commits of other programs": tuple(Act(STAGED, meanwhile=what) for what in (Meanwhile.REWRITE, Meanwhile.STRANGER)),
    "servers away": _AWAY,
    "applied but reported as failed": _APPLIED_BUT_FAILED,
    "damage": _DAMAGE,
}


def _scenario(number: int, acts: tuple[Act, ...], *, guard: bool = True) -> Scenario:
    """Return a scenario with a wave without faults and one for each act, several tasks for each plan, and some junk."""
    waves = [Wave(60, (), clean_run=True), *(Wave(60, (act,), clean_run=False) for act in acts)]
    return Scenario(
        seed=900_000 + number,
        partitions=2,
        max_bytes=2 << 10,
        task_bytes=4 << 10,
        run_bytes=1 << 20,
        value_bytes=100,
        junk_share=0.15,
        waves=tuple(waves),
        guard=guard,
    )


@pytest.fixture(scope="module")
def partition_world(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(stack, tmp_path_factory.mktemp("partition-chaos"), *PRELOAD) as opened:
        yield opened


@pytest.fixture(scope="module")
def results(partition_world: World) -> Results:
    """Play all scenarios, a few in parallel; in one of them a commit does not check for a rival's commit.

    `make chaos-partition SEEDS=…` plays more random scenarios.
    """
    scenarios = {name: _scenario(number, acts) for number, (name, acts) in enumerate(ACTS.items())}
    scenarios[UNGUARDED] = _scenario(len(ACTS), (Act(STAGED, meanwhile=Meanwhile.RIVAL),), guard=False)
    scenarios |= {f"{RANDOM} {seed}": draw(seed) for seed in SEEDS}
    played = play(partition_world, scenarios.values())
    return dict(zip(scenarios, (result for _, result in played), strict=True))


@pytest.mark.parametrize("what", ACTS)
def test_no_message_is_lost_or_repeated(results: Results, what: str) -> None:
    result = results[what]
    assert not result.faults
    assert result.checked.messages == result.checked.rows + result.checked.quarantined >= 60 * (1 + len(ACTS[what]))


@pytest.mark.parametrize("step", failpoints.PARTITION)
def test_a_driver_was_killed_at_each_step(results: Results, step: str) -> None:
    assert results["kills"].happened[f"SIGKILL at {step}"] == 1


@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_a_driver_was_frozen_at_each_step_while_others_ran(results: Results, step: str) -> None:
    assert results["zombies"].happened[f"{Meanwhile.MORE_DATA} at {step}"] == 1


def test_of_two_concurrent_drivers_one_commits_and_the_other_leaves_no_file(results: Results) -> None:
    result = results["rivals"]
    assert result.happened["two drivers at once"] == len(RIVALS)
    assert result.checked.snapshots == 2 + len(RIVALS), "an empty one, and one for each wave"
    assert result.orphans == 0


def test_a_commit_of_another_program_between_staging_and_commit_is_no_conflict(results: Results) -> None:
    result = results["commits of other programs"]
    assert result.happened.total() == 2
    assert not result.errors


def test_an_unreachable_server_is_named_and_the_next_run_continues(results: Results) -> None:
    assert results["servers away"].errors == {"CatalogUnavailable": 1, "StoreUnavailable": 2}


def test_the_next_run_continues_after_an_upload_that_s3_applied_and_reported_as_failed(results: Results) -> None:
    result = results["applied but reported as failed"]
    assert result.took_effect.total() == 1
    assert result.errors == {"StoreUnavailable": 1}


def test_objects_were_damaged_and_deleted_while_drivers_read_them(results: Results) -> None:
    assert results["damage"].happened.total() == len(_DAMAGE)


def test_a_commit_without_its_guard_repeats_messages(results: Results) -> None:
    result = results[UNGUARDED]
    assert result.happened[f"{Meanwhile.RIVAL} at {STAGED}"] == 1
    repeated = {fault.kind: fault.count for fault in result.faults}
    assert repeated.keys() == {"repeated", "verify"}
    assert repeated["repeated"] == 60, "frozen driver and rival both committed the wave, its junk included"
    assert result.checked.rows + result.checked.quarantined == result.checked.messages + 60


def test_random_scenarios_lose_and_repeat_nothing(results: Results) -> None:
    for seed in SEEDS:
        result = results[f"{RANDOM} {seed}"]
        assert not result.faults
        assert result.took_effect.total() >= 1


def test_every_drawn_scenario_is_possible() -> None:
    """A driver reaches the quarantine's step only with junk; a compaction needs files."""
    for scenario in map(draw, range(1, 301)):
        acts = [act for wave in scenario.waves for act in wave.acts]
        assert scenario.junk_share or "partition.quarantine_published" not in {act.failpoint for act in acts}
        assert Meanwhile.REWRITE not in {act.meanwhile for act in scenario.waves[0].acts}
        assert all(len(wave.acts) == 1 or wave.acts[0].kind is Kind.KILL for wave in scenario.waves)
