"""Rounds: the scenarios of neighbouring seeds side by side on one stack, as `chaos.rounds` plays them."""

from __future__ import annotations

from collections.abc import Callable

from chaos.rounds import play_round, rounds
from chaos.scene import SceneResult
from chaos.world import World

from kinesis_chaos.scenario import draw, draw_server_fault
from kinesis_chaos.scene import KinesisScene


def play_seeds(
    world: World, first_seed: int, seeds: int, *, guard: bool = True, on_done: Callable[[SceneResult], None]
) -> list[SceneResult]:
    """Play all seeds, round by round. Return their results."""
    world.stack.start_kinesis()
    results = []
    for number, members in rounds(first_seed, seeds):
        scenarios = [draw(seed, guard=guard) for seed in members]
        results += play_round(world, scenarios, draw_server_fault(number), on_done=on_done, stage=KinesisScene)
    return results
