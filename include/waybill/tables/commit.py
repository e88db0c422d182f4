"""One snapshot, on top of the one that was looked at, or none; and looking again until there is one.

The commit: data files and progress in one snapshot, or not at all.

A commit on top of a snapshot that is no longer the table's is refused. Then this module looks: progress still where
the plan starts, so something else was committed (a compaction, a deletion, a retry of the quarantine): commit again;
progress moved on: a rival carried out the plan, and there is nothing left to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy.exc import OperationalError

from waybill.errors import CatalogUnavailable, CommitConflict
from waybill.tables.catalog import available
from waybill.tables.progress import Progress, progress_text, read_progress, with_watermarks
from waybill.tables.state import PLAN_PROPERTY, PROGRESS_PROPERTY, state_of

__all__ = ["Commit", "Outcome", "carry_state_on", "commit_files", "commit_snapshot", "until_committed"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_ATTEMPTS = 10
_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE = 32  # times the first


def until_committed(table: Table, attempt: Callable[[], _T | None], what: str = "commits") -> _T:
    """What `attempt` gives when it has committed, or seen that there is nothing to commit; None: refused, look again.

    `attempt` is called with `table` just refreshed, and longer and longer after each refusal. `what` it is that was
    refused goes into the message.

    Raises `CommitConflict` when others commit faster than this can, `CatalogUnavailable` when the catalog does not
    answer, and what `attempt` raises.
    """
    name = ".".join(table.name())
    for number in range(_ATTEMPTS):
        with available(f"load {name}"):
            table.refresh()
        outcome = attempt()
        if outcome is not None:
            return outcome
        time.sleep(_PAUSE_SECONDS * min(2**number, _LONGEST_PAUSE))
    raise CommitConflict(f"table {name}: {_ATTEMPTS} {what} were refused, each because another came first; run again")


def commit_snapshot(
    table: Table, properties: Mapping[str, str], *, added: Iterable[DataFile] = (), removed: Iterable[DataFile] = ()
) -> bool:
    """Commit a snapshot of these properties that adds and removes files; `removed` must be in `table` as it is loaded.

    False: refused, since the table has moved on from what was loaded, or the outcome is unknown. Either way: refresh
    the table, and look whether it has what was to be committed.

    PyIceberg retries a refused commit by itself, on top of whatever came in between, so that two writers that did the
    same would both succeed. Its retries are off here, in memory: a compaction by Spark keeps its own.
    """
    _switch_retries_off(table)
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
        logger.info("%s: commit refused, looking again: %s", ".".join(table.name()), refused)
        return False
    except (CommitStateUnknownException, OperationalError, CatalogUnavailable) as error:
        # It may have been carried out all the same: the next look at the table tells.
        logger.warning("%s: the outcome of a commit is unknown, looking again: %s", ".".join(table.name()), error)
        return False
    return True


def _switch_retries_off(table: Table) -> None:
    properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})


class Outcome(StrEnum):
    """How a commit ended."""

    COMMITTED = "committed"
    ADOPTED = "adopted"
    """Somebody else had committed the same plan."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What is to be committed: files, and the progress that they make, from `start` to `end`."""

    plan: str
    start: Progress
    end: Progress
    files: Sequence[DataFile]
    properties: Mapping[str, str]
    """Further properties of the snapshot."""


def commit_files(table: Table, commit: Commit, *, must_be_at_start: bool = True) -> Outcome:
    """Add the files to the table, and its progress, in one snapshot; refused if the progress is not `commit.start`.

    Without `must_be_at_start` the table's progress may also be older, as the quarantine's is when the plans before had
    nothing for it.

    Raises `CommitConflict` when the progress is at none of these, or others commit faster than this one can;
    `CatalogUnavailable` when the catalog does not answer.
    """
    name = ".".join(table.name())

    def attempt() -> Outcome | None:
        if _is_done(read_progress(table.metadata, name), commit, name, must_be_at_start):
            return Outcome.ADOPTED
        return Outcome.COMMITTED if _try(table, commit, name) else None

    return until_committed(table, attempt)


def _is_done(found: Progress, commit: Commit, name: str, must_be_at_start: bool) -> bool:
    """Whether a table at progress `found` has what is to be committed."""
    if found == commit.start:
        return False
    # Runs of one stream follow each other, each from where one before it ended: at its end or beyond, this one is done.
    if all(found.get(tp, -1) >= end for tp, end in commit.end.items()):
        return True
    is_older = all(offset <= commit.start.get(tp, -1) for tp, offset in found.items())
    if is_older and not must_be_at_start:
        return False
    raise CommitConflict(
        f"table {name} is at {progress_text(found)}, neither where plan {commit.plan} starts nor at its end or beyond: "
        f"it was rolled back, or written by somebody else, while the plan was carried out. Run again"
    )


def _try(table: Table, commit: Commit, name: str) -> bool:
    properties = {
        PROGRESS_PROPERTY: progress_text(commit.end),
        PLAN_PROPERTY: commit.plan,
        **with_watermarks(commit.properties, table.metadata, name),
    }
    return commit_snapshot(table, properties, added=commit.files)


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
