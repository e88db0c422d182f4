"""Processes that run drivers and commands, each with its own failpoints, to kill and freeze them.

One server process imports the modules, which takes seconds, and forks a child for each driver.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waybill.config.models import Config

RETRY = """
from waybill.tables.quarantine.retry import retry_quarantine
from waybill.tables.quarantine.row_filter import RowFilter

def drive(config):
    retry_quarantine(config, "flights", RowFilter())
"""
"""Retries the whole quarantine of the stream `flights`."""

SWEEP = """
from waybill.tables.dedup.execute import InThisProcess, warm_up
from waybill.tables.dedup.sweep import run_all_sweeps

warm_up()

def drive(config):
    list(run_all_sweeps(config, "flights", InThisProcess()))
"""
"""Sweeps all rows appended to the table of the stream `flights`."""

PUBLISH = """
import os

from waybill.tables.audit import DecisionKind
from waybill.tables.backfill.kinds import change_backfill, run_backfill
from waybill.tables.backfill.states import BackfillAction
from waybill.base.errors import WaybillError
from waybill.tables.partition.holds import decide_hold
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.partition.tasks import run_task

HELD, REFUSED = 3, 4
CODES = {
    "PublicationHeld": HELD,
    "PublicationRejected": REFUSED,
    "DecisionRefused": REFUSED,
    "BackfillRefused": REFUSED,
}

def act(config, what, backfill):
    if what == "run":
        run_partition(config, "flights", lambda job, tasks: [run_task(job, task) for task in tasks])
    elif what in ("release", "reject"):
        kind = DecisionKind.RELEASED if what == "release" else DecisionKind.REJECTED
        decide_hold(config, "flights", kind, by="ann", reason="as agreed")
    elif what == "build":
        run_backfill(config, "flights", backfill)
    else:
        change_backfill(config, "flights", backfill, BackfillAction(what), by="ann", reason="as agreed")

def drive(config, what, backfill=""):
    try:
        act(config, what, backfill)
    except WaybillError as error:
        if type(error).__name__ not in CODES:
            raise
        os._exit(CODES[type(error).__name__])
"""
"""Does what its first argument says: `run`, `release`, `reject`, or with a backfill's id as the second argument
`build`, `promote`, `undo` or `cancel`. Exit code 3: the run is held. 4: refused, or rejected meanwhile."""

_SERVER = """
import os, sys, traceback
from pathlib import Path
from waybill.base import failpoints
from waybill.config.models import Config

print("ready", flush=True)
for line in sys.stdin:
    command, what, *given = line.split()
    if command == "wait":
        print(os.waitpid(int(what), os.WUNTRACED)[1], flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    code = 1
    try:
        armed, *arguments = given
        failpoints.arm(armed.removeprefix("-"))
        drive(Config.model_validate_json(Path(what).read_text()), *arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
"""


class DriverProcesses:
    """Starts drivers for the stream `flights`."""

    def __init__(self, server: subprocess.Popen[str], directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._started = 0

    def run(self, config: Config, armed: str = "", *arguments: str) -> int:
        """Run a driver to its end; see `wait`."""
        return self.wait(self.start(config, armed, *arguments))

    def start(self, config: Config, armed: str = "", *arguments: str) -> int:
        """Start a driver with these failpoints, and the arguments that it takes; return its process id."""
        self._started += 1
        path = self._directory / f"{self._started}.json"
        path.write_text(config.model_dump_json())
        return self._ask(" ".join(["start", str(path), armed or "-", *arguments]))

    def wait(self, process: int) -> int:
        """Wait until a driver has ended or stopped; return its exit code, or the negative signal number."""
        status = self._ask(f"wait {process}")
        if os.WIFSTOPPED(status):
            return -os.WSTOPSIG(status)
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _ask(self, command: str) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(command, file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())


@contextmanager
def open_driver_processes(directory: Path, driver: str) -> Iterator[DriverProcesses]:
    """Start the server for `PUBLISH`, `RETRY` or `SWEEP`, and kill all of its processes at the end.

    The stack's connections must be in the environment.
    """
    command = [sys.executable, "-c", driver + _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        try:
            assert server.stdout is not None
            if server.stdout.readline() != "ready\n":  # its standard error names the failed import
                raise RuntimeError(f"no driver can be started: {sys.executable} ended with exit code {server.wait()}")
            yield DriverProcesses(server, directory)
        finally:
            with suppress(ProcessLookupError):  # it never started
                os.killpg(server.pid, signal.SIGKILL)
