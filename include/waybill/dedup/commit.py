"""The commit of a sweep: rows and how far the stream's table was swept, in one snapshot of either table, or not at all.

As `waybill.tables.commit` does it for a partition run: refused on top of a snapshot that is no longer the table's, this
looks again. Still where the plan starts: somebody else's compaction came first, once more. At the plan's end or beyond:
a rival carried out the plan, and there is nothing left to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.table import Table

from waybill.dedup.appends import Point
from waybill.dedup.plan import SweepPlan
from waybill.dedup.staged import StagedSweep
from waybill.errors import CommitConflict, SweepHistoryLost
from waybill.tables import DedupTables, Outcome, commit_snapshot, until_committed
from waybill.tables.dedup import (
    DUPLICATES_PROPERTY,
    ROWS_PROPERTY,
    Swept,
    read_swept,
    sweep_properties,
    swept_text,
)
from waybill.tables.state import PLAN_PROPERTY, RUN_PROPERTY, SWEPT_PROPERTY, ancestry, as_of

__all__ = ["commit_duplicates", "commit_unique", "is_committed", "point_of_sweep"]


def commit_duplicates(tables: DedupTables, plan: SweepPlan, staged: StagedSweep) -> Outcome:
    """Add the duplicates of a sweep. The table may be further behind than the plan's start: not each sweep has any.

    To be called if there are none, too: what another plan has left beyond its start must not become final with this.

    Raises `SweepHistoryLost` when there is such; `CommitConflict`, `CatalogUnavailable`.
    """
    assert staged.state.swept is not None
    table = tables.duplicates
    properties = {
        SWEPT_PROPERTY: swept_text(staged.state.swept),
        DUPLICATES_PROPERTY: str(staged.duplicates),
        **_origin(plan, staged),
    }

    def attempt() -> Outcome | None:
        beyond = list(_beyond(table, plan))
        of_plan = [found for found in beyond if found.swept.sequence <= plan.end.sequence]
        if not all(_is_of(found, properties) for found in of_plan) or (beyond and not of_plan and staged.duplicates):
            _check_overtaken(tables, plan, beyond[-1].swept)
            return Outcome.ADOPTED
        if of_plan or not staged.duplicates:
            return Outcome.ADOPTED
        return Outcome.COMMITTED if commit_snapshot(table, properties, added=staged.duplicate_files) else None

    return until_committed(table, attempt)


def commit_unique(table: Table, plan: SweepPlan, staged: StagedSweep) -> Outcome:
    """Add the rows of a sweep, and the state after it. Raises `CommitConflict`, `CatalogUnavailable`."""
    properties = {
        **sweep_properties(staged.state),
        ROWS_PROPERTY: str(staged.rows),
        DUPLICATES_PROPERTY: str(staged.duplicates),
        **_origin(plan, staged),
    }

    def attempt() -> Outcome | None:
        if is_committed(table, plan):
            return Outcome.ADOPTED
        return Outcome.COMMITTED if commit_snapshot(table, properties, added=staged.unique_files) else None

    return until_committed(table, attempt)


def is_committed(unique: Table, plan: SweepPlan) -> bool:
    """Whether the unique table, as it is loaded, has a plan's rows; False: it is where the plan starts.

    Raises `CommitConflict` when it is neither.
    """
    name = ".".join(unique.name())
    found = read_swept(unique.metadata, name)
    sequence = 0 if found is None else found.sequence
    if found is None or found.main == plan.main:
        if sequence == plan.start.sequence:
            return False
        # Sweeps of one table follow each other, each from where one before it ended.
        if sequence >= plan.end.sequence:
            return True
    raise CommitConflict(
        f"table {name} is swept through {'nothing' if found is None else found}, neither where plan {plan.key} starts "
        f"nor at its end or beyond: it was rolled back, or written by somebody else, while the plan was carried out. "
        f"Run again"
    )


def point_of_sweep(unique: Table, swept: Swept) -> Point | None:
    """The snapshot that a sweep committed; None: it is not in the table's history any more."""
    text = swept_text(swept)
    found = [
        Point(snapshot.snapshot_id, snapshot.sequence_number or 0)
        for snapshot in ancestry(unique.metadata)
        if snapshot.summary and snapshot.summary.additional_properties.get(SWEPT_PROPERTY) == text
    ]
    # Later ones may repeat it, before older snapshots expire.
    return min(found, key=lambda point: point.sequence, default=None)


def _origin(plan: SweepPlan, staged: StagedSweep) -> dict[str, str]:
    return {PLAN_PROPERTY: plan.id, "waybill.stream": plan.stream, RUN_PROPERTY: staged.run_id}


@dataclass(frozen=True, slots=True)
class _Found:
    """What a snapshot of the duplicates says of the sweep that it is of."""

    swept: Swept
    properties: Mapping[str, str]


def _beyond(duplicates: Table, plan: SweepPlan) -> Iterator[_Found]:
    """The sweeps beyond the plan's start whose duplicates the table has, the last one first."""
    name = ".".join(duplicates.name())
    for snapshot in ancestry(duplicates.metadata):
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        if SWEPT_PROPERTY not in properties:
            continue
        swept = read_swept(as_of(duplicates.metadata, snapshot), name)
        if swept is None or (swept.main == plan.main and swept.sequence <= plan.start.sequence):
            return
        yield _Found(swept, properties)


def _is_of(found: _Found, properties: Mapping[str, str]) -> bool:
    """Whether it is of the very run with these properties, and not what another plan of the same start came to."""
    # An older Waybill, when it carried the state on before snapshots expired, left out which run it was.
    is_run = found.properties.get(RUN_PROPERTY) in (None, properties[RUN_PROPERTY])
    return is_run and found.properties[SWEPT_PROPERTY] == properties[SWEPT_PROPERTY]


def _check_overtaken(tables: DedupTables, plan: SweepPlan, found: Swept) -> None:
    """Raise unless the unique table is as far as the duplicates: then others have gone on, and theirs count."""
    tables.unique.refresh()  # after the duplicates, which are committed first
    if is_committed(tables.unique, plan):
        return
    name = ".".join(tables.duplicates.name())
    raise SweepHistoryLost(
        f"table {name} has the duplicates of a sweep through snapshot {found.snapshot} (sequence number "
        f"{found.sequence}), and {'.'.join(tables.unique.name())} knows nothing of it, nor does plan {plan.key}: one "
        f"of the two was rolled back or dropped, or the plan was removed. Roll {name} back to its last snapshot whose "
        f"{SWEPT_PROPERTY} has a sequence number of {plan.start.sequence} or less, or drop both, and the next sweep "
        f"starts from what the main table holds now"
    )
