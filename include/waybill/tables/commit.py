"""The commit: data files and progress in one snapshot, or not at all.

PyIceberg retries a refused append by itself, on top of whatever came in between, and so two drivers that did the same
work would both succeed. Its retries are therefore off here (in memory: a compaction by Spark keeps its own), and after
a refusal this module looks: progress still where the plan starts, so something else was committed (a compaction, a
deletion): commit again; progress moved on: a rival carried out the plan, and there is nothing left to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from sqlalchemy.exc import OperationalError

from waybill.errors import CatalogUnavailable, CommitConflict
from waybill.tables.catalog import available
from waybill.tables.progress import PLAN_PROPERTY, PROGRESS_PROPERTY, Progress, progress_text, read_progress

__all__ = ["Commit", "Outcome", "commit_files"]

log = logging.getLogger(__name__)

_ATTEMPTS = 10
_PAUSE_SECONDS = 0.1


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
    for attempt in range(_ATTEMPTS):
        with available(f"load {name}"):
            table.refresh()
        if _is_done(read_progress(table.metadata, name), commit, name, must_be_at_start):
            return Outcome.ADOPTED
        if _try(table, commit, name):
            return Outcome.COMMITTED
        time.sleep(_PAUSE_SECONDS * min(2**attempt, 32))
    raise CommitConflict(f"table {name}: {_ATTEMPTS} commits were refused, each because another came first; run again")


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
        **commit.properties,
    }
    _switch_retries_off(table)
    try:
        with table.transaction() as transaction, transaction.update_snapshot(properties).fast_append() as append:
            for file in commit.files:
                append.append_data_file(file)
    except CommitFailedException as refused:
        log.info("%s: commit refused, looking again: %s", name, refused)
        return False
    except (CommitStateUnknownException, OperationalError, CatalogUnavailable) as error:
        # It may have been carried out all the same: the next look at the progress tells.
        log.warning("%s: the outcome of a commit is unknown, looking again: %s", name, error)
        return False
    return True


def _switch_retries_off(table: Table) -> None:
    properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
