"""The error of a delivery whose target takes no messages."""

from __future__ import annotations


class TargetUnavailable(Exception):
    """The target takes no messages now."""

    def __init__(self, reason: str, wait_seconds: float) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds
