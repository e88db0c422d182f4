"""`make chaos-publish SEEDS=200 FIRST_SEED=1`: play 200 histories on a stack of its own and print a report.

Exit code 1 if a row was lost, repeated or mixed, or any other check failed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn

from chaos.command import Seeds, run_seeds
from chaos.world import World

from publish_chaos.history import History, HistoryResult

_PARALLEL_HISTORIES = 2
_KINDS = ("lost", "repeated", "mixed", "not published", "published against a decision", "not as decided")


@dataclass
class Tally:
    """Sums over all seeds."""

    seeds: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, result: HistoryResult) -> None:
        """Add the result of a seed."""
        self.seeds += 1
        self.figures.update({"messages": result.messages, "published plans": result.plans})
        self.happened.update(result.happened)
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
        text += [f"  {times:6,}  {what}" for what, times in sorted(self.happened.items())]
        text += ["", *(f"  {count:10,}  {name}" for name, count in self.figures.items()), ""]
        text += [f"  {self.kinds[kind]:10,}  {kind}" for kind in (*_KINDS, *sorted(set(self.kinds) - set(_KINDS)))]
        seeds = ", ".join(map(str, self.failed))
        sound = "sound: nothing lost, nothing repeated, nothing mixed"
        return [*text, "", sound if self.is_sound else f"NOT SOUND: seeds {seeds}"]

    def document(self, seconds: float) -> dict[str, Any]:
        """Return the report for a JSON document."""
        return {
            "seeds": self.seeds,
            "seconds": round(seconds, 1),
            "happened": dict(sorted(self.happened.items())),
            "figures": dict(self.figures),
            "faults": {kind: self.kinds[kind] for kind in (*_KINDS, *sorted(self.kinds))},
            "failed_seeds": self.failed,
        }


def play(seeds: Seeds) -> Iterator[tuple[HistoryResult, list[str]]]:
    """Play histories, a few in parallel, each with what happened in it."""
    numbers = range(seeds.first, seeds.first + seeds.count)
    with ProcessPoolExecutor(_PARALLEL_HISTORIES) as pool:
        yield from pool.map(_play, numbers)


def _play(seed: int) -> tuple[HistoryResult, list[str]]:
    history = History(seed)
    return history.play(), history.trace


def main() -> NoReturn:
    """Parse the command line, play the histories, print the report."""
    tally = Tally()

    def play_seeds(world: World, seeds: Seeds) -> None:
        os.environ.update(world.stack.environment())
        for result, trace in play(seeds):
            tally.add(result)
            logs = world.directory / f"{result.seed}"
            logs.mkdir(parents=True, exist_ok=True)
            (logs / "acts.txt").write_text("\n".join(trace))
            what = f"{result.messages:,} messages, {result.plans:,} plans published, {len(trace):,} acts"
            seeds.say(result.seed, what, result.faults, logs)

    run_seeds("chaos-publish", __doc__, tally, play_seeds, guard_off="has no meaning here")


if __name__ == "__main__":
    main()
