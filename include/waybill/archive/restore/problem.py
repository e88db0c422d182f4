"""What a preflight finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestoreProblem:
    """What was found, with its value, and the remedy. A warning does not refuse the restore."""

    what: str
    remedy: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}"
