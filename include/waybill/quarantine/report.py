"""What a retry says at its end: lines for people, a document for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RetryReport", "StayedMessages"]


@dataclass(slots=True)
class StayedMessages:
    """Messages that cannot be read now either, for one kind of reason."""

    reason: str
    """The kind."""
    messages: int
    example: str
    """One of them, `topic/partition@offset`, and what was found."""


@dataclass(slots=True)
class RetryReport:
    """The figures of `waybill quarantine retry`."""

    stream: str
    dry_run: bool
    moved: int = 0
    """Messages that went to the table; for a dry run, those that would."""
    stayed: list[StayedMessages] = field(default_factory=list)
    """By kind, most first. Their rows are as they were, with the reason of the first time."""
    retries: list[int] = field(default_factory=list)
    """The numbers of the retries that this run began."""
    finished: list[int] = field(default_factory=list)
    """Those of another run that it found unfinished, and finished."""
    finished_messages: int = 0
    """What these moved."""
    seconds: float = 0.0

    @property
    def stayed_messages(self) -> int:
        return sum(each.messages for each in self.stayed)

    def document(self) -> dict[str, Any]:
        """For a JSON file."""
        return {"v": 1, **dataclasses.asdict(self)}

    def lines(self) -> Sequence[str]:
        """For people."""
        lines = []
        if self.finished:
            numbers = ", ".join(map(str, self.finished))
            lines.append(f"finished retry {numbers} of an earlier run: {self.finished_messages:,} messages")
        verb = "would move" if self.dry_run else "moved"
        lines.append(
            f"{self.stream}: {verb} {self.moved:,} messages to the table, {self.stayed_messages:,} stay in quarantine, "
            f"in {self.seconds:.1f} s"
        )
        lines += [f"  {each.reason}: {each.messages:,} stay, such as {each.example}" for each in self.stayed]
        return lines
