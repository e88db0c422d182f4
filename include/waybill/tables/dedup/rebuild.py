"""Follow a replacement of the main table's rows: rebuild the unique table and the duplicates table, then publish both.

`main` of the main table can change in other ways than by appended rows: a generation is promoted, a backfill is
promoted or undone, a person rolls the table back. Then rows that were swept are gone, and other rows may be the first
with their keys. So the next sweeps begin with the first row, on a branch of both tables
(`waybill.tables.iceberg.histories`), with separate plans and a separate key index. Consumers see the earlier rows until
the branch has swept all rows of `main`. Then both tables are published, the unique table first.

The branch of the unique table is the record of a rebuild: the next sweep that finds it continues it. It is abandoned
for another rebuild when the rows of `main` are replaced again, and without another one when `main` shows the earlier
swept rows again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from waybill.base.errors import CommitConflict, SweepHistoryLost
from waybill.tables.dedup.appends import TablePosition, appends_rows, backfill_of, snapshots_since
from waybill.tables.iceberg.dedup import DedupTables, SweepPosition, read_sweep_position
from waybill.tables.iceberg.generations import live_generation
from waybill.tables.iceberg.histories import (
    begin_history,
    drop_histories,
    generation_of_rebuild,
    new_rebuild,
    publish_history,
    rebuilds_of,
    shown_history,
)
from waybill.tables.iceberg.state import ancestry
from waybill.tables.staging.driver import OnStep

logger = logging.getLogger(__name__)


def find_change(main: Table, tables: DedupTables) -> str | None:
    """Return why the rows of `main` that were swept into `tables` are replaced; None: they are not.

    Raises `SweepHistoryLost` when this is unknown, because snapshots that were not swept have expired; `ProgressLost`.
    """
    swept = _position(tables)
    if swept is None or swept.main != str(main.metadata.table_uuid):
        return None
    return _change_since(main, swept, live_generation(tables.unique))


def find_rebuild(main: Table, tables: DedupTables) -> DedupTables | None:
    """Return the tables at the history of the unfinished rebuild; None: there is none that can continue."""
    for rebuild in rebuilds_of(tables.unique.metadata):
        found = tables.at(rebuild)
        if _can_continue(main, found, generation_of_rebuild(rebuild)):
            return found
    return None


def histories_of(tables: DedupTables, generation: int) -> Iterator[tuple[int, DedupTables]]:
    """Yield the tables at each history that has a branch (the shown history and rebuilds), with its generation.

    `generation`: the generation of the shown history, if the tables do not record it.
    """
    shown = shown_history(tables.unique.metadata)
    yield live_generation(tables.unique) or generation, tables.at(shown)
    for rebuild in rebuilds_of(tables.unique.metadata):
        yield generation_of_rebuild(rebuild), tables.at(rebuild)


def reads_from(main: Table, tables: DedupTables) -> SweepPosition | None:
    """Return the position in `main` from which the next sweep reads; None: its beginning. Raises as `find_change`."""
    if find_change(main, tables) is None:
        return _position(tables)
    running = find_rebuild(main, tables)
    return None if running is None else _position(running)


def follow_main(main: Table, shown: DedupTables, on_step: OnStep) -> DedupTables:
    """Return the tables at the history that the next sweep extends: the shown history, or the history of a rebuild.

    Starts a rebuild if `main` needs one, and abandons rebuilds that it does not need. Finishes an interrupted
    publication.

    Raises `SweepHistoryLost` as `find_change` does, and when the two tables have no common history; `CommitConflict`,
    `ProgressLost`, `CatalogUnavailable`.
    """
    if shown.duplicates.ref not in (None, MAIN_BRANCH):
        publish_history(shown.duplicates)
    change = find_change(main, shown)
    if change is None:
        _check_common_history(shown)
        if rebuilds_of(shown.unique.metadata) or rebuilds_of(shown.duplicates.metadata):
            main.refresh()
            shown.unique.refresh()
            if shown.unique.ref is None or find_change(main, shown) is not None:
                raise CommitConflict(
                    f"{_name(main)} was changed or its unique table was published meanwhile; run again"
                )
            give_up_rebuilds(shown)
        return shown
    running = find_rebuild(main, shown)
    if running is None:
        running = _start(main, shown)
        logger.warning(
            "%s: %s: the unique table and the duplicates table are rebuilt from its present rows, on the branches %s; "
            "until that is done, consumers see the rows from before",
            *(_name(main), change, running.unique.ref),
        )
        on_step("rebuild_started")
    give_up_rebuilds(shown, keep=running.unique.history_id)
    return running


def give_up_rebuilds(tables: DedupTables, keep: str | None = None) -> None:
    """Remove the branches of all rebuilds except `keep` from both tables."""
    # The unique table first: after that, none of them can be published.
    given_up = drop_histories(tables.unique, (keep,))
    tables.unique.refresh()
    drop_histories(tables.duplicates, (keep, shown_history(tables.unique.metadata)))
    for rebuild in given_up:
        logger.warning("%s: rebuild %s is given up: it is not needed any more", _name(tables.unique), rebuild)


def publish_if_current(main: Table, tables: DedupTables, on_step: OnStep) -> bool:
    """Publish a rebuild that has swept all rows of the loaded `main`, and return whether it was published.

    `main` is refreshed: if its rows were replaced in the meantime, the rebuild is not published.

    Raises `CommitConflict`, `ProgressLost`, `CatalogUnavailable`.
    """
    assert tables.unique.history_id is not None
    tables.unique.refresh()
    swept = _position(tables)
    if swept is None:
        return False
    try:
        unswept = snapshots_since(main, TablePosition(swept.snapshot, swept.sequence))
    except SweepHistoryLost:  # a rival has swept further than the tables loaded here
        return False
    if any(appends_rows(main, snapshot) for snapshot in unswept):
        return False
    main.refresh()
    if not _can_continue(main, tables, generation_of_rebuild(tables.unique.history_id)):
        return False
    publish_history(tables.unique)
    on_step("unique_published")
    publish_history(tables.duplicates)
    on_step("published")
    logger.info("%s: rebuild %s is published", _name(tables.unique), tables.unique.history_id)
    return True


def _start(main: Table, shown: DedupTables) -> DedupTables:
    generation = live_generation(main)
    assert generation is not None  # `ensure_tables` records it
    new = shown.at(new_rebuild(generation))

    def is_needed() -> bool:
        if shown_history(new.unique.metadata) != shown.unique.history_id:
            raise CommitConflict(f"{_name(new.unique)}: another process has published a rebuild meanwhile; run again")
        new.duplicates.refresh()
        return new.unique.ref is not None or find_rebuild(main, new) is None

    # The duplicates first: a branch of the unique table means that there is one of the duplicates table.
    begin_history(new.duplicates)
    if begin_history(new.unique, is_needed):
        return new
    rivals = find_rebuild(main, new)
    assert rivals is not None
    return rivals


def _change_since(main: Table, swept: SweepPosition, generation: int | None) -> str | None:
    """Return the cause that replaced the rows of `main` at a position; None: the rows are still the same."""
    live = live_generation(main)
    if all(snapshot.snapshot_id != swept.snapshot for snapshot in ancestry(main.metadata)):
        if None not in (generation, live) and generation != live:
            return f"generation {live} was promoted"
        if main.metadata.snapshot_by_id(swept.snapshot) is not None:
            return "it was rolled back, or another branch was published"
    for snapshot in reversed(snapshots_since(main, TablePosition(swept.snapshot, swept.sequence))):
        backfill = backfill_of(snapshot)
        if backfill is not None:
            return f"backfill {backfill} has replaced rows"
    return None


def _can_continue(main: Table, found: DedupTables, generation: int) -> bool:
    """Return whether the rows that a rebuild has swept are still rows of `main`."""
    live = live_generation(main)
    if found.unique.ref is None or found.duplicates.ref is None or live not in (None, generation):
        return False
    swept = _position(found)
    if swept is None:
        return True
    try:
        return swept.main == str(main.metadata.table_uuid) and _change_since(main, swept, generation) is None
    except SweepHistoryLost:
        return False


def _check_common_history(shown: DedupTables) -> None:
    if shown.duplicates.ref is None:
        unique, duplicates = _name(shown.unique), _name(shown.duplicates)
        rebuild = "no rebuild" if shown.unique.history_id is None else f"rebuild {shown.unique.history_id}"
        raise SweepHistoryLost(
            f"table {unique} has the rows of {rebuild}, and {duplicates} those of another history: one of the two was "
            f"rolled back to before a rebuild, or dropped. Roll the other one back as well, or drop both, and the next "
            f"sweep starts from what the main table holds now"
        )


def _position(tables: DedupTables) -> SweepPosition | None:
    return read_sweep_position(tables.unique.metadata, _name(tables.unique))


def _name(table: Table) -> str:
    return ".".join(table.name())
