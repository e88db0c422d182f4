"""Replace the rows of a range in a table: on a branch for inspection, on `main` by compare-and-swap, and undo that.

`RangeChange` describes the change of one table. Every attempt is based on the loaded table, and its commit is refused
if `main` has changed since then. So concurrent appends and compactions are kept.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots

from waybill.base.errors import BackfillRefused
from waybill.config.models import Config, Storage
from waybill.config.names import backfill_branch, backfill_plan_id, backfill_tag
from waybill.services.store import Store
from waybill.tables.backfill.cuts import CutJob, Side, cut_files, place_files
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.backfill.request import AnyRequest
from waybill.tables.backfill.work import TaskRunner
from waybill.tables.iceberg import RETRIES_PROPERTY, CommitOutcome, commit_with_retry, head_of, read_retries
from waybill.tables.iceberg.commit import assert_head, commit_transaction, ensure_first_snapshot, stage_snapshot
from waybill.tables.iceberg.progress import progress_text
from waybill.tables.iceberg.state import BACKFILL_PROPERTY, PROGRESS_PROPERTY, newest_property
from waybill.tables.staging.table_layout import TableLayout

logger = logging.getLogger(__name__)

ACTION_PROPERTY = "waybill.backfill.action"

UNDO_WINDOW = timedelta(days=7)
"""How long after its promotion a backfill can be undone. Expiry of snapshots then drops the tag, and the old files."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Data files to remove from a snapshot of a table, and to add to it."""

    removed: Sequence[DataFile]
    added: Sequence[DataFile]


@dataclass(frozen=True, slots=True)
class Cutter:
    """Finds the files of a range, and cuts those across its bounds."""

    store: Store
    storage: Storage
    catalog_connection: str
    stream: str
    backfill: str
    ranges: OffsetRanges
    memory_bytes: int
    for_each: TaskRunner

    @classmethod
    def of(cls, config: Config, store: Store, request: AnyRequest, for_each: TaskRunner) -> Self:
        """Return the cutter of a backfill's range."""
        return cls(
            store,
            config.storage,
            config.catalog.connection,
            request.stream,
            request.id,
            request.ranges,
            config.stream(request.stream).partition.memory,
            for_each,
        )

    def replacement(self, table: Table, base: Snapshot, new: Sequence[DataFile]) -> Replacement:
        """Return the replacement of the range's rows in the snapshot `base` by the files `new`."""
        inside, across = place_files(table, base.snapshot_id, self.ranges)
        rest = cut_files(self.store, table, self._job(table), across, Side.OUTSIDE, self.for_each)
        return _without_common([file.file for file in (*inside, *across)], [*new, *rest])

    def rows_of_range(self, table: Table, snapshot_id: int) -> list[DataFile]:
        """Return data files with exactly the range's rows in a snapshot: files of the snapshot, or cut ones."""
        inside, across = place_files(table, snapshot_id, self.ranges)
        # A file that is added again gets a new sequence number, which deletes of its rows do not reach.
        whole = [f for f in inside if not f.delete_files and f.file.spec_id == table.spec().spec_id]
        kept = {file.file.file_path for file in whole}
        to_cut = [*across, *(file for file in inside if file.file.file_path not in kept)]
        cut = cut_files(self.store, table, self._job(table), to_cut, Side.INSIDE, self.for_each)
        return [*(file.file for file in whole), *cut]

    def files_of_range(self, table: Table, snapshot_id: int) -> list[DataFile]:
        """Return data files of a snapshot with the range's rows, and possibly other rows; no file has deleted rows."""
        found = [file for files in place_files(table, snapshot_id, self.ranges) for file in files]
        with_deletes = [file for file in found if file.delete_files]
        cut = cut_files(self.store, table, self._job(table), with_deletes, Side.INSIDE, self.for_each)
        return [*(file.file for file in found if not file.delete_files), *cut]

    def _job(self, table: Table) -> CutJob:
        return CutJob(
            self.storage,
            self.catalog_connection,
            self.stream,
            self.backfill,
            backfill_plan_id(self.backfill),
            self.ranges,
            self.memory_bytes,
            TableLayout.of(table),
        )


def _without_common(removed: Sequence[DataFile], added: Sequence[DataFile]) -> Replacement:
    """Return the replacement without the files that it would remove and add again."""
    common = {file.file_path for file in removed} & {file.file_path for file in added}
    return Replacement(
        [file for file in removed if file.file_path not in common],
        [file for file in added if file.file_path not in common],
    )


