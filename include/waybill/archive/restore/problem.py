"""A problem that a preflight finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestoreProblem:
    """The problem with its value, and the remedy. A warning does not prevent the restore."""

    what: str
    remedy: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}"
