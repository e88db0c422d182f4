"""The guardian: the process that starts a stack's servers, and leaves none of them behind, however it ends.

    owner (pytest, the demo, `up`) ── pipe ──▶ guardian ──▶ Kafka, ZooKeeper, S3
                                                    └─────▶ reaper ──▶ Airflow's components ──▶ tasks ──▶ Spark

It relies on Linux: `PR_SET_PDEATHSIG` (servers get a signal when the guardian ends), `PR_SET_CHILD_SUBREAPER` (orphans
of a server become the guardian's children), pipes (the kernel closes the owner's end when the owner ends for any
reason), and a file lock (one guardian for each state directory).

| event | effect |
|---|---|
| the owner stops its stack | it sends a request; all servers stop, then the guardian |
| the owner ends (SIGINT, SIGKILL, a crash) | the guardian notices it by the pipe or the process descriptor; the same |
| the guardian gets SIGTERM | the same |
| the guardian gets SIGKILL | the kernel kills the servers; a reaper ends Airflow's descendants |
| a server ends by itself | the guardian keeps its exit code, kills its orphans, and starts it again, if so specified |

`up` releases its guardian when all servers are ready: from then on it has no owner, and `down` stops it.

Supervisors such as supervisord, circus, honcho and mirakuru were tried instead: after SIGKILL they leave all servers
running, and after SIGTERM those that have started a session of their own.

It has a single thread: `PR_SET_PDEATHSIG` sends its signal when the thread that forked ends.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from devstack.processes import become_subreaper, descendants, die_with_parent, end_descendants, is_alive
from devstack.servers import LOCK_FILE, LOG_FILE, SOCKET_FILE, ServerSpec, ServerState

if TYPE_CHECKING:
    from collections.abc import Callable

_DEFAULT_GRACE_SECONDS = 5.0


@dataclass
class _Server:
    spec: ServerSpec
    process: subprocess.Popen[bytes]
    log_start_bytes: int
    restarts_left: int
    stopping: bool = False
    """True once a request has stopped it: then it is not started again."""

    def state(self) -> ServerState:
        return ServerState(
            name=self.spec.name,
            pid=self.process.pid,
            exit_code=self.process.returncode,
            log=str(self.spec.log),
            log_start_bytes=self.log_start_bytes,
            once=self.spec.once,
        )


class Guardian:
    """See the module's docstring. A request is one line of JSON, and so is an answer."""

    def __init__(self, state_dir: Path, owner_pipe: int, owner_pid: int) -> None:
        self._state_dir = state_dir
        self._pid = os.getpid()
        self._servers: dict[str, _Server] = {}
        self._selector = selectors.DefaultSelector()
        self._owner_watch: list[int] = []
        self._owner_pid: int | None = owner_pid
        self._stopping = False
        self._grace_seconds = _DEFAULT_GRACE_SECONDS
        self._listener = _listen(state_dir)
        self._selector.register(self._listener, selectors.EVENT_READ, self._answer)
        self._watch_signals()
        self._watch_owner(owner_pipe, owner_pid)

    def serve(self) -> None:
        """Answer requests until a shutdown is requested or the owner ends; then stop all servers."""
        try:
            while not self._stopping:
                for key, _ in self._selector.select():
                    react: Callable[[], None] = key.data
                    react()
        finally:
            self._stop_all(self._grace_seconds)
            with contextlib.suppress(FileNotFoundError):
                (self._state_dir / SOCKET_FILE).unlink()

    # --- signals and the owner ----------------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        read_end, write_end = socket.socketpair()
        for end in (read_end, write_end):
            end.setblocking(False)
        self._signals = (read_end, write_end)
        signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)
        self._selector.register(read_end, selectors.EVENT_READ, self._on_signal)

    def _on_signal(self) -> None:
        received = self._signals[0].recv(4096)
        if any(signum != signal.SIGCHLD for signum in received):
            self._log(f"stopping: received {signal.Signals(received[-1]).name}")
            self._stopping = True
        self._look_after_servers()

    def _watch_owner(self, pipe: int, pid: int) -> None:
        self._owner_watch.append(pipe)
        # A child that the owner forked without exec keeps the pipe open after the owner's end. It does not keep the
        # owner's process descriptor from becoming readable.
        with contextlib.suppress(OSError):
            self._owner_watch.append(os.pidfd_open(pid))
        for descriptor in self._owner_watch:
            self._selector.register(descriptor, selectors.EVENT_READ, self._on_owner_end)
        if os.getppid() != pid:
            self._on_owner_end()

    def _on_owner_end(self) -> None:
        self._log(f"stopping: the owner, process {self._owner_pid}, has ended")
        self._stopping = True

    # --- requests -----------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5.0)
            with connection.makefile("rwb") as stream:
                line = stream.readline()
                if not line:
                    return
                try:
                    answer = self._handle(json.loads(line))
                except Exception as error:  # a wrong request must not end the guardian
                    self._log(f"request {line!r} failed: {error!r}")
                    answer = {"error": f"{type(error).__name__}: {error}"}
                stream.write(json.dumps(answer).encode() + b"\n")

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        operation = request["do"]
        if operation == "start":
            self._start(ServerSpec.from_json(request["spec"]))
        elif operation == "restart":
            self._start(self._servers[request["name"]].spec)
        elif operation == "stop":
            self._stop([request["name"]], request["grace_seconds"])
        elif operation == "signal":
            os.kill(self._servers[request["name"]].process.pid, request["signal"])
        elif operation == "release":
            self._release()
        elif operation == "shutdown":
            self._log("stopping: shutdown was requested")
            self._stopping, self._grace_seconds = True, request["grace_seconds"]
        elif operation != "status":
            raise ValueError(f"unknown request {operation!r}")
        return self._status()

    def _status(self) -> dict[str, Any]:
        self._look_after_servers()
        return {
            "pid": self._pid,
            "owner_pid": self._owner_pid,
            "servers": [asdict(server.state()) for server in self._servers.values()],
        }

    def _release(self) -> None:
        for descriptor in self._owner_watch:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        self._owner_watch.clear()
        self._owner_pid = None
        self._log("released by the owner")

    # --- servers ------------------------------------------------------------------------------------------------------

    def _look_after_servers(self) -> None:
        self._reap()
        self._kill_orphans()
        if not self._stopping:
            self._restart_ended()

    def _start(self, spec: ServerSpec) -> None:
        present = self._servers.get(spec.name)
        if present is not None and present.process.returncode is None:
            raise ValueError(f"{spec.name} is already running, process {present.process.pid}")
        self._launch(spec, spec.restarts)

    def _launch(self, spec: ServerSpec, restarts: int) -> None:
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        command = list(spec.command)
        death_signal = signal.SIGKILL
        if spec.forks:
            command = [sys.executable, "-m", "devstack.reaper", str(spec.grace_seconds), *command]
            death_signal = signal.SIGTERM
        with spec.log.open("ab") as log:
            log_start = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                command,
                cwd=spec.directory,
                env=_environment(spec),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=lambda: die_with_parent(self._pid, death_signal),
            )
        self._servers[spec.name] = _Server(spec, process, log_start, restarts)
        self._log(f"started {spec.name}, process {process.pid}")

    def _restart_ended(self) -> None:
        """Start servers again that ended with an error and without a request. Their orphans must have ended."""
        for server in list(self._servers.values()):
            if server.process.returncode and not server.stopping and server.restarts_left:
                self._log(f"starting {server.spec.name} again; restarts left: {server.restarts_left - 1}")
                self._launch(server.spec, server.restarts_left - 1)

    def _reap(self) -> None:
        """Collect the exit codes of servers and of adopted orphans."""
        by_pid = {server.process.pid: server for server in self._servers.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (server := by_pid.get(pid)) is not None and server.process.returncode is None:
                server.process.returncode = os.waitstatus_to_exitcode(status)
                self._log(f"{server.spec.name} {server.state().how_it_ended()}")

    def _orphans(self) -> list[psutil.Process]:
        """Return the adopted orphans with their descendants, such as those of a reaper that was killed."""
        servers = {server.process.pid for server in self._servers.values() if server.process.returncode is None}
        with contextlib.suppress(psutil.NoSuchProcess):
            orphans = [child for child in psutil.Process().children() if child.pid not in servers]
            return [process for orphan in orphans for process in [*descendants(orphan.pid), orphan]]
        return []

    def _kill_orphans(self) -> None:
        if orphans := [orphan for orphan in self._orphans() if orphan.is_running()]:
            self._log(f"killing orphans of ended servers: {[orphan.pid for orphan in orphans]}")
            end_descendants(lambda: [orphan for orphan in self._orphans() if is_alive(orphan)], self._reap)

    def _stop(self, names: list[str], grace_seconds: float) -> None:
        """Send SIGTERM, and SIGKILL to those that are still running after `grace_seconds` (0: at once)."""
        running = [server for name in names if (server := self._servers[name]).process.returncode is None]
        for server in running:
            server.stopping = True
        if grace_seconds > 0:
            for server in running:
                _send(server.process.pid, signal.SIGTERM)
            self._wait_for(running, grace_seconds)
        for server in running:
            if server.process.returncode is None:
                _send(server.process.pid, signal.SIGKILL)
        self._wait_for(running, 10.0)
        self._kill_orphans()

    def _wait_for(self, servers: list[_Server], seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._reap_any(servers) and time.monotonic() < end:
            time.sleep(0.02)

    def _reap_any(self, servers: list[_Server]) -> bool:
        self._reap()
        return any(server.process.returncode is None for server in servers)

    def _stop_all(self, grace_seconds: float) -> None:
        """Stop first the servers that use the others, then the others, and at last all remaining descendants."""
        for forks in (True, False):
            names = [name for name, server in self._servers.items() if server.spec.forks is forks]
            # A reaper needs some time after its server's grace time, to end the rest of the process tree.
            self._stop(names, grace_seconds + 2.0 if forks and grace_seconds > 0 else grace_seconds)
        end_descendants(descendants, self._reap)
        self._log("stopped")

    def _log(self, message: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}", flush=True)


def _environment(spec: ServerSpec) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(spec.drop_environment)}
    return inherited | spec.environment


def _send(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def _listen(state_dir: Path) -> socket.socket:
    """Return a listening socket in the state directory.

    It is bound through the directory's descriptor: a socket address is limited to 108 bytes, the path may be longer.
    """
    (state_dir / SOCKET_FILE).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{SOCKET_FILE}")
    finally:
        os.close(directory)
    listener.listen(8)
    return listener


def _lock(state_dir: Path) -> int | None:
    """Take the lock that a guardian holds until it ends, but not its children. None if another guardian holds it."""
    descriptor = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def main() -> int:
    """Run `python -m devstack.guardian`, for `devstack.control`. The first line of output is `ready` or `locked`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--owner-pipe", type=int, required=True)
    parser.add_argument("--owner-pid", type=int, required=True)
    options = parser.parse_args()
    if _lock(options.state_dir) is None:
        print("locked", flush=True)
        return 3
    become_subreaper()
    guardian = Guardian(options.state_dir, options.owner_pipe, options.owner_pid)
    print("ready", flush=True)
    log = os.open(options.state_dir / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    guardian.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
