"""What a server of the stack is: how it is started (`ServerSpec`) and how it fares (`ServerState`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["LOCK_FILE", "LOG_FILE", "SOCKET_FILE", "ServerSpec", "ServerState", "log_tail"]

# The guardian's files in the state directory.
SOCKET_FILE = "guardian.sock"
LOCK_FILE = "guardian.lock"
LOG_FILE = "guardian.log"


@dataclass(frozen=True)
class ServerSpec:
    """One server process. It travels to the guardian as JSON."""

    name: str
    command: tuple[str, ...]
    log: Path
    """Standard output and error, appended."""
    directory: Path
    """Working directory; it must exist."""
    environment: dict[str, str] = field(default_factory=dict)
    """On top of the guardian's own."""
    drop_environment: tuple[str, ...] = ()
    """Prefixes of variables of the guardian's environment that this server must not see."""
    forks: bool = False
    """It has children of its own: it runs under a reaper, and is stopped before the servers that it uses."""
    once: bool = False
    """It does its work and ends."""
    grace_seconds: float = 5.0
    """Between SIGTERM and SIGKILL."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self) | {"log": str(self.log), "directory": str(self.directory), "command": list(self.command)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ServerSpec:
        """The inverse of `to_json`."""
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
    """One server as the guardian sees it."""

    name: str
    pid: int
    exit_code: int | None
    """None while it runs; negative: ended by that signal."""
    log: str
    log_start_bytes: int
    """Where in `log` the output of the latest start begins."""
    once: bool = False
    """It is meant to end."""

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
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
    """The last `lines` lines of a log, from `start_bytes` on, indented for a message.

    Java's stack frames are left out: a failing server prints so many that the line which says why is beyond them.
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
