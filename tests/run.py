"""Runs the tests as several pytest processes on one stack: `make test` and `make test-deep`.

    python tests/run.py         all tests but the deep ones
    python tests/run.py deep    kill matrices, many seeds, clusters, elections; property tests with many more examples

Tests with servers wait a lot: for sessions, elections, Airflow's scheduler. Tests of tables compute. So all run at the
same time, and the tests without servers in the time that these leave, at a lower priority. The Spark session belongs to
the process of the tables. This process owns the stack: when it ends, for whatever reason, all servers stop.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from devstack import Stack

INTEGRATION, FAULTS = "tests/integration", "tests/faults"
OF_SOURCES = "test_k*.py"
"""The tests of Kinesis and of Kafka's safety. One process has all that use the Kinesis emulator, which it starts."""
SHORT, DEEP = "not deep", "deep or hypothesis"
"""The marker expressions of `make test` and `make test-deep`."""
NO_TEST_SELECTED = 5
PROGRESS = re.compile(r"tests/\S+\.py .*\[ *\d+%\]\n")
_DURATIONS = ("--durations=8", "--durations-min=10")
"""Each part prints its slowest tests."""
_POLL_SECONDS = 0.5
_INTERRUPT_SECONDS = 60.0


@dataclass(frozen=True)
class Part:
    """The tests of one pytest process."""

    title: str
    select: str
    arguments: Sequence[str]
    """Folders and files, and options of pytest."""
    niceness: int = 0


def without_servers(kind: str) -> list[Part]:
    """Return the parts that need no stack. `kind`: the marker expression that all parts have in common.

    There are two, since they go on when the others have ended, on both cores.
    """
    return [
        Part("Unit tests", kind, ("tests/unit",), niceness=5),
        Part("Model checks and fuzzers", kind, ("tests/model", "tests/fuzz"), niceness=5),
    ]


def with_servers(kind: str) -> list[Part]:
    """Return the parts that share the stack."""
    others = f"({kind}) and not tables and not stack_alone"
    return [
        Part("Tests of tables", f"({kind}) and tables and not stack_alone", (INTEGRATION, FAULTS)),
        Part("Tests with servers", others, (INTEGRATION, f"--ignore-glob=*/{OF_SOURCES}")),
        Part("Tests with faults", others, (FAULTS, f"--ignore-glob=*/{OF_SOURCES}")),
        Part(
            "Tests of Kinesis, of Kafka's safety, and with Airflow",
            others,
            (
                *sorted(str(path) for folder in (INTEGRATION, FAULTS) for path in Path(folder).glob(OF_SOURCES)),
                "tests/e2e",
            ),
        ),
    ]


def with_the_stack_alone(kind: str) -> list[Part]:
    """Return the part that runs when those of `with_servers` have ended: its tests hurt servers. They are all deep."""
    if kind == SHORT:
        return []
    return [Part("Tests with the stack alone", "stack_alone", (INTEGRATION, FAULTS))]


class Run:
    """A running pytest process. Its lines of progress are printed at once, all others by `report`."""

    def __init__(self, part: Part, environment: Mapping[str, str]) -> None:
        self._part = part
        self._started = time.monotonic()
        self._lines: list[str] = []
        self._cpu_seconds = 0.0
        command = ["nice", "-n", str(part.niceness), sys.executable, "-m", "pytest", *_DURATIONS]
        self.process = subprocess.Popen(
            [*command, "-m", part.select, *part.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if PROGRESS.fullmatch(line):
                print(line, end="", flush=True)
            else:
                self._lines.append(line)

    def has_ended(self) -> bool:
        """Return whether pytest has ended. Then its CPU time, and that of all its processes that ended, is known."""
        if self.process.returncode is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self._cpu_seconds = usage.ru_utime + usage.ru_stime
        return self.process.returncode is not None

    def report(self) -> int:
        """Print what pytest printed beside its progress, and return its exit code; 0 if no test was selected."""
        self._reader.join()
        wall, cpu = _minutes(time.monotonic() - self._started), _minutes(self._cpu_seconds)
        print(f"\n{self._part.title}, {wall} (CPU {cpu}):\n{''.join(self._lines)}", flush=True)
        code = self.process.returncode
        return 0 if code == NO_TEST_SELECTED else code


def run_all(kind: str, directory: Path) -> int:
    """Run all parts at the same time, print each when it has ended, and return the first exit code that is not 0."""
    running: list[Run] = []
    codes: list[int] = []
    with ExitStack() as stops:
        stops.callback(_interrupt, running)
        # The stack's first start downloads and builds for two minutes, in which these can run.
        running += [Run(part, {**os.environ}) for part in without_servers(kind)]
        stack = Stack.start(directory / "stack", on_progress=lambda line: print(f"stack: {line}", flush=True))
        stops.callback(stack.stop, grace_seconds=0.0)
        stops.callback(_interrupt, running)  # again, since it must come before the stack stops
        environment = os.environ | {"WAYBILL_TESTS_STACK": str(stack.state_dir)}
        for parts in (with_servers(kind), with_the_stack_alone(kind)):
            started = [Run(part, environment) for part in parts]
            running += started
            _wait_for(started, running, codes)
        _wait_for(list(running), running, codes)
    return next((code for code in codes if code), 0)


def _wait_for(awaited: Sequence[Run], running: list[Run], codes: list[int]) -> None:
    """Wait until all of `awaited` have ended. Each run that ends leaves `running`, is printed, and adds its code."""
    while any(run in running for run in awaited):
        for run in [each for each in running if each.has_ended()]:
            running.remove(run)
            codes.append(run.report())
        time.sleep(_POLL_SECONDS)


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def _interrupt(running: Sequence[Run]) -> None:
    """End pytest processes as Ctrl-C does, so that they stop what they started."""
    left = [run for run in running if run.process.poll() is None]
    for run in left:
        run.process.send_signal(signal.SIGINT)
    for run in left:
        try:
            run.process.wait(timeout=_INTERRUPT_SECONDS)
        except subprocess.TimeoutExpired:
            run.process.kill()


def _end(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run the tests that the command line selects, and return the exit code."""
    kind = SHORT
    if sys.argv[1:] == ["deep"]:
        kind = DEEP
        os.environ["WAYBILL_DEEP"] = "1"
    elif sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    # Also SIGINT: a background job of a script inherits that it is ignored, and would hand that on to all tests.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _end)
    directory = Path(tempfile.mkdtemp(prefix="waybill-tests-"))
    try:
        return run_all(kind, directory)
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
