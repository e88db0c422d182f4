"""The harness's side of the fork server: lanes as processes that can be watched, frozen and killed."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

_READY_SECONDS = 300.0
"""The fork server's imports take 3 s, and ten times as long on a busy machine."""
_PROGRESS_SECONDS = 15.0
_END_SECONDS = 60.0
_PACKAGES = (Path(__file__).parents[1],)
# Else numpy and pyarrow start threads when they are imported.
_SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
# tracemalloc is for the harness's own process. In the fork server it would slow the imports, of numba above all, from
# seconds to minutes.
_DROPPED = frozenset({"PYTHONTRACEMALLOC"})


@dataclass(frozen=True)
class Launch:
    """The order for a process."""

    do: str
    """`plan`, `lane`, `command` or `partition`."""
    stream: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    patches: Mapping[str, Any] = field(default_factory=dict)
    failpoints: str = ""
    lane: Mapping[str, Any] | None = None
    arguments: tuple[str, ...] = ()


class Job:
    """A process that was launched. Its methods may be called from any thread."""

    def __init__(self, server: ForkServer, number: int, launch: Launch, directory: Path) -> None:
        self.number = number
        self.launch = launch
        self.log = directory / "lanes.log"
        self.answer_file = directory / f"answer-{number}.json"
        self.pid = 0
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self.exit_code: int | None = None
        """None while it lives; negative: ended by that signal."""
        self.was_stopped = False
        self.killed_by_us = False
        self._server = server
        self._changed = threading.Condition()

    def notice(self, event: Mapping[str, Any]) -> None:
        """An event of the fork server."""
        with self._changed:
            match event["event"]:
                case "started":
                    self.pid = event["pid"]
                case "stopped":
                    self.was_stopped = True
                case "ended":
                    self.exit_code, self.ended_at = event["status"], time.monotonic()
            self._changed.notify_all()

    def wait(self, timeout: float, *, or_stopped: bool = False) -> bool:
        """Wait until the process ends or is stopped. Return False if neither happens in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.exit_code is not None or (or_stopped and self.was_stopped), timeout
            )

    def signal(self, number: int) -> None:
        """Send a signal, if the process is alive."""
        if number == signal.SIGKILL:
            self.killed_by_us = True
        self._server._send({"id": self.number, "signal": int(number)})

    @property
    def was_killed(self) -> bool:
        """Whether a failpoint killed the process."""
        return self.exit_code == -signal.SIGKILL and not self.killed_by_us

    @property
    def seconds(self) -> float:
        return (self.ended_at or time.monotonic()) - self.started_at

    def answer(self) -> dict[str, Any] | None:
        """The answer of the process; None if it ended before its answer."""
        try:
            found: dict[str, Any] = json.loads(self.answer_file.read_text())
        except FileNotFoundError:
            return None
        return found


class ForkServer:
    """The process of `chaos.forkserver`. A context manager: after the block, all of its processes have ended."""

    def __init__(self, *preload: str) -> None:
        """Start the process, and return when it has done its imports. `preload`: more modules to import.

        Raises `RuntimeError`, with the process killed and the socket closed, if it ends or is not ready in time.
        """
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._connection, remote_end = socket.socketpair()
        with remote_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chaos.forkserver", str(remote_end.fileno()), *preload],
                pass_fds=(remote_end.fileno(),),
                stdin=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the harness
            )
        self._lines = self._connection.makefile("rb")
        try:
            self._wait_until_ready()
        except BaseException:
            self._process.kill()
            self._process.wait(timeout=_END_SECONDS)
            self._lines.close()
            self._connection.close()
            raise
        self._reader = threading.Thread(target=self._read, name="chaos-forkserver", daemon=True)
        self._reader.start()

    def _wait_until_ready(self) -> None:
        start = time.monotonic()
        while not select.select([self._connection], [], [], _PROGRESS_SECONDS)[0]:
            seconds = time.monotonic() - start
            if seconds > _READY_SECONDS:
                raise RuntimeError(f"the fork server is not ready after {seconds:.0f} s")
            print(f"the fork server is still importing after {seconds:.0f} s", file=sys.stderr, flush=True)
        ready = json.loads(self._lines.readline() or b"{}")
        if ready.get("event") != "ready":
            raise RuntimeError("the fork server ended before it was ready; its traceback is on standard error")
        if ready["threads"] != 1:
            raise RuntimeError(f"the fork server has {ready['threads']} threads: it can only be forked with one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._connection.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(timeout=_END_SECONDS)  # its children get SIGKILL from the kernel
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=_END_SECONDS)
        self._reader.join(_END_SECONDS)
        self._lines.close()
        self._connection.close()

    def launch(self, launch: Launch, directory: Path) -> Job:
        """Fork a process; its log and its answer go to `directory`."""
        with self._lock:
            job = Job(self, next(self._numbers), launch, directory)
            self._jobs[job.number] = job
        self._send(
            {
                "id": job.number,
                "do": launch.do,
                "stream": launch.stream,
                "environment": dict(launch.environment),
                "patches": dict(launch.patches),
                "failpoints": launch.failpoints,
                "lane": launch.lane,
                "arguments": list(launch.arguments),
                "log": str(job.log),
                "answer": str(job.answer_file),
            }
        )
        return job

    def _send(self, request: Mapping[str, Any]) -> None:
        with self._lock:
            self._connection.sendall(json.dumps(request).encode() + b"\n")

    def _read(self) -> None:
        for line in self._lines:
            event = json.loads(line)
            job = self._jobs[event["id"]]
            job.notice(event)
            if event["event"] == "ended":
                del self._jobs[event["id"]]


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    paths = [str(path) for path in _PACKAGES] + [path for path in sys.path if path]
    return {**inherited, **_SINGLE_THREADED, "PYTHONPATH": os.pathsep.join(paths)}
