"""Make another generation of a stream live: `main` and the table property with its generation change in one commit.

The generation that was live continues on its own branch, with its progress. So the same step can make it live again,
with everything that its runs have published since then.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update.snapshot import ManageSnapshots

from waybill.config.names import generation_of_ref, generation_ref
from waybill.tables.iceberg.commit import commit_snapshot, commit_transaction, commit_with_retry, ensure_first_snapshot
from waybill.tables.iceberg.publish import head_of
from waybill.tables.iceberg.state import LIVE_GENERATION_PROPERTY


def live_generation(table: Table) -> int | None:
    """Return the generation whose rows `main` shows; None for an earlier version's table that no run has adopted."""
    text = table.metadata.properties.get(LIVE_GENERATION_PROPERTY)
    return None if text is None else int(text)


def generations_of(table: Table) -> dict[int, str]:
    """Return the branch of each generation that the table holds, by generation, in their order."""
    live = live_generation(table)
    found = {} if live is None else {live: MAIN_BRANCH}
    found |= {generation: ref for ref in table.metadata.refs if (generation := generation_of_ref(ref)) is not None}
    return dict(sorted(found.items()))


def make_live(table: Table, generation: int, check: Callable[[], None] = lambda: None) -> bool:
    """Ensure that `main` shows a generation, and return whether that changed anything.

    A generation without a branch has no rows in this table: then `main` becomes empty. `check` is called before each
    attempt that would change something; it raises if the change is not allowed any more.

    Raises `CommitConflict` when every attempt was refused, `CatalogUnavailable` when the catalog does not answer.
    """
    changed = False

    def attempt() -> bool | None:
        nonlocal changed
        live = live_generation(table)
        if live == generation:
            return True
        check()
        assert live is not None  # `ensure_tables` records it before any branch exists
        ref = generation_ref(generation)
        shown, wanted = head_of(table.metadata, MAIN_BRANCH), head_of(table.metadata, ref)
        if shown is None:
            ensure_first_snapshot(table)
            return None
        if wanted is None:
            commit_snapshot(table, {}, branch=ref)
            return None

        def swap(transaction: Transaction) -> None:
            with ManageSnapshots(transaction) as refs:
                refs.create_branch(wanted.snapshot_id, MAIN_BRANCH)
                refs.create_branch(shown.snapshot_id, generation_ref(live))
                refs.remove_branch(ref)
            transaction.set_properties({LIVE_GENERATION_PROPERTY: str(generation)})

        changed = True
        return True if commit_transaction(table, swap) else None

    commit_with_retry(table, attempt, "changes of the live generation")
    return changed
