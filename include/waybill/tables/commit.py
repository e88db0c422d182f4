"""The commit: data files and progress in one snapshot, or not at all.

A commit on top of a snapshot that is no longer the table's is refused. Then this module looks: progress still where
the plan starts, so something else was committed (a compaction, a deletion, a retry of the quarantine): commit again;
progress moved on: a rival carried out the plan, and there is nothing left to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.errors import CommitConflict
from waybill.tables.progress import Progress, progress_text, read_progress
from waybill.tables.snapshot import commit_snapshot, until_committed
from waybill.tables.state import PLAN_PROPERTY, PROGRESS_PROPERTY
from waybill.tables.watermarks import with_watermarks

__all__ = ["Commit", "Outcome", "commit_files"]


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
