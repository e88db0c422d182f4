"""The histories of the unique table and the duplicates table: one that consumers see, and one for each rebuild.

When the rows of the main table were replaced, sweeps rebuild both tables from its present rows: on a branch
`rebuild_<id>` of each, which begins without a parent. At the end, `main` of both tables moves to the branch. A
*history* consists of the snapshots that a rebuild made, and those that sweeps added later; the tables begin with a
history without a name. Every snapshot that a sweep commits names its history, so it is known which one `main` shows.

`TableHistory` is a view of a table that shows only one history, on whichever branch it is. With it, sweeps, the key
index and readers work on a rebuild as they do on `main`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update.snapshot import ManageSnapshots

from waybill.base.errors import CommitConflict
from waybill.config.names import rebuild_ref
from waybill.tables.iceberg.commit import (
    CommitOutcome,
    commit_snapshot,
    commit_transaction,
    commit_with_retry,
    ensure_first_snapshot,
)
from waybill.tables.iceberg.publish import drop_branch, head_of
from waybill.tables.iceberg.state import (
    LIVE_GENERATION_PROPERTY,
    SWEEP_REBUILD_PROPERTY,
    metadata_at,
    newest_property,
)

_REBUILD_REF = re.compile(rebuild_ref(r"([0-9]+_[0-9a-f]{16})"))


class TableHistory(Table):
    """A table whose current snapshot is the newest one of a history, also after a refresh or a commit."""

    def __init__(self, table: Table, history: str | None) -> None:
        """Show `table` at `history`: the id of a rebuild; None: the history with which the table began."""
        self.history_id = history
        super().__init__(table.name(), table.metadata, table.metadata_location, table.io, table.catalog, table.config)

    @property
    def metadata(self) -> TableMetadata:
        """Return the metadata with the history's newest snapshot as the current one; without one if it has ended."""
        return self._seen

    @metadata.setter
    def metadata(self, loaded: TableMetadata) -> None:
        self._ref = self._find_ref(loaded)
        # A reference that does not exist has no snapshot.
        self._seen = metadata_at(loaded, self._ref or rebuild_ref(""))

    @property
    def ref(self) -> str | None:
        """Return the branch that shows the history: `main`, or that of its rebuild; None: it has ended."""
        return self._ref

    def _find_ref(self, loaded: TableMetadata) -> str | None:
        if shown_history(loaded) == self.history_id:
            return MAIN_BRANCH
        branch = None if self.history_id is None else rebuild_ref(self.history_id)
        return branch if branch in loaded.refs else None


def shown_history(metadata: TableMetadata) -> str | None:
    """Return the history that `main` shows: the id of a rebuild; None: the one with which the table began."""
    return newest_property(metadata_at(metadata, MAIN_BRANCH), SWEEP_REBUILD_PROPERTY)


def rebuilds_of(metadata: TableMetadata) -> list[str]:
    """Return the ids of the rebuilds that have a branch, in a fixed order."""
    return sorted(match[1] for ref in metadata.refs if (match := _REBUILD_REF.fullmatch(ref)) is not None)


def new_rebuild(generation: int) -> str:
    """Return the id of a new rebuild of the rows of a generation.

    It is random: the remains of an abandoned rebuild must not be mixed with another one, even if the same generation is
    promoted again.
    """
    return f"{generation}_{uuid.uuid4().hex[:16]}"


def generation_of_rebuild(rebuild: str) -> int:
    """Return the generation whose rows a rebuild sweeps."""
    return int(rebuild.partition("_")[0])


def begin_history(table: TableHistory, is_needed: Callable[[], bool] = lambda: True) -> bool:
    """Create the branch of a rebuild, without rows, unless it exists; return False if it is not needed any more.

    `is_needed` is called with the table just loaded.

    Raises `CommitConflict` when every attempt was refused, `CatalogUnavailable` when the catalog does not answer.
    """
    assert table.history_id is not None
    branch, properties = rebuild_ref(table.history_id), {SWEEP_REBUILD_PROPERTY: table.history_id}

    def attempt() -> bool | None:
        if not is_needed():
            return False
        if table.ref is not None:
            return True
        if not ensure_first_snapshot(table):
            return None
        return True if commit_snapshot(table, properties, branch=branch) else None

    return commit_with_retry(table, attempt, "changes of a branch")


def publish_history(table: TableHistory) -> CommitOutcome:
    """Move `main` to the branch of a rebuild, and remove the branch.

    Raises `CommitConflict` when the branch does not exist or every attempt was refused, `CatalogUnavailable`.
    """
    assert table.history_id is not None
    history, branch = table.history_id, rebuild_ref(table.history_id)

    def attempt() -> CommitOutcome | None:
        if table.ref == MAIN_BRANCH:
            return CommitOutcome.ADOPTED
        head = head_of(table.metadata, branch)
        if head is None:
            raise CommitConflict(
                f"table {'.'.join(table.name())} has no branch {branch} any more: another process has given up this "
                f"rebuild. Run again"
            )

        def move(transaction: Transaction) -> None:
            with ManageSnapshots(transaction) as refs:
                refs.create_branch(head.snapshot_id, MAIN_BRANCH)  # asserts that `main` is still where it was read
                refs.remove_branch(branch)  # asserts that it is still there
            transaction.set_properties({LIVE_GENERATION_PROPERTY: str(generation_of_rebuild(history))})

        return CommitOutcome.COMMITTED if commit_transaction(table, move) else None

    return commit_with_retry(table, attempt)


def drop_histories(table: Table, keep: Sequence[str | None] = ()) -> list[str]:
    """Remove the branches of all rebuilds except `keep`, and return the ids of the removed ones."""
    found = [rebuild for rebuild in rebuilds_of(table.metadata) if rebuild not in keep]
    return [rebuild for rebuild in found if drop_branch(table, rebuild_ref(rebuild))]
