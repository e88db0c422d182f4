"""Compare the rows of messages before and after a backfill: one window of offsets, in memory.

A message is in the table, in quarantine, or in neither, before and after. The columns that the archive determines (key,
headers, value, Kafka's timestamp) are the same in any case, and are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.quarantine.offset_sets import by_topic_partition

if TYPE_CHECKING:
    Bools = np.ndarray[Any, np.dtype[np.bool_]]
    Int64s = np.ndarray[Any, np.dtype[np.int64]]

MAX_EXAMPLES = 5

DIFF_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("kafka_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("change", pa.string(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("before", pa.string()),
        pa.field("after", pa.string()),
    ]
)
"""The table of differences: a row for each message that differs, and for a changed message one for each column."""


class ChangeKind(StrEnum):
    """How a backfill changes a message."""

    ADDED = "added"
    """Before: in neither table. After: a row."""
    REMOVED = "removed"
    """Before: a row. After: in neither table."""
    CHANGED = "changed"
    """Before and after: a row, with different values."""
    ENTERS_QUARANTINE = "enters_quarantine"
    """Before: a row. After: in quarantine."""
    LEAVES_QUARANTINE = "leaves_quarantine"
    """Before: in quarantine. After: a row."""
    ADDED_TO_QUARANTINE = "added_to_quarantine"
    """Before: in neither table. After: in quarantine."""
    REMOVED_FROM_QUARANTINE = "removed_from_quarantine"
    """Before: in quarantine. After: in neither table."""
    OTHER_REASON = "other_reason"
    """Before and after: in quarantine, with another reason or by another parser."""


class WindowRows:
    """The rows of one table in a window of offsets, found by their position in the window."""

    def __init__(self, window: OffsetRanges, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        """`batches` have `schema`, with topic, partition and offset; rows outside of the window are dropped."""
        starts, size = {}, 0
        for tp, (first, end) in window:
            starts[tp] = size - first
            size += end - first
        self.index: Int64s = np.full(size, -1, np.int64)
        """For each position in the window, the row's number in `table`; -1: there is no row."""
        kept: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            mask = window.mask(batch)
            if not mask.any():
                continue
            rows = batch if mask.all() else batch.filter(pa.array(mask))
            offsets = rows.column("offset").to_numpy()
            for tp, places in by_topic_partition(rows):
                self.index[offsets[places] + starts[tp]] = count + places
            kept.append(rows)
            count += rows.num_rows
        self.table = pa.Table.from_batches(kept, schema=schema).combine_chunks()

    @property
    def present(self) -> Bools:
        """For each position, whether there is a row."""
        return self.index >= 0

    def at(self, positions: Int64s) -> pa.Table:
        """Return the rows at these positions."""
        return self.table.take(pa.array(self.index[positions]))


