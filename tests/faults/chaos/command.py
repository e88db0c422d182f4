"""The command line of a package of scenarios: a separate stack, the requested seeds, and a report."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from chaos.world import World, open_world
from devstack import Stack


class Report(Protocol):
    """Sums over the seeds that were played."""

    @property
    def is_sound(self) -> bool:
        """Whether there are no faults."""

    def lines(self, seconds: float) -> list[str]:
        """As text."""

    def document(self, seconds: float) -> dict[str, Any]:
        """The same for programs."""


class Fault(Protocol):
    """A fault in the results of a seed."""

    @property
    def kind(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def what(self) -> str: ...


@dataclass(frozen=True)
class Seeds:
    """The seeds to play, with or without the guard, and the Makefile target that plays them again."""

    target: str
    first: int
    count: int
    guard: bool

    def say(self, seed: int, what: str, faults: Sequence[Fault], logs: Path, *more: str) -> None:
        """Print the result of a seed.

        If there are faults, print them, `more`, and how to replay the seed; else remove the logs.
        """
        print(f"seed {seed}: {'FAULTS' if faults else 'ok'}, {what}", flush=True)
        if not faults:
            shutil.rmtree(logs, ignore_errors=True)
            return
        lines = [f"{fault.kind}: {fault.count}: {fault.what}" for fault in faults]
        again = f"again: make {self.target} SEEDS=1 FIRST_SEED={seed}{'' if self.guard else ' GUARD=off'}"
        print("\n".join(f"seed {seed}: {line}" for line in [*lines, *more, f"logs: {logs}", again]), flush=True)


def run_seeds(
    target: str,
    purpose: str | None,
    report: Report,
    play: Callable[[World, Seeds], None],
    *,
    guard_off: str,
    preload: Sequence[str] = (),
) -> NoReturn:
    """Parse the command line, play the seeds, print the report.

    Exit code 1 unless all seeds were played without faults.

    `guard_off`: the meaning of `--guard off`. `preload`: modules that processes of scenarios import besides those of
    lanes.
    """
    options = _parser(target, purpose, guard_off).parse_args()
    seeds = Seeds(target, options.first_seed, options.seeds, guard=options.guard == "on")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    state, done = Path(tempfile.mkdtemp(prefix="waybill-chaos-")), False
    try:
        _run(state, report, lambda world: play(world, seeds), preload, options.json)
        done = True
    except KeyboardInterrupt:
        print("\ninterrupted", flush=True)
    finally:
        shutil.rmtree(state / "stack", ignore_errors=True)
        if report.is_sound:  # otherwise the logs are kept
            shutil.rmtree(state, ignore_errors=True)
    sys.exit(0 if done and report.is_sound else 1)


def _parser(target: str, purpose: str | None, guard_off: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=target, description=purpose)
    parser.add_argument("--seeds", type=int, default=8, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--guard", choices=("on", "off"), default="on", help=f"off: {guard_off}")
    parser.add_argument("--json", type=Path, help="write the report's figures to this file")
    return parser


def _run(
    state: Path, report: Report, play: Callable[[World], None], preload: Sequence[str], figures: Path | None
) -> None:
    stack = Stack.start(state / "stack", on_progress=lambda line: print(f"stack: {line}", flush=True))
    try:
        with open_world(stack, state / "scenes", *preload) as world:
            started = time.monotonic()
            try:
                play(world)
            finally:
                seconds = time.monotonic() - started
                print("\n" + "\n".join(report.lines(seconds)), flush=True)
    finally:
        stack.stop(grace_seconds=0.0)
    if figures:
        figures.write_text(json.dumps(report.document(seconds), indent=2))
