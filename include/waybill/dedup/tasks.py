"""What the tasks of a sweep share, and what comes of them. All of it goes between processes, by pickle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile

from waybill.config import Storage
from waybill.dedup.appends import GainedFile
from waybill.dedup.index.runs import Run
from waybill.dedup.plan import SweepPlan
from waybill.names import TopicPartition
from waybill.staging.driver import LEAST_TASK_BYTES
from waybill.staging.table_layout import TableLayout
from waybill.staging.timing import Usage

__all__ = [
    "CANDIDATE_BYTES",
    "Judged",
    "Piece",
    "Scanned",
    "SweepJob",
    "SweepTask",
    "UnknownTopicPartitions",
    "Written",
    "cut_tasks",
    "judges_for",
]

CANDIDATE_BYTES = 256
"""What a task that judges takes for each row that has a key: the row's 48 bytes as they came and in one piece with the
others', the order by key, and what of the index is compared with it."""
_MOST_JUDGES = 1 << 16


@dataclass(frozen=True, slots=True)
class Piece:
    """Some row groups of a file: of `parts` equal shares of them the one numbered `part`."""

    file: int
    """Ordinal in the plan's files."""
    part: int
    parts: int

    def row_groups(self, count: int) -> range:
        """Which row groups these are, if the file has `count`."""
        return range(count * self.part // self.parts, count * (self.part + 1) // self.parts)


SweepTask = tuple[Piece, ...]
"""What one task reads, in this order."""


@dataclass(frozen=True, slots=True)
class SweepJob:
    """What all tasks of a sweep share. It goes to executors and into logs: names of connections, no secrets."""

    plan: SweepPlan
    topic_partitions: tuple[TopicPartition, ...]
    """Sorted: those of the plan, and what else the rows turned out to have."""
    storage: Storage
    catalog_connection: str
    main: TableLayout
    unique: TableLayout
    duplicates: TableLayout
    secret: bytes
    """16 bytes: what keys are hashed with. They are the unique table's uuid, which is told to no producer."""
    judges: int
    """Into how many ranges of the hash the rows are cut: a power of two."""
    index: str
    """What the keys of the index's files start with."""
    runs: tuple[Run, ...]
    """The index."""
    covers: int
    """Up to which sequence number of the unique table it covers the table."""
    budget_bytes: int
    """Of the index."""
    memory_bytes: int
    """Of rows, or of what is known of them, that a task holds."""

    @property
    def files(self) -> tuple[GainedFile, ...]:
        return self.plan.files

    def buckets_of(self, judge: int) -> range:
        """The buckets of the index that a range of the hash has a part in."""
        buckets = self.plan.buckets
        first = judge * buckets // self.judges
        return range(first, max(first + 1, (judge + 1) * buckets // self.judges))


@dataclass(frozen=True, slots=True)
class UnknownTopicPartitions:
    """Rows have these topic-partitions, and the plan does not know them: somebody else has written them."""

    topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a task that scans has read."""

    rows: int
    keyless: int
    """Rows without a key, or with an id that Waybill assigned: they are kept unseen."""
    usage: Usage


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of one range of the hash."""

    candidates: int
    kept: int
    runs: tuple[Run, ...]
    """The kept keys, one run for each bucket that has any."""
    marks: str | None
    """The object that says which rows are duplicates; None: none is."""
    index_read_bytes: int
    """How much was read of the index."""
    scanned: tuple[Scanned, ...]
    """Of the tasks that scan, those whose figures came along with these rows."""
    usage: Usage


@dataclass(frozen=True, slots=True)
class Written:
    """What a task that writes has staged. Nothing of it counts before the commit."""

    unique_files: list[DataFile]
    duplicate_files: list[DataFile]
    rows: int
    """Rows that were kept."""
    duplicates: int
    arrived_ms: dict[TopicPartition, int]
    """The latest arrival of each topic-partition's rows, duplicates included."""
    usage: Usage


def judges_for(records: int, memory_bytes: int, slots: int) -> int:
    """Into how many ranges of the hash rows are to be cut: so that one fits into memory, and no slot is idle."""
    needed = -(-records * CANDIDATE_BYTES // memory_bytes)
    return min(1 << (max(needed, slots, 1) - 1).bit_length(), _MOST_JUDGES)


def cut_tasks(files: Sequence[GainedFile], task_bytes: int, slots: int) -> tuple[SweepTask, ...]:
    """Tasks of about `task_bytes` of the files, in their order; a larger file is cut by its row groups.

    What makes fewer tasks than `slots` is shared among them, if each gets enough.
    """
    total = sum(file.size_bytes for file in files)
    count = max(-(-total // task_bytes), min(slots, total // LEAST_TASK_BYTES), 1)
    tasks: dict[int, list[Piece]] = {}
    before = 0.0
    for number, file in enumerate(files):
        parts = max(1, round(file.size_bytes * count / total)) if total else 1
        size = file.size_bytes / parts
        for part in range(parts):
            # By where its middle lies: the last one's is below the total, but for an empty file.
            task = min(int((before + size / 2) * count / total), count - 1) if total else 0
            tasks.setdefault(task, []).append(Piece(number, part, parts))
            before += size
    return tuple(tuple(pieces) for pieces in tasks.values())