@dataclass(frozen=True, slots=True)
class RangeChange:
    """One change of a table's range: its new files come from the backfill, or from an earlier snapshot of the table."""

    cutter: Cutter
    properties: Mapping[str, str]
    check: Callable[[Table], None]
    """Raises if the loaded table must not be changed."""

    @property
    def backfill(self) -> str:
        return self.cutter.backfill

    # --- on the branch ---

    def branch(self, table: Table, new: Sequence[DataFile], max_age: timedelta) -> Snapshot:
        """Ensure that the backfill's branch exists, with `new` in place of the range's rows, and return its snapshot.

        An existing branch is not changed, also if `main` has changed. It expires after `max_age`.

        Raises `CommitConflict` when every attempt was refused, `CatalogUnavailable` when the catalog does not answer.
        """
        name = backfill_branch(self.backfill)

        def attempt() -> Snapshot | None:
            existing = head_of(table.metadata, name)
            if existing is not None:
                return existing
            base = _head(table)
            if base is None:
                return None
            self.check(table)
            found = self.cutter.replacement(table, base, new)

            def stage(transaction: Transaction) -> None:
                with ManageSnapshots(transaction) as refs:
                    assert_head(refs, MAIN_BRANCH, base)
                    refs.create_branch(base.snapshot_id, name)
                _overwrite(transaction, found, {**self.properties, BACKFILL_PROPERTY: self.backfill}, name)
                # Set the age last, since PyIceberg drops the age of a branch that gets a snapshot.
                with ManageSnapshots(transaction) as refs:
                    staged = transaction.table_metadata.refs[name].snapshot_id
                    refs.create_branch(staged, name, int(max_age.total_seconds() * 1000))

            return head_of(table.metadata, name) if commit_transaction(table, stage) else None

        return commit_with_retry(table, attempt, "changes of a branch")

    # --- on main ---

    def promote(self, table: Table, new: Sequence[DataFile], number: int) -> CommitOutcome:
        """Replace the range's rows on `main` by `new`, tag the previous snapshot, and remove the backfill's branch.

        `number`: the number of the claim. Returns `ADOPTED` if another process has made the change. Raises as `branch`
        does.
        """

        def stage_refs(refs: ManageSnapshots, base: Snapshot) -> None:
            refs.create_tag(base.snapshot_id, backfill_tag(self.backfill), _age_ms(base, UNDO_WINDOW))
            if backfill_branch(self.backfill) in table.metadata.refs:
                refs.remove_branch(backfill_branch(self.backfill))

        return self._move(table, number, "promote", stage_refs, lambda base: self.cutter.replacement(table, base, new))

    def undo(self, table: Table, number: int, max_age: timedelta) -> CommitOutcome:
        """Restore the range's rows of the tagged snapshot on `main`, and drop the tag.

        The snapshot before the undo becomes the backfill's branch again, for `max_age`: it has the backfill's files.

        Raises `BackfillRefused` if the tag has expired, else as `promote` does.
        """
        tag = backfill_tag(self.backfill)

        def stage_refs(refs: ManageSnapshots, base: Snapshot) -> None:
            refs.create_branch(base.snapshot_id, backfill_branch(self.backfill), _age_ms(base, max_age))
            refs.remove_tag(tag)

        def restored(base: Snapshot) -> Replacement:
            if tag not in table.metadata.refs:
                raise BackfillRefused(
                    f"table {'.'.join(table.name())} no longer has the tag {tag}: backfill {self.backfill} can be "
                    f"undone for {UNDO_WINDOW.days} days. Request a new backfill of the range instead"
                )
            old = self.cutter.rows_of_range(table, table.metadata.refs[tag].snapshot_id)
            return self.cutter.replacement(table, base, old)

        return self._move(table, number, "undo", stage_refs, restored)

    def cancel(self, table: Table, number: int) -> CommitOutcome:
        """Remove the backfill's branch. Its files are removed when their snapshots expire, or as orphans."""

        def stage_refs(refs: ManageSnapshots, _: Snapshot) -> None:
            if backfill_branch(self.backfill) in table.metadata.refs:
                refs.remove_branch(backfill_branch(self.backfill))

        return self._move(table, number, "cancel", stage_refs, lambda _: None)

    def nothing(self, table: Table, number: int) -> CommitOutcome:
        """Record the number of a claim that has become pointless, without another change."""
        return self._move(table, number, "nothing", lambda *_: None, lambda _: None)

    def _move(
        self,
        table: Table,
        number: int,
        action: str,
        stage_refs: Callable[[ManageSnapshots, Snapshot], None],
        find: Callable[[Snapshot], Replacement | None],
    ) -> CommitOutcome:
        state = {RETRIES_PROPERTY: str(number + 1), **self.properties}

        def attempt() -> CommitOutcome | None:
            if read_retries(table.metadata, ".".join(table.name())) > number:
                return CommitOutcome.ADOPTED
            base = _head(table)
            if base is None:
                return None
            self.check(table)
            found = find(base)
            about = {} if found is None else {BACKFILL_PROPERTY: self.backfill, ACTION_PROPERTY: action}
            if newest_property(table.metadata, PROGRESS_PROPERTY) is None:
                # A quarantine that no run has written to: with rows and without progress, runs would refuse it.
                about[PROGRESS_PROPERTY] = progress_text({})

            def stage(transaction: Transaction) -> None:
                with ManageSnapshots(transaction) as refs:
                    assert_head(refs, MAIN_BRANCH, base)
                    stage_refs(refs, base)
                _overwrite(transaction, found or Replacement((), ()), {**state, **about}, MAIN_BRANCH)

            return CommitOutcome.COMMITTED if commit_transaction(table, stage) else None

        return commit_with_retry(table, attempt)


def _head(table: Table) -> Snapshot | None:
    """Return the head of `main`. If there is none, try to commit an empty first snapshot, and return None."""
    return head_of(table.metadata, MAIN_BRANCH) if ensure_first_snapshot(table) else None


def _overwrite(transaction: Transaction, found: Replacement, properties: Mapping[str, str], branch: str) -> None:
    is_empty = not found.removed and not found.added
    stage_snapshot(transaction, properties, branch, added=found.added, removed=found.removed, is_append=is_empty)


def _age_ms(snapshot: Snapshot, from_now: timedelta) -> int:
    """Return the age of a reference to `snapshot` at which it expires `from_now`. Iceberg counts from the commit."""
    now_ms = int(time.time() * 1000)
    return max(now_ms - snapshot.timestamp_ms, 0) + int(from_now.total_seconds() * 1000)
