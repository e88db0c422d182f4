"""State that snapshots hold, carried on into a new one, so that no expiry of older snapshots can lose it.

State is found in the ancestry of the current snapshot (see `waybill.tables.state`), and expiring snapshots cuts that
off. So before it, all state goes into a fresh snapshot that changes nothing else, by the same optimistic commit as
everything: refused if somebody else committed in between, and then looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from waybill.tables.snapshot import commit_snapshot, until_committed
from waybill.tables.state import state_of

__all__ = ["carry_state_on"]


def carry_state_on(table: Table) -> bool:
    """See to it that the table's current snapshot holds all state by itself. False: it did already.

    Whatever commits after this may go on top of that snapshot, which is then still younger than any that is expired.

    Raises `CommitConflict` when others commit faster than this can, `CatalogUnavailable` when the catalog does not
    answer.
    """
    tried = False

    def attempt() -> bool | None:
        nonlocal tried
        state = state_of(table.metadata)
        if state.items() <= _current(table.metadata).items():
            return tried
        tried = True
        return True if commit_snapshot(table, state) else None

    return until_committed(table, attempt)


def _current(metadata: TableMetadata) -> Mapping[str, str]:
    snapshot = metadata.current_snapshot()
    return snapshot.summary.additional_properties if snapshot is not None and snapshot.summary else {}
