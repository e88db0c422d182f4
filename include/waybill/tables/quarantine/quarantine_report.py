"""The report of a retry of a quarantine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from waybill.tables.quarantine.reparse import StayedMessages


@dataclass(slots=True)
class RetryReport:
    """The figures of `waybill quarantine retry`."""

    stream: str
    dry_run: bool
    moved: int = 0
    """Messages moved to the table; in a dry run, messages that would be moved."""
    stayed: list[StayedMessages] = field(default_factory=list)
    """Messages that stay in quarantine, by kind of reason, most frequent first. Their rows keep their first reason."""
    retries: list[int] = field(default_factory=list)
    """The numbers of the retries that this run began."""
    finished: list[int] = field(default_factory=list)
    """The numbers of unfinished retries of other runs that this run finished."""
    finished_messages: int = 0
    """The number of messages that these retries moved."""
    warnings: list[str] = field(default_factory=list)
    """Failed checks of the moved rows."""
    seconds: float = 0.0

    @property
    def stayed_messages(self) -> int:
        return sum(each.messages for each in self.stayed)

    def document(self) -> dict[str, Any]:
        """Return the report for a JSON file."""
        return {"v": 1, **dataclasses.asdict(self)}

    def lines(self) -> Sequence[str]:
        """Return the report as lines for people."""
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
        lines += [f"  the audit of the moved rows: {warning}" for warning in self.warnings]
        return lines
