"""`make chaos SEEDS=200 FIRST_SEED=1`: this number of scenarios on a separate stack, and a report.

Exit code 1 if a message was lost or repeated, or another check failed.
"""

from __future__ import annotations

from typing import NoReturn

from chaos.command import Seeds, run_seeds
from chaos.report import Tally
from chaos.rounds import play_seeds
from chaos.scene import SceneResult
from chaos.world import World


def main() -> NoReturn:
    """Parse the command line, run, print."""
    tally = Tally()

    def play(world: World, seeds: Seeds) -> None:
        def done(result: SceneResult) -> None:
            tally.add(result)
            _say(world, seeds, result)

        for _ in play_seeds(world, seeds.first, seeds.count, guard=seeds.guard, on_done=done):
            pass

    run_seeds("chaos", __doc__, tally, play, guard_off="S3 ignores If-None-Match")


def _say(world: World, seeds: Seeds, result: SceneResult) -> None:
    seeds.say(
        result.seed,
        f"{result.injected.total()} faults injected, {result.ledger.written:,} messages, {result.objects} objects, "
        f"{result.lanes} lanes, {result.seconds:.1f} s",
        result.faults,
        world.directory / f"chaos-{world.run}-{result.seed}",
        f"faults injected: {dict(result.injected)}",
    )


if __name__ == "__main__":
    main()
