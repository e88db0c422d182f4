"""How a delivery can end without its messages at the target."""

from __future__ import annotations


class TargetUnavailable(Exception):
    """The target takes nothing now."""

    def __init__(self, reason: str, wait_seconds: float) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds
