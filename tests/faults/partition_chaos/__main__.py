"""`make chaos-partition SEEDS=50 FIRST_SEED=1`: as many scenarios on a stack of its own, and a report.

Exit code 1 if a row was lost or repeated, or anything else is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from chaos.world import World, open_world

from devstack import Stack
from partition_chaos.scenario import Kind, Scenario, draw
from partition_chaos.scene import PRELOAD, PartitionScene, PartitionSceneResult

__all__ = ["main", "play"]

_SIDE_BY_SIDE = 3
_KINDS = ("lost", "repeated", "foreign", "misplaced")


@dataclass
class Tally:
    """Sums over the seeds."""

    seeds: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    drawn: Counter[Kind] = field(default_factory=Counter)
    took_effect: Counter[Kind] = field(default_factory=Counter)
    idle: list[int] = field(default_factory=list)
    """Seeds of which no act took effect."""
    errors: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, result: PartitionSceneResult) -> None:
        """One more."""
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

    def lines(self, seconds: float) -> list[str]:
        """The report."""
        text = [f"{self.seeds} seeds in {seconds:,.0f} s ({seconds / max(1, self.seeds):.1f} s each)", ""]
        text += ["acts that took effect:"]
        text += [f"  {self.took_effect[kind]:6,} of {drawn:,}  {kind}" for kind, drawn in sorted(self.drawn.items())]
        text += [f"  seeds without one: {', '.join(map(str, self.idle)) or 'none'}", ""]
        text += [f"what went wrong: {self.happened.total():,}"]
        text += [f"  {times:6,}  {what}" for what, times in sorted(self.happened.items())]
        text += ["", "what runs failed with, to be tried again:"]
        text += [f"  {times:6,}  {name}" for name, times in sorted(self.errors.items())]
        text += ["", *(f"  {count:10,}  {name}" for name, count in self.figures.items()), ""]
        text += [f"  {self.kinds[kind]:10,}  {kind}" for kind in (*_KINDS, *sorted(set(self.kinds) - set(_KINDS)))]
        sound = "sound: nothing lost, nothing repeated"
        return [*text, "", f"NOT SOUND: seeds {', '.join(map(str, self.failed))}" if self.failed else sound]

    def document(self, seconds: float) -> dict[str, Any]:
        """The same for programs."""
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
    """Carry scenarios out, a few side by side."""
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        scenes = [PartitionScene(world, scenario) for scenario in scenarios]
        yield from zip(scenes, pool.map(PartitionScene.run, scenes), strict=True)


def main() -> NoReturn:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="partition_chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--guard", choices=("on", "off"), default="on", help="off: commits do not look for a rival's")
    parser.add_argument("--json", type=Path, help="write the report's figures to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    state = Path(tempfile.mkdtemp(prefix="waybill-chaos-"))
    tally, done = Tally(), False
    try:
        _run(state, options, tally)
        done = True
    except KeyboardInterrupt:
        print("\ninterrupted", flush=True)
    finally:
        shutil.rmtree(state / "stack", ignore_errors=True)
        if not tally.failed:  # else the logs are wanted
            shutil.rmtree(state, ignore_errors=True)
    sys.exit(0 if done and not tally.failed else 1)


def _run(state: Path, options: argparse.Namespace, tally: Tally) -> None:
    stack = Stack.start(state / "stack", on_progress=lambda line: print(f"stack: {line}", flush=True))
    started = time.monotonic()
    try:
        with open_world(stack, state / "scenes", *PRELOAD) as world:
            started = time.monotonic()
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            scenarios = (draw(seed, guard=options.guard == "on") for seed in seeds)
            for scene, result in play(world, scenarios):
                tally.add(result)
                _say(scene, result)
    finally:
        stack.stop(grace_seconds=0.0)
        print("\n" + "\n".join(tally.lines(time.monotonic() - started)), flush=True)
    if options.json:
        options.json.write_text(json.dumps(tally.document(time.monotonic() - started), indent=2))


def _say(scene: PartitionScene, result: PartitionSceneResult) -> None:
    off = "" if scene.scenario.guard else " GUARD=off"
    checked, what = result.checked, ", ".join(result.happened) or "nothing"
    print(
        f"seed {result.seed}: {'FAULTS' if result.faults else 'ok'}, {checked.rows:,} rows, "
        f"{checked.quarantined:,} in quarantine, {result.seconds:.1f} s; {what}",
        flush=True,
    )
    for fault in result.faults:
        print(f"seed {result.seed}: {fault.kind}: {fault.count}: {fault.what}", flush=True)
    if result.faults:
        print(f"seed {result.seed}: logs: {scene.directory}", flush=True)
        print(f"seed {result.seed}: again: make chaos-partition SEEDS=1 FIRST_SEED={result.seed}{off}", flush=True)
    else:
        shutil.rmtree(scene.directory, ignore_errors=True)


if __name__ == "__main__":
    main()
