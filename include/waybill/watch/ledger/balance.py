"""The terms of the ledger of one topic-partition, and the equations that must hold between them.

This module uses no server: it adds up figures that were read from different places.

- Every offset of the log that was archived holds a message, or there is a reason why it does not.
- Every archived message is in one of the tables, or in staged files that are held, or is not partitioned yet.
- Every row is in one of the tables of dedup, or is not swept yet, or was left out by the first sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from waybill.archive.chain.gaps import Gap
from waybill.config.names import TopicPartition


@dataclass(frozen=True, slots=True)
class Imbalance:
    """An equation that does not hold, with the topic-partition and the offsets `[first_offset, next_offset)`."""

    tp: TopicPartition
    first_offset: int
    next_offset: int
    what: str

    def __str__(self) -> str:
        last = max(self.next_offset - 1, self.first_offset)
        return f"{self.tp} offsets {self.first_offset}–{last}: {self.what}"

    def document(self) -> dict[str, Any]:
        """Return the imbalance for a JSON document."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "what": self.what,
        }


@dataclass(frozen=True, slots=True)
class LogTerms:
    """The offsets of one chain, `[start_offset, end_offset)`, by what they hold."""

    start_offset: int
    end_offset: int
    """Where the last object ends: the committed offset, or after it if a lane has not committed its object."""
    log_end_offset: int | None
    """Kafka's log end offset; None if Kafka was not asked, or did not answer."""
    gaps: int
    """Offsets in gap markers."""
    messages: int | None
    """None: unknown. Then the four terms below are 0."""
    control: int = 0
    """Offsets of control batches."""
    aborted: int = 0
    """Offsets of aborted transactions."""
    unknown: int = 0
    """Offsets that hold no message for a reason that was not recorded: they belong to one of the other terms."""
    unexplained: int = 0
    """The remaining offsets: the log did not have them, because compaction had removed them."""

    @property
    def offsets(self) -> int:
        return self.end_offset - self.start_offset

    @property
    def not_archived(self) -> int | None:
        """Offsets from the end of the chain to the end of Kafka's log; None without that end."""
        return None if self.log_end_offset is None else max(self.log_end_offset - self.end_offset, 0)

    def imbalances(self, tp: TopicPartition) -> Iterable[Imbalance]:
        """Yield why the terms contradict each other."""
        if self.messages is None:
            return
        terms = {
            "messages": self.messages,
            "control": self.control,
            "aborted": self.aborted,
            "accepted gaps": self.gaps,
            "not recorded": self.unknown,
        }
        if self.unexplained < 0:
            listed = ", ".join(f"{count:,} {name}" for name, count in terms.items() if count)
            what = f"{self.offsets:,} offsets cannot hold {listed}: {-self.unexplained:,} too many"
            yield Imbalance(tp, self.start_offset, self.end_offset, what)


@dataclass(frozen=True, slots=True)
class MessageTerms:
    """Where the messages of one chain are."""

    rows: int
    """Rows of the main table."""
    quarantine: int
    held: int
    """Rows and quarantined messages of a plan that is held."""
    waiting: int | None
    """Messages that are not partitioned yet; None: unknown, because the archived messages are unknown."""
    progress: int
    """The offset up to which the chain is partitioned."""
    of_lost_objects: int = 0
    """Rows among `rows` and `quarantine` whose backup object was lost after it was partitioned: accepted gaps."""

    @property
    def total(self) -> int:
        """The number of archived messages that these terms explain."""
        return self.rows + self.quarantine + self.held + (self.waiting or 0) - self.of_lost_objects

    def imbalances(self, tp: TopicPartition, log: LogTerms) -> Iterable[Imbalance]:
        """Yield why the terms contradict the archive's."""
        if log.messages is None or log.messages == self.total:
            return
        in_archive = log.messages - (self.waiting or 0) - self.held
        in_tables = self.rows + self.quarantine - self.of_lost_objects
        less = in_tables < in_archive
        what = (
            f"{in_archive:,} messages were archived that the tables should have, and the tables have {in_tables:,}: "
            f"{abs(in_archive - in_tables):,} {'missing' if less else 'too many'}"
        )
        yield Imbalance(tp, log.start_offset, min(self.progress, log.end_offset), what)


@dataclass(frozen=True, slots=True)
class RowTerms:
    """Where the rows of one topic-partition are, among the tables of dedup."""

    unique: int
    duplicates: int
    unswept: int
    """Rows that were appended since the last sweep."""
    left_out: int = 0
    """Rows that the first sweep left out, as the config requires."""

    @property
    def total(self) -> int:
        """The number of rows that these terms explain."""
        return self.unique + self.duplicates + self.unswept + self.left_out

    def imbalances(self, tp: TopicPartition, log: LogTerms, messages: MessageTerms) -> Iterable[Imbalance]:
        """Yield why the terms contradict the main table's rows."""
        if messages.rows == self.total:
            return
        swept, kept = messages.rows - self.unswept - self.left_out, self.unique + self.duplicates
        what = (
            f"{swept:,} rows were swept, and the unique table and the duplicates table have {kept:,}: "
            f"{abs(swept - kept):,} {'missing' if kept < swept else 'too many'}"
        )
        yield Imbalance(tp, log.start_offset, min(messages.progress, log.end_offset), what)


@dataclass(frozen=True, slots=True)
class Line:
    """The ledger of one topic-partition."""

    tp: TopicPartition
    log: LogTerms
    messages: MessageTerms | None = None
    """None: there is no table yet."""
    rows: RowTerms | None = None
    """None: the stream has no dedup, or the tables of dedup cannot be compared now."""
    gaps: Sequence[Gap] = ()
    """The accepted gaps of the chain, including those without a marker, which leave no offset missing."""
    differences: Sequence[Imbalance] = ()
    """The ranges in which messages and rows differ, if they were searched: they replace the imbalance of the whole
    chain."""

    def imbalances(self) -> Iterable[Imbalance]:
        """Yield the equations that do not hold."""
        yield from self.log.imbalances(self.tp)
        if self.messages is not None:
            yield from self.differences or self.messages.imbalances(self.tp, self.log)
            if self.rows is not None:
                yield from self.rows.imbalances(self.tp, self.log, self.messages)

    def document(self) -> dict[str, Any]:
        """Return the line for a JSON document."""
        log, messages, rows = self.log, self.messages, self.rows
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "start_offset": log.start_offset,
            "end_offset": log.end_offset,
            "log_end_offset": log.log_end_offset,
            "not_archived": log.not_archived,
            "offsets": log.offsets,
            "messages": log.messages,
            "control": None if log.messages is None else log.control,
            "aborted": None if log.messages is None else log.aborted,
            "removed_by_compaction": None if log.messages is None else log.unexplained,
            "reason_not_recorded": None if log.messages is None else log.unknown,
            "accepted_gaps": log.gaps,
            "gaps": [gap.to_fields() for gap in self.gaps],
            "tables": None
            if messages is None
            else {
                "progress": messages.progress,
                "rows": messages.rows,
                "quarantine": messages.quarantine,
                "held": messages.held,
                "waiting": messages.waiting,
                "of_lost_objects": messages.of_lost_objects,
            },
            "dedup": None
            if rows is None
            else {
                "unique": rows.unique,
                "duplicates": rows.duplicates,
                "unswept": rows.unswept,
                "left_out": rows.left_out,
            },
        }


def sorted_imbalances(lines: Iterable[Line], further: Iterable[Imbalance]) -> list[Imbalance]:
    """Return the imbalances of lines, and those that belong to no line, by topic-partition and offset."""
    found = [*(imbalance for line in lines for imbalance in line.imbalances()), *further]
    return sorted(found, key=lambda imbalance: (imbalance.tp, imbalance.first_offset))


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger of one stream's generation."""

    stream: str
    generation: int
    made_at_ms: int
    """When its figures were read. Epoch ms."""
    lines: Sequence[Line]
    """One for each topic-partition, sorted."""
    notes: Sequence[str] = ()
    """Parts that were left out, and why."""
    further: Sequence[Imbalance] = ()
    """Imbalances that belong to no line, such as rows without a chain."""

    @property
    def imbalances(self) -> list[Imbalance]:
        """The imbalances, by topic-partition."""
        return sorted_imbalances(self.lines, self.further)

    @property
    def counts(self) -> dict[str, int]:
        """Return the sums over all topic-partitions. A term that is unknown for one of them is left out."""
        logs = [line.log for line in self.lines]
        messages = [line.messages for line in self.lines]
        rows = [line.rows for line in self.lines]
        terms: dict[str, list[int | None]] = {
            "not_archived": [each.not_archived for each in logs],
            "archived_offsets": [each.offsets for each in logs],
            "archived_messages": [each.messages for each in logs],
            "accepted_gaps": [each.gaps for each in logs],
            "rows": [None if each is None else each.rows for each in messages],
            "quarantine": [None if each is None else each.quarantine for each in messages],
            "held": [None if each is None else each.held for each in messages],
            "waiting": [None if each is None else each.waiting for each in messages],
            "unique": [None if each is None else each.unique for each in rows],
            "duplicates": [None if each is None else each.duplicates for each in rows],
            "unswept": [None if each is None else each.unswept for each in rows],
        }
        known = {name: [value for value in values if value is not None] for name, values in terms.items()}
        return {name: sum(values) for name, values in known.items() if values and len(values) == len(self.lines)}

    def document(self) -> dict[str, Any]:
        """Return the ledger for a JSON document: numbers are integers, times are epoch ms."""
        imbalances = self.imbalances
        return {
            "v": 1,
            "stream": self.stream,
            "generation": self.generation,
            "made_at": self.made_at_ms,
            "topic_partitions": [line.document() for line in self.lines],
            "imbalances": [found.document() for found in imbalances],
            "notes": list(self.notes),
            "balanced": not imbalances,
        }
