"""`make chaos-partition SEEDS=50 FIRST_SEED=1`: play 50 scenarios on a stack of its own and print a report.

Exit code 1 if a row was lost or repeated, or any other check failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn

from chaos.command import Seeds, run_seeds
from chaos.world import World

from partition_chaos.scenario import Kind, Scenario, draw
from partition_chaos.scene import PRELOAD, PartitionScene, PartitionSceneResult

_PARALLEL_SCENES = 3
_KINDS = ("lost", "repeated", "foreign", "misplaced")


@dataclass
class Tally:
    """Sums over all seeds."""

    seeds: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    drawn: Counter[Kind] = field(default_factory=Counter)
    took_effect: Counter[Kind] = field(default_factory=Counter)
    idle: list[int] = field(default_factory=list)
    """Seeds in which no act took effect."""
    errors: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, result: PartitionSceneResult) -> None:
        """Add the result of a seed."""
        self.seeds += 1
        checked = result.checked
        self.figures.update(
            {
                "messages in Kafka": checked.messages,
                "rows in tables": checked.rows,
                "rows in quarantine": checked.quarantined,
                "snapshots": checked.snapshots,
                "runs that committed": result.outcomes["committed"],
                "runs that adopted": result.outcomes["adopted"],
                "files left for maintenance": result.orphans,
            }
        )
        self.happened.update(result.happened)
        self.drawn.update(result.drawn)
        self.took_effect.update(result.took_effect)
        if not result.took_effect.total():
            self.idle.append(result.seed)
        self.errors.update(result.errors)
        for fault in result.faults:
            self.kinds[fault.kind] += fault.count
        if result.faults:
            self.failed.append(result.seed)

    @property
    def is_sound(self) -> bool:
        return not self.failed

    def lines(self, seconds: float) -> list[str]:
        """Return the report for people."""
        text = [f"{self.seeds} seeds in {seconds:,.0f} s ({seconds / max(1, self.seeds):.1f} s each)", ""]
        text += ["acts that took effect:"]
        text += [f"  {self.took_effect[kind]:6,} of {drawn:,}  {kind}" for kind, drawn in sorted(self.drawn.items())]
        text += [f"  seeds without one: {', '.join(map(str, self.idle)) or 'none'}", ""]
        text += [f"injected faults: {self.happened.total():,}"]
        text += [f"  {times:6,}  {what}" for what, times in sorted(self.happened.items())]
        text += ["", "retriable errors of runs:"]
        text += [f"  {times:6,}  {name}" for name, times in sorted(self.errors.items())]
        text += ["", *(f"  {count:10,}  {name}" for name, count in self.figures.items()), ""]
        text += [f"  {self.kinds[kind]:10,}  {kind}" for kind in (*_KINDS, *sorted(set(self.kinds) - set(_KINDS)))]
        seeds = ", ".join(map(str, self.failed))
        return [*text, "", "sound: nothing lost, nothing repeated" if self.is_sound else f"NOT SOUND: seeds {seeds}"]

    def document(self, seconds: float) -> dict[str, Any]:
        """Return the report for a JSON document."""
        return {
            "seeds": self.seeds,
            "seconds": round(seconds, 1),
            "acts": {kind: [self.took_effect[kind], drawn] for kind, drawn in sorted(self.drawn.items())},
            "happened": dict(sorted(self.happened.items())),
            "errors": dict(sorted(self.errors.items())),
            "figures": dict(self.figures),
            "faults": {kind: self.kinds[kind] for kind in (*_KINDS, *sorted(self.kinds))},
            "failed_seeds": self.failed,
        }


def play(world: World, scenarios: Iterable[Scenario]) -> Iterator[tuple[PartitionScene, PartitionSceneResult]]:
    """Play scenarios, a few in parallel."""
    with ThreadPoolExecutor(_PARALLEL_SCENES) as pool:
        scenes = [PartitionScene(world, scenario) for scenario in scenarios]
        yield from zip(scenes, pool.map(PartitionScene.run, scenes), strict=True)


def main() -> NoReturn:
    """Parse the command line, play the scenarios, print the report."""
    tally = Tally()

    def play_seeds(world: World, seeds: Seeds) -> None:
        numbers = range(seeds.first, seeds.first + seeds.count)
        for scene, result in play(world, (draw(seed, guard=seeds.guard) for seed in numbers)):
            tally.add(result)
            _print_seed(scene, seeds, result)

    run_seeds(
        "chaos-partition",
        __doc__,
        tally,
        play_seeds,
        guard_off="commits ignore those of rivals",
        preload=PRELOAD,
    )


def _print_seed(scene: PartitionScene, seeds: Seeds, result: PartitionSceneResult) -> None:
    checked, what = result.checked, ", ".join(result.happened) or "nothing"
    seeds.say(
        result.seed,
        f"{checked.rows:,} rows, {checked.quarantined:,} in quarantine, {result.seconds:.1f} s; {what}",
        result.faults,
        scene.directory,
    )


if __name__ == "__main__":
    main()
