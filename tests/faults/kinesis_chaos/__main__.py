"""`make chaos-kinesis SEEDS=100 FIRST_SEED=1`: Kinesis streams that are split and merged under load, and a report.

Exit code 1 if a record was lost, repeated or out of order, or another check failed.
"""

from __future__ import annotations

from typing import NoReturn

from chaos.command import Seeds, run_seeds
from chaos.scene import SceneResult
from chaos.world import World

from kinesis_chaos.report import KinesisTally
from kinesis_chaos.rounds import play_seeds
from kinesis_chaos.scene import PRELOAD, KinesisResult


def main() -> NoReturn:
    """Parse the command line, run, print."""
    tally = KinesisTally()

    def play(world: World, seeds: Seeds) -> None:
        def done(result: SceneResult) -> None:
            tally.add(result)
            _say(world, seeds, result)

        play_seeds(world, seeds.first, seeds.count, guard=seeds.guard, on_done=done)

    run_seeds("chaos-kinesis", __doc__, tally, play, guard_off="S3 ignores If-None-Match", preload=PRELOAD)


def _say(world: World, seeds: Seeds, result: SceneResult) -> None:
    assert isinstance(result, KinesisResult)
    seeds.say(
        result.seed,
        f"{result.injected.total()} faults injected, {result.shards} shards, {result.user_records:,} user records, "
        f"{result.objects} objects, {result.lanes} lanes, {result.seconds:.1f} s",
        result.faults,
        world.directory / f"chaos-{world.run}-{result.seed}",
        f"faults injected: {dict(result.injected)}",
    )


if __name__ == "__main__":
    main()