@dataclass(slots=True)
class Comparison:
    """The figures of a comparison; the figures of several windows can be added up."""

    unchanged: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    """The number of messages by kind of change."""
    columns: Counter[str] = field(default_factory=Counter)
    """The number of changed messages by column."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Examples by column or kind of change."""
    hours: dict[str, Counter[str]] = field(default_factory=dict)
    """Messages by hour of their Kafka timestamp, then by kind of change."""

    def add(self, other: Comparison) -> None:
        """Add the figures of another comparison."""
        self.unchanged += other.unchanged
        self.messages += other.messages
        self.columns += other.columns
        for name, examples in other.examples.items():
            known = self.examples.setdefault(name, [])
            known += examples[: MAX_EXAMPLES - len(known)]
        for hour, counts in other.hours.items():
            self.hours.setdefault(hour, Counter()).update(counts)

    def document(self) -> dict[str, Any]:
        """Return the figures for a JSON document."""
        return {
            "unchanged": self.unchanged,
            "messages": dict(self.messages),
            "columns": dict(self.columns),
            "examples": self.examples,
            "hours": {hour: dict(counts) for hour, counts in sorted(self.hours.items())},
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Comparison:
        """Parse what `document` returned."""
        return cls(
            document["unchanged"],
            Counter(document["messages"]),
            Counter(document["columns"]),
            {name: list(examples) for name, examples in document["examples"].items()},
            {hour: Counter(counts) for hour, counts in document["hours"].items()},
        )


def compare(
    before: tuple[WindowRows, WindowRows],
    after: tuple[WindowRows, WindowRows],
    columns: Iterable[str],
    found: Comparison,
) -> Iterator[pa.RecordBatch]:
    """Yield the differences of one window as `DIFF_SCHEMA`, and add their figures to `found`.

    `before` and `after`: the rows of the table and of the quarantine. `columns`: those of the table to compare.
    """
    old, old_quarantine = before
    new, new_quarantine = after
    was, was_quarantined = old.present, old_quarantine.present & ~old.present
    is_row, is_quarantined = new.present, new_quarantine.present & ~new.present
    was_nowhere, is_nowhere = ~(was | was_quarantined), ~(is_row | is_quarantined)
    yield from _moved(ChangeKind.ADDED, was_nowhere & is_row, new, None, None, found)
    yield from _moved(ChangeKind.REMOVED, was & is_nowhere, old, None, None, found)
    yield from _moved(ChangeKind.ENTERS_QUARANTINE, was & is_quarantined, new_quarantine, None, new_quarantine, found)
    yield from _moved(ChangeKind.LEAVES_QUARANTINE, was_quarantined & is_row, new, old_quarantine, None, found)
    yield from _moved(
        ChangeKind.ADDED_TO_QUARANTINE, was_nowhere & is_quarantined, new_quarantine, None, new_quarantine, found
    )
    yield from _moved(
        ChangeKind.REMOVED_FROM_QUARANTINE, was_quarantined & is_nowhere, old_quarantine, old_quarantine, None, found
    )
    yield from _changed(ChangeKind.CHANGED, was & is_row, old, new, columns, found)
    stayed = was_quarantined & is_quarantined
    yield from _changed(ChangeKind.OTHER_REASON, stayed, old_quarantine, new_quarantine, ("reason", "parser"), found)


def _moved(
    kind: ChangeKind,
    mask: Bools,
    rows: WindowRows,
    before: WindowRows | None,
    after: WindowRows | None,
    found: Comparison,
) -> Iterator[pa.RecordBatch]:
    """Yield messages that moved between the tables. `rows` holds them; `before` and `after` are the quarantines."""
    positions = np.flatnonzero(mask)
    if not len(positions):
        return
    messages = rows.at(positions)
    _count(kind, messages, found)
    reasons = [None if each is None else each.at(positions).column("reason") for each in (before, after)]
    column = None if before is None and after is None else "reason"
    batch = _differences(messages, kind, column, *reasons)
    _keep_examples(str(kind), batch, found)
    yield batch


def _changed(
    kind: ChangeKind, mask: Bools, old: WindowRows, new: WindowRows, columns: Iterable[str], found: Comparison
) -> Iterator[pa.RecordBatch]:
    positions = np.flatnonzero(mask)
    if not len(positions):
        return
    before, after = old.at(positions), new.at(positions)
    differs = np.zeros(len(positions), bool)
    for name in columns:
        changed = _differ(before.column(name), after.column(name))
        count = int(np.count_nonzero(changed))
        if not count:
            continue
        differs |= changed
        found.columns[name] += count
        chosen = pa.array(np.flatnonzero(changed))
        values = [side.column(name).take(chosen) for side in (before, after)]
        batch = _differences(after.take(chosen), kind, name, *values)
        _keep_examples(name, batch, found)
        yield batch
    found.unchanged += len(positions) - int(np.count_nonzero(differs))
    if differs.any():
        _count(kind, after.filter(pa.array(differs)), found)


def _differ(before: pa.ChunkedArray, after: pa.ChunkedArray) -> Bools:
    """Return where two columns differ. Null equals null, and NaN equals NaN."""
    null_differs = pc.xor(before.is_null(), after.is_null())
    differs = pc.fill_null(pc.not_equal(before, after), False)
    if pa.types.is_floating(before.type):
        both_nan = pc.fill_null(pc.and_(pc.is_nan(before), pc.is_nan(after)), False)
        differs = pc.and_not(differs, both_nan)
    return np.asarray(pc.or_(null_differs, differs))


def _differences(
    messages: pa.Table, kind: ChangeKind, column: str | None, before: Any = None, after: Any = None
) -> pa.RecordBatch:
    n = messages.num_rows
    none = pa.nulls(n, pa.string())
    return (
        pa.Table.from_arrays(
            [
                *(messages.column(name) for name in ("topic", "partition", "offset", "kafka_timestamp")),
                pa.repeat(str(kind), n),
                none if column is None else pa.repeat(column, n),
                none if before is None else _as_text(before),
                none if after is None else _as_text(after),
            ],
            schema=DIFF_SCHEMA,
        )
        .combine_chunks()
        .to_batches()[0]
    )


def _as_text(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_binary(column.type):
        return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.string())
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())


def _count(kind: ChangeKind, messages: pa.Table, found: Comparison) -> None:
    found.messages[str(kind)] += messages.num_rows
    hours = pc.strftime(messages.column("kafka_timestamp"), format="%Y-%m-%dT%H:00Z").fill_null("unknown")
    for each in pc.value_counts(hours.combine_chunks()).to_pylist():
        found.hours.setdefault(each["values"], Counter())[str(kind)] += each["counts"]


def _keep_examples(name: str, batch: pa.RecordBatch, found: Comparison) -> None:
    known = found.examples.setdefault(name, [])
    for row in batch.slice(0, MAX_EXAMPLES - len(known)).to_pylist():
        values = "" if row["column"] is None else f": {_shown(row['before'])} → {_shown(row['after'])}"
        known.append(f"{row['topic']}/{row['partition']}@{row['offset']}{values}")


def _shown(text: str | None) -> str:
    return "null" if text is None else text if len(text) <= 100 else f"{text[:100]}…"
