"""The rows of a quarantine, counted by why, by whom and where."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from waybill.partition.refused import OTHER, kinds
from waybill.quarantine.choice import Choice
from waybill.quarantine.view import View

__all__ = ["Group", "Place", "summarize"]

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
