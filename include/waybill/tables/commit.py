"""Commit data files and progress to a table in one snapshot, or not at all, and retry until the outcome is known.

Every commit is made on top of the snapshot that was loaded. If the table has moved on since, the catalog refuses the
commit, and this module reads the table's progress again:

- Progress is still where the plan starts: another snapshot came first (a compaction, a deletion, a retry of the
  quarantine). Commit again.
- Progress is at the plan's end or beyond: a rival has committed the same plan. Nothing is left to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy.exc import OperationalError
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential

from waybill.errors import CatalogUnavailable, CommitConflict
from waybill.tables.catalog import translate_catalog_errors
from waybill.tables.progress import Progress, progress_text, read_progress, with_watermarks
from waybill.tables.state import PLAN_PROPERTY, PROGRESS_PROPERTY, state_of

__all__ = [
    "Commit",
    "CommitOutcome",
    "commit_files",
    "commit_snapshot",
    "commit_with_retry",
    "copy_state_to_new_snapshot",
]

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


@dataclass(frozen=True, slots=True)
class Commit:
    """Data files to add to a table, and the progress that the table moves to with them."""

    plan: str
    """The id of the plan that was executed."""
    start: Progress
    """The progress that the table must have before the commit."""
    end: Progress
    """The progress that the table has after the commit."""
    files: Sequence[DataFile]
    properties: Mapping[str, str]
    """Further properties of the new snapshot."""


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
    table: Table, properties: Mapping[str, str], *, added: Iterable[DataFile] = (), removed: Iterable[DataFile] = ()
) -> bool:
    """Commit a snapshot with these properties that adds and removes data files, and return whether it is committed.

    Files in `removed` must belong to `table` as it is loaded.

    Returns False when the catalog refused the commit because the table has moved on since it was loaded, and also when
    the outcome is unknown. In both cases refresh the table and check whether it has the changes.

    PyIceberg by itself retries a refused commit on top of any other snapshot, so two writers of the same plan would
    both succeed. This function turns these retries off, in the loaded metadata only: Spark's compactions keep theirs.
    """
    _turn_retries_off(table)
    removed = list(removed)
    try:
        with table.transaction() as transaction:
            update = transaction.update_snapshot(dict(properties))
            with update.overwrite() if removed else update.fast_append() as snapshot:
                for file in removed:
                    snapshot.delete_data_file(file)
                for file in added:
                    snapshot.append_data_file(file)
    except CommitFailedException as refused:
        logger.info("%s: the commit was refused, reading the table again: %s", ".".join(table.name()), refused)
        return False
    except (CommitStateUnknownException, OperationalError, CatalogUnavailable) as error:
        # The catalog may have committed it all the same. The caller finds out when it refreshes the table.
        name = ".".join(table.name())
        logger.warning("%s: the outcome of the commit is unknown, reading the table again: %s", name, error)
        return False
    return True


def commit_files(table: Table, commit: Commit, *, must_be_at_start: bool = True) -> CommitOutcome:
    """Add the files and move the progress in one snapshot, provided that the table's progress is `commit.start`.

    Without `must_be_at_start`, the table's progress may also be older than `commit.start`. The quarantine's is older
    when earlier plans had no rows for it.

    Raises `CommitConflict` when the progress is at neither start nor end, or when every attempt was refused;
    `CatalogUnavailable` when the catalog does not answer.
    """
    name = ".".join(table.name())

    def attempt() -> CommitOutcome | None:
        if _is_done(read_progress(table.metadata, name), commit, name, must_be_at_start):
            return CommitOutcome.ADOPTED
        return CommitOutcome.COMMITTED if _try_commit(table, commit, name) else None

    return commit_with_retry(table, attempt)


def copy_state_to_new_snapshot(table: Table) -> bool:
    """Ensure that the current snapshot holds all of the table's state, and return whether a snapshot was added.

    Call it before older snapshots expire (`waybill.tables.state`). Later commits go on top of the new snapshot, which
    is younger than any snapshot that then expires.

    Raises `CommitConflict` when every attempt was refused, `CatalogUnavailable` when the catalog does not answer.
    """
    tried = False

    def attempt() -> bool | None:
        nonlocal tried
        state = state_of(table.metadata)
        if state.items() <= _current_properties(table.metadata).items():
            return tried
        tried = True
        return True if commit_snapshot(table, state) else None

    return commit_with_retry(table, attempt)


def _is_done(progress: Progress, commit: Commit, name: str, must_be_at_start: bool) -> bool:
    """Return whether a table at `progress` already has what `commit` would add."""
    if progress == commit.start:
        return False
    # Plans of one stream follow each other: each starts where the one before it ends. So a table at the plan's end or
    # beyond has the plan's rows.
    if all(progress.get(tp, -1) >= end for tp, end in commit.end.items()):
        return True
    is_older = all(offset <= commit.start.get(tp, -1) for tp, offset in progress.items())
    if is_older and not must_be_at_start:
        return False
    raise CommitConflict(
        f"table {name} has progress {progress_text(progress)}: neither where plan {commit.plan} starts nor at its end "
        f"or beyond. The table was rolled back, or another program wrote to it, while the plan was executed. Run again"
    )


def _try_commit(table: Table, commit: Commit, name: str) -> bool:
    properties = {
        PROGRESS_PROPERTY: progress_text(commit.end),
        PLAN_PROPERTY: commit.plan,
        **with_watermarks(commit.properties, table.metadata, name),
    }
    return commit_snapshot(table, properties, added=commit.files)


def _turn_retries_off(table: Table) -> None:
    properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})


def _current_properties(metadata: TableMetadata) -> Mapping[str, str]:
    snapshot = metadata.current_snapshot()
    return snapshot.summary.additional_properties if snapshot is not None and snapshot.summary else {}
