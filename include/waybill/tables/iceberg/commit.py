"""Commit data files and progress to a table in one snapshot, or not at all, and retry until the outcome is known.

Every commit is made on top of the snapshot that was loaded. If the table has moved on since, the catalog refuses the
commit, and the caller's attempt reads the table again and decides whether anything is left to commit.
`waybill.tables.iceberg.publish` uses this for runs that write to a branch first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential

from waybill.base.errors import CatalogUnavailable, CommitConflict
from waybill.tables.iceberg.catalog import NO_ANSWER, translate_catalog_errors
from waybill.tables.iceberg.state import metadata_at, state_of

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_ATTEMPTS = 10
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 3.2


class CommitOutcome(StrEnum):
    """How a commit ended."""

    COMMITTED = "committed"
    ADOPTED = "adopted"
    """Another process had committed the same plan."""


def commit_with_retry(table: Table, attempt: Callable[[], _T | None], what: str = "commits") -> _T:
    """Return the result of `attempt`, which is called again with exponential backoff while it returns None.

    `attempt` returns None when the catalog refused its commit. `table` is refreshed before each call, so an attempt
    first checks whether anything is left to commit. `what` names the refused changes in the error message.

    Raises `CommitConflict` when every attempt was refused, `CatalogUnavailable` when the catalog does not answer, and
    the errors of `attempt`.
    """
    name = ".".join(table.name())

    def refresh_and_attempt() -> _T | None:
        with translate_catalog_errors(f"load {name}"):
            table.refresh()
        return attempt()

    def give_up(_: RetryCallState) -> None:
        raise CommitConflict(
            f"table {name}: {_ATTEMPTS} {what} were refused, each because another came first; run again"
        )

    retrying = Retrying(
        retry=retry_if_result(lambda outcome: outcome is None),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_SECONDS, max=_LONGEST_PAUSE_SECONDS),
        retry_error_callback=give_up,
    )
    outcome = retrying(refresh_and_attempt)
    assert outcome is not None
    return outcome


def commit_snapshot(
    table: Table,
    properties: Mapping[str, str],
    *,
    added: Iterable[DataFile] = (),
    removed: Iterable[DataFile] = (),
    branch: str = MAIN_BRANCH,
) -> bool:
    """Commit a snapshot with these properties that adds and removes data files, and return whether it is committed.

    The snapshot becomes the head of `branch`. Files in `removed` must belong to that branch in the loaded `table`.
    Returns False as `commit_transaction` does.
    """
    removed = list(removed)

    def stage(transaction: Transaction) -> None:
        stage_snapshot(transaction, properties, branch, added=added, removed=removed, is_append=not removed)

    return commit_transaction(table, stage)


def stage_snapshot(
    transaction: Transaction,
    properties: Mapping[str, str],
    branch: str,
    *,
    added: Iterable[DataFile] = (),
    removed: Iterable[DataFile] = (),
    is_append: bool,
) -> None:
    """Add a snapshot to a transaction, which becomes the head of `branch`.

    `is_append`: the snapshot adds rows that the table did not have. Sweeps read only the files of such snapshots.
    """
    update = transaction.update_snapshot(dict(properties), branch=branch)
    with update.fast_append() if is_append else update.overwrite() as snapshot:
        for file in removed:
            snapshot.delete_data_file(file)
        for file in added:
            snapshot.append_data_file(file)


def assert_head(refs: ManageSnapshots, branch: str, head: Snapshot) -> None:
    """Let the commit fail unless `head` is still the head of the branch.

    A reference that is set to its present snapshot changes nothing. PyIceberg keeps only the first assertion about a
    reference in a transaction, so this must come first.
    """
    refs.create_branch(head.snapshot_id, branch)


def ensure_first_snapshot(table: Table) -> bool:
    """Return whether `main` of the loaded table has a snapshot. If not, try to commit an empty one.

    PyIceberg writes the first snapshot of a table to `main` only. So an attempt that is to write to a branch of a new
    table calls this first, and gives up if it returns False: the next attempt finds the snapshot.
    """
    if MAIN_BRANCH in table.metadata.refs:
        return True
    commit_snapshot(table, {})
    return False


def ensure_property(table: Table, name: str, value: str) -> None:
    """Ensure that the table has a property. An existing value is kept.

    Raises `CommitConflict` when every attempt was refused, `CatalogUnavailable` when the catalog does not answer.
    """

    def attempt() -> bool | None:
        if name in table.metadata.properties:
            return True
        return True if commit_transaction(table, lambda changes: changes.set_properties({name: value})) else None

    if name not in table.metadata.properties:
        commit_with_retry(table, attempt, "changes of its properties")


def commit_transaction(table: Table, stage: Callable[[Transaction], object]) -> bool:
    """Commit the changes that `stage` adds to a transaction of `table`, and return whether they are committed.

    Returns False when the catalog refused the commit because the table has moved on since it was loaded, and also when
    the outcome is unknown. In both cases refresh the table and check whether it has the changes.

    PyIceberg by itself retries a refused commit on top of any other snapshot, so two writers of the same plan would
    both succeed. This function turns these retries off, in the loaded metadata only: Spark's compactions keep theirs.
    """
    _turn_retries_off(table)
    try:
        with table.transaction() as transaction:
            stage(transaction)
    except CommitFailedException as refused:
        logger.info("%s: the commit was refused, reading the table again: %s", ".".join(table.name()), refused)
        return False
    except (*NO_ANSWER, CatalogUnavailable) as error:
        # The catalog may have committed it nevertheless. The caller checks this when it refreshes the table.
        name = ".".join(table.name())
        logger.warning("%s: the outcome of the commit is unknown, reading the table again: %s", name, error)
        return False
    return True


def copy_state_to_new_snapshot(table: Table, branch: str = MAIN_BRANCH) -> bool:
    """Ensure that the head of a branch holds all of its state, and return whether a snapshot was added.

    Call it before older snapshots expire (`waybill.tables.iceberg.state`). Later commits go on top of the new snapshot,
    which is younger than any snapshot that then expires.

    Raises `CommitConflict` when every attempt was refused, `CatalogUnavailable` when the catalog does not answer.
    """
    tried = False

    def attempt() -> bool | None:
        nonlocal tried
        metadata = metadata_at(table.metadata, branch)
        state = state_of(metadata)
        if state.items() <= _current_properties(metadata).items():
            return tried
        tried = True
        return True if commit_snapshot(table, state, branch=branch) else None

    return commit_with_retry(table, attempt)


def _turn_retries_off(table: Table) -> None:
    properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})


def _current_properties(metadata: TableMetadata) -> Mapping[str, str]:
    snapshot = metadata.current_snapshot()
    return snapshot.summary.additional_properties if snapshot is not None and snapshot.summary else {}
