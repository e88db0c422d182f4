"""Processes that drive a retry of a quarantine, or a sweep, with failpoints of their own: to be killed and frozen.

One process imports what that takes, which is seconds, and forks a child for each that it is asked for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waybill.config import Config

__all__ = ["RETRY", "SWEEP", "DriverProcesses", "open_driver_processes"]

RETRY = """
from waybill.quarantine import Choice, retry_quarantine

def drive(config):
    retry_quarantine(config, "flights", Choice())
"""
"""Of all of the quarantine of the stream `flights`."""

SWEEP = """
from waybill.dedup.execute import InThisProcess, warm_up
from waybill.dedup.sweep import sweep_to_the_end

warm_up()

def drive(config):
    list(sweep_to_the_end(config, "flights", InThisProcess()))
"""
"""Of all that the table of the stream `flights` has gained."""

_SERVER = """
import os, sys, traceback
from pathlib import Path
from waybill import failpoints
from waybill.config import Config

print("ready", flush=True)
for line in sys.stdin:
    command, what, *armed = line.split()
    if command == "wait":
        print(os.waitpid(int(what), os.WUNTRACED)[1], flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    code = 1
    try:
        failpoints.arm("".join(armed))
        drive(Config.model_validate_json(Path(what).read_text()))
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

    def run(self, config: Config, armed: str = "") -> int:
        """A driver, to its end; see `wait`."""
        return self.wait(self.start(config, armed))

    def start(self, config: Config, armed: str = "") -> int:
        """Begin one with these failpoints; its process id."""
        self._started += 1
        path = self._directory / f"{self._started}.json"
        path.write_text(config.model_dump_json())
        return self._ask(f"start {path} {armed}")

    def wait(self, process: int) -> int:
        """When it has ended or stopped: its exit code, negative for the signal that did it."""
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
    """`driver`: `RETRY` or `SWEEP`. The stack's connections must be in the environment. Ends all of its processes."""
    command = [sys.executable, "-c", driver + _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        try:
            assert server.stdout is not None
            if server.stdout.readline() != "ready\n":  # what it could not import it has said on its standard error
                raise RuntimeError(f"no driver can be started: {sys.executable} ended with {server.wait()}")
            yield DriverProcesses(server, directory)
        finally:
            with suppress(ProcessLookupError):  # it never began
                os.killpg(server.pid, signal.SIGKILL)
