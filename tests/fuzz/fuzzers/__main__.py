"""The command line of the fuzzers.

    make fuzz MINUTES=10                     # all targets in turn
    make fuzz MINUTES=2 TARGET=json SEED=7   # one target, other inputs
    make fuzz TARGET=kpl INPUT=f3899ac2…     # one input again, in hex; several are separated by commas
    make fuzz TARGET=kpl SEED=1 BATCH=17     # one batch again

Each target runs in a process of its own: an input at which the interpreter crashes is a finding, too. The exit code is
1 if there is a finding.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fuzzers.engine import Finding, Target, failure, run, shrunk
from fuzzers.targets import TARGETS


def main() -> int:
    """Run what the arguments ask for, print findings, and return the exit code."""
    parser = argparse.ArgumentParser(prog="fuzzers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="for all chosen targets together")
    parser.add_argument("--target", default="", help=f"one of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--batch", type=int, help="repeat this batch of the seed")
    parser.add_argument("--input", default="", help="check these inputs: hex, separated by commas")
    parser.add_argument("--json", type=Path, help="write the figures of each target to this file")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.target and given.target not in TARGETS:
        parser.error(f"there is no target {given.target!r}; there are {', '.join(TARGETS)}")
    if (given.input or given.batch is not None) and not given.target:
        parser.error("an input or a batch belongs to one target: name it")
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    if given.input:
        return _repeat(TARGETS[given.target], seed, 0, [bytes.fromhex(each) for each in given.input.split(",")])
    if given.batch is not None:
        target = TARGETS[given.target]
        return _repeat(target, seed, given.batch, target.inputs(seed, given.batch))
    if given.progress is not None:
        return _in_this_process(TARGETS[given.target], seed, given.until, given.progress)
    names = [given.target] if given.target else list(TARGETS)
    return _all(names, seed, given.minutes * 60 / len(names), given.json)


def _repeat(target: Target, seed: int, batch: int, inputs: Sequence[bytes]) -> int:
    error = failure(target, inputs)
    if error is None:
        print(f"{target.name}: right for {len(inputs)} inputs")
        return 0
    print(Finding(target.name, seed, batch, len(inputs), *shrunk(target, inputs, error)))
    return 1


def _in_this_process(target: Target, seed: int, seconds: float, progress: Path) -> int:
    def note(batch: int) -> None:
        progress.write_text(json.dumps({"batch": batch}))

    outcome = run(target, seed=seed, until=time.monotonic() + seconds, on_batch=note)
    progress.write_text(json.dumps({"tried": outcome.tried, "seconds": outcome.seconds}))
    if outcome.finding is not None:
        print(outcome.finding, flush=True)
    return 0 if outcome.finding is None else 1


def _all(names: Sequence[str], seed: int, seconds: float, report: Path | None) -> int:
    print(f"seed {seed}, {seconds:.0f} s for each of {len(names)} targets", flush=True)
    figures: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            progress = Path(folder) / name
            command = [sys.executable, "-m", "fuzzers", "--target", name, "--seed", str(seed)]
            done = subprocess.run([*command, "--until", str(seconds), "--progress", str(progress)], check=False)
            found = json.loads(progress.read_text()) if progress.exists() else {}
            if "tried" not in found:
                print(_crash(name, seed, found.get("batch", 0), done.returncode))
            figures[name] = {**found, "findings": int(done.returncode != 0)}
            print(
                f"{name:20} {found.get('tried', 0):>12,} inputs {'finding' if done.returncode else 'right'}", flush=True
            )
    if report is not None:
        report.write_text(json.dumps({"seed": seed, "targets": figures}, indent=2))
    return int(any(each["findings"] for each in figures.values()))


def _crash(name: str, seed: int, batch: int, code: int) -> str:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{name}: the process ended by {how} in batch {batch}. Repeat it with:\n  make fuzz TARGET={name} SEED={seed} BATCH={batch}"


if __name__ == "__main__":
    sys.exit(main())
