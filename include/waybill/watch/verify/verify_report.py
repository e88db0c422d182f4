"""The result of a verification: figures, faults with their effects, and notes on unusual states that are no faults."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from waybill.archive.chain.gaps import Gap
from waybill.base.errors import UnexpectedFailure
from waybill.config.names import TopicPartition

logger = logging.getLogger(__name__)


class FaultKind(StrEnum):
    """The kinds of faults."""

    MISSING = "missing"
    """No backup object of the chain holds the offsets."""
    OVERLAP = "overlap"
    """A backup object reaches beyond the start of the next one."""
    DAMAGED = "damaged"
    """The bytes of a backup object are not sound record batches, or not those that its name promises."""
    FORMAT = "format"
    """A backup object has another format than its chain."""
    UNEXPECTED = "unexpected"
    """An unexpected exception ended the check: further faults are unknown."""
    COMMITTED = "committed"
    """The committed offset is not at the chain's end."""
    LOST = "lost"
    """A message of the chain is in neither table although progress has passed it, or a swept row is neither a unique
    row nor a duplicate."""
    REPEATED = "repeated"
    """A message has more than one row in the main table and the quarantine together, or a row has more than one row in
    the unique table and the duplicates table together."""
    FOREIGN = "foreign"
    """A row that belongs to no message of the chain, or to no row that was swept."""
    PROGRESS = "progress"
    """A table's progress, or the state of its sweeps, is impossible or cannot be read."""
    UNREADABLE = "unreadable"
    """A file of a table is missing or damaged."""
    SHARD = "shard"
    """An object of a Kinesis slot does not cover a shard where the objects before it end, or covers a shard of another
    slot."""
    GAP = "gap"
    """An accepted gap does not match what the chain lacks, or a gap marker has no record of its acceptance."""


class EffectKind(StrEnum):
    """The kinds of effects that a fault of the archive has on tables."""

    ROWS = "rows"
    """The table has rows of the offsets, which the archive no longer backs."""
    PROGRESS = "progress"
    """The table's progress has passed the offsets, or some of them."""


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """One consequence of a fault: what a table has to do with the offsets of the fault."""

    kind: EffectKind
    where: str
    """The table's name."""
    rows: int | None
    """The number of rows, for `EffectKind.ROWS`."""
    what: str
    """The consequence as text, with the table as its subject."""

    def __str__(self) -> str:
        return f"{self.where} {self.what}"

    def document(self) -> dict[str, Any]:
        """Return the effect as JSON fields."""
        return {"kind": str(self.kind), "where": self.where, "rows": self.rows, "what": self.what}


@dataclass(frozen=True, slots=True)
class VerifyFault:
    """One fault, with the offsets `[first_offset, next_offset)` that it concerns, if it concerns offsets."""

    kind: FaultKind
    where: str
    """The key of the object, the name of the table, or "ZooKeeper"."""
    tp: TopicPartition | None
    first_offset: int | None
    next_offset: int | None
    what: str
    """What was found and what was expected."""
    affects: list[FaultEffect] = field(default_factory=list, hash=False)
    """The consequences of this fault in tables. They are not separate faults."""

    def __str__(self) -> str:
        parts = [str(self.tp)] if self.tp else []
        if self.first_offset is not None and self.next_offset is not None:
            one = self.next_offset == self.first_offset + 1
            parts.append(
                f"offset {self.first_offset}" if one else f"offsets {self.first_offset}–{self.next_offset - 1}"
            )
        subject = " ".join(parts)
        affects = "".join(f"; affects: {effect}" for effect in self.affects)
        return f"{self.kind}: {subject}{': ' if subject else ''}{self.what} ({self.where}){affects}"

    def document(self) -> dict[str, Any]:
        """Return the fault as JSON fields."""
        return {
            "kind": str(self.kind),
            "where": self.where,
            "topic": self.tp and self.tp.topic,
            "partition": self.tp and self.tp.partition,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "what": self.what,
            "affects": [effect.document() for effect in self.affects],
        }


@dataclass(slots=True)
class VerifyFigures:
    """The numbers that a verification counts."""

    chains: int = 0
    objects: int = 0
    shards: int = 0
    """Shards of Kinesis that have a slot."""
    messages: int = 0
    """Messages in the chains, without those of aborted transactions and without control records."""
    bytes: int = 0
    waiting: int = 0
    """Messages of the chains beyond the tables' progress: the next partition run takes them."""
    rows: int = 0
    quarantine: int = 0
    """Rows of the quarantine below the table's progress. Rows beyond it are not final."""
    lost: int = 0
    repeated: int = 0
    """Rows that are there in addition to the one expected row."""
    foreign: int = 0
    unique: int = 0
    """Rows that dedup sweeps have kept."""
    duplicates: int = 0
    """Rows that dedup sweeps have found to be duplicates. Those beyond the last sweep are not final."""
    unswept: int = 0
    """Rows of the main table that no dedup sweep has processed yet."""
    left_out: int = 0
    """Rows of the main table that the first dedup sweep left out, as the config requires."""


@dataclass(slots=True)
class VerifyReport:
    """The result for one stream."""

    stream: str
    generation: int
    figures: VerifyFigures = field(default_factory=VerifyFigures)
    faults: list[VerifyFault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    accepted: list[Gap] = field(default_factory=list)
    """Accepted gaps that match what the chain lacks."""
    table_checked: bool = False
    unique_checked: bool = False
    keys_checked: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether there are no faults."""
        return not self.faults

    def add_fault(self, fault: VerifyFault) -> None:
        """Add a fault, unless it is in the report already: several windows of offsets may meet the same bad file."""
        if fault not in self.faults:
            self.faults.append(fault)

    def add_unexpected(self, element: str, error: Exception, tp: TopicPartition | None = None) -> None:
        """Add a fault for an unexpected exception that ended the check of one element, and log it.

        `tp`: the topic-partition whose check ended early.
        """
        failure = UnexpectedFailure(element, error)
        logger.error("%s", failure, exc_info=error)
        self.add_fault(VerifyFault(FaultKind.UNEXPECTED, "verify", tp, None, None, str(failure)))

    def document(self) -> dict[str, Any]:
        """Return the report as JSON fields."""
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
            "accepted": [gap.to_fields() for gap in self.accepted],
        }


class Listener(Protocol):
    """Receives the progress of a verification. All calls come from one thread."""

    def begin(self, what: str, total: int) -> None:
        """Start a stage of the verification with `total` steps."""

    def advance(self, steps: int) -> None:
        """Add finished steps to the current stage."""


def first_line(error: Exception) -> str:
    """Return the first line of another library's error message, without the traceback or advice below it."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
