"""Seeds of `make chaos-kinesis`: lanes lose, repeat and reorder nothing of a stream that is split and merged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chaos.rounds import play_round
from chaos.scenario import ServerFault
from chaos.scene import SceneResult
from chaos.world import World
from kinesis_chaos.rounds import play_seeds
from kinesis_chaos.scenario import draw
from kinesis_chaos.scene import KinesisResult, KinesisScene

pytestmark = [pytest.mark.deep, pytest.mark.faults, pytest.mark.integration]

QUICK_SEED = 2
FIRST_DEEP_SEED, DEEP_SEEDS = 3, 8


def assert_sound(result: SceneResult) -> None:
    assert isinstance(result, KinesisResult)
    assert not result.faults
    assert result.archived == result.user_records >= len(result.log.acknowledged) > 0
    assert result.log.done.total() > 0


def test_a_seed_without_a_fault_of_a_server(world: World) -> None:
    scenario = replace(draw(QUICK_SEED), faults_within_seconds=3.0)
    (result,) = play_round(world, [scenario], ServerFault.NONE, stage=KinesisScene)
    assert_sound(result)
    assert result.injected.total() > 5


@pytest.mark.stack_alone
def test_more_seeds_with_faults_of_servers(world: World) -> None:
    for result in play_seeds(world, FIRST_DEEP_SEED, DEEP_SEEDS, on_done=lambda _: None):
        assert_sound(result)
