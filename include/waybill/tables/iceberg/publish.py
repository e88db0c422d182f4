"""Write the files of a plan to a branch of a table, and publish the branch by moving the reference that readers see.

A plan's files and its progress are in one snapshot. The run that executes the plan first adds this snapshot to a
separate branch. After the audit, `publish` moves the *target*, which is `main` for the live generation, to that
snapshot by compare-and-swap. Until then, readers of the target see neither rows nor progress of the plan.

The target may move in the meantime: a compaction, a deletion, a retry of the quarantine, a person's rollback. PyIceberg
checks no ancestry, so publishing the branch unchanged would silently undo these. So both functions compare the parent
of the branch's snapshot with the head of the target, and build the branch again on top of the target if they differ.
The files stay the same, so the result of the audit is still valid.

Every change asserts the head of the target that was read. So a process that was frozen, and wakes up after the plan was
published, cannot leave a branch behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots

from waybill.base.errors import CommitConflict
from waybill.config.names import generation_ref
from waybill.tables.iceberg.commit import (
    CommitOutcome,
    assert_head,
    commit_transaction,
    commit_with_retry,
    ensure_first_snapshot,
    stage_snapshot,
)
from waybill.tables.iceberg.progress import Progress, progress_text, read_progress, with_watermarks
from waybill.tables.iceberg.state import LIVE_GENERATION_PROPERTY, PLAN_PROPERTY, PROGRESS_PROPERTY, metadata_at


@dataclass(frozen=True, slots=True)
class Commit:
    """Data files to add to a table, and the progress that the table moves to with them."""

    plan: str
    """The id of the plan that was executed."""
    branch: str
    """The branch that holds the files until they are published."""
    start: Progress
    """The progress that the target must have before the commit."""
    end: Progress
    """The progress that the target has after the commit."""
    files: Sequence[DataFile]
    properties: Mapping[str, str]
    """Further properties of the new snapshot."""
    target: str = MAIN_BRANCH
    """The branch that readers see, or the branch of a generation that is not live."""
    must_be_at_start: bool = True
    """False: the target's progress may also be older than `start`, as in the quarantine when earlier plans had no rows
    for it."""


def target_of(metadata: TableMetadata, generation: int) -> str:
    """Return the branch that runs of a generation publish to: `main` if it is live, else a branch of the generation."""
    live = metadata.properties.get(LIVE_GENERATION_PROPERTY)
    return MAIN_BRANCH if live is None or live == str(generation) else generation_ref(generation)


def is_live(metadata: TableMetadata, generation: int) -> bool:
    """Return whether `main` shows the rows of a generation."""
    return target_of(metadata, generation) == MAIN_BRANCH


def head_of(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """Return the newest snapshot of a branch; None if the branch does not exist, or has no snapshot."""
    ref = metadata.refs.get(branch)
    return None if ref is None else metadata.snapshot_by_id(ref.snapshot_id)


def stage_on_branch(table: Table, commit: Commit) -> Snapshot | None:
    """Ensure that the branch holds the files and the progress on top of the target, and return its snapshot.

    Returns None if the target already has both.

    Raises `CommitConflict` when the target's progress is at neither start nor end, or when every attempt was refused;
    `CatalogUnavailable` when the catalog does not answer.
    """
    staged: list[Snapshot] = []

    def attempt() -> bool | None:
        if _is_published(table, commit):
            return True
        snapshot = _stage(table, commit)
        if snapshot is None:
            return None
        staged.append(snapshot)
        return True

    commit_with_retry(table, attempt, "changes of a branch")
    return staged[-1] if staged else None


def publish(table: Table, commit: Commit) -> CommitOutcome:
    """Move the target to the branch's snapshot, and remove the branch. `stage_on_branch` need not have been called.

    Raises as `stage_on_branch` does.
    """

    def attempt() -> CommitOutcome | None:
        if _is_published(table, commit):
            return CommitOutcome.ADOPTED
        snapshot = _stage(table, commit)
        if snapshot is None:
            return None

        def move(transaction: Transaction) -> None:
            with ManageSnapshots(transaction) as refs:
                # Stages the assertion that the target is still where it was read.
                refs.create_branch(snapshot.snapshot_id, commit.target)
                refs.remove_branch(commit.branch)

        return CommitOutcome.COMMITTED if commit_transaction(table, move) else None

    return commit_with_retry(table, attempt)


def drop_branch(table: Table, branch: str) -> bool:
    """Ensure that the branch does not exist, and return whether it did. Its snapshots expire with the next expiry.

    Raises `CommitConflict` when every attempt was refused, `CatalogUnavailable` when the catalog does not answer.
    """
    existed = False

    def attempt() -> bool | None:
        nonlocal existed
        if branch not in table.metadata.refs:
            return True
        existed = True

        def remove(transaction: Transaction) -> None:
            with ManageSnapshots(transaction) as refs:
                refs.remove_branch(branch)

        return True if commit_transaction(table, remove) else None

    commit_with_retry(table, attempt, "changes of a branch")
    return existed


def _is_published(table: Table, commit: Commit) -> bool:
    """Return whether the target already has what `commit` would add."""
    name = ".".join(table.name())
    progress = read_progress(metadata_at(table.metadata, commit.target), name)
    if progress == commit.start:
        return False
    # Plans of one stream follow each other: each starts where the previous one ends. So a table at the plan's end or
    # beyond has the plan's rows.
    if all(progress.get(tp, -1) >= end for tp, end in commit.end.items()):
        return True
    is_older = all(offset <= commit.start.get(tp, -1) for tp, offset in progress.items())
    if is_older and not commit.must_be_at_start:
        return False
    raise CommitConflict(
        f"table {name} has progress {progress_text(progress)}: neither where plan {commit.plan} starts nor at its end "
        f"or beyond. The table was rolled back, or another program wrote to it, while the plan was executed. Run again"
    )


def _stage(table: Table, commit: Commit) -> Snapshot | None:
    """Return the branch's snapshot on top of the target in the loaded `table`; None if the catalog refused it."""
    if not ensure_first_snapshot(table):
        return None
    head = head_of(table.metadata, commit.target)
    staged = head_of(table.metadata, commit.branch)
    if staged is not None and staged.parent_snapshot_id == (head.snapshot_id if head else None):
        return staged
    name = ".".join(table.name())
    properties = {
        PROGRESS_PROPERTY: progress_text(commit.end),
        PLAN_PROPERTY: commit.plan,
        **with_watermarks(commit.properties, metadata_at(table.metadata, commit.target), name),
    }

    def add(transaction: Transaction) -> None:
        if head is not None:
            with ManageSnapshots(transaction) as refs:
                assert_head(refs, commit.target, head)
                refs.create_branch(head.snapshot_id, commit.branch)
        stage_snapshot(transaction, properties, commit.branch, added=commit.files, is_append=True)

    return head_of(table.metadata, commit.branch) if commit_transaction(table, add) else None
