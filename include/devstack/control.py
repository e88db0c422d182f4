"""The client of a guardian: start or find one, and send it requests."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from devstack.servers import LOG_FILE, SOCKET_FILE, ServerSpec, ServerState, log_tail
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from pathlib import Path

# The guardian answers a stop request when the server has ended, which takes its grace time and a little more.
_ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class GuardianStatus:
    """The state of a guardian and its servers."""

    pid: int
    owner_pid: int | None
    """None if its owner has released it; then `down` stops it."""
    servers: tuple[ServerState, ...]

    def server(self, name: str) -> ServerState | None:
        """Return the server of that name, or None if it was never started."""
        return next((server for server in self.servers if server.name == name), None)


class GuardianHandle:
    """A running guardian. Every method raises `StackError` if it has ended."""

    def __init__(self, state_dir: Path, *, process: subprocess.Popen[bytes] | None = None, pipe: int | None = None):
        self._state_dir = state_dir
        self._process = process
        self._pipe = pipe

    @classmethod
    def start(cls, state_dir: Path) -> GuardianHandle:
        """Start a guardian with this process as its owner: it stops all servers when this process ends for any reason.

        Raises `StackError` if another guardian uses `state_dir`.
        """
        read_end, write_end = os.pipe()
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "devstack.guardian", "--state-dir", str(state_dir)),
                    *("--owner-pipe", str(read_end), "--owner-pid", str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(read_end,),
                # Ctrl-C in a terminal is sent to the whole process group, but only the owner should react to it.
                start_new_session=True,
            )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        handle = cls(state_dir, process=process, pipe=write_end)
        try:
            handle._expect_ready()
        except BaseException:
            handle._close_pipe_and_wait()
            raise
        return handle

    def _expect_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            first = output.readline().decode().strip()
            if first == "ready":
                return
            rest = output.read().decode(errors="replace")
        if first == "locked":
            raise StackError(f"a stack is already running in {self._state_dir}. Stop it with `make down`, or use it.")
        raise StackError(f"the stack's guardian did not start:\n{first}\n{rest}")

    @classmethod
    def find(cls, state_dir: Path) -> GuardianHandle | None:
        """Return the guardian that uses `state_dir`, or None."""
        handle = cls(state_dir)
        try:
            handle.status()
        except StackError:
            return None
        return handle

    def status(self) -> GuardianStatus:
        """Return the state of the guardian and of each server."""
        return _status(self._request({"do": "status"}))

    def start_server(self, spec: ServerSpec) -> None:
        """Start a server. Does not wait until it is ready."""
        self._request({"do": "start", "spec": spec.to_json()})

    def restart_server(self, name: str) -> None:
        """Start a server that has ended again, with the same spec."""
        self._request({"do": "restart", "name": name})

    def stop_server(self, name: str, *, grace_seconds: float = 5.0) -> None:
        """Send SIGTERM, and SIGKILL after `grace_seconds` (0: at once). Return when the server has ended."""
        self._request({"do": "stop", "name": name, "grace_seconds": grace_seconds})

    def signal_server(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to a server, such as SIGSTOP to make it hang."""
        self._request({"do": "signal", "name": name, "signal": int(signum)})

    def release(self) -> None:
        """Give up ownership: the servers outlive this process."""
        self._request({"do": "release"})
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._process is not None:
            self._process.returncode = 0  # this process does not wait for it any more
            self._process = None

    def shutdown(self, *, grace_seconds: float = 5.0) -> None:
        """Stop all servers and the guardian, and return when the guardian has ended."""
        if self._process is not None:
            pid = self._process.pid
        elif (running := GuardianHandle.find(self._state_dir)) is not None:
            pid = running.status().pid
        else:
            return
        with contextlib.suppress(StackError):  # it has ended already
            self._request({"do": "shutdown", "grace_seconds": grace_seconds})
        self._wait_for_end(pid, grace_seconds * 2 + 30.0)

    def _wait_for_end(self, pid: int, seconds: float) -> None:
        if self._process is not None:
            self._close_pipe_and_wait(seconds)
            return
        # Not psutil: an ended guardian that its parent does not reap stays a zombie, and psutil counts it as running. A
        # process descriptor becomes readable at the end.
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                ended, _, _ = select.select([descriptor], [], [], seconds)
            finally:
                os.close(descriptor)
            if not ended:
                raise StackError(
                    f"the stack's guardian, process {pid}, has not ended after {seconds:.0f} s; "
                    f"see {self._state_dir / LOG_FILE}"
                )

    def _close_pipe_and_wait(self, seconds: float = 30.0) -> None:
        """Close the pipe, at which the guardian stops, and wait for its end."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._process is None:
            return
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = _exchange(self._state_dir, request)
        except (OSError, ValueError) as error:
            raise StackError(
                f"no stack is running in {self._state_dir} ({error}). Start one with `make up`. "
                f"The end of {self._state_dir / LOG_FILE}:\n{log_tail(self._state_dir / LOG_FILE, lines=5)}"
            ) from error
        if "error" in answer:
            raise StackError(f"the stack's guardian refused {request['do']!r}: {answer['error']}")
        return answer


def _exchange(state_dir: Path, request: dict[str, Any]) -> dict[str, Any]:
    directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            # Through the directory's descriptor: a socket address is limited to 108 bytes, and the path may be longer.
            connection.connect(f"/proc/self/fd/{directory}/{SOCKET_FILE}")
            with connection.makefile("rwb") as stream:
                stream.write(json.dumps(request).encode() + b"\n")
                stream.flush()
                line = stream.readline()
    finally:
        os.close(directory)
    if not line:
        raise ConnectionResetError("the guardian closed the connection")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _status(answer: dict[str, Any]) -> GuardianStatus:
    return GuardianStatus(
        pid=answer["pid"],
        owner_pid=answer["owner_pid"],
        servers=tuple(ServerState(**server) for server in answer["servers"]),
    )
