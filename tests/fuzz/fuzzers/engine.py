"""A target, the run of a target, and what it found.

An input is always bytes, so that one shrinker serves all targets. A target makes inputs from a random generator and
checks them in batches: parsers take thousands of messages at once, and must give each its own result. All randomness
comes from the seed, the name of the target and the number of the batch. So a batch can be repeated alone.
"""

from __future__ import annotations

import base64
import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzers.shrink import signature, smallest

MAX_CPU_SECONDS = 60.0
"""A batch of small inputs that takes more CPU time is a finding. The usual batch takes a hundredth of it."""
MAX_GROWN_BYTES = 1 << 30
"""A batch that needs more memory beside what the process had is a finding."""
_SHOWN_BYTES = 60_000
"""Longer inputs are not printed: the command then names the batch."""


class TooMuchWork(AssertionError):
    """A batch has taken more time or memory than its size allows."""


@dataclass(frozen=True)
class Target:
    """One fuzzer. The docstring of `check` names the oracle and the invariants."""

    name: str
    make: Callable[[random.Random], bytes]
    """Returns one input."""
    check: Callable[[Sequence[bytes]], None]
    """Raises for a batch with a wrong result; any exception is a finding."""
    batch: int = 500
    """The inputs of one call of `check`."""
    deep: int = 100_000
    """The inputs in `make test-deep`. A target with fewer says why in the docstring of its `check`."""
    smoke: int = 1_000
    """The inputs in `make test`."""

    def inputs(self, seed: int, number: int) -> list[bytes]:
        """Return the inputs of a batch, always the same for the same seed."""
        chance = random.Random(f"{seed}/{self.name}/{number}")
        return [self.make(chance) for _ in range(self.batch)]


@dataclass(frozen=True)
class Finding:
    """A failure of a target, with the smallest input that was found for it."""

    target: str
    seed: int
    batch: int
    tried: int
    """The inputs until the failing batch, that one included."""
    inputs: Sequence[bytes]
    error: BaseException

    def __str__(self) -> str:
        lines = [f"{self.target}: {type(self.error).__name__}: {str(self.error)[:2000]}"]
        lines += [each.rstrip() for each in traceback.format_exception(self.error)[-8:]]
        lines.append(f"found after {self.tried:,} inputs; smallest input:")
        size = sum(map(len, self.inputs))
        for each in self.inputs:
            shown = each if len(each) <= _SHOWN_BYTES else each[:200]
            lines += [f"  {len(each)} bytes", f"  hex    {shown.hex()}", f"  base64 {base64.b64encode(shown).decode()}"]
        lines.append("repeat it with:")
        if size <= _SHOWN_BYTES:
            lines.append(f"  make fuzz TARGET={self.target} INPUT={','.join(each.hex() for each in self.inputs)}")
        lines.append(f"  make fuzz TARGET={self.target} SEED={self.seed} BATCH={self.batch}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Outcome:
    """The end of a run of a target."""

    target: str
    tried: int
    seconds: float
    finding: Finding | None


def run(
    target: Target,
    *,
    seed: int,
    inputs: int | None = None,
    until: float | None = None,
    on_batch: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Run a target until it has tried `inputs`, or until `time.monotonic()` reaches `until`, or to its first failure.

    `on_batch` is called with the number of each batch before it begins: after a crash of the process it is known.
    """
    started, tried, number = time.monotonic(), 0, 0
    while (inputs is None or tried < inputs) and (until is None or not number or time.monotonic() < until):
        on_batch(number)
        batch = target.inputs(seed, number)
        tried += len(batch)
        error = failure(target, batch)
        if error is not None:
            found = shrunk(target, batch, error)
            finding = Finding(target.name, seed, number, tried, *found)
            return Outcome(target.name, tried, time.monotonic() - started, finding)
        number += 1
    return Outcome(target.name, tried, time.monotonic() - started, None)


def failure(target: Target, inputs: Sequence[bytes]) -> BaseException | None:
    """Check inputs, and return the exception that this raised; None if they are right."""
    before = _reset_peak_bytes()
    cpu = time.thread_time()
    try:
        target.check(inputs)
        spent, grown = time.thread_time() - cpu, _peak_bytes() - before
        if spent > MAX_CPU_SECONDS:
            raise TooMuchWork(f"{len(inputs)} inputs of {sum(map(len, inputs)):,} bytes took {spent:.0f} s")
        if grown > MAX_GROWN_BYTES:
            raise TooMuchWork(f"{len(inputs)} inputs of {sum(map(len, inputs)):,} bytes took {grown >> 20:,} MiB")
    except Exception as error:  # whatever it is: it is the finding
        return error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of a library in Rust; it is no Exception
            raise
        return error
    return None


def shrunk(target: Target, batch: Sequence[bytes], error: BaseException) -> tuple[Sequence[bytes], BaseException]:
    """Return the smallest inputs that fail as the batch did, and their failure."""
    wanted = signature(error)

    def fails(inputs: Sequence[bytes]) -> bool:
        found = failure(target, inputs)
        return found is not None and signature(found) == wanted

    inputs = smallest(batch, fails)
    return inputs, failure(target, inputs) or error


def _reset_peak_bytes() -> int:
    """Let the kernel forget the highest memory use so far, and return the present one."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or not allowed: then the peak stays, and only grows
        return _peak_bytes()
    return _status_bytes("VmRSS")


def _peak_bytes() -> int:
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(f"{name}:")), 0)
