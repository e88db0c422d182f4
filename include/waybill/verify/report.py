"""What verifying finds: figures, faults, and notes on what is unusual but right."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from waybill.archive.gaps import Gap
from waybill.names import TopicPartition

__all__ = ["Fault", "FaultKind", "Figures", "Listener", "Report", "first_line"]


class FaultKind(StrEnum):
    """What is wrong."""

    MISSING = "missing"
    """Offsets of a chain are in no object."""
    OVERLAP = "overlap"
    """An object reaches beyond the start of the next one."""
    DAMAGED = "damaged"
    """An object's bytes are not sound record batches, or not those that its name says."""
    FORMAT = "format"
    """An object is of another format than its chain."""
    COMMITTED = "committed"
    """The committed offset is not where the chain ends."""
    LOST = "lost"
    """A message of the chain is in neither table, though progress says that it should be; or a row that was swept is
    neither a unique row nor a duplicate."""
    REPEATED = "repeated"
    """A message is in table and quarantine together more than once, or a row in unique rows and duplicates together."""
    FOREIGN = "foreign"
    """A row that no message of the chain accounts for, or that was not there to be swept."""
    PROGRESS = "progress"
    """The table's progress says what cannot be, or how far it was swept."""
    UNREADABLE = "unreadable"
    """A file of the table is missing or damaged."""
    GAP = "gap"
    """An accepted gap is not what the chain lacks, or the chain lacks what nobody accepted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, with the offsets it concerns: `[first_offset, next_offset)`, where there are any."""

    kind: FaultKind
    where: str
    """The key of the object, or the name of the table, or of the ZooKeeper node's topic-partition."""
    tp: TopicPartition | None
    first_offset: int | None
    next_offset: int | None
    what: str
    """What was found and what was expected."""

    def __str__(self) -> str:
        parts = [str(self.tp)] if self.tp else []
        if self.first_offset is not None and self.next_offset is not None:
            one = self.next_offset == self.first_offset + 1
            parts.append(
                f"offset {self.first_offset}" if one else f"offsets {self.first_offset}–{self.next_offset - 1}"
            )
        subject = " ".join(parts)
        return f"{self.kind}: {subject}{': ' if subject else ''}{self.what} ({self.where})"

    def document(self) -> dict[str, Any]:
        return {
            "kind": str(self.kind),
            "where": self.where,
            "topic": self.tp and self.tp.topic,
            "partition": self.tp and self.tp.partition,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "what": self.what,
        }


@dataclass(slots=True)
class Figures:
    """What was counted."""

    chains: int = 0
    objects: int = 0
    messages: int = 0
    """In the chains, without what transactions aborted and without control records."""
    bytes: int = 0
    waiting: int = 0
    """Messages of the chains beyond the tables' progress: the next partition run takes them."""
    rows: int = 0
    quarantine: int = 0
    """Rows of the quarantine below the table's progress; those beyond are not final."""
    lost: int = 0
    repeated: int = 0
    """Rows too many."""
    foreign: int = 0
    unique: int = 0
    """Rows that dedup sweeps have kept."""
    duplicates: int = 0
    """Rows that dedup sweeps have found to be duplicates; those beyond the last sweep are not final."""
    unswept: int = 0
    """Rows of the table that no dedup sweep has taken in yet."""
    left_out: int = 0
    """Rows of the table that the first dedup sweep has left out for good, as it was asked to."""


@dataclass(slots=True)
class Report:
    """All about one stream."""

    stream: str
    generation: int
    figures: Figures = field(default_factory=Figures)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    accepted: list[Gap] = field(default_factory=list)
    """Gaps that somebody accepted, and that are what the chain lacks."""
    table_checked: bool = False
    unique_checked: bool = False
    keys_checked: bool = False

    @property
    def is_sound(self) -> bool:
        return not self.faults

    def document(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "generation": self.generation,
            "sound": self.is_sound,
            "table_checked": self.table_checked,
            "unique_checked": self.unique_checked,
            "keys_checked": self.keys_checked,
            "figures": asdict(self.figures),
            "faults": [fault.document() for fault in self.faults],
            "notes": list(self.notes),
            "accepted": [gap.document() for gap in self.accepted],
        }


class Listener(Protocol):
    """Is told how the work goes on. Called by one thread."""

    def begin(self, what: str, total: int) -> None:
        """A stage of the work begins, of `total` steps."""

    def advance(self, steps: int) -> None: ...


def first_line(error: Exception) -> str:
    """What an error of another library says, without its traceback or advice."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
