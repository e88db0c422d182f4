"""What the watch found: a promise that is kept or broken, with its figure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from waybill.config.promises import PromiseSeverity

__all__ = ["CHANNEL", "REACHABLE", "READABLE", "Finding", "FindingKey", "Verdict"]

REACHABLE = "reachable"
"""The promise of a service that all streams need; the subject names it."""
READABLE = "readable"
"""The promise that the state of a stream's tables can be read."""
CHANNEL = "channel"
"""The promise of a channel that alerts are sent to; the subject names it."""

FindingKey = tuple[str, str, str]
"""Stream, promise and subject."""


class Verdict(StrEnum):
    """Whether a promise is kept."""

    KEPT = "kept"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """It could not be measured, because a service did not answer. That is a finding of its own."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise, as it was measured."""

    stream: str
    """'' for what all streams share."""
    promise: str
    """A `PromiseName`, `REACHABLE`, `READABLE` or `CHANNEL`."""
    verdict: Verdict
    severity: PromiseSeverity
    figure: str = ""
    """The measured figure with its unit, for people: `23 min`."""
    limit: str = ""
    """The limit, for people: `at most 15 min`."""
    detail: str = ""
    """What is behind the figure: topic-partitions, offsets, the first error."""
    command: str = ""
    """The one command to run."""
    subject: str = ""
    """What tells several promises of one name apart: a deadline, a service."""
    since_ms: int | None = None
    """Since when the promise is broken, if that is known. Epoch ms."""

    @property
    def key(self) -> FindingKey:
        return self.stream, self.promise, self.subject
