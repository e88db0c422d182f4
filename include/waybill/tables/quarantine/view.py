"""Read the valid rows of a quarantine, and count them by reason, parser and topic.

A row is valid when it is final and no retry has moved its message to the table. It is final when it lies below the
table's progress: the run that wrote it has committed the table's rows too.
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

from waybill.base.errors import ProgressLost
from waybill.config.models import Stream
from waybill.config.names import retry_key
from waybill.services.store import Store
from waybill.tables.iceberg import Progress, StreamTables, load_tables, read_progress, read_retries
from waybill.tables.partition.statistics import OTHER, reason_kinds
from waybill.tables.quarantine.files import plan_files, read_file, translate_file_errors
from waybill.tables.quarantine.offset_sets import OffsetSet, by_topic_partition
from waybill.tables.quarantine.row_filter import RowFilter
from waybill.tables.quarantine.staged import find_retry, read_offsets

_SUMMARY_COLUMNS = ("topic", "partition", "offset", "reason", "parser", "quarantined_at")
_MAX_GROUPS = 1000
_MAX_EXAMPLES = 3
_GROUP_COLUMNS = ["kind", "parser", "topic", "partition"]


@dataclass(frozen=True, slots=True)
class View:
    """The valid rows of a loaded quarantine."""

    tables: StreamTables
    progress: Progress
    """Progress of the stream's table. Rows at or beyond it are not final."""
    moved: OffsetSet
    """Messages that a retry has moved to the table and not dropped from the quarantine yet."""

    @classmethod
    def of(cls, store: Store, name: str, stream: Stream, tables: StreamTables) -> Self:
        """Return the view of loaded tables; the quarantine was loaded after the table (see `moved_offsets`)."""
        progress = read_progress(tables.main.metadata, ".".join(tables.main.name()))
        return cls(tables, progress, moved_offsets(store, name, stream, tables))

    def rows(self, row_filter: RowFilter, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows in non-empty batches of a few megabytes.

        `columns`: read only these; topic, partition, offset and reason must be among them.

        Raises `CommitConflict` when files of the loaded snapshot no longer exist, `StoreUnavailable`.
        """
        table = self.tables.quarantine
        with translate_file_errors(table):
            files = plan_files(table, row_filter.scan_filter)
            for batch in (batch for file in files for batch in read_file(table, file, columns)):
                wanted = row_filter.mask(batch) & self._counts(batch)
                if wanted.any():
                    yield batch if wanted.all() else batch.filter(pa.array(wanted))

    def _counts(self, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        counts = ~self.moved.mask(rows)
        offsets = rows.column("offset").to_numpy()
        for tp, places in by_topic_partition(rows):
            counts[places] &= offsets[places] < self.progress.get(tp, 0)
        return counts


def open_view(store: Store, catalog: Catalog, name: str, stream: Stream) -> View | None:
    """Load the quarantine of stream `name`; None before its first partition run."""
    tables = load_tables(catalog, stream)
    return None if tables is None else View.of(store, name, stream, tables)


def moved_offsets(store: Store, name: str, stream: Stream, tables: StreamTables) -> OffsetSet:
    """Return the messages that retries have moved to the table while the quarantine still has their rows.

    `tables`: the result of `load_tables`, in which the table has taken part in every retry of the quarantine.

    Raises `ProgressLost` when the record of such a retry no longer exists.
    """
    main, quarantine = retries_of(tables)
    moved = OffsetSet()
    for number in range(quarantine, main):
        key = retry_key(store.prefix, name, stream.generation, str(tables.main.metadata.table_uuid), number)
        retry = find_retry(store, key)
        if retry is None:
            raise ProgressLost(
                f"{key} no longer exists: table {'.'.join(tables.main.name())} has the messages that this retry moved, "
                f"and only this object lists which rows of the quarantine these are. Restore the object"
            )
        moved = moved.union(read_offsets(store, retry))
    return moved


def retries_of(tables: StreamTables) -> tuple[int, int]:
    """Return how many retries the table and its quarantine have taken part in."""
    return (
        read_retries(tables.main.metadata, ".".join(tables.main.name())),
        read_retries(tables.quarantine.metadata, ".".join(tables.quarantine.name())),
    )


@dataclass(frozen=True, slots=True, order=True)
class QuarantinePlace:
    """A message within its topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class QuarantineExample:
    """A message in quarantine, with the full reason."""

    place: QuarantinePlace
    reason: str


@dataclass(frozen=True, slots=True)
class QuarantineGroup:
    """Rows with the same topic, parser and kind of reason."""

    reason: str
    parser: str
    topic: str
    rows: int
    first: QuarantinePlace
    """The first message by partition, then offset."""
    last: QuarantinePlace
    first_quarantined_at: datetime
    """When the partition run of the first of these messages was planned."""
    last_quarantined_at: datetime
    examples: tuple[QuarantineExample, ...] = ()
    """At most three, as different as possible in their reasons."""


def summarize(view: View, row_filter: RowFilter) -> list[QuarantineGroup]:
    """Count the selected rows; return the largest group first."""
    groups: dict[tuple[str, str, str], QuarantineGroup] = {}
    for batch in view.rows(row_filter, _SUMMARY_COLUMNS):
        for found in _groups_in(batch):
            key = (found.reason, found.parser, found.topic)
            if key not in groups and len(groups) >= _MAX_GROUPS:
                found = dataclasses.replace(found, reason=OTHER)
                key = (OTHER, found.parser, found.topic)
            groups[key] = _merge(groups[key], found) if key in groups else found
    return sorted(groups.values(), key=lambda group: (-group.rows, group.reason, group.parser, group.topic))


def _groups_in(batch: pa.RecordBatch) -> Iterable[QuarantineGroup]:
    """Yield groups for each topic-partition, so that first and last offset belong to one log."""
    rows = pa.Table.from_batches([batch]).append_column("kind", reason_kinds(batch.column("reason")))
    aggregates = [("offset", "count"), *((c, f) for c in ("offset", "quarantined_at") for f in ("min", "max"))]
    aggregates += [(c, f) for c in ("offset", "reason") for f in ("first", "last")]
    # First and last need the order of the rows.
    for found in rows.group_by(_GROUP_COLUMNS, use_threads=False).aggregate(aggregates).to_pylist():
        examples = [
            QuarantineExample(QuarantinePlace(found["partition"], found[f"offset_{end}"]), found[f"reason_{end}"])
            for end in ("first", "last")
        ]
        yield QuarantineGroup(
            found["kind"],
            found["parser"],
            found["topic"],
            found["offset_count"],
            QuarantinePlace(found["partition"], found["offset_min"]),
            QuarantinePlace(found["partition"], found["offset_max"]),
            found["quarantined_at_min"],
            found["quarantined_at_max"],
            _examples(examples),
        )


def _merge(a: QuarantineGroup, b: QuarantineGroup) -> QuarantineGroup:
    return dataclasses.replace(
        a,
        rows=a.rows + b.rows,
        first=min(a.first, b.first),
        last=max(a.last, b.last),
        first_quarantined_at=min(a.first_quarantined_at, b.first_quarantined_at),
        last_quarantined_at=max(a.last_quarantined_at, b.last_quarantined_at),
        examples=_examples((*a.examples, *b.examples)),
    )


def _examples(found: Iterable[QuarantineExample]) -> tuple[QuarantineExample, ...]:
    """Return the examples to keep: one for each text of a reason first, then others."""
    by_place = {each.place: each for each in found}
    by_reason = {each.reason: each for each in by_place.values()}
    others = [each for each in by_place.values() if by_reason[each.reason] is not each]
    return (*by_reason.values(), *others)[:_MAX_EXAMPLES]
