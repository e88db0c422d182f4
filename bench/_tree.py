"""What a command costs with all the processes that it starts: wall and CPU seconds, and the most memory at one time.

Spark is a shell that becomes a JVM that starts a Python driver, a daemon and workers; not all of them wait for each
other. So this process makes itself the one to which orphans are handed (`PR_SET_CHILD_SUBREAPER`) and waits for all.
PySpark's daemon ignores SIGCHLD, and the kernel then forgets what its workers took: so the CPU of each process is
sampled as well, and the larger sum counts. Memory is sampled as each process's share (PSS), since what a fork shares
would otherwise be counted once for each.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil

__all__ = ["Peak", "Tree", "run_tree"]

_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_SECONDS = 0.25
_STRAGGLER_SECONDS = 20.0


class Tree(NamedTuple):
    """What a command and everything that it started took."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    stdout: str


def run_tree(command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_seconds: float = 900) -> Tree:
    """Run a command to its end. This process must have no other children.

    Raises `RuntimeError` with the end of its stderr when it fails.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, began = _children_cpu_seconds(), time.perf_counter()
    peak = Peak()
    process = subprocess.Popen(
        command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with peak:
            stdout, stderr = process.communicate(timeout=timeout_seconds)
        seconds = time.perf_counter() - began
    finally:
        _end_stragglers()
    if process.returncode:
        raise RuntimeError(f"{command[:3]} … ended with {process.returncode}:\n{stdout[-2000:]}\n{stderr[-4000:]}")
    cpu_seconds = max(_children_cpu_seconds() - before, sum(peak.cpu_seconds.values()))
    return Tree(seconds, cpu_seconds, peak.bytes, stdout)


def _children_cpu_seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _end_stragglers() -> None:
    """Wait for what the command left behind; kill it if it stays."""
    until = time.monotonic() + _STRAGGLER_SECONDS
    with suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid:
                continue
            if time.monotonic() > until:
                for child in psutil.Process().children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
            time.sleep(0.02)


class Peak(threading.Thread):
    """Samples the memory and the CPU of all descendants of this process, within a `with` block."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        """The most that they held at one time."""
        self.cpu_seconds: dict[tuple[int, float], float] = {}
        """Of each process, as last seen; a process is a number and a start."""
        self._over = threading.Event()

    def run(self) -> None:
        own = psutil.Process()
        while not self._over.wait(_SAMPLE_SECONDS):
            children = own.children(recursive=True)
            self.bytes = max(self.bytes, sum(_share(child.pid) for child in children))
            for child in children:
                with suppress(psutil.Error):  # it has ended
                    times = child.cpu_times()
                    self.cpu_seconds[child.pid, child.create_time()] = times.user + times.system

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def _share(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
