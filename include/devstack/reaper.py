"""Run one server that forks, and leave none of its descendants behind: `python -m devstack.reaper GRACE COMMAND …`.

The guardian starts this process between itself and a server that has child processes (Airflow's components start tasks,
which start Spark). This process adopts what the server leaves behind, and ends all descendants when

- the server ends by itself; then this process ends with the same exit code,
- it gets SIGTERM or SIGINT: the server gets SIGTERM, and after `GRACE` seconds all descendants get SIGKILL,
- the guardian ends for any reason, including SIGKILL: the kernel sends SIGTERM (`PR_SET_PDEATHSIG`).

If this process itself is killed, the guardian adopts its descendants and ends them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from devstack.processes import become_subreaper, descendants, die_with_parent, end_descendants

if TYPE_CHECKING:
    from types import FrameType

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _StopRequested(Exception):
    """Raised by the handler of a stop signal."""


def _stop(_signum: int, _frame: FrameType | None) -> None:
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise _StopRequested


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def _wait_for(pid: int) -> int:
    """Reap children, also adopted ones, until `pid` ends. Return its exit code; 128 + signal if a signal ended it."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _ask_to_stop(pid: int, grace_seconds: float) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    end = time.monotonic() + grace_seconds
    while time.monotonic() < end:
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return
        if ended == pid:
            return
        time.sleep(0.05)


def main(arguments: list[str]) -> int:
    """Run the command in `arguments[1:]`, and return its exit code. See the module's docstring."""
    grace_seconds, command = float(arguments[0]), arguments[1:]
    me = os.getpid()
    become_subreaper()
    for each in _STOP_SIGNALS:
        signal.signal(each, _stop)
    code = 128 + signal.SIGTERM
    child: subprocess.Popen[bytes] | None = None
    try:
        child = subprocess.Popen(
            command, process_group=0, preexec_fn=lambda: die_with_parent(me, signal.SIGTERM), restore_signals=True
        )
        code = _wait_for(child.pid)
        child.returncode = code
    except _StopRequested:
        if child is not None:
            _ask_to_stop(child.pid, grace_seconds)
            child.returncode = code
    end_descendants(descendants, _reap)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
