"""A table's state: what its snapshots say beside its rows.

State is kept in properties of snapshots, so that it moves in the same atomic commit as the rows that it speaks of. A
snapshot need not repeat it: those of others (a compaction, a deletion) do not, and a commit of ours writes what it
moves. So each property is read from the newest snapshot in the current one's ancestry that has it. A table that is
rolled back goes back to the state of that time.

Whoever is about to expire snapshots first writes `state_of` into a fresh one, or the state goes with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from waybill.errors import ProgressLost

__all__ = [
    "LEFT_OUT_PROPERTY",
    "PLAN_PROPERTY",
    "PROGRESS_PROPERTY",
    "RETRIES_PROPERTY",
    "RUN_PROPERTY",
    "STATE_PROPERTIES",
    "SWEEP_BEGINNING_PROPERTY",
    "SWEEP_HORIZON_PROPERTY",
    "SWEEP_WATERMARKS_PROPERTY",
    "SWEPT_PROPERTY",
    "WATERMARKS_PROPERTY",
    "ancestry",
    "as_of",
    "newest_property",
    "newest_with",
    "read_retries",
    "state_of",
]

PROGRESS_PROPERTY = "waybill.progress"
"""How far each chain was turned into rows: `waybill.tables.progress`."""
RETRIES_PROPERTY = "waybill.retries"
"""How many retries of the quarantine the table has taken part in: `read_retries`."""
WATERMARKS_PROPERTY = "waybill.watermarks"
"""How far each topic-partition's Kafka timestamps have come: `waybill.tables.progress`."""

SWEPT_PROPERTY = "waybill.swept"
"""Of the tables that dedup sweeps fill: up to where the main table was swept. See `waybill.tables.dedup`."""

STATE_PROPERTIES = (PROGRESS_PROPERTY, RETRIES_PROPERTY, WATERMARKS_PROPERTY, SWEPT_PROPERTY)

PLAN_PROPERTY = "waybill.plan"
RUN_PROPERTY = "waybill.run"
LEFT_OUT_PROPERTY = "waybill.left_out"
SWEEP_WATERMARKS_PROPERTY = "waybill.sweep.watermarks"
SWEEP_HORIZON_PROPERTY = "waybill.sweep.horizon"
SWEEP_BEGINNING_PROPERTY = "waybill.sweep.beginning"

_BESIDE = {
    PROGRESS_PROPERTY: (PLAN_PROPERTY, LEFT_OUT_PROPERTY),
    SWEPT_PROPERTY: (
        SWEEP_WATERMARKS_PROPERTY,
        SWEEP_HORIZON_PROPERTY,
        SWEEP_BEGINNING_PROPERTY,
        PLAN_PROPERTY,
        RUN_PROPERTY,
    ),
}
"""These mean something only beside the state that they were committed with."""


def newest_with(metadata: TableMetadata, name: str) -> Mapping[str, str] | None:
    """The properties of the newest snapshot in the current one's ancestry that has the property; None: none has."""
    for snapshot in ancestry(metadata):
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        if name in properties:
            return properties
    return None


def newest_property(metadata: TableMetadata, name: str) -> str | None:
    """The property's newest value in the table's history; None: it has none."""
    properties = newest_with(metadata, name)
    return None if properties is None else properties[name]


def state_of(metadata: TableMetadata) -> dict[str, str]:
    """All that a fresh snapshot must repeat so that nothing is lost when the others expire."""
    state = {}
    for name in STATE_PROPERTIES:
        properties = newest_with(metadata, name)
        if properties is not None:
            state[name] = properties[name]
            state |= {beside: properties[beside] for beside in _BESIDE.get(name, ()) if beside in properties}
    return state


def read_retries(metadata: TableMetadata, table: str) -> int:
    """How many retries of the quarantine a table has taken part in: they are numbered from 0 on.

    Raises `ProgressLost` when that is not a number.
    """
    text = newest_property(metadata, RETRIES_PROPERTY)
    if text is None:
        return 0
    if not text.isdecimal():
        raise ProgressLost(f"table {table}: {RETRIES_PROPERTY} is {text!r}: somebody else wrote it, or a newer Waybill")
    return int(text)


def as_of(metadata: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """The table as if a snapshot were its current one: what its state was then is read as any state is."""
    return metadata.model_copy(update={"current_snapshot_id": snapshot.snapshot_id})


def ancestry(metadata: TableMetadata) -> Iterator[Snapshot]:
    """The current snapshot and those that it was made from, as far as they are there still, newest first."""
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
