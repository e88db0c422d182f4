"""`make chaos SEEDS=200 FIRST_SEED=1`: as many scenarios on a stack of its own, and a report.

Exit code 1 if a message was lost or repeated, or anything else is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from chaos.report import Tally, fault_lines
from chaos.rounds import play_seeds
from chaos.scene import SceneResult
from chaos.world import World, open_world
from devstack import Stack

__all__ = ["main"]


def main() -> NoReturn:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--guard", choices=("on", "off"), default="on", help="off: S3 ignores If-None-Match")
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
        if tally.is_sound:  # else the logs are wanted
            shutil.rmtree(state, ignore_errors=True)
    sys.exit(0 if done and tally.is_sound else 1)


def _run(state: Path, options: argparse.Namespace, tally: Tally) -> None:
    stack = Stack.start(state / "stack", on_progress=lambda line: print(f"stack: {line}", flush=True))
    try:
        with open_world(stack, state / "scenes") as world:
            started = time.monotonic()
            try:
                _play(world, tally, options)
            finally:
                print("\n" + "\n".join(tally.lines(time.monotonic() - started)), flush=True)
    finally:
        stack.stop(grace_seconds=0.0)
    if options.json:
        options.json.write_text(json.dumps(tally.document(time.monotonic() - started), indent=2))


def _play(world: World, tally: Tally, options: argparse.Namespace) -> None:
    guard = options.guard == "on"

    def done(result: SceneResult) -> None:
        tally.add(result)
        state = "ok" if not result.faults else "FAULTS"
        print(
            f"seed {result.seed}: {state}, {result.injected.total()} faults injected, "
            f"{result.ledger.written:,} messages, {result.objects} objects, {result.lanes} lanes, "
            f"{result.seconds:.1f} s",
            flush=True,
        )
        directory = world.directory / f"chaos-{world.run}-{result.seed}"
        if result.faults:
            print("\n".join(fault_lines(result, str(directory), guard=guard)), flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)

    for _ in play_seeds(world, options.first_seed, options.seeds, guard=guard, on_done=done):
        pass


if __name__ == "__main__":
    main()
