"""The tasks of a sweep: their input and their results, which go between processes by pickle.

A sweep has two stages. Each matching task gets the candidates of one range of the hash space, which tasks that scan
files have sent, and finds the duplicates among them. Each writing task then writes whole rows of some files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile

from waybill.config.models import Storage
from waybill.config.names import TopicPartition
from waybill.tables.dedup.appends import AppendedFile
from waybill.tables.dedup.index.sorted_runs import SortedRun
from waybill.tables.dedup.sweep_plan import SweepPlan
from waybill.tables.staging.driver import LEAST_TASK_BYTES
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.timing import TaskUsage

CANDIDATE_BYTES = 256
"""Memory of a matching task for each row that has a key: its 48 bytes as received and again in one array, the order by
key, and the index entries it is compared with."""
_MAX_HASH_RANGES = 1 << 16


# --- input ---


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some row groups of a file: part number `part` of `parts` equal parts."""

    file: int
    """Position in the plan's list of files."""
    part: int
    parts: int

    def row_groups(self, count: int) -> range:
        """Return the row groups of this part if the file has `count`."""
        return range(count * self.part // self.parts, count * (self.part + 1) // self.parts)


SweepTask = tuple[FilePart, ...]
"""The input of one task, in the order in which it is read."""


@dataclass(frozen=True, slots=True)
class SweepJob:
    """The input that all tasks of a sweep share. It is sent to executors and logged: no credentials."""

    plan: SweepPlan
    topic_partitions: tuple[TopicPartition, ...]
    """Sorted: the topic-partitions of the plan, and others that were found in the rows."""
    storage: Storage
    catalog_connection: str
    main: TableLayout
    unique: TableLayout
    duplicates: TableLayout
    secret: bytes
    """Secret of the key hash, 16 bytes: the unique table's UUID, which no producer knows."""
    hash_ranges: int
    """Number of ranges of the hash space, and so of matching tasks: a power of two."""
    index: str
    """Prefix of the object keys of the index."""
    runs: tuple[SortedRun, ...]
    """The sorted runs of the index."""
    covers: int
    """Sequence number of the unique table up to which the index has all rows."""
    budget_bytes: int
    """Limit of the index's size."""
    memory_bytes: int
    """Memory of a task for rows or candidates."""

    @property
    def files(self) -> tuple[AppendedFile, ...]:
        return self.plan.files

    def buckets_of(self, hash_range: int) -> range:
        """Return the buckets of the index that overlap a range of the hash space."""
        buckets = self.plan.buckets
        first = hash_range * buckets // self.hash_ranges
        return range(first, max(first + 1, (hash_range + 1) * buckets // self.hash_ranges))


def count_hash_ranges(records: int, memory_bytes: int, slots: int) -> int:
    """Return the number of hash ranges, so that each range fits into memory, and no executor slot is idle."""
    needed = -(-records * CANDIDATE_BYTES // memory_bytes)
    return min(1 << (max(needed, slots, 1) - 1).bit_length(), _MAX_HASH_RANGES)


def cut_tasks(files: Sequence[AppendedFile], task_bytes: int, slots: int) -> tuple[SweepTask, ...]:
    """Cut the files, in their order, into tasks of about `task_bytes`; a larger file is cut at row groups.

    If there are fewer tasks than executor `slots`, tasks are smaller, but not below `LEAST_TASK_BYTES`.
    """
    total = sum(file.size_bytes for file in files)
    count = max(-(-total // task_bytes), min(slots, total // LEAST_TASK_BYTES), 1)
    tasks: dict[int, list[FilePart]] = {}
    before = 0.0
    for number, file in enumerate(files):
        parts = max(1, round(file.size_bytes * count / total)) if total else 1
        size = file.size_bytes / parts
        for part in range(parts):
            # The position of the middle of the part decides. It is below the total, unless the last file is empty.
            task = min(int((before + size / 2) * count / total), count - 1) if total else 0
            tasks.setdefault(task, []).append(FilePart(number, part, parts))
            before += size
    return tuple(tuple(parts) for parts in tasks.values())


# --- results ---


@dataclass(frozen=True, slots=True)
class UnplannedPartitions:
    """Topic-partitions of rows that the plan does not list: another program has written these rows."""

    topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ScannedFiles:
    """The figures of a scanning task."""

    rows: int
    keyless: int
    """Rows without a key, or with an id that Waybill assigned. They are kept without a comparison."""
    usage: TaskUsage


@dataclass(frozen=True, slots=True)
class MatchedRange:
    """The result of a matching task: one range of the hash space."""

    candidates: int
    kept: int
    runs: tuple[SortedRun, ...]
    """The kept keys, in one sorted run or more for each bucket that has any."""
    duplicate_list: str | None
    """Object key of the list of duplicate rows; None: there is no duplicate."""
    index_read_bytes: int
    """Bytes read of the index."""
    scanned: tuple[ScannedFiles, ...]
    """Figures of the scanning tasks that sent their figures to this range."""
    usage: TaskUsage

    @property
    def duplicates(self) -> int:
        return self.candidates - self.kept


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The result of a writing task. No table references the files before the commit."""

    unique_files: list[DataFile]
    duplicate_files: list[DataFile]
    rows: int
    """Rows that were kept."""
    duplicates: int
    arrived_ms: dict[TopicPartition, int]
    """The latest arrival of each topic-partition's rows, duplicates included, epoch ms."""
    usage: TaskUsage
