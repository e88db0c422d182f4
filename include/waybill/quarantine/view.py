"""The rows of a quarantine that count: final, and not moved to the table by a retry.

The rows of a quarantine, counted by why, by whom and where.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog

from waybill.config import Stream
from waybill.errors import ProgressLost
from waybill.names import retry_key
from waybill.partition.observed import OTHER, kinds
from waybill.quarantine.choice import Choice
from waybill.quarantine.files import plan_files, reachable, read_file
from waybill.quarantine.offset_sets import Offsets, by_topic_partition
from waybill.quarantine.record import find_retry, read_offsets
from waybill.store import Store
from waybill.tables import Progress, StreamTables, load_tables, read_progress, read_retries

__all__ = ["Group", "Place", "View", "moved_offsets", "open_view", "retries_of", "summarize"]


@dataclass(frozen=True, slots=True)
class View:
    """A quarantine as it was loaded."""

    tables: StreamTables
    progress: Progress
    """The table's. Rows at or beyond it are not final: the run that wrote them has not committed the table's rows."""
    moved: Offsets
    """Messages that are in the table by a retry that has not dropped them from the quarantine yet."""

    @classmethod
    def of(cls, store: Store, name: str, stream: Stream, tables: StreamTables) -> Self:
        """Of tables as they are loaded, the quarantine after the table (see `moved_offsets`)."""
        progress = read_progress(tables.main.metadata, ".".join(tables.main.name()))
        return cls(tables, progress, moved_offsets(store, name, stream, tables))

    def rows(self, choice: Choice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows that are meant, a few megabytes at a time and none empty.

        `columns`: only these; topic, partition, offset and reason must be among them.

        Raises `CommitConflict` when the table has moved on so far that its files are gone, `StoreUnavailable`.
        """
        table = self.tables.quarantine
        with reachable(table):
            for batch in (b for file in plan_files(table, choice.condition) for b in read_file(table, file, columns)):
                wanted = choice.mask(batch) & self._counts(batch)
                if wanted.any():
                    yield batch if wanted.all() else batch.filter(pa.array(wanted))

    def _counts(self, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        counts = ~self.moved.mask(rows)
        offsets = rows.column("offset").to_numpy()
        for tp, places in by_topic_partition(rows):
            counts[places] &= offsets[places] < self.progress.get(tp, 0)
        return counts


def open_view(store: Store, catalog: Catalog, name: str, stream: Stream) -> View | None:
    """The quarantine of stream `name` as it is now; None before its first partition run."""
    tables = load_tables(catalog, stream)
    return None if tables is None else View.of(store, name, stream, tables)


def moved_offsets(store: Store, name: str, stream: Stream, tables: StreamTables) -> Offsets:
    """The messages that retries have moved to the table, and that are rows of the quarantine still.

    `tables`: as `load_tables` loads them, so that the quarantine has taken part in no retry that the table has not.

    Raises `ProgressLost` when what such a retry moved is written down nowhere any more.
    """
    main, quarantine = retries_of(tables)
    moved = Offsets()
    for number in range(quarantine, main):
        key = retry_key(store.prefix, name, stream.generation, str(tables.main.metadata.table_uuid), number)
        retry = find_retry(store, key)
        if retry is None:
            raise ProgressLost(
                f"{key} is gone: table {'.'.join(tables.main.name())} has what this retry moved, and nobody can say "
                f"which rows of the quarantine these are. Restore the object"
            )
        moved = moved.union(read_offsets(store, retry))
    return moved


def retries_of(tables: StreamTables) -> tuple[int, int]:
    """How many retries the table and its quarantine have taken part in."""
    return (
        read_retries(tables.main.metadata, ".".join(tables.main.name())),
        read_retries(tables.quarantine.metadata, ".".join(tables.quarantine.name())),
    )


_COLUMNS = ("topic", "partition", "offset", "reason", "parser", "quarantined_at")
_MOST_GROUPS = 1000
_KEYS = ["kind", "parser", "topic", "partition"]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A message within its topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one kind of reason, by one parser, of one topic."""

    reason: str
    parser: str
    topic: str
    rows: int
    first: Place
    """By partition, then offset."""
    last: Place
    first_quarantined_at: datetime
    """When the run that found the first of them was planned."""
    last_quarantined_at: datetime


def summarize(view: View, choice: Choice) -> list[Group]:
    """The rows that are meant, counted; the largest group first."""
    groups: dict[tuple[str, str, str], Group] = {}
    for batch in view.rows(choice, _COLUMNS):
        for found in _of(batch):
            key = (found.reason, found.parser, found.topic)
            if key not in groups and len(groups) >= _MOST_GROUPS:
                found = dataclasses.replace(found, reason=OTHER)
                key = (OTHER, found.parser, found.topic)
            groups[key] = _joined(groups[key], found) if key in groups else found
    return sorted(groups.values(), key=lambda group: (-group.rows, group.reason, group.parser, group.topic))


def _of(batch: pa.RecordBatch) -> Iterable[Group]:
    """By partition as well: then the first and last offset are those of one log."""
    rows = pa.Table.from_batches([batch]).append_column("kind", kinds(batch.column("reason")))
    aggregates = [("offset", "count"), *((c, f) for c in ("offset", "quarantined_at") for f in ("min", "max"))]
    for found in rows.group_by(_KEYS).aggregate(aggregates).to_pylist():
        yield Group(
            found["kind"],
            found["parser"],
            found["topic"],
            found["offset_count"],
            Place(found["partition"], found["offset_min"]),
            Place(found["partition"], found["offset_max"]),
            found["quarantined_at_min"],
            found["quarantined_at_max"],
        )


def _joined(a: Group, b: Group) -> Group:
    return dataclasses.replace(
        a,
        rows=a.rows + b.rows,
        first=min(a.first, b.first),
        last=max(a.last, b.last),
        first_quarantined_at=min(a.first_quarantined_at, b.first_quarantined_at),
        last_quarantined_at=max(a.last_quarantined_at, b.last_quarantined_at),
    )
