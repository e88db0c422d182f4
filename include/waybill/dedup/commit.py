"""The commit of a sweep: rows and how far the stream's table was swept, in one snapshot of either table, or not at all.

As `waybill.tables.commit` does it for a partition run: refused on top of a snapshot that is no longer the table's, this
looks again. Still where the plan starts: somebody else's compaction came first, once more. At the plan's end or beyond:
a rival carried out the plan, and there is nothing left to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.dedup.gained import Point
from waybill.dedup.plan import SweepPlan
from waybill.dedup.staged import StagedSweep
from waybill.errors import CommitConflict
from waybill.tables import Outcome, commit_snapshot, until_committed
from waybill.tables.dedup import (
    DUPLICATES_PROPERTY,
    ROWS_PROPERTY,
    Swept,
    read_swept,
    sweep_properties,
    swept_text,
)
from waybill.tables.state import PLAN_PROPERTY, SWEPT_PROPERTY, ancestry

__all__ = ["commit_duplicates", "commit_unique", "point_of_sweep"]


def commit_duplicates(table: Table, plan: SweepPlan, staged: StagedSweep) -> Outcome:
    """Add the duplicates of a sweep. The table may be further behind than the plan's start: not each sweep has any.

    Raises `CommitConflict`, `CatalogUnavailable`.
    """
    assert staged.state.swept is not None
    properties = {
        SWEPT_PROPERTY: swept_text(staged.state.swept),
        DUPLICATES_PROPERTY: str(staged.duplicates),
        **_origin(plan, staged),
    }
    return _commit(table, plan, properties, staged.duplicate_files, must_be_at_start=False)


def commit_unique(table: Table, plan: SweepPlan, staged: StagedSweep) -> Outcome:
    """Add the rows of a sweep, and the state after it. Raises `CommitConflict`, `CatalogUnavailable`."""
    properties = {
        **sweep_properties(staged.state),
        ROWS_PROPERTY: str(staged.rows),
        DUPLICATES_PROPERTY: str(staged.duplicates),
        **_origin(plan, staged),
    }
    return _commit(table, plan, properties, staged.unique_files, must_be_at_start=True)


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
    return {PLAN_PROPERTY: plan.id, "waybill.stream": plan.stream, "waybill.run": staged.run_id}


def _commit(
    table: Table, plan: SweepPlan, properties: Mapping[str, str], files: Sequence[DataFile], *, must_be_at_start: bool
) -> Outcome:
    name = ".".join(table.name())

    def attempt() -> Outcome | None:
        if _is_done(read_swept(table.metadata, name), plan, name, must_be_at_start):
            return Outcome.ADOPTED
        return Outcome.COMMITTED if commit_snapshot(table, properties, added=files) else None

    return until_committed(table, attempt)


def _is_done(found: Swept | None, plan: SweepPlan, name: str, must_be_at_start: bool) -> bool:
    """Whether a table that says `found` has what is to be committed."""
    sequence = 0 if found is None else found.sequence
    if found is None or found.main == plan.main:
        if sequence == plan.start.sequence:
            return False
        # Sweeps of one table follow each other, each from where one before it ended.
        if sequence >= plan.end.sequence:
            return True
        if sequence < plan.start.sequence and not must_be_at_start:
            return False
    raise CommitConflict(
        f"table {name} is swept through {'nothing' if found is None else found}, neither where plan {plan.key} starts "
        f"nor at its end or beyond: it was rolled back, or written by somebody else, while the plan was carried out. "
        f"Run again"
    )
