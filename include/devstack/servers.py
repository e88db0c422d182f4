"""What all servers of the stack share: how to start one (`ServerSpec`), its state (`ServerState`) and log, free ports,
and files that contain secrets.
"""

from __future__ import annotations

import os
import random
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from waybill.base.errors import StackError

# The guardian's files in the state directory.
SOCKET_FILE = "guardian.sock"
LOCK_FILE = "guardian.lock"
LOG_FILE = "guardian.log"

# Below Linux's ephemeral range (32768 up): while a server is down, no outgoing connection can take its port.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000


@dataclass(frozen=True)
class ServerSpec:
    """How to start one server process. It is sent to the guardian as JSON."""

    name: str
    command: tuple[str, ...]
    log: Path
    """The file to which standard output and error are appended."""
    directory: Path
    """The working directory. It must exist."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables in addition to the guardian's environment."""
    drop_environment: tuple[str, ...] = ()
    """Prefixes of variables of the guardian's environment that the server does not get."""
    forks: bool = False
    """True if it starts child processes: then it runs under a reaper, and stops before the servers that it uses."""
    once: bool = False
    """True if it is expected to end by itself."""
    grace_seconds: float = 5.0
    """The time between SIGTERM and SIGKILL."""
    restarts: int = 0
    """How often the guardian starts it again when it ends by itself with an error."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self) | {"log": str(self.log), "directory": str(self.directory), "command": list(self.command)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ServerSpec:
        """Return the spec that `to_json` was called on."""
        return cls(
            **document
            | {
                "log": Path(document["log"]),
                "directory": Path(document["directory"]),
                "command": tuple(document["command"]),
                "drop_environment": tuple(document["drop_environment"]),
            }
        )


@dataclass(frozen=True)
class ServerState:
    """The state of one server."""

    name: str
    pid: int
    exit_code: int | None
    """None while it is running; negative if that signal ended it."""
    log: str
    log_start_bytes: int
    """The position in `log` at which the output of the latest start begins."""
    once: bool = False
    """True if it is expected to end by itself."""

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self.exit_code is None

    @property
    def dead(self) -> bool:
        """Whether it has ended, and should not have."""
        return not self.running and not (self.once and self.exit_code == 0)

    def how_it_ended(self) -> str:
        """For messages: `ended with exit code 1`."""
        if self.exit_code is None:
            return "runs"
        if self.exit_code < 0:
            return f"was ended by signal {-self.exit_code}"
        return f"ended with exit code {self.exit_code}"


def log_tail(path: Path, *, start_bytes: int = 0, lines: int = 20) -> str:
    """Return the last `lines` lines of a log after `start_bytes`, indented for an error message.

    Java's stack frames are left out, since a failing server prints so many that the cause would not be among the lines.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(start_bytes, stream.tell() - 64 * 1024))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return "    (no log was written)"
    tail = [line for line in text.splitlines() if not line.startswith("\tat ")][-lines:]
    return "\n".join(f"    {line}" for line in tail) or "    (the log is empty)"


def free_ports(count: int, *, prefer: tuple[int, ...] = ()) -> list[int]:
    """Return `count` different TCP ports of 127.0.0.1 that are free.

    The ports of `prefer` are tried first, in their order, so that a stack restarts on its former ports. Raises
    `StackError` if there are not enough.
    """
    free: list[int] = []
    candidates = [*prefer, *random.sample(range(_FIRST_PORT, _LAST_PORT), k=500)]
    for port in candidates:
        if len(free) == count:
            return free
        if port not in free and _is_free(port):
            free.append(port)
    raise StackError(f"found only {len(free)} of {count} free ports from {_FIRST_PORT} to {_LAST_PORT} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def write_private(path: Path, text: str) -> None:
    """Write a file that contains secrets: only its owner can read it, and an existing file is replaced atomically."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)
    partial.replace(path)
